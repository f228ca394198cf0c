"""The busy time of GPUs, against sets of nanoseconds and against the values of real exports.

See docs/contributing.md#reference-data.
"""

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support import shared
from synthetic import ExportWriter
from synthetic.demo import CaptureSession as Capture
from synthetic.demo import Process

from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.gpu import utilisation
from nsystui.questions.gpu.device_time import Breakdown, total
from nsystui.questions.gpu.metrics import metric_lanes, metric_sources
from nsystui.questions.gpu.utilisation import BusyIntervals, utilisation_over_time, utilisation_table
from nsystui.questions.queries import derived
from nsystui.questions.queries.tasks import ranked_tasks
from nsystui.questions.queries.time_window import extent, extents, recorded
from nsystui.store.session import Session

START = 1_780_000_000_000_000_000
EVERYTHING = Selection()
LANES = ("kernels", "nccl", "exposed_nccl", "memory", "graph", "busy")
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"

Event = tuple[str, int, int]


def put(export: ExportWriter, process: Process, events: Sequence[Event], device: int = 0, stream: int = 7) -> Process:
    """Write ``(kind, start, end)`` events of a device."""
    for number, (kind, start, end) in enumerate(events, 1):
        place = (process, device, stream, start, end)
        if kind == "G":
            export.graph_launch(*place, graph_id=1, graph_exec_id=2, correlation_id=number)
        elif kind == "M" and number % 2:
            export.memcpy(*place, size=1024, kind="HtoD", correlation_id=number)
        elif kind == "M":
            export.memset(*place, size=1024, correlation_id=number)
        else:
            export.kernel(*place, name={"K": "saxpy(float *)", "C": ALL_REDUCE}[kind], correlation_id=number)
    return process


def one_device(path: Path, events: Sequence[Event], start: int = START, duration: int | None = None) -> Path:
    """Write an export of a process that runs ``events`` on device 0."""
    with ExportWriter(path, session=Capture(utc_epoch_ns=start, duration=duration)) as export:
        put(export, export.process(4711), events)
    return path


def load(session: Session, selection: Selection = EVERYTHING) -> BusyIntervals:
    return BusyIntervals.load(session, selection, ranked_tasks(session))


def only(session: Session, window: Window) -> Breakdown:
    """Return the totals of the only task."""
    (spent,) = load(session).breakdown(extents(session, Selection(window))).values()
    return spent


def points(events: Sequence[Event], kinds: str, window: Window) -> set[int]:
    """Return every ns of the window in which an event of these kinds runs."""
    inside = set(range(window.start, window.end))
    return {ns for kind, start, end in events if kind in kinds for ns in range(start, end)} & inside


def random_events(seed: int) -> list[Event]:
    rng = random.Random(seed)
    drawn = ((rng.randrange(900), rng.randrange(60), rng.choice("KKCMG")) for _ in range(60))
    return [(kind, start, start + length) for start, length, kind in drawn]


@pytest.fixture(scope="module", params=range(3))
def drawn(request, tmp_path_factory) -> Iterator[tuple[list[Event], Session]]:
    """Yield events of a device, and a session over an export of them."""
    events = random_events(request.param)
    with closing(Session()) as session:
        session.add(one_device(tmp_path_factory.mktemp("drawn") / "a.sqlite", events))
        yield events, session


@pytest.mark.campaign
@pytest.mark.parametrize("window", [Window(0, 1000), Window(200, 417), Window(950, 2000)])
def test_totals_are_those_of_sets_of_nanoseconds(drawn, window):
    events, session = drawn
    spent = only(session, window)
    k, c, m, g = (points(events, kind, window) for kind in "KCMG")
    assert (spent.kernels, spent.nccl, spent.memory, spent.graph) == (len(k), len(c), len(m), len(g))
    assert (spent.busy, spent.overlap) == (len(k | c | m | g), len(k & c))
    assert (spent.exposed_nccl, spent.exposed_memory) == (len(c - k), len(m - k))
    assert (spent.memory_only, spent.graph_only) == (len(m - k - c), len(g - k - c - m))
    assert spent.idle == window.end - window.start - spent.busy

    parts = (spent.kernels, spent.exposed_nccl, spent.memory_only, spent.graph_only, spent.idle)
    assert sum(parts) == spent.time == window.end - window.start


