"""The budget of time, against sets of nanoseconds: its parts are disjoint and add up to the window."""

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import campaign
import pytest
from support import session_over, shared
from synthetic.demo import CaptureSession as Capture
from synthetic.demo import ExportWriter
from synthetic.writing.host import RUNNING as STATE_RUNNING

from nsystui.base.selection import Selection, Window
from nsystui.questions.host import time_budget
from nsystui.questions.host.time_budget import (
    PARTS,
    SummedCause,
    budget_table,
    device_budgets,
    idle_causes,
    in_sum,
    steady_window,
)
from nsystui.questions.job.job import OpenJob

NAMES = {"K": "saxpy(float *)", "C": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)"}
Event = tuple[str, int, int]


def written(
    path: Path,
    events: list[Event],
    steps: Sequence[tuple[int, int]] = (),
    duration: int = 2000,
    calls: Sequence[tuple[str, int, int]] = (),
    ranges: Sequence[tuple[str, int, int]] = (),
) -> Path:
    """Write a GPU with kernels, NCCL kernels and copies, each launched within its step."""
    with ExportWriter(path, session=Capture(utc_epoch_ns=10**18, duration=duration)) as export:
        process = export.process(4711)
        thread = export.thread(process, 5000, "python")
        for name, start, end in ranges:
            export.nvtx_range(thread, start, end, name)
        for number, (name, start, end) in enumerate(calls, 1000):
            export.api(thread, start, end, name, number)
        for number, (start, end) in enumerate(steps):
            export.nvtx_range(thread, start, end, f"step {number}")
        for number, (kind, start, end) in enumerate(events, 1):
            if steps:
                export.api(thread, start, start + 1, "cudaLaunchKernel_v7000", number)
            if kind == "M":
                export.memcpy(process, 0, 7, start, end, size=64, kind="HtoD", correlation_id=number)
            else:
                export.kernel(process, 0, 7, start, end, name=NAMES[kind], correlation_id=number)
    return path


def budgets(path: Path, window: Window | None = None):
    with closing(session_over(path)) as session:
        return device_budgets(OpenJob(session), Selection(window))


