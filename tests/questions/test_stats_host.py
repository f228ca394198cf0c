"""Reports on MPI, OpenMP, OpenACC, unified memory and the network: expected tables are computed by hand."""

from __future__ import annotations

import io
from contextlib import closing

import pytest
from support import edit, session_over
from synthetic import SWITCH_GUID, ExportWriter, all_tables_export, empty_export, simulation_export
from synthetic.demo import CaptureSession as Capture

from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.exports import canonical
from nsystui.output.formats import write
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.data_notes import absent_note, missing_note
from nsystui.questions.stats import report_of
from nsystui.store import tables
from nsystui.store.session import Session

HERE = (
    "mpi_event_sum",
    "mpi_event_trace",
    "network_congestion",
    "openacc_sum",
    "openmp_sum",
    "um_cpu_page_faults_sum",
    "um_sum",
    "um_total_sum",
)
STATISTICS = "Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns)"


def ask(session: Session, report: str, selection: Selection | None = None):
    asked, options = report_of(report)
    return asked.ask(OpenJob(session), selection or Selection(), options)


def csv(session: Session, report: str, selection: Selection | None = None) -> str:
    printed = io.StringIO()
    write(ask(session, report, selection), "csv", printed)
    return printed.getvalue()


def body(session: Session, report: str, selection: Selection | None = None) -> list[str]:
    """The lines of a report without its header."""
    return csv(session, report, selection).splitlines()[1:]


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory):
    with closing(session_over(simulation_export(tmp_path_factory.mktemp("simulation") / "rank0.sqlite"))) as session:
        yield session


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory):
    place = tmp_path_factory.mktemp("ranks")
    paths = [simulation_export(place / f"rank{rank}.sqlite", rank=rank) for rank in range(2)]
    with closing(session_over(*paths)) as session:
        yield session


class TestUnifiedMemory:
    def test_totals_and_a_row_for_each_address_the_fastest_first(self, simulation):
        assert csv(simulation, "um_total_sum") == (
            "Total HtoD Migration Size (MB),Total DtoH Migration Size (MB),Total CPU Page Faults,"
            "Total GPU PageFaults,Minimum Virtual Address,Maximum Virtual Address\n"
            "0.131,0.066,3,17,0x7F0000000000,0x7F0000010000\n"
        )
        # 65,536 B in 10 µs, of which a second has 100,000; 131,072 B in 30 µs, of which it has 33,333 whole ones.
        assert csv(simulation, "um_sum") == (
            "Virtual Address,HtoD Migration size (MB),DtoH Migration size (MB),CPU Page Faults, GPU Page Faults,"
            "Migration Throughput (MB/s)\n"
            "0x7F0000010000,0.066,,1,5,6553.600\n"
            "0x7F0000000000,0.066,0.066,2,12,4369.023\n"
        )

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
        assert (len(body(session, "um_sum:rows=100")), ask(session, "um_sum:rows=2").total) == (12, 12)

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
        instant = "0xA000,0.004,,,,"  # what takes no time has no throughput
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
                assert len(ask(session, report).notes) == 1, table

    @pytest.mark.campaign
    def test_cpu_faults_by_instruction_and_place(self, simulation, opened, tmp_path):
        assert csv(simulation, "um_cpu_page_faults_sum") == (
            "CPU Page Faults,CPU Instruction Address,Source File,Source Line\n"
            "2,fill_grid,src/grid.f90,17\n"
            "1,write_grid,src/grid.f90,80\n"
        )
        path = simulation_export(tmp_path / "stripped.sqlite")
        edit(path, "UPDATE CUDA_UM_CPU_PAGE_FAULT_EVENTS SET sourceFile = NULL, sourceLine = NULL")
        assert csv(opened(path), "um_cpu_page_faults_sum") == (
            "CPU Page Faults,CPU Instruction Address,Source File,Source Line\n2,fill_grid,,\n1,write_grid,,\n"
        )

    def test_cpu_faults_of_an_older_export_have_no_place_and_equal_counts_come_as_it_has_them(self, opened, tmp_path):
        with ExportWriter(tmp_path / "old.sqlite", "3.7.2") as export:
            process = export.process(5_000)
            for start, instruction in enumerate(("z", "a", "m", "most", "most")):
                export.cpu_page_fault(process, start, 0x1000, instruction=instruction)
        assert csv(opened(tmp_path / "old.sqlite"), "um_cpu_page_faults_sum") == (
            "CPU Page Faults,CPU Instruction Address\n2,most\n1,z\n1,a\n1,m\n"
        )

    @pytest.mark.campaign
    def test_several_reports_add_up_and_their_addresses_do_not_meet(self, two_ranks):
        assert body(two_ranks, "um_total_sum") == ["0.262,0.131,6,34,0x7F0000000000,0x7F0000010000"]
        fast, slow = "0x7F0000010000,0.066,,1,5,6553.600", "0x7F0000000000,0.066,0.066,2,12,4369.023"
        assert body(two_ranks, "um_sum") == [fast, fast, slow, slow]
        assert body(two_ranks, "um_cpu_page_faults_sum") == [
            "4,fill_grid,src/grid.f90,17",
            "2,write_grid,src/grid.f90,80",
        ]

    @pytest.mark.campaign
    def test_a_report_without_tables_is_named_and_the_others_count(self, opened, tmp_path):
        session = opened(simulation_export(tmp_path / "rank0.sqlite"), empty_export(tmp_path / "rank1.sqlite"))
        assert body(session, "um_total_sum") == ["0.131,0.066,3,17,0x7F0000000000,0x7F0000010000"]
        assert [note.split(":")[0].rpartition(" ")[2] for note in ask(session, "um_total_sum").notes] == ["rank1"] * 3

    def test_a_selection_narrows_them(self, simulation, two_ranks):
        window = Selection(window=Window(6_190_000, 6_300_000))
        assert body(simulation, "um_total_sum", window) == [",0.066,1,,,"]
        assert body(simulation, "um_sum", window) == ["0x7F0000000000,,0.066,1,,3276.800"]
        assert body(simulation, "um_cpu_page_faults_sum", window) == ["1,write_grid,src/grid.f90,80"]
        named = Selection(name=NameFilter("write"))  # instructions, not addresses
        assert body(simulation, "um_cpu_page_faults_sum", named) == ["1,write_grid,src/grid.f90,80"]
        assert body(simulation, "um_total_sum", named) == body(simulation, "um_total_sum")
        one = Selection(tasks=frozenset({Task(1, (1 << 48) | (7_001 << 24))}))
        assert body(two_ranks, "um_total_sum", one) == ["0.131,0.066,3,17,0x7F0000000000,0x7F0000010000"]


