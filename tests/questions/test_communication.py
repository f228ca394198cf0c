"""Communication is not NCCL alone: kernels of other libraries, and kernels that the user names, count the same."""

import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing

import pandas as pd
import pytest
from support import edit, native, session_over
from synthetic.demo import TrainingJob

from nsystui.base.kernel_families import COMMUNICATION, backend_of, family_of
from nsystui.base.selection import Selection
from nsystui.questions.blocking.budget import iterations
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.grouping import NcclProperty
from nsystui.questions.nccl.names import operation_of_kernel
from nsystui.questions.nccl.roles import communicator_roles
from nsystui.questions.nccl.summary import KERNEL, nccl_summary
from nsystui.store.cache import Cache
from nsystui.store.session import Session

# Names of vLLM, FlashInfer, PyTorch's symmetric memory, DeepEP, NVSHMEM, TransformerEngine, TensorRT-LLM.
OTHERS = {
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData *)": ("custom all-reduce", "AllReduce"),
    "flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<half>": (
        "custom all-reduce", "AllReduce"),
    "multimem_all_reduce_kernel<c10::BFloat16, 16>": ("custom all-reduce", "AllReduce"),
    "two_shot_all_reduce_kernel_inplace<float, 16, 8>": ("custom all-reduce", "AllReduce"),
    "void deep_ep::internode::combine<9, __nv_bfloat16>": ("DeepEP", "Combine"),
    "void deep_ep::intranode::dispatch<8, 768, 8192>": ("DeepEP", "Dispatch"),
    "nvshmemi_transfer_amo_nonfetch_kernel": ("NVSHMEM", None),
    "void pplx::internode::combine_kernel<__nv_bfloat16>": ("pplx", "Combine"),
    "pplx::intranode::dispatchKernel": ("pplx", "Dispatch"),
    "void uccl::internode_ll::dispatch<true>": ("custom all-to-all", "Dispatch"),
    "DispatchTokensKernel": ("custom all-to-all", "Dispatch"),
    "combine_tokens<half>": ("custom all-to-all", "Combine"),
    "c10d::symmetric_memory::barrier_kernel(unsigned int **, int)": ("symmetric memory", "Barrier"),
    "put_signal_kernel": ("symmetric memory", None),
    "userbuffers_fp16_sum_inplace_gpu_rr_ag<8>": ("user buffers", None),
    "mscclKernel_Sum_half_LL": ("MSCCL", None),
    "void mscclpp::collective::allreduceAllPairs<float>": ("MSCCL++", "AllReduce"),
    "barrier_all_on_stream_kernel": ("NVSHMEM", "Barrier"),
    "ucp_device_put_kernel": ("UCX", None),
    "void GinAlltoAllKernel<float>(ncclWindow_vidmem *, unsigned long, int, ncclDevComm)": (
        "NCCL device API", "AlltoAll"),
    "allReduceLsaKernel(ncclDevComm_v22800, ncclWindow_vidmem *)": ("NCCL device API", "AllReduce"),
    "c10d::intra_node_comm::hybridCubeMeshAllReduceKernel<8>": ("custom all-reduce", "AllReduce"),
    "void stream_executor::gpu::AllReduceKernelImpl<float>": ("custom all-reduce", "AllReduce"),
    "void stream_executor::gpu::RaggedAllToAllKernelImpl<8>": ("custom all-to-all", "AlltoAll"),
    "void mori::moe::EpDispatchLowLatency<float>": ("custom all-to-all", "Dispatch"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_the_name_of_a_kernel_tells_its_backend_and_its_collective(name):

    backend, collective = OTHERS[name]
    assert family_of(name) == COMMUNICATION
    assert backend_of(name) == backend
    assert operation_of_kernel(name) == collective


@pytest.mark.parametrize("name", [
    "void cub::DeviceReduceKernel<float>",
    "softmax_warp_forward",
    "allReduceWarp_norm",
    "moe::dispatchPolicy",
    "norm_kernel(ncclDevComm)",
])  # fmt: skip
def test_reductions_within_a_gpu_do_not_communicate(name):
    assert family_of(name) != COMMUNICATION


@pytest.fixture(scope="module")
def nccl(written_once):
    path, _ = written_once(
        "communication-of-nccl", TrainingJob(ranks=2, steps=3, layers=2, gpu_metrics=False, stall_ms=0).write
    )
    return path


@pytest.fixture
def renamed(nccl, tmp_path) -> Callable[[str], Session]:
    """Return a function that opens the same job with renamed kernels of NCCL."""

    def opened(name: str, rules=()) -> closing[OpenJob]:
        path = tmp_path / "rank0.sqlite"
        if not path.exists():
            path.write_bytes(nccl.read_bytes())
            edit(path, f"UPDATE StringIds SET value = '{name}' || value WHERE value LIKE 'nccl%Kernel%'")
        session = Session(cache=Cache(tmp_path / "cache"), families=rules)
        session.add(path)
        return closing(OpenJob(session))

    return opened


def totals(job: OpenJob) -> dict[str, object]:
    (device,) = job.gpus(Selection())
    return vars(device.breakdown(job.extent()))


def times(job: OpenJob, part: str) -> list[int]:
    return [int(one.of.part(part).sum()) for one in iterations(job, Selection())]


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "rules"), [("nvshmem_", ()), ("our_fabric_", ((COMMUNICATION, "^our_fabric_"),))])
def test_other_libraries_are_exposed_and_block_as_nccl_does(nccl, renamed, name, rules):
    with closing(OpenJob(session_over(nccl))) as before, renamed(name, rules) as after:
        assert totals(after) == totals(before)
        (note,) = [note for note in after.busy(Selection()).notes if "all communication" in note]
        assert note.endswith("NVSHMEM" if "nvshmem" in name else "other")
        assert times(after, "compute") == times(before, "compute")
        assert times(after, "communication") == times(before, "nccl") != [0]
        assert times(after, "nccl") == [0]


