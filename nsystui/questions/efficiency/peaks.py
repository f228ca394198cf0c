"""What GPUs can do at most: dense matrix products in BF16, as NVIDIA's data sheets say.

Data sheets that tell the figure with sparsity tell twice of it. Where a name stands for several products, or the
figure depends on a power limit that nobody recorded, there is none: a user can give it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """The peak of a GPU in TFLOP/s, and in words whose it is."""

    tflops: float
    source: str


# What the name must match; TFLOP/s; what it is.
_PEAKS = (
    (r"A100", 312.0, "A100 data sheet, dense BF16"),
    (r"H100.*(HBM3|SXM)", 989.0, "H100 SXM data sheet, dense BF16"),
    (r"H100 PCIe", 756.0, "H100 PCIe data sheet, dense BF16"),
    (r"GH200", 989.0, "GH200 data sheet, dense BF16"),
    (r"H200(?! NVL)", 989.0, "H200 SXM data sheet, dense BF16"),
    (r"B200", 2250.0, "HGX B200 data sheet, dense BF16"),
    (r"A40", 149.7, "A40 data sheet, dense BF16"),
    (r"L40S", 362.0, "L40S data sheet, dense BF16"),
    (r"V100-SXM[23]", 125.0, "V100 SXM2 data sheet, FP16 (no BF16)"),
    (r"V100-PCIE", 112.0, "V100 PCIe data sheet, FP16 (no BF16)"),
)
# A part of a GPU (MIG, vGPU), and a make of its own with more multiprocessors than the product.
_UNKNOWN = re.compile(r"\bMIG\b|\bGRID\b|-\d+[ABCQ]\b|A100-SXM-64GB")


def known_peak(model: str) -> Peak | None:
    """The peak of a GPU by its name as nsys writes it (``NVIDIA A100-SXM4-40GB``); ``None`` where it is not known."""
    if _UNKNOWN.search(model):
        return None
    for pattern, tflops, source in _PEAKS:
        if re.search(rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])", model):
            return Peak(tflops, source)
    return None
