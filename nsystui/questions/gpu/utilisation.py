"""GPU utilisation: the busy time of the job's GPUs by category, in a window or over time, and its tables.

``nsystui.questions.gpu.device_time`` defines the categories.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from nsystui.base.answer import DEVICE, RANK, START, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import counted, few_numbers, which_of
from nsystui.base.types import grouped
from nsystui.exports import canonical
from nsystui.exports.metadata import pid_of
from nsystui.questions.algebra.intervals import intersect, merge
from nsystui.questions.gpu.device_time import (
    DEVICE_KEYS,
    NOTHING,
    Breakdown,
    BusyParts,
    Device,
    DeviceIntervals,
    StreamKey,
    busy_parts,
    of_arrays,
    shifted,
    to_arrays,
)
from nsystui.questions.queries.communication import other_communication
from nsystui.questions.queries.data_notes import unrecorded_notes
from nsystui.questions.queries.derived import in_runs, of_each_report, runs_of
from nsystui.questions.queries.pauses import LONG, capture_note, hole_note, pauses, unseen
from nsystui.questions.queries.recording import WORK_CALLS, recording_advice, unrecorded_work
from nsystui.questions.queries.tasks import GPU_TABLES, RankedTask, silent_processes, used_devices
from nsystui.questions.queries.time_window import edges_of, recorded, selected_reports, shares_clock
from nsystui.store.remember import Arrays
from nsystui.store.report import Report
from nsystui.store.session import Session

_OF_SELECTED = ", with the work of the selected ranks only"
_NAME_NOTE = "the name filter does not apply here: how busy a GPU is depends on all of its work"


@dataclass(frozen=True, eq=False)
class BusyIntervals:
    """The merged intervals of every selected device, read once; windows and bins cost no query.

    They are valid for the same selection with any window while ``is_current`` is true.
    """

    version: int
    devices: tuple[DeviceIntervals, ...]
    shares_clock: bool = True
    """Whether the selected reports share a clock; otherwise no window applies to several reports."""
    notes: tuple[str, ...] = ()

    @classmethod
    def load(
        cls, session: Session, selection: Selection, ranks: Sequence[RankedTask], previous: BusyIntervals | None = None
    ) -> BusyIntervals:
        """Read the devices of the selected tasks, by rank and device; reuse the intervals in ``previous``.

        ``previous`` is ignored if streams are selected. Window and name filter do not apply.
        """
        version = session.version
        devices = tuple(_devices(session, selection, selected_devices(session, selection, ranks), previous))
        reports = selected_reports(session, selection)
        notes = [*_notes(session, reports, selection), *other_communication(session)]
        paused = [item.device.task for item in devices if item.pauses]
        notes += filter(None, [capture_note(session, reports), hole_note(session, paused)])
        notes += unrecorded_notes(session, (item.device.task for item in devices))
        chosen = {item.device.key for item in devices}
        groups = by_gpu(session, selected_devices(session, Selection(), ranks))
        groups = [group for group in groups if len(group) > 1 and any(item.key in chosen for item in group)]
        if unknown := [item.device.task.rank for item in devices if not item.device.is_gpu]:
            notes.append(f"work on an unknown device does not count in means over GPUs (ranks {few_numbers(unknown)})")
        if groups:
            shared = "; ".join(f"ranks {few_numbers({item.task.rank for item in group})}" for group in groups[:3])
            notes.append(
                f"processes share a GPU ({shared}): rows of one process count its own work; gaps, "
                f"budget, efficiency and triage count the GPU once{_OF_SELECTED * (selection.tasks is not None)}"
            )
        busy = cls(version, devices, shares_clock(reports), tuple(notes))
        return busy if selection.name is None else busy.without_name_filter()

    def without_name_filter(self) -> BusyIntervals:
        """Return a copy with a note that the name filter does not apply."""
        return replace(self, notes=(*self.notes, _NAME_NOTE))

    def is_current(self, session: Session) -> bool:
        """Return whether no report was added since."""
        return self.version == session.version

    def breakdown(self, windows: Mapping[int, Window]) -> dict[Task, Breakdown]:
        """Return the totals of each task over its GPUs, in the window of its report (by index)."""
        totals: dict[Task, Breakdown] = {}
        for item in self.gpus:
            task = item.device.task.task
            if task.report in windows:
                totals[task] = totals.get(task, NOTHING) + item.breakdown(windows[task.report])
        return totals

    def median_rank(self, window: Window, without: int | None = None) -> int | None:
        """Return the rank with median compute: by busy time, ranks that wait would equal slow ranks."""
        devices = sorted(self.devices, key=lambda device: device.breakdown(window).kernels)
        ranks = [item.device.task.rank for item in devices if item.device.task.rank != without]
        return ranks[(len(ranks) - 1) // 2] if ranks else None

    def gpu_numbers(self, task: Task) -> str | None:
        """Return the machine's numbers of a task's GPUs, or ``None`` if it used no or unknown GPUs."""
        numbers = [item.device.gpu for item in self._of_task.get(task, ())]
        return " ".join(map(str, numbers)) if numbers and None not in numbers else None

    @property
    def gpus(self) -> list[DeviceIntervals]:
        """The devices that count in means over GPUs."""
        return [item for item in self.devices if item.device.is_gpu]

    @cached_property
    def _of_task(self) -> Mapping[Task, list[DeviceIntervals]]:
        return grouped((item.device.task.task, item) for item in self.gpus)


def gpus_of(session: Session, devices: Iterable[DeviceIntervals]) -> tuple[DeviceIntervals, ...]:
    """Merge devices of the same GPU (`gpu_key`); keeps the order of ``devices``."""
    intervals = {item.device.key: item for item in devices}
    groups = by_gpu(session, (item.device for item in intervals.values()))
    silent = silent_work(session)
    return tuple(
        _together([intervals[device.key] for device in group], silent[group[0].key].values()) for group in groups
    )


def gpu_keys(session: Session) -> dict[tuple[Task, int], Hashable]:
    """Return the `gpu_key` of each GPU that a process used, by process and CUDA ordinal."""
    reports, used = {report.index: report for report in session.reports}, used_devices(session)
    return {(item.task, item.device): gpu_key(reports[item.task.report], item.task, item.device) for item in used}


def silent_work(session: Session) -> Mapping[tuple[Task, int], Mapping[Task, Counter[str]]]:
    """Count the calls by table of each process that shares a GPU, but whose work was not recorded, by used GPU."""
    reports, keys = {report.index: report for report in session.reports}, gpu_keys(session)
    silent: dict[tuple[Task, int], dict[Task, Counter[str]]] = defaultdict(dict)
    for task, calls in silent_processes(session, {task for task, _ in keys}).items():
        report, pid, counts = reports[task.report], pid_of(task.process), Counter[str]()
        for name, number in calls.items():
            counts[next(table for word, table in WORK_CALLS.items() if word in name)] += number
        used = {gpu_key(report, task, device) for user, device in report.metadata.gpu_numbers if user == pid}
        is_only_gpu = not used and len(report.metadata.gpus) == 1
        for key in keys:
            if keys[key] in used or (is_only_gpu and key[0].report == task.report):
                silent[key][task] = counts
    return silent


def gpu_users(session: Session, tasks: Collection[Task]) -> set[Task]:
    """Return ``tasks``, and the processes that share their GPUs."""
    keys, silent = gpu_keys(session), silent_work(session)
    gpus = {gpu for (task, _), gpu in keys.items() if task in tasks}
    return {user for key, gpu in keys.items() if gpu in gpus for user in (key[0], *silent[key])} | set(tasks)


def by_gpu(session: Session, devices: Iterable[Device]) -> list[list[Device]]:
    """Group processes' devices by GPU (`gpu_key`); reads no work."""
    reports = {report.index: report for report in session.reports}
    groups: dict[Hashable, list[Device]] = {}
    for device in devices:
        if device.is_gpu:
            key = gpu_key(reports[device.task.task.report], device.task.task, device.device)
            groups.setdefault(key, []).append(device)
    return list(groups.values())


