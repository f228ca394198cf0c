"""The NCCL table and the rows behind it: groups, sums, selections, notes, jumps, and copies instead of kernels."""

import csv
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from campaign import first
from hypothesis import example, given
from hypothesis import strategies as st
from nccl_jobs import Program, values
from support import SHARED, job_of, open_job, shared
from synthetic import (
    PAYLOAD_BYTES,
    ExportWriter,
    empty_export,
    instrumented_nccl_export,
    nccl_without_nvtx_export,
    old_schema_export,
    payload_export,
    training_job,
)
from synthetic.demo import TrainingJob
from synthetic.illnesses import MS, OneGpu, one_gpu
from synthetic.nccl_program import A, B
from triaging import finding, triaged

from nsystui.base.answer import TableAnswer
from nsystui.base.selection import Selection, Task, Window
from nsystui.exports import EXPORT_COMMAND
from nsystui.questions.blocking.budget import iterations
from nsystui.questions.blocking.parts import PARTS
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.nccl.grouping import COLUMNS, USUAL, NcclProperty, by_of, is_of, powers_of_two
from nsystui.questions.nccl.listing import nccl_listing
from nsystui.questions.nccl.names import BUCKETS
from nsystui.questions.nccl.summary import CALL, KERNEL, nccl_summary
from nsystui.questions.timeline.streams import stream_times
from nsystui.store import tables

EVERYTHING = Selection()
COLLECTIVE = (NcclProperty.COLLECTIVE,)


class Opened:
    def __init__(self, *paths: Path) -> None:
        self.job = open_job(*paths)
        self.session, self.ranks = self.job.session, self.job.ranks
        self.pairing = self.job.pairing()

    def summary(self, selection: Selection = EVERYTHING, by: tuple[NcclProperty, ...] = USUAL) -> TableAnswer:
        return nccl_summary(self.job, selection, self.pairing, by)

    def listing(
        self, what: Any, collective: str | None, *bucket: str | None, selection: Selection = EVERYTHING
    ) -> TableAnswer:
        """Return the rows of a collective, or only of its named bucket."""
        row = dict(zip(USUAL, (collective, *bucket), strict=False))
        return nccl_listing(self.job, selection, self.pairing, row, what)


@pytest.fixture(scope="module")
def open_(tmp_path_factory):
    """Yield a function that opens exports, which are closed after the tests of this module."""
    found: list[Opened] = []

    def make(*paths: Path) -> Opened:
        found.append(Opened(*paths))
        return found[-1]

    yield make
    for one in found:
        one.job.close()


@pytest.fixture(scope="module")
def job(open_, tmp_path_factory) -> Opened:
    """Return two ranks, three steps of nine collectives."""
    return open_(*training_job(tmp_path_factory.mktemp("job"), ranks=2, steps=3, layers=6))


@pytest.fixture(scope="module")
def mixed(open_, tmp_path_factory) -> Opened:
    """Return two ranks with payloads, and a process of instrumented calls."""
    directory = tmp_path_factory.mktemp("mixed")
    ranks = training_job(directory, ranks=2, steps=3, layers=4)
    opened = open_(*ranks, instrumented_nccl_export(directory / "rank2.sqlite"))
    opened.pairing = opened.job.pairing_by(NcclProperty)
    return opened


@pytest.fixture(scope="module")
def payload(open_, tmp_path_factory) -> Opened:
    return open_(payload_export(tmp_path_factory.mktemp("payload") / "payload.sqlite"))


@pytest.fixture(scope="module")
def silent(open_, tmp_path_factory) -> Opened:
    return open_(nccl_without_nvtx_export(tmp_path_factory.mktemp("silent") / "silent.sqlite"))


STEP = TrainingJob(ranks=2, steps=3, layers=6).step_collectives


