"""A picture of every screen on the demo job, compared with the last one that somebody looked at and accepted.

``python -m pytest --snapshot-update tests/ui/test_snapshots.py`` accepts new ones.
"""

from __future__ import annotations

import pytest
from scenes import NARROW, SCENES, WIDE, cache_in
from synthetic import training_job

from nsystui.questions.opening import Source
from nsystui.store.cache import Cache
from nsystui.store.session import Session
from nsystui.ui.app import NsystuiApp
from nsystui.ui.screens import findings


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pictures") / "demo-job"  # the folder's name is on the screen
    directory.mkdir()
    files = training_job(directory, ranks=4, steps=4)
    # Columns keep the width that a sample needed: whichever picture comes first must not be the only one with one.
    session = Session(cache=Cache(cache_in(directory)))
    for path in files:
        session.add(path)
    session.close()
    return directory, tuple(map(str, files))


WITH_FINDINGS = {"overview"}
"""The scenes on which findings are to be seen."""


@pytest.fixture
def scene_findings(scene, monkeypatch):
    if scene.name in WITH_FINDINGS:
        monkeypatch.setattr(findings, "MOST_KERNELS", 5_000_000)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["120x36", "80x24"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_screen_looks_as_it_was_accepted(demo, scene_findings, scene, size, snap_compare):
    directory, files = demo
    app = NsystuiApp(Source(files, cache_in(directory)))
    assert snap_compare(app, terminal_size=size, run_before=lambda pilot: pilot.press(*scene.keys))
