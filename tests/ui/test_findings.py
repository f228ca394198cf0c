"""Findings on the overview: worst first, each a door, in the background."""

from __future__ import annotations

import pytest
from jobs import NARROW, WIDE, line_with, name_of_screen, press, resize, rested, running, screen_text
from synthetic import empty_export, illnesses
from synthetic.demo import TrainingJob

from nsystui.base.selection import NameFilter
from nsystui.questions.queries.question import SCREENS
from nsystui.questions.queries.registry import views_of
from nsystui.questions.triage.finding import DIAGNOSTICS, Advice, Door, Finding, Severity
from nsystui.ui.doors import show_finding
from nsystui.ui.screens.overview import OverviewScreen


@pytest.fixture(scope="module")
def stalled(written_once):
    """A slow rank and a stall."""
    shape = {"ranks": 2, "steps": 8, "layers": 4, "gpu_metrics": False}
    return written_once("stalled", TrainingJob(**shape, straggler=1, straggler_factor=1.4, stall_ms=40).write)


@pytest.fixture(scope="module")
def healthy(written_once):
    job = TrainingJob(ranks=1, steps=8, layers=16, straggler=None, stall_ms=0, gpu_metrics=False)
    return written_once("healthy", job.write)


def overview(app) -> OverviewScreen:
    assert name_of_screen(app) == "OverviewScreen"
    return app.screen


def rows(app) -> list[str]:
    """The findings by name, as the table has them."""
    answer = overview(app).findings.answer
    return [str(row[1]) for row in answer.page(0, len(answer))]


