"""The table: its layout without a screen, then the widget in Textual's test driver. Bytes: tests/terminal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from jobs import WidgetApp, becomes, kept_at_work, press, resize, rested, shown
from textual.binding import Binding
from textual.message import Message

from nsystui.base.answer import COUNT, FILES_ONLY, Answer, Column, Row, TableAnswer, Unit
from nsystui.base.text import width_of
from nsystui.base.units import Wording
from nsystui.ui.widgets.pages import PageCache, RowWindow
from nsystui.ui.widgets.table_layout import ColumnMeasure, PieceKind, TableLayout, place_columns, set_text
from nsystui.ui.widgets.window_table import PageFailed, RowHighlighted, RowSelected, SortRequested, WindowTable

COLUMNS = (
    Column("total", header="Total (ns)", label="total", unit=Unit.DURATION),
    COUNT.with_importance(1),
    Column("grid", header="Grid", label="grid", importance=3),
    Column("share", header="Share (%)", label="share", unit=Unit.PERCENT, importance=2),
    Column("name", header="Name", label="name"),
)
NAME = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)"


@dataclass
class Numbered:
    """``rows`` rows that are computed on request; remembers the requested pages."""

    rows: int = 1000
    make: Callable[[int], Row] = lambda n: (n * 1500, n, "132·1·1", n / 100, f"{n} {NAME}")
    columns: tuple[Column, ...] = COLUMNS
    name: str = "numbered"
    notes: tuple[str, ...] = ()
    asked: list[tuple[int, int]] = field(default_factory=list)

    @property
    def total(self) -> int | None:
        return self.rows

    def __len__(self) -> int:
        return self.rows

    def page(self, offset: int, limit: int) -> list[Row]:
        self.asked.append((offset, limit))
        return [self.make(number) for number in range(offset, min(offset + limit, self.rows))]

    def sorted_by(self, key: str, descending: bool) -> Numbered:
        return self


def heading(layout: TableLayout, width: int, sorted_by: tuple[str, bool] | None) -> str:
    return "".join(text for text, _ in layout.heading_pieces(width, sorted_by))


ROW = (1_500_000, 12, "132·1·1", 1.5, NAME)


def laid_out(width: int, sorted_key: str | None = None, row: Row = ROW, columns=COLUMNS) -> TableLayout:
    layout = TableLayout(columns)
    layout.format(row)
    layout.place(width, sorted_key)
    return layout


def line_of(layout: TableLayout, row: Row, width: int) -> str:
    return "".join(text for text, *_ in layout.row_line(layout.format(row), row, width))


def shown_keys(layout: TableLayout) -> list[str]:
    return [COLUMNS[placed.index].key for placed in layout.placed]


def test_columns_leave_by_importance_and_the_sorted_one_stays():
    everything = ["total", "count", "grid", "share", "name"]
    for width, key, left in (
        (150, None, everything),
        (56, None, ["total", "count", "share", "name"]),
        (45, None, ["total", "count", "name"]),
        (35, None, ["total", "name"]),
        (45, "grid", ["total", "grid", "name"]),
    ):
        assert shown_keys(laid_out(width, key)) == left
    assert line_of(laid_out(150), ROW, 150).rstrip().endswith(f"1.5  {NAME}")


def test_columns_without_any_value_leave_first_and_those_for_files_never_show():
    layout = TableLayout(COLUMNS)
    rows = [(1_500_000, None, "132·1·1", 1.5, NAME), (1_000_000, None, "132·1·1", 0.5, NAME)]
    layout.word(rows)
    layout.format(rows[0])
    layout.place(56, None)
    assert shown_keys(layout) == ["total", "grid", "share", "name"]
    layout.word(rows[:1], of_all=False)  # only the first of many rows: other rows may have a value
    layout.place(56, None)
    assert shown_keys(layout) == ["total", "count", "share", "name"]

    columns = (*COLUMNS, Column("row", header="Row", label="row", importance=FILES_ONLY))
    layout = laid_out(200, "row", (1, 2, "g", 3.0, "name", "r1"), columns)
    assert heading(layout, 200, None).rstrip().endswith("name") and layout.elastic == 4


def test_names_of_kernels_that_differ_are_not_cut_to_the_same_text():
    names = [f"strided_dgrad_indexed::kernel<{tile}, traits>" for tile in ("128x128x32", "128x64x64", "64x64x64")]
    rows = [(1_500_000, 12, "132·1·1", 1.5, f"void {name}(T1::Params)") for name in names]
    layout = TableLayout(COLUMNS)
    layout.names = dict(zip((str(row[-1]) for row in rows), names, strict=True))
    layout.word(rows)
    layout.format(rows[0])
    layout.place(64, None)
    assert shown_keys(layout) == ["total", "count", "name"]
    shown = [line_of(layout, row, 64) for row in rows]
    assert len(set(shown)) == 3 and all(len(line) == 64 for line in shown)


def test_every_line_is_exactly_as_wide_as_asked_and_widths_only_grow():
    row = (2_453_000, 1_234_567, "132·1·1", 99.95, "数据 " + NAME)
    for width in (1, 5, 12, 20, 33, 80, 200):
        layout = laid_out(width)
        layout.format(row)
        layout.place(width, None)
        assert width_of(line_of(layout, row, width)) == width_of(heading(layout, width, ("total", True))) == width
    before = layout.measures[0].natural
    layout.format((1, 1, "", 1.0, ""))
    assert layout.measures[0].natural == before


def test_long_text_is_limited_until_there_is_room_and_a_name_in_front_takes_no_more_than_it_needs():
    name = Column("name", header="Name", label="name")
    columns, row = (Column("thread", header="Thread", label="thread"), name), ("t" * 40, "n" * 30)
    for width, widths in ((60, [28, 30]), (100, [40, 58])):
        assert [placed.width for placed in laid_out(width, None, row, columns).placed] == widths
    assert sum(placed.width for placed in laid_out(20, None, row, columns).placed) == 18
    assert place_columns([], 80, None, None) == ()

    layout, row = laid_out(100, None, ("step", 96), (name, COUNT)), ("step", 96)
    assert layout.row_line(["step", "96"], row, 100)[0][:2] == ("step ", PieceKind.NAME)
    assert line_of(layout, row, 40).rstrip() == "step       96"


TIME_SHARE = Column("share", header="Time (%)", label="time %", unit=Unit.PERCENT, has_bar=True)


def test_a_share_has_a_bar_beside_it_that_leaves_before_the_name_is_cut():
    layout = TableLayout((TIME_SHARE, Column("name", header="Name", label="name")))
    rows = [(40.0, "gemm"), (20.0, "copy"), (0.01, "tiny"), (None, "none")]
    layout.word(rows)
    for row in rows:
        layout.format(row)
    layout.place(40, None)
    assert [line_of(layout, row, 40)[:13] for row in rows[:2]] == ["██       40.0", "█        20.0"]
    assert line_of(layout, rows[2], 40).startswith("▏") and line_of(layout, rows[3], 40).startswith(" " * 6)
    layout.place(13, None)
    assert line_of(layout, rows[0], 13) == "   40.0  gemm"
    layout.format((50.0, "n" * 400))
    for width, lengths in ((120, (5,)), (200, range(12, 21))):  # bars are longer on a wide terminal
        layout.place(width, None)
        assert layout.placed[0].bar - 1 in lengths


def test_numbers_leave_before_the_text_that_tells_rows_apart_is_cut():
    numbers = [Column(f"n{index}", header="", label=f"number {index}", unit=Unit.COUNT) for index in range(6)]
    layout = TableLayout((Column("kind", header="", label="kind"), *numbers, Column("note", header="", label="note")))
    layout.format(("ReduceScatter", 1, 2, 3, 4, 5, 6, "a note"))
    layout.place(60, None)
    assert line_of(layout, ("ReduceScatter", 1, 2, 3, 4, 5, 6, "a note"), 60).split() == [
        "ReduceScatter",
        "1",
        "2",
        "3",
        "a",
        "note",
    ]


def test_a_bar_of_a_share_is_of_the_whole_and_another_one_says_that_it_is_of_the_maximum():
    time = Column("gpu", header="GPU (ns)", label="GPU total", unit=Unit.DURATION, has_bar=True)
    layout, rows = TableLayout((TIME_SHARE, time)), [(2.7, 20_000_000), (1.0, 10_000_000)]
    layout.word(rows)
    for row in rows:
        layout.format(row)
    layout.place(60, None)
    assert heading(layout, 60, None).split() == ["time", "%", "█=max", "GPU", "total", "ms"]
    assert [line_of(layout, row, 60).split() for row in rows] == [
        ["▏", "2.7", "█████", "20"],
        ["▏", "1.0", "██▌", "10"],
    ]


_STACK = (("compute", "compute"), ("nccl", "nccl"), ("memory", "memory"))
BUSY = (
    Column("busy", header="Busy", label="busy", unit=Unit.PERCENT, has_bar=True, stack=_STACK),
    *(Column(key, header=key, label=key, unit=Unit.PERCENT) for key, _ in _STACK),
)


def test_a_bar_is_stacked_of_the_parts_of_its_row():
    layout, row = TableLayout(BUSY), (80.0, 50.0, 20.0, 60.0)
    layout.word([row])
    layout.format(row)
    layout.place(80, None)
    pieces = [(text, category) for text, kind, _, category in layout.row_line(layout.format(row), row, 80) if category]
    assert pieces == [("██", "compute"), ("▌", "compute/nccl"), ("▌", "nccl/memory"), ("░", "idle")]
    plain = "".join(text for text, *_ in layout.row_line(layout.format(row), row, 80, is_plain=True))
    assert plain.startswith("████  ")


def test_columns_that_are_compared_share_one_unit():
    keys = ("total", "avg", "min", "max", "queue_max", "wall", "self")
    columns = tuple(
        Column(key, header=key, label=key, unit=Unit.DURATION, compared="wall" if key == "self" else "") for key in keys
    )
    layout = TableLayout(columns)
    layout.word([(3_000_000_000, 1_500_000, 900, 193_000_000, 1_234, 20_000_500, 907_500)])
    assert [measure.label for measure in layout.measures] == [
        "total s", "avg ms", "min ms", "max ms", "queue_max ns", "wall ms", "self ms",
    ]  # fmt: skip
    layout.place(200, None)
    assert line_of(layout, (1, 1_500_000, 400, 1, 1, 1, 1), 200).split()[2:5] == ["1.500", "400", "ns"]


def test_a_value_without_a_place_has_the_unit_of_the_columns_that_it_is_compared_with():
    wall, own = (Column(key, header=key, label=key, unit=Unit.DURATION, compared="wall") for key in ("wall", "self"))
    share = Column("share", header="", label="share %", unit=Unit.PERCENT, importance=2)
    layout = TableLayout((wall, own.with_importance(1), share))
    layout.word([(20_000_500, 907_500, 12.5), (907_500, 400, None)])
    layout.place(11, None)
    assert [placed.index for placed in layout.placed] == [0]
    assert layout.hidden_facts((20_000_500, 907_500, 12.5)) == {"self": "self 907.5 µs", "share": "share 12.5 %"}
    assert layout.hidden_facts((907_500, 400, None)) == {"self": "self 400 ns"}


def test_text_is_cut_at_its_end_or_seen_from_where_the_reader_moved():
    text = "abcdefghij"
    assert [set_text(text, 7, pan=pan) for pan in (0, 2, 4)] == ["abcdef…", "…defgh…", "…fghij "]
    assert set_text("abc", 5, pan=4) == "abc  "
    # Indentation and marks of a tree stay.
    assert set_text(text, 11, prefix="  ▶ ") == set_text(f"  ▶ {text}", 11) == "  ▶ abcdef…"
    assert set_text("name", 10, prefix=" " * 20 + "▶ ") == "…  ▶ name "


def test_headings_mark_the_sorted_column_even_when_cut_and_a_click_finds_its_column():
    layout = laid_out(150)
    assert "total ns↓" in heading(layout, 150, ("total", True)) and "name↑" in heading(layout, 150, ("name", False))
    assert ColumnMeasure(COLUMNS[0], Wording.of(COLUMNS[0].unit, ())).heading(4, "↓") == "to…↓"
    first = layout.placed[0].width
    assert [layout.column_at(x) for x in (0, first, first + 2, 149, 500)] == ["total", "total", "count", "name", None]


def test_a_step_over_the_edge_scrolls_by_a_third():
    window = RowWindow(count=1000, height=30)
    assert not window.reveal(29) and window.reveal(30) and window.top == 11
    assert [window.reveal(row) for row in range(31, 41)] == [False] * 10 and window.reveal(10) and window.top == 0


def test_a_jump_lands_in_the_middle_and_a_window_is_never_scrolled_past_its_ends():
    window = RowWindow(count=1000, height=30)
    for row, top in ((500, 485), (999, 970), (0, 0)):
        window.reveal(row)
        assert window.rows() == range(top, top + 30)
    window = RowWindow(count=5, height=30)
    assert window.scroll(3) == 0 and window.rows() == range(5)
    window = RowWindow(count=100, height=30, top=90)
    window.reveal(95)
    assert window.top == 70 and RowWindow(count=0).clamp(5) == 0


def test_pages_are_asked_for_once_and_given_up_when_many():
    answer = Numbered(rows=10_000)
    cache = PageCache(answer, page_rows=100, max_pages=3)
    assert cache.missing(150, 60) == [1, 2]
    for number in (1, 2, 3):
        cache.read([number])
    assert cache.row(150) is not None and cache.missing(150, 200) == []
    cache.read([4])
    assert cache.row(250) is None, "the page that was not looked at for longest leaves"
    assert cache.row(150) is not None and answer.asked == [(100, 100), (200, 100), (300, 100), (400, 100)]
    # Nothing is missing beyond the end.
    cache = PageCache(Numbered(rows=150), page_rows=100)
    assert cache.missing(140, 500) == [1] and cache.missing(150, 10) == []
    assert PageCache(Numbered(rows=0)).missing(0, 10) == []


class TableApp(WidgetApp):
    BINDINGS = [Binding("g", "note('g')"), Binding("left", "note('left')")]

    def __init__(self, table: WindowTable) -> None:
        super().__init__(table)
        self.table, self.keys = table, []

    def action_note(self, key: str) -> None:
        self.keys.append(key)

    on_window_table_row_highlighted = on_window_table_row_selected = WidgetApp.hear
    on_window_table_sort_requested = on_window_table_page_failed = WidgetApp.hear

    def of(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.heard if isinstance(message, kind)]


def table_of(answer: Answer, empty_text: str = "", **options: Any) -> WindowTable:
    table = WindowTable(**options)
    table.empty_text = empty_text
    table.set_answer(answer)
    return table


async def test_ten_million_rows_open_by_asking_for_one_page():
    answer = Numbered(rows=10_000_000)
    async with shown(TableApp(table_of(answer))) as (app, pilot):
        assert answer.asked == [(0, 200)] and "total" in app.lines()[0] and app.lines()[1].startswith("▸")
        await pilot.press("end")
        assert answer.asked == [(0, 200), (9_999_800, 200)] and app.table.cursor_row == 9_999_999
        assert (app.table.cursor_row, app.table.row_count) == (9_999_999, 10_000_000)
        assert app.lines()[-1].startswith("▸")


async def test_keys_move_the_cursor_and_enter_selects():
    async with shown(TableApp(table_of(Numbered()))) as (app, pilot):
        keys = ("down", "j", "j", "k", "up", "pagedown", "ctrl+f", "pageup", "ctrl+b", "G", "home", "end", "g", "up")
        visited = [(await press(pilot, key)).table.cursor_row for key in keys]
        assert visited == [1, 2, 3, 2, 1, 24, 47, 24, 1, 999, 0, 999, 0, 0]
        await pilot.press("down", "enter")
        assert app.of(RowSelected) == [RowSelected(app.table, 1)]
        assert app.of(RowHighlighted)[-1].row == 1 and app.table.current_row[1] == 1
        app.table.set_answer(Numbered(rows=30))
        assert (await press(pilot, "pagedown", "pagedown")).table.cursor_row == 29
        assert (await press(pilot, "pageup", "pageup")).table.cursor_row == 0
    first, second = RowHighlighted(app.table, 1), RowHighlighted(app.table, 2)
    assert second.can_replace(first), "messages of a held key collapse"
    assert not second.can_replace(RowHighlighted(WindowTable(), 1))


async def test_a_new_answer_starts_at_the_top_or_keeps_the_place():
    async with shown(TableApp(table_of(Numbered()))) as (app, pilot):
        await pilot.press(*["pagedown"] * 3, "down")
        row, line = app.table.cursor_row, next(y for y, text in enumerate(app.lines()) if text.startswith("▸"))
        for rows, is_kept, place, shown_at in ((1000, True, row, line), (3, True, 2, 3), (1000, False, 0, 1)):
            app.table.set_answer(Numbered(rows), keep_cursor=is_kept)
            assert (await rested(pilot)).table.cursor_row == place and app.lines()[shown_at].startswith("▸")
        assert app.of(RowHighlighted)[-1].row == 0


RANKS = (
    Column("late", header="Late", label="late", unit=Unit.COUNT),
    Column("rank", header="Rank", label="rank", unit=Unit.NUMBER),
    Column("host", header="Host", label="host"),
)


@pytest.mark.parametrize("is_kept", [True, False])
async def test_the_cursor_goes_with_its_row_into_another_answer(is_kept):
    rows = [(0, 0, "a"), (3, 1, "a"), (0, 2, "b"), (9, 3, "b")]
    async with shown(TableApp(table_of(TableAnswer("ranks", RANKS, rows)))) as (app, pilot):
        app.table.set_answer(TableAnswer("ranks", RANKS, rows[::-1]), is_kept)
        assert app.table.current_values["rank"] == 3, "it was never moved: it stays at the top"
        await press(pilot, "down")
        app.table.set_answer(TableAnswer("ranks", RANKS, rows), is_kept)
        assert app.table.current_values["rank"] == 2
        others = [(5, 7, "b"), (1, 3, "b"), (4, 2, "b")]  # rank 2 was late meanwhile
        app.table.set_answer(TableAnswer("ranks", RANKS, others), is_kept)
        assert app.table.current_values == {"late": 4, "rank": 2, "host": "b"}
        app.table.set_answer(TableAnswer("ranks", RANKS, rows[:2]), is_kept)
        assert app.table.cursor_row == (1 if is_kept else 0)


async def test_enter_before_there_are_rows_opens_the_first_when_they_are_there():
    async with shown(TableApp(WindowTable())) as (app, pilot):
        await press(pilot, "enter")
        assert app.of(RowSelected) == []
        for _ in range(2):
            app.table.set_answer(Numbered())
            await rested(pilot)
            assert app.of(RowSelected) == [RowSelected(app.table, 0)]


async def test_an_empty_answer_says_why():
    empty_text = "No NVTX ranges: record with -t nvtx, which " + "costs " * 20
    async with shown(TableApp(table_of(Numbered(rows=0), empty_text=empty_text))) as (app, pilot):
        assert app.lines()[1].startswith("  No NVTX ranges") and app.lines()[2].startswith("  costs")
        await pilot.press("down", "end", "enter", "pagedown", "right")
        assert app.heard == [] and app.table.current_row is None and app.table.row_count == 0
    async with shown(TableApp(WindowTable())) as (app, pilot):  # without an answer nothing breaks
        app.table.pick_order()
        assert (await press(pilot, "s", "down", "enter", "end")).heard == []


async def test_sorting_is_asked_of_the_screen():
    async with shown(TableApp(table_of(Numbered()))) as (app, pilot):
        table = app.table
        for _ in range(2):
            table.pick_order()
            await pilot.press("s")
        table.mark_sorted("total", True)
        table.sort_by("name")
        await pilot.pause()
        asked = [(message.key, message.descending) for message in app.of(SortRequested)]
        assert asked == [("total", True), ("count", True), ("name", False)]
        assert table.sorted_by == ("total", True), "until the screen has sorted, the heading stays"
        for mark, is_marked in ((("grid", False), True), ((None,), False)):
            table.mark_sorted(*mark)
            assert ("grid↑" in (await rested(pilot)).lines()[0]) == ("↑" in app.lines()[0]) == is_marked


async def test_text_from_a_file_is_neither_markup_nor_escape_sequence():
    evil = "std::string f[abi:cxx11](int) <[/foo]>\x1b]0;title\x07\n[bold]"
    async with shown(TableApp(table_of(Numbered(1, lambda n: (1, 1, "", 1.0, evil)))), (120, 24)) as (app, _):
        assert "std::string f[abi:cxx11](int) <[/foo]>␛]0;title␇␊[bold]" in app.lines()[1]


async def test_a_tree_prefix_and_categories():
    table = table_of(
        Numbered(make=lambda n: (n, n, "g", 1.0, f"ncclDevKernel{n}")),
        elastic="name",
        row_style=lambda values: "nccl" if values["count"] % 2 else None,
    )
    table.prefix = lambda row: "  " * row + "▶ "
    async with shown(TableApp(table)) as (app, _):
        assert "  ▶ g" in app.lines()[2]
        strip = table.render_line(2)
        assert [segment.text.strip() for segment in strip][1] == "ncclDevKernel1"
        assert len(table.render_line(3)) == 1, "a row without a category is one segment"


async def test_keys_can_be_left_to_the_screen():
    async with shown(TableApp(table_of(Numbered(), free_keys={"g", "left"}))) as (app, pilot):
        await pilot.press("down", "g", "left", "right", "home")
        assert app.keys == ["g", "left"] and app.table.cursor_row == 0


async def test_a_table_that_is_cut_says_so_in_its_title_and_with_a_scrollbar():
    async with shown(TableApp(table_of(Numbered(rows=100))), (60, 12)) as (app, pilot):
        app.table.entitle("Kernels", "by total time")
        lines = (await rested(pilot)).lines()
        assert lines[0] == "Kernels  10 of 100, by total time" and lines[2].startswith("▸")
        assert [line[-1] for line in lines[2:]] == ["▐", *["│"] * 9]
        assert [line[-1] for line in (await press(pilot, "end")).lines()[2:]] == [*["│"] * 9, "▐"]
        await pilot.click(WindowTable, offset=(5, 4))
        assert app.table.cursor_row == 92
        app.table.set_answer(Numbered(rows=3))
        lines = (await rested(pilot)).lines()
        assert lines[0] == "Kernels  3, by total time" and lines[4].endswith("…")


@pytest.mark.campaign
async def test_long_names_can_be_moved_along_and_a_smaller_terminal_keeps_the_cursor_in_sight():
    async with shown(TableApp(table_of(Numbered())), (60, 24)) as (app, pilot):
        before = app.lines()[1]
        assert before.endswith("vectori… ▐")
        assert "…" in (await press(pilot, "greater_than_sign", ">")).lines()[1] and app.lines()[1] != before
        assert (await press(pilot, *["right"] * 10)).lines()[1].split()[-2].endswith("(int)")
        assert (await press(pilot, *["left"] * 10)).lines()[1] == before
    async with shown(TableApp(table_of(Numbered())), (120, 30)) as (app, pilot):
        assert "grid" in (await press(pilot, *["down"] * 25)).lines()[0]
        assert "grid" not in (await resize(pilot, 50, 12)).lines()[0] and len(app.lines()) == 12
        assert any(line.startswith("▸") for line in app.lines())


async def test_a_click_moves_selects_and_sorts_and_the_cursor_shows_whether_the_table_has_the_focus():
    async with shown(TableApp(table_of(Numbered()))) as (app, pilot):
        for is_selected in (False, True):
            await pilot.click(WindowTable, offset=(5, 4))
            selected = [RowSelected(app.table, 3)] if is_selected else []
            assert app.table.cursor_row == 3 and app.of(RowSelected) == selected
        await pilot.click(WindowTable, offset=(4, 0))
        assert app.of(SortRequested) == [SortRequested(app.table, "total", True)]

        focused = app.table.render_line(4)
        assert app.table.has_focus
        app.screen.set_focus(None)
        blurred = (await rested(pilot)).table.render_line(4)
        assert not app.table.has_focus and (focused.text[0], blurred.text) == ("▸", f" {focused.text[1:]}")
        assert [s.style for s in blurred] != [s.style for s in focused]


async def test_the_row_under_the_cursor_has_a_stacked_bar_as_the_others_have():
    rows = [(80.0, 50.0, 20.0, 60.0)] * 2
    async with shown(TableApp(table_of(TableAnswer("busy", BUSY, rows, 2)))) as (app, _):
        here, below = ([(s.text, s.style) for s in app.table.render_line(y) if "█" in s.text] for y in (1, 2))
        assert app.table.cursor_row == 0 and app.table.has_focus and here == below != []


async def test_a_page_that_fails_is_said_and_survived():
    def broken(number: int) -> Row:
        raise OSError("disk I/O error")

    for background in (False, True):
        async with shown(TableApp(table_of(Numbered(make=broken), background=background))) as (app, pilot):
            assert "could not be read: disk I/O error" in app.lines()[1]
            assert len(app.of(PageFailed)) == 1 and app.table.current_row is None
            app.table.set_answer(Numbered())
            assert "▸" in (await rested(pilot)).lines()[1] and "could" not in app.lines()[1]


@dataclass
class Slow(Numbered):
    """Rows whose pages wait until the test releases them."""

    gate: threading.Event = field(default_factory=threading.Event)

    def page(self, offset: int, limit: int) -> list[Row]:
        assert self.gate.wait(60)
        return super().page(offset, limit)


async def test_in_the_background_placeholders_stand_until_rows_arrive():
    answer = Slow(rows=10_000)
    app = TableApp(table_of(answer, background=True))
    async with kept_at_work(app) as rest:
        assert await becomes(lambda: app.lines()[1:2] == [f"{'▸ …':<79}▐"]) and app.table.current_row is None
        answer.gate.set()
        await rest()
        assert "0 void" in app.lines()[1] and app.table.current_row is not None

        answer.gate.clear()
        answer.asked.clear()
        for row in (2_000, 4_000, 6_000, 8_000):  # only the newest window is fetched
            app.table.cursor_row = row
            await asyncio.sleep(0)
        answer.gate.set()
        await rest()
        pages = [offset for offset, _ in answer.asked]
        assert 4_000 not in pages and 6_000 not in pages and 8_000 in pages
        assert app.of(RowHighlighted)[-1].row == 8_000 and app.table.current_row[1] == 8_000


async def test_an_answer_that_was_replaced_while_its_page_was_on_the_way():
    old = Slow(rows=50, make=lambda n: (n, n, "", 0.0, "old"))
    app = TableApp(table_of(old, background=True))
    async with kept_at_work(app) as rest:
        assert await becomes(lambda: app.table.size.height > 0)
        app.table.set_answer(Numbered(rows=50, make=lambda n: (n, n, "", 0.0, "new")))
        old.gate.set()
        await rest()
        assert app.lines()[1].split()[-2:] == ["new", "▐"]