def unplaced(session: Session, gpus: Sequence[DeviceIntervals]) -> bool:
    """Return whether some of ``gpus`` may be one GPU: equal host and ordinal, and no recorded number."""
    reports = {report.index: report for report in session.reports}
    places = [
        (gpu.device.task.host, gpu.device.device)
        for gpu in gpus
        if _recorded_gpu(reports[gpu.device.task.task.report], gpu.device.task.task, gpu.device.device) is None
    ]
    return len(set(places)) < len(places)


def gpu_key(report: Report, task: Task, device: int) -> Hashable:
    """Return a key of the GPU behind a process's CUDA ordinal: equal for the same GPU, in reports that share a clock.

    Exports identify the GPU since schema 3.20; otherwise processes share it if their machine has only one.
    """
    number = _recorded_gpu(report, task, device)
    if number is None:
        return (report.index if len(report.metadata.gpus) == 1 else task), device
    uuid, name = next(((gpu.uuid, gpu.name) for gpu in report.metadata.gpus if gpu.gpu == number), ("", ""))
    if re.search(r"\bMIG\b", name):  # a slice may have its GPU's UUID and number
        return report.index, number
    return None if report.on_job_clock else report.index, uuid or (report.metadata.host or report.index, number)


def _recorded_gpu(report: Report, task: Task, device: int) -> int | None:
    return report.metadata.gpu_numbers.get((pid_of(task.process), device))


