"""The NCCL table and the rows behind it: sums, sizes, selections, notes, and the way from a call to its kernel."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from synthetic import (
    PAYLOAD_BYTES,
    ExportWriter,
    empty_export,
    instrumented_nccl_export,
    nccl_without_nvtx_export,
    old_schema_export,
    payload_export,
    training_job,
    whole_graph_export,
)

from nsystui.base.answer import TableAnswer
from nsystui.base.columns import FILES_ONLY
from nsystui.base.selection import Selection, Task, Window
from nsystui.exports.demo import TrainingJob
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.job import Job
from nsystui.questions.kernels import Names, kernel_summary
from nsystui.questions.nccl.grouping import USUAL, By
from nsystui.questions.nccl.listing import COMMUNICATION, nccl_listing
from nsystui.questions.nccl.names import BUCKETS
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.nccl.summary import CALL, EXPORT_COMMAND, KERNEL, nccl_summary
from nsystui.questions.tasks import RankedTask
from nsystui.store import tables
from nsystui.store.session import Session

SHARED = Path(__file__).parents[3] / "shared/data"
EVERYTHING = Selection()


class Opened:
    """Some exports with their pairing, and the questions about them."""

    def __init__(self, *paths: Path) -> None:
        self.session = Session(cache=None)
        for path in paths:
            self.session.add(path)
        job = Job(self.session)
        self.ranks: tuple[RankedTask, ...] = job.ranks
        self.pairing: NcclPairing = job.pairing()

    def summary(self, selection: Selection = EVERYTHING, by_bucket: bool = True) -> TableAnswer:
        by = USUAL if by_bucket else (By.COLLECTIVE,)
        return nccl_summary(self.session, selection, self.ranks, self.pairing, by)

    def listing(
        self, what: Any, collective: str | None, *bucket: str | None, selection: Selection = EVERYTHING
    ) -> TableAnswer:
        """The rows of a collective; of one bucket where it is named."""
        row = dict(zip(USUAL, (collective, *bucket), strict=False))
        return nccl_listing(self.session, selection, self.ranks, self.pairing, row, what)


def values(answer: TableAnswer, *keys: str) -> list[tuple[Any, ...]]:
    """Some columns of an answer, row by row."""
    places = [[column.key for column in answer.columns].index(key) for key in keys]
    return [tuple(row[place] for place in places) for row in answer.rows]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Two ranks, three steps of nine collectives."""
    opened = Opened(*training_job(tmp_path_factory.mktemp("job"), ranks=2, steps=3, layers=6))
    yield opened
    opened.session.close()


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    opened = Opened(payload_export(tmp_path_factory.mktemp("payload") / "payload.sqlite"))
    yield opened
    opened.session.close()


STEP = TrainingJob(ranks=2, steps=3, layers=6).step_collectives


