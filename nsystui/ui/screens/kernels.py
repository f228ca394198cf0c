"""2 Kernels: the kernel summary, the other tables of work by name, and the single instances of one name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from nsystui.base.answer import Answer, Record, Unit, Value
from nsystui.base.selection import Selection
from nsystui.base.units import format_value, numbered
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey, event_row
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import MPI, WORKS, Work, has_rows, work_instances
from nsystui.questions.kernels.summary import Names, durations, kernel_instances
from nsystui.questions.nccl.names import is_nccl_kernel
from nsystui.questions.nvtx.listing import range_instances
from nsystui.questions.queries.distributions import Distribution, distribution
from nsystui.questions.queries.mpi import is_by_range
from nsystui.questions.queries.registry import view_named
from nsystui.ui.doors import show_event
from nsystui.ui.pictures.details import Details, event_details
from nsystui.ui.screens.events import find_partner
from nsystui.ui.screens.other_tools import NcuQuestion, ncu_of_event, show_ncu_commands
from nsystui.ui.screens.table import TableScreen, ViewsScreen, names_choice
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.plots import histogram_lines

if TYPE_CHECKING:
    from nsystui.questions.trace.ncu import NcuCommand
    from nsystui.ui.pictures.details import Details
    from nsystui.ui.screens import TabView


_KINDS = {"memory": EventKind.MEMORY, "api": EventKind.API, "os": EventKind.OS, "mpi": EventKind.MPI}


def distribution_lines(shape: Distribution) -> list[str]:
    """A histogram of durations with its key figures, as lines for a panel."""
    if not shape.count:
        return []
    labels = [format_value(Unit.DURATION, low) for low in shape.edges[:-1]]
    figures = (("min", shape.minimum), ("median", shape.median), ("p95", shape.p95), ("max", shape.maximum))
    lines = ["duration", *histogram_lines(labels, list(shape.counts), 42), ""]
    return lines + [f"{word:7} {format_value(Unit.DURATION, value)}" for word, value in figures]


class EventRowsScreen(TableScreen):
    """A table of single events in order of start: Enter goes to the event."""

    COUNTED = "instances"
    ORDER = ("start", False)
    PLACES: ClassVar[tuple[str, ...]] = ("rows opened", "table", "everywhere")
    BACKGROUND = True
    MODE_KEY = "2"

    def event_kind(self) -> EventKind:
        """The kind of the event under the cursor."""
        return EventKind(self.values()["kind"])

    def event_here(self) -> EventKey | None:
        """The event under the cursor, by its report and row."""
        values = self.values()
        return _key(values["report"], self.event_kind(), values["row"], values["start"]) if values else None

    def details_question(self) -> Callable[[OpenJob], Details] | None:
        """Ask for the event's own details, with what this table has besides."""
        key, own, besides = self.event_here(), self.row_details(), self.table.hidden_facts
        if key is None:
            return None

        def ask(job: OpenJob) -> Details:
            row = event_row(job.session, key, job.ranks)
            return own if row is None else event_details(job, row, besides)

        return ask

    def open_row(self) -> None:
        """Go to the event in the list of all."""
        key = self.event_here()
        if key is not None:
            show_event(self.explorer, key)

    def action_partner(self) -> None:
        """Go from a call to its GPU work, or back."""
        find_partner(self, partial(show_event, self.explorer))

    def open_event(self, report: Value, kind: EventKind, row: Value, start: Value) -> None:
        """Opens the list of events at one of them."""
        show_event(self.explorer, _key(report, kind, row, start))


def _key(report: Value, kind: EventKind, row: Value, start: Value) -> EventKey:
    return EventKey(int(report or 0), kind, int(row or 0), int(start or 0))