def _together(devices: Sequence[DeviceIntervals], silent: Collection[Counter[str]]) -> DeviceIntervals:
    """Merge the work of several processes on one GPU; ``silent``: unrecorded work of its other processes."""
    if len(devices) == 1 and not silent:
        return devices[0]
    names = ("kernels", "nccl", "memory", "graph")
    parts = BusyParts.of(*(merge(*(getattr(item.parts, name) for item in devices)) for name in names))
    recorded = Window(min(item.recorded.start for item in devices), max(item.recorded.end for item in devices))
    first, *others = sorted(devices, key=lambda item: -item.busy_in(recorded))
    common_pauses = reduce(intersect, (item.pauses for item in devices))
    used_by = tuple(item.device for item in others)
    unknown = sum((*(item.unknown for item in devices), *silent), Counter[str]())
    return replace(first, recorded=recorded, parts=parts, others=used_by, pauses=common_pauses, unknown=unknown)


def columns_read(of_streams: bool) -> dict[str, tuple[str, ...]]:
    """Return the columns that ``BusyIntervals.load`` reads, by table; ``of_streams``: streams are selected."""
    columns = ("process", "device", "start", "end", *(["stream"] if of_streams else []))
    communication = {
        canonical.KERNELS.name: ("is_nccl", "name"),
        canonical.MEMORY_OPS.name: ("copy_kind", "source_device", "target_device"),
    }
    return {table.name: (*columns, *communication.get(table.name, ())) for table in GPU_TABLES}


def selected_devices(session: Session, selection: Selection, ranks: Sequence[RankedTask]) -> list[Device]:
    """List the devices that the selected tasks used, by rank and ordinal."""
    used_by_key = {(used.task, used.device): used for used in used_devices(session)}
    devices = []
    for item in sorted(ranks, key=lambda item: (item.rank, item.task)):
        if selection.tasks is not None and item.task not in selection.tasks:
            continue
        for device in sorted(item.devices):
            if selection.devices is None or device in selection.devices:
                used = used_by_key.get((item.task, device))
                devices.append(Device(item, device, used.gpu if used else None, used.name if used else None))
    return devices


def _devices(
    session: Session, selection: Selection, devices: Sequence[Device], previous: BusyIntervals | None
) -> Iterator[DeviceIntervals]:
    reports = {report.index: report for report in session.reports}
    cached = {item.device.key: item for item in previous.devices} if previous and selection.streams is None else {}
    missing = [item for item in devices if item.key not in cached]
    computed = _read(session, selection, reports, missing)
    unknown = unrecorded_work(session, [reports[index] for index in {item.task.task.report for item in devices}])
    for item in devices:
        report = reports[item.task.task.report]
        parts = computed.get(item.key)
        if parts is None:
            parts = shifted(cached[item.key].parts, report.clock_offset - cached[item.key].clock_offset)
        task, lost = item.task.task, unknown.get(item.task.task, Counter[str]())
        moved = DeviceIntervals(item, recorded(report), parts, report.clock_offset, unknown=lost)
        has_gap = any(moved.gaps(moved.recorded).lengths >= LONG)
        yield replace(moved, pauses=unseen(session, report, task.process) if has_gap else pauses(session, report))


