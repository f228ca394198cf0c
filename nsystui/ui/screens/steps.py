"""9 Steps: steps side by side, their budget, and the critical path of a step."""

from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from textual.widget import Widget

from nsystui.base.answer import Answer, Record, Unit, Value
from nsystui.base.selection import Selection
from nsystui.base.text import counted, width_of
from nsystui.base.types import Flags, Floats
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
from nsystui.ui.pictures.details import event_details
from nsystui.ui.screens.kernels import KernelInstancesScreen
from nsystui.ui.screens.table import GroupedViewsScreen
from nsystui.ui.widgets.panels import Details
from nsystui.ui.widgets.plots import step_axis
from nsystui.ui.widgets.repainting import in_background
from nsystui.ui.widgets.stacks import bar_stack
from nsystui.ui.widgets.strip_chart import Lane, StillChart

_CHARTED = ("steps", "steps by rank", "steps across", "steps by phase")
"""The views with the chart of the steps."""
_GROUPINGS: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "budget": (("part", {"by": "step"}), ("GPU", {"by": "gpu"})),
    "path": (
        *(("operation", {"by": "name"}), ("kind", {"by": "kind"}), ("NVTX range", {"by": "range"})),
        *((key, {"by": key}) for key in ("rank", "role", "piece")),
    ),
    "kernels by step": (("family", {"by": "step,family"}), ("name", {"by": "step"})),
}
_COLOURS = {
    **dict.fromkeys(PARTS, "idle"), **dict.fromkeys(BLOCKERS.values(), "memory"),
    **dict.fromkeys(("nccl", "communication"), "nccl"), "compute": "compute", "starved": "api",
    "host_functions": "cpu",
}  # fmt: skip
_LEGEND = {
    "compute": "compute", "nccl": "blocked by NCCL", "memory": "blocked by memory", "api": "late launches",
    "cpu": "blocked by host functions", "idle": "",  # named by its largest part
}  # fmt: skip
_IDLE = [index for index, part in enumerate(PARTS) if _COLOURS[part] == "idle"]
_TREE = {
    **{label: f"  {label}" for label in LABELS.values()},
    **{label: f"    {label.partition(': ')[2]}" for label in (*NCCL_LABELS.values(), SEND_AND_RECEIVE)},
}
_KIND_COLOURS = {KINDS[kind]: colour for kind, colour in CATEGORIES.items()}
"""The colours of the pieces of the path."""
_ROOMY, _WIDE, _SELECTION = 30, 120, 30
"""The minimum terminal height for a chart, width for the anchor of the steps, and the room for the selection."""
_MIN_ROWS, _MAX_ROWS = 6, 20
"""The minimum and maximum rows of the chart, by the room that the table leaves."""


