"""The demo's inference server: what its docstring says is wrong with it, each command says, and in the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from support import native, native_count
from synthetic.demo import ServingJob
from triaging import finding, ids, told, triaged

from nsystui.questions.steps.phases import DECODE, MIXED, PREFILL

JOB = ServingJob()
FAMILIES = {name: [] for name in (PREFILL, DECODE, MIXED)}
for number in range(JOB.steps):
    prefilled, decoded = JOB.requests(number)
    FAMILIES[MIXED if prefilled and decoded else PREFILL if prefilled else DECODE].append(number)


@pytest.fixture
def server(written_once: Callable[..., list[Path]]) -> list[Path]:
    return written_once("inference-server", JOB.write)


def gpu_work(path: Path) -> list[list[tuple[int, int]]]:
    """When the GPU worked for each step, by the range around the launch; the last list is of no step."""
    steps = native(
        path,
        "SELECT n.start, n.end FROM NVTX_EVENTS n WHERE n.text LIKE '[Executor] _forward_step %' ORDER BY n.start",
    )
    called = dict(native(path, "SELECT correlationId, start FROM CUPTI_ACTIVITY_KIND_RUNTIME"))
    work: list[list[tuple[int, int]]] = [[] for _ in range(len(steps) + 1)]
    for table in ("KERNEL", "MEMCPY", "MEMSET"):
        for start, end, correlation in native(
            path, f"SELECT start, end, correlationId FROM CUPTI_ACTIVITY_KIND_{table}"
        ):
            time = called[correlation]
            number = next((place for place, (first, last) in enumerate(steps) if first <= time <= last), -1)
            work[number].append((start, end))
    return work


def idle_of_each_step(path: Path) -> list[tuple[int, int]]:
    """Each step's time from its first GPU operation to that of the next, and how much of it nothing runs."""
    *work, _ = gpu_work(path)
    begins = [min(own)[0] for own in work] + [max(end for _, end in work[-1])]
    every = sorted(one for own in work for one in own)
    found = []
    place = 0
    for begin, until in pairwise(begins):
        free, idle = begin, 0
        while place < len(every) and every[place][0] < until:
            idle += max(every[place][0] - free, 0)
            free = max(free, every[place][1])
            place += 1
        found.append((until - begin, idle + max(until - free, 0)))
    return found


def time_without_compute_in_graphs(path: Path) -> int:
    """ns between the compute kernels of each launch of a CUDA graph."""
    by_launch: dict[int, list[tuple[int, int]]] = {}
    for correlation, start, end in native(
        path,
        "SELECT correlationId, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
        " WHERE graphNodeId IS NOT NULL AND value NOT LIKE 'nccl%' AND value NOT LIKE 'cross_device%' ORDER BY start",
    ):
        by_launch.setdefault(correlation, []).append((start, end))
    return sum(start - end for nodes in by_launch.values() for (_, end), (start, _) in pairwise(nodes))


@pytest.mark.campaign
def test_each_phase_has_its_steps_and_the_host_bounds_decoding_alone(table, server):
    found = {row["Phase"]: row for row in table("steps", *server, "--phases")}
    assert {phase: row["Host-bound"] for phase, row in found.items()} == {
        "all": "yes", PREFILL: "no", DECODE: "yes", MIXED: "no"
    }  # fmt: skip
    measured = [idle_of_each_step(path) for path in server]
    for phase, numbers in FAMILIES.items():
        own = [steps[number] for steps in measured for number in numbers]
        row = found[phase]
        assert int(row["Steps"]) == len(own) == len(numbers) * JOB.ranks
        assert int(row["Median (ns)"]) == round(median(time for time, _ in own))
        idle = 100 * sum(idle for _, idle in own) / sum(time for time, _ in own)
        assert float(row["GPU Idle (%)"]) == pytest.approx(idle, abs=0.006)
    decode = found[DECODE]
    assert float(decode["GPU Idle (%)"]) > 20 > 3 > float(found[MIXED]["GPU Idle (%)"])
    assert 10 < float(decode["Host Preparation Exposed (%)"]) < 50  # the GPUs hide the rest
    assert float(decode["Exposed of Idle (%)"]) > 75


@pytest.mark.campaign
def test_one_prefill_is_slow_on_every_rank(table, server):
    found = {row["Phase"]: int(row["Slow Steps"]) for row in table("steps", *server, "--phases")}
    assert found == {"all": JOB.ranks, PREFILL: JOB.ranks, DECODE: 0, MIXED: 0}
    slow = [row["Step"] for row in table("steps", *server, "--every") if row["Slow"]]
    assert slow == [str(JOB.slow_step)] * JOB.ranks


def test_decode_steps_replay_their_graph_with_one_launch_each_and_the_others_launch_all(table, server):
    found = {row["CUDA Graph"]: int(row["Instances"]) for row in table("kernels", *server, "--by", "graph")}
    launches = JOB.ranks * len(FAMILIES[DECODE])
    assert found["replayed"] == len(JOB.graph) * launches
    kernels = sum(native_count(path, "CUPTI_ACTIVITY_KIND_KERNEL") for path in server)
    assert found["eager"] == kernels - found["replayed"]
    calls = {row["Name"]: int(row["Num Calls"]) for row in table("api", *server)}
    assert calls["cudaGraphLaunch_v10000"] == launches
    attention = Counter[tuple[str, bool]]()
    for path in server:
        attention.update(
            native(
                path,
                "SELECT value, graphNodeId IS NOT NULL FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
                " WHERE value LIKE 'Batch%'",
            )
        )
    eager, mixed = (JOB.ranks * JOB.layers * len(FAMILIES[phase]) for phase in (PREFILL, MIXED))
    assert attention == {
        ("BatchPrefillWithPagedKVCacheKernel", 0): eager + mixed,
        ("BatchDecodeWithPagedKVCacheKernel", 0): mixed,
        ("BatchDecodeWithPagedKVCacheKernel", 1): launches * JOB.layers,
    }


