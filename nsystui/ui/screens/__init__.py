"""The screens by name, each imported when it is first shown: opening one by its name needs no import of it."""

from __future__ import annotations

import importlib
from typing import Any

from nsystui.questions.question import SCREENS

MODES = (*SCREENS, "nccl_log", "diff")
"""The screens that are modes of an application."""

_MAKERS = {
    "overview": "screens.overview:OverviewScreen",
    "kernels": "screens.kernels:KernelsScreen",
    "nccl": "screens.nccl:NcclScreen",
    "nccl_log": "screens.nccl_log:NcclLogScreen",
    "gpu": "screens.gpu:GpuScreen",
    "nvtx": "screens.nvtx:NvtxScreen",
    "events": "screens.events:EventsScreen",
    "ranks": "screens.ranks:RanksScreen",
    "diff": "screens.diff:DiffScreen",
    "timeline": "screens.timeline:TimelineScreen",
    "diagnostics": "screens.capture:DiagnosticsScreen",
    "palette": "palette:RecipePalette",
    "recipe": "screens.recipe:RecipeScreen",
    "recipe map": "screens.recipe:RecipeMapScreen",
    "comparison": "screens.diff:comparison_with",
}


def screen_of(name: str, *arguments: Any) -> Any:
    """A new screen by its name; ``arguments`` as its class or function takes them."""
    module, _, maker = _MAKERS[name].partition(":")
    return getattr(importlib.import_module(f"nsystui.ui.{module}"), maker)(*arguments)
