"""What the reports say of their processes: names, and the GPUs that each used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nsystui.base.selection import Task
from nsystui.questions.derived import of_each_report
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_array, json_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays


@dataclass(frozen=True)
class UsedDevice:
    """A GPU that a process used. ``device`` is its CUDA ordinal there, ``gpu`` the machine's number."""

    task: Task
    device: int
    gpu: int | None
    name: str | None
    uuid: str | None


def used_devices(session: Session) -> list[UsedDevice]:
    """Every (process, GPU) of the open reports, by report, process and ordinal."""
    return [
        UsedDevice(Task(report, process), device, gpu, name, uuid)
        for report, arrays in sorted(_facts(session).items())
        for process, device, gpu, name, uuid in json_of(arrays["devices"])
    ]


def process_names(session: Session) -> dict[Task, str]:
    """The path of the program of each process that has one."""
    return {
        Task(report, process): name
        for report, arrays in _facts(session).items()
        for process, name in json_of(arrays["names"])
    }


def rows_of_tasks(session: Session, table: sa.Table, reports: Iterable[Report]) -> dict[Task, int]:
    """The rows of each process in a table of these reports; a process without any is left out."""
    found: dict[Task, int] = {}
    packed = []
    for report in reports:
        tally = session.tally(report, table)
        if tally is None:
            packed.append(report.index)
        else:
            found.update({Task(report.index, process): rows for process, rows in tally.processes.items()})
    if any(report.count(table) for report in session.reports if report.index in packed):
        place = (table.c.report, table.c.process)
        query = sa.select(*place, sa.func.count()).where(place[0].in_(packed), place[1].is_not(None)).group_by(*place)
        found.update({Task(report, process): int(rows) for report, process, rows in session.rows(query)})
    return found


def _facts(session: Session) -> Mapping[int, Arrays]:
    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        devices, names = _rows(part, reports)
        return {
            report.index: {"devices": json_array(devices[report.index]), "names": json_array(names[report.index])}
            for report in reports
        }

    return of_each_report(session, session.reports, "processes", compute, in_memory=True)


_Rows = dict[int, list[tuple[Any, ...]]]


def _rows(session: Session, reports: list[Report]) -> tuple[_Rows, _Rows]:
    """Of each report (process, device, gpu, name, uuid) of its devices and (process, name) of its processes."""
    indices = [report.index for report in reports]
    used, known = tables.devices.c, tables.processes.c
    devices = (
        sa.select(used.report, used.process, used.device, used.gpu, used.name, used.uuid)
        .where(used.report.in_(indices), used.process.is_not(None))
        .order_by(used.report, used.process, used.device)
    )
    names = sa.select(known.report, known.process, known.name).where(known.report.in_(indices), known.name.is_not(None))
    return _by_report(session, devices, indices), _by_report(session, names, indices)


def _by_report(session: Session, query: sa.Select[Any], indices: list[int]) -> _Rows:
    found: _Rows = {index: [] for index in indices}
    for report, *rest in session.rows(query):
        found[report].append(tuple(rest))
    return found
