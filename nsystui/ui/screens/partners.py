"""A graph launch may have launched many kernels: the list of them, to choose one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen

from nsystui.base.answer import Row, TableAnswer
from nsystui.questions.events import EVENT_COLUMNS, EventKey, key_of
from nsystui.ui.widgets.crumbs import KeyLine, TitleLine
from nsystui.ui.widgets.quiet import PatientScreen
from nsystui.ui.widgets.table_messages import RowSelected
from nsystui.ui.widgets.window_table import WindowTable


class PartnersScreen(ModalScreen[EventKey | None], PatientScreen[EventKey | None]):
    """Enter chooses an event, Esc none."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss(None)", "back")]

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__()
        self._rows = tuple(rows)

    def compose(self) -> ComposeResult:
        title = TitleLine()
        title.update("6 Events", "launched by this call", right=f"{len(self._rows):,} operations")
        yield title
        yield WindowTable(TableAnswer("partners", EVENT_COLUMNS, self._rows))
        yield KeyLine([("⏎", "go there"), ("esc", "back")])

    @on(RowSelected)
    def _chosen(self, message: RowSelected) -> None:
        self.dismiss(key_of(self._rows[message.row]))