class KernelInstancesScreen(EventRowsScreen):
    """Every launch of one kernel, the longest first."""

    HAS_PANEL = True
    PLACES = ("rows opened", "launches", "table", "everywhere")

    def __init__(self, name: str, names: Names) -> None:
        super().__init__("launches")
        self.kernel = name
        self.names = names
        self._sort = ("duration", True)  # the longest is the one that is looked for

    def path(self) -> Sequence[str]:
        """The way here, which ends with the name of the kernel as it is shown."""
        return (*super().path(), self.shown_names().get(self.kernel, self.kernel))

    def ask(self, job: OpenJob, selection: Selection) -> tuple[Answer, Distribution]:
        """List the launches, and count their durations."""
        answer = kernel_instances(job.session, selection, self.kernel, self.names, job.ranks)
        return answer, distribution(durations(job.session, selection, self.kernel, self.names))

    def show(self, result: Any, same_place: bool) -> None:
        """Show the launches, and the histogram of their durations (ns) beside them."""
        answer, shape = result
        self.panel.category = "nccl" if is_nccl_kernel(self.kernel) else "compute"
        self.panel.show_lines(distribution_lines(shape))
        super().show(answer, same_place)

    def event_kind(self) -> EventKind:
        """NCCL or another kernel, by the name."""
        return EventKind.NCCL if is_nccl_kernel(self.kernel) else EventKind.KERNEL

    def action_ncu(self) -> None:
        """Show the ``ncu`` command for this launch."""
        values = self.values()
        if values:
            question = ncu_of_event(self.event_kind().value, int(values["report"] or 0), int(values["row"] or 0))
        else:
            question = "there is no launch here"
        show_ncu_commands(self, question)


class RangeInstancesScreen(EventRowsScreen):
    """Every NVTX range of one name."""

    COUNTED = "ranges"
    MODE_KEY = "5"
    PLACES = ("table", "everywhere")

    def __init__(self, name: str) -> None:
        super().__init__("by name", name)
        self.range = name

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        return range_instances(job.session, selection, self.range, job.ranks)

    def event_kind(self) -> EventKind:
        return EventKind.NVTX


class WorkInstancesScreen(EventRowsScreen):
    """Every call or operation of one name."""

    def __init__(self, name: str, work: Work) -> None:
        super().__init__(view_named(work.name).title, name)
        self.call = name
        self.work = work

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        return work_instances(job.session, selection, self.work, self.call, job.ranks)

    def event_kind(self) -> EventKind:
        """The kind of the work; MPI calls may be NVTX ranges."""
        report = self.values().get("report")
        is_range = self.work is MPI and self.job is not None and is_by_range(self.job.session, int(report or 0))
        return EventKind.NVTX if is_range else _KINDS[self.work.name]


_GROUPS = {
    "": "name",
    "rank": "rank",
    "device": "device",
    "stream": "stream",
    "shape": "grid",
    "family": "family",
    "precision": "precision",
    "graph": "CUDA graph",
}
"""The groupings of kernels besides their name, or in place of it, with the words for them."""

_OF_NAMES = ("family", "precision", "graph")
"""Those whose rows are all kernels of a kind: Enter shows their names."""


