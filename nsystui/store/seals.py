"""Whether files that were kept are still what was written: nobody notices a changed byte in a Parquet file otherwise.

A seal is a file's size, its time of change, and a checksum (CRC-32). To look at size and time costs nothing; the
checksum, for which all must be read, is only compared where the time is another one, as in a copy. So what the time
of change does not show, such as a disk that forgets, is found when DuckDB stumbles over it, or not at all.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_PART = 1 << 20
_CHECK = "checksum"

Seal = tuple[int, int, int]
"""The bytes of a file, its time of change in ns, and its checksum."""


def sealed(files: Iterable[Path]) -> dict[str, Seal]:
    """The seals of files that are whole now, by their names; their times become whole seconds, which all disks keep.

    Raises OSError.
    """
    seals = {}
    for file in files:
        status = file.stat()
        time = status.st_mtime_ns // 10**9 * 10**9
        os.utime(file, ns=(time, time))
        seals[file.name] = (status.st_size, time, checksum(file))
    return seals


def check(file: Path, seal: Seal) -> None:
    """Raises ValueError where a file is not the one that was sealed, and OSError where it cannot be read."""
    size, time, expected = seal
    status = file.stat()
    if status.st_size != size:
        raise ValueError(f"{file}: not the {size} bytes that were written")
    if status.st_mtime_ns != time:
        if checksum(file) != expected:
            raise ValueError(f"{file}: not what was written")
        with suppress(OSError):  # the next one need not read it again
            os.utime(file, ns=(time, time))


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
    with file.open("rb", buffering=0) as stream:
        while data := stream.read(_PART):
            check = zlib.crc32(data, check)
    return check


def facts_text(values: Mapping[str, Any], indent: int | None = None) -> str:
    """Facts as JSON with a checksum of their own, for ``facts_of``."""
    return json.dumps({**values, _CHECK: _checksum_of(values)}, indent=indent)


def facts_of(text: str) -> dict[str, Any]:
    """The facts in ``facts_text``; raises ValueError where they are not what was written."""
    values = json.loads(text)
    if not isinstance(values, dict) or values.pop(_CHECK, None) != _checksum_of(values):
        raise ValueError("not the facts that were written")
    return values


def seal_of(values: Any) -> Seal:
    """A seal out of JSON; raises ValueError or TypeError for what is none."""
    size, time, checksum = map(int, values)
    return size, time, checksum


def _checksum_of(values: Mapping[str, Any]) -> int:
    plain = json.loads(json.dumps(values))  # where every key is text
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())