class TestGroups:
    SUMMED = ["count", "bytes", "total", "exposed"]
    EVERY = [
        one
        for size in (1, 2)
        for one in combinations(NcclProperty, size)
        if len({NcclProperty.SIZE, NcclProperty.POW2, NcclProperty.BYTES} & {*one}) < 2
    ]
    EVERY.append(tuple(by for by in NcclProperty if by not in (NcclProperty.SIZE, NcclProperty.POW2)))

    @pytest.mark.campaign
    @pytest.mark.parametrize(
        ("selection", "groupings"), [(EVERYTHING, EVERY), (EVERYTHING.with_name("!gather"), EVERY[::9])]
    )
    def test_every_grouping_adds_up_to_the_ungrouped_row(self, mixed, selection, groupings):
        whole = mixed.summary(selection, ()).frame().set_index("what")[self.SUMMED]
        assert whole["count"].to_dict()[KERNEL] > 40
        for by in groupings:
            parts = mixed.summary(selection, by).frame()
            alike = {NcclProperty.DATATYPE, NcclProperty.REDUCTION, NcclProperty.BACKEND, NcclProperty.ROLE}
            assert len(parts) > 2 or alike.issuperset(by), by
            assert not parts.duplicated(["what", *(COLUMNS[one].key for one in by)]).any(), by
            pd.testing.assert_frame_equal(parts.groupby("what")[self.SUMMED].sum(min_count=1).loc[whole.index], whole)

    @pytest.mark.campaign
    @pytest.mark.parametrize(("by", "selection"), [
        (USUAL, EVERYTHING.with_window(Window(400_000_000, 450_000_000))),
        (USUAL, EVERYTHING),
        ((NcclProperty.STEP, NcclProperty.STREAM), EVERYTHING),
        ((NcclProperty.COMMUNICATOR, NcclProperty.RANK, NcclProperty.POW2), EVERYTHING),
    ])  # fmt: skip
    def test_every_row_opens_what_is_behind_it_in_order_of_time(self, mixed, by, selection):
        answer = mixed.summary(selection, by)
        keys = [COLUMNS[one].key for one in by]
        for what, count, total, *row in values(answer, "what", "count", "total", *keys):
            rows = dict(zip(by, row, strict=True))
            listed = nccl_listing(mixed.job, selection, mixed.pairing, rows, what)
            assert (len(listed), sum(listed.cells("duration"))) == (count, total), row
            assert listed.cells("start") == sorted(listed.cells("start")), row
            assert by != USUAL or set(listed.cells("bucket")) == {row[1]}

    @pytest.mark.campaign
    def test_communicators_streams_and_sizes_of_one_process(self, tmp_path):
        program = Program(tmp_path / "program.sqlite")
        program.call("ncclCommInitRankConfig", comm=A, ranks=4)
        program.call("ncclCommInitRankConfig", comm=B, ranks=2)
        for comm, stream in ((A, 20), (B, 21)):
            for size in (1000, 1024, 1500):
                program.call("ncclAllReduce", comm=comm, size=size, launches=1, stream=stream, kernel="AllReduce")
        job = program.job()

        def kernels(by: NcclProperty, *keys: str) -> set[tuple[object, ...]]:
            answer = nccl_summary(job, EVERYTHING, job.pairing(), (by,))
            return {row[1:] for row in values(answer, "what", *keys, "count") if row[0] == KERNEL}

        assert kernels(NcclProperty.COMMUNICATOR, "communicator", "ranks") == {("0xa0", 4, 3), ("0xb0", 2, 3)}
        assert kernels(NcclProperty.STREAM, "stream", "communicator") == {(20, "0xa0", 3), (21, "0xb0", 3)}
        assert kernels(NcclProperty.POW2, "size_from") == {(512, 2), (1024, 4)}
        assert kernels(NcclProperty.BYTES, "message_size") == {(1000, 2), (1024, 2), (1500, 2)}
        job.close()

    @pytest.mark.campaign
    @given(st.lists(st.integers(0, 2**63 - 1)))
    @example([1, 2, 2**53 + 1, 2**60 - 1, 2**60, 2**63 - 1])
    def test_powers_of_two_are_exact_at_any_size(self, sizes):
        expected = [1 << size.bit_length() - 1 if size else 0 for size in sizes]
        assert powers_of_two(pd.Series([*sizes, None], dtype="Int64")).tolist() == [*expected, pd.NA]

    def test_words_of_groups(self):
        assert by_of("rank, collective,rank") == (NcclProperty.RANK, NcclProperty.COLLECTIVE)
        assert by_of("") == ()

    def test_a_row_of_what_is_missing(self):
        frame = pd.DataFrame({"rank": pd.array([0, None], "Int64"), "message_size": pd.array([None, 9], "Int64")})
        assert is_of(frame, {NcclProperty.RANK: None}).tolist() == [False, True]
        assert is_of(frame, {NcclProperty.SIZE: None, NcclProperty.RANK: 0}).tolist() == [True, False]
        assert is_of(frame, {}).tolist() == [True, True]
        assert is_of(frame, {NcclProperty.BYTES: 9}).tolist() == [False, True]


