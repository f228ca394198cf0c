"""Derived results: computed once of some reports, then found in memory or in a file of the cache.

A result has one key: the identities of its reports, its question, and the version of the code that answers it. In a
file it is sealed with that key, so that it is only ever the result of that question about those reports. A file is
read, not memory-mapped: a cache may lie on a network file system, where a mapped file that another machine removes ends
the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.abc import InspectLoader
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nsystui.base.inputs import json_in, opened
from nsystui.base.partial_files import drop_abandoned, remove
from nsystui.base.version import __version__
from nsystui.exports import canonical
from nsystui.store import seals

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray[Any, Any]]

T = TypeVar("T")
_LENGTH_BYTES = 4


class ResultKey(NamedTuple):
    """The key of a result. ``reports`` identify the reports and their state; in files ``question`` is a text."""

    reports: tuple[str, ...]
    question: Hashable
    version: str = ""

    @property
    def text(self) -> str:
        return json.dumps(self)


def version_of(compute: Callable[..., object] | None = None) -> str:
    """The version of the results of ``compute``: it follows from the code, so nobody has to remember to raise it.

    Another release of nsystui, other canonical tables or another source of the module of ``compute`` is another
    version. Without ``compute``, any other module of the program is.
    """
    return _version_of(None if compute is None else getattr(compute, "func", compute).__module__)


@cache
def _version_of(module: str | None) -> str:
    if module is None:  # an answer may be of any module: all count by when they were written, none is read
        root = Path(__file__).parents[1]
        every = (Path(place) / name for place, _, names in os.walk(root) for name in names if name.endswith(".py"))
        states = sorted((path.relative_to(root).as_posix(), path.stat().st_mtime_ns) for path in every)
    source = json.dumps(states) if module is None else _source_of(module)
    definition = json.dumps([__version__, canonical.fingerprint(), module, source])
    return hashlib.sha256(definition.encode()).hexdigest()[:12]


@cache
def version_of_reading() -> str:
    """The version of rows that are read of exports, and of their files: it follows from the code that makes both."""
    sources = find_spec("nsystui.exports.sources")
    assert sources is not None
    every = [*_READING, *(f"{sources.name}.{one.name}" for one in iter_modules(sources.submodule_search_locations))]
    definition = json.dumps([canonical.fingerprint(), {name: _source_of(name) or __version__ for name in every}])
    return hashlib.sha256(definition.encode()).hexdigest()[:12]


_READING = (
    "nsystui.exports.metadata",
    "nsystui.exports.nccl_calls",
    "nsystui.exports.schema",
    "nsystui.store.cache",
    "nsystui.store.packing",
    "nsystui.store.reader",
    "nsystui.store.report",
)


def _source_of(module: str) -> str | None:
    """The source of a module, which need not be loaded; ``None`` where only its bytecode is installed."""
    spec = find_spec(module)
    loader = None if spec is None else spec.loader
    return loader.get_source(module) if isinstance(loader, InspectLoader) else None


class Memory:
    """Results in the memory of this process. Of more than ``most`` those used longest ago go."""

    def __init__(self, most: int = sys.maxsize) -> None:
        self._most = most
        self._results: OrderedDict[ResultKey, Any] = OrderedDict()
        self._turns: dict[Hashable, threading.RLock] = {}
        self._lock = threading.Lock()

    def load(self, key: ResultKey) -> Any | None:
        """The result; ``None`` where it is not in memory."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
            return self._results.get(key)

    def save(self, key: ResultKey, value: Any) -> None:
        with self._lock:
            self._results[key] = value
            self._results.move_to_end(key)
            while len(self._results) > self._most:
                self._results.popitem(last=False)

    def once(self, key: ResultKey, make: Callable[[], T]) -> T:
        """The result, which ``make`` computes where it is not in memory.

        Questions whose first part is the same wait for each other: side by side they would take twice the memory.
        """
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key]  # type: ignore[no-any-return]
            kind = key.question[0] if isinstance(key.question, tuple) else key.question
            turn = self._turns.setdefault(kind, threading.RLock())
        with turn:
            made = make()
        self.save(key, made)
        return made

    def forget_others(self, reports: tuple[str, ...]) -> None:
        """Removes the results of all but these reports in this state."""
        with self._lock:
            for key in [key for key in self._results if key.reports != reports]:
                del self._results[key]


@dataclass(frozen=True)
class Caps:
    """The limits of a folder in which the results of many sets of reports lie: bytes and files."""

    size: int = 64 << 20
    files: int = 2000


