"""Time of the host by efficiency factors, and model FLOPs utilisation."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import native, shared
from synthetic import ExportWriter
from synthetic.demo import Process

from nsystui.base.answer import record
from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.efficiency.device import Useful
from nsystui.questions.efficiency.host import HostEfficiency, HostTime
from nsystui.questions.efficiency.mfu import Mfu, MfuRequest, known_peak
from nsystui.questions.efficiency.result import Efficiency, efficiency, mfu_of
from nsystui.questions.efficiency.tables import MFU_COLUMNS, host_table, mfu_table, process_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.tasks import RankedTask
from nsystui.store.session import Session

Opener = Callable[..., Session]
WHOLE = Selection(Window(0, 100))


def of(session: Session, selection: Selection = WHOLE) -> Efficiency:
    return efficiency(OpenJob(session), selection)


def process(export: ExportWriter, pid: int, kernel: bool = True) -> Process:
    made = export.process(pid)
    if kernel:
        export.kernel(made, 0, 7, 0, 100, name="saxpy(float *)", correlation_id=1)
    return made


Calls = Mapping[int, Sequence[tuple[str, int, int | None]]]


def traced(path: Path, calls: Calls, without_kernels: int | None = None) -> Path:
    with ExportWriter(path) as export:
        for pid, own in calls.items():
            main = export.thread(process(export, pid, pid != without_kernels), pid, "main")
            for number, (kind, start, end) in enumerate(own, 1):
                if kind == "mpi":
                    export.mpi_other(main, start, end, "MPI_Barrier")
                else:
                    export.api(main, start, end, "cudaLaunchKernel_v7000", number)
    return path


PARTS = st.integers(0, 40)


class TestFactors:
    @settings(deadline=None)
    @given(st.lists(st.tuples(PARTS, PARTS), min_size=1, max_size=5))
    def test_they_multiply(self, spent):
        task = RankedTask(Task(0, 1), 0, "", None, "", 1, "", "", (0,), ())
        found = HostEfficiency.of([HostTime(task, 100, mpi, cuda) for mpi, cuda in spent])
        assert None not in (found.mpi_load_balance, found.mpi_communication, found.mpi_parallel, found.offload)
        assert found.mpi_load_balance * found.mpi_communication == pytest.approx(found.mpi_parallel)  # type: ignore[operator]
        assert found.mpi_parallel * found.offload == pytest.approx(found.parallel)  # type: ignore[operator]

    def test_no_process_has_no_efficiency(self):
        found = HostEfficiency.of([])
        assert (found.parallel, found.offload, found.mpi_parallel) == (None, None, None)


class TestCalls:
    @pytest.mark.campaign
    def test_threads_count_together_and_mpi_comes_before_cuda(self, opened, tmp_path):
        path = tmp_path / "a.sqlite"
        with ExportWriter(path) as export:
            main = export.thread(process(export, 100), 100, "main")
            other = export.thread(main.process, 101, "other")
            export.api(main, 0, 20, "cudaLaunchKernel_v7000", 1)
            export.api(other, 10, 30, "cudaMalloc_v3020", 2)
            export.api(main, 45, 60, "cuLaunchKernel", 3, event_class=1)
            export.mpi_collective(main, 50, 70, "MPI_Allreduce")
            export.mpi_other(main, 65, 75, "MPI_Barrier")
        found = of(opened(path))
        (one,), host = found.host.processes, found.host
        assert (one.mpi, one.cuda, one.useful) == (25, 35, 40)
        assert (host.mpi_parallel, host.offload, host.parallel) == (0.75, pytest.approx(40 / 75), pytest.approx(0.4))

    @pytest.mark.campaign
    def test_a_window_cuts_calls_and_one_that_never_returned_lasts_to_the_end(self, opened, tmp_path):
        found = of(opened(traced(tmp_path / "cut.sqlite", {100: [("cuda", 10, 30)]})), Selection(Window(20, 60)))
        assert (found.host.processes[0].cuda, found.host.offload) == (10, 0.75)
        path = traced(tmp_path / "a.sqlite", {100: [("cuda", 0, 10), ("mpi", 80, None)]})
        assert of(opened(path)).host.processes[0].mpi == 20

    def test_what_was_not_recorded_is_missing_not_zero(self, opened, tmp_path):
        found = of(opened(traced(tmp_path / "a.sqlite", {100: []})))
        host = found.host
        assert (host.mpi_parallel, host.offload, host.parallel) == (None, None, None)
        table = host_table(found)
        assert len(table) == 0
        assert any("no CUDA calls of rank 0" in note for note in table.notes)
        assert process_table(found).rows[0][3:9] == (None,) * 6

    def test_mpi_needs_every_process(self, opened, tmp_path):
        calls = {100: [("cuda", 0, 10), ("mpi", 20, 40)], 200: [("cuda", 0, 10)], 300: []}
        found = of(opened(traced(tmp_path / "a.sqlite", calls, without_kernels=300)))
        assert [one.task.pid for one in found.host.processes] == [100, 200], "only those that used a GPU"
        assert (found.host.mpi_parallel, found.host.mpi_load_balance) == (None, None)
        assert any("no MPI calls of rank 1" in note for note in found.host_notes)

    @pytest.mark.campaign
    def test_ranks_that_wait_in_mpi_are_a_load_imbalance(self, opened, tmp_path):
        calls = {pid: [("mpi", 0, wait), ("cuda", 90, 100)] for pid, wait in ((100, 20), (200, 60))}
        host = of(opened(traced(tmp_path / "a.sqlite", calls))).host
        assert (host.mpi_communication, host.mpi_load_balance, host.mpi_parallel) == (0.8, 0.75, pytest.approx(0.6))
        assert host.offload == pytest.approx(100 / 120)

    def test_mpi_that_an_old_nsys_wrote_as_nvtx(self, opened):
        (path,) = shared("mpi-cuda-saxpy-schema2.9")
        (one,) = of(opened(path), Selection()).host.processes
        # The ranges of the domain MPI follow one another: their sum is their union.
        query = "SELECT sum(end - start) FROM NVTX_EVENTS WHERE domainId = 1 AND eventType = 59"
        assert [(one.mpi,)] == native(path, query)
        assert one.time == sum(part for part in (one.mpi, one.cuda, one.useful) if part is not None)


def test_the_peaks_of_known_gpus_are_those_of_their_data_sheets():
    peaks = {
        "NVIDIA A100-SXM4-40GB": 312, "NVIDIA A100 80GB PCIe": 312, "NVIDIA H100 80GB HBM3": 989,
        "NVIDIA H100 PCIe": 756, "NVIDIA H200": 989, "NVIDIA GH200 480GB": 989, "NVIDIA B200": 2250,
        "NVIDIA A40": 149.7, "NVIDIA L40S": 362, "Tesla V100-SXM2-32GB": 125, "Tesla V100-PCIE-16GB": 112,
    }  # fmt: skip
    found = {model: known_peak(model) for model in peaks}
    assert {model: peak and peak.tflops for model, peak in found.items()} == peaks
    assert all("data sheet" in peak.source for peak in found.values() if peak)
    unknown = (
        "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA GB200", "NVIDIA RTX A4000", "NVIDIA L40", "NVIDIA RTX A5000",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM-64GB", "GRID A100-10C", "NVIDIA A40-48Q", "",
    )  # fmt: skip
    assert [model for model in unknown if known_peak(model) is not None] == []


def mfu_in(session: Session, request: MfuRequest, selection: Selection | None = None) -> Mfu:
    job = OpenJob(session)
    chosen = selection or Selection()
    return mfu_of(job, chosen, efficiency(job, chosen, Useful.POP), request)


def numbered(path: Path, starts: list[int]) -> Path:
    """Write a process with a step at each of ``starts`` (µs), whose kernel begins 2 µs later."""
    with ExportWriter(path) as export:
        made = export.process(100)
        main = export.thread(made, 100, "main")
        export.gpu(0)
        export.cuda_device(made, cuda_id=0, gpu_id=0)
        for number, start in enumerate(starts):
            begin = 1000 * start
            export.nvtx_range(main, begin, begin + 8000, f"step {number}")
            export.api(main, begin + 500, begin + 900, "cudaLaunchKernel_v7000", number + 1)
            export.kernel(made, 0, 7, begin + 2000, begin + 6000, name="gemm(int)", correlation_id=number + 1)
    return path


class TestMfu:
    def test_it_is_flops_by_time_gpus_and_peak(self, opened, tmp_path):
        found = mfu_in(opened(numbered(tmp_path / "a.sqlite", [0, 10, 20, 31, 60])), MfuRequest(5e9))
        assert (found.step_time, found.intervals, found.gpus) == (10_500, 4, 1)
        assert found.achieved == pytest.approx(5e9 / 10.5e-6 / 1e12) and found.peak.tflops == 989
        assert found.value == pytest.approx(5e9 / 10.5e-6 / 989e12)
        assert any("H100 SXM data sheet" in note for note in found.notes)

    @pytest.mark.campaign
    def test_the_ceiling_is_the_mfu_without_the_time_in_which_nothing_computes(self, opened, tmp_path):
        found = mfu_in(opened(numbered(tmp_path / "a.sqlite", [0, 10, 20, 31, 60])), MfuRequest(5e9))
        assert found.compute == 20 / 66  # five kernels of 4 µs, from the first range's start to the last kernel's end
        assert found.ceiling == pytest.approx(found.value * 66 / 20)
        assert record(MFU_COLUMNS, mfu_table(found).rows[0])["ceiling_percent"] == pytest.approx(100 * found.ceiling)
        assert any("none ran in 69.7 % of the steps" in note for note in found.notes)

    @pytest.mark.campaign
    def test_a_window_chooses_steps(self, opened, tmp_path):
        session = opened(numbered(tmp_path / "a.sqlite", [0, 10, 30, 60]))
        found = mfu_in(session, MfuRequest(5e9), Selection(Window(25_000, 70_000)))
        assert (found.step_time, found.intervals) == (30_000, 1)
        alone = mfu_in(session, MfuRequest(5e9), Selection(Window(55_000, 70_000)))
        assert alone.value is None
        assert any("no step in this time" in note for note in alone.notes)

    def test_of_a_region_it_is_by_the_gpu_time_of_its_ranges(self, opened, tmp_path):
        session = opened(numbered(tmp_path / "a.sqlite", [0, 10, 20, 31, 60]))
        found = mfu_in(session, MfuRequest(5e6, region="step"))
        assert (found.step_time, found.intervals, found.gpus) == (4000, 5, 1), "a kernel of 4 µs in each of five ranges"
        assert found.achieved == pytest.approx(5e6 / 4e-6 / 1e12)
        assert found.value == pytest.approx(5e6 / 4e-6 / 989e12) and found.ceiling is None
        assert mfu_in(session, MfuRequest(5e6, region="step 3")).intervals == 1
        split = mfu_in(session, MfuRequest(5e6, gpus=2, region="step"))
        assert split.value == pytest.approx(found.value / 2)
        (note,) = [one for one in mfu_in(session, MfuRequest(5e6, region="back")).notes if "no MFU" in one]
        assert note == "no MFU: no NVTX range that matches back launched GPU work"

    @pytest.mark.campaign
    def test_the_intensity_of_a_region_is_by_the_bytes_of_its_gpu_time(self, opened, tmp_path):
        path = tmp_path / "a.sqlite"
        numbered(path, [0, 10])
        assert mfu_in(opened(path), MfuRequest(5e6, region="step")).intensity is None
        with ExportWriter(tmp_path / "b.sqlite") as export:
            made = export.process(100)
            main = export.thread(made, 100, "main")
            export.gpu(0)
            export.cuda_device(made, cuda_id=0, gpu_id=0)
            export.nvtx_range(main, 0, 8000, "step 0")
            export.api(main, 500, 900, "cudaLaunchKernel_v7000", 1)
            export.kernel(made, 0, 7, 2000, 6000, name="gemm(int)", correlation_id=1)
            export.gpu_metric_names(0, ["DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]"])
            for time in range(1000, 12000, 1000):
                # Half of the kernel's time with 40 and 10 %, half with 20 and 0 %; more if it does not run.
                read, write = (40, 10) if 2000 < time <= 4000 else (20, 0) if 4000 < time <= 6000 else (90, 9)
                export.gpu_metric(0, time, [read, write])
        found = mfu_in(opened(tmp_path / "b.sqlite"), MfuRequest(5e6, region="step"))
        assert found.intensity == pytest.approx(5e6 / (0.35 * 3_352_320_000_000 * 4e-6))
        assert record(mfu_table(found).columns, mfu_table(found).rows[0])["intensity"] == found.intensity

    def test_ddp(self, opened):
        found = mfu_in(opened(*shared("ddp-a100-rank0of4")), MfuRequest(3e13))
        assert (found.intervals, found.gpus) == (58, 4)
        assert found.step_time == pytest.approx(30.57e6, rel=1e-3)
        assert found.value == pytest.approx(3e13 / (found.step_time or 0) * 1e9 / 4 / 312e12)
        assert found.compute == pytest.approx(28.146 / 30.578, abs=0.01)  # the medians in docs/path.md
