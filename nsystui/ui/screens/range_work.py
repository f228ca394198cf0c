"""The GPU work launched in one NVTX range."""

from __future__ import annotations

from collections.abc import Callable

from nsystui.base.answer import Answer, Row
from nsystui.base.selection import Selection
from nsystui.questions.event_kinds import EventKind
from nsystui.questions.events import EventKey
from nsystui.questions.job import Job
from nsystui.ui import keys
from nsystui.ui.screens.table_pane import TablePane


class RangeWorkScreen(TablePane):
    """Kernels, memory operations and graphs in order of start; Enter goes to the event."""

    MODE_KEY = "5"
    PLACES = ("table", "everywhere")
    BINDINGS = keys.bindings("table", "everywhere")
    BACKGROUND = True

    def __init__(self, name: str, question: Callable[[Job], Answer]) -> None:
        super().__init__("5 NVTX", name, "GPU work")
        self._question = question

    def ask(self, job: Job, selection: Selection) -> Answer:
        return self._question(job)

    def natural_order(self) -> tuple[str | None, bool]:
        return "start", False

    def counted(self) -> str:
        return "operations"

    def row_category(self, row: Row) -> str | None:
        return {"kernel": "compute", "nccl": "nccl", "memory": "memory", "graph": "graph"}.get(
            str(self.values(row).get("kind"))
        )

    def open_row(self) -> None:
        values = self.values()
        if not values:
            return
        from nsystui.ui.screens.events import EventsScreen

        key = EventKey(
            int(values["report"] or 0),
            EventKind(values["kind"]),
            int(values["row"] or 0),
            int(values["start"] or 0),
        )
        self.lay_over(EventsScreen(key))
