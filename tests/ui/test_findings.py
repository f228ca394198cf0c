"""Findings on the overview: worst first, with their pages, computed in the background."""

from dataclasses import replace

import pytest
from jobs import NARROW, WIDE, line_with, name_of_screen, press, rested, running, screen_text, shows
from synthetic.demo import TrainingJob

from nsystui.base.selection import NameFilter
from nsystui.questions.queries.question import SCREENS, views_of
from nsystui.questions.triage.finding import DIAGNOSTICS, Advice, Door, Finding, Severity
from nsystui.ui.screens.findings import FindingScreen
from nsystui.ui.screens.overview import OverviewScreen

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def stalled(written_once):
    """Return a job with a slow rank and a stall."""
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
    """Return the names of the findings in the table's order."""
    answer = overview(app).findings.answer
    return [str(row[1]) for row in answer.page(0, len(answer))]


@pytest.mark.findings
class TestFound:
    async def test_a_selection_has_its_own_findings(self, stalled, cache_directory):
        async with running(stalled, cache_directory, NARROW) as (app, pilot):
            screen, whole = overview(app), overview(app).findings.triage
            screen.kernels.focus()
            await pilot.press("r", *"1", "enter")
            assert screen.focused is screen.kernels, "findings that come late leave the user where he is"
            assert screen.findings.triage not in (None, whole)
            await pilot.press("escape")
            assert screen.findings.triage is whole

    async def test_every_view_of_a_finding_is_on_the_screen_that_it_names(self, stalled, cache_directory):
        async with running(stalled, cache_directory, NARROW) as (app, pilot):
            screens = {view.name: view.screen for home in SCREENS for view in views_of(home)}
            triage = overview(app).findings.triage
            for view in (DIAGNOSTICS, *screens):
                door, advice = Door(view, filter="x" if view == "api" else ""), Advice("do", "because")
                finding = Finding("it", Severity.INFO, "it is so", advice, door)
                overview(app).lay_over(FindingScreen(replace(triage, findings=(finding,)), 0))
                await press(pilot, "enter")
                name = type((await rested(pilot)).screen).__name__.lower()
                assert name == f"{screens.get(view, view).lower().replace(' ', '')}screen", view
                assert name_of_screen(app) != "ViewsScreen" or app.screen.view.name == view
                assert app.selection.name == (NameFilter("x") if door.filter else None)
                await press(pilot, "escape", "escape")

    async def test_each_page_has_at_least_five_rows_of_evidence_in_sight(self, stalled, cache_directory):
        async with running(stalled, cache_directory, NARROW) as (app, pilot):
            for number in range(len(overview(app).findings.triage.findings)):
                await press(pilot, "home", *["down"] * number, "enter")
                table = app.screen.table
                assert table.size.height - 1 >= min(5, table.row_count), "\n".join(screen_text(app))
                shows(app, "how to fix", "go to")
                await press(pilot, "escape")

    async def test_a_healthy_job_is_said_to_be_healthy(self, healthy, cache_directory):
        async with running(healthy, cache_directory, NARROW) as (app, pilot):
            line_with(app, "no issues found")
            overview(app).findings.focus()
            assert "no issues found" in screen_text(await press(pilot, "enter"))[-1]


class TestHugeJobs:
    """Here every job is huge: see conftest."""

    async def test_nothing_is_looked_for_until_a_key_asks(self, stalled, cache_directory):
        async with running(stalled, cache_directory, NARROW) as (app, pilot):
            assert "! checks" in line_with(app, "Findings") and overview(app).findings.triage is None
            assert rows(await press(pilot, "exclamation_mark"))
            assert rows(await press(pilot, "r", *"1", "enter"))  # one request is enough


@pytest.mark.findings
async def test_what_fails_is_said_and_the_screen_lives_on(healthy, cache_directory, monkeypatch):
    def broken(job: object) -> int:
        raise RuntimeError("no luck")

    monkeypatch.setattr("nsystui.questions.triage.run.triage", broken)
    async with running(healthy, cache_directory, NARROW) as (app, pilot):
        assert "could not be checked" in line_with(app, "Findings")
        assert name_of_screen(await press(pilot, "tab", "enter")) != "OverviewScreen"


@pytest.mark.findings
@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_the_overview_has_the_cause_of_each_finding_uncut(demo_job, cache, size):
    async with running(demo_job, cache, size) as (app, _):
        shows(app, "cudaMalloc in `data loading`, step ")
        assert not any("…" in text for text in screen_text(app) if text.startswith(("▸ W", "  W", "  I")))


def finding(sentence: str, line: str = "") -> Finding:
    return Finding("rule", Severity.INFO, sentence, Advice("", ""), Door("kernels"), line=line)


@pytest.mark.parametrize(("sentence", "line"), [
    ("Each GPU idles 1.5 ms while it waits (4 gaps). The longest is long.", "idle while it waits"),
    ("The GPU spends 1.056 s on layout changes, 12 % of the time.", "layout changes"),
    ("The GPU idles during compilation: 1.5 ms per GPU.", "idle during compilation"),
    ("Of the kernel time, 46 % is TF32.", "Of the kernel time, 46 % is TF32"),
    ("The first cudaFree takes 27.5 ms.", "The first cudaFree takes 27.5 ms"),
])  # fmt: skip
def test_a_finding_without_a_line_has_its_first_clause_without_the_cost(sentence, line):
    assert finding(sentence).in_a_line == line
    assert finding(sentence, "its own").in_a_line == "its own"