def _read(
    session: Session, selection: Selection, reports: Mapping[int, Report], devices: Sequence[Device]
) -> dict[tuple[Task, int], BusyParts]:
    """Return the intervals of devices in job time, empty without work, by process and CUDA ordinal."""
    of_report = grouped((item.task.task.report, item) for item in devices)
    read_reports = [reports[index] for index in of_report]
    limit = len(read_reports) if session.workers is not None else _REPORTS_AT_ONCE
    parts: dict[tuple[Task, int], BusyParts] = {}
    for run in runs_of(read_reports, canonical.KERNELS, limit):
        for index, parts_by_place in _parts(session, selection, run).items():
            for item in of_report[index]:
                parts[item.key] = parts_by_place.get((item.task.task.process, item.device)) or BusyParts.of()
    return parts


def _parts(session: Session, selection: Selection, reports: Sequence[Report]) -> dict[int, dict[StreamKey, BusyParts]]:
    """Return the intervals of every device of ``reports``, job time; stored per report unless streams are selected."""

    def compute(part: Session, missing: list[Report]) -> dict[int, Arrays]:
        indices = {report.index for report in missing}
        devices = [used for used in used_devices(part) if used.task.report in indices]
        places = [(used.task.report, used.task.process, used.device) for used in devices]
        parts_by_report: dict[int, dict[StreamKey, BusyParts]] = {index: {} for index in indices}
        for (report, *ids), parts in zip(places, busy_parts(part, DEVICE_KEYS, places, selection.streams), strict=True):
            parts_by_report[report][tuple(ids)] = parts
        return {index: to_arrays(parts) for index, parts in parts_by_report.items()}

    arrays: dict[int, Arrays] = {}
    if selection.streams is None:
        arrays = of_each_report(session, reports, "busy", compute, table=canonical.KERNELS, activity="busy time")
    else:
        for computed in in_runs(session, reports, compute, canonical.KERNELS):
            arrays.update(computed)
    return {report.index: of_arrays(arrays[report.index], report.clock_offset) for report in reports}


# Each query is planned for all open reports: a query per report takes seconds for hundreds of ranks; a query for all
# takes more memory than a login node allows.
_REPORTS_AT_ONCE = 64


def _notes(session: Session, reports: Sequence[Report], selection: Selection) -> Iterator[str]:
    without_work = [report for report in reports if not any(report.count(table) for table in GPU_TABLES)]
    if without_work:
        names = which_of([report.name for report in without_work], len(reports))
        yield f"no GPU work in {names}: {recording_advice(session, without_work, canonical.KERNELS)}"
    graphs = sum(report.count(canonical.BY_NAME["graph_launches"]) for report in reports)
    if graphs:
        words = f"{counted(graphs, 'whole CUDA graph launch', 'count')} as busy; what ran inside them was not traced"
        yield f"{words} (record with --cuda-graph-trace=node)"
    if selection.streams is not None:
        yield "only the selected streams count: idle: no selected stream is busy"
    for made_of in dict.fromkeys(report.metadata.made_of for report in reports if report.metadata.made_of):
        yield (
            f"percentages are of the whole {made_of}, not only of its steps, unless a time is selected; time "
            f"without GPU work is idle"
        )


# Field of ``Breakdown``, key of the columns, heading in files, heading on screen, importance.
_PARTS = (
    ("busy", "busy", "Busy", "busy", 0), ("kernels", "compute", "Compute", "compute", 1),
    ("nccl", "nccl", "NCCL", "NCCL", 1), ("exposed_nccl", "exposed_nccl", "Exposed NCCL", "exposed", 1),
    ("memory", "memory", "Memory", "memory", 2), ("graph", "graph", "Graph", "graph", 3),
    ("idle", "idle", "Idle", "idle", 1),
)  # fmt: skip
BUSY_PARTS = (
    ("compute_percent", "compute"), ("exposed_nccl_percent", "nccl"), ("memory_percent", "memory"),
    ("graph_percent", "graph"),
)  # fmt: skip
"""Segments of the busy bar; memory and graph without time that compute or NCCL covers."""
SHARE_COLUMNS = tuple(
    Column(
        f"{key}_percent", header=f"{title} (%)", label=f"{label} %", unit=Unit.PERCENT, decimals=2,
        importance=importance, has_bar=key == "busy", stack=BUSY_PARTS if key == "busy" else (),
    )
    for _, key, title, label, importance in _PARTS
)  # fmt: skip
"""Percentages of the window, in the order of ``shares``."""
COLUMNS = (
    RANK,
    DEVICE,
    Column("gpu", header="GPU", label="gpu", unit=Unit.NUMBER, importance=4),
    Column("model", header="GPU Model", label="model", importance=5),
    *SHARE_COLUMNS,
    *(
        Column(f"{key}_ns", header=f"{title} (ns)", label=label, unit=Unit.DURATION, importance=6)
        for _, key, title, label, _ in _PARTS
    ),
    Column("overlap_ns", header="NCCL over Compute (ns)", label="NCCL over compute", unit=Unit.DURATION, importance=7),
    Column("exposed_memory_ns", header="Exposed Memory (ns)", label="exposed memory", unit=Unit.DURATION, importance=7),
    Column("recorded_ns", header="Recorded (ns)", label="recorded", unit=Unit.DURATION, importance=8),
    Column("window_ns", header="Window (ns)", label="window", unit=Unit.DURATION, importance=8),
)
TIME_COLUMNS = (RANK, DEVICE, START, *(column for column in SHARE_COLUMNS if column.key != "idle_percent"))
_NEARLY_ALL = 0.99  # the sessions of one job begin and end some ms apart


