"""Derived results: computed once from a set of reports, then loaded from memory or from the cache (`remember`).

A result has one key: the identities of its reports, its question, and the version of the code that answers it. Files
are sealed with their key, so that results are never confused. They are read, not memory-mapped: on a network file
system, a mapped file that another machine removes kills the process.
"""

import hashlib
import json
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, BinaryIO, NamedTuple, TypeVar

from nsystui.base.errors import DamagedError
from nsystui.base.files import drop_abandoned, json_in, opened, remove
from nsystui.base.types import Array
from nsystui.base.version import __version__
from nsystui.exports import canonical
from nsystui.store import seals

Arrays = Mapping[str, Array]
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
_NOTHING: Any = object()
_LENGTH_BYTES = 4


class ResultKey(NamedTuple):
    """The key of a result. ``reports`` identifies the reports and their state; in files, ``question`` is a string."""

    reports: tuple[str, ...]
    question: Hashable
    version: str = ""

    @property
    def text(self) -> str:
        return json.dumps(self)


def version_of(compute: Callable[..., object] | None = None) -> str:
    """Return the version of the results of ``compute``, derived from the code.

    It changes with the release, the canonical tables, and the module of ``compute``. Without ``compute``, it changes
    with any module: of an installed wheel, with its list of files, otherwise with the times of the sources.
    """
    return _version_of(None if compute is None else getattr(compute, "func", compute).__module__)


@cache
def _version_of(module: str | None) -> str:
    source: str | None
    if module is None:
        root = Path(__file__).parents[1]
        try:  # one file instead of hundreds
            source = (root.parent / f"nsystui-{__version__}.dist-info" / "RECORD").read_text(encoding="utf-8")
        except OSError:
            paths = (
                Path(folder) / name for folder, _, files in os.walk(root) for name in files if name.endswith(".py")
            )
            states = sorted((path.relative_to(root).as_posix(), path.stat().st_mtime_ns) for path in paths)
            source = json.dumps(states)
    else:
        source = _source_of(find_spec(module))
    definition = json.dumps([__version__, canonical.fingerprint(), module, source])
    return hashlib.sha256(definition.encode()).hexdigest()[:12]


@cache
def version_of_reading() -> str:
    """Return the version of rows read from exports and of their files, derived from the code that makes both."""
    specs = {name: find_spec(name) for name in _READING}
    package = find_spec("nsystui.exports.sources")
    assert package is not None
    for finder, name, _ in iter_modules(package.submodule_search_locations):
        specs[f"{package.name}.{name}"] = finder.find_spec(name, None)
    sources = {name: _source_of(spec) or __version__ for name, spec in specs.items()}
    definition = json.dumps([canonical.fingerprint(), sources])
    return hashlib.sha256(definition.encode()).hexdigest()[:12]


_READING = (
    "nsystui.exports.metadata", "nsystui.exports.nccl_calls", "nsystui.exports.schema", "nsystui.store.cache",
    "nsystui.store.gpu_clock", "nsystui.store.packing", "nsystui.store.reader", "nsystui.store.report",
)  # fmt: skip


def _source_of(spec: ModuleSpec | None) -> str | None:
    """Return the source of a module without importing it, or ``None`` if only its bytecode is installed."""
    if spec is None or not isinstance(spec.loader, InspectLoader):
        return None
    return spec.loader.get_source(spec.name)


class Memory:
    """Results in the memory of this process: at most ``limit``, evicting the least recently used."""

    def __init__(self, limit: int = sys.maxsize) -> None:
        self._limit = limit
        self._results: OrderedDict[ResultKey, Any] = OrderedDict()
        self._compute_locks: dict[Hashable, threading.RLock] = {}
        self._lock = threading.Lock()

    def load(self, key: ResultKey, default: object = None) -> Any:
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
            return self._results.get(key, default)

    def save(self, key: ResultKey, value: Any) -> None:
        with self._lock:
            self._results[key] = value
            self._results.move_to_end(key)
            while len(self._results) > self._limit:
                self._results.popitem(last=False)

    def computing(self, question: Hashable) -> threading.RLock:
        """Return the lock of all questions with the same first part."""
        kind = question[0] if isinstance(question, tuple) else question
        with self._lock:
            return self._compute_locks.setdefault(kind, threading.RLock())

    def forget_others(self, reports: tuple[str, ...]) -> None:
        """Remove all results whose key has other ``reports``."""
        with self._lock:
            for key in [key for key in self._results if key.reports != reports]:
                del self._results[key]


