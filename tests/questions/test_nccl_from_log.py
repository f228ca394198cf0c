"""Message sizes from NCCL's debug log: by order, and only where the log has exactly the calls of the export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nccl_program import Program, rows

from nsystui.questions.job import Job
from nsystui.questions.nccl.from_log import read_log

INIT = (
    "node001:{pid}:{pid} [0] NCCL INFO ncclCommInitRankConfig comm {comm} rank 3 nranks 4 cudaDev 0 nvmlDev 0 "
    "busId 17000 commId 0x54fe282d32a87d85 - Init COMPLETE"
)
CALL = (
    "{host}:{pid}:{pid} [0] NCCL INFO {op}: opCount {number:x} sendbuff 0x7 recvbuff 0x9 count {count} datatype 7 op 0 "
    "root 0 comm {comm} [nranks=4] stream 0x55"
)


def log(path: Path, *calls: tuple[str, int], pid: int = 5000, host: str = "node001", comm: str = "0x55b6") -> Path:
    lines = [INIT.format(pid=pid, comm=comm)]
    lines += [
        CALL.format(host=host, pid=pid, op=op, number=number, count=count, comm=comm)
        for number, (op, count) in enumerate(calls)
    ]
    with path.open("a", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")
    return path


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    yield Program(tmp_path / "program.sqlite")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return tmp_path / "nccl.log"


def reduced(program: Program, times: int = 2) -> Job:
    """A program that reduces so often, and gathers once, without telling sizes."""
    for _ in range(times):
        program.call("ncclAllReduce", launches=1, kernel="AllReduce")
    program.call("ncclAllGather", launches=1, kernel="AllGather")
    return program.job()


def aligned(job: Job, *names: Path) -> Job:
    job.nccl_log = read_log(map(str, names), job.ranks)
    return job


KEYS = ("collective", "message_size", "communicator", "ranks", "reduction", "datatype")


def test_calls_and_their_kernels_get_what_the_log_says(program, text):
    log(text, ("AllReduce", 100), ("AllGather", 7), ("AllReduce", 1000))
    job = aligned(reduced(program), text)
    pairing = job.pairing()
    expected = [
        ("AllReduce", 400, "0x54fe282d32a87d85", 4, "Sum", "fp32"),
        ("AllReduce", 4000, "0x54fe282d32a87d85", 4, "Sum", "fp32"),
        ("AllGather", 28, "0x54fe282d32a87d85", 4, None, "fp32"),
    ]
    assert rows(pairing.calls, *KEYS) == expected
    assert rows(pairing.kernels, *KEYS[:4]) == [row[:4] for row in expected]
    assert set(pairing.calls["size_source"]) == {"log"}
    assert pairing.notes == ("message sizes from the debug log, by the order of the calls: 3",)
    job.close()


def test_other_counts_are_not_aligned_and_a_note_says_so(program, text):
    log(text, ("AllReduce", 100), ("AllGather", 7))
    job = aligned(reduced(program), text)
    pairing = job.pairing()
    assert rows(pairing.calls, "collective", "message_size") == [
        ("AllReduce", None),
        ("AllReduce", None),
        ("AllGather", 28),
    ]
    assert pairing.notes == (
        "message sizes from the debug log, by the order of the calls: 1",
        "where the debug log does not fit, sizes stay unknown: 2 calls of AllReduce, but 1 in the log",
    )
    job.close()


@pytest.mark.parametrize("who", [{"pid": 5001}, {"pid": 6000}])
def test_another_process_tells_nothing(program, text, who):
    log(text, ("AllReduce", 100), ("AllReduce", 7), ("AllGather", 7), **who)
    job = aligned(reduced(program), text)
    assert job.pairing().calls["message_size"].isna().all()
    assert "no calls of these processes" in job.pairing().notes[0]
    job.close()


def two_streams(program: Program) -> Job:
    """Three reductions, the second of which is on a stream of its own."""
    for stream in (20, 30, 20):
        program.call("ncclAllReduce", launches=1, kernel="AllReduce", stream=stream)
    return program.job()


def test_communicators_of_one_process_are_told_apart_by_their_streams(program, text):
    log(text, ("AllReduce", 100), ("AllReduce", 300))
    log(text, ("AllReduce", 7), comm="0x77")
    job = aligned(two_streams(program), text)
    assert rows(job.pairing().calls, "message_size") == [(400,), (28,), (1200,)]
    job.close()


@pytest.mark.parametrize("second", [("AllReduce", "AllReduce"), ("AllReduce", "AllReduce", "AllReduce")])
def test_communicators_whose_counts_do_not_tell_them_apart_tell_nothing(program, text, second):
    log(text, ("AllReduce", 100), ("AllReduce", 300))
    log(text, *((op, 7) for op in second), comm="0x77")
    job = aligned(two_streams(program), text)
    assert job.pairing().calls["message_size"].isna().all()
    assert "AllReduce on 2 communicators of one process" in job.pairing().notes[0]
    job.close()


def test_what_the_export_tells_stays(program, text):
    program.call("ncclAllReduce", size=64, launches=1, kernel="AllReduce")
    program.call("ncclAllReduce", launches=1, kernel="AllReduce")
    log(text, ("AllReduce", 100))
    job = aligned(program.job(), text)
    assert rows(job.pairing().calls, "message_size", "size_source") == [(64, "payload"), (400, "log")]
    job.close()


def test_kernels_without_nvtx_calls_are_aligned_themselves(tmp_path, text):
    program = Program(tmp_path / "silent.sqlite", domain=False)
    for number in range(2):
        program.launch(1_000_000 * (number + 1), program.main, 20, "AllReduce")
    log(text, ("AllReduce", 100), ("AllReduce", 25))
    job = aligned(program.job(), text)
    assert rows(job.pairing().kernels, "message_size", "ranks") == [(400, 4), (100, 4)]
    assert job.pairing().kernels["bus_size"].tolist() == [600.0, 150.0]
    job.close()


def test_the_log_may_come_when_a_pairing_is_there(program, text):
    log(text, ("AllReduce", 100), ("AllReduce", 7), ("AllGather", 7))
    job = reduced(program)
    assert job.pairing().calls["message_size"].isna().all()
    assert aligned(job, text).pairing().calls["message_size"].notna().all()
    job.close()
