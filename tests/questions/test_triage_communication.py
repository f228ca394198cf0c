"""Findings about NCCL where it is hidden and where it is not, and about the first calls of MPI."""

from __future__ import annotations

import pytest
from support import shared
from synthetic import ExportWriter, illnesses
from synthetic.illnesses import OneGpu
from triaging import finding, triaged

from nsystui.base.selection import Selection
from nsystui.exports.demo.timeline import nccl_kernel
from nsystui.questions.mpi_exchanges import exchanges
from nsystui.questions.triage.finding import Severity
from nsystui.store.session import Session

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


def test_the_pair_of_ranks_whose_exchange_is_slow_is_told_from_those_that_wait_for_it(tmp_path):
    """20 exchanges of 8 MiB a pair: 1.678 GB/s in 5 ms, 8.389 GB/s in 1 ms."""
    one = finding(triaged(*illnesses.slow_pair(tmp_path).paths, rules=("mpi_waits",)), "mpi-waits")
    assert "ranks 0 and 3 exchange messages of 8 MiB at 1.678 GB/s, the other pairs at 8.389 GB/s" in one.sentence
    assert "peer access" in one.advice.text
    rows = list(one.evidence.records())
    assert [(row["rank"], row["exchange"]) for row in rows[:2]] == [(0, 140 * MS), (3, 140 * MS)]
    assert {row["exchange"] for row in rows[2:]} == {60 * MS}


def test_pairs_that_are_alike_are_not_told(tmp_path):
    one = finding(triaged(*illnesses.slow_pair(tmp_path, times=1).paths, rules=("mpi_waits",)), "mpi-waits")
    assert "exchange messages" not in one.sentence


def test_what_a_rank_waits_for_another_is_no_exchange(tmp_path):
    session = Session()
    for path in illnesses.slow_pair(tmp_path).paths:
        session.add(path)
    pairs = exchanges(session, Selection())
    assert [(one.count, one.time, one.bytes) for one in pairs if one.time != 20 * MS] == [(20, 100 * MS, 160 << 20)]
    assert len(pairs) == 6
    # By hand: ranks 1 and 2 meet right away in the third turn, and 0 and 3 are late for the first one of the next.
    assert sum(sum(one.waits) for one in pairs) == 19 * 2 * 4 * MS
