"""One history for every jump, tabs that are always there, views by name, and a palette of everything."""

from __future__ import annotations

import campaign
import pytest
from jobs import NARROW, WIDE, answer, line_with, name_of_screen, press, running, screen_text, view_bar

from nsystui.ui.screens.dialogs import HelpScreen


@pytest.mark.campaign
@pytest.mark.parametrize("size", [NARROW, pytest.param(WIDE, marks=pytest.mark.campaign)])
async def test_every_screen_shows_every_tab_and_a_help_that_fits(job, cache, size):
    async with running(job, cache, size) as (app, pilot):
        for key in "23456789L1":
            first, *_, last = screen_text(await press(pilot, key))
            assert all(f"{one} " in first for one in "123456789L"), key
            assert f"│{key} " in first and first.count("│") == 2
            assert "ctrl+p all commands  ? help" in last, key
            assert name_of_screen(await press(pilot, "question_mark")) == "HelpScreen", key
            check_help(app.screen, size)
            await pilot.press("escape")


def check_help(screen: HelpScreen, size: tuple[int, int]) -> None:
    room, lines = screen.query_one("Static").size.width, screen.lines
    assert max(map(len, lines)) <= room
    headings = [line for line in lines[1:-2] if line and not line.startswith(" ")]
    assert headings[:6] == ["Move", "Go", "View", "Select", "Export", "Program"] and headings[6:] in ([], ["Words"])
    first = [line.partition("Words")[0] for line in lines[2 : lines.index("Program")] if line.startswith("  ")]
    continued = [line for line in first if line.startswith(" " * 12)]
    assert all(line[2] != " " or line.startswith(" " * 12) for line in first)
    assert size != WIDE or not continued


@pytest.mark.parametrize("columns", campaign.first(1, [1, 5, 8]))
async def test_help_opens_on_a_terminal_of_any_width(demo_job, cache, columns):
    async with running(demo_job[:1], cache, (columns, 24), "question_mark", "down", "escape") as (app, _):
        assert app.return_code is None


@pytest.mark.campaign
async def test_a_digit_returns_to_its_tab_and_pressed_again_to_the_tabs_first_view(job, cache):
    async with running(job, cache, WIDE, "2", "down", "enter") as (app, pilot):
        launches = app.screen
        assert name_of_screen(app) == "KernelInstancesScreen"
        assert len((await press(pilot, "down", "down", "2")).screen_stack) == 1
        await pilot.press("escape")  # reopens what a digit closed, with its cursor
        assert app.screen is launches and launches.table.cursor_row == 2
        assert name_of_screen(await press(pilot, "enter")) == "EventsScreen" and "│6 " in screen_text(app)[0]
        first, second = screen_text(await press(pilot, "1", "2"))[:2]
        assert "│2 " in first and "L Timeline" in first and second.startswith("all ranks · all time")
        assert len((await press(pilot, "2")).screen_stack) == 1 and app.screen.view.name == "kernels"
        assert screen_text(app)[1].endswith("names")


@pytest.mark.campaign
async def test_esc_undoes_one_jump_after_the_other(job, cache):
    async with running(job, cache, NARROW, "2", "v", "v", "down") as (app, pilot):
        view, row = app.screen.view.name, app.screen.table.cursor_row
        assert (await press(pilot, "5", "6", "escape")).current_mode == "nvtx"
        assert (await press(pilot, "escape")).current_mode == "kernels"
        assert (app.screen.view.name, app.screen.table.cursor_row) == (view, row)

        view = (await press(pilot, "7", "V", "V", "V")).screen.view.name
        await pilot.press("enter")  # opening a rank is one step with its selection and view
        assert app.current_mode == "gpu" and not app.selection.is_everything
        assert (await press(pilot, "escape")).current_mode == "ranks" and app.selection.is_everything
        assert app.screen.view.name == view

        assert (await answer(app, pilot, "nccl", "2", "2", "down", "down", "down", "slash")).selection.name is not None
        await pilot.press("escape")  # undoing a selection restores the cursor
        assert app.selection.is_everything and app.screen.table.cursor_row == 3

        first = (await press(pilot, "enter", "enter")).screen.values()["row"], app.screen.values()["start"]
        assert (await press(pilot, "c")).screen.values()["kind"] == "api"
        assert ((await press(pilot, "escape")).screen.values()["row"], app.screen.values()["start"]) == first
        assert (await press(pilot, "escape", "down", "enter")).screen.values()["start"] != first[1]


@pytest.mark.campaign
async def test_the_palette_opens_views_and_kernels_by_a_part_of_their_names(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        for typed, mode in (("Kernels: OS runtime", "kernels"), ("map of ranks", "gpu"), ("across", "steps")):
            await pilot.press("ctrl+p", *typed)
            await pilot.press("enter")
            assert app.current_mode == mode and f"[{typed.removeprefix('Kernels: ')}]" in view_bar(app)
        await pilot.press("ctrl+p", *"flash_bwd_dq")
        await pilot.press("enter")
        assert name_of_screen(app) == "KernelInstancesScreen" and "flash_bwd_dq" in app.screen.kernel


@pytest.mark.campaign
async def test_prompts_say_what_they_understand_and_refuse_a_selection_of_nothing(job, cache):
    async with running(job, cache, NARROW, "2") as (app, pilot):
        for keys, said in ((("T", *"50s:60s"), "only from 0.000"), (("D", "7"), "the devices are 0")):
            assert (await press(pilot, *keys, "enter")).screen.prompt.is_open and app.selection.is_everything
            line_with(app, said)
            await pilot.press("escape")
        line_with(await press(pilot, "T", *"0.5:0.6"), "from 0.500 s to 0.600 s")
        await pilot.press("enter")
        assert (app.selection.window.start, app.selection.window.end) == (500_000_000, 600_000_000)
        line_with(await press(pilot, "T"), "0.5s:0.6s")
        await pilot.press(*"0.1:0.2", "enter")
        assert (app.selection.window.start, app.selection.window.end) == (100_000_000, 200_000_000)
