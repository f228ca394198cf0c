"""The events of a trace in order, and the facts before and after them."""

import gzip
import json
import os
import re
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any

from nsystui.base.errors import ExportError
from nsystui.base.files import opened
from nsystui.exports.forms.form import Advance

_LIMIT = 1 << 62


def to_integer(value: Any) -> int | None:
    """Return an integer that SQLite can store, also from text, or ``None``."""
    number: int | None = None
    if isinstance(value, int):
        number = None if isinstance(value, bool) else value
    elif isinstance(value, str):
        number = int(value) if len(value) < 20 and value.removeprefix("-").isdecimal() else None
    elif isinstance(value, Decimal) and value.is_finite() and value.copy_abs() < _LIMIT and value == int(value):
        number = int(value)
    return number if number is not None and -_LIMIT < number < _LIMIT else None


def nanoseconds(value: Any) -> int | None:
    """Return microseconds as exact ns, or ``None`` if the value is not a time."""
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except InvalidOperation:
            return None
    if isinstance(value, Decimal):
        time = round(value * 1000) if value.is_finite() and value.copy_abs() < _LIMIT else _LIMIT
    elif isinstance(value, int) and not isinstance(value, bool):
        time = value * 1000
    else:
        return None
    return time if -_LIMIT < time < _LIMIT else None


_EVENTS = "traceEvents"
# The first bytes of a trace contain one of these keys: a long list of process groups may precede the events.
_TYPICAL = re.compile(rb'"(?:traceEvents|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:')
_JSON = re.compile(rb"\s*(\{|\[\s*[\[{\"])")
_FIRST_BYTES = 1 << 16
_KEPT = 1 << 22
_PIECE = 1 << 16
_GZIP = b"\x1f\x8b"
_ESCAPES = re.compile(rb"\\.", re.DOTALL)
# ijson crashes on integers too long for Python.
_MAX_DIGITS = 2_000
_AS_DIGITS = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else 0 for byte in range(256))
_FACTS = (
    "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "cuda_driver_version", "host_name",
)  # fmt: skip
_CUT = "cut short: the JSON ends in the middle"
_MAX_DEPTH = 200
"""The deepest nesting that is read: each level costs memory, and PyTorch writes about ten."""
_STEPS = bytes.maketrans(b"{[}]", b"\1\1\xff\xff")
_NO_STEPS = bytes(set(range(256)) - set(b"{[}]"))
_COPY = "copy it again; if the job died while it wrote the trace, the trace is incomplete"

Event = Mapping[str, Any]


def json_head(path: Path) -> bytes:
    """Return the first bytes of a JSON file, unpacked; empty for any other file. Never raises."""
    try:
        with opened(path) as file:
            head = file.read(_FIRST_BYTES)
        if head.startswith(_GZIP):  # the data may end before this many bytes
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _FIRST_BYTES)
    except (OSError, zlib.error):
        return b""
    return head if _JSON.match(head) else b""


def is_trace(path: Path) -> bool:
    """Return whether a file begins like a trace. Never raises."""
    head = json_head(path)
    return head.lstrip()[:1] == b"{" and _TYPICAL.search(head) is not None


