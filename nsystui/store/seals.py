"""Seals: they tell whether a file of the cache or of a packed job is still the one that was written.

Everything that is read from the cache is checked here; what does not match its seal is computed again.

A small file is read whole: its first line is a seal over its key (report, question, version) and its content. A file
that was cut, changed or moved to the name of another does not match.

Parquet files are read by DuckDB, a part at a time. Their seals stand in a file next to them: size, time and checksum
(CRC-32). Size and time cost nothing to compare; the checksum, for which the whole file must be read, is compared only
if the time differs. In the cache this is the time of the last change of any kind, which no program can set back:
damage that the file system does not know of, such as a failing disk, is found by DuckDB or not at all. A packed job is
copied between machines, so there it is the time that copies keep.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nsystui.base.inputs import json_in, opened, text_of
from nsystui.base.partial_files import partial_name, remove

_PART = 1 << 20
_CHECK, _PLACE, _FILES = "checksum", "place", "files"
_KEY_BYTES = 16
# Of the key, of key and content, and the end of the line.
_SEAL_BYTES = 2 * _KEY_BYTES + 1 + 8 + 1

Seal = tuple[int, int, int]
"""The bytes of a file, its time in ns, and its checksum."""
Time = Callable[[os.stat_result], int]
ANOTHER = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""What reading raises of a file that is sealed, and is not what this program writes there."""


def modified_ns(status: os.stat_result) -> int:
    """The time of the last change of what is in a file, ns: copies keep it, and any program can set it."""
    return status.st_mtime_ns


def changed_ns(status: os.stat_result) -> int:
    """The time of the last change of a file, ns; where the system tells none, that of its content."""
    return status.st_ctime_ns if os.name == "posix" else status.st_mtime_ns


def write(file: Path, key: str, parts: Sequence[bytes | memoryview], partials: Path) -> None:
    """Writes a small file with its seal, as `write_whole` does. Raises OSError."""
    write_whole(file, [seal_line(key, parts), *parts], partials)


def write_whole(file: Path, parts: Sequence[bytes | memoryview], partials: Path) -> None:
    """Writes a small file under a name in ``partials``, and renames it: it is there whole or not at all.

    Raises OSError.
    """
    partial = partials / partial_name()
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.writelines(parts)
        os.replace(partial, file)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def read(file: Path, key: str) -> memoryview | None:
    """The content that ``write`` wrote with this key; ``None`` without one. A file that does not match is removed."""
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
    """The content after its seal; ``None`` where it does not match."""
    content = data[_SEAL_BYTES:]
    return content if data[:_SEAL_BYTES] == seal_line(key, [content]) else None


def seal_line(key: str, parts: Sequence[bytes | memoryview]) -> bytes:
    """What stands before a content in its file."""
    text = key.encode("utf-8", "surrogatepass")
    check = zlib.crc32(text)
    for part in parts:
        check = zlib.crc32(part, check)
    return f"{hashlib.blake2b(text, digest_size=_KEY_BYTES).hexdigest()} {check:08x}\n".encode()


def write_facts(directory: Path, target: Path, name: str, values: Mapping[str, Any]) -> None:
    """Writes the facts of a directory of the cache, with the seals of its Parquet files.

    It will lie at ``target``, and is nothing anywhere else. Raises OSError.
    """
    files = {file.name: seal_now(file, changed_ns) for file in sorted(directory.glob("*.parquet"))}
    text = facts_text({**values, _PLACE: target.name, _FILES: files})
    (directory / name).write_text(text, encoding="utf-8")


def read_facts(directory: Path, name: str) -> tuple[dict[str, Any], dict[Path, Seal]]:
    """The facts that ``write_facts`` wrote, with the seals of the files, which are unchanged.

    Raises OSError where one is not there, and one of `ANOTHER` where it is another.
    """
    file = directory / name
    values = facts_of(json_in(text_of(file)))
    if values.pop(_PLACE) != directory.name:
        raise ValueError(f"{file}: of another place")
    seals = {directory / found: seal_of(seal) for found, seal in values.pop(_FILES).items()}
    now = {found: check(found, seal, changed_ns) for found, seal in seals.items()}
    if now != seals:  # a copy, whose files the next one need not read again
        with suppress(OSError):
            _replace_facts(file, {**values, _PLACE: directory.name, _FILES: {one.name: now[one] for one in now}})
    return values, now


def _replace_facts(file: Path, values: Mapping[str, Any]) -> None:
    partial = file.parents[1] / partial_name()
    try:
        partial.write_text(facts_text(values), encoding="utf-8")
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def sealed(file: Path) -> Seal:
    """The seal of a file that will be copied; its time becomes a whole second, which all disks keep. Raises OSError."""
    time = modified_ns(file.stat()) // 10**9 * 10**9
    os.utime(file, ns=(time, time))
    return seal_now(file, modified_ns)


def seal_now(file: Path, time: Time) -> Seal:
    """The seal of a file as it is. Raises OSError."""
    check = checksum(file)
    status = file.stat()
    return status.st_size, time(status), check


def check(file: Path, seal: Seal, time: Time) -> Seal:
    """The seal with the ``time`` of now. Raises ValueError where a file is not what was sealed, and OSError."""
    size, before, expected = seal
    status = file.stat()
    if status.st_size != size or not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{file}: not the {size} bytes that were written")
    if time(status) != before and checksum(file) != expected:
        raise ValueError(f"{file}: not what was written")
    return size, time(status), expected


def changed(seals: Mapping[Path, Seal]) -> list[Path]:
    """The files that are not what was sealed, all of them read, or that cannot be read."""
    found = []
    for file, (size, _, expected) in seals.items():
        try:
            is_so = file.stat().st_size == size and checksum(file) == expected
        except OSError:
            is_so = False
        if not is_so:
            found.append(file)
    return found


def checksum(file: Path) -> int:
    """The CRC-32 of what is in a file. Raises OSError."""
    check = 0
    with opened(file, buffering=0) as stream:
        while data := stream.read(_PART):
            check = zlib.crc32(data, check)
    return check


def facts_text(values: Mapping[str, Any], indent: int | None = None) -> str:
    """Facts as JSON with a checksum of their own, for ``facts_of``."""
    plain = json.loads(json.dumps(values))  # where every key is text
    return json.dumps({**values, _CHECK: _checksum_of(plain)}, indent=indent)


def facts_of(found: Any) -> dict[str, Any]:
    """The facts in the value of ``facts_text``; raises ValueError where they are not what was written."""
    values = dict(found) if isinstance(found, dict) else {}
    if values.pop(_CHECK, None) != _checksum_of(values):
        raise ValueError("not the facts that were written")
    return values


def seal_of(values: Any) -> Seal:
    """A seal out of JSON; raises ValueError or TypeError for what is none."""
    size, time, checksum = map(int, values)
    return size, time, checksum


def _checksum_of(plain: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())
