"""The user's rank numbers: a pattern for file names, or names with their ranks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nsystui.base.errors import UsageError
from nsystui.base.text import whole_number

_HIGHEST = 999_999_999


@dataclass(frozen=True)
class Numbering:
    """Ranks by report name: the only group of ``pattern`` matches the number, or ``given`` maps names to ranks."""

    text: str
    pattern: re.Pattern[str] | None = None
    given: Mapping[str, int] = field(default_factory=dict)

    def numbers(self, names: Sequence[str]) -> list[int]:
        """Return the rank of each report by its name (see `exports.discover.names_of`).

        Raises UsageError if a number is missing or repeated.
        """
        numbers = [self._number(name) for name in names]
        for index, number in enumerate(numbers):
            first = numbers.index(number)
            if first != index:
                raise UsageError(f"--ranks {self.text!r}: {names[first]} and {names[index]} are both rank {number}")
        return numbers

    def _number(self, name: str) -> int:
        if self.pattern is None:
            ranks = [rank for path, rank in self.given.items() if f"/{path}".endswith(f"/{name}")]
            if not ranks:
                raise UsageError(f"--ranks {self.text!r}: {name} is not in the list")
            return ranks[0]
        match = self.pattern.search(name)
        rank = whole_number((match[1] or "") if match else "", _HIGHEST)
        if rank is None:
            raise UsageError(f"--ranks {self.text!r}: no rank number in the name {name}")
        return rank


def numbering(text: str) -> Numbering | None:
    r"""Return the rank numbers that ``--ranks`` assigns; ``None`` if it only selects ranks (``0,4-7``).

    ``rank(\d+)`` is a pattern, because it has a group; ``first.sqlite=0,second.sqlite=4`` is a list. Raises UsageError.
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
            raise UsageError(f"--ranks {text!r}: write FILE=RANK,FILE=RANK; {part!r} does not have that form")
        yield name.strip().removesuffix(".sqlite"), rank
