"""The NVTX reports of ``nsys stats`` against every pair of range and kernel, and peculiarities of nsys."""

import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import campaign
import pytest
from filling import program
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import asked_of_stats, csv_of_stats
from support import records as rows_of
from synthetic import ExportWriter
from synthetic.writing.writer import BACKTRACE_CALL, PUSH_POP, RUNTIME_CALL, START_END

from nsystui.base.errors import ExportError
from nsystui.base.resources import Limits
from nsystui.base.selection import Selection, Window
from nsystui.store.session import Session

EVERYTHING = Selection()
PID = 4711
STYLES = {PUSH_POP: "PushPop", START_END: "StartEnd"}


class Export:
    """An export with a process of three threads, and short methods to fill it."""

    def __init__(self, writer: ExportWriter) -> None:
        self.writer, self.process, self.correlation = writer, writer.process(PID), 0
        self.threads = [writer.thread(self.process, PID + number, f"thread {number}") for number in range(3)]

    def range(self, start: int, end: int | None, text: str, thread: int = 0, **rest: Any) -> None:
        self.writer.nvtx_range(self.threads[thread], start, end, text, **rest)

    def call(self, start: int, end: int, correlation: int, thread: int = 0, **rest: Any) -> None:
        self.writer.api(self.threads[thread], start, end, "cudaLaunchKernel_v7000", correlation, **rest)

    def kernel(self, start: int, end: int, correlation: int, name: str = "saxpy(float *)", device: int = 0) -> None:
        self.writer.kernel(self.process, device, 7, start, end, name=name, correlation_id=correlation)

    def launch(self, call: int, work: tuple[int, int], thread: int = 0, **rest: Any) -> None:
        """Write a call of 5 ns and its kernel."""
        self.correlation += 1
        self.call(call, call + 5, self.correlation, thread)
        self.kernel(*work, self.correlation, **rest)


def records(session: Session, report: str, selection: Selection = EVERYTHING) -> list[dict[str, Any]]:
    return rows_of(asked_of_stats(session, report, selection))


def cells(session: Session, report: str, *keys: str, selection: Selection = EVERYTHING) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in records(session, report, selection)]


@dataclass(frozen=True)
class Drawn:
    """A random export: ranges (start, end, thread, style, name), calls (start, end, thread, id), kernels."""

    ranges: list[tuple[int, int, int, int, str]]
    calls: list[tuple[int, int, int, int]]
    kernels: list[tuple[int, int, int, str]]  # start, end, id, name

    def fill(self, export: Export) -> None:
        for start, end, thread, style, name in self.ranges:
            export.range(start, end, name, thread, style=style)
        for number, (start, end, thread, correlation) in enumerate(self.calls):
            # It does not matter which call of an id is the second row of --cudabacktrace.
            export.call(
                start, end, correlation, thread, event_class=BACKTRACE_CALL if number % 3 == 2 else RUNTIME_CALL
            )
        for start, end, correlation, name in self.kernels:
            export.kernel(start, end, correlation, name)

    def launched(self) -> Iterator[tuple[int, int, int]]:
        """Yield (range, call, kernel) for each kernel of each call inside each range."""
        for at, (start, end, thread, _, _) in enumerate(self.ranges):
            for number, (call_start, call_end, call_thread, correlation) in enumerate(self.calls):
                if thread == call_thread and start <= call_start and call_end <= end:
                    for kernel, (_, _, of_call, _) in enumerate(self.kernels):
                        if of_call == correlation:
                            yield at, number, kernel


def spans(longest: int) -> st.SearchStrategy[tuple[int, int]]:
    # A start and an end of 0 mean no time: CUPTI could not collect it.
    return st.tuples(st.integers(1, 41), st.integers(0, longest)).map(lambda drawn: (drawn[0], sum(drawn)))


@st.composite
def drawn_exports(draw: st.DrawFn) -> Drawn:
    thread = st.integers(0, 1)
    one_range = st.tuples(spans(40), thread, st.sampled_from(list(STYLES)), st.sampled_from("abc"))
    one_call = st.tuples(spans(12), thread, st.integers(1, 5))
    one_kernel = st.tuples(spans(9), st.integers(1, 6), st.sampled_from(["k(int)", "l(int)"]))
    return Drawn(
        [(*span, *rest) for span, *rest in draw(st.lists(one_range, min_size=1, max_size=18))],
        [(*span, *rest) for span, *rest in draw(st.lists(one_call, min_size=1, max_size=15))],
        [(*span, *rest) for span, *rest in draw(st.lists(one_kernel, min_size=1, max_size=12))],
    )