@dataclass(frozen=True)
class Caps:
    """Limits of a directory for the results of many sets of reports: bytes, and number of files."""

    size: int = 64 << 20
    files: int = 2000


@dataclass(frozen=True)
class Results:
    """The results of ``reports``, saved in ``memory``, and in ``directory`` if given.

    The first result creates the directory, which without ``caps`` holds the results of these reports only. Files are
    written in ``partials``, by default the directory itself, and then renamed. ``variant``, the clock rate of a report
    whose clock drifts, is added to each version.
    """

    reports: tuple[str, ...]
    directory: Path | None
    partials: Path | None = None
    memory: Memory = field(default_factory=lambda: Memory(0), compare=False)
    caps: Caps | None = None
    variant: str = ""

    def load(
        self,
        question: Hashable,
        version: str = "",
        read: Callable[[Any], T] = lambda value: value,
        default: T | None = None,
    ) -> T | None:
        """Return the result, converted by ``read``, or ``default`` if it is missing or damaged.

        Without ``version``, a result is valid until the identities of the reports change. If ``read`` raises one of
        `seals.ANOTHER`, the file is another program's, and is removed.
        """
        key = ResultKey(self.reports, question, version + self.variant)
        value = self.memory.load(key, _NOTHING)
        if value is not _NOTHING:
            return read(value)
        try:
            value = self._read(key)
            result = default if value is None else read(value)
        except seals.ANOTHER:
            if self.directory is not None:
                remove(self._file(self.directory, key))
            return default
        if value is not None:
            self.memory.save(key, value)
        return result

    def save(self, question: Hashable, value: Any, version: str = "") -> bool:
        """Save a value; in files, it must be plain JSON, or one-dimensional arrays (integers, floats, flags) by name.

        Return whether there is a file; a full, read-only or missing cache raises no error.
        """
        key = ResultKey(self.reports, question, version + self.variant)
        self.memory.save(key, value)
        if self.directory is None:
            return False
        partials = self.partials or self.directory
        if self.partials is None:
            drop_abandoned(partials)
        with suppress(OSError):
            # A group of a packed job that was merged meanwhile must not appear again.
            self.directory.mkdir(mode=0o700, parents=self.partials is not None or self.caps is not None, exist_ok=True)
            seals.write(self._file(self.directory, key), key.text, _encoded(value), partials)
            if self.caps is not None:
                _trim(self.directory, self.caps)
            return True
        return False

    def bundled(self, identity: str) -> bytes:
        """Return all results as results of the report ``identity``, for `write_bundles`, and remove their files."""
        contents = {}
        for file in sorted(self.directory.glob(_file_name("*", ""))) if self.directory is not None else ():
            _, question, *version = file.stem.split("=")
            content = seals.read(file, ResultKey(self.reports, question, *version).text)
            if content is not None:
                key = ResultKey((identity,), question, *version)
                contents[file.name] = seals.seal_line(key.text, [content]) + content
            file.unlink(missing_ok=True)
        return _indexed(contents) if contents else b""

    def _read(self, key: ResultKey) -> Any | None:
        if self.directory is None:
            return None
        file = self._file(self.directory, key)
        content = seals.read(file, key.text)
        if content is None and self.caps is None:
            content = _read_bundled(file, key.text)
        if content is None:
            return None
        with suppress(OSError):  # the cache may be read-only
            os.utime(self.directory if self.caps is None else file)
        return _decoded(content)

    def has(self, question: str) -> bool:
        """Return whether the directory of a report has any version of a result."""
        return self.directory is not None and any(self.directory.glob(_file_name(question, "*")))

    def _file(self, directory: Path, key: ResultKey) -> Path:
        if self.caps is None:
            return directory / _file_name(str(key.question), key.version)
        return directory / f"{hashlib.sha256(key.text.encode()).hexdigest()[:32]}.bin"


