"""3 NCCL by group and by message size."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import WIDE, hit, running, shows

from nsystui.exports.demo import TrainingJob


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("sizes") / "job"
    TrainingJob(ranks=2, steps=2, layers=2, gpu_metrics=False).write(directory)
    return sorted(directory.glob("*.sqlite"))


async def test_b_groups_by_size_communicator_stream_rank_and_step(job, cache_directory):
    async with running(job, cache_directory, WIDE) as (app, pilot):
        await hit(app, pilot, "3")
        headings = []
        totals = set()
        for _ in range(6):
            answer = app.screen.table.answer
            headings.append(answer.columns[2].key)
            keys = [column.key for column in answer.columns]
            kernels = [row for row in answer.page(0, 1000) if row[0] == "kernel"]
            totals.add(tuple(sum(row[keys.index(key)] for row in kernels) for key in ("count", "total", "exposed")))
            await hit(app, pilot, "b")
        assert headings[0] == "bucket"
        assert {"communicator", "stream", "rank", "step"} <= set(headings)
        assert len(totals) == 1


async def test_a_row_of_a_group_opens_its_kernels(job, cache_directory):
    async with running(job, cache_directory, WIDE) as (app, pilot):
        await hit(app, pilot, "3", "b", "b", "b", "b")
        values = app.screen.values()
        await hit(app, pilot, "enter")
        await shows(app, pilot, f"{values['collective']} rank {values['rank']} kernels")
        assert len(app.screen.table.answer) == values["count"]
        keys = [column.key for column in app.screen.table.answer.columns]
        ranks = {row[keys.index("rank")] for row in app.screen.table.answer.page(0, 1000)}
        assert ranks == {values["rank"]}


async def test_o_shows_sizes_and_their_drawings(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        await hit(app, pilot, "3", "v")
        await shows(app, pilot, "median bus bandwidth against message size")
        assert app.screen.values()["busbw"] > 0
        await hit(app, pilot, "d")
        await shows(app, pilot, "durations against message size")
        await hit(app, pilot, "d")
        await shows(app, pilot, "calls by message size")
        await hit(app, pilot, "b")
        assert "size_from" in [column.key for column in app.screen.table.answer.columns]


async def test_enter_on_a_size_lists_its_kernels_and_then_the_event(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        await hit(app, pilot, "3", "v")
        values = app.screen.values()
        await hit(app, pilot, "enter")
        assert len(app.screen.table.answer) == values["count"]
        assert {row[2] for row in app.screen.table.answer.page(0, 1000)} == {values["message_size"]}
        await hit(app, pilot, "enter")
        await shows(app, pilot, "6 Events")


async def test_without_sizes_it_says_how_to_get_them(tmp_path):
    from synthetic import two_process_export

    async with running([two_process_export(tmp_path / "plain.sqlite")], None) as (app, pilot):
        await hit(app, pilot, "3", "v")
        await shows(app, pilot, "no kernel here has a known message size")
