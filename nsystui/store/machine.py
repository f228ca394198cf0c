"""The share of the machine that this process may take, and how it leaves the rest to others.

CPUs and memory are those that the limits of its control groups allow. What cannot be read is not known, which is no
limit and not zero. ``root`` is where ``/proc`` and ``/sys`` lie.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from nsystui.base.resources import address_limit

_ROOT = Path("/")
OWN_ADDRESSES = 512 << 20
"""The addresses that the program takes for itself, in bytes: its libraries, and the stacks of its threads."""


def cpus(root: Path = _ROOT) -> int:
    """How many CPUs this process may use at once: by its affinity, and by the quotas of its control groups; 1 or more.

    A quota of one and a half CPUs is one.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min([allowed, *_quotas(root)]), 1)


def memory(root: Path = _ROOT) -> int | None:
    """How many bytes of memory there are for this process: what is available, or what its limits and groups allow.

    ``None`` where neither can be read.
    """
    return min([*_available(root), *_memory_limits(root), *_address_space()], default=None)


def _address_space() -> Iterator[int]:
    """The addresses that the program itself leaves of those it may use."""
    space = address_limit()
    if space is not None:
        yield max(space - OWN_ADDRESSES, 0)


def _available(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        words = line.split()
        if words[:1] == ["MemAvailable:"] and len(words) > 1 and words[1].isdecimal():
            yield int(words[1]) * 1024


def _memory_limits(root: Path) -> Iterator[int]:
    for group in _groups(root, "memory"):
        # Above ``memory.high`` a process is slowed down to a crawl: as good as a limit.
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            yield from _numbers(group / name)


def _quotas(root: Path) -> Iterator[int]:
    for group in _groups(root, "cpu"):
        both = _numbers(group / "cpu.max")
        if len(both) != 2:
            both = [*_numbers(group / "cpu.cfs_quota_us"), *_numbers(group / "cpu.cfs_period_us")]
        if len(both) == 2 and both[1]:
            yield both[0] // both[1]


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of the control groups that this process is in, with those around them, whose limits count too.

    In a container the path is often that of the host: then only the directories further up are there.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names == "":
            tops = [mounts, mounts / "unified"]
        elif controller in names.split(","):
            tops = [mounts / controller, mounts / names]
        else:
            continue
        inside = PurePosixPath("/", path).relative_to("/")
        below = [PurePosixPath()] if ".." in inside.parts else [inside, *inside.parents]
        yield from (top / place for top in tops for place in below)


def _numbers(file: Path) -> list[int]:
    """The numbers in a file; none for ``max``, for -1, and where there is no such file."""
    return [int(word) for line in _lines(file) for word in line.split() if word.isdecimal()]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


NICE = 10
"""The nice value of such threads."""


def step_back() -> None:
    """Gives the calling thread, and what it starts, at least the nice value ``NICE``, for as long as it lives.

    Only Linux has nice values for single threads: elsewhere nothing happens. There is no way back without root, so
    this is for threads that end with their work.
    """
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    with suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, thread) < NICE:
            os.setpriority(os.PRIO_PROCESS, thread, NICE)


def give_back() -> None:
    """Lets the C library return what it holds in reserve; does nothing where it is not glibc.

    After a large computation that can be half of what a process seems to use: arrays that stay pin the pages of
    arrays that went.
    """
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
