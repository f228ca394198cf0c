"""3 NCCL by message size: how long kernels of each size take, how fast they are, and three drawings of it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nsystui.base.answer import Answer, Row, TableAnswer
from nsystui.base.columns import Unit
from nsystui.base.selection import Selection
from nsystui.base.units import format_value
from nsystui.questions.algebra.distributions import log_density
from nsystui.questions.job import Job
from nsystui.questions.nccl.grouping import By
from nsystui.questions.nccl.sizes import SizeBin, bandwidth_by_size, durations_and_sizes, size_histogram
from nsystui.questions.nccl.summary import KERNEL
from nsystui.ui import keys
from nsystui.ui.screens.nccl_calls import NcclCallsScreen, histogram
from nsystui.ui.screens.table_pane import TablePane
from nsystui.ui.widgets.xy_plot import label_width, plot_lines

_SIZES = (By.BYTES, By.POW2, By.SIZE)
_HEIGHT = 11


class Drawing(Enum):
    """What is drawn below the table; the value is its title, of one collective."""

    BANDWIDTH = "{}: median bus bandwidth against message size"
    DURATIONS = "{}: durations against message size, by kernel (· 1, ○ 2–9, ■ 10+)"
    CALLS = "calls by power of two"


@dataclass(frozen=True)
class Points:
    """Of a collective: sizes (bytes) and median bus bandwidths (bytes/s) for the curve, all kernels for the scatter."""

    sizes: Sequence[float]
    bandwidths: Sequence[float]
    kernel_sizes: Any
    durations: Any


class NcclSizesScreen(TablePane):
    """Kernels of known size by collective and size; the drawing is of the collective under the cursor."""

    MODE_KEY = "3"
    PLACES = ("nccl sizes", "table", "everywhere")
    BINDINGS = keys.bindings("nccl sizes", "table", "everywhere")
    HAS_PANEL = True
    PANEL_BORDER = ""
    ELASTIC = "collective"

    DEFAULT_CSS = f"""
    NcclSizesScreen #body {{ layout: vertical; }}
    NcclSizesScreen SidePanel, NcclSizesScreen.-wide SidePanel {{
        display: block; width: 100%; height: {_HEIGHT}; margin-top: 1;
    }}
    NcclSizesScreen SidePanel.-empty, NcclSizesScreen.-wide SidePanel.-empty {{ display: none; }}
    """

    def __init__(self) -> None:
        super().__init__("3 NCCL", "message sizes")
        self.by = By.BYTES
        self.drawing = Drawing.BANDWIDTH
        self._points: dict[str, Points] = {}
        self._bars: Sequence[SizeBin] = ()

    def parameters(self) -> tuple[Hashable, ...]:
        job = self.explorer.job
        return (self.by, job is not None and job.nccl_log is not None)

    def ask(self, job: Job, selection: Selection) -> tuple[Answer, dict[str, Points], Sequence[SizeBin]]:
        pairing = job.pairing()
        answer = bandwidth_by_size(job.session, selection, job.ranks, pairing, self.by)
        exact = answer if self.by is By.BYTES else bandwidth_by_size(job.session, selection, job.ranks, pairing)
        points = {
            name: Points(*_curve(exact, name), *durations_and_sizes(pairing, selection, name))
            for name in dict.fromkeys(map(str, filter(None, exact.cells("collective"))))
        }
        return answer, points, size_histogram(pairing, selection, By.POW2)

    def show(self, result: Any, same_place: bool) -> None:
        answer, self._points, self._bars = result
        super().show(answer, same_place)
        self._draw()

    def empty_text(self, answer: Answer) -> str:
        return "no kernel here has a known message size\n" + super().empty_text(answer)

    def on_resize(self) -> None:
        self._draw()

    def row_changed(self) -> None:
        self._draw()

    def row_category(self, row: Row) -> str | None:
        return "nccl"

    def _draw(self) -> None:
        lines = self._lines(self.size.width)
        self.panel.show_lines(lines)
        self.panel.set_class(not lines, "-empty")

    def _lines(self, width: int) -> list[str]:
        if self.drawing is Drawing.CALLS:
            return histogram(_most(self._bars, _HEIGHT - 1), width)
        name = self.values().get("collective")
        points = self._points.get(str(name))
        if points is None:
            return []
        is_curve = self.drawing is Drawing.BANDWIDTH
        x, y = (points.sizes, points.bandwidths) if is_curve else (points.kernel_sizes, points.durations)
        unit = Unit.RATE if is_curve else Unit.DURATION
        title = self.drawing.value.format(name)
        lines = _plot(x, y, unit, width, is_curve)
        return [title, *(lines or ["no bandwidth: the size of the communicator is not known" if is_curve else ""])]

    def action_group_by(self) -> None:
        self.by = _SIZES[(_SIZES.index(self.by) + 1) % len(_SIZES)]
        self.job_changed()

    def action_drawing(self) -> None:
        drawings = list(Drawing)
        self.drawing = drawings[(drawings.index(self.drawing) + 1) % len(drawings)]
        self._draw()

    def open_row(self) -> None:
        values = self.values()
        if values:
            key = {By.BYTES: "message_size", By.POW2: "size_from", By.SIZE: "bucket"}[self.by]
            row = {By.COLLECTIVE: values["collective"], self.by: values[key]}
            self.lay_over(NcclCallsScreen(KERNEL, row))


def _most(bars: Sequence[SizeBin], count: int) -> list[SizeBin]:
    """The bins that have calls, in order; of more than ``count`` those with most."""
    used = [bar for bar in bars if bar.calls]
    least = sorted((bar.calls for bar in used), reverse=True)[:count]
    return [bar for bar in used if bar.calls >= least[-1]][:count] if used else []


def _curve(answer: TableAnswer, collective: str) -> tuple[Sequence[float], Sequence[float]]:
    """The sizes of a collective and their median bus bandwidths, where these are known."""
    frame = answer.frame()
    frame = frame[frame["collective"] == collective].dropna(subset=["busbw"])
    return frame["message_size"].astype(float).tolist(), frame["busbw"].astype(float).tolist()


def _plot(x: Any, y: Any, unit: Unit, width: int, is_curve: bool) -> list[str]:
    def x_words(value: float) -> str:
        return format_value(Unit.BYTES, round(value))

    def y_words(value: float) -> str:
        return format_value(unit, value).strip()

    ends = log_density(x, y, 1, 1)
    if ends is None:
        return []
    plot = log_density(x, y, width - label_width(y_words, ends.y), _HEIGHT - 2)
    return [] if plot is None else plot_lines(plot, width, x_words, y_words, is_curve)
