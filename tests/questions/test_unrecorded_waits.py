"""Time of waits whose producer was not recorded has bounds, and is never attributed to another part."""

import csv
import io
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import edit, session_over
from synthetic import ExportWriter
from synthetic.gpu_program import GEMM, NCCL, Program

from nsystui.base.selection import Window
from nsystui.cli import main
from nsystui.questions.blocking.parts import PARTS, blocked_in, blocking
from nsystui.questions.blocking.path import KINDS, critical_path
from nsystui.questions.job.job import OpenJob

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


def written(path: Path, *losses: str, **how: Any) -> Path:
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
COMPUTE = 4 * (80 + 15)
BETWEEN = 3 * 20
"""Time from a step's last kernel to the first kernel of the next step, which was launched in time."""


@pytest.mark.parametrize("losses", LOSSES)
def test_without_records_nccl_may_have_blocked_all_that_it_did(tmp_path, losses):
    right, nothing = times(written(tmp_path / "a.sqlite"))
    assert not nothing and right["nccl"] == 4 * 80 and "unresolved" not in right
    parts, possible = times(written(tmp_path / "b.sqlite", *losses))
    assert parts == {name: time for name, time in right.items() if name != "nccl"} | {"unresolved": 4 * 80}
    assert possible == {"nccl": 4 * 80, "stalled": 4 * 80}


@pytest.mark.parametrize(("losses", "words"), [
    ((), ""),
    ((NO_RECORDS,), "waits of streams for events (100.0 %) are unresolved"),
    ((NO_RECORDS, NO_WAITS, NO_CALLS_OF_EVENTS), "waits between streams are not in the export"),
])  # fmt: skip
def test_a_budget_with_unresolved_time_says_why(tmp_path, capsys, losses, words):
    path = written(tmp_path / "a.sqlite", *losses)
    assert main(["budget", str(path), "--by", "step", "--no-cache"]) == 0
    _, notes = capsys.readouterr()
    assert words in notes and ("any work" in notes or "any earlier work" in notes) == bool(words)


def test_some_records_and_the_waits_of_some_steps_are_missing(tmp_path):
    lost = f"{NO_RECORDS} WHERE eventId IN (101, 103)"
    parts, possible = times(written(tmp_path / "a.sqlite", lost))
    assert (parts["nccl"], parts["unresolved"], possible["nccl"]) == (2 * 80, 2 * 80, 2 * 80)
    lost = "DELETE FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION WHERE eventId = 102"
    parts, possible = times(written(tmp_path / "b.sqlite", lost))
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


def test_what_is_known_without_events_stays_known(tmp_path):
    """NCCL on the compute's own stream, a program that makes no stream wait, and one whose waits are of a graph."""
    right, _ = times(written(tmp_path / "a.sqlite", same_stream=True))
    assert times(written(tmp_path / "b.sqlite", NO_RECORDS, NO_WAITS, same_stream=True)) == (right, {})
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
    path = written(tmp_path / "a.sqlite", NO_RECORDS, NO_WAITS)
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
    whole = asked("triage", written(tmp_path / "a.sqlite", steps=30))
    told = asked("triage", written(tmp_path / "b.sqlite", *losses, steps=30))
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
    ranks = [written(tmp_path / f"rank{number}.sqlite", steps=30) for number in range(2)]
    edit(ranks[1], NO_RECORDS)
    told = asked("triage", *ranks)
    assert "It blocks compute for 1.2 ms to 2.4 ms" in told and "60 of 120 waits" in told
    rows = list(csv.DictReader(io.StringIO(asked("steps", "--budget", *ranks, "--format", "csv"))))
    own = {rank: [row for row in rows if row["Rank"] == str(rank)] for rank in range(2)}
    assert {row["Blocked by NCCL (ns)"] for row in own[0]} == {str(80 * US)}
    assert {(row["Blocked by NCCL (ns)"], row["Unresolved (ns)"]) for row in own[1]} == {("", str(80 * US))}


@pytest.mark.campaign
def test_a_comparison_takes_no_lost_waits_for_less_blocking(tmp_path, asked):
    a, b = written(tmp_path / "a.sqlite", steps=30), written(tmp_path / "b.sqlite", NO_RECORDS, steps=30)
    asked("pack", b, "-o", tmp_path / "packed")
    for other in (b, tmp_path / "packed"):
        told = asked("diff", a, "--against", other, "--tables", "steps", "--format", "csv")
        (row,) = (row for row in csv.DictReader(io.StringIO(told)) if row["Of Each Step"] == "blocked by NCCL")
        assert (row["Med A (ns)"], row["Med B (ns)"], row["Median Difference (ns)"]) == ("80000.0", "", "")


def test_on_the_path_the_wait_is_unresolved(tmp_path):
    for number, (losses, kind) in enumerate((((), "NCCL"), ((NO_RECORDS,), "unresolved"))):
        with closing(OpenJob(session_over(written(tmp_path / f"{number}.sqlite", *losses)))) as job:
            (rank,) = job.ranks
            path = critical_path(job, rank.task, Window(10_000, 10_000 + 200 * US))
        found = {KINDS[one.kind]: one.end - one.start for one in path.pieces}
        assert found[kind] >= 78 * US and sum(one.end - one.start for one in path.pieces) == 200 * US
