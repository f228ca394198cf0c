"""Sentences name the NVTX range of a thread only for work of that thread."""

from contextlib import closing

import pytest
from support import open_job
from synthetic.illnesses import one_gpu
from triaging import finding, told, triaged

from nsystui.base.selection import Selection, Window
from nsystui.questions.host.host_work import CpuSpan, host_work
from nsystui.questions.host.time_budget import budget_with_causes
from nsystui.questions.job.job import OpenJob

MS, US = 1_000_000, 1_000


@pytest.mark.parametrize("ahead", [0, 1_500])
def test_the_range_of_a_launch_bound_stretch_is_that_of_its_launches(tmp_path, ahead):
    """A loop in `main_loop`; a thread that makes most calls, and launches the next kernel, is in `evaluate`."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        start, every, length = 11 * MS, 5 * US, 2 * US
        other = gpu.export.thread(gpu.process, 5_001, "evaluator")
        gpu.kernel(MS, MS + length, launched=MS - 10_000)
        gpu.export.nvtx_range(gpu.main, start - 10 * US, start + 500 * every, "main_loop")
        gpu.export.nvtx_range(other, start, start + 499 * every, "evaluate")
        for number in range(600):
            gpu.export.api(
                other, start + number * US, start + number * US + 500, "cudaEventQuery_v3020", 10_000 + number
            )
        for number in range(500):
            begin = start + every * number
            gpu.kernel(begin, begin + length, launched=begin - 2_500 - ahead)
        gpu.main, main = other, gpu.main
        gpu.kernel(60 * MS, 60 * MS + length, launched=60 * MS - 10 * US)
        gpu.main = main
    settings = ("launch_percent=99",)
    found = finding(triaged(tmp_path / "a.sqlite", rules=("launch_bound",), settings=settings), "launch-bound")
    told(found, "in NVTX range `main_loop`,", never=("evaluate",))


def test_without_calls_the_launching_thread_is_unknown_and_has_no_range(tmp_path):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        other = gpu.export.thread(gpu.process, 5_001, "evaluator")
        gpu.export.nvtx_range(other, MS, 20 * MS, "evaluate")
        for begin in (MS, 10 * MS):
            gpu.export.kernel(gpu.process, 0, 7, begin, begin + MS, name="work(float*)", correlation_id=None)
    with closing(open_job(tmp_path / "a.sqlite")) as job:
        (work,) = host_work(job, [CpuSpan(job.ranks[0].task, 0, Window(2 * MS, 10 * MS))])
    assert (work.range_name, work.next_range) == (None, None)


def notes(job: OpenJob) -> str:
    return " ".join(budget_with_causes(job, Selection()).notes)


@pytest.mark.parametrize("of_main", [True, False])
def test_the_work_of_another_thread_is_not_in_the_range_of_the_launching_thread(tmp_path, of_main):
    """In a gap of 20 ms in `evaluate` a thread is in ``cudaMalloc``: the launching thread, or another."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        gpu.kernel(MS, 2 * MS, launched=MS - 10 * US)
        thread = gpu.main if of_main else gpu.export.thread(gpu.process, 5_001, "loader")
        gpu.export.nvtx_range(gpu.main, 3 * MS, 21 * MS, "evaluate")
        gpu.export.api(thread, 4 * MS, 20 * MS, "cudaMalloc_v3020", 9_999)
        for begin in range(22 * MS, 60 * MS, MS):
            gpu.kernel(begin, begin + MS - US, launched=begin - 10 * US)
    with closing(open_job(tmp_path / "a.sqlite")) as job:
        text = notes(job)
    assert ("cudaMalloc in `evaluate`" in text) == of_main, text
    assert ("cudaMalloc on loader 5001 " in text) != of_main and "5001 in" not in text, text
