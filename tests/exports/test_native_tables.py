"""Unified memory, OpenMP, OpenACC, MPI ranks and the network: NVIDIA's tables become ours in every version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support import edit
from synthetic import SWITCH_GUID, ExportWriter, all_tables_export, empty_export, old_schema_export, simulation_export

from nsystui.base.selection import Selection
from nsystui.exports.demo import SCHEMAS
from nsystui.exports.writing.host import Pool
from nsystui.questions.activities import LIBRARIES, work_instances, work_summary
from nsystui.store import packing, tables
from nsystui.store.session import Session

Opener = Callable[..., Session]
NEW = (
    tables.cpu_page_faults,
    tables.gpu_page_faults,
    tables.openmp_events,
    tables.openacc_events,
    tables.mpi_ranks,
    tables.nic_devices,
)
PROCESS = (1 << 48) | (7_000 << 24)
THREAD = PROCESS | 7_000
NIC = 1 << 48
NIC_GUID = 0x9C63C003000000
PAGES = (0x7F0000000000, 0x7F0000010000)


def rows(session: Session, table: sa.Table, *names: str) -> list[tuple[Any, ...]]:
    """The rows of a table without the two columns that place them in the session."""
    chosen = [table.c[name] for name in names] or list(table.c)[2:]
    return session.rows(sa.select(*chosen).order_by(*[table.c.row] if "row" in table.c else chosen))


@pytest.fixture
def simulation(opened: Opener, tmp_path: Path) -> Callable[..., Session]:
    """The demo's simulation with some SQL done to it."""

    def make(*statements: str, schema: str = "3.28.1") -> Session:
        path = simulation_export(tmp_path / "rank0.sqlite", schema)
        edit(path, *statements)
        return opened(path)

    return make


class TestPageFaults:
    def test_one_row_is_one_fault_of_a_cpu(self, simulation):
        assert rows(simulation(), tables.cpu_page_faults) == [
            (1, 4_500_000, PROCESS, PAGES[0], "fill_grid", "src/grid.f90", 17),
            (2, 4_510_000, PROCESS, PAGES[1], "fill_grid", "src/grid.f90", 17),
            (3, 6_190_000, PROCESS, PAGES[0], "write_grid", "src/grid.f90", 80),
        ]

    def test_one_row_is_a_group_of_faults_of_a_gpu(self, simulation):
        assert rows(simulation(), tables.gpu_page_faults) == [
            (1, 6_055_000, 6_058_000, PROCESS, 0, PAGES[0], 12),
            (2, 6_072_000, 6_075_000, PROCESS, 0, PAGES[1], 5),
        ]

    @pytest.mark.parametrize("schema", ["2.9.1", "3.7.2", "3.25.0"])
    def test_an_older_export_says_nothing_of_the_source(self, simulation, schema):
        found = rows(simulation(schema=schema), tables.cpu_page_faults, "instruction", "source_file", "source_line")
        assert found == [("fill_grid", None, None), ("fill_grid", None, None), ("write_grid", None, None)]

    def test_both_spellings_of_the_columns_of_the_source_are_known(self, simulation):
        table = "CUDA_UM_CPU_PAGE_FAULT_EVENTS"
        session = simulation(
            f"ALTER TABLE {table} RENAME COLUMN sourceFile TO fileInSource",
            f"ALTER TABLE {table} RENAME COLUMN fileInSource TO SourceFile",
            f"ALTER TABLE {table} RENAME COLUMN sourceLine TO lineInSource",
            f"ALTER TABLE {table} RENAME COLUMN lineInSource TO SourceLine",
        )
        assert rows(session, tables.cpu_page_faults, "source_file", "source_line")[2] == ("src/grid.f90", 80)

    def test_a_file_that_is_not_known_is_empty_and_not_missing(self, simulation):
        session = simulation("UPDATE CUDA_UM_CPU_PAGE_FAULT_EVENTS SET sourceFile = NULL, sourceLine = NULL")
        assert set(rows(session, tables.cpu_page_faults, "source_file", "source_line")) == {("", None)}

    def test_any_column_may_be_absent(self, simulation):
        session = simulation(
            "ALTER TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS DROP COLUMN CpuInstruction",
            "ALTER TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS DROP COLUMN numberOfPageFaults",
            "ALTER TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS DROP COLUMN deviceId",
        )
        assert rows(session, tables.cpu_page_faults, "instruction") == [(None,)] * 3
        assert rows(session, tables.gpu_page_faults, "device", "count") == [(None, None)] * 2

    def test_migrations_keep_their_address(self, simulation):
        found = rows(simulation(), tables.memory_ops, "copy_kind", "virtual_address", "bytes")
        assert found == [(11, PAGES[0], 65_536), (11, PAGES[1], 65_536), (12, PAGES[0], 65_536)]


