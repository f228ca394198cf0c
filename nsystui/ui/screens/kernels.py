"""2 Kernels: the kernel summary, other tables of work by name, and instances of a name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

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
from nsystui.questions.queries.question import View, view_named
from nsystui.questions.trace.ncu import of_name
from nsystui.ui.pictures.details import event_details
from nsystui.ui.screens.events import find_partner
from nsystui.ui.screens.other_tools import ncu_of_event, show_ncu_commands
from nsystui.ui.screens.table import TableScreen, ViewsScreen, names_choice
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.panels import Details
from nsystui.ui.widgets.plots import histogram_lines

_KINDS = {"memory": EventKind.MEMORY, "api": EventKind.API, "os": EventKind.OS, "mpi": EventKind.MPI}


class EventRowsScreen(TableScreen):
    """A table of single events, sorted by start."""

    COUNTED = "instances"
    ORDER = ("start", False)
    PLACES: ClassVar[tuple[str, ...]] = ("rows opened", "table", "everywhere")
    BACKGROUND = True
    MODE_KEY = "2"

    def event_kind(self) -> EventKind:
        """Return the kind of the event under the cursor."""
        return EventKind(self.values()["kind"])

    def event_here(self) -> EventKey | None:
        values = self.values()
        return event_key(values["report"], self.event_kind(), values["row"], values["start"]) if values else None

    def details_question(self) -> Callable[[OpenJob], Details] | None:
        key, row_details, table_facts = self.event_here(), self.row_details(), self.table.hidden_facts
        if key is None:
            return None

        def ask(job: OpenJob) -> Details:
            row = event_row(job.session, key, job.ranks)
            return row_details if row is None else event_details(job, row, table_facts)

        return ask

    def open_row(self) -> None:
        if (key := self.event_here()) is not None:
            self.go_to_event(key)

    def action_partner(self) -> None:
        find_partner(self, self.go_to_event)


def event_key(report: Value, kind: EventKind, row: Value, start: Value) -> EventKey:
    return EventKey(int(report or 0), kind, int(row or 0), int(start or 0))


class KernelInstancesScreen(EventRowsScreen):
    """The launches of a kernel, the longest first."""

    HAS_PANEL = True
    PLACES = ("rows opened", "launches", "table", "everywhere")

    def __init__(self, name: str, names: Names) -> None:
        super().__init__("launches")
        self.kernel = name
        self.names = names
        self._sort = ("duration", True)  # users look for the longest launch

    def path(self) -> Sequence[str]:
        return (*super().path(), self.shown_names().get(self.kernel, self.kernel))

    def ask(self, job: OpenJob, selection: Selection) -> tuple[Answer, Distribution]:
        answer = kernel_instances(job.session, selection, self.kernel, self.names, job.ranks)
        return answer, distribution(durations(job.session, selection, self.kernel, self.names))

    def show(self, result: Any, same_place: bool) -> None:
        answer, shape = result
        lines = []
        if shape.count:
            labels = [format_value(Unit.DURATION, low) for low in shape.edges[:-1]]
            figures = (("min", shape.minimum), ("median", shape.median), ("p95", shape.p95), ("max", shape.maximum))
            lines = ["duration", *histogram_lines(labels, list(shape.counts), 42), ""]
            lines += [f"{word:7} {format_value(Unit.DURATION, value)}" for word, value in figures]
        self.panel.show_drawing(lines, "nccl" if is_nccl_kernel(self.kernel) else "compute")
        super().show(answer, same_place)

    def event_kind(self) -> EventKind:
        return EventKind.NCCL if is_nccl_kernel(self.kernel) else EventKind.KERNEL

    def action_ncu(self) -> None:
        show_ncu_commands(self, ncu_of_event(self.event_here(), "there is no launch here"))


class RangeInstancesScreen(EventRowsScreen):
    """The NVTX ranges of a name."""

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
    """The calls or operations of a name."""

    def __init__(self, name: str, work: Work) -> None:
        super().__init__(view_named(work.name).title, name)
        self.call = name
        self.work = work

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        return work_instances(job.session, selection, self.work, self.call, job.ranks)

    def event_kind(self) -> EventKind:
        """Return the kind of the work; MPI calls may be NVTX ranges."""
        report = self.values().get("report")
        is_range = self.work is MPI and self.job is not None and is_by_range(self.job.session, int(report or 0))
        return EventKind.NVTX if is_range else _KINDS[self.work.name]


def instances_of(kind: str, name: str, names: Names) -> EventRowsScreen | None:
    """Return the launches, calls or ranges of a name, if rows of this kind are such names."""
    if kind == "kernel":
        return KernelInstancesScreen(name, names)
    if kind == "range":
        return RangeInstancesScreen(name)
    return WorkInstancesScreen(name, WORKS[kind]) if kind in WORKS else None


_GROUPS = {
    "": "name", "rank": "rank", "role": "role", "device": "device", "stream": "stream", "shape": "grid",
    "family": "family", "precision": "precision", "graph": "CUDA graph",
}  # fmt: skip
"""The groupings of kernels, in words: instead of their name, or in addition to it."""

_NAME_GROUPS = ("family", "precision", "graph")
"""The groupings with kinds of kernels as rows: Enter lists the kernels of a kind."""


class KernelsScreen(ViewsScreen):
    """Summaries of kernels, memory operations and calls by name, and of streams."""

    SCREEN = "kernels"
    MODE_KEY = "2"
    PLACES = ("kernels", "kernel names", "table", "everywhere")
    options = {"names": Names.SMART.value, "by": "", "only": ""}

    def places(self) -> tuple[str, ...]:
        """Return the key groups, without keys for kernel names unless rows are kernels."""
        return tuple(
            group for group in self.PLACES if group != "kernel names" or self.view.question.rows.kind == "kernel"
        )

    def empty_text(self, answer: Answer) -> str:
        text, job = super().empty_text(answer), self.job
        if job is None or answer.total:
            return text
        # MPI calls recorded as NVTX ranges have no table to count.
        works = [(view_named(name).title, work) for name, work in WORKS.items() if has_rows(job.session, work)]
        counts = [(title, job.session.count(work.table)) for title, work in works]
        views = [f"{title} ({count:,})" if count else title for title, count in counts]
        return f"{text}\n\n" + (f"v shows {', '.join(views)}" if views else "")

    def show_waiting(self) -> None:
        """Show a labelled sample of kernels, then all kernels, until a report is ready."""
        preview = self.explorer.seen
        if preview.answer is None:
            super().show_waiting()
            return
        self.table.names = preview.names
        self.table.set_answer(preview.answer, keep_cursor=True)
        self.notes.show_notes(preview.answer.notes)
        self.show_count() if preview.is_exact else self.show_title(right="sample")

    def show(self, result: Any, same_place: bool) -> None:
        bars = {"kernel": "compute", "memory": "memory", "api": "api", "os": "os", "mpi": "os"}
        self.table.bar_category = bars.get(self.view.question.rows.kind)
        super().show(result, same_place)

    def shown_names(self) -> Mapping[str, str]:
        return {} if self.options["names"] == Names.FULL.value else super().shown_names()

    def counted(self) -> str:
        group, only = self.options["by"], self.options["only"]
        if self.answered.question.rows.kind != "kernel":
            return super().counted()
        return (f"by {group}" if group else super().counted()) + (f" of {only}" if only else "")

    def row_details(self) -> Details:
        """Return the details with a kernel's full name, or with a stream's device and rank."""
        details, values = super().row_details(), self.values()
        if details and self.answered.question.rows.kind == "stream":
            words = [numbered(key, values[key]) for key in ("stream", "device")]
            stream = f"{' of '.join(words)} of rank {values['rank']}"
            return [[f"{stream}: {values['kind']}"], *details[1:]]
        return [[str(values["name"])], *details[1:]] if details and "smart" in values else details

    def row_category(self, values: Record) -> str | None:
        name = values.get("name") if self.view.question.rows.kind == "kernel" else None
        return "nccl" if isinstance(name, str) and is_nccl_kernel(name) else None

    def has_view(self, view: View) -> bool:
        work = WORKS.get(view_named(view.name).question.rows.kind)
        if work is None or view.name == self.view.name:
            return True
        return self.job is not None and has_rows(self.job.session, work)

    def choices(self) -> tuple[Choice, ...]:
        views = super().choices()
        if self.view.question.rows.kind != "kernel":
            return views
        return (
            *views,
            Choice.among("by", _GROUPS, self.options["by"], self._group_by),
            names_choice(Names(self.options["names"]), self._show_names),
        )

    def _group_by(self, group: str) -> None:
        self.ask_with(options={**self.options, "by": group, **({"only": ""} if group in _NAME_GROUPS else {})})

    def _show_names(self, names: Names) -> None:
        self.ask_with(options={**self.options, "names": names.value})

    def open_row(self) -> None:
        """Open the launches or calls of a name, or the kernels of a kind; or select a stream on all screens."""
        if self.answered.question.rows.kind == "stream":
            self._select_stream()
            return
        if self.options["by"] in _NAME_GROUPS and self.answered.question.rows.kind == "kernel":
            kind = self.values().get(self.options["by"])
            if not isinstance(kind, str):
                self.say("the names of these kernels do not show a precision: b returns to all names")
                return
            self.explorer.remember()
            self.ask_with(options={**self.options, "by": "", "only": kind})
            return
        name, names = self.values().get("name"), Names(self.options["names"])
        if isinstance(name, str) and (screen := instances_of(self.answered.question.rows.kind, name, names)):
            self.lay_over(screen)

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
        super().take_view(name, **{"only": "", **options})

    def action_ncu(self) -> None:
        """Show the ``ncu`` commands for all launches of the name."""
        name, rank = self.values().get("name"), self.values().get("rank")
        if self.answered.question.rows.kind != "kernel" or not isinstance(name, str):
            show_ncu_commands(self, "ncu profiles kernels: v opens the table of kernels")
            return
        names, selection = Names(self.options["names"]), self.selection
        if isinstance(rank, int) and self.job is not None:
            selection = selection.with_tasks(self.job.tasks_of_ranks(frozenset({rank})))
        show_ncu_commands(self, lambda job: of_name(job, selection, name, names))