class TestSummary:
    @pytest.mark.campaign
    def test_counts_and_bytes_of_kernels(self, job):
        """A SendRecv kernel moves sent and received bytes."""
        wanted: dict[tuple[str, str], tuple[int, int]] = {}
        edges = {512 * 1024: 2, 48 << 20: 3, 4 << 20: 2, 8 << 20: 2, 4: 0, 192 * 1024: 1}
        for kind, size in STEP:
            count, total = wanted.get((kind, BUCKETS[edges[size]]), (0, 0))
            wanted[kind, BUCKETS[edges[size]]] = (count + 6, total + 6 * size * (2 if kind == "SendRecv" else 1))
        told = values(job.summary(), "what", "collective", "bucket", "count", "bytes")
        assert {row[1:3]: row[3:] for row in told if row[0] == KERNEL} == wanted

    def test_calls_stand_under_their_collective_and_management_under_its_name(self, payload):
        rows = values(payload.summary(), "what", "collective", "bucket", "bytes", "share")
        told = {name: row for what, name, *row in rows if what == CALL}
        assert told["Send"] == ["64KiB–1MiB", PAYLOAD_BYTES["ncclSend"], None]
        assert told["AllGather"] == ["<64KiB", 65_535, None]
        assert told["ncclGroupEnd"] == told["ncclCommInitRankConfig"] == [None, None, None]

    @pytest.mark.parametrize(("durations", "row"), [
        ([1_000, 2_000, 4_000, 9_000], (4, 16_000, 4_000.0, 3_000.0, 1_000, 9_000, 3559.0260840104373)),
        ([1_000, None], (2, 1_000, 1_000.0, 1_000.0, 1_000, 1_000, 0.0)),  # a call that never returned
        ([None], (1, None, None, None, None, None, None)),
    ])  # fmt: skip
    def test_statistics(self, open_, tmp_path, durations, row):
        answer = open_(gather_calls(tmp_path / "calls.sqlite", durations)).summary()
        found = values(answer, "count", "total", "avg", "median", "min", "max", "stddev")
        assert found == [row if None in row else pytest.approx(row)]
        assert answer.notes[0] == "NCCL calls but no NCCL kernels: record with `nsys profile -t cuda`"

    @pytest.mark.campaign
    def test_nothing_open_and_nothing_recorded(self, open_, tmp_path):
        for paths in ((), (empty_export(tmp_path / "empty.sqlite"),), (old_schema_export(tmp_path / "old.sqlite"),)):
            answer = open_(*paths).summary()
            assert (len(answer), answer.total) == (0, 0)
            assert [note for note in answer.notes if note.startswith("no NCCL kernels and no NCCL calls")]


