"""Traces for Perfetto and Paraver: what is in them is what the store has, and their readers take it."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from support import shared
from synthetic import ExportWriter
from trace_readers import ChromeTrace, ParaverTrace, read_chrome, read_paraver

from nsystui.base.errors import MissingDataError, UsageError
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.exports.demo import PLANTED_SECRET
from nsystui.exports.demo.target import DEFAULT_STREAM
from nsystui.output.chrome_trace import microseconds, write_chrome_trace
from nsystui.output.files import TargetExistsError, save_trace
from nsystui.questions.alignment import ClockMode
from nsystui.questions.events.kinds import GPU_KINDS, EventKind
from nsystui.questions.events.listing import EventList
from nsystui.questions.job import Job
from nsystui.questions.time_window import event_span
from nsystui.questions.trace.layout import Lanes, Layout, ThreadTrack
from nsystui.questions.trace.slices import Contents, bands
from nsystui.questions.trace.trace import Trace
from nsystui.store import tables
from nsystui.store.session import Session

EVERYTHING = Contents()


@pytest.fixture(scope="module")
def job(demo_job) -> Job:
    session = Session()
    for path in demo_job[:2]:
        session.add(path)
    found = Job(session)
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
    assert save_trace(whole, directory / "job.prv") > 0
    return read_paraver(directory / "job.prv")


def traces_of(path: Path, directory: Path, contents: Contents = EVERYTHING) -> tuple[ChromeTrace, ParaverTrace]:
    with closing(Session()) as session:
        session.add(path)
        trace = Trace.of(Job(session), Selection(), contents)
        save_trace(trace, directory / "one.json")
        save_trace(trace, directory / "one.prv")
    return read_chrome(directory / "one.json"), read_paraver(directory / "one.prv")


class TestChrome:
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

    def test_processes_are_ranks_and_tracks_streams_and_threads(self, chrome):
        assert chrome.processes[1].startswith("rank 0: python pid") and chrome.processes[2].startswith("rank 1: python")
        of_first = [label for (pid, _), label in chrome.tracks.items() if pid == 1]
        assert "device 0 stream 7" in of_first
        assert {label.partition(": ")[2] for label in of_first} >= {"CUDA API", "NVTX", "NCCL"}

    def test_an_arrow_leads_from_each_call_to_its_work(self, job, chrome):
        session = job.session
        assert len(chrome.arrows) == session.count(tables.kernels) + session.count(tables.memory_ops)
        for call, work in chrome.arrows:
            assert call.event["cat"] == "api" and work.event["cat"] in ("kernel", "nccl", "memory")
            assert call.event["args"]["correlation"] == work.event["args"]["correlation"]
            assert call.event["pid"] == work.event["pid"]

    def test_bytes_are_of_copies_and_of_nccl_calls(self, chrome):
        sized = Counter(one.event["cat"] for one in chrome.all_slices() if one.event["args"].get("bytes"))
        assert sized["memory"] and sized["nccl"] and set(sized) == {"memory", "nccl"}

    def test_names_hold_what_they_hold_and_no_secret(self, tmp_path, directory, chrome):
        assert PLANTED_SECRET.encode() not in b"".join(path.read_bytes() for path in directory.glob("job.[!j]*"))
        assert not any(PLANTED_SECRET in text for text in (*chrome.processes.values(), *chrome.tracks.values()))
        found, prv = traces_of(synthetic.hostile_names_export(tmp_path / "hostile.sqlite"), tmp_path)
        assert {name for name in synthetic.HOSTILE_NAMES if name} <= {one.event["name"] for one in found.all_slices()}
        raw = (tmp_path / "one.json").read_bytes() + (tmp_path / "one.pcf").read_bytes()
        raw += (tmp_path / "one.row").read_bytes() + (tmp_path / "one.prv").read_bytes()
        assert not {byte for byte in raw if byte < 32} - {ord("\n")}
        assert len(prv.values[63000006]) == len(set(synthetic.HOSTILE_NAMES)) + 1

    @pytest.mark.parametrize(("time", "text"), [(0, "0.000"), (999, "0.999"), (1_234_567_890_123, "1234567890.123")])
    def test_nanoseconds_are_microseconds_with_three_decimals(self, time, text):
        assert microseconds(time) == text


class TestParaver:
    def test_every_event_begins_and_ends(self, job, paraver):
        session = job.session
        last = {(place, number): value for place, _, number, value in paraver.events}
        assert not {value for (_, number), value in last.items() if number != 9005} - {0}
        kernels = paraver.begun(63000006) + paraver.begun(63000007)
        assert kernels.total() == session.count(tables.kernels)
        assert paraver.begun(63000001).total() == session.count(tables.memory_ops)
        assert paraver.begun(9005).total() == session.count(tables.nvtx_marks)

    def test_tasks_are_ranks_and_every_row_has_its_name(self, job, paraver):
        assert [name.partition(":")[0] for name in paraver.rows["TASK"]] == ["rank 0", "rank 1"]
        assert {place for place, *_ in paraver.states} <= {(task, row) for task in (1, 2) for row in range(1, 99)}
        for place, _, number, _ in paraver.events:
            assert ("stream" in paraver.name(place)) == (number in (63000001, 63000002, 63000006, 63000007))

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
        trace = Trace.of(job, Selection(), Contents())
        save_trace(trace, directory / "again.prv.gz")
        again = read_paraver(directory / "again.prv.gz")
        assert again == paraver
        assert all(list(names.values())[1:] == sorted(list(names.values())[1:]) for names in again.values.values())

    def test_a_range_inside_another_gives_way_to_it_again(self, tmp_path):
        with ExportWriter(tmp_path / "nested.sqlite") as export:
            export.gpu(0)
            process = export.process(5_000, "app")
            main = export.thread(process, 5_000, "app")
            export.nvtx_range(main, 1_000, 9_000, "outer")
            export.nvtx_range(main, 2_000, 3_000, "inner")
        _, found = traces_of(tmp_path / "nested.sqlite", tmp_path)
        names = found.values[9003]
        told = [(time, names[value] if value else "") for _, time, _, value in found.events]
        assert told == [(0, "outer"), (1_000, "inner"), (2_000, "outer"), (8_000, "")]


class TestSelections:
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

    def test_only_the_kinds_that_were_asked_for_are_in_it(self, job, tmp_path):
        save_trace(Trace.of(job, Selection(), Contents.of("memory,metrics")), tmp_path / "some.json")
        found = read_chrome(tmp_path / "some.json")
        assert {one.event["cat"] for one in found.all_slices()} == {"memory"}
        assert found.counters and not found.arrows
        with pytest.raises(UsageError):
            Contents.of("kernels")

    def test_nothing_makes_no_file(self, job, tmp_path):
        nothing = Trace.of(job, Selection(window=Window(10**12, 10**12 + 1)), Contents())
        for name in ("empty.json", "empty.prv"):
            with pytest.raises(MissingDataError):
                save_trace(nothing, tmp_path / name)
        assert not list(tmp_path.iterdir())

    def test_no_file_is_overwritten_unasked(self, whole, tmp_path):
        (tmp_path / "job.row").write_text("mine")
        with pytest.raises(TargetExistsError, match=r"job\.row"):
            save_trace(whole, tmp_path / "job.prv")
        assert [path.name for path in tmp_path.iterdir()] == ["job.row"]

    def test_what_stops_the_writing_leaves_nothing(self, whole, tmp_path):
        def stop(rows: int) -> None:
            raise KeyboardInterrupt

        for name in ("job.json.gz", "job.prv"):
            with pytest.raises(KeyboardInterrupt):
                save_trace(whole, tmp_path / name, progress=stop)
        assert not list(tmp_path.iterdir())


def test_in_bands_of_time_it_is_the_same_trace(job, whole, directory, chrome, paraver, tmp_path):
    """An export of millions is read in many bands, this one in one."""
    parts = bands(job, Selection(), whole.contents.kinds, most=300)
    assert len(whole.parts) == 1 and len(parts) > 2
    again = replace(whole, parts=parts, layout=Layout.of(job, Selection(), whole.contents, parts))
    assert again.layout == whole.layout
    save_trace(again, tmp_path / "job.json")
    save_trace(again, tmp_path / "job.prv")
    assert (tmp_path / "job.prv").read_bytes() == (directory / "job.prv").read_bytes()
    found = read_chrome(tmp_path / "job.json")
    assert found.tracks == chrome.tracks and len(found.arrows) == len(chrome.arrows)
    for track, slices in chrome.slices.items():
        assert [(one.start, one.end, one.event["name"]) for one in found.slices[track]] == [
            (one.start, one.end, one.event["name"]) for one in slices
        ]


class TestOverlaps:
    def test_work_of_one_stream_at_once_goes_to_lanes(self, tmp_path):
        with ExportWriter(tmp_path / "branches.sqlite") as export:
            export.gpu(0)
            process = export.process(5_000, "app")
            main = export.thread(process, 5_000, "app")
            export.cuda_context(process)
            for number, (start, end) in enumerate(((10, 90), (20, 60), (30, 40), (70, 80), (90, 95)), 1):
                export.api(main, number, number + 1, "cudaLaunchKernel_v7000", number)
                export.kernel(
                    process, 0, DEFAULT_STREAM, start * 1000, end * 1000, name="k", short="k", correlation_id=number
                )
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
        lanes, placed = Lanes(), {}
        for start, end in slices:
            placed.setdefault(lanes.lane("stream", start, end), []).append((start, max(end, start + 1)))
        for lane in placed.values():
            assert all(before[1] <= after[0] for before, after in pairwise(lane))
        depth = max((sum(s <= time < max(e, s + 1) for s, e in slices) for time in range(40)), default=0)
        assert len(placed) == depth

    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25))
    def test_ranges_that_overlap_are_pairs_and_the_rest_nests(self, tmp_path_factory, ranges):
        rows = sorted(((start, start + length) for start, length in ranges), key=lambda one: (one[0], -one[1]))
        task = Task(0, 1)
        fake: Any = SimpleNamespace(
            span=Window(0, 99),
            clock="",
            session=SimpleNamespace(reports=()),
            layout=SimpleNamespace(
                processes=(SimpleNamespace(task=task, name="p"),),
                threads=(ThreadTrack(task, 5, EventKind.NVTX),),
                streams=(),
                sampled=(),
            ),
            host_slices=lambda: [[(0, 1, 5, "nvtx", "", start, end, "r", 0, None, None, None) for start, end in rows]],
            marks=list,
            gpu_slices=list,
            samples=list,
        )
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


def test_a_range_without_an_end_lasts_as_long_as_the_report(tmp_path):
    path = synthetic.open_ranges_export(tmp_path / "open.sqlite")
    with closing(Session()) as session:
        last = event_span(session.add(path)).end
    found, _ = traces_of(path, tmp_path)
    assert max(one.end for one in found.all_slices()) == last


def test_events_before_the_session_are_moved_to_where_a_viewer_shows_them(tmp_path):
    with ExportWriter(tmp_path / "early.sqlite") as export:
        export.gpu(0)
        process = export.process(5_000, "app")
        export.thread(process, 5_000, "app")
        export.cuda_context(process)
        export.kernel(process, 0, DEFAULT_STREAM, -75_508, -70_000, name="k", short="k", correlation_id=1)
    chrome, paraver = traces_of(tmp_path / "early.sqlite", tmp_path)
    (early,) = chrome.all_slices()
    assert (early.start, early.end) == (0, 5_508) and "75508 ns" in chrome.other["shift"]
    assert paraver.duration == 5_508


@pytest.mark.parametrize(
    "name", ["cuda-graphs", "mpi-cuda-saxpy-schema2.9", "h100-2rank-moe-before", "no-kernel-table"]
)
def test_traces_of_real_exports_are_read(tmp_path, name):
    (path,) = shared(name)
    chrome, paraver = traces_of(path, tmp_path, Contents(metrics=False))
    assert chrome.all_slices() and paraver.events
    assert len(chrome.arrows) >= len(paraver.arrows)