def migrate(export: ExportWriter, start: int, end: int, *, address: int, size: int, kind: str = "UvmHtoD") -> None:
    process = export.process(5_000)
    export.memcpy(process, 0, 7, start, end, size=size, kind=kind, correlation_id=None, address=address)


class TestDirectives:
    def test_openmp_sums_each_native_table_by_itself(self, simulation):
        assert csv(simulation, "openmp_sum") == (
            f"Time (%),Total Time (ns),Count,{STATISTICS},Name\n"
            "66.7,2000000,2,1000000.0,1000000.0,1000000,1000000,0.0,Parallel region\n"
            "30.0,900000,1,900000.0,900000.0,900000,900000,0.0,Implicit task\n"
            "3.3,100000,1,100000.0,100000.0,100000,100000,0.0,Implicit task\n"
        )

    @pytest.mark.campaign
    def test_openacc_sums_over_all_its_tables(self, opened, tmp_path):
        with ExportWriter(tmp_path / "acc.sqlite") as export:
            main = export.thread(export.process(5_000), 5_000, "main")
            export.openacc(main, 0, 10, "Wait", kind="OTHER")
            export.openacc(main, 20, 50, "Wait", kind="DATA")
            export.openacc(main, 60, 70, "Wait", kind="LAUNCH", file="a.f90", line=3)
        assert csv(opened(tmp_path / "acc.sqlite"), "openacc_sum") == (
            f"Time (%),Total Time (ns),Num Calls,{STATISTICS},Name\n"
            "80.0,40,2,20.0,20.0,10,30,14.1,Wait\n"
            "20.0,10,1,10.0,10.0,10,10,0.0,Wait@a.f90:3\n"
        )

    def test_several_reports_add_up(self, two_ranks):
        assert body(two_ranks, "openmp_sum") == [
            "66.7,4000000,4,1000000.0,1000000.0,1000000,1000000,0.0,Parallel region",
            "30.0,1800000,2,900000.0,900000.0,900000,900000,0.0,Implicit task",
            "3.3,200000,2,100000.0,100000.0,100000,100000,0.0,Implicit task",
        ]
        assert body(two_ranks, "openacc_sum") == [
            "50.0,100000,4,25000.0,25000.0,20000,30000,5773.5,Enqueue Launch@src/solve.f90:42",
            "40.0,80000,2,40000.0,40000.0,40000,40000,0.0,Enqueue Upload@src/solve.f90:41",
            "10.0,20000,2,10000.0,10000.0,10000,10000,0.0,Wait",
        ]

    def test_a_window_and_a_name_narrow_them(self, simulation):
        window = Selection(window=Window(5_950_000, 6_045_000))
        upload = ["100.0,40000,1,40000.0,40000.0,40000,40000,0.0,Enqueue Upload@src/solve.f90:41"]
        assert body(simulation, "openmp_sum", window) == [
            "90.9,1000000,1,1000000.0,1000000.0,1000000,1000000,0.0,Parallel region",
            "9.1,100000,1,100000.0,100000.0,100000,100000,0.0,Implicit task",
        ]
        assert body(simulation, "openacc_sum", window) == upload
        assert body(simulation, "openacc_sum", Selection(name=NameFilter("f90:41"))) == upload
        nothing = ask(simulation, "openmp_sum", Selection(window=Window(0, 1)))
        assert (nothing.total, len(nothing)) == (3, 0), "of which a selection left nothing"


