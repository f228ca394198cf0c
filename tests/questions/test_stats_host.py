"""Reports on MPI, OpenMP, OpenACC, unified memory and the network: expected tables are computed by hand."""

import pytest
from support import asked_of_stats, csv_of_stats, edit
from synthetic import ExportWriter, all_tables_export, empty_export, simulation_export

from nsystui.base.selection import Selection, Window
from nsystui.exports import canonical
from nsystui.questions.queries.data_notes import absent_notes, missing_notes
from nsystui.questions.stats import all_reports, report_of
from nsystui.store import tables
from nsystui.store.session import Session

KINDS = ("mpi", "network", "openacc", "openmp", "um")
HERE = [one.name for one in all_reports() if one.name.partition("_")[0] in KINDS]
STATISTICS = "Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns)"


def body(session: Session, report: str, selection: Selection | None = None) -> list[str]:
    """Return the lines of a report without its header."""
    return csv_of_stats(session, report, selection).splitlines()[1:]


class TestUnifiedMemory:
    def test_as_many_rows_as_asked_for_and_ten_if_not(self, opened, tmp_path):
        with ExportWriter(tmp_path / "many.sqlite") as export:
            process = export.process(5_000)
            for page in range(12):
                export.cpu_page_fault(process, page, 0x1000 * page)
                export.gpu_page_fault(process, 0, page, page + 1, address=0x1000 * page, count=1)
                migrate(export, page, page + 1_000, address=0x1000 * page, size=12 - page)
        session = opened(tmp_path / "many.sqlite")
        assert [line.split(",")[0] for line in body(session, "um_sum")] == [f"0x{0x1000 * n:X}" for n in range(10)]
        assert [line.split(",")[0] for line in body(session, "um_sum:rows=2")] == ["0x0", "0x1000"]
        assert (len(body(session, "um_sum:rows=100")), asked_of_stats(session, "um_sum:rows=2").total) == (12, 12)

    def test_faults_without_migrations_come_last_and_migrations_without_faults_count_too(self, opened, tmp_path):
        with ExportWriter(tmp_path / "apart.sqlite") as export:
            process = export.process(5_000)
            migrate(export, 0, 1_000, address=0xA000, size=1_000_000, kind="UvmDtoH")
            export.cpu_page_fault(process, 5, 0xB000)
            export.gpu_page_fault(process, 0, 5, 6, address=0xC000, count=40)
            migrate(export, 10, 2_000_000_010, address=0xD000, size=5_000_000)
        assert body(opened(tmp_path / "apart.sqlite"), "um_sum") == [
            "0xA000,,1.000,,,1000000.000",
            "0xD000,5.000,,,,0.000",  # longer than a second: nsys divides whole numbers
            "0xB000,,,1,,",
            "0xC000,,,,40,",
        ]

    def test_addresses_are_unsigned_and_copies_that_are_no_migrations_do_not_count(self, opened, tmp_path):
        with ExportWriter(tmp_path / "copies.sqlite", lazy=False) as export:
            for kind in ("HtoD", "DtoH", "DtoD"):
                migrate(export, 0, 10, address=0xC000, size=4_096, kind=kind)
            migrate(export, 10, 10, address=0xA000, size=4_096)
            export.cpu_page_fault(export.process(5_000), 5, 0xFFFF_8000_0000_1000 - (1 << 64))
        session = opened(tmp_path / "copies.sqlite")
        instant = "0xA000,0.004,,,,"  # zero durations have no throughput
        assert body(session, "um_sum") == ["0xFFFF800000001000,,,1,,", instant]
        assert body(session, "um_total_sum") == ["0.004,,1,,,"]

    def test_the_span_of_addresses_is_empty_where_one_of_four_is_absent(self, opened, tmp_path):
        with ExportWriter(tmp_path / "oneway.sqlite") as export:
            process = export.process(5_000)
            migrate(export, 0, 10, address=0xA000, size=4_096)
            export.cpu_page_fault(process, 5, 0xB000)
            export.gpu_page_fault(process, 0, 5, 6, address=0xC000, count=40)
        assert body(opened(tmp_path / "oneway.sqlite"), "um_total_sum") == ["0.004,,1,40,,"]

    @pytest.mark.campaign
    def test_without_one_of_the_tables_there_is_no_report(self, opened, tmp_path):
        for table in ("CUDA_UM_CPU_PAGE_FAULT_EVENTS", "CUDA_UM_GPU_PAGE_FAULT_EVENTS"):
            path = simulation_export(tmp_path / f"{table}.sqlite")
            edit(path, f"DROP TABLE {table}")
            session = opened(path)
            for report in ("um_total_sum", "um_sum"):
                assert body(session, report) == [], table
                assert len(asked_of_stats(session, report).notes) == 1, table

    def test_cpu_faults_of_an_older_export_have_no_place_and_equal_counts_come_as_it_has_them(self, opened, tmp_path):
        with ExportWriter(tmp_path / "old.sqlite", "3.7.2") as export:
            process = export.process(5_000)
            for start, instruction in enumerate(("z", "a", "m", "most", "most")):
                export.cpu_page_fault(process, start, 0x1000, instruction=instruction)
        assert csv_of_stats(opened(tmp_path / "old.sqlite"), "um_cpu_page_faults_sum") == (
            "CPU Page Faults,CPU Instruction Address\n2,most\n1,z\n1,a\n1,m\n"
        )