CROSSING = Drawn(
    [(0, 20, 0, START_END, "a"), (10, 30, 0, START_END, "b"), (12, 18, 0, PUSH_POP, "c"), (0, 40, 1, PUSH_POP, "a")],
    # Two calls of id 1 are nested, two of id 2 overlap: both pairs are one operation of the ranges around them.
    [(12, 16, 0, 1), (13, 15, 0, 1), (14, 17, 0, 2), (15, 18, 0, 2), (19, 21, 0, 3)],
    [(50, 60, 1, "k(int)"), (61, 65, 2, "k(int)"), (65, 68, 2, "l(int)"), (70, 80, 3, "k(int)")],
)


def expected_kernels(drawn: Drawn) -> list[tuple[Any, ...]]:
    expected: dict[tuple[str | None, str | None, int | None, str], list[tuple[int | None, int, int]]]
    expected = defaultdict(list)
    inside = set()
    for at, call, kernel in drawn.launched():
        _, _, thread, style, name = drawn.ranges[at]
        start, end, _, kernel_name = drawn.kernels[kernel]
        expected[name, STYLES[style], PID + thread, kernel_name].append((at, kernel, end - start))
        inside.add(call)
    for kernel, (start, end, correlation, kernel_name) in enumerate(drawn.kernels):
        calls = [number for number, call in enumerate(drawn.calls) if call[3] == correlation]
        tids = [PID + drawn.calls[number][2] for number in calls if number not in inside]
        for tid in tids if calls else [None]:
            expected[None, None, tid, kernel_name].append((None, kernel, end - start))
    rows = []
    for (name, style, tid, kernel_name), pairs in expected.items():
        times = [time for _, _, time in pairs]
        counts = len({at for at, _, _ in pairs} - {None}), len({kernel for _, kernel, _ in pairs})
        average, deviation = statistics.fmean(times), statistics.stdev(times) if len(times) > 1 else 0.0
        measures = (pytest.approx(average), pytest.approx(statistics.median(times)), min(times), max(times))
        place = (name, style, None if tid is None else PID, tid)
        rows.append((*place, *counts, sum(times), *measures, pytest.approx(deviation), kernel_name))
    # Missing values are first.
    return sorted(rows, key=lambda row: (*((value is not None, value or "") for value in row[:4]), -row[6], row[12]))


@pytest.mark.campaign
@settings(max_examples=50, deadline=None)
@given(drawn_exports())
@example(CROSSING)
def test_a_kernel_counts_for_every_range_around_its_call_and_the_projection_spans_them(drawn):
    check_export(drawn)


def check_export(drawn: Drawn) -> None:
    with TemporaryDirectory() as place, closing(Session()) as session:
        with ExportWriter(Path(place) / "rank0.sqlite") as writer:
            drawn.fill(Export(writer))
        session.add(Path(place) / "rank0.sqlite")
        expected = expected_kernels(drawn)
        for at_once in (4_000_000, 1):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Limits, "rows_at_once", lambda limits, size, at_once=at_once: at_once)
                answer = asked_of_stats(session, "nvtx_kern_sum")
                assert list(answer.page(0, len(answer))) == expected, at_once
        check_projection(drawn, records(session, "nvtx_gpu_proj_trace"), records(session, "nvtx_gpu_proj_sum"))


