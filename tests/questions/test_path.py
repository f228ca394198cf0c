"""The critical path of small programs whose pieces are known to the ns, and of real exports."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from support import SHARED, job_of, shared
from synthetic import ExportWriter
from synthetic.gpu_program import Program
from synthetic.writing.writer import EVENT_SYNC, NO_STREAM, STREAM_SYNC

import nsystui
from nsystui.base.answer import record
from nsystui.base.selection import Selection, Window
from nsystui.questions.blocking.path import GROUPINGS, KINDS, critical_path, path_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.time_window import extent

Pieces = list[tuple[int, int, str]]


def written(path: Path, write: Callable[[Program], object], pid: int = 4000) -> Path:
    with ExportWriter(path) as export:
        program = Program(export, pid)
        write(program)
    return path


def pieces(job: OpenJob, window: Window, rank: int = 0) -> Pieces:
    """Return the pieces of a rank's path as (start, end, kind)."""
    path = critical_path(job, job.ranks[rank].task, window)
    return [(one.start, one.end, KINDS[one.kind]) for one in path.pieces]


def back_to_back(program: Program) -> Mapping[Window, Pieces]:
    program.kernel((0, 10), (20, 100))
    program.kernel((11, 20), (103, 200))
    return {
        Window(0, 200): [
            (0, 10, "CPU"),
            (10, 20, "launch delay"),
            (20, 100, "compute"),
            (100, 103, "delay between operations"),
            (103, 200, "compute"),
        ]
    }


def late_launch(program: Program) -> Mapping[Window, Pieces]:
    program.kernel((0, 10), (20, 100))
    program.kernel((120, 130), (135, 200))
    return {Window(50, 200): [(50, 130, "CPU"), (130, 135, "launch delay"), (135, 200, "compute")]}


def synchronised(program: Program) -> Mapping[Window, Pieces]:
    """Write a thread that launches only after it has waited for the stream."""
    program.kernel((0, 10), (20, 100))
    number = program.call("cudaStreamSynchronize_v3020", (15, 110))
    program.export.sync(program.process, 0, 13, 15, 110, sync_type=STREAM_SYNC, correlation_id=number)
    program.kernel((120, 130), (135, 200))
    return {
        Window(0, 200): [
            (0, 10, "CPU"),
            (10, 20, "launch delay"),
            (20, 100, "compute"),
            (100, 110, "return from synchronisation"),
            (110, 130, "CPU"),
            (130, 135, "launch delay"),
            (135, 200, "compute"),
        ]
    }


def synchronised_with_an_event(program: Program) -> Mapping[Window, Pieces]:
    """Write a thread that waits for an event, but not for work that was launched after its record."""
    program.kernel((0, 10), (20, 60))
    program.record(11, 5, 13)
    program.kernel((13, 14), (61, 90), stream=14)
    number = program.call("cudaEventSynchronize_v3020", (20, 65))
    program.export.sync(program.process, 0, NO_STREAM, 20, 65, sync_type=EVENT_SYNC, correlation_id=number, event_id=5)
    program.kernel((95, 100), (105, 200))
    return {
        Window(0, 200): [
            (0, 10, "CPU"),
            (10, 20, "launch delay"),
            (20, 60, "compute"),
            (60, 65, "return from synchronisation"),
            (65, 100, "CPU"),
            (100, 105, "launch delay"),
            (105, 200, "compute"),
        ]
    }


def over_streams(program: Program) -> Mapping[Window, Pieces]:
    """Write a kernel that waits for NCCL on another stream by an event; another copy then is not on the path."""
    program.kernel((0, 10), (20, 100))
    program.copy((10, 11), (20, 170), stream=15)
    program.record(11, 1, 13)
    program.wait(12, 1, 20)
    program.nccl((13, 14), (102, 180))
    program.record(15, 2, 20)
    program.wait(16, 2, 13)
    program.kernel((17, 18), (185, 220))
    return {
        Window(20, 220): [
            (20, 100, "compute"),
            (100, 102, "delay between operations"),
            (102, 180, "NCCL"),
            (180, 185, "delay between operations"),
            (185, 220, "compute"),
        ]
    }


