"""Units: NCCL calls that act together, the call that launches their kernels, and the time line of both.

See docs/nccl.md#pairing.

A communication call outside of groups is a unit and launches its kernels itself. The calls between an outermost
``ncclGroupStart`` and its ``ncclGroupEnd`` are one unit, and this ``ncclGroupEnd`` launches its kernels; the end of an
inner group does nothing.

Arrays have one entry per call, in the order of (thread, start), on one time line (`nesting.one_timeline`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nsystui.base.types import DataSeries, Ints
from nsystui.questions.algebra.groups import one_key
from nsystui.questions.algebra.nesting import one_timeline
from nsystui.questions.nccl.names import GROUP_END, GROUP_START, collective_of_api

if TYPE_CHECKING:
    import pandas as pd


MAKES_COMMUNICATOR = r"ncclComm(?:Init|Split|Shrink|Grow)"
NONE = -1
"""Missing or unknown, in arrays of indices and codes."""


class Role(IntEnum):
    """The role of an NCCL call in units."""

    OTHER = 0
    COMMUNICATION = 1
    GROUP_START = 2
    GROUP_END = 3
    GROUP_SIMULATE_END = 4  # ends a group and launches nothing


_ROLES = {GROUP_START: Role.GROUP_START, GROUP_END: Role.GROUP_END, "ncclGroupSimulateEnd": Role.GROUP_SIMULATE_END}
_DEPTH_STEPS = np.array([0, 0, 1, -1, -1])  # by role


@dataclass(frozen=True, eq=False)
class Units:
    """The units over n calls.

    ``of_call``: the unit of each call, shape ``(n,)``, ``NONE`` for management outside of groups. ``window``: the call
    that launches each unit's kernels, shape ``(units,)``, ``NONE`` if the capture lacks it.
    """

    of_call: Ints
    window: Ints


def outer_calls(starts: Ints, ends: Ints, roles: Ints) -> Ints:
    """Return the index of the communication or group call around each call, ``NONE`` for most calls.

    A thread's calls follow one another. A call inside another is a second range of the same call (an instrumented NCCL
    pushes its own range inside NCCL's), or a call that NCCL makes itself.
    """
    order = np.arange(len(starts))
    if not len(starts):
        return order
    # Only the earlier call that reaches furthest can be around the next call.
    reach = np.where(roles != Role.OTHER, ends, starts)
    furthest = np.maximum.accumulate(reach)
    is_new = np.concatenate(([True], furthest[1:] > furthest[:-1]))
    holder = np.maximum.accumulate(np.where(is_new, order, 0))
    outer = np.concatenate(([0], holder[:-1]))
    is_inside = (order > 0) & (starts < reach[outer]) & (ends <= reach[outer])
    return np.where(is_inside, outer, NONE)


def find_units(lanes: Ints, roles: Ints) -> Units:
    """Return the units of n calls, none inside another; ``lanes`` distinguishes threads.

    Without a start in the capture, ``ncclGroupEnd`` ends nothing; without an end, a unit has no window.
    """
    if not len(lanes):
        return Units(np.empty(0, np.int64), np.empty(0, np.int64))
    step = _DEPTH_STEPS[roles]
    depth = _depths(step, lanes)
    is_first = np.concatenate(([True], lanes[1:] != lanes[:-1]))
    depth_before = np.where(is_first, 0, np.concatenate(([0], depth[:-1])))

    is_single = (depth_before == 0) & (roles == Role.COMMUNICATION)
    opens = is_single | ((depth_before == 0) & (step > 0))
    number = np.cumsum(opens) - 1
    of_call = np.where(opens | (depth_before > 0), number, NONE)

    window = np.full(int(opens.sum()), NONE)
    is_launching = is_single | ((roles == Role.GROUP_END) & (depth_before == 1))
    window[number[is_launching]] = np.flatnonzero(is_launching)
    return Units(of_call, window)


def _depths(step: Ints, lanes: Ints) -> Ints:
    """Return the number of open groups after each call on its thread; an end without a start leaves it at 0."""
    is_first = np.concatenate(([True], lanes[1:] != lanes[:-1]))
    lane = np.cumsum(is_first) - 1
    total = np.cumsum(step)
    depth = total - (total - step)[is_first][lane]
    # One running minimum for all lanes: each lane is moved below all values of the lane before.
    below = lane * 2 * (len(step) + 1)
    lowest = np.minimum.accumulate(depth - below) + below
    clamped: Ints = depth - np.minimum(lowest, 0)
    return clamped


def units_of_launches(units: Units, starts: Ints, ends: Ints, launch_starts: Ints, launch_ends: Ints) -> Ints:
    """Return the unit whose window contains each of m launches, shape ``(m,)``; ``NONE`` if no window does.

    ``starts`` and ``ends`` are the calls'; the launches are on the same time line, in any order.
    """
    with_window = np.flatnonzero(units.window >= 0)
    if not len(with_window) or not len(launch_starts):
        return np.full(len(launch_starts), NONE)
    rows = units.window[with_window]
    index = np.searchsorted(starts[rows], launch_starts, side="right") - 1
    is_inside = (index >= 0) & (launch_ends <= ends[rows][index])
    return np.where(is_inside, with_window[index], NONE)


@dataclass(frozen=True, eq=False)
class Queue:
    """Units or launches that wait for a partner on another thread: arrays of one shape, in any order.

    ``process``: a code of (report, process). ``time``: the start, job time, ns. ``collective``: a code, ``NONE`` if
    unknown.
    """

    process: Ints
    time: Ints
    collective: Ints


def pair_across_threads(units: Queue, launches: Queue) -> Ints:
    """Return the unit of each launch of another thread, an index into ``units``, ``NONE`` if unknown.

    Non-blocking communicators launch kernels from a thread that NCCL makes. Units without kernels and launches outside
    of calls are paired in order, except in processes with unequal numbers of them, a launch before its call, or a pair
    whose collectives differ.
    """
    unit_of_launch = np.full(len(launches.process), NONE)
    if not len(units.process) or not len(launches.process):
        return unit_of_launch
    count = int(max(units.process.max(), launches.process.max())) + 1
    is_even = np.bincount(units.process, minlength=count) == np.bincount(launches.process, minlength=count)
    unit_order = np.lexsort((units.time, units.process))
    launch_order = np.lexsort((launches.time, launches.process))
    unit = unit_order[is_even[units.process[unit_order]]]
    launch = launch_order[is_even[launches.process[launch_order]]]

    is_known = (units.collective[unit] >= 0) & (launches.collective[launch] >= 0)
    is_wrong = is_known & (units.collective[unit] != launches.collective[launch])
    is_wrong |= launches.time[launch] < units.time[unit]
    is_paired = ~np.isin(units.process[unit], units.process[unit][is_wrong])
    unit_of_launch[launch[is_paired]] = unit[is_paired]
    return unit_of_launch


def first_of_each(group: Ints, count: int) -> Ints:
    """Return the index of the first entry of each group, ``NONE`` if it is empty; ignores group ``NONE``."""
    first = np.full(count, NONE)
    entries = np.flatnonzero(group >= 0)[::-1]
    first[group[entries]] = entries
    return first


_PAYLOAD = ("message_size", "communicator", "ranks", "peer", "root", "reduction", "datatype", "size_source")


def whole(column: DataSeries) -> Ints:
    """Return the integers of a column, ``NONE`` if missing."""
    numbers: Ints = column.astype("Int64").to_numpy(np.int64, na_value=NONE)
    return numbers


def codes(column: DataSeries) -> Ints:
    """Return a number for each distinct value of a column, from 0; ``NONE`` if missing."""
    return np.asarray(column.factorize()[0], np.int64)


def by_name(names: DataSeries, of_name: Callable[[str], str | None]) -> NDArray[np.object_]:
    """Return the value of each name, computed once per distinct name; ``None`` for a missing name."""
    indices, distinct = names.factorize()
    values = np.array([*(of_name(str(name)) for name in distinct), None], object)
    result: NDArray[np.object_] = values[indices]
    return result


def roles_of(names: DataSeries) -> Ints:
    """Return the role of each call by its name."""
    indices, distinct = names.factorize()
    distinct_roles: list[int] = [
        Role.COMMUNICATION if collective_of_api(name) is not None else _ROLES.get(name, Role.OTHER)
        for name in map(str, distinct)
    ]
    roles: Ints = np.array(distinct_roles or [0], np.int64)
    return roles[np.asarray(indices, np.int64)]


@dataclass(frozen=True, eq=False)
class Lines:
    """The positions of n calls and of the launches of kernels on one time line.

    ``lanes``, ``starts``, ``ends``: thread, start and end of each call on the line, shape ``(n,)``. ``real_ends``: its
    end in job time, ns, even if it never returned. ``launched``: the indices of kernels with a recorded launch, which
    ``launch_starts`` and ``launch_ends`` describe.
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
        """Lay out ``calls``, which must be by (report, thread, start), and the launches of ``kernels``."""
        launched = np.flatnonzero(kernels["launch_end"].notna().to_numpy(bool))
        launches = kernels.iloc[launched]
        reports = np.concatenate((whole(calls["report"]), whole(launches["report"])))
        lanes = one_key(reports, np.concatenate((whole(calls["thread"]), whole(launches["thread"]))))
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
        """Return the lines of some calls, with all launches."""
        arrays = (self.lanes[calls], self.starts[calls], self.ends[calls], self.real_ends[calls])
        return Lines(*arrays, self.launched, self.launch_starts, self.launch_ends)


