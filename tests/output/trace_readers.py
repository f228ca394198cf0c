"""Readers of traces for tests, written from the published formats and not from the program's writers.

Chrome's: "Trace Event Format" (Google), and what Perfetto's importer does with it: numbers of processes and tracks are
32 bits wide, and a track's name belongs to its number whatever the process; events are sorted by time, and events at
one time stay in the file's order; slices of a track nest, or are dropped; an arrow binds to the slice that began last
on the track. Paraver's: "Paraver trace generation" (BSC) and its reader, paraver-kernel.
"""

import gzip
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

Track = tuple[int, int]


def _ns(microseconds: Decimal) -> int:
    ns = microseconds * 1000
    assert ns == int(ns), "finer than a nanosecond"
    return int(ns)


@dataclass
class Slice:
    """An ``X`` event; times in ns."""

    start: int
    end: int
    event: dict[str, Any]


@dataclass
class ChromeTrace:
    """A trace as a viewer would show it."""

    slices: dict[Track, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    pairs: list[tuple[int, int, dict[str, Any]]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[tuple[int, str], list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    arrows: list[tuple[Slice, Slice]] = field(default_factory=list)
    processes: dict[int, str] = field(default_factory=dict)
    tracks: dict[Track, str] = field(default_factory=dict)
    other: dict[str, str] = field(default_factory=dict)

    def all_slices(self) -> list[Slice]:
        return [one for track in self.slices.values() for one in track]


def read_chrome(path: Path) -> ChromeTrace:
    """Read a trace; fail if it breaks the format, or if a viewer would drop a part of it."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = json.loads(data, parse_float=Decimal, parse_constant=_refuse)
    trace = ChromeTrace(other=found["otherData"])
    assert found["displayTimeUnit"] == "ns" and found["traceEvents"]
    open_pairs: dict[tuple[int, str, str], dict[str, Any]] = {}
    flows: list[dict[str, Any]] = []
    for event in found["traceEvents"]:
        phase, pid, track = event["ph"], event["pid"], (event["pid"], event.get("tid", 0))
        assert phase == "M" or isinstance(event["ts"], Decimal), "a time is a number with decimals"
        time = _ns(event["ts"]) if "ts" in event else 0
        assert all(type(number) is int and 0 <= number < 2**31 for number in track)
        assert pid > 0 and time >= 0
        if phase == "M":
            if event["name"] == "process_name":
                assert pid not in trace.processes
                trace.processes[pid] = event["args"]["name"]
            elif event["name"] == "thread_name":
                assert track not in trace.tracks
                trace.tracks[track] = event["args"]["name"]
            else:
                assert event["name"] in ("process_sort_index", "thread_sort_index")
                assert isinstance(event["args"]["sort_index"], int)
        elif phase == "X":
            one = Slice(time, time + _ns(event["dur"]), event)
            assert one.end >= one.start and event["name"] is not None and track in trace.tracks
            trace.slices[track].append(one)
            assert isinstance(event["name"], str) and isinstance(event["args"], dict)
        elif phase in "be":
            key = (pid, event["cat"], event["id"])
            assert isinstance(event["id"], str) and event["id"]
            if phase == "b":
                assert key not in open_pairs
                open_pairs[key] = event
            else:
                begin = open_pairs.pop(key)
                assert begin["name"] == event["name"] and _ns(begin["ts"]) <= time
                trace.pairs.append((_ns(begin["ts"]), time, begin))
        elif phase == "i":
            assert event["s"] == "t" and track in trace.tracks
            trace.marks.append(event)
        elif phase == "C":
            trace.counters[pid, event["name"]].append((time, float(event["args"]["value"])))
        elif phase in "sf":
            assert phase == "s" or event["bp"] == "e", "an arrow ends at the next slice"
            assert type(event["id"]) is int and event["id"] > 0 and event["cat"] and event["name"]
            flows.append(event)
        else:
            raise AssertionError(f"phase {phase}")
    assert not open_pairs
    assert {pid for pid, _ in trace.tracks} <= trace.processes.keys()
    assert len({tid for _, tid in trace.tracks}) == len(trace.tracks), "two tracks of one number share a name"
    for slices in trace.slices.values():
        _check_nesting(slices)
    trace.arrows = _bound(found["traceEvents"])
    assert 2 * len(trace.arrows) == len(flows)
    return trace


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def _bound(events: list[dict[str, Any]]) -> list[tuple[Slice, Slice]]:
    """Return the arrows as Perfetto binds them: by (id, category, name), to the slice that began last on the track."""
    last: dict[Track, Slice] = {}
    begun: dict[tuple[int, str, str], Slice] = {}
    arrows = []
    for event in sorted((one for one in events if one["ph"] in "Xsf"), key=lambda one: one["ts"]):
        track, time = (event["pid"], event["tid"]), _ns(event["ts"])
        if event["ph"] == "X":
            last[track] = Slice(time, time + _ns(event["dur"]), event)
            continue
        assert track in last and last[track].start <= time <= last[track].end, "an arrow is bound to no slice"
        key = (event["id"], event["cat"], event["name"])
        if event["ph"] == "s":
            assert key not in begun, "two arrows of one id"
            begun[key] = last[track]
        else:
            arrows.append((begun.pop(key), last[track]))
    assert not begun, "an arrow that goes nowhere"
    return arrows


def _check_nesting(slices: list[Slice]) -> None:
    """Check in a stable order by start, as a viewer sorts, that each slice lies in the open slice or after it."""
    open_slices: list[Slice] = []
    for one in sorted(slices, key=lambda one: one.start):
        while open_slices and open_slices[-1].end <= one.start:
            open_slices.pop()
        assert not open_slices or one.end <= open_slices[-1].end, f"{one} overlaps {open_slices[-1]}"
        open_slices.append(one)


Place = tuple[int, int]


@dataclass
class ParaverTrace:
    """A Paraver trace; places are (task, thread), from 1."""

    duration: int
    node_cpus: list[int]
    threads: list[int]
    nodes: list[int]
    states: list[tuple[Place, int, int, int]] = field(default_factory=list)
    events: list[tuple[Place, int, int, int]] = field(default_factory=list)
    arrows: list[tuple[Place, int, Place, int, int, int]] = field(default_factory=list)
    types: dict[int, str] = field(default_factory=dict)
    values: dict[int, dict[int, str]] = field(default_factory=dict)
    state_names: dict[int, str] = field(default_factory=dict)
    rows: dict[str, list[str]] = field(default_factory=dict)

    def name(self, place: Place) -> str:
        return self.rows["THREAD"][sum(self.threads[: place[0] - 1]) + place[1] - 1]

    def begun(self, kind: int) -> Counter[str]:
        """Return how often each value of a type follows another value, or nothing, as it begins (0 is no value)."""
        return Counter(self.values[kind][value] for _, _, number, value in self.events if number == kind and value)


_HEADER = re.compile(
    r"#Paraver \((\d\d)/(\d\d)/(\d{4}) at (\d\d):(\d\d)\):(\d+)_ns:(\d+)\((\d+(?:,\d+)*)\):(\d+):(\d+)"
    r"\((\d+:\d+(?:,\d+:\d+)*)\)"
)


def read_paraver(path: Path) -> ParaverTrace:
    """Read the three files; fail if they break the format or contradict each other."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    first, *lines = data.decode().splitlines()
    match = _HEADER.fullmatch(first)
    assert match, first
    day, month, year, hour, minute = (int(match[number]) for number in range(1, 6))
    datetime(year, month, day, hour, minute)  # fails if the date is invalid
    cpus = [int(number) for number in match[8].split(",")]
    tasks = [tuple(map(int, task.split(":"))) for task in match[11].split(",")]
    assert (int(match[7]), int(match[9]), int(match[10])) == (len(cpus), 1, len(tasks))
    trace = ParaverTrace(int(match[6]), cpus, [task[0] for task in tasks], [task[1] for task in tasks])
    assert all(trace.threads) and all(1 <= node <= len(cpus) for node in trace.nodes)
    stem = path.name[: path.name.index(".prv")]
    _read_pcf(path.with_name(f"{stem}.pcf"), trace)
    _read_row(path.with_name(f"{stem}.row"), trace)
    _read_records(lines, trace)
    return trace


def _read_pcf(path: Path, trace: ParaverTrace) -> None:
    section, current = "", []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        if re.fullmatch(r"[A-Z_]+", line):
            section = line
            current = [] if line == "EVENT_TYPE" else current
        elif section == "STATES":
            number, label = line.split(None, 1)
            trace.state_names[int(number)] = label
        elif section == "STATES_COLOR":
            assert re.fullmatch(r"\d+\s+\{\d{1,3},\d{1,3},\d{1,3}\}", line)
        elif section == "EVENT_TYPE":
            gradient, number, label = line.split(None, 2)
            assert 0 <= int(gradient) < 100 and 0 < int(number) < 2**32 and label.isprintable()
            assert int(number) not in trace.types
            trace.types[int(number)] = label
            current = [int(number)]
        elif section == "VALUES":
            number, label = line.split(None, 1)
            for one in current:
                assert int(number) not in trace.values.setdefault(one, {})
                trace.values[one][int(number)] = label
        else:
            assert section in ("DEFAULT_OPTIONS", "DEFAULT_SEMANTIC")


def _read_row(path: Path, trace: ParaverTrace) -> None:
    lines = iter(path.read_text(encoding="utf-8").split("\n"))
    for line in lines:
        if line:
            match = re.fullmatch(r"LEVEL (CPU|NODE|TASK|THREAD) SIZE (\d+)", line)
            assert match, line
            assert match[1] not in trace.rows, "a level twice"
            trace.rows[match[1]] = [next(lines) for _ in range(int(match[2]))]
    sizes = {level: len(names) for level, names in trace.rows.items()}
    threads = sum(trace.threads)
    assert all(name.strip() and name.isprintable() for names in trace.rows.values() for name in names)
    assert sizes == {
        "CPU": sum(trace.node_cpus), "NODE": len(trace.node_cpus), "TASK": len(trace.threads), "THREAD": threads,
    }  # fmt: skip


def _read_records(lines: list[str], trace: ParaverTrace) -> None:
    def place(numbers: list[int]) -> Place:
        cpu, application, task, thread = numbers
        assert application == 1 and 1 <= task <= len(trace.threads) and 1 <= thread <= trace.threads[task - 1]
        node = trace.nodes[task - 1]
        assert sum(trace.node_cpus[: node - 1]) < cpu <= sum(trace.node_cpus[:node]), "a CPU of another node"
        return task, thread

    time = 0
    busy: dict[Place, int] = {}
    for line in lines:
        assert re.fullmatch(r"[123](:\d+)+", line), line
        kind, *numbers = map(int, line.split(":"))
        where, begin = place(numbers[:4]), numbers[4]
        assert time <= begin <= trace.duration, "records are not in the order of time"
        time = begin
        if kind == 1:
            end, state = numbers[5:]
            assert begin < end <= trace.duration and state in trace.state_names
            assert busy.get(where, 0) <= begin, "two states at once"
            busy[where] = end
            trace.states.append((where, begin, end, state))
        elif kind == 2:
            pairs = numbers[5:]
            assert pairs and not len(pairs) % 2
            for number, value in zip(pairs[::2], pairs[1::2], strict=True):
                assert number in trace.types
                assert number not in trace.values or value in trace.values[number]
                trace.events.append((where, begin, number, value))
        else:
            physical, there, logical, received, size, tag = numbers[5], numbers[6:10], *numbers[10:14]
            assert physical == begin <= received == logical <= trace.duration, "received before it was sent"
            assert size >= 0
            trace.arrows.append((where, begin, place(there), received, size, tag))
