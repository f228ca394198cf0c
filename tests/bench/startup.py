"""How soon the program answers: ``--version``, ``--help``, commands on a small export, the first window and numbers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median as middle

from inputs import export_of, short
from measure import CacheDirectory, measure, median, nsystui, pack
from program import LOADED, SAMPLE, Program
from table import Row, Setting, Table, Target, judged, ratio

HEAVY = ("textual", "pandas", "sqlalchemy", "duckdb")
COUNTED = ("nsystui", "sqlalchemy", "duckdb", "numpy", "pandas", "textual", "rich")
_SMALL = 2_000
"""Kernels of an export of 0.4 MB."""
# Short runs vary most.
_RUNS_FOR_ONE = 5
_TIMES_PYTHON = Target("wall < 3 x", 3.0)
_NO_IMPORTS = Target("none imported", 0)
_PAINTED = Target("CPU <= 0.30 s", 0.30)
_COMMANDS_ON_FILES: tuple[tuple[str, float | None], ...] = (
    ("overview", 0.5),
    ("triage", 0.9),
    ("nccl", 0.5),
    ("kernels --by rank", 0.5),
    ("gpu", None),
    ("ranks", None),
    ("api", None),
    ("steps", None),
    ("nvtx", None),
    ("timeline", None),
    ("stats -r cuda_api_sum", None),
    ("info", None),
)
"""Commands, and the CPU seconds that they should take at most."""
_SCRIPT = "import pandas, sqlalchemy"
_SAMPLED = Target("sample < 0.5 s after it", 0.5)


def tables(setting: Setting) -> Iterator[Table]:
    """The commands that need no export, then the window."""
    yield Table(
        "Startup",
        ("command", "wall s", "CPU s", "wall / python", f"imports of {', '.join(HEAVY)}", "target", "reached"),
        _commands(setting),
    )
    yield Table(
        "Commands on a small export",
        ("command", "CPU s", "CPU / script", "peak MB", f"modules of {', '.join(COUNTED)}", "target", "reached"),
        _on_small(setting),
        "An export of 0.4 MB whose columns are in the cache, as after it was open on the screens, and a question that\n"
        f"nobody asked yet. The script is `python -c '{_SCRIPT}'`: what the first line of a user's own takes.\n"
        "The row of the window has what is imported before it is painted; its time is in the next table.",
    )
    yield Table(
        "Window",
        ("kernels", "cache", "window s", "its CPU s", "sample, s after it", "exact, s after it", "target", "reached"),
        _windows(setting),
        "The program in a pseudo terminal of 120x36, from its start to words on the screen; then, how much later the "
        "kernel table\nof a sample and the exact one are there.",
    )
    yield Table(
        "Where the window's time goes",
        ("phase", "CPU s", "of it"),
        _phases(setting),
        "Processes that end after a phase, one after the other; the window is that of the smallest export, cache full.",
    )


_PHASES = (
    ("Python", "pass"),
    ("import of Textual and Rich", "import textual.app, textual.screen, textual.widgets"),
    ("import of the screens, the first one", "import textual.widgets, nsystui.ui.app, nsystui.ui.screens.overview"),
)


def _phases(setting: Setting) -> Iterator[Row]:
    count = setting.repeats * _RUNS_FOR_ONE
    path = export_of(setting.directory, min(setting.sizes))
    with CacheDirectory() as cache:
        pack(path, cache)
        ends = [
            (phase, median(measure([sys.executable, "-c", code], cache.environ) for _ in range(count)).cpu)
            for phase, code in _PHASES
        ]
        ends.append(("style sheets, layout, first paint, opening", middle(_painted(path, cache) for _ in range(count))))
    whole = ends[-1][1]
    for (phase, end), before in zip(ends, (0.0, *(end for _, end in ends)), strict=False):
        yield phase, f"{end - before:.3f}", f"{(end - before) / whole:.0%}"
    yield "together", f"{whole:.3f}", ""


def _painted(path: Path, cache: CacheDirectory) -> float:
    """CPU seconds until the window is painted."""
    with Program(path, cache) as program:
        return program.seen("Overview").cpu


def _commands(setting: Setting) -> Iterator[Row]:
    count = setting.repeats * _RUNS_FOR_ONE
    with CacheDirectory() as cache:
        bare = [sys.executable, "-c", "pass"]
        python = median(measure(bare, cache.environ) for _ in range(count))
        yield "python -c pass", f"{python.wall:.3f}", f"{python.cpu:.3f}", "", "", "", ""
        for flag in ("--version", "--help"):
            run = median(measure(nsystui(flag), cache.environ) for _ in range(count))
            found = _imported(flag, cache)
            times = run.wall / python.wall
            verdict = judged((_TIMES_PYTHON, times), (_NO_IMPORTS, len(found)))
            cells = (f"{run.wall:.3f}", f"{run.cpu:.3f}", ratio(run.wall, python.wall), ", ".join(found) or "none")
            yield f"nsystui {flag}", *cells, *verdict


def _imported(flag: str, cache: CacheDirectory) -> list[str]:
    """Which of the heavy packages a command imports."""
    modules = _modules(cache, "-m", "nsystui", flag)
    return [name for name in HEAVY if name in modules]


def _modules(cache: CacheDirectory, *words: str) -> Counter[str]:
    """How many modules of each package Python imports in a run of its own."""
    command = [sys.executable, "-X", "importtime", *words]
    told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=cache.environ).stderr
    names = (line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:"))
    return Counter(name.partition(".")[0] for name in names)


def _on_small(setting: Setting) -> Iterator[Row]:
    path = export_of(setting.directory, _SMALL)
    with CacheDirectory() as packed, CacheDirectory() as cache:
        script = median(measure([sys.executable, "-c", _SCRIPT], cache.environ) for _ in range(setting.repeats))
        pack(path, packed)

        def renew() -> None:
            shutil.rmtree(cache.path)
            shutil.copytree(packed.path, cache.path)

        for command, most in _COMMANDS_ON_FILES:
            words, runs = [*command.split(), str(path)], []
            for _ in range(setting.repeats):
                renew()
                runs.append(measure(nsystui(*words), cache.environ))
            renew()
            run, modules = median(runs), _counts(_modules(cache, "-m", "nsystui", *words))
            verdict = ("", "") if most is None else judged((Target(f"CPU <= {most} s", most), run.cpu))
            cells = (f"{run.cpu:.2f}", ratio(run.cpu, script.cpu), f"{run.peak / 1e6:.0f}", modules)
            yield f"nsystui {command}", *cells, *verdict
        yield "the window", "", "", "", _counts(_modules(cache, "-c", _PHASES[-1][1])), "", ""


def _counts(modules: Counter[str]) -> str:
    return " · ".join(f"{name} {modules[name]}" for name in COUNTED if modules[name]) or "none"


@dataclass(frozen=True)
class Start:
    """Seconds: until the window is painted, CPU until then, from then to the sample (if any) and to exact numbers."""

    window: float
    cpu: float
    sample: float | None
    exact: float


def _windows(setting: Setting) -> Iterator[Row]:
    for kernels in setting.sizes:
        path = export_of(setting.directory, kernels)
        with CacheDirectory() as cache:
            starts = []
            for _ in range(setting.runs(kernels)):
                cache.clear()
                starts.append(_start(path, cache))
            yield short(kernels), "empty", *_cells(starts)
            pack(path, cache)  # nothing to do where the program came to its end with it
            yield short(kernels), "full", *_cells([_start(path, cache) for _ in range(setting.runs(kernels))])


def _start(path: Path, cache: CacheDirectory) -> Start:
    with Program(path, cache) as program:
        window = program.seen("Overview")
        first = program.seen(SAMPLE, LOADED)
        sample = first.wall - window.wall if SAMPLE in program.text else None
        exact = program.seen(LOADED).wall - window.wall
        return Start(window.wall, window.cpu, sample, exact)


def _cells(starts: list[Start]) -> Row:
    window, cpu = (middle(values) for values in zip(*((start.window, start.cpu) for start in starts), strict=True))
    samples = [start.sample for start in starts if start.sample is not None]
    exact = middle(start.exact for start in starts)
    goals = [(_PAINTED, cpu)]
    if samples:
        goals.append((_SAMPLED, middle(samples)))
    sample = f"{middle(samples):.2f}" if samples else "–"
    return f"{window:.2f}", f"{cpu:.2f}", sample, f"{exact:.2f}", *judged(*goals)
