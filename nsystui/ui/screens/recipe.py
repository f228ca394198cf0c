"""A question opened from the palette, usually a recipe: its table, or its map as a drawing."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any

from nsystui.base.answer import Answer
from nsystui.base.drawing import Drawing
from nsystui.base.selection import Selection, Window
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names
from nsystui.questions.queries.question import Question, ask, draw_map, lacking
from nsystui.questions.queries.time_window import edges_of
from nsystui.questions.recipes.recipe import RecipeMap, map_table
from nsystui.ui.pictures.selection import span_words
from nsystui.ui.screens.chart import ChartScreen
from nsystui.ui.screens.kernels import instances_of
from nsystui.ui.screens.table import TableScreen, names_choice
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.strip_chart import Lane, StripChart, strips


class RecipeScreen(TableScreen):
    """A question's table, with notes on its numbers and differences from NVIDIA's recipe."""

    PLACES = ("recipe", "table", "everywhere")
    PARAMETERS = ("option_values",)
    BACKGROUND = True

    def __init__(self, recipe: Question) -> None:
        super().__init__("recipe", recipe.name)
        self.recipe = recipe
        self.option_values = recipe.default_values()
        self._lacks = False

    def ask(self, job: OpenJob, selection: Selection) -> tuple[Answer, bool]:
        """Return the answer, and whether the exports lack its data."""
        return ask(self.recipe, job, selection, self.recipe.read(self.option_values)), bool(lacking(self.recipe, job))

    def show(self, result: Any, same_place: bool) -> None:
        answer: Answer
        answer, self._lacks = result
        super().show(answer, same_place)
        if len(answer):
            self.notes.show_notes((*answer.notes, *self.recipe.differs))

    def empty_text(self, answer: Answer) -> str:
        """Return why there are no rows: if no data are missing, there was nothing to find."""
        if self._lacks:
            return super().empty_text(answer)
        return "\n".join((f"nothing found: {self.recipe.help}", *answer.notes))

    def row_window(self) -> Window | None:
        """Return the time from ``start`` to ``end`` if the row has both, else from its length."""
        values = self.values()
        start, end = values.get("start"), values.get("end")
        return Window(start, end) if isinstance(start, int) and isinstance(end, int) else super().row_window()

    def choices(self) -> tuple[Choice, ...]:
        choices = []
        if "by-rank" in self.recipe.takes:
            groupings = {False: "all ranks", True: "rank"}
            choices.append(Choice.among("by", groupings, bool(self.option_values["by_rank"]), self._by_rank))
        if "names" in self.recipe.takes:
            choices.append(names_choice(self._names(), self._show_names, {Names.SMART}))
        return tuple(choices)

    def _by_rank(self, by_rank: bool) -> None:
        self.ask_with(option_values={**self.option_values, "by_rank": by_rank}, _sort=None)

    def _show_names(self, names: Names) -> None:
        self.ask_with(option_values={**self.option_values, "names": names.value})

    def open_row(self) -> None:
        name = self.values().get("name")
        screen = instances_of(self.recipe.rows.kind, str(name), self._names()) if name is not None else None
        if screen is None:
            self.say("these rows cannot be opened")
        else:
            self.lay_over(screen)

    def _names(self) -> Names:
        return Names(self.option_values.get("names") or Names.FULL)


class RecipeMapScreen(ChartScreen):
    """The map of a recipe, one figure at a time: a lane for each GPU, process or adapter."""

    PLACES = ("recipe map", "everywhere")
    chart: StripChart

    def __init__(self, recipe: Question) -> None:
        super().__init__("recipe", recipe.name)
        self.recipe = recipe
        self.figure = 0
        self._bins = 1
        self._map: RecipeMap | None = None

    def make_chart(self) -> StripChart:
        return StripChart(label_width=16, value_width=10, id="chart")

    def parameters(self) -> tuple[Hashable, ...]:
        self._bins = self.chart.columns_in(self.app.size.width)
        return (self._bins,)

    def ask(self, job: OpenJob, selection: Selection) -> RecipeMap:
        return draw_map(self.recipe, job, selection, replace(self.recipe.defaults(), bins=self._bins))

    def show(self, recipe_map: RecipeMap, same_place: bool) -> None:
        self._map = recipe_map
        if not recipe_map.lines:
            self.show_text("\n".join(recipe_map.notes) or "nothing in the selection")
            return
        self.show_empty("")
        self._show_figure()

    def _show_figure(self) -> None:
        recipe_map = self._map
        if recipe_map is None or not recipe_map.lines:
            return
        figure = recipe_map.figures[self.figure]
        lanes = [
            Lane(line.label, row.tolist(), figure.words(line.mean(self.figure)), figure.category)
            for line, row in zip(recipe_map.lines, recipe_map.shares(self.figure), strict=True)
        ]
        self.chart.set_lanes(lanes, recipe_map.window.start, recipe_map.window.end)
        self.show_title(right=f"{figure.title} · {self.figure + 1} of {len(recipe_map.figures)} metrics")
        self.show_detail()

    def show_detail(self) -> None:
        recipe_map, lane = self._map, self.chart.cursor_lane
        if recipe_map is None or lane >= len(recipe_map.lines):
            return
        line = recipe_map.lines[lane]
        lane_words = " · ".join(
            f"{column.label} {value}"
            for column, value in zip(recipe_map.key_columns, line.key, strict=True)
            if value is not None
        )
        values = [
            f"{figure.column.label} {figure.words(line.values[number, self._bin()])}"
            for number, figure in enumerate(recipe_map.figures)
        ]
        notes = (*recipe_map.notes, *self.recipe.differs)
        head = f"{lane_words} · {span_words(self._span())}"
        self.detail.show_lines([[(head, "bold")], [(" · ".join(values), "")], [(next(iter(notes), ""), "dim")]])

    def _bin(self) -> int:
        bins = self._map.bins if self._map is not None else 1
        return min(self.chart.cursor_column * bins // max(1, self.chart.chart_width), bins - 1)

    def _span(self) -> Window:
        assert self._map is not None
        edges, number = edges_of(self._map.window, self._map.bins), self._bin()
        return Window(edges[number], edges[number + 1])

    def choices(self) -> tuple[Choice, ...]:
        views = Choice("view", ("map", "table"), 0, lambda _: self.lay_over(RecipeScreen(self.recipe)))
        if self._map is None or not self._map.lines:
            return (views,)

        def choose(index: int) -> None:
            self.figure = index
            self._show_figure()

        return (views, Choice("by", tuple(figure.title for figure in self._map.figures), self.figure, choose))

    def row_window(self) -> Window | None:
        return self._span() if self._map is not None and self._map.lines else None

    def answer_to_export(self) -> Answer | None:
        return map_table(self._map) if self._map is not None else None

    def drawing_to_export(self) -> Callable[[], Drawing | None] | None:
        recipe_map = self._map
        if recipe_map is None or not recipe_map.lines:
            return None
        title = f"{self.recipe.name}: {recipe_map.figures[self.figure].title}"
        return partial(strips, title, self.chart.lanes, recipe_map.window)


OPENED = {"recipe": RecipeScreen, "recipe map": RecipeMapScreen}
