"""Unified memory, OpenMP, OpenACC, MPI ranks and the network: native tables become canonical in every version."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa
from support import edit
from synthetic import SWITCH_GUID, ExportWriter, all_tables_export, empty_export, old_schema_export, simulation_export
from synthetic.demo import SCHEMAS

from nsystui.base.selection import Selection
from nsystui.questions.kernels.activities import LIBRARIES, work_instances, work_summary
from nsystui.store import tables
from nsystui.store.session import Session

Opener = Callable[..., Session]
NEW = (
    tables.cpu_page_faults, tables.gpu_page_faults, tables.openmp_events, tables.openacc_events, tables.mpi_ranks,
    tables.nic_devices,
)  # fmt: skip
PROCESS = (1 << 48) | (7_000 << 24)
THREAD = PROCESS | 7_000
NIC = 1 << 48
NIC_GUID = 0x9C63C003000000
PAGES = (0x7F0000000000, 0x7F0000010000)


def rows(session: Session, table: sa.Table, *names: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table without the columns of the report and its clock."""
    chosen = [table.c[name] for name in names] or list(table.c)[2:]
    return session.rows(sa.select(*chosen).order_by(*[table.c.row] if "row" in table.c else chosen))


@pytest.fixture
def simulation(opened, tmp_path) -> Callable[..., Session]:
    """Return a function that opens the demo's simulation after some changes in SQL."""

    def make(*statements: str, schema: str = "3.28.1") -> Session:
        path = simulation_export(tmp_path / "rank0.sqlite", schema)
        edit(path, *statements)
        return opened(path)

    return make


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Iterator[Session]:
    with closing(Session()) as session:
        session.add(simulation_export(tmp_path_factory.mktemp("plain") / "rank0.sqlite", "3.28.1"))
        yield session


