"""8 Host: threads, functions and the call tree of the CPU samples, GPU memory, and the ways between them."""

from __future__ import annotations

import csv
import io

import pytest
from jobs import NARROW, WIDE, becomes, line_with, running, screen_text
from support import edit
from synthetic import ExportWriter, training_job

from nsystui.cli import main
from nsystui.exports.writing.host import Frame
from nsystui.ui.doors import show_view
from nsystui.ui.screens.host import CallTreeScreen, ThreadFunctionsScreen
from nsystui.ui.widgets.lines import ChoiceLine, DetailPane

HOST_TABLES = (
    *("SCHED_EVENTS", "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS", "OSRT_API", "OSRT_CALLCHAINS"),
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
)


@pytest.fixture
def job(two_ranks):
    return two_ranks


def view_bar(app) -> str:
    return app.screen.query_one(ChoiceLine).render_line(0).text.rstrip()


def column(app, key: str) -> list:
    answer = app.screen.table.answer
    place = [one.key for one in answer.columns].index(key)
    return [row[place] for row in answer.page(0, len(answer))]


def printed(capsys, *words) -> list[list[str]]:
    assert main([*map(str, words), "--format", "csv"]) == 0
    return list(csv.reader(io.StringIO(capsys.readouterr().out)))


async def test_the_host_has_a_tab_with_all_views_on_its_bar(job, cache):
    async with running(job, cache, NARROW) as (app, pilot):
        await pilot.press("8")
        assert "│8 Hst│" in screen_text(app)[0]
        assert view_bar(app).startswith("view [threads] functions  call tree")
        assert "GPU memory" in view_bar(app)
        assert "every" in screen_text(app)[1], "the sampling period"


async def test_threads_functions_and_memory_are_those_of_the_commands(job, cache, capsys):
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("8")
        threads = column(app, "thread")
        await pilot.press("v")
        functions = column(app, "full_name")
        await pilot.press("v", "v")
        gaps = column(app, "time")
        await pilot.press("v")
        memory = column(app, "peak")
    rows = printed(capsys, "threads", *job)
    assert threads == [row[rows[0].index("Thread")] for row in rows[1:]]
    rows = printed(capsys, "functions", *job)
    assert functions == [row[rows[0].index("Full Name")] for row in rows[1:]]
    rows = printed(capsys, "gaps", *job)
    assert gaps == [int(row[rows[0].index("Idle (ns)")]) for row in rows[1:]]
    rows = printed(capsys, "gpu-memory", *job)
    assert memory == [int(row[rows[0].index("Peak (B)")]) for row in rows[1:]]


async def test_the_call_tree_is_offered_where_rows_have_samples(job, cache):
    async with running(job, cache, NARROW) as (app, pilot):
        await pilot.press("8")
        offered = {}
        for view in ("threads", "functions", "gaps", "GPU memory"):
            await show_view(app, view)
            await pilot.pause()
            offered[view] = "c call tree" in screen_text(app)[-1]
        assert offered == {"threads": True, "functions": True, "gaps": False, "GPU memory": False}
        await pilot.press("question_mark")
        assert "the call tree of a thread" not in "\n".join(screen_text(app))


async def test_a_thread_opens_its_functions_and_a_function_its_callers(job, cache, capsys):
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("8")
        thread = app.screen.values()
        await pilot.press("enter")
        assert isinstance(app.screen, ThreadFunctionsScreen)
        assert str(thread["tid"]) in view_bar(app)
        function = app.screen.values()
        assert sum(column(app, "own")) == thread["samples"]
        await pilot.press("enter")
        assert isinstance(app.screen, CallTreeScreen) and "[callers]" in view_bar(app)
        first = app.screen.values()
        assert (first["call"].strip(), first["total"]) == (function["function"], function["total"])
        await pilot.press("escape")
        assert app.screen.values()["full_name"] == function["full_name"]
        await pilot.press("escape")
        assert app.screen.values()["tid"] == thread["tid"]


