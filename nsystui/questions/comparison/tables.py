"""The tables of a comparison by their names, as ``--tables`` takes them and the screen goes through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nsystui.base.answer import TableAnswer
from nsystui.questions.comparison.kernels import kernels, memory
from nsystui.questions.comparison.nccl import nccl
from nsystui.questions.comparison.nvtx import nvtx
from nsystui.questions.comparison.side import Side
from nsystui.questions.comparison.steps import steps
from nsystui.questions.comparison.summary import summary
from nsystui.questions.kernels import Names


@dataclass(frozen=True)
class Options:
    """How rows are told apart: which kernel names, numbered NVTX names folded or not, which NVTX ranges are steps."""

    names: Names = Names.FULL
    fold_numbers: bool = True
    step_range: str | None = None


@dataclass(frozen=True)
class Table:
    """A table and what it is called."""

    title: str
    make: Callable[[Side, Side, Options], TableAnswer]


TABLES: Mapping[str, Table] = {
    "summary": Table("what changed", lambda a, b, options: summary(a, b, options.step_range)),
    "kernels": Table("kernels by name", lambda a, b, options: kernels(a, b, options.names)),
    "nvtx": Table("NVTX ranges by name", lambda a, b, options: nvtx(a, b, options.fold_numbers)),
    "nccl": Table("NCCL by collective and message size", lambda a, b, _: nccl(a, b)),
    "memory": Table("memory operations", lambda a, b, _: memory(a, b)),
    "steps": Table("training steps", lambda a, b, options: steps(a, b, options.step_range)),
}
