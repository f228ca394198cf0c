"""4 GPU, efficiency: POP's factors as a tree, above a table, such as each GPU's time."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from textual.widget import Widget

from nsystui.base.answer import Answer, TableAnswer, Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection
from nsystui.base.units import format_value
from nsystui.questions.efficiency import tables
from nsystui.questions.efficiency.result import Efficiency, Factor, Useful, device_factors, efficiency, host_factors
from nsystui.questions.job.job import OpenJob
from nsystui.ui.screens.table import TableScreen
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.panels import PartLine, PartLines
from nsystui.ui.widgets.repainting import in_background

_NAME_WIDTH = 27
_VALUE_WIDTH = 8
_WIDE = 110
"""Minimum width for the formulas, cells."""
LOWEST = "◂ "
"""The mark of the factor that lost most."""


def factor_lines(factors: Sequence[Factor], width: int) -> list[PartLine]:
    """Return the lines of a tree with factors below their product, without factors of an unknown product."""
    shown = _without_unknown(factors)
    top_factors = [item for item in shown if item.depth == 1 and item.value is not None]
    lowest = min(top_factors, key=attrgetter("value")) if len(top_factors) > 1 else None
    lines: list[PartLine] = []
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
    branches: list[str] = []
    lower_depths: set[int] = set()  # depths of factors further down with the same product
    for depth in (factor.depth for factor in reversed(factors)):
        branch = "".join("│ " if level in lower_depths else "  " for level in range(1, depth))
        branches.append(branch + ("" if not depth else "├ " if depth in lower_depths else "└ "))
        lower_depths = {level for level in lower_depths if level < depth} | {depth}
    return branches[::-1]


def _without_unknown(factors: Sequence[Factor]) -> list[Factor]:
    shown: list[Factor] = []
    for number, factor in enumerate(factors):
        product = next((item for item in reversed(factors[:number]) if item.depth < factor.depth), None)
        if product is None or product.value is not None:
            shown.append(factor)
    return shown


_TABLES: dict[str, tuple[Callable[[Efficiency], TableAnswer], str]] = {
    "breakdown": (tables.breakdown_table, "time of each GPU, in percent of {}"),
    "device": (tables.device_table, "device factors"),
    "host": (tables.host_table, "host factors"),
}
"""The tables in the order of ``b``, with their subjects."""
_EXPLAINED_BY = {
    "device_load_balance": "ranks", "host_offload": "api", "mpi_parallel": "mpi", "mpi_load_balance": "mpi",
    "mpi_communication": "mpi", "device_communication": "nccl", "device_orchestration": "gaps",
}  # fmt: skip
"""The view that explains a factor."""


class EfficiencyScreen(TableScreen):
    """The output of ``nsystui efficiency``: the factors, and a table, which ``e`` exports."""

    PARAMETERS = ("what", "useful")
    MODE_KEY = "4"
    SCREEN = "efficiency"
    ELASTIC = "rank"
    PLACES = ("efficiency", "table", "everywhere")
    NO_TIME = "these rows are sums over time: T selects a time by hand, 4 shows when the GPUs were busy"

    what = "breakdown"
    useful = Useful.POP
    _result: Efficiency | None = None

    def body(self) -> Iterable[Widget]:
        self.factors = PartLines(id="factors")
        yield self.factors
        yield from super().body()

    def ask(self, job: OpenJob, selection: Selection) -> tuple[Efficiency | None, Answer]:
        """Compute the factors and a table; ``None`` and a note if the selection does not allow factors."""
        try:
            result = efficiency(job, selection, self.useful)
        except UsageError as error:
            return None, TableAnswer("breakdown", tables.BREAKDOWN_COLUMNS, [], 0, (str(error),))
        return result, _TABLES[self.what][0](result)

    def show(self, result: Any, same_place: bool) -> None:
        self._result, answer = result
        self._show_factors()
        super().show(answer, same_place)

    def show_waiting(self) -> None:
        super().show_waiting()
        self.factors.show_lines([])

    def _show_factors(self) -> None:
        result = self._result
        trees = (device_factors(result.device), host_factors(result)) if result is not None and result.gpus else ()
        shown = [tree for index, tree in enumerate(trees) if not index or any(item.value is not None for item in tree)]
        self.factors.show_lines([line for tree in shown for line in factor_lines(tree, self.app.size.width)])

    on_resize = _show_factors

    def show_count(self) -> None:
        span = self._result.span if self._result is not None else "its time"
        self.show_title(right=_TABLES[self.what][1].format(span))

    def choices(self) -> tuple[Choice, ...]:
        names = {name: name for name in _TABLES}
        grouping = Choice.among("by", names, self.what, lambda name: self.ask_with(what=name, _sort=None))
        return (*super().choices(), grouping)

    def action_useful(self) -> None:
        """Switch between POP's and TALP's definition of useful time."""
        self.useful = Useful.TALP if self.useful is Useful.POP else Useful.POP
        self.say(self.useful.words)
        self.job_changed()

    @in_background("open")
    async def open_row(self) -> None:
        values = self.values()
        metric, rank = values.get("metric"), values.get("rank")
        if isinstance(metric, str):
            if metric in _EXPLAINED_BY:
                await self.go_to_view(_EXPLAINED_BY[metric])
            else:
                self.say("this is the product of the factors below: open one of them")
        elif rank == tables.EVERYTHING:
            self.say("this is the sum over all GPUs: open one of them")
        elif rank is not None and self.job is not None:
            ranks = frozenset(int(word) for word in str(rank).split(","))
            await self.go_to_view("gpu", self.selection.with_tasks(self.job.tasks_of_ranks(ranks)))