class KinetoTrace:
    """A trace that is read once; `facts` are complete after the last event."""

    def __init__(self, path: Path, advance: Advance) -> None:
        self.path = path
        self._advance = advance
        self._head = bytearray()
        self._tail: deque[bytes] = deque(maxlen=_KEPT // _PIECE)
        self._size = 1

    def events(self) -> Iterator[Event]:
        """Yield the events in the order of the file; numbers with decimals are ``Decimal``, which rounds nothing.

        Raises ExportError if the file is damaged or cut, and OSError if it cannot be read.
        """
        import ijson

        with opened(self.path) as packed, _unpacked(packed) as stream:
            self._size = max(os.fstat(packed.fileno()).st_size, 1)
            reader = _Pieces(self, packed, stream)
            try:
                for event in ijson.items(reader, f"{_EVENTS}.item", buf_size=_PIECE):
                    if isinstance(event, dict):
                        yield event
            except ijson.IncompleteJSONError as error:
                # yajl reports all errors as incomplete JSON, which is true only at the end of the file.
                raise self.damaged(_CUT if reader.is_at_end else _cause_of(error)) from None
            except ijson.JSONError as error:
                raise self.damaged(_cause_of(error)) from None
            except ArithmeticError:
                raise self.damaged("but a number in it has an exponent that is too large") from None
            except UnicodeDecodeError:
                raise self.damaged("text that is not UTF-8") from None
            except EOFError:
                raise self.damaged("cut short: the compressed file ends in the middle") from None
            except (zlib.error, gzip.BadGzipFile) as error:
                raise self.damaged(f"cannot be unpacked: {error}") from None

    def take(self, piece: bytes, position: float) -> None:
        """Keep the bytes that may contain facts, and report the progress."""
        if len(self._head) < _KEPT:
            self._head += piece
        self._tail.append(piece)
        self._advance(min(position / self._size, 1.0))

    def facts(self) -> dict[str, Any]:
        """Return the trace's facts about itself, by PyTorch's names."""
        head = self._head.decode("utf-8", "replace").partition(f'"{_EVENTS}"')[0]
        tail = b"".join(self._tail).decode("utf-8", "replace")
        facts = {}
        for name in _FACTS:
            for text, position in ((head, head.find(f'"{name}"')), (tail, tail.rfind(f'"{name}"'))):
                value = text[position + len(name) + 2 :].lstrip().removeprefix(":").lstrip() if position >= 0 else ""
                with suppress(ValueError, RecursionError):
                    facts[name] = json.JSONDecoder().raw_decode(value)[0]
                    break
        return facts

    def damaged(self, cause: str, advice: str = _COPY) -> ExportError:
        """Return the error for a trace that cannot be read to its end."""
        return ExportError(str(self.path), f"a trace of the PyTorch profiler, {cause}", advice)


def _cause_of(error: Exception) -> str:
    text = error.args[0] if error.args else ""
    lines = (text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)).splitlines()
    return f"but its JSON is damaged: {lines[0]}" if lines else "but its JSON is damaged"


def _unpacked(packed: IO[bytes]) -> IO[bytes]:
    is_gzip = packed.read(len(_GZIP)) == _GZIP
    packed.seek(0)
    return gzip.GzipFile(fileobj=packed) if is_gzip else packed  # type: ignore[return-value]


class _Pieces:
    """The file that ijson reads; it checks each piece."""

    def __init__(self, trace: KinetoTrace, packed: IO[bytes], stream: IO[bytes]) -> None:
        self._trace = trace
        self._packed = packed
        self._stream = stream
        self._depth = 0
        self._is_in_text = False
        self._is_escaped = False
        self.is_at_end = False

    def read(self, size: int) -> bytes:
        """Return the next bytes. Raises ExportError if nesting is too deep or a number too long."""
        piece = self._stream.read(size)
        if size and not piece:
            self.is_at_end = True
        if b"0" * _MAX_DIGITS in piece.translate(_AS_DIGITS):
            raise self._trace.damaged(f"but a number in it has {_MAX_DIGITS:,} digits or more")
        if self._deepest(piece) > _MAX_DEPTH:
            cause = f"but its JSON is nested more than {_MAX_DEPTH} levels deep"
            raise self._trace.damaged(cause, "trace it again: PyTorch writes about ten levels")
        self._trace.take(piece, self._packed.tell())
        return piece

    def _deepest(self, piece: bytes) -> int:
        import numpy as np

        if self._is_escaped:
            piece = b"\\" + piece
        plain = _ESCAPES.sub(b"", piece) if b"\\" in piece else piece
        self._is_escaped = plain.endswith(b"\\")
        parts = plain.split(b'"')
        outside = b"".join(parts[self._is_in_text :: 2])
        self._is_in_text ^= len(parts) % 2 == 0
        steps = np.frombuffer(outside.translate(_STEPS, _NO_STEPS), np.int8)
        deepest = self._depth + int(np.cumsum(steps, dtype=np.int64).max(initial=0))
        self._depth += int(steps.sum(dtype=np.int64))
        return deepest
