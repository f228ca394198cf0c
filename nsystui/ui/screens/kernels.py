"""2 Kernels: the kernel summary, and the other tables of work: memory operations, API, OS runtime and MPI calls."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from nsystui.base.answer import Answer, Row
from nsystui.base.selection import Selection
from nsystui.questions.activities import WORKS, Work, has_rows, memory_sizes, work_summary
from nsystui.questions.job import Job
from nsystui.questions.kernels import GroupBy, Names, kernel_summary
from nsystui.questions.nccl.names import is_nccl_kernel
from nsystui.ui import keys
from nsystui.ui.screens.handover import NcuQuestion, show_ncu_commands
from nsystui.ui.screens.instances import KernelInstancesScreen, WorkInstancesScreen
from nsystui.ui.screens.table import TableScreen

if TYPE_CHECKING:
    from nsystui.questions.trace.ncu import NcuCommand

_KERNELS = "kernels"
_SIZES = "memory sizes"
_TITLES = {_KERNELS: "Kernels", **{work.name: work.title for work in WORKS.values()}, _SIZES: "memory sizes"}
_ORDER = (_KERNELS, "memory", _SIZES, "api", "os", "mpi")
_GROUPS: tuple[tuple[GroupBy, ...], ...] = (
    (),
    (GroupBy.RANK,),
    (GroupBy.DEVICE,),
    (GroupBy.STREAM,),
    (GroupBy.SHAPE,),
)


class KernelsScreen(TableScreen):
    """Summaries by name."""

    MODE_KEY = "2"
    PLACES = ("kernels", "table", "everywhere")
    BINDINGS = keys.bindings("kernels", "table", "everywhere")

    def __init__(self) -> None:
        super().__init__("2 Kernels")
        self.names = Names.FULL
        self.grouping = 0
        self.what = _KERNELS
        self._current = _KERNELS  # what is shown; a sample is of kernels too

    def parameters(self) -> tuple[Hashable, ...]:
        return (self.what, self.names, self.grouping)

    def ask(self, job: Job, selection: Selection) -> tuple[str, Answer]:
        return self.what, self._table(job, selection, self.what)

    def _table(self, job: Job, selection: Selection, what: str) -> Answer:
        if what == _KERNELS:
            return kernel_summary(job.session, selection, self.names, _GROUPS[self.grouping], job.ranks)
        if what == _SIZES:
            return memory_sizes(job.session, selection)
        return work_summary(job.session, selection, WORKS[what])

    def show(self, result: Any, same_place: bool) -> None:
        what, answer = result
        self._current = what
        super().show(answer, same_place)

    def empty_text(self, answer: Answer) -> str:
        text = super().empty_text(answer)
        job = self.job
        return text if job is None or answer.total else f"{text}\n\n{_others(job)}"

    def show_waiting(self) -> None:
        """A sample of the kernels, said to be one, until exact numbers are there."""
        sample = self.explorer.sample
        if sample is None:
            super().show_waiting()
            return
        self.show_title(right="sample")
        self.table.set_answer(sample, keep_cursor=True)
        self.notes.show_notes(sample.notes)

    def natural_order(self) -> tuple[str | None, bool]:
        return "total", True

    def show_count(self) -> None:
        self.crumbs = ("2 Kernels",) if self._current == _KERNELS else ("2 Kernels", _TITLES[self._current])
        super().show_count()

    def counted(self) -> str:
        by = _GROUPS[self.grouping]
        return f"by {by[0].value}" if self._current == _KERNELS and by else "names"

    def row_category(self, row: Row) -> str | None:
        if self.what == _KERNELS and isinstance(row[-1], str):
            return "nccl" if is_nccl_kernel(row[-1]) else None
        return None

    def action_other_table(self) -> None:
        """The next table that has rows."""
        job = self.job
        if job is None:
            return
        here = _ORDER.index(self.what)
        following = [*_ORDER[here + 1 :], *_ORDER[:here]]
        found = next((what for what in following if _has(job, what)), None)
        if found is None:
            self.say("there is no other table in these exports")
            return
        self.what = found
        self._sort = None
        self.job_changed()

    def action_names(self) -> None:
        order = list(Names)
        self.names = order[(order.index(self.names) + 1) % len(order)]
        self.say(f"{self.names.value} names")
        self.job_changed()

    def action_group_by(self) -> None:
        if self.what != _KERNELS:
            self.say("only kernels can be grouped")
            return
        self.grouping = (self.grouping + 1) % len(_GROUPS)
        self.job_changed()

    def open_row(self) -> None:
        if self.job is None:
            self.say("this is a sample: its launches can be opened when the export is read")
            return
        name = self.values().get("name")
        if not isinstance(name, str):
            return
        if self._current == _KERNELS:
            self.lay_over(KernelInstancesScreen(name, self.names))
        elif self._current == _SIZES:
            self.lay_over(WorkInstancesScreen(name, WORKS["memory"]))
        else:
            self.lay_over(WorkInstancesScreen(name, WORKS[self._current]))

    def action_ncu(self) -> None:
        show_ncu_commands(self, self._ncu_question())

    def _ncu_question(self) -> NcuQuestion | str:
        name, rank = self.values().get("name"), self.values().get("rank")
        if self._current != _KERNELS or not isinstance(name, str):
            return "ncu profiles kernels: o goes to their table"
        names, selection = self.names, self.selection

        def ask(job: Job) -> list[NcuCommand]:
            from nsystui.questions.trace.ncu import of_name

            chosen = selection.with_tasks(job.tasks_of_ranks(frozenset({rank}))) if isinstance(rank, int) else selection
            return of_name(job, chosen, name, names)

        return ask


def _has(job: Job, what: str) -> bool:
    if what == _KERNELS:
        return True
    work: Work = WORKS["memory" if what == _SIZES else what]
    return has_rows(job.session, work)


def _others(job: Job) -> str:
    """The tables that have rows, with how many, as a sentence for an export without kernels."""
    counts = [(work.title, job.session.count(work.table)) for work in WORKS.values() if _has(job, work.name)]
    # MPI calls that are NVTX ranges are no rows of a table of their own.
    found = [f"{title} ({count:,})" if count else title for title, count in counts]
    return f"o shows {', '.join(found)}" if found else ""