class TestDirectives:
    def test_openmp_events_of_every_kind_share_a_table(self, simulation):
        found = rows(simulation(), tables.openmp_events)
        assert found == [
            (1, 5_000_000, 6_000_000, THREAD, PROCESS, "Parallel region", "PARALLEL"),
            (2, 7_000_000, 8_000_000, THREAD, PROCESS, "Parallel region", "PARALLEL"),
            (3, 5_900_000, 6_000_000, THREAD, PROCESS, "Implicit task", "SYNC_REGION_WAIT"),
            (4, 5_000_000, 5_900_000, THREAD, PROCESS, "Implicit task", "TASK"),
        ]

    def test_kinds_that_nobody_has_seen_yet_are_read_too(self, simulation):
        session = simulation(
            "CREATE TABLE OPENMP_EVENT_KIND_WORKSHARE_2 (start, end, globalTid, nameId)",
            f"INSERT INTO OPENMP_EVENT_KIND_WORKSHARE_2 SELECT 1, 2, {THREAD}, id FROM StringIds "
            "WHERE value = 'fill_grid'",
        )
        assert rows(session, tables.openmp_events)[-1] == (5, 1, 2, THREAD, PROCESS, "fill_grid", "WORKSHARE_2")

    def test_a_table_whose_name_is_no_plain_word_is_none_of_nsys(self, simulation):
        session = simulation(
            'CREATE TABLE "OPENMP_EVENT_KIND_A\'B" (start, end, globalTid, nameId)',
            'CREATE TABLE "OPENMP_EVENT_KIND_C""D" (start, end, globalTid, nameId)',
            'CREATE TABLE "CUPTI_ACTIVITY_KIND_OPENACC_%d" (start, end, globalTid, nameId)',
            'INSERT INTO "OPENMP_EVENT_KIND_A\'B" VALUES (1, 2, 3, 4)',
            'INSERT INTO "OPENMP_EVENT_KIND_C""D" VALUES (1, 2, 3, 4)',
            'INSERT INTO "CUPTI_ACTIVITY_KIND_OPENACC_%d" VALUES (1, 2, 3, 4)',
        )
        assert (session.count(tables.openmp_events), session.count(tables.openacc_events)) == (4, 4)

    def test_openacc_events_are_called_by_their_place_where_it_is_known(self, simulation):
        assert rows(simulation(), tables.openacc_events) == [
            (1, 6_000_000, 6_040_000, THREAD, PROCESS, "Enqueue Upload@src/solve.f90:41", "DATA", 5, "solve", 65_536),
            (2, 6_050_000, 6_070_000, THREAD, PROCESS, "Enqueue Launch@src/solve.f90:42", "LAUNCH", 4, "solve", None),
            (3, 6_080_000, 6_110_000, THREAD, PROCESS, "Enqueue Launch@src/solve.f90:42", "LAUNCH", 4, "solve", None),
            (4, 6_120_000, 6_130_000, THREAD, PROCESS, "Wait", "OTHER", 7, None, None),
        ]

    def test_openacc_events_without_columns_of_their_place_have_a_name(self, simulation):
        table = "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH"
        session = simulation(f"ALTER TABLE {table} DROP COLUMN lineNo")
        assert ("Enqueue Launch@src/solve.f90",) in rows(session, tables.openacc_events, "name")

    def test_openacc_events_without_a_file_have_a_name(self, simulation):
        table = "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH"
        session = simulation(f"ALTER TABLE {table} DROP COLUMN srcFile")
        assert ("Enqueue Launch",) in rows(session, tables.openacc_events, "name")

    def test_the_size_of_chunks_changes_nothing(self, simulation, monkeypatch):
        session = simulation()
        whole = [rows(session, table) for table in NEW]
        for size in (1, 3):
            monkeypatch.setattr(packing, "CHUNK_ROWS", size)
            session = simulation()
            assert [rows(session, table) for table in NEW] == whole, size


class TestMpi:
    def test_ranks_belong_to_threads(self, simulation):
        assert rows(simulation(), tables.mpi_ranks) == [(THREAD, 0)]

    def test_ranks_that_are_told_twice_or_of_nobody_do_not_count(self, simulation):
        session = simulation(
            "INSERT INTO MPI_RANKS SELECT * FROM MPI_RANKS",
            "CREATE TABLE loose AS SELECT CAST(globalTid AS INTEGER) AS globalTid, rank FROM MPI_RANKS",
            "DROP TABLE MPI_RANKS",
            "ALTER TABLE loose RENAME TO MPI_RANKS",
            "INSERT INTO MPI_RANKS VALUES (NULL, 3), (5, NULL)",
        )
        assert rows(session, tables.mpi_ranks) == [(THREAD, 0)]

    def test_waits_share_the_table_of_calls(self, simulation):
        found = rows(simulation(), tables.mpi_calls, "call_type", "name", "start", "end")
        assert [row[1:] for row in found if row[0] == "wait"] == [
            ("MPI_Waitall", 1_700_000, 1_900_000),
            ("MPI_Waitall", 9_000_000, None),
        ]


