"""Traces for Perfetto and Paraver: they contain the store's events, and their readers accept them."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from support import job_of, native, open_job
from synthetic import ExportWriter
from synthetic.demo import PLANTED_SECRET
from synthetic.variants import start_gpu_process
from synthetic.writing.target import DEFAULT_STREAM
from synthetic.writing.writer import CONTEXT_SYNC
from trace_readers import ChromeTrace, ParaverTrace, read_chrome, read_paraver

from nsystui.base.errors import MissingDataError
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.output.chrome_trace import microseconds, write_chrome_trace
from nsystui.output.files import VIEWS, TargetExistsError, save_trace
from nsystui.questions.collectives.alignment import ClockMode
from nsystui.questions.events.kinds import GPU_KINDS, EventKind
from nsystui.questions.events.listing import EventList
from nsystui.questions.job.job import OpenJob
from nsystui.questions.trace.layout import StreamLanes, ThreadTrack, TraceLayout
from nsystui.questions.trace.slices import Contents, bands
from nsystui.questions.trace.trace import Trace
from nsystui.store import tables

EVERYTHING = Contents()


@pytest.fixture(scope="module")
def job(demo_job) -> OpenJob:
    found = open_job(*demo_job[:2])
    found.align(ClockMode.UTC)
    yield found
    found.close()


@pytest.fixture(scope="module")
def whole(job) -> Trace:
    return Trace.of(job, Selection(), Contents())


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def chrome(whole, directory) -> ChromeTrace:
    assert save_trace(whole, directory / "job.json.gz") > 0
    return read_chrome(directory / "job.json.gz")


@pytest.fixture(scope="module")
def paraver(whole, directory) -> ParaverTrace:
    assert save_trace(whole, directory / "job.prv") == save_trace(whole, directory / "same.json") > 0
    return read_paraver(directory / "job.prv")


def traces_of(path: Path, directory: Path, contents: Contents = EVERYTHING) -> tuple[ChromeTrace, ParaverTrace]:
    with job_of(path) as job:
        trace = Trace.of(job, Selection(), contents)
        save_trace(trace, directory / "one.json")
        save_trace(trace, directory / "one.prv")
    return read_chrome(directory / "one.json"), read_paraver(directory / "one.prv")


@pytest.fixture
def one_thread(tmp_path) -> Callable[..., tuple[ChromeTrace, ParaverTrace]]:
    """Return a function that writes events of a single thread, (method of the writer, arguments…), as traces."""

    def traces(*events: tuple[Any, ...]) -> tuple[ChromeTrace, ParaverTrace]:
        with ExportWriter(tmp_path / "one.sqlite") as export:
            main = export.thread(export.process(5_000, "app"), 5_000, "app")
            for method, *arguments in events:
                getattr(export, method)(main, *arguments)
        return traces_of(tmp_path / "one.sqlite", tmp_path)

    return traces


class TestChrome:
    @pytest.mark.campaign
    def test_it_has_every_event_of_the_store(self, job, chrome):
        session = job.session
        kinds = Counter(one.event["cat"] for one in chrome.all_slices())
        assert kinds["api"] == session.count(tables.api_calls)
        assert kinds["memory"] == session.count(tables.memory_ops)
        ranges = sum(len(slices) for track, slices in chrome.slices.items() if ": N" in chrome.tracks[track])
        assert ranges + len(chrome.pairs) == session.count(tables.nvtx_ranges)
        work = [one for track, slices in chrome.slices.items() if "stream" in chrome.tracks[track] for one in slices]
        assert len(work) - kinds["memory"] == session.count(tables.kernels)
        assert len(chrome.marks) == session.count(tables.nvtx_marks)
        assert sum(map(len, chrome.counters.values())) == session.count(tables.gpu_metrics)

    def test_times_are_those_of_the_jobs_clock_to_the_nanosecond(self, job, chrome):
        events = EventList.build(job.session, Selection(), job.ranks, (EventKind.KERNEL, EventKind.NCCL))
        listed = sorted((row[0], row[3]) for row in events.page(0, len(events)))
        found = [one for one in chrome.all_slices() if "grid" in one.event["args"]]
        assert sorted((one.start, one.end - one.start) for one in found) == listed
        assert "shift" not in chrome.other

    def test_an_arrow_leads_from_each_call_to_its_work(self, job, chrome):
        session = job.session
        assert len(chrome.arrows) == session.count(tables.kernels) + session.count(tables.memory_ops)
        for call, work in chrome.arrows:
            assert call.event["cat"] == "api" and work.event["cat"] in ("kernel", "nccl", "memory")
            assert call.event["args"]["correlation"] == work.event["args"]["correlation"]
            assert call.event["pid"] == work.event["pid"]

    def test_names_hold_what_they_hold_and_no_secret(self, tmp_path, directory, chrome):
        assert PLANTED_SECRET.encode() not in b"".join(path.read_bytes() for path in directory.glob("job.[!j]*"))
        assert not any(PLANTED_SECRET in text for text in (*chrome.processes.values(), *chrome.tracks.values()))
        found, prv = traces_of(synthetic.hostile_names_export(tmp_path / "hostile.sqlite"), tmp_path)
        assert {name for name in synthetic.HOSTILE_NAMES if name} <= {one.event["name"] for one in found.all_slices()}
        raw = b"".join((tmp_path / f"one.{ending}").read_bytes() for ending in ("json", "pcf", "row", "prv"))
        assert not {byte for byte in raw if byte < 32} - {ord("\n")}
        assert len(prv.values[63000006]) == len(set(synthetic.HOSTILE_NAMES)) + 1

    def test_nanoseconds_are_microseconds_with_three_decimals(self):
        times = {0: "0.000", 999: "0.999", 1_234_567_890_123: "1234567890.123"}
        assert {time: microseconds(time) for time in times} == times


class TestParaver:
    def test_every_event_begins_and_ends(self, job, paraver):
        session = job.session
        last = {(place, number): value for place, _, number, value in paraver.events}
        lasting = {number for _, number in last if number != 9005 and not 9400 <= number < 9500}
        assert not {value for (_, number), value in last.items() if number in lasting} - {0}
        assert (paraver.begun(63000006) + paraver.begun(63000007)).total() == session.count(tables.kernels)
        assert paraver.begun(63000001).total() == session.count(tables.memory_ops)
        assert paraver.begun(9005).total() == session.count(tables.nvtx_marks)

    def test_tasks_are_ranks_and_every_row_has_its_name(self, job, paraver):
        assert [name.partition(":")[0] for name in paraver.rows["TASK"]] == ["rank 0", "rank 1"]
        assert {place for place, *_ in paraver.states} <= {(task, row) for task in (1, 2) for row in range(1, 99)}
        for place, _, number, _ in paraver.events:
            if number != 9200:
                of_stream = number in (63000001, 63000002, 63000006, 63000007, 63000102) or 9101 <= number <= 9110
                assert ("stream" in paraver.name(place)) == of_stream
            assert ("metrics" in paraver.name(place)) == (9400 <= number < 9500)

    def test_states_last_as_long_as_the_work(self, job, paraver):
        busy = sum(end - start for _, start, end, state in paraver.states if state in (1, 13, 17))
        events = EventList.build(job.session, Selection(), job.ranks, GPU_KINDS)
        assert busy == sum(row[3] for row in events.page(0, len(events)))

    def test_calls_are_joined_to_their_work(self, job, chrome, paraver):
        assert len(paraver.arrows) == len(chrome.arrows)
        begins = {(place, time) for place, time, *_ in paraver.states}
        for call, _, work, received, _, _ in paraver.arrows:
            assert "thread" in paraver.name(call) and (work, received) in begins

    def test_sizes_are_values(self, job, paraver):
        moved = sum(value for _, _, number, value in paraver.events if number == 63000002)
        events = job.session.rows(tables.memory_ops.select())
        column = list(tables.memory_ops.c.keys()).index("bytes")
        assert moved == sum(row[column] or 0 for row in events)
        assert any(value for _, _, number, value in paraver.events if number == 9501)

    def test_numbers_do_not_depend_on_the_order_of_events(self, job, directory, paraver):
        save_trace(Trace.of(job, Selection(), Contents()), directory / "again.prv.gz")
        again = read_paraver(directory / "again.prv.gz")
        assert again == paraver
        own = [names for number, names in again.values.items() if number < 50000000 or number >= 63000000]
        assert all(list(names.values())[1:] == sorted(list(names.values())[1:]) for names in own)

    def test_a_range_inside_another_gives_way_to_it_again(self, one_thread):
        _, found = one_thread(("nvtx_range", 1_000, 9_000, "outer"), ("nvtx_range", 2_000, 3_000, "inner"))
        names = found.values[9600]
        told = [(time, names[value] if value else "") for _, time, _, value in found.events]
        assert told == [(0, "outer"), (1_000, "inner"), (2_000, "outer"), (8_000, "")]


NSYS2PRV = {
    "CUDA API calls": (63000000,), "memory operations, their bytes": (63000001, 63000002),
    "kernels, NCCL's kernels": (63000006, 63000007),
    "CUDA graphs traced as a whole, their id, the executable graph's": (63000008, 63000100, 63000101),
    "graph node of a kernel or memory operation": (63000102,), "launch parameters": range(9101, 9111),
    "correlation id": (9200,), "NVTX start/end ranges": (9004,),
    "NVTX push/pop ranges of the default domain": (9600,), "NVTX push/pop ranges of further domains": (9700, 9800),
    "NCCL calls": (9500,), "GPU metrics": (9400,), "MPI calls": range(50000001, 50000006),
    "bytes that an MPI collective sends, receives": (50100001, 50100002),
    "OpenACC events by construct": (66000000, 66000001, 66000002),
    "OpenACC events by source line": (66100000, 66100001, 66100002),
    "OpenACC events by function": (66200000, 66200001, 66200002), "bytes of OpenACC data events": (66300001,),
}  # fmt: skip
"""Numbers of event types in nsys2prv 0.5.8, from its release on PyPI."""


class TestNumbersOfNsys2prv:
    @pytest.fixture(scope="class")
    def simulated(self, tmp_path_factory) -> ParaverTrace:
        place = tmp_path_factory.mktemp("simulated")
        return traces_of(synthetic.simulation_export(place / "rank0.sqlite"), place)[1]

    def test_the_documentation_has_its_table(self):
        text = resources.files("nsystui.docs").joinpath("other-tools.md").read_text(encoding="utf-8")
        told = {}
        for what, numbers in re.findall(r"^\| ([^|]+) \| ([\d, to…]+) \|$", text, re.MULTILINE):
            if " to " in numbers:
                first, last = map(int, numbers.split(" to "))
                told[what] = tuple(range(first, last + 1))
            else:
                told[what] = tuple(int(number) for number in re.findall(r"\d+", numbers))
        assert told == {what: tuple(numbers) for what, numbers in NSYS2PRV.items()}

    @pytest.mark.campaign
    def test_every_type_is_one_of_its_or_said_to_have_none_there(self, paraver, simulated):
        known = {number for numbers in NSYS2PRV.values() for number in numbers}
        known |= {*range(9400, 9500), *range(9700, 10_000, 100)}
        ours = {9005, 9310, 9311, 9312, 9313, 9501}
        assert (paraver.types.keys() | simulated.types.keys()) <= known | ours

    def test_an_mpi_call_is_of_its_kind(self, one_thread):
        calls = {
            "MPI_Iallreduce": (50000002, 155), "MPI_Ireduce_scatter": (50000002, 166),
            "MPI_File_write_at_all": (50000005, 150), "MPI_Comm_split": (50000003, 23), "MPI_Put": (50000004, 65),
            "MPI_Win_fence": (50000004, 68), "MPI_Get_count": (50000003, 118), "MPI_File_set_size": (50000005, 219),
            "MPI_Something_new": (50000003, 220),
        }  # fmt: skip
        methods = ["mpi_collective" if number == 50000002 else "mpi_other" for number, _ in calls.values()]
        written = enumerate(zip(methods, calls, strict=True))
        _, found = one_thread(*((method, 1_000 * time, 1_000 * time + 500, name) for time, (method, name) in written))
        begun = [(kind, value) for _, _, kind, value in found.events if value and kind in range(50000001, 50000006)]
        assert begun == list(calls.values())
        assert [found.values[kind][value] for kind, value in begun] == list(calls)

    def test_openmp_and_ucx_are_events_of_our_own(self, one_thread, simulated):
        # The first region is written again if one task ends and the next begins in it.
        assert simulated.begun(9312) == {"Parallel region": 3, "Implicit task": 2}
        _, found = one_thread(("ucx", 1_000, 2_000, "ucp_worker_progress"))
        assert found.begun(9311) == {"ucp_worker_progress": 1}

    def test_launch_parameters_and_correlation_ids_are_those_of_the_export(self, demo_job, paraver):
        fields = "gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory localMemoryTotal"
        columns = ", ".join((*fields.split(), "registersPerThread", "correlationId"))
        query = f"SELECT {columns} FROM CUPTI_ACTIVITY_KIND_KERNEL"
        expected = Counter(row for path in demo_job[:2] for row in native(path, query))
        numbers = (*range(9101, 9111), 9200)
        found: dict[Any, dict[int, int]] = {}
        kernels = set()
        for place, time, number, value in paraver.events:
            if number in numbers and "stream" in paraver.name(place):
                found.setdefault((place, time), {})[number] = value
            if number in (63000006, 63000007) and value:
                kernels.add((place, time))
        assert Counter(tuple(found[one][number] for number in numbers) for one in kernels) == expected

    def test_gpu_metrics_are_numbered_as_nvidia_does_with_the_rank_of_the_gpu(self, demo_job, paraver):
        expected, names = Counter(), {}
        for path in demo_job[:2]:
            names |= dict(native(path, "SELECT 9400 + metricId, metricName FROM TARGET_INFO_GPU_METRICS"))
            expected.update(native(path, "SELECT 9400 + metricId, value FROM GPU_METRICS"))
        metrics = [event for event in paraver.events if 9400 <= event[2] < 9500]
        assert Counter((number, value) for _, _, number, value in metrics) == expected and len(expected) > 10
        assert {number: paraver.types[number] for number in names} == names
        assert {paraver.name(place) for place, *_ in metrics} == {"rank 0 GPU 0 metrics", "rank 1 GPU 1 metrics"}

    def test_domains_are_a_hundred_apart_from_9700(self, tmp_path):
        with ExportWriter(tmp_path / "domains.sqlite") as export:
            main = export.thread(export.process(5_000, "app"), 5_000, "app")
            for number, domain in enumerate(("zlib", "apex"), 1):
                export.nvtx_domain(main, 0, number, domain)
                export.nvtx_range(main, 1_000 * number, 1_000 * number + 500, "work", domain_id=number)
        _, found = traces_of(tmp_path / "domains.sqlite", tmp_path)
        assert found.types == {9700: "NVTX range apex", 9800: "NVTX range zlib"}

    def test_no_value_of_a_kernel_is_that_of_a_call_or_copy(self, paraver):
        values = [paraver.values[number].keys() - {0} for number in (63000000, 63000001, 63000006, 63000007)]
        assert len(set().union(*values)) == sum(map(len, values))

    def test_a_call_ends_and_the_one_around_it_is_told_again_with_its_correlation_id(self, one_thread):
        calls = (("api", 1_000, 9_000, "cudaLaunchKernel_v7000", 11), ("api", 2_000, 3_000, "cuLaunchKernel", 12))
        told = [(time, value) for _, time, number, value in one_thread(*calls)[1].events if number == 9200]
        assert told == [(0, 11), (1_000, 12), (2_000, 11), (8_000, 0)]


class TestViews:
    def test_each_is_of_types_that_the_trace_has(self, directory, paraver):
        texts = {path.name.split(".")[1]: path.read_text() for path in directory.glob("job.*.cfg")}
        assert texts.keys() == set(VIEWS)
        for text in texts.values():
            assert text.startswith("#ParaverCFG\nConfigFile.Version: 3.4\n")
            windows = re.findall(r"^window_id (\d+)$", text, re.MULTILINE)
            assert windows == [str(number) for number in range(1, len(windows) + 1)]
            assert f"ConfigFile.NumWindows: {len(windows)}\n" in text
            for number, label in re.findall(r"evt_type 1 (\d+)\nwindow_filter_module evt_type_label 1 \"(.*)\"", text):
                assert paraver.types[int(number)] == label
            for control, data in re.findall(r"ControlWindow: (\d+)\nAnalyzer2D.DataWindow: (\d+)", text):
                assert control == data and control in windows
        assert len(re.findall("NEW ANALYZER2D", texts["durations"])) == 4
        assert texts["useful"].count("Analyzer2D.Statistic: Time\n") == 1
        shown = set(map(int, re.findall(r"evt_type 1 (\d+)", texts["metrics"])))
        assert shown == {number for number in paraver.types if 9400 <= number < 9500}
        assert set(map(int, re.findall(r"evt_type 1 (\d+)", texts["nccl"]))) == {63000007, 9500, 9501}
        assert "evt_type 1 9600\n" in texts["nvtx"]

    def test_each_is_written_as_paravers_reader_takes_it(self, directory, paraver):
        """``api/cfg.cpp`` of paraver-kernel: lists begin with their length, a window has all keys of a saved one."""
        needed = ("window_name", "window_type", "window_id", "window_units", "window_level", "window_object")
        needed += ("window_begin_time_relative", "window_end_time_relative", "window_selected_functions")
        for path in directory.glob("job.*.cfg"):
            text = path.read_text()
            head, *windows = re.split(r"^< NEW DISPLAYING WINDOW (.+) >$", text, flags=re.MULTILINE)
            assert head.startswith("#ParaverCFG") and windows
            for name, body in zip(windows[::2], windows[1::2], strict=True):
                own = body.partition("< NEW ANALYZER2D >")[0]
                lines = dict(line.split(" ", 1) for line in own.splitlines() if line and line[0] != "#")
                assert set(needed) <= lines.keys() and lines["window_name"] == name
                assert lines["window_type"] == "single" and lines["window_object"] == "appl { 1, { All } }"
                for key in ("window_selected_functions", "window_compose_functions"):
                    count, items = re.fullmatch(r"\{ (\d+), \{ (.*) \} \}", lines[key]).groups()
                    assert len(re.findall(r"\{[a-z_0-9]+, [^{},]+\}", items)) == int(count) in (14, 9)
            for state in re.findall(r"^window_semantic_module .* \{ 1, \{ 1 (\d+)\.0+ \} \}$", text, re.MULTILINE):
                assert int(state) in paraver.state_names
            for histogram in text.split("< NEW ANALYZER2D >")[1:]:
                values = dict(line.split(": ", 1) for line in histogram.split("\n\n")[0].strip().splitlines())
                assert values["Analyzer2D.Statistic"] in ("# Bursts", "Time")
                count, *limits = values["Analyzer2D.Parameters"].split()
                assert len(limits) == int(count)

    def test_there_is_none_of_what_the_trace_has_not(self, one_thread, tmp_path):
        one_thread(("nvtx_range", 1_000, 2_000, 'the "inner" loop'))
        assert [path.name for path in tmp_path.glob("*.cfg")] == ["one.nvtx.cfg"]


class TestSelections:
    @pytest.mark.campaign
    def test_a_window_and_a_name_leave_out_the_rest(self, job, tmp_path):
        kernels = EventList.build(job.session, Selection(), job.ranks, (EventKind.NCCL,))
        (first, *_), (later, *_) = kernels.page(0, 1)[0], kernels.page(len(kernels) // 2, 1)[0]
        window = Window(first, later)
        selection = Selection(window=window, name=NameFilter("nccl"), tasks=frozenset({job.ranks[1].task}))
        save_trace(Trace.of(job, selection, Contents()), tmp_path / "part.json")
        found = read_chrome(tmp_path / "part.json")
        assert found.processes.keys() == {1} and found.processes[1].startswith("rank 1")
        assert found.all_slices() and not found.counters
        for one in found.all_slices():
            assert "nccl" in one.event["name"].lower() and one.start < window.end and one.end > window.start
        events = EventList.build(job.session, selection, job.ranks)
        assert len(found.all_slices()) + len(found.pairs) + len(found.marks) == len(events)

    def test_synchronisations_stand_with_the_thread_of_their_call(self, tmp_path):
        with ExportWriter(tmp_path / "sync.sqlite") as export:
            process = export.process(5_000, "app")
            main, other = (export.thread(process, tid, "app") for tid in (5_000, 5_001))
            export.api(main, 1_000, 5_000, "cudaStreamSynchronize", 11)
            export.sync(process, 0, 7, 1_100, 4_900, correlation_id=11)
            export.api(other, 2_000, 9_000, "cudaDeviceSynchronize", 12)
            export.sync(process, 0, 7, 2_100, 8_900, sync_type=CONTEXT_SYNC, correlation_id=12)
        seen, found = traces_of(tmp_path / "sync.sqlite", tmp_path, Contents.of("sync"))
        slices = [(seen.tracks[track], one) for track, found in seen.slices.items() for one in found]
        assert {(track, one.event["name"], one.start, one.end) for track, one in slices} == {
            ("thread 5000 app: CUDA synchronisation", "Stream sync", 1_100, 4_900),
            ("thread 5001 app: CUDA synchronisation", "Context sync", 2_100, 8_900),
        }
        assert found.types == {9313: "CUDA synchronisation"}
        told = [(time, found.values[9313][value]) for _, time, _, value in found.events]
        assert told == [(0, "Stream sync"), (1_000, "Context sync"), (3_800, "End"), (7_800, "End")]
        assert not Contents().among((EventKind.SYNC,))

    def test_nothing_makes_no_file_and_no_file_is_overwritten_unasked(self, job, whole, tmp_path):
        nothing = Trace.of(job, Selection(window=Window(10**12, 10**12 + 1)), Contents())
        for name in ("empty.json", "empty.prv"):
            with pytest.raises(MissingDataError):
                save_trace(nothing, tmp_path / name)
        assert not list(tmp_path.iterdir())
        (tmp_path / "job.row").write_text("mine")
        with pytest.raises(TargetExistsError, match=r"job\.row"):
            save_trace(whole, tmp_path / "job.prv")
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("job.row", "mine")]

    def test_what_stops_the_writing_leaves_nothing(self, whole, tmp_path, monkeypatch):
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        for name in ("by_time", "host_slices"):
            monkeypatch.setattr(Trace, name, stop)
        for name in ("job.json.gz", "job.prv"):
            with pytest.raises(KeyboardInterrupt):
                save_trace(whole, tmp_path / name)
        assert not list(tmp_path.iterdir())


@pytest.mark.campaign
def test_in_bands_of_time_it_is_the_same_trace(job, whole, directory, chrome, paraver, tmp_path):
    """An export of millions of rows is read in many bands of time, this export usually in a single band."""
    parts = bands(job, Selection(), whole.contents.kinds, limit=300)
    assert len(whole.parts) == 1 and len(parts) > 2
    again = replace(whole, parts=parts, layout=TraceLayout.of(job, Selection(), whole.contents, parts))
    assert again.layout == whole.layout
    save_trace(again, tmp_path / "job.json")
    save_trace(again, tmp_path / "job.prv")
    assert (tmp_path / "job.prv").read_bytes() == (directory / "job.prv").read_bytes()
    found = read_chrome(tmp_path / "job.json")
    assert found.tracks == chrome.tracks and len(found.arrows) == len(chrome.arrows)
    in_bands, at_once = (
        {track: [(one.start, one.end, one.event["name"]) for one in slices] for track, slices in each.slices.items()}
        for each in (found, chrome)
    )
    assert in_bands == at_once


class TestOverlaps:
    @pytest.mark.campaign
    def test_work_of_one_stream_at_once_goes_to_lanes(self, tmp_path):
        with ExportWriter(tmp_path / "branches.sqlite") as export:
            process, main = start_gpu_process(export)
            for number, (start, end) in enumerate(((10, 90), (20, 60), (30, 40), (70, 80), (90, 95)), 1):
                export.api(main, number, number + 1, "cudaLaunchKernel_v7000", number)
                times = (start * 1000, end * 1000)
                export.kernel(process, 0, DEFAULT_STREAM, *times, name="k", short="k", correlation_id=number)
        chrome, paraver = traces_of(tmp_path / "branches.sqlite", tmp_path)
        lanes = {
            chrome.tracks[track]: [(one.start // 1000, one.end // 1000) for one in slices]
            for track, slices in chrome.slices.items()
            if "stream" in chrome.tracks[track]
        }
        assert lanes == {
            "device 0 stream 7": [(10, 90), (90, 95)],
            "device 0 stream 7 (2)": [(20, 60), (70, 80)],
            "device 0 stream 7 (3)": [(30, 40)],
        }
        begins = {(place, time) for place, time, _, state in paraver.states if state == 1}
        assert len(begins) == 5 and {(work, at) for _, _, work, at, _, _ in paraver.arrows} == begins

    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=30))
    def test_lanes_are_as_few_as_can_be(self, work):
        slices = sorted((start, start + length) for start, length in work)
        lanes, placed = StreamLanes(), {}
        for start, end in slices:
            placed.setdefault(lanes.lane("stream", start, end), []).append((start, max(end, start + 1)))
        for lane in placed.values():
            assert all(before[1] <= after[0] for before, after in pairwise(lane))
        assert len(placed) == max((sum(s <= time < max(e, s + 1) for s, e in slices) for time in range(40)), default=0)

    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25))
    def test_ranges_that_overlap_are_pairs_and_the_rest_nests(self, tmp_path_factory, ranges):
        rows = sorted(((start, start + length) for start, length in ranges), key=lambda one: (one[0], -one[1]))
        task = Task(0, 1)
        fake: Any = SimpleNamespace(
            span=Window(0, 99), clock="", session=SimpleNamespace(reports=()),
            layout=SimpleNamespace(
                processes=(SimpleNamespace(task=task, name="p"),), threads=(ThreadTrack(task, 5, EventKind.NVTX),),
                streams=(), sampled=(),
            ),
            host_slices=lambda: [[(0, 1, 5, "nvtx", "", start, end, "r", 0, None, None, None) for start, end in rows]],
            marks=list, gpu_slices=list, samples=list,
        )  # fmt: skip
        stream = BytesIO()
        assert write_chrome_trace(fake, stream) == len(rows)
        path = tmp_path_factory.getbasetemp() / "overlaps.json"
        path.write_bytes(stream.getvalue())
        found = read_chrome(path)
        times = [(one.start, one.end) for one in found.all_slices()] + [(start, end) for start, end, _ in found.pairs]
        assert sorted(times) == sorted(rows)


def test_start_end_ranges_are_pairs(job, chrome):
    loose = tables.nvtx_ranges.select().where(tables.nvtx_ranges.c.event_type.in_((60, 71)))
    assert len(chrome.pairs) == len(job.session.rows(loose)) > 0


@pytest.mark.campaign
def test_a_range_without_an_end_has_no_length(tmp_path):
    path = synthetic.open_ranges_export(tmp_path / "open.sqlite")
    ((last,),) = native(path, 'SELECT max("end") FROM NVTX_EVENTS')
    found, _ = traces_of(path, tmp_path)
    ends = [one.end for one in found.all_slices()] + [end for _, end, _ in found.pairs]
    assert max(ends) == last == 9_000_000


def test_events_before_the_session_are_moved_to_where_a_viewer_shows_them(tmp_path):
    with ExportWriter(tmp_path / "early.sqlite") as export:
        process, _ = start_gpu_process(export)
        export.kernel(process, 0, DEFAULT_STREAM, -75_508, -70_000, name="k", short="k", correlation_id=1)
    chrome, paraver = traces_of(tmp_path / "early.sqlite", tmp_path)
    (early,) = chrome.all_slices()
    assert (early.start, early.end) == (0, 5_508) and "75508 ns" in chrome.other["shift"]
    assert paraver.duration == 5_508