class TestSummary:
    def test_headers(self, payload):
        assert ",".join(column.header for column in payload.summary().columns) == (
            "What,Collective,Message Size,Communicator,Ranks,Datatype,Reduction,Count,Total Bytes,Time (%),"
            "Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),AlgBW (B/s),BusBW (B/s),"
            "BusBW w/o Wait (B/s),Exposed Time (ns),Overlapped (%)"
        )
        assert "Message Size" not in [column.header for column in payload.summary(by_bucket=False).columns]

    def test_kernels_first_then_calls_each_by_time(self, job):
        told = values(job.summary(), "what", "total")
        assert told == sorted(told, key=lambda item: (item[0] != KERNEL, -item[1]))
        assert {what for what, _ in told} == {KERNEL, CALL}

    def test_counts_and_bytes_of_kernels(self, job):
        """A SendRecv kernel moves what is sent and what is received."""
        wanted: dict[tuple[str, str], tuple[int, int]] = {}
        edges = {512 * 1024: 2, 48 << 20: 3, 4 << 20: 2, 8 << 20: 2, 4: 0, 192 * 1024: 1}
        for kind, size in STEP:
            key = (kind, BUCKETS[edges[size]])
            count, total = wanted.get(key, (0, 0))
            wanted[key] = (count + 6, total + 6 * size * (2 if kind == "SendRecv" else 1))
        told = values(job.summary(), "what", "collective", "bucket", "count", "bytes")
        assert {row[1:3]: row[3:] for row in told if row[0] == KERNEL} == wanted

    def test_calls_stand_under_their_collective_and_management_under_its_name(self, payload):
        told = {
            row[1]: row[2:] for row in values(payload.summary(), "what", "collective", "bucket", "bytes", "share")
            if row[0] == CALL
        }  # fmt: skip
        assert told["Send"] == ("64KiB–1MiB", PAYLOAD_BYTES["ncclSend"], None)
        assert told["AllGather"] == ("<64KiB", 65_535, None)
        assert told["ncclGroupEnd"] == (None, None, None)
        assert told["ncclCommInitRankConfig"] == (None, None, None)

    def test_the_share_is_of_all_kernels(self, job):
        kernels = kernel_summary(job.session, EVERYTHING, Names.SHORT)
        of_nccl = sum(share for name, share in values(kernels, "name", "share") if name.startswith("nccl"))
        told = [share for what, share in values(job.summary(), "what", "share") if what == KERNEL]
        assert sum(told) == pytest.approx(of_nccl)
        # A name filter leaves rows out and changes no share.
        one = values(job.summary(EVERYTHING.with_name("allgather")), "what", "share")[0]
        assert one in values(job.summary(), "what", "share")

    def test_statistics(self, tmp_path):
        opened = Opened(gather_calls(tmp_path / "calls.sqlite", [1_000, 2_000, 4_000, 9_000]))
        row = values(opened.summary(), "count", "total", "avg", "median", "min", "max", "stddev")[0]
        assert row == (4, 16_000, 4_000.0, 3_000.0, 1_000, 9_000, pytest.approx(3559.0260840104373))

    def test_a_call_that_never_returned_counts_without_a_duration(self, tmp_path):
        opened = Opened(gather_calls(tmp_path / "open.sqlite", [1_000, None]))
        assert values(opened.summary(), "count", "total", "min", "stddev") == [(2, 1_000, 1_000, 0.0)]
        opened = Opened(gather_calls(tmp_path / "only.sqlite", [None]))
        assert values(opened.summary(), "count", "total", "avg", "median", "stddev") == [(1, None, None, None, None)]

    def test_without_buckets(self, job):
        answer = job.summary(by_bucket=False)
        counts = {row[1]: row[2] for row in values(answer, "what", "collective", "count") if row[0] == KERNEL}
        assert counts == {"AllReduce": 36, "AllGather": 6, "ReduceScatter": 6, "SendRecv": 6}
        assert sum(counts.values()) == 6 * len(STEP)

    def test_what_has_no_value_is_for_files_only(self, payload, tmp_path):
        def shown(answer: TableAnswer) -> set[str]:
            return {column.key for column in answer.columns if column.importance < FILES_ONLY}

        plain = Opened(payload_export(tmp_path / "plain.sqlite", json=False)).summary()
        unknown = {"bytes", "ranks", "communicator", "reduction", "algbw", "busbw"}
        assert shown(payload.summary()) - shown(plain) == unknown
        assert "bucket" in shown(plain), "what rows are told by stays"
        assert [column.key for column in plain.columns] == [column.key for column in payload.summary().columns]

    def test_sorting_by_any_column(self, payload):
        answer = payload.summary()
        for column in answer.columns:
            told = [value for (value,) in values(answer.sorted_by(column.key, True), column.key)]
            present = [value for value in told if value is not None]
            assert told == sorted(present, reverse=True) + [None] * (len(told) - len(present))

    def test_nothing_open_and_nothing_recorded(self, tmp_path):
        for paths in ((), (empty_export(tmp_path / "empty.sqlite"),), (old_schema_export(tmp_path / "old.sqlite"),)):
            answer = Opened(*paths).summary()
            assert (len(answer), answer.total) == (0, 0)
            assert [note for note in answer.notes if note.startswith("no NCCL kernels and no NCCL calls")]


def gather_calls(path: Path, durations: list[int | None]) -> Path:
    """NCCL calls of these durations, ns, without kernels."""
    with ExportWriter(path) as export:
        process = export.process(5000, "python")
        main = export.thread(process, 5000, "python")
        export.nvtx_domain(main, 0, 1, "NCCL")
        for number, duration in enumerate(durations):
            start = 100_000 * (number + 1)
            end = None if duration is None else start + duration
            export.nvtx_range(main, start, end, "ncclAllGather", domain_id=1)
    return path


