"""The memory, threads, addresses and open files that the system gives this process, and the errors when they run out.

Where the process may not have many addresses (``ulimit -v``), it reserves fewer of them. The C library reserves 64 MB
or more for each thread that asks it for memory, and 8 MB for its stack; pyarrow's allocator reserves a gigabyte. Little
of that is ever used, but all of it counts against the limit: 2.4 GB for a summary that takes 240 MB of memory. When the
limit is reached, the process ends inside a library without a message.
"""

from __future__ import annotations

import errno
import os
import re

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
    import threading

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