@pytest.mark.campaign
def test_small_all_reduces_are_of_another_library_than_large_ones(table, server):
    found = [row for row in table("nccl", *server, "--by", "backend") if row["What"] == "kernel"]
    decodes = JOB.ranks * len(FAMILIES[DECODE])
    eager = JOB.ranks * (JOB.steps - len(FAMILIES[DECODE]))
    assert {(row["Backend"], row["Collective"]): int(row["Count"]) for row in found} == {
        ("custom all-reduce", "AllReduce"): decodes * 2 * JOB.layers,
        ("NCCL", "several"): decodes + eager * 2 * JOB.layers,
    }
    assert {row["Overlapped (%)"] for row in found} == {"0.0"}


@pytest.mark.campaign
def test_streams_are_of_graphs_and_kernels_of_nccl_and_of_copies(table, server):
    found = {(row["Rank"], row["Kind"]): int(row["Operations"]) for row in table("streams", *server)}
    eager = JOB.steps - len(FAMILIES[DECODE])
    for rank in map(str, range(JOB.ranks)):
        assert found[rank, "communication"] == eager * 2 * JOB.layers
        assert found[rank, "copies"] == JOB.steps
        assert found[rank, "mixed"] > len(FAMILIES[DECODE]) * len(JOB.graph)


@pytest.mark.campaign
def test_late_launches_block_compute_more_than_communication_does(table, server):
    parts = {row["Part"]: row for row in table("budget", *server, "--by", "step")}
    assert int(parts["iteration"]["Iterations"]) == JOB.ranks * JOB.steps
    share = {name: float(row["Share (%)"].removeprefix("<")) for name, row in parts.items()}
    blocked = {name: value for name, value in share.items() if name.startswith(("blocked", "launch-", "stalled"))}
    assert max(blocked, key=blocked.__getitem__) == "launch-starved" and share["launch-starved"] > 10
    idle = sum(idle for path in server for _, idle in idle_of_each_step(path))
    assert int(parts["GPU idle"]["Total (ns)"]) == idle
    inside = sum(map(time_without_compute_in_graphs, server))  # what runs next there, no launch tells
    assert int(parts["unresolved"]["Total (ns)"]) == pytest.approx(inside, rel=0.01)


@pytest.mark.campaign
def test_triage_names_the_host_the_slow_prefill_and_the_exposed_all_reduces_and_nothing_else(table, server):
    found = triaged(*server)
    assert found.summary.partition("blocked most by ")[2].startswith("late launches")
    assert ids(found) == {"host-bound", "slow-steps", "exposed-communication"}
    bound = finding(found, "host-bound")
    told(bound, "The host bounds decode: ", f"of {JOB.ranks * len(FAMILIES[DECODE])} decode steps")
    starved = [int(row["Launch-starved (ns)"]) for row in table("steps", *server, "--budget") if row["Phase"] == DECODE]
    assert bound.cost == round(sum(starved) / JOB.ranks)
    idle = sum(steps[number][1] for steps in map(idle_of_each_step, server) for number in FAMILIES[DECODE])
    assert 0.7 < bound.cost * JOB.ranks / idle < 1  # the rest of the idle time lies between the kernels of graphs
    told(finding(found, "slow-steps"), f"(number {JOB.slow_step})", "median step of the same phase")
    told(
        finding(found, "exposed-communication"), "100 % of all communication time", f"{2 * JOB.layers} AllReduce a step"
    )


def test_nvlink_is_measured_by_the_responses_user_data_and_no_network_adapter_is(table, server):
    found = {row["Metric"]: float(row["Mean"]) for row in table("metrics", server[0])}
    links = {name: mean for name, mean in found.items() if name.startswith("NVLink")}
    assert set(links) == {f"NVLink {way} Responses User Data [Throughput %]" for way in ("TX", "RX")}
    assert all(mean > 0 for mean in links.values())
    assert not native_count(server[0], "NET_NIC_METRIC")


def test_the_command_writes_it_and_refuses_what_does_not_fit_on_a_host(run, refused, tmp_path):
    words = ("demo", "--server", "--steps", "30", "--write-only", "--directory")
    done = run(*words, tmp_path / "one", "--ranks", "1")
    assert done.out.splitlines() == [str(tmp_path / "one/rank0.sqlite")]
    assert "at most 8 ranks" in refused(*words, tmp_path / "nine", "--ranks", "9")
    assert "at least one rank" in refused(*words, tmp_path / "none", "--ranks", "0")
    assert native_count(tmp_path / "one/rank0.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL") > 0


@pytest.mark.campaign
def test_its_traces_of_the_pytorch_profiler_have_the_same_phases_and_graphs(run, table, tmp_path):
    job = ServingJob(steps=30)
    words = ("demo", "--server", "--form", "kineto", "--steps", job.steps, "--directory", tmp_path / "traces")
    traces = run(*map(str, words), "--write-only").out.splitlines()
    counted = Counter(job.requests(number) for number in range(job.steps))
    expected = [counted[1, 0], counted[0, 24], counted[1, 23]]
    found = {row["Phase"]: int(row["Steps"]) for row in table("steps", *traces, "--phases")}
    assert [found[phase] for phase in (PREFILL, DECODE, MIXED)] == [job.ranks * count for count in expected]
    graphs = {row["CUDA Graph"]: int(row["Instances"]) for row in table("kernels", *traces, "--by", "graph")}
    assert graphs["replayed"] == job.ranks * counted[0, 24] * len(job.graph)
