"""Arrays that were computed of a report, kept for later processes, whether it was packed for them or not.

A file for each (name, version), written under a temporary name and renamed: it is there whole or not at all. What the
arrays mean is the business of whoever computed them. The file is read, not memory-mapped: a cache may lie on a network
file system, where a mapped file that another machine removes ends the process.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.exports.partial import drop_abandoned, partial_name

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray[Any, Any]]

# What reading a file raises that is none of ours, or not whole.
_DAMAGED = (OSError, ValueError, KeyError, TypeError, MemoryError, RecursionError)


@dataclass(frozen=True)
class Kept:
    """The kept arrays of one report. ``directory`` is theirs alone, made for the first; without one nothing is kept.

    What is ``at_hand``, by name and version, need not be read; whatever is loaded or saved is put there too.
    ``identity`` is another one for every other report, and for every other state of it.
    """

    directory: Path | None
    identity: str = ""
    at_hand: dict[tuple[str, int], Arrays] | None = None

    def load(self, name: str, version: int) -> Arrays | None:
        """The arrays, each of one dimension; ``None`` where they are not there, damaged, or of another version."""
        if self.at_hand is None:
            return self._read(name, version)
        found = self.at_hand.get((name, version)) or self._read(name, version)
        if found is not None:
            self.at_hand[name, version] = found
        return found

    def _read(self, name: str, version: int) -> Arrays | None:
        if self.directory is None:
            return None
        try:
            found = _decoded((self.directory / _file_name(name, version)).read_bytes())
        except _DAMAGED:
            return None
        with suppress(OSError):  # a cache that is only read serves as well
            os.utime(self.directory)
        return found

    def save(self, name: str, version: int, arrays: Arrays) -> None:
        """Keeps integers, floats and flags, each array of one dimension.

        Never raises for the cache: where it is full, read-only or gone, nothing is kept.
        """
        if self.at_hand is not None:
            self.at_hand[name, version] = arrays
        if self.directory is None:
            return
        file = self.directory / _file_name(name, version)
        partial = file.with_name(partial_name())
        drop_abandoned(self.directory)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with partial.open("wb") as out:
                out.writelines(_encoded(arrays))
            os.replace(partial, file)
        except OSError:
            with suppress(OSError):
                partial.unlink()


def json_array(value: Any) -> np.ndarray[Any, Any]:
    """A small value of JSON (texts, rows with missing values) as an array that can be kept."""
    import numpy as np

    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def json_of(array: np.ndarray[Any, Any]) -> Any:
    """The inverse of ``json_array``; tuples have become lists."""
    return json.loads(array.tobytes())


def _file_name(name: str, version: int) -> str:
    return f"kept-{name}-{version}.bin"


def _encoded(arrays: Arrays) -> list[bytes | memoryview]:
    """A line of JSON that describes the arrays, then their bytes one after the other."""
    import numpy as np

    narrow = {name: np.ascontiguousarray(_narrowest(array)) for name, array in arrays.items()}
    parts = [array.view(np.uint8).data for array in narrow.values()]
    described = [[name, array.dtype.str, arrays[name].dtype.str, len(array)] for name, array in narrow.items()]
    check = zlib.crc32(json.dumps(described).encode())
    for part in parts:
        check = zlib.crc32(part, check)
    return [json.dumps({"arrays": described, "crc": check}).encode() + b"\n", *parts]


def _decoded(data: bytes) -> Arrays:
    import numpy as np

    start = data.index(b"\n") + 1
    described = json.loads(data[:start])
    check = zlib.crc32(json.dumps(described["arrays"]).encode())
    if zlib.crc32(memoryview(data)[start:], check) != described["crc"]:
        raise ValueError("not the bytes that were written")
    found = {}
    for name, stored, kind, length in described["arrays"]:
        array = np.frombuffer(data, _plain(stored), length, start)
        found[name] = array.astype(_plain(kind), copy=False)
        start += array.nbytes
    return found


def _plain(kind: str) -> np.dtype[Any]:
    import numpy as np

    found = np.dtype(kind)
    if found.kind not in "biuf":
        raise ValueError(f"{kind} is not kept")
    return found


def _narrowest(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Integers in as few bytes as hold them all: most are small, and what is half as long is read twice as fast."""
    import numpy as np

    if array.dtype.kind not in "iu" or not len(array):
        return array
    kind = np.result_type(np.min_scalar_type(int(array.min())), np.min_scalar_type(int(array.max())))
    return array.astype(kind) if kind.kind in "iu" and kind.itemsize < array.itemsize else array
