"""The screens by name, each imported when it is first shown: opening one by its name needs no import of it."""

from __future__ import annotations

import importlib
from typing import Any

from nsystui.questions.question import SCREENS

MODES = (*SCREENS, "nccl_log", "diff")
"""The screens that are modes of an application."""

_MAKERS = {
    "diagnostics": "screens.capture:DiagnosticsScreen",
    "palette": "palette:RecipePalette",
    "recipe": "screens.recipe:RecipeScreen",
    "recipe map": "screens.recipe:RecipeMapScreen",
    "comparison": "screens.diff:comparison_with",
}


def screen_of(name: str, *arguments: Any) -> Any:
    """A new screen by its name; ``arguments`` as its class or function takes them.

    The screen of a mode such as ``nccl_log`` is ``NcclLogScreen`` in the module of that name.
    """
    of_mode = f"screens.{name}:{name.title().replace('_', '')}Screen"
    module, _, maker = _MAKERS.get(name, of_mode).partition(":")
    return getattr(importlib.import_module(f"nsystui.ui.{module}"), maker)(*arguments)
