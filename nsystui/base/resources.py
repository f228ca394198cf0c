"""The CPUs, memory, threads, addresses and open files that the system gives this process, the errors when they run
out, and how the process leaves the rest to others.

CPUs and memory are those that the limits of its control groups allow. What cannot be read is not known, which is no
limit and not zero. ``root`` is the directory that has ``/proc`` and ``/sys``.

Where the process may not have many addresses (``ulimit -v``), it reserves fewer of them. The C library reserves 64 MB
or more for each thread that asks it for memory, and 8 MB for its stack; pyarrow's allocator reserves a gigabyte. Little
of that is ever used, but all of it counts against the limit: 2.4 GB for a summary that takes 240 MB of memory. When the
limit is reached, the process ends inside a library without a message.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

_FILES = re.compile(r"too many open files", re.IGNORECASE)
# Of a library that does not fit, Python and DuckDB say that it is not installed.
_MEMORY = re.compile(
    r"cannot allocate memory|out of memory|bad_?alloc|bad allocation|failed to allocate|"
    r"can't start new thread|failed to map segment|\(error code 12\)|"
    r"'\w+' is required for this operation but it was not installed",
    re.IGNORECASE,
)


def shortage(error: BaseException) -> str:
    """The message for an error caused by a lack of memory, threads or open files; empty for any other error."""
    seen: list[BaseException] = []
    this: BaseException | None = error
    while this is not None and this not in seen:
        seen.append(this)
        this = this.__cause__ or this.__context__
    if any(_is_of(one, (errno.EMFILE, errno.ENFILE)) or _FILES.search(str(one)) for one in seen):
        return f"too many open files{_limit('RLIMIT_NOFILE')}: raise `ulimit -n`, or open fewer exports at once"
    if any(isinstance(one, MemoryError) or _is_of(one, (errno.ENOMEM,)) or _MEMORY.search(str(one)) for one in seen):
        return f"not enough memory{_limit('RLIMIT_AS')}: give it more, a smaller --memory-limit, or fewer exports"
    return ""


def _is_of(error: BaseException, numbers: tuple[int, ...]) -> bool:
    return isinstance(error, OSError) and error.errno in numbers


def _limit(name: str) -> str:
    """The limit of the process in brackets; empty where there is none."""
    soft = _soft_limit(name)
    if soft is None:
        return ""
    return f" (this process may have {soft if soft < 1 << 20 else f'{soft >> 20}MiB'})"


def _soft_limit(name: str) -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


_ENOUGH = 1 << 16


def take_open_files() -> None:
    """Raises the limit of open files as far as the system allows: each export that is not packed keeps one open."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # the system has a limit of its own: what there is must do
            return


LEAST_ADDRESSES = 400 << 20
"""The minimum address space for reading an export, bytes: with less, a library may end the process."""

_FEW_ADDRESSES = 8 << 30
_STACK = 2 << 20
_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def address_limit() -> int | None:
    """The maximum of this process's address space, bytes; ``None`` where there is no limit."""
    return _soft_limit("RLIMIT_AS")


def spare_addresses() -> None:
    """Makes libraries and threads reserve less where the address space is limited; call it before any thread starts."""
    most = address_limit()
    if most is None or most > _FEW_ADDRESSES:
        return
    import ctypes

    threading.stack_size(_STACK)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # only glibc has it
        library.mallopt(_ARENA_MAX, 1)
    if hasattr(library, "pthread_setattr_default_np"):  # DuckDB's threads
        attributes = ctypes.create_string_buffer(256)  # a pthread_attr_t is 56 or 64 bytes
        library.pthread_attr_init(attributes)
        library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK))
        library.pthread_setattr_default_np(attributes)
        library.pthread_attr_destroy(attributes)


_ROOT = Path("/")
OWN_ADDRESSES = 512 << 20
"""The addresses that the program takes for itself, in bytes: its libraries, and the stacks of its threads."""


def cpus(root: Path = _ROOT) -> int:
    """How many CPUs this process may use at once: by its affinity, and by the quotas of its control groups; 1 or more.

    A quota of one and a half CPUs is one.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups(root, "cpu"):
        both = _numbers(group / "cpu.max")
        if len(both) != 2:
            both = [*_numbers(group / "cpu.cfs_quota_us"), *_numbers(group / "cpu.cfs_period_us")]
        if len(both) == 2 and both[1]:
            allowed = min(allowed, both[0] // both[1])
    return max(allowed, 1)


def usual_threads() -> int:
    """How many threads work where the user does not say it: two, or one where there is one CPU.

    Two keep a disk busy, as one reads while the other writes, and a login node has others on its 128 CPUs.
    """
    return min(2, cpus())


def memory(root: Path = _ROOT) -> int | None:
    """How many bytes of memory there are for this process: what is available, or what its limits and groups allow.

    ``None`` where neither can be read.
    """
    found = [*_available(root)]
    # Above ``memory.high`` a process is slowed down to a crawl: as good as a limit.
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    found += [number for group in _groups(root, "memory") for name in names for number in _numbers(group / name)]
    space = address_limit()
    if space is not None:
        found.append(max(space - OWN_ADDRESSES, 0))
    return min(found, default=None)


def _available(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        words = line.split()
        if words[:1] == ["MemAvailable:"] and len(words) > 1 and words[1].isdecimal():
            yield int(words[1]) * 1024


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
        yield from (top / folder for top in tops for folder in below)


def _numbers(file: Path) -> list[int]:
    """The numbers in a file; none for ``max``, for -1, and where there is no such file."""
    return [int(word) for line in _lines(file) for word in line.split() if word.isdecimal()]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


NICE = 10
"""The nice value of threads that work in the background."""


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


_SECONDS_ASLEEP = 0.5


def awaited(futures: Iterable[Future[T]]) -> Iterator[T]:
    """The results of ``futures`` in their order; raises what they raise. For the main thread, which handles signals.

    It wakes twice a second: a signal that another thread receives, or that comes just before the main thread sleeps,
    does not wake it.
    """
    from concurrent.futures import wait

    for future in futures:
        while not future.done():
            wait((future,), _SECONDS_ASLEEP)
        yield future.result()


def give_back() -> None:
    """Lets the C library return what it holds in reserve; does nothing where it is not glibc.

    After a large computation that can be half of what a process seems to use: arrays that stay pin the pages of
    arrays that went.
    """
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
