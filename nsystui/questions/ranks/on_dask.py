"""The figures of the tables of ranks, computed on a Dask cluster: a task for each report of a packed job.

The workers compute what is kept of single reports, with the functions that compute it everywhere; the session then has
it at hand, and makes of it what it makes of its own.
"""

from __future__ import annotations

import json
import logging
import os
import pkgutil
import warnings
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.base.errors import ExportError, NsystuiError, UsageError
from nsystui.base.version import __version__
from nsystui.store.database import Limits
from nsystui.store.session import Session

if TYPE_CHECKING:
    from distributed import Client

    from nsystui.store.results import Arrays

VERSION = "nsystui:__version__"
"""The name of nsystui's version, as ``pkgutil.resolve_name`` takes it."""
_CONNECTING = 15
_FIRST_WORKER = 60
_BETWEEN_LOOKS = 5
"""The time-outs for the scheduler and for a worker, and the interval at which workers are checked, seconds."""


def report_arrays(path: str, limits: Limits, only_collectives: bool) -> dict[tuple[str, str], Arrays] | str:
    """Runs on a worker: the arrays of one report of a packed job, by name and version; a text says why not."""
    from nsystui.base.selection import Selection
    from nsystui.questions.collectives.matching import stream_sequences
    from nsystui.questions.job import Job
    from nsystui.questions.ranks.table import rank_table

    if not os.path.isdir(path):
        return f"{path} is not there for the worker on {os.uname().nodename}: it must see the packed job as you do"
    session = Session(limits=limits)
    try:
        report = session.add(Path(path))
        session.hold(report)
        job, everything = Job(session), Selection()
        stream_sequences(session, session.reports)  # of which the common clock is made
        job.collectives()
        if not only_collectives:
            rank_table(session, everything, job.ranks, job.rank_facts(everything))
        return session.held(report)
    except ExportError as error:
        return f"on {os.uname().nodename}: {error}"
    finally:
        session.close()


def compute_on_dask(
    session: Session,
    scheduler: str,
    only_collectives: bool,
    report_progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Has the workers of ``scheduler`` (an address, or the path of a scheduler file) compute what the tables need.

    ``only_collectives``: not what only the table of ranks needs. The reports of ``session`` must be of packed jobs that
    the workers see under the same paths. Raises NsystuiError where the cluster cannot do it.
    """
    with _client(scheduler) as client:
        _check_workers(client, scheduler)
        limits = Limits(1, session.limits.memory)
        futures = {
            client.submit(report_arrays, str(report.path.absolute()), limits, only_collectives, pure=False): report
            for report in session.reports
        }
        for done, future in enumerate(_finished(client, list(futures), scheduler), 1):
            found = future.result()
            if isinstance(found, str):
                raise NsystuiError(f"--dask {scheduler}: {found}")
            session.hold(futures[future], found)
            report_progress(done)


@contextmanager
def _client(scheduler: str) -> Iterator[Client]:
    """A connection to the cluster, whose troubles become NsystuiErrors: one line each, and no log."""
    try:
        import distributed
    except ImportError:
        raise UsageError("--dask needs Dask: pip install 'nsystui[dask]'") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    address = _address(scheduler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # versions of other packages, which nothing here depends on
        try:
            client: Client = distributed.Client(address, timeout=_CONNECTING)
        except (OSError, ValueError) as error:  # a timeout is an OSError
            raise NsystuiError(f"--dask {scheduler}: no connection to the scheduler: {_first_line(error)}") from None
    try:
        yield client
    except NsystuiError:
        raise
    except (Exception, CancelledError) as error:
        raise NsystuiError(f"--dask {scheduler}: the cluster failed: {_first_line(error)}") from None
    finally:
        client.close()


def _address(scheduler: str) -> str:
    """The address given, or that of a scheduler file. Raises UsageError where that is no address."""
    address = scheduler
    if os.path.exists(scheduler):
        try:
            address = json.loads(Path(scheduler).read_text(encoding="utf-8"))["address"]
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(f"--dask {scheduler}: not a file that a Dask scheduler wrote") from None
    if ":" not in address:
        raise UsageError(f"--dask {scheduler}: neither a scheduler file nor an address such as tcp://host:8786")
    return address


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _check_workers(client: Client, scheduler: str) -> None:
    """Raises NsystuiError where there is no worker, or one that would not compute the same."""
    try:
        client.wait_for_workers(1, timeout=_FIRST_WORKER)
    except TimeoutError:
        raise NsystuiError(f"--dask {scheduler}: no worker came within {_FIRST_WORKER} s") from None
    # Of the standard library: a function of ours could not even be sent where nsystui is missing.
    versions = client.run(pkgutil.resolve_name, VERSION, on_error="return")
    for worker, version in versions.items():
        if isinstance(version, ImportError):
            raise NsystuiError(f"--dask {scheduler}: the worker {worker} has no nsystui: install {__version__} there")
        if version != __version__:
            raise NsystuiError(f"--dask {scheduler}: the worker {worker} has nsystui {version}, here is {__version__}")


def _finished(client: Client, futures: list[Any], scheduler: str) -> Iterator[Any]:
    """The futures as they finish. Raises NsystuiError where no worker is left to compute the rest."""
    from distributed import wait

    pending = set(futures)
    while pending:
        try:
            done, pending = wait(pending, timeout=_BETWEEN_LOOKS, return_when="FIRST_COMPLETED")
        except TimeoutError:
            if client.status != "running" or not client.scheduler_info()["workers"]:
                lost = f"{len(pending)} of {len(futures)} reports are not computed"
                raise NsystuiError(f"--dask {scheduler}: the workers are gone, {lost}") from None
        else:
            yield from done
