"""A few lines of words in a frame over a screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from nsystui.base.text import safe_text
from nsystui.ui.widgets.quiet import PatientScreen


class WordsDialog(ModalScreen[None], PatientScreen[None]):
    """Base of the dialogs that only say something; a subclass has the keys that close it, and may be wider."""

    DEFAULT_CSS = """
    WordsDialog { align: center middle; }
    WordsDialog VerticalScroll {
        width: 78; max-width: 100%; height: auto; max-height: 100%; border: round $foreground; padding: 0 1;
        background: $background;
    }
    WordsDialog Static { width: 1fr; }
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self._lines = tuple(map(safe_text, lines))

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("\n".join(self._lines), markup=False)
