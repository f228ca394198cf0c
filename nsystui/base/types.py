"""Shared types, and `grouped`; types of a library are ``Any`` while the program runs: annotations load no library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import pandas as pd
    import sqlalchemy as sa
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    DataSeries = pd.Series[Any]

    Expression = sa.ColumnElement[Any]
    Condition = sa.ColumnElement[bool]
    Labelled = sa.Label[Any]
    Query = sa.Select[*tuple[Any, ...]]
    AnyQuery = Query | sa.CompoundSelect[*tuple[Any, ...]]
else:
    Array = Ints = Floats = Flags = DataSeries = Expression = Condition = Labelled = Query = AnyQuery = Any

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    """Return the items of each key, in order."""
    groups: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups
