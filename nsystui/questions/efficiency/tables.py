"""The tables of an efficiency: breakdown by GPU, factors of devices and hosts, MFU."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nsystui.base.answer import DEVICE, FILES_ONLY, Column, Row, TableAnswer, Unit, for_files
from nsystui.questions.efficiency.mfu import Mfu
from nsystui.questions.efficiency.result import Efficiency, Factor, Scalability, Useful, device_factors, host_factors
from nsystui.questions.gpu.device_time import Breakdown, is_unknown, total

EVERYTHING = "all"
"""The rank in the row over all GPUs."""

# Name in ``Breakdown``, key of the columns, headings in files and on screens, importance. The parts cover all time.
_PARTS = (
    ("kernels_only", "compute_only", "Compute only", "compute alone", 0),
    ("nccl_only", "nccl_only", "NCCL only", "NCCL alone", 0),
    ("memory_only", "memory_only", "Memory only", "copies alone", 0),
    ("kernels_nccl", "compute_nccl", "Compute and NCCL", "compute and NCCL", 2),
    ("kernels_memory", "compute_memory", "Compute and Memory", "compute and copies", 4),
    ("nccl_memory", "nccl_memory", "NCCL and Memory", "NCCL and copies", 4),
    ("all_three", "all_three", "Compute, NCCL and Memory", "all three", 4),
    ("graph_only", "graph_only", "Graph only", "graph alone", 0),
    ("idle", "idle", "Idle", "idle", 0),
)
PARTS = tuple(key for key, *_ in _PARTS)
"""The disjoint parts of a GPU's time, complete; names in ``Breakdown``."""
BREAKDOWN_COLUMNS = (
    Column("rank", header="Rank", label="rank"),
    DEVICE.with_importance(4),
    Column("gpu", header="GPU", label="gpu", unit=Unit.NUMBER, importance=5),
    Column("model", header="GPU Model", label="model", importance=6),
    *(
        Column(f"{key}_percent", header=f"{title} (%)", label=label, unit=Unit.PERCENT, decimals=2, importance=level)
        for _, key, title, label, level in _PARTS
    ),
    Column("useful_percent", header="Useful (%)", label="useful", unit=Unit.PERCENT, decimals=2, importance=3),
    *(
        Column(f"{key}_ns", header=f"{title} (ns)", label=label, unit=Unit.DURATION, importance=7)
        for _, key, title, label, _ in _PARTS
    ),
    Column("useful_ns", header="Useful (ns)", label="useful", unit=Unit.DURATION, importance=7),
    Column("communication_ns", header="Communication (ns)", label="communication", unit=Unit.DURATION, importance=7),
    Column("window_ns", header="Window (ns)", label="window", unit=Unit.DURATION, importance=8),
)
_FACTOR = (
    Column("metric", header="Metric", label="metric", importance=FILES_ONLY),
    Column("name", header="Name", label="factor"),
    Column("percent", header="Efficiency (%)", label="efficiency", unit=Unit.PERCENT, decimals=2),
)
_BASELINE = Column("baseline_percent", header="Baseline (%)", label="baseline", unit=Unit.PERCENT, decimals=2)
_WORDS = (
    Column("formula", header="Formula", label="formula", importance=1),
    Column("low", header="Where it is low", label="where it is low", importance=2),
)
MFU_COLUMNS = (
    Column("mfu_percent", header="MFU (%)", label="MFU", unit=Unit.PERCENT, decimals=2),
    Column("ceiling_percent", header="Ceiling (%)", label="ceiling", unit=Unit.PERCENT, decimals=2),
    Column(
        "achieved_tflops", header="Achieved per GPU (TFLOP/s)", label="TFLOP/s per GPU", unit=Unit.COUNT, decimals=2
    ),
    Column("peak_tflops", header="Peak per GPU (TFLOP/s)", label="peak TFLOP/s", unit=Unit.COUNT, decimals=2),
    Column("peak_source", header="Peak from", label="peak from", importance=3),
    Column("step_time", header="Step Time (ns)", label="step time", unit=Unit.DURATION, decimals=1),
    Column("steps", header="Step Times", label="step times", unit=Unit.COUNT, importance=1),
    Column("gpus", header="GPUs", label="GPUs", unit=Unit.NUMBER, importance=1),
    Column(
        "flops_per_step", header="FLOPs per Step", label="FLOPs per step", unit=Unit.NUMBER, decimals=0, importance=2
    ),
)
_OF_REGION: dict[str, dict[str, Any]] = {
    "step_time": {"header": "Range GPU Time (ns)", "label": "range time"},
    "steps": {"header": "Ranges", "label": "ranges"},
    "flops_per_step": {"header": "FLOPs per Range", "label": "FLOPs per range"},
}
_REGION_COLUMNS = (
    *(replace(column, **_OF_REGION.get(column.key, {})) for column in MFU_COLUMNS),
    Column("intensity", header="Intensity (FLOP/B)", label="FLOP/B", unit=Unit.COUNT, decimals=2),
)
"""Columns for a region, with ranges instead of steps."""


