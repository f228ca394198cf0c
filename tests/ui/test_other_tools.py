"""Keys that hand over to other tools: the ncu command of a kernel, and a trace of the selection."""

from __future__ import annotations

import json
import threading

import pytest
from jobs import NARROW, answer, becomes_text, kept_at_work, last_line, name_of_screen, running, screen_text, tap

from nsystui.questions.job.opening import JobSource
from nsystui.ui.app import NsystuiApp
from nsystui.ui.screens.kernels import KernelsScreen
from nsystui.ui.screens.other_tools import ncu_lines


async def test_u_shows_the_command_of_a_kernel_and_copies_it(demo_job, cache_directory):
    async with running(demo_job[:1], cache_directory, NARROW, "2", "u") as (app, pilot):
        assert name_of_screen(app) == "NcuScreen"
        shown = app.screen.commands[0]
        assert ncu_lines([shown])[-1].startswith("copied the command, if")
        assert ncu_lines([shown] * 2)[-1].startswith("copied the 2 commands, if")
        assert shown.count is None and app.clipboard == f"{shown.command}\n"
        await pilot.press("escape", "enter")
        starts = [int(row[0]) for row in app.screen.table.answer.sorted_by("start", False).page(0, 100)]
        await pilot.press("down", "u")
        place = starts.index(app.screen_stack[-2].values()["start"])
        assert name_of_screen(app) == "NcuScreen" and place
        assert "--launch-count 1" in app.clipboard and f"--launch-skip {place} " in app.clipboard


@pytest.mark.campaign
async def test_before_the_first_table_u_says_that_it_is_missing_and_enter_waits(demo_job, cache_directory, monkeypatch):
    may_answer, ask = threading.Event(), KernelsScreen.ask
    monkeypatch.setattr(KernelsScreen, "ask", lambda *given: may_answer.wait(60) and ask(*given))
    app = NsystuiApp(JobSource((str(demo_job[0]),), cache_directory))
    async with kept_at_work(app) as rest:
        await rest()
        tap(app, "2")
        assert await becomes_text(app, "computing Kernels › kernels…")
        tap(app, "enter", "u")
        assert await becomes_text(app, "ncu profiles kernels")
        may_answer.set()
        await rest()
        assert name_of_screen(app) == "KernelInstancesScreen"


@pytest.mark.campaign
async def test_capital_e_writes_a_trace_of_the_selection_and_asks_before_it_overwrites(
    demo_job, cache_directory, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    async with running(demo_job[:1], cache_directory, NARROW, "6", "u") as (app, pilot):
        assert "ncu profiles kernels" in last_line(app)
        await answer(app, pilot, "job.json", "E")
        assert json.loads((tmp_path / "job.json").read_bytes())["traceEvents"]
        (tmp_path / "job.json").write_text("mine")
        assert "overwrite? y/n" in "\n".join(screen_text(await answer(app, pilot, "job.json", "E")))
        await pilot.press("n", "enter")
        assert (tmp_path / "job.json").read_text() == "mine"
