"""The workers of a Dask cluster, which compute what answers are made of where the reports of a packed job lie.

A task is a run of reports: a worker opens them as they are open here (their numbers, their clock) and computes with the
function that computes it here (`nsystui.questions.queries.derived.in_runs`). Where a worker dies, Dask gives its tasks
to another; those that no worker survives are done again in the end, report by report and one at a time, so that a
failure names the report.
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
from nsystui.base.inputs import json_in, text_of
from nsystui.base.version import __version__
from nsystui.exports.discover import is_packed_report
from nsystui.store.database import Limits
from nsystui.store.report import Clock, Report
from nsystui.store.session import Compute, Session

if TYPE_CHECKING:
    from distributed import Client, Future

    from nsystui.base.kernel_families import Rules

T = TypeVar("T")
VERSION = "nsystui:__version__"
"""The name of nsystui's version, as ``pkgutil.resolve_name`` takes it."""
_CONNECTING = 15
_FIRST_WORKER = 60
_BETWEEN_LOOKS = 5
"""The time-outs for the scheduler and for a worker, and the interval at which workers are checked, seconds."""
_TASKS_OF_A_THREAD = 8
"""The tasks that a thread of a worker gets at least, so that all are done at about the same time."""
_MOST_REPORTS = 16


class ReportPlace(NamedTuple):
    """A report as it is open here: its number, its directory, and what is added to its times, ns."""

    report: int
    path: str
    clock_offset: int


class WorkerResult(NamedTuple):
    """What a worker computed, or why it could not."""

    result: Any = None
    failure: str = ""


def compute_there(
    places: Sequence[ReportPlace], limits: Limits, compute: Compute[Any], families: Rules = ()
) -> WorkerResult:
    """Runs on a worker: what ``compute`` gives for some reports of a packed job."""
    session, host = Session(limits=limits, families=families), os.uname().nodename
    try:
        for place in places:
            if not os.path.isdir(place.path):
                return WorkerResult(
                    failure=f"the worker on {host} does not see {place.path}: it must have the packed job there"
                )
            session.add(Path(place.path), index=place.report)
        session.set_clock(Clock(is_common=False, shifts={place.report: place.clock_offset for place in places}))
        return WorkerResult(compute(session, list(session.reports)))
    except ExportError as error:
        return WorkerResult(failure=f"on {host}: {error}")
    finally:
        session.close()


def check_packed(paths: Iterable[Path]) -> None:
    """Raises UsageError for what the workers of a cluster could not open: exports are packed where they lie."""
    for path in paths:
        if not is_packed_report(path):
            raise UsageError(f"--dask needs a packed job, which {path} is not: nsystui pack FILE… -o DIR makes one")


