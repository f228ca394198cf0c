"""The thresholds of triage with unit, default and meaning, which explain a finding with its row in docs/triage.md.

``--set gap_ms=5`` changes a threshold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from typing import Any

from nsystui.base.errors import UsageError, meant

_ANY_COST = 1e-9
"""A minimum cost, %, that any cost above 0 reaches: rules cannot describe a cost of 0."""


def _limit(value: float, meaning: str) -> Any:
    return field(default=value, metadata={"meaning": meaning, "is_least_cost": False})


def _min_cost(value: float, subject: str) -> Any:
    return field(default=value, metadata={"meaning": f"minimum cost of {subject}", "is_least_cost": True})


@dataclass(frozen=True)
class Thresholds:
    """The thresholds: percentages of the job's time, unless the meaning names another whole."""

    straggler_percent: float = _min_cost(3.0, "a straggler to each GPU that waits for it")
    straggler_share: float = _limit(50.0, "minimum share of all waiting that one rank causes, in %, to be a straggler")
    imbalance_percent: float = _min_cost(8.0, "waiting at collectives that no single rank causes")
    gap_ms: float = _limit(1.0, "minimum length of a long idle gap of a GPU, in ms")
    gap_percent: float = _min_cost(5.0, "long idle gaps")
    input_percent: float = _min_cost(5.0, "waiting for the data loader")
    gil_percent: float = _min_cost(3.0, "waiting for Python's GIL")
    read_percent: float = _min_cost(3.0, "waiting for files to be read")
    preempted_percent: float = _min_cost(2.0, "launching threads that have no CPU")
    churn_percent: float = _min_cost(2.0, "allocating and freeing GPU memory after the warm-up")
    churn_calls: float = _limit(10.0, "minimum calls of a process after the warm-up that allocate or free GPU memory")
    exposed_percent: float = _min_cost(10.0, "exposed communication")
    communication_percent: float = _limit(3.0, "hidden communication is reported from this share of the time")
    slow_step: float = _limit(1.5, "minimum length of a slow step, in medians")
    slow_step_percent: float = _min_cost(2.0, "slow steps")
    warm_up_steps: float = _limit(2.0, "the first steps, judged apart")
    warm_up_percent: float = _min_cost(5.0, "warm-up")
    drift_percent: float = _limit(10.0, "how much longer the last third of the steps takes than the first, in %")
    drift_steps: float = _limit(12.0, "minimum number of steps in which a drift shows")
    low_busy_percent: float = _limit(50.0, "maximum busy time of a low stretch (a 30th of the job), in %")
    low_percent: float = _min_cost(10.0, "low-utilisation stretches, without their long gaps")
    small_message_kib: float = _limit(64.0, "upper limit of a small message, in KiB")
    small_message_percent: float = _min_cost(2.0, "small-message collectives")
    launch_percent: float = _min_cost(5.0, "GPUs that wait for launches")
    launch_bound_percent: float = _limit(30.0, "minimum idle time for launches in a launch-bound stretch, in %")
    tiny_kernel_us: float = _limit(10.0, "upper limit of a tiny kernel, in µs")
    context_ms: float = _limit(10.0, "minimum length of a first CUDA call that creates the context, in ms")
    host_memory_percent: float = _min_cost(5.0, "allocating and freeing page-locked host memory")
    start_up_percent: float = _min_cost(20.0, "a start-up")
    tail_percent: float = _min_cost(10.0, "a tail")
    jit_percent: float = _min_cost(3.0, "compilers that run while a GPU is idle")
    first_launch_percent: float = _min_cost(2.0, "first launches of kernels")
    sync_percent: float = _min_cost(3.0, "idle time that begins in a synchronising call")
    copy_percent: float = _min_cost(2.0, "synchronous, or of pageable, memory operations")
    exposed_memory_percent: float = _min_cost(5.0, "memory operations that no kernel hides")
    memory_high: float = _limit(90.0, "memory in use from which a GPU is nearly full, in %")
    memory_full: float = _limit(95.0, "memory in use from which a GPU is full, in %")
    dominant_percent: float = _limit(50.0, "minimum share of one kernel in all kernel time without communication, in %")
    dominant_cost_percent: float = _min_cost(20.0, "a kernel that dominates")
    precision_percent: float = _min_cost(2.0, "FP32 and TF32 where a GPU has faster units")
    layout_percent: float = _min_cost(2.0, "changes of layout")
    unfused_percent: float = _min_cost(5.0, "pointwise kernels that are not fused")
    work_difference_percent: float = _limit(5.0, "how much more a rank must launch than the median rank, in %")
    work_percent: float = _min_cost(5.0, "different work")
    tensor_percent: float = _limit(5.0, "upper limit of low mean tensor activity on a busy GPU, in %")
    mpi_percent: float = _min_cost(5.0, "blocking MPI calls in which a GPU does nothing")
    overhead_percent: float = _min_cost(3.0, "the profiler's own work while a GPU is idle")
    traffic_percent: float = _min_cost(3.0, "host-to-device copies within steps")
    unified_percent: float = _min_cost(2.0, "unified memory's page faults and migrations")
    pace_percent: float = _min_cost(3.0, "kernels that become slower during the run")
    pace_growth: float = _limit(5.0, "minimum slowdown of a kernel from its first to its last third, in %")
    outlier: float = _limit(3.0, "minimum length of an outlier, in medians of its kernel")
    outlier_score: float = _limit(
        3.5, "minimum score of an outlier: 0.6745 · distance from the median / median absolute deviation"
    )
    outlier_percent: float = _min_cost(1.0, "outliers among the launches of a kernel")
    place_percent: float = _min_cost(3.0, "a host, or place in a host, whose GPUs are slow")
    place_slower: float = _limit(5.0, "minimum slowdown of the same kernels there, in %")
    worse_points: float = _limit(2.0, "minimum growth of a worse finding, in % of the baseline's time (of a step)")
    slower_percent: float = _limit(5.0, "minimum growth of a slower step, job or the same work, in %")
    fewest_steps: float = _limit(3.0, "minimum number of steps that are a sample of a job")
    shortest_ms: float = _limit(20.0, "minimum GPU activity that is a sample of a job, in ms")

    def changed(self, settings: Sequence[str]) -> Thresholds:
        """Return thresholds with each ``NAME=VALUE`` set. Raises UsageError for an unknown name or no number."""
        thresholds = {threshold.name: threshold for threshold in fields(self)}
        values: dict[str, float] = {}
        for setting in settings:
            name, sign, text = setting.partition("=")
            if name not in thresholds:
                hint = meant(name, thresholds, f"write NAME=VALUE with a NAME of {', '.join(thresholds)}")
                raise UsageError(f"--set {setting}: there is no threshold {name!r}: {hint}")
            if not sign:
                raise UsageError(f"--set {setting}: write {name}=VALUE")
            least = _ANY_COST if thresholds[name].metadata["is_least_cost"] else 0.0
            values[name] = max(_number(setting, text), least)
        return replace(self, **values)

    def without_least_costs(self) -> Thresholds:
        """Return thresholds whose minimum costs any cost above 0 reaches."""
        names = [threshold.name for threshold in fields(self) if threshold.metadata["is_least_cost"]]
        return replace(self, **dict.fromkeys(names, _ANY_COST))


