"""A job's efficiency in a window common to all ranks, its factors in order, and the scaling between two jobs.

The efficiency of the GPUs is the useful part of their time (docs/numbers.md#device-efficiency). With Useful_d the
useful time of device d, Moved_d its communication that no useful work hides, T the window and D the number of devices::

    parallel efficiency      = Σ Useful_d / (D·T)   = load balance × communication × orchestration
    load balance             = (Σ Useful_d / D) / max Useful_d
    communication efficiency = max Useful_d / max (Useful_d + Moved_d)      (two independent maxima)
    orchestration efficiency = max (Useful_d + Moved_d) / T

A factor with a divisor of 0 is 0, as in DLB. `Useful` defines useful time; whole CUDA graphs always count as useful.

Scalability compares jobs of different size. Both must have done the same work, such as equally many steps, in total
(strong scaling) or per device (weak scaling).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from nsystui.base.answer import Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Window
from nsystui.base.text import counted, few_numbers, whole_number
from nsystui.base.units import format_value
from nsystui.exports.canonical import API_CALLS, MPI_CALLS, CanonicalTable
from nsystui.exports.metadata import ALLOCATION_VARIABLE, SIZE_VARIABLES
from nsystui.questions.capture.launch_account import lost_work, lost_work_notes
from nsystui.questions.efficiency.host import HostEfficiency, host_calls, host_times, ratio
from nsystui.questions.gpu.device_time import Breakdown, DeviceIntervals, is_unknown
from nsystui.questions.gpu.utilisation import BusyIntervals, recording_notes, unplaced
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.pauses import pauses
from nsystui.questions.queries.recording import recording_advice
from nsystui.questions.queries.time_window import extent, recorded, selected_reports, shares_clock
from nsystui.questions.ranks.steps import step_times
from nsystui.store.report import Report
from nsystui.store.session import Session


class Useful(Enum):
    """The part of a GPU's time that counts as useful; the value is its name in a flag."""

    POP = "pop"
    """Kernels except NCCL's; NCCL kernels, copies and memsets are communication. As in basicanalysis and nsys2prv."""
    TALP = "talp"
    """All kernels, with NCCL's; copies and memsets are communication. As in DLB/TALP while a program runs."""

    @property
    def words(self) -> str:
        """The definition, as a note."""
        if self is Useful.POP:
            return "useful (pop): compute kernels; NCCL kernels, copies and memsets are communication"
        return "useful (talp): every kernel, also NCCL's; copies and memsets are communication"

    def time(self, spent: Breakdown) -> int:
        """Return Useful_d, ns."""
        if self is Useful.POP:
            return spent.kernels + spent.exposed_graph
        return spent.kernels + spent.exposed_nccl + spent.graph_without_kernels

    def moved(self, spent: Breakdown) -> int:
        r"""Return Moved_d = |U(communication) \ U(useful)|, ns."""
        return spent.busy - self.time(spent)


@dataclass(frozen=True)
class DeviceEfficiency:
    """The factors, each from 0 to 1. ``useful`` is Σ Useful_d, ns."""

    devices: int
    time: int
    useful: int
    load_balance: float
    communication: float
    orchestration: float
    lost: Counter[str] = field(default_factory=Counter)  # the GPUs that lack work, by canonical table

    @property
    def parallel(self) -> float:
        """Σ Useful_d / (D·T), the product of the three factors except for rounding."""
        return ratio(self.useful, self.devices * self.time)

    @classmethod
    def of(cls, spent: Sequence[Breakdown], useful: Useful, lost: Counter[str] | None = None) -> DeviceEfficiency:
        """Return devices' efficiency over one window; without devices, factors are 0."""
        times, time = [useful.time(device) for device in spent], spent[0].time if spent else 0
        total, max_useful = sum(times), max(times, default=0)
        max_busy = max((device.busy for device in spent), default=0)
        factors = ratio(total, len(spent) * max_useful), ratio(max_useful, max_busy), ratio(max_busy, time)
        return cls(len(spent), time, total, *factors, lost or Counter())


