"""Operations: within a unit, which of its calls belong to which of its kernels (docs/nccl.md#pairing).

One kernel may run many calls (a group of sends and receives), and one group may launch many kernels (one for each
communicator). What belongs together and cannot be told apart further is an *operation*: most often one call and one
kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsystui.questions.nccl.lines import one_key
from nsystui.questions.nccl.units import NONE, Flags, Ints


@dataclass(frozen=True, eq=False)
class Members:
    """The calls, or the kernels, of all units: arrays of one shape, in the order of calling or launching.

    ``unit``: which unit it belongs to, ``NONE`` for none. ``communicator``, ``collective``: codes, ``NONE`` where not
    known; of a kernel they are those of its stream and of its name. ``detail``: a code of all else that tells calls
    apart; kernels have none.
    """

    unit: Ints
    communicator: Ints
    collective: Ints
    detail: Ints


@dataclass(frozen=True, eq=False)
class Matching:
    """The operation of each call and each kernel (``NONE`` for what is in no unit), numbered from 0.

    ``is_estimated`` (one for each operation): the export does not prove that just these calls and kernels belong
    together, or how the bytes divide among the kernels.
    """

    of_call: Ints
    of_kernel: Ints
    is_estimated: Flags


@dataclass(frozen=True, eq=False)
class _Groups:
    """A state of the division: the group of each call and of each kernel, and how many groups there are."""

    call: Ints
    kernel: Ints
    count: int


def match(calls: Members, kernels: Members) -> Matching:
    """Divides the units into operations.

    By communicator where payload and streams give it. Then, where a unit mixes collectives and launched kernels of the
    same collectives, by collective. Then, where there are as many kernels as calls, by order. Division by collective is
    an estimate, and so is that by order unless the calls are alike; kernels that still share calls are one too.
    """
    is_call, is_kernel = calls.unit >= 0, kernels.unit >= 0
    groups = _numbered(calls.unit[is_call], kernels.unit[is_kernel])
    call_estimated = np.zeros(len(groups.call), bool)
    kernel_estimated = np.zeros(len(groups.kernel), bool)

    keys = calls.communicator[is_call], kernels.communicator[is_kernel]
    groups, _ = _divide(groups, *keys, is_every_key_needed=False)

    before = groups
    keys = calls.collective[is_call], kernels.collective[is_kernel]
    groups, is_divided = _divide(groups, *keys, is_every_key_needed=True)
    call_estimated |= is_divided[before.call]
    kernel_estimated |= is_divided[before.kernel]

    before = groups
    codes = (calls.communicator, calls.collective, calls.detail)
    is_alike = np.logical_and.reduce([_is_alike(groups.call, code[is_call], groups.count) for code in codes])
    groups, is_divided = _divide(groups, *_places(groups), is_every_key_needed=True)
    call_estimated |= (is_divided & ~is_alike)[before.call]
    kernel_estimated |= (is_divided & ~is_alike)[before.kernel]

    is_estimated = np.bincount(groups.kernel, minlength=groups.count) > 1
    is_estimated[groups.call[call_estimated]] = True
    is_estimated[groups.kernel[kernel_estimated]] = True
    of_call, of_kernel = np.full(len(is_call), NONE), np.full(len(is_kernel), NONE)
    of_call[is_call], of_kernel[is_kernel] = groups.call, groups.kernel
    return Matching(of_call, of_kernel, is_estimated)


def _numbered(call: Ints, kernel: Ints) -> _Groups:
    """Any numbers as groups, from 0 and without gaps, in the same order."""
    number = one_key(np.concatenate((call, kernel)))
    return _Groups(number[: len(call)], number[len(call) :], int(number.max(initial=NONE)) + 1)


def _divide(groups: _Groups, call_key: Ints, kernel_key: Ints, is_every_key_needed: bool) -> tuple[_Groups, Flags]:
    """Divides the groups by a key, and tells which of them were divided.

    A group is divided if all its keys are known, its calls have more than one, and each of its kernels has that of a
    call; with ``is_every_key_needed`` each call must have that of a kernel too.
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


def _places(groups: _Groups) -> tuple[Ints, Ints]:
    """The place of each call and kernel in its group, where a group has as many kernels as calls; else ``NONE``."""
    calls = np.bincount(groups.call, minlength=groups.count)
    is_even = calls == np.bincount(groups.kernel, minlength=groups.count)
    places = [np.where(is_even[group], place_in_group(group), NONE) for group in (groups.call, groups.kernel)]
    return places[0], places[1]


def place_in_group(group: Ints) -> Ints:
    """How many entries of the same group come before each entry."""
    order = np.argsort(group, kind="stable")
    is_first = np.concatenate(([True], np.diff(group[order]) != 0))[: len(group)]
    start = np.maximum.accumulate(np.where(is_first, np.arange(len(group)), 0))
    place = np.empty(len(group), np.int64)
    place[order] = np.arange(len(group)) - start
    return place


def _is_alike(group: Ints, code: Ints, count: int) -> Flags:
    """Whether all entries of a group have the same code (unknown counts as one)."""
    lowest, highest = _extremes(group, code, count)
    return lowest >= highest


def common(group: Ints, code: Ints, count: int) -> Ints:
    """The code that all entries of each group share, shape ``(count,)``; ``NONE`` where they differ or lack it."""
    lowest, highest = _extremes(group, code, count)
    return np.where(lowest == highest, highest, NONE)


def _extremes(group: Ints, code: Ints, count: int) -> tuple[Ints, Ints]:
    """The lowest and the highest code of each group; of a group without entries the lowest is above the highest."""
    lowest, highest = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(lowest, group, code)
    np.maximum.at(highest, group, code)
    return lowest, highest


def communicators_of_kernels(calls: Members, kernel_unit: Ints, stream: Ints) -> Ints:
    """The communicator of each kernel's stream, learned from the units that use one communicator only.

    ``stream``: a code of (report, process, device, context, stream). ``NONE`` for a stream that several communicators
    use, or none that is known.
    """
    is_call, is_kernel = calls.unit >= 0, kernel_unit >= 0
    units = int(max(calls.unit.max(initial=NONE), kernel_unit.max(initial=NONE))) + 1
    of_unit = common(calls.unit[is_call], calls.communicator[is_call], units)
    told = np.full(len(kernel_unit), NONE)
    told[is_kernel] = of_unit[kernel_unit[is_kernel]]
    is_told = told >= 0
    of_stream = common(stream[is_told], told[is_told], int(stream.max(initial=NONE)) + 1)
    return of_stream[stream] if len(stream) else told