def migrate(export: ExportWriter, start: int, end: int, *, address: int, size: int, kind: str = "UvmHtoD") -> None:
    export.memcpy(export.process(5_000), 0, 7, start, end, size=size, kind=kind, correlation_id=None, address=address)


class TestDirectives:
    @pytest.mark.campaign
    def test_openacc_sums_over_all_its_tables(self, opened, tmp_path):
        with ExportWriter(tmp_path / "acc.sqlite") as export:
            main = export.thread(export.process(5_000), 5_000, "main")
            export.openacc(main, 0, 10, "Wait", kind="OTHER")
            export.openacc(main, 20, 50, "Wait", kind="DATA")
            export.openacc(main, 60, 70, "Wait", kind="LAUNCH", file="a.f90", line=3)
        assert csv_of_stats(opened(tmp_path / "acc.sqlite"), "openacc_sum") == (
            f"Time (%),Total Time (ns),Num Calls,{STATISTICS},Name\n"
            "80.0,40,2,20.0,20.0,10,30,14.1,Wait\n"
            "20.0,10,1,10.0,10.0,10,10,0.0,Wait@a.f90:3\n"
        )


@pytest.mark.campaign
class TestMpi:
    def test_calls_that_never_returned_alone_have_no_statistics(self, opened, tmp_path):
        with ExportWriter(tmp_path / "stuck.sqlite") as export:
            main = export.thread(export.process(5_000), 5_000, "main")
            export.mpi_collective(main, 10, None, "MPI_Barrier")
            export.mpi_collective(main, 20, None, "MPI_Barrier")
            export.mpi_other(main, 0, 5, "MPI_Init")
        assert body(opened(tmp_path / "stuck.sqlite"), "mpi_event_sum") == [
            "100.0,5,1,5.0,5.0,5,5,0.0,other,MPI_Init",
            ",,2,,,,,,collectives,MPI_Barrier",
        ]
        edit(tmp_path / "stuck.sqlite", "DROP TABLE MPI_OTHER_EVENTS")
        assert body(opened(tmp_path / "stuck.sqlite"), "mpi_event_sum") == [",,2,,,,,,collectives,MPI_Barrier"]

    def test_a_rank_belongs_to_its_thread_in_its_report(self, opened, tmp_path):
        for number, starts in ((0, (5,)), (1, (3, 9))):
            with ExportWriter(tmp_path / f"{number}.sqlite") as export:
                process = export.process(5_000)
                main, helper = (export.thread(process, tid, "x") for tid in (5_000, 5_001))
                export.mpi_rank(main, 40 + number)
                for start, thread in zip(starts, (main, helper), strict=False):
                    export.mpi_other(thread, start, start + 1, "MPI_Test")
        assert body(opened(tmp_path / "0.sqlite", tmp_path / "1.sqlite"), "mpi_event_trace") == [
            "3,4,1,MPI_Test,5000,5000,,41,,,,,",
            "5,6,1,MPI_Test,5000,5000,,40,,,,,",
            "9,10,1,MPI_Test,5000,5001,,,,,,,",
        ]

    @pytest.mark.parametrize(
        "statement", ["INSERT INTO MPI_RANKS SELECT globalTid, 9 FROM MPI_RANKS", "DROP TABLE MPI_RANKS"]
    )
    def test_a_thread_of_several_ranks_or_of_none_has_none_and_each_call_once(self, opened, tmp_path, statement):
        path = simulation_export(tmp_path / "rankless.sqlite")
        edit(path, statement)
        lines = body(opened(path), "mpi_event_trace")
        assert (lines[0], len(lines)) == ("0,1000000,1000000,MPI_Init,7000,7000,,,,,,,", 8)
        assert {line.split(",")[7] for line in lines} == {""}


