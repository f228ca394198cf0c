"""What the system did not give the program, where that is why something failed: memory, threads or open files."""

from __future__ import annotations

import errno
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
    """What to tell of an error that lack of memory, threads or open files led to; empty where neither did."""
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
    """What the process may take at most, in brackets; empty where nothing says."""
    try:
        import resource
    except ImportError:  # not on Windows
        return ""
    soft, _ = resource.getrlimit(getattr(resource, name))
    if soft == resource.RLIM_INFINITY:
        return ""
    return f" (this process may have {soft if soft < 1 << 20 else f'{soft >> 20}MiB'})"


_ENOUGH = 1 << 16


def take_open_files() -> None:
    """Takes as many open files as the system lets every process have: an export that is not packed keeps one open."""
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
