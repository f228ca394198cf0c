"""A table of the overview with a panel below it, which has all the words of the row under the cursor."""

from __future__ import annotations

import textwrap

from nsystui.ui import keys
from nsystui.ui.screens.table_pane import TablePane


class WordsPane(TablePane):
    """Base of the tables whose texts are longer than a line. A subclass asks for the rows and has the words."""

    MODE_KEY = "1"
    PLACES = ("table", "everywhere")
    BINDINGS = keys.bindings("table", "everywhere")
    HAS_PANEL = True

    DEFAULT_CSS = """
    WordsPane #body { layout: vertical; }
    WordsPane SidePanel { display: block; width: 100%; height: 4; }
    """

    def words(self) -> str:
        """What the panel says of the row under the cursor."""
        raise NotImplementedError

    def row_changed(self) -> None:
        self.panel.show_lines(textwrap.wrap(self.words(), max(20, self.app.size.width - 3)))