def gather_calls(path: Path, durations: list[int | None]) -> Path:
    """Write NCCL calls of these durations, ns, without kernels."""
    with ExportWriter(path) as export:
        main = export.thread(export.process(5000, "python"), 5000, "python")
        export.nvtx_domain(main, 0, 1, "NCCL")
        for number, duration in enumerate(durations, 1):
            end = None if duration is None else 100_000 * number + duration
            export.nvtx_range(main, 100_000 * number, end, "ncclAllGather", domain_id=1)
    return path


@pytest.mark.campaign
class TestSelection:
    def test_the_window_says_what_is_listed_not_what_is_paired(self, payload):
        """The AllReduce call lasts from 10.00 to 10.03 ms, its kernel from 10.03 to 10.53 ms."""
        for window, found in (
            ((10_300_000, 10_400_000), [(KERNEL, "AllReduce", "1MiB–16MiB")]),
            ((9_900_000, 10_000_001), [(CALL, "AllReduce", "1MiB–16MiB")]),
            ((10_530_000, 10_900_000), []),
        ):
            answer = payload.summary(EVERYTHING.with_window(Window(*window)))
            assert values(answer, "what", "collective", "bucket") == found, window
            assert answer.total == payload.summary().total == 16

    def test_tasks_streams_and_devices(self, job):
        task = job.ranks[1].task
        told = job.summary(EVERYTHING.with_tasks(frozenset({task})))
        assert sum(n for what, n in values(told, "what", "count") if what == KERNEL) == 3 * len(STEP)
        assert not len(job.summary(EVERYTHING.with_tasks(frozenset({Task(7, task.process)}))))
        assert set(job.summary(Selection(streams=frozenset({999}))).cells("what")) == {CALL}
        assert set(job.summary(Selection(devices=frozenset({0}))).cells("what")) == {KERNEL, CALL}


class TestListing:
    def test_a_kernel_and_its_call_lead_to_each_other(self, job):
        keys = [(f"{side}report", f"{side}row", f"{side}start", f"{side}kind") for side in ("", "partner_")]
        kernels, calls = (
            dict(zip(*(values(job.listing(what, "AllReduce"), *side) for side in keys), strict=True))
            for what in (KERNEL, CALL)
        )
        assert len(kernels) == 36 and all(calls[call] == kernel for kernel, call in kernels.items())
        assert {kind for *_, kind in kernels} == {kind for *_, kind in calls.values()} == {EventKind.NCCL.value}
        assert {kind for *_, kind in calls} == {kind for *_, kind in kernels.values()} == {EventKind.NVTX.value}

    @pytest.mark.parametrize(("table", "what"), [(tables.kernels, KERNEL), (tables.nvtx_ranges, CALL)])
    def test_row_and_start_find_the_event_in_its_table(self, job, table, what):
        keys = ("report", "row", "process", "start", "duration")
        report, row, *event = values(job.listing(what, "ReduceScatter"), *keys)[-1]
        columns = (table.c.process, table.c.start + table.c.clock_offset, table.c.end - table.c.start)
        found = job.session.rows(sa.select(*columns).where(table.c.report == report, table.c.row == row))
        assert found == [tuple(event)]

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

    @pytest.mark.campaign
    def test_rows_without_a_partner(self, silent, open_, tmp_path):
        keys = ("state", "partners", "partner_report", "partner_kind", "partner_row", "partner_start", "message_size")
        listed = silent.listing(KERNEL, "AllReduce", None)
        assert values(listed, *keys) == [("unpaired", 0, None, None, None, None, None)] * 6
        assert not len(silent.listing(KERNEL, "AllReduce", "<64KiB"))
        listed = open_(gather_calls(tmp_path / "calls.sqlite", [1_000])).listing(CALL, "AllGather")
        assert values(listed, "kernel", "kernel_start", "kernel_duration", "algbw") == [(None, None, None, None)]

    def test_a_kernel_whose_name_hides_the_collective(self, open_, tmp_path):
        with ExportWriter(tmp_path / "generic.sqlite") as export:
            name = "ncclDevKernel_Generic(ncclDevComm *)"
            export.kernel(export.process(5000, "python"), 0, 7, 1_000, 2_000, name=name, correlation_id=1)
        opened = open_(export.path)
        assert values(opened.summary(), "what", "collective", "bucket", "count") == [(KERNEL, None, None, 1)]
        assert len(opened.listing(KERNEL, None, None)) == 1

    def test_total_is_without_the_selection(self, job):
        listed = job.listing(KERNEL, "AllGather", selection=EVERYTHING.with_window(Window(0, 1)))
        assert (len(listed), listed.total) == (0, 6)


