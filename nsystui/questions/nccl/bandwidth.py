"""The bandwidth of NCCL kernels, by the formulas of nccl-tests (its ``doc/PERFORMANCE.md``; docs/nccl.md#bandwidth).

Algorithm bandwidth is S / t and bus bandwidth S · f / t. S is the size of the operation, f tells how many times its
bytes pass the slowest link, and n is the number of ranks in the communicator. Of the message size m of an API call:

======================================  =====  ==========
operation                               S      f
======================================  =====  ==========
AllReduce                               m      2(n−1)/n
AllGather, ReduceScatter                n · m  (n−1)/n
AlltoAll, Gather, Scatter               n · m  (n−1)/n
Broadcast, Reduce, Send, Recv           m      1
======================================  =====  ==========

The message size of the second and third line is that of one rank, or one peer, hence the n. What runs as sends and
receives has no such size: there S is the larger of what the kernel sends and what it receives, as in nccl-tests'
``sendrecv``. For an AlltoAll made of sends that already is n · m, the rank's own share included; a Gather or Scatter
made of them does not send its own share, so f is 1.

t is the duration of the kernel, which includes waiting for the other ranks. A formula that needs an n, or a size, that
is not known gives nothing; so do collectives without one, and kernels that mix collectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nsystui.questions.nccl.lines import whole

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

_NS_PER_S = 1e9
_TIMES_RANKS = ("AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter")
_ONCE = ("Broadcast", "Reduce", "Send", "Recv", "SendRecv")
_KNOWN = ("AllReduce", *_TIMES_RANKS, *_ONCE)


def sizes_moved(kernels: pd.DataFrame) -> tuple[Floats, Floats]:
    """S and S · f of each kernel of an `NcclPairing`, bytes; shapes ``(n,)``, NaN where they are not known."""
    collective = kernels["collective"].astype(object)
    ranks, message, one_way = (_floats(kernels[key]) for key in ("ranks", "message_size", "one_way"))
    ranks[ranks == 0] = np.nan  # damage
    is_of_sends = ~np.isnan(one_way)
    is_multiplied = collective.isin(_TIMES_RANKS).to_numpy(bool)

    size = np.where(is_multiplied, ranks * message, message)
    size = np.where(is_of_sends, one_way, size)
    size[~collective.isin(_KNOWN).to_numpy(bool)] = np.nan

    share = (ranks - 1) / ranks
    factor = np.select(
        [
            (collective == "AllReduce").to_numpy(bool),
            is_multiplied & ~(is_of_sends & collective.isin(("Gather", "Scatter")).to_numpy(bool)),
        ],
        [2 * share, share],
        1.0,
    )
    return size, size * factor


def _floats(column: pd.Series[Any]) -> Floats:
    """A column of numbers from 0 as floats, NaN where one is missing; bytes stay exact up to 9 PB."""
    numbers = whole(column)
    return np.where(numbers >= 0, numbers, np.nan)


def rate(size: Floats, duration: Floats) -> Floats:
    """Bytes per second from bytes and ns, of one shape; NaN where either is not known or the time is 0."""
    found: Floats = np.full(len(size), np.nan)
    return np.divide(size * _NS_PER_S, duration, out=found, where=duration > 0)
