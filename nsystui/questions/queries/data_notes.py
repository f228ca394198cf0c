"""Notes on the data itself: tables that an export lacks, with what to record, and rows that were left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nsystui.base.answer import Answer, TableAnswer
from nsystui.base.text import few, which_of
from nsystui.exports import canonical
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.sources import REASONS
from nsystui.store.report import Report
from nsystui.store.session import Session
from nsystui.store.tally import LeftOut

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.exports.canonical import CanonicalTable


def missing_note(session: Session, table: sa.Table | CanonicalTable) -> str:
    """Return the note on reports without rows of ``table``; empty where all have some.

    A report whose rows were left out has recorded them, and is not among these.
    """
    lacking = [report for report in session.reports if not report.count(table)]
    return lacking_note(session, table, [one for one in lacking if not one.packed.left_out.get(table.name)])


def absent_note(session: Session, table: sa.Table | CanonicalTable) -> str:
    """Return the note on reports without the table itself; one without rows says that there was nothing to record."""
    return lacking_note(session, table, [report for report in session.reports if not report.has(table)])


def lacking_note(session: Session, table: sa.Table | CanonicalTable, lacking: Sequence[Report]) -> str:
    """Return the note on the reports of ``lacking``; empty where there are none."""
    if not lacking:
        return ""
    if any(table.name in report.damaged for report in lacking):
        return f"{lack(session, table, lacking)}: the export is damaged; export it again"
    return f"{lack(session, table, lacking)}: {recording_advice(canonical.BY_NAME[table.name], lacking)}"


def lack(session: Session, table: sa.Table | CanonicalTable, lacking: Sequence[Report]) -> str:
    """Say that the reports of ``lacking``, at least one, have nothing of ``table``, without advice."""
    which = "this export" if len(session.reports) == 1 else "these exports"
    if len(lacking) < len(session.reports):
        which = few([report.name for report in lacking])
    return f"no {canonical.BY_NAME[table.name].what} in {which}"


_ON_GPU = "trace with ProfilerActivity.CUDA among the activities"
_OF_PYTORCH = {
    canonical.KERNELS: _ON_GPU,
    canonical.MEMORY_OPS: _ON_GPU,
    canonical.API_CALLS: _ON_GPU,
    canonical.NVTX_RANGES: "trace with ProfilerActivity.CPU among the activities",
    canonical.NCCL_CALLS: "trace a job with NCCL, with ProfilerActivity.CPU among the activities",
    canonical.GPU_MEMORY: "trace with profile_memory=True",
    canonical.DIAGNOSTICS: "nothing to record",
}


_TRACED = "CUDA was traced, but no GPU activity of this kind was recorded"


def _is_traced(reports: Collection[Report]) -> bool:
    """Whether nsys recorded CUDA calls in all of these reports."""
    return bool(reports) and all(not one.metadata.made_of and one.count(canonical.API_CALLS) for one in reports)


def recording_advice(table: CanonicalTable, lacking: Collection[Report]) -> str:
    """Say what to record so that these reports have a table: with the profiler that recorded them, where that can."""
    if table.options == canonical.KERNELS.options and _is_traced(lacking):
        return _TRACED
    made_of = dict.fromkeys(report.metadata.made_of for report in lacking)
    of_pytorch = _OF_PYTORCH.get(table)
    known = [one for one in made_of if one]
    if known and of_pytorch is None:
        return f"a {known[0]} does not contain it; {table.record}"
    advice = [of_pytorch if one and of_pytorch else table.record for one in made_of]
    return ", or ".join(advice) or table.record


_RECORD = "record with `nsys "


def fitting_advice(reports: Sequence[Report], text: str) -> str:
    """Fit a text that says what to record with nsys to these reports.

    Where nsys recorded none of them, the other profiler's own option is in its place, or that this profiler has none;
    where all have CUDA calls, that CUDA was traced.
    """
    if canonical.KERNELS.record in text and _is_traced(reports):
        return text.replace(canonical.KERNELS.record, _TRACED)
    made_of = {report.metadata.made_of for report in reports}
    if _RECORD not in text or len(made_of) != 1 or not all(made_of):
        return text
    (known,) = made_of
    none = f"a {known} does not contain it; "
    for table, advice in _OF_PYTORCH.items():
        text = text.replace(table.record, advice)
    return text.replace(none + _RECORD, _RECORD).replace(_RECORD, none + _RECORD)


def with_fitting_advice(answer: Answer, reports: Sequence[Report]) -> Answer:
    """Put `fitting_advice` into the notes of a table."""
    if not isinstance(answer, TableAnswer):
        return answer
    return replace(answer, notes=tuple(fitting_advice(reports, note) for note in answer.notes))


def left_out_note(reports: Sequence[Report]) -> str:
    """Return the note on rows with impossible times, on lost names and on ranges that never ended, if any is known."""
    told = []
    for text, words in (
        ("left out of {} because their times are impossible: {}; ", _impossible),
        ("the string table of {} lacks the names of {}; ", _nameless),
        (
            "never ended in {}: {}; they have no duration and contain nothing (`stats` ends them as nsys does)",
            _open,
        ),
    ):
        having = [report for report in reports if any(map(words, report.packed.left_out.values()))]
        found: dict[str, LeftOut] = {}
        for report in having:
            for name, rows in report.packed.left_out.items():
                found[name] = found.get(name, LeftOut()) + rows
        kinds = [(table.short, words(found.get(table.name, LeftOut()))) for table in canonical.TABLES]
        where = which_of([report.name for report in having], len(reports))
        counts = "; ".join(count.format(what) for what, count in kinds if count)
        told.append(text.format(where, counts) if having else "")
    again = "export the report again" + ("; " if told[2] else "") if told[0] or told[1] else ""
    return f"{told[0]}{told[1]}{again}{told[2]}"


def _impossible(rows: LeftOut) -> str:
    """``12 {} (2 without a time, 10 ending before the start)``."""
    reasons = [f"{count:,} {why}" for count, why in zip(rows.by_reason, REASONS, strict=True) if count]
    return f"{rows.rows:,} {{}} ({', '.join(reasons)})" if reasons else ""


def _open(rows: LeftOut) -> str:
    return f"{rows.open:,} {{}}" if rows.open else ""


def _nameless(rows: LeftOut) -> str:
    return f"{rows.nameless:,} {{}}" if rows.nameless else ""
