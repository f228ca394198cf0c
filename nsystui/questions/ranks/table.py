"""The table of ranks: a row for each with work, lateness, and odd figures.

A rank is odd by the modified z-score of Iglewicz and Hoaglin (1993), 0.6745 · (x − median) / MAD with MAD the median
absolute deviation, which odd ranks hardly affect. A value is odd above 3.5.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nsystui.base.answer import HOST, PID, RANK, Column, Record, Row, TableAnswer, Unit, Value
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted, few_numbers
from nsystui.questions.collectives.alignment import Alignment
from nsystui.questions.collectives.waiting import SYNCHRONOUS, Lateness
from nsystui.questions.gpu.utilisation import BUSY_PARTS, SHARE_COLUMNS, BusyIntervals, shares, window_notes
from nsystui.questions.queries.tasks import RankedTask, selected_ranks, with_roles, world_size
from nsystui.questions.queries.time_window import extents, shares_clock
from nsystui.questions.ranks.model_parts import ModelParts
from nsystui.questions.ranks.overview import task_counts
from nsystui.questions.ranks.steps import StepTimes, figures
from nsystui.store.session import Session

ODD_SCORE = 3.5
FEWEST = 4
"""The minimum number of ranks for an odd rank."""

_NORMAL = 0.6745


@dataclass(frozen=True)
class Measure:
    """A figure of every rank to judge.

    An odd value must differ from the median by ``least`` (in its unit), and by ``share`` of the median. ``only_high``:
    low values are not odd.
    """

    name: str
    least: float
    share: float = 0.0
    only_high: bool = False
    word: str = ""


def scores(values: Sequence[float | None], measure: Measure) -> list[float | None]:
    """Return the signed score of each value; ``None`` if it is missing or there are too few. Shape as ``values``.

    It is 0 if a value differs by less than ``measure`` requires, and infinite if the MAD is 0.
    """
    array = np.array([np.nan if value is None else value for value in values], float)
    if np.isfinite(array).sum() < FEWEST:
        return [None] * len(values)
    middle = float(np.nanmedian(array))
    deviations = array - middle
    spread = float(np.nanmedian(np.abs(deviations)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        score = _NORMAL * deviations / spread
    is_small = np.abs(deviations) < max(measure.least, measure.share * abs(middle))
    score = np.where(is_small | (measure.only_high & (deviations < 0)), 0.0, score)
    return [None if np.isnan(value) else float(number) for value, number in zip(array, score, strict=True)]


def is_odd(score: float | None) -> bool:
    """Return whether a score marks an odd value."""
    return score is not None and abs(score) > ODD_SCORE


COLUMNS = (
    RANK, HOST.with_importance(4), Column("part", header="Part", label="part", importance=3),
    Column("gpu", header="GPU", label="gpu", importance=5),
    Column("busy_percent", header="Busy (%)", label="busy %", unit=Unit.PERCENT, decimals=2, importance=1,
        has_bar=True, stack=BUSY_PARTS),
    Column("compute_percent", header="Compute (%)", label="compute %", unit=Unit.PERCENT, decimals=2, importance=3),
    Column("nccl_percent", header="NCCL (%)", label="NCCL %", unit=Unit.PERCENT, decimals=2, importance=3),
    Column("exposed_nccl_percent", header="Exposed NCCL (%)", label="exposed %", unit=Unit.PERCENT,
        decimals=2).with_importance(1),
    Column("memory_percent", header="Memory (%)", label="memory %", unit=Unit.PERCENT, decimals=2, importance=5),
    Column("idle_percent", header="Idle (%)", label="idle %", unit=Unit.PERCENT, decimals=2, importance=2),
    Column("kernels", header="Kernels", label="kernels", unit=Unit.COUNT, importance=4),
    Column("step_median", header="Step Median (ns)", label="step med", unit=Unit.DURATION, decimals=0, importance=1),
    Column("step_p95", header="Step P95 (ns)", label="step p95", unit=Unit.DURATION, decimals=0, importance=2),
    Column("late", header="Late", label="late", unit=Unit.COUNT, importance=1),
    Column("collectives", header="Collectives", label="collectives", unit=Unit.COUNT, importance=3),
    Column("median_lateness", header="Median Lateness (ns)", label="late by", unit=Unit.DURATION, importance=4),
    Column("wait_caused", header="Wait Caused (ns)", label="wait caused", unit=Unit.DURATION, importance=1),
    Column("wait_suffered", header="Wait Suffered (ns)", label="total wait", unit=Unit.DURATION,
        compared="wait_caused").with_importance(3),
    Column("clock_error", header="Clock Error (ns)", label="clock ±", unit=Unit.DURATION, importance=5),
    Column("odd", header="Odd", label="stands out", importance=1),
    Column("steps", header="Steps", label="steps", unit=Unit.COUNT, importance=6),
    Column("step_operations", header="GPU Operations per Step", label="ops/step", unit=Unit.COUNT, importance=6),
    Column("transfer", header="Transfer (ns)", label="transfer", unit=Unit.DURATION, importance=6),
    Column("local_rank", header="Local Rank", label="local rank", unit=Unit.NUMBER, importance=6),
    Column("model", header="GPU Model", label="model", importance=7), PID.with_importance(7),
    Column("report", header="Report", label="report", importance=6),
)  # fmt: skip

_JUDGED = (
    Measure("busy_percent", 2.0, word="busy"), Measure("compute_percent", 2.0, word="compute"),
    Measure("exposed_nccl_percent", 2.0, word="exposed NCCL"), Measure("memory_percent", 2.0, word="memory"),
    Measure("idle_percent", 2.0, word="idle"), Measure("kernels", 1.0, 0.02, word="kernels"),
    Measure("step_median", 1_000.0, 0.03, word="step"), Measure("late", 3.0, 0.0, only_high=True, word="late"),
    Measure("wait_caused", 100_000.0, 0.0, only_high=True, word="wait caused"),
)  # fmt: skip

_MOST_REASONS = 3


@dataclass(frozen=True, eq=False)
class RankFacts:
    """The table's figures by task, without unknown figures.

    ``busy`` is from ``BusyIntervals.load`` with the same selection (its window may differ). ``steps`` and ``lateness``
    are of the window.
    """

    busy: BusyIntervals
    steps: Mapping[Task, StepTimes]
    lateness: Mapping[Task, Lateness]
    alignment: Alignment
    parts: ModelParts
    notes: tuple[str, ...] = ()


def rank_table(session: Session, selection: Selection, ranks: Sequence[RankedTask], facts: RankFacts) -> TableAnswer:
    """Return one row for each selected rank, by rank.

    Percentages are of the selection's window, else of the job's extent, the same for every rank. ``odd`` names the odd
    figures, the furthest first.
    """
    listed = selected_ranks(ranks, selection)
    spent = facts.busy.breakdown(extents(session, selection))
    kernels = task_counts(session, selection, listed)["kernels"]
    rows = []
    for item in listed:
        row: dict[str, Value] = {"rank": item.rank, "host": item.host or None, "kernels": kernels.get(item.task)}
        row |= {"gpu": facts.busy.gpu_numbers(item.task), "local_rank": item.local_rank, "model": item.gpu or None}
        row |= {"pid": item.pid, "report": item.report_name, "part": facts.parts.of_task.get(item.task)}
        row["role"], row["step_operations"] = item.role, facts.parts.operations.get(item.task)
        if item.task in spent:
            row |= dict(zip((column.key for column in SHARE_COLUMNS), shares(spent[item.task]), strict=True))
        if item.task in facts.steps and (steps := figures(facts.steps[item.task])) is not None:
            row |= {"steps": steps.count, "step_median": steps.median, "step_p95": steps.p95}
        row |= _lateness(facts.lateness.get(item.task))
        row["clock_error"] = facts.alignment.fit.errors.get(item.task.report)
        rows.append(row)
    # Ranks of different runs need not be alike.
    for row, odd in zip(rows, odd_figures(rows) if shares_clock(session.reports) else (), strict=False):
        row["odd"] = ", ".join(f"{measure.word} {'▲' if score > 0 else '▼'}" for measure, score in odd.items()) or None
    notes = tuple(_notes(session, ranks, listed, facts, selection))
    columns = with_roles(COLUMNS, listed)
    cells: list[Row] = [tuple(row.get(column.key) for column in columns) for row in rows]
    return TableAnswer("ranks", columns, cells, len(ranks), notes)


def _lateness(lateness: Lateness | None) -> dict[str, Value]:
    if lateness is None:
        return {}
    return {
        "late": lateness.late,
        "collectives": lateness.operations,
        "median_lateness": lateness.median_lateness,
        "wait_caused": lateness.caused,
        "wait_suffered": lateness.suffered,
        "transfer": lateness.transfer,
    }


def odd_figures(rows: Sequence[Record]) -> list[dict[Measure, float]]:
    """Return the odd figures of each row with their scores, the furthest first.

    A rank's work is compared within its model part, its lateness with all ranks.
    """
    judged: list[dict[Measure, float]] = [{} for _ in rows]
    for measure in _JUDGED:
        parts = [None if measure.only_high else row.get("part") for row in rows]
        for part in dict.fromkeys(parts):
            indices = [index for index, row_part in enumerate(parts) if row_part == part]
            values = (rows[index].get(measure.name) for index in indices)
            figures_of_part = [float(value) if isinstance(value, int | float) else None for value in values]
            for index, score in zip(indices, scores(figures_of_part, measure), strict=True):
                judged[index] |= {measure: score} if score and is_odd(score) else {}
    return [dict(sorted(odd.items(), key=lambda figure: -abs(figure[1]))[:_MOST_REASONS]) for odd in judged]


def _notes(
    session: Session, ranks: Sequence[RankedTask], listed: Sequence[RankedTask], facts: RankFacts, selection: Selection
) -> Iterator[str]:
    words = facts.alignment.words(session.reports)
    if words:
        yield words
    if ranks:
        yield f"rank numbers from: {ranks[0].source}"
    if parts := facts.parts.words(listed):
        yield f"{parts}; ranks of different parts have different work"
    size = world_size(session)
    if size is not None and size > len(ranks) and facts.lateness:
        yield f"{counted(len(ranks), 'rank', 'are', size)} open: the late rank is the last of these, not of all"
    if not shares_clock(session.reports):
        yield "these reports are of different runs: no rank is marked as odd, collectives match within a report"
    elif len(listed) < FEWEST:
        yield f"no rank is marked as odd: this needs {FEWEST} ranks or more"
    unmatched = [item.rank for item in listed if item.task not in facts.lateness and item.devices]
    if facts.lateness and unmatched:
        yield f"lateness is unknown for ranks {few_numbers(unmatched)}: their collectives match no other rank"
    elif unmatched and len(listed) > 1:
        yield f"lateness is unknown: several ranks have no {', '.join(SYNCHRONOUS)} kernels in common"
    yield from facts.busy.notes
    yield from window_notes(facts.busy, extents(session, selection))
    yield from facts.notes
