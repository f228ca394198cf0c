"""The overview: the facts of the job, and one row for each of its tasks."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nsystui.base.answer import HOST, PID, RANK, UNKNOWN, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import counted
from nsystui.base.units import format_value
from nsystui.exports.canonical import BY_NAME, CanonicalTable
from nsystui.questions.gpu.utilisation import SHARE_COLUMNS, BusyIntervals, gpu_key, shares, window_notes
from nsystui.questions.queries.derived import of_each_report, rows_by_report
from nsystui.questions.queries.pauses import pauses
from nsystui.questions.queries.recording import unrecorded_work
from nsystui.questions.queries.tasks import RankedTask, rows_of_tasks, selected_ranks, used_devices
from nsystui.questions.queries.time_window import extent, extents, recorded, report_at, selected_reports, shares_clock
from nsystui.store.remember import Arrays
from nsystui.store.report import Report
from nsystui.store.session import Session


@dataclass(frozen=True)
class JobFacts:
    """The facts of the job in the open reports; empty tuples and ``None`` are facts that no report records.

    ``gpus`` counts the GPUs that worked, ``duration`` (ns) is of the sessions on their common clock, ``events`` of the
    events in job time.
    """

    title: str
    commands: tuple[str, ...]
    reports: int
    ranks: int
    hosts: tuple[str, ...]
    gpus: int
    gpu_models: tuple[str, ...]
    nsys_versions: tuple[str, ...]
    driver_versions: tuple[str, ...]
    cuda_versions: tuple[str, ...]
    duration: int | None
    events: Window
    rank_source: str  # as in ``RankedTask.source``; empty without tasks
    clocks_aligned: bool
    """Whether all times are on one clock. If not, reports are of different runs, or a report has no start."""
    start_spread: int | None  # from the first session's start to the last, ns
    captures: int = 0  # the captures that reports join (`Report.captures`)
    made_of: tuple[str, ...] = ()  # sources of reports that nsys did not record: ``PyTorch profiler trace``

    @property
    def words(self) -> list[str]:
        """``64 ranks``, ``8 hosts``, ``64× H100 80GB HBM3``, ``nsys 2026.2.1``, ``recorded 41.3 s``."""
        words = [counted(self.ranks, "rank")]
        words += [counted(self.captures, "capture")] if self.captures else []
        words += [counted(self.reports, "file")] if self.reports != self.ranks else []
        if self.hosts:
            words.append(self.hosts[0] if len(self.hosts) == 1 else counted(len(self.hosts), "host"))
        if self.gpus:
            models = [model.removeprefix("NVIDIA ") for model in self.gpu_models]
            gpus = f"{counted(self.gpus, 'GPU')} ({', '.join(models)})" if models else counted(self.gpus, "GPU")
            words.append(f"{self.gpus}× {models[0]}" if len(models) == 1 else gpus)
        if self.nsys_versions:
            words.append("nsys " + ", ".join(".".join(version.split(".")[:3]) for version in self.nsys_versions))
        words += self.made_of
        return words if self.duration is None else [*words, f"recorded {format_value(Unit.DURATION, self.duration)}"]

    @property
    def machine_words(self) -> list[str]:
        """The versions, and how reliable ranks and clocks are."""
        words = [] if self.clocks_aligned else ["clocks not aligned"]
        words += [f"driver {', '.join(self.driver_versions)}"] if self.driver_versions else []
        words += [f"CUDA {', '.join(self.cuda_versions)}"] if self.cuda_versions else []
        words += [f"ranks by {self.rank_source}"] if self.rank_source else []
        if self.reports > 1 and self.clocks_aligned:
            words.append("clocks aligned")
            if self.start_spread is not None:
                words.append(f"starts {format_value(Unit.DURATION, self.start_spread)} apart")
        return words


def job_facts(session: Session, ranks: Sequence[RankedTask]) -> JobFacts:
    """Return the facts of all open reports, without reading events."""
    reports = session.reports
    metadata = [report.metadata for report in reports]
    starts = [facts.session_start_utc for facts in metadata if facts.session_start_utc is not None]
    return JobFacts(
        title=title_of(reports), commands=_distinct(os.path.basename(facts.command) for facts in metadata),
        reports=len(reports), captures=sum(len(report.captures) for report in reports), ranks=len(ranks),
        hosts=_distinct(facts.host for facts in metadata), gpus=_count_gpus(session),
        gpu_models=_distinct(name for item in ranks for name in item.gpu_names),
        nsys_versions=_distinct(facts.nsys_version for facts in metadata),
        driver_versions=_distinct(facts.driver_version for facts in metadata),
        cuda_versions=_distinct(facts.cuda_version for facts in metadata), duration=_duration(session),
        events=extent(session, Selection()), rank_source=ranks[0].source if ranks else "",
        clocks_aligned=shares_clock(reports), start_spread=max(starts) - min(starts) if starts else None,
        made_of=_distinct(facts.made_of for facts in metadata),
    )  # fmt: skip


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value))


_NUMBERED = re.compile(r"(?:^|[\W_]+)(?:rank|node|task|proc|profile|report|n|r)?[\W_]*\d*[\W_]*$", re.IGNORECASE)


def title_of(reports: Sequence[Report]) -> str:
    """Return the reports' common prefix before the rank, else their common folder, else the command."""
    names = [report.name for report in reports]
    if len(names) == 1:
        return names[0]
    common = _NUMBERED.sub("", os.path.commonprefix(names))  # noqa: RUF071 - names, not paths
    if common:
        return common
    folders = {report.folder for report in reports}
    for folder_names in ({folder.name for folder in folders}, {folder.parent.name for folder in folders}):
        if len(folder_names) == 1 and (name := folder_names.pop()):
            return name
    return next((command for report in reports if (command := os.path.basename(report.metadata.command))), "")


