"""Operations: NCCL calls matched with the kernels that ran them (docs/nccl.md#pairing).

One kernel may run many calls (a group of sends and receives), and one group may launch many kernels (one for each
communicator). An *operation* is the smallest set of calls and kernels of a unit that belong together: usually one call
and one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsystui.base.types import DataSeries, Flags, Ints
from nsystui.questions.algebra.groups import one_key
from nsystui.questions.algebra.nesting import nest
from nsystui.questions.nccl.names import collective_of_api, collective_of_kernel, collective_of_label
from nsystui.questions.nccl.units import (
    NONE,
    Lines,
    Queue,
    Role,
    Units,
    codes,
    find_units,
    first_of_each,
    pair_across_threads,
    roles_of,
    units_of_launches,
    whole,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class UnitMembers:
    """The calls or the kernels of all units: arrays of one shape, in the order of calling or launching.

    ``unit``: the unit, or ``NONE``. ``communicator``, ``collective``: codes, ``NONE`` if unknown; for kernels, from
    stream and name. ``detail``: a code of all other differences between calls; ``NONE`` for kernels.
    """

    unit: Ints
    communicator: Ints
    collective: Ints
    detail: Ints


@dataclass(frozen=True, eq=False)
class UnitMatching:
    """The operation of each call and each kernel, numbered from 0; ``NONE`` outside of units.

    ``is_estimated``, shape ``(operations,)``: the export does not prove that exactly these belong together, or how the
    bytes divide among the kernels.
    """

    of_call: Ints
    of_kernel: Ints
    is_estimated: Flags


@dataclass(frozen=True, eq=False)
class _Groups:
    """A state of the division: the group of each call and of each kernel, and the number of groups."""

    call: Ints
    kernel: Ints
    count: int


def match(calls: UnitMembers, kernels: UnitMembers) -> UnitMatching:
    """Divide the units into operations.

    First by communicator, if payload and streams show it; then by collective, if a unit mixes collectives and
    launched kernels of the same collectives; then by order, if it has as many kernels as calls. Operations are
    estimated if they have several kernels, or were divided by collective, or by the order of calls that differ.
    """
    is_call, is_kernel = calls.unit >= 0, kernels.unit >= 0
    groups = _numbered(calls.unit[is_call], kernels.unit[is_kernel])

    keys = calls.communicator[is_call], kernels.communicator[is_kernel]
    groups, _ = _divide(groups, *keys, is_every_key_needed=False)

    before = groups
    keys = calls.collective[is_call], kernels.collective[is_kernel]
    groups, is_divided = _divide(groups, *keys, is_every_key_needed=True)
    call_estimated = is_divided[before.call]

    before = groups
    call_codes = (calls.communicator, calls.collective, calls.detail)
    # Calls are also alike if they all lack a code.
    extremes = [_extremes(groups.call, code[is_call], groups.count) for code in call_codes]
    is_alike = np.logical_and.reduce([lowest >= highest for lowest, highest in extremes])
    groups, is_divided = _divide(groups, *_indices_in_groups(groups), is_every_key_needed=True)
    call_estimated |= (is_divided & ~is_alike)[before.call]

    is_estimated = np.bincount(groups.kernel, minlength=groups.count) > 1
    is_estimated[groups.call[call_estimated]] = True
    of_call, of_kernel = np.full(len(is_call), NONE), np.full(len(is_kernel), NONE)
    of_call[is_call], of_kernel[is_kernel] = groups.call, groups.kernel
    return UnitMatching(of_call, of_kernel, is_estimated)


def _numbered(call: Ints, kernel: Ints) -> _Groups:
    """Renumber any numbers as groups, from 0 without gaps, in the same order."""
    number = one_key(np.concatenate((call, kernel)))
    return _Groups(number[: len(call)], number[len(call) :], int(number.max(initial=NONE)) + 1)


def _divide(groups: _Groups, call_key: Ints, kernel_key: Ints, is_every_key_needed: bool) -> tuple[_Groups, Flags]:
    """Divide the groups by a key, and return which were divided.

    A group is divided if it has kernels, all its keys are known, its calls have different keys, and each kernel has the
    key of a call; with ``is_every_key_needed`` each call must also have the key of a kernel.
    """
    lowest, highest = _extremes(groups.call, call_key, groups.count)
    is_divided = (lowest >= 0) & (lowest < highest) & (np.bincount(groups.kernel, minlength=groups.count) > 0)
    is_divided[groups.kernel[kernel_key < 0]] = False
    if not is_divided.any():
        return groups, is_divided
    base = int(max(call_key.max(initial=0), kernel_key.max(initial=0))) + 2
    call_pair, kernel_pair = groups.call * base + call_key + 1, groups.kernel * base + kernel_key + 1
    is_divided[groups.kernel[~np.isin(kernel_pair, call_pair)]] = False
    if is_every_key_needed:
        is_divided[groups.call[~np.isin(call_pair, kernel_pair)]] = False
    call = np.where(is_divided[groups.call], call_pair, groups.call * base)
    kernel = np.where(is_divided[groups.kernel], kernel_pair, groups.kernel * base)
    return _numbered(call, kernel), is_divided


def _indices_in_groups(groups: _Groups) -> tuple[Ints, Ints]:
    """Return the index of each call and kernel in its group, ``NONE`` unless the group has equally many of both."""
    calls = np.bincount(groups.call, minlength=groups.count)
    is_even = calls == np.bincount(groups.kernel, minlength=groups.count)
    indices = [np.where(is_even[group], place_in_group(group), NONE) for group in (groups.call, groups.kernel)]
    return indices[0], indices[1]


def place_in_group(group: Ints) -> Ints:
    """Return each entry's number of earlier entries of its group."""
    import pandas as pd

    indices: Ints = pd.Series(group).groupby(group).cumcount().to_numpy(np.int64)
    return indices


