"""Efficiency, over 4 GPU: the factors of POP as a tree, and below it where the time of each GPU went."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from textual.widget import Widget

from nsystui.base.answer import Answer, TableAnswer, Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection
from nsystui.base.units import format_value
from nsystui.questions.efficiency.device import Useful
from nsystui.questions.efficiency.result import Efficiency, Factor, device_factors, efficiency, host_factors
from nsystui.questions.efficiency.tables import (
    BREAKDOWN_COLUMNS,
    EVERYTHING,
    breakdown_table,
    device_table,
    host_table,
    process_table,
)
from nsystui.questions.job.job import OpenJob
from nsystui.ui.doors import show_view
from nsystui.ui.screens.table import TableScreen
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.panels import Part, PartLines

Line = list[Part]

_NAME_WIDTH = 27
_VALUE_WIDTH = 8
_WIDE = 110
"""From so many cells on there is room for the formula too."""
LOWEST = "◂ "
"""Stands before the words of the factor that lost most."""


def factor_lines(factors: Sequence[Factor], width: int) -> list[Line]:
    """A line for each factor under its product; factors of an unknown product are left out."""
    shown = _under_known(factors)
    of_whole = [one for one in shown if one.depth == 1 and one.value is not None]
    lowest = min(of_whole, key=lambda one: one.value or 0) if len(of_whole) > 1 else None
    lines: list[Line] = []
    for factor, branch in zip(shown, _branches(shown), strict=True):
        is_lowest = factor is lowest and (factor.value or 0) < 1
        style = "bold" if factor.depth == 0 or is_lowest else ""
        value, words = None, f"unknown: {factor.record}"
        if factor.value is not None:
            value = 100 * factor.value
            words = factor.low if round(value, 1) != 100 or not factor.depth else "nothing lost"
        line = [((branch + factor.name).ljust(_NAME_WIDTH), style)]
        line += [(format_value(Unit.PERCENT, value).rjust(_VALUE_WIDTH), style)]
        line += [(LOWEST, "bold") if is_lowest else ("  ", ""), (words, "")]
        if width >= _WIDE and value is not None:
            line.append((f"  = {factor.formula}", "dim"))
        lines.append(line)
    return lines


def _branches(factors: Sequence[Factor]) -> list[str]:
    """Return the lines of the tree before the name of each factor."""
    branches: list[str] = []
    below: set[int] = set()  # the depths of factors further down that belong to the same product
    for depth in (factor.depth for factor in reversed(factors)):
        branch = "".join("│ " if level in below else "  " for level in range(1, depth))
        branches.append(branch + ("" if not depth else "├ " if depth in below else "└ "))
        below = {level for level in below if level < depth} | {depth}
    return branches[::-1]


def _under_known(factors: Sequence[Factor]) -> list[Factor]:
    """Return the factors except those of an unknown product."""
    known: list[Factor] = []
    for number, factor in enumerate(factors):
        above = next((one for one in reversed(factors[:number]) if one.depth < factor.depth), None)
        if above is None or above.value is not None:
            known.append(factor)
    return known


_TABLES: dict[str, tuple[Callable[[Efficiency], TableAnswer], str]] = {
    "breakdown": (breakdown_table, "time of each GPU, in percent of {}"),
    "device": (device_table, "device factors"),
    "host": (host_table, "host factors"),
    "processes": (process_table, "host time of each process"),
}
"""The tables in the order of ``b``, with what they show."""
_EXPLAINED_BY = {
    "device_load_balance": "ranks",
    "host_offload": "api",
    "mpi_parallel": "mpi",
    "mpi_load_balance": "mpi",
    "mpi_communication": "mpi",
    "device_communication": "nccl",
    "device_orchestration": "gaps",
}
"""The view that explains a factor."""


class EfficiencyScreen(TableScreen):
    """The output of ``nsystui efficiency``: the factors always, and one of its tables, which ``e`` exports."""

    PARAMETERS = ("what", "useful")
    MODE_KEY = "4"
    SCREEN = "efficiency"
    STATE = (*TableScreen.STATE, "what", "useful")
    ELASTIC = "rank"
    PLACES = ("efficiency", "table", "everywhere")
    NO_TIME = "these rows are sums over time: T selects a time by hand, 4 shows when the GPUs were busy"

    DEFAULT_CSS = "EfficiencyScreen #factors { margin-bottom: 1; }"

    def __init__(self) -> None:
        super().__init__()
        self.what = "breakdown"
        self.useful = Useful.POP
        self._found: Efficiency | None = None

    def body(self) -> Iterable[Widget]:
        """Compose the factors above the table."""
        self.factors = PartLines(id="factors")
        yield self.factors
        yield from super().body()

    def ask(self, job: OpenJob, selection: Selection) -> tuple[Efficiency | None, Answer]:
        """Compute the factors and one table; ``None`` and a note where the selection allows none."""
        try:
            found = efficiency(job, selection, self.useful)
        except UsageError as error:
            return None, TableAnswer("breakdown", BREAKDOWN_COLUMNS, [], 0, (str(error),))
        return found, _TABLES[self.what][0](found)

    def show(self, result: Any, same_place: bool) -> None:
        """Show the factors and the table."""
        self._found, answer = result
        self._show_factors()
        super().show(answer, same_place)

    def show_waiting(self) -> None:
        """Show no factors before a report is ready."""
        super().show_waiting()
        self.factors.show_lines([])

    def _show_factors(self) -> None:
        found = self._found
        trees = (device_factors(found.device), host_factors(found)) if found is not None and found.gpus else ()
        known = [tree for number, tree in enumerate(trees) if not number or any(one.value is not None for one in tree)]
        self.factors.show_lines([line for tree in known for line in factor_lines(tree, self.app.size.width)])

    on_resize = _show_factors

    def show_count(self) -> None:
        """Show what the table is of in place of a count."""
        span = self._found.span if self._found is not None else "its time"
        self.show_title(right=_TABLES[self.what][1].format(span))

    def choices(self) -> tuple[Choice, ...]:
        """Offer the tables."""
        tables = {name: name for name in _TABLES}
        by = Choice.among("by", tables, self.what, lambda name: self.ask_with(what=name, _sort=None))
        return (*super().choices(), by)

    def action_useful(self) -> None:
        """Count as useful what POP or what TALP does."""
        self.useful = Useful.TALP if self.useful is Useful.POP else Useful.POP
        self.say(self.useful.words)
        self.job_changed()

    def open_row(self) -> None:
        """Open the view that explains a factor, or the GPUs of a rank."""
        self.run_worker(self._open(), exit_on_error=False)

    async def _open(self) -> None:
        values = self.values()
        metric, rank = values.get("metric"), values.get("rank")
        if isinstance(metric, str):
            if metric in _EXPLAINED_BY:
                await show_view(self.explorer, _EXPLAINED_BY[metric])
            else:
                self.say("this is the product of the factors below: open one of them")
        elif rank == EVERYTHING:
            self.say("this is the sum over all GPUs: open one of them")
        elif rank is not None and self.job is not None:
            chosen = frozenset(int(word) for word in str(rank).split(","))
            alone = self.selection.with_tasks(self.job.tasks_of_ranks(chosen))
            await show_view(self.explorer, "gpu", alone)