class TestNotes:
    @pytest.mark.campaign
    def test_notes_name_the_ranks_they_are_about(self, open_, tmp_path):
        paths = (
            nccl_without_nvtx_export(tmp_path / "rank0.sqlite"),
            payload_export(tmp_path / "rank1.sqlite", json=False),
            instrumented_nccl_export(tmp_path / "rank2.sqlite"),
        )
        without_calls, without_sizes, line = open_(*paths).summary().notes
        assert without_calls.startswith("NCCL kernels but no NCCL NVTX ranges of rank 0: ")
        assert "record with `nsys profile -t cuda,nvtx`" in without_calls
        assert without_sizes.startswith("no message sizes of rank 1: ")
        assert line == (
            "paired 18 of 28 NCCL kernels with their calls · 10 kernels: no NCCL calls of its process in NVTX"
            " · sizes from the text of instrumented calls"
        )


class TestGolden:
    def test_the_numbers_are_those_of_nsys_stats(self, open_):
        """Kernels equal ``cuda_gpu_kern_sum:base``, calls equal ``nvtx_sum`` except for their share."""
        summary = open_(*shared("ddp-a100-rank0of4")).summary()
        keys = ("share", "total", "count", "avg", "median", "min", "max", "stddev")
        told = {row[:2]: rounded(row[2:]) for row in values(summary, "what", "collective", *keys)}
        official = read("cuda_gpu_kern_sum_base", "ncclKernel_AllReduce_RING_LL_Sum_float")
        assert told.pop((KERNEL, "AllReduce")) == official
        calls = {"ncclGroupEnd": "ncclGroupEnd", "ncclGroupStart": "ncclGroupStart", "AllReduce": "ncclAllReduce"}
        assert {collective: row[1:] for (_, collective), row in told.items()} == {
            collective: read("nvtx_sum", f"NCCL:{name}")[1:] for collective, name in calls.items()
        }
        assert EXPORT_COMMAND in summary.notes[0]


def read(report: str, name: str) -> list[float]:
    """Return the first eight columns of a row of ``nsys stats``."""
    with (SHARED / f"nsys-stats/ddp-a100-rank0of4/{report}.csv").open(newline="") as file:
        (row,) = [row for row in csv.reader(file) if row and row[-1] == name]
    return [float(value) for value in row[:8]]


def rounded(row: tuple[Any, ...]) -> list[float]:
    """Round as nsys does, to one decimal."""
    return [float(f"{value:.1f}") if value is not None else 0.0 for value in row]


STEPS, SIZE, NCCL = 10, 64 << 20, "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)"