@dataclass(frozen=True)
class Results:
    """The results of ``reports``, which lie in ``directory``, if there is one, and in ``memory``, if there is one.

    The directory is made for the first result, and has those of these reports alone unless it has ``caps``. Files are
    written in ``partials`` and renamed; without it, in the directory itself.
    """

    reports: tuple[str, ...]
    directory: Path | None
    partials: Path | None = None
    memory: Memory | None = field(default=None, compare=False)
    caps: Caps | None = None

    def load(self, question: str, version: str = "", read: Callable[[Any], T] = lambda found: found) -> T | None:
        """What ``read`` makes of the result; ``None`` where there is none, or it is damaged.

        Without a ``version`` it is as old as the identities of the reports. A result of which ``read`` raises an error
        was not written by this program: it is removed.
        """
        key = ResultKey(self.reports, question, version)
        found = self.memory.load(key) if self.memory is not None else None
        if found is not None:
            return read(found)
        try:
            found = self._read(key)
            made = None if found is None else read(found)
        except seals.ANOTHER:
            if self.directory is not None:
                remove(self._file(self.directory, key))
            return None
        if self.memory is not None and found is not None:
            self.memory.save(key, found)
        return made

    def save(self, question: str, value: Any, version: str = "") -> bool:
        """Saves plain JSON values, or arrays of one dimension by name (of integers, floats and flags).

        Never raises for the cache: where it is full, read-only or gone, nothing is saved there. Whether it is saved.
        """
        key = ResultKey(self.reports, question, version)
        if self.memory is not None:
            self.memory.save(key, value)
        if self.directory is None:
            return self.memory is not None
        partials = self.partials or self.directory
        if self.partials is None:
            drop_abandoned(partials)
        with suppress(OSError):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            seals.write(self._file(self.directory, key), key.text, _encoded(value), partials)
            if self.caps is not None:
                _trim(self.directory, self.caps)
            return True
        return self.memory is not None

    def move(self, other: Results) -> None:
        """Makes all results in these files the results of other reports, in one file of a directory that has none.

        An index of them comes first: the length of each, its seal included, by the name that a file of its own has,
        which is looked for before. Raises OSError.
        """
        if self.directory is None or other.directory is None:
            return
        lengths, parts = {}, list[bytes | memoryview]()
        for file in sorted(self.directory.glob(_file_name("*", ""))):
            _, question, *version = file.stem.split("=")
            content = seals.read(file, ResultKey(self.reports, question, *version).text)
            if content is not None:
                key = ResultKey(other.reports, question, *version)
                lengths[file.name] = len(content) + len(seals.seal_line(key.text, [content]))
                parts += [seals.seal_line(key.text, [content]), content]
            file.unlink(missing_ok=True)
        if parts:
            index = json.dumps(lengths, separators=(",", ":")).encode()
            head = [len(index).to_bytes(_LENGTH_BYTES, "little"), index]
            seals.write_whole(other.directory / MOVED, [*head, *parts], other.directory)

    def _read(self, key: ResultKey) -> Any | None:
        if self.directory is None:
            return None
        file = self._file(self.directory, key)
        content = seals.read(file, key.text)
        if content is None and self.caps is None:
            content = _moved(file, key.text)
        if content is None:
            return None
        with suppress(OSError):  # a cache that is only read serves as well
            os.utime(self.directory if self.caps is None else file)
        return _decoded(content)

    def _file(self, directory: Path, key: ResultKey) -> Path:
        if self.caps is None:
            return directory / _file_name(str(key.question), key.version)
        return directory / f"{hashlib.sha256(key.text.encode()).hexdigest()[:32]}.bin"


MOVED = "results.bin"
"""The name of the file of `Results.move`; it is left as it is."""


def _moved(file: Path, key: str) -> memoryview | None:
    """What `Results.move` kept of a file; ``None`` where that is none, or damaged."""
    with suppress(OSError, MemoryError, *seals.ANOTHER), opened(file.with_name(MOVED)) as stream:
        length, left = int.from_bytes(stream.read(_LENGTH_BYTES), "little"), os.fstat(stream.fileno()).st_size
        lengths = json_in(stream.read(min(length, left)))
        if file.name in lengths:
            before = takewhile(lambda name: name != file.name, lengths)
            stream.seek(_LENGTH_BYTES + length + sum(lengths[name] for name in before))
            return seals.content_of(memoryview(stream.read(min(lengths[file.name], left))), key)
    return None


def as_arrays(found: Any) -> Arrays:
    """A result that must be arrays by name. Raises TypeError for another."""
    if not isinstance(found, Mapping) or not all(hasattr(values, "dtype") for values in found.values()):
        raise TypeError("no arrays")
    return found


def json_array(value: Any) -> np.ndarray[Any, Any]:
    """A small value of JSON (texts, rows with missing values) as an array among others."""
    import numpy as np

    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def json_of(array: np.ndarray[Any, Any]) -> Any:
    """The inverse of ``json_array``; tuples have become lists."""
    return json.loads(array.tobytes())


def _file_name(question: str, version: str) -> str:
    return f"result={question}={version}.bin" if version else f"result={question}.bin"


def _trim(directory: Path, caps: Caps) -> None:
    """Removes what was used longest ago once there is too much."""
    found = []
    for file in directory.iterdir():
        with suppress(OSError):
            status = file.stat()
            found.append((status.st_mtime, status.st_size, file))
    total, number = sum(size for _, size, _ in found), len(found)
    for _, size, file in sorted(found):
        if total <= caps.size and number <= caps.files:
            return
        with suppress(OSError):
            file.unlink()
        total, number = total - size, number - 1


def _encoded(value: Any) -> list[bytes | memoryview]:
    """A header of JSON after its length, then the bytes of the arrays: the header describes these, or is the value."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    if isinstance(value, Mapping) and any(hasattr(item, "dtype") for item in value.values()):
        import numpy as np

        arrays = {name: np.ascontiguousarray(_narrowest(array)) for name, array in value.items()}
    described = [[name, array.dtype.str, value[name].dtype.str, len(array)] for name, array in arrays.items()]
    head = json.dumps({"arrays": described} if arrays else {"value": value}, separators=(",", ":")).encode()
    parts = [array.view("u1").data for array in arrays.values()]
    return [len(head).to_bytes(_LENGTH_BYTES, "little"), head, *parts]


def _decoded(content: memoryview) -> Any:
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    head = json_in(bytes(content[_LENGTH_BYTES:start]))
    if "arrays" not in head:
        return head["value"]
    import numpy as np

    found = {}
    for name, stored, kind, length in head["arrays"]:
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
