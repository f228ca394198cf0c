"""The workers of a Dask cluster, which compute parts of answers where a packed job's reports are stored.

A task is a run of reports: a worker opens them with their local numbers and clock, and calls the function of a local
computation (`nsystui.questions.queries.derived.in_runs`). If a worker dies, Dask moves its tasks to another
worker. If several workers die with a task, its reports are computed one at a time, so that a failure names the report.
"""

from __future__ import annotations

import logging
import os
import pkgutil
import warnings
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nsystui.base.errors import ExportError, NsystuiError, UsageError, reason_of
from nsystui.base.files import json_in, text_of
from nsystui.base.resources import Limits
from nsystui.base.text import counted, few
from nsystui.base.version import __version__
from nsystui.exports.discover import is_packed_report
from nsystui.store.report import Clock, Report
from nsystui.store.session import Compute, Session

if TYPE_CHECKING:
    from distributed import Client, Future

    from nsystui.base.kernel_families import Rules

T = TypeVar("T")
VERSION = "nsystui:__version__"
"""The name of nsystui's version for ``pkgutil.resolve_name``."""
_CONNECT_TIMEOUT = 15
_WORKER_TIMEOUT = 60
_CHECK_INTERVAL = 5
"""Time-outs for scheduler and worker, and the interval of worker checks, seconds."""
_TASKS_PER_THREAD = 8
"""Fewest tasks per worker thread, so that all threads finish at about the same time."""
_MAX_REPORTS = 16


class ReportPlace(NamedTuple):
    """A report as opened locally: its number, its directory, and its clock's offset, ns, and rate."""

    report: int
    path: str
    clock_offset: int
    clock_rate: float = 0.0


class WorkerResult(NamedTuple):
    """The result of a worker, or the reason for its failure."""

    result: Any = None
    failure: str = ""


def compute_there(
    places: Sequence[ReportPlace], limits: Limits, compute: Compute[Any], families: Rules = ()
) -> WorkerResult:
    """Return the result of ``compute`` for some reports of a packed job; runs on a worker."""
    session, host = Session(limits=limits, families=families), os.uname().nodename
    try:
        for item in places:
            if not os.path.isdir(os.path.dirname(item.path)):
                return WorkerResult(
                    failure=f"the worker on {host} does not see {item.path}: it must have the packed job there"
                )
            session.add(Path(item.path), index=item.report)
        shifts = {item.report: item.clock_offset for item in places}
        session.set_clock(Clock(False, shifts, {item.report: item.clock_rate for item in places}))
        return WorkerResult(compute(session, list(session.reports)))
    except ExportError as error:
        return WorkerResult(failure=f"on {host}: {error}")
    finally:
        session.close()


def check_packed(paths: Iterable[Path]) -> None:
    """Raise UsageError if an export is not packed: workers open reports of packed jobs only."""
    for path in paths:
        if not is_packed_report(path):
            raise UsageError(f"--dask needs a packed job, which {path} is not: nsystui pack FILE… -o DIR makes one")


