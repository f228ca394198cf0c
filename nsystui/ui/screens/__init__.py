"""Screens by name: each is imported when it is first shown."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from nsystui.questions.queries.question import SCREENS

MODES = (*SCREENS, "nccl_log", "diff")
"""Screens that are modes of an application."""

_MAKERS = {
    "rank map": "screens.rank_map:RankMapScreen",
    "call tree": "screens.host:CallTreeScreen",
    "efficiency": "screens.efficiency:EfficiencyScreen",
    "nccl sizes": "screens.nccl:NcclSizesScreen",
    "nvtx names": "screens.nvtx:NvtxNamesScreen",
    "diagnostics": "screens.capture:DiagnosticsScreen",
    "output": "screens.capture:JobOutputScreen",
    "files": "screens.capture:FilesScreen",
    "contents": "screens.capture:ContentsScreen",
    "metrics": "screens.gpu:MetricsScreen",
    "network": "screens.gpu:NetworkScreen",
    "GPU memory": "screens.gpu_memory:GpuMemoryScreen",
    "GPU work": "screens.nvtx:RangeWorkScreen",
    "palette": "palette:Palette",
    "recipe": "screens.recipe:RecipeScreen",
    "recipe map": "screens.recipe:RecipeMapScreen",
    "comparison": "screens.diff:comparison_with",
}


class TabView(NamedTuple):
    """A view of a tab: its name, its label on the view bar, and the screen that shows it.

    If ``needs`` names canonical tables, the view is offered only if at least one of them has rows.
    """

    name: str
    label: str
    screen: str
    needs: tuple[str, ...] = ()


_TABS: dict[str, tuple[TabView | str, ...]] = {
    "nccl": (
        TabView("nccl", "kernels", "nccl"),
        TabView("nccl calls", "CPU calls", "nccl"),
        TabView("sizes", "sizes", "nccl sizes"),
        TabView("log", "log", "nccl_log"),
    ),
    "gpu": (
        TabView("gpu", "lanes", "gpu"),
        TabView("map", "map of ranks", "rank map"),
        TabView("step map", "map of steps", "rank map"),
        TabView("efficiency", "efficiency", "efficiency"),
        TabView("metrics", "metrics", "metrics"),
        TabView("network", "network", "network", needs=("nic_metrics", "efa_samples")),
        TabView("GPU memory", "memory", "GPU memory"),
    ),
    "host": (
        TabView("threads", "threads", "host"),
        TabView("functions", "functions", "host"),
        TabView("call tree", "call tree", "call tree"),
        TabView("gaps", "gaps", "host"),
    ),
    "nvtx": ("nvtx", "nvtx names"),
}
"""Tabs with views that the catalogue lacks; a name means the catalogue's views with that home."""


def views_on(tab: str) -> tuple[TabView, ...]:
    """Return the views of a tab (a mode of the application), in the order of ``v``."""
    from nsystui.questions.queries.registry import views_of

    views: list[TabView] = []
    for view in _TABS.get(tab, (tab,)):
        if isinstance(view, TabView):
            views.append(view)
        else:
            views += [TabView(item.name, item.view.label or item.name, view) for item in views_of(view)]
    return tuple(views)


def screen_of(name: str, *arguments: Any) -> Any:
    """Create a screen by name, with the arguments of its class or function.

    By default, a screen such as ``nccl_log`` is ``NcclLogScreen`` in the module of that name.
    """
    default = f"screens.{name}:{name.title().replace('_', '')}Screen"
    module, _, maker = _MAKERS.get(name, default).partition(":")
    return getattr(importlib.import_module(f"nsystui.ui.{module}"), maker)(*arguments)
