"""Keys that hand over to other tools: the ncu command of a kernel, and a trace of the selection."""

from __future__ import annotations

import json
import threading

from jobs import line_with, running, screen_text

from nsystui.ui.screens.kernels import KernelsScreen
from nsystui.ui.screens.other_tools import NcuScreen


async def test_u_shows_the_command_of_a_kernel_and_copies_it(demo_job, cache_directory):
    async with running(demo_job[:1], cache_directory) as (app, pilot):
        await pilot.press("2", "u")
        assert isinstance(app.screen, NcuScreen)
        shown = app.screen.commands[0]
        assert shown.count is None and app.clipboard == f"{shown.command}\n"
        await pilot.press("escape", "enter")
        starts = [int(row[0]) for row in app.screen.table.answer.sorted_by("start", False).page(0, 100)]
        await pilot.press("down", "u")
        place = starts.index(app.screen_stack[-2].values()["start"])
        assert isinstance(app.screen, NcuScreen) and place
        assert "--launch-count 1" in app.clipboard and f"--launch-skip {place} " in app.clipboard


async def test_before_the_first_table_u_and_enter_say_that_there_is_nothing_yet(demo_job, cache_directory, monkeypatch):
    answer = threading.Event()
    ask = KernelsScreen.ask
    monkeypatch.setattr(KernelsScreen, "ask", lambda *given: answer.wait(30) and ask(*given))
    async with running(demo_job[:1], cache_directory) as (app, pilot):
        await pilot.press("2")
        line_with(app, "computing…")
        await pilot.press("enter", "u")
        line_with(app, "ncu profiles kernels")
        answer.set()
        await pilot.pause()


async def test_on_what_is_no_kernel_u_says_so(demo_job, cache_directory):
    async with running(demo_job[:1], cache_directory) as (app, pilot):
        await pilot.press("6", "u")
        assert "ncu profiles kernels" in screen_text(app)[-1]


async def test_capital_e_writes_a_trace_of_the_selection_and_asks_before_it_overwrites(
    demo_job, cache_directory, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    async with running(demo_job[:1], cache_directory) as (app, pilot):
        await pilot.press("6", "E")
        app.screen.prompt.value = "job.json"
        await pilot.press("enter")
        await pilot.pause()
        assert json.loads((tmp_path / "job.json").read_bytes())["traceEvents"]
        (tmp_path / "job.json").write_text("mine")
        await pilot.press("E")
        app.screen.prompt.value = "job.json"
        await pilot.press("enter")
        await pilot.pause()
        assert "overwrite? y/n" in "\n".join(screen_text(app))
        await pilot.press("n", "enter")
        assert (tmp_path / "job.json").read_text() == "mine"