class StepsScreen(GroupedViewsScreen):
    """Tables about steps, one at a time, below a chart with a column for each step."""

    SCREEN = "steps"
    MODE_KEY = "9"
    PLACES = ("steps", "table", "everywhere")
    BY = _GROUPINGS
    LENGTHS = ("max", "longest", "duration")

    _words: tuple[str, str, str] | None = None  # the number of steps, their anchor, their times
    _bars: Sequence[int] = ()  # the first step of each bar of the chart

    def body(self) -> Iterable[Widget]:
        self.chart = StillChart(
            label_width=30, value_width=10, axis=lambda _lo, _hi, width: step_axis(self._bars, width), id="chart"
        )
        yield from (self.chart, *super().body())
        self.table.cell_styles = _part_cells

    def ask(self, job: OpenJob, selection: Selection) -> Any:
        answered: Any = super().ask(job, selection)
        view, answer = answered
        if answer.columns[0].key == "part":  # the tree has only rows that add up
            others = ("GPU busy", "GPU idle", "without compute")
            answer = replace(answer, rows=[row for row in answer.rows if row[0] not in others])
        steps, tasks = job.steps(), {rank.task for rank in selected_ranks(job.ranks, selection)}
        task_times = [times for task, times in step_times(steps, selection.window).items() if task in tasks]
        if not task_times:
            return view, answer, None
        figures = figures_of_all(task_times)
        wording = Wording.of(Unit.DURATION, (figures.median,))
        median, shortest, longest = (wording.words(value) for value in (figures.median, figures.least, figures.most))
        if figures.count == 1:
            return view, answer, ("1 step", steps.found_by, median)
        number = counted(figures.count, "step") + (f" of {len(task_times)} ranks" if len(task_times) > 1 else "")
        return view, answer, (number, steps.found_by, f"median {median}, {shortest} to {longest}")

    def show(self, result: Any, same_place: bool) -> None:
        view, answer, self._words = result
        self.table.elastic = {"path": "name", "budget": "part"}.get(view.name)
        super().show((view, answer), same_place)
        self.chart.display = view.name in _CHARTED and self.app.size.height >= _ROOMY and len(answer) > 0
        self.chart.styles.height = self._chart_rows + 2

    def shown_names(self) -> Mapping[str, str]:
        return {**super().shown_names(), **_TREE}

    def show_count(self) -> None:
        super().show_count()
        if self._words is not None:
            words = " · ".join(self._words)
            fits = self.app.size.width >= max(_WIDE, width_of(words) + _SELECTION)
            self.show_title(right=words if fits else " · ".join(self._words[::2]))

    def empty_text(self, answer: Answer) -> str:
        text = super().empty_text(answer)
        if self.answered.question.rows.kind != "step" or answer.total:
            return text
        return f"{text}\n\nO chooses what a step is (a range, collectives …), v shows the budget and the critical path"

    @property
    def _chart_rows(self) -> int:
        return max(_MIN_ROWS, min(self.free_lines - 2, _MAX_ROWS))

    @in_background("chart")
    async def cursor_rests(self) -> None:
        """Draw the steps of the cursor's rank, or the mean of all ranks, and mark its step."""
        super().cursor_rests()
        job, selection, row = self.job, self.selection, self.values()
        if job is None or not self.chart.display:
            return
        ranks = [item.rank for item in selected_ranks(job.ranks, selection)]
        drawn = ranks if len(ranks) == 1 else [rank for rank in ranks if str(rank) == str(row.get("rank"))]
        rank = next(iter(drawn), None)
        self._draw(rank, row.get("step"), await to_thread(steps_side_by_side, job, selection, rank))

    def _draw(self, rank: int | None, step: Value, steps: tuple[Times, Floats, Flags]) -> None:
        """Draw a column per step, or per mean of several steps, and mark slow steps.

        If columns are means, and no step is slow, mark the longest step.
        """
        numbers, parts, is_marked = steps
        count, width, rows = len(numbers), self.chart.chart_width, self._chart_rows
        if not count:
            self.chart.set_lanes([], 0, 0)
            return
        size, times = -(-count // width), parts.sum(axis=1)
        firsts = range(0, count, size)
        means = np.add.reduceat(parts, firsts) / np.diff(firsts, append=count)[:, None]
        self._bars = numbers[firsts].tolist()
        bars = [dict.fromkeys(_LEGEND, 0.0) for _ in firsts]
        for index, part in enumerate(PARTS):
            for bar, time in zip(bars, means[:, index].tolist(), strict=True):
                bar[_COLOURS[part]] += time
        legend = sorted(((sum(bar[colour] for bar in bars) / len(bars), colour) for colour in _LEGEND), reverse=True)
        idle = parts.mean(axis=0)[_IDLE]
        rest = LABELS[PARTS[_IDLE[int(idle.argmax())]]] + ", other" * int(np.count_nonzero(idle) > 1)
        words = {**_LEGEND, "idle": rest}
        notes = [(colour, f"{words[colour]} {format_value(Unit.DURATION, time)}") for time, colour in legend if time]
        word, category = "slow", "warning"
        if size > 1 and not is_marked.any():
            word, category, is_marked = f"longest {numbers[times.argmax()]}", "nvtx", times == times.max()
        marks = [{category: float(mark)} for mark in np.logical_or.reduceat(is_marked, firsts)]
        label = f"rank {rank}" if rank is not None else "mean of ranks"
        longest = format_value(Unit.DURATION, float(means.sum(axis=1).max()))
        title = label if size == 1 else f"{label}, a bar: {size} steps"
        lanes = [Lane(title, (), longest, stack=bar_stack(bars, width), height=rows, notes=tuple(notes))]
        mark_lanes = [Lane(word, (), stack=bar_stack(marks, width))] if is_marked.any() else []
        self.chart.set_lanes([*mark_lanes, *lanes], 0, len(bars))
        marked = np.flatnonzero(numbers == step) // size
        edges = [(int(number) * width // len(bars), (int(number) + 1) * width // len(bars) - 1) for number in marked]
        self.chart.mark_span(*next(iter(edges), (None,)))

    def action_anchor(self) -> None:
        """Choose the next anchor of the steps."""
        job = self.job
        if job is None or self.explorer.loading_now:
            self.say("steps are found when everything is loaded")
        elif job.step_range is not None:
            self.say("steps are the NVTX ranges of --step-range")
        else:
            self.explorer.next_anchor()

    def event_here(self) -> EventKey | None:
        """Return the event of the path's row, or of its longest piece."""
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
            self.go_to_event(key)
        elif name == "path":
            self.say("this is time of the CPU: L shows it on the timeline, t selects it")
        elif name == "kernels by step":
            if isinstance(values.get("name"), str):
                self.lay_over(KernelInstancesScreen(str(values["name"]), Names.SMART))
            else:
                self.app.call_later(partial(self.go_to_view, "kernels", by="", only=str(values["family"])))
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
        return _LABEL_COLOURS.get(str(values.get("part"))) or _KIND_COLOURS.get(str(values.get("kind")))

    def row_details(self) -> Details:
        """Return a step's parts, the largest first; a part's meaning; or a path row's share of the path."""
        details, values = super().row_details(), self.values()
        if not values:
            return details
        if self.answered.name == "steps":
            return _step_details(values)
        if self.answered.name == "steps by rank":
            return [["all ranks" if values["rank"] == "all" else f"rank {values['rank']}"], *details[1:]]
        if self.answered.name == "steps by phase":
            group = "all steps" if values["phase"] == "all" else f"{values['phase']} steps"
            return [[f"{group}: {'' if values['host_bound'] == 'yes' else 'not '}bound by the host"], *details[1:]]
        if "part" in values:
            figures = [f"{word} {_duration(values[key])}" for key, word in _FIGURES.items()]
            return [[str(values["part"])], [MEANINGS[str(values["part"])]], figures, *details[2:]]
        if self.answered.name == "path":
            name = next(str(values[key]) for key in ("name", "range", "kind") if values[key] is not None)
            amounts = [f"{values['kind']}: {_duration(values['time'])} of the path ({_percent(values['share'])})"]
            if values["pieces"] != 1:
                amounts.append(f"{values['pieces']:,} pieces, the longest {_duration(values['longest'])}")
            return [[name], amounts, *details[1:]]
        return details

    def details_question(self) -> Callable[[OpenJob], Details] | None:
        key, row_details = self.event_here(), self.row_details()
        if key is None:
            return None

        def ask(job: OpenJob) -> Details:
            row = event_row(job.session, key, job.ranks)
            return row_details if row is None else [*row_details[:2], *event_details(job, row)[1:]]

        return ask


_NCCL_WORDS = (*NCCL_LABELS.values(), SEND_AND_RECEIVE)
_LABEL_COLOURS = {LABELS[part]: colour for part, colour in _COLOURS.items()} | dict.fromkeys(_NCCL_WORDS, "nccl")
_FIGURES = {"median": "median", "min": "minimum", "max": "maximum"}


def _step_details(values: Record) -> Details:
    times = sorted(((int(values[part] or 0), part) for part in PARTS), reverse=True)
    total = sum(time for time, _ in times) or 1
    parts = [f"{LABELS[part]} {_duration(time)} ({_percent(100 * time / total)})" for time, part in times if time]
    words = "".join(f", {values[key]}" for key in ("phase", "slow") if values[key])
    return [[f"step {values['step']} of rank {values['rank']}: {_duration(values['duration'])}{words}"], parts]


def _part_cells(values: Record) -> Mapping[str, str]:
    slow = dict.fromkeys(("step", "duration", "slow"), "warning") if values.get("slow") == "slow" else {}
    return {part: colour for part, colour in _COLOURS.items() if values.get(part)} | slow


_duration, _percent = partial(format_value, Unit.DURATION), partial(format_value, Unit.PERCENT)
