"""Keys for other tools: the ncu command of a kernel, and a trace of the selection."""

import json
import shutil
import threading
from pathlib import Path

import pytest
from jobs import NARROW, answer, becomes_text, kept_at_work, last_line, running, screen_text, tap

from nsystui.questions.job.opening import JobSource
from nsystui.ui.app import NsystuiApp
from nsystui.ui.screens.kernels import KernelsScreen


@pytest.mark.campaign
async def test_before_the_first_table_enter_and_u_wait_for_it_in_their_order(demo_job, cache_directory, monkeypatch):
    may_answer, ask = threading.Event(), KernelsScreen.ask
    monkeypatch.setattr(KernelsScreen, "ask", lambda *given: may_answer.wait(60) and ask(*given))
    app = NsystuiApp(JobSource((str(demo_job[0]),), cache_directory))
    async with kept_at_work(app) as rest:
        await rest()
        tap(app, "2")
        assert await becomes_text(app, "computing Kernels › kernels…")
        tap(app, "enter", "u")
        assert await becomes_text(app, "one moment: ⏎ u act")
        may_answer.set()
        await rest()
        assert [type(screen).__name__ for screen in app.screen_stack[1:]] == ["KernelInstancesScreen", "NcuScreen"]


async def test_no_screen_writes_over_the_export_that_it_shows(demo_job, cache_directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    export, before = Path(shutil.copy(demo_job[0], tmp_path)), demo_job[0].read_bytes()
    (tmp_path / "kernels.csv").hardlink_to(export)
    (tmp_path / "job.prv").symlink_to(export)
    async with running([export], cache_directory, NARROW, "2") as (app, pilot):
        for key, name in (("e", "kernels.csv"), ("E", "job.prv")):
            await pilot.press("6" if key == "E" else "2")
            await answer(app, pilot, name, key)
            assert f"{name} is an input" in " ".join(screen_text(app))
    assert export.read_bytes() == before


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