class Scaling(Enum):
    """The size that both jobs share; the value is its name in a flag."""

    STRONG = "strong"  # the whole problem
    WEAK = "weak"  # the problem per device


@dataclass(frozen=True)
class Sized:
    """A compared job: its efficiency, and its window's number of steps, if known."""

    device: DeviceEfficiency
    steps: int | None = None


@dataclass(frozen=True)
class Scalability:
    """The change of computation from ``baseline`` to ``job``; either may be larger."""

    scaling: Scaling
    job: Sized
    baseline: Sized

    @property
    def computation(self) -> float | None:
        """ΣUseful(baseline)/ΣUseful, for weak scaling times N/N(baseline); above 1 if the larger job computed less.

        ``None`` if the job has no useful time.
        """
        after, before = self.job.device, self.baseline.device
        if not after.useful or not before.devices or is_unknown("parallel", after.lost + before.lost):
            return None
        growth = after.devices / before.devices if self.scaling is Scaling.WEAK else 1.0
        return before.useful / after.useful * growth

    @property
    def overall(self) -> float | None:
        """``computation`` × parallel efficiency."""
        return None if self.computation is None else self.job.device.parallel * self.computation

    @property
    def note(self) -> str:
        """A note on when the comparison is valid."""
        sizes = f"{self.scaling.value} scaling from {self.baseline.device.devices} to {self.job.device.devices} GPUs"
        after, before = self.job.steps, self.baseline.steps
        if after is not None and before is not None and after != before:
            steps = f"{counted(after, 'step')} here, {before} in the baseline"
            return f"{sizes}; the work differs: {steps} (--time, --baseline-time)"
        problem = "the same problem" if self.scaling is Scaling.STRONG else "the same problem for each GPU"
        steps = f"; both have {counted(after, 'step')}" if after is not None and before is not None else ""
        return f"{sizes}: valid if both windows contain {problem}{steps} (--time, --baseline-time)"


@dataclass(frozen=True)
class Factor:
    """A factor. ``value`` is from 0 to 1 (scalability may exceed 1), or ``None`` if unknown.

    ``depth`` is its level in the tree of factors. ``low``: the meaning of a low value, and where to look next.
    """

    key: str
    name: str
    depth: int
    formula: str
    low: str
    record: str = ""  # what to record if the value is unknown
    value: float | None = None


_NOT_RECORDED = "some work of the GPUs was not recorded"
_DEVICE = (
    Factor("device_parallel", "device parallel efficiency", 0, "load balance × communication × orchestration",
        "useful share of GPU time", _NOT_RECORDED),
    Factor("device_load_balance", "load balance", 1, "mean / max of the useful time of the GPUs",
        "GPUs differ in useful work: 7 Ranks", _NOT_RECORDED),
    Factor("device_communication", "communication", 1, "max useful / max (useful + communication)",
        "exposed NCCL and copies: 3 NCCL", _NOT_RECORDED),
    Factor("device_orchestration", "orchestration", 1, "max (useful + communication) / time",
        "GPUs idle, host late: gaps in 8 Host", _NOT_RECORDED),
)  # fmt: skip
_HOST = (
    Factor("host_parallel", "host parallel efficiency", 0, "MPI parallel × device offload",
        "host time outside of MPI and CUDA"),
    Factor("mpi_parallel", "MPI parallel", 1, "MPI load balance × MPI communication",
        "time in MPI calls: 2 Kernels, MPI"),
    Factor("mpi_load_balance", "MPI load balance", 2, "mean / max of the time outside of MPI",
        "ranks wait in MPI: 2 Kernels, MPI"),
    Factor("mpi_communication", "MPI communication", 2, "max time outside of MPI / time",
        "all wait: transfers, dependencies"),
    Factor("host_offload", "device offload", 1, "time outside of MPI and CUDA calls / time outside of MPI",
        "time in CUDA calls: 2 Kernels, API"),
)  # fmt: skip
_GLOBAL = Factor("device_global", "device global efficiency", 0, "device parallel efficiency × computation scalability",
    "useful work, relative to the baseline")  # fmt: skip