class TestNetwork:
    def test_adapters_have_the_id_of_their_samples(self, simulation):
        session = simulation()
        assert rows(session, tables.nic_devices) == [(NIC, NIC_GUID, "mlx5_0")]
        assert set(rows(session, tables.nic_metrics, "nic", "is_switch")) == {(NIC, 0), (SWITCH_GUID, 1)}

    def test_switches_count_on_where_adapters_end(self, simulation):
        found = rows(simulation(), tables.nic_metrics, "row", "metric", "unit", "value", "is_switch")
        assert found == [
            (1, "IB: Bytes sent", "bytes/ms", 1_000_000, 0),
            (2, "IB: Send waits", "ticks/ms", 20_000, 0),
            (3, "IB: Bytes sent", "bytes/ms", 1_000_000, 0),
            (4, "IB: Send waits", "ticks/ms", 500, 0),
            (5, "IB: Bytes sent", "bytes/ms", 2_000_000, 1),
            (6, "IB: Send waits", "ticks/ms", 30_000, 1),
        ]

    def test_switches_alone(self, simulation):
        found = rows(simulation("DROP TABLE NET_NIC_METRIC"), tables.nic_metrics, "row", "nic")
        assert found == [(1, SWITCH_GUID), (2, SWITCH_GUID)]

    def test_the_first_form_of_adapters_had_no_guid(self, simulation):
        """In schema 3.1 the adapter has a ``globalId``, of the machine, and the map that of the samples."""
        session = simulation("ALTER TABLE TARGET_INFO_NIC_INFO RENAME COLUMN GUID TO globalId")
        assert rows(session, tables.nic_devices) == [(NIC, None, "mlx5_0")]

    def test_without_a_map_the_own_id_is_the_only_one(self, simulation):
        session = simulation(
            "DROP TABLE NIC_ID_MAP",
            "ALTER TABLE TARGET_INFO_NIC_INFO RENAME COLUMN GUID TO globalId",
            "UPDATE TARGET_INFO_NIC_INFO SET globalId = 77",
        )
        assert rows(session, tables.nic_devices) == [(77, None, "mlx5_0")]

    def test_adapters_that_were_not_sampled_are_known_too(self, simulation):
        assert rows(simulation("DROP TABLE NIC_ID_MAP"), tables.nic_devices) == [(None, NIC_GUID, "mlx5_0")]

    def test_samples_of_the_network_do_not_stretch_the_session(self, opened, tmp_path):
        with ExportWriter(tmp_path / "net.sqlite") as export:
            export.nic(0, "mlx5_0", [("IB: Send waits", "ticks/ms")])
            export.nic_metric(0, 0, 500, (1,))
            export.switch_metric(SWITCH_GUID, 0, 900, (1,))
        packed = opened(tmp_path / "net.sqlite").reports[0].packed
        assert (packed.first_event, packed.last_event) == (None, None)


class TestWhatThereIs:
    def test_an_empty_table_is_there(self, opened, tmp_path):
        report = opened(all_tables_export(tmp_path / "all.sqlite", "3.28.1")).reports[0]
        for table in tables.METADATA.tables.values():
            assert report.count(table) == 0
            assert report.has(table) == (table not in (tables.devices, tables.efa_samples)), (
                table.name
            )  # none is described

    def test_a_table_that_was_not_exported_is_not(self, opened, tmp_path):
        report = opened(empty_export(tmp_path / "none.sqlite")).reports[0]
        assert not [name for name, table in tables.METADATA.tables.items() if report.has(table)]

    def test_one_native_table_of_several_is_enough(self, opened, tmp_path):
        path = all_tables_export(tmp_path / "all.sqlite", "3.7.2")
        gone = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_OTHER_EVENTS", "NET_NIC_METRIC")
        gone += ("OPENMP_EVENT_KIND_PARALLEL", "OPENMP_EVENT_KIND_TASK", "CUPTI_ACTIVITY_KIND_MEMSET")
        edit(path, *[f"DROP TABLE {table}" for table in gone])
        report = opened(path).reports[0]
        for table in (tables.mpi_calls, tables.nic_metrics, tables.openmp_events, tables.memory_ops):
            assert report.has(table), table.name

    def test_rows_of_the_wrong_kind_leave_the_table_there(self, opened, tmp_path):
        """An NVTX table without marks says that there were none."""
        with ExportWriter(tmp_path / "ranges.sqlite") as export:
            export.nvtx_range(export.thread(export.process(5_000), 5_000, "main"), 1, 2, "range")
        report = opened(tmp_path / "ranges.sqlite").reports[0]
        assert (report.has(tables.nvtx_marks), report.count(tables.nvtx_marks)) == (True, 0)
        assert (report.has(tables.nccl_calls), report.count(tables.nccl_calls)) == (True, 0)
        assert not report.has(tables.kernels)

    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_a_schema_without_the_tables_opens(self, opened, tmp_path, schema):
        session = opened(old_schema_export(tmp_path / "old.sqlite", schema))
        assert [session.count(table) for table in NEW] == [0] * len(NEW)
        assert not any(session.reports[0].has(table) for table in NEW)

    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_the_simulation_arrives_from_every_schema(self, simulation, schema):
        session = simulation(schema=schema)
        assert [session.count(table) for table in NEW[:4]] == [3, 2, 4, 4]
        has_mpi, has_network = SCHEMAS[schema].version >= (3, 1), SCHEMAS[schema].version >= (3, 7)
        assert session.count(tables.mpi_calls) == 8 * has_mpi
        assert session.count(tables.nic_metrics) == 6 * has_network


