"""Numbers in texts: of files, of variables, of a command line."""

from __future__ import annotations

LARGEST = 2**63 - 1
"""What a column, a query and a numpy array can hold."""


def whole_number(text: str, most: int = LARGEST) -> int | None:
    """The number from 0 to ``most`` that these digits are; ``None`` for any other text.

    Digits without end, which Python itself refuses to read, are no number that anything in an export has.
    """
    # Leading zeros have no end either.
    if not (text.isascii() and text.isdecimal()) or len(text) > 40:
        return None
    number = int(text)
    return number if number <= most else None
