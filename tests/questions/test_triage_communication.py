"""Findings about NCCL where it is hidden and where it is not, and about the first calls of MPI."""

from __future__ import annotations

from contextlib import closing

import pytest
from support import session_over
from synthetic import illnesses
from synthetic.illnesses import one_gpu
from triaging import finding, told, triaged

from nsystui.base.selection import Selection
from nsystui.exports.demo.timeline import nccl_kernel
from nsystui.questions.mpi_exchanges import exchanges
from nsystui.questions.triage.finding import Severity

MS = 1_000_000


def reduced(path, calls, hidden=True):
    """12 steps with 10 ms of compute, and so many AllReduce that take 5 ms together, beside it or after it."""
    name, length = nccl_kernel("AllReduce").name, 5 * MS // calls
    with one_gpu(path) as gpu:
        for number, start in enumerate(gpu.rounds(12, 16 * MS, 10 * MS)):
            gpu.export.nvtx_range(gpu.main, start - 20_000, start + 15 * MS, f"step {number}")
            for call in range(calls):
                begin = start + (4 if hidden else 10) * MS + call * length
                gpu.kernel(begin, begin + length, launched=start - 5_000, name=name)
    return path


def test_hidden_communication_is_a_remark_with_calls_per_step(tmp_path):
    found = triaged(reduced(tmp_path / "a.sqlite", calls=8))
    one = finding(found, "communication")
    assert (one.severity, one.cost) == (Severity.INFO, 0)
    told(one, "compute hides 100 % of NCCL's time (60 ms on each GPU", "8 AllReduce a step")
    assert found.summary.endswith("compute hides 100 % of NCCL's time")


@pytest.mark.parametrize(
    ("calls", "advice"),
    [
        pytest.param(1, "smaller buckets", marks=pytest.mark.campaign),
        (8, "overlap it"),
        pytest.param(250, "put more into one", marks=pytest.mark.campaign),
    ],
)
def test_the_advice_for_exposed_communication_knows_the_buckets(tmp_path, calls, advice):
    found = triaged(reduced(tmp_path / "a.sqlite", calls, hidden=False), rules=("exposed_communication",))
    one = finding(found, "exposed-communication")
    assert one.cost == pytest.approx(60 * MS, rel=0.01)
    told(one, f"{calls} AllReduce a step", advises=(advice,))


def test_the_first_calls_of_mpi_are_told_apart(tmp_path):
    ill = illnesses.mpi_waits(tmp_path / "ill", set_up=100 * MS)
    one = finding(triaged(*ill.paths, rules=("mpi_waits",)), "mpi-waits")
    assert one.cost == pytest.approx(ill.cost, rel=0.02)
    told(one, "of it in first calls, which set up connections (MPI_Allreduce 10")


def test_the_pair_of_ranks_whose_exchange_is_slow_is_told_from_those_that_wait_for_it(tmp_path):
    """20 exchanges of 8 MiB a pair: 1.678 GB/s in 5 ms, 8.389 GB/s in 1 ms."""
    paths = illnesses.slow_pair(tmp_path).paths
    one = finding(triaged(*paths, rules=("mpi_waits",)), "mpi-waits")
    told(
        one,
        "ranks 0 and 3 exchange messages of 8 MiB at 1.678 GB/s, the other pairs at 8.389 GB/s",
        advises=("peer access",),
    )
    rows = list(one.evidence.records())
    assert [(row["rank"], row["exchange"]) for row in rows[:2]] == [(0, 140 * MS), (3, 140 * MS)]
    assert {row["exchange"] for row in rows[2:]} == {60 * MS}
    # What a rank waits for another is no exchange.
    with closing(session_over(*paths)) as session:
        pairs = exchanges(session, Selection())
    assert [(one.count, one.time, one.bytes) for one in pairs if one.time != 20 * MS] == [(20, 100 * MS, 160 << 20)]
    assert len(pairs) == 6
    # By hand: ranks 1 and 2 meet right away in the third turn, and 0 and 3 are late for the first one of the next.
    assert sum(sum(one.waits) for one in pairs) == 19 * 2 * 4 * MS


@pytest.mark.campaign
def test_pairs_that_are_alike_are_not_told(tmp_path):
    paths = illnesses.slow_pair(tmp_path, times=1).paths
    told(finding(triaged(*paths, rules=("mpi_waits",)), "mpi-waits"), never=("exchange messages",))
