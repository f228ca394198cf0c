"""9 Steps: iterations side by side, what their time went to, and the critical path of one."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from textual.widget import Widget

from nsystui.base.answer import Answer, Record, Unit, Value
from nsystui.base.selection import Selection
from nsystui.base.units import Wording, format_value
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.blocking.budget import LABELS, MEANINGS, NCCL_LABELS, SEND_AND_RECEIVE, steps_side_by_side
from nsystui.questions.blocking.parts import BLOCKERS, PARTS
from nsystui.questions.blocking.path import CATEGORIES, KINDS
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey, event_row
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.questions.ranks.steps import figures_of_all, step_times
from nsystui.ui.doors import show_event, show_view
from nsystui.ui.pictures.details import Details, event_details
from nsystui.ui.screens.kernels import KernelInstancesScreen
from nsystui.ui.screens.table import GroupedViewsScreen
from nsystui.ui.widgets.plots import step_axis
from nsystui.ui.widgets.repainting import in_background
from nsystui.ui.widgets.stacks import bar_stack
from nsystui.ui.widgets.strip_chart import Lane, StillChart

_CHARTED = ("steps", "steps by rank", "steps across", "steps by phase")
"""The views below the chart of the steps."""
_BY: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "budget": (("part", {"by": "step"}), ("GPU", {"by": "gpu"})),
    "path": (
        ("operation", {"by": "name"}),
        ("kind", {"by": "kind"}),
        ("NVTX range", {"by": "range"}),
        ("rank", {"by": "rank"}),
        ("piece", {"by": "piece"}),
    ),
    "kernels by step": (("family", {"by": "step,family"}), ("name", {"by": "step"})),
}
_COLOURS = {
    **dict.fromkeys(PARTS, "metric"),
    **dict.fromkeys(BLOCKERS.values(), "memory"),
    **dict.fromkeys(("nccl", "communication"), "nccl"),
    "compute": "compute",
    "starved": "idle",
    "unresolved": "api",
}
"""The colour of each part of a step."""
_LEGEND = {
    "compute": "compute",
    "nccl": "blocked by NCCL",
    "memory": "blocked by memory",
    "idle": "launch-starved",
    "api": "unresolved",
    "metric": "stalled, other",
}
_OF_KINDS = {KINDS[kind]: colour for kind, colour in CATEGORIES.items()}
"""The colour of the pieces of the path."""
_ROOMY, _WIDE = 30, 120
"""On a terminal of so many lines there is a chart, of so many columns the line above says what the steps are."""
_LEAST_ROWS, _MOST_ROWS = 6, 20
"""Rows of the chart: more than the least where the table leaves them."""


class StepsScreen(GroupedViewsScreen):
    """One table after the other, below a chart with a column for each step."""

    HOME = SCREEN = "steps"
    MODE_KEY = "9"
    PLACES = ("steps", "table", "everywhere")
    BY = _BY
    LENGTHS = ("max", "longest", "duration")

    def __init__(self) -> None:
        super().__init__()
        self._words: tuple[str, str, str] | None = None  # how many steps there are, found by what, and how long
        self._bars: Sequence[int] = ()  # the first step of each bar of the chart

    def body(self) -> Iterable[Widget]:
        """Compose the chart above the table."""
        self.chart = StillChart(
            label_width=30, value_width=10, axis=lambda _lo, _hi, width: step_axis(self._bars, width), id="chart"
        )
        yield from (self.chart, *super().body())
        self.table.cell_styles = _part_cells

    def ask(self, job: OpenJob, selection: Selection) -> Any:
        """Answer the question of the view, and say what the steps are and how long they take."""
        view, answer = super().ask(job, selection)
        steps, tasks = job.steps(), {one.task for one in selected_ranks(job.ranks, selection)}
        every = [one for task, one in step_times(steps, selection.window).items() if task in tasks]
        if not every:
            return view, answer, None
        found = figures_of_all(every)
        wording = Wording.of(Unit.DURATION, (found.median,))
        middle, least, most = (wording.words(value) for value in (found.median, found.least, found.most))
        if found.count == 1:
            return view, answer, ("1 step", steps.found_by, middle)
        number = f"{found.count:,} steps" + (f" of {len(every)} ranks" if len(every) > 1 else "")
        return view, answer, (number, steps.found_by, f"median {middle}, {least} to {most}")

    def show(self, result: Any, same_place: bool) -> None:
        """Show the table; below a chart where it is of steps, on a tall terminal."""
        view, answer, self._words = result
        self.table.elastic = {"path": "name", "budget": "part"}.get(view.name)
        super().show((view, answer), same_place)
        self.chart.display = view.name in _CHARTED and self.app.size.height >= _ROOMY and len(answer) > 0
        self.chart.styles.height = self._chart_rows + 2

    def show_count(self) -> None:
        """Say at the right what the steps are, as much of it as there is room for."""
        super().show_count()
        if self._words is not None:
            count, anchor, times = self._words
            words = (count, anchor, times) if self.app.size.width >= _WIDE else (count, times)
            self.show_title(right=" · ".join(words))

    def empty_text(self, answer: Answer) -> str:
        """Say why there are no steps, and what there is without them."""
        text = super().empty_text(answer)
        is_whole = self.answered.question.row == "step" and not answer.total
        return f"{text}\n\nv shows the budget and the critical path of all of the time" if is_whole else text

    @property
    def _chart_rows(self) -> int:
        return max(_LEAST_ROWS, min(self.free_lines - 2, _MOST_ROWS))

    @in_background("chart")
    async def cursor_rests(self) -> None:
        """Draw the steps of the rank under the cursor, of a row of all ranks their means, and mark its step."""
        super().cursor_rests()
        job, selection, values = self.job, self.selection, self.values()
        if job is None or not self.chart.display:
            return
        ranks = [item.rank for item in selected_ranks(job.ranks, selection)]
        rank = (
            ranks[0] if len(ranks) == 1 else next((one for one in ranks if str(one) == str(values.get("rank"))), None)
        )
        self._draw(rank, values.get("step"), await to_thread(steps_side_by_side, job, selection, rank))

    def _draw(self, rank: int | None, step: Value, found: tuple[Times, NDArray[np.float64], NDArray[np.bool_]]) -> None:
        """A column for each step, or for the mean of several; slow steps have marks, without any the longest of all."""
        numbers, parts, is_marked = found
        count, width, rows = len(numbers), self.chart.chart_width, self._chart_rows
        if not count:
            self.chart.set_lanes([], 0, 0)
            return
        size, times = -(-count // width), parts.sum(axis=1)
        firsts = range(0, count, size)
        means = np.add.reduceat(parts, firsts) / np.diff(firsts, append=count)[:, None]
        self._bars = numbers[firsts].tolist()
        colours = list(_LEGEND)
        bars = [dict.fromkeys(colours, 0.0) for _ in firsts]
        for place, part in enumerate(PARTS):
            for bar, time in zip(bars, means[:, place].tolist(), strict=True):
                bar[_COLOURS[part]] += time
        legend = sorted(((sum(bar[one] for bar in bars) / len(bars), one) for one in colours), reverse=True)
        notes = [(one, f"{_LEGEND[one]} {format_value(Unit.DURATION, time)}") for time, one in legend if time]
        word, category = "slow", "warning"
        if size > 1 and not is_marked.any():
            word, category, is_marked = f"longest {numbers[times.argmax()]}", "nvtx", times == times.max()
        marks = [{category: float(mark)} for mark in np.logical_or.reduceat(is_marked, firsts)]
        whose = f"rank {rank}" if rank is not None else "mean of ranks"
        longest = format_value(Unit.DURATION, float(means.sum(axis=1).max()))
        title = whose if size == 1 else f"{whose}, a bar: {size} steps"
        lanes = [Lane(title, (), longest, stack=bar_stack(bars, width), height=rows, notes=tuple(notes))]
        above = [Lane(word, (), stack=bar_stack(marks, width))] if is_marked.any() else []
        self.chart.set_lanes([*above, *lanes], 0, len(bars))
        places = np.flatnonzero(numbers == step) // size if step is not None else ()
        edges = [(int(place) * width // len(bars), (int(place) + 1) * width // len(bars) - 1) for place in places]
        self.chart.mark_span(*(edges[0] if edges else (None,)))

    def action_anchor(self) -> None:
        """Other steps: those by the next anchor."""
        job = self.job
        if job is None or self.explorer.loading_now:
            self.say("steps are found when everything is loaded")
        elif job.step_range is not None:
            self.say("steps are the NVTX ranges of --step-range")
        else:
            self.explorer.next_anchor()

    def event_here(self) -> EventKey | None:
        """The event of the path under the cursor, of a row of several pieces that of the longest."""
        values = self.values()
        report, row, start = (values.get(key) for key in ("report", "row", "event_start"))
        if not isinstance(report, int) or not isinstance(row, int) or not isinstance(start, int):
            return None
        return EventKey(report, EventKind(values["event"]), row, start)

    def open_row(self) -> None:
        """Select the step or rank, or open the event, the kernels, the path or the NVTX ranges."""
        values, name = self.values(), self.answered.name
        key, window = self.event_here(), self.row_window()
        if not values:
            return
        if key is not None:
            show_event(self.explorer, key)
        elif name == "path":
            self.say("this is time of the CPU: L shows it on the timeline, t selects it")
        elif name == "kernels by step":
            if isinstance(values.get("name"), str):
                self.lay_over(KernelInstancesScreen(str(values["name"]), Names.SMART))
            else:
                self.app.call_later(partial(show_view, self.explorer, "kernels", by="", only=str(values["family"])))
        elif name == "operations":
            self.call_later(self.explorer.go, "nvtx")
        elif name in ("budget", "steps by phase"):
            self.explorer.remember()
            self.take_view("path" if name == "budget" else "steps")
        else:
            ranks = frozenset(item.rank for item in self.job_ranks if str(item.rank) == str(values.get("rank")))
            selection = self.selection if window is None else self.selection.with_window(window)
            if ranks and self.job is not None and len(self.job_ranks) > 1:
                selection = selection.with_tasks(self.job.tasks_of_ranks(ranks))
            self.explorer.select(selection)

    def row_category(self, values: Record) -> str | None:
        """The colour of a part or a kind of piece."""
        return _OF_LABELS.get(str(values.get("part"))) or _OF_KINDS.get(str(values.get("kind")))

    def row_details(self) -> Details:
        """Of a step its parts, the largest first; of a part what it is the time of; of a row of the path how much."""
        own, values = super().row_details(), self.values()
        if self.answered.name == "steps" and values:
            times = sorted(((int(values[part] or 0), part) for part in PARTS), reverse=True)
            whole = sum(time for time, _ in times) or 1
            parts = [
                f"{LABELS[part]} {_duration(time)} ({format_value(Unit.PERCENT, 100 * time / whole)})"
                for time, part in times
                if time
            ]
            words = ", ".join(str(values[key]) for key in ("phase", "slow") if values[key])
            length = f"{_duration(values['duration'])}{f', {words}' if words else ''}"
            return [[f"step {values['step']} of rank {values['rank']}: {length}"], parts]
        if self.answered.name == "steps by rank" and values:
            return [["all ranks" if values["rank"] == "all" else f"rank {values['rank']}"], *own[1:]]
        if self.answered.name == "steps by phase" and values:
            whose = "all steps" if values["phase"] == "all" else f"{values['phase']} steps"
            return [[f"{whose}: {'' if values['host_bound'] == 'yes' else 'not '}bound by the host"], *own[1:]]
        if "part" in values:
            figures = [f"{word} {_duration(values[key])}" for key, word in _FIGURES.items()]
            return [[str(values["part"])], [MEANINGS[str(values["part"])]], figures, *own[2:]]
        if self.answered.name == "path" and values:
            name = next(str(values[key]) for key in ("name", "range", "kind") if values[key] is not None)
            share = format_value(Unit.PERCENT, values["share"])
            much = [f"{values['kind']}: {_duration(values['time'])} of the path ({share})"]
            if values["pieces"] != 1:
                much.append(f"{values['pieces']:,} pieces, the longest {_duration(values['longest'])}")
            return [[name], much, *own[1:]]
        return own

    def details_question(self) -> Callable[[OpenJob], Details] | None:
        """Ask for the details of the event of the path under the cursor, with how much of the path it is."""
        key, own = self.event_here(), self.row_details()
        if key is None:
            return None

        def ask(job: OpenJob) -> Details:
            row = event_row(job.session, key, job.ranks)
            return own if row is None else [*own[:2], *event_details(job, row)[1:]]

        return ask


_OF_NCCL = (*NCCL_LABELS.values(), SEND_AND_RECEIVE)
_OF_LABELS = {LABELS[part]: colour for part, colour in _COLOURS.items()} | dict.fromkeys(_OF_NCCL, "nccl")
_FIGURES = {"median": "median", "min": "minimum", "max": "maximum"}


def _part_cells(values: Record) -> Mapping[str, str]:
    """The colours of the parts of a step; slow ones have that of warnings."""
    slow = dict.fromkeys(("step", "duration", "slow"), "warning") if values.get("slow") == "slow" else {}
    return {part: colour for part, colour in _COLOURS.items() if values.get(part)} | slow


_duration = partial(format_value, Unit.DURATION)
