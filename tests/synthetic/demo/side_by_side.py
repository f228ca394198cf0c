"""A job that several processes write: each runs some of the ranks, and meets the others at every collective of all.

They speak in pickles over their standard input and output. Python's own ``multiprocessing`` would run the script again
that started the program, which need not be written for that.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Protocol, cast

Meet = Callable[[int], int]
"""Tells when the last of the ranks here arrived, and gives back when the last of all did (ns on the true clock)."""


class WritableJob(Protocol):
    """A job whose ranks can be written by several processes."""

    def write_share(self, paths: Sequence[Path], ranks: Sequence[int], meet: Meet) -> None: ...


def write_in_processes(job: WritableJob, paths: Sequence[Path], shares: Sequence[Sequence[int]]) -> None:
    """Write each share of the ranks in a process of its own. After an error no file remains."""
    program = f"import sys; sys.path[:] = {sys.path}; from {__name__} import write_share; write_share()"
    pipe = subprocess.PIPE
    try:
        with ExitStack() as stack:
            links = []
            for ranks in shares:
                process = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe)
                # Leaving it closes its input, which is the end to a process that still waits, and waits for it.
                stack.enter_context(process)
                link = cast("IO[bytes]", process.stdout), cast("IO[bytes]", process.stdin)
                _say(link[1], (job, paths, ranks))
                links.append(link)
            _introduce(links)
    except BaseException:
        for path in paths:
            with suppress(OSError):
                path.unlink()
        raise


def _introduce(links: Sequence[tuple[IO[bytes], IO[bytes]]]) -> None:
    """Let the processes meet until all are done. Raises the error of one that has failed."""
    while True:
        try:
            told = [pickle.load(heard) for heard, _ in links]
        except EOFError:
            raise OSError("a process that writes exports was ended") from None
        failed = next((one for one in told if isinstance(one, Exception)), None)
        if failed is not None:
            raise failed
        if told[0] is None:
            return
        for _, told_to in links:
            _say(told_to, max(told))


def write_share() -> None:
    """The process: what it says are arrivals, and at last None, or what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes; the first one decides
    heard, said = sys.stdin.buffer, sys.stdout.buffer

    def meet(ready: int) -> int:
        _say(said, ready)
        return int(pickle.load(heard))

    job, paths, ranks = pickle.load(heard)
    with suppress(EOFError, BrokenPipeError):  # the first one has given up
        try:
            job.write_share(paths, ranks, meet)
        except EOFError:
            raise
        except Exception as error:
            _say(said, error)
        else:
            _say(said, None)


def _say(stream: IO[bytes], what: Any) -> None:
    pickle.dump(what, stream)
    stream.flush()