@pytest.mark.parametrize("seed", campaign.first(1, range(6)))
def test_every_nanosecond_is_in_one_part(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(time_budget, "LONG_GAP", 20)
    rng = random.Random(seed)
    events = [
        (rng.choice("KKCM"), at, at + rng.randrange(1, 60)) for at in (rng.randrange(100, 1500) for _ in range(25))
    ]
    kernels, nccl, copies = ({ns for kind, a, b in events if kind == one for ns in range(a, b)} for one in "KCM")
    busy = kernels | nccl | copies
    last = max(busy) + 1
    with closing(session_over(written(tmp_path / "a.sqlite", events, duration=1800))) as session:
        job = OpenJob(session)
        for window in (Window(0, 2000), Window(300, 1400), Window(0, 50), Window(1700, 2000)):
            (found,) = device_budgets(job, Selection(window))
            inside = set(range(window.start, window.end))
            unseen = {ns for ns in inside if ns >= 1800}
            idle = inside - busy - unseen
            startup = {ns for ns in idle if ns < found.steady}
            tail = {ns for ns in idle - startup if ns >= last}
            gaps: list[list[int]] = []
            for ns in sorted(idle - startup - tail):
                if not gaps or ns > gaps[-1][-1] + 1:
                    gaps.append([])
                gaps[-1].append(ns)
            long_gaps = {ns for gap in gaps if len(gap) >= 20 for ns in gap}
            parts = (kernels, nccl - kernels, copies - kernels - nccl, set(), startup, long_gaps)
            expected = [len(part & inside) for part in parts]
            expected += [len(idle - startup - tail - long_gaps), 0, len(tail), len(unseen)]
            assert [getattr(found.budget, part) for part in PARTS] == expected, window
            assert found.budget.time == window.end - window.start


def test_start_up_lasts_until_the_first_step_that_is_not_slow(tmp_path):
    steps = [(0, 900), (900, 1000), (1000, 1100), (1100, 1200), (1200, 1300)]
    events = [("K", start + 10, end - 10) for start, end in steps]
    (found,) = budgets(written(tmp_path / "a.sqlite", events, steps), Window(0, 1400))
    assert (found.steady, found.budget.startup, found.budget.tail) == (900, 10 + 10, 110)
    assert steady_window([found]) == Window(900, 1400)


@pytest.mark.parametrize(("events", "window"), [
    ([("K", start, start + 5) for start in range(100, 1900, 10)], Window(505, 705)),
    ([("K", 100, 200), ("K", 1800, 1900)], Window(500, 600)),  # a GPU that did nothing then
])  # fmt: skip
def test_a_window_in_the_middle_of_the_job_has_no_start_up_and_no_tail(tmp_path, events, window):
    found = budgets(written(tmp_path / "a.sqlite", events), window)
    assert (in_sum(found).startup, in_sum(found).tail, in_sum(found).short_gaps) == (0, 0, 100)


@pytest.mark.campaign
def test_without_steps_a_lone_early_operation_is_start_up(tmp_path):
    events = [("M", 100, 101), *(("K", start, start + 8) for start in range(1000, 1500, 10))]
    (found,) = budgets(written(tmp_path / "a.sqlite", events), Window(0, 2000))
    assert 980 <= found.steady <= 1000
    assert found.budget.startup == found.steady - 1


MS = 1_000_000


def kernels(starts: Sequence[int], length: int) -> list[Event]:
    return [("K", at * MS, (at + length) * MS) for at in starts]


CAUSES = {
    "calls too far from a gap": (
        kernels((0, 20, 60), 20), [("cudaMalloc", 37, 38)], [], 80, {}, {"nothing recorded": 20}),
    "calls, and where nothing is recorded the range or the last call": (
        kernels((0, 2, 12, 22, 32), 2), [("cudaMalloc", 5, 9), ("cudaDeviceSynchronize", 14, 15)],
        [("load", 4, 12), ("save 1", 24, 32)], 34, {},
        {"cudaMalloc in `load`": 4, "nothing recorded, in range `load`": 4, "cudaDeviceSynchronize": 1,
         "nothing recorded, in range `save *`": 8, "nothing recorded, after cudaDeviceSynchronize": 7}),
    "between ranges the next one": (
        kernels((0, 10), 2), [("cudaLaunchKernel", 9, 10)], [("batch 1", 0, 3), ("batch 2", 9, 12)], 12, {},
        {"cudaLaunchKernel before `batch *`": 1, "nothing recorded, before range `batch *`": 7}),
    "no range if the launching thread is unknown": (
        kernels((0, 10), 2), [], [("batch 1", 0, 3), ("batch 2", 9, 12)], 12, {}, {"nothing recorded": 8}),
    "start-up without ranges": (
        kernels(range(50, 100), 1), [("cudaMalloc", 10, 30), ("cudaMemcpy", 35, 36)], [], 100,
        {"cudaMalloc": 20, "cudaMemcpy": 1, "nothing recorded, before cudaMalloc": 10,
         "nothing recorded, before cudaMemcpy": 5, "nothing recorded, after cudaMemcpy": 14}, {}),
    "calls beside a gap": (
        kernels((0, 20, 60), 2), [("cudaLaunchKernel", 0, 1), ("cudaEventRecord", 21, 22)], [], 62, {},
        {"nothing recorded, before cudaEventRecord": 18, "nothing recorded, after cudaEventRecord": 38}),
    "nothing but kernels": (kernels((0, 10), 2), [], [], 12, {}, {"nothing recorded": 8}),
}  # fmt: skip
"""Kernels, calls, ranges, the end of the window, causes of the start-up and of the gaps, in ms."""


@pytest.mark.parametrize("name", campaign.first(3, CAUSES))
def test_idle_time_is_explained_by(tmp_path, name):
    events, calls, ranges, end, *expected = CAUSES[name]
    calls, ranges = ([(word, start * MS, stop * MS) for word, start, stop in spans] for spans in (calls, ranges))
    path = written(tmp_path / "a.sqlite", events, duration=100 * MS, calls=calls, ranges=ranges)
    with closing(session_over(path)) as session:
        job, selection = OpenJob(session), Selection(Window(0, end * MS))
        found = idle_causes(job, selection, device_budgets(job, selection))
    for part, causes in zip((found.startup, found.long_gaps), expected, strict=True):
        assert {one.name: one.time for one in part} == {cause: time * MS for cause, time in causes.items()}


@pytest.mark.campaign
def test_a_short_start_up_and_tail_are_explained_too(tmp_path):
    calls = [("cudaMalloc", 0, 800), ("cudaFree", 2_100, 2_600)]
    path = written(tmp_path / "a.sqlite", [("K", 1_000, 2_000)], duration=3_000, calls=calls)
    with closing(session_over(path)) as session:
        job, selection = OpenJob(session), Selection(Window(0, 2_600))
        found = idle_causes(job, selection, device_budgets(job, selection))
    assert found.startup == (SummedCause("cudaMalloc", 800), SummedCause("nothing recorded, after cudaMalloc", 200))
    assert found.tail == (SummedCause("cudaFree", 500), SummedCause("nothing recorded, before cudaFree", 100))


def test_a_thread_is_off_the_cpu_before_the_first_event_that_puts_it_on_one(tmp_path):
    """The launching thread has a CPU from 40 to 42 and from 44 to 52 ms, and could run between them.

    Scheduling of another thread is recorded from 2 to 96 ms.
    """
    with ExportWriter(tmp_path / "a.sqlite", session=Capture(utc_epoch_ns=10**18, duration=100 * MS)) as export:
        process = export.process(4711)
        main, other = (export.thread(process, number, "python") for number in (4711, 4800))
        export.api(main, 45 * MS, 46 * MS, "cudaLaunchKernel_v7000", 1)
        export.kernel(process, 0, 7, 50 * MS, 80 * MS, name=NAMES["K"], correlation_id=1)
        for thread, at, is_in in ((other, 2, True), (other, 3, False), (main, 40, True), (main, 52, False)):
            export.switch(thread, at * MS, 0, is_in=is_in)
        for at, is_in in ((95, True), (96, False)):
            export.switch(other, at * MS, 0, is_in=is_in)
        export.switch(main, 42 * MS, 0, is_in=False, state=STATE_RUNNING)
        export.switch(main, 44 * MS, 0, is_in=True)
    with closing(session_over(tmp_path / "a.sqlite")) as session:
        job, selection = OpenJob(session), Selection(Window(0, 100 * MS))
        found = idle_causes(job, selection, device_budgets(job, selection))
    assert {one.name: one.time // MS for one in found.startup} == {
        "off the CPU": 37, "CPU work on python 4800": 1, "CPU work": 7, "not scheduled": 2, "cudaLaunchKernel": 1,
        "nothing recorded, before cudaLaunchKernel": 2,
    }  # fmt: skip
    assert {one.name: one.time // MS for one in found.tail} == {
        "off the CPU": 15,
        "CPU work on python 4800": 1,
        "nothing recorded": 4,
    }


@pytest.mark.parametrize("name", campaign.first(
    1, ["cuda-graphs", "gemm-pageable", "ddp-a100-rank0of4", "ai-training-before", "dataloader-bound-a100"]
))  # fmt: skip
def test_parts_of_real_exports_add_up_and_so_do_the_causes_of_each(name):
    with closing(session_over(*shared(name))) as session:
        job = OpenJob(session)
        budgets = device_budgets(job, Selection())
        for row in budget_table(budgets).records():
            assert sum(row[f"{part}_percent"] for part in PARTS) == pytest.approx(100)
        found, whole = idle_causes(job, Selection(), budgets), in_sum(budgets)
    for part in ("startup", "long_gaps", "tail"):
        causes = getattr(found, part)
        assert sum(one.time for one in causes) == getattr(whole, part), part
        assert all(one.time > 0 for one in causes)
