"""Sizes in bytes as people write them, in options and variables: ``512M``, ``1.5G``, ``2GiB``."""

from __future__ import annotations

import re
from decimal import Decimal

from nsystui.base.errors import UsageError
from nsystui.base.text import LARGEST_NUMBER

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) *([KMGT]?)(i?B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(text: str) -> int:
    """Reads a size as whole bytes: ``512M`` and ``512MiB`` are of base 1024, ``512MB`` is of base 1000.

    Raises UsageError for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size: give a number with M or G, such as 512M or 1.5G")
    number, unit, ending = match.groups()
    base = 1000 if (ending or "").upper() == "B" else 1024
    size = int(Decimal(number) * base ** _POWERS[unit.upper()])
    if size > LARGEST_NUMBER:
        raise UsageError(f"{text!r} is more than any disk holds")
    return size


def size_words(size: int) -> str:
    """A size as it may be written in an option: whole MiB, rounded up."""
    return f"{-(-size // (1 << 20))}MiB"
