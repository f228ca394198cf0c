"""Message sizes from NCCL's debug log: by order, and only if the log has exactly the calls of the export."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import campaign
import pytest
from nccl_jobs import Program, rows
from synthetic.nccl_log import call, init

from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.from_log import read_log
from nsystui.questions.nccl.pairing import NcclPairing


def log(path: Path, *calls: tuple[str, int], pid: int = 5000, comm: str = "0x55b6") -> Path:
    with path.open("a", encoding="utf-8") as out:
        print(init(pid, comm, 3, 4, "0x54fe282d32a87d85", host="node001"), file=out)
        for number, (op, count) in enumerate(calls):
            print(call(op, count, pid=pid, comm=comm, op_count=number, ranks=4, host="node001"), file=out)
    return path


KEYS = ("collective", "message_size", "communicator", "ranks", "reduction", "datatype")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return tmp_path / "nccl.log"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path / "program.sqlite")


@pytest.fixture(scope="module")
def reduced(tmp_path_factory) -> Iterator[OpenJob]:
    """Yield a program that reduces twice, and gathers once, without recorded sizes."""
    program = Program(tmp_path_factory.mktemp("reduced") / "program.sqlite")
    for name in ("AllReduce", "AllReduce", "AllGather"):
        program.call(f"nccl{name}", launches=1, kernel=name)
    with closing(program.job()) as job:
        yield job


@pytest.fixture(scope="module")
def two_streams(tmp_path_factory) -> Iterator[OpenJob]:
    """Yield three reductions, the second on another stream."""
    program = Program(tmp_path_factory.mktemp("streams") / "program.sqlite")
    for stream in (20, 30, 20):
        program.call("ncclAllReduce", launches=1, kernel="AllReduce", stream=stream)
    with closing(program.job()) as job:
        yield job


def aligned(job: OpenJob, *names: Path) -> NcclPairing:
    """Return the pairing with the sizes of logs, which may be opened after the pairing."""
    job = OpenJob(job.session)
    assert "size_source" in job.pairing().calls
    job.nccl_log = read_log(map(str, names), job.ranks)
    return job.pairing()


@pytest.mark.campaign
def test_calls_and_their_kernels_get_what_the_log_says(reduced, text):
    assert reduced.pairing().calls["message_size"].isna().all()
    pairing = aligned(reduced, log(text, ("AllReduce", 100), ("AllGather", 7), ("AllReduce", 1000)))
    expected = [
        ("AllReduce", 400, "0x54fe282d32a87d85", 4, "Sum", "fp32"),
        ("AllReduce", 4000, "0x54fe282d32a87d85", 4, "Sum", "fp32"),
        ("AllGather", 28, "0x54fe282d32a87d85", 4, None, "fp32"),
    ]
    assert rows(pairing.calls, *KEYS) == expected
    assert rows(pairing.kernels, *KEYS[:4]) == [row[:4] for row in expected]
    assert set(pairing.calls["size_source"]) == {"log"}
    assert pairing.notes == ("message sizes from the debug log, by the order of the calls: 3",)


@pytest.mark.campaign
def test_other_counts_are_not_aligned_and_a_note_says_so(reduced, text):
    pairing = aligned(reduced, log(text, ("AllReduce", 100), ("AllGather", 7)))
    assert rows(pairing.calls, *KEYS[:2]) == [("AllReduce", None), ("AllReduce", None), ("AllGather", 28)]
    assert pairing.notes == (
        "message sizes from the debug log, by the order of the calls: 1",
        "sizes are unknown if the debug log does not match: 2 calls of AllReduce, but 1 in the log",
    )


@pytest.mark.parametrize("pid", campaign.first(1, [5001, 6000]))
def test_another_process_tells_nothing(reduced, text, pid):
    pairing = aligned(reduced, log(text, ("AllReduce", 100), ("AllReduce", 7), ("AllGather", 7), pid=pid))
    assert pairing.calls["message_size"].isna().all()
    assert "no calls of these processes" in pairing.notes[0]


def test_communicators_of_one_process_are_told_apart_by_their_streams_and_counts(two_streams, text):
    log(text, ("AllReduce", 100), ("AllReduce", 300))
    log(text, ("AllReduce", 7), comm="0x77")
    assert rows(aligned(two_streams, text).calls, "message_size") == [(400,), (28,), (1200,)]


@pytest.mark.parametrize("second", campaign.first(1, [2, 3]))
def test_communicators_whose_counts_do_not_tell_them_apart_tell_nothing(two_streams, text, second):
    log(text, ("AllReduce", 100), ("AllReduce", 300))
    log(text, *[("AllReduce", 7)] * second, comm="0x77")
    pairing = aligned(two_streams, text)
    assert pairing.calls["message_size"].isna().all()
    assert "AllReduce on 2 communicators of one process" in pairing.notes[0]


@pytest.mark.campaign
def test_what_the_export_tells_stays(program, text):
    program.call("ncclAllReduce", size=64, launches=1, kernel="AllReduce")
    program.call("ncclAllReduce", launches=1, kernel="AllReduce")
    with closing(program.job()) as job:
        calls = aligned(job, log(text, ("AllReduce", 100))).calls
    assert rows(calls, "message_size", "size_source") == [(64, "payload"), (400, "log")]


@pytest.mark.campaign
def test_kernels_without_nvtx_calls_are_aligned_themselves(tmp_path, text):
    program = Program(tmp_path / "silent.sqlite", domain=False)
    for number in range(2):
        program.launch(1_000_000 * (number + 1), program.main, 20, "AllReduce")
    with closing(program.job()) as job:
        kernels = aligned(job, log(text, ("AllReduce", 100), ("AllReduce", 25))).kernels
    assert rows(kernels, "message_size", "ranks", "bus_size") == [(400, 4, 600.0), (100, 4, 150.0)]
