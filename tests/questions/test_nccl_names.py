"""Names of communicators, names of NCCL's kernels in every version, and message size buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsystui.exports.nccl_log.lines import CommunicatorLine, CommunicatorState, LogProcess, Signature, Writer
from nsystui.questions.nccl import names
from nsystui.questions.nccl.communicators import CommunicatorRank, Communicators

KERNELS = {
    # up to 2.7
    "ncclAllReduceRingLLKernel_sum_f32": "AllReduce", "void ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "AllReduce",
    "ncclAllReduceTreeLL128Kernel_sum_f16": "AllReduce", "ncclAllReduceCollNetLLKernel_sum_f32": "AllReduce",
    "ncclReduceScatterRingLLKernel_sum_f16": "ReduceScatter", "ncclReduceRingKernel_prod_i8": "Reduce",
    "ncclBroadcastRingLLKernel_copy_i8": "Broadcast", "ncclAllGatherRingLLKernel_copy_i8": "AllGather",
    "ncclSendRecvKernel_copy_i8": "SendRecv",
    # 2.8 to 2.18
    "ncclKernel_AllReduce_RING_LL_Sum_float": "AllReduce",
    "ncclKernel_AllReduce_TREE_LL_Sum___nv_bfloat16(ncclDevComm*, unsigned long, ncclWork*)": "AllReduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t": "SendRecv",
    "ncclKernel_ReduceScatter_RING_LL_Sum_half": "ReduceScatter", "ncclKernel_Generic": None,
    # 2.19 and later
    "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevComm *, unsigned long, ncclWork *)": "AllReduce",
    "ncclDevKernel_AllReduce_Sum_f8e4m3_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)": "AllReduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": "ReduceScatter", "ncclDevKernel_Reduce_Sum_u32_RING_LL": "Reduce",
    "ncclDevKernel_AllGather_RING_LL": "AllGather", "ncclDevKernel_AllGatherV_RING_LL": "AllGatherV",
    "ncclDevKernel_Broadcast_RING_LL": "Broadcast", "ncclDevKernel_SendRecv": "SendRecv",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "SendRecv", "ncclDevKernel_Generic": None,
    "ncclDevKernel_Generic(ncclDevComm *, unsigned long, ncclWork *)": None,
    # symmetric memory, 2.27 and 2.28 and later
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32": "AllReduce", "ncclSymkDevKernel_AllGather_LL": "AllGather",
    "ncclSymkDevKernel_AllGather_RailRing_LsaSTMC": "AllGather",
    "ncclSymkDevKernel_AllReduce_RSxTmaLD_AGxTmaST_sum_bf16_profile": "AllReduce",
    "ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLDMC_avg_f16": "ReduceScatter",
    "_Z30ncclDevKernel_AllReduce_Sum_f3224ncclDevKernelArgsStorageILm4096EE": "AllReduce",
    "ncclSymkRun_ReduceScatter_LD": "ReduceScatter", "void ncclSymkRun_AllReduce_AGxLL_R<FuncSum, float>": "AllReduce",
    # any case, and RCCL's kernels
    "nccldevkernel_reducescatter_sum_bf16_ring_simple": "ReduceScatter", "ncclkernel_sendrecv": "SendRecv",
    "NCCLDEVKERNEL_ALLGATHER_RING_LL": "AllGather", "ncclKernelAllToAllvCtran": "AlltoAll",
    # kernels that hide it
    "ncclDevKernel_Generic_2(ncclDevKernelArgsStorage<4096ul>)": None, "nccldevkernel_generic_8": None,
    "rcclGenericKernel_4": None, "ncclDevKernel_Nop": None,
    # a collective of a later NCCL
    "ncclDevKernel_AlltoAll_RING_LL": "AlltoAll",
}  # fmt: skip


CALLS = {
    "ncclAllReduce": "AllReduce",
    "ncclAllReduce(): commHash 0x1a2b, stream 0x5, data_size 4096, type_size 4, red_op 0, pid 7": "AllReduce",
    "ncclAllGather": "AllGather", "ncclReduceScatter": "ReduceScatter", "ncclBroadcast": "Broadcast",
    "ncclBcast": "Broadcast", "ncclReduce": "Reduce", "ncclSend": "Send", "ncclRecv": "Recv",
    "ncclAlltoAll": "AlltoAll", "ncclAllToAll": "AlltoAll", "ncclGather": "Gather", "ncclScatter": "Scatter",
    "ncclPutSignal": "PutSignal",
}  # fmt: skip
MANAGEMENT = [
    *(names.GROUP_START, names.GROUP_END, "ncclGroupSimulateEnd", "ncclCommInitRank", "ncclCommInitRankConfig"),
    *("ncclCommInitAll", "ncclCommSplit", "ncclCommShrink", "ncclCommFinalize", "ncclCommDestroy"),
    *("ncclCommAbort", "ncclCommCount", "ncclCommUserRank", "ncclMemAlloc", "ncclRedOpCreatePreMulSum"),
]
NO_CALLS = [
    *("", "forward"), "nccl:all_reduce", "NCCL Progress 0", "NCCL", "nccl", "ncclx", "ncclAllReduce of mine",
    "myncclSend",
]  # fmt: skip
PYTORCH = {
    "nccl:all_to_all, op_id = 991144": "AlltoAll", "nccl:all_to_all": "AlltoAll",
    "nccl:all_reduce, op_id = 1": "AllReduce", "nccl:all_reduce_barrier": "AllReduce",
    "nccl:allreduce_coalesced": "AllReduce", "nccl:_all_gather_base, op_id = 3": "AllGather",
    "nccl:all_gather_into_tensor_coalesced": "AllGather", "nccl:_reduce_scatter_base": "ReduceScatter",
    "nccl:reduce_scatter_tensor_coalesced": "ReduceScatter", "nccl:broadcast": "Broadcast",
    "nccl:_broadcast_oop": "Broadcast", "nccl:reduce": "Reduce", "nccl:_reduce_oop": "Reduce",
    "nccl:gather": "Gather", "nccl:scatter": "Scatter", "nccl:send 0->1": "Send", "nccl:recv 0<-1, op_id = 5": "Recv",
    **dict.fromkeys(("nccl:coalesced", "nccl:", "gloo:all_reduce", "ncclAllReduce", "aten::gather", "")),
}  # fmt: skip


def test_a_kernel_shows_its_collective():
    assert {name: names.collective_of_kernel(name) for name in KERNELS} == KERNELS
    assert {name for name in KERNELS if not names.is_nccl_kernel(name)} == set()
    assert {*KERNELS.values()} - {None} <= {*names.COLLECTIVES}


def test_other_kernels_are_not_nccls():
    for name in ("", "volta_sgemm_128x64_nn", "my_nccl_like_kernel", "void user<ncclFoo>(int)", " nccl", "void reduce"):
        assert not names.is_nccl_kernel(name) and names.collective_of_kernel(name) is None, name
    # An unknown name of NCCL is still NCCL's.
    assert names.is_nccl_kernel("NCCLsomething") and names.is_nccl_kernel("ncclLocalOpAppend")
    assert names.collective_of_kernel("ncclLocalOpAppend") is None


def test_calls_communicate_or_manage_and_pytorchs_labels_name_collectives():
    assert {name: names.collective_of_api(name) for name in CALLS} == CALLS
    assert {name for name in CALLS if names.collective_of_api(name) is None} == set()
    assert not [name for name in (*MANAGEMENT, *NO_CALLS) if names.collective_of_api(name) is not None]
    assert {names.collective_of_api(name) for name in MANAGEMENT} == {None}
    assert {text: names.collective_of_label(text) for text in PYTORCH} == PYTORCH


@given(st.text())
def test_any_text_is_answered(text):
    for name in (text, "nccl" + text, "nccl:" + text, "ncclDevKernel_" + text):
        assert names.collective_of_kernel(name) is None or names.is_nccl_kernel(name)
        names.collective_of_api(name)
        names.collective_of_label(name)


def test_buckets():
    assert names.BUCKETS == ("<64KiB", "64KiB–1MiB", "1MiB–16MiB", ">16MiB")
    assert names.EDGES == (1 << 16, 1 << 20, 1 << 24)
    assert [names.bucket_of(size) for size in (None, -1)] == [None, None]
    edges = [0, *names.EDGES, (1 << 62) + 1]
    for bucket, low, high in zip(names.BUCKETS, edges, edges[1:], strict=False):
        assert names.bucket_of(low) == names.bucket_of(high - 1) == bucket


START, COMPLETE = CommunicatorState.STARTED, CommunicatorState.COMPLETE
DESTROYED = CommunicatorState.DESTROYED


def writer(pid: int = 1, device: int = 0) -> Writer:
    return Writer(LogProcess("n1", pid), device)


def line(state: CommunicatorState = COMPLETE, pid: int = 1, pointer: int = 0xC1, rank: int = 0, **words: int):
    words = {"unique_id": 0xFE, "device": 0} | words
    return CommunicatorLine(writer(pid), state, pointer, rank, words.pop("ranks", 2), **words)


def call(pid: int = 1, pointer: int | None = 0xC1, device: int = 0, ranks: int | None = 2) -> Signature:
    return Signature(writer(pid, device), "AllReduce", 10, 7, communicator=pointer, ranks=ranks)


@pytest.fixture
def communicators() -> Communicators:
    return Communicators()


def heard(communicators: Communicators, *lines: CommunicatorLine) -> CommunicatorRank:
    for each in lines:
        communicators.hear(each)
    return communicators.member_of(call())


def test_a_pointer_is_the_rank_that_its_init_line_tells(communicators):
    member = heard(communicators, line(START, rank=1), line(rank=1))
    assert (member.communicator, member.rank, member.ranks) == ("0xfe", 1, 2)
    assert communicators.members == [member]  # START and COMPLETE are one creation
    communicators.hear(line(pid=2, pointer=0xC1, rank=0))
    other = communicators.member_of(call(2))
    # The ranks of a communicator share its name and not their pointers.
    assert other is not member and (other.communicator, other.rank) == ("0xfe", 0)


def test_the_device_is_that_of_the_communicator_and_not_that_before_the_call(communicators):
    communicators.hear(line(device=0))
    assert communicators.member_of(call(device=1), 484).device == 0
    unknown = communicators.member_of(call(pointer=0xC2, device=1), 484)
    assert communicators.member_of(call(pointer=0xC2, device=0), 11) is unknown
    assert unknown.device == 1


def test_a_pointer_or_an_id_that_is_used_again_is_another_communicator(communicators):
    """NCCL 2.18 to 2.23 make the id of a split from its parent and color alone."""
    found = [heard(communicators, *lines) for lines in ([line()], [line(DESTROYED), line(unique_id=0xAB)])]
    communicators.hear(line(pointer=0xC2))
    assert [one.communicator for one in found] == ["0xfe", "0xab"]
    assert communicators.member_of(call(pointer=0xC2)).communicator == "0xfe #2"


def test_a_split_is_named_by_its_parent_count_and_color(communicators):
    communicators.hear(line())
    for pid, color in ((1, 0), (2, 0), (3, 1)):
        communicators.hear(line(pid=pid, pointer=0xC1))
        split = {"parent": 0xC1, "split_count": 3, "color": color}
        communicators.hear(CommunicatorLine(writer(pid), COMPLETE, 0xC9, 0, 2, None, None, **split))
    names = [communicators.member_of(call(pid, 0xC9)).communicator for pid in (2, 3)]
    assert names == ["0xfe split 3 color 0", "0xfe split 3 color 1"]


def test_without_an_id_a_pointer_is_the_name_in_its_process_only(communicators):
    one, other = communicators.member_of(call(1)), communicators.member_of(call(2))
    assert one is not other
    assert one.communicator == other.communicator == "pointer 0xc1"
    assert (one.rank, one.ranks, one.is_shared) == (None, 2, False)


def test_a_line_at_the_end_or_in_a_later_file_tells_the_rank_too(communicators):
    """As in a log without its beginning."""
    member = communicators.member_of(call())
    communicators.hear(line(DESTROYED, rank=1))
    assert (member.rank, member.ranks) == (1, 2)
    later = communicators.member_of(call())
    assert later is not member
    communicators.hear(line(rank=1))
    assert (later.communicator, later.rank) == ("0xfe", 1)


def test_calls_without_a_communicator_have_a_member_without_one(communicators):
    member = communicators.member_of(call(pointer=None))
    assert member.communicator is None
    assert communicators.member_of(call(pointer=None)) is member
