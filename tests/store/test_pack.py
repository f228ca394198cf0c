"""Packing: every row of an export arrives once, unchanged, whatever the export and however it is cut into chunks."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import campaign
import pytest
import sqlalchemy as sa
import synthetic
from support import edit, native, native_count, real_exports
from synthetic import PAYLOAD_BYTES, PAYLOAD_COMMUNICATOR, ExportWriter
from synthetic.demo import NcclPayloads, TrainingJob

from nsystui.base.errors import ExportError
from nsystui.base.selection import Selection
from nsystui.exports import opening
from nsystui.exports.integrity import PageChecks
from nsystui.questions.events.listing import EventList
from nsystui.questions.host.stacks import stacks_of
from nsystui.questions.queries.tasks import ranked_tasks
from nsystui.store import packing, tables
from nsystui.store.cache import Cache
from nsystui.store.packing import PackingCancelled, Progress
from nsystui.store.report import Report
from nsystui.store.session import Session

ALL_TABLES = list(tables.METADATA.tables.values())
RANGE_TYPES = (59, 60, 70, 71)


NATIVE_ROWS = {
    "kernels": (("CUPTI_ACTIVITY_KIND_KERNEL",),),
    "memory_ops": (("CUPTI_ACTIVITY_KIND_MEMCPY",), ("CUPTI_ACTIVITY_KIND_MEMSET",)),
    "graph_launches": (("CUPTI_ACTIVITY_KIND_GRAPH_TRACE",),),
    "api_calls": (("CUPTI_ACTIVITY_KIND_RUNTIME", "eventClass <> 67"),),
    "api_backtraces": (("CUPTI_ACTIVITY_KIND_RUNTIME", "eventClass = 67"),),
    "syncs": (("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",),),
    "nvtx_ranges": (("NVTX_EVENTS", f"eventType IN {RANGE_TYPES}"),),
    "nvtx_marks": (("NVTX_EVENTS", "eventType = 34"),), "gpu_metrics": (("GPU_METRICS", "timestamp IS NOT NULL"),),
    "nic_metrics": (("NET_NIC_METRIC",),), "os_calls": (("OSRT_API", "eventClass NOT IN (31, 32)"),),
    "processes": (("PROCESSES", "globalPid IS NOT NULL"),), "threads": (("ThreadNames", "globalTid IS NOT NULL"),),
    "diagnostics": (("DIAGNOSTIC_EVENT",),),
}  # fmt: skip
"""The canonical tables, and the native rows in them."""


def rows_of(session: Session, table: sa.Table) -> list[tuple[Any, ...]]:
    return sorted(session.rows(sa.select(table)), key=repr)


def column(session: Session, name: sa.ColumnElement[Any], *order: sa.ColumnElement[Any]) -> list[Any]:
    return [value for (value,) in session.rows(sa.select(name).order_by(*order))]


class TestCounts:
    @pytest.mark.campaign
    def test_every_native_row_of_the_demo_arrives(self, demo_job, demo_session):
        self.compare(demo_session, demo_job)

    @pytest.mark.campaign
    @pytest.mark.parametrize("path", campaign.some(5, real_exports(of_every_kind=True)), ids=lambda path: path.stem)
    def test_every_native_row_of_a_real_export_arrives(self, session, path):
        session.add(path)
        self.compare(session, [path])

    def compare(self, session: Session, paths: list[Path]) -> None:
        for name, sources in NATIVE_ROWS.items():
            table = tables.METADATA.tables[name]
            found = dict(session.rows(sa.select(table.c.report, sa.func.count()).group_by(table.c.report)))
            for report, path in zip(session.reports, paths, strict=True):
                expected = sum(native_count(path, *source) for source in sources)
                told = report.packed.counts.get(name, 0), found.get(report.index, 0)
                assert told == (expected, expected), (name, path.name)

    def test_times_and_places_of_kernels_are_nvidias(self, demo_job, demo_session):
        table = tables.kernels.c
        columns = (table.row, table.start, table.end, table.device, table.stream, table.correlation_id, table.process)
        found = demo_session.rows(sa.select(*columns, table.name).where(table.report == 1).order_by(table.row))
        assert found == native(
            demo_job[1],
            'SELECT k.rowid, start, "end", deviceId, streamId, correlationId, globalPid, value '
            "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds ON id = demangledName ORDER BY 1",
        )

    @pytest.mark.campaign
    def test_a_row_number_is_unique_in_its_table_and_report(self, demo_session, tmp_path, both):
        others = both(
            synthetic.simulation_export(tmp_path / "s.sqlite"), synthetic.cpu_only_export(tmp_path / "c.sqlite")
        )
        for session in (demo_session, others):
            for table in ALL_TABLES:
                if "row" in table.c:
                    pair = sa.select(table.c.report, table.c.row)
                    assert len(session.rows(pair)) == len(session.rows(pair.distinct())), table.name

    def test_copies_and_memsets_share_a_table(self, tmp_path, session):
        with ExportWriter(tmp_path / "m.sqlite") as export:
            process = export.process(5_000)
            for number in range(3):
                now = 10 * number
                export.memcpy(process, 0, 7, now, now + 5, size=100, kind="HtoD", correlation_id=number, source=1)
                export.memset(process, 0, 7, now + 6, now + 8, size=7, correlation_id=9)
        assert session.add(tmp_path / "m.sqlite").packed.counts["memory_ops"] == 6
        table = tables.memory_ops.c
        places = (table.operation, table.bytes, table.source_memory, table.target_memory, table.is_memset)
        assert session.rows(sa.select(*places).order_by(table.start))[:2] == [
            ("[CUDA memcpy Host-to-Device]", 100, "Pinned", "Device", 0),
            ("[CUDA memset]", 7, None, "Device", 1),
        ]

    def test_mpi_calls_of_every_kind_share_a_table(self, tmp_path, both):
        session = both(synthetic.cpu_only_export(tmp_path / "cpu.sqlite"))
        table = tables.mpi_calls.c
        found = session.rows(sa.select(table.call_type, table.name, table.send_bytes, table.remote_rank))
        sends = {("p2p", "MPI_Send", 65_536, peer): 1 for peer in range(4)}
        others = {("collective", "MPI_Allreduce", 4_096, None): 6, ("other", "MPI_Init", None, None): 1}
        assert Counter(found) == {**sends, **others}


class TestApiCalls:
    def test_the_second_rows_of_cudabacktrace_are_kept_apart(self, tmp_path, both):
        path = synthetic.old_schema_export(tmp_path / "old.sqlite")
        assert native_count(path, "CUPTI_ACTIVITY_KIND_RUNTIME") == 80
        session, calls = both(path), tables.api_calls.c
        assert len(column(session, calls.versioned_name)) == len(column(session, tables.api_backtraces.c.name)) == 40
        assert len(session.rows(sa.select(calls.process, calls.correlation_id).distinct())) == 40

    def test_names_lose_the_version_that_nsys_strips_and_keep_the_rest(self, tmp_path, session):
        stripped = {"cudaLaunchKernel_v7000": "cudaLaunchKernel", "cudaMalloc_v3020": "cudaMalloc"}
        whole = ("cudaGraphLaunch_v10000", "cuLaunchKernelEx", "_v1")  # nsys keeps five digits
        names = {**stripped, "x_v7000_v7000": "x_v7000", **{name: name for name in whole}}
        with ExportWriter(tmp_path / "a.sqlite") as export:
            main = export.thread(export.process(5_000), 5_000, "main")
            for number, name in enumerate(names):
                export.api(main, number, number + 1, name, number, event_class=number % 2)
        session.add(tmp_path / "a.sqlite")
        table = tables.api_calls.c
        found = session.rows(sa.select(table.versioned_name, table.name, table.is_driver).order_by(table.start))
        assert found == [(name, bare, number % 2) for number, (name, bare) in enumerate(names.items())]

    def test_two_processes_may_share_correlation_ids(self, original, both):
        session = both(original)
        kernels, calls, devices = tables.kernels, tables.api_calls, tables.devices.c
        same_id, same_process = kernels.c.correlation_id == calls.c.correlation_id, kernels.c.process == calls.c.process
        for condition, expected in ((same_id, 200 + 2 * 78), (sa.and_(same_id, same_process), 200)):
            assert session.scalar(sa.select(sa.func.count()).select_from(kernels.join(calls, condition))) == expected
        places = sa.select(devices.process, devices.device, devices.gpu).order_by(devices.process)
        assert session.rows(places) == [((1 << 48) | (pid << 24), pid - 5_000, pid - 5_000) for pid in (5_000, 5_001)]


class TestGraphs:
    def test_whole_graphs(self, tmp_path, both):
        session = both(synthetic.whole_graph_export(tmp_path / "whole.sqlite"))
        table = tables.graph_launches.c
        assert session.rows(sa.select(table.start, table.end, table.correlation_id, table.graph_id)) == [
            (100_000_000 + 81_000_000 * n, 180_000_000 + 81_000_000 * n, 101 + n, 4) for n in range(10)
        ]
        assert session.count(tables.kernels) == 30

    def test_nodes_keep_their_ids_of_64_bits(self, tmp_path, both):
        session = both(synthetic.node_graph_export(tmp_path / "node.sqlite"))
        table = tables.kernels.c
        found = Counter(session.rows(sa.select(table.correlation_id, table.graph_node_id)))
        assert found == {(100 + launch, node << 32): 1 for launch in range(5) for node in range(1, 11)}


class TestNvtx:
    def test_open_ranges_have_no_end_and_marks_are_apart(self, tmp_path, both):
        session = both(synthetic.open_ranges_export(tmp_path / "open.sqlite"))
        table = tables.nvtx_ranges.c
        found = session.rows(sa.select(table.name, table.end, table.event_type).order_by(table.start, table.row))
        assert found == [
            ("done 0", 2_000_000, 59), ("done 1", 3_500_000, 59), ("done 2", 5_000_000, 59), ("open 0", None, 59),
            ("open 1", None, 59), ("open start/end", None, 60), ("crossing", 9_000_000, 60), ("instant", 7_000_000, 59),
        ]  # fmt: skip
        marks = session.rows(sa.select(tables.nvtx_marks.c.name, tables.nvtx_marks.c.start))
        assert marks == [(f"mark {n}", (7 + n) * 1_000_000) for n in range(4)]
        assert session.reports[0].packed.last_event == 10_000_000

    @pytest.mark.parametrize("end", [None, 2_000])
    def test_an_open_range_after_the_last_end_makes_the_session_longer(self, tmp_path, session, end):
        with ExportWriter(tmp_path / "o.sqlite") as export:
            main = export.thread(export.process(5_000), 5_000, "main")
            export.nvtx_range(main, 1_000, end, "first")
            export.nvtx_range(main, 9_000, None, "open")
        packed = session.add(tmp_path / "o.sqlite").packed
        assert (packed.first_event, packed.last_event) == (1_000, 9_000)

    def test_domains_belong_to_processes_and_texts_may_be_registered(self, tmp_path, both):
        with ExportWriter(tmp_path / "d.sqlite") as export:
            first, second = (export.process(pid) for pid in (5_000, 5_001))
            mains = [export.thread(process, process.pid, "main") for process in (first, second)]
            workers = [export.thread(process, process.pid + 50, "worker") for process in (first, second)]
            export.nvtx_domain(mains[0], 0, 1, "NCCL")
            export.nvtx_domain(mains[1], 0, 1, "DALI")
            export.nvtx_domain(mains[1], 0, 2, "NCCL")
            for number, worker in enumerate(workers):
                export.nvtx_range(worker, 100 + number, 200, "ncclAllReduce", domain_id=1, registered=True)
                export.nvtx_range(worker, 110 + number, 190, "inline", domain_id=2)
                export.nvtx_range(worker, 120 + number, 180, "default")
        edit(tmp_path / "d.sqlite", "UPDATE NVTX_EVENTS SET text = NULL WHERE text = ''")
        session = both(tmp_path / "d.sqlite")
        table = tables.nvtx_ranges.c
        assert session.rows(sa.select(table.domain, table.name).order_by(table.start)) == [
            *(("NCCL", "ncclAllReduce"), ("DALI", "ncclAllReduce")),
            *((None, "inline"), ("NCCL", "inline"), ("", "default"), ("", "default")),
        ]
        assert column(session, tables.nccl_calls.c.name) == ["ncclAllReduce", "inline"]


class TestNccl:
    @pytest.mark.parametrize("layout", campaign.first(1, NcclPayloads))
    @pytest.mark.parametrize("schema", campaign.first(1, ["3.16.1", "3.25.0"]))
    def test_payloads_of_both_forms_and_layouts_say_the_same(self, tmp_path, session, layout, schema):
        table = tables.nccl_calls.c
        for number, (json, binary) in enumerate([(True, False), (False, True), (True, True)]):
            path = tmp_path / f"{number}.sqlite"
            session.add(synthetic.payload_export(path, json=json, binary=binary, layout=layout, schema=schema))
            columns = (table.name, table.collective, table.message_size, table.size_source, table.communicator)
            sized = sa.select(*columns).where(table.message_size.is_not(None), table.report == number)
            communicator = f"0x{PAYLOAD_COMMUNICATOR:x}" if layout is NcclPayloads.SINCE_2_25 else None
            assert session.rows(sized.order_by(table.start)) == [
                (name, name.removeprefix("nccl"), size, "payload", communicator) for name, size in PAYLOAD_BYTES.items()
            ], (json, binary)
            words = sa.select(table.name, table.reduction, table.peer, table.root).where(table.report == number)
            told = {name: tuple(rest) for name, *rest in session.rows(words)}
            expected = {"ncclAllReduce": ("Avg", None, None), "ncclReduce": ("Sum", None, 0)}
            assert told == {**told, **expected, "ncclSend": (None, 2, None)}, (json, binary)
            rank = sa.select(table.rank, table.ranks, table.cuda_device).where(table.report == number)
            assert session.rows(rank.where(table.rank.is_not(None))) == [(1, 4, 0)], (json, binary)

    def test_without_payload_calls_are_there_and_sizes_are_not(self, tmp_path, both):
        session = both(synthetic.payload_export(tmp_path / "p.sqlite", json=False))
        table = tables.nccl_calls.c
        found = session.rows(sa.select(table.name, table.collective, table.message_size, table.size_source))
        assert len(found) == 10
        assert {(size, source) for _, _, size, source in found} == {(None, None)}
        assert {name: collective for name, collective, *_ in found}["ncclGroupEnd"] is None

    def test_an_instrumented_nccl_tells_sizes_in_its_texts(self, tmp_path, both):
        session = both(synthetic.instrumented_nccl_export(tmp_path / "i.sqlite"))
        table = tables.nccl_calls.c
        found = session.rows(sa.select(table.name, table.message_size, table.size_source, table.communicator))
        assert Counter(found) == {
            ("ncclAllReduce", 65_536, "instrumented", "0xfedcba9876543210"): 8,
            ("ncclAllGather", 2_097_152, "instrumented", "0xfedcba9876543210"): 4,
        }

    @pytest.mark.campaign
    @pytest.mark.parametrize(("json", "change"), [
        (True, "UPDATE NVTX_EVENTS SET jsonText = '{\"Message size [bytes]\": ', binaryData = x'0102030405'"),
        (False, "UPDATE NVTX_PAYLOAD_SCHEMAS SET type = 3"),  # a union
        (False, "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET flags = 2"),  # pointers
    ])  # fmt: skip
    def test_payloads_that_make_no_sense_or_are_no_struct_of_numbers_are_none(self, tmp_path, session, json, change):
        path = synthetic.payload_export(tmp_path / "p.sqlite", json=json, binary=True, schema="3.25.0")
        edit(path, change)
        assert session.add(path).packed.counts["nccl_calls"] == 10
        assert column(session, tables.nccl_calls.c.message_size) == [None] * 10

    def test_kernels_of_nccl_are_marked(self, tmp_path, session):
        session.add(synthetic.nccl_without_nvtx_export(tmp_path / "n.sqlite"))
        assert Counter(column(session, tables.kernels.c.is_nccl)) == {0: 20, 1: 10}
        assert session.count(tables.nccl_calls) == 0


class TestHostileNames:
    def test_text_that_is_no_utf8_keeps_its_readable_part(self, tmp_path, both):
        path = tmp_path / "l.sqlite"
        with ExportWriter(path) as export:
            process = export.process(5_000, "process")
            main = export.thread(process, 5_000, "main")
            export.kernel(process, 0, 7, 1, 2, name="kernel(a)", short="kernel", correlation_id=1)
            export.kernel(process, 0, 7, 3, 4, name="größe(b)", correlation_id=2)
            export.nvtx_range(main, 1, 2, "range")
            export.diagnostic(1, "text")
        edit(
            tmp_path / "l.sqlite",
            "UPDATE StringIds SET value = CAST(x'6bff' AS TEXT) WHERE value = 'kernel'",
            "UPDATE NVTX_EVENTS SET text = CAST(x'72e4' AS TEXT)",
            "UPDATE PROCESSES SET name = CAST(x'f0' AS TEXT)",
            "UPDATE DIAGNOSTIC_EVENT SET text = CAST(x'74c3' AS TEXT)",
            "UPDATE TARGET_INFO_SYSTEM_ENV SET value = CAST(x'6eff' AS TEXT) WHERE name = 'Hostname'",
        )
        session = both(path)
        assert column(session, tables.kernels.c.short_name, tables.kernels.c.start) == [r"k\xFF", "größe"]
        assert column(session, tables.nvtx_ranges.c.name) == [r"r\xE4"]
        assert column(session, tables.processes.c.name) == [r"\xF0"]
        assert column(session, tables.diagnostics.c.text) == [r"t\xC3"]
        assert session.reports[0].metadata.host == "n�"

    def test_a_zero_byte_inside_a_name_is_a_character(self, tmp_path, both):
        with ExportWriter(tmp_path / "z.sqlite") as export:
            export.nvtx_range(export.thread(export.process(5_000), 5_000, "main"), 1, 2, "a")
        edit(tmp_path / "z.sqlite", "UPDATE NVTX_EVENTS SET text = CAST(x'610062' AS TEXT)")
        assert column(both(tmp_path / "z.sqlite"), tables.nvtx_ranges.c.name) == ["a\0b"]

    @pytest.mark.campaign
    def test_ids_of_another_machine_are_negative_numbers(self, export, both):
        """The highest byte of NVIDIA's ids is a hardware id, and SQLite's integers are signed."""
        places = {"CUPTI_ACTIVITY_KIND_KERNEL": "globalPid", "CUPTI_ACTIVITY_KIND_RUNTIME": "globalTid"}
        for table, place in {**places, "PROCESSES": "globalPid"}.items():
            edit(export, f"UPDATE {table} SET {place} = {place} | {-(1 << 56)}")
        session = both(export)
        tasks = ranked_tasks(session)
        assert [(item.pid, item.process_name) for item in tasks] == [(5_000, "python"), (5_001, "python")]
        events = EventList.build(session, Selection(), tasks)
        assert {(row[4], row[9]) for row in events.page(0, len(events))} == {(0, 5_000), (1, 5_001)}

    def test_names_that_are_not_there_are_told_by_their_numbers(self, export, session):
        edit(export, "DELETE FROM StringIds")
        session.add(export)
        for names in (tables.kernels.c.name, tables.api_calls.c.name):
            assert all(name.startswith("[name ") and name.endswith(" lost]") for name in column(session, names))
        assert set(column(session, tables.kernels.c.is_nccl)) == {0}


INTERNED = ("call_chains", "stack_frames", "stack_names")


@pytest.mark.campaign
class TestChunks:
    @pytest.fixture(scope="class")
    def exports(self, tmp_path_factory):
        place = tmp_path_factory.mktemp("chunks")
        made = TrainingJob(ranks=1, steps=1, layers=1, gpu_metrics=False).write(place)
        made.append(synthetic.payload_export(place / "payload.sqlite", binary=True))
        names = ("old_schema", "open_ranges", "cpu_only", "simulation")
        return [*made, *(getattr(synthetic, f"{name}_export")(place / f"{name}.sqlite") for name in names)]

    def everything(self, paths: list[Path], cache: Cache | None = None) -> dict[str, Any]:
        with closing(Session(cache=cache, warn=pytest.fail)) as session:
            for path in paths:
                session.add(path)
            found = {table.name: rows_of(session, table) for table in ALL_TABLES if table.name not in INTERNED}
            packed = [replace(report.packed, counts=self.counts(report)) for report in session.reports]
            return {**found, "packed": packed, "stacks": [self.stacks(session, report) for report in session.reports]}

    def counts(self, report: Report) -> dict[str, int]:
        return {name: rows for name, rows in report.packed.counts.items() if name not in INTERNED}

    def stacks(self, session: Session, report: Report) -> dict[str, Any]:
        """Return the functions of each chain; each chunk numbers its chains separately."""
        found = stacks_of(session, [report])[report.index]
        tree = found.tree
        return {
            kind: {chain: [tree.functions[one] for one in tree.path(node)] for chain, node in zip(*pair, strict=True)}
            for kind, pair in found.chains.items()
        }

    @pytest.fixture(scope="class")
    def whole(self, exports):
        return self.everything(exports)

    @pytest.mark.parametrize("settings", [
        {"CHUNK_ROWS": 7},
        {"_BATCH_ROWS": 3},  # the first batch decides a column's type, and may have only NULLs
        {"CHUNK_ROWS": 16},
        {"BAND_ROWS": 10, "CHUNK_ROWS": 7},
    ], ids=str)  # fmt: skip
    def test_no_size_changes_anything(self, exports, whole, monkeypatch, settings):
        self.set_sizes(monkeypatch, **settings)
        assert self.everything(exports) == whole

    def set_sizes(self, monkeypatch: pytest.MonkeyPatch, **settings: int) -> None:
        modules = {"_BATCH_ROWS": opening}
        for name, value in settings.items():
            monkeypatch.setattr(modules.get(name, packing), name, value)

    @pytest.mark.parametrize(
        "settings",
        [{"CHUNK_ROWS": 16, "_BATCH_ROWS": 3}, {"BAND_ROWS": 60, "SORTED_ROWS": 7, "_BATCH_ROWS": 5}],
        ids=str,
    )
    def test_a_cache_gives_what_memory_gives_in_pieces_of_any_size(self, exports, whole, monkeypatch, cache, settings):
        self.set_sizes(monkeypatch, **settings)
        assert self.everything(exports, cache) == whole
        monkeypatch.setattr(packing.Packer, "run", lambda packer: pytest.fail("packed again"))
        assert self.everything(exports, cache) == whole

    def test_rows_whose_keys_are_far_apart_do_not_take_for_ever(self, tmp_path, session):
        with ExportWriter(tmp_path / "far.sqlite", "3.28.1") as export:
            main = export.thread(export.process(5_000), 5_000, "main")
            for number in range(5):
                export.nvtx_range(main, number, number + 1, f"range {number}")
        edit(tmp_path / "far.sqlite", "UPDATE NVTX_EVENTS SET eventId = eventId * 1000000000000000")
        steps: list[Progress] = []
        assert session.add(tmp_path / "far.sqlite", steps.append).packed.counts["nvtx_ranges"] == 5
        assert len(steps) < 100

    def test_progress_grows_to_its_total(self, exports, session, monkeypatch):
        monkeypatch.setattr(packing, "CHUNK_ROWS", 50)
        steps: list[Progress] = []
        session.add(exports[0], steps.append)
        done = [step.rows for step in steps]
        assert done == sorted(done)
        assert {(step.total, step.path) for step in steps} == {(done[-1], exports[0])}
        assert "CUPTI_ACTIVITY_KIND_KERNEL" in {step.table for step in steps}


class TestStopping:
    def left(self, session: Session) -> list[tuple[str]]:
        return session.database.sql("SELECT table_name FROM duckdb_tables()").fetchall()

    @pytest.mark.campaign
    def test_cancelling_leaves_nothing(self, demo_job, both, cache):
        session = both()
        for steps in (0, 1, 5, 9):
            refusals = iter(range(steps))
            with pytest.raises(PackingCancelled):
                session.add(demo_job[0], is_cancelled=lambda refusals=refusals: next(refusals, None) is None)
            assert (self.left(session), session.reports, list(cache.directory.glob("*"))) == ([], (), []), steps
        report = session.add(demo_job[0])
        assert report.index == 0 and report.packed.counts["kernels"] > 0

    def test_cancelling_does_not_wait_for_the_check_of_pages(self, demo_job, both, monkeypatch):
        cancelled, end = [], PageChecks.end

        def checked(checks: PageChecks, *words: Any) -> None:
            cancelled.append(True)
            end(checks, *words)

        monkeypatch.setattr(opening, "_STEPS", 1)
        monkeypatch.setattr(PageChecks, "end", checked)
        with pytest.raises(PackingCancelled):
            both().add(demo_job[0], is_cancelled=lambda: bool(cancelled))

    def damaged(self, source: Path, target: Path) -> Path:
        """Write an export that is whole up to its OS runtime calls, which are read late."""
        target.write_bytes(source.read_bytes())
        (root,) = native(target, "SELECT rootpage FROM sqlite_master WHERE name = 'OSRT_API'")[0]
        with target.open("r+b") as file:
            file.seek((root - 1) * 4096)
            file.write(b"\xff" * 4096)
        return target

    def test_a_failure_half_way_leaves_only_in_the_cache_that_it_is_damaged(self, demo_job, tmp_path, both, cache):
        session, path = both(), self.damaged(demo_job[0], tmp_path / "rank0.sqlite")
        with pytest.raises(ExportError, match="malformed"):
            session.add(path)
        files = [file.name for file in cache.directory.rglob("*") if file.is_file()]
        assert (self.left(session), files) == ([], ["result=damage.bin"] if cache.directory.exists() else [])
        report = session.add(demo_job[1])
        assert (report.index, report.packed.counts["kernels"]) == (0, session.count(tables.kernels))

    def test_what_happens_in_the_progress_callback_is_the_callers(self, demo_job, session):
        with pytest.raises(KeyboardInterrupt):
            session.add(demo_job[0], Mock(side_effect=KeyboardInterrupt))
        assert self.left(session) == []


@pytest.mark.campaign
@pytest.mark.parametrize("times", campaign.first(1, [1, 2]))
def test_exports_packed_side_by_side_in_memory_do_not_mix(demo_job, demo_session, times):
    expected = {table.name: rows_of(demo_session, table) for table in (tables.kernels, tables.api_calls)}
    for _ in range(times):
        with closing(Session()) as session, ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda item: session.add(item[1], index=item[0]), enumerate(demo_job)))
            found = {table.name: rows_of(session, table) for table in (tables.kernels, tables.api_calls)}
        assert found == expected
