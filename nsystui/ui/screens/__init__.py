"""The screens, each imported when it is first shown."""

from __future__ import annotations

import importlib
from typing import Any

_CLASSES = {
    "overview": "OverviewScreen",
    "kernels": "KernelsScreen",
    "nccl": "NcclScreen",
    "nccl_log": "NcclLogScreen",
    "gpu": "GpuScreen",
    "nvtx": "NvtxScreen",
    "events": "EventsScreen",
    "ranks": "RanksScreen",
    "diff": "DiffScreen",
    "timeline": "TimelineScreen",
}


def screen_of(mode: str) -> Any:
    """A new screen for a mode."""
    module = importlib.import_module(f"nsystui.ui.screens.{mode}")
    return getattr(module, _CLASSES[mode])()
