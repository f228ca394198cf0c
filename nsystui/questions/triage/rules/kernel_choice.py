"""Kernels that another choice would avoid: precision, changes of layout, pointwise kernels that are not fused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, DURATION, RANK, START, STREAM, Column, TableAnswer, Unit
from nsystui.base.kernel_families import ATTENTION, CONVOLUTION, COPY, ELEMENTWISE, GEMM
from nsystui.base.selection import Selection, Task
from nsystui.questions.queries.conditions import duration, job_end, job_start, where
from nsystui.questions.stats.cuda_sums import NO_RANGE, LaunchRanges
from nsystui.questions.triage.case import Case, number_of, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import NameWork, by_framework, kernel_mix, mix_table, shares
from nsystui.questions.triage.rule import BY_COMPUTE, FindingKind, rule
from nsystui.store import tables

_ARITHMETIC = (GEMM, CONVOLUTION, ATTENTION)
_FASTER = (
    (r"GB[12]00|GB10[02]|\bB[123]00", "BF16", {"TF32": 2.0, "FP32": 28.0}),
    (r"\bH20\b", "BF16", {"TF32": 2.0, "FP32": 3.4}),
    (r"GeForce RTX [345]0|A10G\b|\bL(?:20|40)\b", "BF16", {"TF32": 2.0, "FP32": 2.0}),
    (r"GeForce RTX 20", "FP16", {"FP32": 4.0}),
    (r"GH100|GH200|\bH[128]00", "BF16", {"TF32": 2.0, "FP32": 14.8}),
    (r"GA100|A100|\bA30\b|A800", "BF16", {"TF32": 2.0, "FP32": 16.0}),
    (r"GA10\d|AD10\d|GB20\d|\bA(?:2|10|16|40)\b|\bL(?:4|40S)\b|RTX A\d", "BF16", {"TF32": 2.0, "FP32": 4.0}),
    (r"GV100|V100|TU10\d|\bT4\b", "FP16", {"FP32": 8.0}),
    (r"^(?=.*(?:sm(?:8\d|9\d|1\d\d)_|ampere|hopper|tf32))", "BF16", {"TF32": 2.0, "FP32": 16.0}),
)
"""Pattern of a GPU (its name or chip, else a kernel built for it), the faster precision, how many times its peak is."""


@rule(
    250,
    reads=frozenset({"kernels", "devices"}),
    finds={"precision": FindingKind("work in FP32 or TF32", parts=BY_COMPUTE)},
)
def precision(case: Case) -> Sequence[Finding | NotChecked]:
    """Matrix products, convolutions, attention in FP32 or TF32 on GPUs that are faster in BF16 or FP16.

    The cost is an upper limit: the time saved if each such kernel sped up by the ratio of the two peaks. The ratios are
    those of dense peaks in NVIDIA's data sheets (see docs/numbers.md#kernel-families).
    """
    mix = kernel_mix(case)
    works = [one for one in mix if one.family in _ARITHMETIC]
    slow = [one for one in works if one.precision in ("TF32", "FP32")]
    if not slow or case.percent(case.mean(one.time for one in slow)) < case.thresholds.precision_percent:
        return []
    gpu, faster, factors = _faster(case, slow)
    if not faster:
        return [NotChecked("precision", "needs the names of the GPUs: without them the faster precision is not known")]
    slow = [one for one in slow if one.precision in factors]
    cost = case.mean(one.time * (1.0 - 1.0 / factors[str(one.precision)]) for one in slow)
    share = case.percent(cost)
    if not slow or share < case.thresholds.precision_percent:
        return []
    how = by_framework(case, f"Do this work in {faster}", pytorch=f"Let torch.autocast do this work in {faster}")
    advice = Advice(
        f"{how}, or store the data in {faster}, where accuracy allows.",
        f"The peak of {faster} on {gpu} is {_times(factors, slow)}; memory-bound kernels gain less.",
    )
    measured = "Upper limit of what the ratio of the peaks would save of the time of these kernels. Mean over the GPUs."
    severity, evidence = Severity.WARNING, mix_table("precision", slow)
    sentence = _sentence(case, mix, works, slow, cost)
    return [
        Finding(
            "precision", severity, sentence, advice, Door("kernels", by="precision"), cost, share, measured, evidence
        )
    ]


def _faster(case: Case, works: Sequence[NameWork]) -> tuple[str, str, dict[str, float]]:
    """The GPU, its faster precision, and the factors by which that is faster; empty where the GPU is not known."""
    table = tables.devices
    named = [(str(name or chip), f"{chip} {name}") for name, chip in case.job.session.rows(
        sa.select(table.c.name, table.c.chip).distinct().order_by(table.c.name, table.c.chip)
    )]  # fmt: skip
    for gpu, text in named or [("this GPU", one.name) for one in works]:
        for pattern, faster, factors in _FASTER:
            if re.search(pattern, text):
                return gpu, faster, factors
    return "", "", {}


def _times(factors: dict[str, float], works: Sequence[NameWork]) -> str:
    known = [one for one in factors if any(work.precision == one for work in works)]
    return " and ".join(f"{factors[one]:g} times that of {one}" for one in known)


def _sentence(
    case: Case, mix: Sequence[NameWork], works: Sequence[NameWork], slow: Sequence[NameWork], cost: int
) -> str:
    whole = sum(one.time for one in mix)

    def percent(own: Sequence[NameWork]) -> str:
        return f"{100 * sum(one.time for one in own) / whole:.0f} %"

    def of(precision: str) -> str:
        own = [one for one in slow if one.precision == precision]
        kinds = [word for word, share in shares(own, lambda one: one.family) if share >= 1.0]
        return f"{percent(own)} is {precision} {' and '.join(kinds)}"

    parts = [of(word) for word, share in shares(slow, lambda one: str(one.precision)) if share >= 1.0]
    half = [one for one in works if one.precision not in ("TF32", "FP32", "FP64", None)]
    other = f"{percent(half)} is the same work in fewer bits" if half else "no FP16 or BF16 kernel does this work"
    unnamed = [one for one in works if one.precision is None]
    hidden = f" The precision of {percent(unnamed)} is not known." if percent(unnamed) != percent([]) else ""
    limit = f"{case.each_gpu} could save up to {time_words(cost)} with a faster precision."
    return f"Of the kernel time, {', '.join(parts)}; {other}.{hidden} {limit}"


_CHANNELS = re.compile("nchw_?to_?nhwc|nhwc_?to_?nchw", re.IGNORECASE)
_LAYOUT = re.compile(f"{_CHANNELS.pattern}|transpose|permute", re.IGNORECASE)
_FILTER = f"/{_LAYOUT.pattern}/"


@rule(
    260,
    reads=frozenset({"kernels"}),
    finds={"layout-changes": FindingKind("tensor layout changes", parts=BY_COMPUTE)},
)
def layout_changes(case: Case) -> Sequence[Finding]:
    """Kernels that only change the layout of tensors: between NCHW and NHWC around convolutions, and transposes."""
    mix = kernel_mix(case)
    found = [one for one in mix if one.family == COPY and _LAYOUT.search(one.name)]
    cost = case.mean(one.time for one in found)
    share = case.percent(cost)
    if not found or share < case.thresholds.layout_percent:
        return []
    channels = sum(one.time for one in found if _CHANNELS.search(one.name))
    is_of_channels = 2 * channels >= sum(one.time for one in found)
    words = "between NCHW and NHWC" if is_of_channels else "(transposes)"
    of_kernels = 100 * sum(one.time for one in found) / sum(one.time for one in mix)
    launches = number_of(sum(one.launches for one in found), "launch")
    sentence = (
        f"{case.each_gpu} spends {time_words(cost)} on layout changes {words}, {of_kernels:.0f} % of kernel time "
        f"({launches})."
    )
    if is_of_channels:
        layout = by_framework(case, "NHWC", pytorch="channels_last (channels_last_3d)")
        advice = Advice(
            f"Keep model and inputs in one layout: {layout}.",
            "Tensor cores convolve NHWC, so cuDNN converts every NCHW tensor and converts the result back.",
        )
    else:
        advice = Advice(
            "Let the next kernel read the transposed tensor (a GEMM takes either order), or store the tensor that way.",
            "A transpose only moves data.",
        )
    measured = "Sum of the durations of these kernels (by name): an upper limit. Mean over the GPUs."
    door, evidence = Door("kernels", filter=_FILTER), mix_table("layout-changes", found)
    return [Finding("layout-changes", Severity.WARNING, sentence, advice, door, cost, share, measured, evidence)]


_LOOKED_AT = 40
_MOST_LAUNCHES = 2_000_000
"""With more kernels the launches are not read for the name of a range."""
_SUMS = 4
"""The rows of the longest chains begin with so many sums over all chains."""
_COLUMNS = (
    RANK,
    DEVICE.with_importance(1),
    STREAM.with_importance(1),
    START,
    DURATION,
    Column("kernels", header="Kernels", label="kernels", unit=Unit.COUNT),
    Column("idle", header="Idle (ns)", label="idle", unit=Unit.DURATION, importance=1),
    Column("saved", header="Saved at Most (ns)", label="saved at most", unit=Unit.DURATION),
)


class _Chain(NamedTuple):
    rank: int | None
    device: int
    stream: int
    start: int
    duration: int
    kernels: int
    idle: int
    saved: int


@rule(
    270,
    reads=frozenset({"kernels", "nvtx_ranges"}),
    finds={"unfused-kernels": FindingKind("unfused pointwise kernels", parts=BY_COMPUTE)},
)
def unfused_kernels(case: Case) -> Sequence[Finding | NotChecked]:
    """Chains of pointwise kernels that could be one kernel: of an eager program, of an optimizer that is not fused.

    A chain is two or more such kernels of a stream with nothing between them but gaps below `tiny_kernel_us`. A chain
    ends where a kernel repeats on the same grid: that may be the next iteration of a loop, which needs the results of
    this iteration. Kernels of one grid work on tensors of one size, and fused take at least as long as the longest:
    the rest of the chain is the upper limit of what fusing saves. Multi-tensor kernels are fused already.
    """
    works = [one for one in kernel_mix(case) if _is_pointwise(one)]
    if not works or case.percent(case.mean(one.time for one in works)) < case.thresholds.unfused_percent / 2:
        return []  # cheaper than to put every launch in order
    chains = _chains(case, works)
    sums = [sa.cast(sa.func.sum(chains.c[key]).over(), sa.BigInteger) for key in ("saved", "kernels", "idle")]
    keys = ("report", "process", "first", *(column.key for column in _COLUMNS[1:]))
    longest = sa.select(*sums, sa.func.count().over(), *(chains.c[key] for key in keys))
    found = case.job.session.rows(longest.order_by(chains.c.saved.desc(), chains.c.start).limit(_LOOKED_AT))
    saved, kernels, idle, count = found[0][:_SUMS] if found else (0, 0, 0, 0)
    cost = case.mean([saved])
    share = case.percent(cost)
    if not saved or share < case.thresholds.unfused_percent:
        return []
    worst = [row[_SUMS:] for row in found]
    name = _range(case, worst)
    place = f" Most of the longest chains are in NVTX range `{name}`." if name else ""
    sentence = (
        f"{kernels:,} pointwise kernels run in {number_of(count, 'back-to-back chain')} of different kernels."
        f"{place} {case.each_gpu} could save up to {time_words(cost)}, {time_words(case.mean([idle]))} of it idle "
        "time, if each chain had one kernel for each grid."
    )
    is_optimizer = "optim" in name.lower() or any("addcdiv" in one.name for one in works)
    optimizer = "a fused or foreach optimizer (torch.optim.Adam(fused=True)) and " if is_optimizer else ""
    advice = Advice(
        by_framework(
            case,
            "Write one kernel in place of the elementwise kernels of a chain that work on the same tensors.",
            pytorch=f"Use {optimizer}torch.compile, or fused operators.",
            jax="Put the whole step under one jax.jit, so that XLA fuses these kernels.",
        ),
        "Each of these kernels reads and writes whole tensors; a fused kernel reads and writes them once.",
    )
    measured = (
        "Time of chains of two or more different pointwise kernels of a stream, with gaps below "
        f"{case.thresholds.tiny_kernel_us:g} µs. The longest kernel of each grid of a chain is left out. This is an "
        "upper limit. Mean over the GPUs."
    )
    rows = [_Chain(case.rank_of.get(Task(report, process)), *others) for report, process, _, *others in worst]
    door, evidence = Door("kernels", by="family"), TableAnswer("unfused-kernels", _COLUMNS, rows, len(rows))
    return [Finding("unfused-kernels", Severity.WARNING, sentence, advice, door, cost, share, measured, evidence)]


def _is_pointwise(one: NameWork) -> bool:
    """Whether a kernel computes each element from the elements at the same place, as casts do."""
    if "multi_tensor" in one.name:
        return False
    return one.family == ELEMENTWISE or (one.family == COPY and "copy_kernel" in one.name)


def _chains(case: Case, works: Sequence[NameWork]) -> sa.Subquery:
    """The chains: place and first row, start, duration, kernels, idle time, and what fusing saves at most."""
    columns = tables.kernels.c
    names = [(one.name,) for one in works]
    own = sa.select(sa.values(sa.column("name", sa.String), name="given").data(names)).cte("pointwise")
    place = ("report", "process", "device", "stream")

    def in_order(of: sa.Subquery, value: sa.Function[Any], until_here: bool = False) -> sa.ColumnElement[Any]:
        rows = (None, 0) if until_here else None
        return value.over(partition_by=[of.c[key] for key in place], order_by=[of.c.start, of.c.row], rows=rows)

    kernels = (
        sa.select(
            *(columns[key] for key in place), columns.row, job_start(tables.kernels).label("start"),
            job_end(tables.kernels).label("end"), duration(tables.kernels).label("time"),
            sa.func.coalesce(columns.name, "").label("name"),
            sa.func.coalesce(columns.name, "").in_(sa.select(own.c.name)).label("is_own"),
            sa.func.concat_ws(" ", columns.grid_x, columns.grid_y, columns.grid_z).label("grid"),
        ).where(*where(tables.kernels, case.chosen), columns.end.is_not(None))
    ).subquery("launches")  # fmt: skip
    last_end, last_own = (in_order(kernels, sa.func.lag(kernels.c[key])) for key in ("end", "is_own"))
    goes_on = sa.and_(last_own, kernels.c.start - last_end < round(case.thresholds.tiny_kernel_us * 1e3))
    ordered = sa.select(*kernels.c, sa.func.coalesce(goes_on, sa.false()).label("goes_on")).subquery("ordered")
    begun = in_order(ordered, sa.func.sum(sa.case((ordered.c.goes_on, 0), else_=1)), until_here=True)
    of_chain = sa.select(*ordered.c, begun.label("number")).subquery("of_chain")
    again = sa.func.row_number().over(
        partition_by=[of_chain.c[key] for key in (*place, "number", "name", "grid")],
        order_by=[of_chain.c.start, of_chain.c.row],
    )
    counted = sa.select(*of_chain.c, again.label("again")).where(of_chain.c.is_own).subquery("counted")
    iteration = sa.func.max(counted.c.again).over(
        partition_by=[counted.c[key] for key in (*place, "number")],
        order_by=[counted.c.start, counted.c.row],
        rows=(None, 0),
    )
    each = sa.select(*counted.c, iteration.label("iteration")).subquery("each")
    parts = (*place, "number", "iteration")

    def grouped(of: sa.Subquery, kernels: sa.ColumnElement[Any], *by: str) -> sa.Select[Any]:
        keys = [of.c[key] for key in (*parts, *by)]
        first = [sa.func.min(of.c[key]).label(key) for key in ("start", "row")]
        times = [sa.func.sum(of.c.time).label("time"), sa.func.max(of.c.time).label("longest")]
        end = sa.func.max(of.c.end).label("end")
        return sa.select(*keys, *first, end, *times, kernels.label("kernels")).group_by(*keys)

    by_name = grouped(each, sa.func.count(), "grid", "name").subquery("by_name")
    grids = grouped(by_name, sa.func.sum(by_name.c.kernels), "grid").subquery("grids")
    keys = [grids.c[key] for key in parts]
    span, kernels_of = sa.func.max(grids.c.end) - sa.func.min(grids.c.start), sa.func.sum(grids.c.kernels)
    return (
        sa.select(
            *keys, sa.func.min(grids.c.row).label("first"), sa.func.min(grids.c.start).label("start"),
            span.label("duration"), kernels_of.label("kernels"),
            sa.func.greatest(span - sa.func.sum(grids.c.time), 0).label("idle"),
            sa.func.greatest(span - sa.func.sum(grids.c.longest), 0).label("saved"),
        ).group_by(*keys).having(kernels_of > 1)
    ).subquery("chains")  # fmt: skip


def _range(case: Case, chains: Sequence[tuple[Any, ...]]) -> str:
    """The innermost NVTX range that launched most of these chains; empty where there is none, or many launches."""
    reports, rows = (np.array([chain[place] for chain in chains], np.int64) for place in (0, 2))
    part = case.job.session.part(sorted(set(reports.tolist())))
    if part.count(tables.kernels) > _MOST_LAUNCHES:
        return ""
    ranges = LaunchRanges.find(part, Selection(tasks=case.chosen.tasks))
    code, count = Counter(ranges.of(reports, rows).tolist()).most_common(1)[0]
    return "" if code == NO_RANGE or 2 * count <= len(chains) else ranges.texts[code]
