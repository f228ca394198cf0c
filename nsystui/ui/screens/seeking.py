"""A screen with findings on it, which come once everything else is there."""

from __future__ import annotations

from collections.abc import Iterable

from textual import on
from textual.widget import Widget

from nsystui.ui.screens.comparing import ComparingScreen
from nsystui.ui.screens.findings_table import FindingsTable
from nsystui.ui.screens.going import show_finding
from nsystui.ui.widgets.part_lines import PartLines

_FINDINGS = 3
"""Findings that are in sight on a terminal of 24 lines; on others there are a third of the lines more or fewer."""


class SeekingScreen(ComparingScreen):
    """What the overview does with its findings: a line in their place until they are there, and the doors."""

    def findings_body(self) -> Iterable[Widget]:
        self.looking = PartLines(id="looking")
        self.findings = FindingsTable(id="findings")
        yield from (self.looking, self.findings)

    def findings_changed(self) -> None:
        """They need other room than before."""

    def seek_findings(self, is_asked_for: bool = False) -> None:
        """Once everything is loaded and the screen's own numbers are there."""
        job = self.job
        if job is not None and not self.explorer.loading_now and self._asked == self._shown is not None:
            self.findings.seek(job, self.selection, is_asked_for)

    @on(FindingsTable.Changed)
    def _findings_changed(self, message: FindingsTable.Changed) -> None:
        message.stop()
        words = self.findings.status
        self.looking.show_lines([[("Findings  ", "bold"), (words, "")]] if words else [])
        self.findings_changed()

    def findings_lines(self) -> int:
        """How many lines the findings, or the line in their place, take."""
        if not self.findings.display:
            return int(bool(self.findings.status))
        most = max(1, _FINDINGS + (self.app.size.height - 24) // 3)
        return 1 + max(1, min(self.findings.row_count, most))

    async def go_to_finding(self) -> None:
        """The screen that shows the finding under the cursor."""
        if self.findings.current is not None:
            await show_finding(self.explorer, self.findings.current)
        else:
            self.action_finding()

    def action_finding(self) -> None:
        """What there is to say about the finding under the cursor; looks for findings where that waits for the user."""
        from nsystui.ui.screens.finding import FindingScreen, NotCheckedScreen

        found, place = self.findings.found, self.findings.place
        if self.findings.waits:
            self.seek_findings(is_asked_for=True)
        elif found is None:
            self.say(f"findings: {self.findings.status or 'they come when everything is loaded'}")
        elif place is not None:
            self.lay_over(FindingScreen(found, place))
        elif found.not_checked and self.findings.is_last:
            self.lay_over(NotCheckedScreen(found))
        else:
            self.say("no rule found anything wrong" + ("" if found.not_checked else ", and all of them could judge"))
