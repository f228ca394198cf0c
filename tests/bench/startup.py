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

from measuring import LOADED, SAMPLE, CacheDirectory, Program, export_of, measure, median, nsystui
from table import Row, Setting, Table, Target, judged, ratio, short

HEAVY = ("textual", "pandas", "sqlalchemy", "duckdb")
COUNTED = ("nsystui", "sqlalchemy", "duckdb", "numpy", "pandas", "textual", "rich")
_SMALL = 2_000
"""Kernels of an export of 0.4 MB."""
# Short runs vary most.
_RUNS_FOR_ONE = 5
_TIMES_PYTHON = Target("wall < 3 x", 3.0)
_NO_IMPORTS = Target("none imported", 0)
_PAINTED = Target("CPU <= 0.30 s", 0.30)
_COMMANDS_ON_FILES = {
    "overview": 0.5, "triage": 0.9, "nccl": 0.5, "kernels --by rank": 0.5, "gpu": None, "ranks": None, "api": None,
    "steps": None, "nvtx": None, "timeline": None, "stats -r cuda_api_sum": None, "info": None,
}  # fmt: skip
"""Commands, and the CPU seconds that they should take at most."""
_SCRIPT = "import pandas, sqlalchemy"
_SAMPLED = Target("sample < 0.5 s after it", 0.5)


def startup(setting: Setting) -> Iterator[Table]:
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
        cache.pack(path)
        ends = [(phase, cache.warm([sys.executable, "-c", code], count).cpu) for phase, code in _PHASES]
        painted = middle(_start(path, cache, to_the_end=False).cpu for _ in range(count))
        ends.append(("style sheets, layout, first paint, opening", painted))
    whole = ends[-1][1]
    for (phase, end), before in zip(ends, (0.0, *(end for _, end in ends)), strict=False):
        yield phase, f"{end - before:.3f}", f"{(end - before) / whole:.0%}"
    yield "together", f"{whole:.3f}", ""


def _commands(setting: Setting) -> Iterator[Row]:
    count = setting.repeats * _RUNS_FOR_ONE
    with CacheDirectory() as cache:
        bare = [sys.executable, "-c", "pass"]
        python = cache.warm(bare, count)
        yield "python -c pass", f"{python.wall:.3f}", f"{python.cpu:.3f}", "", "", "", ""
        for flag in ("--version", "--help"):
            run, modules = cache.warm(nsystui(flag), count), _modules(cache, "-m", "nsystui", flag)
            found = [name for name in HEAVY if name in modules]
            times = run.wall / python.wall
            verdict = judged((_TIMES_PYTHON, times), (_NO_IMPORTS, len(found)))
            cells = (f"{run.wall:.3f}", f"{run.cpu:.3f}", ratio(run.wall, python.wall), ", ".join(found) or "none")
            yield f"nsystui {flag}", *cells, *verdict


def _modules(cache: CacheDirectory, *words: str) -> Counter[str]:
    """How many modules of each package Python imports in a run of its own."""
    command = [sys.executable, "-X", "importtime", *words]
    told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=cache.environ).stderr
    names = (line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:"))
    return Counter(name.partition(".")[0] for name in names)


def _on_small(setting: Setting) -> Iterator[Row]:
    path = export_of(setting.directory, _SMALL)
    with CacheDirectory() as packed, CacheDirectory() as cache:
        script = cache.warm([sys.executable, "-c", _SCRIPT], setting.repeats)
        packed.pack(path)

        def renew() -> None:
            shutil.rmtree(cache.path)
            shutil.copytree(packed.path, cache.path)

        for command, most in _COMMANDS_ON_FILES.items():
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
            cache.pack(path)  # nothing to do where the program came to its end with it
            yield short(kernels), "full", *_cells([_start(path, cache) for _ in range(setting.runs(kernels))])


def _start(path: Path, cache: CacheDirectory, *, to_the_end: bool = True) -> Start:
    with Program(path, cache) as program:
        window = program.seen("Overview")
        if not to_the_end:
            return Start(window.wall, window.cpu, None, 0.0)
        first = program.seen(SAMPLE, LOADED)
        sample = first.wall - window.wall if SAMPLE in program.text else None
        return Start(window.wall, window.cpu, sample, program.seen(LOADED).wall - window.wall)


def _cells(starts: list[Start]) -> Row:
    window, cpu, exact = (middle(getattr(start, name) for start in starts) for name in ("window", "cpu", "exact"))
    samples = [start.sample for start in starts if start.sample is not None]
    sample = middle(samples) if samples else None
    goals = [(_PAINTED, cpu), *([(_SAMPLED, sample)] if sample is not None else [])]
    shown = "–" if sample is None else f"{sample:.2f}"
    return f"{window:.2f}", f"{cpu:.2f}", shown, f"{exact:.2f}", *judged(*goals)
