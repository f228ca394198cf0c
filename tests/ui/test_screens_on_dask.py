"""``nsystui --dask ADDRESS packed``: the screens show results of a cluster's workers."""

import pytest
from jobs import NARROW, screen_text

from nsystui.cli import main
from nsystui.questions.job.on_dask import DaskWorkers
from nsystui.questions.job.opening import JobSource
from nsystui.ui.app import NsystuiApp

pytestmark = pytest.mark.campaign
pytest.importorskip("distributed", reason="Dask is not installed: pip install 'nsystui[dask]'")


@pytest.fixture(scope="module")
def packed(demo_job, tmp_path_factory):
    directory = tmp_path_factory.mktemp("packed") / "job"
    assert main(["pack", *map(str, demo_job), "-o", str(directory)]) == 0
    return directory


async def shown(packed, dask):
    """Return the text of the Kernels, NCCL and Ranks screens."""
    app = NsystuiApp(JobSource((str(packed),), dask=dask))
    async with app.run_test(size=NARROW) as pilot:
        screens = []
        for key in "237":
            await pilot.press(key)
            screens.append(screen_text(app))
        return screens


async def test_the_screens_of_a_cluster_are_the_screens_here(packed, dask_scheduler, monkeypatch):
    """Each request to workers is about some of the reports."""
    asked, each = [], DaskWorkers.each

    def noted(self, work, tell):
        asked.append(sum(len(run) for run, _ in work))
        return each(self, work, tell)

    monkeypatch.setattr(DaskWorkers, "each", noted)
    on_cluster = await shown(packed, dask_scheduler)
    assert asked and set(asked) <= {1, 2, 3, 4}
    assert on_cluster == await shown(packed, None)


async def test_no_scheduler_ends_the_program_with_the_reason(packed):
    app = NsystuiApp(JobSource((str(packed),), dask="nowhere"))
    async with app.run_test(size=NARROW):
        pass
    assert app.return_code == 2
    assert "neither a scheduler file nor an address" in app.reasons[0]