class TestSelection:
    def test_the_window_says_what_is_listed_not_what_is_paired(self, payload):
        """The AllReduce call lasts from 10.00 to 10.03 ms, its kernel from 10.03 to 10.53 ms."""
        late = EVERYTHING.with_window(Window(10_300_000, 10_400_000))
        told = values(payload.summary(late), "what", "collective", "bucket")
        assert told == [(KERNEL, "AllReduce", "1MiB–16MiB")]
        early = EVERYTHING.with_window(Window(9_900_000, 10_000_001))
        assert values(payload.summary(early), "what", "collective") == [(CALL, "AllReduce")]
        assert len(payload.summary(EVERYTHING.with_window(Window(10_530_000, 10_900_000)))) == 0
        assert payload.summary(late).total == payload.summary().total == 16

    def test_tasks_streams_and_devices(self, job):
        task = job.ranks[1].task
        told = job.summary(EVERYTHING.with_tasks(frozenset({task})), by_bucket=False)
        assert sum(n for what, n in values(told, "what", "count") if what == KERNEL) == 3 * len(STEP)
        assert not len(job.summary(EVERYTHING.with_tasks(frozenset({Task(7, task.process)}))))
        told = job.summary(Selection(streams=frozenset({999})))
        assert {what for (what,) in values(told, "what")} == {CALL}
        assert {what for (what,) in values(job.summary(Selection(devices=frozenset({0}))), "what")} == {KERNEL, CALL}

    def test_names_are_those_of_kernels_calls_and_collectives(self, payload):
        def found(text: str) -> set[tuple[Any, ...]]:
            return set(values(payload.summary(EVERYTHING.with_name(text)), "what", "collective"))

        assert found("allreduce") == {(KERNEL, "AllReduce"), (CALL, "AllReduce")}
        assert found("ncclDev") == {(KERNEL, name) for what, name in found("!zzz") if what == KERNEL}
        assert found("/^ncclGroup/") == {(CALL, "ncclGroupStart"), (CALL, "ncclGroupEnd")}
        assert (KERNEL, "SendRecv") not in found("!sendrecv")
        assert (CALL, "Send") in found("!sendrecv")


