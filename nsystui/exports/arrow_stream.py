"""Arrow batches, checked while DuckDB reads them or made of arrays, through Arrow's C interfaces without a library.

See https://arrow.apache.org/docs/format/CStreamInterface.html. Integers can be read, integers and bytes be made.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
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


class Checked:
    """A stream whose batches are checked: `reading` raises what ended it."""

    _failure: BaseException | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise the exception that ended the stream, if any."""
        try:
            yield
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            raise


@dataclass
class WatchedStream(Checked):
    """A stream for DuckDB to read once; the reading thread first passes each batch to ``watch``.

    An exception of ``watch`` ends the stream, and `reading` raises it.
    """

    handle: Any
    names: Sequence[str]
    watch: Callable[[Batch], object]
    _get_next: object = field(default=None, init=False)

    def __arrow_c_schema__(self) -> object:
        return self.handle.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        capsule = self.handle.__arrow_c_stream__(requested_schema)
        stream = ctypes.cast(_pointer(capsule, b"arrow_array_stream"), ctypes.POINTER(_Stream)).contents
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


class _Schema(ctypes.Structure):
    """``struct ArrowSchema``."""


_Schema._fields_ = [
    *((name, ctypes.c_char_p) for name in ("format", "name", "metadata")),
    *((name, ctypes.c_int64) for name in ("flags", "n_children")),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    *((name, ctypes.c_void_p) for name in ("dictionary", "release", "private_data")),
]
_GET_SCHEMA = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Schema))
_RELEASE_SCHEMA, _RELEASE_ARRAY, _RELEASE_STREAM = (
    ctypes.CFUNCTYPE(None, ctypes.POINTER(kind)) for kind in (_Schema, _Array, _Stream)
)
_LAST_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_NULLABLE = 2
_INTEGERS, _VIEWS = b"l", b"vz"


@dataclass(frozen=True)
class MadeBatch:
    """Rows of columns: integers, int64, with which of them are present (``None``: all), or views of bytes, int32.

    Views have the shape (rows, 4), with the buffer that they point into.
    """

    columns: Mapping[str, tuple[np.ndarray, np.ndarray | None]]

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()))[0])

    def integers(self, name: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return a column of integers, like `Batch.integers`."""
        return self.columns[name]


class MadeStream(Checked):
    """A stream of made ``batches`` for DuckDB to read once, each passed to ``watch`` first, like `WatchedStream`.

    ``have_bytes``: whether each column has bytes. Keep the stream while DuckDB may read its memory.
    """

    def __init__(
        self, have_bytes: Mapping[str, bool], batches: Iterator[MadeBatch], watch: Callable[[MadeBatch], object]
    ) -> None:
        self._have_bytes, self._batches, self._watch = have_bytes, batches, watch
        self._kept: dict[int, object] = {}
        self._numbers = itertools.count(1)
        self._release_schema = _RELEASE_SCHEMA(_forget)
        self._release_array = _RELEASE_ARRAY(self._free)
        self._callbacks = (
            _GET_SCHEMA(lambda stream, out: self._write_schema(out.contents)),
            _NEXT(lambda stream, out: self._write_next(out.contents)),
            _LAST_ERROR(lambda stream: None),
            _RELEASE_STREAM(_forget),
        )
        self._stream = _Stream(*(ctypes.cast(callback, ctypes.c_void_p).value for callback in self._callbacks))
        self._schema = _Schema()

    def __arrow_c_schema__(self) -> object:
        self._write_schema(self._schema)
        return _capsule(ctypes.addressof(self._schema), b"arrow_schema", None)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return _capsule(ctypes.addressof(self._stream), b"arrow_array_stream", None)

    def _write_schema(self, out: _Schema) -> int:
        release = ctypes.cast(self._release_schema, ctypes.c_void_p).value
        parts = [
            _Schema(_VIEWS if has_bytes else _INTEGERS, name.encode(), None, _NULLABLE, 0, None, None, release)
            for name, has_bytes in self._have_bytes.items()
        ]
        children = (ctypes.POINTER(_Schema) * len(parts))(*map(ctypes.pointer, parts))
        self._kept[-next(self._numbers)] = parts, children
        made = _Schema(b"+s", b"", None, 0, len(parts), children, None, release)
        ctypes.memmove(ctypes.byref(out), ctypes.byref(made), ctypes.sizeof(_Schema))
        return 0

    def _write_next(self, out: _Array) -> int:
        try:
            batch = next(self._batches, None)
            if batch is not None:
                self._watch(batch)
        except BaseException as error:  # no exception may leave a C callback
            self._failure = error
            return errno.ECANCELED
        made = _Array() if batch is None else self._array_of(batch)
        ctypes.memmove(ctypes.byref(out), ctypes.byref(made), ctypes.sizeof(_Array))
        return 0

    def _array_of(self, batch: MadeBatch) -> _Array:
        import numpy as np

        key, rows = next(self._numbers), batch.rows
        release = ctypes.cast(self._release_array, ctypes.c_void_p).value
        kept: list[object] = []

        def array(missing: int, buffers: Sequence[int | None], parts: Sequence[_Array], private: int) -> _Array:
            pointers = (ctypes.c_void_p * len(buffers))(*buffers)
            children = (ctypes.POINTER(_Array) * len(parts))(*map(ctypes.pointer, parts))
            kept.extend((pointers, parts, children))
            return _Array(rows, missing, 0, len(buffers), len(parts), pointers, children, None, release, private)

        columns = []
        for name, has_bytes in self._have_bytes.items():
            if has_bytes:
                views, bytes_ = map(np.ascontiguousarray, batch.columns[name])
                size = np.array([bytes_.nbytes], np.int64)
                kept.extend((views, bytes_, size))
                columns.append(array(0, [None, views.ctypes.data, bytes_.ctypes.data, size.ctypes.data], (), 0))
                continue
            values, present = batch.integers(name)
            values = np.ascontiguousarray(values)
            bits = None if present is None else np.packbits(present, bitorder="little")
            kept.extend((values, bits))
            missing = 0 if present is None else rows - int(present.sum())
            columns.append(array(missing, [None if bits is None else bits.ctypes.data, values.ctypes.data], (), 0))
        whole = array(0, [None], columns, key)
        self._kept[key] = kept
        return whole

    def _free(self, array: Any) -> None:
        self._kept.pop(array.contents.private_data or 0, None)
        array.contents.release = None


def _forget(released: Any) -> None:
    released.contents.release = None
