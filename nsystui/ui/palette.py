"""The command palette: the questions without a screen of their own, above all recipes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.widgets import Input

from nsystui.questions.catalogue import questions
from nsystui.questions.question import COMPARISON, PALETTE, Question
from nsystui.ui.widgets.repainting import ThrottledScreen

if TYPE_CHECKING:
    from nsystui.ui.screens.base import JobScreen


def words_of(question: Question) -> str:
    """``recipe: gpu_gaps – when a GPU was idle for long``"""
    family = f"{question.family}: " if question.family else ""
    return f"{family}{question.name} – {question.help}"


def offered_questions() -> list[Question]:
    """The questions that the palette offers, in its order."""
    return [question for question in questions() if question.home in (PALETTE, COMPARISON)]


class QuestionProvider(Provider):
    """Every question without a screen of its own; the input is searched for in its name and its line of help."""

    async def discover(self) -> Hits:
        for question in offered_questions():
            yield DiscoveryHit(Content(words_of(question)), self._opens(question), words_of(question))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for question in offered_questions():
            words = words_of(question)
            score = matcher.match(words)
            if score > 0:
                yield Hit(score, matcher.highlight(words), self._opens(question), words)

    def _opens(self, question: Question) -> partial[None]:
        screen: JobScreen = self.screen  # type: ignore[assignment]
        return partial(screen.open_question, question)


class RecipePalette(CommandPalette, ThrottledScreen[None]):
    """Textual's palette without blinking, spinners and icons."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+p", "escape", "close", show=False)]

    DEFAULT_CSS = """
    RecipePalette > Vertical { margin-top: 1; }
    RecipePalette SearchIcon, RecipePalette LoadingIndicator, RecipePalette LoadingIndicator.--visible {
        display: none;
    }
    """

    def __init__(self) -> None:
        super().__init__(providers=[QuestionProvider], placeholder="recipe, or what you want to know")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    def _action_command_list(self, action: str) -> None:
        # Textual's list falls over a page while it has no lines: before it is drawn, on a tiny terminal.
        if action.startswith("page_") and not self.query_one(CommandList).scrollable_content_region.height:
            return
        super()._action_command_list(action)
