"""Seals show whether a file of the cache or of a packed job is still as it was written.

Data from the cache that does not match its seal is computed again.

The first line of a small file is a seal over its key (report, question, version) and content: a cut, changed or renamed
file does not match.

DuckDB reads Parquet files in parts, so their seals are in a file next to them: size, time and checksum (CRC-32). Size
and time cost nothing to compare; the checksum, which reads the whole file, is compared only if the time differs. In the
cache this is the time of the last change of any kind, which no program can set back: damage that the file system does
not notice, such as a failing disk, is found by DuckDB or not at all. Packed jobs are copied between machines, so there
it is the modification time, which copies keep.
"""

import functools
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nsystui.base.files import json_in, opened, partial_name, remove, text_of

_PART = 1 << 20
_CHECK, _PLACE, _FILES = "checksum", "place", "files"
_KEY_BYTES = 16
# Digest of the key, space, checksum of key and content, and line end.
_SEAL_BYTES = 2 * _KEY_BYTES + 1 + 8 + 1

Seal = tuple[int, int, int]
"""The size of a file, bytes; its time, ns; and its checksum."""
Time = Callable[[os.stat_result], int]
ANOTHER = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Errors of reading a sealed file in another form than this program writes."""


def modified_ns(status: os.stat_result) -> int:
    """Return the time of the last change of a file's content, ns; copies keep it, and any program can set it."""
    return status.st_mtime_ns


def changed_ns(status: os.stat_result) -> int:
    """Return the time of a file's last change of any kind, ns."""
    return status.st_ctime_ns


def write(file: Path, key: str, parts: Sequence[bytes | memoryview], partials: Path) -> None:
    """Write a small file with its seal, as `write_whole` does. Raises OSError."""
    write_whole(file, [seal_line(key, parts), *parts], partials)


def write_whole(file: Path, parts: Sequence[bytes | memoryview], partials: Path) -> None:
    """Write a small file under a name in ``partials``, and rename it when complete. Raises OSError."""
    partial = partials / partial_name()
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.writelines(parts)
        os.replace(partial, file)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def read(file: Path, key: str) -> memoryview | None:
    """Return the content that ``write`` wrote with this key, or ``None``. Remove a file that does not match."""
    try:
        with opened(file) as stream:
            data = memoryview(stream.read())
    except (OSError, MemoryError):
        return None
    content = content_of(data, key)
    if content is None:
        remove(file)
    return content


def content_of(data: memoryview, key: str) -> memoryview | None:
    """Return the content after its seal, or ``None`` if it does not match."""
    content = data[_SEAL_BYTES:]
    return content if data[:_SEAL_BYTES] == seal_line(key, [content]) else None


def seal_line(key: str, parts: Sequence[bytes | memoryview]) -> bytes:
    """Return the seal of a content, the first line of its file."""
    text = key.encode("utf-8", "surrogatepass")
    crc = zlib.crc32(text)
    for part in parts:
        crc = zlib.crc32(part, crc)
    return f"{hashlib.blake2b(text, digest_size=_KEY_BYTES).hexdigest()} {crc:08x}\n".encode()


def write_facts(directory: Path, target: Path, name: str, values: Mapping[str, Any]) -> None:
    """Write the facts of a directory of the cache, with the seals of its Parquet files. Raises OSError.

    They are valid only when the directory is renamed to ``target``.
    """
    files = {file.name: seal_now(file, changed_ns) for file in sorted(directory.glob("*.parquet"))}
    (directory / name).write_text(facts_text({**values, _PLACE: target.name, _FILES: files}), encoding="utf-8")


def read_facts(directory: Path, name: str) -> tuple[dict[str, Any], dict[Path, Seal]]:
    """Return the facts that ``write_facts`` wrote, with the seals of the files, which are unchanged.

    Raises OSError if a file is missing, and one of `ANOTHER` if a file does not match.
    """
    file = directory / name
    values = facts_of(json_in(text_of(file)))
    if values.pop(_PLACE) != directory.name:
        raise ValueError(f"{file}: of another place")
    seals = {directory / path: seal_of(seal) for path, seal in values.pop(_FILES).items()}
    now = {path: check(path, seal, changed_ns) for path, seal in seals.items()}
    if now != seals:  # files were copied: save their new times, so that they are not read again
        with suppress(OSError):
            text = facts_text({**values, _PLACE: directory.name, _FILES: {path.name: now[path] for path in now}})
            write_whole(file, [text.encode()], directory.parent)
    return values, now


def sealed(file: Path) -> Seal:
    """Return the seal of a file that will be copied. Raises OSError.

    Its time is truncated to a second, which all disks keep.
    """
    time = modified_ns(file.stat()) // 10**9 * 10**9
    os.utime(file, ns=(time, time))
    return seal_now(file, modified_ns)


def seal_now(file: Path, time: Time) -> Seal:
    """Return the current seal of a file. Raises OSError."""
    crc = checksum(file)
    status = file.stat()
    return status.st_size, time(status), crc


def check(file: Path, seal: Seal, time: Time) -> Seal:
    """Return the seal with the current ``time``. Raises ValueError if the file does not match, and OSError."""
    size, sealed_time, expected = seal
    status = file.stat()
    if status.st_size != size or not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{file}: not the {size} bytes that were written")
    if time(status) != sealed_time and _checksum_of_state(file, size, status.st_ctime_ns) != expected:
        raise ValueError(f"{file}: not what was written")
    return size, time(status), expected


def changed(seals: Mapping[Path, Seal]) -> list[Path]:
    """Return the files that do not match their seals, or cannot be read; all are read."""
    files = []
    for file, (size, _, expected) in seals.items():
        try:
            is_unchanged = file.stat().st_size == size and checksum(file) == expected
        except OSError:
            is_unchanged = False
        if not is_unchanged:
            files.append(file)
    return files


def checksum(file: Path) -> int:
    """Return the CRC-32 of a file's content. Raises OSError."""
    crc = 0
    with opened(file, buffering=0) as stream:
        while data := stream.read(_PART):
            crc = zlib.crc32(data, crc)
    return crc


@functools.lru_cache(4096)
def _checksum_of_state(file: Path, size: int, changed: int) -> int:
    """Return the CRC-32 of a file in one state. The reports of a group share their files."""
    return checksum(file)


def facts_text(values: Mapping[str, Any]) -> str:
    """Return facts as JSON with their checksum, for ``facts_of``."""
    plain = json.loads(json.dumps(values))  # makes every key a string
    return json.dumps({**values, _CHECK: _checksum_of(plain)})


def facts_of(value: Any) -> dict[str, Any]:
    """Return the facts in the value of ``facts_text``. Raises ValueError if they have changed."""
    values = dict(value) if isinstance(value, dict) else {}
    if values.pop(_CHECK, None) != _checksum_of(values):
        raise ValueError("not the facts that were written")
    return values


def seal_of(values: Any) -> Seal:
    """Return a seal from JSON. Raises ValueError or TypeError otherwise."""
    size, time, checksum = map(int, values)
    return size, time, checksum


def _checksum_of(plain: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())