def breakdown_table(result: Efficiency) -> TableAnswer:
    """Return a row over all GPUs and a row per GPU: time by use, in percent of the window and ns.

    See docs/numbers.md#gpu-time. The disjoint parts add up to the window, in the first row to all GPUs' windows.
    """
    rows: list[Row] = []
    if result.gpus:
        rows.append((EVERYTHING, None, None, None, *_spent_cells(total(result.spent), result.useful)))
    for gpu, spent in zip(result.gpus, result.spent, strict=True):
        device = gpu.device
        cells = ",".join(map(str, gpu.ranks)), device.device, device.gpu, device.model
        rows.append((*cells, *_spent_cells(spent, result.useful)))
    columns = zip(BREAKDOWN_COLUMNS, zip(*rows, strict=True), strict=False)
    zero = [item.key for item, cells in columns if item.unit is Unit.PERCENT and all(cell == 0 for cell in cells)]
    notes = (*result.notes, *result.device_notes)
    return TableAnswer("breakdown", for_files(BREAKDOWN_COLUMNS, zero), rows, len(rows), notes)


def _spent_cells(spent: Breakdown, useful: Useful) -> Row:
    others = {"useful": useful.time(spent), "moved": useful.moved(spent)}
    parts = [spent.known(key) for key in PARTS]
    useful_time, moved = (None if is_unknown(key, spent.unknown) else time for key, time in others.items())
    percent = [spent.percent(part) for part in (*parts, useful_time)]
    return (*percent, *parts, useful_time, moved, spent.time)


def device_table(result: Efficiency, scaled: Scalability | None = None) -> TableAnswer:
    """Return a row per device factor; with a baseline, also its values, scalability, and global efficiency."""
    factors = device_factors(result.device, scaled) if result.gpus else []
    notes = (*result.notes, *result.device_notes)
    if scaled is None:
        return _factor_table("device", factors, None, notes)
    before = {factor.key: factor.value for factor in device_factors(scaled.baseline.device)}
    return _factor_table("device", factors, before, (*notes, scaled.note))


def host_table(result: Efficiency) -> TableAnswer:
    factors = host_factors(result)
    is_known = any(factor.value is not None for factor in factors)
    return _factor_table("host", factors if is_known else [], None, (*result.notes, *result.host_notes))


def _factor_table(
    name: str, factors: Sequence[Factor], baseline: dict[str, float | None] | None, notes: tuple[str, ...]
) -> TableAnswer:
    rows: list[Row] = []
    for item in factors:
        before = () if baseline is None else (_percent(baseline.get(item.key)),)
        rows.append((item.key, "  " * item.depth + item.name, _percent(item.value), *before, item.formula, item.low))
    return TableAnswer(name, (*_FACTOR, *(() if baseline is None else (_BASELINE,)), *_WORDS), rows, len(rows), notes)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100.0 * value


def mfu_table(result: Mfu) -> TableAnswer:
    """Return one row: the MFU and its parts; notes explain missing parts."""
    peak, source = (None, None) if result.peak is None else (result.peak.tflops, result.peak.source)
    value, ceiling = (None if share is None else 100.0 * share for share in (result.value, result.ceiling))
    measured = (value, ceiling, result.achieved, peak, source, result.step_time, result.intervals, result.gpus)
    row = (*measured, result.request.flops_per_step)
    if result.request.region is None:
        return TableAnswer("mfu", MFU_COLUMNS, [row], 1, result.notes)
    return TableAnswer("mfu", _REGION_COLUMNS, [(*row, result.intensity)], 1, result.notes)
