"""A table of the application shows what ``nsystui stats`` prints for the same export."""

from __future__ import annotations

import io

import pytest
from jobs import hit, running

from nsystui.base.answer import Answer
from nsystui.base.selection import Selection
from nsystui.output.formats import write
from nsystui.questions.job import Job
from nsystui.questions.stats import report_of
from nsystui.store.session import Session

KEYS = {
    "cuda_gpu_kern_sum": ["2", "n"],
    "cuda_gpu_kern_sum:base": ["2", "n", "n"],
    "cuda_gpu_mem_time_sum": ["2", "v"],
    "cuda_api_sum": ["2", "v", "v", "v"],
    "nvtx_sum": ["5", "v"],
    "nvtx_gpu_proj_sum": ["5", "v", "v"],
}


def as_csv(answer: Answer) -> str:
    stream = io.StringIO()
    write(answer, "csv", stream)
    return stream.getvalue()


def printed(session: Session, text: str) -> str:
    report, options = report_of(text)
    return as_csv(report.ask(Job(session), Selection(), options))


async def shown(app, pilot, report: str) -> str:
    for key in KEYS[report]:
        await hit(app, pilot, key)
    return as_csv(app.screen.table.answer)


@pytest.mark.parametrize("report", KEYS)
async def test_the_demo(demo_job, cache_directory, opened, report):
    async with running([demo_job[1]], cache_directory) as (app, pilot):
        assert await shown(app, pilot, report) == printed(opened(demo_job[1]), report)


@pytest.mark.parametrize("report", ["cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "nvtx_sum", "nvtx_gpu_proj_sum"])
async def test_a_real_export(shared_export, cache_directory, opened, report):
    path = shared_export("ddp-a100-rank0of4")
    async with running([path], cache_directory) as (app, pilot):
        assert await shown(app, pilot, report) == printed(opened(path), report)


async def test_os_runtime_calls_of_a_real_export(shared_export, cache_directory, opened):
    path = shared_export("no-kernel-table")
    async with running([path], cache_directory) as (app, pilot):
        await hit(app, pilot, "2", "v", "v")
        assert as_csv(app.screen.table.answer) == printed(opened(path), "osrt_sum")


async def test_from_a_name_to_its_ranges_to_the_event(demo_job, cache_directory):
    async with running([demo_job[0]], cache_directory) as (app, pilot):
        await hit(app, pilot, "5", "v")
        name, count = app.screen.values()["name"], app.screen.values()["count"]
        await hit(app, pilot, "enter")
        assert len(app.screen.table.answer) == count
        start = app.screen.values()["start"]
        await hit(app, pilot, "enter")
        values = app.screen.values()
        assert (values["kind"], values["name"], values["start"]) == ("nvtx", name, start)
