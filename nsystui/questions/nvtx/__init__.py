"""NVTX: the ranges of a job with what the GPU did for each, as a tree to open and as tables."""

from nsystui.questions.nvtx.launches import kernels_of
from nsystui.questions.nvtx.listing import nvtx_summary, nvtx_tree_table
from nsystui.questions.nvtx.node import Node, NodeKind, Order
from nsystui.questions.nvtx.ranges import UNKNOWN, Lane, NvtxRanges
from nsystui.questions.nvtx.scopes import By
from nsystui.questions.nvtx.tree import NvtxTree

__all__ = [
    "UNKNOWN",
    "By",
    "Lane",
    "Node",
    "NodeKind",
    "NvtxRanges",
    "NvtxTree",
    "Order",
    "kernels_of",
    "nvtx_summary",
    "nvtx_tree_table",
]
