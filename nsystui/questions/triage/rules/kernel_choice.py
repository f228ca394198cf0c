"""Kernels that another choice would avoid: precision, layout changes, unfused pointwise kernels."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, DURATION, RANK, START, STREAM, Column, Row, Unit
from nsystui.base.kernel_families import ATTENTION, CONVOLUTION, COPY, ELEMENTWISE, GEMM
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted
from nsystui.base.types import Array, Flags
from nsystui.questions.blocking.dependencies import NONE
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.queries.time_index import TimeIndex
from nsystui.questions.queries.time_window import report_at
from nsystui.questions.triage.case import MIX_COLUMNS, Case, NameWork, by_framework, kernel_mix, shares, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked
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
"""Pattern of a GPU (name or chip, else a kernel built for it), faster precision, and its peak over slower peaks."""


@rule(250, frozenset({"kernels", "devices"}), FindingKind("precision", "work in FP32 or TF32", BY_COMPUTE))
def precision(case: Case) -> Sequence[Finding | NotChecked]:
    """Find matrix products, convolutions and attention in FP32 or TF32 on GPUs that are faster in BF16 or FP16.

    The cost is an upper limit: the time saved if each kernel sped up by the ratio of the two dense peaks in NVIDIA's
    data sheets (see docs/numbers.md#kernel-families).
    """
    mix = kernel_mix(case)
    works = [work for work in mix if work.family in _ARITHMETIC]
    slow = [work for work in works if work.precision in ("TF32", "FP32")]
    if not slow or case.percent(case.mean(work.time for work in slow)) < case.thresholds.precision_percent:
        return []
    gpu, faster, factors = _faster(case, slow)
    if not faster:
        return [NotChecked("precision", "needs the names of the GPUs: without them the faster precision is not known")]
    slow = [work for work in slow if work.precision in factors]
    cost = case.mean(work.time * (1.0 - 1.0 / factors[str(work.precision)]) for work in slow)
    if not slow or case.percent(cost) < case.thresholds.precision_percent:
        return []
    how = by_framework(case, f"Do this work in {faster}", pytorch=f"Let torch.autocast do this work in {faster}")
    slow_precisions = [name for name in factors if any(work.precision == name for work in slow)]
    times = " and ".join(f"{factors[name]:g} times that of {name}" for name in slow_precisions)
    advice = Advice(
        f"{how}, or store the data in {faster}, where accuracy allows.",
        f"The peak of {faster} on {gpu} is {times}; memory-bound kernels gain less.",
    )
    measured = "Upper limit of what the ratio of the peaks would save of the time of these kernels. Mean over the GPUs."
    sentence = _sentence(case, sum(work.time for work in mix), works, slow, cost)
    door, evidence = Door("kernels", by="precision"), (MIX_COLUMNS, slow)
    return [case.finding("precision", sentence, advice, door, cost, measured, evidence)]


def _faster(case: Case, works: Sequence[NameWork]) -> tuple[str, str, dict[str, float]]:
    """Return the GPU, its faster precision, and its factors over slower precisions; empty if unknown."""
    table = tables.devices
    gpus = [(str(name or chip), f"{chip} {name}") for name, chip in case.job.session.rows(
        sa.select(table.c.name, table.c.chip).distinct().order_by(table.c.name, table.c.chip)
    )]  # fmt: skip
    for gpu, text in gpus or [("this GPU", work.name) for work in works]:
        for pattern, faster, factors in _FASTER:
            if re.search(pattern, text):
                return gpu, faster, factors
    return "", "", {}


def _sentence(case: Case, total: int, works: Sequence[NameWork], slow: Sequence[NameWork], cost: int) -> str:
    def percent(part: Sequence[NameWork]) -> str:
        return f"{100 * sum(work.time for work in part) / total:.0f} %"

    parts: list[str] = []
    for word in (word for word, share in shares(slow, lambda work: str(work.precision)) if share >= 1.0):
        part = [work for work in slow if work.precision == word]
        kinds = [kind for kind, share in shares(part, lambda work: work.family) if share >= 1.0]
        parts.append(f"{percent(part)} of {'it' if parts else 'the kernel time'} is {word} {' and '.join(kinds)}")
    half = [work for work in works if work.precision not in ("TF32", "FP32", "FP64", None)]
    other = f"{percent(half)} is the same work in fewer bits" if half else "no FP16 or BF16 kernel does this work"
    unnamed = [work for work in works if work.precision is None]
    hidden = f" The precision of {percent(unnamed)} is not known." if percent(unnamed) != percent([]) else ""
    limit = f"{case.each_gpu} could save up to {time_words(cost)} with a faster precision."
    return f"{', '.join(parts)}; {other}.{hidden} {limit}"


_CHANNELS = re.compile("nchw_?to_?nhwc|nhwc_?to_?nchw", re.IGNORECASE)
_LAYOUT = re.compile(f"{_CHANNELS.pattern}|transpose|permute", re.IGNORECASE)
_FILTER = f"/{_LAYOUT.pattern}/"
_TRANSPOSES = Advice(
    "Let the next kernel read the transposed tensor (a GEMM takes either order), or store the tensor that way.",
    "A transpose only moves data.",
)


@rule(260, frozenset({"kernels"}), FindingKind("layout-changes", "tensor layout changes", BY_COMPUTE))
def layout_changes(case: Case) -> Sequence[Finding]:
    """Find kernels that only change tensor layouts: NCHW to NHWC and back, and transposes."""
    mix = kernel_mix(case)
    works = [work for work in mix if work.family == COPY and _LAYOUT.search(work.name)]
    cost = case.mean(work.time for work in works)
    if not works or case.percent(cost) < case.thresholds.layout_percent:
        return []
    channels = sum(work.time for work in works if _CHANNELS.search(work.name))
    is_channels = 2 * channels >= sum(work.time for work in works)
    words = "between NCHW and NHWC" if is_channels else "(transposes)"
    kernel_share = 100 * sum(work.time for work in works) / sum(work.time for work in mix)
    launches = counted(sum(work.launches for work in works), "launch")
    sentence = (
        f"{case.each_gpu} spends {time_words(cost)} on layout changes {words}, {kernel_share:.0f} % of kernel time "
        f"({launches})."
    )
    advice = _TRANSPOSES
    if is_channels:
        layout = by_framework(case, "NHWC", pytorch="channels_last (channels_last_3d)")
        reason = "Tensor cores convolve NHWC, so cuDNN converts every NCHW tensor and converts the result back."
        advice = Advice(f"Keep model and inputs in one layout: {layout}.", reason)
    measured = "Sum of the durations of these kernels (by name): an upper limit. Mean over the GPUs."
    door, evidence = Door("kernels", filter=_FILTER), (MIX_COLUMNS, works)
    return [case.finding("layout-changes", sentence, advice, door, cost, measured, evidence)]


_MAX_CHAINS = 40
_MAX_KERNELS = 2_000_000
"""The maximum number of kernels whose launches are read to name a range."""
_KERNEL_BYTES = 900
"""Bytes per kernel in the search for chains."""
_STREAM = ("report", "process", "device", "context", "stream")
_CHAIN = ("report", "process", "row", "device", "stream", "start", "duration", "kernels", "idle", "saved")
_COLUMNS = (
    RANK, DEVICE.with_importance(1), STREAM.with_importance(1), START, DURATION,
    Column("kernels", header="Kernels", label="kernels", unit=Unit.COUNT),
    Column("idle", header="Idle (ns)", label="idle", unit=Unit.DURATION, importance=1),
    Column("saved", header="Saved at Most (ns)", label="saved at most", unit=Unit.DURATION),
)  # fmt: skip


_UNFUSED = "unfused-kernels"


@rule(270, frozenset({"kernels", "nvtx_ranges"}), FindingKind(_UNFUSED, "unfused pointwise kernels", BY_COMPUTE))
def unfused_kernels(case: Case) -> Sequence[Finding | NotChecked]:
    """Find chains of pointwise kernels that could be one kernel (docs/triage.md#steps-and-kernels)."""
    works = [work for work in kernel_mix(case) if _is_pointwise(work)]
    if not works or case.percent(case.mean(work.time for work in works)) < case.thresholds.unfused_percent / 2:
        return []  # cheaper than sorting every launch
    max_gap, compute = round(case.thresholds.tiny_kernel_us * 1e3), partial(_summed, case, works)
    rows = of_all_reports(case.job.session, case.scope, tables.kernels, f"unfused {max_gap}", compute)
    (saved, kernels, idle, count), *chains = rows
    worst = [(*row[:5], row[5] + report_at(case.job.session, row[0]).clock_offset, *row[6:]) for row in chains]
    cost = case.mean([saved])
    if not saved or case.percent(cost) < case.thresholds.unfused_percent:
        return []
    name = _range(case, worst)
    text = f" Most of the longest chains are in NVTX range `{name}`." * bool(name)
    sentence = (
        f"{kernels:,} pointwise kernels run in {counted(count, 'back-to-back chain')} of different kernels."
        f"{text} {case.each_gpu} could save up to {time_words(cost)}, {time_words(case.mean([idle]))} of it idle "
        "time, if each chain had one kernel for each grid."
    )
    is_optimizer = "optim" in name.lower() or any("addcdiv" in work.name for work in works)
    optimizer = "a fused or foreach optimizer (torch.optim.Adam(fused=True)) and " * is_optimizer
    advice = Advice(
        by_framework(
            case,
            "Write one kernel instead of the elementwise kernels of a chain that work on the same tensors.",
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
    shown: list[Row] = [(case.rank_of.get(Task(report, process)), *others) for report, process, _, *others in worst]
    door, line = Door("kernels", by="family"), f"{kernels:,} pointwise kernels in {counted(count, 'chain')}"
    return [case.finding(_UNFUSED, sentence, advice, door, cost, measured, (_COLUMNS, shown), line=line)]


def _is_pointwise(work: NameWork) -> bool:
    """Return whether a kernel computes each element from elements at the same index, as casts do."""
    is_copy = work.family == COPY and "copy_kernel" in work.name
    return "multi_tensor" not in work.name and (work.family == ELEMENTWISE or is_copy)


def _summed(case: Case, works: Sequence[NameWork]) -> list[Row]:
    """Return saved time, kernels, idle time and number of chains; then the worst chains on their own clocks."""
    totals = np.zeros(4, np.int64)
    worst: list[tuple[int, ...]] = []
    for chains in _chains(case, works):
        totals += [*(chains[key].sum() for key in ("saved", "kernels", "idle")), len(chains["saved"])]
        longest = np.lexsort((chains["start"], -chains["saved"]))[:_MAX_CHAINS]
        worst += zip(*(chains[key][longest].tolist() for key in _CHAIN), strict=True)
        worst = sorted(worst, key=lambda chain: (-chain[-1], chain[5]))[:_MAX_CHAINS]
    offsets = [report_at(case.job.session, row[0]).clock_offset for row in worst]
    local = ((*row[:5], row[5] - offset, *row[6:]) for row, offset in zip(worst, offsets, strict=True))
    return [tuple(totals.tolist()), *local]


def _chains(case: Case, works: Sequence[NameWork]) -> Iterator[dict[str, Array]]:
    """Yield portions of chains: GPU, stream, first row, start, duration, kernels, idle time, and time saved at most.

    The last run of each stream waits for the next portion, unless together these runs exceed a portion.
    """
    at_once = case.job.session.limits.rows_at_once(_KERNEL_BYTES)
    max_gap, waiting = round(case.thresholds.tiny_kernel_us * 1e3), dict[str, Array]()
    for launches in _launches(case, works, at_once):
        rows = {key: np.concatenate((waiting[key], values)) if waiting else values for key, values in launches.items()}
        order = np.lexsort([rows[key] for key in ("row", "start", *reversed(_STREAM))])
        rows = {key: values[order] for key, values in rows.items()}
        is_pointwise = rows["kernel"] > 0
        is_new_stream = np.any([np.diff(rows[key]) != 0 for key in _STREAM], axis=0)
        continues = ~is_new_stream & is_pointwise[:-1] & (rows["start"][1:] - rows["end"][:-1] < max_gap)
        rows["run"] = np.concatenate(([0], np.cumsum(~continues)))
        may_continue = np.isin(rows["run"], rows["run"][np.append(is_new_stream, True) & is_pointwise])
        may_continue &= may_continue.sum() <= at_once
        waiting = {key: rows[key][may_continue] for key in launches}
        yield _of_runs({key: values[is_pointwise & ~may_continue] for key, values in rows.items()})
    if waiting:
        is_new = np.any([np.diff(waiting[key], prepend=NONE) != 0 for key in _STREAM], axis=0)
        yield _of_runs({**waiting, "run": np.cumsum(is_new)})


def _launches(case: Case, works: Sequence[NameWork], at_once: int) -> Iterator[dict[str, Array]]:
    """Yield all kernels in portions by time; ``kernel``: the number of a pointwise kernel's name, else 0."""
    table, columns = tables.kernels, tables.kernels.c
    names = [(name, number) for number, name in enumerate(sorted({work.name for work in works}), 1)]
    given = sa.values(sa.column("name", sa.String), sa.column("number", sa.BigInteger), name="pointwise").data(names)
    query = (
        sa.select(
            *(sa.func.coalesce(columns[key], NONE).label(key) for key in _STREAM), columns.row,
            job_start(table).label("start"), job_end(table).label("end"),
            sa.func.coalesce(given.c.number, 0).label("kernel"),
            sa.func.hash(columns.grid_x, columns.grid_y, columns.grid_z).label("grid"),
        )
        .select_from(table.outerjoin(given, sa.func.coalesce(columns.name, "") == given.c.name))
        .where(*where(table, case.scope), columns.end.is_not(None))
    )  # fmt: skip
    index = TimeIndex.of_table(case.job.session, table, sa.select(table).where(*where(table, case.scope)))
    edges = np.append(np.searchsorted(index.before, np.arange(0, index.rows, at_once)), index.bins)
    for first, last in pairwise(np.unique(edges).tolist()):
        batch = case.job.session.arrays(query.where(*index.within(first, last)(table)))
        if len(batch["row"]):
            yield {key: np.ma.getdata(values) for key, values in batch.items()}


def _of_runs(rows: dict[str, Array]) -> dict[str, Array]:
    count, times = len(rows["run"]), rows["end"] - rows["start"]
    if not count:
        return dict.fromkeys(_CHAIN, rows["run"])
    order = np.lexsort((rows["grid"], rows["kernel"], rows["run"]))
    is_first = _changes(rows[key][order] for key in ("run", "kernel", "grid"))
    repeats = np.empty(count, np.int64)
    repeats[order] = np.arange(count) - np.maximum.accumulate(np.where(is_first, np.arange(count), 0))
    # The iteration is the highest count of earlier repeats up to this kernel in the run.
    chain = np.cumsum(_changes([np.maximum.accumulate((rows["run"] << 32) + repeats)])) - 1
    kernels = np.bincount(chain)
    is_chain = kernels[chain] > 1
    if not is_chain.any():
        return dict.fromkeys(_CHAIN, rows["run"][:0])
    rows, times, chain = {key: values[is_chain] for key, values in rows.items()}, times[is_chain], chain[is_chain]
    firsts = np.flatnonzero(_changes([chain]))
    columns = {key: rows[key][firsts] for key in (*_STREAM, "start")}
    # The time of each kernel of a chain on a grid; the longest of a grid counts.
    order = np.lexsort((rows["kernel"], rows["grid"], chain))
    grid = [chain[order], rows["grid"][order]]
    kernel_firsts = np.flatnonzero(_changes([*grid, rows["kernel"][order]]))
    is_new_grid = _changes(values[kernel_firsts] for values in grid)
    grid_times = np.maximum.reduceat(np.add.reduceat(times[order], kernel_firsts), np.flatnonzero(is_new_grid))
    longest = np.add.reduceat(grid_times, np.flatnonzero(_changes([grid[0][kernel_firsts][is_new_grid]])))
    duration = np.maximum.reduceat(rows["end"], firsts) - columns["start"]
    return {
        **columns,
        "row": np.minimum.reduceat(rows["row"], firsts),
        "duration": duration,
        "kernels": kernels[kernels > 1],
        "idle": np.maximum(duration - np.add.reduceat(times, firsts), 0),
        "saved": np.maximum(duration - longest, 0),
    }


def _changes(columns: Iterable[Array]) -> Flags:
    return np.append(True, np.any([values[1:] != values[:-1] for values in columns], axis=0))


def _range(case: Case, chains: Sequence[tuple[int, ...]]) -> str:
    """Return the innermost NVTX range that launched most of the chains, if any; empty if there are many kernels."""
    from nsystui.questions.stats.cuda_sums import NO_RANGE, LaunchRanges

    reports, rows = (np.array([chain[column] for chain in chains], np.int64) for column in (0, 2))
    part = case.job.session.part(sorted(set(reports.tolist())))
    if part.count(tables.kernels) > _MAX_KERNELS:
        return ""
    ranges = LaunchRanges.find(part, Selection(tasks=case.scope.tasks))
    code, count = Counter(ranges.of(reports, rows).tolist()).most_common(1)[0]
    return "" if code == NO_RANGE or 2 * count <= len(chains) else ranges.texts[code]
