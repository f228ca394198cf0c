"""The options of a report of ``nsys stats``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nsystui.base.answer import Answer
from nsystui.base.selection import Selection
from nsystui.questions.kernels.summary import Names
from nsystui.store.session import Session


@dataclass(frozen=True)
class ReportOptions:
    """The options after a report's name, as in ``cuda_gpu_kern_sum:nvtx-name:base``.

    ``names``: ``:base`` or ``:mangled``. ``nvtx_name``: put the innermost NVTX range of the launch call before a
    kernel's name. ``rows``: limit of ``um_sum``. ``ticks_threshold``: ``network_congestion`` lists rates above it,
    ticks/ms.
    """

    names: Names = Names.FULL
    nvtx_name: bool = False
    rows: int = 10
    ticks_threshold: int = 10_000


AskReport = Callable[[Session, Selection, ReportOptions], Answer]
"""The function of a report; each module of this folder has its functions by report name in ``ASK``."""
