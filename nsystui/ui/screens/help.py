"""The keys of a place and the words of its tables, made from the one table of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import BindingType

from nsystui.ui import keys
from nsystui.ui.screens.words_dialog import WordsDialog
from nsystui.ui.words import word_lines


def help_lines(places: Sequence[str], name: Callable[[str], str] = str) -> list[str]:
    """The keys of ``places`` in aligned lines, a title before each place; ``name`` says what a shown key is called.

    Below the keys of a place stand the words of its tables with their definitions.
    """
    lines: list[str] = []
    taken: set[str] = set()
    for place in places:
        here = [key for key in keys.KEYS if key.place == place and key.shown not in taken]
        taken |= {key.shown for key in here}
        told = [key for key in here if key.help]
        if told:
            lines += [keys.PLACES[place], *(f"  {name(key.shown):7} {key.help}" for key in told), ""]
        words = [f"  {line}" for line in word_lines(place)]
        if words:
            lines += [*words, ""]
    return lines


def last_line(places: Sequence[str]) -> str:
    """How the help is closed, and which topics of the documentation explain more."""
    topic = next((keys.TOPICS[place] for place in places if place in keys.TOPICS), "screens")
    return f"esc closes this help; more: nsystui help {topic}, nsystui help keys"


class HelpScreen(WordsDialog):
    """Closes with any of the keys that close things."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark,enter", "dismiss", "close")]

    def __init__(self, places: Sequence[str], name: Callable[[str], str] = str) -> None:
        super().__init__([*help_lines(places, name), last_line(places)])
