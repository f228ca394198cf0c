"""The triage of real exports: no rule fails, and known findings are reported."""

from collections.abc import Sequence

import pytest
from support import SAME_KIND, native, real_exports, shared
from triaging import finding, told, triaged

FAST = ("gemm-pageable", "gemm-pinned", "no-gpu-work-2025.6")


KNOWN: dict[str, dict[str, Sequence[str]]] = {
    "dataloader-bound-a100": {"input-pipeline": ("data loader", "pin_memory thread", "7,888",
        "every 2 steps, as with 2 workers"), "step-traffic": (), "idle-gaps": ()},
    "ai-training-before": {"input-pipeline": ("1 worker process runs",), "idle-gaps": ()},
    "ai-training-after": {"pageable-copies": ("at 9.9 GB/s; the GPU's link",
        "In cudaMemcpyAsync the CPU is blocked for 41.19 ms")},
    "jacobi-staged-copies": {"staged-peer-copies": ("8,008 copies between GPUs", "GPUs 0, 7")},
    "gemm-pageable": {"synchronous-copies": ("device-to-host, pageable memory: 4 GiB at 2.0 GB/s",
        "the GPU's link, PCIe 4 at best, gives about 26 GB/s")},
    "vadd-launch-bound": {"context-creation": ("The first cudaMalloc takes 106.9 ms, 97 % of the time in CUDA calls",),
        "launch-bound": ("in NVTX range `Profile_Loop`",)},
    # 25.08 s, of which kernel and copies take 0.49 s, and cudaMallocHost 7.73 s; nothing else is recorded.
    "gemm-pinned": {"host-allocation": ("cudaMallocHost 7.73 s",),
        "start-up": ("16.84 s with nothing recorded",
        "7.718 s in calls that allocate or free memory (cudaMallocHost)")},
    # Sums of nsys: 472 AllReduce in 59 steps, 292.8 ms; kernels or copies run during 98 % of that.
    "ddp-a100-rank0of4": {"communication": ("8 AllReduce a step",
        "292.8 ms per GPU: 21.8 ms exposed, 5.369 ms with no other kernel or copy running")},
    "no-gpu-work-2025.6": {"no-gpu-work": ("No GPU work was recorded for rank 0",),
        "lost-events": ("Not all CUDA events might have been collected",)},
    # 5,495 waits for a context, a kernel between each two of them.
    # cuLibraryLoadData, 24.5 ms just before cudaMalloc, needs no context.
    "event-ids-unified-memory-2025.5": {"synchronising-calls": ("45.07 ms per GPU in 5,411 gaps",),
        "context-creation": ("The first cudaMalloc takes 155.9 ms",)},
    "jetson-orin": {"idle-gaps": ("off the CPU",)},
    # cudaMalloc takes 159.5 ms of 290.1 ms in CUDA calls.
    "mig-slice": {"context-creation": ("The first cudaMalloc takes 159.5 ms, 55 % of the time in CUDA calls",)},
}  # fmt: skip
"""Findings of each export, with words of the sentence."""

ADVICE = {"gemm-pageable": "Pin the host memory", "dataloader-bound-a100": "pinned already"}
NEVER = {
    "ddp-a100-rank0of4": "input-pipeline",
    "dataloader-bound-a100": "preempted",  # it lacks the reason why threads left their CPUs
    "gemm-pinned": "context-creation",
}


@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.stem, marks=() if path.stem in FAST else pytest.mark.campaign)
    for path in real_exports()
    if path.stem in KNOWN or path.stem not in SAME_KIND
])  # fmt: skip
def test_no_rule_fails_and_what_is_known_is_told(path):
    found = triaged(path)
    assert [one for one in found.not_checked if one.failed] == []
    assert all(one.percent is None or 0 <= one.percent <= 100 for one in found.findings)
    known = KNOWN.get(path.stem, {})
    for name, words in known.items():
        told(finding(found, name), *words)
    assert ADVICE.get(path.stem, "") in " ".join(str(finding(found, name).advice) for name in known)
    names = [one.id for one in found.findings if not one.under]
    assert NEVER.get(path.stem) not in names
    # Costs paid once follow costs that can be fixed.
    if path.stem == "jacobi-staged-copies":
        assert names.index("staged-peer-copies") < min(names.index("start-up"), 3)
    if path.stem == "dataloader-bound-a100":
        assert finding(found, "input-pipeline").percent == pytest.approx(82.4, abs=0.1)
        assert any("why threads left their CPUs" in one.why for one in found.not_checked)
    if path.stem == "mpi-cuda-saxpy-schema2.9":
        assert "mostly running main" in finding(found, "idle-gaps").gist
    # No advice asks for data that was recorded.
    tables = {row[0] for row in native(path, "SELECT name FROM sqlite_master")}
    for one in found.findings:
        if one.id == "idle-gaps":
            for table, flag in (("OSRT_API", "osrt"), ("SCHED_EVENTS", "--cpuctxsw"), ("COMPOSITE_EVENTS", "--sample")):
                assert table not in tables or flag not in str(one.advice)


@pytest.mark.campaign
def test_the_late_rank_of_a_pair_is_told_among_those_that_are_open():
    pair = triaged(*shared("alcf-allgather-rank0", "alcf-allgather-rank4"), rules=("stragglers",))
    found = finding(pair, "straggler")
    assert found.ranks == (4,)
    # docs/ranks.md#waiting: by duration rank 4 arrived 166.885 ms later, which one of the two GPUs loses.
    assert found.cost == pytest.approx(166_885_000 / 2, abs=1_000)
    told(found, "(2 of 8 ranks are open)", "The other GPU loses 166.9 ms waiting.")
    # Its capture began 80.406 ms after the first event of rank 0, whose own ended 19.823 ms before the last event.
    assert pair.budget.unrecorded == pytest.approx(80_406_000 + 19_823_000, abs=2_000)
    assert "not recorded 23.4 %" in pair.account