def remember(
    results: Results,
    question: Hashable,
    compute: Callable[[], T],
    version: str = "",
    read: Callable[[Any], T] = lambda value: value,
) -> T:
    """Return the result of ``question``, or compute and save it. Callers at once compute it once."""
    result = results.load(question, version, read, _NOTHING)
    if result is _NOTHING:
        with results.memory.computing(question):
            result = results.load(question, version, read, _NOTHING)  # another caller may have computed it
            if result is _NOTHING:
                result = compute()
                results.save(question, result, version)
    return result  # type: ignore[return-value]


def remember_each(
    results: Mapping[K, Results],
    question: Hashable,
    compute: Callable[[list[K]], Iterable[Mapping[K, T]]] | None,
    version: str = "",
    read: Callable[[K, Any], T | None] = lambda key, value: value,
) -> dict[K, T]:
    """Return the result of ``question`` by key; ``compute`` yields the missing results in runs, each saved at once.

    Results that ``read`` turns into ``None`` are missing. Callers at once compute them once.
    """

    def loaded(keys: Iterable[K]) -> dict[K, T]:
        values = ((key, results[key].load(question, version, partial(read, key))) for key in keys)
        return {key: value for key, value in values if value is not None}

    known = loaded(results)
    if compute is None or len(known) == len(results):
        return known
    lock = next(iter(results.values())).memory.computing(question)
    if not lock.acquire(blocking=False):
        lock.acquire()
        known |= loaded(key for key in results if key not in known)  # another caller may have computed them
    try:
        if missing := [key for key in results if key not in known]:
            for computed in compute(missing):
                for key, value in computed.items():
                    results[key].save(question, value, version)
                known.update(computed)
    finally:
        lock.release()
    return known


_DAMAGE = "damage"


@contextmanager
def remembered_damage(results: Results) -> Iterator[None]:
    """Save damage that the block finds in an export; an error about saved damage only names the table."""
    try:
        yield
    except DamagedError as error:
        if error.table in known_damage(results):
            cause = f"the answer needs {error.table}, which is damaged"
            raise DamagedError(error.path, cause, error.advice, error.table) from None
        remember_damage(results, {error.table: error.cause})
        raise


def remember_damage(results: Results, causes: Mapping[str, str]) -> None:
    """Save the causes of damage in an export by native table; an empty name means an unknown table."""
    saved = known_damage(results)
    merged = {**saved, **causes}
    if len(merged) > 1:
        merged.pop("", None)  # most likely the same damage
    if merged != saved:
        results.save(_DAMAGE, merged)


def known_damage(results: Results) -> dict[str, str]:
    """Return the causes of damage that earlier questions found in an export, by native table."""
    return results.load(_DAMAGE, read=lambda causes: {str(table): str(cause) for table, cause in causes.items()}) or {}


BUNDLES = "results.bin"
"""The file with the results of several reports, next to their directories; no later result changes it."""


def write_bundles(directory: Path, bundles: Mapping[str, bytes]) -> None:
    """Write the results of reports, by the name of each report's directory. Raises OSError."""
    (directory / BUNDLES).write_bytes(_indexed({name: bundle for name, bundle in bundles.items() if bundle}))


def bundle_of(directory: Path) -> bytes:
    """Return the results of a report in `BUNDLES`, as `Results.bundled` made them; empty if they cannot be read."""
    with suppress(OSError, MemoryError, *seals.ANOTHER), opened(directory.with_name(BUNDLES)) as stream:
        return stream.read(_find(stream, directory.name))  # type: ignore[no-any-return]
    return b""


