"""Screens before a job is open: remembered answers of known files, exact kernels of new files, and waiting keys."""

import asyncio
import os
import shutil
import threading
from functools import partial
from pathlib import Path

import jobs
import pytest
from campaign import first
from jobs import WIDE, becomes, becomes_text, cells, last_line, line_with, running, screen_text, tap

from nsystui.questions.answers import remembered
from nsystui.questions.job.opening import JobSource
from nsystui.questions.triage import run
from nsystui.store.on_demand import OnDemand
from nsystui.store.session import Session
from nsystui.ui import loading
from nsystui.ui.app import NsystuiApp
from nsystui.ui.loading import kept_overview

pytestmark = pytest.mark.findings
KERNEL = "flash_fwd"


async def see(source: JobSource) -> list[str]:
    """Open the job at 120x36, and return the lines of the overview."""
    async with running(map(Path, source.files), source.cache_directory, WIDE) as (app, _):
        assert await becomes_text(app, "● loaded")
        return screen_text(app)


@pytest.fixture(scope="module")
def known(job, written_once, run_directory) -> JobSource:
    """Return a job and a cache with its overview."""
    files = tuple(map(str, job))
    written_once("known", lambda directory: asyncio.run(see(JobSource(files, directory / "cache"))))
    return JobSource(files, run_directory / "known/cache")


@pytest.fixture
def go_on(monkeypatch) -> threading.Event:
    """Return an event; no export is read whole until it is set."""
    event, add = threading.Event(), Session.add

    def add_late(session, *words, **options):
        assert not options.get("whole", True) or event.wait(60)
        return add(session, *words, **options)

    monkeypatch.setattr(Session, "add", add_late)
    return event


@pytest.mark.campaign
async def test_a_known_job_shows_its_overview_before_it_is_opened(known, go_on):
    go_on.set()
    before = await see(known)
    go_on.clear()
    app = NsystuiApp(known)
    async with jobs.kept_at_work(app, WIDE) as rest:
        assert await becomes_text(app, KERNEL)
        assert await becomes_text(app, "checking…") and app.screen.job is None
        assert await becomes(lambda: screen_text(app)[1:-1] == before[1:-1]), "\n".join(screen_text(app))
        tap(app, "2")
        assert await becomes(lambda: app.current_mode == "kernels") and await becomes_text(app, KERNEL)
        tap(app, "1")
        go_on.set()
        await rest()
        assert await becomes(lambda: screen_text(app) == before)


async def test_on_a_terminal_of_another_size_the_tables_are_there_at_once(known, go_on):
    app = NsystuiApp(known)
    async with jobs.kept_at_work(app) as rest:
        assert await becomes_text(app, KERNEL) and await becomes_text(app, "what is wrong")
        assert not [line for line in screen_text(app) if line.startswith("GPU time")]
        go_on.set()
        await rest()
        assert line_with(app, "GPU time")


@pytest.mark.parametrize(("typed", "says", "acts"), first(2, [
    ("9 down down t", "one moment: ↓ ↓ t act", lambda app: cells(app, "step") == [2, 2]),
    ("9 down down t escape", "waiting keys", lambda app: len(cells(app, "step")) > 2),
    ("enter right_square_bracket", "one moment: ⏎ ] act", lambda app: "2 of " in screen_text(app)[1]),
]))  # fmt: skip
async def test_keys_typed_while_kept_answers_are_checked_act_in_their_order(known, go_on, typed, says, acts):
    app = NsystuiApp(known)
    async with jobs.kept_at_work(app, WIDE) as rest:
        assert await becomes_text(app, KERNEL)
        tap(app, *typed.split())
        assert await becomes_text(app, says)
        go_on.set()
        await rest()
        assert acts(app), "\n".join(screen_text(app))
        assert (app.selection.window is not None) == typed.endswith(" t")


@pytest.mark.campaign
async def test_nothing_is_kept_of_a_job_that_was_changed_or_is_opened_otherwise(job, tmp_path):
    paths = [Path(shutil.copy(path, tmp_path)) for path in job]
    source = JobSource(tuple(map(str, paths)), tmp_path / "cache")
    await see(source)
    assert kept_overview(source) is not None
    assert kept_overview(JobSource(source.files, source.cache_directory, clock="utc")) is None
    assert kept_overview(JobSource(source.files[:1], source.cache_directory)) is None
    assert kept_overview(JobSource(source.files)) is None
    os.utime(paths[0])
    assert kept_overview(source) is None


async def test_a_new_job_shows_the_exact_kernels_before_the_rest_is_read(job, tmp_path, monkeypatch, go_on):
    monkeypatch.setattr(loading, "_MANY_KERNELS", 1)
    app = NsystuiApp(JobSource(tuple(map(str, job)), tmp_path / "cache"))
    async with jobs.kept_at_work(app, WIDE) as rest:
        assert await becomes_text(app, "by total time")
        assert app.screen.job is None and not [
            line for line in screen_text(app) if "sample" in line or "what is wrong" in line
        ]
        first = app.screen.kernels.answer
        tap(app, "2")
        assert await becomes(lambda: app.current_mode == "kernels") and await becomes_text(app, KERNEL)
        assert "sample" not in screen_text(app)[1]
        tap(app, "1")
        go_on.set()
        await rest()
        assert app.screen.kernels.answer.rows == first.rows


async def test_the_first_reading_of_the_kernels_can_be_stopped(job, tmp_path, monkeypatch, go_on):
    monkeypatch.setattr(loading, "_MANY_KERNELS", 1)
    reached, load = threading.Event(), OnDemand.load

    def load_late(report, wanted):
        reached.set()
        assert go_on.wait(60)
        return load(report, wanted)

    monkeypatch.setattr(OnDemand, "load", load_late)
    app = NsystuiApp(JobSource(tuple(map(str, job)), tmp_path / "cache"))
    async with jobs.kept_at_work(app, WIDE) as rest:
        assert await becomes(reached.is_set)
        tap(app, "escape")
        assert await becomes_text(app, "stopping…")
        go_on.set()
        await rest()
        assert not app.loading_now and not app.seen.is_exact and "R resumes loading" in last_line(app)


async def test_findings_are_there_before_the_first_answers_of_commands_are_computed(job, tmp_path, monkeypatch):
    done = []
    for module, name in ((run, "triage"), (remembered, "remember_first_questions")):

        def ended(function, *words, **options):
            result = function(*words, **options)
            done.append(function.__name__)
            return result

        monkeypatch.setattr(module, name, partial(ended, getattr(module, name)))
    async with running(job, tmp_path, WIDE):
        assert await becomes(lambda: len(done) == 2)
    assert done == ["triage", "remember_first_questions"]
