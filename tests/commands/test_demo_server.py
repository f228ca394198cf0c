"""The demo's inference server: each command reports the faults in its docstring, with the same numbers."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from support import native, native_count
from update_demo import JOBS

from nsystui.questions.steps.phases import DECODE, MIXED, PREFILL

JOB = JOBS["server"]
FAMILIES = {name: [] for name in (PREFILL, DECODE, MIXED)}
for number in range(JOB.steps):
    prefilled, decoded = JOB.requests(number)
    FAMILIES[MIXED if prefilled and decoded else PREFILL if prefilled else DECODE].append(number)


def gpu_work(path: Path) -> list[list[tuple[int, int]]]:
    """Return the spans of GPU work by step (the range around the launch); the last list has work outside of steps."""
    steps = native(
        path, "SELECT n.start, n.end FROM NVTX_EVENTS n WHERE n.text LIKE '[Executor] _forward_step %' ORDER BY n.start"
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
    """Return each step's time on the GPU, including the wait for its first operation, and the idle part of it, ns."""
    *work, others = gpu_work(path)
    ranges = native(path, "SELECT start FROM NVTX_EVENTS WHERE text LIKE '[Executor] _forward_step %' ORDER BY start")
    begins, reach = [], 0
    for (start,), own in zip(ranges, work, strict=True):
        begins.append(min(min(own)[0], max(start, reach)))
        reach = max(reach, *(end for _, end in own))
    begins.append(max(end for _, end in work[-1]))
    every = sorted(one for own in (*work, others) for one in own)
    found = []
    place = free = 0
    for begin, until in pairwise(begins):
        free, idle = max(begin, free), 0
        while place < len(every) and every[place][0] < until:
            idle += max(every[place][0] - free, 0)
            free = max(free, every[place][1])
            place += 1
        found.append((until - begin, idle + max(until - free, 0)))
    return found


def time_without_compute_in_graphs(path: Path) -> int:
    """Return the time between the compute kernels of each launch of a CUDA graph, ns."""
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
    assert float(decode["GPU Idle (%)"]) > 20 > 10 > float(found[MIXED]["GPU Idle (%)"])
    assert 10 < float(decode["Host Preparation Exposed (%)"]) < 50  # GPU work hides the other part
    assert float(decode["Exposed of Idle (%)"]) > 75


def test_decode_steps_replay_their_graph_with_one_launch_each_and_the_others_launch_all(table, demo_server):
    found = {row["CUDA Graph"]: int(row["Instances"]) for row in table("kernels", *demo_server, "--by", "graph")}
    launches = JOB.ranks * len(FAMILIES[DECODE])
    assert found["replayed"] == sum(len(nodes) for _, nodes in JOB.graph) * launches
    kernels = sum(native_count(path, "CUPTI_ACTIVITY_KIND_KERNEL") for path in demo_server)
    assert found["eager"] == kernels - found["replayed"]
    parts = dict.fromkeys(("model.layers.*.mlp", "model.layers.*.self_attn", "lm_head", "sampler"), 0)
    for name, nodes in JOB.graph:
        parts[re.sub(r"\d+", "*", name)] += len(nodes) * launches
    rows = table("kernels", *demo_server, "--by", "range")
    assert {
        row["NVTX Range"]: int(row["Instances"]) for row in rows if row["Captured or Launched"] == "captured"
    } == parts
    calls = {row["Name"]: int(row["Num Calls"]) for row in table("api", *demo_server)}
    assert calls["cudaGraphLaunch_v10000"] == launches
    attention = Counter[tuple[str, bool]]()
    names = "CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName WHERE value LIKE 'Batch%'"
    for path in demo_server:
        attention.update(native(path, f"SELECT value, graphNodeId IS NOT NULL FROM {names}"))
    eager, mixed = (JOB.ranks * JOB.layers * len(FAMILIES[phase]) for phase in (PREFILL, MIXED))
    assert attention == {
        ("BatchPrefillWithPagedKVCacheKernel", 0): eager + mixed,
        ("BatchDecodeWithPagedKVCacheKernel", 0): mixed,
        ("BatchDecodeWithPagedKVCacheKernel", 1): launches * JOB.layers,
    }


@pytest.mark.campaign
def test_late_launches_block_compute_more_than_communication_does(table, demo_server):
    parts = {row["Part"]: row for row in table("budget", *demo_server, "--by", "step")}
    assert int(parts["iteration"]["Iterations"]) == JOB.ranks * JOB.steps
    share = {name: float(row["Share (%)"].removeprefix("<")) for name, row in parts.items()}
    blocked = {name: value for name, value in share.items() if name.startswith(("blocked", "late ", "stalled"))}
    assert max(blocked, key=blocked.__getitem__) == "late launches" and share["late launches"] > 10
    idle = sum(idle for path in demo_server for _, idle in idle_of_each_step(path))
    assert int(parts["GPU idle"]["Total (ns)"]) == idle
    inside = sum(map(time_without_compute_in_graphs, demo_server))  # other work of the graph may have held a node
    assert sum(int(parts[name]["Total (ns)"]) for name in ("in CUDA graphs", "unresolved")) == pytest.approx(
        inside, rel=0.01
    )
