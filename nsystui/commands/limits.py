"""The flags and variables that say how much of a shared machine the program may take."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nsystui.errors import UsageError

if TYPE_CHECKING:
    from nsystui.store.cache import Cache
    from nsystui.store.database import Limits

# Two keep a disk busy (one reads while the other writes), and a login node has others on its 128 CPUs.
_MOST_JOBS_UNASKED = 2
_MOST_JOBS = 256
# Of the memory there is: the rest is for the program itself, and for whoever else works here.
_SHARE = 2


def add_limits(group: argparse._ArgumentGroup) -> None:
    """``--jobs`` and ``--memory-limit``."""
    group.add_argument(
        "--jobs",
        type=_jobs_option,
        metavar="N",
        help="CPU threads to use, and exports read at once (default: 2 at most)",
    )
    group.add_argument(
        "--memory-limit",
        type=_memory_option,
        metavar="SIZE",
        help="memory for the columns, such as 512M or 1.5G; the program itself takes about 150M more"
        " (default: 2G, or half of what there is)",
    )


def limits_of(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Limits:
    """What the flags allow, else the variables, else what suits the machine.

    Raises UsageError for a variable that makes no sense.
    """
    from nsystui.store.database import Limits

    jobs, memory = arguments.jobs, arguments.memory_limit
    if jobs is None and environ.get("NSYSTUI_JOBS"):
        jobs = _jobs(environ["NSYSTUI_JOBS"], "NSYSTUI_JOBS=")
    if memory is None and environ.get("NSYSTUI_MEMORY_LIMIT"):
        memory = _memory(environ["NSYSTUI_MEMORY_LIMIT"], "NSYSTUI_MEMORY_LIMIT=")
    return Limits(jobs or _default_jobs(), memory or _default_memory())


def default_cache(environ: Mapping[str, str] = os.environ) -> Cache:
    """The cache of this system, or that of the variables.

    Raises UsageError for a variable that makes no sense.
    """
    from nsystui.store.cache import DEFAULT_CAP, Cache
    from nsystui.store.place import default_directory

    limit = environ.get("NSYSTUI_CACHE_LIMIT")
    return Cache(default_directory(environ), _size(limit, "NSYSTUI_CACHE_LIMIT=") if limit else DEFAULT_CAP)


def _default_jobs() -> int:
    from nsystui.store import machine

    return min(_MOST_JOBS_UNASKED, machine.cpus())


def _default_memory() -> int:
    from nsystui.store import machine
    from nsystui.store.database import SMALLEST_MEMORY, Limits

    there_is = machine.memory()
    usual = Limits().memory
    return usual if there_is is None else max(min(usual, there_is // _SHARE), SMALLEST_MEMORY)


def _jobs_option(text: str) -> int:
    return _jobs(text, "--jobs ")


def _memory_option(text: str) -> int:
    return _memory(text, "--memory-limit ")


def _jobs(text: str, name: str) -> int:
    number = int(text) if text.strip().isdecimal() else 0
    if not 1 <= number <= _MOST_JOBS:
        raise UsageError(f"{name}{text}: give a number of threads, 1 to {_MOST_JOBS}")
    return number


def _memory(text: str, name: str) -> int:
    from nsystui.store.database import SMALLEST_MEMORY
    from nsystui.store.sizes import size_words

    memory = _size(text, name)
    if memory < SMALLEST_MEMORY:
        raise UsageError(f"{name}{text}: too little to read an export with, {size_words(SMALLEST_MEMORY)} is the least")
    return memory


def _size(text: str, name: str) -> int:
    from nsystui.store.sizes import parse_size

    try:
        return parse_size(text)
    except UsageError as error:
        raise UsageError(f"{name}{text}: {error}") from None