@dataclass
class DaskWorkers:
    """The workers of a cluster for a session (`nsystui.store.session.Workers`), made by `connect`."""

    scheduler: str
    client: Client
    limits: Limits
    families: Rules = ()

    @classmethod
    def connect(cls, scheduler: str, limits: Limits, families: Rules = ()) -> DaskWorkers:
        """Return a scheduler's workers, by address or scheduler file. Raises NsystuiError without workers.

        ``limits`` and ``families`` are the local session's; a worker computes with one thread.
        """
        try:
            import distributed
        except ImportError:
            raise UsageError("--dask needs Dask: pip install 'nsystui[dask]'") from None
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        address = _address(scheduler)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about versions of packages that nsystui does not need
            try:
                client: Client = distributed.Client(address, timeout=_CONNECT_TIMEOUT, set_as_default=False)
            except (OSError, ValueError) as error:  # a timeout is an OSError
                raise NsystuiError(f"--dask {scheduler}: no connection to the scheduler: {reason_of(error)}") from None
        workers = cls(scheduler, client, Limits(1, limits.memory), families)
        try:
            with workers._errors():
                workers._check_workers()
        except BaseException:
            workers.close()
            raise
        return workers

    def close(self) -> None:
        """Close the client; the cluster keeps running."""
        self.client.close()

    def share(self, reports: int) -> int:
        """Return the reports per task that make several tasks per thread, if possible."""
        threads = sum(self.client.nthreads().values())
        return int(min(max(reports // max(threads * _TASKS_PER_THREAD, 1), 1), _MAX_REPORTS))

    def each(self, work: Sequence[tuple[list[Report], Compute[T]]], tell: Callable[[int], object]) -> Iterator[T]:
        """Implement `Workers.each`: if its workers died, a run yields one result per report."""
        with self._errors():
            yield from self._each([_Task(*run, (number,)) for number, run in enumerate(work)], tell)

    def _each(self, tasks: list[_Task], tell: Callable[[int], object]) -> Iterator[Any]:
        from distributed import KilledWorker

        waiting = {self._submit(task): task for task in tasks}
        remaining = {task.position for task in tasks}
        suspects: list[_Task] = []
        results: dict[tuple[int, ...], Any] = {}
        done = 0
        try:
            while waiting:
                for future in self._finished(waiting):
                    task = waiting.pop(future)
                    error = future.exception()
                    if isinstance(error, KilledWorker) and not task.is_alone:
                        # Dask suspects all tasks of the dead workers, running or not.
                        remaining.remove(task.position)
                        suspects += task.by_report()
                        continue
                    results[task.position] = self._result(task, future, error)
                    done += len(task.reports)
                    tell(done)
                if suspects and not waiting:
                    single = suspects.pop(0)
                    remaining.add(single.position)
                    waiting[self._submit(single)] = single
                first_suspect = min((task.position for task in suspects), default=(len(tasks),))
                while remaining and (first := min(remaining)) in results and first < first_suspect:
                    remaining.remove(first)
                    yield results.pop(first)
        finally:
            self.client.cancel(list(waiting))

    def _submit(self, task: _Task) -> Future:
        places = [
            ReportPlace(item.index, str(item.path.absolute()), item.clock_offset, item.clock_rate)
            for item in task.reports
        ]
        return self.client.submit(compute_there, places, self.limits, task.compute, self.families, pure=False)

    def _result(self, task: _Task, future: Future, error: BaseException | None) -> Any:
        from distributed import KilledWorker

        if isinstance(error, KilledWorker):
            deaths = f"{error.allowed_failures + 1} workers died, one after the other"
            raise self._error(f"{task.names} cannot be computed: {deaths} (too little memory?)")
        if isinstance(error, NsystuiError):
            raise error
        if error is not None:
            raise self._error(f"{task.names} cannot be computed: {reason_of(error)}")
        computed: WorkerResult = future.result()
        if computed.failure:
            raise self._error(computed.failure)
        return computed.result

    def _finished(self, waiting: dict[Future, _Task]) -> list[Future]:
        """Return the finished tasks, at least one. Raises NsystuiError if no worker is left for unfinished tasks."""
        from distributed import wait

        while True:
            try:
                with self.client.as_current():
                    return list(wait(list(waiting), timeout=_CHECK_INTERVAL, return_when="FIRST_COMPLETED").done)
            except TimeoutError:
                if self.client.status != "running" or not self.client.nthreads():
                    lost = sum(len(task.reports) for task in waiting.values())
                    raise self._error(f"the workers are gone, {counted(lost, 'report', 'are')} not computed") from None

    def _check_workers(self) -> None:
        """Raise NsystuiError if there is no worker, or a worker with another version of nsystui."""
        try:
            self.client.wait_for_workers(1, timeout=_WORKER_TIMEOUT)
        except TimeoutError:
            raise self._error(f"no worker connected within {_WORKER_TIMEOUT} s") from None
        # A function of the standard library: nsystui's functions cannot be sent to a worker without nsystui.
        for worker, version in self.client.run(pkgutil.resolve_name, VERSION, on_error="return").items():
            if isinstance(version, OSError):
                continue  # a lost worker, which Dask handles
            if isinstance(version, ImportError):
                raise self._error(f"the worker {worker} has no nsystui: install {__version__} there")
            if version != __version__:
                raise self._error(f"the worker {worker} has nsystui {version}, here is {__version__}")

    def _error(self, reason: str) -> NsystuiError:
        return NsystuiError(f"--dask {self.scheduler}: {reason}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (NsystuiError, GeneratorExit):
            raise
        except (Exception, CancelledError) as error:
            raise self._error(f"the cluster failed: {reason_of(error)}") from None


@dataclass(frozen=True)
class _Task:
    """A run of reports; ``position`` orders its result.

    A task ``is_alone`` if no other task runs meanwhile: if workers die, this task is the cause.
    """

    reports: list[Report]
    compute: Compute[Any]
    position: tuple[int, ...]
    is_alone: bool = False

    def by_report(self) -> Iterator[_Task]:
        for number, report in enumerate(self.reports):
            yield _Task([report], self.compute, (*self.position, number), is_alone=True)

    @property
    def names(self) -> str:
        return few([report.name for report in self.reports])


def _address(scheduler: str) -> str:
    """Return an address, given or in a scheduler file. Raises UsageError if it is not an address."""
    address = scheduler
    if os.path.exists(scheduler):
        try:
            address = json_in(text_of(scheduler))["address"]
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(f"--dask {scheduler}: not a file that a Dask scheduler wrote") from None
    if ":" not in address:
        raise UsageError(f"--dask {scheduler}: neither a scheduler file nor an address such as tcp://host:8786")
    return address
