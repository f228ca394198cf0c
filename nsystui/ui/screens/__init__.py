"""Screens by name: each is imported when it is first shown."""

import importlib
from typing import Any

from nsystui.questions.queries.question import View, views_of

_MODULES = {
    "call tree": "screens.host", "comparison": "screens.diff", "contents": "screens.capture",
    "diagnostics": "screens.capture", "files": "screens.capture", "GPU memory": "screens.gpu",
    "GPU work": "screens.nvtx", "metrics": "screens.gpu", "nccl sizes": "screens.nccl", "network": "screens.gpu",
    "nvtx names": "screens.nvtx", "output": "screens.capture", "palette": "palette", "recipe map": "screens.recipe",
}  # fmt: skip
"""The modules of screens, where their names differ."""

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
    """Create a screen by its name, which is its ``SCREEN``, or a key of its module's ``OPENED``."""
    module = importlib.import_module(f"nsystui.ui.{_MODULES.get(name, f'screens.{name}'.replace(' ', '_'))}")
    screens = {vars(made).get("SCREEN"): made for made in vars(module).values() if isinstance(made, type)}
    return (screens | getattr(module, "OPENED", {}))[name](*arguments)
