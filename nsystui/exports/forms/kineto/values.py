"""Values of events: numbers may be text, times are microseconds with decimals."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

_MOST = 1 << 62


def whole(value: Any) -> int | None:
    """An integer that SQLite holds, also from text; ``None`` for anything else."""
    number: int | None = None
    if isinstance(value, int):
        number = None if isinstance(value, bool) else value
    elif isinstance(value, str):
        number = int(value) if len(value) < 20 and value.removeprefix("-").isdecimal() else None
    elif isinstance(value, Decimal) and value.is_finite() and value.copy_abs() < _MOST and value == int(value):
        number = int(value)
    return number if number is not None and -_MOST < number < _MOST else None


def nanoseconds(value: Any) -> int | None:
    """Microseconds as ns, exactly; ``None`` for what is no time."""
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except InvalidOperation:
            return None
    if isinstance(value, Decimal):
        time = round(value * 1000) if value.is_finite() and value.copy_abs() < _MOST else _MOST
    elif isinstance(value, int) and not isinstance(value, bool):
        time = value * 1000
    else:
        return None
    return time if -_MOST < time < _MOST else None
