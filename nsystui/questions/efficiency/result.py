"""The efficiency of a job or of a selection: one window for every rank, and everything that its tables are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsystui.base.columns import Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Window
from nsystui.base.text import few_numbers
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.questions.efficiency.device import DeviceEfficiency, Useful
from nsystui.questions.efficiency.host import HostEfficiency, host_calls, host_times
from nsystui.questions.efficiency.mfu import Mfu, MfuRequest, mfu, recorded_size
from nsystui.questions.gpu.device_time import Breakdown, DeviceIntervals
from nsystui.questions.gpu.utilisation import BusyIntervals, recording_notes, unplaced
from nsystui.questions.job import Job
from nsystui.questions.ranks.steps import step_times
from nsystui.questions.time_window import extent, recorded, selected_reports, shares_clock
from nsystui.store.session import Session


def common_window(session: Session, selection: Selection) -> Window:
    """The selection's window; without one, the events of the selected reports as far as all of them were recording.

    From the first event of the selected reports to their last, cut to what is common to their sessions: never each
    rank's own duration, and no rank is idle because it was not recorded (docs/numbers.md#efficiency-window). Job time,
    ns.

    Raises UsageError where the reports share no clock or no time.
    """
    reports = selected_reports(session, selection)
    if not shares_clock(reports):
        raise UsageError("these reports share no clock: choose the ranks of one of them (--ranks, or r on a screen)")
    if selection.window is not None or not reports:
        return extent(session, selection)
    events, sessions = extent(session, selection), [recorded(report) for report in reports]
    start = max(events.start, *(one.start for one in sessions))
    end = min(events.end, *(one.end for one in sessions))
    if end <= start and events.end > events.start:
        raise UsageError("at no time were all of these ranks recorded: choose ranks (--ranks) or a time (--time)")
    return Window(start, max(start, end))


def window_note(session: Session, selection: Selection, window: Window) -> str:
    """The note on the window."""
    width = format_value(Unit.DURATION, window.end - window.start)
    span = f"{width} from {format_value(Unit.TIME, window.start)}"
    if selection.window is not None:
        return f"100 % is the selected time, {span}, of each GPU"
    many = len(selected_reports(session, selection)) > 1
    what = "the time in which every selected report was recording events" if many else "from first to last event"
    events = extent(session, selection)
    if window != events:
        whole = format_value(Unit.DURATION, events.end - events.start)
        span += f" (in other tables {whole}, from first to last event)"
    return f"100 % is {what}, {span}, of each GPU"


@dataclass(frozen=True, eq=False)
class Efficiency:
    """``spent[i]`` is how the time of ``gpus[i]`` was spent in ``window``. Notes belong to all, GPUs, or hosts."""

    window: Window
    useful: Useful
    gpus: tuple[DeviceIntervals, ...]
    spent: tuple[Breakdown, ...]
    device: DeviceEfficiency
    host: HostEfficiency
    notes: tuple[str, ...]
    device_notes: tuple[str, ...]
    host_notes: tuple[str, ...]

    @property
    def span(self) -> str:
        """The length of the window in words: what 100 % is."""
        return format_value(Unit.DURATION, self.window.end - self.window.start)


def efficiency(job: Job, selection: Selection, useful: Useful = Useful.POP) -> Efficiency:
    """The efficiency of the selected tasks and devices over ``common_window``.

    Raises UsageError where the selected reports share no clock or no time.
    """
    session = job.session
    window = common_window(session, selection)
    busy = job.busy(selection)
    gpus = job.gpus(selection)
    spent = tuple(gpu.breakdown(window) for gpu in gpus)
    calls = job.once(("host-calls", selection.tasks), lambda: host_calls(session, selection, job.ranks))
    host = HostEfficiency.of(host_times(calls, window))
    device_notes = tuple(_device_notes(job, busy, gpus, window, useful))
    return Efficiency(
        window=window,
        useful=useful,
        gpus=gpus,
        spent=spent,
        device=DeviceEfficiency.of(spent, useful),
        host=host,
        notes=(window_note(session, selection, window), *busy.notes, *_clock_notes(job, selection)),
        device_notes=device_notes,
        host_notes=tuple(_host_notes(host)) if host.processes else (),
    )


def _clock_notes(job: Job, selection: Selection) -> Iterator[str]:
    """The note on the clock, where several reports share one."""
    reports = selected_reports(job.session, selection)
    if len(reports) > 1 and job.alignment is not None:
        yield job.alignment.words(reports)


def mfu_of(job: Job, selection: Selection, found: Efficiency, request: MfuRequest) -> Mfu:
    """The MFU over the window and GPUs of ``found``. Raises UsageError for a step range that is no pattern."""
    steps = job.steps(request.step_range)
    return mfu(request, steps, found.gpus, selected_reports(job.session, selection), found.window)


def steps_in(job: Job, found: Efficiency, name: str | None = None) -> int | None:
    """The number of steps that begin in the window, of the task that has most; ``None`` where no steps are known."""
    tasks = {device.task.task for gpu in found.gpus for device in gpu.devices}
    times = step_times(job.steps(name), found.window)
    return max((len(one) for task, one in times.items() if task in tasks), default=None)


def _device_notes(
    job: Job, busy: BusyIntervals, gpus: tuple[DeviceIntervals, ...], window: Window, useful: Useful
) -> Iterator[str]:
    if not gpus:
        return
    yield useful.words
    if any(gpu.breakdown(window).graph for gpu in gpus):
        yield "whole CUDA graphs count as useful: NCCL and copies inside them cannot be told apart"
    size = recorded_size(job.session.reports)
    if size > len(job.ranks):
        yield f"{len(job.ranks)} of the {size} processes of the job are open: factors are of those alone"
    elif len(gpus) == 1:
        yield "one GPU: its load balance is 100 % whatever it did"
    if not any(useful.time(gpu.breakdown(window)) for gpu in gpus):
        yield "nothing useful ran: factors with nothing to divide by are 0, as in DLB"
    if unplaced(job.session, gpus):
        yield "these exports do not say which GPU a process used: each process's device counts as a GPU of its own"
    yield from recording_notes(busy, window)


def _host_notes(host: HostEfficiency) -> Iterator[str]:
    yield (
        "host: a process is in a call while any of its threads is; useful is all other time, an upper bound; "
        "only processes that used a GPU"
    )
    with_mpi = [one.task.rank for one in host.processes if one.mpi is not None]
    if not with_mpi:
        yield f"no MPI calls here: time in MPI, if there was any, counts as useful ({canonical.MPI_CALLS.record})"
    elif len(with_mpi) < len(host.processes):
        without = [one.task.rank for one in host.processes if one.mpi is None]
        yield f"no MPI efficiency: no MPI calls of rank {few_numbers(without)} ({canonical.MPI_CALLS.record})"
    without = [one.task.rank for one in host.processes if one.cuda is None]
    if without:
        yield f"no host efficiency: no CUDA calls of rank {few_numbers(without)} ({canonical.API_CALLS.record})"