def common(group: Ints, code: Ints, count: int) -> Ints:
    """Return the code that all entries of each group share, shape ``(count,)``; else ``NONE``."""
    lowest, highest = _extremes(group, code, count)
    return np.where(lowest == highest, highest, NONE)


def _extremes(group: Ints, code: Ints, count: int) -> tuple[Ints, Ints]:
    """Return each group's lowest and highest code; in an empty group, the lowest is above the highest."""
    lowest, highest = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(lowest, group, code)
    np.maximum.at(highest, group, code)
    return lowest, highest


def communicators_of_kernels(calls: UnitMembers, kernel_unit: Ints, stream: Ints) -> Ints:
    """Return the communicator of each kernel's stream, learned from units with a single communicator.

    ``stream``: a code of (report, process, device, context, stream). ``NONE`` unless the stream has a single known
    communicator.
    """
    is_call, is_kernel = calls.unit >= 0, kernel_unit >= 0
    units = int(max(calls.unit.max(initial=NONE), kernel_unit.max(initial=NONE))) + 1
    of_unit = common(calls.unit[is_call], calls.communicator[is_call], units)
    of_kernel = np.full(len(kernel_unit), NONE)
    of_kernel[is_kernel] = of_unit[kernel_unit[is_kernel]]
    is_known = of_kernel >= 0
    of_stream = common(stream[is_known], of_kernel[is_known], int(stream.max(initial=NONE)) + 1)
    return of_stream[stream] if len(stream) else of_kernel


SEND_RECV = "SendRecv"
SHARED_KEYS = ("communicator", "ranks", "peer", "root", "reduction", "datatype")
"""Columns of an operation, missing unless all its calls agree."""
INSPECTED_KEYS = ("algorithm", "protocol", "inspected", "inspected_busbw")
"""The same, if NCCL Inspector recorded the job: time in ns, bus bandwidth in bytes/s."""
# One kernel (NCCL's SendRecv) runs sends, receives and operations made of them.
_POINT_TO_POINT = frozenset({"Send", "Recv", "AlltoAll", "Gather", "Scatter"})
# PyTorch implements these by sends and receives; its label contains the name.
_MADE_OF_SENDS = frozenset({"AlltoAll", "Gather", "Scatter"})


@dataclass(frozen=True, eq=False)
class Found:
    """The matches over n calls and m kernels.

    ``unit_of_kernel``: shape ``(m,)``; ``NONE`` also for a kernel whose unit has no communication call. ``operations``:
    a frame with one row per operation, see `_describe`.
    """

    units: Units
    unit_of_kernel: Ints
    matching: UnitMatching
    operations: pd.DataFrame


