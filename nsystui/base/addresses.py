"""Fewer addresses for the program itself, where the process may not have many (``ulimit -v``).

The C library reserves 64 MB or more for each thread that asks it for memory, and 8 MB for its stack; pyarrow's
allocator reserves a gigabyte. Little of that is ever used, but against the limit all of it counts: 2.4 GB for a
summary that takes 240 MB of memory. What does not fit then ends the process inside of a library, without a word.
"""

from __future__ import annotations

import os

LEAST = 400 << 20
"""The addresses that it takes to read an export with: with fewer a library may end the process on its own."""

_FEW = 8 << 30
_STACK = 2 << 20
_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def limit() -> int | None:
    """How many bytes of addresses this process may use at most; ``None`` where there is no limit."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def spare_addresses() -> None:
    """Makes what comes later reserve less, where few addresses are allowed; to be called before threads are there."""
    most = limit()
    if most is None or most > _FEW:
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
