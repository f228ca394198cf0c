"""8 Host: threads, functions and the call tree of the CPU samples, and the ways between them; GPU memory."""

from __future__ import annotations

import csv
import io

import jobs
import pytest
from jobs import (
    NARROW,
    WIDE,
    answer,
    cells,
    name_of_screen,
    press,
    resize,
    rested,
    running,
    screen_text,
    view_bar,
)
from support import edit
from synthetic import ExportWriter, training_job
from synthetic.writing.host import Frame

from nsystui.cli import main
from nsystui.ui.doors import show_view
from nsystui.ui.widgets.panels import DetailPane

HOST_TABLES = (
    *("SCHED_EVENTS", "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS", "OSRT_API", "OSRT_CALLCHAINS"),
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
)


def printed(capsys, *words) -> list[list[str]]:
    assert main([*map(str, words), "--format", "csv"]) == 0
    return list(csv.reader(io.StringIO(capsys.readouterr().out)))


@pytest.mark.campaign
async def test_the_host_has_a_tab_whose_views_are_those_of_the_commands(job, cache, capsys):
    async with running(job, cache, NARROW, "8") as (app, pilot):
        assert "│8 Hst│" in screen_text(app)[0]
        assert view_bar(app).startswith("view [threads] functions  call tree")
        assert "every" in screen_text(app)[1], "the sampling period"
        seen = {}
        for view, key in (("threads", "thread"), ("functions", "full_name"), ("gaps", "time"), ("GPU memory", "peak")):
            await show_view(app, view)
            await pilot.pause()
            seen[view] = cells(app, key)
    for view, command, heading, read in (
        ("threads", "threads", "Thread", str),
        ("functions", "functions", "Full Name", str),
        ("gaps", "gaps", "Idle (ns)", int),
        ("GPU memory", "gpu-memory", "Peak (B)", int),
    ):
        rows = printed(capsys, command, *job)
        assert seen[view] == [read(row[rows[0].index(heading)]) for row in rows[1:]], view


@pytest.mark.campaign
async def test_the_call_tree_has_its_hot_path_opened_and_opens_and_closes_as_ranges_do(job, cache, capsys, tmp_path):
    target = tmp_path / "tree.csv"
    async with running(job, cache, WIDE, "8", "v", "v") as (app, pilot):
        assert name_of_screen(app) == "CallTreeScreen" and "[top-down]" in view_bar(app)
        opened = app.screen.table.row_count
        assert "◂" in cells(app, "hot")
        whole = app.screen.values()["total"]
        closed = (await press(pilot, "left")).screen.table.row_count
        assert closed < opened
        assert (await press(pilot, "right")).screen.table.row_count > closed
        assert "[bottom-up]" in view_bar(await press(pilot, "b")) and app.screen.values()["total"] <= whole
        both = zip(cells(app, "own"), cells(app, "total"), strict=True)
        assert all(own is None or own <= total for own, total in both if total)
        await answer(app, pilot, str(target), "e")
        name = (await press(pilot, "V")).screen.values()["function"]
        await answer(app, pilot, name, "v", "slash")
        assert name in app.screen.values()["call"], "a filter begins the tree at functions of that name"
    assert main(["calltree", *map(str, job), "--bottom-up", "--format", "csv"]) == 0
    assert target.read_text() == capsys.readouterr().out


@pytest.mark.campaign
async def test_the_time_of_the_thread_under_the_cursor_is_drawn_where_the_table_leaves_room(job, cache):
    async with running(job, cache, (120, 50), "8", "down") as (app, pilot):
        row, chart = app.screen.values(), app.screen.chart
        (lane,) = chart.lanes
        assert lane.label == row["thread"] and screen_text(app)[chart.region.y].strip().startswith(row["thread"])
        means = {category: 100 * sum(shares) / len(shares) for category, shares in lane.stack}
        expected = {"api": "cuda_percent", "os": "os_percent", "cpu": "running_percent"}
        recorded = {category: row[key] for category, key in expected.items() if row[key]}
        assert {category: means[category] for category in recorded} == pytest.approx(recorded) and recorded
        assert not (await press(pilot, "v")).screen.chart.display
        assert (await press(pilot, "V")).screen.chart.display
        assert not (await resize(pilot, *NARROW)).screen.chart.display


