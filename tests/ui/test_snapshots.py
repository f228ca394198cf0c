"""A picture of every screen on the demo job, compared with the last accepted picture.

``python -m pytest --snapshot-update tests/ui/test_snapshots.py`` accepts new snapshots.
"""

import pytest
from jobs import name_of_screen, running
from pytest_textual_snapshot import normalize_svg
from scenes import NARROW, SCENES, WIDE, Scene, cache_in
from support import session_over
from update_demo import unpack

from nsystui.store.cache import Cache
from nsystui.ui.screens import findings
from screenshots import snapshot_path


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pictures") / "demo-job"  # the folder's name is on the screen
    files = unpack("training", directory)
    # Columns keep the width that a sample needs, so without a pack only the first picture would differ.
    session_over(*files, cache=Cache(cache_in(directory))).close()
    return directory, tuple(map(str, files))


async def pictures(demo, scenes: list[Scene], size: tuple[int, int]) -> dict[str, str]:
    """Return the picture of each scene, all from one start of the program: scenes do not affect each other."""
    directory, files = demo
    made = {}
    async with running(files, cache_in(directory), size) as (app, pilot):
        for scene in scenes:
            await pilot.press(*scene.keys)
            made[scene.name] = app.export_screenshot(simplify=True)
            if app.screen.is_modal:
                await pilot.press("escape")
            if scene.keys and scene.keys[0].isdigit():
                await pilot.press(scene.keys[0], "1")  # the tab's first view
            while name_of_screen(app) != "OverviewScreen":
                await pilot.press("escape")
            await pilot.press("home")
    return made


@pytest.mark.campaign  # tests/ui/tours has the same screens as text in the fast set
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["120x36", "80x24"])
async def test_screen_looks_as_it_was_accepted(demo, size, request, tmp_path, monkeypatch):
    # The scene of the list of events scrolls it, and the help shows it in the background.
    others = sorted((scene for scene in SCENES if scene.name != "overview"), key=lambda scene: scene.name == "events")
    found = await pictures(demo, others, size)
    monkeypatch.setattr(findings, "MOST_KERNELS", 5_000_000)  # the overview shows them
    found |= await pictures(demo, [SCENES[0]], size)
    other = []
    for name, picture in found.items():
        accepted, picture = snapshot_path(name, size), normalize_svg(picture)
        if request.config.getoption("update_snapshots"):
            accepted.write_text(picture, encoding="utf-8")
        elif picture != accepted.read_text(encoding="utf-8"):
            other.append(tmp_path / accepted.name)
            other[-1].write_text(picture, encoding="utf-8")
    assert not other, f"look at them, and accept them with --snapshot-update: {other}"
