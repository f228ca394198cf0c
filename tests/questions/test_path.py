"""The critical path of small programs whose pieces are known to the ns, and of real exports."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from filling import Steps
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


def written(path: Path, write: Callable[[Program], object]) -> Path:
    with ExportWriter(path) as export:
        write(Case(export, 4000))
    return path


class Case(Program):
    def synchronise(self, name: str, span: tuple[int, int], stream: int, **how: int) -> None:
        number = self.call(name, span)
        self.export.sync(self.process, 0, stream, *span, correlation_id=number, **how)


do = Steps()
first = do.kernel((0, 10), (20, 100))
PROGRAMS: dict[str, tuple[Any, Window, str]] = {
    "back to back": (
        first.kernel((11, 20), (103, 200)), Window(0, 200),
        "0 CPU 10 launch delay 20 compute 100 delay between operations 103 compute 200"),
    "a late launch": (
        first.kernel((120, 130), (135, 200)), Window(50, 200), "50 CPU 130 launch delay 135 compute 200"),
    "a thread launches only after it has waited for the stream": (
        first.synchronise("cudaStreamSynchronize_v3020", (15, 110), 13, sync_type=STREAM_SYNC)
        .kernel((120, 130), (135, 200)), Window(0, 200),
        "0 CPU 10 launch delay 20 compute 100 return from synchronisation 110 CPU 130 launch delay 135 compute 200"),
    "a thread waits for an event, but not for work that was launched after its record": (
        do.kernel((0, 10), (20, 60)).record(11, 5, 13).kernel((13, 14), (61, 90), stream=14)
        .synchronise("cudaEventSynchronize_v3020", (20, 65), NO_STREAM, sync_type=EVENT_SYNC, event_id=5)
        .kernel((95, 100), (105, 200)), Window(0, 200),
        "0 CPU 10 launch delay 20 compute 60 return from synchronisation 65 CPU 100 launch delay 105 compute 200"),
    "a kernel waits for NCCL on another stream by an event; another copy then is not on the path": (
        first.copy((10, 11), (20, 170), stream=15).record(11, 1, 13).wait(12, 1, 20).nccl((13, 14), (102, 180))
        .record(15, 2, 20).wait(16, 2, 13).kernel((17, 18), (185, 220)), Window(20, 220),
        "20 compute 100 delay between operations 102 NCCL 180 delay between operations 185 compute 220"),
    "the end is on the CPU": (
        first.call("cudaDeviceSynchronize_v3020", (15, 105)), Window(20, 150),
        "20 compute 100 return from synchronisation 105 CPU 150"),
    "a kernel has page faults, of which the thread waits without a call, and a kernel waits for a prefetch": (
        first.migrate((30, 60), stream=13).migrate((101, 105), "UvmDtoH").kernel((120, 130), (190, 220))
        .migrate((125, 160)).migrate((170, 180)), Window(0, 220),
        "0 CPU 10 launch delay 20 compute 100 CPU 130 unified memory 180 delay between operations 190 compute 220"),
}  # fmt: skip
"""Programs, a window, and the pieces of the path in it, each after its start."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_path_goes_from_each_piece_to_what_it_waited_for(name, tmp_path):
    steps, window, told = PROGRAMS[name]
    with job_of(written(tmp_path / "one.sqlite", steps.write)) as job:
        pieces = critical_path(job, job.ranks[0].task, window).pieces
    assert [one.end for one in pieces[:-1]] == [one.start for one in pieces[1:]]
    assert " ".join(f"{one.start} {KINDS[one.kind]}" for one in pieces) + f" {pieces[-1].end}" == told


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
        (1, ms // 2, 3 * ms, "compute"), (1, 3 * ms, last, "delay between operations"), (0, last, 5 * ms, "NCCL"),
        (0, 5 * ms, 5 * ms + 7, "delay between operations"), (0, 5 * ms + 7, 9 * ms, "compute"),
    ]  # fmt: skip


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
@pytest.mark.parametrize(("name", "text", "place", "hta", "ours", "tolerance"), [
    ("alexnet-forward", "measure|forward", 1, (89.418, 10.359, 0.140, 0.084), (89.415, 10.359, 0.142, 0.084), 0.01),
    ("simple-add", "", 0, (99.869, 0.099, 0.029, 0.004), (99.904, 0.095, 0, 0.001), 0.04),
    ("event-sync-two-streams", "", 0, (87.012, 10.526, 1.273, 1.188), (88.354, 10.380, 0, 1.266), 1.4),
    ("nccl-2-ranks-rank0", "ProfilerStep", 0, (100, 0, 0, 0), (99.993, 0.001, 0, 0.006), 0.01),
])  # fmt: skip
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
