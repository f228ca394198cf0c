"""4 GPU, memory: CUDA allocations, the peak of each rank, device and kind, and its allocations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nsystui.base.answer import Answer, Record, Value
from nsystui.base.selection import Selection, Window
from nsystui.base.units import format_value, numbered
from nsystui.questions.job.job import OpenJob
from nsystui.questions.memory.gpu_allocations import AT_PEAK, NEVER_FREED, allocation_table
from nsystui.questions.memory.gpu_memory import COLUMNS, memory_over_time
from nsystui.ui.pictures.details import Details
from nsystui.ui.screens.table import GroupedViewsScreen, TableScreen
from nsystui.ui.widgets.plots import blocks

_CURVE = 60
"""Columns of the curve of memory over time."""


def _group(values: Record) -> tuple[Value, ...]:
    return tuple(values.get(key) for key in ("rank", "device", "memory"))


class GpuMemoryScreen(GroupedViewsScreen):
    """The memory of each rank, device and kind, or its allocations."""

    MODE_KEY = "4"
    SCREEN = "GPU memory"
    BAR_CATEGORY = "memory"
    PLACES = ("gpu memory", "table", "everywhere")
    _LISTS = {"allocation": "all", "at peak": AT_PEAK, "never freed": NEVER_FREED}
    BY = {"GPU memory": (("device", {}), *((words, {"allocations": which}) for words, which in _LISTS.items()))}

    def open_row(self) -> None:
        if "peak_time" in self.values():
            self.lay_over(PeakScreen(*_group(self.values())))
        else:
            self.say("b groups by device: Enter there lists what was in use at the peak")

    def row_window(self) -> Window | None:
        """Return the moment of the peak, or the time of the row."""
        peak = self.values().get("peak_time")
        return Window(peak, peak + 1) if isinstance(peak, int) else super().row_window()

    def details_question(self) -> Callable[[OpenJob], Details] | None:
        values, selection = self.values(), self.selection
        if "peak_time" not in values:
            return None
        details, group = self.row_details(), _group(values)
        rank, device, memory = group
        title = [f"{memory} memory of rank {'–' if rank is None else rank}, {numbered('device', device)}"]
        peak = values["peak"]

        def ask(job: OpenJob) -> Details:
            peak_bytes = int(peak or 0)
            rows = [row for row in memory_over_time(job, selection, _CURVE).rows if row[:3] == group]
            used = [float("nan") if row[4] is None else int(row[4]) / max(peak_bytes, 1) for row in rows]
            words = format_value(COLUMNS[3].unit, peak_bytes)
            return [title, [f"over time {blocks(used, _CURVE)} a full block is {words}"], *details[1:]]

        return ask


class PeakScreen(TableScreen):
    """The allocations in use at the peak of a rank, device and kind of memory."""

    MODE_KEY = "4"
    COUNTED = "allocations"
    BAR_CATEGORY = "memory"
    CLOSED = "this is one allocation: L shows its time on the timeline, t selects it"

    def __init__(self, rank: Value, device: Value, memory: Value) -> None:
        super().__init__(
            f"rank {'–' if rank is None else rank}", numbered("device", device), f"{memory} memory at its peak"
        )
        self.group = (rank, device, memory)

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        answer = allocation_table(job, selection, AT_PEAK)
        rows = [row for row in answer.rows if row[:3] == self.group]
        return replace(answer, rows=rows, total=len(rows))
