"""Arrays that were computed of a report, kept for later processes, whether it was packed for them or not.

A file for each (name, version), sealed with the identity of its report. What the arrays mean is the business of whoever
computed them. The file is read, not memory-mapped: a cache may lie on a network file system, where a mapped file that
another machine removes ends the process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.exports.partial import drop_abandoned
from nsystui.store import seals

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray[Any, Any]]

_LENGTH_BYTES = 4


@dataclass(frozen=True)
class Kept:
    """The kept arrays of one report. ``directory`` is theirs alone, made for the first; without one nothing is kept.

    What is ``at_hand``, by name and version, need not be read; whatever is loaded or saved is put there too.
    ``identity`` is another one for every other report, and for every other state of it. What is being written lies in
    ``partials`` meanwhile, unless that is where the arrays lie too.
    """

    directory: Path | None
    identity: str = ""
    at_hand: dict[tuple[str, int], Arrays] | None = None
    partials: Path | None = None

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
        name = _file_name(name, version)
        content = seals.read(self.directory / name, self._key(name))
        if content is None:
            return None
        with suppress(OSError):  # a cache that is only read serves as well
            os.utime(self.directory)
        return _decoded(content)

    def save(self, name: str, version: int, arrays: Arrays) -> None:
        """Keeps integers, floats and flags, each array of one dimension.

        Never raises for the cache: where it is full, read-only or gone, nothing is kept.
        """
        if self.at_hand is not None:
            self.at_hand[name, version] = arrays
        if self.directory is None:
            return
        partials = self.partials or self.directory
        if self.partials is None:
            drop_abandoned(partials)
        name = _file_name(name, version)
        with suppress(OSError):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            seals.write(self.directory / name, self._key(name), _encoded(arrays), partials)

    def move(self, other: Kept) -> None:
        """Makes all that is kept here the arrays of another report. Raises OSError."""
        if self.directory is None or other.directory is None:
            return
        for file in sorted(self.directory.glob(_file_name("*", "*"))):
            content = seals.read(file, self._key(file.name))
            if content is not None:
                seals.write(other.directory / file.name, other._key(file.name), [content], other.directory)
            file.unlink(missing_ok=True)

    def _key(self, file: str) -> str:
        return f"{self.identity}|{file}"


def json_array(value: Any) -> np.ndarray[Any, Any]:
    """A small value of JSON (texts, rows with missing values) as an array that can be kept."""
    import numpy as np

    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def json_of(array: np.ndarray[Any, Any]) -> Any:
    """The inverse of ``json_array``; tuples have become lists."""
    return json.loads(array.tobytes())


def _file_name(name: str, version: int | str) -> str:
    return f"kept-{name}-{version}.bin"


def _encoded(arrays: Arrays) -> list[bytes | memoryview]:
    """JSON that describes the arrays, after its length, then their bytes one after the other."""
    import numpy as np

    narrow = {name: np.ascontiguousarray(_narrowest(array)) for name, array in arrays.items()}
    parts = [array.view(np.uint8).data for array in narrow.values()]
    described = [[name, array.dtype.str, arrays[name].dtype.str, len(array)] for name, array in narrow.items()]
    head = json.dumps(described).encode()
    return [len(head).to_bytes(_LENGTH_BYTES, "little"), head, *parts]


def _decoded(content: memoryview) -> Arrays:
    import numpy as np

    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    found = {}
    for name, stored, kind, length in json.loads(bytes(content[_LENGTH_BYTES:start])):
        array = np.frombuffer(content, stored, length, start)
        found[name] = array.astype(kind, copy=False)
        start += array.nbytes
    return found


def _narrowest(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Integers in as few bytes as hold them all: most are small, and what is half as long is read twice as fast."""
    import numpy as np

    if array.dtype.kind not in "iu" or not len(array):
        return array
    kind = np.result_type(np.min_scalar_type(int(array.min())), np.min_scalar_type(int(array.max())))
    return array.astype(kind) if kind.kind in "iu" and kind.itemsize < array.itemsize else array
