"""Every key on every screen and view, also before the screen has its answer: nothing ends the program."""

from __future__ import annotations

import pytest
from jobs import WIDE, running, tap

from nsystui.ui import keys
from nsystui.ui.screens.base import JobScreen

LEAVING = {"q", "ctrl+c", "ctrl+z"}
ALL = sorted({name for key in keys.KEYS for name in key.keys.split(",")} - LEAVING)
TABS = [tab[0] for tab in keys.TABS]


def views(app) -> int:
    return len(app.screen.views()) or 1 if isinstance(app.screen, JobScreen) else 1


@pytest.mark.findings
async def test_a_row_is_copied_in_every_view_also_before_its_answer_is_there(demo_job, cache):
    async with running(demo_job[:1], cache, WIDE) as (app, pilot):
        for tab in TABS:
            tap(app, tab, "y")
            await pilot.press("y")
            for view in range(views(app)):
                tap(app, "v", "y")
                await pilot.press("tab", "y")
                assert app.return_code is None, (tab, view)


@pytest.mark.campaign
@pytest.mark.findings
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "at once"])
@pytest.mark.parametrize("tab", TABS)
async def test_no_key_ends_the_program(demo_job, cache, tmp_path, monkeypatch, tab, waits):
    monkeypatch.chdir(tmp_path)
    async with running(demo_job, cache, WIDE) as (app, pilot):
        await pilot.press(tab)
        for view in range(views(app)):
            for key in ALL:
                if waits:
                    await pilot.press(key)
                else:
                    tap(app, tab, *["v"] * view, key)
                await pilot.press("escape", "escape", tab)
                assert app.return_code is None, (tab, view, key)
            await pilot.press("v")
