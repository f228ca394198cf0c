"""Arrow batches, checked while DuckDB reads them, through Arrow's C interfaces without a library.

See https://arrow.apache.org/docs/format/CStreamInterface.html. Only integer columns can be read.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class _Array(ctypes.Structure):
    """``struct ArrowArray``."""


_Array._fields_ = [
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    *((name, ctypes.c_void_p) for name in ("dictionary", "release", "private_data")),
]
_NEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Array))


class _Stream(ctypes.Structure):
    """``struct ArrowArrayStream``."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("get_schema", "get_next", "get_last_error", "release", "private_data")
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


@dataclass(frozen=True)
class Batch:
    """Rows of a stream with the columns ``names``, valid until the next batch."""

    array: _Array
    names: Sequence[str]

    @property
    def rows(self) -> int:
        return int(self.array.length)

    def integers(self, name: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return a column's 64-bit integers, shape (rows,), and which are present (``None``: all)."""
        import numpy as np

        column = self.array.children[self.names.index(name)].contents
        start, end = column.offset, column.offset + column.length
        values = np.frombuffer((ctypes.c_int64 * end).from_address(column.buffers[1]), np.int64)[start:]
        if not column.buffers[0]:
            return values, None
        bits = np.frombuffer((ctypes.c_uint8 * ((end + 7) // 8)).from_address(column.buffers[0]), np.uint8)
        present = np.unpackbits(bits, bitorder="little")[start:end].astype(bool)
        return values, None if present.all() else present


@dataclass
class WatchedStream:
    """A stream for DuckDB to read once; the reading thread first passes each batch to ``watch``.

    An exception of ``watch`` ends the stream, and `reading` raises it.
    """

    handle: Any
    names: Sequence[str]
    watch: Callable[[Batch], object]
    _failure: BaseException | None = field(default=None, init=False)
    _get_next: object = field(default=None, init=False)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise the exception of ``watch`` that ended the stream, if any."""
        try:
            yield
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            raise

    def __arrow_c_schema__(self) -> object:
        return self.handle.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        capsule = self.handle.__arrow_c_stream__(requested_schema)
        address = _pointer(capsule, b"arrow_array_stream")
        stream = ctypes.cast(address, ctypes.POINTER(_Stream)).contents
        read = _NEXT(stream.get_next)

        def get_next(this: int, out: Any) -> int:
            code = int(read(this, out))
            if code or not out.contents.release or not out.contents.length:
                return code
            try:
                self.watch(Batch(out.contents, self.names))
            except BaseException as error:  # no exception may leave a C callback
                self._failure = error
                return errno.ECANCELED
            return 0

        self._get_next = _NEXT(get_next)  # kept alive while the stream is read
        stream.get_next = ctypes.cast(self._get_next, ctypes.c_void_p).value
        return capsule
