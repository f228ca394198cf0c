"""Efficiency: parts add up to the window, factors multiply to the whole; the time of the host, and model FLOPs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import native, shared
from synthetic import ExportWriter
from synthetic.demo import CaptureSession as Capture
from synthetic.demo import Process

from nsystui.base.answer import record
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.algebra.intervals import Intervals, union
from nsystui.questions.efficiency.host import HostEfficiency, HostTime
from nsystui.questions.efficiency.mfu import Mfu, MfuRequest, known_peak, mfu_of, mfu_of_region
from nsystui.questions.efficiency.result import (
    DeviceEfficiency,
    Efficiency,
    Scalability,
    Scaling,
    Sized,
    Useful,
    efficiency,
)
from nsystui.questions.efficiency.tables import (
    MFU_COLUMNS,
    PARTS,
    breakdown_table,
    host_table,
    mfu_table,
)
from nsystui.questions.gpu.device_time import Breakdown, BusyParts, Device, DeviceIntervals, total
from nsystui.questions.host.gaps import idle_time
from nsystui.questions.host.time_budget import device_budgets
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.triage.run import triage
from nsystui.store.session import Session

Opener = Callable[..., Session]
Event = tuple[str, int, int]

WINDOW = Window(10, 90)
EVENTS = st.lists(st.tuples(st.sampled_from("KCMG"), st.integers(0, 100), st.integers(0, 30)), max_size=25)
DEVICES = st.lists(EVENTS, min_size=1, max_size=4)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
MS = 1_000_000
START = 1_780_000_000_000_000_000


def busy(events: Sequence[Event], kind: str) -> Intervals:
    chosen = [(start, start + length) for name, start, length in events if name == kind]
    return union([start for start, _ in chosen], [end for _, end in chosen])


def breakdown_of(events: Sequence[Event], window: Window = WINDOW) -> Breakdown:
    task = RankedTask(Task(0, 1), 0, "", None, "", 1, "", "", (0,), ())
    parts = BusyParts.of(*(busy(events, kind) for kind in "KCMG"))
    return DeviceIntervals(Device(task, 0, None, None), Window(0, 200), parts).breakdown(window)


def points(events: Sequence[Event], kinds: str, window: Window = WINDOW) -> set[int]:
    spans = [(start, start + length) for kind, start, length in events if kind in kinds]
    return {ns for start, end in spans for ns in range(start, end)} & {*range(window.start, window.end)}


@pytest.mark.campaign
class TestParts:
    @settings(deadline=None)
    @given(EVENTS)
    def test_each_is_what_sets_of_nanoseconds_say(self, events):
        spent = breakdown_of(events)
        k, c, m, g = (points(events, kind) for kind in "KCMG")
        expected = {
            "kernels_only": k - c - m, "nccl_only": c - k - m, "memory_only": m - k - c, "kernels_nccl": k & c - m,
            "kernels_memory": k & m - c, "nccl_memory": c & m - k, "all_three": k & c & m,
            "graph_only": g - k - c - m, "exposed_graph": g - k, "graph_without_kernels": g - k - c,
        }  # fmt: skip
        assert {key: getattr(spent, key) for key in expected} == {key: len(ns) for key, ns in expected.items()}

    @settings(deadline=None)
    @given(DEVICES)
    def test_they_add_up_to_the_window_of_each_device_and_of_all(self, devices):
        spent = [breakdown_of(events) for events in devices]
        for one in (*spent, total(spent)):
            parts = [getattr(one, key) for key in PARTS]
            assert min(parts) >= 0 and sum(parts) == one.time
            assert sum(one.percent(part) or 0 for part in parts) == pytest.approx(100)


class TestFactors:
    @pytest.mark.campaign
    @example([[("K", 10, 40)], [("K", 10, 20), ("C", 30, 40)]], Useful.POP)  # different devices have the maxima
    @settings(deadline=None)
    @given(DEVICES, st.sampled_from(Useful))
    def test_they_are_those_of_sets_of_nanoseconds(self, devices, useful):
        kinds = ("KG", "CM") if useful is Useful.POP else ("KCG", "M")
        worked = [points(events, kinds[0]) for events in devices]
        moved = [points(events, kinds[1]) - own for events, own in zip(devices, worked, strict=True)]
        together = [len(a) + len(b) for a, b in zip(worked, moved, strict=True)]
        time, most, sums = WINDOW.end - WINDOW.start, max(map(len, worked)), sum(map(len, worked))
        found = DeviceEfficiency.of([breakdown_of(events) for events in devices], useful)
        assert found.parallel == pytest.approx(sums / (len(devices) * time))
        assert found.load_balance * found.communication * found.orchestration == pytest.approx(found.parallel)
        assert all(0 <= one <= 1 for one in (found.parallel, found.load_balance, found.communication))
        assert found.orchestration == pytest.approx(max(together) / time)
        if most:
            assert found.load_balance == pytest.approx(sums / len(devices) / most)
            assert found.communication == pytest.approx(most / max(together))
        else:
            assert found.load_balance == found.communication == 0

    def test_nccl_is_useful_only_to_talp(self):
        spent = [breakdown_of([("K", 10, 20), ("C", 20, 40), ("M", 80, 10)])]
        assert [DeviceEfficiency.of(spent, one).useful for one in (Useful.POP, Useful.TALP)] == [20, 50]

    def test_no_device_has_factors_of_nothing(self):
        found = DeviceEfficiency.of([], Useful.POP)
        assert (found.devices, found.parallel, found.orchestration) == (0, 0, 0)


class TestScalability:
    @staticmethod
    def of(devices: int, useful: int, steps: int | None = None) -> Sized:
        each = useful // devices
        return Sized(DeviceEfficiency.of([breakdown_of([("K", 10, each)]) for _ in range(devices)], Useful.POP), steps)

    @pytest.mark.parametrize(("here", "there", "scaling", "expected"), [
        ((4, 80), (2, 60), Scaling.STRONG, (60 / 80, 60 / 80 * 20 / 80)),  # the sums
        ((4, 80), (2, 30), Scaling.WEAK, (15 / 20, 15 / 20 * 20 / 80)),  # the means
        ((1, 0), (1, 10), Scaling.STRONG, (None, None)),  # a job without useful time lacks the metric
    ])  # fmt: skip
    def test_strong_scaling_compares_the_sums_and_weak_scaling_the_means(self, here, there, scaling, expected):
        found = Scalability(scaling, self.of(*here), self.of(*there))
        assert found.computation == expected[0] and found.overall == pytest.approx(expected[1])

    def test_windows_of_other_work_are_told(self):
        def note(here: int | None, there: int | None) -> str:
            return Scalability(Scaling.STRONG, self.of(2, 10, here), self.of(1, 10, there)).note

        assert "the work differs: 5 steps here, 9 in the baseline" in note(5, 9)
        assert "both have 5 steps" in note(5, 5)
        assert note(None, 9) == note(5, None)


def put(export: ExportWriter, pid: int, events: Sequence[Event], gpu: int | None = None, told: bool = True) -> None:
    """Write a process with ``(kind, start, end)`` events on its device 0, which is the machine's ``gpu``."""
    process = export.process(pid)
    if gpu is not None and told:
        export.cuda_device(process, cuda_id=0, gpu_id=gpu)
    for number, (kind, start, end) in enumerate(events, 1):
        if kind in "KC":
            name = "saxpy(float *)" if kind == "K" else ALL_REDUCE
            export.kernel(process, 0, 7, start, end, name=name, correlation_id=number)
        else:
            export.memcpy(process, 0, 7, start, end, size=1024, kind="HtoD", correlation_id=number)


