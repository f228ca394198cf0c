"""The screens in a terminal: memory, and what each key costs in bytes on the line and in CPU time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median as middle

from measuring import LOADED, CacheDirectory, Program, export_of
from table import Row, Setting, Table, Target, judged, short

SCREENS = {"1": "Overview", "2": "Kernels", "3": "NCCL", "4": "GPU", "5": "NVTX", "6": "Events", "L": "Timeline"}
_GPU, _TIMELINE = "4", "L"
# Keys that go to where there is more than one row in the export of one rank, and those that leave it again.
_INTO = {"1": ("tab",), "3": ("enter",), "5": ("home", "right")}
_OUT = {"3": ("escape",)}
_PEAK = {10**6: Target("< 250 MB", 250e6), 10**7: Target("< 400 MB", 400e6)}
# Where the peak after the Kernels screen stands in a row.
_FIRST_SCREENS = 2
_KEY_BYTES, _KEY_CPU = Target("<= 600 B", 600), Target("CPU < 20 ms", 20.0)
_PAGE, _SWITCH, _IDLE = Target("<= 8 KiB", 8 * 1024), Target("<= 15 KiB", 15 * 1024), Target("0 B", 0)
_KEYS, _PAGES, _SWITCHES = 10, 3, 3
_IDLE_SECONDS = 3.0
# Seconds without a byte after which a key counts as answered; what follows when the cursor rests comes later.
_ANSWERED, _RESTED, _THOUGHT = 0.12, 0.8, 2.0


def application(setting: Setting) -> Iterator[Table]:
    """Memory, then keys."""
    headings = ("kernels", "cache", "window", "loaded", *list(SCREENS.values())[1:], "target", "reached")
    text = (
        "The most that was resident so far, in MB: once the window is painted, once exact numbers are on the Overview "
        "(all is\nopened then), and after each of the other screens, visited one after the other. The target is that "
        "of the first screens,\nOverview and Kernels, with the findings that the Overview looks for by itself. The "
        "libraries alone take 125 MB (DuckDB 40,\npandas 34, Textual 24, SQLAlchemy 14, numpy 8), and 35 MB more where "
        "pyarrow is installed, which pandas then loads:\nnsystui does not need it. These exports have half as many "
        "NVTX ranges as kernels."
    )
    yield Table("Memory of the program, MB", headings, _peaks(setting), text)
    text = "Each visited alone, from the Overview of a packed export: the first time ever, and in the next program."
    headings = ("kernels", "screen", "visit", "s until it is filled", "peak MB", "target", "reached")
    yield Table("Single screens", headings, _alone(setting), text)
    text = (
        "In a terminal of 120x36 over SSH, cache full, every screen visited before. Medians of "
        f"{_KEYS} keys, {_PAGES} pages and\n{_SWITCHES} switches: on the Overview among its kernels, on NCCL among the "
        "calls of a row, on NVTX in an opened range. What is\ndrawn later, when the cursor rests, is not counted. "
        f"CPU while idle is that of {_IDLE_SECONDS:g} s. Where a key has nowhere to go, no\ntarget is judged."
    )
    headings = ("screen", "action", "bytes", "CPU ms", "target", "reached")
    yield Table(f"Keys, {short(setting.biggest)} kernels", headings, _keys(setting), text)


def _peaks(setting: Setting) -> Iterator[Row]:
    for kernels in setting.sizes:
        path = export_of(setting.directory, kernels)
        with CacheDirectory() as cache:
            for name in ("empty", "full"):
                runs = []
                for _ in range(setting.runs(kernels)):
                    if name == "empty":
                        cache.clear()
                    runs.append(_peaks_of(path, cache))
                peaks = [middle(values) for values in zip(*runs, strict=True)]
                goals = [(_PEAK[kernels], peaks[_FIRST_SCREENS])] if kernels in _PEAK else []
                yield short(kernels), name, *(f"{peak / 1e6:.0f}" for peak in peaks), *judged(*goals)


def _peaks_of(path: Path, cache: CacheDirectory) -> list[int]:
    """The most that was resident until the window was painted, everything was loaded, and after each screen."""
    with Program(path, cache) as program:
        program.seen("nsystui")
        peaks = [program.peak]
        program.seen(LOADED)
        _rest(program)
        peaks.append(program.peak)
        for key, title in list(SCREENS.items())[1:]:
            _visit(program, key, title)
            peaks.append(program.peak)
        return peaks


def _alone(setting: Setting) -> Iterator[Row]:
    path, kernels = export_of(setting.directory, setting.biggest), setting.biggest
    with CacheDirectory() as cache:
        for key, most_bytes in _ALONE_PEAK.items():
            cache.clear()
            cache.pack(path)
            for visit, most_seconds in _ALONE_TIME.items():
                with Program(path, cache) as program:
                    program.seen(LOADED)
                    _rest(program)
                    began = time.perf_counter()
                    _visit(program, key, SCREENS[key], _ANSWERED)
                    seconds, peak = time.perf_counter() - began - _ANSWERED, program.peak
                goals = judged((most_seconds, seconds), (most_bytes, peak)) if kernels == 10**7 else ("", "")
                yield short(kernels), SCREENS[key], visit, f"{seconds:.2f}", f"{peak / 1e6:.0f}", *goals


# By key of a screen: the memory that is allowed, on the first visit ever and in the next program.
_ALONE_PEAK = {"3": Target("<= 350 MB", 350e6), "4": Target("<= 350 MB", 350e6), "5": Target("<= 500 MB", 500e6)}
_ALONE_TIME = {"first": Target("<= 8 s", 8.0), "next": Target("<= 1 s", 1.0)}


def _visit(program: Program, key: str, title: str, thought: float = _THOUGHT) -> None:
    """Goes to a screen and stays until it is filled."""
    program.press(key)
    program.seen(f"{key} {title}")
    _rest(program, thought)


def _rest(program: Program, thought: float = _THOUGHT) -> None:
    """Waits until the program neither sends nor computes for so many seconds."""
    before = -1.0
    while program.cpu - before > 0.05:
        before = program.cpu
        program.listen(thought)


@dataclass(frozen=True)
class Cost:
    """Bytes that a key made the program send, and milliseconds of CPU."""

    sent: float
    cpu: float


def _keys(setting: Setting) -> Iterator[Row]:
    path = export_of(setting.directory, setting.biggest)
    with CacheDirectory() as cache:
        cache.pack(path)
        with Program(path, cache) as program:
            program.seen(LOADED)
            for key, title in SCREENS.items():
                _visit(program, key, title)
            for key, title in SCREENS.items():
                for action, cost, goals in _actions(program, key):
                    yield title, action, f"{cost.sent:,.0f}", f"{cost.cpu:.1f}", *judged(*goals)


def _actions(program: Program, key: str) -> Iterator[tuple[str, Cost, list[tuple[Target, float]]]]:
    away = "2" if key != "2" else "1"
    switches = []
    for _ in range(_SWITCHES):
        program.press(away)
        program.settle(_RESTED)
        switches.append(_cost(program, key, _RESTED))
    switch = _median(switches)
    yield "switch to it", switch, [(_SWITCH, switch.sent)]
    _go(program, *_INTO.get(key, ()), "home")
    step = _steps(program, "right" if key in (_GPU, _TIMELINE) else "down", _KEYS)
    yield "cursor", step, [(_KEY_BYTES, step.sent), (_KEY_CPU, step.cpu)] if step.sent else []
    program.settle(_RESTED)
    if key != _GPU:
        page = _steps(program, "pagedown", _PAGES)
        yield "page", page, [(_PAGE, page.sent)] if page.sent else []
        program.settle(_RESTED)
    if key == _TIMELINE:
        for action, pressed in (("zoom in", "+"), ("pan", ">"), ("next event", "n")):
            found = _steps(program, pressed, _KEYS)
            yield action, found, [(_PAGE, found.sent)] if found.sent else []
            program.settle(_RESTED)
    before = program.cpu
    sent = program.listen(_IDLE_SECONDS)
    yield f"idle {_IDLE_SECONDS:g} s", Cost(sent, (program.cpu - before) * 1000), [(_IDLE, sent)]
    _go(program, *_OUT.get(key, ()))


def _go(program: Program, *keys: str) -> None:
    """Presses keys one after the other, each when the one before is answered."""
    for key in keys:
        _cost(program, key, _RESTED)


def _steps(program: Program, key: str, count: int) -> Cost:
    return _median([_cost(program, key, _ANSWERED) for _ in range(count)])


def _cost(program: Program, key: str, quiet: float) -> Cost:
    program.mark()
    before = program.cpu
    program.press(key)
    program.answer(quiet, timeout=_THOUGHT)
    return Cost(program.bytes_since_mark, (program.cpu - before) * 1000)


def _median(costs: list[Cost]) -> Cost:
    return Cost(middle(cost.sent for cost in costs), middle(cost.cpu for cost in costs))
