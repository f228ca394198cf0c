"""nsystui in a pseudo terminal, with the CPU time and the memory that it takes."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from measure import CacheDirectory, nsystui

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "terminal"))

from harness import Terminal

COLUMNS, LINES = 120, 36
LOADED = "GPU time"
"""The bar of the Overview, of exact numbers."""
SAMPLE = "sample:"
LONG = 1800.0


@dataclass(frozen=True)
class Moment:
    """Seconds since a program was started, and of CPU that it has used."""

    wall: float
    cpu: float


class Program(Terminal):
    """The program on an export, at 120x36 as over SSH; a context manager. For Linux."""

    def __init__(self, path: Path, cache: CacheDirectory) -> None:
        environ = {"NSYSTUI_CACHE_DIR": str(cache.path), "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}
        super().__init__(nsystui(str(path)), environ, COLUMNS, LINES)
        self._began = time.perf_counter()

    def seen(self, *texts: str) -> Moment:
        """The moment when one of ``texts`` is on the screen."""
        while not any(text in self.text for text in texts):
            self.wait_for_more()
        return Moment(time.perf_counter() - self._began, self.cpu)

    def wait_for_more(self) -> None:
        """Waits for the next bytes; raises ``RuntimeError`` where there will be none."""
        if not self.read(1.0) and (self.exit_code is not None or time.perf_counter() - self._began > LONG):
            raise RuntimeError(f"the program does not go on:\n{self.text}")

    @property
    def cpu(self) -> float:
        """Seconds of CPU so far, exact to the microsecond: the kernel's clock of the other process."""
        return time.clock_gettime((~self._pid << 3) | 2)

    @property
    def peak(self) -> int:
        """The most bytes that were resident so far."""
        status = Path(f"/proc/{self._pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
