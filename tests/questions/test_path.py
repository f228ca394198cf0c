"""The critical path of small programs and real exports, and bounds of waits whose producer was not recorded."""

import csv
import io
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from filling import Steps
from support import SHARED, edit, job_of, session_over, shared
from synthetic import ExportWriter
from synthetic.gpu_program import GEMM, NCCL, Program
from synthetic.writing.writer import EVENT_SYNC, NO_STREAM, STREAM_SYNC

import nsystui
from nsystui.base.answer import record
from nsystui.base.selection import Selection, Window
from nsystui.cli import main
from nsystui.questions.blocking.parts import PARTS, blocked_in, blocking
from nsystui.questions.blocking.path import GROUPINGS, KINDS, path_table, walked
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.time_window import extent


def written(path: Path, write: Callable[[Program], object]) -> Path:
    with ExportWriter(path) as export:
        write(Case(export, 4000))
    return path


class Case(Program):
    def synchronise(self, name: str, span: tuple[int, int], stream: int, **how: int) -> None:
        self.export.sync(self.process, 0, stream, *span, correlation_id=self.call(name, span), **how)


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
        pieces = walked(job, job.ranks[0].task, window)[1].pieces
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
        found = walked(job, job.ranks[0].task, Window(ms // 2, 9 * ms))[1].pieces
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
        path = walked(job, job.ranks[0].task, Window(100 * us, 500 * us))[1]
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
    chosen = [number for number, name in enumerate(ranges.columns["name"].tolist()) if text in ranges.names[name]]
    spans = sorted(zip(ranges.values("start")[chosen].tolist(), ranges.values("end")[chosen].tolist(), strict=True))
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
    for piece in walked(job, job.ranks[0].task, window)[1].pieces:
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


US = 1_000
NO_RECORDS = "DELETE FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT"
NO_WAITS = "DELETE FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NO_CALLS_OF_EVENTS = (
    "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE nameId IN (SELECT id FROM StringIds WHERE value LIKE '%Event%')"
)


class Step(Program):
    """Steps of 200 µs: a kernel of 80 µs, then NCCL of 80 µs in another stream, for which the next kernel waits."""

    def run(self, steps: int = 4, is_held: bool = True, same_stream: bool = False) -> None:
        for number in range(steps):
            now = 10_000 + number * 200 * US
            self.step(number, (now, now + 19))
            self.kernel((now, now + 2), (now + 20 * US, now + 100 * US))
            self.record(now + 4, 1 + number, 13)
            self.wait(now + 6, 1 + number, 20)
            end = now + 180 * US
            self.nccl((now + 8, now + 9), (now + 102 * US, end), stream=13 if same_stream else 20)
            self.record(now + 11, 101 + number, 20)
            if is_held:
                self.wait(now + 13, 101 + number, 13)
            self.kernel((now + 15, now + 17), (end + 5 * US, end + 20 * US))


def stepped(path: Path, *losses: str, **how: Any) -> Path:
    with ExportWriter(path) as export:
        Step(export, 4711).run(**how)
    for loss in losses:
        edit(path, loss)
    return path


def times(path: Path, window: Window | None = None) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return the parts of all of the time, and how much of the unresolved time may belong to each, µs."""
    with closing(OpenJob(session_over(path))) as job:
        (one,) = (blocking(job).whole if window is None else blocked_in(job, window)).values()
        tables = (one.parts[0].tolist(), one.possible[0].tolist())
        return tuple({name: t // US for name, t in zip(PARTS, own, strict=True) if t} for own in tables)  # type: ignore[return-value]


LOSSES = [
    (NO_RECORDS, NO_WAITS),
    pytest.param((NO_RECORDS,), marks=pytest.mark.campaign),
    pytest.param((NO_RECORDS, NO_WAITS, NO_CALLS_OF_EVENTS), marks=pytest.mark.campaign),
]
BETWEEN = 3 * 20
"""Time from a step's last kernel to the first kernel of the next step, which was launched in time."""


@pytest.mark.campaign
@pytest.mark.parametrize("losses", LOSSES)
def test_without_records_nccl_may_have_blocked_all_that_it_did(tmp_path, losses):
    right, nothing = times(stepped(tmp_path / "a.sqlite"))
    assert not nothing and right["nccl"] == 4 * 80 and "unresolved" not in right
    parts, possible = times(stepped(tmp_path / "b.sqlite", *losses))
    assert parts == {name: time for name, time in right.items() if name != "nccl"} | {"unresolved": 4 * 80}
    assert possible == {"nccl": 4 * 80, "stalled": 4 * 80}


@pytest.mark.campaign
@pytest.mark.parametrize(("losses", "words"), [
    ((), ""),
    ((NO_RECORDS,), "are unresolved (100.0 %): streams waited for events"),
    ((NO_RECORDS, NO_WAITS, NO_CALLS_OF_EVENTS), "waits between streams are not in the export"),
])  # fmt: skip
def test_a_budget_with_unresolved_time_says_why(tmp_path, capsys, losses, words):
    assert main(["budget", str(stepped(tmp_path / "a.sqlite", *losses)), "--by", "step", "--no-cache"]) == 0
    _, notes = capsys.readouterr()
    assert words in notes and ("any work" in notes or "any earlier work" in notes) == bool(words)


@pytest.mark.campaign
def test_some_records_and_the_waits_of_some_steps_are_missing(tmp_path):
    lost = f"{NO_RECORDS} WHERE eventId IN (101, 103)"
    parts, possible = times(stepped(tmp_path / "a.sqlite", lost))
    assert (parts["nccl"], parts["unresolved"], possible["nccl"]) == (2 * 80, 2 * 80, 2 * 80)
    lost = "DELETE FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION WHERE eventId = 102"
    parts, possible = times(stepped(tmp_path / "b.sqlite", lost))
    assert (parts["nccl"], parts["unresolved"], possible["nccl"]) == (3 * 80, 80, 80)


def test_a_handle_whose_last_record_was_lost_is_not_taken_for_the_one_before(tmp_path):
    def write(path: Path) -> Path:
        with ExportWriter(path) as export:
            program = Program(export, 4711)
            program.kernel((0, 1), (20 * US, 100 * US))
            program.copy((2, 3), (10 * US, 110 * US), stream=14)
            program.record(4, 5, 14)
            program.nccl((6, 7), (15 * US, 180 * US))
            program.record(8, 5, 20)
            program.wait(10, 5, 13)
            program.kernel((12, 13), (185 * US, 200 * US))
        return path

    assert times(write(tmp_path / "a.sqlite"))[0]["nccl"] == 80
    path = write(tmp_path / "b.sqlite")
    edit(path, f"{NO_RECORDS} WHERE streamId = 20")
    parts, possible = times(path)
    assert parts == {"compute": 80 + 15, "stalled": 10 + 5, "unresolved": 80}
    assert possible == {"to_device": 10, "nccl": 80, "stalled": 80}


@pytest.mark.campaign
def test_what_is_known_without_events_stays_known(tmp_path):
    """NCCL on the compute's own stream, a program that makes no stream wait, and one whose waits are of a graph."""
    right, _ = times(stepped(tmp_path / "a.sqlite", same_stream=True))
    assert times(stepped(tmp_path / "b.sqlite", NO_RECORDS, NO_WAITS, same_stream=True)) == (right, {})
    with ExportWriter(tmp_path / "c.sqlite") as export:
        program = Program(export, 4711)
        program.kernel((0, 1), (20 * US, 100 * US))
        program.call("cudaStreamBeginCapture_v10000", (2, 3))
        program.call("cudaEventRecord_v3020", (4, 5))
        program.call("cudaStreamWaitEvent_v3020", (6, 7))
        program.call("cudaStreamEndCapture_v10000", (8, 9))
        program.nccl((10, 11), (90 * US, 150 * US))
        program.record(12, 5, 20)
        program.kernel((14, 15), (155 * US, 200 * US))
    assert times(tmp_path / "c.sqlite") == ({"compute": 80 + 45, "stalled": 55}, {})


def test_work_that_was_launched_later_or_still_ran_cannot_have_held_a_kernel(tmp_path):
    with ExportWriter(tmp_path / "a.sqlite") as export:
        program = Program(export, 4711)
        program.kernel((0, 1), (20 * US, 100 * US))
        program.copy((2, 3), (30 * US, 130 * US), stream=14)
        program.call("cudaEventRecord_v3020", (4, 5))
        program.call("cudaStreamWaitEvent_v3020", (6, 7))
        program.memset((8, 9), (40 * US, 195 * US), stream=15)
        program.kernel((10, 11), (185 * US, 200 * US))
        program.nccl((12, 13), (95 * US, 170 * US))
    parts, possible = times(tmp_path / "a.sqlite")
    assert parts == {"compute": 80 + 15, "stalled": 55, "unresolved": 30}
    assert possible == {"to_device": 30, "stalled": 30}


def test_inside_a_graph_the_work_before_a_node_may_have_held_it(tmp_path):
    with ExportWriter(tmp_path / "a.sqlite") as export:
        program = Program(export, 4711)
        program.kernel((0, 10), (20 * US, 100 * US))
        number = program.call("cudaGraphLaunch_v10000", (11, 12))
        for node, (stream, name, span) in enumerate(((20, NCCL, (101, 150)), (13, GEMM, (155, 200)))):
            how = {"correlation_id": number, "graph_node_id": 4 + node, "context": 1}
            export.kernel(program.process, 0, stream, span[0] * US, span[1] * US, name=name, **how)
    parts, possible = times(tmp_path / "a.sqlite")
    assert parts == {"compute": 80 + 45, "unresolved": 50, "in_graph": 5}
    assert possible == {"nccl": 50, "in_graph": 50}


def test_a_window_is_told_as_the_whole(tmp_path):
    path = stepped(tmp_path / "a.sqlite", NO_RECORDS, NO_WAITS)
    parts, possible = times(path, Window(10_000 + 140 * US, 10_000 + 300 * US))
    assert (parts["unresolved"], possible["nccl"]) == (40 + 0, 40 + 0)


@pytest.fixture
def asked(capsys) -> Callable[..., str]:
    def ask(*words: object) -> str:
        assert main([str(word) for word in words]) == 0
        told = capsys.readouterr()
        return " ".join(f"{told.out} {told.err}".split()) if words[0] == "triage" else told.out

    return ask


@pytest.mark.campaign
@pytest.mark.parametrize("losses", LOSSES)
def test_triage_says_between_which_shares_nccl_blocks_and_warns(tmp_path, asked, losses):
    whole = asked("triage", stepped(tmp_path / "a.sqlite", steps=30))
    told = asked("triage", stepped(tmp_path / "b.sqlite", *losses, steps=30))
    assert "blocked most by NCCL (40" in whole and "W exposed-communication" in whole
    assert "blocked most by NCCL (0 to 40" in told and "W exposed-communication" in told
    assert "It may block compute for up to 2.4 ms" in told
    assert "blocks no compute" not in told
    assert ("--cuda-event-trace=true" in told) == (NO_CALLS_OF_EVENTS not in losses)


@pytest.mark.parametrize("loss", ["", NO_RECORDS])
def test_triage_denies_blocking_only_if_all_waits_are_known(tmp_path, asked, loss):
    """The kernel after NCCL is launched late."""
    with ExportWriter(tmp_path / "a.sqlite") as export:
        program = Program(export, 4711)
        for now in range(10_000, 10_000 + 30 * 200 * US, 200 * US):
            program.kernel((now, now + 1), (now + 20 * US, now + 100 * US))
            program.record(now + 2, 1, 13)
            program.wait(now + 4, 1, 20)
            program.nccl((now + 6, now + 7), (now + 102 * US, now + 140 * US))
            program.kernel((now + 150 * US, now + 151 * US), (now + 155 * US, now + 180 * US))
    if loss:
        edit(tmp_path / "a.sqlite", loss)
    told = asked("triage", tmp_path / "a.sqlite")
    assert ("It blocks no compute." in told) == (not loss)
    assert ("No kernel can have waited for it." in told) == bool(loss)


@pytest.mark.campaign
def test_a_rank_whose_waits_are_lost_makes_a_range_of_the_job_and_alone_is_advised(tmp_path, asked):
    ranks = [stepped(tmp_path / f"rank{number}.sqlite", steps=30) for number in range(2)]
    edit(ranks[1], NO_RECORDS)
    told = asked("triage", *ranks)
    assert "It blocks compute for 1.2 ms to 2.4 ms" in told and "60 of 120 waits" in told
    rows = list(csv.DictReader(io.StringIO(asked("steps", "--budget", *ranks, "--format", "csv"))))
    own = {rank: [row for row in rows if row["Rank"] == str(rank)] for rank in range(2)}
    assert {row["Blocked by NCCL (ns)"] for row in own[0]} == {str(80 * US)}
    assert {(row["Blocked by NCCL (ns)"], row["Unresolved (ns)"]) for row in own[1]} == {("", str(80 * US))}


@pytest.mark.campaign
def test_a_comparison_takes_no_lost_waits_for_less_blocking(tmp_path, asked):
    a, b = stepped(tmp_path / "a.sqlite", steps=30), stepped(tmp_path / "b.sqlite", NO_RECORDS, steps=30)
    asked("pack", b, "-o", tmp_path / "packed")
    for other in (b, tmp_path / "packed"):
        told = asked("diff", a, "--against", other, "--tables", "steps", "--format", "csv")
        (row,) = (row for row in csv.DictReader(io.StringIO(told)) if row["Of Each Step"] == "blocked by NCCL")
        assert (row["Med A (ns)"], row["Med B (ns)"], row["Median Difference (ns)"]) == ("80000.0", "", "")


def test_on_the_path_the_wait_is_unresolved(tmp_path):
    for number, (losses, kind) in enumerate((((), "NCCL"), ((NO_RECORDS,), "unresolved"))):
        with closing(OpenJob(session_over(stepped(tmp_path / f"{number}.sqlite", *losses)))) as job:
            (rank,) = job.ranks
            path = walked(job, rank.task, Window(10_000, 10_000 + 200 * US))[1]
        found = {KINDS[one.kind]: one.end - one.start for one in path.pieces}
        assert found[kind] >= 78 * US and sum(one.end - one.start for one in path.pieces) == 200 * US
