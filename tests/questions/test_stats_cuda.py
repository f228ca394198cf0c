"""The CUDA reports of ``nsys stats`` for cases without NVIDIA's output: synthetic exports with known answers."""

import csv
import io
from contextlib import closing, contextmanager
from typing import Any

import campaign
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import asked_of_stats, csv_of_stats, session_over
from synthetic import ExportWriter
from synthetic.demo import CaptureSession as Capture
from synthetic.demo import Process, Thread
from synthetic.writing.writer import BACKTRACE_CALL, PAGEABLE

from nsystui.base.selection import Selection, Window
from nsystui.questions.stats import all_reports
from nsystui.questions.stats.cuda_sums import innermost

EVERYTHING = Selection()
CUDA = [report.name for report in all_reports() if report.name.startswith("cuda_")]


def lines(session: Any, text: str, selection: Selection = EVERYTHING) -> list[str]:
    """Return the lines of a report's CSV without the header."""
    return csv_of_stats(session, text, selection).splitlines()[1:]


def records(session: Any, text: str, selection: Selection = EVERYTHING) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_of_stats(session, text, selection), newline="")))


def names(session: Any, text: str, selection: Selection = EVERYTHING) -> list[str]:
    """Return the names in a report's rows, only of kernels if it also has other rows."""
    return [row.get("Kernel Name") or row["Name"] for row in records(session, text, selection)]


@pytest.fixture
def made(tmp_path, opened):
    """Return a function that has a test fill an export with a process and its main thread, and opens it."""

    @contextmanager
    def filling(pid: int = 5_000):
        with ExportWriter(tmp_path / "made.sqlite") as export:
            process = export.process(pid)
            yield export, process, export.thread(process, pid + 1, "main")

    return filling, lambda: opened(tmp_path / "made.sqlite")


def launch(
    export: ExportWriter, process: Process, thread: Thread, start: int, correlation: int, *,
    name: str = "k", delay: int = 50, duration: int = 100,
) -> None:  # fmt: skip
    """Write a call of 10 ns and its kernel, which starts ``delay`` after the start of the call."""
    export.api(thread, start, start + 10, "cudaLaunchKernel_v7000", correlation)
    begin = start + delay
    export.kernel(process, 0, 7, begin, begin + duration, name=name, correlation_id=correlation)


Span = tuple[int, int, int]  # start, end, thread


def spans(most: int, number: int) -> st.SearchStrategy[list[Span]]:
    one = st.tuples(st.integers(0, 20), st.integers(0, most), st.integers(0, 2))
    return st.lists(one.map(lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])), max_size=number)