def of(session: Session, selection: Selection | None = None, useful: Useful = Useful.POP) -> Efficiency:
    return efficiency(OpenJob(session), selection or Selection(), useful)


def written(path: Path, events: Sequence[Event], late: int = 0, duration: int | None = None) -> Path:
    with ExportWriter(path, session=Capture(utc_epoch_ns=START + late, duration=duration)) as export:
        put(export, 4711, events)
    return path


class TestJobs:
    def test_a_gpu_that_processes_share_counts_once(self, opened, tmp_path):
        path = tmp_path / "shared.sqlite"
        with ExportWriter(path) as export:
            export.gpu(3)
            export.gpu(4)
            put(export, 100, [("K", 0, 60)], gpu=3)
            put(export, 200, [("K", 40, 80), ("C", 50, 100)], gpu=3)
            put(export, 300, [("K", 0, 50)], gpu=4)
        found = of(opened(path))
        assert [gpu.ranks for gpu in found.gpus] == [(0, 1), (2,)]
        assert [(spent.kernels, spent.busy, spent.time) for spent in found.spent] == [(80, 100, 100), (50, 50, 100)]
        assert found.device.parallel == 130 / 200
        assert breakdown_table(found).rows[1][0] == "0,1"
        assert any("processes share a GPU (ranks 0, 1)" in note for note in found.notes)

    def test_gaps_budget_and_triage_count_it_once_too(self, opened, tmp_path):
        """Two processes that take turns on the only GPU of a machine: each by itself would be idle half of the time."""
        path = tmp_path / "shared.sqlite"
        with ExportWriter(path, "3.7.2") as export:  # without the GPU of each process
            export.gpu(0)
            put(export, 100, [("K", time * MS, (time + 10) * MS) for time in range(0, 100, 20)])
            put(export, 200, [("K", (time + 10) * MS, (time + 20) * MS) for time in range(0, 80, 20)])
        job = OpenJob(opened(path))
        (budget,) = device_budgets(job, Selection())
        assert budget.budget.compute == budget.budget.time == 90 * MS
        assert idle_time(job, Selection()).idle == 0
        found = triage(job)
        assert (found.gpus, found.busy) == (1, 100) and "no-gpu-work" not in {one.id for one in found.findings}
        assert {one.device.task.rank: one.busy_in(Window(0, 90 * MS)) for one in job.busy(Selection()).devices} == {
            0: 50 * MS,
            1: 40 * MS,
        }

    def test_an_ordinal_alone_makes_no_shared_gpu(self, opened, tmp_path):
        path = tmp_path / "visible.sqlite"
        with ExportWriter(path) as export:
            put(export, 100, [("K", 0, 60)])
            put(export, 200, [("K", 40, 80)])
        found = of(opened(path))
        assert len(found.gpus) == 2
        assert any("do not say which GPU a process used" in note for note in found.device_notes)

    @pytest.mark.campaign
    def test_every_rank_is_judged_over_the_time_that_all_were_recorded(self, opened, tmp_path):
        first = written(tmp_path / "rank0.sqlite", [("K", 0, 100)], duration=120)
        second = written(tmp_path / "rank1.sqlite", [("K", 0, 40), ("K", 80, 100)], late=50, duration=100)
        session = opened(first, second)
        found = of(session)
        assert found.window == Window(50, 120)
        assert [(spent.busy, spent.time) for spent in found.spent] == [(50, 70), (40, 70)]
        chosen = of(session, Selection(Window(0, 150)))
        assert [(spent.busy, spent.time) for spent in chosen.spent] == [(100, 150), (60, 150)]
        assert any("not recorded for all of this time" in note for note in chosen.device_notes)

    def test_runs_without_a_common_clock_or_time_are_refused(self, opened, tmp_path):
        events = [("K", 0, 100)]
        before = written(tmp_path / "before.sqlite", events)
        session = opened(before, written(tmp_path / "after.sqlite", events, late=3600 * 10**9))
        with pytest.raises(UsageError, match="share no clock"):
            of(session)
        apart = opened(before, written(tmp_path / "later.sqlite", events, late=5000))
        with pytest.raises(UsageError, match="never all recorded at once"):
            of(apart)


