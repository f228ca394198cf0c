"""The command palette: the recipes by what they answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.widgets import Input

from nsystui.questions.recipes.catalog import RECIPES, Recipe
from nsystui.ui.widgets.quiet import PatientScreen

if TYPE_CHECKING:
    from nsystui.ui.screens.base import JobScreen


def words_of(recipe: Recipe) -> str:
    """``recipe: gpu_gaps – when a GPU was idle for long``"""
    return f"recipe: {recipe.name} – {recipe.what}"


class RecipeProvider(Provider):
    """Every recipe; what is typed is looked for in its name and in what it answers."""

    async def discover(self) -> Hits:
        for recipe in RECIPES:
            yield DiscoveryHit(Content(words_of(recipe)), self._opens(recipe), words_of(recipe))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for recipe in RECIPES:
            words = words_of(recipe)
            score = matcher.match(words)
            if score > 0:
                yield Hit(score, matcher.highlight(words), self._opens(recipe), words)

    def _opens(self, recipe: Recipe) -> partial[None]:
        screen: JobScreen = self.screen  # type: ignore[assignment]
        return partial(screen.open_recipe, recipe)


class RecipePalette(CommandPalette, PatientScreen[None]):
    """Textual's palette without what blinks, spins, or is a picture."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+p", "escape", "close", show=False)]

    DEFAULT_CSS = """
    RecipePalette > Vertical { margin-top: 1; }
    RecipePalette SearchIcon, RecipePalette LoadingIndicator, RecipePalette LoadingIndicator.--visible {
        display: none;
    }
    """

    def __init__(self) -> None:
        super().__init__(providers=[RecipeProvider], placeholder="recipe, or what you want to know")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    def _action_command_list(self, action: str) -> None:
        # Textual's list falls over a page while it has no lines: before it is drawn, on a tiny terminal.
        if action.startswith("page_") and not self.query_one(CommandList).scrollable_content_region.height:
            return
        super()._action_command_list(action)
