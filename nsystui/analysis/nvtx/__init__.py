"""NVTX: the ranges of a job with what the GPU did for each, as a tree to open and as tables."""

from nsystui.analysis.nvtx.launches import kernels_of
from nsystui.analysis.nvtx.listing import nvtx_summary, nvtx_tree_table
from nsystui.analysis.nvtx.node import Node, NodeKind, Order
from nsystui.analysis.nvtx.ranges import UNKNOWN, Lane, NvtxRanges
from nsystui.analysis.nvtx.scopes import By
from nsystui.analysis.nvtx.tree import NvtxTree

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
