"""What recipes add to a summary: quartiles, and the ranks that have the least and the largest value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nsystui.base.answer import Answer, Row, TableAnswer, Value, iter_rows
from nsystui.base.columns import Column, Unit

_RANKS = {"min": 6, "max": 3}
"""The importance of the rank of an extreme: which rank is slowest is asked more than how slow it is."""

Key = tuple[Value, ...]
"""What names a row of a summary: its name, or its style and name."""


class Extreme(NamedTuple):
    """The least and the largest value that a rank (``None``: a process that is none) has under a key."""

    key: Key
    rank: int | None
    least: float
    largest: float


@dataclass(frozen=True)
class Extras:
    """By the key of a row: (Q1, Q3), and the ranks of the least and the largest value."""

    quartiles: Mapping[Key, tuple[Value, Value]]
    ranks: Mapping[Key, tuple[Value, Value]]


def ranks_of(extremes: Iterable[Extreme]) -> dict[Key, tuple[Value, Value]]:
    """The lowest ranks that have the least and the largest value of each key; missing where no rank has it."""
    by_key: dict[Key, list[Extreme]] = {}
    for extreme in extremes:
        by_key.setdefault(extreme.key, []).append(extreme)
    found: dict[Key, tuple[Value, Value]] = {}
    for key, own in by_key.items():
        least, largest = min(one.least for one in own), max(one.largest for one in own)
        found[key] = (
            _lowest(one.rank for one in own if one.least == least),
            _lowest(one.rank for one in own if one.largest == largest),
        )
    return found


def _lowest(ranks: Iterable[int | None]) -> int | None:
    return min((rank for rank in ranks if rank is not None), default=None)


def extremes_of(answer: Answer, rank: int, keys: Sequence[str]) -> list[Extreme]:
    """Those of one rank, from its own summary."""
    places = _places(answer.columns, (*keys, "min", "max"))
    found = []
    for row in iter_rows(answer):
        *key, least, largest = (row[place] for place in places)
        if isinstance(least, int | float) and isinstance(largest, int | float):
            found.append(Extreme(tuple(key), rank, least, largest))
    return found


def with_extras(answer: Answer, keys: Sequence[str], extras: Extras) -> TableAnswer:
    """The summary with Q1 and Q3 around its median, and the ranks of the extremes behind them."""
    old = [column.key for column in answer.columns]
    columns: list[Column] = []
    for column in answer.columns:
        around = _around(column)
        columns += around if column.key == "median" else [column, *around]
    own, nothing = _places(answer.columns, keys), (None, None)
    rows: list[Row] = []
    for row in iter_rows(answer):
        key = tuple(row[place] for place in own)
        values = dict(zip(old, row, strict=True))
        values["q1"], values["q3"] = extras.quartiles.get(key, nothing)
        values["min_rank"], values["max_rank"] = extras.ranks.get(key, nothing)
        rows.append(tuple(values[column.key] for column in columns))
    return TableAnswer(answer.name, tuple(columns), rows, answer.total, answer.notes)


def _around(column: Column) -> list[Column]:
    """A column with what stands beside it; of others nothing."""
    if column.key == "median":
        return [
            replace(
                column, key=key, header=column.header.replace("Med", word), label=_short(column, word), importance=7
            )
            if key != "median"
            else column
            for key, word in (("q1", "Q1"), ("median", ""), ("q3", "Q3"))
        ]
    if column.key in _RANKS:
        word = column.key.capitalize()
        return [
            Column(
                f"{column.key}_rank",
                header=f"{word} Rank",
                label=f"{column.key} rank",
                unit=Unit.NUMBER,
                importance=_RANKS[column.key],
            )
        ]
    return []


def _short(column: Column, word: str) -> str:
    """The label of a quartile beside ``median`` or ``GPU median``."""
    return column.label.replace("median", word).replace("med", word)


def _places(columns: Sequence[Column], keys: Sequence[str]) -> list[int]:
    names = [column.key for column in columns]
    return [names.index(key) for key in keys]
