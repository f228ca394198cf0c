"""Kernel families over time: how long each family ran, and how long no other did."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Column, TableAnswer, Unit
from nsystui.base.kernel_families import OTHER, Rules, family_of
from nsystui.base.selection import Selection
from nsystui.base.text import few
from nsystui.base.types import Ints
from nsystui.questions.algebra.groups import one_key
from nsystui.questions.algebra.intervals import Intervals, merge, slices, union
from nsystui.questions.kernels.summary import kernel_summary, smart_kernel_names
from nsystui.questions.queries.communication import full_names
from nsystui.questions.queries.conditions import given, where
from nsystui.store import tables
from nsystui.store.session import Session

UNION = Column("union", header="Union (ns)", label="union", unit=Unit.DURATION, importance=1)
ALONE = Column("alone", header="Alone (ns)", label="alone", unit=Unit.DURATION, importance=1)
_LISTED = 1.0
"""A note names kernels without a family from this share of the kernel time, %."""


def with_union_times(answer: TableAnswer, session: Session, selection: Selection, families: Rules) -> TableAnswer:
    """Add the time in which any kernel of the family ran, and in which no other family did.

    Both are in ns, summed over the GPUs. A note names large kernels without a family.
    """
    times = _union_times(session, selection, families)
    rows = [
        (*row, *times.get(str(family), (None, None)))
        for row, family in zip(answer.rows, answer.cells("family"), strict=True)
    ]
    notes = [*answer.notes, "union: a kernel of the family ran; alone: while no other family's kernel ran"]
    smart = smart_kernel_names(session)
    kernels = kernel_summary(session, selection).records()
    names = [(str(row["name"] or ""), row["share"]) for row in kernels]
    unknown = [
        f"{smart.get(name, name)} ({share:.1f} %)"
        for name, share in names
        if isinstance(share, float) and share >= _LISTED and family_of(name, families) == OTHER
    ]
    if unknown:
        notes.append(f"without a family (name one in [families] of the configuration): {few(unknown)}")
    return replace(answer, columns=(*answer.columns, UNION, ALONE), rows=rows, notes=tuple(notes))


def _union_times(session: Session, selection: Selection, families: Rules) -> dict[str, tuple[int, int]]:
    table = tables.kernels
    if not session.count(table):
        return {}
    names = full_names(session)
    family_names = sorted({family_of(name, families) for name in names})
    family_indices = [family_names.index(family_of(name, families)) for name in names]
    kinds = given({"name": names, "family": family_indices}).subquery("kinds")
    columns = table.c
    keys = (columns.report, columns.process, columns.device)
    query = (
        sa.select(*keys, kinds.c.family, columns.start, columns.end)
        .join_from(table, kinds, sa.func.coalesce(columns.name, "") == kinds.c.name)
        .where(*where(table, selection, columns.name), columns.end.is_not(None), columns.device.is_not(None))
    )
    batches: dict[tuple[int, ...], dict[int, list[Intervals]]] = {}
    for batch in session.array_batches(query):
        code = one_key(*(batch[key.name] for key in (*keys, kinds.c.family)))
        for group in np.unique(code).tolist():
            rows = np.flatnonzero(code == group)
            *gpu, family = (int(batch[key.name][rows[0]]) for key in (*keys, kinds.c.family))
            intervals = batches.setdefault(tuple(gpu), {}).setdefault(family, [])
            intervals.append(union(batch["start"][rows], batch["end"][rows]))
    sums = np.zeros((2, len(family_names)), np.int64)
    for intervals_by_family in batches.values():
        merged = {family: merge(*parts) for family, parts in intervals_by_family.items()}
        for family, times in merged.items():
            sums[0, family] += times.length
        for parts in slices(*merged.values()):
            sums[1] += _alone(list(merged), parts, len(family_names))
    return dict(zip(family_names, zip(*sums.tolist(), strict=True), strict=True))


def _alone(families: Sequence[int], runs: Sequence[Intervals], count: int) -> Ints:
    """Return how long each of ``count`` families ran alone, ns, by a sweep over all starts (+) and ends (-)."""
    moments = np.concatenate([edges for run in runs for edges in (run.starts, run.ends)])
    signs = np.concatenate([np.repeat((1, -1), len(run)) for run in runs])
    family = np.concatenate([np.full(2 * len(run), index) for index, run in zip(families, runs, strict=True)])
    order = np.argsort(moments, kind="stable")
    is_alone = np.cumsum(signs[order])[:-1] == 1
    alone_families = np.cumsum((signs * family)[order])[:-1][is_alone]
    return np.bincount(alone_families, np.diff(moments[order])[is_alone], count).astype(np.int64)