class TestMpi:
    def test_summary_by_source_and_name(self, simulation):
        assert csv(simulation, "mpi_event_sum") == (
            f"Time (%),Total Time (ns),Instances,{STATISTICS},Source,Name\n"
            "47.6,1000000,1,1000000.0,1000000.0,1000000,1000000,0.0,other,MPI_Init\n"
            "19.0,400000,1,400000.0,400000.0,400000,400000,0.0,collectives,MPI_Bcast\n"
            "19.0,400000,2,200000.0,200000.0,100000,300000,141421.4,p2p,MPI_Send\n"
            "9.5,200000,2,200000.0,200000.0,200000,200000,0.0,start-wait,MPI_Waitall\n"
            "4.8,100000,2,50000.0,50000.0,50000,50000,0.0,collectives,MPI_Allreduce\n"
        )

    @pytest.mark.campaign
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

    def test_trace(self, simulation):
        assert csv(simulation, "mpi_event_trace") == (
            "Start (ns),End (ns),Duration (ns),Event,Pid,Tid,Tag,Rank,PeerRank,RootRank,Size (MB),CollSendSize (MB),"
            "CollRecvSize (MB)\n"
            "0,1000000,1000000,MPI_Init,7000,7000,,0,,,,,\n"
            "1100000,1200000,100000,MPI_Send,7000,7000,7,0,1,,1.000,,\n"
            "1300000,1600000,300000,MPI_Send,7000,7000,8,0,1,,3.000,,\n"
            "1700000,1900000,200000,MPI_Waitall,7000,7000,,0,,,,,\n"
            "2000000,2050000,50000,MPI_Allreduce,7000,7000,,0,,,,0.000,0.000\n"
            "3000000,3050000,50000,MPI_Allreduce,7000,7000,,0,,,,0.000,0.000\n"
            "4000000,4400000,400000,MPI_Bcast,7000,7000,,0,,0,,4.000,0.000\n"
            "9000000,,,MPI_Waitall,7000,7000,,0,,,,,\n"
        )

    @pytest.mark.campaign
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

    @pytest.mark.campaign
    @pytest.mark.parametrize(
        "statement", ["INSERT INTO MPI_RANKS SELECT globalTid, 9 FROM MPI_RANKS", "DROP TABLE MPI_RANKS"]
    )
    def test_a_thread_of_several_ranks_or_of_none_has_none_and_each_call_once(self, opened, tmp_path, statement):
        path = simulation_export(tmp_path / "rankless.sqlite")
        edit(path, statement)
        lines = body(opened(path), "mpi_event_trace")
        assert (lines[0], len(lines)) == ("0,1000000,1000000,MPI_Init,7000,7000,,,,,,,", 8)
        assert {line.split(",")[7] for line in lines} == {""}

    @pytest.mark.campaign
    def test_several_reports_add_up_and_stand_on_one_clock(self, opened, tmp_path):
        for number, late in ((0, 100), (1, 0)):
            with ExportWriter(tmp_path / f"{number}.sqlite", session=Capture(utc_epoch_ns=10**18 + late)) as export:
                main = export.thread(export.process(5_000 + number), 5_000 + number, "main")
                export.mpi_p2p(main, 50, 60 + 10 * number, "MPI_Recv", peer=1 - number, size=2_500_000)
        session = opened(tmp_path / "0.sqlite", tmp_path / "1.sqlite")
        assert body(session, "mpi_event_sum") == ["100.0,30,2,15.0,15.0,10,20,7.1,p2p,MPI_Recv"]
        assert body(session, "mpi_event_trace") == [
            "50,70,20,MPI_Recv,5001,5001,0,,0,,2.500,,",
            "150,160,10,MPI_Recv,5000,5000,0,,1,,2.500,,",
        ]
        assert body(session, "mpi_event_trace", Selection(window=Window(100, 200))) == [
            "150,160,10,MPI_Recv,5000,5000,0,,1,,2.500,,"
        ]

    def test_a_window_and_a_name_narrow_them(self, simulation):
        window = Selection(window=Window(1_550_000, 2_000_000))
        assert [line.split(",")[3] for line in body(simulation, "mpi_event_trace", window)] == [
            "MPI_Send",
            "MPI_Waitall",
        ]
        assert body(simulation, "mpi_event_sum", window) == [
            "60.0,300000,1,300000.0,300000.0,300000,300000,0.0,p2p,MPI_Send",
            "40.0,200000,1,200000.0,200000.0,200000,200000,0.0,start-wait,MPI_Waitall",
        ]
        named = ask(simulation, "mpi_event_trace", Selection(name=NameFilter("bcast")))
        assert (len(named), named.total) == (1, 8)


