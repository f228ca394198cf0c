"""Resources of this process: CPUs, memory, address space, threads and their priorities, open files; a session's limits.

CPUs and memory respect the limits of the process's control groups. A value that cannot be read is unknown, neither
unlimited nor zero. ``root`` is the directory that contains ``/proc`` and ``/sys``.

If the address space is limited (``ulimit -v``), the process reserves less of it. The C library reserves 64 MB or more
for each thread that allocates memory, and 8 MB for its stack; pyarrow's allocator reserves a gigabyte. Most of that is
never used, but counts against the limit: 2.4 GB for a summary that takes 240 MB. At the limit, the process ends inside
a library without a message.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

_FILES = re.compile(r"too many open files", re.IGNORECASE)
# If memory does not suffice to load a library, Python and DuckDB report that it is not installed.
_MEMORY = re.compile(
    r"cannot allocate memory|out of memory|bad_?alloc|bad allocation|failed to allocate|"
    r"can't start new thread|failed to map segment|\(error code 12\)|"
    r"'\w+' is required for this operation but it was not installed",
    re.IGNORECASE,
)


def shortage(error: BaseException) -> str:
    """Return the message for an error from a lack of memory, threads or open files, else an empty text."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        current = current.__cause__ or current.__context__
    if any(_has_code(exc, (errno.EMFILE, errno.ENFILE)) or _FILES.search(str(exc)) for exc in seen):
        return f"too many open files{_limit('RLIMIT_NOFILE')}: raise `ulimit -n`, or open fewer exports at once"
    if any(isinstance(exc, MemoryError) or _has_code(exc, (errno.ENOMEM,)) or _MEMORY.search(str(exc)) for exc in seen):
        return f"not enough memory{_limit('RLIMIT_AS')}: give it more, a smaller --memory-limit, or fewer exports"
    return ""


def _has_code(error: BaseException, numbers: tuple[int, ...]) -> bool:
    return isinstance(error, OSError) and error.errno in numbers


def _limit(name: str) -> str:
    """Return the process's limit in words, in brackets; empty if unlimited."""
    soft = _soft_limit(name)
    if soft is None:
        return ""
    return f" (this process may have {soft if soft < 1 << 20 else f'{soft >> 20}MiB'})"


def _soft_limit(name: str) -> int | None:
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


_MAX_FILES = 1 << 16


def take_open_files() -> None:
    """Raise the limit of open files as far as allowed: each unpacked export keeps a file open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with suppress(OSError, ValueError):  # the system has another limit: keep the current number
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


LEAST_ADDRESSES = 400 << 20
"""The minimum address space for reading an export, bytes: with less, a library may end the process."""

_FEW_ADDRESSES = 8 << 30
_STACK = 2 << 20


def address_limit() -> int | None:
    """Return the maximum of this process's address space, bytes, or ``None`` if it is unlimited."""
    return _soft_limit("RLIMIT_AS")


def spare_addresses() -> None:
    """Make libraries and threads reserve less of a limited address space. Call it before any thread starts."""
    limit = address_limit()
    if limit is None or limit > _FEW_ADDRESSES:
        return
    import ctypes

    threading.stack_size(_STACK)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # only glibc
        library.mallopt(-8, 1)  # M_ARENA_MAX of malloc.h
    if hasattr(library, "pthread_setattr_default_np"):  # DuckDB's threads
        attributes = ctypes.create_string_buffer(256)  # a pthread_attr_t is 56 or 64 bytes
        library.pthread_attr_init(attributes)
        library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK))
        library.pthread_setattr_default_np(attributes)
        library.pthread_attr_destroy(attributes)


_ROOT = Path("/")
OWN_ADDRESSES = 512 << 20
"""The address space of the program's libraries and thread stacks, bytes."""


