"""Notes on missing tables and on rows that were left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from nsystui.base.answer import Unit
from nsystui.base.text import counted, few, ranks_named, which_of
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.exports.metadata import pid_of
from nsystui.exports.sources import REASONS
from nsystui.questions.queries.mpi import DOMAIN, nvtx_reports
from nsystui.questions.queries.tasks import GPU_TABLES, RankedTask
from nsystui.store.report import Report
from nsystui.store.session import Session
from nsystui.store.tally import LeftOut

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.exports.canonical import CanonicalTable

    _Table = sa.Table | CanonicalTable

LOWER_BOUNDS = "GPU busy times are lower bounds, idle times upper bounds"
UNKNOWN_BY_CLOCK = "start-up, tail, launch delays and causes of idle time cannot be known"


def missing_notes(session: Session, *needed: _Table) -> tuple[str, ...]:
    """Return a note for each table of which reports have no rows."""
    return _notes_on(session, needed, lambda report, table: not report.count(table))


def absent_notes(session: Session, *needed: _Table) -> tuple[str, ...]:
    """Return a note for each table that reports lack, or lost all times of; an empty table lacks nothing."""

    def lacks(report: Report, table: _Table) -> bool:
        return not report.count(table) and bool(not report.has(table) or report.packed.left_out.get(table.name))

    return _notes_on(session, needed, lacks)


def _notes_on(session: Session, needed: Sequence[_Table], lacks: Callable[[Report, _Table], bool]) -> tuple[str, ...]:
    pairs = ((table, [report for report in session.reports if lacks(report, table)]) for table in needed)
    return tuple(_lacking_note(session, table, lacking) for table, lacking in pairs if lacking)


def _lacking_note(session: Session, table: _Table, lacking: Sequence[Report]) -> str:
    from nsystui.questions.queries.recording import recording_advice

    is_damaged = any(table.name in report.damaged for report in lacking)
    advice = "" if is_damaged else recording_advice(session, lacking, canonical.BY_NAME[table.name])
    return f"{lack(session, table, lacking)}: {advice or 'the export is damaged; export it again'}"


def lack(session: Session, table: _Table, lacking: Sequence[Report]) -> str:
    """Return the sentence ``no … in …`` for the reports ``lacking``, at least one, without advice."""
    which = which_of([report.name for report in lacking], len(session.reports))
    return f"no {canonical.BY_NAME[table.name].what} in {which}"


def mpi_notes(session: Session) -> tuple[str, ...]:
    """Return notes on reports without MPI calls, and on MPI calls that are NVTX ranges."""
    range_reports = nvtx_reports(session)
    calls = canonical.MPI_CALLS
    lacking = [report for report in session.reports if not report.count(calls) and report not in range_reports]
    notes = [_lacking_note(session, calls, lacking)] if lacking else []
    if range_reports:
        names = few([report.name for report in range_reports])
        notes.append(
            f"the MPI calls of {names} are NVTX ranges of the domain {DOMAIN}, as nsys 2022 and older record them: "
            "without sizes and peers"
        )
    return tuple(notes)


def left_out_note(reports: Sequence[Report]) -> str:
    """Return the note on moved clocks, impossible times, lost names and ranges that never ended, if any."""
    sentences = [clock_note(reports)]
    for template, phrase_of in (
        ("left out of {} because their times are impossible: {}{}", _impossible),
        (
            "the string table of {} lacks the names of {}; export the report again",
            lambda rows: _rows(rows.nameless) if rows.nameless else "",
        ),
        (
            "never ended in {}: {}; they have no duration and no ranges inside (`stats` ends them as nsys does)",
            lambda rows: _rows(rows.open) if rows.open else "",
        ),
    ):
        affected = [report for report in reports if any(map(phrase_of, report.packed.left_out.values()))]
        sums: dict[str, LeftOut] = {}
        for report in affected:
            for name, rows in report.packed.left_out.items():
                sums[name] = sums.get(name, LeftOut()) + rows
        phrases = [(table.short, phrase_of(sums.get(table.name, LeftOut()))) for table in canonical.TABLES]
        which = which_of([report.name for report in affected], len(reports))
        counts = "; ".join(phrase.format(noun) for noun, phrase in phrases if phrase)
        bounds = f"; {LOWER_BOUNDS}" * any(sums.get(table.name, LeftOut()).rows for table in GPU_TABLES)
        sentences.append(template.format(which, counts, bounds) if affected else "")
    return "; ".join(filter(None, sentences))


_UNRECORDED = {
    "kernels": ("launch kernels", "compute and NCCL are unknown"),
    "memory_ops": ("copy or set memory", "memory is unknown"),
    "graph_launches": ("replay CUDA graphs", "graph time is unknown"),
}


def unrecorded_notes(
    session: Session, ranks: Iterable[RankedTask] | None = None, only: Collection[str] = tuple(_UNRECORDED)
) -> Iterator[str]:
    """Yield notes on `Breakdown.unknown`, by default of all ranks and tables."""
    from nsystui.questions.queries.recording import unrecorded_work

    rank_numbers = {item.task: item.rank for item in ranks or ()}
    work = unrecorded_work(session, session.reports, only).items()
    for table in only:
        calls = {task: counts[table] for task, counts in work if ranks is None or task in rank_numbers}
        whose = f" of {ranks_named([rank_numbers[task] for task in calls if calls[task]])}" if ranks is not None else ""
        if any(calls.values()):
            number, (activity, unknown) = counted(sum(calls.values()), "call"), _UNRECORDED[table]
            yield f"the GPU work of {number}{whose} to {activity} was not recorded: {unknown}, {LOWER_BOUNDS}"


def conditional_notes(session: Session) -> list[str]:
    """Return the note on CUDA graphs that repeat nodes: CUPTI may record one iteration (pytorch/kineto issue 1062)."""
    nodes, whole, calls = canonical.GRAPH_NODES, canonical.GRAPH_LAUNCHES, canonical.API_CALLS
    traced = [report for report in session.reports if report.count(nodes) and not report.count(whole)]
    indices = [report.index for report in traced if report.count(calls)]
    if not indices:
        return []
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store.tables import api_calls

    is_made = of_reports(api_calls.c.report, indices), api_calls.c.name.contains("ConditionalHandleCreate")
    if not session.rows(sa.select(api_calls.c.row).where(*is_made).limit(1)):
        return []
    return [
        "CUDA graphs have conditional nodes, of which nsys may record only the first iteration of each replay: counts "
        f"and {LOWER_BOUNDS} (--cuda-graph-trace=graph shows how long replays take)"
    ]


def clock_note(reports: Sequence[Report]) -> str:
    """Return the note on GPUs whose times were moved to the CPU's clock, if any."""
    moved = [
        f"{report.name} (process {pid_of(clock.process)}, GPU {clock.device}) by {'+−'[clock.lead > 0]}"
        f"{format_value(Unit.DURATION, abs(clock.lead))} (known to {format_value(Unit.DURATION, clock.width)})"
        for report in reports
        for clock in report.metadata.gpu_clocks
        if not clock.is_of_waits
    ]
    return f"GPU times are moved, because the clocks of GPU and CPU differ: {few(moved)}" if moved else ""


def _impossible(rows: LeftOut) -> str:
    """Return ``12 {} (2 without a time, 10 ending before the start)``."""
    reasons = [f"{count:,} {why}" for count, why in zip(rows.by_reason, REASONS, strict=True) if count]
    return f"{_rows(rows.rows)} ({', '.join(reasons)})" if reasons else ""


def _rows(number: int) -> str:
    return f"{number:,} {{}}" if number > 1 else "1 row of {}"