@pytest.mark.campaign
def test_a_rule_of_the_user_counts_although_the_cache_knows_better(nccl, renamed):
    with renamed("our_fabric_") as without, renamed("our_fabric_", ((COMMUNICATION, "^our_fabric_"),)) as job:
        assert totals(job)["nccl"] > 2 * totals(without)["nccl"]


@pytest.mark.parametrize(("rows", "role"), [
    ([("AlltoAll", 0, 60), ("AllReduce", 1, 40)], "EP: exchanges for 60 % of its time"),
    ([("AlltoAll", 0, 40), ("AllGather", 1, 60)], None),
    ([("Send", 0, 5), ("Recv", 1, 5)], "PP: sends and receives alone"),
    ([("AllReduce", 0, 5), ("AllReduce", 1, 5)], "TP or DP: reduces over all ranks"),
    ([("AllReduce", 0, 5)], None),  # a part of the ranks: tensor parallel, or another
])  # fmt: skip
def test_a_role_follows_from_collectives_and_members_or_is_not_told(rows, role):
    frame = pd.DataFrame(
        [("c", name, rank, 0, time) for name, rank, time in rows] + [("w", "AllGather", 1, 0, 1), ("w", None, 0, 0, 1)],
        columns=["communicator", "collective", "rank", "start", "end"],
    )
    assert communicator_roles(frame)["c"][1] == role


@pytest.mark.parametrize(("names", "role"), [
    (["AttnFuncWithCPAndKVP2P.forward"] * 3 + [None], "CP: launched in ranges AttnFuncWithCPAndKVP2P.forward"),
    (["cp_ring", "cp ring", "pp_p2p"], "CP: launched in ranges cp"),
    (["tcp_send", "scp", "forward"], "PP: sends and receives alone"),
    ([None, None, "context_parallel"], "PP: sends and receives alone"),
])  # fmt: skip
def test_sends_in_ranges_of_context_parallelism_are_no_pipeline(names, role):
    rows = [("c", "SendRecv", number % 2, 0, 5, name) for number, name in enumerate(names)]
    frame = pd.DataFrame(rows, columns=["communicator", "collective", "rank", "start", "end", "range"])
    assert communicator_roles(frame)["c"][1].startswith(role)


def test_reductions_over_all_ranks_beside_compute_are_data_parallel():
    rows = [("c", "AllReduce", rank, 0, 100, exposed) for rank, exposed in ((0, 20), (1, 28))]
    frame = pd.DataFrame(rows, columns=["communicator", "collective", "rank", "start", "end", "exposed"])
    assert communicator_roles(frame)["c"][1] == "DP: reduces over all ranks, 76 % overlapped"


@pytest.mark.parametrize(("often", "is_told"), [(4, True), (3, False)])
def test_of_two_groups_that_reduce_the_one_of_neighbours_with_many_times_the_kernels_is_tensor_parallel(often, is_told):
    groups = {"t0": ((0, 1), often), "t1": ((2, 3), often), "d0": ((0, 2), 1), "d1": ((1, 3), 1)}
    rows = [
        (name, "AllReduce", rank, 0, 5)
        for name, (ranks, count) in groups.items()
        for rank in ranks
        for _ in range(count)
    ]
    frame = pd.DataFrame(rows, columns=["communicator", "collective", "rank", "start", "end"])
    roles = {name: (role or "").partition(":")[0] for name, (_, role) in communicator_roles(frame).items()}
    assert roles == ({"t0": "TP", "t1": "TP", "d0": "DP", "d1": "DP"} if is_told else dict.fromkeys(groups, ""))


@pytest.mark.campaign
def test_nccl_kernels_are_told_apart_by_the_range_that_launched_them(nccl):
    """The naive result is the innermost range, except NCCL's and PyTorch's labels, around the launch on its thread."""
    launches = native(
        nccl,
        "SELECT r.start, r.globalTid FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds n ON n.id = k.shortName "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId) WHERE n.value LIKE 'nccl%'",
    )
    ranges = native(
        nccl,
        'SELECT e.start, e."end", e.globalTid, coalesce(e.text, s.value) FROM NVTX_EVENTS e '
        'LEFT JOIN StringIds s ON s.id = e.textId WHERE e.eventType = 59 AND e."end" IS NOT NULL',
    )
    expected: Counter[str | None] = Counter()
    for moment, thread in launches:
        around = [
            (start, text)
            for start, end, own, text in ranges
            if own == thread and start <= moment < end and not text.startswith("nccl")
        ]
        expected[re.sub("[0-9]+", "*", max(around)[1]) if around else None] += 1
    with closing(OpenJob(session_over(nccl))) as job:
        by = (NcclProperty.RANGE,)
        answer = nccl_summary(job, Selection(), job.pairing_by(by), by, KERNEL)
    assert {row["range"]: row["count"] for row in answer.records()} == expected
    assert len(expected) > 1
