"""Screens by name: each is imported when it is first shown."""

import importlib
from typing import Any

from nsystui.questions.queries.question import View, views_of

_MAKERS = {
    "rank map": "screens.rank_map:RankMapScreen", "call tree": "screens.host:CallTreeScreen",
    "efficiency": "screens.efficiency:EfficiencyScreen", "nccl sizes": "screens.nccl:NcclSizesScreen",
    "nvtx names": "screens.nvtx:NvtxNamesScreen", "diagnostics": "screens.capture:DiagnosticsScreen",
    "output": "screens.capture:JobOutputScreen", "files": "screens.capture:FilesScreen",
    "contents": "screens.capture:ContentsScreen", "metrics": "screens.gpu:MetricsScreen",
    "network": "screens.gpu:NetworkScreen", "GPU memory": "screens.gpu:GpuMemoryScreen",
    "GPU work": "screens.nvtx:RangeWorkScreen", "palette": "palette:Palette", "recipe": "screens.recipe:RecipeScreen",
    "recipe map": "screens.recipe:RecipeMapScreen", "comparison": "screens.diff:comparison_with",
}  # fmt: skip


_MORE_VIEWS = (
    View("nccl calls", label="CPU calls", order=41, home="nccl", screen="nccl"),
    View("sizes", label="sizes", order=42, home="nccl", screen="nccl sizes"),
    View("log", label="log", order=43, home="nccl", screen="nccl_log"),
    View("map", label="map of ranks", order=81, home="gpu", screen="rank map"),
    View("step map", label="map of steps", order=81, home="gpu", screen="rank map"),
    View("efficiency", label="efficiency", order=81, home="gpu", screen="efficiency"),
)
"""Views that the catalogue lacks."""


def views_on(tab: str) -> tuple[View, ...]:
    """Return the views of a tab (a mode of the application), in the order of ``v``."""
    more_views = (view for view in _MORE_VIEWS if view.home == tab)
    return tuple(sorted((*views_of(tab), *more_views), key=lambda view: view.order))


def screen_of(name: str, *arguments: Any) -> Any:
    """Create a screen by name, with the arguments of its class or function.

    By default, a screen such as ``nccl_log`` is ``NcclLogScreen`` in the module of that name.
    """
    default = f"screens.{name}:{name.title().replace('_', '')}Screen"
    module, _, maker = _MAKERS.get(name, default).partition(":")
    return getattr(importlib.import_module(f"nsystui.ui.{module}"), maker)(*arguments)
