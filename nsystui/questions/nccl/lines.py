"""The time line on which NCCL's calls and the launches of its kernels are compared, thread by thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nsystui.questions.algebra.nesting import one_timeline
from nsystui.questions.nccl.units import NONE, Ints, Role, outer_calls, role_of

if TYPE_CHECKING:
    import pandas as pd

_PAYLOAD = ("message_size", "communicator", "ranks", "peer", "root", "reduction", "datatype", "size_source")


def whole(column: pd.Series[Any]) -> Ints:
    """The integers of a column, ``NONE`` where one is missing."""
    numbers: Ints = column.astype("Int64").to_numpy(np.int64, na_value=NONE)
    return numbers


def codes(column: pd.Series[Any]) -> Ints:
    """A number for each distinct value of a column, from 0; ``NONE`` where it is missing."""
    return np.asarray(column.factorize()[0], np.int64)


def one_key(*parts: Ints) -> Ints:
    """A number from 0 for each distinct combination of ``parts``, arrays of one shape; it ascends as they do."""
    key, span = np.zeros(len(parts[0]), np.int64), 1
    for part in parts:
        low = int(part.min(initial=0))
        width = int(part.max(initial=0)) - low + 1
        if span * width > _MOST_KEYS:
            key, part, low = _renumbered(key, span), _renumbered(part - low, width), 0
            span, width = int(key.max(initial=0)) + 1, int(part.max(initial=0)) + 1
        key, span = key * width + (part - low), span * width
    return _renumbered(key, span)


_MOST_KEYS = 1 << 62


def _renumbered(key: Ints, span: int) -> Ints:
    """``key``, whose values lie in ``[0, span)``, without gaps and in the same order."""
    if span > 8 * len(key) + 1024:
        return np.unique(key, return_inverse=True)[1].astype(np.int64)
    is_there = np.zeros(span, bool)
    is_there[key] = True
    return (np.cumsum(is_there) - 1)[key]


def roles_of(names: pd.Series[Any]) -> Ints:
    """The role of each call by its name."""
    number, distinct = names.factorize()
    roles: Ints = np.array([int(role_of(str(name))) for name in distinct] or [0], np.int64)
    return roles[np.asarray(number, np.int64)]


@dataclass(frozen=True, eq=False)
class Lines:
    """Where n calls and the launches of some kernels lie on one time line.

    ``lanes``, ``starts``, ``ends``: the thread of each call and its place on the line, shape ``(n,)``. ``real_ends``:
    its end in job time, ns, also where it never returned. ``launched``: the kernels with a recorded launch, as indices;
    ``launch_starts`` and ``launch_ends`` are aligned with it.
    """

    lanes: Ints
    starts: Ints
    ends: Ints
    real_ends: Ints
    launched: Ints
    launch_starts: Ints
    launch_ends: Ints

    @classmethod
    def of(cls, calls: pd.DataFrame, kernels: pd.DataFrame) -> Lines:
        """Lays out ``calls``, which must be by (report, thread, start), and the launches of ``kernels``."""
        launched = np.flatnonzero(kernels["launch_end"].notna().to_numpy(bool))
        launches = kernels.iloc[launched]
        reports = np.concatenate((whole(calls["report"]), whole(launches["report"])))
        threads = np.concatenate((whole(calls["thread"]), whole(launches["thread"])))
        lanes = one_key(reports, threads)
        n = len(calls)
        launch_starts, launch_ends = whole(launches["launch_start"]), whole(launches["launch_end"])
        starts = whole(calls["start"])
        ends = _ends(calls, starts, lanes[:n], int(launch_ends.max(initial=0)))
        if not len(lanes):
            return cls(lanes, starts, ends, ends, launched, launch_starts, launch_ends)
        line_starts, line_ends = one_timeline(
            np.concatenate((starts, launch_starts)),
            np.concatenate((ends, np.maximum(launch_starts, launch_ends))),
            lanes,
        )
        return cls(lanes[:n], line_starts[:n], line_ends[:n], ends, launched, line_starts[n:], line_ends[n:])

    def only(self, calls: Ints) -> Lines:
        """The same for some of the calls."""
        chosen = (self.lanes[calls], self.starts[calls], self.ends[calls], self.real_ends[calls])
        return Lines(*chosen, self.launched, self.launch_starts, self.launch_ends)


def _ends(calls: pd.DataFrame, starts: Ints, lanes: Ints, last_launch: int) -> Ints:
    """The ends of the calls; one that never returned lasts up to the next on its thread, the last one for ever."""
    ends = np.maximum(whole(calls["end"]), starts)
    is_open = np.flatnonzero(calls["end"].isna().to_numpy(bool))
    if len(is_open):
        for_ever = max(int(ends.max()), last_launch) + 1
        following = np.append(starts[1:], for_ever)
        following[np.flatnonzero(lanes[1:] != lanes[:-1])] = for_ever
        ends[is_open] = following[is_open]
    return ends


def without_inner_calls(calls: pd.DataFrame, lines: Lines) -> tuple[pd.DataFrame, Lines]:
    """The calls that lie in no other; what only the inner range of the same call tells, the outer one is told."""
    roles = roles_of(calls["name"])
    outer = np.where(roles == Role.OTHER, NONE, outer_calls(lines.starts, lines.ends, roles))
    inner = np.flatnonzero(outer >= 0)
    if not len(inner):
        return calls, lines
    names = codes(calls["name"])
    same = inner[names[inner] == names[outer[inner]]]
    told = calls.iloc[same].set_axis(outer[same], axis="index")
    told = told[~told.index.duplicated()]
    filled = calls.assign(**{column: calls[column].fillna(told[column]) for column in _PAYLOAD})
    kept = np.flatnonzero(outer < 0)
    return filled.iloc[kept].reset_index(drop=True), lines.only(kept)
