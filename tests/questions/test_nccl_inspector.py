"""Message sizes from NCCL's debug log or its Inspector: by order or number, and never by guessing."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import campaign
import pytest
from campaign import first
from nccl_jobs import Program, rows
from synthetic.demo import CaptureSession
from synthetic.nccl_log import call, init
from synthetic.nccl_program import A, B

from nsystui.base.selection import Selection
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.from_log import read_log
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.nccl.summary import nccl_summary

KEYS = ("collective", "message_size", "algorithm", "protocol", "inspected")


def record(number: int | None, size: int, op: str = "AllReduce", comm: int = A, pid: int = 5000, **more: Any) -> str:
    """Return a record of format v4.2 as a line."""
    header = {"id": f"{comm:#x}", "comm_name": "unknown", "rank": more.pop("rank", 0), "n_ranks": 4, "nnodes": 1}
    metadata = {"inspector_output_format_version": "v4.2", "hostname": more.pop("host", "node001"), "pid": pid}
    prefix = "p2p" if op in ("Send", "Recv") else "coll"
    body = {prefix: op, "sn": number, "msg_size_bytes": size, "exec_time_us": 10 + (number or 0), "busbw_gbs": 2.5}
    body |= {} if prefix == "p2p" else {"algo": "RING", "proto": "LL"}
    body = {
        key if key in (prefix, "event_trace_ts") else f"{prefix}_{key}": value for key, value in (body | more).items()
    }
    return json.dumps({"header": header, "metadata": metadata, f"{prefix}_perf": body}) + "\n"


@pytest.fixture
def program(tmp_path) -> Program:
    return Program(tmp_path / "program.sqlite")


@pytest.fixture
def joined(program, tmp_path):
    """Return the pairing of the program with these records."""

    def pair(*records: str) -> NcclPairing:
        path = tmp_path / "n1-pid5000.log"
        path.write_text("".join(records))
        with closing(program.job()) as job:
            job = OpenJob(job.session)
            job.nccl_log = read_log([str(path)], job.ranks)
            return job.pairing()

    return pair


def reduce(program: Program, *sizes: int, comm: int = A) -> None:
    for size in sizes:
        program.call("ncclAllReduce", launches=1, kernel="AllReduce", size=size, comm=comm)


class TestJoined:
    def test_calls_and_kernels_get_algorithm_and_time_and_gaps_stay_empty(self, program, joined):
        program.call("ncclCommInitRankConfig", comm=A)
        reduce(program, 65536, 8, 131072, 4)
        pairing = joined(record(0, 65536), record(2, 131072))
        expected = [(65536, "RING", 10_000), (8, None, None), (131072, "RING", 12_000), (4, None, None)]
        assert rows(pairing.kernels, "message_size", "algorithm", "inspected") == expected
        assert rows(pairing.calls, "message_size", "algorithm", "inspected")[1:] == expected
        assert "NCCL Inspector: 2 of 2 records joined with calls here, by order" in pairing.notes

    def test_sizes_and_communicators_that_the_export_lacks_are_the_records(self, program, joined):
        for _ in range(3):
            program.call("ncclAllReduce", launches=1, kernel="AllReduce")
        pairing = joined(record(2, 4096), record(0, 65536))
        expected = [(65536, "0xa0", 4, "inspector"), (None, None, None, None), (4096, "0xa0", 4, "inspector")]
        assert rows(pairing.calls, "message_size", "communicator", "ranks", "size_source") == expected
        assert rows(pairing.kernels, "message_size", "inspected_busbw") == [(65536, 2.5e9), (None, None), (4096, 2.5e9)]

    def test_kernels_without_calls_are_joined_by_their_names(self, program, joined):
        for number in range(2):
            program.launch(1_000_000 + 50_000 * number, program.main, 20, "AllReduce")
        pairing = joined(record(0, 4096), record(1, 8192))
        assert rows(pairing.kernels, "message_size", "algorithm") == [(4096, "RING"), (8192, "RING")]

    def test_a_last_record_that_is_cut_short_counts_as_one_call(self, program, joined):
        reduce(program, 4096, 8192, 4096)
        pairing = joined(record(0, 4096), record(1, 8192), record(2, 4096)[:-30])
        assert rows(pairing.calls, "algorithm") == [("RING",), ("RING",), (None,)]
        assert "NCCL Inspector: 2 of 3 records joined with calls here, by order, 1 damaged or missing" in pairing.notes

    def test_communicators_of_the_export_are_told_apart(self, program, joined):
        program.call("ncclCommInitRankConfig", comm=A)
        program.call("ncclCommInitRankConfig", comm=B)
        reduce(program, 65536)
        reduce(program, 8, 131072, comm=B)
        pairing = joined(record(1, 131072, comm=B, algo="NVLS"), record(0, 65536))
        assert rows(pairing.kernels, "message_size", "algorithm") == [(65536, "RING"), (8, None), (131072, "NVLS")]

    def test_calls_that_nccl_launches_together_are_joined_only_by_their_sizes(self, program, joined):
        program.group(("ncclAllReduce", 4096, A), ("ncclAllReduce", 8192, A), launches=1, kernel="AllReduce")
        program.call("ncclAllReduce", launches=1, kernel="AllReduce", size=16384, comm=A)
        pairing = joined(record(0, 8192), record(1, 8192), record(2, 16384))
        calls = pairing.calls[pairing.calls["collective"].notna()]
        assert rows(calls, "message_size", "algorithm") == [(4096, None), (8192, "RING"), (16384, "RING")]

    @pytest.mark.parametrize(("difference", "numbers"), [(0, [5, 6, 7, 8]), (900_000, [5, 6, 7, 8]), (-2_000_000, [])])
    def test_times_of_verbose_records_show_which_call_an_export_begins_with(self, program, joined, difference, numbers):
        begun = []
        for pause in (0, 30_000, 5_000, 70_000):
            program.now += pause
            begun.append((CaptureSession().utc_epoch_ns + program.now + 2_000 + difference) // 1000)
            reduce(program, 4096)
        first = begun[0] - 40_000
        times = dict(enumerate([*range(first, first + 5), *begun, begun[-1] + 90_000]))
        del times[6]
        records = [record(n, 4096, event_trace_ts={"coll_start_ts": time}) for n, time in times.items()]
        expected = [None if n == 6 else 10_000 + 1_000 * n for n in numbers] or [None] * 4
        assert rows(joined(*records).calls, "inspected") == [(time,) for time in expected]

    def test_times_that_fit_several_calls_join_nothing(self, program, joined):
        reduce(program, 4096, 4096, 4096)
        begun = (CaptureSession().utc_epoch_ns + 1_012_000) // 1000
        pairing = joined(record(7, 4096, event_trace_ts={"coll_start_ts": begun}))
        assert "3 calls of AllReduce, but 8 in the log" in " ".join(pairing.notes)

    def test_a_text_log_beside_the_records_gives_its_sizes(self, program, tmp_path):
        for _ in range(2):
            program.call("ncclAllReduce", launches=1, kernel="AllReduce")
        line = (
            "node001:5000:5000 [0] NCCL INFO AllReduce: opCount {n} sendbuff 0x7 recvbuff 0x9 count 1024 datatype 7 "
            "op 0 root 0 comm 0x55 [nranks=4] stream 0x5\n"
        )
        (tmp_path / "a.log").write_text("".join(line.format(n=n) for n in range(2)))
        (tmp_path / "b.log").write_text(record(1, 4096))
        with closing(program.job()) as job:
            job.nccl_log = read_log([str(tmp_path / "a.log"), str(tmp_path / "b.log")], job.ranks)
            calls = job.pairing().calls
        assert rows(calls, "message_size", "size_source", "algorithm") == [(4096, "log", None), (4096, "log", "RING")]


class TestNotJoined:
    @pytest.mark.parametrize(("records", "reason"), first(3, [
        ((record(0, 4096), record(7, 4096)), "2 calls of AllReduce, but 8 in the log"),
        ((record(0, 4096)[:-30] + "\n", record(0, 4096)), "2 calls of AllReduce, but 1 in the log"),
        ((record(0, 4096), record(1, 99)), "AllReduce: other sizes than the export's"),
        ((record(1, 8192), record(1, 8192)), "AllReduce: some calls have several records"),
        ((record(1, 8192, pid=6000),), "1 of other processes"),
        ((record(None, 8192, "Send"),), "1 of sends and receives"),
        ((record(None, 8192),), "1 without a number"),
        ((record(1, 8192, "AllGather"), record(1, 8192)[:-3]), "1 damaged or missing, 1 without a call"),
        ((record(0, 4096),), "2 calls of AllReduce, but 1 in the log"),
        ((record(1, 8192), record(1, 8192, rank=1)), "AllReduce on 2 communicators of one process"),
        ((record(1, 8192, host="node002"),), "1 without a call"),
        ((record(1, 8192, comm=B),), "1 without a call"),
        ((record(1, 8192)[:200],), ""),
    ]))  # fmt: skip
    def test_what_does_not_match_is_counted_and_left_out(self, program, joined, records, reason):
        reduce(program, 4096, 8192)
        pairing = joined(*records)
        assert "algorithm" not in pairing.calls or pairing.calls["algorithm"].isna().all()
        assert pairing.calls["message_size"].tolist() == [4096, 8192]
        assert reason in " ".join(pairing.notes)

    def test_communicators_that_the_export_does_not_distinguish_get_nothing(self, program, joined):
        for _ in range(2):
            program.call("ncclAllReduce", launches=1, kernel="AllReduce")
        pairing = joined(record(0, 4096), record(1, 4096, comm=B))
        assert pairing.calls["message_size"].isna().all()
        assert "AllReduce on 2 communicators of one process" in " ".join(pairing.notes)

    def test_an_export_that_begins_late_gets_nothing(self, program, joined):
        reduce(program, 4096, 4096)
        program.call("ncclCommInitRankConfig", comm=B)
        reduce(program, 4096)
        assert joined(record(0, 4096), record(5, 4096)).calls["algorithm"].isna().all()

    @pytest.mark.campaign
    def test_calls_in_a_cuda_graph_do_not_count_as_launched(self, program, joined):
        program.call("ncclCommInitRankConfig", comm=A)
        program.call("ncclAllReduce", size=4096, comm=A)  # captured into a graph, which is launched twice
        reduce(program, 4096, 8192)
        pairing = joined(record(0, 4096), record(1, 4096), record(2, 4096), record(3, 8192))
        assert pairing.calls["algorithm"].isna().all()
        assert "3 calls of AllReduce, but 4 in the log" in " ".join(pairing.notes)


def test_an_export_that_ends_early_gets_the_records_of_its_calls(program, joined):
    program.call("ncclCommInitRankConfig", comm=A)
    reduce(program, 4096, 8192)
    pairing = joined(record(0, 4096), record(1, 8192), record(2, 4096))
    assert rows(pairing.kernels, "message_size", "algorithm") == [(4096, "RING"), (8192, "RING")]
    assert "NCCL Inspector: 2 of 3 records joined with calls here, by order, 1 without a call" in pairing.notes


def test_a_process_with_one_communicator_needs_no_communicators_in_the_export(program, joined):
    program.call("ncclCommInitRankConfig")
    for _ in range(3):
        program.call("ncclAllReduce", launches=1, kernel="AllReduce")
    assert rows(joined(record(1, 4096)).kernels, "message_size") == [(None,), (4096,), (None,)]


def test_streams_distinguish_communicators_of_other_numbers_of_calls(program, joined):
    for stream in (20, 30, 20):
        program.call("ncclAllReduce", launches=1, kernel="AllReduce", stream=stream)
    pairing = joined(record(0, 4096, comm=B), record(1, 8192))
    assert rows(pairing.kernels, "message_size", "communicator") == [(None, None), (4096, "0xb0"), (8192, "0xa0")]


@pytest.mark.campaign
def test_calls_list_the_values_of_their_records(program, tmp_path, capsys):
    from nsystui.cli import main

    reduce(program, 4096)
    program.export.close()
    path = tmp_path / "n1.log"
    path.write_text(record(0, 4096))
    words = ["nccl", str(program.export.path), "--format", "json", "--no-cache"]
    for what in ("--calls", "--kernels"):
        assert main([*words, what, "--nccl-log", str(path)]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        keys = ("algorithm", "protocol", "inspected_ns", "inspected_busbw_bytes_per_s")
        assert [row[key] for key in keys] == ["RING", "LL", 10_000, 2.5e9]
        assert main([*words, what]) == 0
        assert "algorithm" not in capsys.readouterr().out


def log(path: Path, *calls: tuple[str, int], pid: int = 5000, comm: str = "0x55b6") -> Path:
    with path.open("a", encoding="utf-8") as out:
        print(init(pid, comm, 3, 4, "0x54fe282d32a87d85", host="node001"), file=out)
        for number, (op, count) in enumerate(calls):
            print(call(op, count, pid=pid, comm=comm, op_count=number, ranks=4, host="node001"), file=out)
    return path


LOG_KEYS = ("collective", "message_size", "communicator", "ranks", "reduction", "datatype")


@pytest.fixture
def text(tmp_path) -> Path:
    return tmp_path / "nccl.log"


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
    assert rows(pairing.calls, *LOG_KEYS) == expected
    assert rows(pairing.kernels, *LOG_KEYS[:4]) == [row[:4] for row in expected]
    assert set(pairing.calls["size_source"]) == {"log"}
    assert pairing.notes == ("message sizes from the debug log, by the order of the calls: 3",)


@pytest.mark.campaign
def test_other_counts_are_not_aligned_and_a_note_says_so(reduced, text):
    pairing = aligned(reduced, log(text, ("AllReduce", 100), ("AllGather", 7)))
    assert rows(pairing.calls, *LOG_KEYS[:2]) == [("AllReduce", None), ("AllReduce", None), ("AllGather", 28)]
    assert pairing.notes == (
        "message sizes from the debug log, by the order of the calls: 1",
        "sizes are unknown if the debug log does not match: 2 calls of AllReduce, but 1 in the log",
    )


@pytest.mark.parametrize("pid", campaign.first(1, [5001, 6000]))
def test_another_process_tells_nothing(reduced, text, pid):
    pairing = aligned(reduced, log(text, ("AllReduce", 100), ("AllReduce", 7), ("AllGather", 7), pid=pid))
    assert pairing.calls["message_size"].isna().all()
    assert "no calls of these processes" in pairing.notes[0]
    advice = [note for note in nccl_summary(reduced, Selection(), pairing).notes if "NCCL 2" in note]
    assert len(advice) == 1 and "--nccl-log" not in advice[0]


@pytest.mark.campaign
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
