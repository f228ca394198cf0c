"""Answers that were given before, kept as small JSON files in the cache: the same question of unchanged files.

What a value means is the business of whoever keeps it. A file holds its question as well, so that it is only ever
the answer to that one, after a line with a checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsystui.exports.partial import partial_name

_ENDING = ".json"
# What reading a file raises that is none of ours, or not whole.
_DAMAGED = (OSError, ValueError, KeyError, TypeError, RecursionError)


@dataclass(frozen=True)
class Answers:
    """A directory of at most ``most`` answers of together at most about ``cap`` bytes; the oldest go first."""

    directory: Path
    cap: int = 64 << 20
    most: int = 2000

    def load(self, question: str) -> Any | None:
        """What was kept under ``question``; ``None`` where nothing is, or nothing whole."""
        file = self._file(question)
        try:
            check, _, text = file.read_bytes().partition(b"\n")
            if int(check, 16) != zlib.crc32(text):
                return None
            kept = json.loads(text)
            if kept["question"] != question:
                return None
            value = kept["value"]
        except _DAMAGED:
            return None
        with suppress(OSError):  # a cache that is only read serves as well
            os.utime(file)
        return value

    def save(self, question: str, value: Any) -> None:
        """Keeps ``value``, made of plain JSON values. Never raises for the cache: where it is full, nothing is kept."""
        text = json.dumps({"question": question, "value": value}, separators=(",", ":"))
        text = f"{zlib.crc32(text.encode()):08x}\n{text}"
        file = self._file(question)
        partial = file.with_name(partial_name())
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as out:
                out.write(text)
            os.replace(partial, file)
            self._trim()
        except OSError:
            with suppress(OSError):
                partial.unlink()

    def _file(self, question: str) -> Path:
        return self.directory / (hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:32] + _ENDING)

    def _trim(self) -> None:
        """Removes what was used longest ago, and what a killed process left, once there is too much."""
        found = []
        for file in self.directory.iterdir():
            with suppress(OSError):
                status = file.stat()
                found.append((status.st_mtime, status.st_size, file))
        total, number = sum(size for _, size, _ in found), len(found)
        for _, size, file in sorted(found):
            if total <= self.cap and number <= self.most:
                return
            with suppress(OSError):
                file.unlink()
            total, number = total - size, number - 1
