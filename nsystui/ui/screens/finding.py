"""One finding: what it is, what to try and why, and its evidence as a table. And what could not be judged."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from textual.widget import Widget

from nsystui.base.answer import Answer, TableAnswer
from nsystui.base.selection import Selection
from nsystui.questions.job import Job
from nsystui.ui import keys
from nsystui.ui.finding_lines import finding_lines, not_checked_answer
from nsystui.ui.screens.going import show_finding
from nsystui.ui.screens.table_pane import TablePane
from nsystui.ui.screens.words_pane import WordsPane
from nsystui.ui.widgets.part_lines import PartLines

if TYPE_CHECKING:
    from nsystui.questions.triage.finding import Finding
    from nsystui.questions.triage.run import Triage

_NO_EVIDENCE = TableAnswer("finding", (), ())


class FindingScreen(TablePane):
    """A finding of a triage by its place; ``n`` and ``p`` go through all. Its table is the evidence."""

    MODE_KEY = "1"
    PLACES = ("finding", "table", "everywhere")
    BINDINGS = keys.bindings("finding", "table", "everywhere")

    DEFAULT_CSS = """
    FindingScreen #finding { margin-bottom: 1; }
    """

    def __init__(self, found: Triage, place: int) -> None:
        super().__init__("1 Overview", "finding")
        self.found = found
        self.place = place

    @property
    def finding(self) -> Finding:
        return self.found.findings[self.place]

    def body(self) -> Iterable[Widget]:
        self.words = PartLines(id="finding")
        yield self.words
        yield from super().body()

    def parameters(self) -> tuple[Hashable, ...]:
        return (self.place,)

    def ask(self, job: Job, selection: Selection) -> Answer:
        return self.finding.evidence or _NO_EVIDENCE

    def show(self, result: object, same_place: bool) -> None:
        self._show_words()
        super().show(result, same_place)

    def _show_words(self) -> None:
        self.words.show_lines(finding_lines(self.finding, self.app.size.width))

    def on_resize(self) -> None:
        self._show_words()

    def show_count(self) -> None:
        self.show_title(right=f"{self.place + 1} of {len(self.found.findings)} findings")

    def empty_text(self, answer: Answer) -> str:
        return "there is no table behind this one: the words above are all"

    def action_next_finding(self, step: int) -> None:
        place = self.place + step
        if 0 <= place < len(self.found.findings):
            self.place = place
            self.job_changed()
        else:
            self.say("this is the " + ("last" if step > 0 else "first") + " finding")

    def free_keys(self) -> frozenset[str]:
        """Where there is no row to open there is a screen to go to all the same."""
        return frozenset({"enter"})

    def action_show_finding(self) -> None:
        self.leave()
        self.app.call_later(show_finding, self.explorer, self.finding)


class NotCheckedScreen(WordsPane):
    """The rules that could not judge; the panel says all of what one needs."""

    def __init__(self, found: Triage) -> None:
        super().__init__("1 Overview", "not checked")
        self.found = found

    def ask(self, job: Job, selection: Selection) -> Answer:
        return not_checked_answer(self.found.not_checked)

    def counted(self) -> str:
        return "rules"

    def words(self) -> str:
        return f"{self.values().get('rule')}: {self.values().get('why')}"

    def open_row(self) -> None:
        self.say("there is nothing behind this: the lines below say what it needs")