def test_what_the_profiler_itself_took_is_no_event_of_the_program(tmp_path):
    from synthetic.variants import old_schema_export

    session = Session()
    report = session.add(old_schema_export(tmp_path / "old.sqlite"))
    assert rows(session, tables.profiler_overhead, "start", "end", "name") == [
        (500, 90_000, "CUDA profiling initialization")
    ]
    assert report.packed.first_event > 90_000


class TestGpuMemory:
    def test_one_row_is_an_allocation_or_a_free(self, opened, tmp_path):
        path = tmp_path / "x.sqlite"
        with ExportWriter(path) as export:
            process = export.process(7)
            export.memory_pool(process, 0, 5, Pool(64, 0, 0, 9))
            export.gpu_memory(process, 1, 10, 4_096, address=640, correlation_id=3, pool=Pool(64, 8_192, 4_096))
            export.gpu_memory(process, 1, 20, 16, address=1_280, memory=5, name="table")
            export.gpu_memory(process, 1, 30, 4_096, address=640, is_free=True)
        session = opened(path)
        process = (1 << 48) | (7 << 24)
        assert rows(session, tables.gpu_memory) == [
            (1, 10, process, 1, 1, 640, 4_096, "Device", 0, 3, None, 64, 8_192, 4_096),
            (2, 20, process, 1, 1, 1_280, 16, "Device Static", 0, None, "table", None, None, None),
            (3, 30, process, 1, 1, 640, 4_096, "Device", 1, None, None, None, None, None),
        ]
        assert rows(session, tables.memory_pools) == [(1, 5, process, 0, 64, "Created", 0, 0, 9, None)]

    def test_memory_does_not_stretch_the_session(self, opened, tmp_path):
        path = tmp_path / "x.sqlite"
        with ExportWriter(path) as export:
            process = export.process(7)
            export.api(export.thread(process, 7, "python"), 100, 200, "cudaMalloc_v3020", 1)
            export.gpu_memory(process, 0, 900, 1, address=64)
        report = opened(path).reports[0]
        assert (report.packed.first_event, report.packed.last_event) == (100, 200)


class TestLibraryCalls:
    def test_calls_of_both_libraries_share_a_table(self, opened, tmp_path):
        path = tmp_path / "x.sqlite"
        with ExportWriter(path) as export:
            main = export.thread(export.process(7), 7, "python")
            export.library_call(main, 10, 30, "cublasSgemm_v2")
            export.library_call(main, 40, 45, "cublasCreate_v2")
            export.library_call(main, 15, 20, "cudnnConvolutionForward", library="CUDNN")
        session = opened(path)
        assert rows(session, tables.library_calls, "row", "start", "end", "name", "library") == [
            (1, 10, 30, "cublasSgemm_v2", "cuBLAS"),
            (2, 40, 45, "cublasCreate_v2", "cuBLAS"),
            (3, 15, 20, "cudnnConvolutionForward", "cuDNN"),
        ]
        summary = work_summary(session, Selection(), LIBRARIES).records()
        assert [(row["name"], row["total"], row["count"]) for row in summary] == [
            ("cublasSgemm_v2", 20, 1), ("cublasCreate_v2", 5, 1), ("cudnnConvolutionForward", 5, 1)
        ]  # fmt: skip
        [single] = work_instances(session, Selection(), LIBRARIES, "cublasSgemm_v2").page(0, 9)
        assert single[:6] == (10, 20, None, "t7", None, "cuBLAS")

    def test_missing_calls_say_what_to_record(self, opened, tmp_path):
        answer = work_summary(opened(empty_export(tmp_path / "x.sqlite")), Selection(), LIBRARIES)
        assert answer.notes == ("no cuBLAS and cuDNN calls in this export: record with `nsys profile -t cublas,cudnn`",)
