"""Framed dialogs over a screen: text, the help, and a list of options."""

import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static

from nsystui.base.text import safe_text
from nsystui.ui import keys
from nsystui.ui.keys import word_lines
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.repainting import ThrottledScreen
from nsystui.ui.widgets.table_layout import letters_of

HELP_WIDTH = 110
"""Width of the help on a wide terminal, cells."""

_FRAME = 6
"""Width of the frame around the help, with its scroll bar, cells."""

_MIN_WIDTH = 20
"""Minimum length of wrapped lines, cells: narrower terminals cut them."""


class TextDialog(ModalScreen[None], ThrottledScreen[None]):
    """Shows lines of text; a subclass binds the closing keys, and may be wider."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self.lines = tuple(map(safe_text, lines))

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("\n".join(self.lines), markup=False)


def help_lines(places: Sequence[str], key_name: Callable[[str], str] = str, width: int = HELP_WIDTH) -> list[str]:
    """Return the help: the keys of each place, the screen's first, and the definitions of table words.

    Lines have at most ``width`` cells; ``key_name`` returns the displayed name of a key.
    """
    lines: list[str] = []
    explained = (key for key in keys.keys_of(places) if key.help)
    for place_name, place_keys in groupby(explained, attrgetter("place_name")):
        lines.append(keys.PLACES[place_name])
        for key in place_keys:
            margin = f"  {key_name(key.shown):9} "
            lines += textwrap.wrap(
                key.help, width, initial_indent=margin, subsequent_indent=" " * len(margin), break_on_hyphens=False
            )
        lines.append("")
    words = [f"  {line}" for name in places for line in word_lines(name, width - 2)]
    return [*lines, "Words", *words, ""] if words else lines


def last_line(places: Sequence[str]) -> str:
    """Return how to close the help, and which topics explain more."""
    topic = next((keys.TOPICS[name] for name in places if name in keys.TOPICS), "screens")
    return f"esc closes this help; more: nsystui help {topic}, nsystui help keys"


class _Options(OptionList):
    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return super().get_content_height(container, viewport, max(width, 3))  # text needs a cell inside its padding


class ChoiceList(ModalScreen[int | None], ThrottledScreen[int | None]):
    """A list of options: a letter or Enter chooses."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss(None)", "back")]

    def __init__(self, choice: Choice) -> None:
        super().__init__()
        self._choice = choice
        self._letters = letters_of({str(index): option for index, option in enumerate(choice.options)}, "q")

    def compose(self) -> ComposeResult:
        letters = {index: letter for letter, index in self._letters.items()}
        texts = [f" {safe_text(option)} " for option in self._choice.options]
        texts[self._choice.chosen] = f"[{texts[self._choice.chosen].strip()}]"
        options = _Options(*(f"{letters.get(str(i), ' ')}  {text}" for i, text in enumerate(texts)), markup=False)
        options.border_title, options.highlighted = self._choice.label, self._choice.chosen
        yield options

    def on_key(self, event: events.Key) -> None:
        if event.key in self._letters:
            event.stop()
            event.prevent_default()
            self.dismiss(int(self._letters[event.key]))

    @on(OptionList.OptionSelected)
    def _selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(message.option_index)


class HelpScreen(TextDialog):
    """The help with the keys of some places."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark,enter", "dismiss", "close")]

    def __init__(self, places: Sequence[str], key_name: Callable[[str], str] = str) -> None:
        super().__init__(())
        self._places, self._key_name = places, key_name

    def on_resize(self) -> None:
        width = max(min(self.app.size.width, HELP_WIDTH) - _FRAME, _MIN_WIDTH)
        lines = [*help_lines(self._places, self._key_name, width), *textwrap.wrap(last_line(self._places), width)]
        self.lines = tuple(map(safe_text, lines))
        self.query_one(Static).update("\n".join(self.lines))