def _count_gpus(session: Session) -> int:
    """Count the GPUs that worked, shared GPUs once."""
    reports = {report.index: report for report in session.reports}
    devices = used_devices(session)
    used = [device for device in devices if device.device != UNKNOWN] or devices
    return len({gpu_key(reports[device.task.report], device.task, device.device) for device in used})


def _duration(session: Session) -> int | None:
    """Return the sessions' length on one clock, ns; the longest if they share no clock."""
    if all(report.metadata.duration is None and report.packed.last_event is None for report in session.reports):
        return None
    if shares_clock(session.reports):
        window = extent(session, Selection(), fit=False)
        return window.end - window.start - pauses(session, *session.reports).length
    return max(window.end - window.start for window in map(recorded, session.reports))


def _assumed_gpus(session: Session, selection: Selection) -> Iterator[str]:
    """Note an export of several GPUs that does not record which GPU a process used."""
    for report in selected_reports(session, selection):
        if not report.metadata.cuda_devices and len(report.metadata.gpus) > 1:
            yield (
                "some exports do not say which GPU a process used: its number is then the CUDA device's, which "
                "differs under CUDA_VISIBLE_DEVICES"
            )
            return


_COUNTED = {
    "kernels": BY_NAME["kernels"], "graphs": BY_NAME["graph_launches"], "memory_ops": BY_NAME["memory_ops"],
    "api_calls": BY_NAME["api_calls"],
}  # fmt: skip
TASK_COLUMNS = (
    RANK, HOST.with_importance(2), Column("gpu", header="GPU", label="gpu", importance=2), *SHARE_COLUMNS,
    Column("kernels", header="Kernels", label="kernels", unit=Unit.COUNT, importance=3),
    Column("graphs", header="Graph Launches", label="graphs", unit=Unit.COUNT, importance=6),
    Column("memory_ops", header="Memory Ops", label="memory ops", unit=Unit.COUNT, importance=5),
    Column("api_calls", header="API Calls", label="API calls", unit=Unit.COUNT, importance=5),
    Column("model", header="GPU Model", label="model", importance=6), PID.with_importance(7),
    Column("process", header="Process", label="process", importance=7),
    Column("report", header="Report", label="report", importance=4),
)  # fmt: skip


