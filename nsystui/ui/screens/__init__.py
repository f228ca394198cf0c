"""The screens by name, each imported when it is first shown: opening one by its name needs no import of it."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from nsystui.questions.queries.question import SCREENS

MODES = (*SCREENS, "nccl_log", "diff")
"""The screens that are modes of an application."""

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
    "palette": "palette:Palette",
    "recipe": "screens.recipe:RecipeScreen",
    "recipe map": "screens.recipe:RecipeMapScreen",
    "comparison": "screens.diff:comparison_with",
}


class TabView(NamedTuple):
    """One of the views of a tab: its name, the word for it on the view bar, and the screen that shows it.

    ``needs``: the canonical tables of which one must have rows for it to be offered, if any are named.
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
"""The views of tabs that have more than those of the catalogue; a name stands for the catalogue's of that home."""


def views_on(tab: str) -> tuple[TabView, ...]:
    """The views of a tab, a mode of the application, in the order of ``v``."""
    from nsystui.questions.queries.registry import views_of

    found: list[TabView] = []
    for view in _TABS.get(tab, (tab,)):
        if isinstance(view, TabView):
            found.append(view)
        else:
            found += [TabView(one.name, one.view.label or one.name, view) for one in views_of(view)]
    return tuple(found)


def screen_of(name: str, *arguments: Any) -> Any:
    """A new screen by its name; ``arguments`` as its class or function takes them.

    The screen of a mode such as ``nccl_log`` is ``NcclLogScreen`` in the module of that name.
    """
    of_mode = f"screens.{name}:{name.title().replace('_', '')}Screen"
    module, _, maker = _MAKERS.get(name, of_mode).partition(":")
    return getattr(importlib.import_module(f"nsystui.ui.{module}"), maker)(*arguments)
