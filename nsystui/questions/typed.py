"""What a user types as a part of the selection, the same in a flag of a command and in a prompt of a screen."""

from __future__ import annotations

from nsystui.base.errors import UsageError
from nsystui.base.selection import Window
from nsystui.base.units import parse_duration
from nsystui.base.whole_number import whole_number

# More streams or ranks than any job has: a slip of the finger must not fill the memory.
_MOST_NUMBERS = 1_000_000


def numbers(text: str, what: str) -> frozenset[int]:
    """``0,4-7`` as {0, 4, 5, 6, 7}; raises UsageError."""
    found: set[int] = set()
    for part in text.split(","):
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


def window(text: str, extent: Window) -> Window:
    """``A:B`` as a window of job time; an end left out is the job's, with all that ends there. Raises UsageError."""
    start, colon, end = text.partition(":")
    if not colon:
        raise UsageError(f"time {text!r}: write A:B, such as 1.2s:1.5s")
    first = parse_duration(start) if start.strip() else extent.start
    # A window leaves its own end out, but a mark may be the last event of all.
    return Window(first, parse_duration(end) if end.strip() else max(extent.end + 1, first))
