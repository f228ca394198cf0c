"""What a report of ``nsys stats`` is: its name, its options, the tables it needs and the question it asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from nsystui.base.answer import Answer
from nsystui.base.selection import Selection
from nsystui.questions.kernels import Names
from nsystui.store.session import Session


@dataclass(frozen=True)
class Options:
    """What may follow the name of a report, as in ``cuda_gpu_kern_sum:nvtx-name:base``.

    ``names``: ``:base`` or ``:mangled``. ``nvtx_name``: the innermost NVTX range of the launch call stands before a
    kernel's name. ``rows``: how many rows ``um_sum`` has at most. ``ticks_threshold``: from which rate on, in ticks/ms,
    ``network_congestion`` takes a sample for congestion.
    """

    names: Names = Names.FULL
    nvtx_name: bool = False
    rows: int = 10
    ticks_threshold: int = 10_000


NAMES = frozenset({"base", "mangled"})
KERNEL_NAMES = NAMES | {"nvtx-name"}

Ask = Callable[[Session, Selection, Options], Answer]


@dataclass(frozen=True)
class Report:
    """One report. ``needs``: of each group of tables the exports must have one, if only without rows.

    ``takes`` are the options it knows.
    """

    name: str
    what: str
    ask: Ask
    needs: tuple[tuple[sa.Table, ...], ...]
    takes: frozenset[str] = frozenset()