@pytest.mark.campaign
@pytest.mark.parametrize("bins", [1, 7, 100, 1000, 3000])
def test_bins_add_up_to_the_totals_and_never_exceed_one(drawn, bins):
    _, session = drawn
    window = Window(13, 900)
    (device,) = load(session).devices
    width = (window.end - window.start) / bins
    for name in LANES:
        shares = device.share(name, window, bins)
        assert shares.shape == (bins,)
        assert ((shares >= 0) & (shares <= 1)).all()
        assert shares.sum() * width == pytest.approx(getattr(device.breakdown(window), name))


def test_processes_that_share_an_ordinal_are_kept_apart(opened, tmp_path):
    with ExportWriter(tmp_path / "two.sqlite") as export:
        put(export, export.process(100), [("K", 0, 60)])
        second = put(export, export.process(200), [("K", 40, 50)])
        put(export, second, [("K", 0, 100)], device=1)
    session, window = opened(export.path), Window(0, 100)
    busy = load(session)
    assert [(item.device.task.pid, item.device.device) for item in busy.devices] == [(100, 0), (200, 0), (200, 1)]
    assert [item.breakdown(window).busy for item in busy.devices] == [60, 10, 100]
    by_task = busy.breakdown(extents(session, Selection(window))).values()
    # A task with two GPUs has twice the time.
    assert [(spent.busy, spent.time) for spent in by_task] == [(60, 100), (110, 200)]
    assert total(by_task).percent(170) == pytest.approx(170 / 3)


@pytest.mark.campaign
def test_reading_in_batches_changes_nothing(opened, tmp_path, monkeypatch):
    paths = [tmp_path / f"rank{number}.sqlite" for number in range(3)]
    for number, path in enumerate(paths):
        with ExportWriter(path) as export:
            process = export.process(10 + number % 2)
            put(export, process, random_events(number), device=0)
            put(export, process, random_events(90 + number), device=1)
    session = opened(*paths)
    window = Window(100, 800)
    expected = [measures(item.breakdown(window)) for item in load(session).devices]
    assert len(set(expected)) == 6
    for rows, reports in ((10**6, 1), (10**6, 2), (50, 64), (130, 64)):
        monkeypatch.setattr(derived, "_MOST_ROWS", rows)
        monkeypatch.setattr(utilisation, "_REPORTS_AT_ONCE", reports)
        assert [measures(item.breakdown(window)) for item in load(session).devices] == expected, (rows, reports)


def test_an_export_without_gpu_work_says_so_and_has_no_rows(opened, tmp_path):
    with ExportWriter(tmp_path / "cpu.sqlite") as export:
        export.osrt(export.thread(export.process(1), 1, "main"), 0, 50, "poll")
    session = opened(export.path)
    window = extent(session, Selection())
    assert window == Window(0, 50)
    table = utilisation_table(load(session), window)
    assert (len(table), table.notes) == (0, ("no GPU work in this export: record with `nsys profile -t cuda`",))
    assert len(utilisation_over_time(load(session), window, 10)) == 0


@pytest.mark.campaign
def test_tasks_devices_and_streams_narrow_but_a_name_filter_does_not(opened, tmp_path):
    with ExportWriter(tmp_path / "a.sqlite") as export:
        process = put(export, export.process(100), [("K", 0, 10)])
        put(export, process, [("K", 10, 30)], stream=9)
        put(export, process, [("K", 0, 50)], device=1)
        put(export, export.process(200), [("K", 0, 90)])
    session, first = opened(export.path), Selection(tasks=frozenset({Task(0, process.global_id)}))
    for selection, expected in (
        (Selection(), [30, 50, 90]),
        (first, [30, 50]),
        (Selection(devices=frozenset({1})), [50]),
        (first.with_name("absent"), [30, 50]),
        (first.with_window(Window(0, 5)), [30, 50]),  # the window is a separate argument
        (Selection(streams=frozenset({9}), devices=frozenset({0}), tasks=first.tasks), [20]),
    ):
        assert [item.breakdown(Window(0, 100)).busy for item in load(session, selection).devices] == expected, selection
    notes = load(session, first.with_name("absent")).notes
    assert notes == ("the name filter does not apply here: how busy a GPU is depends on all of its work",)


