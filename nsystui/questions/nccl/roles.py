"""The role of a communicator in a parallel job, where its collectives and members tell it (docs/nccl.md#roles)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from nsystui.base.text import safe_text, spans

if TYPE_CHECKING:
    import pandas as pd

_POINT_TO_POINT = {"SendRecv", "Send", "Recv"}
_EXCHANGE = {"AlltoAll", "Dispatch", "Combine"}
_REDUCING = {"AllReduce", "ReduceScatter"}
_CONTEXT = re.compile(r"(?<![a-z])cp(?![a-z])|withcp|context.?parallel|ring.?att(?:n|ention)", re.IGNORECASE)
"""What NVTX ranges around context parallelism are called, in TransformerEngine and Megatron among others."""
_MOST = 0.5
_MANY = 4
"""Tensor parallelism reduces in every layer, data parallelism once for several: so many times as often at least."""


class CommunicatorRole(NamedTuple):
    """``members``: the ranks that are open, ``0-3``. ``role``: one of ``PP EP CP TP DP`` with what shows it."""

    members: str
    role: str | None


def communicator_roles(kernels: pd.DataFrame) -> dict[str, CommunicatorRole]:
    """Find the role of each communicator from the ``kernels`` of a pairing; ``None`` where nothing shows it.

    Communication in NVTX ranges that are called after context parallelism is that (CP). Else sends and receives alone
    are those of pipeline stages (PP), exchanges of all with all those of experts (EP). Of two communicators that reduce
    and share a rank, the one of neighbouring ranks with many times as many kernels is tensor parallel (TP), the other
    data parallel (DP). What reduces over all ranks beside compute is data parallel, too: the next layer waits for a
    reduction of tensor parallelism.
    """
    known = kernels[kernels["communicator"].notna()]
    time = (known["end"] - known["start"]).astype("float64")
    world = set(kernels["rank"].dropna().astype(int))
    members: dict[str, set[int]] = {}
    roles: dict[str, str | None] = {}
    reducing: dict[str, float] = {}
    for name, own in known.groupby(known["communicator"].astype(object), observed=True):
        communicator = str(name)
        spent = time[own.index].groupby(own["collective"].astype(object)).sum()
        names, whole = set(spent.index), float(spent.sum())
        ranks = members[communicator] = set(own["rank"].dropna().astype(int))
        exchanged = float(spent[spent.index.isin(_EXCHANGE)].sum())
        exposed = float(own["exposed"].astype("float64").sum()) if "exposed" in own else whole
        roles[communicator] = None
        if within := _context(own):
            roles[communicator] = f"CP: launched in ranges {within}"
        elif names and names <= _POINT_TO_POINT:
            roles[communicator] = "PP: sends and receives alone"
        elif exchanged > _MOST * whole:
            roles[communicator] = f"EP: exchanges for {100 * exchanged / whole:.0f} % of its time"
        elif len(ranks) > 1 and names & _REDUCING:
            reducing[communicator] = len(own) / len(ranks)
            if ranks == world and exposed < _MOST * whole:
                roles[communicator] = f"DP: reduces over all ranks, {100 * (1 - exposed / whole):.0f} % overlapped"
            elif ranks == world:
                roles[communicator] = "TP or DP: reduces over all ranks"
    for one, count in reducing.items():
        others = [other for other in reducing if members[other] & members[one] and members[other] != members[one]]
        if not others or max(members[one]) - min(members[one]) >= len(members[one]):
            continue
        ratio = count / max(reducing[other] for other in others)
        if ratio >= _MANY:
            roles[one] = f"TP: neighbouring ranks, {ratio:.0f} times as many kernels as the other group of a rank"
            roles |= dict.fromkeys(others, "DP: reduces across groups of TP")
    return {one: CommunicatorRole(spans(ranks), roles[one]) for one, ranks in members.items()}


def _context(kernels: pd.DataFrame) -> str:
    """The NVTX range of context parallelism in which most of a communicator's kernels were launched; empty for none."""
    if "range" not in kernels:
        return ""
    counts = kernels["range"].dropna().value_counts()
    own = counts[[bool(_CONTEXT.search(name)) for name in counts.index]]
    return safe_text(str(own.index[0])) if own.sum() > _MOST * len(kernels) else ""
