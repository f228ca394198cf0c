"""The verdict on collectives: whether they transfer or wait, and for whom (docs/ranks.md#verdict)."""

from collections.abc import Mapping, Sequence

import numpy as np

from nsystui.base.answer import Column
from nsystui.base.text import few_numbers
from nsystui.base.types import Floats

VERDICT = Column("verdict", header="Verdict", label="verdict", importance=1)
UNKNOWN, TRANSFER, MIXED, SKEW = "unknown", "transfer-bound", "mixed", "skew"
_TRANSFER, _SKEW = 0.1, 0.5
"""The waiting share of the time below which transfers dominate, and above which skew does."""
_KNOWN = 0.9
"""The least share of the time for which the transfer is known."""
_SAME, _MOST = 0.9, 0.8
"""At most half of the ranks are late if they cause `_SAME` of the waiting. Waits are in a few steps if `_FEW` of
`_PARTS` have `_MOST`."""
_PARTS, _FEW = 10, 3

Together = Mapping[int, Sequence[int]]  # ranks that arrive together, ascending, by each of them


def verdict(ranks: int, together: Together, start: Floats, duration: Floats, transfer: Floats, last: Floats) -> str:
    """Return ``transfer``, ``mixed``, ``skew: rank 3`` or ``unknown`` for n kernels or operations, ns; shapes ``(n,)``.

    ``ranks``: their number. ``transfer`` is NaN if it is unknown, ``last`` is the last rank, NaN for nobody. Skew is of
    the fewest ranks that cause the waiting, in a few steps, or of rotating ranks; ranks ``together`` count as one.
    """
    is_known = ~np.isnan(transfer) & ~np.isnan(duration)
    known = float(duration[is_known].sum())
    if not known or known < _KNOWN * np.nansum(duration):
        return UNKNOWN
    start, last, waits = start[is_known], last[is_known], (duration - transfer)[is_known]
    share = float(waits.sum()) / known
    if share <= _SKEW:
        return TRANSFER if share < _TRANSFER else MIXED
    is_last = ~np.isnan(last)
    caused = np.bincount(last[is_last].astype(np.int64), waits[is_last], 1)
    first_of = np.array([together.get(rank, [rank])[0] for rank in range(len(caused))])
    caused = np.bincount(first_of, caused)
    order = np.argsort(-caused, kind="stable")
    late = order[: int((np.cumsum(caused[order]) < _SAME * waits.sum()).sum()) + 1].tolist()
    is_theirs = caused[late].sum() >= _SAME * waits.sum() and (len(late) == 1 or 2 * len(late) <= ranks)
    numbers = sorted(number for rank in late for number in together.get(rank, [rank]))
    who = [f"rank{'s' * (len(numbers) > 1)} {few_numbers(numbers)}"] if is_theirs else []
    parts = sorted((float(part.sum()) for part in np.array_split(waits[np.argsort(start)], _PARTS)), reverse=True)
    who += ["a few steps"] if len(waits) >= _PARTS and sum(parts[:_FEW]) >= _MOST * waits.sum() else []
    return f"{SKEW}: {', '.join(who) or 'rotating'}"