class TestListing:
    def test_every_row_of_the_summary_opens_its_rows(self, job):
        selections = (EVERYTHING, EVERYTHING.with_window(Window(400_000_000, 450_000_000)))
        for selection in selections:
            for what, collective, bucket, count, total in values(
                job.summary(selection), "what", "collective", "bucket", "count", "total"
            ):
                listed = job.listing(what, collective, bucket, selection=selection)
                assert len(listed) == count
                assert sum(duration for (duration,) in values(listed, "duration")) == total
                assert {own for (own,) in values(listed, "bucket")} == {bucket}
                starts = [start for (start,) in values(listed, "start")]
                assert starts == sorted(starts)

    def test_all_sizes(self, job):
        for what, collective, count in values(job.summary(by_bucket=False), "what", "collective", "count"):
            assert len(job.listing(what, collective)) == count

    def test_a_kernel_and_its_call_lead_to_each_other(self, job):
        identity, partner = ("report", "row", "start"), ("partner_report", "partner_row", "partner_start")
        kernels = job.listing(KERNEL, "AllReduce")
        calls = job.listing(CALL, "AllReduce")
        there = dict(zip(values(kernels, *identity), values(kernels, *partner), strict=True))
        back = dict(zip(values(calls, *identity), values(calls, *partner), strict=True))
        assert len(there) == 36 and all(back[call] == kernel for kernel, call in there.items())
        assert set(values(kernels, "kind", "partner_kind")) == {(EventKind.NCCL.value, EventKind.NVTX.value)}
        assert set(values(calls, "kind", "partner_kind")) == {(EventKind.NVTX.value, EventKind.NCCL.value)}

    def test_identities_are_those_of_the_tables(self, job):
        """Row and start find the call among the NVTX ranges and the kernel among the kernels."""
        for table, what, key in ((tables.kernels, KERNEL, "kernel"), (tables.nvtx_ranges, CALL, "range")):
            report, process, row, start, duration = values(
                job.listing(what, "ReduceScatter"), "report", "process", "row", "start", "duration"
            )[-1]
            found = job.session.rows(
                sa.select(table.c.process, table.c.start + table.c.clock_offset, table.c.end - table.c.start).where(
                    table.c.report == report, table.c.row == row
                )
            )
            assert found == [(process, start, duration)], key

    def test_what_a_row_tells(self, payload):
        keys = ("message_size", "communicator", "ranks", "peer", "reduction", "rank", "partners", "state", "reason")
        comm = "0xfedcba9876543210"
        assert values(payload.listing(KERNEL, "Reduce"), *keys, "device", "stream") == [
            (16 * 1024**2, comm, 4, 0, "Sum", 1, 1, "paired", None, 0, 28)
        ]
        assert values(payload.listing(CALL, "Send"), *keys, "tid", "name") == [
            (1_048_575, comm, 4, 2, None, 1, 1, "paired", None, 5000, "ncclSend")
        ]
        end = values(payload.listing(CALL, "ncclGroupEnd", None), "state", "partner_kind", "partner_row")
        assert end == [(None, "nccl", 6)]

    def test_rows_without_a_partner(self, tmp_path):
        opened = Opened(nccl_without_nvtx_export(tmp_path / "silent.sqlite"))
        listed = opened.listing(KERNEL, "AllReduce", None)
        keys = ("state", "partners", "partner_report", "partner_kind", "partner_row", "partner_start", "message_size")
        assert values(listed, *keys) == [("unpaired", 0, None, None, None, None, None)] * 6
        assert not len(opened.listing(KERNEL, "AllReduce", "<64KiB"))

    def test_a_kernel_whose_name_hides_the_collective(self, tmp_path):
        with ExportWriter(tmp_path / "generic.sqlite") as export:
            process = export.process(5000, "python")
            name = "ncclDevKernel_Generic(ncclDevComm *)"
            export.kernel(process, 0, 7, 1_000, 2_000, name=name, correlation_id=1)
        opened = Opened(export.path)
        assert values(opened.summary(), "what", "collective", "bucket", "count") == [(KERNEL, None, None, 1)]
        assert len(opened.listing(KERNEL, None, None)) == 1

    def test_every_call_that_communicates(self, payload):
        told = values(payload.listing(CALL, COMMUNICATION), "name", "message_size", "kernel_duration", "rank")
        assert told == [(name, size, 500_000, 1) for name, size in PAYLOAD_BYTES.items()]
        assert len(payload.listing(KERNEL, COMMUNICATION)) == 6

    def test_a_call_tells_its_kernel_and_how_fast_that_was(self, payload):
        told = values(payload.listing(CALL, "AllReduce"), "kernel", "kernel_start", "algbw", "busbw")
        size = PAYLOAD_BYTES["ncclAllReduce"]
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        assert told == [(name, 10_030_000, pytest.approx(size / 500e-6), pytest.approx(1.5 * size / 500e-6))]
        kernel = values(payload.listing(KERNEL, "AllReduce"), "name", "start", "algbw", "busbw", "exposed")
        assert kernel == [(*told[0], 500_000)]

    def test_a_call_without_a_kernel_tells_none(self, tmp_path):
        listed = Opened(gather_calls(tmp_path / "calls.sqlite", [1_000])).listing(CALL, "AllGather")
        assert values(listed, "kernel", "kernel_start", "kernel_duration", "algbw") == [(None, None, None, None)]

    def test_total_is_without_the_selection(self, job):
        listed = job.listing(KERNEL, "AllGather", selection=EVERYTHING.with_window(Window(0, 1)))
        assert (len(listed), listed.total) == (0, 6)


