"""1 Overview: facts, GPU time, ranks, kernels and remarks, at 80x24 and with the keys a user presses."""

import math
import shutil
import threading
from collections.abc import Iterator

import jobs
import pytest
from jobs import becomes_text, line_with, press, running, screen_text

from nsystui.questions.job.opening import JobSource
from nsystui.store.session import Session
from nsystui.ui.app import FileState, NsystuiApp
from nsystui.ui.pictures import overview_lines
from nsystui.ui.pictures.overview_lines import failure_lines, files_answer, stacked


def test_a_stack_is_as_high_as_the_sum_of_its_parts():
    strips = ((0.5, 0.25, 0.001, math.nan), (0.5, 0.25, 0.0, math.nan), (0.0,) * 4, (0.0,) * 4)
    for rows in (1, 3):
        lines = ["".join(text for text, _ in line) for line in stacked(strips, 4, rows, coloured=False)]
        heights = [sum(" ▁▂▃▄▅▆▇█·".index(line[column]) for line in lines) for column in range(3)]
        assert heights == [8 * rows, 4 * rows, 1] and [line[3] for line in lines] == [" "] * (rows - 1) + ["·"]
    ((piece,),) = stacked(((0.5,), (0.5,), (0.0,), (0.0,)), 1, 1, coloured=True)
    assert piece == ("▄", "compute/nccl"), "a cell that two parts share shows both"


@pytest.fixture
def held_up(monkeypatch) -> Iterator[threading.Event]:
    """Yield an event; reports except the first of ``demo_job`` are added once it is set."""
    go_on, add = threading.Event(), Session.add

    def add_late(session, path, *rest):
        assert "rank0" in path.name or go_on.wait(60)
        return add(session, path, *rest)

    monkeypatch.setattr(Session, "add", add_late)
    yield go_on
    go_on.set()


@pytest.mark.campaign
async def test_while_loading_there_are_the_files_and_a_sample(demo_job, tmp_path, held_up):
    app = NsystuiApp(JobSource(tuple(map(str, demo_job[1:])), tmp_path / "cache"))
    async with jobs.kept_at_work(app) as rest:
        assert await becomes_text(app, "sample: ") and await becomes_text(app, "H100")
        row = line_with(app, "rank1")
        assert "H100" in row and "279" in row and "ready" not in row
        assert "exact numbers follow" in line_with(app, "sample: ")
        jobs.tap(app, "enter")
        assert await becomes_text(app, "one moment: ⏎ acts when this is computed")
        held_up.set()
        await rest()
        assert app.current_mode == "kernels", "Enter opened the first rank"


@pytest.mark.campaign
async def test_the_table_of_many_files_is_not_made_for_each(tmp_path, monkeypatch, demo_job, held_up):
    made: list[object] = []
    make = overview_lines.files_answer
    monkeypatch.setattr(overview_lines, "files_answer", lambda states: (made.append(states), make(states))[1])
    for number in range(40):
        shutil.copyfile(demo_job[0], tmp_path / f"rank{number + 100}.sqlite")
    app = NsystuiApp(JobSource((str(tmp_path),), tmp_path / "cache"))
    async with jobs.kept_at_work(app):
        assert await jobs.becomes(lambda: len(app.files) == 40 and all(one.opened for one in app.files.values()))
        assert await becomes_text(app, "H100") and len(made) < 20
        app.exit(return_code=0)
        held_up.set()


def test_the_bar_of_progress_counts_files_that_are_not_opened_yet(tmp_path):
    app = NsystuiApp(JobSource(()))
    opened = FileState(tmp_path / "a.sqlite", rows=100, total=100, ready=True)
    others = [FileState(tmp_path / f"{name}.sqlite") for name in "bcd"]
    app.files = {one.path: one for one in (opened, *others, FileState(tmp_path / "e.sqlite", failure="empty"))}
    assert app.status == "loading 1 of 5  ▓▓░░░░░░░░ 25 %  100 rows"


def test_the_states_of_files_in_words_and_many_failures_in_two_lines(tmp_path):
    states = [
        FileState(tmp_path / "a.sqlite"),
        FileState(tmp_path / "b.sqlite", rows=25, total=100),
        FileState(tmp_path / "c.sqlite", rows=100, total=100, ready=True),
        FileState(tmp_path / "d.sqlite", failure="empty"),
    ]
    answer = files_answer(states)
    told = [("a", None, "waiting"), ("b", 25.0, "reading"), ("c", 100.0, "ready"), ("d", None, "left out: empty")]
    assert [(row[0], row[2], row[-1]) for row in answer.rows] == told
    assert [row[2] for row in answer.sorted_by("read", descending=True).rows] == [100.0, 25.0, None, None]
    for count, lines in ((0, 0), (1, 1), (2, 2), (3, 2), (40, 2)):
        found = failure_lines([FileState(tmp_path / f"{n}.sqlite", failure="empty") for n in range(count)], 80)
        assert len(found) == lines and (count < 3 or f"{count - 1} more files" in found[1][1][0])


@pytest.mark.campaign
async def test_while_reports_join_what_is_there_is_said_to_be_so_far(demo_job, tmp_path, held_up):
    app = NsystuiApp(JobSource(tuple(map(str, demo_job)), tmp_path / "cache"))
    async with jobs.kept_at_work(app) as rest:
        assert await becomes_text(app, "1 rank so far")
        held_up.set()
        await rest()
        assert line_with(app, "4 ranks · 2 hosts")
        assert all("–" not in line for line in screen_text(app) if "gpu-a0" in line)


@pytest.mark.campaign
async def test_runs_without_a_common_clock_are_measured_each_over_its_own_events(shared_export, cache_directory):
    paths = [shared_export(f"h100-2rank-moe-{when}") for when in ("before", "after")]
    async with running(paths, cache_directory) as (app, pilot):
        assert line_with(app, "clocks not aligned") and line_with(app, "share no clock")
        assert not any("over time" in line for line in screen_text(app))
        line_with(await press(pilot, "4", "v", "e"), "share no clock")
