"""The flags and variables that say how much of a shared machine the program may take."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.errors import UsageError
from nsystui.base.text import whole_number
from nsystui.commands.configuration import NO_CONFIG, Config, config_of

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
        help="memory for the columns, such as 512M or 1.5G (base 1024); the program itself takes about 150M more"
        " (default: 2G, or half of what there is)",
    )


def limits_of(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Limits:
    """What the flags allow, else the variables, else the config file, else what suits the machine.

    Raises UsageError for a variable that makes no sense.
    """
    from nsystui.store.database import Limits

    jobs, memory, config = arguments.jobs, arguments.memory_limit, config_of(arguments)
    if jobs is None and environ.get("NSYSTUI_JOBS"):
        jobs = jobs_number(environ["NSYSTUI_JOBS"], "NSYSTUI_JOBS=")
    if memory is None and environ.get("NSYSTUI_MEMORY_LIMIT"):
        memory = memory_size(environ["NSYSTUI_MEMORY_LIMIT"], "NSYSTUI_MEMORY_LIMIT=")
    return Limits(
        jobs or config.jobs or _default_jobs(),
        memory or config.memory_limit or _default_memory(),
    )


def default_cache(config: Config = NO_CONFIG, environ: Mapping[str, str] = os.environ) -> Cache:
    """The cache that the variables name, else the config file, else that of this system.

    Raises UsageError for a variable that makes no sense.
    """
    from nsystui.store.cache import DEFAULT_CAP, Cache, default_directory

    limit = environ.get("NSYSTUI_CACHE_LIMIT")
    is_configured = config.cache_dir and not environ.get("NSYSTUI_CACHE_DIR")
    directory = Path(config.cache_dir) if is_configured else default_directory(environ)
    usual = DEFAULT_CAP if config.cache_limit is None else config.cache_limit
    return Cache(directory, size(limit, "NSYSTUI_CACHE_LIMIT=") if limit else usual)


def drop_left_in_cache(config: Config) -> None:
    """Removes what programs that were killed left half-written in the cache, if it is the user's own."""
    from nsystui.exports.partial_files import why_not_ours
    from nsystui.store.cache import drop_left

    with suppress(UsageError):  # a command that uses the cache says so itself
        directory = default_cache(config).directory
        if not why_not_ours(directory):
            drop_left(directory)


def _default_jobs() -> int:
    from nsystui.base import resources

    return min(_MOST_JOBS_UNASKED, resources.cpus())


def _default_memory() -> int:
    from nsystui.base import resources
    from nsystui.store.database import SMALLEST_MEMORY, Limits

    there_is = resources.memory()
    usual = Limits().memory
    return usual if there_is is None else max(min(usual, there_is // _SHARE), SMALLEST_MEMORY)


def _jobs_option(text: str) -> int:
    return jobs_number(text, "--jobs ")


def _memory_option(text: str) -> int:
    return memory_size(text, "--memory-limit ")


def jobs_number(text: str, name: str) -> int:
    """A number of threads. ``name`` is what to call it in an error, up to the value; raises UsageError."""
    number = whole_number(text.strip(), _MOST_JOBS)
    if not number:
        raise UsageError(f"{name}{text}: give a number of threads, 1 to {_MOST_JOBS}")
    return number


def memory_size(text: str, name: str) -> int:
    """A size in bytes that is enough to read an export with; raises UsageError."""
    from nsystui.base.units import size_words
    from nsystui.store.database import SMALLEST_MEMORY

    memory = size(text, name)
    if memory < SMALLEST_MEMORY:
        raise UsageError(f"{name}{text}: too little to read an export with, {size_words(SMALLEST_MEMORY)} is the least")
    return memory


def size(text: str, name: str) -> int:
    """A size in bytes; raises UsageError."""
    from nsystui.base.units import parse_size

    try:
        return parse_size(text)
    except UsageError as error:
        raise UsageError(f"{name}{text}: {error}") from None