class CopyEngine:
    """Steps of 10 ms: 4 ms of compute, 2 ms of ``call`` by copies to two GPUs, and 1 ms of compute after them."""

    def __init__(self, gpu: OneGpu) -> None:
        self.gpu, self.export = gpu, gpu.export
        self.export.nvtx_domain(gpu.main, 0, 1, "NCCL")

    def range(self, start: int, end: int, name: str) -> None:
        self.export.nvtx_range(self.gpu.main, start, end, name, domain_id=1, registered=True)

    def copy(
        self, called: int, start: int, end: int, target: int | None, kind: str = "PtoP", size: int = SIZE, **how: Any
    ) -> None:
        number = self.gpu.call("cudaMemcpyAsync_v3020", called, called + 2_000)
        self.export.memcpy(
            self.gpu.process, 0, 30, start, end, size=size, kind=kind, correlation_id=number, devices=(0, target), **how
        )

    def steps(self, communicate: Callable[[Any, int], None]) -> None:
        for number in range(STEPS):
            start = (1 + 10 * number) * MS
            self.export.nvtx_range(self.gpu.main, start, start + 9 * MS, f"step {number}")
            self.gpu.kernel(start + MS, start + 5 * MS, launched=start + 100_000)
            communicate(self, start)
            self.gpu.kernel(start + 7 * MS, start + 8 * MS, launched=start + 400_000, stream=30)


def two_copies(engine: CopyEngine, start: int, **how: Any) -> None:
    engine.copy(start + 210_000, start + 5 * MS, start + 6 * MS, 1, **how)
    engine.copy(start + 220_000, start + 6 * MS, start + 7 * MS, 2, **how)


def all_gather(engine: CopyEngine, start: int, name: str = "ncclAllGather", **how: Any) -> None:
    engine.range(start + 200_000, start + 300_000, name)
    two_copies(engine, start, **how)


def in_a_group(engine: CopyEngine, start: int) -> None:
    engine.range(start + 150_000, start + 151_000, "ncclGroupStart")
    engine.range(start + 160_000, start + 161_000, "ncclAllGather")
    engine.range(start + 200_000, start + 300_000, "ncclGroupEnd")
    two_copies(engine, start)


def with_own_share_and_flags(engine: CopyEngine, start: int) -> None:
    """NCCL sets flags of 4 bytes for its peers, and copies the rank's own share within its GPU."""
    all_gather(engine, start, kind="DtoD")
    engine.copy(start + 205_000, start + 5 * MS - 2_000, start + 5 * MS - 1_000, 1, size=4)
    engine.copy(start + 230_000, start + 5 * MS, start + 6 * MS, 0, kind="DtoD")


def replayed(engine: CopyEngine, start: int) -> None:
    """A CUDA graph replays copies that were captured in a call."""
    if start == MS:
        engine.range(200_000, 300_000, "ncclAllGather")
    number = engine.gpu.call("cudaGraphLaunch_v10000", start + 210_000, start + 220_000)
    for node in (1, 2):
        if start == MS:
            for time, *numbers in ((210_000, node), (400_000, node + 100, node)):
                engine.export.graph_node(engine.gpu.main, time, time, "Graph Node Creation", *numbers)
        span = (start + (4 + node) * MS, start + (5 + node) * MS)
        how = {"correlation_id": number, "graph_node_id": node + 100, "devices": (0, node)}
        engine.export.memcpy(engine.gpu.process, 0, 30, *span, size=SIZE, kind="PtoP", **how)


BY_COPIES = {
    "alone": all_gather, "in a group": in_a_group, "own share": with_own_share_and_flags, "in a graph": replayed
}  # fmt: skip


def written(tmp_path: Path, communicate: Callable[[Any, int], None]) -> Path:
    path = tmp_path / "rank0.sqlite"
    with one_gpu(path) as gpu:
        CopyEngine(gpu).steps(communicate)
    return path