REAL = {
    "ddp-a100-rank0of4": [(1661359183, 1661359183 + 21799063)],
    "h100-2rank-moe-before": [(253690832, 253690832 + 17172652), (256095624, 256095624 + 8229100)],
    "cuda-graphs": [(7811219965, 7811219965)],
    "alcf-allgather-rank0": [(0, 185997784)],
}
"""Useful time of each device by pop and by talp: |K ∪ G| and |K ∪ C ∪ G|, from docs/contributing.md#reference-data."""


@pytest.mark.parametrize("name", REAL)
def test_useful_times_of_real_exports(opened, name):
    found = of(opened(*shared(name)))
    assert [(Useful.POP.time(one), Useful.TALP.time(one)) for one in found.spent] == REAL[name]
    for one in found.spent:
        assert sum(getattr(one, key) for key in PARTS) == one.time
    product = found.device.load_balance * found.device.communication * found.device.orchestration
    assert product == pytest.approx(found.device.parallel)


WHOLE = Selection(Window(0, 100))


def efficiency_of(session: Session, selection: Selection = WHOLE) -> Efficiency:
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


SMALL = st.integers(0, 40)


class TestHostFactors:
    @settings(deadline=None)
    @given(st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=5))
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
        found = efficiency_of(opened(path))
        (one,), host = found.host.processes, found.host
        assert (one.mpi, one.cuda, one.useful) == (25, 35, 40)
        assert (host.mpi_parallel, host.offload, host.parallel) == (0.75, pytest.approx(40 / 75), pytest.approx(0.4))

    @pytest.mark.campaign
    def test_a_window_cuts_calls_and_one_that_never_returned_lasts_to_the_end(self, opened, tmp_path):
        found = efficiency_of(
            opened(traced(tmp_path / "cut.sqlite", {100: [("cuda", 10, 30)]})), Selection(Window(20, 60))
        )
        assert (found.host.processes[0].cuda, found.host.offload) == (10, 0.75)
        path = traced(tmp_path / "a.sqlite", {100: [("cuda", 0, 10), ("mpi", 80, None)]})
        assert efficiency_of(opened(path)).host.processes[0].mpi == 20

    def test_what_was_not_recorded_is_missing_not_zero(self, opened, tmp_path):
        found = efficiency_of(opened(traced(tmp_path / "a.sqlite", {100: []})))
        host = found.host
        assert (host.mpi_parallel, host.offload, host.parallel) == (None, None, None)
        table = host_table(found)
        assert len(table) == 0
        assert any("no CUDA calls of rank 0" in note for note in table.notes)
        process = found.host.processes[0]
        assert (process.useful, process.mpi, process.cuda) == (None, None, None)

    def test_mpi_needs_every_process(self, opened, tmp_path):
        calls = {100: [("cuda", 0, 10), ("mpi", 20, 40)], 200: [("cuda", 0, 10)], 300: []}
        found = efficiency_of(opened(traced(tmp_path / "a.sqlite", calls, without_kernels=300)))
        assert [one.task.pid for one in found.host.processes] == [100, 200], "only those that used a GPU"
        assert (found.host.mpi_parallel, found.host.mpi_load_balance) == (None, None)
        assert any("no MPI calls of rank 1" in note for note in found.host_notes)

    @pytest.mark.campaign
    def test_ranks_that_wait_in_mpi_are_a_load_imbalance(self, opened, tmp_path):
        calls = {pid: [("mpi", 0, wait), ("cuda", 90, 100)] for pid, wait in ((100, 20), (200, 60))}
        host = efficiency_of(opened(traced(tmp_path / "a.sqlite", calls))).host
        assert (host.mpi_communication, host.mpi_load_balance, host.mpi_parallel) == (0.8, 0.75, pytest.approx(0.6))
        assert host.offload == pytest.approx(100 / 120)

    def test_mpi_that_an_old_nsys_wrote_as_nvtx(self, opened):
        (path,) = shared("mpi-cuda-saxpy-schema2.9")
        (one,) = efficiency_of(opened(path), Selection()).host.processes
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
    compute = mfu_of if request.region is None else mfu_of_region
    return compute(job, chosen, efficiency(job, chosen, Useful.POP), request)


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
        assert mfu_in(session, MfuRequest(5e6, gpus=2, region="step")).value == pytest.approx(found.value / 2)
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