@dataclass
class DaskWorkers:
    """The workers of a cluster as a session has them (`nsystui.store.session.Workers`); `connect` makes it."""

    scheduler: str
    client: Client
    limits: Limits
    families: Rules = ()

    @classmethod
    def connect(cls, scheduler: str, limits: Limits, families: Rules = ()) -> DaskWorkers:
        """The workers of a scheduler: its address, or the path of its file. Raises NsystuiError without any.

        ``limits`` and ``families`` are those of a session here; a worker computes with one thread.
        """
        try:
            import distributed
        except ImportError:
            raise UsageError("--dask needs Dask: pip install 'nsystui[dask]'") from None
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        address = _address(scheduler)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # versions of other packages, which nothing here depends on
            try:
                client: Client = distributed.Client(address, timeout=_CONNECTING, set_as_default=False)
            except (OSError, ValueError) as error:  # a timeout is an OSError
                raise NsystuiError(f"--dask {scheduler}: no connection to the scheduler: {reason_of(error)}") from None
        found = cls(scheduler, client, Limits(1, limits.memory), families)
        try:
            with found._errors():
                found._check_workers()
        except BaseException:
            found.close()
            raise
        return found

    def close(self) -> None:
        """Close the client; the cluster stays."""
        self.client.close()

    def share(self, reports: int) -> int:
        """How many reports make a task: few enough for each thread of the cluster to get some tasks."""
        threads = sum(self.client.nthreads().values())
        return int(min(max(reports // max(threads * _TASKS_OF_A_THREAD, 1), 1), _MOST_REPORTS))

    def each(self, work: Sequence[tuple[list[Report], Compute[T]]], tell: Callable[[int], object]) -> Iterator[T]:
        """What is computed of runs of reports, in their order; ``tell`` is told how many reports are done.

        A run whose workers died comes report by report, with as many results. Raises NsystuiError.
        """
        with self._errors():
            yield from self._each([_Task(*one, (number,)) for number, one in enumerate(work)], tell)

    def _each(self, tasks: list[_Task], tell: Callable[[int], object]) -> Iterator[Any]:
        from distributed import KilledWorker

        waiting = {self._submit(task): task for task in tasks}
        ahead = {task.place for task in tasks}
        suspects: list[_Task] = []
        results: dict[tuple[int, ...], Any] = {}
        done = 0
        try:
            while waiting:
                for future in self._finished(waiting):
                    task = waiting.pop(future)
                    error = future.exception()
                    if isinstance(error, KilledWorker) and not task.is_alone:
                        # Dask suspects every task that the dead workers had, running or not.
                        ahead.remove(task.place)
                        suspects += task.by_report()
                        continue
                    results[task.place] = self._result(task, future, error)
                    done += len(task.reports)
                    tell(done)
                if suspects and not waiting:
                    single = suspects.pop(0)
                    ahead.add(single.place)
                    waiting[self._submit(single)] = single
                first_suspect = min((task.place for task in suspects), default=(len(tasks),))
                while ahead and (first := min(ahead)) in results and first < first_suspect:
                    ahead.remove(first)
                    yield results.pop(first)
        finally:
            self.client.cancel(list(waiting))

    def _submit(self, task: _Task) -> Future:
        places = [ReportPlace(one.index, str(one.path.absolute()), one.clock_offset) for one in task.reports]
        return self.client.submit(compute_there, places, self.limits, task.compute, self.families, pure=False)

    def _result(self, task: _Task, future: Future, error: BaseException | None) -> Any:
        """What a task computed. Raises NsystuiError where it could not."""
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
        """Those that are done, one at least. Raises NsystuiError where no worker is left to compute the rest."""
        from distributed import wait

        while True:
            try:
                with self.client.as_current():
                    return list(wait(list(waiting), timeout=_BETWEEN_LOOKS, return_when="FIRST_COMPLETED").done)
            except TimeoutError:
                if self.client.status != "running" or not self.client.nthreads():
                    lost = sum(len(task.reports) for task in waiting.values())
                    raise self._error(f"the workers are gone, {lost} reports are not computed") from None

    def _check_workers(self) -> None:
        """Raises NsystuiError where there is no worker, or one that would not compute the same."""
        try:
            self.client.wait_for_workers(1, timeout=_FIRST_WORKER)
        except TimeoutError:
            raise self._error(f"no worker came within {_FIRST_WORKER} s") from None
        # Of the standard library: a function of ours could not even be sent where nsystui is missing.
        versions = self.client.run(pkgutil.resolve_name, VERSION, on_error="return")
        for worker, version in versions.items():
            if isinstance(version, OSError):
                continue  # it is gone, or going: Dask knows
            if isinstance(version, ImportError):
                raise self._error(f"the worker {worker} has no nsystui: install {__version__} there")
            if version != __version__:
                raise self._error(f"the worker {worker} has nsystui {version}, here is {__version__}")

    def _error(self, reason: str) -> NsystuiError:
        return NsystuiError(f"--dask {self.scheduler}: {reason}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """The troubles of a cluster as NsystuiErrors: one line each, and no log."""
        try:
            yield
        except (NsystuiError, GeneratorExit):
            raise
        except (Exception, CancelledError) as error:
            raise self._error(f"the cluster failed: {reason_of(error)}") from None


@dataclass(frozen=True)
class _Task:
    """A run of reports; ``place`` is where its result stands among the others.

    A task ``is_alone`` while the cluster has no other: then the workers that die, die of it.
    """

    reports: list[Report]
    compute: Compute[Any]
    place: tuple[int, ...]
    is_alone: bool = False

    def by_report(self) -> Iterator[_Task]:
        for number, report in enumerate(self.reports):
            yield _Task([report], self.compute, (*self.place, number), is_alone=True)

    @property
    def names(self) -> str:
        from nsystui.base.text import few

        return few([report.name for report in self.reports])


def _address(scheduler: str) -> str:
    """The address given, or that of a scheduler file. Raises UsageError where that is no address."""
    address = scheduler
    if os.path.exists(scheduler):
        try:
            address = json_in(text_of(scheduler))["address"]
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(f"--dask {scheduler}: not a file that a Dask scheduler wrote") from None
    if ":" not in address:
        raise UsageError(f"--dask {scheduler}: neither a scheduler file nor an address such as tcp://host:8786")
    return address
