"""Answers that were given before, kept as small JSON files in the cache: the same question of unchanged files.

What a value means is the business of whoever keeps it. A file is sealed with its question, so that it is only ever the
answer to that one.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsystui.store import seals

_ENDING = ".json"


@dataclass(frozen=True)
class Answers:
    """A directory in the cache of at most ``most`` answers, together about ``cap`` bytes; the oldest go first."""

    directory: Path
    cap: int = 64 << 20
    most: int = 2000

    def load(self, question: str) -> Any | None:
        """What was kept under ``question``; ``None`` where nothing is, or nothing whole."""
        file = self._file(question)
        content = seals.read(file, question)
        if content is None:
            return None
        with suppress(OSError):  # a cache that is only read serves as well
            os.utime(file)
        return json.loads(bytes(content))

    def save(self, question: str, value: Any) -> None:
        """Keeps ``value``, made of plain JSON values. Never raises for the cache: where it is full, nothing is kept."""
        text = json.dumps(value, separators=(",", ":")).encode()
        with suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            seals.write(self._file(question), question, [text], self.directory.parent)
            self._trim()

    def _file(self, question: str) -> Path:
        return self.directory / (hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:32] + _ENDING)

    def _trim(self) -> None:
        """Removes what was used longest ago once there is too much."""
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
