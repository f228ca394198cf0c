"""Findings about NCCL where it is hidden and where it is not, and about the first calls of MPI."""

from __future__ import annotations

import pytest
from support import shared
from synthetic import ExportWriter, illnesses
from synthetic.illnesses import OneGpu
from triaging import finding, triaged

from nsystui.exports.demo.timeline import nccl_kernel
from nsystui.questions.triage.finding import Severity

MS = 1_000_000
RULES = ("exposed_communication",)


def reduced(path, calls, hidden=True):
    """12 steps with 10 ms of compute, and so many AllReduce that take 5 ms together, beside it or after it."""
    with ExportWriter(path, "3.25.0") as export:
        gpu, length = OneGpu(export), 5 * MS // calls
        name = nccl_kernel("AllReduce").name
        for number in range(12):
            start = (1 + 16 * number) * MS
            export.nvtx_range(gpu.main, start - 20_000, start + 15 * MS, f"step {number}")
            gpu.kernel(start, start + 10 * MS, launched=start - 10_000)
            for call in range(calls):
                begin = start + (4 if hidden else 10) * MS + call * length
                gpu.kernel(begin, begin + length, launched=start - 5_000, name=name)
    return path


def test_hidden_communication_is_a_remark_with_calls_per_step(tmp_path):
    one = finding(triaged(reduced(tmp_path / "a.sqlite", calls=8), rules=RULES), "communication")
    assert (one.severity, one.cost) == (Severity.INFO, 0)
    assert "compute hides 100 % of NCCL's time (60 ms on each GPU" in one.sentence
    assert "8 AllReduce a step" in one.sentence
    assert triaged(tmp_path / "a.sqlite").summary.endswith("compute hides 100 % of NCCL's time")


@pytest.mark.parametrize(("calls", "advice"), [(1, "smaller buckets"), (8, "overlap it"), (250, "put more into one")])
def test_the_advice_for_exposed_communication_knows_the_buckets(tmp_path, calls, advice):
    one = finding(triaged(reduced(tmp_path / "a.sqlite", calls, hidden=False), rules=RULES), "exposed-communication")
    assert one.cost == pytest.approx(60 * MS, rel=0.01)
    assert advice in one.advice.text
    assert f"{calls} AllReduce a step" in one.sentence


def test_a_real_job_hides_its_gradients():
    """nsys' own sums: 472 AllReduce in 59 steps, 292.8 ms; beside kernels or copies for 98 % of that."""
    one = finding(triaged(*shared("ddp-a100-rank0of4"), rules=RULES), "communication")
    assert "8 AllReduce a step" in one.sentence
    assert "292.8 ms on each GPU, 21.8 ms exposed, 5.369 ms with no copy beside it either" in one.sentence


def test_the_first_calls_of_mpi_are_told_apart(tmp_path):
    ill = illnesses.mpi_waits(tmp_path / "ill", set_up=100 * MS)
    one = finding(triaged(*ill.paths, rules=("mpi_waits",)), "mpi-waits")
    assert one.cost == pytest.approx(ill.cost, rel=0.02)
    assert "of it in first calls, which set up connections (MPI_Allreduce 10" in one.sentence


def test_mpi_without_a_slow_first_call_says_nothing_of_it(tmp_path):
    ill = illnesses.mpi_waits(tmp_path / "ill")
    assert "first calls" not in finding(triaged(*ill.paths, rules=("mpi_waits",)), "mpi-waits").sentence