_COMPUTATION = Factor("device_computation_scalability", "computation scalability", 1,
    "useful time of the baseline / useful time", "more GPU time for same work: 2 Kernels")  # fmt: skip


def device_factors(device: DeviceEfficiency, scaled: Scalability | None = None) -> list[Factor]:
    """Return the GPUs' factors, unknown without GPUs; with a baseline also scalability and global efficiency."""
    factors = []
    for item in _DEVICE:
        name = item.key.removeprefix("device_")
        is_known = device.devices and not is_unknown(name, device.lost)
        factors.append(replace(item, value=getattr(device, name) if is_known else None))
    if scaled is not None:
        factors += [replace(_GLOBAL, value=scaled.overall), replace(_COMPUTATION, value=scaled.computation)]
    return factors


def host_factors(result: Efficiency) -> list[Factor]:
    factors = []
    for item in _HOST:
        table = MPI_CALLS if item.key.startswith("mpi") else API_CALLS
        value = getattr(result.host, item.key.removeprefix("host_"))
        factors.append(replace(item, value=value, record=result.to_record[table]))
    return factors


def common_window(session: Session, selection: Selection) -> Window:
    """Return the selection's window, or else the span of the selected reports' events while all were recording.

    Job time, ns. A rank's time is never its own duration, and no rank is idle because it was not recorded
    (docs/numbers.md#efficiency-window). Raises UsageError if the reports share no clock or no time.
    """
    reports = selected_reports(session, selection)
    if not shares_clock(reports):
        raise UsageError("these reports share no clock: choose the ranks of one of them (--ranks, or r on a screen)")
    if selection.window is not None or not reports:
        return extent(session, selection)
    events, sessions = extent(session, selection), [recorded(report) for report in reports]
    start = max(events.start, *(span.start for span in sessions))
    end = min(events.end, *(span.end for span in sessions))
    if end <= start and events.end > events.start:
        raise UsageError("these ranks were never all recorded at once: choose ranks (--ranks) or a time (--time)")
    return Window(start, max(start, end))


def window_note(session: Session, selection: Selection, window: Window) -> str:
    paused = pauses(session, *selected_reports(session, selection)).length_within(window.start, window.end)
    width = format_value(Unit.DURATION, window.end - window.start - paused)
    span = f"{width} from {format_value(Unit.TIME, window.start)}"
    if selection.window is not None:
        return f"100 % of each GPU is the selected time, {span}"
    has_several = len(selected_reports(session, selection)) > 1
    what = "the time in which every selected report was recording events" if has_several else "from first to last event"
    events = extent(session, selection)
    if window != events:
        full_width = format_value(Unit.DURATION, events.end - events.start)
        span += f" (in other tables {full_width}, from first to last event)"
    return f"100 % of each GPU is {what}, {span}"


@dataclass(frozen=True, eq=False)
class Efficiency:
    """``spent[i]`` is the use of the time of ``gpus[i]`` in ``window``."""

    window: Window
    useful: Useful
    gpus: tuple[DeviceIntervals, ...]
    spent: tuple[Breakdown, ...]
    device: DeviceEfficiency
    host: HostEfficiency
    notes: tuple[str, ...]
    device_notes: tuple[str, ...]
    host_notes: tuple[str, ...]
    to_record: Mapping[CanonicalTable, str]  # how to record the calls that an unknown factor needs

    @property
    def span(self) -> str:
        """The recorded length of the window, 100 %, in words."""
        length = self.window.end - self.window.start
        return format_value(Unit.DURATION, max((item.time for item in self.spent), default=length))