class TestNetwork:
    def test_samples_over_the_threshold_by_start(self, simulation):
        assert csv(simulation, "network_congestion") == (
            "Start (ns),End (ns),Duration (ns),Send wait rate,GUID,Name\n"
            "1000000,2000000,1000000,20000,0x9C63C003000000,mlx5_0\n"
            f"1500000,2500000,1000000,30000,0x{SWITCH_GUID + (1 << 64):X},\n"
        )

    def test_the_threshold_itself_is_no_congestion(self, simulation):
        for threshold, rates in {499: [20000, 30000, 500], 500: [20000, 30000], 29_999: [30000], 30_000: []}.items():
            lines = body(simulation, f"network_congestion:ticks_threshold={threshold}")
            assert [int(line.split(",")[3]) for line in lines] == rates, threshold
        window = Selection(window=Window(2_000_000, 2_400_000))  # keeps what overlaps it
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

    def test_several_reports_keep_their_own_adapters(self, two_ranks):
        lines = body(two_ranks, "network_congestion")
        assert [line.split(",")[0] for line in lines] == ["1000000", "1000000", "1500000", "1500000"]
        assert [line.split(",")[5] for line in lines] == ["mlx5_0", "mlx5_0", "", ""]


def test_reports_without_tables_say_what_to_record_and_empty_tables_need_no_note(opened, tmp_path):
    none = opened(empty_export(tmp_path / "none.sqlite"))
    empty = opened(all_tables_export(tmp_path / "all.sqlite", "3.7.2"))
    for report in HERE:
        answer = ask(none, report)
        assert (len(answer), answer.total) == (0, 0), report
        needed = [canonical.BY_NAME[name].what for group in report_of(report)[0].needs for name in group]
        assert [note.partition(" in this export: record with `nsys profile")[0] for note in answer.notes] == [
            f"no {what}" for what in needed
        ], report
        assert ask(empty, report).notes == (), report
    assert body(empty, "um_total_sum") == [",,0,,,"]


def test_no_rows_and_no_table_are_two_things(opened, tmp_path):
    session = opened(all_tables_export(tmp_path / "all.sqlite"), empty_export(tmp_path / "none.sqlite"))
    table = tables.openmp_events
    assert missing_note(session, table) == "no OpenMP events in these exports: record with `nsys profile -t openmp`"
    assert absent_note(session, table) == "no OpenMP events in none: record with `nsys profile -t openmp`"
