"""3 NCCL by group and by message size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import NARROW, WIDE, cells, line_with, press, resize, running, screen_text
from synthetic import two_process_export
from synthetic.demo import TrainingJob


@pytest.fixture(scope="module")
def job(written_once: Callable[..., list[Path]]) -> list[Path]:
    return written_once("sizes", TrainingJob(ranks=2, steps=2, layers=2, gpu_metrics=False).write)


@pytest.mark.campaign
async def test_b_groups_by_size_communicator_stream_rank_and_step(job, cache_directory):
    async with running(job, cache_directory, WIDE, "3") as (app, pilot):
        line_with(app, "rows of kernels")
        keys = [column.key for column in app.screen.table.answer.columns]
        assert {"bytes", "busbw"} <= set(keys) and "what" not in keys
        headings, totals = [], set()
        for _ in range(6):
            headings.append(app.screen.table.answer.columns[1].key)
            totals.add(tuple(sum(cells(app, key)) for key in ("count", "total", "exposed")))
            if headings[-1] == "rank":
                values = app.screen.values()
                line_with(await press(pilot, "enter"), f"{values['collective']} rank {values['rank']} kernels")
                assert len(app.screen.table.answer) == values["count"] and set(cells(app, "rank")) == {values["rank"]}
                await pilot.press("escape")
            await pilot.press("b")
        assert headings[0] == "bucket" and {"communicator", "stream", "rank", "step"} <= set(headings)
        assert len(totals) == 1
        await pilot.resize_terminal(*NARROW)
        line = line_with(await press(pilot, "3"), "busbw")
        assert "bytes" in line and "busbw" in line, "both stay at 80 columns"
        line_with(await press(pilot, "v"), "[CPU calls]")
        assert "ncclGroupEnd" in cells(app, "collective")
        line_with(await press(pilot, "enter"), "calls")
        line_with(await press(pilot, "escape", "V"), "rows of kernels")


@pytest.mark.campaign
async def test_the_summary_has_the_bandwidths_where_the_table_leaves_room(job, cache_directory):
    async with running(job, cache_directory, (200, 60), "3") as (app, pilot):
        words = "median bus bandwidth"
        assert line_with(app, words) and line_with(app, "calls by message size")
        assert app.screen.table.size.height > app.screen.table.row_count
        assert not any(words in line for line in screen_text(await resize(pilot, *NARROW)))
        assert line_with(await resize(pilot, *WIDE), "calls by message size")


@pytest.mark.campaign
async def test_all_collectives_are_in_one_chart_of_bandwidth_and_sizes_have_drawings(job, cache_directory):
    async with running(job, cache_directory, WIDE, "3", "v", "v") as (app, pilot):
        line_with(app, "w/o wait (where known) against message size")
        title, collectives = line_with(app, "  ○ "), set(app.screen.table.answer.cells("collective"))
        shown = {name for name in collectives if f" {name}" in title}
        assert shown == collectives
        marks = [title[title.index(f" {name}") - 1] for name in shown]
        assert len(set(marks)) == len(marks)
        plot = "".join(line[line.index("│") :] for line in screen_text(app) if "│" in line)
        assert all(mark in plot for mark in marks)
        values = app.screen.values()
        await pilot.press("enter")  # the kernels of a size, and then the event
        assert len(app.screen.table.answer) == values["count"]
        assert {row[2] for row in app.screen.table.answer.page(0, 1000)} == {values["message_size"]}
        line_with(await press(pilot, "enter"), "│6 Events│")
        await pilot.press("escape", "escape")
        line_with(await resize(pilot, *NARROW), "against message size")
        assert app.screen.values()["busbw"] > 0
        line_with(await press(pilot, "d"), "durations against message size")
        await pilot.press("d")
        for _ in range(3):  # by exact size, power of two and bucket
            line_with(app, "kernels by duration")
            assert line_with(app, "by duration") and line_with(app, "by equal steps")
            assert len([line for line in screen_text(app) if "▇" in line]) >= 2
            await pilot.press("b")
        line_with(await press(pilot, "b", "d"), "calls by message size")
        assert "size_from" in [column.key for column in app.screen.table.answer.columns]


async def test_without_sizes_it_says_how_to_get_them(tmp_path):
    async with running([two_process_export(tmp_path / "plain.sqlite")], None, NARROW, "3") as (app, pilot):
        line_with(app, "[kernels]")
        line_with(await press(pilot, "v", "v"), "no kernel here has a known message size")