def _number(setting: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"--set {setting}: {text!r} is not a number of 0 or more")
    return value


def meanings() -> list[tuple[str, float, str]]:
    """Return name, default and meaning of every threshold, in order."""
    return [(item.name, float(str(item.default)), item.metadata["meaning"]) for item in fields(Thresholds)]


_ROW = re.compile(r"^\| `([a-z-]+)` \| (.+?) \|(?: (.+?) \|)?$", re.MULTILINE)
_NAME = re.compile(r"`(\w+)`")
_COST = "time of one GPU, the mean over the GPUs of the job; with steps, from the first one on"


def explanation(name: str, thresholds: Thresholds) -> list[str]:
    """Return the lines that explain a finding. Raises UsageError for an unknown name."""
    rows = explained()
    if name not in rows:
        hint = meant(name, rows, f"write one of {', '.join(sorted(rows))}")
        raise UsageError(f"--explain {name}: there is no finding {name!r}: {hint}")
    meaning, words = rows[name]
    keys = _NAME.findall(words)
    measured = [f"Measured as {_COST}."] * any(key.endswith("_percent") for key in keys)
    limits = [f"   {key} ({getattr(thresholds, key):g}): {text}" for key, _, text in meanings() if key in keys]
    return [f"{name}: {meaning}", *measured, *limits]


def explained() -> dict[str, tuple[str, str]]:
    """Return meaning and measurement of each finding, by name."""
    text = files("nsystui").joinpath("docs", "triage.md").read_text(encoding="utf-8")
    return {name: (meaning, words or "") for name, meaning, words in _ROW.findall(text)}
