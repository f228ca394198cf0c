"""7 Ranks: the tables, the screen behind a row, the clock, and the map of all ranks."""

import threading

import pytest
from jobs import WIDE, becomes_text, kept_at_work, line_with, screen_text, tap

from nsystui.questions.job.opening import JobSource
from nsystui.store.session import Computation
from nsystui.ui.app import NsystuiApp
from nsystui.ui.screens.ranks import RanksScreen


@pytest.mark.campaign
async def test_a_first_answer_that_takes_long_is_waited_for_in_words(demo_job, cache_directory, monkeypatch):
    may_answer, ask = threading.Event(), RanksScreen.ask
    monkeypatch.setattr(RanksScreen, "ask", lambda *args: may_answer.wait(60) and ask(*args))
    app = NsystuiApp(JobSource(tuple(map(str, demo_job)), cache_directory))
    async with kept_at_work(app, WIDE) as rest:
        await rest()
        tap(app, "7")
        assert await becomes_text(app, "computing Ranks › ranks…")
        app.computing(Computation("steps", 3, 64))
        assert await becomes_text(app, "computing steps: 3 of")
        may_answer.set()
        app.computing(None)
        await rest()
        assert not any("computing" in line for line in screen_text(app))
        line_with(app, "4 of 4 ranks")
