"""A table of the application shows what ``nsystui stats`` prints for the same export."""

from __future__ import annotations

import io

import pytest
from jobs import NARROW, press, running

from nsystui.base.answer import Answer
from nsystui.base.selection import Selection
from nsystui.output.formats import write
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.listing import nvtx_summary
from nsystui.questions.stats import report_of
from nsystui.store.session import Session

# Pressed one after the other: the keys that lead from one table to the next.
KEYS = {
    "cuda_gpu_kern_sum": ["2", "a"],
    "cuda_gpu_kern_sum:base": ["a"],
    "cuda_gpu_mem_time_sum": ["v"],
    "cuda_api_sum": ["v", "v", "v"],
    "nvtx_sum": ["5", "v"],
    "nvtx_gpu_proj_sum": ["v"],
}


def as_csv(answer: Answer) -> str:
    stream = io.StringIO()
    write(answer, "csv", stream)
    return stream.getvalue()


def printed(session: Session, text: str) -> str:
    """What the report of nsys says; the screen has the calls of one PyTorch operator in one row of `nvtx_sum`."""
    if text == "nvtx_sum":
        return as_csv(nvtx_summary(session, Selection(), fold_suffixes=True))
    report, options = report_of(text)
    return as_csv(report.ask(OpenJob(session), Selection(), options))


@pytest.mark.campaign
@pytest.mark.parametrize("export", ["demo", pytest.param("ddp-a100-rank0of4", marks=pytest.mark.campaign)])
async def test_every_table_is_that_of_its_report(demo_job, shared_export, cache_directory, opened, export):
    path = demo_job[1] if export == "demo" else shared_export(export)
    session = opened(path)
    async with running([path], cache_directory) as (app, pilot):
        for report, keys in KEYS.items():
            for key in keys:
                await pilot.press(key)
            assert as_csv(app.screen.table.answer) == printed(session, report), report


@pytest.mark.campaign
async def test_os_runtime_calls_of_a_real_export(shared_export, cache_directory, opened):
    path = shared_export("no-kernel-table")
    async with running([path], cache_directory, NARROW, "2", "v", "v") as (app, _):
        assert as_csv(app.screen.table.answer) == printed(opened(path), "osrt_sum")


@pytest.mark.campaign
async def test_from_a_name_to_its_ranges_to_the_event(demo_job, cache_directory):
    async with running([demo_job[0]], cache_directory, NARROW, "5", "v") as (app, pilot):
        name, count = app.screen.values()["name"], app.screen.values()["count"]
        assert len((await press(pilot, "enter")).screen.table.answer) == count
        start = app.screen.values()["start"]
        values = (await press(pilot, "enter")).screen.values()
        assert (values["kind"], values["name"], values["start"]) == ("nvtx", name, start)