class KernelsScreen(ViewsScreen):
    """Summaries by name."""

    HOME = SCREEN = "kernels"
    MODE_KEY = "2"
    PLACES = ("kernels", "kernel names", "table", "everywhere")

    def __init__(self) -> None:
        super().__init__()
        self.options = {"names": Names.SMART.value, "by": "", "only": ""}

    def places(self) -> tuple[str, ...]:
        """The keys of kernel names leave where rows are none."""
        return tuple(one for one in self.PLACES if one != "kernel names" or self.view.question.row == "kernel")

    def empty_text(self, answer: Answer) -> str:
        """Say which other views have rows where there are no kernels."""
        text = super().empty_text(answer)
        job = self.job
        return text if job is None or answer.total else f"{text}\n\n{self._others(job)}"

    def _others(self, job: OpenJob) -> str:
        """The views that have rows, with how many, as a sentence for an export without kernels."""
        # MPI calls that are NVTX ranges are no rows of a table of their own.
        works = [(view_named(name).title, work) for name, work in WORKS.items() if has_rows(job.session, work)]
        counts = [(title, job.session.count(work.table)) for title, work in works]
        found = [f"{title} ({count:,})" if count else title for title, count in counts]
        return f"v shows {', '.join(found)}" if found else ""

    def show_waiting(self) -> None:
        """Show the kernels of a sample, titled as one, then all kernels, until reports are ready."""
        seen = self.explorer.seen
        if seen.answer is None:
            super().show_waiting()
            return
        self.table.names = seen.names
        self.table.set_answer(seen.answer, keep_cursor=True)
        self.notes.show_notes(seen.answer.notes)
        self.show_count() if seen.is_exact else self.show_title(right="sample")

    def show(self, result: Any, same_place: bool) -> None:
        """Show the summary with bars in the colour of its work."""
        bars = {"kernel": "compute", "memory": "memory", "api": "api", "os": "os", "mpi": "os"}
        self.table.bar_category = bars.get(self.view.question.row)
        super().show(result, same_place)

    def shown_names(self) -> Mapping[str, str]:
        """Smart names, unless full ones are chosen."""
        return {} if self.options["names"] == Names.FULL.value else super().shown_names()

    def counted(self) -> str:
        """The grouping, and the kind that alone is shown."""
        by, only = self.options["by"], self.options["only"]
        if self.answered.question.row != "kernel":
            return super().counted()
        return (f"by {by}" if by else super().counted()) + (f" of {only}" if only else "")

    def row_details(self) -> Details:
        """With the full name of a kernel, where the table shows its smart one; a stream with its place."""
        own, values = super().row_details(), self.values()
        if own and self.answered.question.row == "stream":
            words = [numbered(key, values[key]) for key in ("stream", "device")]
            place = f"{' of '.join(words)} of rank {values['rank']}"
            return [[f"{place}: {values['kind']}"], *own[1:]]
        return [[str(values["name"])], *own[1:]] if own and "smart" in values else own

    def row_category(self, values: Record) -> str | None:
        """NCCL kernels have their own colour."""
        name = values.get("name") if self.view.question.row == "kernel" else None
        return "nccl" if isinstance(name, str) and is_nccl_kernel(name) else None

    def has_view(self, view: TabView) -> bool:
        """A view is offered if there is work of its kind."""
        work = WORKS.get(view_named(view.name).question.row)
        if work is None or view.name == self.view.name:
            return True
        return self.job is not None and has_rows(self.job.session, work)

    def choices(self) -> tuple[Choice, ...]:
        """Offer the groupings and names of kernels."""
        views = super().choices()
        if self.view.question.row != "kernel":
            return views
        return (
            *views,
            Choice.among("by", _GROUPS, self.options["by"], self._group_by),
            names_choice(Names(self.options["names"]), self._show_names),
        )

    def _group_by(self, by: str) -> None:
        self.ask_with(options={**self.options, "by": by, **({"only": ""} if by in _OF_NAMES else {})})

    def _show_names(self, names: Names) -> None:
        self.ask_with(options={**self.options, "names": names.value})

    def open_row(self) -> None:
        """Open the launches or calls of a name, the names of a kind of kernels, or select a stream for all screens."""
        if self.answered.question.row == "stream":
            self._select_stream()
            return
        if self.options["by"] in _OF_NAMES and self.answered.question.row == "kernel":
            word = self.values().get(self.options["by"])
            if not isinstance(word, str):
                self.say("the names of these kernels do not show a precision: b returns to all names")
                return
            self.explorer.remember()
            self.options |= {"by": "", "only": word}
            self.job_changed()
            return
        name = self.values().get("name")
        if not isinstance(name, str):
            return
        row = self.answered.question.row
        if row == "kernel":
            self.lay_over(KernelInstancesScreen(name, Names(self.options["names"])))
        elif row in WORKS:
            self.lay_over(WorkInstancesScreen(name, WORKS[row]))

    def _select_stream(self) -> None:
        values, job = self.values(), self.explorer.job
        rank, device, stream = (values.get(key) for key in ("rank", "device", "stream"))
        if job is None or not (isinstance(rank, int) and isinstance(device, int) and isinstance(stream, int)):
            return
        tasks = job.tasks_of_ranks(frozenset({rank}))
        selection = replace(self.selection, tasks=tasks, devices=frozenset({device}), streams=frozenset({stream}))
        view = "memory" if values.get("kind") == "copies" else "kernels"
        self.call_later(self.explorer.go, "kernels", selection, view)

    def take_view(self, name: str, **options: str) -> None:
        """Show a view with all its rows."""
        super().take_view(name, **{"only": "", **options})

    def action_ncu(self) -> None:
        """Show the ``ncu`` commands for all launches of the name."""
        show_ncu_commands(self, self._ncu_question())

    def _ncu_question(self) -> NcuQuestion | str:
        name, rank = self.values().get("name"), self.values().get("rank")
        if self.answered.question.row != "kernel" or not isinstance(name, str):
            return "ncu profiles kernels: v goes to their table"
        names, selection = Names(self.options["names"]), self.selection

        def ask(job: OpenJob) -> list[NcuCommand]:
            from nsystui.questions.trace.ncu import of_name

            chosen = selection.with_tasks(job.tasks_of_ranks(frozenset({rank}))) if isinstance(rank, int) else selection
            return of_name(job, chosen, name, names)

        return ask