def ends_on_the_cpu(program: Program) -> Mapping[Window, Pieces]:
    program.kernel((0, 10), (20, 100))
    program.call("cudaDeviceSynchronize_v3020", (15, 105))
    return {Window(20, 150): [(20, 100, "compute"), (100, 105, "return from synchronisation"), (105, 150, "CPU")]}


def moves_pages(program: Program) -> Mapping[Window, Pieces]:
    """Write a kernel with page faults, of which the thread waits without a call, and one that waits for a prefetch."""
    program.kernel((0, 10), (20, 100))
    program.migrate((30, 60), stream=13)
    program.migrate((101, 105), "UvmDtoH")
    program.kernel((120, 130), (190, 220))
    program.migrate((125, 160))
    program.migrate((170, 180))
    return {
        Window(0, 220): [
            (0, 10, "CPU"),
            (10, 20, "launch delay"),
            (20, 100, "compute"),
            (100, 130, "CPU"),
            (130, 180, "unified memory"),
            (180, 190, "delay between operations"),
            (190, 220, "compute"),
        ]
    }


PROGRAMS = (
    back_to_back,
    late_launch,
    synchronised,
    synchronised_with_an_event,
    over_streams,
    ends_on_the_cpu,
    moves_pages,
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_path_goes_from_each_piece_to_what_it_waited_for(program, tmp_path):
    expected: list[Mapping[Window, Pieces]] = []
    path = written(tmp_path / "one.sqlite", lambda written: expected.append(program(written)))
    with job_of(path) as job:
        for window, told in expected[0].items():
            assert pieces(job, window) == told


def test_out_of_a_collective_the_path_goes_to_the_rank_that_came_last(tmp_path):
    ms = 1_000_000

    def rank(late: int) -> Callable[[Program], None]:
        def write(program: Program) -> None:
            for place in range(3):
                at = place * 10 * ms
                program.kernel((at, at + 10), (at + 20, at + ms + late))
                program.nccl((at + 30, at + 40), (at + ms + late + 5, at + 5 * ms), stream=13)
                program.kernel((at + 50, at + 60), (at + 5 * ms + 7, at + 9 * ms))

        return write

    paths = [written(tmp_path / f"rank{number}.sqlite", rank(late)) for number, late in enumerate((0, 2 * ms))]
    with job_of(*paths) as job:
        found = critical_path(job, job.ranks[0].task, Window(ms // 2, 9 * ms)).pieces
        ranks = {one.task: one.rank for one in job.ranks}
        told = [(ranks[one.task], one.start, one.end, KINDS[one.kind]) for one in found]
    last = 3 * ms + 5
    assert told == [
        (1, ms // 2, 3 * ms, "compute"),
        (1, 3 * ms, last, "delay between operations"),
        (0, last, 5 * ms, "NCCL"),
        (0, 5 * ms, 5 * ms + 7, "delay between operations"),
        (0, 5 * ms + 7, 9 * ms, "compute"),
    ]


def test_a_quiet_thread_is_taken_to_wait_for_the_thread_that_launches_meanwhile(tmp_path):
    us = 1_000

    def write(program: Program) -> None:
        program.kernel((0, 10 * us), (11 * us, 12 * us))
        for place in range(20):
            at = (20 + 20 * place) * us
            thread, number = program.helper, next(program.ids)
            program.export.api(thread, at, at + 5 * us, "cudaLaunchKernel_v7000", number)
            program.export.kernel(program.process, 0, 13, at + 6 * us, at + 7 * us, name="k", correlation_id=number)
        program.kernel((430 * us, 440 * us), (441 * us, 500 * us))

    with job_of(written(tmp_path / "two.sqlite", write)) as job:
        path = critical_path(job, job.ranks[0].task, Window(100 * us, 500 * us))
        threads = [one.thread & 0xFFFFFF for one in path.pieces if KINDS[one.kind] == "CPU"]
    assert threads == [4001, 4000]


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["ddp-a100-rank0of4", "h100-2rank-moe-before", "cuda-graphs"])
def test_the_pieces_of_real_exports_cover_the_iteration_once(name):
    with job_of(*shared(name)) as job:
        sums = {}
        for by in GROUPINGS:
            answer = path_table(job, Selection(), by)
            rows = [record(answer.columns, row) for row in answer.rows]
            sums[by] = sum(row["time"] for row in rows), round(sum(row["share"] for row in rows), 6)
            if by == "piece":
                ends = [row["start"] + row["time"] for row in rows]
                assert [row["start"] for row in rows[1:]] == ends[:-1]
        assert len(set(sums.values())) == 1
        assert sums["name"][1] == 100


@pytest.mark.campaign
def test_copies_that_a_fix_removed_were_on_the_path_before():
    """The author of these exports left out the broadcast of buffers: device-to-device copies of each step."""
    shares = []
    for path in shared("ddp-a100-rank0of4", "ddp-a100-nobroadcast-rank0of4"):
        with job_of(path) as job:
            answer = path_table(job, Selection(), "kind")
            shares.append({row[0]: row[2] for row in answer.rows}["copy on the GPU"])
    assert shares[0] > 3 > 1 > shares[1]


def window_of(job: OpenJob, text: str, place: int) -> Window:
    """Return the span of the NVTX range number ``place`` with ``text`` in its name; of the trace without ``text``."""
    if not text:
        return extent(job.session, Selection())
    ranges = job.nvtx_ranges(Selection())
    chosen = [number for number, name in enumerate(ranges.name.tolist()) if text in ranges.names[name]]
    spans = sorted(zip(ranges.start[chosen].tolist(), ranges.end[chosen].tolist(), strict=True))
    return Window(*spans[place])


def shares_as_hta_counts(job: OpenJob, window: Window) -> tuple[float, float, float, float]:
    """Return the path's shares of CPU, GPU work, delays between operations and launch delays, in HTA's definitions.

    CPU time outside of PyTorch operators and returns from synchronisation do not count, and a launch delay begins at
    the start of the call.
    """
    time = dict.fromkeys(("CPU", "compute", "delay between operations", "launch delay"), 0)
    for row in path_table(job, Selection(window), "range").records():
        kind = "compute" if row["kind"] in ("memset", "copy to the GPU", "copy on the GPU") else str(row["kind"])
        if kind in time and (kind != "CPU" or str(row["range"]).startswith("PyTorch operators:")):
            time[kind] += row["time"]
    for piece in critical_path(job, job.ranks[0].task, window).pieces:
        if KINDS[piece.kind] == "launch delay":
            time["CPU"] -= piece.start - piece.launched
            time["launch delay"] += piece.start - piece.launched
    cpu, gpu, between, launch = (100 * one / sum(time.values()) for one in time.values())
    return cpu, gpu, between, launch


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "text", "place", "hta", "ours", "tolerance"),
    [
        ("alexnet-forward", "measure|forward", 1, (89.418, 10.359, 0.140, 0.084), (89.415, 10.359, 0.142, 0.084), 0.01),
        ("simple-add", "", 0, (99.869, 0.099, 0.029, 0.004), (99.904, 0.095, 0, 0.001), 0.04),
        ("event-sync-two-streams", "", 0, (87.012, 10.526, 1.273, 1.188), (88.354, 10.380, 0, 1.266), 1.4),
        ("nccl-2-ranks-rank0", "ProfilerStep", 0, (100, 0, 0, 0), (99.993, 0.001, 0, 0.006), 0.01),
    ],
)
def test_hta_finds_the_same_shares_in_its_own_definitions(name, text, place, hta, ours, tolerance):
    """HTA 0.5.0 rounds to whole µs, and follows another branch in two of the traces.

    ``event-sync-two-streams``: the last kernel was launched after the memset before it had ended, so here it waited for
    its launch. HTA's path contains the memset, and counts the 15 µs between the two as a delay between operations.
    ``simple-add``: HTA gives the time between operators no length, so its longest path runs over kernels and the gaps
    between them, 11.9 ms of it before a memset that was not yet launched. Here the path stays on the thread, which
    waits for none of these kernels. ``nccl-2-ranks-rank0``: the path here contains one copy for which a thread waits.
    """
    trace = SHARED / "kineto" / f"{name}.pt.trace.json.gz"
    if not trace.exists():
        pytest.skip(f"the traces are not in {trace.parent}")
    with closing(nsystui.open(trace)) as opened:
        job = opened._job
        found = shares_as_hta_counts(job, window_of(job, text, place))
    assert found == pytest.approx(ours, abs=0.001)
    assert found == pytest.approx(hta, abs=tolerance)
