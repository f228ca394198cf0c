"""3 NCCL by group and by message size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import NARROW, WIDE, line_with, press, resize, running, screen_text
from synthetic import two_process_export
from synthetic.demo import TrainingJob


@pytest.fixture(scope="module")
def job(written_once: Callable[..., list[Path]]) -> list[Path]:
    return written_once("sizes", TrainingJob(ranks=2, steps=2, layers=2, gpu_metrics=False).write)


@pytest.mark.campaign
async def test_the_summary_has_the_bandwidths_where_the_table_leaves_room(job, cache_directory):
    async with running(job, cache_directory, (200, 60), "3") as (app, pilot):
        words = "median bus bandwidth"
        assert line_with(app, words) and line_with(app, "calls by message size")
        assert app.screen.table.size.height > app.screen.table.row_count
        assert not any(words in line for line in screen_text(await resize(pilot, *NARROW)))
        assert line_with(await resize(pilot, *WIDE), "calls by message size")


async def test_without_sizes_it_says_how_to_get_them(tmp_path):
    async with running([two_process_export(tmp_path / "plain.sqlite")], None, NARROW, "3") as (app, pilot):
        line_with(app, "[kernels]")
        line_with(await press(pilot, "v", "v"), "no kernel here has a known message size")
