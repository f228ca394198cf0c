"""Rank numbers as the user gives them: a pattern on the names of the files, or a list of names with their ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nsystui.base.errors import UsageError
from nsystui.base.text import whole_number

SOURCE = "--ranks"
_HIGHEST = 999_999_999


@dataclass(frozen=True)
class Numbering:
    """The rank of each report: ``pattern`` has one group, the number in a report's name; else ``given`` by name."""

    text: str
    pattern: re.Pattern[str] | None = None
    given: Mapping[str, int] = field(default_factory=dict)

    def numbers(self, names: Sequence[str]) -> list[int]:
        """The rank of each report by its name (the file's without its ending).

        Raises UsageError for a report without a number, and for two with the same.
        """
        found = [self._number(name) for name in names]
        for place, number in enumerate(found):
            first = found.index(number)
            if first != place:
                raise UsageError(f"--ranks {self.text!r}: {names[first]} and {names[place]} are both rank {number}")
        return found

    def _number(self, name: str) -> int:
        if self.pattern is None:
            if name not in self.given:
                raise UsageError(f"--ranks {self.text!r}: {name} is not in the list")
            return self.given[name]
        match = self.pattern.search(name)
        rank = whole_number((match[1] or "") if match else "", _HIGHEST)
        if rank is None:
            raise UsageError(f"--ranks {self.text!r}: no number of a rank in the name {name}")
        return rank


def numbering(text: str) -> Numbering | None:
    r"""The rank numbers that ``--ranks`` gives; ``None`` where it only chooses ranks (``0,4-7``).

    ``rank(\d+)`` is a pattern, for it has a group, and ``first.sqlite=0,second.sqlite=4`` a list. Raises UsageError.
    """
    if "(" in text:
        try:
            pattern = re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(f"--ranks {text!r}: {error}") from None
        if pattern.groups != 1:
            raise UsageError(f"--ranks {text!r}: put the number into one group, as in 'rank(\\d+)'")
        return Numbering(text, pattern)
    return Numbering(text, given=dict(_pairs(text))) if "=" in text else None


def _pairs(text: str) -> Iterable[tuple[str, int]]:
    for part in text.split(","):
        name, _, number = part.rpartition("=")
        rank = whole_number(number.strip(), _HIGHEST)
        if not name or rank is None:
            raise UsageError(f"--ranks {text!r}: write FILE=RANK,FILE=RANK; {part!r} is not of that form")
        yield name.strip().rpartition("/")[2].removesuffix(".sqlite"), rank
