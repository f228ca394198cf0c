"""The role of a communicator in a parallel job, if its collectives and members show it (docs/nccl.md#roles)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nsystui.base.text import safe_text, spans

if TYPE_CHECKING:
    import pandas as pd

_POINT_TO_POINT = {"SendRecv", "Send", "Recv"}
_EXCHANGE = {"AlltoAll", "Dispatch", "Combine"}
_REDUCING = {"AllReduce", "ReduceScatter"}
_CONTEXT = re.compile(r"(?<![a-z])cp(?![a-z])|withcp|context.?parallel|ring.?att(?:n|ention)", re.IGNORECASE)
"""Names of NVTX ranges around context parallelism, in TransformerEngine and Megatron among others."""
_MAJORITY = 0.5
_LEAST_TP_RATIO = 4
"""Least ratio of kernels: tensor parallelism reduces in every layer, data parallelism once for several."""


def communicator_roles(kernels: pd.DataFrame) -> dict[str, tuple[str, str | None]]:
    """Return the open ranks (``0-3``) and role of each communicator in the ``kernels`` of a pairing.

    The role is one of ``PP EP CP TP DP`` with the evidence, or ``None`` if nothing shows it.

    Communication in NVTX ranges named after context parallelism is CP. Otherwise, sends and receives alone are pipeline
    stages (PP), and exchanges of all with all are experts (EP). If two communicators reduce and share a rank, the
    communicator of neighbouring ranks with at least 4 times as many kernels is tensor parallel (TP), the other data
    parallel (DP). Reductions over all ranks during compute are DP, too: after a reduction of TP, the next layer waits.
    """
    named = kernels[kernels["communicator"].notna()]
    world = set(kernels["rank"].dropna().astype(int))
    members: dict[str, set[int]] = {}
    roles: dict[str, str | None] = {}
    reducing: dict[str, float] = {}
    for name, rows in named.groupby(named["communicator"].astype(object), observed=True):
        ranks = members[str(name)] = set(rows["rank"].dropna().astype(int))
        roles[str(name)], kernels_per_rank = _role(rows, ranks, world)
        if kernels_per_rank:
            reducing[str(name)] = kernels_per_rank
    for group, count in reducing.items():
        others = [other for other in reducing if members[other] & members[group] and members[other] != members[group]]
        if not others or max(members[group]) - min(members[group]) >= len(members[group]):
            continue
        ratio = count / max(reducing[other] for other in others)
        if ratio >= _LEAST_TP_RATIO:
            roles[group] = f"TP: neighbouring ranks, {ratio:.0f} times as many kernels as the other group of a rank"
            roles |= dict.fromkeys(others, "DP: reduces across groups of TP")
    return {key: (spans(ranks), roles[key]) for key, ranks in members.items()}


def _role(kernels: pd.DataFrame, ranks: set[int], world: set[int]) -> tuple[str | None, float]:
    """Return the role that a communicator's own kernels show; and their number per rank, 0 unless they reduce."""
    time = (kernels["end"] - kernels["start"]).astype("float64")
    spent = time.groupby(kernels["collective"].astype(object)).sum()
    names, total = set(spent.index), float(spent.sum())
    exchanged = float(spent[spent.index.isin(_EXCHANGE)].sum())
    if range_name := _context(kernels):
        return f"CP: launched in ranges {range_name}", 0.0
    if names and names <= _POINT_TO_POINT:
        return "PP: sends and receives alone", 0.0
    if exchanged > _MAJORITY * total:
        return f"EP: exchanges for {100 * exchanged / total:.0f} % of its time", 0.0
    if len(ranks) < 2 or not names & _REDUCING:
        return None, 0.0
    exposed = float(kernels["exposed"].astype("float64").sum()) if "exposed" in kernels else total
    role = "TP or DP: reduces over all ranks"
    if exposed < _MAJORITY * total:
        role = f"DP: reduces over all ranks, {100 * (1 - exposed / total):.0f} % overlapped"
    return role if ranks == world else None, len(kernels) / len(ranks)


def _context(kernels: pd.DataFrame) -> str:
    """Return the range of context parallelism, if most of a communicator's kernels were launched in such ranges."""
    if "range" not in kernels:
        return ""
    counts = kernels["range"].dropna().value_counts()
    context_counts = counts[[bool(_CONTEXT.search(name)) for name in counts.index]]
    return safe_text(str(context_counts.index[0])) if context_counts.sum() > _MAJORITY * len(kernels) else ""
