"""The multi-report recipes of Nsight Systems: what each answers, over all ranks of a job.

See docs/numbers.md#expert-rules and docs/recipes.md#recipes.

They are the questions of this room, put together: a recipe has no way of its own to count what another one counts.
"""

from __future__ import annotations

from nsystui.questions.recipes.catalog import RECIPES, Recipe, recipe_named

__all__ = ["RECIPES", "Recipe", "recipe_named"]