class TestNetwork:
    def test_the_threshold_itself_is_no_congestion(self, opened, tmp_path):
        simulation = opened(simulation_export(tmp_path / "rank0.sqlite"))
        for threshold, rates in {499: [20000, 30000, 500], 500: [20000, 30000], 29_999: [30000], 30_000: []}.items():
            lines = body(simulation, f"network_congestion:ticks_threshold={threshold}")
            assert [int(line.split(",")[3]) for line in lines] == rates, threshold
        window = Selection(window=Window(2_000_000, 2_400_000))  # keeps overlapping events
        lines = body(simulation, "network_congestion:ticks_threshold=0", window)
        assert [line.split(",")[3] for line in lines] == ["30000", "500"]

    @pytest.mark.campaign
    def test_an_adapter_that_nobody_describes_has_no_name(self, opened, tmp_path):
        path = simulation_export(tmp_path / "bare.sqlite")
        edit(path, "DROP TABLE NIC_ID_MAP")
        assert body(opened(path), "network_congestion")[0] == "1000000,2000000,1000000,20000,,"

    @pytest.mark.campaign
    def test_an_adapter_that_is_described_twice_counts_once(self, opened, tmp_path):
        path = simulation_export(tmp_path / "twice.sqlite")
        columns = "GUID, 'another', nicId, 'mlx5_1', deviceId, vendorId, linkLayer"
        edit(path, f"INSERT INTO TARGET_INFO_NIC_INFO SELECT {columns} FROM TARGET_INFO_NIC_INFO")
        first, second = body(opened(path), "network_congestion")
        assert first.endswith(",mlx5_0") and second.startswith("1500000")


def test_reports_without_tables_say_what_to_record_and_empty_tables_need_no_note(opened, tmp_path):
    none = opened(empty_export(tmp_path / "none.sqlite"))
    empty = opened(all_tables_export(tmp_path / "all.sqlite", "3.7.2"))
    for report in HERE:
        answer = asked_of_stats(none, report)
        assert (len(answer), answer.total) == (0, 0), report
        needed = [canonical.BY_NAME[name].what for group in report_of(report)[0].needs for name in group]
        assert [note.partition(" in this export: record with `nsys profile")[0] for note in answer.notes] == [
            f"no {what}" for what in needed
        ], report
        assert asked_of_stats(empty, report).notes == (), report
    assert body(empty, "um_total_sum") == [",,0,,,"]


def test_no_rows_and_no_table_are_two_things(opened, tmp_path):
    session = opened(all_tables_export(tmp_path / "all.sqlite"), empty_export(tmp_path / "none.sqlite"))
    table = tables.openmp_events
    advice = "record with `nsys profile -t openmp`"
    assert missing_notes(session, table) == (f"no OpenMP events in these exports: {advice}",)
    assert absent_notes(session, table) == (f"no OpenMP events in none: {advice}",)