@pytest.mark.findings
class TestFound:
    @pytest.mark.campaign
    async def test_the_worst_comes_first_and_its_page_has_doors_from_it(self, stalled, cache_directory):
        async with running(stalled, cache_directory, NARROW) as (app, pilot):
            told = overview(app).findings.found.findings
            costs = [one.cost for one in told if one.severity.value == "warning" and not one.under]
            assert costs == sorted(costs, reverse=True)
            assert set("▏▎▍▌▋▊▉█") & set(line_with(app, "straggler ")) and "Rank 1" in line_with(app, "straggler ")
            assert "◂ straggler" in line_with(app, "      1     ")
            blockers = overview(app).findings.found.blockers
            assert f"a step: compute {blockers['compute']:.1f} %" in line_with(app, "blocked  ")
            assert f"compute {blockers['compute']:.0f} % of the time" in overview(app).findings.found.summary
            assert "to win" not in line_with(app, "what is wrong")  # at 80 cells what is wrong says more
            keys = [column.key for column in overview(app).answer_to_export().columns]
            assert {"id", "suggestion", "start", "command"} <= set(keys)
            for size in ((60, 15), WIDE, NARROW):
                screen = overview(await resize(pilot, *size))
                parts = (screen.findings, screen.ranks, screen.kernels)
                words = len(screen.head.texts) + len(screen.looking.texts)
                assert sum(part.size.height for part in parts) + words + 3 == size[1]
                assert any("GPUs are busy" in text for text in screen.looking.texts) == (size[1] >= 24)
                assert any(text.startswith("blocked") for text in screen.head.texts) == (size[1] >= 24)
                assert ("to win a step" in screen_text(app)[screen.findings.region.y]) == (size == WIDE)
                assert min(part.size.height for part in parts) >= (2 if size[1] >= 24 else 1)

            overview(app).findings.move_to([text.startswith("straggler") for text in rows(app)].index(True))
            await pilot.pause()
            assert name_of_screen(await press(pilot, "enter")) == "FindingScreen"  # the findings have the focus
            first = app.screen.finding
            assert first.id == "straggler"
            for word in ("why", "how to fix", "cost", "to win", "go to"):
                assert line_with(app, f"{word}  ")
            assert f"to win      {first.gain.words}"[:70] in line_with(app, "to win  ")
            assert first.advice.text[:20] in line_with(app, "how to fix")
            assert app.screen.table.row_count == len(first.evidence) and " of " in screen_text(app)[1]
            assert (await press(pilot, "right_square_bracket")).screen.finding is not first
            assert (await press(pilot, "left_square_bracket")).screen.finding is first
            assert name_of_screen(await press(pilot, "enter")) == "RanksScreen"
            assert app.screen.view.name == "collectives"
            assert name_of_screen(await press(pilot, "escape", "L")) == "TimelineScreen"
            await pilot.press("escape", "escape")

            overview(app).findings.focus()
            overview(app).findings.move_to([text.startswith("idle-gaps") for text in rows(app)].index(True))
            await pilot.pause()
            gap = overview(app).findings.current
            assert name_of_screen(await press(pilot, "enter", "enter")) == "TimelineScreen"
            window = app.selection.window
            assert window.start < gap.window.start and window.end > gap.window.end
            assert (await press(pilot, "escape", "escape")).selection.is_everything

            assert name_of_screen(await press(pilot, "end", "enter")) == "NotCheckedScreen"
            assert "needs" in line_with(app, "tensor-activity")

    @pytest.mark.campaign
    async def test_a_selection_has_its_own_findings(self, stalled, cache_directory):
        async with running(stalled, cache_directory, NARROW) as (app, pilot):
            screen, whole = overview(app), overview(app).findings.found
            screen.kernels.focus()
            await pilot.press("r", *"1", "enter")
            assert screen.focused is screen.kernels, "findings that come late leave the user where he is"
            assert screen.findings.found not in (None, whole)
            await pilot.press("escape")
            assert screen.findings.found is whole

    @pytest.mark.campaign
    async def test_every_view_of_a_finding_is_on_the_screen_that_it_names(self, stalled, cache_directory):
        async with running(stalled, cache_directory, NARROW) as (app, pilot):
            for view in (DIAGNOSTICS, *(view.name for home in SCREENS for view in views_of(home))):
                door, advice = Door(view, filter="x" if view == "api" else ""), Advice("do", "because")
                await show_finding(app, Finding("it", Severity.INFO, "it is so", advice, door))
                name = type((await rested(pilot)).screen).__name__.lower()
                own = {DIAGNOSTICS: "diagnostics", "call tree": "calltree", "GPU memory": "gpumemory"} | {
                    name: name for name in ("metrics", "network")
                }
                expected = own.get(view, door.screen.lower())
                assert name == f"{expected}screen", view
                assert name_of_screen(app) != "ViewsScreen" or app.screen.view.name == view
                assert app.selection.name == (NameFilter("x") if door.filter else None)
                await pilot.press("escape")

    @pytest.mark.campaign
    async def test_one_without_evidence_has_its_door_too(self, tmp_path, cache_directory):
        paths = illnesses.synchronous_memsets(tmp_path / "no-nvtx.sqlite").paths
        async with running(paths, cache_directory, NARROW, "enter") as (app, pilot):
            place = [one.evidence is None for one in app.screen.found.findings].index(True)
            assert (await press(pilot, *["right_square_bracket"] * place)).screen.finding.evidence is None
            assert name_of_screen(await press(pilot, "enter")) != "FindingScreen"

    @pytest.mark.campaign
    async def test_a_healthy_job_is_said_to_be_healthy(self, healthy, cache_directory):
        async with running(healthy, cache_directory, NARROW) as (app, pilot):
            line_with(app, "no issues found")
            overview(app).findings.focus()
            assert "no issues found" in screen_text(await press(pilot, "enter"))[-1]

    async def test_without_gpu_work_there_are_findings_too(self, tmp_path, cache_directory):
        async with running([empty_export(tmp_path / "empty.sqlite")], cache_directory, NARROW) as (app, _):
            assert any(text.startswith("no-gpu-work") for text in rows(app))


class TestHugeJobs:
    """Here every job is huge: see conftest."""

    @pytest.mark.campaign
    async def test_nothing_is_looked_for_until_a_key_asks(self, stalled, cache_directory):
        async with running(stalled, cache_directory, NARROW) as (app, pilot):
            assert "! checks" in line_with(app, "Findings") and overview(app).findings.found is None
            assert rows(await press(pilot, "exclamation_mark"))
            assert rows(await press(pilot, "r", *"1", "enter"))  # asked for once is asked for


@pytest.mark.campaign
@pytest.mark.findings
async def test_what_fails_is_said_and_the_screen_lives_on(healthy, cache_directory, monkeypatch):
    def broken(job: object) -> int:
        raise RuntimeError("no luck")

    monkeypatch.setattr("nsystui.questions.triage.run.triage", broken)
    async with running(healthy, cache_directory, NARROW) as (app, pilot):
        assert "could not be checked" in line_with(app, "Findings")
        assert name_of_screen(await press(pilot, "tab", "enter")) != "OverviewScreen"
