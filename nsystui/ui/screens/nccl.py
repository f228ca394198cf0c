"""3 NCCL: kernels and calls by collective and message size, communicator, stream, rank or step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from nsystui.base.answer import Answer, Row
from nsystui.base.selection import Selection
from nsystui.questions.job import Job
from nsystui.questions.nccl.grouping import COLUMNS, By
from nsystui.questions.nccl.sizes import SizeBin, size_histogram
from nsystui.questions.nccl.summary import CALL, KERNEL, What, nccl_summary
from nsystui.ui import keys
from nsystui.ui.screens.nccl_calls import NcclCallsScreen, histogram, pairing_for
from nsystui.ui.screens.nccl_log import NcclLogScreen, log_note
from nsystui.ui.screens.table_pane import TablePane

_GROUPS: tuple[By | None, ...] = (By.SIZE, None, By.COMMUNICATOR, By.STREAM, By.RANK, By.STEP)
"""What ``b`` goes through besides the collective."""


class NcclScreen(TablePane):
    """The summary: GPU kernels first, then CPU calls."""

    MODE_KEY = "3"
    PLACES = ("nccl", "table", "everywhere")
    BINDINGS = keys.bindings("nccl with log", "nccl", "table", "everywhere")
    HAS_PANEL = True
    PANEL_BORDER = ""
    ELASTIC = "collective"

    DEFAULT_CSS = """
    NcclScreen #body { layout: vertical; }
    NcclScreen SidePanel, NcclScreen.-wide SidePanel { display: block; width: 100%; height: 5; margin-top: 1; }
    NcclScreen SidePanel.-empty, NcclScreen.-wide SidePanel.-empty { display: none; }
    """

    def __init__(self) -> None:
        super().__init__("3 NCCL")
        self.by: By | None = By.SIZE
        self._bars: Sequence[SizeBin] = ()

    def parameters(self) -> tuple[Hashable, ...]:
        job = self.explorer.job
        return (self.by, job is not None and job.nccl_log is not None)

    def ask(self, job: Job, selection: Selection) -> tuple[Answer, Sequence[SizeBin]]:
        groups = (By.COLLECTIVE,) if self.by is None else (By.COLLECTIVE, self.by)
        pairing = pairing_for(job, groups)
        answer = nccl_summary(job.session, selection, job.ranks, pairing, groups)
        return answer, size_histogram(pairing, selection)

    def show(self, result: Any, same_place: bool) -> None:
        answer, self._bars = result
        self._show_bars()
        super().show(answer, same_place)
        self.log_changed()

    def places(self) -> tuple[str, ...]:
        return ("nccl with log", *self.PLACES) if self.explorer.source.logs else self.PLACES

    def log_changed(self) -> None:
        """What is read of NCCL's log stands before what the table says of itself."""
        note, answer = log_note(self.explorer.nccl_log), self.table.answer
        self.notes.show_notes([*([note] if note else []), *(answer.notes if answer else ())])

    def action_log(self) -> None:
        if self.explorer.source.logs:
            self.explorer.read_log(again=False)
            self.lay_over(NcclLogScreen())
        else:
            self.say("no log of NCCL is open: nsystui FILE… --nccl-log 'nccl*.log'")

    def on_resize(self) -> None:
        self._show_bars()

    def _show_bars(self) -> None:
        lines = histogram(self._bars, self.size.width)
        self.panel.show_lines(lines)
        self.panel.set_class(not lines, "-empty")

    def row_category(self, row: Row) -> str | None:
        return "nccl" if row[0] == "kernel" else "api"

    def action_group_by(self) -> None:
        self.by = _GROUPS[(_GROUPS.index(self.by) + 1) % len(_GROUPS)]
        self.say("by collective" + (f" and {self.by.value}" if self.by else " alone"))
        self.job_changed()

    def action_sizes(self) -> None:
        from nsystui.ui.screens.nccl_sizes import NcclSizesScreen

        self.lay_over(NcclSizesScreen())

    def open_row(self) -> None:
        values = self.values()
        if values:
            what: What = KERNEL if values["what"] == KERNEL else CALL
            row: dict[By, Any] = {By.COLLECTIVE: values["collective"]}
            if self.by is not None:
                row[self.by] = values[COLUMNS[self.by].key]
            self.lay_over(NcclCallsScreen(what, row))
