"""The mouse: a click, a drawn span and the wheel have the effect of keys."""

import pytest
from jobs import NARROW, WIDE, line_with, press, rested, running, screen_text
from textual import events

from nsystui.ui.widgets.lane_chart import LaneChart


async def click(app, pilot, words: str, line: int | None = None, part: int = 0) -> None:
    """Click on words of the screen, ``part`` cells after their beginning."""
    lines = screen_text(app)
    y = next(i for i, text in enumerate(lines) if words in text and line in (None, i))
    await pilot.click(offset=(lines[y].index(words) + part, y))


@pytest.mark.campaign
@pytest.mark.parametrize(("size", "names"), [(NARROW, ("2 Krn", "3 NCCL", "L Time")), (WIDE, ("2 Kernels", "7 Ranks"))])
async def test_tabs(demo_job, cache_directory, size, names):
    async with running(demo_job, cache_directory, size) as (app, pilot):
        for name in names:
            await click(app, pilot, name, line=0, part=2)
            assert f"│{name}│" in screen_text(app)[0]


@pytest.mark.campaign
async def test_keys_crumbs_views_and_headings(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE, "2") as (app, pilot):
        await click(app, pilot, "/ filter", line=35)
        assert app.screen.prompt.is_open
        await pilot.press("escape")
        await click(app, pilot, "all commands", line=35, part=3)
        assert type(app.screen).__name__ == "Palette"
        await pilot.press("escape")
        await click(app, pilot, "⏎ open", line=35)
        assert len(app.screen_stack) == 2
        await click(app, pilot, "esc back", line=35)
        assert len(app.screen_stack) == 1

        selection = (await press(pilot, "slash", *"nccl", "enter", "r", "0", "enter")).selection
        assert selection.name is not None and selection.tasks is not None
        await click(app, pilot, "rank 0", line=1)
        assert app.selection.tasks is None and app.selection.name is not None
        await click(app, pilot, "nccl", line=1)
        assert app.selection.is_everything
        assert (await press(pilot, "escape", "escape")).selection == selection

        await click(app, pilot, "memory", line=2)
        assert app.screen.view.name == "memory"
        await click(app, pilot, "kernels", line=2)
        await click(app, pilot, "avg", line=3, part=1)
        assert app.screen.table.sorted_by == ("avg", True)
        await click(app, pilot, "avg", line=3, part=1)
        assert app.screen.table.sorted_by == ("avg", False)
        await click(app, pilot, "rank", line=2, part=0)
        assert app.screen.options["by"] == "rank"


async def test_rows_are_chosen_then_opened_and_the_wheel_moves_along(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE, "6") as (app, pilot):
        table = app.screen.table
        await pilot.click(table, offset=(20, 6))
        assert table.cursor_row == 5
        await pilot._post_mouse_events([events.MouseScrollDown], table, offset=(20, 6), button=0)
        await pilot.pause()
        assert table.cursor_row > 5
        await pilot.press("2")
        await pilot.click(app.screen.table, offset=(20, 1))
        assert len(app.screen_stack) == 2


@pytest.mark.campaign
@pytest.mark.parametrize("key", ["4", "L"])
async def test_a_span_is_drawn_and_selected_and_the_wheel_zooms(demo_job, cache_directory, key):
    async with running(demo_job, cache_directory, WIDE, key) as (app, pilot):
        chart = app.screen.chart
        y = 5 if isinstance(chart, LaneChart) else 2
        await pilot.mouse_down(chart, offset=(50, y))
        await pilot.hover(chart, offset=(70, y))
        await pilot.mouse_up(chart, offset=(70, y))
        if isinstance(chart, LaneChart):
            left = chart.size.width - chart.chart_width - chart.value_width - 1
            assert app.screen.position.mark == app.screen.times_of(50 - left)[0]
            assert chart.cursor_column == 70 - left and line_with(app, "from the mark")
        else:
            assert chart.span[1] - chart.span[0] == 20
        window = (await press(pilot, "t")).selection.window
        assert window is not None and window != app.job.extent()
        assert (await press(pilot, "escape")).selection.is_everything
        await pilot._post_mouse_events([events.MouseScrollUp], chart, offset=(60, y), button=0)
        view = (await rested(pilot)).screen.view
        assert view is not None and view.end - view.start < app.job.extent().end - app.job.extent().start