@pytest.mark.campaign
@pytest.mark.parametrize("communicate", BY_COPIES.values(), ids=BY_COPIES)
def test_calls_that_copy_to_other_gpus_are_counted_sized_exposed_and_block(communicate, tmp_path):
    with job_of(written(tmp_path, communicate)) as job:
        session, everything, pairing = job.session, Selection(), job.pairing()
        (row,) = nccl_summary(job, everything, pairing, (NcclProperty.COLLECTIVE,), KERNEL).records()
        assert (row["collective"], row["backend"], row["count"]) == ("AllGather", "NCCL copies", STEPS)
        assert row["bytes"] == STEPS * SIZE
        assert row["exposed"] == STEPS * 2 * MS == pytest.approx(row["total"], rel=0.002)
        assert row["share"] < 50
        (device,) = job.gpus(everything)
        spent = device.breakdown(job.extent())
        assert spent.memory == 0
        assert spent.exposed_nccl == STEPS * 2 * MS
        budget = iterations(job, everything)[0].of
        blocked = budget.part("nccl").sum() + budget.possible[:, PARTS.index("nccl")].sum()
        assert blocked == pytest.approx(STEPS * 2 * MS, rel=0.001)
        assert not budget.part("other_copies").any() and not budget.part("on_device").any()
        compute, communication, copies = next(
            times[1:] for (_, _, stream, _), times in stream_times(session, everything).items() if stream == 30
        )
        assert (compute, copies) == (STEPS * MS, 0) and communication >= STEPS * 2 * MS


def test_rows_lead_from_a_call_to_its_first_copy_and_back(tmp_path):
    with job_of(written(tmp_path, all_gather)) as job:
        for what, kind, partner in ((KERNEL, "memory", "nvtx"), (CALL, "nvtx", "memory")):
            listing = nccl_listing(job, Selection(), job.pairing(), {}, what).records()
            assert len(listing) == STEPS
            for row in listing:
                assert (row["kind"], row["partner_kind"]) == (kind, partner)
                assert row["row"] > 0 and row["partner_row"] > 0


def with_kernel(engine: CopyEngine, start: int) -> None:
    all_gather(engine, start)
    engine.gpu.kernel(start + 5 * MS, start + 7 * MS, launched=start + 240_000, name=NCCL, stream=31)


def outside(engine: CopyEngine, start: int) -> None:
    engine.range(start + 290_000, start + 300_000, "ncclAllGather")
    two_copies(engine, start)


def within_a_gpu(engine: CopyEngine, start: int) -> None:
    """NCCL copies the data of a communicator of one rank."""
    engine.range(start + 200_000, start + 300_000, "ncclAllGather")
    engine.copy(start + 210_000, start + 5 * MS, start + 7 * MS, 0, kind="DtoD")


NO_COMMUNICATION: dict[str, Callable[[Any, int], None]] = {
    "a call with a kernel": with_kernel,
    "outside of calls": outside,
    "management": lambda engine, start: all_gather(engine, start, "ncclCommInitRankConfig"),
    "within a GPU": within_a_gpu,
    "to the host": lambda engine, start: all_gather(engine, start, kind="DtoH"),
}


@pytest.mark.campaign
@pytest.mark.parametrize("communicate", first(2, NO_COMMUNICATION.values()))
def test_other_copies_stay_memory(communicate, tmp_path):
    with job_of(written(tmp_path, communicate)) as job:
        assert not (job.pairing().kernels["backend"] == "NCCL copies").any()
        (device,) = job.gpus(Selection())
        assert device.breakdown(job.extent()).memory == STEPS * 2 * MS


def test_sizes_are_unknown_if_the_export_does_not_name_the_gpus(tmp_path):
    def copy(engine: CopyEngine, start: int) -> None:
        engine.range(start + 200_000, start + 300_000, "ncclAlltoAll")
        engine.copy(start + 210_000, start + 5 * MS, start + 7 * MS, None)

    with job_of(written(tmp_path, copy)) as job:
        kernels = job.pairing().kernels
        assert kernels["collective"].tolist() == ["AlltoAll"] * STEPS
        assert kernels["message_size"].isna().all()


def test_triage_words_copies_as_copies(tmp_path):
    item = finding(triaged(written(tmp_path, all_gather)), "exposed-communication")
    assert item.sentence.startswith(
        "Exposed NCCL copies cost 20 ms per GPU (100 % of all NCCL time), and waits for late"
    )
    assert "1 AllGather a step (64 MiB each)" in item.sentence
