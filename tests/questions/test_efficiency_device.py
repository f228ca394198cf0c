"""Parts that add up to the window and factors that multiply to the whole, against sets of nanoseconds."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import shared
from synthetic import ExportWriter
from synthetic.demo import CaptureSession as Capture

from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.algebra.intervals import Intervals, union
from nsystui.questions.efficiency.device import DeviceEfficiency, Useful
from nsystui.questions.efficiency.result import Efficiency, Scaling, Sized, efficiency, scalability
from nsystui.questions.efficiency.tables import PARTS, breakdown_table
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
        found = scalability(self.of(*here), self.of(*there), scaling)
        assert found.computation == expected[0] and found.overall == pytest.approx(expected[1])

    def test_windows_of_other_work_are_told(self):
        def note(here: int | None, there: int | None) -> str:
            return scalability(self.of(2, 10, here), self.of(1, 10, there), Scaling.STRONG).note

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
