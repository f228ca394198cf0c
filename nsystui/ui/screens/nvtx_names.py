"""NVTX ranges by name: their durations on the CPU, and projected onto the GPU, as ``nsys stats`` has them."""

from __future__ import annotations

from collections.abc import Hashable

from nsystui.base.answer import Answer
from nsystui.base.selection import Selection
from nsystui.questions.catalogue import question_named
from nsystui.questions.job import Job
from nsystui.ui import keys
from nsystui.ui.screens.instances import RangeInstancesScreen
from nsystui.ui.screens.table_pane import TablePane

_TITLES = {"nvtx_sum": "by name", "nvtx_gpu_proj_sum": "by name, projected"}


class NvtxNamesScreen(TablePane):
    """The two summaries; Enter lists the single ranges of a name."""

    MODE_KEY = "5"
    PLACES = ("nvtx names", "table", "everywhere")
    BINDINGS = keys.bindings("nvtx names", "table", "everywhere")
    BACKGROUND = True

    def __init__(self) -> None:
        super().__init__("5 NVTX", _TITLES["nvtx_sum"])
        self.report = "nvtx_sum"

    def parameters(self) -> tuple[Hashable, ...]:
        return (self.report,)

    def ask(self, job: Job, selection: Selection) -> Answer:
        report = question_named(self.report, "stats")
        return report.ask(job, selection, report.defaults())

    def natural_order(self) -> tuple[str | None, bool]:
        return "total", True

    def counted(self) -> str:
        return "names"

    def action_other_table(self) -> None:
        """From durations on the CPU to projected ones, and back."""
        self.report = next(name for name in _TITLES if name != self.report)
        self.crumbs = ("5 NVTX", _TITLES[self.report])
        self._sort = None
        self.job_changed()

    def open_row(self) -> None:
        name = self.values().get("name")
        if isinstance(name, str):
            self.lay_over(RangeInstancesScreen(name))
