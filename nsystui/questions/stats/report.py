"""The options of a report of ``nsys stats``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nsystui.base.answer import Answer
from nsystui.base.kernel_families import Rules
from nsystui.base.selection import Selection
from nsystui.questions.kernels import Names
from nsystui.store.session import Session


@dataclass(frozen=True)
class Options:
    """The words behind the name of a report, as in ``cuda_gpu_kern_sum:nvtx-name:base``.

    ``names``: ``:base`` or ``:mangled``. ``families``: ``:family``, the families of kernels in place of their names,
    with the user's own rules. ``nvtx_name``: the innermost NVTX range of the launch call stands before a
    kernel's name. ``rows``: how many rows ``um_sum`` has at most. ``ticks_threshold``: from which rate on, in ticks/ms,
    ``network_congestion`` takes a sample for congestion.
    """

    names: Names = Names.FULL
    families: Rules | None = None
    nvtx_name: bool = False
    rows: int = 10
    ticks_threshold: int = 10_000


Ask = Callable[[Session, Selection, Options], Answer]
"""Each module of this folder has the functions of its reports, by their names, in ``ASK``."""
