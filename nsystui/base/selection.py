"""The selection: an immutable value for the part of a job to look at.

Every question takes it, and every screen shows it. `parse_numbers` and `parse_window` parse flags and prompts.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, replace
from functools import lru_cache

from nsystui.base.answer import UNKNOWN
from nsystui.base.errors import UsageError
from nsystui.base.text import whole_number
from nsystui.base.units import parse_duration


@dataclass(frozen=True, order=True)
class Task:
    """A process in a report: (index of the report, NVIDIA's globalPid)."""

    report: int
    process: int


@dataclass(frozen=True)
class Window:
    """A span of job time, ns. It contains events that overlap ``[start, end)``, like ``nsys stats --filter-time``."""

    start: int
    end: int
    step: int | None = None
    """The step of this time; questions about steps select it by number on every rank."""
    spans: tuple[tuple[int, int, int], ...] = ()
    """The start and end of the step in each report that has it, by index."""

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise UsageError(f"the time window ends ({self.end} ns) before it starts ({self.start} ns)")

    @classmethod
    def of_event(cls, start: int, end: int) -> Window:
        """Return the window of an event, of length 0 if damage makes the event end before it starts."""
        return cls(start, max(start, end))


@dataclass(frozen=True)
class NameFilter:
    r"""A filter on names: a substring, ``!`` before it for the inverse, ``/…/`` or ``re:…`` for a regular expression.

    It ignores case, unless it contains an upper-case letter (smart case; escapes such as ``\S`` do not count).
    ``words`` replace the text on screens. Raises UsageError for an invalid regular expression.
    """

    text: str
    words: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.is_regex:
            try:
                _compiled(self.pattern, self.ignore_case)
            except (re.error, OverflowError, RecursionError) as error:
                raise UsageError(f"filter {self.text!r}: {error}") from None

    @property
    def inverse(self) -> bool:
        return self.text.startswith("!")

    @property
    def _body(self) -> str:
        return self.text[1:] if self.inverse else self.text

    @property
    def is_regex(self) -> bool:
        body = self._body
        return body.startswith("re:") or (len(body) > 2 and body.startswith("/") and body.endswith("/"))

    @property
    def pattern(self) -> str:
        """The substring or regular expression without its marks."""
        body = self._body
        if body.startswith("re:"):
            return body[3:]
        return body[1:-1] if self.is_regex else body

    @property
    def ignore_case(self) -> bool:
        letters = re.sub(r"\\.", "", self.pattern) if self.is_regex else self.pattern
        return letters == letters.lower()

    def matches(self, name: str) -> bool:
        """Return whether ``name`` passes the filter, as in SQL, for lists in memory."""
        if self.is_regex:
            is_match = _compiled(self.pattern, self.ignore_case).search(name) is not None
        else:
            is_match = self.pattern in (_lower(name) if self.ignore_case else name)
        return is_match != self.inverse


@lru_cache(maxsize=64)
def _compiled(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    with warnings.catch_warnings():  # Python's warnings would be printed over the screen
        warnings.simplefilter("ignore")
        return re.compile(pattern, re.IGNORECASE if ignore_case else 0)


def _lower(name: str) -> str:
    """Lower-case each letter alone, like SQL: ``str.lower`` uses another sigma at a word's end."""
    return name.lower() if name.isascii() else "".join("i" if char == "İ" else char.lower() for char in name)


@dataclass(frozen=True)
class Selection:
    """The part of a job to look at. Each field narrows it; ``Selection()`` is everything.

    ``tasks``, ``devices`` (CUDA ordinals inside a process) and ``streams`` are ``None`` for "all". ``windows`` has
    windows of single reports, by report index; if it is set, other reports are excluded.
    """

    window: Window | None = None
    tasks: frozenset[Task] | None = None
    devices: frozenset[int] | None = None
    streams: frozenset[int] | None = None
    name: NameFilter | None = None
    windows: tuple[tuple[int, Window], ...] | None = None

    def with_window(self, window: Window | None) -> Selection:
        return replace(self, window=window)

    def with_tasks(self, tasks: frozenset[Task] | None) -> Selection:
        return replace(self, tasks=tasks)

    def with_name(self, text: str | None) -> Selection:
        return replace(self, name=NameFilter(text) if text else None)

    @property
    def is_everything(self) -> bool:
        return self == Selection()


# No job has more streams or ranks. A typing error must not fill the memory.
_MAX_NUMBERS = 1_000_000


def parse_numbers(text: str, noun: str) -> frozenset[int]:
    """Parse ``0,4-7`` as {0, 4, 5, 6, 7}; ``unknown`` is `UNKNOWN`, for devices and streams. Raises UsageError."""
    numbers: set[int] = set()
    for part in text.split(","):
        if part.strip() == "unknown" and noun in ("devices", "streams"):
            numbers.add(UNKNOWN)
            continue
        first, dash, last = (word.strip() for word in part.partition("-"))
        low = whole_number(first)
        high = whole_number(last) if dash else low
        if low is None or high is None:
            raise UsageError(f"{noun} {text!r}: write numbers and spans, such as 0,4-7")
        if high < low:
            raise UsageError(f"{noun} {text!r}: {low}-{high} goes backwards")
        if high - low >= _MAX_NUMBERS:
            raise UsageError(f"{noun} {text!r}: {low}-{high} is more than {_MAX_NUMBERS:,} numbers")
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def parse_window(text: str, extent: Window) -> Window:
    """Parse ``A:B`` as a window of job time; ``extent``, inclusive, replaces missing ends. Raises UsageError."""
    start, colon, end = text.partition(":")
    if not colon:
        raise UsageError(f"time {text!r}: write A:B, such as 1.2s:1.5s")
    first = parse_duration(start, text) if start.strip() else extent.start
    # A window excludes its end, and the job's last event may be a mark at that time.
    return Window(first, parse_duration(end, text) if end.strip() else max(extent.end + 1, first))


def window_flag(window: Window) -> str:
    """Return the command-line flag that selects exactly the window: ``--time 341.967366ms:345.725798ms``."""
    ends = (f"{end // 1_000_000}.{end % 1_000_000:06}".rstrip("0").rstrip(".") for end in (window.start, window.end))
    return f"--time {'ms:'.join(ends)}ms"


def window_words(window: Window) -> str:
    """Return ``from 0.500 s to 0.600 s``, with enough digits to distinguish the ends."""
    if window.end - window.start >= 1_000_000_000:
        return f"from {window.start / 1e9:.3f} s to {window.end / 1e9:.3f} s"
    digits = next((n for n in (3, 6) if not (window.start % 10 ** (9 - n) or window.end % 10 ** (9 - n))), 9)
    return f"from {window.start / 1e9:.{digits}f} s to {window.end / 1e9:.{digits}f} s"