def check_projection(drawn: Drawn, rows: list[dict[str, Any]], summary: list[dict[str, Any]]) -> None:
    work: dict[int, set[int]] = defaultdict(set)
    for at, _, kernel in drawn.launched():
        work[at].add(kernel)
    expected = []
    for at, kernels in work.items():
        start, end, thread, style, name = drawn.ranges[at]
        first = min(drawn.kernels[kernel][0] for kernel in kernels)
        last = max(drawn.kernels[kernel][1] for kernel in kernels)
        ids = len({drawn.kernels[kernel][2] for kernel in kernels})
        expected.append((start, end - start, name, STYLES[style], PID + thread, first, last - first, ids))
    inside = {call for _, call, _ in drawn.launched()}
    outside = [call for number, call in enumerate(drawn.calls) if number not in inside]
    unlaunched = [kernel for kernel in drawn.kernels if kernel[2] in {call[3] for call in outside}]

    keys = ("start", "duration", "name", "style", "tid", "gpu_start", "gpu_duration", "op_count")
    ranges = [row for row in rows if row["row"] is not None]
    assert sorted(tuple(row[key] for key in keys) for row in ranges) == sorted(expected)
    assert [row["start"] for row in ranges] == sorted(row["start"] for row in ranges)

    by_id = {row["row"]: row for row in ranges}
    for row in ranges:
        around = by_id.get(row["parent_row"])
        assert row["level"] == (around["level"] + 1 if around else 0)
        assert row["stack"] == (around["stack"] if around else "") + f":{row['row']}"
        assert row["child_count"] == sum(other["parent_row"] == row["row"] for other in ranges)

    nameless = [(row["gpu_start"], row["gpu_duration"], row["op_count"]) for row in rows if row["row"] is None]
    if unlaunched:
        first, last = min(kernel[0] for kernel in unlaunched), max(kernel[1] for kernel in unlaunched)
        assert nameless == [(first, last - first, len({kernel[2] for kernel in unlaunched}))]
        assert rows[0]["row"] is None
    else:
        assert nameless == []

    groups = defaultdict(list)
    for row in ranges:
        groups[row["name"], row["style"]].append(row)
    assert {(row["name"], row["style"]) for row in summary} == set(groups)
    for row in summary:
        group = groups[row["name"], row["style"]]
        lengths = [held["gpu_duration"] for held in group]
        measures = (len(group), sum(lengths), min(lengths), max(lengths), statistics.median(lengths))
        assert tuple(row[key] for key in ("count", "total", "min", "max", "median")) == measures
        assert row["range_total"] == sum(held["duration"] for held in group)
        assert row["op_count"] == sum(held["op_count"] for held in group)
        assert row["stddev"] == pytest.approx(statistics.stdev(lengths) if len(lengths) > 1 else 0.0)
        for key in ("op_count", "level", "child_count"):
            assert row[f"avg_{key}"] == pytest.approx(statistics.fmean(held[key] for held in group))
    assert [(-row["total"], row["name"]) for row in summary] == sorted((-row["total"], row["name"]) for row in summary)


RANGES = ((0, 100, "step"), (10, 50, "forward"))
step_with_kernel, step_with_longer_kernel = (program(*RANGES, launches=[(20, (30, end))]) for end in (40, 60))
range_alone, kernel_alone = program(RANGES[0]), program(launches=[(20, (30, 40))])


def test_what_one_report_launched_is_not_in_the_ranges_of_another(session_of):
    """Processes, threads, correlation ids and times are the same in both."""
    session = session_of(range_alone, kernel_alone)
    assert (records(session, "nvtx_gpu_proj_sum"), records(session, "nvtx_gpu_proj_trace")) == ([], [])
    assert records(session, "nvtx_kern_sum") == []


@pytest.mark.campaign
def test_every_report_has_its_own_row_of_what_no_range_launched(session_of):
    def fill(export: Export) -> None:
        export.range(0, 10, "step")
        export.launch(20, (30, 40))
        export.launch(21, (35, 60), thread=1)

    session = session_of(fill, fill)
    keys = ("name", "gpu_start", "gpu_duration", "start", "pid", "tid", "op_count", "level", "child_count", "stack")
    nameless = (None, PID, PID + 1, 2, None, 0, None)
    assert cells(session, "nvtx_gpu_proj_trace", *keys) == [(None, 30, 30, *nameless), (None, 1_000_030, 30, *nameless)]
    assert records(session, "nvtx_gpu_proj_sum") == []
    keys = ("range", "style", "pid", "tid", "range_count", "kernel_count", "total")
    rows = [(None, None, PID, tid, 0, 1, total) for tid, total in ((PID, 10), (PID + 1, 25))]
    assert cells(session, "nvtx_kern_sum", *keys) == [rows[0], rows[0], rows[1], rows[1]]


