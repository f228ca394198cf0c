"""The exposed time of NCCL kernels, against a set of nanoseconds and against the device's own union."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_program import Program, job_of

from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.algebra.interval_blocks import blocks_of
from nsystui.questions.algebra.intervals import union
from nsystui.questions.gpu.device_time import BusyParts, Device, DeviceIntervals
from nsystui.questions.nccl.bandwidth import exposed_times
from nsystui.questions.nccl.grouping import By
from nsystui.questions.nccl.summary import KERNEL, nccl_summary
from nsystui.questions.tasks import RankedTask

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


def device_of(process: int, spans: list[tuple[int, int]]) -> DeviceIntervals:
    """Device 0 of a process, busy with kernels that start and last so long."""
    task = RankedTask(Task(0, process), process, "test", None, "", process, "", "", (0,), ())
    starts = np.array([start for start, _ in spans], np.int64)
    lengths = np.array([length for _, length in spans], np.int64)
    parts = BusyParts(kernels=blocks_of(union(starts, starts + lengths)))
    return DeviceIntervals(Device(task, 0, None, None), Window(0, 100), parts)


@given(st.lists(SPANS, min_size=2, max_size=2), st.lists(st.tuples(*[st.integers(0, n) for n in (60, 20, 1)])))
def test_it_is_what_remains_of_a_set_of_nanoseconds(
    compute: list[list[tuple[int, int]]], nccl: list[tuple[int, int, int]]
) -> None:
    kernels = pd.DataFrame(
        {
            "report": 0,
            "device": 0,
            "process": [process for _, _, process in nccl],
            "start": [start for start, _, _ in nccl],
            "end": [start + length for start, length, _ in nccl],
        }
    ).astype("int64")
    devices = [device_of(process, spans) for process, spans in enumerate(compute)]
    busy = [{ns for start, length in spans for ns in range(start, start + length)} for spans in compute]
    expected = [len(set(range(start, start + length)) - busy[process]) for start, length, process in nccl]
    assert exposed_times(kernels, devices).tolist() == expected


def test_a_device_without_other_work_exposes_everything() -> None:
    kernels = pd.DataFrame({"report": [0], "device": [1], "process": [0], "start": [3], "end": [9]})
    assert exposed_times(kernels, [device_of(0, [(0, 50)])]).tolist() == [6]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path / "program.sqlite")


def test_a_row_sums_its_kernels_of_one_device_and_leaves_the_union_to_the_gpu_screen(program: Program) -> None:
    """Two NCCL kernels side by side for 5 µs, 3 µs of them beside a kernel; one on its own."""
    start = program.now
    program.call("ncclAllReduce", size=8)
    for stream in (20, 21):
        program.launch(start + 1_000, program.main, stream, "AllReduce")
    program.compute(start + 21_000, start + 24_000)
    program.compute(start + 21_000, start + 26_000, device=1)
    program.call("ncclAllGather", size=8, launches=1, kernel="AllGather")
    job = program.job()
    answer = nccl_summary(job.session, Selection(), job.ranks, job.pairing(), (By.COLLECTIVE,))
    told = answer.frame()[answer.frame()["what"] == KERNEL].set_index("collective")
    assert told["exposed"].to_dict() == {"AllReduce": 4_000, "AllGather": 5_000}
    assert told["overlapped"].to_dict() == pytest.approx({"AllReduce": 60.0, "AllGather": 0.0})
    union_of_both = job.busy(Selection()).devices[0].parts.exposed_nccl.length
    assert union_of_both == 7_000 < told["exposed"].sum()
    job.close()


def test_streams_of_the_selection_leave_what_hides_a_kernel_as_it_is(program: Program) -> None:
    start = program.now
    program.call("ncclAllReduce", size=8, launches=1, kernel="AllReduce")
    program.compute(start + 21_000, start + 24_000, stream=7)
    job = program.job()
    answer = nccl_summary(job.session, Selection(streams=frozenset({20})), job.ranks, job.pairing())
    assert answer.frame()["exposed"].dropna().tolist() == [2_000]
    job.close()


def test_calls_have_no_exposed_time(program: Program) -> None:
    program.call("ncclAllReduce", size=8)
    job = program.job()
    frame = nccl_summary(job.session, Selection(), job.ranks, job.pairing()).frame()
    assert frame[["exposed", "overlapped", "algbw", "busbw"]].isna().all(axis=None)
    job.close()


@pytest.mark.parametrize("name", ["ddp-a100-rank0of4", "h100-2rank-moe-before"])
def test_real_jobs_without_concurrent_nccl_kernels_agree_with_the_union(
    shared_export: Callable[[str], Path], name: str
) -> None:
    job = job_of(shared_export(name))
    exposed = sum(device.parts.exposed_nccl.length for device in job.busy(Selection()).devices)
    assert int(job.pairing().kernels["exposed"].sum()) == exposed
    job.close()
