"""NCCL on the copy engines: calls that launch copies between GPUs, and no kernel, communicate by these copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import job_of
from synthetic.illnesses import MS, OneGpu, one_gpu
from triaging import finding, triaged

from nsystui.base.selection import Selection
from nsystui.questions.blocking.budget import iterations
from nsystui.questions.blocking.parts import PARTS
from nsystui.questions.nccl.grouping import NcclProperty
from nsystui.questions.nccl.listing import nccl_listing
from nsystui.questions.nccl.summary import CALL, KERNEL, nccl_summary
from nsystui.questions.timeline.streams import stream_times

STEPS, SIZE, NCCL = 10, 64 << 20, "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)"


class CopyEngine:
    """Steps of 10 ms: 4 ms of compute, 2 ms of ``call`` by copies to two GPUs, and 1 ms of compute after them."""

    def __init__(self, gpu: OneGpu) -> None:
        self.gpu, self.export = gpu, gpu.export
        self.export.nvtx_domain(gpu.main, 0, 1, "NCCL")

    def range(self, start: int, end: int, name: str) -> None:
        self.export.nvtx_range(self.gpu.main, start, end, name, domain_id=1, registered=True)

    def copy(
        self, called: int, start: int, end: int, target: int | None, kind: str = "PtoP", size: int = SIZE, **how: Any
    ) -> None:
        number = self.gpu.call("cudaMemcpyAsync_v3020", called, called + 2_000)
        self.export.memcpy(
            self.gpu.process, 0, 30, start, end, size=size, kind=kind, correlation_id=number, devices=(0, target), **how
        )

    def steps(self, communicate: Callable[[CopyEngine, int], None]) -> None:
        for number in range(STEPS):
            start = (1 + 10 * number) * MS
            self.export.nvtx_range(self.gpu.main, start, start + 9 * MS, f"step {number}")
            self.gpu.kernel(start + MS, start + 5 * MS, launched=start + 100_000)
            communicate(self, start)
            self.gpu.kernel(start + 7 * MS, start + 8 * MS, launched=start + 400_000, stream=30)


def two_copies(engine: CopyEngine, start: int, **how: Any) -> None:
    engine.copy(start + 210_000, start + 5 * MS, start + 6 * MS, 1, **how)
    engine.copy(start + 220_000, start + 6 * MS, start + 7 * MS, 2, **how)


def all_gather(engine: CopyEngine, start: int, name: str = "ncclAllGather", **how: Any) -> None:
    engine.range(start + 200_000, start + 300_000, name)
    two_copies(engine, start, **how)


def in_a_group(engine: CopyEngine, start: int) -> None:
    engine.range(start + 150_000, start + 151_000, "ncclGroupStart")
    engine.range(start + 160_000, start + 161_000, "ncclAllGather")
    engine.range(start + 200_000, start + 300_000, "ncclGroupEnd")
    two_copies(engine, start)


def with_own_share_and_flags(engine: CopyEngine, start: int) -> None:
    """NCCL sets flags of 4 bytes for its peers, and copies the rank's own share within its GPU."""
    all_gather(engine, start, kind="DtoD")
    engine.copy(start + 205_000, start + 5 * MS - 2_000, start + 5 * MS - 1_000, 1, size=4)
    engine.copy(start + 230_000, start + 5 * MS, start + 6 * MS, 0, kind="DtoD")


BY_COPIES = {"alone": all_gather, "in a group": in_a_group, "own share": with_own_share_and_flags}


def written(tmp_path: Path, communicate: Callable[[CopyEngine, int], None]) -> Path:
    path = tmp_path / "rank0.sqlite"
    with one_gpu(path) as gpu:
        CopyEngine(gpu).steps(communicate)
    return path