def test_kernels_by_range_are_all_kernels_where_the_nvtx_table_has_no_ranges(session_of):
    def fill(export: Export) -> None:
        export.writer.nvtx_mark(export.threads[0], 5, "begins")
        export.launch(20, (30, 40))
        export.kernel(50, 75, 99)  # its call is not in the export

    assert csv_of_stats(session_of(fill), "nvtx_kern_sum").splitlines()[1:] == [
        ",,,,0,1,25,25.0,25.0,25,25,0.0,saxpy(float *)",
        f",,{PID},{PID},0,1,10,10.0,10.0,10,10,0.0,saxpy(float *)",
    ]


@pytest.mark.campaign
def test_the_window_narrows_each_table_by_itself(session_of):
    """Step and forward overlap the window, the first call and its kernel do not, the second kernel is too late."""
    launches = [(20, (30, 45)), (60, (70, 75)), (70, (200, 210))]
    session = session_of(program(RANGES[0], (1, 40, "early"), (50, 90, "forward"), launches=launches))
    for report, keys, expected in (
        (
            "nvtx_gpu_proj_trace",
            ("name", "op_count", "gpu_start", "gpu_duration", "level", "child_count"),
            [("step", 1, 70, 5, 0, 1), ("forward", 1, 70, 5, 1, 0)],
        ),
        ("nvtx_kern_sum", ("range", "total"), [("forward", 5), ("step", 5)]),
        ("nvtx_pushpop_trace", ("name", "child_count", "self_time"), [("step", 1, 60), ("forward", 0, 40)]),
    ):
        assert cells(session, report, *keys, selection=Selection(window=Window(48, 95))) == expected, report


@pytest.mark.campaign
def test_a_call_counts_only_if_it_and_its_range_are_in_the_window(session_of):
    def twice(export: Export) -> None:
        program((0, 20, "step"), launches=[(10, (60, 70))])(export)
        export.call(30, 90, 1)  # a second row of the call, which is in the window

    session, window = session_of(program(RANGES[0], launches=[(10, (60, 70))])), Selection(window=Window(50, 80))
    assert cells(session, "nvtx_kern_sum", "range", "tid", "total", selection=window) == [(None, None, 10)]
    assert cells(session, "nvtx_gpu_proj_sum", "name", selection=window) == []
    assert cells(session, "nvtx_gpu_proj_sum", "name", selection=Selection(window=Window(12, 80))) == [("step",)]
    session = session_of(twice)
    assert cells(session, "nvtx_gpu_proj_trace", "name", "op_count", selection=window) == [(None, 1)]
    assert cells(session, "nvtx_kern_sum", "range", "kernel_count", selection=window) == [(None, 1)]


@pytest.mark.campaign
def test_a_range_that_ended_on_another_thread_contains_nothing(session_of):
    def fill(export: Export) -> None:
        export.range(0, 100, "request", style=START_END, end_thread=export.threads[1])
        export.range(5, 95, "same thread", style=START_END, end_thread=export.threads[0])
        program(RANGES[1], launches=[(20, (30, 40))])(export)

    session = session_of(fill)
    found = cells(session, "nvtx_gpu_proj_trace", "name", "level", "style")
    assert found == [("same thread", 0, "StartEnd"), ("forward", 1, "PushPop")]
    assert cells(session, "nvtx_kern_sum", "range") == [("forward",), ("same thread",)]
    shares = [("request", 100, pytest.approx(100 / 1.9)), ("same thread", 90, pytest.approx(90 / 1.9))]
    assert cells(session, "nvtx_startend_sum", "name", "total", "share") == shares
    assert cells(session, "nvtx_pushpop_trace", "name", "level") == [("forward", 0)]


@pytest.mark.parametrize(
    "name", campaign.first(2, ["nvtx_gpu_proj_sum", "nvtx_pushpop_sum", "nvtx_kern_sum", "nvtx_sum"])
)
def test_more_names_than_the_limit_of_memory_holds_are_refused_by_name_of_the_export(session_of, monkeypatch, name):
    session = session_of(program((0, 9, "one"), (10, 19, "two"), launches=[(1, (2, 3)), (11, (12, 13))]))
    monkeypatch.setattr(session, "limits", Limits(memory=(150 << 20) + 900))
    with pytest.raises(ExportError, match=r"rank0\.sqlite: more than 1 names of NVTX ranges do not fit into .* 151MiB"):
        asked_of_stats(session, name)
    monkeypatch.setattr(session, "limits", Limits(memory=(150 << 20) + 1800))
    assert len(asked_of_stats(session, name)) == 2
