"""The frames of a pairing: what was recorded of NCCL, with what the pairing adds to each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nsystui.questions.nccl.lines import Lines, roles_of, without_inner_calls
from nsystui.questions.nccl.matching import SHARED_KEYS, Found, find
from nsystui.questions.nccl.names import collective_of_api, collective_of_kernel
from nsystui.questions.nccl.operations import place_in_group
from nsystui.questions.nccl.states import Reason, State
from nsystui.questions.nccl.units import NONE, Flags, Ints, Role, first_of_each

if TYPE_CHECKING:
    import pandas as pd

_TASK = ["report", "process"]
_MAKES_COMMUNICATOR = r"ncclComm(?:Init|Split|Shrink|Grow)"
_FEW_VALUES = ("name", "collective", "communicator", "reduction", "datatype", "state", "reason", "size_source")


def assemble(
    calls: pd.DataFrame, kernels: pd.DataFrame, labels: pd.DataFrame, first_ids: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The ``kernels`` and the ``calls`` of an `NcclPairing`, from the answers to the queries of `recorded`."""
    kernels = _compact(kernels.drop_duplicates(["report", "row"]).reset_index(drop=True))
    calls, lines = without_inner_calls(_compact(calls), Lines.of(calls, kernels))
    calls = calls.assign(ranks=_ranks(calls))
    found = find(calls, kernels, labels, lines)
    return _kernels(kernels, calls, first_ids, found), _calls(calls, found)


def _ranks(calls: pd.DataFrame) -> pd.Series[Any]:
    """How many ranks the communicator of each call has; missing where no call of this capture tells.

    A communicator's id is the same on all its ranks. NCCL before 2.25 does not tell it: there, a process that made one
    communicator, before it communicated at all, can have used no other.
    """
    ranks = calls["ranks"].astype("Int64")
    ranks = ranks.fillna(ranks.groupby(calls["communicator"], observed=True).transform("max"))

    is_communication = roles_of(calls["name"]) == Role.COMMUNICATION
    starts = calls["start"].astype("Int64")
    first_word = starts.where(is_communication).groupby([calls[key] for key in _TASK]).transform("min")
    making = calls[calls["name"].str.match(_MAKES_COMMUNICATOR)]
    making = making[~making.duplicated(_TASK, keep=False)]
    trusted = making[(starts < first_word)[making.index].fillna(False).astype(bool)]
    told = calls[_TASK].merge(trusted[[*_TASK, "ranks"]], on=_TASK, how="left")["ranks"].astype("Int64")
    return ranks.fillna(told.where(is_communication & calls["communicator"].isna()))


def _kernels(kernels: pd.DataFrame, calls: pd.DataFrame, first_ids: pd.DataFrame, found: Found) -> pd.DataFrame:
    operation = found.matching.of_kernel
    operations = found.operations.reindex(operation).reset_index(drop=True)
    names, distinct = kernels["name"].factorize()
    of_name = np.array([*(collective_of_kernel(str(name)) for name in distinct), None], object)[names]
    finished = kernels.assign(
        collective=operations["collective"].astype(object).where(operation >= 0, of_name),
        message_size=_shares(operations["message_size"], operation),
        one_way=_shares(operations["one_way"], operation),
        **{key: operations[key] for key in SHARED_KEYS},
        state=_states(operation >= 0, found, operation),
        reason=_kernel_reasons(kernels, calls, first_ids, operation),
        operation=operation,
        partners=np.append(found.operations["calls"].to_numpy(np.int64), 0)[operation],
        partner=np.append(found.operations["first_call"].to_numpy(np.int64), NONE)[operation],
    )
    unused = ["context", "correlation_id", "graph_node_id", "thread", "launch_end"]
    return _compact(finished.drop(columns=unused))


def _shares(size: pd.Series[Any], operation: Ints) -> pd.Series[Any]:
    """The bytes of each kernel: those of its operation, divided evenly should it have several kernels."""
    kernels = np.append(np.bincount(operation[operation >= 0]), 1)[operation]
    place = place_in_group(operation)
    return size // kernels + (size % kernels > place).astype("Int64")


def _states(is_paired: Flags, found: Found, operation: Ints) -> Any:
    """The state of each row; ``operation`` is ``NONE`` where there is none."""
    is_estimated = np.append(found.matching.is_estimated, False)[operation]
    paired = np.where(is_estimated, State.ESTIMATED.value, State.PAIRED.value)
    return np.where(is_paired, paired, State.UNPAIRED.value).astype(object)


def _kernel_reasons(kernels: pd.DataFrame, calls: pd.DataFrame, first_ids: pd.DataFrame, operation: Ints) -> Any:
    """Why each kernel is unpaired, ``None`` for the others; the first reason that holds."""
    speaking = calls.loc[roles_of(calls["name"]) == Role.COMMUNICATION, _TASK].drop_duplicates()
    has_calls = kernels[_TASK].merge(speaking, on=_TASK, how="left", indicator=True)["_merge"] == "both"
    first_id = kernels[_TASK].merge(first_ids, on=_TASK, how="left")["first_correlation_id"]
    has_launch = kernels["launch_start"].notna()
    choices = (
        (operation >= 0, None),
        (~has_calls, Reason.NO_CALLS),
        (kernels["graph_node_id"].notna(), Reason.IN_GRAPH),
        (~has_launch & (kernels["correlation_id"] < first_id), Reason.BEFORE_CAPTURE),
        (~has_launch, Reason.NO_LAUNCH),
    )
    return _first_that_holds(choices, Reason.OUTSIDE, len(kernels))


def _calls(calls: pd.DataFrame, found: Found) -> pd.DataFrame:
    is_communication = roles_of(calls["name"]) == Role.COMMUNICATION
    units, operation = found.units, _operations_of_calls(found)
    count = len(found.matching.is_estimated)
    of_kernel = found.matching.of_kernel
    kernels = np.append(np.bincount(of_kernel[of_kernel >= 0], minlength=count), 0)[operation]
    names, distinct = calls["name"].factorize()
    collectives = np.array([*(collective_of_api(str(name)) for name in distinct), None], object)[names]
    window = np.append(units.window, NONE)[units.of_call]
    choices = (
        (~is_communication | (kernels > 0), None),
        (window == NONE, Reason.GROUP_IS_OPEN),
    )
    states = _states(kernels > 0, found, operation)
    finished = calls.assign(
        collective=collectives,
        state=np.where(is_communication, states, None),
        reason=_first_that_holds(choices, Reason.NO_KERNEL, len(calls)),
        operation=operation,
        partners=kernels,
        partner=np.append(first_of_each(of_kernel, count), NONE)[operation],
    )
    return _compact(finished)


def _operations_of_calls(found: Found) -> Ints:
    """The operation of each call; a management call of a group stands with the first that the group launched."""
    of_call, units = found.matching.of_call, found.units
    first = first_of_each(found.unit_of_kernel, len(units.window))
    of_unit = np.append(found.matching.of_kernel, NONE)[first]
    return np.where(of_call >= 0, of_call, np.append(of_unit, NONE)[units.of_call])


def _first_that_holds(choices: tuple[tuple[Any, Reason | None], ...], otherwise: Reason, count: int) -> Any:
    """For each of ``count`` rows the word of the first condition that holds (a missing one does not)."""
    found = np.full(count, otherwise.value, object)
    for condition, word in reversed(choices):
        holds = np.asarray(condition.fillna(False) if hasattr(condition, "fillna") else condition, bool)
        found[holds] = None if word is None else word.value
    return found


def _compact(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with each text stored once."""
    return frame.astype({key: "category" for key in _FEW_VALUES if key in frame.columns})