def efficiency(job: OpenJob, selection: Selection, useful: Useful = Useful.POP) -> Efficiency:
    """Return the efficiency of the selected tasks and devices over `common_window`.

    Raises UsageError if the selected reports share no clock or no time.
    """
    session, reports = job.session, selected_reports(job.session, selection)
    window = common_window(session, selection)
    # Before the intervals of the GPUs, which would also be in memory meanwhile.
    calls = job.once(("host-calls", selection.tasks), lambda: host_calls(session, selection, job.ranks))
    busy = job.busy(selection)
    gpus = job.gpus(selection)
    spent = tuple(gpu.breakdown(window) for gpu in gpus)
    host = HostEfficiency.of(host_times(calls, window, {report.index: pauses(session, report) for report in reports}))
    to_record = {table: recording_advice(session, reports, table) for table in (MPI_CALLS, API_CALLS)}
    device_notes, lost_on = tuple(_device_notes(job, busy, gpus, window, useful)), lost_work(session)
    lost = Counter(table for gpu in gpus for table in lost_on.get(gpu.device.key, ()))
    clock = (job.alignment.words(reports),) if len(reports) > 1 and job.alignment is not None else ()
    notes = (window_note(session, selection, window), *busy.notes, *clock, *lost_work_notes(session, selection))
    device = DeviceEfficiency.of(spent, useful, lost)
    host_notes = tuple(_host_notes(host, to_record)) if host.processes else ()
    return Efficiency(window, useful, gpus, spent, device, host, notes, device_notes, host_notes, to_record)


def steps_in(job: OpenJob, result: Efficiency, name: str | None = None) -> int | None:
    """Return a task's largest number of steps that begin in the window, or ``None`` without known steps."""
    tasks = {device.task.task for gpu in result.gpus for device in gpu.devices}
    times = step_times(job.steps(name), result.window)
    return max((len(steps) for task, steps in times.items() if task in tasks), default=None)


def recorded_size(reports: Iterable[Report]) -> int:
    """Return the job's number of processes by the captured environment, else 0."""
    names = (*SIZE_VARIABLES, ALLOCATION_VARIABLE)
    texts = [report.metadata.environment.get(name, "") for report in reports for name in names]
    return max((whole_number(text, _MAX_PROCESSES) or 0 for text in texts), default=0)


_MAX_PROCESSES = 999_999


def _device_notes(
    job: OpenJob, busy: BusyIntervals, gpus: tuple[DeviceIntervals, ...], window: Window, useful: Useful
) -> Iterator[str]:
    if not gpus:
        return
    yield useful.words
    if any(gpu.breakdown(window).graph for gpu in gpus):
        yield "whole CUDA graphs count as useful: NCCL and copies inside them cannot be separated"
    size = recorded_size(job.session.reports)
    if size > len(job.ranks):
        yield f"the factors cover only {len(job.ranks)} of the {size} processes of the job: open all"
    elif len(gpus) == 1:
        yield "the job has one GPU, so its load balance is always 100 %"
    if not any(useful.time(gpu.breakdown(window)) for gpu in gpus):
        yield "nothing useful ran: factors that would divide by 0 are 0, as in DLB"
    if unplaced(job.session, gpus):
        yield "these exports do not say which GPU a process used: each process's device counts as a GPU of its own"
    yield from recording_notes(busy, window)


def _host_notes(host: HostEfficiency, to_record: Mapping[CanonicalTable, str]) -> Iterator[str]:
    yield (
        "host: a process counts as in a call while any of its threads is in one; all other time is useful, which is "
        "an upper bound; only processes that used a GPU count"
    )
    with_mpi = [process.task.rank for process in host.processes if process.mpi is not None]
    if not with_mpi:
        yield f"no MPI calls were recorded: any time in MPI counts as useful ({to_record[MPI_CALLS]})"
    elif len(with_mpi) < len(host.processes):
        without = [process.task.rank for process in host.processes if process.mpi is None]
        yield f"no MPI efficiency: no MPI calls of rank {few_numbers(without)} ({to_record[MPI_CALLS]})"
    without = [process.task.rank for process in host.processes if process.cuda is None]
    if without:
        yield f"no host efficiency: no CUDA calls of rank {few_numbers(without)} ({to_record[API_CALLS]})"
