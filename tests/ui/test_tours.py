"""Tours through the program: keys, and every screen after them as accepted, with text and styles.

A file in ``tours/`` has after each ``>>>`` the keys to press ("text" is pasted, @80x24 resizes the terminal), and then
the lines of the screen that changed: the number and the text of each. Where a line has several styles, these follow
after ``:``, a code for each style, explained at the end of the file, and how many columns it has.
To add a screen, write a line with its keys, and accept its screen: ``python -m pytest --snapshot-update
tests/ui/test_tours.py``; look at the changes with ``git diff``.
"""

from __future__ import annotations

import difflib
import shlex
import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from shutil import copytree

import pytest
from jobs import DARK, WIDE, painted, resize, shown
from support import report_in, session_over
from synthetic import node_graph_export, training_job, whole_graph_export
from synthetic.demo import ServingJob
from synthetic.demo.kineto import ENDING, write_trace
from synthetic.variants import empty_export
from test_nccl_log_screen import log_text
from textual.events import Paste

from nsystui.base.selection import Selection
from nsystui.cli import main
from nsystui.questions.compare import ComparisonOptions
from nsystui.questions.compare.side import Side
from nsystui.questions.job.opening import JobSource
from nsystui.store.cache import Cache
from nsystui.ui.app import Look, NsystuiApp
from nsystui.ui.diff_app import DiffApp

TOURS = Path(__file__).parent / "tours"


def screen_lines(app, styles: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the screen with their styles; ``styles`` gets the meaning of each code."""
    for number, strip in enumerate(painted(app), 1):
        runs = []
        for style, segments in groupby(strip, lambda segment: str(segment.style or "")):
            code = "".join(chr(97 + zlib.crc32(style.encode()) // 26**place % 26) for place in range(3))
            styles[code] = style
            runs.append(f"{code}{sum(len(segment.text) for segment in segments)}")
        yield f"{number:2}|{strip.text.rstrip()}" + f"\n  :{' '.join(runs)}" * (len(runs) > 1)


async def walked(app, tour: list[str]) -> str:
    styles: dict[str, str] = {}
    lines, before = [], set()
    async with shown(app, WIDE) as (_, pilot):
        await pilot.pause()
        for stop in tour:
            for word in shlex.split(stop, posix=False):
                if word.startswith("@"):
                    await resize(pilot, *map(int, word[1:].split("x")))
                elif word.startswith('"'):
                    app.post_message(Paste(word[1:-1]))
                    await pilot.pause()
                else:
                    await pilot.press(word)
            now = list(screen_lines(app, styles))
            lines += [f">>> {stop}".rstrip(), *(line for line in now if line not in before)]
            before = set(now)
    return "\n".join([*lines, *(f"{code} = {style}" for code, style in sorted(styles.items()))]) + "\n"


def log_of(directory: Path) -> Path:
    path = directory / "nccl.0.log"
    path.write_text(log_text())
    return path


def halves(jobs) -> tuple[Side, Side]:
    return Side(jobs[0], Selection(), "before"), Side(jobs[-1], Selection(), "after")


@pytest.fixture(scope="session")
def columns(written_once, demo_job, run_directory) -> Path:
    """Return a cache with the demo job's columns and no results, because some screens show cached results."""

    def write(directory: Path) -> None:
        session_over(*demo_job, cache=Cache(directory / "cache")).close()

    written_once("tours", write)
    return run_directory / "tours/cache"


@pytest.fixture
def program(request, demo_job, written_once, columns, tmp_path):
    copytree(columns, tmp_path / "cache")

    def files(*paths: Path) -> JobSource:
        return JobSource(tuple(map(str, paths)), tmp_path / "cache")

    match request.param:
        case "without colours":
            return NsystuiApp(files(*demo_job), Look(no_color=True, ascii_only=True))
        case "light":
            return NsystuiApp(files(*demo_job[:1]), Look(light=True, few_colors=True))
        case "server":
            return NsystuiApp(files(*written_once("server", ServingJob(ranks=1, steps=24, layers=2).write)), DARK)
        case "empty":
            return NsystuiApp(files(empty_export(tmp_path / "empty.sqlite")), DARK)
        case "many ranks":
            return NsystuiApp(files(*request.getfixturevalue("many_ranks")), DARK)
        case "graphs":
            return NsystuiApp(files(whole_graph_export(tmp_path / "graph.sqlite")), DARK)
        case "nodes":
            return NsystuiApp(files(node_graph_export(tmp_path / "graph.sqlite")), DARK)
        case "many steps":
            return NsystuiApp(files(*training_job(tmp_path, ranks=1, steps=120, layers=1)), DARK)
        case "traces":
            traces = [tmp_path / f"{path.stem}{ENDING}" for path in demo_job[:2]]
            for path, trace in zip(demo_job[:2], traces, strict=True):
                write_trace(path, trace)
            return NsystuiApp(replace(files(*traces), conversion_directory=tmp_path / "exports"), DARK)
        case "left out":
            (tmp_path / "rank9.sqlite").write_bytes(demo_job[1].read_bytes()[:50_000])
            for exports in (demo_job[:1] + demo_job[2:], demo_job[1:2]):
                assert main(["pack", *map(str, exports), "-o", str(tmp_path / "job")]) == 0
            facts = report_in(tmp_path / "job", 1).with_name("reports.jsonl")
            facts.write_bytes(facts.read_bytes()[:-9])
            return NsystuiApp(files(tmp_path / "job", tmp_path / "rank9.sqlite"), DARK)
        case "comparison":
            return DiffApp([files(*demo_job[:2]), files(*demo_job[2:])], halves, ComparisonOptions(), DARK)
        case "NCCL log":
            return NsystuiApp(JobSource((), logs=(str(log_of(tmp_path)),)), DARK)
    return NsystuiApp(files(*demo_job), DARK)


IN_CAMPAIGN = (
    "light", "many ranks", "many steps", "graphs", "nodes", "traces", "left out", "without colours", "more recipes",
    "charts", "dead ends", "prompts", "recipes",
)  # fmt: skip
MARKS = {name: [pytest.mark.campaign] for name in IN_CAMPAIGN}
MARKS |= {name: [pytest.mark.findings] for name in ("overview", "empty")}
NAMES = sorted(path.stem for path in TOURS.glob("*.txt"))


@pytest.mark.parametrize(
    "program", [pytest.param(name, id=name, marks=MARKS.get(name, [])) for name in NAMES], indirect=True
)
async def test_a_tour_shows_what_was_accepted(program, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = TOURS / f"{request.node.callspec.id}.txt"
    tour = [line[4:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(">>>")]
    seen = await walked(program, tour)
    if request.config.getoption("update_snapshots"):
        path.write_text(seen, encoding="utf-8")
    accepted = path.read_text(encoding="utf-8").splitlines()
    different = list(difflib.unified_diff(accepted, seen.splitlines(), "accepted", "seen", n=1, lineterm=""))
    if different:
        pytest.fail(
            "\n".join([*different[:60], "", "Look at the screens, and accept them with --snapshot-update."]), False
        )
