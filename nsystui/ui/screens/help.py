"""The keys of a place, made from the one table of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from nsystui.ui import keys
from nsystui.ui.widgets.quiet import PatientScreen


def help_lines(places: Sequence[str]) -> list[str]:
    """The keys of ``places`` in aligned lines, a title before each place."""
    lines: list[str] = []
    taken: set[str] = set()
    for place in places:
        here = [key for key in keys.KEYS if key.place == place and key.shown not in taken]
        taken |= {key.shown for key in here}
        told = [key for key in here if key.help]
        if told:
            lines += [keys.PLACES[place], *(f"  {key.shown:7} {key.help}" for key in told), ""]
    return lines


class HelpScreen(ModalScreen[None], PatientScreen[None]):
    """Closes with any of the keys that close things."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark,enter", "dismiss", "close")]

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen VerticalScroll {
        width: 78; max-width: 100%; height: auto; max-height: 100%; border: round $foreground; padding: 0 1;
        background: $background;
    }
    HelpScreen Static { width: 1fr; }
    """

    def __init__(self, places: Sequence[str]) -> None:
        super().__init__()
        self._places = tuple(places)

    def compose(self) -> ComposeResult:
        lines = [*help_lines(self._places), "esc closes this help"]
        with VerticalScroll():
            yield Static("\n".join(lines), markup=False)
