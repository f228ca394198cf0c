"""Text in a frame over a screen: the base of such dialogs, and the help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from nsystui.base.text import safe_text
from nsystui.ui import keys
from nsystui.ui.keys import word_lines
from nsystui.ui.widgets.repainting import ThrottledScreen


class TextDialog(ModalScreen[None], ThrottledScreen[None]):
    """Shows lines of text; a subclass binds the keys that close it, and may be wider."""

    DEFAULT_CSS = """
    TextDialog { align: center middle; }
    TextDialog VerticalScroll {
        width: 78; max-width: 100%; height: auto; max-height: 100%; border: round $foreground; padding: 0 1;
        background: $background;
    }
    TextDialog Static { width: 1fr; }
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self._lines = tuple(map(safe_text, lines))

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("\n".join(self._lines), markup=False)


def help_lines(places: Sequence[str], name: Callable[[str], str] = str) -> list[str]:
    """The keys of ``places`` in aligned lines, a title before each place; ``name`` says what a shown key is called.

    Below the keys of a place stand the words of its tables with their definitions.
    """
    lines: list[str] = []
    taken: set[str] = set()
    for place in places:
        here = [key for key in keys.KEYS if key.place == place and key.shown not in taken]
        taken |= {key.shown for key in here}
        explained = [key for key in here if key.help]
        if explained:
            lines += [keys.PLACES[place], *(f"  {name(key.shown):7} {key.help}" for key in explained), ""]
        words = [f"  {line}" for line in word_lines(place)]
        if words:
            lines += [*words, ""]
    return lines


def last_line(places: Sequence[str]) -> str:
    """How the help is closed, and which topics of the documentation explain more."""
    topic = next((keys.TOPICS[place] for place in places if place in keys.TOPICS), "screens")
    return f"esc closes this help; more: nsystui help {topic}, nsystui help keys"


class HelpScreen(TextDialog):
    """Closes with any of the keys that close things."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark,enter", "dismiss", "close")]

    def __init__(self, places: Sequence[str], name: Callable[[str], str] = str) -> None:
        super().__init__([*help_lines(places, name), last_line(places)])
