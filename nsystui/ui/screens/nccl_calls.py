"""3 NCCL, one row opened: its single kernels or calls, then the event; and how a histogram of sizes is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nsystui.base.answer import Answer, Row
from nsystui.base.columns import Unit
from nsystui.base.selection import Selection
from nsystui.base.text import fit
from nsystui.base.units import format_value
from nsystui.questions.event_kinds import EventKind
from nsystui.questions.events import EventKey
from nsystui.questions.job import Job
from nsystui.questions.nccl.grouping import By
from nsystui.questions.nccl.listing import nccl_listing
from nsystui.questions.nccl.sizes import SizeBin
from nsystui.questions.nccl.summary import KERNEL, What
from nsystui.ui import keys
from nsystui.ui.screens.table_pane import TablePane
from nsystui.ui.widgets.plots import histogram_lines

if TYPE_CHECKING:
    from nsystui.questions.nccl.pairing import NcclPairing


def histogram(bars: Sequence[SizeBin], width: int) -> list[str]:
    """Calls and, beside them, bytes for each message size in ``width`` cells; nothing where no size is known."""
    known = [bar for bar in bars if bar.label is not None]
    if not any(bar.calls for bar in known):
        return []
    half = (width - len(_BETWEEN)) // 2
    labels = [bar.label or "" for bar in known]
    sizes = [bar.bytes or 0 for bar in known]
    words = [format_value(Unit.BYTES, size) for size in sizes]
    unknown = sum(bar.calls for bar in bars if bar.label is None)
    calls = "calls by message size" + (f" ({unknown:,} of unknown size)" if unknown else "")
    left = [calls, *histogram_lines(labels, [bar.calls for bar in known], half)]
    right = ["bytes by message size", *histogram_lines(labels, sizes, half, words)]
    return [fit(one, half) + _BETWEEN + other for one, other in zip(left, right, strict=True)]


_BETWEEN = "  │  "


def pairing_for(job: Job, groups: Collection[By]) -> NcclPairing:
    """The pairing, with the step of each row where rows are grouped by it."""
    from nsystui.questions.nccl.bandwidth import in_steps

    return in_steps(job.pairing(), job.steps()) if By.STEP in groups else job.pairing()


def _crumb(what: What, row: Mapping[By, Any]) -> str:
    """``AllReduce 64KiB–1MiB kernels``, ``AllReduce stream 7 kernels``."""
    words = [str(row[By.COLLECTIVE] or "unknown")]
    for by, value in row.items():
        if by in (By.SIZE, By.POW2, By.BYTES):
            size = format_value(Unit.BYTES, value) if isinstance(value, int) else value
            words.append(size or "of unknown size")
        elif by is not By.COLLECTIVE:
            words.append(f"{by.value} {'unknown' if value is None else value}")
    return " ".join([*words, f"{what}s"])


class NcclCallsScreen(TablePane):
    """The single kernels or calls of a row; Enter goes to the event, ``c`` to the event of the partner."""

    MODE_KEY = "3"
    PLACES = ("nccl calls", "table", "everywhere")
    BINDINGS = keys.bindings("nccl calls", "table", "everywhere")

    def __init__(self, what: What, row: Mapping[By, Any]) -> None:
        super().__init__("3 NCCL", _crumb(what, row))
        self.what = what
        self.row = row

    def ask(self, job: Job, selection: Selection) -> Answer:
        return nccl_listing(job.session, selection, job.ranks, pairing_for(job, self.row), self.row, self.what)

    def natural_order(self) -> tuple[str | None, bool]:
        return "start", False

    def counted(self) -> str:
        return f"{self.what}s"

    def row_category(self, row: Row) -> str | None:
        return "nccl" if self.what == KERNEL else "api"

    def open_row(self) -> None:
        values = self.values()
        if values:
            self._go(values["report"], values["kind"], values["row"], values["start"])

    def action_partner(self) -> None:
        values = self.values()
        if not values:
            return
        if values["partner_row"] is None:
            self.say(str(values["reason"] or "it has no partner"))
            return
        self._go(values["partner_report"], values["partner_kind"], values["partner_row"], values["partner_start"])

    def _go(self, report: Any, kind: Any, row: Any, start: Any) -> None:
        from nsystui.ui.screens.events import EventsScreen

        self.lay_over(EventsScreen(EventKey(int(report), EventKind(kind), int(row), int(start))))
