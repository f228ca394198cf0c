"""The nominal rate of the link between the GPUs of a host, by their model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from nsystui.questions.tasks import RankedTask


class LinkRate(NamedTuple):
    """``rate``: of one GPU in one direction, bytes/s."""

    link: str
    rate: float


_OVER_PCIE = re.compile(r"PCIe|NVL\b", re.IGNORECASE)
"""Cards whose NVLink bridges, if any, join them in pairs."""

_NVLINK = (
    (r"G?B[23]00", 900e9),
    (r"GH200|H[12]00|H20", 450e9),
    (r"H800|A800", 200e9),
    (r"A100", 300e9),
    (r"V100-SXM", 150e9),
    (r"P100-SXM", 80e9),
)
"""NVIDIA's data sheets give the sum of both directions; this is half of it."""


def link_rate(ranks: Sequence[RankedTask]) -> LinkRate | None:
    """NVLink's rate, where all ranks are on one host and have GPUs of one model that is known to be joined by it.

    Between hosts the network is the limit, whose rate no export tells.
    """
    models = {name for item in ranks for name in item.gpu_names}
    if len(models) != 1 or len({item.host for item in ranks}) != 1:
        return None
    model = models.pop()
    if _OVER_PCIE.search(model):
        return None
    return next((LinkRate("NVLink", rate) for names, rate in _NVLINK if re.search(rf"\b({names})", model)), None)
