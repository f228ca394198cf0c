"""One history for all jumps, permanent tabs, views by name, and a palette of all commands and names."""

import asyncio

import campaign
import pytest
from campaign import first
from jobs import NARROW, WIDE, keys_of, name_of_screen, press, running, screen_text

from nsystui.base.selection import Selection
from nsystui.ui import keys
from nsystui.ui.palette import groupings_and_names, offers
from nsystui.ui.screens import base
from nsystui.ui.screens.dialogs import HelpScreen


@pytest.mark.campaign
@pytest.mark.parametrize("size", [NARROW, WIDE])
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
    *headings, last = [line for line in lines[:-2] if line and not line.startswith(" ") and line != "Words"]
    assert last == "Everywhere" and headings and set(headings) < set(keys.PLACES.values())
    first = [line for line in lines[: lines.index("Everywhere")] if line.startswith("  ")]
    continued = [line for line in first if line.startswith(" " * 12)]
    assert all(line[2] != " " or line.startswith(" " * 12) for line in first)
    assert size != WIDE or not continued


@pytest.mark.campaign
@pytest.mark.parametrize("columns", campaign.first(1, [1, 5, 8]))
async def test_help_opens_on_a_terminal_of_any_width(demo_job, cache, columns):
    async with running(demo_job[:1], cache, (columns, 24), "question_mark", "down", "escape") as (app, _):
        assert app.return_code is None


@pytest.mark.parametrize("fails", [False, True])
async def test_an_answer_for_a_screen_that_was_closed_meanwhile_is_dropped(job, cache, monkeypatch, fails):
    dropped = []

    async def answered_late(ask):
        answer, screen = ask(), app.screen
        if screen is not below:
            app.pop_screen()
            while screen.query("#selection"):  # a screen that closes loses its widgets before its work is cancelled
                await asyncio.sleep(0)
            dropped.append(screen)
            if fails:
                raise ValueError("late")
        return answer

    async with running(job, cache, NARROW, "2") as (app, pilot):
        below = app.screen
        monkeypatch.setattr(base, "to_thread", answered_late)
        await press(pilot, "enter")
        assert dropped and app.screen is below and app.return_code is None
        assert "ValueError" not in "".join(screen_text(app))


FIRST = {
    "help: the keys": ["help", "shortcuts"], "theme: a light page": ["colours", "light"],
    "theme: a dark page": ["dark"], "export: write": ["save", "csv", "svg"], "copy the row": ["copy row", "clipboard"],
    "capture log: ": ["warnings", "diagnostics", "lost events"],
    "quit": ["quit", "exit"], "back: ": ["back", "undo"], "filter by name": ["filter", "search", "find"],
    "type a time": ["time range"], "this time: ": ["select time"], "select devices": ["select devices", "gpus"],
    "sort by": ["sort", "order"], "compare two ranks": ["compare", "two ranks"],
    "compare two jobs": ["before after", "baseline", "groups of ranks"],
    "Kernels: memory": ["memcpy", "memset", "transfers"], "Kernels: API": ["cuda runtime", "driver calls"],
    "NCCL: sizes": ["message size", "busbw", "bandwidth"], "GPU: map of ranks": ["heat map"],
    "GPU: metrics": ["hardware counters", "dram", "tensor"], "GPU: network": ["infiniband", "nic", "efa"],
    "GPU: memory": ["leak", "oom"], "GPU: efficiency": ["pop", "talp"], "Host: functions": ["hotspots"],
    "Host: call tree": ["flame"], "Host: gaps": ["idle", "why"], "Steps: steps": ["iterations", "step time"],
    "Steps: path": ["critical path"], "Ranks: collectives": ["late", "allreduce"], "Timeline: timeline": ["gantt"],
}  # fmt: skip


async def test_the_palette_finds_what_people_call_a_thing(job, cache):
    async with running(job, cache, WIDE) as (app, _):
        found = list(offers(app.screen))

    def first(typed: str) -> str:
        return max(found, key=lambda offer: offer.score(typed)).words

    missed = [
        (typed, first(typed)) for line, words in FIRST.items() for typed in words if not first(typed).startswith(line)
    ]
    assert not missed


@pytest.mark.parametrize("typed, mode, line", first(1, [
    ("by family", "kernels", "view [kernels]"),
    ("warnings", "overview", "capture log"),
    ("gaps by len", "host", "view "),
]))  # fmt: skip
async def test_the_palette_offers_the_keys_and_groupings_of_other_tabs(job, cache, typed, mode, line):
    async with running(job, cache, WIDE, "9", "ctrl+p", *keys_of(typed), "enter") as (app, pilot):
        await pilot.pause()
        assert app.current_mode == mode and screen_text(app)[2].startswith(line)
        assert f"[{typed.split()[-1]}" in screen_text(app)[2] or mode == "overview"


async def test_v_and_b_list_what_can_be_chosen(job, cache):
    async with running(job, cache, NARROW, "2") as (app, pilot):
        for keys, chosen in {
            "b f": "by [family]", "b down enter": "by [precision]", "B": "by [family]", "b q": "by [family]",
            "b escape v m": "[memory]", "v v": "[memory]", "escape V": "[kernels]", "a f": "[full names]",
        }.items():  # fmt: skip
            assert chosen in screen_text(await press(pilot, *keys.split()))[2], keys
        assert len(app.screen_stack) == 1


async def test_a_kernel_is_a_line_of_the_palette_and_found_by_its_full_name(demo_job, cache):
    async with running(demo_job[:1], cache, WIDE) as (app, _):
        kernels = [offer for offer in groupings_and_names(app.screen)[1] if offer.words.endswith(" – kernel")]
    assert any("at::native" in offer.synonyms for offer in kernels)
    assert not any("at::native" in offer.words for offer in kernels)


async def test_the_selection_is_cleared_from_anywhere_in_one_step(job, cache):
    async with running(job, cache) as (app, pilot):
        await press(pilot, "r", "1", "enter", "T", *"1ms:2ms", "enter", "9")
        selected = app.selection
        await press(pilot, "U")
        assert app.selection == Selection() != selected and app.current_mode == "steps"
        await press(pilot, "escape")
        assert app.selection == selected
