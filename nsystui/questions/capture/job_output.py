"""The output of the application, with the steps in which it was printed (docs/privacy.md#output-of-the-application)."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nsystui.base.answer import PID, RANK, STEP, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task
from nsystui.base.text import counted, which_of
from nsystui.exports.discover import is_packed_report
from nsystui.exports.job_output import JobOutput, OutputLine, read_job_output
from nsystui.exports.metadata import pid_of
from nsystui.questions.queries.time_window import recorded
from nsystui.questions.steps.task_steps import NO_STEP
from nsystui.store.packed_job import JobReport
from nsystui.store.remember import Results
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob

COLUMNS = (
    RANK, Column("time", header="Time (ns)", label="time", unit=Unit.TIME, importance=1), STEP.with_importance(1),
    Column("stream", header="Stream", label="stream", importance=2),
    Column("line", header="Line", label="line", unit=Unit.NUMBER, importance=3),
    Column("text", header="Text", label="text"), PID.with_importance(4),
)  # fmt: skip
_RESULT = "job-output"
_SECOND = 10**9


def output_table(job: OpenJob) -> TableAnswer:
    """Return the lines that may be seen, by rank and stream.

    ``time`` is the job time printed in the line, if it is within the session. The step is known if that time has
    fractions of a second.
    """
    rows: list[Row] = []
    left_out, names_without = 0, []
    ranks = {item.task: item.rank for item in job.ranks}
    outputs = [(report, output_of(job.session, report)) for report in job.session.reports]
    first_rank = {report.index: len(ranks) for report, _ in outputs}
    for task, rank in ranks.items():
        first_rank[task.report] = min(first_rank[task.report], rank)
    for report, output in sorted(outputs, key=lambda item: (first_rank[item[0].index], item[0].index)):
        if output is None:
            names_without.append(report.name)
            continue
        left_out += output.left_out
        lines = output.lines
        times = [_job_time(report, line) for line in lines]
        steps = _steps(job, report, lines, times)
        rows += [
            (
                ranks.get(Task(report.index, line.process)), time, step, line.stream, line.number, line.text,
                pid_of(line.process) if line.process else None,
            )
            for line, time, step in zip(lines, times, steps, strict=True)
        ]  # fmt: skip
    notes = [f"left out: {counted(left_out, 'line')} like environment variables or keys"] if left_out else []
    if names_without:
        exports = which_of(names_without, len(job.session.reports))
        notes.append(f"the output of the application is not in {exports}: pack with --job-output")
    if not rows and not notes:
        notes.append("no output of the application: nsys keeps only the output of a program that it started itself")
    return TableAnswer("job-output", COLUMNS, rows, len(rows), tuple(notes))


def output_of(session: Session, report: Report) -> JobOutput | None:
    """Read the output of a report, or ``None`` if it was packed without its output."""
    if not is_packed_report(report.path):
        return read_job_output(report.path)

    def read(saved: Any) -> JobOutput:
        return JobOutput(tuple(OutputLine(*line) for line in saved["lines"]), int(saved["left_out"]))

    # A drift of the clock does not change lines.
    return session.results(replace(report, clock_rate=0.0)).load(_RESULT, read=read)


def keep_output(session: Session) -> None:
    """Save the lines that may be seen of all reports, with their results."""
    for report in session.reports:
        output = read_job_output(report.path)
        lines = [astuple(line) for line in output.lines]
        session.results(report).save(_RESULT, {"lines": lines, "left_out": output.left_out})


def has_output(report: JobReport) -> bool:
    """Return whether a report was packed with the output of the application."""
    return Results((report.identity,), report.path).load(_RESULT) is not None


def _job_time(report: Report, line: OutputLine) -> int | None:
    start = report.metadata.session_start_utc
    if line.time is None or start is None:
        return None
    time = report.job_time(line.time - start)
    window = recorded(report)
    # A time in whole seconds is up to a second early.
    return time if window.start - _SECOND < time < window.end + _SECOND else None


def _steps(job: OpenJob, report: Report, lines: tuple[OutputLine, ...], times: list[int | None]) -> list[int | None]:
    exact = [index for index, line in enumerate(lines) if line.is_exact and times[index] is not None]
    steps: list[int | None] = [None] * len(lines)
    if not exact:
        return steps
    processes, moments = np.array([(lines[index].process, times[index]) for index in exact], np.int64).T
    step_numbers = job.steps().numbers_at(np.full(len(exact), report.index, np.int64), processes, moments)
    for index, step in zip(exact, step_numbers.tolist(), strict=True):
        steps[index] = None if step == NO_STEP else step
    return steps
