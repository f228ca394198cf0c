"""Blocks, axes and histograms as text, then the strip chart in Textual's test driver."""

import math
from itertools import product

from jobs import WidgetApp, press, resize, rested, shown

from nsystui.base.text import width_of
from nsystui.ui.widgets.plots import bar, blocks, histogram_lines, stacked_bar, tick_line, time_axis
from nsystui.ui.widgets.stacks import Cell, dominant, half_cells, shade_blocks, shades, stack_cells
from nsystui.ui.widgets.strip_chart import Lane, StripChart

MS = 1_000_000
S = 1_000_000_000


def test_blocks_stand_for_shares_a_dot_for_no_data_and_the_peaks_of_many_bins_are_kept():
    nan = math.nan
    for bins, width, text in (
        ([0.0, 0.124, 0.125, 0.5, 0.99, 1.0, nan, -1, 7], 9, " ▁▂▅██· █"),
        ([0.0, 1.0, 0.0, 0.0, nan, nan], 3, "█ ·"),
        ([nan, 0.0], 1, " "),
        ([0.0, 1.0], 6, "   ███"),
        ([], 3, "   "),
    ):
        assert blocks(bins, width) == text


def test_a_bar_of_an_unknown_number_is_empty():
    unknown = (math.nan, math.inf, 0, -1)
    assert {bar(1, full, 4) for full in unknown} == {bar(value, 2, 4) for value in (math.nan, None, 0, -1)} == {"    "}
    assert bar(math.inf, 2, 4) == bar(2, 2, 4) == blocks([math.inf], 4) == "████"
    assert stacked_bar([("compute", math.nan), ("nccl", 1)], 2, 4) == [("██", "nccl"), ("░░", "idle")]
    assert all(stacked_bar([("compute", 1)], full, 4)[-1][1] == "idle" for full in unknown)


def test_an_axis_has_round_times_in_their_columns():
    for low, high, width, start in (
        (6 * S, 7 * S, 50, "│6.0 s    │6.2 s    │6.4 s    │6.6 s    │6.8 s    "),
        (0, 800_000, 40, "│0 µs     │200 µs   │400 µs   │600 µs   "),
        (6_412_018_000, 6_412_020_000, 80, "│6.412 018 0 s"),
    ):
        assert time_axis(low, high, width).startswith(start)
    assert "│6.412 019 0 s" in time_axis(6_412_018_000, 6_412_020_000, 80)
    assert tick_line([(0, "10"), (2, "11"), (6, "12")], 10) == "│ │11 │12 ", "a label without room is left out"


def test_an_axis_is_as_wide_as_asked_and_its_labels_do_not_touch():
    spans = ((0, 1), (0, 7), (-5 * MS, 5 * MS), (1, 41 * S), (0, 86_400 * S), (10**18, 10**18 + 3))
    for (low, high), width in product(spans, (1, 2, 9, 59, 111)):
        axis = time_axis(low, high, width)
        assert len(axis) == width
        assert all(label == "" or label.endswith(" ") for label in axis.split("│")[1:-1]), (axis, width)
    assert time_axis(5, 5, 10) == " " * 10 and time_axis(0, 5, 0) == ""


def test_histogram_bars_share_one_scale_and_leave_where_there_is_only_room_for_labels_and_counts():
    lines = [
        "320 µs ▁              14",
        "400 µs ▇▇▇▇▇▇▇▇▇▇▇ 6,110",
        "  1 ms ▇▇▇▇▇▇      3,055",
        " >2 ms                 0",
    ]
    assert histogram_lines(["320 µs", "400 µs", "1 ms", ">2 ms"], [14, 6110, 3055, 0], 24) == lines
    for labels, counts, width, lines in (
        (["320 µs", "400 µs"], [14, 6110], 13, [" 320 µs    14", " 400 µs 6,110"]),
        ([], [], 20, []),
        (["all"], [0], 20, ["all" + " " * 16 + "0"]),
    ):
        assert histogram_lines(labels, counts, width) == lines
    assert [width_of(line) for line in histogram_lines(["<64KiB", "a\x1b[31m"], [1, 2], 5)] == [5, 5]