@pytest.mark.campaign
def test_reports_lie_on_the_job_clock_and_are_missing_outside_their_session(opened, tmp_path):
    early = one_device(tmp_path / "rank0.sqlite", [("K", 0, 100)], duration=100)
    session = opened(early, one_device(tmp_path / "rank1.sqlite", [("K", 0, 50)], START + 200, duration=100))
    assert [recorded(report) for report in session.reports] == [Window(0, 100), Window(200, 300)]
    window = extent(session, Selection(), fit=False)
    assert window == Window(0, 300)
    assert extents(session, Selection()) == dict.fromkeys((0, 1), Window(0, 250))
    busy = load(session)
    first, second = busy.devices
    np.testing.assert_array_equal(first.share("busy", window, 6), [1, 1, math.nan, math.nan, math.nan, math.nan])
    np.testing.assert_array_equal(second.share("busy", window, 6), [math.nan, math.nan, math.nan, math.nan, 1, 0])
    spent = second.breakdown(window)
    assert (spent.busy, spent.recorded, spent.time) == (50, 100, 300)
    assert "ranks 0, 1 were not recorded for all of this time" in utilisation_table(busy, window).notes[-1]
    assert utilisation_table(busy, Window(0, 50)).notes[-1].startswith("rank 1 was not recorded")
    over_time = utilisation_over_time(busy, window, 6)
    assert [row[2] for row in over_time.page(0, 6)] == [0, 50, 100, 150, 200, 250]
    assert over_time.page(2, 1)[0][3:] == (None,) * 6


def test_runs_that_share_no_clock_have_extents_of_their_own(opened, tmp_path):
    hour = 3600 * 10**9
    before = one_device(tmp_path / "before.sqlite", [("K", 10, 20)])
    session = opened(before, one_device(tmp_path / "after.sqlite", [("K", 510, 540)], START + hour))
    assert extent(session, Selection()) == Window(10, 540)
    assert extents(session, Selection()) == {0: Window(10, 20), 1: Window(510, 540)}
    chosen = Selection(tasks=frozenset({ranked_tasks(session)[1].task}))
    assert extent(session, chosen) == Window(510, 540)
    assert "share no clock" in utilisation_table(load(session), Window(10, 540)).notes[-1]
    assert load(session, chosen).shares_clock


@pytest.mark.campaign
def test_extent_fits_the_events_unless_told_otherwise(opened, tmp_path):
    session = opened(one_device(tmp_path / "a.sqlite", [("K", 5000, 5100)], duration=10_000))
    assert extent(session, Selection()) == Window(5000, 5100)
    assert extent(session, Selection(), fit=False) == Window(0, 10_000)
    assert extent(session, Selection(Window(7, 9)), fit=False) == Window(7, 9)
    assert extent(opened(), Selection()) == Window(0, 0)
    longer = opened(one_device(tmp_path / "b.sqlite", [("K", -40, 60)], duration=50))
    assert extent(longer, Selection(), fit=False) == Window(-40, 60)


def test_an_empty_window_has_no_percentages_and_a_new_report_makes_the_intervals_stale(opened, tmp_path):
    session = opened(one_device(tmp_path / "a.sqlite", [("K", 0, 10)]))
    busy = load(session)
    table = utilisation_table(busy, Window(5, 5))
    assert (table.cells("busy_percent"), table.cells("busy_ns")) == ([None], [0])
    assert np.isnan(busy.devices[0].share("busy", Window(5, 5), 3)).all()
    assert metric_lanes(session, Selection(), Window(0, 10), 5) == []
    assert busy.is_current(session)
    session.add(one_device(tmp_path / "b.sqlite", [("K", 0, 10)]))
    assert not busy.is_current(session)


METRICS = (
    "GPC Clock Frequency [MHz]", "SMs Active [Throughput %]", "NVLink RX Bandwidth [Throughput %]",
    "NVLink RX Bandwidth [Bytes/s]", "Unallocated Warps in Active SMs [Throughput %]", "Tensor Active [Throughput %]",
)  # fmt: skip