def find(calls: pd.DataFrame, kernels: pd.DataFrame, labels: pd.DataFrame, lines: Lines) -> Found:
    """Match calls with kernels. No call may lie in another; kernels are in launch order."""
    roles = roles_of(calls["name"])
    units = find_units(lines.lanes, roles)
    call_unit = np.where(roles == Role.COMMUNICATION, units.of_call, NONE)
    kind, hint = _kinds(calls, kernels)
    unit_of_kernel = np.full(len(kernels), NONE)
    unit_of_kernel[lines.launched] = units_of_launches(
        units, lines.starts, lines.ends, lines.launch_starts, lines.launch_ends
    )
    across = _units_across_threads((calls, kernels), lines.launched, units, call_unit, (kind, hint), unit_of_kernel)
    is_across = across >= 0
    unit_of_kernel[is_across] = across[is_across]
    if len(units.window):
        has_calls = np.bincount(call_unit[call_unit >= 0], minlength=len(units.window)) > 0
        unit_of_kernel[(unit_of_kernel >= 0) & ~has_calls[unit_of_kernel]] = NONE

    details = one_key(whole(calls["message_size"]), codes(calls["name"]))
    call_members = UnitMembers(call_unit, codes(calls["communicator"]), kind, details)
    stream = one_key(*(whole(kernels[key]) for key in ("report", "process", "device", "context", "stream")))
    of_stream = communicators_of_kernels(call_members, unit_of_kernel, stream)
    matching = match(call_members, UnitMembers(unit_of_kernel, of_stream, hint, np.full(len(kernels), NONE)))
    matching.is_estimated[matching.of_kernel[is_across]] = True
    is_member, first = units.of_call >= 0, first_of_each(units.of_call, len(units.window))
    end = np.full(len(units.window), np.iinfo(np.int64).min)
    np.maximum.at(end, units.of_call[is_member], lines.real_ends[is_member])
    spans = {"end": end, **{key: whole(calls[key])[first] for key in ("report", "thread", "start")}}
    return Found(units, unit_of_kernel, matching, _describe(calls, matching, units, _labels_of_units(spans, labels)))


def _kinds(calls: pd.DataFrame, kernels: pd.DataFrame) -> tuple[Ints, Ints]:
    """Return codes of the collectives in names; `_POINT_TO_POINT` have one code."""
    code_of_kind: dict[str, int] = {}

    def number(collective: str | None) -> int:
        if collective is None:
            return NONE
        kind = SEND_RECV if collective in _POINT_TO_POINT else collective
        return code_of_kind.setdefault(kind, len(code_of_kind))

    kind_arrays = []
    for names, collective_of in ((calls["name"], collective_of_api), (kernels["name"], collective_of_kernel)):
        code, distinct = names.factorize()
        kinds = [number(collective_of(str(name))) for name in distinct]
        kind_arrays.append(np.array([*kinds, NONE], np.int64)[code])  # -1, a missing name, takes the last
    return kind_arrays[0], kind_arrays[1]


def _units_across_threads(
    frames: tuple[pd.DataFrame, pd.DataFrame], launched: Ints, units: Units, call_unit: Ints,
    kinds: tuple[Ints, Ints], unit_of_kernel: Ints,
) -> Ints:  # fmt: skip
    """Return the unit of each kernel that another thread launched, else ``NONE``.

    ``frames`` and ``kinds``: calls and kernels, and codes of their collectives. ``launched``: indices of kernels.
    """
    (calls, kernels), (call_kind, kernel_kind) = frames, kinds
    count = len(units.window)
    is_communication = call_unit >= 0
    first = first_of_each(call_unit, count)
    has_kernels = np.bincount(unit_of_kernel[unit_of_kernel >= 0], minlength=count) > 0
    idle = np.flatnonzero((first >= 0) & ~has_kernels & (units.window >= 0))
    is_stray = (unit_of_kernel == NONE) & kernels["graph_node_id"].isna().to_numpy(bool)
    stray = launched[is_stray[launched]]

    process = one_key(*(np.concatenate([whole(frame[key]) for frame in frames]) for key in ("report", "process")))
    kind = common(call_unit[is_communication], call_kind[is_communication], count)[idle]
    waiting = Queue(process[first[idle]], whole(calls["start"])[first[idle]], kind)
    launches = Queue(process[len(calls) :][stray], whole(kernels["launch_start"])[stray], kernel_kind[stray])
    partner = pair_across_threads(waiting, launches)
    across = np.full(len(unit_of_kernel), NONE)
    across[stray[partner >= 0]] = idle[partner[partner >= 0]]
    return across