async def test_the_call_tree_has_its_hot_path_opened_and_opens_and_closes_as_ranges_do(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("8", "v", "v")
        assert isinstance(app.screen, CallTreeScreen) and "[top-down]" in view_bar(app)
        opened = app.screen.table.row_count
        assert "◂" in column(app, "hot")
        whole = app.screen.values()["total"]
        await pilot.press("left")
        closed = app.screen.table.row_count
        assert closed < opened
        await pilot.press("right")
        assert app.screen.table.row_count > closed
        await pilot.press("b")
        assert "[bottom-up]" in view_bar(app)
        assert app.screen.values()["total"] <= whole
        assert all(
            own is None or own <= total
            for own, total in zip(column(app, "own"), column(app, "total"), strict=True)
            if total
        )


async def test_a_filter_begins_the_call_tree_at_functions_of_that_name(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("8", "v")
        name = app.screen.values()["function"]
        await pilot.press("v", "slash")
        app.screen.prompt.value = name
        await pilot.press("enter")
        assert name in app.screen.values()["call"]


async def test_e_writes_the_call_tree_that_is_seen_as_the_command_prints_it(job, cache, capsys, tmp_path):
    target = tmp_path / "tree.csv"
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("8", "v", "v", "b", "e")
        app.screen.prompt.value = str(target)
        await pilot.press("enter")
    assert main(["calltree", *map(str, job), "--bottom-up", "--format", "csv"]) == 0
    assert target.read_text() == capsys.readouterr().out


async def test_functions_are_kept_apart_by_rank_or_thread(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("8", "v")
        assert "by [all] rank  thread" in view_bar(app)
        await pilot.press("b")
        assert set(column(app, "rank")) == {0, 1}
        await pilot.press("b")
        assert "thread" in [one.key for one in app.screen.table.answer.columns]


async def test_a_cause_opens_the_gaps_and_a_gap_is_shown_on_the_timeline(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("8", "v", "v", "v")
        assert "by [cause]" in view_bar(app)
        await pilot.press("enter")
        gap = app.screen.values()
        assert "[gap]" in view_bar(app) and gap["duration"] >= 1_000_000
        await pilot.press("enter")
        assert app.current_mode == "timeline"
        view = app.screen.picture.window
        assert view.start <= gap["start"] and gap["start"] + gap["duration"] <= view.end
        assert app.screen.lane.rank == gap["rank"]
        await pilot.press("escape")
        assert app.screen.values()["start"] == gap["start"]
        await pilot.press("escape")
        assert "by [cause]" in view_bar(app)


async def test_the_details_of_a_cause_have_its_nvtx_ranges_and_those_of_a_range_its_causes(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("8")
        await show_view(app, "gaps")
        await pilot.pause()
        assert await becomes(pilot, lambda: any("NVTX ranges: " in text for text in pane_lines(app)))
        app.screen._group_by(2)
        await pilot.pause()
        assert sum(column(app, "percent")) == pytest.approx(100)
        assert await becomes(pilot, lambda: any("causes: " in text for text in pane_lines(app)))


async def test_the_details_of_memory_have_its_curve_and_its_row_opens_the_allocations(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("8", "V")
        pane = app.screen.query_one(DetailPane)
        assert any("█" in text for text in pane.lines)
        await pilot.press("enter")
        assert "bytes" in [one.key for one in app.screen.table.answer.columns]


async def test_the_details_of_an_allocation_have_its_call_stack(tmp_path):
    with ExportWriter(tmp_path / "x.sqlite") as export:
        process = export.process(70)
        export.kernel(process, 0, 7, 1_000, 90_000, name="k(int)", correlation_id=None)
        stack = [Frame("cudaMalloc", "/x/libcudart.so.12"), Frame("Pool::grow(int)", "/x/app"), Frame("main", "/x/app")]
        main_thread = export.thread(process, 70, "python")
        export.nvtx_range(main_thread, 0, 100, "load data")
        export.api(main_thread, 10, 60, "cudaMalloc_v3020", 1, stack=stack)
        export.gpu_memory(process, 0, 50, 64, address=64, correlation_id=1)
    async with running([tmp_path / "x.sqlite"], tmp_path / "cache", NARROW) as (app, pilot):
        await pilot.press("8", "V", "enter")
        assert "stack Pool::grow ‹ main" in " ".join(app.screen.query_one(DetailPane).lines)


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_an_export_without_host_tables_says_what_to_record(tmp_path, size):
    (path,) = training_job(tmp_path, ranks=1, steps=2, layers=2)
    edit(path, *(f"DROP TABLE IF EXISTS {name}" for name in HOST_TABLES))
    async with running([path], tmp_path / "cache", size) as (app, pilot):
        await pilot.press("8")
        assert line_with(app, "--cpuctxsw=process-tree")
        for words in ("--sample=process-tree", "--backtrace=dwarf"):
            await pilot.press("v")
            assert words in " ".join(screen_text(app)), screen_text(app)
        await pilot.press("v", "v")
        assert line_with(app, "--cuda-memory-usage=true")


async def test_the_details_of_a_launch_say_what_its_thread_did_while_the_gpu_was_idle(job, cache):
    async with running(job[:1], cache, WIDE) as (app, pilot):
        await pilot.press("8", "v", "v", "v", "B")
        gaps = app.screen.table.answer
        place = {one.key: number for number, one in enumerate(gaps.columns)}
        gap = next(row for row in gaps.page(0, len(gaps)) if row[place["part"]] == "gap")
        after = gap[place["start"]] + gap[place["duration"]]
        await pilot.press("6")
        events = app.screen.table.answer
        keys = [one.key for one in events.columns]
        number = events.at_time(after)
        row = events.page(number, 1)[0]
        while row[keys.index("device")] is None:
            number += 1
            row = events.page(number, 1)[0]
        assert row[keys.index("start")] == after
        app.screen.table.move_to(number)
        await becomes(pilot, lambda: any("the GPU was idle for" in text for text in pane_lines(app)))
        said = next(text for text in pane_lines(app) if "the GPU was idle for" in text)
        assert str(gap[place["what"]] or gap[place["cause"]])[:12] in said


def pane_lines(app) -> tuple[str, ...]:
    return app.screen.query_one(DetailPane).lines


async def test_what_the_application_printed_is_told_with_its_steps(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("p")
        assert "what the application printed" in view_bar(app)
        steps = [step for step in column(app, "step") if step is not None]
        assert steps and all("training" in text or "step" in text for text in column(app, "text"))
        await pilot.press("G", "enter")
        assert app.current_mode == "timeline"
