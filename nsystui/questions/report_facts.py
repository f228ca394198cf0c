"""The open reports, one row each: what wrote them, where, when, and which ranks they hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import DURATION, HOST, Column, Unit
from nsystui.questions.extent import event_span
from nsystui.questions.tasks import RankedTask
from nsystui.store.report import Report
from nsystui.store.session import Session

COLUMNS = (
    Column("report", header="Report", label="report"),
    Column("ranks", header="Ranks", label="ranks"),
    Column("rank_source", header="Ranks From", label="ranks from", importance=2),
    Column("nsys", header="nsys", label="nsys", importance=1),
    Column("schema", header="Schema", label="schema", importance=3),
    HOST.with_importance(1),
    Column("gpus", header="GPUs", label="GPUs", importance=1),
    Column("driver", header="Driver", label="driver", importance=4),
    Column("cuda", header="CUDA", label="CUDA", importance=4),
    Column("command", header="Command", label="command", importance=5),
    Column("started", header="Started (UTC)", label="started (UTC)", importance=3),
    DURATION.with_importance(1),
    Column("first_event", header="First Event (ns)", label="first event", unit=Unit.TIME, importance=6),
    Column("last_event", header="Last Event (ns)", label="last event", unit=Unit.TIME, importance=6),
    Column("json", header="JSON Included", label="JSON", importance=7),
    Column("blobs", header="Blobs Included", label="blobs", importance=7),
    Column("path", header="Path", label="path", importance=8),
)


def reports_table(session: Session, ranks: Sequence[RankedTask]) -> TableAnswer:
    """One row for each report, in the order of the command line. Times of events are on the job's clock, ns.

    ``gpus`` are the models of the GPUs that its tasks used; where the export cannot tell, of all GPUs of the machine.
    Of the captured environment nothing is shown: ``rank_source`` says whether rank numbers come from it.
    """
    rows = [_row(report, [item for item in ranks if item.task.report == report.index]) for report in session.reports]
    return TableAnswer("reports", COLUMNS, rows, len(rows))


def _row(report: Report, tasks: Sequence[RankedTask]) -> Row:
    facts = report.metadata
    span = event_span(report)
    models = [name for item in tasks for name in item.gpu_names] or [gpu.name for gpu in facts.gpus]
    return (
        report.name,
        ",".join(str(item.rank) for item in tasks) or None,
        tasks[0].source if tasks else None,
        facts.nsys_version or None,
        facts.schema_version or None,
        facts.host or None,
        _counted(models),
        facts.driver_version or None,
        facts.cuda_version or None,
        facts.command or None,
        _utc(facts.session_start_utc),
        facts.duration,
        span.start if span else None,
        span.end if span else None,
        "yes" if facts.json_included else "no",
        "yes" if facts.blobs_included else "no",
        str(report.path),
    )


def _counted(models: Sequence[str]) -> str | None:
    """``8× NVIDIA H100 80GB HBM3``."""
    counts = {model: models.count(model) for model in models if model}
    return ", ".join(model if count == 1 else f"{count}× {model}" for model, count in counts.items()) or None


def _utc(ns: int | None) -> str | None:
    """Nanoseconds since 1970 as ``2026-11-21 02:13:00``."""
    return None if ns is None else datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
