"""The demo's inference server: what its docstring says is wrong with it, each command says, and in the same numbers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from support import native, native_count
from synthetic.demo.kineto import ENDING, write_trace
from triaging import finding, ids, told, triaged
from update_demo import JOBS

from nsystui.questions.steps.phases import DECODE, MIXED, PREFILL

JOB = JOBS["server"]
FAMILIES = {name: [] for name in (PREFILL, DECODE, MIXED)}
for number in range(JOB.steps):
    prefilled, decoded = JOB.requests(number)
    FAMILIES[MIXED if prefilled and decoded else PREFILL if prefilled else DECODE].append(number)


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
def test_each_phase_has_its_steps_and_the_host_bounds_decoding_alone(table, demo_server):
    found = {row["Phase"]: row for row in table("steps", *demo_server, "--phases")}
    assert {phase: row["Host-bound"] for phase, row in found.items()} == {
        "all": "yes", PREFILL: "no", DECODE: "yes", MIXED: "no"
    }  # fmt: skip
    measured = [idle_of_each_step(path) for path in demo_server]
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
def test_one_prefill_is_slow_on_every_rank(table, demo_server):
    found = {row["Phase"]: int(row["Slow Steps"]) for row in table("steps", *demo_server, "--phases")}
    assert found == {"all": JOB.ranks, PREFILL: JOB.ranks, DECODE: 0, MIXED: 0}
    slow = [row["Step"] for row in table("steps", *demo_server, "--every") if row["Slow"]]
    assert slow == [str(JOB.slow_step)] * JOB.ranks


def test_decode_steps_replay_their_graph_with_one_launch_each_and_the_others_launch_all(table, demo_server):
    found = {row["CUDA Graph"]: int(row["Instances"]) for row in table("kernels", *demo_server, "--by", "graph")}
    launches = JOB.ranks * len(FAMILIES[DECODE])
    assert found["replayed"] == len(JOB.graph) * launches
    kernels = sum(native_count(path, "CUPTI_ACTIVITY_KIND_KERNEL") for path in demo_server)
    assert found["eager"] == kernels - found["replayed"]
    calls = {row["Name"]: int(row["Num Calls"]) for row in table("api", *demo_server)}
    assert calls["cudaGraphLaunch_v10000"] == launches
    attention = Counter[tuple[str, bool]]()
    for path in demo_server:
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
def test_small_all_reduces_are_of_another_library_than_large_ones(table, demo_server):
    found = [row for row in table("nccl", *demo_server, "--by", "backend") if row["What"] == "kernel"]
    decodes = JOB.ranks * len(FAMILIES[DECODE])
    eager = JOB.ranks * (JOB.steps - len(FAMILIES[DECODE]))
    assert {(row["Backend"], row["Collective"]): int(row["Count"]) for row in found} == {
        ("custom all-reduce", "AllReduce"): decodes * 2 * JOB.layers,
        ("NCCL", "several"): decodes + eager * 2 * JOB.layers,
    }
    assert {row["Overlapped (%)"] for row in found} == {"0.0"}


@pytest.mark.campaign
def test_streams_are_of_graphs_and_kernels_of_nccl_and_of_copies(table, demo_server):
    found = {(row["Rank"], row["Kind"]): int(row["Operations"]) for row in table("streams", *demo_server)}
    eager = JOB.steps - len(FAMILIES[DECODE])
    for rank in map(str, range(JOB.ranks)):
        assert found[rank, "communication"] == eager * 2 * JOB.layers
        assert found[rank, "copies"] == JOB.steps
        assert found[rank, "mixed"] > len(FAMILIES[DECODE]) * len(JOB.graph)


@pytest.mark.campaign
def test_late_launches_block_compute_more_than_communication_does(table, demo_server):
    parts = {row["Part"]: row for row in table("budget", *demo_server, "--by", "step")}
    assert int(parts["iteration"]["Iterations"]) == JOB.ranks * JOB.steps
    share = {name: float(row["Share (%)"].removeprefix("<")) for name, row in parts.items()}
    blocked = {name: value for name, value in share.items() if name.startswith(("blocked", "launch-", "stalled"))}
    assert max(blocked, key=blocked.__getitem__) == "launch-starved" and share["launch-starved"] > 10
    idle = sum(idle for path in demo_server for _, idle in idle_of_each_step(path))
    assert int(parts["GPU idle"]["Total (ns)"]) == idle
    inside = sum(map(time_without_compute_in_graphs, demo_server))  # what runs next there, no launch tells
    assert int(parts["unresolved"]["Total (ns)"]) == pytest.approx(inside, rel=0.01)


@pytest.mark.campaign
def test_triage_names_the_host_the_slow_prefill_and_the_exposed_all_reduces_and_nothing_else(table, demo_server):
    found = triaged(*demo_server)
    assert found.summary.partition("blocked most by ")[2].startswith("late launches")
    assert ids(found) == {"host-bound", "slow-steps", "exposed-communication"}
    bound = finding(found, "host-bound")
    told(bound, "The host bounds decode: ", f"of {JOB.ranks * len(FAMILIES[DECODE])} decode steps")
    starved = [
        int(row["Launch-starved (ns)"]) for row in table("steps", *demo_server, "--budget") if row["Phase"] == DECODE
    ]
    assert bound.cost == round(sum(starved) / JOB.ranks)
    idle = sum(steps[number][1] for steps in map(idle_of_each_step, demo_server) for number in FAMILIES[DECODE])
    assert 0.7 < bound.cost * JOB.ranks / idle < 1  # the rest of the idle time lies between the kernels of graphs
    told(finding(found, "slow-steps"), f"(number {JOB.slow_step})", "median step of the same phase")
    told(
        finding(found, "exposed-communication"), "100 % of all communication time", f"{2 * JOB.layers} AllReduce a step"
    )


def test_nvlink_is_measured_by_the_responses_user_data_and_no_network_adapter_is(table, demo_server):
    found = {row["Metric"]: float(row["Mean"]) for row in table("metrics", demo_server[0])}
    links = {name: mean for name, mean in found.items() if name.startswith("NVLink")}
    assert set(links) == {f"NVLink {way} Responses User Data [Throughput %]" for way in ("TX", "RX")}
    assert all(mean > 0 for mean in links.values())
    assert not native_count(demo_server[0], "NET_NIC_METRIC")


@pytest.mark.campaign
def test_its_traces_of_the_pytorch_profiler_have_the_same_phases_and_graphs(table, demo_server, tmp_path):
    traces = [tmp_path / f"{path.stem}{ENDING}" for path in demo_server]
    for export, trace in zip(demo_server, traces, strict=True):
        write_trace(export, trace)
    found = {row["Phase"]: int(row["Steps"]) for row in table("steps", *traces, "--phases")}
    assert {phase: found[phase] for phase in FAMILIES} == {
        phase: JOB.ranks * len(numbers) for phase, numbers in FAMILIES.items()
    }
    graphs = {row["CUDA Graph"]: int(row["Instances"]) for row in table("kernels", *traces, "--by", "graph")}
    assert graphs["replayed"] == JOB.ranks * len(FAMILIES[DECODE]) * len(JOB.graph)
