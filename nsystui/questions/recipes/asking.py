"""What recipes share: their options, and a question asked of each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from nsystui.base.answer import Answer, Row, TableAnswer, row_batches
from nsystui.base.columns import Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.job import Job
from nsystui.questions.kernels import Names
from nsystui.questions.tasks import RankedTask, selected_ranks
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.recipes.maps import RecipeMap

T = TypeVar("T")

MILLISECOND = 1_000_000
BINS = 30
RANK = Column("rank", header="Rank", label="rank", unit=Unit.NUMBER)


@dataclass(frozen=True)
class Options:
    """What a recipe is asked with: the defaults are those of NVIDIA's.

    ``by_rank``: each rank by itself. ``name``: of the kernel or range that is looked at; ``None`` for the kernel with
    most time, and for the training steps. ``names``: of kernels. ``bins``: of a map. ``gap``: ns. ``threshold``:
    percent. ``chunks``: how many parts a GPU's time is cut into.
    """

    by_rank: bool = False
    name: str | None = None
    names: Names = Names.FULL
    bins: int = BINS
    gap: int = 500 * MILLISECOND
    threshold: float = 50.0
    chunks: int = 30


Ask = Callable[[Job, Selection, Options], Answer]
Draw = Callable[[Job, Selection, Options], "RecipeMap"]
"""Each module of this folder has the functions of its recipes, by their names, in ``ASK`` or ``MAPS``."""


Question = Callable[[Session, Selection], Answer]
"""What is asked of a rank: of a session that has at least its report."""


def of_each_rank(job: Job, selection: Selection, question: Question) -> Answer:
    """The answers for the single ranks below each other, behind a column for the rank."""
    parts = [(item.rank, of_rank(job, selection, item, question)) for item in selected_ranks(job.ranks, selection)]
    if not parts:
        empty = question(job.session, selection)
        return TableAnswer(empty.name, (RANK, *empty.columns), [], 0, empty.notes)
    return _RankAnswers(tuple(rank for rank, _ in parts), tuple(part for _, part in parts))


def of_rank(job: Job, selection: Selection, rank: RankedTask, question: Callable[[Session, Selection], T]) -> T:
    """The answer for one of the ranks."""
    return question(job.session.part([rank.task.report]), selection.with_tasks(frozenset({rank.task})))


@dataclass(frozen=True)
class _RankAnswers:
    """Answers with the same columns, one for each of ``ranks``, in a row."""

    ranks: tuple[int, ...]
    parts: tuple[Answer, ...]

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def columns(self) -> tuple[Column, ...]:
        return (RANK, *self.parts[0].columns)

    @property
    def total(self) -> int:
        return len(self)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for part in self.parts for note in part.notes))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        ends = list(accumulate(map(len, self.parts)))
        found: list[Row] = []
        for rank, part, end in zip(self.ranks, self.parts, ends, strict=True):
            first = max(0, offset - (end - len(part)))
            wanted = limit - len(found)
            if first < len(part) and wanted > 0:
                found += [(rank, *row) for row in part.page(first, wanted)]
        return found

    def stream(self, size: int) -> Iterator[Sequence[Row]]:
        for rank, part in zip(self.ranks, self.parts, strict=True):
            for batch in row_batches(part, size):
                yield [(rank, *row) for row in batch]

    def sorted_by(self, key: str, descending: bool) -> Answer:
        rows = [row for batch in self.stream(10_000) for row in batch]
        return TableAnswer(self.name, self.columns, rows, self.total, self.notes).sorted_by(key, descending)