def _labels_of_units(spans: Mapping[str, Ints], labels: pd.DataFrame) -> list[str | None]:
    """Return the collective of `_MADE_OF_SENDS` in the innermost label around each unit, if any."""
    code, distinct = labels["name"].factorize()
    collectives = [collective_of_label(str(name)) for name in distinct]
    is_relevant = np.array([name in _MADE_OF_SENDS for name in collectives] or [False], bool)[code]
    relevant = labels[is_relevant]
    if not len(relevant) or not len(spans["start"]):
        return [None] * len(spans["start"])
    report, thread, start, end = (
        np.concatenate((whole(relevant[key]), spans[key])) for key in ("report", "thread", "start", "end")
    )
    parent = nest(start, end, one_key(report, thread)).parent[len(relevant) :]
    label = np.where((parent >= 0) & (parent < len(relevant)), code[is_relevant][parent % len(relevant)], NONE)
    return [collectives[index] if index >= 0 else None for index in label.tolist()]


def _describe(calls: pd.DataFrame, matching: UnitMatching, units: Units, labels: list[str | None]) -> pd.DataFrame:
    """Describe each operation by its calls; ``calls`` is their number, ``first_call`` an index.

    ``message_size`` is the sum over the calls, bytes, if all are known. ``one_way``, for sends and receives alone, is
    the larger of the bytes sent and received. ``SHARED_KEYS`` are missing if the calls differ.
    """
    import pandas as pd

    count = len(matching.is_estimated)
    call_indices = np.flatnonzero(matching.of_call >= 0)
    operation, members = matching.of_call[call_indices], calls.iloc[call_indices]
    first = first_of_each(matching.of_call, count)
    counts = np.bincount(operation, minlength=count)
    size = whole(members["message_size"])
    is_known = np.bincount(operation[size < 0], minlength=count) == 0
    names = members["name"].to_numpy(object)
    is_sent, is_received = names == "ncclSend", names == "ncclRecv"
    is_of_sends = np.bincount(operation[~(is_sent | is_received)], minlength=count) == 0
    one_way = np.maximum(*(_sums(operation[direction], size[direction], count) for direction in (is_sent, is_received)))

    shared = {}
    for key in [key for key in (*SHARED_KEYS, *INSPECTED_KEYS) if key in calls]:
        is_shared = common(operation, codes(members[key]), count) >= 0
        shared[key] = calls[key].iloc[first].reset_index(drop=True).where(is_shared)
    return pd.DataFrame(
        {
            "collective": _collectives(members["name"], operation, counts, [labels[u] for u in units.of_call[first]]),
            "calls": counts,
            "first_call": first,
            "message_size": pd.Series(_sums(operation, size, count), dtype="Int64").where(is_known),
            "one_way": pd.Series(one_way, dtype="Int64").where(is_known & is_of_sends),
            **shared,
        }
    )


def _sums(group: Ints, values: Ints, count: int) -> Ints:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, group, values)
    return sums


def _collectives(names: DataSeries, operation: Ints, call_counts: Ints, labels: list[str | None]) -> list[str]:
    """Return the name of each operation: its collective, a label's, ``SendRecv``, or ``Group(n)`` for a mixture."""
    name_codes, distinct = names.factorize()
    collectives = [collective_of_api(str(name)) or str(name) for name in distinct]
    is_send = np.array([name in ("Send", "Recv") for name in collectives] or [False], bool)
    of_sends = np.bincount(operation, weights=is_send[name_codes], minlength=len(call_counts)) == call_counts
    shared = common(operation, np.asarray(name_codes, np.int64), len(call_counts))
    texts = []
    for code, sends, calls, label in zip(shared.tolist(), of_sends.tolist(), call_counts.tolist(), labels, strict=True):
        if sends and label is not None:
            texts.append(label)
        elif code >= 0:
            texts.append(collectives[code])
        else:
            texts.append(SEND_RECV if sends else f"Group({calls})")
    return texts