TALLIED = tuple(table.name for table in _COUNTED.values())
"""Tables whose rows ``task_table`` counts by task; for the columns that it reads, see ``utilisation.columns_read``."""


def task_table(session: Session, selection: Selection, ranks: Sequence[RankedTask], busy: BusyIntervals) -> TableAnswer:
    """Return a row for each selected task: host, GPU, work, and what kept its GPUs busy.

    Percentages are of the selection's window, else of the job's extent (``extents``), and means over a task's GPUs.
    ``busy`` is from ``BusyIntervals.load`` with the same selection (its window may differ).
    """
    shown_ranks = selected_ranks(ranks, selection)
    counts = task_counts(session, selection, shown_ranks)
    windows = extents(session, selection)
    spent = busy.breakdown(windows)
    rows: list[Row] = []
    for item in shown_ranks:
        of_tables = [counts[name][item.task] for name in _COUNTED]
        location = (item.rank, item.host or None, busy.gpu_numbers(item.task))
        identity = (item.gpu or None, item.pid, item.process_name or None, item.report_name)
        rows.append((*location, *shares(spent.get(item.task)), *of_tables, *identity))
    notes = (*busy.notes, *_assumed_gpus(session, selection), *window_notes(busy, windows))
    return TableAnswer("overview", TASK_COLUMNS, rows, len(ranks), notes)


def task_counts(
    session: Session, selection: Selection, chosen: Sequence[RankedTask]
) -> Mapping[str, Mapping[Task, int | None]]:
    """Count the selected rows of each ``chosen`` task by the names of ``_COUNTED``; ``None`` if not recorded."""
    counts, unknown = _counts(session, selection), unrecorded_work(session, session.reports)

    def without_rows(item: RankedTask, name: str) -> int | None:
        if name == "api_calls":
            return 0 if report_at(session, item.task.report).count(_COUNTED[name]) else None
        return 0 if item.devices and not unknown[item.task][_COUNTED[name].name] else None

    return {
        name: {item.task: counts[name].get(item.task, without_rows(item, name)) for item in chosen} for name in _COUNTED
    }


def _counts(session: Session, selection: Selection) -> dict[str, dict[Task, int]]:
    """Count each task's selected rows by the names of ``_COUNTED``; store counts of whole tasks next to the columns.

    Ignores the name filter, as do the percentages next to the counts.
    """
    of_tasks = Selection(tasks=selection.tasks)
    if selection.with_name(None) != of_tasks:
        return {name: _counted(session, selection.with_name(None), table) for name, table in _COUNTED.items()}

    def compute(part: Session, reports: list[Report]) -> Mapping[int, Arrays]:
        pairs: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for name, table in _COUNTED.items():
            for task, count in rows_of_tasks(part, table, reports).items():
                pairs.setdefault((task.report, name), []).append((task.process, count))
        return {
            report.index: {name: np.array(pairs.get((report.index, name), ()), np.int64).ravel() for name in _COUNTED}
            for report in reports
        }

    stored = of_each_report(session, selected_reports(session, of_tasks), "counts", compute)
    counts: dict[str, dict[Task, int]] = {name: {} for name in _COUNTED}
    for report, arrays in stored.items():
        for name in _COUNTED:
            counts[name] |= {Task(report, process): count for process, count in arrays[name].reshape(-1, 2).tolist()}
    return counts


def _counted(session: Session, selection: Selection, table: CanonicalTable) -> dict[Task, int]:
    if not session.count(table):
        return {}
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import where
    from nsystui.store import tables

    rows = tables.of(table)
    keys = rows.c.report, rows.c.process
    query = sa.select(*keys, sa.func.count()).where(*where(rows, selection), keys[1].is_not(None)).group_by(*keys)
    return {Task(report, process): int(count) for report, process, count in rows_by_report(session, query)}