def shares(breakdown: Breakdown | None) -> list[float | None]:
    """Return the percentages of ``SHARE_COLUMNS``; all missing if ``breakdown`` is."""
    if breakdown is None:
        return [None] * len(SHARE_COLUMNS)
    return [breakdown.percent(breakdown.known(name)) for name, *_ in _PARTS]


def utilisation_table(busy: BusyIntervals, window: Window) -> TableAnswer:
    """Tabulate each device's busy time in ``window``, in percent and ns (docs/numbers.md#gpu-time, #exposed-time)."""
    rows: list[Row] = []
    for item in busy.devices:
        breakdown = item.breakdown(window)
        gpu = (*_rank_and_device(item.device), item.device.gpu, item.device.model)
        times = [breakdown.known(name) for name in (*(name for name, *_ in _PARTS), "overlap", "exposed_memory")]
        rows.append((*gpu, *shares(breakdown), *times, breakdown.recorded, breakdown.time))
    return TableAnswer("gpu", COLUMNS, rows, len(rows), _table_notes(busy, window))


def utilisation_over_time(busy: BusyIntervals, window: Window, bins: int) -> TableAnswer:
    """Tabulate the percentages of ``bins`` equal spans of ``window``, for each device.

    ``start`` is in job time, ns (rounded down). Spans outside the report's session have no values. Raises ValueError
    if ``bins < 1``.
    """
    rows: list[Row] = []
    starts, names = edges_of(window, bins)[:-1], [name for name, *_ in _PARTS if name != "idle"]
    for item in busy.devices:
        percent = (100.0 * np.column_stack([item.share(name, window, bins) for name in names])).tolist()
        rows += [
            (*_rank_and_device(item.device), start, *values) for start, values in zip(starts, percent, strict=True)
        ]
    return TableAnswer("gpu-time", TIME_COLUMNS, rows, len(rows), _table_notes(busy, window))


def _table_notes(busy: BusyIntervals, window: Window) -> tuple[str, ...]:
    if busy.shares_clock:
        return (*busy.notes, *recording_notes(busy, window))
    return (*busy.notes, "these reports share no clock: select the ranks of one report to see it over its own time")


def window_notes(busy: BusyIntervals, windows: Mapping[int, Window]) -> tuple[str, ...]:
    """Return notes if windows differ, or were not fully recorded."""
    distinct = set(windows.values())
    if len(distinct) > 1:
        return ("these reports share no clock: each is measured over its own events",)
    return tuple(note for window in distinct for note in recording_notes(busy, window))


def recording_notes(busy: BusyIntervals, window: Window) -> tuple[str, ...]:
    """Return a note on ranks that were not recorded for all of ``window``."""
    width = window.end - window.start
    partly = dict.fromkeys(
        item.device.task.rank
        for item in busy.devices
        if item.recorded_in(window) < _NEARLY_ALL * (width - item.pauses.length_within(window.start, window.end))
    )
    if not partly:
        return ()
    who = f"rank {few_numbers(partly)} was" if len(partly) == 1 else f"ranks {few_numbers(partly)} were"
    return (f"{who} not recorded for all of this time: the missing part counts as idle in totals",)


def _rank_and_device(device: Device) -> tuple[int, int]:
    return device.task.rank, device.device
