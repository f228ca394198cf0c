"""The single launches of one kernel, and the single calls, operations or NVTX ranges of one name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from nsystui.base.answer import Answer, Value
from nsystui.base.columns import Unit
from nsystui.base.selection import Selection
from nsystui.base.units import format_value
from nsystui.questions.activities import MPI, Work, work_instances
from nsystui.questions.algebra.distributions import Distribution, distribution
from nsystui.questions.catalogue import view_named
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey, event_row
from nsystui.questions.job import Job
from nsystui.questions.kernels import Names, durations, kernel_instances
from nsystui.questions.mpi import is_by_range
from nsystui.questions.nccl.names import is_nccl_kernel
from nsystui.questions.nvtx.listing import range_instances
from nsystui.ui import keys
from nsystui.ui.doors import show_event
from nsystui.ui.pictures.details import Details, event_details
from nsystui.ui.screens.other_tools import ncu_of_event, show_ncu_commands
from nsystui.ui.screens.table import TableScreen
from nsystui.ui.widgets.plots import histogram_lines

_PANEL_WIDTH = 42
_KINDS = {"memory": EventKind.MEMORY, "api": EventKind.API, "os": EventKind.OS, "mpi": EventKind.MPI}


def distribution_lines(shape: Distribution) -> list[str]:
    """A histogram of durations with its key figures, as lines for a panel."""
    if not shape.count:
        return []
    labels = [format_value(Unit.DURATION, low) for low in shape.edges[:-1]]
    figures = (("min", shape.minimum), ("median", shape.median), ("p95", shape.p95), ("max", shape.maximum))
    lines = ["duration", *histogram_lines(labels, list(shape.counts), _PANEL_WIDTH), ""]
    return lines + [f"{word:7} {format_value(Unit.DURATION, value)}" for word, value in figures]


class EventRowsScreen(TableScreen):
    """A table of single events in order of start: Enter goes to the event."""

    PLACES: ClassVar[tuple[str, ...]] = ("table", "everywhere")
    BINDINGS = keys.bindings("table", "everywhere")
    BACKGROUND = True
    MODE_KEY = "2"

    def natural_order(self) -> tuple[str | None, bool]:
        return "start", False

    def counted(self) -> str:
        return "instances"

    def event_kind(self) -> EventKind:
        """The kind of the event under the cursor."""
        return EventKind(self.values()["kind"])

    def event_here(self) -> EventKey | None:
        values = self.values()
        return _key(values["report"], self.event_kind(), values["row"], values["start"]) if values else None

    def details_question(self) -> Callable[[Job], Details] | None:
        key, own = self.event_here(), self.row_details()
        if key is None:
            return None

        def ask(job: Job) -> Details:
            row = event_row(job.session, key, job.ranks)
            if row is None:
                return own
            name, partner, path, place, facts = event_details(job, row)
            told = {fact.rpartition(" ")[2].replace(",", "") for fact in (*place, *facts)}
            more = [fact for fact in own[-1] if fact.rpartition(" ")[2].replace(",", "") not in told]
            return [name, partner, path, place, [*more, *facts]]

        return ask

    def open_row(self) -> None:
        key = self.event_here()
        if key is not None:
            show_event(self.explorer, key)

    def open_event(self, report: Value, kind: EventKind, row: Value, start: Value) -> None:
        """Opens the list of events at one of them."""
        show_event(self.explorer, _key(report, kind, row, start))


def _key(report: Value, kind: EventKind, row: Value, start: Value) -> EventKey:
    return EventKey(int(report or 0), kind, int(row or 0), int(start or 0))


class KernelInstancesScreen(EventRowsScreen):
    """Every launch of one kernel."""

    HAS_PANEL = True
    PLACES = ("launches", "table", "everywhere")
    BINDINGS = keys.bindings("launches", "table", "everywhere")

    def __init__(self, name: str, names: Names) -> None:
        super().__init__("2 Kernels", "launches", name)
        self.kernel = name
        self.names = names

    def ask(self, job: Job, selection: Selection) -> tuple[Answer, Distribution]:
        answer = kernel_instances(job.session, selection, self.kernel, self.names, job.ranks)
        return answer, distribution(durations(job.session, selection, self.kernel, self.names))

    def show(self, result: Any, same_place: bool) -> None:
        answer, shape = result
        self.panel.show_lines(distribution_lines(shape))
        super().show(answer, same_place)

    def event_kind(self) -> EventKind:
        return EventKind.NCCL if is_nccl_kernel(self.kernel) else EventKind.KERNEL

    def action_ncu(self) -> None:
        values = self.values()
        if values:
            question = ncu_of_event(self.event_kind().value, int(values["report"] or 0), int(values["row"] or 0))
        else:
            question = "there is no launch here"
        show_ncu_commands(self, question)


class RangeInstancesScreen(EventRowsScreen):
    """Every NVTX range of one name."""

    MODE_KEY = "5"

    def __init__(self, name: str) -> None:
        super().__init__("5 NVTX", "by name", name)
        self.range = name

    def ask(self, job: Job, selection: Selection) -> Answer:
        return range_instances(job.session, selection, self.range, job.ranks)

    def counted(self) -> str:
        return "ranges"

    def event_kind(self) -> EventKind:
        return EventKind.NVTX


class WorkInstancesScreen(EventRowsScreen):
    """Every call or operation of one name."""

    def __init__(self, name: str, work: Work) -> None:
        super().__init__("2 Kernels", view_named(work.name).title, name)
        self.call = name
        self.work = work

    def ask(self, job: Job, selection: Selection) -> Answer:
        return work_instances(job.session, selection, self.work, self.call, job.ranks)

    def event_kind(self) -> EventKind:
        report = self.values().get("report")
        is_range = self.work is MPI and self.job is not None and is_by_range(self.job.session, int(report or 0))
        return EventKind.NVTX if is_range else _KINDS[self.work.name]
