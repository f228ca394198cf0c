"""GPU metrics and GPU memory, against loops over every sample and a ledger over the rows of the export."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import campaign
import numpy as np
import pytest
from support import edit, native, records, session_over
from synthetic import ExportWriter
from synthetic.writing.host import Frame
from synthetic.writing.target import Process

from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.counters.metric_means import metric_means
from nsystui.questions.counters.metric_tables import metric_statistics, metrics_over_time
from nsystui.questions.gpu.metrics import MetricSamples, MetricSource, attributed, metric_sources, samples_of, unit_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.memory.gpu_allocations import allocation_table
from nsystui.questions.memory.gpu_memory import device_peaks, memory_over_time, memory_table
from nsystui.questions.queries.question import question_named
from nsystui.questions.queries.tasks import used_devices
from nsystui.store.session import Session

Opener = Callable[..., Session]
Span = tuple[int, int]
SOURCE = MetricSource(0, 0, 0, "SM Active")
METRICS = ("SMs Active [Throughput %]", "GPC Clock Frequency [MHz]", "DRAM Read Bandwidth [Throughput %]")


@pytest.fixture(scope="module")
def sampled(tmp_path_factory) -> Iterator[OpenJob]:
    """Yield a GPU sampled every 10 ns from 0 to 200, not from 100 to 150; it runs a long and two short kernels."""
    path = tmp_path_factory.mktemp("sampled") / "metrics.sqlite"
    with ExportWriter(path) as export:
        export.gpu(3)
        process = export.process(100)
        export.cuda_device(process, cuda_id=0, gpu_id=3)
        for number, (name, start, end) in enumerate([("long", 20, 75), ("short", 81, 87), ("short", 83, 88)], 1):
            export.kernel(process, 0, number, start, end, name=f"{name}(float *)", correlation_id=number)
        export.gpu_metric_names(3, METRICS)
        for time in (*range(0, 101, 10), *range(150, 201, 10)):
            clock = -5 if time == 30 else 1000 + time
            export.gpu_metric(3, time, [150 if time == 30 else time // 2, clock, 7])
    job = OpenJob(session_over(path))
    yield job
    job.close()


def naive(samples: list[tuple[int, int, float]], pieces: list[tuple[int, int]]) -> float | None:
    """Return the mean over intervals: each sample (start, end, value) by its overlap with each interval."""
    total = weight = 0.0
    for start, end in pieces:
        for first, last, value in samples:
            overlap = max(0, min(end, last) - max(start, first))
            total += overlap * value
            weight += overlap
    return total / weight if weight else None


def test_samples_are_weighted_by_their_overlap_with_each_interval():
    chance = random.Random(7)
    for _ in range(50):
        edges = sorted(chance.sample(range(-50, 300), 2 * chance.randrange(0, 12)))
        spans = list(zip(edges[::2], edges[1::2], strict=True))
        values = [chance.uniform(0, 100) for _ in spans]
        own = MetricSamples(SOURCE, *np.array(spans, np.int64).reshape(-1, 2).T, np.array(values))
        starts = np.array([chance.randrange(-80, 320) for _ in range(20)])
        ends = starts + np.array([chance.randrange(0, 90) for _ in range(20)])
        ((time, value),) = attributed([own], starts, ends)
        for number, piece in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            expected = naive([(*span, one) for span, one in zip(spans, values, strict=True)], [piece])
            assert time[number] == sum(max(0, min(piece[1], b) - max(piece[0], a)) for a, b in spans)
            assert value[number] == pytest.approx((expected or 0.0) * time[number], abs=1e-6)


def test_a_sample_describes_the_time_since_the_one_before_but_no_gap(sampled):
    ((first, *_),) = samples_of(sampled.session, metric_sources(sampled.session, Selection(), every=True))
    spans = list(zip(first.starts.tolist(), first.ends.tolist(), strict=True))
    assert spans[0] == (-10, 0) and (90, 100) in spans and (140, 150) in spans
    assert sum(end - start for start, end in spans) == 17 * 10


def test_a_unit_is_the_recorded_one_and_a_percentage_says_of_what():
    for metric, unit in {
        "SM Active": "% of cycles",
        "Tensor Active [Throughput %]": "% of cycles",
        "Compute Warps in Flight [Throughput %]": "% of warp slots",
        "DRAM Read Throughput": "% of peak rate",
        "NVLink RX Responses User Data": "% of peak rate",
        "GPC Clock Frequency": "Hz",
        "GPC Clock Frequency [MHz]": "MHz",
        "Compute Warps in Flight [Avg Warps per Cycle]": "Avg Warps per Cycle",
        "PCIe Read Requests to BAR1": "",
    }.items():
        assert unit_of(metric) == unit, metric


def test_implausible_samples_are_cut_or_left_out_and_the_others_count_by_their_overlap(sampled):
    active, memory, clock = records(metric_statistics(sampled, Selection()))
    assert [one["metric"] for one in (active, memory, clock)] == [METRICS[0], METRICS[2], METRICS[1]]
    assert {"rank": 0, "device": 0, "gpu": 3, "samples": 17, "implausible": 1, "max": 100}.items() <= active.items()
    assert {"samples": 16, "implausible": 1, "min": 1000}.items() <= clock.items()
    assert memory["mean"] == memory["median"] == 7
    clock = records(metric_statistics(sampled, Selection(Window(55, 72))))[2]
    assert clock["mean"] == pytest.approx((5 * 1060 + 10 * 1070 + 2 * 1080) / 17)
    assert (clock["samples"], clock["min"], clock["max"]) == (3, 1060, 1080)


def test_the_means_of_kernels_say_how_much_of_them_was_long_enough(sampled):
    long, short = records(metric_means(sampled, Selection(), "kernel"))
    assert (long["name"], long["count"], long["total"], long["resolved"]) == ("long", 1, 55, 100)
    assert (short["name"], short["count"], short["total"], short["resolved"]) == ("short", 2, 11, 0)
    assert long[METRICS[1]] == pytest.approx((10 * 1040 + 10 * 1050 + 10 * 1060 + 10 * 1070 + 5 * 1080) / 45)
    assert short[METRICS[1]] == 1090
    assert (short["busiest"], short["of_peak"]) == (None, None), "of DRAM only half was sampled"
    assert (short["bound"], short["occupancy"]) == (None, None), "no warps were sampled"
    assert (long["samples"], long["alone"], short["samples"], short["alone"]) == (5, 5, 0, 0)


def test_what_bounds_a_kernel_and_its_occupancy_are_made_of_its_means(opened, tmp_path):
    names = ("SMs Active", "DRAM Read Bandwidth", "DRAM Write Bandwidth", "Tensor Active", "Compute Warps in Flight")
    samples = {"copy": (80, 40, 30, 3, 40), "gemm": (50, 10, 5, 45, 20), "tiny": (9, 0, 0, 0, 9)}
    with ExportWriter(tmp_path / "bound.sqlite") as export:
        export.gpu(0)
        process = export.process(100)
        export.cuda_device(process, cuda_id=0, gpu_id=0)
        export.gpu_metric_names(0, [f"{name} [Throughput %]" for name in names])
        export.gpu_metric(0, 0, (0,) * 5)
        for number, (name, values) in enumerate(samples.items()):
            export.kernel(process, 0, 7, 100 * number, 100 * number + 100, name=f"{name}()", correlation_id=number + 1)
            for time in range(10, 101, 10):
                export.gpu_metric(0, 100 * number + time, values)
    job = OpenJob(opened(tmp_path / "bound.sqlite"))
    found = {one["name"]: one for one in records(metric_means(job, Selection(), "kernel"))}
    assert found.keys() == samples.keys()
    # If few SMs worked, a quotient of whole percents is meaningless.
    keys = ("busiest", "of_peak", "bound", "occupancy")
    told = {name: tuple(row[key] for key in keys) for name, row in found.items()}
    assert told["copy"] == ("DRAM", 70, "DRAM", 50) and told["gemm"] == ("tensor", 45, None, 40)
    assert told["tiny"] == ("tensor", 0, None, None)


def test_without_samples_a_note_says_what_to_record(sampled, opened, tmp_path):
    assert "too short for two samples" in metric_means(sampled, Selection(Window(80, 90)), "kernel").notes[0]
    with ExportWriter(tmp_path / "without.sqlite") as export:
        export.kernel(export.process(100), 0, 7, 0, 10, name="a", correlation_id=1)
    job = OpenJob(opened(tmp_path / "without.sqlite"))
    subjects = ("kernel", "range", "step", "collective")
    for answer in (metric_statistics(job, Selection()), *(metric_means(job, Selection(), by) for by in subjects)):
        assert not len(answer) and "--gpu-metrics-devices=all" in answer.notes[0]


def spans_of(job: OpenJob, metric: str) -> dict[tuple[int, int | None], list[tuple[int, int, float]]]:
    """Return the samples of a metric by report and GPU, each from the previous sample on."""
    found: dict[tuple[int, int | None], list[tuple[int, int, float]]] = {}
    for report in job.session.reports:
        rows = native(
            report.path,
            "SELECT typeId & 255, timestamp, value FROM GPU_METRICS "
            "JOIN TARGET_INFO_GPU_METRICS USING (typeId, metricId) "
            f"WHERE metricName = '{metric}' AND timestamp IS NOT NULL ORDER BY timestamp",
        )
        for gpu in {row[0] for row in rows}:
            times = [row[1] + report.clock_offset for row in rows if row[0] == gpu]
            gaps = [later - earlier for earlier, later in pairwise(times)]
            period = int(np.median(gaps))
            starts = [times[0] - period]
            starts += [time + (gap - period) * (gap > 2 * period) for time, gap in zip(times, gaps, strict=False)]
            values = [min(max(row[2], 0), 100) for row in rows if row[0] == gpu]
            found[report.index, gpu] = list(zip(starts, times, values, strict=True))
    return found


def pieces_of(
    job: OpenJob, by: str, answer: list[dict[str, Any]]
) -> Iterator[tuple[Any, tuple[int, int | None], Span]]:
    """Yield the intervals of the means: the key of a row, report and GPU, and a span."""
    gpu = {one.task: (one.task.report, one.gpu) for one in used_devices(job.session)}
    if by == "step":
        ranks = {item.rank: item.task for item in job.ranks}
        for one in answer:
            yield (one["rank"], one["start"]), gpu[ranks[one["rank"]]], (one["start"], one["start"] + one["duration"])
    elif by == "collective":
        kernels = job.pairing().kernels
        columns = [kernels[key] for key in ("report", "start", "end", "collective", "message_size")]
        for report, start, end, collective, size in zip(*columns, strict=True):
            yield from (((collective, int(size)), place, (start, end)) for place in gpu.values() if place[0] == report)
    else:
        ranges = job.nvtx_ranges(Selection())
        for number in np.flatnonzero(ranges.values("op_count") > 0).tolist():
            lane, name = ranges.lane_of(number), ranges.names[ranges.values("name")[number]]
            if name == "forward":
                place = gpu[Task(lane.report, lane.process)]
                yield (name,), place, (int(ranges.values("gpu_start")[number]), int(ranges.values("gpu_end")[number]))


KEYS = {"step": ("rank", "start"), "collective": ("collective", "message_size"), "range": ("name",)}


@pytest.mark.parametrize("by", campaign.first(1, KEYS))
def test_the_means_of_a_job_are_those_of_a_loop_over_its_samples(demo_session, by):
    job, metric = OpenJob(demo_session), "Tensor Active [Throughput %]"
    samples, answer = spans_of(job, metric), records(metric_means(job, Selection(), by))
    total: dict[object, list[float]] = {}
    for key, place, (start, end) in pieces_of(job, by, answer):
        sums = total.setdefault(key, [0.0, 0.0])
        for first, last, value in samples[place]:
            overlap = max(min(end, last) - max(start, first), 0)
            sums[0] += overlap * value
            sums[1] += overlap
    rows = {tuple(one[key] for key in KEYS[by]): one[metric] for one in answer}
    if by == "range":
        rows = {key: value for key, value in rows.items() if key in total}
    assert rows.keys() == total.keys() and len(rows) >= {"step": 12, "collective": 1, "range": 1}[by]
    for key, (value, time) in total.items():
        assert rows[key] == pytest.approx(value / time if time else None), key


def test_over_time_every_device_has_its_metrics(demo_session):
    job, bins = OpenJob(demo_session), 7
    question = question_named("gpu")
    options = question.read({**question.default_values(), "over_time": True, "bins": bins})
    rows = records(question.ask(job, Selection(), options))
    long = records(metrics_over_time(job, Selection(), bins))
    clock = "GPC Clock Frequency [MHz]"
    assert [one[clock] for one in rows] == [one["value"] for one in long if one["metric"] == clock]


@pytest.mark.campaign
def test_the_statistics_of_a_real_export_are_those_of_its_samples(opened, shared_export):
    path = shared_export("gpu-metrics")
    rows = {one["metric"]: one for one in records(metric_statistics(OpenJob(opened(path)), Selection()))}
    names = dict(native(path, "SELECT metricId, metricName FROM TARGET_INFO_GPU_METRICS"))
    assert rows.keys() == set(names.values())
    for metric, name in names.items():
        query, one = f"SELECT value FROM GPU_METRICS WHERE metricId = {metric} AND value >= 0", rows[name]
        values = [value for (value,) in native(path, query)]
        assert (one["samples"], one["min"], one["max"]) == (len(values), min(values), max(values))
        assert one["median"] == np.median(values) and one["p95"] == pytest.approx(np.percentile(values, 95))


@pytest.mark.campaign
def test_the_means_of_a_real_kernel_are_those_of_a_loop(opened, shared_export):
    path = shared_export("gpu-metrics")
    job = OpenJob(opened(path))
    (one,) = records(metric_means(job, Selection(), "kernel"))
    kernels = native(path, "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert (one["name"], one["count"], one["total"]) == ("vectorAdd", 1010, sum(end - start for start, end in kernels))
    for metric in ("GR Active", "DRAM Write Throughput"):
        samples = next(iter(spans_of(job, metric).values()))
        low, high = min(start for start, _ in kernels), max(end for _, end in kernels)
        near = [sample for sample in samples if sample[1] > low and sample[0] < high]
        assert one[metric] == pytest.approx(naive(near, kernels))


@pytest.mark.campaign
def test_a_sample_is_alone_where_a_single_kernel_ran_since_the_one_before(demo_session):
    job, metric = OpenJob(demo_session), "Tensor Active [Throughput %]"
    gpu = {(one.task.report, one.task.process): (one.task.report, one.gpu) for one in used_devices(job.session)}
    running: dict[tuple[int, int | None], list[tuple[int, int, str]]] = {}
    for report in job.session.reports:
        rows = native(
            report.path,
            'SELECT globalPid, k.start, k."end", s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k '
            "JOIN StringIds s ON s.id = k.demangledName",
        )
        for process, start, end, name in rows:
            place = gpu[report.index, process]
            running.setdefault(place, []).append((start + report.clock_offset, end + report.clock_offset, name))
    taken, alone = Counter[str](), Counter[str]()
    for place, samples in spans_of(job, metric).items():
        kernels = np.array([(start, end) for start, end, _ in running[place]])
        names = [name for *_, name in running[place]]
        for first, last, _ in samples:
            for one in np.flatnonzero((kernels[:, 0] < last) & (kernels[:, 1] >= last)).tolist():
                taken[names[one]] += 1
            beside = np.flatnonzero((kernels[:, 0] < last) & (kernels[:, 1] > first))
            if len(beside) == 1 and kernels[beside[0], 0] <= first and kernels[beside[0], 1] >= last:
                alone[names[beside[0]]] += 1
    smart = job.smart_names()
    answer = records(metric_means(job, Selection(), "kernel"))
    assert {one["name"]: one["samples"] for one in answer if one["samples"]} == {
        smart[key]: n for key, n in taken.items()
    }
    assert {one["name"]: one["alone"] for one in answer if one["alone"]} == {smart[key]: n for key, n in alone.items()}
    assert {one["alone"] for one in records(metric_means(job, Selection(), "step"))} == {None}


DEVICE, PINNED = 2, 1


class Ledger:
    """Bytes in use after each event of one kind of memory of a device, from the native rows of a process."""

    def __init__(self, path: Path, device: int, kind: int) -> None:
        self.live: dict[int, int] = {}
        self.curve: list[tuple[int, int]] = []
        self.made: list[tuple[int, int]] = []
        self.freed: list[int] = []
        place = f"deviceId = {device} AND memKind = {kind}"
        for time, address, size, is_free in native(
            path,
            "SELECT start, address, bytes, memoryOperationType FROM CUDA_GPU_MEMORY_USAGE_EVENTS "
            f"WHERE {place} ORDER BY start, rowid",
        ):
            if not is_free:
                self.live[address] = size
                self.made.append((time, size))
            elif self.live.pop(address, None) is not None:
                self.freed.append(time)
            else:
                continue
            self.curve.append((time, sum(self.live.values())))

    def at(self, time: int) -> int:
        """Return the bytes in use just before a time."""
        return next((used for when, used in reversed(self.curve) if when < time), 0)

    def peak(self, window: Window) -> int:
        return max([self.at(window.start), *[used for when, used in self.curve if window.start <= when < window.end]])


def random_export(path: Path, seed: int) -> Path:
    """Write a process that allocates and frees at random on two devices; some frees are of unrecorded memory."""
    draw = random.Random(seed)
    with ExportWriter(path) as export:
        process = export.process(70)
        export.thread(process, 70, "python")
        for device in (0, 1):
            export.gpu(device)
            export.kernel(process, device, 7, 1_000, 90_000, name="k(int)", correlation_id=None, context=device + 1)
        live: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number in range(200):
            place = draw.choice([(0, DEVICE), (1, DEVICE), (0, PINNED)])
            time = 10 * draw.randrange(500) if number < 20 else 400 * number
            mine = live.setdefault(place, [])
            if mine and draw.random() < 0.45 and number >= 20:
                address, size = mine.pop(draw.randrange(len(mine)))
                where = {"address": address, "memory": place[1], "context": place[0] + 1}
                export.gpu_memory(process, place[0], time, size, is_free=True, **where)
                if draw.random() < 0.5:  # reuses the address
                    mine.append((address, draw.randrange(1, 1 << 30)))
                    address, size = mine[-1]
                    export.gpu_memory(process, place[0], time, size, address=address, memory=place[1])
            else:
                mine.append((0x7F00_0000_0000 + 4096 * number, draw.randrange(1, 1 << 30)))
                export.gpu_memory(process, place[0], time, mine[-1][1], address=mine[-1][0], memory=place[1])
        export.gpu_memory(process, 0, 50_000, 123, address=0x1000, is_free=True)
    return path


def windows(seed: int) -> Iterator[Window]:
    """Yield random windows, and a window that begins and ends with an event."""
    draw = random.Random(seed)
    for _ in range(4):
        start, end = sorted(draw.sample(range(90_000), 2))
        yield Window(start, end)
    yield Window(400 * draw.randrange(20, 80), 400 * draw.randrange(120, 190))


@pytest.fixture(scope="module")
def random_jobs(tmp_path_factory) -> Iterator[list[tuple[Path, OpenJob]]]:
    """Yield the jobs of `random_export` for some seeds; tests must not add to them."""
    place = tmp_path_factory.mktemp("random")
    paths = [random_export(place / f"{seed}.sqlite", seed) for seed in range(4)]
    jobs = [OpenJob(session_over(path)) for path in paths]
    yield list(zip(paths, jobs, strict=True))
    for job in jobs:
        job.close()


@pytest.fixture
def job_with(opened, tmp_path) -> Callable[..., OpenJob]:
    """Return a function that opens the job of one process, which another function fills."""

    def make(fill: Callable[[ExportWriter, Process], object], schema: str = "3.25.0") -> OpenJob:
        path = tmp_path / f"{schema}.sqlite"
        with ExportWriter(path, schema) as export:
            process = export.process(70)
            export.kernel(process, 0, 7, 1, 9_000, name="k(int)", correlation_id=None)
            fill(export, process)
        return OpenJob(opened(path))

    return make


def test_processes_share_the_memory_of_their_gpu(opened, tmp_path):
    """Three processes have 10, 20 and 40 MiB in turn on GPU 0, 0 and 1: GPU 0 has at most 30 MiB in use."""
    with ExportWriter(tmp_path / "x.sqlite") as export:
        for gpu in (0, 1):
            export.gpu(gpu)
        for number, gpu in enumerate((0, 0, 1)):
            process = export.process(70 + number)
            export.cuda_device(process, 0, gpu)
            export.thread(process, 70 + number, "python")
            export.kernel(process, 0, 7, 1_000, 90_000, name="k(int)", correlation_id=None)
            size = 10 * 2**number << 20
            export.gpu_memory(process, 0, 1_000 * (1 + number), size, address=4096)
            export.gpu_memory(process, 0, 50_000 + number, size, address=4096, is_free=True)
    peaks = device_peaks(OpenJob(opened(tmp_path / "x.sqlite")), Selection())
    assert [(one.peak >> 20, one.time, len(one.places)) for one in peaks] == [(40, 3_000, 1), (30, 2_000, 2)]
    assert [sorted(size >> 20 for size in one.sizes) for one in peaks] == [[40], [10, 20]]


class TestTable:
    @pytest.mark.campaign
    def test_peaks_and_counts_are_those_of_the_ledger_in_every_window(self, random_jobs):
        for seed, (path, job) in enumerate(random_jobs):
            for window in windows(seed):
                rows = memory_table(job, Selection(window)).records()
                assert {(row["device"], row["memory"]) for row in rows} == {(0, "Device"), (0, "Pinned"), (1, "Device")}
                for row in rows:
                    ledger = Ledger(path, row["device"], DEVICE if row["memory"] == "Device" else PINNED)
                    made = [size for time, size in ledger.made if window.start <= time < window.end]
                    freed = [time for time in ledger.freed if window.start <= time < window.end]
                    assert row["peak"] == ledger.peak(window), (seed, window)
                    assert row["at_end"] == ledger.at(window.end), (seed, window)
                    counts = (row["allocations"], row["allocated"], row["frees"])
                    assert counts == (len(made), sum(made), len(freed)), (seed, window)
                    assert row["largest"] == max(made, default=None)
                    assert window.start <= row["peak_time"] < window.end
                    assert max(ledger.at(row["peak_time"]), ledger.at(row["peak_time"] + 1)) == row["peak"] or made

    def test_a_free_at_the_end_of_a_window_is_none_of_its(self, job_with):
        job = job_with(
            lambda export, process: [
                export.gpu_memory(process, 0, time, 64, address=64, is_free=time == 20) for time in (10, 20)
            ]
        )
        found = {end: memory_table(job, Selection(Window(5, end))).records()[0] for end in (20, 21)}
        assert [(row["frees"], row["at_end"], row["peak"]) for row in found.values()] == [(0, 64, 64), (1, 0, 64)]

    def test_demo_says_what_its_native_rows_say(self, demo_job, demo_session):
        rows = memory_table(OpenJob(demo_session), Selection()).records()
        assert [row["rank"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
        for row, path in zip(rows[::2], demo_job, strict=True):
            assert (row["memory"], row["peak"]) == ("Device", max(used for _, used in Ledger(path, 0, DEVICE).curve))
            assert (row["allocations"], row["frees"], row["never_freed"]) == (9, 0, 9)
            [(whole,)] = native(path, "SELECT DISTINCT totalMemory FROM TARGET_INFO_GPU")
            assert row["peak_percent"] == pytest.approx(100 * row["peak"] / whole)
            [(spent,)] = native(
                path,
                "SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId "
                "WHERE value LIKE 'cudaMalloc%'",
            )
            assert row["call_time"] == spent
        steps = Ledger(demo_job[0], 0, PINNED)
        for row in rows[1::2]:
            assert (row["memory"], row["peak"], row["peak_percent"]) == ("Pinned", 512 * 1024, None)
            assert (row["allocations"], row["frees"]) == (len(steps.made), len(steps.made) - 1)
            assert (row["never_freed"], row["call_time"]) == (1, None)

    def test_frees_of_older_memory_and_damaged_rows_are_left_out_and_said(self, opened, tmp_path, random_jobs):
        whole = memory_table(random_jobs[2][1], Selection())
        assert "left out: 1 free of 123 bytes from before the recording" in whole.notes
        path = random_export(tmp_path / "x.sqlite", 2)
        values = "(5, 1, 0, 1, {0}, 0, {1}, 2, {2})"
        rows = ", ".join(values.format(*one) for one in ((0, 9, 0), (64, -9, 0), (64, 9, 7)))
        names = "start, globalPid, deviceId, contextId, address, pc, bytes, memKind, memoryOperationType"
        edit(path, f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS ({names}) VALUES {rows}")
        answer = memory_table(OpenJob(opened(path)), Selection())
        assert answer.records() == whole.records()
        assert any(note.startswith("3 events are left out without address") for note in answer.notes)

    def test_allocation_at_a_used_address_ends_the_one_before(self, job_with):
        def fill(export: ExportWriter, process: Process) -> None:
            for time, size in ((10, 100), (20, 40)):
                export.gpu_memory(process, 0, time, size, address=64)

        answer = memory_table(job_with(fill), Selection())
        [row] = answer.records()
        assert (row["peak"], row["at_end"], row["never_freed"], row["never_freed_bytes"]) == (100, 40, 1, 40)
        assert answer.notes == ("the free of 1 allocation was not recorded before the address was reused",)

    @pytest.mark.campaign
    def test_processes_with_the_same_addresses_stay_apart(self, job_with):
        def fill(export: ExportWriter, process: Process) -> None:
            other = export.process(71)
            export.kernel(other, 0, 7, 1, 900, name="k(int)", correlation_id=None)
            export.gpu_memory(process, 0, 70, 7_000, address=64)
            export.gpu_memory(other, 0, 71, 7_100, address=64)

        job = job_with(fill)
        rows = memory_table(job, Selection()).records()
        assert [(row["rank"], row["peak"]) for row in rows] == [(0, 7_000), (1, 7_100)]
        only = Selection(tasks=frozenset({job.ranks[1].task}))
        assert [row["rank"] for row in memory_table(job, only).records()] == [1]


class TestOverTime:
    @pytest.mark.campaign
    def test_every_span_has_its_peak_and_its_end(self, random_jobs):
        for seed, (path, job) in enumerate(random_jobs):
            ledger = Ledger(path, 1, DEVICE)
            for window in windows(seed + 10):
                rows = [row for row in memory_over_time(job, Selection(window), 7).records() if row["device"] == 1]
                edges = [window.start + number * (window.end - window.start) // 7 for number in range(8)]
                assert [row["start"] for row in rows] == edges[:-1]
                expected = [(ledger.peak(Window(a, max(a, b))), ledger.at(b)) for a, b in pairwise(edges)]
                assert [(row["peak"], row["at_end"]) for row in rows] == expected, (seed, window)


class TestAllocations:
    @pytest.mark.campaign
    def test_those_at_the_peak_add_up_to_it_and_those_never_freed_are_those_of_the_table(self, random_jobs):
        for seed, (_, job) in enumerate(random_jobs[:3]):
            for window in windows(seed):
                rows = allocation_table(job, Selection(window), "at-peak").records()
                for one in memory_table(job, Selection(window)).records():
                    place = (one["device"], one["memory"])
                    mine = [row["bytes"] for row in rows if (row["device"], row["memory"]) == place]
                    assert sum(mine) == one["peak"], (seed, window)
        _, job = random_jobs[3]
        rows = allocation_table(job, Selection(), "never-freed").records()
        table = memory_table(job, Selection()).records()
        assert sum(row["bytes"] for row in rows) == sum(row["never_freed_bytes"] for row in table)
        assert len(rows) == sum(row["never_freed"] for row in table) > 0

    def test_ranges_around_a_call_are_those_of_its_thread(self, job_with):
        def fill(export: ExportWriter, process: Process) -> None:
            main, other = (export.thread(process, 70 + number, "python") for number in (0, 1))
            for start, end, text in ((0, 5_000, "outer"), (100, 200, "over"), (300, 4_000, "inner")):
                export.nvtx_range(main, start, end, text)
            export.nvtx_range(other, 0, 9_000, "other thread")
            for number, time in enumerate((250, 400, 6_000), 1):
                export.api(main, time, time + 50, "cudaMalloc_v3020", number)
                export.gpu_memory(process, 0, time + 40, number, address=64 * number, correlation_id=number)

        rows = allocation_table(job_with(fill), Selection()).records()
        assert [(row["bytes"], row["nvtx"]) for row in rows] == [(3, None), (2, "outer › inner"), (1, "outer")]
        assert {(row["call"], row["duration"], row["tid"]) for row in rows} == {("cudaMalloc", 50, 70)}

    @pytest.mark.parametrize("event_class", campaign.first(1, [0, 67]))
    def test_the_stack_of_its_call_begins_where_cuda_is_called(self, job_with, event_class):
        """The stack is that call's, or its second row's with --cudabacktrace; there is no range."""
        cuda = [Frame("0x7f", "/x/libcuda.so.525", is_unresolved=True), Frame("cudaMalloc", "/x/libcudart.so.12")]
        stack = [*cuda, Frame("Pool::grow(int)", "/x/app"), Frame("main", "/x/app")]

        def fill(export: ExportWriter, process: Process) -> None:
            main = export.thread(process, 70, "python")
            for number, own in enumerate((stack, cuda, ()), 1):
                time = 1_000 * number
                if event_class:
                    export.api(main, time, time + 60, "cudaMalloc_v3020", number)
                name = "cudaMalloc" if event_class else "cudaMalloc_v3020"
                export.api(main, time, time + 60, name, number, stack=own, event_class=event_class)
                export.gpu_memory(process, 0, time + 50, number, address=64 * number, correlation_id=number)

        answer = allocation_table(job_with(fill), Selection())
        assert not answer.notes
        rows = answer.records()
        assert [row["stack"] for row in rows] == [None, None, "Pool::grow ‹ main"]
        assert {(row["call"], row["nvtx"]) for row in rows} == {("cudaMalloc", None)}