@pytest.mark.parametrize("communicate", BY_COPIES.values(), ids=BY_COPIES)
def test_calls_that_copy_to_other_gpus_are_counted_sized_exposed_and_block(communicate, tmp_path):
    with job_of(written(tmp_path, communicate)) as job:
        session, everything, pairing = job.session, Selection(), job.pairing()
        (row,) = nccl_summary(session, everything, job.ranks, pairing, (NcclProperty.COLLECTIVE,), KERNEL).records()
        assert (row["collective"], row["backend"], row["count"]) == ("AllGather", "NCCL copies", STEPS)
        assert row["bytes"] == STEPS * SIZE
        assert row["exposed"] == STEPS * 2 * MS == pytest.approx(row["total"], rel=0.002)
        assert row["share"] < 50
        (device,) = job.gpus(everything)
        spent = device.breakdown(job.extent())
        assert spent.memory == 0
        assert spent.exposed_nccl == STEPS * 2 * MS
        budget = iterations(job, everything)[0].of
        assert budget.part("nccl").sum() + budget.possible[:, PARTS.index("nccl")].sum() == pytest.approx(
            STEPS * 2 * MS, rel=0.001
        )
        assert not budget.part("other_copies").any() and not budget.part("on_device").any()
        compute, communication, copies = next(
            times[1:] for (_, _, stream, _), times in stream_times(session, everything).items() if stream == 30
        )
        assert (compute, copies) == (STEPS * MS, 0) and communication >= STEPS * 2 * MS


def test_rows_lead_from_a_call_to_its_first_copy_and_back(tmp_path):
    with job_of(written(tmp_path, all_gather)) as job:
        for what, kind, partner in ((KERNEL, "memory", "nvtx"), (CALL, "nvtx", "memory")):
            listing = nccl_listing(job.session, Selection(), job.ranks, job.pairing(), {}, what).records()
            assert len(listing) == STEPS
            for row in listing:
                assert (row["kind"], row["partner_kind"]) == (kind, partner)
                assert row["row"] > 0 and row["partner_row"] > 0


def with_kernel(engine: CopyEngine, start: int) -> None:
    all_gather(engine, start)
    engine.gpu.kernel(start + 5 * MS, start + 7 * MS, launched=start + 240_000, name=NCCL, stream=31)


def outside(engine: CopyEngine, start: int) -> None:
    engine.range(start + 290_000, start + 300_000, "ncclAllGather")
    two_copies(engine, start)


def within_a_gpu(engine: CopyEngine, start: int) -> None:
    """NCCL copies the data of a communicator of one rank."""
    engine.range(start + 200_000, start + 300_000, "ncclAllGather")
    engine.copy(start + 210_000, start + 5 * MS, start + 7 * MS, 0, kind="DtoD")


NO_COMMUNICATION: dict[str, Callable[[CopyEngine, int], None]] = {
    "a call with a kernel": with_kernel,
    "outside of calls": outside,
    "management": lambda engine, start: all_gather(engine, start, "ncclCommInitRankConfig"),
    "within a GPU": within_a_gpu,
    "to the host": lambda engine, start: all_gather(engine, start, kind="DtoH"),
}


@pytest.mark.parametrize("communicate", NO_COMMUNICATION.values(), ids=NO_COMMUNICATION)
def test_other_copies_stay_memory(communicate, tmp_path):
    with job_of(written(tmp_path, communicate)) as job:
        assert not (job.pairing().kernels["backend"] == "NCCL copies").any()
        (device,) = job.gpus(Selection())
        assert device.breakdown(job.extent()).memory == STEPS * 2 * MS


def test_sizes_are_unknown_if_the_export_does_not_name_the_gpus(tmp_path):
    def copy(engine: CopyEngine, start: int) -> None:
        engine.range(start + 200_000, start + 300_000, "ncclAlltoAll")
        engine.copy(start + 210_000, start + 5 * MS, start + 7 * MS, None)

    with job_of(written(tmp_path, copy)) as job:
        kernels = job.pairing().kernels
        assert kernels["collective"].tolist() == ["AlltoAll"] * STEPS
        assert kernels["message_size"].isna().all()


def test_triage_words_copies_as_copies(tmp_path):
    item = finding(triaged(written(tmp_path, all_gather)), "exposed-communication")
    assert item.sentence.startswith("Exposed NCCL copies cost 20 ms per GPU (100 % of all NCCL time).")
    assert "1 AllGather a step (64 MiB each)" in item.sentence
