"""Kernel names behind the name of the NVTX range that launched them: ``range/kernel``, the option ``:nvtx-name``.

A kernel whose launch was not recorded, or is in no range, keeps its name alone; so does one in a range without a text.
The domain of the range is not shown. The name filter of the selection looks at the kernel's own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Answer, Changed, Row, TableAnswer, iter_rows
from nsystui.base.columns import Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.stats.cuda_coded import Coded
from nsystui.questions.stats.cuda_launch_ranges import NO_RANGE, LaunchRanges
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd


def _behind(text: str, kernel: str) -> str:
    return f"{text}/{kernel}" if text else kernel


def range_named_frame(
    session: Session,
    selection: Selection,
    query: sa.Select[Any],
    kernel_name: sa.ColumnElement[Any],
    words: Mapping[str, sa.ColumnElement[Any]],
) -> pd.DataFrame:
    """The rows of ``query``, a select from the kernels, with the ``name`` of each behind its range.

    ``words`` are more text columns by their keys; all texts are categories.
    """
    import pandas as pd

    kernels = Coded(kernel_name)
    place = (tables.kernels.c.report.label("kernel_report"), tables.kernels.c.row.label("kernel_row"))
    query = kernels.added_to(query.add_columns(*place), "kernel_name")
    coded = {key: Coded(column) for key, column in words.items()}
    for key, column in coded.items():
        query = column.added_to(query, key)
    frame = session.frame(query)
    for key, column in coded.items():
        frame[key] = pd.Categorical.from_codes(frame[key], column.texts(session))
    ranges = LaunchRanges.find(session, selection)
    codes = ranges.of(frame.pop("kernel_report").to_numpy(), frame.pop("kernel_row").to_numpy())
    texts = kernels.texts(session)
    # A pair of a range and a kernel as one number, so that every name is put together once.
    pairs, pair = np.unique(codes * len(texts) + frame.pop("kernel_name").to_numpy(), return_inverse=True)
    split = [divmod(number, len(texts)) for number in pairs.tolist()]
    names = [_behind("" if code == NO_RANGE else ranges.texts[code], texts[kernel]) for code, kernel in split]
    different, name = np.unique(np.array(names, dtype=object), return_inverse=True)
    return frame.assign(name=pd.Categorical.from_codes(name[pair], different))


KERNEL_PLACE = (
    Column("kernel_report", header="", label="", unit=Unit.NUMBER),
    Column("kernel_row", header="", label="", unit=Unit.NUMBER),
)
"""The columns by which ``RangeNamed`` knows a kernel: its report and row number, ``None`` for what is no kernel."""


@dataclass(frozen=True)
class RangeNamed(Changed):
    """The rows of ``whole``, whose last columns are ``KERNEL_PLACE``: without those, and with ranges before names."""

    ranges: LaunchRanges

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.whole.columns[: -len(KERNEL_PLACE)]

    def changed(self, rows: Sequence[Row]) -> Sequence[Row]:
        place = np.array([[NO_RANGE if part is None else part for part in row[-2:]] for row in rows], np.int64)
        report, number = place.reshape(-1, 2).T
        codes = self.ranges.of(report, number).tolist()
        return [self._one_named(row, code) for row, code in zip(rows, codes, strict=True)]

    def _one_named(self, row: Row, code: int) -> Row:
        """The name is the last of the columns that are shown."""
        *cells, name = row[:-2]
        text = "" if code == NO_RANGE else self.ranges.texts[code]
        return (*cells, _behind(text, str(name or "")) if text else name)

    def sorted_by(self, key: str, descending: bool) -> Answer:
        if key != self.columns[-1].key:
            return super().sorted_by(key, descending)
        rows = list(iter_rows(self))
        return TableAnswer(self.name, self.columns, rows, self.total, self.notes).sorted_by(key, descending)