class TestNotes:
    def test_all_is_well(self, job):
        assert job.summary().notes == ("paired 54 of 54 NCCL kernels with their calls · sizes from NVTX payload",)
        one_rank = EVERYTHING.with_tasks(frozenset({job.ranks[0].task}))
        assert job.summary(one_rank).notes[0].startswith("paired 27 of 27 ")

    def test_sizes_that_are_not_in_the_export(self, tmp_path):
        sentence = (
            f"no message sizes: they are not in the export, but `{EXPORT_COMMAND}` writes them (NCCL 2.16.2 or later)"
        )
        assert EXPORT_COMMAND == "nsys export -t sqlite --include-json=true --include-blobs=true report.nsys-rep"
        opened = Opened(payload_export(tmp_path / "plain.sqlite", json=False))
        assert opened.summary().notes == (sentence, "paired 6 of 6 NCCL kernels with their calls")

    def test_notes_name_the_ranks_they_are_about(self, tmp_path):
        paths = (
            nccl_without_nvtx_export(tmp_path / "rank0.sqlite"),
            payload_export(tmp_path / "rank1.sqlite", json=False),
            instrumented_nccl_export(tmp_path / "rank2.sqlite"),
        )
        silent, without_sizes, line = Opened(*paths).summary().notes
        assert silent.startswith("NCCL kernels but no NCCL NVTX ranges of rank 0: ")
        assert "record with `nsys profile -t cuda,nvtx`" in silent
        assert without_sizes.startswith("no message sizes of rank 1: ")
        assert line == (
            "paired 18 of 28 NCCL kernels with their calls · 10 kernels: no NCCL calls of its process in NVTX"
            " · sizes from the text of instrumented calls"
        )

    def test_kernels_without_calls_and_calls_without_kernels(self, tmp_path):
        (note,) = Opened(nccl_without_nvtx_export(tmp_path / "silent.sqlite")).summary().notes
        assert note.startswith("NCCL kernels but no NCCL NVTX ranges: ")
        (note, _) = Opened(gather_calls(tmp_path / "idle.sqlite", [1_000])).summary().notes
        assert note == "NCCL calls but no NCCL kernels: record with `nsys profile -t cuda,nvtx`"

    def test_whole_graphs_may_hide_kernels(self, tmp_path):
        notes = Opened(whole_graph_export(tmp_path / "graphs.sqlite")).summary().notes
        assert notes[-1].startswith("10 whole CUDA graph launches are not in this table: ")


class TestGolden:
    @pytest.fixture
    def ddp(self) -> Iterator[Opened]:
        if not SHARED.is_dir():
            pytest.skip("the real exports are not on this machine (../shared/data)")
        opened = Opened(SHARED / "exports/ddp-a100-rank0of4.sqlite")
        yield opened
        opened.session.close()

    def test_the_numbers_are_those_of_nsys_stats(self, ddp):
        """Kernels as ``cuda_gpu_kern_sum:base`` has them, calls as ``nvtx_sum`` has them (their share apart)."""
        keys = ("share", "total", "count", "avg", "median", "min", "max", "stddev")
        official = read("cuda_gpu_kern_sum_base", "ncclKernel_AllReduce_RING_LL_Sum_float")
        told = {row[:2]: row[2:] for row in values(ddp.summary(), "what", "collective", *keys)}
        assert rounded(told[KERNEL, "AllReduce"]) == official
        for name, collective in (("ncclGroupEnd",) * 2, ("ncclGroupStart",) * 2, ("ncclAllReduce", "AllReduce")):
            assert rounded(told[CALL, collective])[1:] == read("nvtx_sum", f"NCCL:{name}")[1:]
        assert len(told) == 4

    def test_notes(self, ddp):
        notes = ddp.summary().notes
        assert EXPORT_COMMAND in notes[0]
        assert notes[1] == "paired 472 of 472 NCCL kernels with their calls"

    def test_mixture_of_experts(self):
        if not SHARED.is_dir():
            pytest.skip("the real exports are not on this machine (../shared/data)")
        opened = Opened(SHARED / "exports/h100-2rank-moe-before.sqlite")
        told = values(opened.summary(), "what", "collective", "bucket", "count")
        assert told[:2] == [(KERNEL, "AlltoAll", None, 64), (KERNEL, "SendRecv", None, 2)]
        assert sorted(told[2:], key=str) == [
            (CALL, "Recv", None, 132),
            (CALL, "Send", None, 132),
            (CALL, "ncclCommCount", None, 66),
            (CALL, "ncclGroupEnd", None, 66),
            (CALL, "ncclGroupStart", None, 66),
        ]


def read(report: str, name: str) -> list[float]:
    """The first eight columns of a row of ``nsys stats``."""
    with (SHARED / f"nsys-stats/ddp-a100-rank0of4/{report}.csv").open(newline="") as file:
        (row,) = [row for row in csv.reader(file) if row and row[-1] == name]
    return [float(value) for value in row[:8]]


def rounded(row: tuple[Any, ...]) -> list[float]:
    """As nsys prints it: one decimal."""
    return [float(f"{value:.1f}") if value is not None else 0.0 for value in row]