class SizedChart(StripChart):
    """A chart that has as many bins as columns."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.wanted = lanes

    def on_resize(self) -> None:
        self.call_later(self.fill)

    def fill(self) -> None:
        bins = [column / self.chart_width for column in range(self.chart_width)]
        lanes = [Lane(f"rank {n}", bins, f"{n} %", "nccl" if n % 2 else None) for n in range(self.wanted)]
        self.set_lanes(lanes, 6 * S, 7 * S)


class ChartApp(WidgetApp):
    def __init__(self, lanes: int = 16) -> None:
        self.chart = SizedChart(lanes)
        super().__init__(self.chart)

    on_strip_chart_cursor_moved = on_strip_chart_selected = WidgetApp.hear

    def reversed_cells(self) -> list[tuple[int, int]]:
        """Return the cells of the cursor in lanes: line and column."""
        found = []
        for y in range(self.chart.size.height):
            x = 0
            for segment in self.chart.render_line(y):
                if segment.style is not None and segment.style.reverse:
                    found.append((y, x))
                x += len(segment.text)
        return found


async def test_a_chart_draws_a_bin_in_each_column():
    async with shown(ChartApp()) as (app, pilot):
        assert app.chart.chart_width == 59
        lines = app.lines()
        assert lines[0].startswith("▸ rank 0      ▁▁▁") and lines[15].endswith("█    15 %")
        assert lines[16].startswith("             │6.0 s ")
        assert all(width_of(app.chart.render_line(y).text) == 80 for y in range(24))
        assert (await resize(pilot, 100, 24)).chart.chart_width == 79 and app.lines()[0].count("█") > 5


async def test_the_cursor_moves_by_one_and_by_ten_in_its_lane_and_on_the_axis():
    async with shown(ChartApp()) as (app, pilot):
        keys = "right greater_than_sign shift+right left less_than_sign shift+left end right home left l G h g"
        columns = [(await press(pilot, key)).chart.cursor_column for key in keys.split()]
        assert columns == [1, 11, 21, 20, 10, 0, 58, 58, 0, 0, 1, 58, 57, 0]
        assert (await press(pilot, "right", "down", "down")).reversed_cells() == [(2, 14), (16, 14)]
        assert (app.chart.cursor_lane, app.chart.cursor_column) == (2, 1)
        assert app.lines()[16].startswith("             │6.0 s "), "the cursor took the place of a label"
        assert app.heard[-1] == StripChart.CursorMoved(app.chart)
        assert app.chart.cursor_times == (6 * S + S // 59, 6 * S + 2 * S // 59)
        assert app.chart.time_column(6 * S + S // 2) == 29
        assert (await press(pilot, "enter")).heard[-1] == StripChart.Selected()
        await pilot.press("home", *["right"] * 4)
        assert app.lines()[16].startswith("             │6.0 s "), "the blank before the unit is the label's"
        assert (await press(pilot, "right", "right")).lines()[16].startswith("             │6.0 s▲")
    async with shown(ChartApp(lanes=3)) as (app, pilot):
        await pilot.press("right")  # through all lanes, if there are few
        assert app.reversed_cells() == [(0, 14), (1, 14), (2, 14), (3, 14)]


async def test_the_cursor_stays_in_the_last_lane_if_lanes_go():
    async with shown(ChartApp(lanes=5)) as (app, pilot):
        await pilot.press("down", "down", "down")
        app.chart.wanted = 2
        app.chart.fill()
        assert app.chart.cursor_lane == 1
        assert (await press(pilot, "up")).chart.cursor_lane == 0


def glyphs(rows: list[list[Cell]]) -> list[str]:
    return ["".join(cell for cell, *_ in row) for row in rows]


def test_a_stack_fills_its_rows_from_below_and_idle_time_stays_blank():
    rows = stack_cells((("compute", [0.5, 0.25, 1.0, 0.0]), ("nccl", [0.25, 0.25, 0.0, 0.0])), 4, 2)
    assert glyphs(rows) == ["▄ █ ", "█▄█ "] and rows[0][0] == ("▄", "nccl", "") and rows[1][0] == ("█", "compute", "")
    assert rows[1][1] == ("▄", "compute", "nccl"), "both colours of a cell that is full"
    little = glyphs(stack_cells((("compute", [0.001, math.nan, 0.0]),), 3, 2))
    assert little == ["   ", "▁· "], "a little work is seen, and no data is not idle"
    plain = glyphs(stack_cells((("compute", [0.5]), ("nccl", [0.5])), 1, 2, is_plain=True))
    assert plain == ["╱", "█"], "without colours shading tells the parts"


def test_two_lanes_share_a_row_by_halves_and_shades_are_darker_for_more():
    halves = [("█", "compute", ""), ("▄", "nccl", ""), ("▀", "nccl", ""), (" ", "", "")]
    assert half_cells(["compute", "", "nccl", ""], ["compute", "nccl", "", ""]) == halves
    assert dominant((("compute", [0.3, 0.2]), ("nccl", [0.4, 0.2])), 2) == ["nccl", ""]
    assert shades([0.0, 0.01, 0.5, 1.0, math.nan], 5, "nccl") == ["", "nccl:1", "nccl:4", "nccl:7", "·"]
    assert shade_blocks([0.0, 0.01, 0.5, 1.0, math.nan], 5) == " ░▒█·"


async def test_a_high_lane_is_one_lane_to_the_cursor():
    async with shown(ChartApp(lanes=0)) as (app, pilot):
        bins = [0.5] * app.chart.chart_width
        notes = (("compute", "50.0"),)
        lanes = [Lane(f"rank {n}", bins, stack=(("compute", bins),), height=4, notes=notes) for n in range(9)]
        app.chart.set_lanes(lanes, 0, S, ticks=[(S // 2, "7")])
        lines = (await press(pilot, "down")).lines()
        assert lines[4].startswith("▸ rank 1") and lines[5].startswith("   █ 50.0")
        assert lines[23].startswith("  step") and "│7" in lines[23] and "0.0 s" in lines[22]
        await pilot.press(*["down"] * 7)
        assert app.chart.cursor_lane == 8 and any(line.startswith("▸ rank 8") for line in app.lines())


async def test_the_lanes_of_a_half_row_have_the_cursor_one_after_the_other():
    async with shown(ChartApp(lanes=0)) as (app, pilot):
        bins = [1.0] * app.chart.chart_width
        app.chart.set_lanes([Lane(f"r{n}", bins, f"{n}", "nccl") for n in range(40)], 0, S, halves=True)
        assert app.lines()[1].startswith("  r2 r3 ") and app.lines()[1].endswith("2 3")
        await pilot.press("down", "down", "down")
        assert app.chart.cursor_lane == 3 and app.lines()[1].startswith("▸ r3 ") and app.lines()[1][13] == "▄"


async def test_the_cursor_on_nothing_does_not_have_the_colour_of_data():
    async with shown(ChartApp(lanes=0)) as (app, pilot):
        app.chart.set_lanes([Lane("SM active", [0.0, 1.0], category="metric")], 0, S)
        assert (await rested(pilot)).reversed_cells()[0] == (0, 13)
        styled = [(segment.text, segment.style) for segment in app.chart.render_line(0) if segment.style is not None]
        cursor = next(style for _, style in styled if style.reverse)
        assert all(style.color != cursor.color for text, style in styled if "█" in text)


async def test_many_lanes_scroll():
    async with shown(ChartApp(lanes=64)) as (app, pilot):
        await pilot.press(*["down"] * 23)
        assert app.chart.cursor_lane == 23 and any(line.startswith("▸ rank 23") for line in app.lines())
        assert "6.0 s" in app.lines()[23]
        assert (await press(pilot, "pagedown", "pagedown", "pagedown")).lines()[22].startswith("▸ rank 63")
        assert (await press(pilot, *["pageup"] * 3)).lines()[0].startswith("▸ rank 0")


async def test_a_span_is_marked_between_two_presses():
    async with shown(ChartApp()) as (app, pilot):
        await pilot.press("greater_than_sign", "m", "right", "right", "m", "right")
        assert app.chart.span == (10, 12)
        assert app.chart.span_times == (app.chart.column_times(10)[0], app.chart.column_times(12)[1])
        assert app.lines()[16][23:26] == "━━━"
        assert (await press(pilot, "m")).chart.span is None
        app.chart.mark_span(3, 5)
        assert app.chart.span == (3, 5)
        await pilot.press("home", "greater_than_sign", "greater_than_sign", "greater_than_sign")
        before = app.chart.cursor_times
        await resize(pilot, 138, 24)
        assert before[0] <= app.chart.cursor_times[0] <= before[1]
        app.chart.mark_span(3, 5)
        app.chart.set_lanes(app.chart.lanes, 0, S)
        assert app.chart.span is None, "other times: the columns mean something else"


async def test_labels_are_safe_and_an_empty_chart_draws():
    async with shown(ChartApp(lanes=0)) as (app, pilot):
        assert "".join((await press(pilot, "down", "right", "enter", "m", "pagedown", "end")).lines()) == ""
        app.chart.set_lanes([Lane("a\x1b[31m[b]", [1.0], "\x07")], 0, 10)
        assert (await rested(pilot)).lines()[0].startswith("▸ a␛[31m[b]")