def _read_bundled(file: Path, key: str) -> memoryview | None:
    """Return the content of the former ``file`` from `BUNDLES`, or ``None`` if it is missing or damaged."""
    with suppress(OSError, MemoryError, *seals.ANOTHER), opened(file.parent.with_name(BUNDLES)) as stream:
        _find(stream, file.parent.name)
        return seals.content_of(memoryview(stream.read(_find(stream, file.name))), key)
    return None


def _indexed(items: Mapping[str, bytes]) -> bytes:
    """Return the items after an index: its length, and the length of each item by name."""
    index = json.dumps({name: len(item) for name, item in items.items()}, separators=(",", ":")).encode()
    return b"".join((len(index).to_bytes(_LENGTH_BYTES, "little"), index, *items.values()))


def _find(stream: BinaryIO, name: str) -> int:
    """Read the index at the stream's position, go to the item ``name``, and return its length, at most the file's."""
    size = os.fstat(stream.fileno()).st_size
    lengths = json_in(stream.read(min(int.from_bytes(stream.read(_LENGTH_BYTES), "little"), size)))
    stream.seek(sum(lengths[other] for other in takewhile(lambda other: other != name, lengths)), os.SEEK_CUR)
    return min(int(lengths[name]), size)


def as_arrays(result: Any) -> Arrays:
    """Return a result that must be arrays by name. Raises TypeError if it is not."""
    if not isinstance(result, Mapping) or not all(hasattr(values, "dtype") for values in result.values()):
        raise TypeError("no arrays")
    return result


def json_array(value: Any) -> Array:
    """Return a small JSON value (strings, rows with missing values) as an array, to save it with other arrays."""
    import numpy as np

    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def json_of(array: Array) -> Any:
    """Return the value of a `json_array`, with lists instead of tuples."""
    return json.loads(array.tobytes())


def _file_name(question: str, version: str) -> str:
    return f"result={question}={version}.bin" if version else f"result={question}.bin"


def _trim(directory: Path, caps: Caps) -> None:
    files = []
    for file in directory.iterdir():
        with suppress(OSError):
            status = file.stat()
            files.append((status.st_mtime, status.st_size, file))
    total_size, count = sum(size for _, size, _ in files), len(files)
    for _, size, file in sorted(files):
        if total_size <= caps.size and count <= caps.files:
            return
        with suppress(OSError):
            file.unlink()
        total_size, count = total_size - size, count - 1


def _encoded(value: Any) -> list[bytes | memoryview]:
    """Return the length of a JSON header, the header, and the bytes of the arrays that it describes.

    A plain JSON value is stored in the header.
    """
    arrays: dict[str, Array] = {}
    if isinstance(value, Mapping) and any(hasattr(item, "dtype") for item in value.values()):
        import numpy as np

        arrays = {name: np.ascontiguousarray(_narrowest(array)) for name, array in value.items()}
    described = [[name, array.dtype.str, value[name].dtype.str, len(array)] for name, array in arrays.items()]
    header = json.dumps({"arrays": described} if arrays else {"value": value}, separators=(",", ":")).encode()
    data = [array.view("u1").data for array in arrays.values()]
    return [len(header).to_bytes(_LENGTH_BYTES, "little"), header, *data]


def _decoded(content: memoryview) -> Any:
    position = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    header = json_in(bytes(content[_LENGTH_BYTES:position]))
    if "arrays" not in header:
        return header["value"]
    import numpy as np

    arrays = {}
    for name, stored_type, original_type, length in header["arrays"]:
        array = np.frombuffer(content, stored_type, length, position)
        arrays[name] = array.astype(original_type, copy=False)
        position += array.nbytes
    return arrays


def _narrowest(array: Array) -> Array:
    """Return integers in the smallest type that holds them: most are small, and half the bytes read twice as fast."""
    import numpy as np

    if array.dtype.kind not in "iu" or not len(array):
        return array
    smallest = np.result_type(np.min_scalar_type(int(array.min())), np.min_scalar_type(int(array.max())))
    return array.astype(smallest) if smallest.kind in "iu" and smallest.itemsize < array.itemsize else array
