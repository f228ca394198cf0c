"""7 Ranks: the ranks side by side, and their common collectives."""

from asyncio import to_thread
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from textual.widget import Widget

from nsystui.base.answer import Record, Value
from nsystui.questions.ranks.table import odd_figures
from nsystui.ui.pictures.gpu import compared_lanes
from nsystui.ui.screens.rank_comparison import ComparableRanksScreen
from nsystui.ui.screens.table import ViewsScreen
from nsystui.ui.widgets.panels import Details
from nsystui.ui.widgets.repainting import in_background
from nsystui.ui.widgets.strip_chart import StillChart

_MIN_LANE_HEIGHT, _MAX_LANE_HEIGHT = 3, 10
"""The minimum and maximum lines of a lane, as far as the table leaves room."""

_AXIS = 2
"""Lines of the axis and the steps below the lanes."""

_ROOMY = 30
"""The minimum terminal height for charts."""


class RanksScreen(ViewsScreen, ComparableRanksScreen):
    """Tables about ranks, one at a time; Enter on a row selects its rank or time."""

    SCREEN = "ranks"
    MODE_KEY = "7"
    PLACES = ("ranks", "table", "everywhere")

    _odd_figures: Mapping[Value, Sequence[str]] = {}  # columns of odd figures, by rank

    def body(self) -> Iterable[Widget]:
        table, notes = super().body()
        self.lanes = StillChart(label_width=16, value_width=7, id="lanes")
        self.table.cell_styles = self._odd_cells
        yield from (table, self.lanes, notes)

    def parameters(self) -> tuple[Hashable, ...]:
        alignment = self.explorer.job.alignment if self.explorer.job is not None else None
        return (*super().parameters(), alignment.mode if alignment is not None else None)

    def show(self, result: Any, same_place: bool) -> None:
        view, answer = result
        rows = answer.records() if view.name == "ranks" else ()
        self._odd_figures = {
            row["rank"]: [measure.name for measure in odd]
            for row, odd in zip(rows, odd_figures(rows), strict=True)
            if row["odd"]
        }
        self.table.elastic = "collective" if view.name.startswith("collective") else "odd"
        super().show(result, same_place)
        self.lanes.display = self.app.size.height >= _ROOMY and view.name == "ranks"
        self.lanes.styles.height = min(2, self.table.row_count) * self._lane_height + _AXIS

    @property
    def _lane_height(self) -> int:
        """The lines of each of two lanes, which share the table's unused room."""
        return max(_MIN_LANE_HEIGHT, min((self.free_lines - _AXIS) // 2, _MAX_LANE_HEIGHT))

    def row_details(self) -> Details:
        details = super().row_details()
        rank = self.values().get("rank")
        return [[f"rank {rank}"], *details[1:]] if details and rank is not None else details

    @in_background("lanes")
    async def cursor_rests(self) -> None:
        """Draw the lanes of the rank under the cursor and of the median rank."""
        super().cursor_rests()
        job, rank, selection = self.job, self.values().get("rank"), self.selection
        if job is None or not isinstance(rank, int) or not self.lanes.display:
            return
        columns, height = max(1, self.lanes.chart_width), self._lane_height
        window, lanes, steps = await to_thread(compared_lanes, job, selection, rank, columns, height)
        self.lanes.set_lanes(lanes, window.start, window.end, ticks=steps)

    def action_clock(self) -> None:
        """Choose the next alignment: refined by collectives, UTC alone, or none."""
        job = self.job
        if job is None or len(job.session.reports) < 2:
            self.say("one report has one clock")
        elif self.explorer.loading_now:
            self.say("the clocks are aligned when everything is loaded")
        else:
            self.say("clock: " + self.explorer.next_clock().value + "…")

    def action_compare(self) -> None:
        self.compare_rank(self.values().get("rank"))

    def open_row(self) -> None:
        values = self.values()
        window = self.row_window()
        selection = self.selection if window is None else self.selection.with_window(window)
        if ranks := [item for item in self.job_ranks if str(item.rank) == str(values.get("rank"))]:
            selection = selection.with_tasks(frozenset(item.task for item in ranks))
        elif window is None:
            if self.answered.name == "collective kinds":
                self.take_view("collectives")
            elif values:
                self.say("this row covers all ranks: open one of them")
            return
        self.call_later(self.explorer.go, "events" if self.answered.name == "collectives" else "gpu", selection)

    def _odd_cells(self, values: Record) -> dict[str, str]:
        odd = self._odd_figures.get(values.get("rank"))
        return dict.fromkeys(("rank", "odd", *odd), "warning") if odd else {}
