"""The results that nccl-tests prints between NCCL's own lines: size, times and rates, out of place and in place."""

from __future__ import annotations

import re
from typing import NamedTuple

_HEADER = b"#wrong"
_LINE = re.compile(rb"^[ \t]+[0-9][^\n]*", re.MULTILINE)
_SIZE = re.compile(rb"[ \t]+([0-9]{1,15})[ \t]+[0-9]+[ \t]+[a-z]\w*[ \t]+[a-z]+[ \t]+-?[0-9]+")
_RATE = rb"[ \t]+([0-9]{1,9}\.[0-9]+)"
_TIME = re.compile(rb"[ \t]+([0-9]{1,12}(?:\.[0-9]+)?)" + _RATE + _RATE + rb"[ \t]+(N/A|[0-9]{1,18})")


class Measured(NamedTuple):
    """One measurement: ns for one call, algorithm and bus bandwidth in bytes per second, as they are printed.

    ``wrong``: how many results were, ``None`` where they were not checked.
    """

    time: float
    algbw: float
    busbw: float
    wrong: int | None = None


class Reported(NamedTuple):
    """What nccl-tests measured of one size: bytes as it counts them."""

    size: int
    out_of_place: Measured
    in_place: Measured


class ResultReader:
    """Collects the results from a log's lines, some at a time.

    NCCL's own lines may stand between the size and the times of a result, glued to them.
    """

    def __init__(self) -> None:
        self.found: list[Reported] = []
        self._has_header = False
        self._size: int | None = None
        self._times: list[Measured] = []

    def take(self, block: bytes) -> None:
        """Reads whole lines."""
        self._has_header = self._has_header or _HEADER in block
        if self._has_header:
            for line in _LINE.findall(block):
                self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        head, place = _SIZE.match(line), 0
        if head is not None:
            self._size, self._times, place = int(head[1]), [], head.end()
        while self._size is not None and (found := _TIME.match(line, place)):
            place = found.end()
            wrong = None if found[4] == b"N/A" else int(found[4])
            self._times.append(Measured(1e3 * float(found[1]), 1e9 * float(found[2]), 1e9 * float(found[3]), wrong))
            if len(self._times) == 2:
                self.found.append(Reported(self._size, *self._times))
                self._size = None