@pytest.mark.campaign
class TestPageFaults:
    def test_one_row_is_one_fault_of_a_cpu_or_a_group_of_faults_of_a_gpu(self, plain):
        assert rows(plain, tables.cpu_page_faults) == [
            (1, 4_500_000, PROCESS, PAGES[0], "fill_grid", "src/grid.f90", 17),
            (2, 4_510_000, PROCESS, PAGES[1], "fill_grid", "src/grid.f90", 17),
            (3, 6_190_000, PROCESS, PAGES[0], "write_grid", "src/grid.f90", 80),
        ]
        assert rows(plain, tables.gpu_page_faults) == [
            (1, 6_055_000, 6_058_000, PROCESS, 0, PAGES[0], 12),
            (2, 6_072_000, 6_075_000, PROCESS, 0, PAGES[1], 5),
        ]
        assert rows(plain, tables.memory_ops, "copy_kind", "virtual_address", "bytes") == [
            (11, PAGES[0], 65_536), (11, PAGES[1], 65_536), (12, PAGES[0], 65_536),
        ]  # fmt: skip

    def test_both_spellings_of_the_columns_of_the_source_are_known(self, simulation):
        table = "CUDA_UM_CPU_PAGE_FAULT_EVENTS"
        spelt = (("sourceFile", "SourceFile"), ("sourceLine", "SourceLine"))
        steps = [step for old, new in spelt for step in ((old, "x"), ("x", new))]
        session = simulation(*[f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}" for old, new in steps])
        assert rows(session, tables.cpu_page_faults, "source_file", "source_line")[2] == ("src/grid.f90", 80)

    def test_a_file_that_is_not_known_is_empty_and_any_column_may_be_absent(self, simulation):
        unknown = simulation("UPDATE CUDA_UM_CPU_PAGE_FAULT_EVENTS SET sourceFile = NULL, sourceLine = NULL")
        assert set(rows(unknown, tables.cpu_page_faults, "source_file", "source_line")) == {("", None)}
        dropped = (("CPU", "CpuInstruction"), ("GPU", "numberOfPageFaults"), ("GPU", "deviceId"))
        changes = [f"ALTER TABLE CUDA_UM_{of}_PAGE_FAULT_EVENTS DROP COLUMN {column}" for of, column in dropped]
        session = simulation(*changes)
        assert rows(session, tables.cpu_page_faults, "instruction") == [(None,)] * 3
        assert rows(session, tables.gpu_page_faults, "device", "count") == [(-1, None)] * 2


@pytest.mark.campaign
class TestDirectives:
    def test_openmp_events_of_every_kind_share_a_table_also_kinds_that_nobody_has_seen_yet(self, plain, simulation):
        known = [
            (1, 5_000_000, 6_000_000, THREAD, PROCESS, "Parallel region", "PARALLEL"),
            (2, 7_000_000, 8_000_000, THREAD, PROCESS, "Parallel region", "PARALLEL"),
            (3, 5_900_000, 6_000_000, THREAD, PROCESS, "Implicit task", "SYNC_REGION_WAIT"),
            (4, 5_000_000, 5_900_000, THREAD, PROCESS, "Implicit task", "TASK"),
        ]
        assert rows(plain, tables.openmp_events) == known
        session = simulation(
            "CREATE TABLE OPENMP_EVENT_KIND_WORKSHARE_2 (start, end, globalTid, nameId)",
            f"INSERT INTO OPENMP_EVENT_KIND_WORKSHARE_2 SELECT 1, 2, {THREAD}, id FROM StringIds "
            "WHERE value = 'fill_grid'",
        )
        assert rows(session, tables.openmp_events) == [*known, (5, 1, 2, THREAD, PROCESS, "fill_grid", "WORKSHARE_2")]

    def test_a_table_whose_name_is_no_plain_word_is_none_of_nsys(self, simulation):
        names = ("OPENMP_EVENT_KIND_A'B", 'OPENMP_EVENT_KIND_C""D', "CUPTI_ACTIVITY_KIND_OPENACC_%d")
        create = [f'CREATE TABLE "{name}" (start, end, globalTid, nameId)' for name in names]
        session = simulation(*create, *[f'INSERT INTO "{name}" VALUES (1, 2, 3, 4)' for name in names])
        assert (session.count(tables.openmp_events), session.count(tables.openacc_events)) == (4, 4)

    def test_openacc_events_are_called_by_their_place_where_it_is_known(self, plain, simulation):
        assert rows(plain, tables.openacc_events) == [
            (1, 6_000_000, 6_040_000, THREAD, PROCESS, "Enqueue Upload@src/solve.f90:41", "DATA", 5, "solve", 65_536),
            (2, 6_050_000, 6_070_000, THREAD, PROCESS, "Enqueue Launch@src/solve.f90:42", "LAUNCH", 4, "solve", None),
            (3, 6_080_000, 6_110_000, THREAD, PROCESS, "Enqueue Launch@src/solve.f90:42", "LAUNCH", 4, "solve", None),
            (4, 6_120_000, 6_130_000, THREAD, PROCESS, "Wait", "OTHER", 7, None, None),
        ]
        for column, name in (("lineNo", "Enqueue Launch@src/solve.f90"), ("srcFile", "Enqueue Launch")):
            session = simulation(f"ALTER TABLE CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH DROP COLUMN {column}")
            assert (name,) in rows(session, tables.openacc_events, "name"), column


class TestMpi:
    @pytest.mark.campaign
    def test_ranks_belong_to_threads_and_those_told_twice_or_of_nobody_do_not_count(self, plain, simulation):
        assert rows(plain, tables.mpi_ranks) == [(THREAD, 0)]
        session = simulation(
            "INSERT INTO MPI_RANKS SELECT * FROM MPI_RANKS",
            "CREATE TABLE loose AS SELECT CAST(globalTid AS INTEGER) AS globalTid, rank FROM MPI_RANKS",
            "DROP TABLE MPI_RANKS",
            "ALTER TABLE loose RENAME TO MPI_RANKS",
            "INSERT INTO MPI_RANKS VALUES (NULL, 3), (5, NULL)",
        )
        assert rows(session, tables.mpi_ranks) == [(THREAD, 0)]

    def test_waits_share_the_table_of_calls(self, plain):
        found = rows(plain, tables.mpi_calls, "call_type", "name", "start", "end")
        assert [row[1:] for row in found if row[0] == "wait"] == [
            ("MPI_Waitall", 1_700_000, 1_900_000),
            ("MPI_Waitall", 9_000_000, None),
        ]


class TestNetwork:
    @pytest.mark.campaign
    def test_adapters_have_the_id_of_their_samples_and_switches_count_on_where_they_end(self, plain, simulation):
        assert rows(plain, tables.nic_devices) == [(NIC, NIC_GUID, "mlx5_0")]
        assert set(rows(plain, tables.nic_metrics, "nic", "is_switch")) == {(NIC, 0), (SWITCH_GUID, 1)}
        assert rows(plain, tables.nic_metrics, "row", "metric", "unit", "value", "is_switch") == [
            (1, "IB: Bytes sent", "bytes/ms", 1_000_000, 0), (2, "IB: Send waits", "ticks/ms", 20_000, 0),
            (3, "IB: Bytes sent", "bytes/ms", 1_000_000, 0), (4, "IB: Send waits", "ticks/ms", 500, 0),
            (5, "IB: Bytes sent", "bytes/ms", 2_000_000, 1), (6, "IB: Send waits", "ticks/ms", 30_000, 1),
        ]  # fmt: skip
        alone = simulation("DROP TABLE NET_NIC_METRIC")
        assert rows(alone, tables.nic_metrics, "row", "nic") == [(1, SWITCH_GUID), (2, SWITCH_GUID)]

    @pytest.mark.campaign
    def test_adapters_of_other_forms_are_known(self, simulation):
        # In schema 3.1 the adapter has the machine's ``globalId``, and the map has the samples' id.
        renamed = "ALTER TABLE TARGET_INFO_NIC_INFO RENAME COLUMN GUID TO globalId"
        unmapped = "DROP TABLE NIC_ID_MAP"  # was not sampled
        machine = "UPDATE TARGET_INFO_NIC_INFO SET globalId = 77"
        for changes, device in (
            ([renamed], (NIC, None, "mlx5_0")),
            ([unmapped, renamed, machine], (77, None, "mlx5_0")),
            ([unmapped], (None, NIC_GUID, "mlx5_0")),
        ):
            assert rows(simulation(*changes), tables.nic_devices) == [device], changes

    def test_neither_samples_of_the_network_nor_memory_stretch_the_session(self, opened, tmp_path):
        with ExportWriter(tmp_path / "net.sqlite") as export:
            export.nic(0, "mlx5_0", [("IB: Send waits", "ticks/ms")])
            export.nic_metric(0, 0, 500, (1,))
            export.switch_metric(SWITCH_GUID, 0, 900, (1,))
        with ExportWriter(tmp_path / "memory.sqlite") as export:
            process = export.process(7)
            export.api(export.thread(process, 7, "python"), 100, 200, "cudaMalloc_v3020", 1)
            export.gpu_memory(process, 0, 900, 1, address=64)
        packed = [report.packed for report in opened(tmp_path / "net.sqlite", tmp_path / "memory.sqlite").reports]
        assert [(one.first_event, one.last_event) for one in packed] == [(None, None), (100, 200)]


class TestWhatThereIs:
    def test_an_empty_table_is_there_and_one_that_was_not_exported_is_not(self, opened, tmp_path):
        session = opened(all_tables_export(tmp_path / "all.sqlite", "3.28.1"), empty_export(tmp_path / "none.sqlite"))
        every, nothing = session.reports
        for table in tables.METADATA.tables.values():
            is_described = table not in (tables.devices, tables.efa_samples)
            assert (every.count(table), every.has(table)) == (0, is_described), table.name
            assert (nothing.count(table), nothing.has(table)) == (0, False), table.name

    def test_one_native_table_of_several_is_enough(self, opened, tmp_path):
        path = all_tables_export(tmp_path / "all.sqlite", "3.7.2")
        gone = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_OTHER_EVENTS", "NET_NIC_METRIC")
        gone += ("OPENMP_EVENT_KIND_PARALLEL", "OPENMP_EVENT_KIND_TASK", "CUPTI_ACTIVITY_KIND_MEMSET")
        edit(path, *[f"DROP TABLE {table}" for table in gone])
        report = opened(path).reports[0]
        for table in (tables.mpi_calls, tables.nic_metrics, tables.openmp_events, tables.memory_ops):
            assert report.has(table), table.name

    def test_rows_of_the_wrong_kind_leave_the_table_there(self, opened, tmp_path):
        """An NVTX table without marks shows that the program made no marks."""
        with ExportWriter(tmp_path / "ranges.sqlite") as export:
            export.nvtx_range(export.thread(export.process(5_000), 5_000, "main"), 1, 2, "range")
        report = opened(tmp_path / "ranges.sqlite").reports[0]
        assert (report.has(tables.nvtx_marks), report.count(tables.nvtx_marks)) == (True, 0)
        assert (report.has(tables.nccl_calls), report.count(tables.nccl_calls)) == (True, 0)
        assert not report.has(tables.kernels)

    @pytest.mark.campaign
    def test_every_schema_opens_with_and_without_the_tables(self, opened, tmp_path):
        old = [old_schema_export(tmp_path / f"old {schema}.sqlite", schema) for schema in SCHEMAS]
        new = [simulation_export(tmp_path / f"new {schema}.sqlite", schema) for schema in SCHEMAS]
        reports = opened(*old, *new).reports
        for schema, report in zip(SCHEMAS, reports, strict=False):
            assert [(report.count(table), report.has(table)) for table in NEW] == [(0, False)] * len(NEW), schema
        for schema, report in zip(SCHEMAS, reports[len(old) :], strict=True):
            assert [report.count(table) for table in NEW[:4]] == [3, 2, 4, 4], schema
            version = SCHEMAS[schema].version
            assert report.count(tables.mpi_calls) == 8 * (version >= (3, 1)), schema
            assert report.count(tables.nic_metrics) == 6 * (version >= (3, 7)), schema

    @pytest.mark.campaign
    def test_an_older_export_says_nothing_of_the_source_of_a_page_fault(self, simulation):
        for schema in ("2.9.1", "3.7.2", "3.25.0"):
            found = rows(simulation(schema=schema), tables.cpu_page_faults, "instruction", "source_file", "source_line")
            assert found == [("fill_grid", None, None), ("fill_grid", None, None), ("write_grid", None, None)], schema


def test_what_the_profiler_itself_took_is_no_event_of_the_program(tmp_path, session):
    report = session.add(old_schema_export(tmp_path / "old.sqlite"))
    overhead = rows(session, tables.profiler_overhead, "start", "end", "name")
    assert overhead == [(500, 90_000, "CUDA profiling initialization")]
    assert report.packed.first_event > 90_000


class TestGpuMemory:
    def test_one_row_is_an_allocation_or_a_free(self, opened, tmp_path):
        path = tmp_path / "x.sqlite"
        with ExportWriter(path) as export:
            process = export.process(7)
            export.gpu_memory(process, 1, 10, 4_096, address=640, correlation_id=3)
            export.gpu_memory(process, 1, 20, 16, address=1_280, memory=5, name="table")
            export.gpu_memory(process, 1, 30, 4_096, address=640, is_free=True)
        session = opened(path)
        process = (1 << 48) | (7 << 24)
        assert rows(session, tables.gpu_memory) == [
            (1, 10, process, 1, 1, 640, 4_096, "Device", 0, 3, None),
            (2, 20, process, 1, 1, 1_280, 16, "Device Static", 0, None, "table"),
            (3, 30, process, 1, 1, 640, 4_096, "Device", 1, None, None),
        ]


class TestLibraryCalls:
    def test_calls_of_both_libraries_share_a_table(self, opened, tmp_path):
        calls = [
            (10, 30, "cublasSgemm_v2", "cuBLAS"),
            (40, 45, "cublasCreate_v2", "cuBLAS"),
            (15, 20, "cudnnConvolutionForward", "cuDNN"),
        ]
        with ExportWriter(tmp_path / "x.sqlite") as export:
            main = export.thread(export.process(7), 7, "python")
            for start, end, name, library in calls:
                export.library_call(main, start, end, name, library=library.upper())
        session = opened(tmp_path / "x.sqlite")
        expected = [(number, *call) for number, call in enumerate(calls, 1)]
        assert rows(session, tables.library_calls, "row", "start", "end", "name", "library") == expected
        summary = work_summary(session, Selection(), LIBRARIES).records()
        assert [(row["name"], row["total"], row["count"]) for row in summary] == [
            ("cublasSgemm_v2", 20, 1), ("cublasCreate_v2", 5, 1), ("cudnnConvolutionForward", 5, 1)
        ]  # fmt: skip
        [single] = work_instances(session, Selection(), LIBRARIES, "cublasSgemm_v2").page(0, 9)
        assert single[:6] == (10, 20, None, "t7", None, "cuBLAS")

    def test_missing_calls_say_what_to_record(self, opened, tmp_path):
        answer = work_summary(opened(empty_export(tmp_path / "x.sqlite")), Selection(), LIBRARIES)
        assert answer.notes == ("no cuBLAS and cuDNN calls in this export: record with `nsys profile -t cublas,cudnn`",)
