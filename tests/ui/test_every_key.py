"""Keys on every screen and view, also before the screen has its answer: nothing ends the program."""

from __future__ import annotations

import pytest
from jobs import WIDE, running, tap

from nsystui.ui import keys
from nsystui.ui.screens.base import JobScreen

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
