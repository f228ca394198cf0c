"""3 NCCL: kernels and calls by collective and message size, then the single ones, then the event."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from nsystui.analysis.answer import Answer, Row, Unit
from nsystui.analysis.event_kinds import EventKind
from nsystui.analysis.events import EventKey
from nsystui.analysis.job import Job
from nsystui.analysis.nccl.table import (
    ALL_SIZES,
    CALL,
    KERNEL,
    SizeBin,
    What,
    nccl_listing,
    nccl_summary,
    size_histogram,
)
from nsystui.analysis.selection import Selection
from nsystui.text import fit
from nsystui.ui import keys
from nsystui.ui.screens.table_pane import TablePane
from nsystui.ui.widgets.plots import histogram_lines
from nsystui.units import format_value


def histogram(bars: Sequence[SizeBin], width: int) -> list[str]:
    """Calls and, beside them, bytes for each message size in ``width`` cells; nothing where no size is known."""
    known = [bar for bar in bars if bar.bucket is not None]
    if not any(bar.calls for bar in known):
        return []
    half = (width - len(_BETWEEN)) // 2
    labels = [bar.bucket or "" for bar in known]
    sizes = [bar.bytes or 0 for bar in known]
    words = [format_value(Unit.BYTES, size) for size in sizes]
    unknown = sum(bar.calls for bar in bars if bar.bucket is None)
    calls = "calls by message size" + (f" ({unknown:,} of unknown size)" if unknown else "")
    left = [calls, *histogram_lines(labels, [bar.calls for bar in known], half)]
    right = ["bytes by message size", *histogram_lines(labels, sizes, half, words)]
    return [fit(one, half) + _BETWEEN + other for one, other in zip(left, right, strict=True)]


_BETWEEN = "  │  "


class NcclScreen(TablePane):
    """The summary: GPU kernels first, then CPU calls."""

    MODE_KEY = "3"
    PLACES = ("nccl", "table", "everywhere")
    BINDINGS = keys.bindings("nccl", "table", "everywhere")
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
        self.by_bucket = True
        self._bars: Sequence[SizeBin] = ()

    def parameters(self) -> tuple[Hashable, ...]:
        return (self.by_bucket,)

    def ask(self, job: Job, selection: Selection) -> tuple[Answer, Sequence[SizeBin]]:
        pairing = job.pairing()
        answer = nccl_summary(job.session, selection, job.ranks, pairing, self.by_bucket)
        return answer, size_histogram(pairing, selection)

    def show(self, result: Any, same_place: bool) -> None:
        answer, self._bars = result
        self._show_bars()
        super().show(answer, same_place)

    def on_resize(self) -> None:
        self._show_bars()

    def _show_bars(self) -> None:
        lines = histogram(self._bars, self.size.width)
        self.panel.show_lines(lines)
        self.panel.set_class(not lines, "-empty")

    def row_category(self, row: Row) -> str | None:
        return "nccl" if row[0] == "kernel" else "api"

    def action_group_by(self) -> None:
        self.by_bucket = not self.by_bucket
        self.job_changed()

    def action_partner(self) -> None:
        self.say("a row is many calls: Enter lists them, c there goes to a partner")

    def open_row(self) -> None:
        values = self.values()
        if values:
            bucket = values["bucket"] if self.by_bucket else ALL_SIZES
            what: What = KERNEL if values["what"] == KERNEL else CALL
            self.app.push_screen(NcclCallsScreen(what, values["collective"], bucket))


class NcclCallsScreen(TablePane):
    """The single kernels or calls of a row; Enter goes to the event, ``c`` to the event of the partner."""

    MODE_KEY = "3"
    PLACES = ("nccl", "table", "everywhere")
    BINDINGS = keys.bindings("nccl", "table", "everywhere")

    def __init__(self, what: What, collective: Any, bucket: Any) -> None:
        size = "" if bucket == ALL_SIZES else f" {bucket or 'of unknown size'}"
        super().__init__("3 NCCL", f"{collective or 'unknown'}{size} {what}s")
        self.what = what
        self.collective = collective
        self.bucket = bucket

    def ask(self, job: Job, selection: Selection) -> Answer:
        return nccl_listing(job.session, selection, job.ranks, job.pairing(), self.collective, self.bucket, self.what)

    def natural_order(self) -> tuple[str | None, bool]:
        return "start", False

    def counted(self) -> str:
        return f"{self.what}s"

    def row_category(self, row: Row) -> str | None:
        return "nccl" if self.what == KERNEL else "api"

    def action_group_by(self) -> None:
        self.say("esc goes back to the table that can be grouped")

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

        self.app.push_screen(EventsScreen(EventKey(int(report), EventKind(kind), int(row), int(start))))