@pytest.mark.campaign
async def test_the_details_of_memory_have_its_curve_and_a_row_opens_what_was_in_use_at_its_own_peak(job, cache, capsys):
    rows = printed(capsys, "gpu-memory", "--allocations", "at-peak", *job)
    async with running(job, cache, WIDE, "4", "V") as (app, pilot):
        assert "[memory]" in view_bar(app) and len({*cells(app, "rank")}) > 1
        for _ in range(len(cells(app, "rank"))):
            place = {key: app.screen.values()[key] for key in ("rank", "device", "memory")}
            assert any("█" in text for text in app.screen.query_one(DetailPane).lines)
            await pilot.press("enter")
            assert f"rank {place['rank']} › device {place['device']} › {place['memory']} memory" in view_bar(app)
            own = [int(row[3]) for row in rows[1:] if row[:3] == [str(value) for value in place.values()]]
            assert cells(app, "bytes") == own and own
            assert {(row[0], row[2]) for row in app.screen.table.answer.rows} == {(place["rank"], place["memory"])}
            await pilot.press("escape", "down")


async def test_the_details_of_an_allocation_have_its_call_stack(tmp_path):
    with ExportWriter(tmp_path / "x.sqlite") as export:
        process = export.process(70)
        export.kernel(process, 0, 7, 1_000, 90_000, name="k(int)", correlation_id=None)
        stack = [Frame("cudaMalloc", "/x/libcudart.so.12"), Frame("Pool::grow(int)", "/x/app"), Frame("main", "/x/app")]
        main_thread = export.thread(process, 70, "python")
        export.nvtx_range(main_thread, 0, 100, "load data")
        export.api(main_thread, 10, 60, "cudaMalloc_v3020", 1, stack=stack)
        export.gpu_memory(process, 0, 50, 64, address=64, correlation_id=1)
    async with running([tmp_path / "x.sqlite"], tmp_path / "cache", NARROW, "4", "V", "enter") as (app, _):
        assert "stack Pool::grow ‹ main" in " ".join(app.screen.query_one(DetailPane).lines)


@pytest.mark.campaign
async def test_an_export_without_host_tables_says_what_to_record(tmp_path):
    (path,) = training_job(tmp_path, ranks=1, steps=2, layers=2)
    edit(path, *(f"DROP TABLE IF EXISTS {name}" for name in HOST_TABLES))
    async with running([path], tmp_path / "cache", NARROW, "8") as (_, pilot):
        flags = ("--cpuctxsw=process-tree", "--sample=process-tree", "--backtrace=dwarf", "--cuda-memory-usage=true")
        for keys, words in zip(("", "v", "v", "4V"), flags, strict=True):
            await pilot.press(*keys)
            for size in (WIDE, NARROW):
                assert words in " ".join(screen_text(await jobs.resize(pilot, *size))), (words, size)


@pytest.mark.campaign
async def test_the_details_of_a_launch_say_what_its_thread_did_while_the_gpu_was_idle(job, cache):
    async with running(job[:1], cache, WIDE, "8", *"vvvbbb") as (app, pilot):
        gaps = app.screen.table.answer
        place = {one.key: number for number, one in enumerate(gaps.columns)}
        gap = next(row for row in gaps.page(0, len(gaps)) if row[place["part"]] == "gap")
        after = gap[place["start"]] + gap[place["duration"]]
        events = (await press(pilot, "6")).screen.table.answer
        keys, number = [one.key for one in events.columns], events.at_time(after)
        row = events.page(number, 1)[0]
        while row[keys.index("device")] is None:
            number += 1
            row = events.page(number, 1)[0]
        assert row[keys.index("start")] == after
        app.screen.table.move_to(number)
        _, said = " ".join((await rested(pilot)).screen.query_one(DetailPane).lines).split("the GPU was idle for")
        assert str(gap[place["what"]] or gap[place["cause"]])[:12] in said
