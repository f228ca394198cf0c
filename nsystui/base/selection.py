"""The selection: one immutable value that says what is looked at. Every question takes it, every screen shows it.

`parse_numbers` and `parse_window` read the parts of it that a user enters, in a flag of a command or in a prompt.
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
    """A span of job time, ns: events that overlap ``[start, end)`` are in it, as in ``nsys stats --filter-time``."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise UsageError(f"the time window ends ({self.end} ns) before it starts ({self.start} ns)")

    @classmethod
    def of_event(cls, start: int, end: int) -> Window:
        """The window of an event in an export; a damaged one that ends before it starts has no length."""
        return cls(start, max(start, end))


@dataclass(frozen=True)
class NameFilter:
    """A filter on names: a substring, ``!`` before it for the inverse, ``/…/`` or ``re:…`` for a regular expression.

    Substrings and regular expressions ignore case, unless they contain an upper-case letter (smart case; ``\\S`` is
    none). Raises UsageError for what is no regular expression. ``words`` say it in place of the text.
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
        """Whether ``name`` passes the filter (what the store does in SQL, for lists that are already in memory)."""
        if self.is_regex:
            found = _compiled(self.pattern, self.ignore_case).search(name) is not None
        else:
            found = self.pattern in (_lower(name) if self.ignore_case else name)
        return found != self.inverse


@lru_cache(maxsize=64)
def _compiled(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    with warnings.catch_warnings():  # Python tells what may mean something else one day: on a screen, over the screen
        warnings.simplefilter("ignore")
        return re.compile(pattern, re.IGNORECASE if ignore_case else 0)


def _lower(name: str) -> str:
    """Letter by letter, as SQL does it: Python's own knows that a sigma at the end of a word is another letter."""
    return name.lower() if name.isascii() else "".join("i" if char == "İ" else char.lower() for char in name)


@dataclass(frozen=True)
class Selection:
    """The part of a job that is looked at. Empty (``Selection()``) is everything; each set field narrows it.

    ``tasks``, ``devices`` (CUDA ordinals inside a process) and ``streams`` are ``None`` for "all". ``windows`` are
    windows of single reports, by their index: of a report that is not among them nothing is selected.
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


# More streams or ranks than any job has: a slip of the finger must not fill the memory.
_MOST_NUMBERS = 1_000_000


def parse_numbers(text: str, what: str) -> frozenset[int]:
    """``0,4-7`` as {0, 4, 5, 6, 7}, ``unknown`` of devices and streams as `UNKNOWN`; raises UsageError."""
    found: set[int] = set()
    for part in text.split(","):
        if part.strip() == "unknown" and what in ("devices", "streams"):
            found.add(UNKNOWN)
            continue
        first, dash, last = (word.strip() for word in part.partition("-"))
        low = whole_number(first)
        high = whole_number(last) if dash else low
        if low is None or high is None:
            raise UsageError(f"{what} {text!r}: write numbers and spans, such as 0,4-7")
        if high < low:
            raise UsageError(f"{what} {text!r}: {low}-{high} goes backwards")
        if high - low >= _MOST_NUMBERS:
            raise UsageError(f"{what} {text!r}: {low}-{high} is more than {_MOST_NUMBERS:,} numbers")
        found.update(range(low, high + 1))
    return frozenset(found)


def parse_window(text: str, whole: Window) -> Window:
    """``A:B`` as a window of job time; an end left out is that of ``whole``, which it includes. Raises UsageError."""
    start, colon, end = text.partition(":")
    if not colon:
        raise UsageError(f"time {text!r}: write A:B, such as 1.2s:1.5s")
    first = parse_duration(start, text) if start.strip() else whole.start
    # A window excludes its own end, but the last event of all may be a mark at that moment.
    return Window(first, parse_duration(end, text) if end.strip() else max(whole.end + 1, first))


def window_flag(window: Window) -> str:
    """``--time 341.967366ms:345.725798ms``: a flag of the command line that selects exactly the window."""
    ends = (f"{end // 1_000_000}.{end % 1_000_000:06}".rstrip("0").rstrip(".") for end in (window.start, window.end))
    return f"--time {'ms:'.join(ends)}ms"


def window_words(window: Window) -> str:
    """``from 0.500 s to 0.600 s``, with as many digits as tell the two apart."""
    if window.end - window.start >= 1_000_000_000:
        return f"from {window.start / 1e9:.3f} s to {window.end / 1e9:.3f} s"
    digits = next((few for few in (3, 6) if not (window.start % 10 ** (9 - few) or window.end % 10 ** (9 - few))), 9)
    return f"from {window.start / 1e9:.{digits}f} s to {window.end / 1e9:.{digits}f} s"