def cpus(root: Path = _ROOT) -> int:
    """Return the number of CPUs that affinity and control groups allow, at least 1; a quota of 1.5 CPUs is 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups(root, "cpu"):
        quota = _numbers(group / "cpu.max")
        if len(quota) != 2:
            quota = [*_numbers(group / "cpu.cfs_quota_us"), *_numbers(group / "cpu.cfs_period_us")]
        if len(quota) == 2 and quota[1]:
            allowed = min(allowed, quota[0] // quota[1])
    return max(allowed, 1)


def usual_threads() -> int:
    """Return the default number of threads: two, or one if there is only one CPU.

    Two threads keep a disk busy: one reads while the other writes. They leave a login node's 128 CPUs to its users.
    """
    return min(2, cpus())


def memory(root: Path = _ROOT) -> int | None:
    """Return the memory for this process, bytes: available memory, or a lower limit; ``None`` if unknown."""
    facts = [line.split() for line in _lines(root / "proc/meminfo") if line.startswith("MemAvailable:")]
    limits = [int(words[1]) * 1024 for words in facts if len(words) > 1 and words[1].isdecimal()]
    # Above ``memory.high``, the kernel slows a process to a crawl: in effect, a limit.
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits += [number for group in _groups(root, "memory") for name in names for number in _numbers(group / name)]
    if (addresses := address_limit()) is not None:
        limits.append(max(addresses - OWN_ADDRESSES, 0))
    return min(limits, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the directories of the process's control groups and of their parents, whose limits also apply.

    In a container, the path is often a path of the host, of which only the upper directories exist.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names == "":
            roots = [mounts, mounts / "unified"]
        elif controller in names.split(","):
            roots = [mounts / controller, mounts / names]
        else:
            continue
        group_path = PurePosixPath("/", path).relative_to("/")
        folders = [PurePosixPath()] if ".." in group_path.parts else [group_path, *group_path.parents]
        yield from (root_folder / folder for root_folder in roots for folder in folders)


def _numbers(file: Path) -> list[int]:
    """Return a file's numbers, without ``max`` and -1; empty if it does not exist."""
    return [int(word) for line in _lines(file) for word in line.split() if word.isdecimal()]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


NICE = 10  # of background threads


def step_back() -> None:
    """Give the calling thread, and threads that it starts, at least the nice value ``NICE`` until it ends.

    Only Linux has nice values for threads; does nothing elsewhere. Only root could undo it, so use it for threads that
    end with their work.
    """
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    with suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, thread) < NICE:
            os.setpriority(os.PRIO_PROCESS, thread, NICE)


def awaited(futures: Iterable[Future[T]]) -> Iterator[T]:
    """Yield the results of ``futures`` in order; raise their errors. For the main thread, which handles signals.

    It wakes twice a second, because a signal does not wake the main thread if another thread receives it, or if it
    arrives just before the main thread sleeps.
    """
    from concurrent.futures import wait

    for future in futures:
        while not future.done():
            wait((future,), 0.5)  # s
        yield future.result()


def give_back() -> None:
    """Make glibc return unused memory to the system if the process ever used 400 MB.

    After a large computation, this can be half of the process's memory: remaining arrays pin the pages of freed arrays.
    """
    import ctypes
    import resource

    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 400_000:  # KiB
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


SMALLEST_MEMORY = 320 << 20
"""The lowest memory limit, bytes: DuckDB's share must hold a chunk being packed, and a query."""
_PROGRAM = 150 << 20
"""Memory of Python and libraries, bytes."""
_MIN_OUTSIDE, _MIN_ROWS = 10 << 20, 1 << 14
MEMORY_PER_THREAD = 100 << 20
"""DuckDB's memory per thread, bytes: two threads need 200 MB to sort a million rows of a trace."""

# Packing a chunk, with the strings of a usual export, took 55 to 65 MB.
_CHUNK_MEMORY = 80 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of a session on a shared machine: threads, and ``memory`` of the whole program, bytes."""

    threads: int = field(default_factory=lambda: usual_threads())
    memory: int = 1 << 30

    @property
    def database(self) -> int:
        """DuckDB's memory, bytes; the program and the rows of `rows_at_once` use the rest."""
        return min(self.memory * 5 // 8, max(self.memory - _PROGRAM, _PROGRAM) - _MIN_OUTSIDE)

    def rows_at_once(self, size: int) -> int:
        """Return how many rows fit into memory outside DuckDB, at ``size`` bytes per row with derived data."""
        return max((self.memory - self.database - _PROGRAM) // size, _MIN_ROWS)

    def most_held(self, size: int) -> int:
        """Return how many rows of ``size`` bytes the whole program may hold at once."""
        return (self.memory - _PROGRAM) // size

    @property
    def packing(self) -> Limits:
        """Limits for packing: half of DuckDB's memory. One thread, because the packers have their own."""
        return Limits(1, self.database * 4 // 5)

    @property
    def chunks(self) -> int:
        """The maximum number of chunks being packed, over all exports."""
        return max(min(self.threads, self.packing.database // _CHUNK_MEMORY), 1)

    @property
    def workers(self) -> int:
        """The number of threads that pack one export."""
        return min(2, self.chunks)  # more threads do not help: an export is read as one stream

    @property
    def packs(self) -> int:
        """The maximum number of exports being packed, because waiting rows stay in memory."""
        return max(min(self.threads, self.packing.database // (self.workers * _CHUNK_MEMORY)), 1)
