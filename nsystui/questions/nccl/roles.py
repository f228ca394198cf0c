"""The role of a communicator in a parallel job, where its collectives and members tell it (docs/nccl.md#roles)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsystui.base.text import spans

if TYPE_CHECKING:
    import pandas as pd

_POINT_TO_POINT = {"SendRecv", "Send", "Recv"}
_EXCHANGE = {"AlltoAll", "Dispatch", "Combine"}
_REDUCING = {"AllReduce", "ReduceScatter"}
_MOST = 0.5


class CommunicatorRole(NamedTuple):
    """``members``: the ranks that are open, ``0-3``. ``role``: ``PP``, ``EP`` or ``DP``, with what shows it."""

    members: str
    role: str | None


def communicator_roles(kernels: pd.DataFrame) -> dict[str, CommunicatorRole]:
    """Find the role of each communicator from the ``kernels`` of a pairing; ``None`` where nothing shows it.

    Sends and receives alone are those of pipeline stages (PP), exchanges of all with all those of experts (EP), and
    what reduces over all ranks of a job is data parallel (DP). Tensor and context parallelism look alike in an export.
    """
    known = kernels[kernels["communicator"].notna()]
    time = (known["end"] - known["start"]).astype("float64")
    world = set(kernels["rank"].dropna().astype(int))
    found = {}
    for communicator, own in known.groupby(known["communicator"].astype(object), observed=True):
        spent = time[own.index].groupby(own["collective"].astype(object)).sum()
        names, whole = set(spent.index), float(spent.sum())
        members = set(own["rank"].dropna().astype(int))
        role = None
        exchanged = float(spent[spent.index.isin(_EXCHANGE)].sum())
        if names and names <= _POINT_TO_POINT:
            role = "PP: sends and receives alone"
        elif exchanged > _MOST * whole:
            role = f"EP: exchanges for {100 * exchanged / whole:.0f} % of its time"
        elif len(world) > 1 and members == world and names & _REDUCING:
            role = "DP: reduces over all ranks"
        found[str(communicator)] = CommunicatorRole(spans(members), role)
    return found