@pytest.fixture
def sampled(opened, tmp_path) -> Session:
    """Return two tasks on GPUs 4 and 5 with samples at 0, 10, 20 and 30 ns; the samples of GPU 4 are damaged."""
    with ExportWriter(tmp_path / "metrics.sqlite") as export:
        for gpu, pid, values in ((4, 100, (10, -2_000_000, 400, 30)), (5, 200, (20, 20, 20, 20))):
            export.gpu(gpu)
            export.cuda_device(put(export, export.process(pid), [("K", 0, 40)]), cuda_id=0, gpu_id=gpu)
            export.gpu_metric_names(gpu, METRICS)
            for number, value in enumerate(values):
                export.gpu_metric(gpu, 10 * number, [1755, value, 50, 10**9, 5, 60])
    return opened(export.path)


def test_metrics_are_clamped_and_averaged_in_each_bin(sampled):
    lanes = metric_lanes(sampled, Selection(), Window(0, 60), 3)
    names = [(lane.source.gpu, lane.source.family, lane.source.label) for lane in lanes]
    one = [("SM active", "SMs Active"), ("tensor active", "Tensor Active"), ("NVLink RX", "NVLink RX Bandwidth")]
    assert names == [(gpu, *each) for gpu in (4, 5) for each in one]
    np.testing.assert_array_equal(lanes[0].values, [5, 65, math.nan])
    assert lanes[0].mean == 35
    np.testing.assert_array_equal(lanes[3].values, [20, 20, math.nan])


def test_metrics_of_the_selected_task_are_those_of_its_gpu(sampled):
    task = next(item.task for item in ranked_tasks(sampled) if item.pid == 200)
    assert {source.gpu for source in metric_sources(sampled, Selection(tasks=frozenset({task})))} == {5}
    assert metric_sources(sampled, Selection(tasks=frozenset())) == []


def test_a_window_between_samples_keeps_its_lanes(sampled):
    sources = metric_sources(sampled, Selection())
    lanes = metric_lanes(sampled, Selection(), Window(11, 19), 4, sources)
    assert len(lanes) == len(sources) == 6
    assert all(np.isnan(lane.values).all() and lane.mean is None for lane in lanes)
    assert [lane.mean for lane in metric_lanes(sampled, Selection(), Window(5, 5), 4)] == [None] * 6
    with pytest.raises(ValueError, match="at least one bin"):
        metric_lanes(sampled, Selection(), Window(0, 60), 0)


GOLDEN = {
    # name: for each device |K| |C| |M| |G| |A| K∩C, C\K, M\K (docs/contributing.md#reference-data)
    "ddp-a100-rank0of4": [(1661359183, 292789300, 483674208, 0, 1768870079, 270990237, 21799063, 102142328)],
    "h100-2rank-moe-before": [
        (253690832, 17172652, 2954303, 0, 273817787, 0, 17172652, 2954303),
        (256095624, 8229100, 2951192, 0, 267275916, 0, 8229100, 2951192),
    ],
    "event-ids-unified-memory-2025.5": [(32373283, 0, 109853, 0, 32425282, 0, 0, 51999)],
    "graph-events-2025.5": [(3840, 0, 864, 3104, 7808, 0, 0, 864)],
    "jetson-orin": [(1300765888, 0, 91366272, 0, 1392132160, 0, 0, 91366272)],
    "cuda-graphs": [(78270, 0, 0, 7811141695, 7811219965, 0, 0, 0)],
    "alcf-allgather-rank0": [(0, 185997784, 0, 0, 185997784, 0, 185997784, 0)],
    "alcf-allgather-rank4": [(0, 19113166, 0, 0, 19113166, 0, 19113166, 0)],
}


def measures(spent: Breakdown) -> tuple[int, ...]:
    unions = (spent.kernels, spent.nccl, spent.memory, spent.graph, spent.busy)
    return (*unions, spent.overlap, spent.exposed_nccl, spent.exposed_memory)


@pytest.mark.parametrize("name", GOLDEN)
def test_real_exports_have_the_known_totals(opened, name):
    session = opened(*shared(name))
    window = extent(session, Selection())
    devices = load(session).devices
    assert [measures(device.breakdown(window)) for device in devices] == GOLDEN[name]
    for device in devices:
        busy = device.share("busy", window, 120)
        assert busy.sum() * (window.end - window.start) / 120 == pytest.approx(device.breakdown(window).busy)
        assert busy.max() <= 1
