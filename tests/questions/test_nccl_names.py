"""NCCL's names of every version, and message size buckets. Examples are from NCCL's sources and from real exports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsystui.questions.nccl.names import (
    BUCKETS,
    COLLECTIVES,
    EDGES,
    GROUP_END,
    GROUP_START,
    bucket_of,
    collective_of_api,
    collective_of_kernel,
    collective_of_label,
    is_communication,
    is_nccl_kernel,
)

KERNELS = {
    # up to 2.7
    "ncclAllReduceRingLLKernel_sum_f32": "AllReduce",
    "void ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "AllReduce",
    "ncclAllReduceTreeLL128Kernel_sum_f16": "AllReduce",
    "ncclAllReduceCollNetLLKernel_sum_f32": "AllReduce",
    "ncclReduceScatterRingLLKernel_sum_f16": "ReduceScatter",
    "ncclReduceRingKernel_prod_i8": "Reduce",
    "ncclBroadcastRingLLKernel_copy_i8": "Broadcast",
    "ncclAllGatherRingLLKernel_copy_i8": "AllGather",
    "ncclSendRecvKernel_copy_i8": "SendRecv",
    # 2.8 to 2.18
    "ncclKernel_AllReduce_RING_LL_Sum_float": "AllReduce",
    "ncclKernel_AllReduce_TREE_LL_Sum___nv_bfloat16(ncclDevComm*, unsigned long, ncclWork*)": "AllReduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t": "SendRecv",
    "ncclKernel_ReduceScatter_RING_LL_Sum_half": "ReduceScatter",
    "ncclKernel_Generic": None,
    # 2.19 and later
    "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevComm *, unsigned long, ncclWork *)": "AllReduce",
    "ncclDevKernel_AllReduce_Sum_f8e4m3_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)": "AllReduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": "ReduceScatter",
    "ncclDevKernel_Reduce_Sum_u32_RING_LL": "Reduce",
    "ncclDevKernel_AllGather_RING_LL": "AllGather",
    "ncclDevKernel_AllGatherV_RING_LL": "AllGatherV",
    "ncclDevKernel_Broadcast_RING_LL": "Broadcast",
    "ncclDevKernel_SendRecv": "SendRecv",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "SendRecv",
    "ncclDevKernel_Generic": None,
    "ncclDevKernel_Generic(ncclDevComm *, unsigned long, ncclWork *)": None,
    # symmetric memory, 2.27 and 2.28 and later
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32": "AllReduce",
    "ncclSymkDevKernel_AllGather_LL": "AllGather",
    "ncclSymkDevKernel_AllGather_RailRing_LsaSTMC": "AllGather",
    "ncclSymkDevKernel_AllReduce_RSxTmaLD_AGxTmaST_sum_bf16_profile": "AllReduce",
    "ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLDMC_avg_f16": "ReduceScatter",
    # a collective to come
    "ncclDevKernel_AlltoAll_RING_LL": "AlltoAll",
}


@pytest.mark.parametrize(("name", "collective"), KERNELS.items())
def test_a_kernel_shows_its_collective(name, collective):
    assert is_nccl_kernel(name)
    assert collective_of_kernel(name) == collective
    assert collective is None or collective in COLLECTIVES


@pytest.mark.parametrize(
    "name",
    ["", "volta_sgemm_128x64_nn", "my_nccl_like_kernel", "void user<ncclFoo>(int)", "void at::native::reduce", " nccl"],
)
def test_other_kernels_are_not_nccls(name):
    assert not is_nccl_kernel(name)
    assert collective_of_kernel(name) is None


def test_a_kernel_of_nccls_with_a_name_never_seen_is_still_nccls():
    assert is_nccl_kernel("NCCLsomething")
    assert is_nccl_kernel("ncclLocalOpAppend")
    assert collective_of_kernel("ncclLocalOpAppend") is None


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("ncclAllReduce", "AllReduce"),
        ("ncclAllGather", "AllGather"),
        ("ncclReduceScatter", "ReduceScatter"),
        ("ncclBroadcast", "Broadcast"),
        ("ncclBcast", "Broadcast"),
        ("ncclReduce", "Reduce"),
        ("ncclSend", "Send"),
        ("ncclRecv", "Recv"),
        ("ncclAlltoAll", "AlltoAll"),
        ("ncclAllToAll", "AlltoAll"),
        ("ncclGather", "Gather"),
        ("ncclScatter", "Scatter"),
        ("ncclPutSignal", "PutSignal"),
        ("ncclAllReduce(): commHash 0x1a2b, stream 0x5, data_size 4096, type_size 4, red_op 0, pid 7", "AllReduce"),
    ],
)
def test_communication(name, collective):
    assert collective_of_api(name) == collective
    assert is_communication(name)


@pytest.mark.parametrize(
    "name",
    [
        *(GROUP_START, GROUP_END, "ncclGroupSimulateEnd", "ncclCommInitRank", "ncclCommInitRankConfig"),
        *("ncclCommInitAll", "ncclCommSplit", "ncclCommShrink", "ncclCommFinalize", "ncclCommDestroy"),
        *("ncclCommAbort", "ncclCommCount", "ncclCommUserRank", "ncclMemAlloc", "ncclRedOpCreatePreMulSum"),
    ],
)
def test_management(name):
    assert not is_communication(name)
    assert collective_of_api(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nccl:all_reduce",
        "NCCL Progress 0",
        "NCCL",
        "nccl",
        "ncclx",
        "ncclAllReduce of mine",
        "myncclSend",
        "forward",
    ],
)
def test_other_ranges_are_no_api_calls(name):
    assert not is_communication(name)


@pytest.mark.parametrize(
    ("text", "collective"),
    [
        ("nccl:all_to_all, op_id = 991144", "AlltoAll"),
        ("nccl:all_to_all", "AlltoAll"),
        ("nccl:all_reduce, op_id = 1", "AllReduce"),
        ("nccl:all_reduce_barrier", "AllReduce"),
        ("nccl:allreduce_coalesced", "AllReduce"),
        ("nccl:_all_gather_base, op_id = 3", "AllGather"),
        ("nccl:all_gather_into_tensor_coalesced", "AllGather"),
        ("nccl:_reduce_scatter_base", "ReduceScatter"),
        ("nccl:reduce_scatter_tensor_coalesced", "ReduceScatter"),
        ("nccl:broadcast", "Broadcast"),
        ("nccl:_broadcast_oop", "Broadcast"),
        ("nccl:reduce", "Reduce"),
        ("nccl:_reduce_oop", "Reduce"),
        ("nccl:gather", "Gather"),
        ("nccl:scatter", "Scatter"),
        ("nccl:send 0->1", "Send"),
        ("nccl:recv 0<-1, op_id = 5", "Recv"),
        ("nccl:coalesced", None),
        ("nccl:", None),
        ("gloo:all_reduce", None),
        ("ncclAllReduce", None),
        ("aten::gather", None),
        ("", None),
    ],
)
def test_pytorchs_labels(text, collective):
    assert collective_of_label(text) == collective


@given(st.text())
def test_any_text_is_answered(text):
    for name in (text, "nccl" + text, "nccl:" + text, "ncclDevKernel_" + text):
        assert collective_of_kernel(name) is None or is_nccl_kernel(name)
        collective_of_api(name)
        collective_of_label(name)


@pytest.mark.parametrize(
    ("size", "bucket"),
    [
        (None, None),
        (-1, None),
        (0, "<64KiB"),
        (65_535, "<64KiB"),
        (65_536, "64KiB–1MiB"),
        (1_048_575, "64KiB–1MiB"),
        (1_048_576, "1MiB–16MiB"),
        (16_777_215, "1MiB–16MiB"),
        (16_777_216, ">16MiB"),
        (1 << 62, ">16MiB"),
    ],
)
def test_buckets(size, bucket):
    assert bucket_of(size) == bucket


def test_buckets_are_in_order():
    assert BUCKETS == ("<64KiB", "64KiB–1MiB", "1MiB–16MiB", ">16MiB")
    assert [bucket_of(edge) for edge in EDGES] == list(BUCKETS[1:])