def _ends(calls: pd.DataFrame, starts: Ints, lanes: Ints, last_launch: int) -> Ints:
    """Return the ends of the calls; a call that never returned lasts until the next call on its thread, if any."""
    ends = np.maximum(whole(calls["end"]), starts)
    is_open = np.flatnonzero(calls["end"].isna().to_numpy(bool))
    if len(is_open):
        forever = max(int(ends.max()), last_launch) + 1
        following = np.append(starts[1:], forever)
        following[np.flatnonzero(lanes[1:] != lanes[:-1])] = forever
        ends[is_open] = following[is_open]
    return ends


def without_inner_calls(calls: pd.DataFrame, lines: Lines) -> tuple[pd.DataFrame, Lines]:
    """Return the calls outside of other calls; inner ranges of the same call fill in missing values."""
    roles = roles_of(calls["name"])
    outer = np.where(roles == Role.OTHER, NONE, outer_calls(lines.starts, lines.ends, roles))
    inner = np.flatnonzero(outer >= 0)
    if not len(inner):
        return calls, lines
    names = codes(calls["name"])
    same = inner[names[inner] == names[outer[inner]]]
    inner_values = calls.iloc[same].set_axis(outer[same], axis="index")
    inner_values = inner_values[~inner_values.index.duplicated()]
    filled = calls.assign(**{column: calls[column].fillna(inner_values[column]) for column in _PAYLOAD})
    outer_indices = np.flatnonzero(outer < 0)
    return filled.iloc[outer_indices].reset_index(drop=True), lines.only(outer_indices)
