"""The comparison on a screen: two ranks of the open job, and two jobs alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from jobs import NARROW, WIDE, answer, cells, keys_of, line_with, press, running, shown
from synthetic.demo import TrainingJob

from nsystui.base.answer import NAME, Column, TableAnswer, Unit
from nsystui.base.errors import UsageError
from nsystui.cli import main
from nsystui.commands import open as open_command
from nsystui.questions.compare import ComparisonOptions
from nsystui.questions.compare.side import Side
from nsystui.questions.job.opening import JobSource
from nsystui.questions.recipes import recipe_named
from nsystui.ui.app import Look
from nsystui.ui.diff_app import DiffApp
from nsystui.ui.screens.diff import change_styles, summary_styles, with_bars


@pytest.fixture(scope="session")
def other_job(written_once: Callable[..., list[Path]]) -> list[Path]:
    return written_once("other", TrainingJob(ranks=2, steps=3, layers=2, straggler=None).write)


@pytest.mark.campaign
async def test_enter_on_a_numbered_range_selects_every_number(demo_job, cache_directory):
    async with running(demo_job, cache_directory, NARROW, "x", "down", "x", "v", "n") as (app, pilot):
        place = next(n for n, name in enumerate(cells(app, "name")) if name.endswith("step *"))
        assert (await press(pilot, *["down"] * place, "enter", "enter")).current_mode == "nvtx"
        assert app.selection.name.matches("step 17") and not app.selection.name.matches("data step 17")


def test_bars_go_to_both_sides_and_are_as_long_as_the_difference():
    columns = (Column("difference", header="D", label="B − A", unit=Unit.CHANGE), NAME)
    answer = with_bars(TableAnswer("diff", columns, [(-600, "a"), (300, "b"), (1, "c"), (0, "d"), (None, "e")]))
    assert answer.cells("bar") == ["▼██████│       ", "       │███▲   ", "       │▲      ", "       │       ", None]
    assert answer.plain.columns == columns and answer.plain.rows[0] == (-600, "a")
    assert answer.sorted_by("bar", descending=True).cells("name")[0] == "b"
    assert [change_styles(record).get("bar") for record in answer.records()] == ["better", "worse", "worse", None, None]


def test_less_time_is_better_and_a_count_is_neither():
    columns = tuple(Column(key, header=key, label=key) for key in ("what", "unit", "difference"))
    for what, unit, difference, expected in (
        ("step time, median", "ns", -13_500, "better"),
        ("time span", "ns", 2_820_000_000, "worse"),
        ("  kernels", "ns", 0, None),
        ("GPU idle", "%", 0.6, "worse"),
        ("GPU idle", "%", 0.04, None),
        ("GPU busy", "%", 0.6, None),
        ("kernels launched", "count", 12, None),
    ):
        styles = summary_styles(TableAnswer("diff", columns, [(what, unit, difference)]))
        assert styles.get(what, {}).get("difference") == expected, what


@pytest.mark.campaign
async def test_what_cannot_be_compared_ends_with_its_reason(demo_job, cache_directory, tmp_path):
    def no_sides(jobs: Sequence[Any]) -> tuple[Side, Side]:
        raise UsageError("rank 9 is not open")

    broken = tmp_path / "broken.sqlite"
    broken.write_text("nothing")
    for files, complaint in (([demo_job, [broken]], "broken.sqlite"), ([demo_job], "rank 9 is not open")):
        sources = [JobSource(tuple(map(str, own)), cache_directory) for own in files]
        async with shown(DiffApp(sources, no_sides, ComparisonOptions(), Look())) as (app, _):
            assert app.return_code == 2 and any(complaint in reason for reason in app.reasons)


@pytest.mark.campaign
async def test_the_palettes_diff_compares_with_another_job_or_groups_of_ranks(demo_job, other_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):

        async def ask_for_other() -> None:
            app.screen.open_question(recipe_named("diff"))
            await pilot.pause()

        await ask_for_other()
        line_with(app, "compare with a path, or ranks A -- B")
        names = {
            "nowhere.sqlite": "nowhere.sqlite",
            "": "name the exports of the other job",
            '"a': "no closing quotation",
        }
        for text, complaint in names.items():
            await ask_for_other()
            line_with(await answer(app, pilot, text), complaint)
            assert app.screen.prompt.is_open
            await pilot.press("escape")

        await ask_for_other()
        await pilot.press(*keys_of("0-1 -- 2,3"), "enter")
        assert [side.label for side in app.screen.sides] == ["ranks 0-1", "ranks 2-3"]
        await pilot.press("escape")
        await ask_for_other()
        await press(pilot, *keys_of(str(other_job[0].parent)), "enter")
        assert (app.return_code, app.other_files) == (0, (str(other_job[0].parent),))


def test_the_application_for_comparisons_follows_if_another_job_was_named(demo_job, monkeypatch):
    apps: list[Any] = []

    def run(screen: object, environ: object, app: Any) -> int:
        app.other_files = () if apps else ("other/",)
        apps.append(app)
        return len(apps)

    monkeypatch.setattr(open_command, "checked_terminal", lambda command: {})
    monkeypatch.setattr(open_command, "run_app", run)
    assert main([str(demo_job[0])]) == 2
    assert isinstance(apps[1], DiffApp) and [source.files for source in apps[1].sources] == [
        (str(demo_job[0]),),
        ("other/",),
    ]