def columns(drawn: list[Span]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    starts, ends, threads = zip(*drawn, strict=True) if drawn else ((), (), ())
    return tuple(np.array(column, np.int64) for column in (starts, ends, threads))


@pytest.mark.campaign
@given(spans(25, 25), spans(3, 12), st.integers(-(1 << 60), 1 << 60), st.sampled_from([1, 1 << 24, 1 << 56]))
def test_the_innermost_range_encloses_the_call_and_starts_last(ranges, calls, origin, apart):
    def moved(drawn: list[Span]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        starts, ends, threads = columns(drawn)
        return starts + origin, ends + origin, threads * apart

    for (start, end, thread), index in zip(calls, innermost(moved(ranges), moved(calls)).tolist(), strict=True):
        around = [
            (one[0], -one[1], number)
            for number, one in enumerate(ranges)
            if one[2] == thread and one[0] <= start and one[1] >= end
        ]
        assert index == (max(around)[2] if around else -1)


@pytest.mark.parametrize("length", campaign.first(1, [30_000_000, 3]))
def test_the_innermost_ranges_of_many_calls_take_no_quadratic_time(length):
    # No short range contains a call, only the first range, which is around everything: the longest search.
    # There would be 10^11 pairs of ranges and calls.
    number = 300_000
    starts, threads = np.arange(number, dtype=np.int64) * 10, np.zeros(number, np.int64)
    ends = starts + length
    ends[0] = number * 20
    found = innermost((starts, ends, threads), (starts + 5, starts + 6, threads))
    assert found.tolist() == ([0] * number if length == 3 else list(range(number)))


@pytest.fixture(scope="module")
def ranged(tmp_path_factory):
    with ExportWriter(tmp_path_factory.mktemp("ranged") / "ranged.sqlite") as export:
        process = export.process(5_000)
        main, other = export.thread(process, 5_000, "main"), export.thread(process, 5_001, "other")
        export.nvtx_domain(main, -5, 3, "library")
        export.nvtx_range(main, 1_000, 9_000, "step")
        export.nvtx_range(main, 2_000, 3_000, "forward", domain_id=3, registered=True)
        export.nvtx_range(main, 4_000, 5_000, "")
        export.nvtx_range(main, 6_000, None, "open")
        export.nvtx_range(other, 500, 8_000, "elsewhere", style=60)
        calls = {"before": 100, "outer": 1_500, "inner": 2_500, "leaves": 2_995, "unnamed": 4_500, "late": 6_500}
        for number, (name, start) in enumerate((calls | {"thread": 2_600}).items(), 1):
            thread = other if name == "thread" else main
            launch(export, process, thread, start, number, name=f"void ns::{name}<int>(float *)")
        export.kernel(process, 0, 7, 7_500, 7_600, name="void ns::alone<int>(float *)", correlation_id=99)
    with closing(session_over(export.path)) as session:
        yield session


EXPECTED = {
    "before": "",
    "outer": "step/",
    "inner": "forward/",
    "leaves": "step/",  # the call ends after the inner range
    "unnamed": "",  # the innermost range has no text
    "late": "step/",  # a range that was never closed encloses nothing
    "thread": "elsewhere/",
    "alone": "",  # its call was not recorded
}


@pytest.mark.campaign
def test_kernels_stand_behind_the_innermost_range_of_their_call(ranged):
    full = {f"{text}void ns::{name}<int>(float *)" for name, text in EXPECTED.items()}
    base = {f"{text}{name}" for name, text in EXPECTED.items()}
    for report in ("cuda_gpu_kern_sum", "cuda_gpu_kern_gb_sum", "cuda_gpu_trace"):
        for options in (":nvtx-name", ":nvtx-name:mangled"):  # no mangled names are recorded here
            assert set(names(ranged, report + options)) == full, report
        for options in (":nvtx-name:base", ":base:nvtx-name"):
            assert set(names(ranged, report + options)) == base, report
    for report in ("cuda_kern_exec_sum", "cuda_kern_exec_trace"):
        assert set(names(ranged, f"{report}:nvtx-name:base")) == base - {"alone"}, report


def test_the_range_that_starts_last_counts_and_equal_names_are_one_row(made):
    """Two nested calls, and different ranges and kernels whose joined names are equal."""
    filling, session = made
    with filling() as (export, process, main):
        for start, end, name in ((0, 1_000, "outer"), (105, 200, "inner"), (2_000, 2_100, "a"), (2_200, 2_300, "a/b")):
            export.nvtx_range(main, start, end, name)
        export.api(main, 100, 250, "cudaLaunchKernel_v7000", 1)
        export.api(main, 110, 150, "cuLaunchKernel", 1, event_class=1)
        export.kernel(process, 0, 7, 300, 400, name="k", correlation_id=1)
        launch(export, process, main, 2_010, 2, name="b/c")
        launch(export, process, main, 2_210, 3, name="c")
    assert lines(session(), "cuda_gpu_kern_sum:nvtx-name") == [
        "66.7,200,2,100.0,100.0,100,100,0.0,a/b/c",
        "33.3,100,1,100.0,100.0,100,100,0.0,inner/k",
    ]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Yield two reports with the same pids, row numbers and correlation ids; the second is 1 ms later."""
    place = tmp_path_factory.mktemp("two")
    for number, text in enumerate(("first", "second")):
        capture = Capture(utc_epoch_ns=1_780_000_000_000_000_000 + 1_000_000 * number)
        with ExportWriter(place / f"rank{number}.sqlite", session=capture) as export:
            process = export.process(5_000)
            main = export.thread(process, 5_000, f"{text} thread", priority=20 + number)
            export.nvtx_range(main, 0, 10_000, text)
            launch(export, process, main, 1_000 + number, 1, duration=100 + number)
            launch(export, process, main, 2_000 + number, 2, duration=200 + number)
    with closing(session_over(place / "rank0.sqlite", place / "rank1.sqlite")) as session:
        yield session


@pytest.mark.campaign
def test_correlation_ids_of_different_reports_never_meet_and_traces_are_in_job_time_with_their_own_threads(two):
    keys = ("API Start (ns)", "Kernel Start (ns)", "Queue Start (ns)", "Kernel Dur (ns)")
    assert [tuple(row[key] for key in keys) for row in records(two, "cuda_kern_exec_trace")] == [
        ("1000", "1050", "1010", "100"),
        ("2000", "2050", "2010", "200"),
        ("1001001", "1001051", "1001011", "101"),
        ("1002001", "1002051", "1002011", "201"),
    ]
    assert [row["Count"] for row in records(two, "cuda_kern_exec_sum")] == ["2", "2"]
    keys = ("Start (ns)", "T-Pri", "Thread Name")
    assert [tuple(row[key] for key in keys) for row in records(two, "cuda_api_trace")] == [
        ("1000", "20", "first thread"),
        ("2000", "20", "first thread"),
        ("1001001", "21", "second thread"),
        ("1002001", "21", "second thread"),
    ]
    assert [row["Start (ns)"] for row in records(two, "cuda_gpu_trace")] == ["1050", "2050", "1001051", "1002051"]


def test_correlation_ids_of_different_processes_never_meet(tmp_path, opened):
    with ExportWriter(tmp_path / "processes.sqlite") as export:
        for pid in (5_000, 6_000):
            process = export.process(pid)
            main = export.thread(process, pid, "main")
            export.nvtx_range(main, 0, 10_000, f"of {pid}")
            launch(export, process, main, pid, 1)
    session = opened(tmp_path / "processes.sqlite")
    executed = [(row["API Start (ns)"], row["PID"]) for row in records(session, "cuda_kern_exec_trace")]
    assert executed == [("5000", "5000"), ("6000", "6000")]
    assert names(session, "cuda_gpu_kern_sum:nvtx-name") == ["of 5000/k", "of 6000/k"]


@pytest.mark.campaign
def test_each_table_is_filtered_by_the_window_on_its_own(made):
    """Three kernels, each 1,000 ns after its call; the range around all calls ends before the last kernel starts."""
    filling, open_ = made
    with filling() as (export, process, main):
        export.nvtx_range(main, 0, 3_500, "step")
        for number in range(3):
            launch(export, process, main, 1_000 * (number + 1), number, name=f"k{number}", delay=1_000)
    session = open_()
    # In the window: the calls at 2,000 and 3,000 and the kernels of the calls at 1,000 and 2,000.
    window = Selection(window=Window(2_000, 3_050))
    assert [row["Start (ns)"] for row in records(session, "cuda_api_trace", window)] == ["2000", "3000"]
    assert names(session, "cuda_gpu_trace", window) == ["k0", "k1"]
    assert names(session, "cuda_kern_exec_trace", window) == names(session, "cuda_kern_exec_sum", window) == ["k1"]
    called = {(row["Operation"], row["Instances"]) for row in records(session, "cuda_api_gpu_sum", window)}
    assert called == {("cudaLaunchKernel", "2"), ("k0", "1"), ("k1", "1")}
    # A call or range outside of the window has no name.
    assert set(names(session, "cuda_gpu_kern_sum:nvtx-name", window)) == {"k0", "step/k1"}
    assert names(session, "cuda_gpu_kern_sum:nvtx-name", Selection(window=Window(3_600, 5_000))) == ["k2"]


@pytest.mark.campaign
def test_the_gpu_trace_has_throughput_in_whole_inverse_durations(tmp_path, opened):
    with ExportWriter(tmp_path / "traced.sqlite") as export:
        export.gpu(0)
        process = export.process(5_000)
        export.kernel(
            process, 0, 7, 1_000, 1_500, name="k(int *)", correlation_id=1, grid=(1, 2, 3), block=(32, 4, 1),
            registers=40, static_smem=1_024, dynamic_smem=48_500,
        )  # fmt: skip
        export.memcpy(process, 0, 13, 2_000, 3_500, size=48_000, kind="HtoD", correlation_id=2, source=PAGEABLE)
        export.memset(process, 0, 7, 4_000, 4_000, size=4, correlation_id=None)
        export.memcpy(process, 9, 7, 5_000, 2_000_005_000, size=10**12, kind="DtoD", correlation_id=3)
        export.graph_launch(process, 0, 7, 6_000, 7_000, graph_id=1, graph_exec_id=2, correlation_id=4)
        export.memcpy(process, 9, 7, 8_000, 8_001, size=10**12, kind="DtoD", correlation_id=5)
        # Operations that start together: kernels first, then the order of the export.
        export.memset(process, 0, 7, 9_000, 9_200, size=4, correlation_id=11)
        export.memcpy(process, 0, 7, 9_000, 9_200, size=4, kind="HtoD", correlation_id=12)
        for correlation in (19, 13, 15):
            export.kernel(process, 0, 7, 9_000, 9_200, name="k", correlation_id=correlation)
    session, gpu = opened(tmp_path / "traced.sqlite"), "NVIDIA H100 80GB HBM3 (0)"
    assert lines(session, "cuda_gpu_trace")[:4] == [
        f"1000,500,1,1,2,3,32,4,1,40,0.001,0.049,,,,,{gpu},1,,7,k(int *)",
        # 1,000,000,000 // 1,500 is 666,666: not 32 GB/s but 48,000 · 666,666 B/s.
        f"2000,1500,2,,,,,,,,,,0.048,31999.968,Pageable,Device,{gpu},1,,13,[CUDA memcpy Host-to-Device]",
        # Without a duration there is no throughput; the source of a memset is its memory kind.
        f"4000,0,,,,,,,,,,,0.000,,Device,,{gpu},1,,7,[CUDA memset]",
        # Longer than a second: nsys's whole number is 0. No GPU has that number.
        "5000,2000000000,3,,,,,,,,,,1000000.000,0.000,Device,Device, (9),1,,7,[CUDA memcpy Device-to-Device]",
    ]
    overflowing, *together = records(session, "cuda_gpu_trace")[4:]
    assert overflowing["Throughput (MB/s)"] == "1000000000000000.000", "more than a product of integers holds"
    assert [row["CorrId"] for row in together] == ["19", "13", "15", "12", "11"]
    assert any("graph" in note for note in asked_of_stats(session, "cuda_gpu_trace").notes)


def test_memory_operations_alone_are_gpu_work(made):
    filling, open_ = made
    with filling() as (export, process, _):
        export.memcpy(process, 0, 7, 0, 300, size=4, kind="HtoD", correlation_id=1)
        export.memset(process, 0, 7, 400, 500, size=4, correlation_id=2)
    session = open_()
    for report in ("cuda_gpu_sum", "cuda_gpu_sum:nvtx-name", "cuda_api_gpu_sum", "cuda_api_gpu_sum:nvtx-name"):
        assert lines(session, report) == [
            "75.0,300,1,300.0,300.0,300,300,0.0,MEMORY_OPER,[CUDA memcpy Host-to-Device]",
            "25.0,100,1,100.0,100.0,100,100,0.0,MEMORY_OPER,[CUDA memset]",
        ]
    assert any("no GPU kernels" in note for note in asked_of_stats(session, "cuda_gpu_sum").notes)


def test_the_second_row_of_a_call_without_a_version_has_its_name(made):
    filling, open_ = made
    with filling() as (export, _, main):
        export.api(main, 100, 150, "cuLaunchKernel", 1, event_class=1)
        export.api(main, 90, 160, "cuLaunchKernel", 1, event_class=BACKTRACE_CALL)
        export.api(main, 200, 250, "cudaFree_v3020", 2)
        export.api(main, 190, 260, "cudaFree", 2, event_class=BACKTRACE_CALL)
    found = [(row["Name"], row["Num Calls"]) for row in records(open_(), "cuda_api_sum")]
    assert found == [("cuLaunchKernel", "2"), ("cudaFree", "1"), ("cudaFree", "1")]


def test_a_kernel_that_starts_before_its_call_returns_was_not_queued(made):
    filling, open_ = made
    with filling() as (export, process, main):
        launch(export, process, main, 1_000, 1, name="queued", delay=10)
        launch(export, process, main, 2_000, 2, name="early", delay=9, duration=0)
    session, grid = open_(), "   1    1    1, 128    1    1"
    assert lines(session, "cuda_kern_exec_trace") == [
        f"1000,10,1010,0,1010,100,110,5000,5001,0,cudaLaunchKernel,{grid},queued",
        f"2000,10,,,2009,0,10,5000,5001,0,cudaLaunchKernel,{grid},early",
    ]
    for report in ("cuda_kern_exec_sum", "cuda_kern_exec_sum:nvtx-name"):
        assert lines(session, report) == [
            "5000,5001,0,1,1,110.0,110.0,110,110,0.0,10.0,10.0,10,10,0.0,0.0,0.0,0,0,0.0,"
            "100.0,100.0,100,100,0.0,cudaLaunchKernel,queued",
            "5000,5001,0,1,0,10.0,10.0,10,10,0.0,10.0,10.0,10,10,0.0,,,,,0.0,0.0,0.0,0,0,0.0,cudaLaunchKernel,early",
        ]


def test_reports_are_in_order_and_there_once():
    found = [report.name for report in all_reports()]
    assert found == sorted(set(found))
