"""Names that differ in nothing but their digits: ``step 0``, ``step 1`` … are one thing that happened many times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST_VARIANTS = 3
"""So many different names must there be beside one another: ``fp16`` and ``fp32`` are two things, not one numbered."""

_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")


def template(name: str) -> str:
    """``name`` with ``*`` for each number in it: ``layer_7`` becomes ``layer_*``, ``at 0x7f3a`` becomes ``at *``."""
    return _NUMBER.sub("*", name)


@dataclass(frozen=True, eq=False)
class Templates:
    """``texts`` are the templates of k names that hold a number; ``of_name``, shape ``(k,)``, has their index or -1."""

    texts: tuple[str, ...]
    of_name: NDArray[np.int64]

    @classmethod
    def of(cls, names: Sequence[str]) -> Templates:
        found: dict[str, int] = {}
        numbers = [found.setdefault(template(name), len(found)) if _NUMBER.search(name) else -1 for name in names]
        return cls(tuple(found), np.array(numbers, np.int64))

    @classmethod
    def none(cls, names: Sequence[str]) -> Templates:
        """No name counts as numbered."""
        return cls((), np.full(len(names), -1, np.int64))
