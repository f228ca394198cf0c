"""GPU metrics as tables, and their means over intervals, against loops over every sample and every interval."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import campaign
import numpy as np
import pytest
from support import native, records, session_over
from synthetic import ExportWriter

from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.counters.metric_means import metric_means
from nsystui.questions.counters.metric_tables import metric_statistics, metrics_over_time
from nsystui.questions.gpu.metrics import MetricSamples, MetricSource, attributed, metric_sources, samples_of, unit_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.registry import question_named
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
    (only,) = records(metric_means(sampled, Selection(), "launch"))
    assert (only["name"], only["rank"], only["device"], only["start"], only["duration"]) == ("long", 0, 0, 20, 55)


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


def test_without_samples_or_a_launch_of_two_a_note_says_what_to_record(sampled, opened, tmp_path):
    answer = metric_means(sampled, Selection(Window(80, 90)), "launch")
    assert not len(answer) and "no launch is long enough" in answer.notes[0]
    assert "too short for two samples" in metric_means(sampled, Selection(Window(80, 90)), "kernel").notes[0]
    with ExportWriter(tmp_path / "without.sqlite") as export:
        export.kernel(export.process(100), 0, 7, 0, 10, name="a", correlation_id=1)
    job = OpenJob(opened(tmp_path / "without.sqlite"))
    subjects = ("kernel", "launch", "range", "step", "collective")
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
        for number in np.flatnonzero(ranges.op_count > 0).tolist():
            lane, name = ranges.lane_of(number), ranges.names[ranges.name[number]]
            if name == "forward":
                place = gpu[Task(lane.report, lane.process)]
                yield (name,), place, (int(ranges.gpu_start[number]), int(ranges.gpu_end[number]))


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


def test_over_time_every_device_has_its_metrics_and_the_kernels_in_flight(demo_session):
    job, bins = OpenJob(demo_session), 7
    question = question_named("gpu")
    options = question.read({**question.default_values(), "over_time": True, "bins": bins})
    rows, window = records(question.ask(job, Selection(), options)), job.extent(Selection())
    long = records(metrics_over_time(job, Selection(), bins))
    clock = "GPC Clock Frequency [MHz]"
    assert [one[clock] for one in rows] == [one["value"] for one in long if one["metric"] == clock]
    width = (window.end - window.start) / bins
    for item in job.ranks:
        (report,) = (one for one in demo_session.reports if one.index == item.task.report)
        query = f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = {item.task.process}"
        kernels = native(report.path, query)
        for number, one in enumerate([one for one in rows if one["rank"] == item.rank]):
            low, high = window.start + number * width, window.start + (number + 1) * width
            moved = report.clock_offset
            time = sum(max(0.0, min(end + moved, high) - max(start + moved, low)) for start, end in kernels)
            assert one["in_flight"] == pytest.approx(time / width, abs=1e-6)


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
