"""Bandwidth by the formulas of nccl-tests, computed by hand; what is not known gives none. Kernels last 5 µs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from nccl_program import A, B, Program, job_of
from synthetic import payload_export, training_job

from nsystui.base.selection import Selection
from nsystui.exports.demo import NcclPayloads
from nsystui.questions.nccl.bandwidth import rate, sizes_moved
from nsystui.questions.nccl.grouping import By
from nsystui.questions.nccl.summary import KERNEL, nccl_summary


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    yield Program(tmp_path / "program.sqlite")


def bandwidths(program: Program, *by: By, order: Sequence[str] = ()) -> list[tuple[float | None, ...]]:
    """Algorithm and bus bandwidth of the kernel rows in GB/s (which is bytes per ns), in the ``order`` of columns."""
    job = program.job()
    try:
        answer = nccl_summary(job.session, Selection(), job.ranks, job.pairing(), by or (By.COLLECTIVE,))
        kernels = answer.frame()[answer.frame()["what"] == KERNEL]
        kernels = kernels.sort_values(list(order)) if order else kernels
        told = zip(kernels["algbw"].tolist(), kernels["busbw"].tolist(), strict=True)
        return [tuple(None if np.isnan(value) else value / 1e9 for value in row) for row in told]
    finally:
        job.close()


# With 4 ranks and a message of 80,000 bytes in 5,000 ns; the bytes of the operation, then what passes a link.
FORMULAS = [
    ("ncclAllReduce", 16.0, 24.0),  # 80,000 / 5,000; · 2 · 3/4
    ("ncclAllGather", 64.0, 48.0),  # 4 · 80,000 / 5,000; · 3/4
    ("ncclReduceScatter", 64.0, 48.0),
    ("ncclAlltoAll", 64.0, 48.0),
    ("ncclGather", 64.0, 48.0),
    ("ncclScatter", 64.0, 48.0),
    ("ncclBroadcast", 16.0, 16.0),
    ("ncclReduce", 16.0, 16.0),
    ("ncclSend", 16.0, 16.0),
    ("ncclRecv", 16.0, 16.0),
]
CALLS = [call for call, _, _ in FORMULAS]
Bandwidths = Callable[..., dict[str, tuple[float | None, ...]]]


@pytest.fixture(scope="module")
def by_call(tmp_path_factory: pytest.TempPathFactory) -> Bandwidths:
    """The bandwidths of every call of a program, each of which launches a kernel on a stream of its own."""

    @cache
    def measured(ranks: int | None, **told: Any) -> dict[str, tuple[float | None, ...]]:
        program = Program(tmp_path_factory.mktemp("calls") / "program.sqlite")
        if ranks is not None:
            program.call("ncclCommInitRankConfig", ranks=ranks)
        for number, call in enumerate(CALLS):
            program.call(call, launches=1, stream=20 + number, **told)
        return dict(zip(CALLS, bandwidths(program, By.STREAM, order=["stream"]), strict=True))

    return measured


@pytest.mark.parametrize(("call", "algorithm", "bus"), FORMULAS, ids=CALLS)
class TestFormulas:
    def test_with_four_ranks(self, by_call: Bandwidths, call: str, algorithm: float, bus: float) -> None:
        assert by_call(4, size=80_000)[call] == pytest.approx((algorithm, bus))

    def test_what_needs_the_number_of_ranks_is_missing_without_it(
        self, by_call: Bandwidths, call: str, algorithm: float, bus: float
    ) -> None:
        needs_no_ranks = algorithm == bus
        expected = (16.0 if algorithm == 16.0 else None, 16.0 if needs_no_ranks else None)
        assert by_call(None, size=80_000)[call] == expected

    def test_without_a_size_there_is_none(self, by_call: Bandwidths, call: str, algorithm: float, bus: float) -> None:
        assert by_call(4)[call] == (None, None)


class TestSendsAndReceives:
    def test_one_way_counts_as_in_the_sendrecv_of_nccl_tests(self, program: Program) -> None:
        program.group(("ncclSend", 80_000), ("ncclRecv", 80_000))
        assert bandwidths(program) == [(16.0, 16.0)]

    def test_the_larger_direction_counts(self, program: Program) -> None:
        program.group(("ncclSend", 10_000), ("ncclRecv", 30_000), ("ncclRecv", 50_000))
        assert bandwidths(program) == [(16.0, 16.0)]

    def test_an_all_to_all_of_sends_has_the_bytes_of_all_ranks_already(self, program: Program) -> None:
        """Two ranks exchange 40,000 bytes each, one half of it with themselves."""
        program.call("ncclCommInitRankConfig", ranks=2)
        start = program.now - 1_000
        program.group(*(("ncclSend", 40_000), ("ncclRecv", 40_000)) * 2)
        program.label("nccl:all_to_all, op_id = 7", start)
        assert bandwidths(program) == [(16.0, 8.0)]

    def test_a_gather_of_receives_sends_no_own_share(self, program: Program) -> None:
        program.call("ncclCommInitRankConfig", ranks=3)
        start = program.now - 1_000
        program.group(("ncclRecv", 40_000), ("ncclRecv", 40_000))
        program.label("nccl:gather", start)
        assert bandwidths(program) == [(16.0, 16.0)]


class TestRows:
    def test_a_row_has_the_bytes_of_all_by_the_time_of_all(self, program: Program) -> None:
        """No mean of bandwidths: 16 and 48 GB/s in equal times make 32, and what has no size counts for neither."""
        program.call("ncclCommInitRankConfig", ranks=2)
        program.call("ncclAllReduce", size=80_000, launches=1)
        program.call("ncclAllReduce", size=240_000, launches=1)
        program.call("ncclAllReduce", launches=1)
        assert bandwidths(program) == [(32.0, 32.0)]

    def test_collectives_of_a_row_have_their_own_factors(self, program: Program) -> None:
        program.call("ncclCommInitRankConfig", ranks=4)
        program.call("ncclAllReduce", size=80_000, launches=1)
        program.call("ncclAllGather", size=80_000, launches=1)
        assert bandwidths(program, By.RANK) == [pytest.approx((40.0, 36.0))]

    def test_communicators_of_a_row_have_their_own_ranks(self, program: Program) -> None:
        program.call("ncclCommInitRankConfig", comm=A, ranks=4)
        program.call("ncclCommInitRankConfig", comm=B, ranks=2)
        program.call("ncclAllReduce", comm=A, size=80_000, launches=1)
        program.call("ncclAllReduce", comm=B, size=80_000, launches=1)
        assert bandwidths(program) == [pytest.approx((16.0, 20.0))]

    def test_a_kernel_of_several_calls_has_the_bytes_of_all(self, program: Program) -> None:
        program.call("ncclCommInitRankConfig", ranks=2)
        program.group(("ncclAllReduce", 30_000), ("ncclAllReduce", 50_000), kernel="AllReduce")
        assert bandwidths(program) == [(16.0, 16.0)]

    def test_a_kernel_that_mixes_collectives_has_none(self, program: Program) -> None:
        program.call("ncclCommInitRankConfig", ranks=2)
        program.group(("ncclAllReduce", 30_000), ("ncclAllGather", 50_000), kernel="ncclDevKernel_Generic(int)")
        assert bandwidths(program) == [(None, None)]

    def test_a_kernel_of_a_graph_has_none(self, program: Program) -> None:
        program.call("ncclCommInitRankConfig", ranks=2)
        program.call("ncclAllReduce", size=8)
        program.export.api(program.main, program.now, program.now + 1_000, "cudaGraphLaunch_v10000", 99)
        program.export.kernel(
            program.process, 0, 20, program.now + 5_000, program.now + 9_000, name="ncclDevKernel_AllReduce(int)",
            correlation_id=99, graph_node_id=7,
        )  # fmt: skip
        assert bandwidths(program) == [(None, None)]


@pytest.mark.parametrize("binary", [False, True])
def test_both_forms_of_the_payload_give_the_same(tmp_path: Path, binary: bool) -> None:
    job = job_of(payload_export(tmp_path / "payload.sqlite", json=not binary, binary=binary))
    answer = nccl_summary(job.session, Selection(), job.ranks, job.pairing(), (By.COLLECTIVE,))
    kernels = answer.frame()[answer.frame()["what"] == KERNEL].set_index("collective")
    # Rank 1 of 4; kernels of 500 µs.
    assert kernels["algbw"]["AllReduce"] == pytest.approx(4 * 1024**2 / 500e-6)
    assert kernels["busbw"]["AllGather"] == pytest.approx(65_535 * 4 / 500e-6 * 3 / 4)
    job.close()


def test_an_old_nccl_gives_the_same_without_communicators(tmp_path: Path) -> None:
    job = job_of(*training_job(tmp_path, ranks=2, steps=1, layers=2, payload_layout=NcclPayloads.BEFORE_2_25))
    frame = nccl_summary(job.session, Selection(), job.ranks, job.pairing()).frame()
    told = frame[frame["what"] == KERNEL]
    assert told["communicator"].isna().all()
    # Two communicators were made before the first collective: nothing tells which of them has how many ranks.
    assert told.set_index("collective")["busbw"].dropna().index.tolist() == ["SendRecv"]
    job.close()


def test_a_rate_over_no_time_is_missing() -> None:
    told = rate(np.array([8.0, 8.0, np.nan]), np.array([4.0, 0.0, 4.0]))
    assert told[0] == 2e9
    assert np.isnan(told[1:]).all()


def test_damaged_ranks_and_no_kernels() -> None:
    kernels = pd.DataFrame(
        {"collective": ["AllReduce"], "ranks": [0], "message_size": [8], "one_way": [None]}, dtype=object
    )
    size, bus = sizes_moved(kernels.astype(dict.fromkeys(("ranks", "message_size", "one_way"), "Int64")))
    assert size.tolist() == [8.0]
    assert np.isnan(bus).all()
    assert [len(part) for part in sizes_moved(kernels.iloc[:0])] == [0, 0]


def by_hand_without_wait(job: Any) -> dict[tuple[str, int], float]:
    """Σ(S · f) / Σ(shortest kernel of the operation), by collective and message size: kernels in order of start."""
    kernels = job.pairing().kernels.dropna(subset=["message_size", "ranks", "communicator"])
    found: dict[tuple[str, int], list[float]] = {}
    for _, own in kernels.groupby("communicator"):
        of_ranks = [one.sort_values("start") for _, one in own.groupby(["report", "process", "device"])]
        if len(of_ranks) != int(own["ranks"].iloc[0]) or len({len(one) for one in of_ranks}) != 1:
            continue
        for operation in zip(*(one.itertuples() for one in of_ranks), strict=True):
            transfer = min(kernel.end - kernel.start for kernel in operation)
            for kernel in operation:
                n, name = int(kernel.ranks), kernel.collective
                factor = 2 * (n - 1) / n if name == "AllReduce" else n * (n - 1) / n
                sums = found.setdefault((name, int(kernel.message_size)), [0.0, 0.0])
                sums[0] += kernel.message_size * factor
                sums[1] += transfer
    return {key: 1e9 * size / time for key, (size, time) in found.items()}


def test_bandwidth_without_waiting_is_that_of_the_last_rank_to_arrive(tmp_path: Path) -> None:
    job = job_of(*training_job(tmp_path, ranks=3, steps=3, layers=2))
    try:
        answer = nccl_summary(job.session, Selection(), job.ranks, job.pairing(), (By.COLLECTIVE, By.BYTES), KERNEL)
        frame = answer.frame().dropna(subset=["busbw_without_wait"])
        found = {(row.collective, int(row.message_size)): row.busbw_without_wait for row in frame.itertuples()}
        assert found and found == pytest.approx({key: by_hand_without_wait(job)[key] for key in found})
        assert (frame["busbw_without_wait"] >= frame["busbw"]).all()
    finally:
        job.close()


def test_bandwidth_without_waiting_is_missing_where_a_rank_is_not_open(tmp_path: Path) -> None:
    job = job_of(*training_job(tmp_path, ranks=3, steps=2, layers=2)[:2])
    try:
        answer = nccl_summary(job.session, Selection(), job.ranks, job.pairing(), (By.COLLECTIVE,), KERNEL)
        assert answer.frame()["busbw"].notna().any()
        assert answer.frame()["busbw_without_wait"].isna().all()
    finally:
        job.close()
