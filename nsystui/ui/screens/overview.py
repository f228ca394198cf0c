"""1 Overview: the job, where its GPU time went, findings, ranks, and the longest kernels."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from textual import events, on
from textual.containers import Container
from textual.widget import Widget

from nsystui.base.answer import Answer, Record, TableAnswer, iter_rows
from nsystui.base.errors import ExportError, reason_of
from nsystui.base.selection import Selection
from nsystui.questions.queries.question import question_named, view_of_table
from nsystui.ui.loading import KeptOverview
from nsystui.ui.pictures import overview_lines as words
from nsystui.ui.screens import screen_of
from nsystui.ui.screens.findings import NOT_CHECKED, FindingScreen, FindingsTable, NotCheckedScreen, findings_answer
from nsystui.ui.screens.rank_comparison import ComparableRanksScreen
from nsystui.ui.screens.table import TablesScreen
from nsystui.ui.widgets.panels import PartLine, PartLines
from nsystui.ui.widgets.repainting import in_background
from nsystui.ui.widgets.window_table import RowSelected, SortRequested, WindowTable

if TYPE_CHECKING:
    from nsystui.base.drawing import Drawing
    from nsystui.questions.job.job import OpenJob
    from nsystui.ui.pictures.overview import IdlePicture, OverviewPicture


_LOW = 20
"""The minimum terminal height for the bar and the causes."""

_ROOMY = 30
"""The minimum terminal height for a second line of facts."""

_TALL = 34
_STRIP_LINES = 3  # if the terminal has at least ``_TALL`` lines

_WIDE = 118
_FEW_RANKS = 3
"""On a terminal of ``_WIDE`` columns, a table of more ranks may be next to the kernels."""

_FINDINGS_LABEL = "Findings  "

_FINDINGS_LINES = 3  # on 24 lines; one more or fewer for every three lines
_FRAME = 3
"""Lines of the title, the selection and the keys."""

_ABOVE_ROWS = 2
"""Lines of a table's title and headings."""

_KERNEL_LINES = 7
_MIN_KERNEL_LINES = 4
"""The minimum lines of the kernels, without and with findings, for any number of ranks."""

_MIN_REMARKS = 3
_MAX_REMARKS = 8
"""The minimum lines of remarks, even if the tables are full, and the maximum."""


class OverviewScreen(TablesScreen, ComparableRanksScreen):
    """The first screen, painted before anything heavy is imported.

    It has three tables: the findings, computed last and in the background; the ranks; and the kernels, or the recorded
    events if there is no GPU work. Until a report is ready, the tables show the files and a sample of the kernels.
    ``e`` and ``y`` use the table with the focus.
    """

    SCREEN = "overview"
    MODE_KEY = "1"
    PLACES = ("overview", "table", "everywhere")
    AUTO_FOCUS = "#ranks"
    NO_TIME = "these rows are sums over time: T selects a time by hand, 4 shows when the GPUs were busy"

    picture: OverviewPicture | None = None
    idle: IdlePicture | None = None
    _idle_asked: object = None
    _idle_shown: object = None
    _seen: Selection | None = None
    _bins = 0
    _kept: KeptOverview | None = None  # while it is shown
    _title_and_head: tuple[str, Sequence[PartLine]] = ("", ())
    _is_saved = False
    _is_remembered = False  # the first answers of commands
    _sorted: Mapping[str, tuple[str, bool]] = {}  # by answer name

    def body(self) -> Iterable[Widget]:
        self.head = PartLines(id="head")
        self.ranks = WindowTable(id="ranks", elastic="host")
        odd = dict.fromkeys(("rank", "late", "findings"), "warning")
        self.ranks.cell_styles = lambda values: odd if values.get("findings") else {}
        self.kernels = WindowTable(id="kernels", row_style=_category, bar_category="compute")
        self.looking = PartLines(id="looking")
        self.findings = FindingsTable(id="findings")
        yield from (self.head, self.looking, self.findings, Container(self.ranks, self.kernels, id="tables"))

    def show_waiting(self) -> None:
        """Show the kept overview, else the files and a first kernel table."""
        kept, preview = self.explorer.kept, self.explorer.seen
        if kept is not None and self.selection == Selection():
            self.show_title(about=kept.title)
            self.head.show_lines(kept.lines if kept.terminal == self._terminal else ())
            if self._kept is None:
                self._kept, self._seen, self.findings.display = kept, self.selection, True
                self.findings.set_answer(kept.findings)
                self._put(self.ranks, kept.ranks, keep_cursor=False)
                self._show_kernels(kept.kernels, kept.names, keep_cursor=False)
            self._show_looking()
            return
        self.show_title(about="opening…")
        self.head.show_lines([])
        self.ranks.empty_text = "opening…"
        self._put(self.ranks, words.files_answer(self.explorer.files.values()), keep_cursor=True)
        self.ranks.entitle("Files")
        if preview.answer is None:
            self.kernels.empty_text = "exact numbers follow as soon as the kernels are read"
            self.kernels.entitle("Kernels")
            self.kernels.refresh_rows()
        elif self.kernels.answer is not preview.answer:
            self._show_kernels(preview.answer, preview.names, keep_cursor=False)
            if not preview.is_exact:
                self.kernels.entitle("Kernels", " ".join(preview.answer.notes))
        self._share_room()

    @property
    def _terminal(self) -> tuple[int, int, bool]:
        """The terminal's columns and lines, and whether it has no colours: the head depends on them."""
        return (*self.app.size, self.app.no_color)

    def parameters(self) -> tuple[Hashable, ...]:
        self._bins = words.strip_width(self.app.size.width)
        return (self._bins,)

    def ask(self, job: OpenJob, selection: Selection) -> OverviewPicture:
        """Compute everything except findings and idle time."""
        from nsystui.ui.pictures.overview import overview_picture

        return overview_picture(job, selection, self._bins)

    def job_changed(self) -> None:
        if self.selection != Selection():
            self._kept = None
        super().job_changed()
        if self.picture is not None and self._kept is None:
            self._show_head(self.picture)  # a file may have failed
        self.seek_findings()

    def show(self, picture: OverviewPicture, same_place: bool) -> None:
        same_place = self._seen == self.selection  # also if only the width of the strip has changed
        self.picture, self._seen = picture, self.selection
        self._show_ranks(same_place)
        if picture.spent is None:
            is_all = self.selection.tasks is None and self.selection.devices is None
            reason = "No GPU work was recorded" if is_all else "No GPU work in the selection"
            self.kernels.entitle(f"{reason}; there is:")
            self.kernels.empty_text = "no other events were recorded"
            self._put(self.kernels, words.held_answer(picture.held), same_place)
        else:
            self._show_kernels(picture.kernels, self.job.smart_names() if self.job is not None else {}, same_place)
        self.seek_findings()
        self._seek_idle()

    def _show_kernels(self, answer: Answer, names: Mapping[str, str], keep_cursor: bool) -> None:
        count, total = len(answer), answer.total or 0
        order = "" if answer.name in self._sorted else "by total time"
        self.kernels.entitle("Kernels", order if count == total else f"{order}, of {total:,} in all".lstrip(", "))
        self.kernels.empty_text = "\n".join(answer.notes) or "no kernel is in the selection: Esc goes back"
        self.kernels.names = names
        self._put(self.kernels, answer, keep_cursor)

    def _show_head(self, picture: OverviewPicture) -> None:
        width, height = self.app.size
        so_far = self.explorer.loading_now or not self.question.is_settled
        about, facts = words.title_and_facts(picture.facts, width, so_far, 2 if height >= _ROOMY else 1)
        rows = _STRIP_LINES if height >= _TALL else int(height >= _LOW)
        idle = self.idle if self._is_idle_known else None
        lines = [*facts, *words.time_lines(picture, idle, self.findings.triage, width, rows, not self.app.no_color)]
        room = height - _FRAME - len(lines) - self.findings_lines() - len(self._summary())
        free_lines = room - (len(picture.tasks) + _ABOVE_ROWS) - max(len(picture.kernels) + _ABOVE_ROWS, _KERNEL_LINES)
        # Room for a title, headings and two ranks on the smallest terminal.
        min_remarks = min(_MIN_REMARKS, room - (self._kernel_lines() + _ABOVE_ROWS + min(len(picture.tasks), 2)))
        remarks = words.remark_lines(
            picture, self.explorer.files.values(), width, min(max(free_lines, min_remarks), _MAX_REMARKS)
        )
        self._title_and_head = about, [*lines, *remarks]
        self.show_title(about=about)
        self.head.show_lines(self._title_and_head[1])

    def _put(self, table: WindowTable, answer: Answer, keep_cursor: bool) -> None:
        order = self._sorted.get(answer.name)
        if table is self.ranks and answer.name != "files":
            has_findings = any(column.key == "findings" for column in answer.columns)
            is_by_findings = has_findings and len(answer) > self._many_ranks and order is None
            table.entitle("Ranks", "worst first" if is_by_findings else "")
            table.elastic = "findings" if has_findings else "host"
        table.set_answer(answer if order is None else answer.sorted_by(*order), keep_cursor)
        natural = ("total", True) if answer.name == "kernels" else (None, True)
        table.mark_sorted(*(order or natural))

    def seek_findings(self, is_asked_for: bool = False) -> None:
        """Look for findings once everything is loaded and this screen's numbers are shown."""
        job = self.job
        is_shown = self.question.is_settled and not self.question.is_awaited
        if job is not None and not self.explorer.loading_now and is_shown:
            self.findings.seek(job, self.selection, is_asked_for)

    @on(FindingsTable.Changed)
    def _findings_changed(self) -> None:
        self.explorer.triage = self.findings.triage
        self.findings.display = self.findings.triage is not None or self._kept is not None
        self._show_ranks()
        self._show_looking()

    def _show_looking(self) -> None:
        lines = self._summary()
        status = "" if self.findings.display else self.findings.status
        self.looking.show_lines([[(_FINDINGS_LABEL, "bold"), (status, "")]] if status else lines)
        self._share_room()
        if not self.findings.display:
            if self.focused in (None, self.findings):
                self.set_focus(self.ranks)  # a hidden table takes no keys
        elif self.findings.number is not None and self.focused is self.ranks and not self.ranks.cursor_row:
            self.findings.focus()  # users read the cause first, unless they have moved already

    def _show_ranks(self, keep_cursor: bool = True) -> None:
        """Show the head, and the ranks with their findings.

        The kept overview stays until all is computed again; then it is replaced and saved.
        """
        job, picture, triage = self.job, self.picture, self.findings.triage
        if job is None or picture is None:
            return
        is_complete = self._is_idle_known and not self.findings.is_looking
        if self._kept is not None and not is_complete:
            return
        self._kept, self.findings.display = None, triage is not None
        paces = self.idle.paces if self.idle is not None and self._is_idle_known else {}
        findings = triage.findings if triage is not None else ()
        ranks = words.with_findings(words.with_paces(picture.tasks, paces), findings, self._many_ranks)
        self._show_head(picture)
        self._put(self.ranks, ranks, keep_cursor)
        self._share_room()
        if is_complete:
            self._show_looking()
            self.explorer.update_status()
            self.explorer.take_keys()
            self._keep(job, picture, ranks)

    @in_background("keep", exclusive=False)
    async def _keep(self, job: OpenJob, picture: OverviewPicture, ranks: TableAnswer) -> None:
        triage, names = self.findings.triage, self.kernels.names
        is_complete = self.selection == Selection() and all(state.ready for state in self.explorer.files.values())
        if triage is not None and is_complete and not self._is_saved:
            self._is_saved = True
            short = {str(cell): names[str(cell)] for row in iter_rows(picture.kernels) for cell in row if cell in names}
            answers = findings_answer(triage), ranks, picture.kernels
            kept = KeptOverview(*answers, *self._title_and_head, triage.losses, short, self._terminal)
            await to_thread(kept.save, self.explorer.source, job)
        if is_complete and not self._is_remembered and (cache := job.session.cache) is not None and job.session.exports:
            self._is_remembered = True
            from nsystui.questions.answers.remembered import remember_first_questions

            with suppress(ExportError, OSError):  # the commands compute them after a failure
                await to_thread(remember_first_questions, job, cache)

    @property
    def _many_ranks(self) -> int:
        """The number of ranks above which ranks with findings are first: some may be out of sight."""
        return words.MANY_RANKS if self.app.size.height >= _ROOMY else _FEW_RANKS

    @property
    def _is_idle_known(self) -> bool:
        return self.job is not None and self._idle_token(self.job) == self._idle_shown

    def _idle_token(self, job: OpenJob) -> object:
        return (job.version, self.selection, self.findings.waits)

    @in_background("idle")
    async def _seek_idle(self) -> None:
        """Compute the idle time after loading, with causes unless findings wait for the user."""
        job, picture = self.job, self.picture
        if job is None or picture is None or picture.spent is None or self.explorer.loading_now:
            return
        token, selection, with_causes = self._idle_token(job), self.selection, not self.findings.waits
        if token == self._idle_asked:
            return
        self._idle_asked = token

        def ask() -> IdlePicture:
            from nsystui.ui.pictures.overview import idle_picture

            return idle_picture(job, selection, with_causes)

        self.idle = None
        try:
            self.idle = await to_thread(ask)
        except Exception as error:
            self.say(f"idle time: {reason_of(error)}")
        self._idle_shown = token
        self._show_ranks()

    def action_leave_startup_out(self) -> None:
        """Select the time in which all GPUs are in their steady state."""
        idle = self.idle if self._is_idle_known else None
        if idle is None:
            self.say("the end of start-up is not known yet")
        elif idle.steady is None or not idle.budget.startup:
            self.say("there is no start-up in the selected time")
        else:
            self.select_window(idle.steady)

    def findings_lines(self) -> int:
        """Return the number of lines of the findings, or of their status."""
        if not self.findings.display:
            return int(bool(self.findings.status))
        limit = max(1, _FINDINGS_LINES + (self.app.size.height - 24) // 3)
        return 1 + max(1, min(self.findings.row_count, limit))

    def _summary(self) -> list[PartLine]:
        source, (width, height) = self.findings.triage or self._kept, self.app.size
        if source is None or not self.findings.display or height < _LOW:
            return []
        shown, answer, label = self.findings_lines() - 1, self.findings.answer, _FINDINGS_LABEL
        if answer is not None and shown < (count := len(answer)):
            count = sum(row[0] != NOT_CHECKED for row in answer.page(0, count))
            label += f"{min(shown, count)} of {count}  "
        # The head shows what blocks compute, below the bar of the GPU time.
        return words.labelled(label, source.losses, width, 2 if height >= _ROOMY else 1)

    def keeps(self, key: str) -> bool:
        """Return whether a key must wait, also Enter while kept findings are computed again."""
        return super().keeps(key) or (key == "enter" and self.focused is self.findings and self.findings.is_looking)

    def show_status(self, status: str) -> None:
        """Show the status, or that the kept overview is being computed again."""
        super().show_status("checking…" if self._kept is not None else status)

    def action_check(self) -> None:
        """Look for findings if that waits for the user."""
        if self.findings.waits:
            self.seek_findings(is_asked_for=True)
        else:
            self.say(f"findings: {self.findings.status or 'every rule was checked'}")

    def _open_finding(self) -> None:
        triage, number = self.findings.triage, self.findings.number
        if triage is None:
            self.say(f"findings: {self.findings.status or 'checked when everything is loaded'}")
        elif number is not None:
            self.lay_over(FindingScreen(triage, number))
        elif triage.not_checked and self.findings.is_last:
            self.lay_over(NotCheckedScreen(triage))
        else:
            self.say("no issues found" + ("" if triage.not_checked else ": every rule was checked"))

    def on_resize(self, event: events.Resize) -> None:
        self._show_looking()
        self.job_changed()
        self._share_room()

    def _kernel_lines(self) -> int:
        return _MIN_KERNEL_LINES if self.findings.display else _KERNEL_LINES

    def _share_room(self) -> None:
        """Give findings and ranks the lines that they need, and the kernels the others.

        On a wide terminal, ranks that would take half of the room are next to the kernels.
        """
        self.findings.styles.height = self.findings_lines()
        room = self.app.size.height - _FRAME - len(self.head.texts) - self.findings_lines() - len(self._summary())
        is_long = self.ranks.row_count > max(_FEW_RANKS, room // 2)
        is_beside = self.app.size.width >= _WIDE and is_long and self.picture is not None
        self.set_class(is_beside, "-beside")
        if is_beside:
            self.ranks.styles.height = "1fr"
            return
        self.ranks.styles.height = max(
            _ABOVE_ROWS + 1, min(self.ranks.row_count + _ABOVE_ROWS, room - self._kernel_lines())
        )

    @property
    def table(self) -> WindowTable:  # type: ignore[override]
        """The table that has the focus."""
        return next((table for table in self._tables() if table is self.focused), self.ranks)

    def _tables(self) -> list[WindowTable]:
        return [*([self.findings] if self.findings.display else []), self.ranks, self.kernels]

    def answer_to_export(self) -> Answer | None:
        """Return the table with the focus; findings with all columns."""
        if self.table is self.findings and self.findings.triage is not None:
            from nsystui.questions.triage.run import triage_table

            return triage_table(self.findings.triage)
        return super().answer_to_export()

    def drawing_to_export(self) -> Callable[[], Drawing | None] | None:
        return self.drawing_of(question_named("budget"))

    def action_other_table(self) -> None:
        """Move the focus to the next table."""
        tables = self._tables()
        tables[(tables.index(self.table) + 1) % len(tables)].focus()

    @on(SortRequested)
    def _sort_requested(self, message: SortRequested) -> None:
        if (answer := message.table.answer) is not None:
            self._sorted = {**self._sorted, answer.name: (message.key, message.descending)}
            self._put(message.table, answer, keep_cursor=False)

    @on(RowSelected)
    async def _row_selected(self, message: RowSelected) -> None:
        if self.is_awaiting:
            self.app.simulate_key("enter")
        elif self.picture is None:
            return
        elif message.table is self.findings:
            self._open_finding()
        elif message.table is self.ranks:
            rank = self.ranks.current_values.get("rank")
            if tasks := frozenset(item.task for item in self.picture.ranks if item.rank == rank):
                await self.explorer.go("kernels", self.selection.with_tasks(tasks))
        elif self.picture.spent is None:
            label = self.kernels.current_values.get("what")
            view = next((view_of_table(table.name) for table, _ in self.picture.held if table.what == label), None)
            if view is not None:
                await self.go_to_view(view.name)
        else:
            from nsystui.questions.kernels.summary import Names
            from nsystui.ui.screens.kernels import KernelInstancesScreen

            name = self.kernels.current_values.get("name")
            if isinstance(name, str):
                self.lay_over(KernelInstancesScreen(name, Names.FULL))

    def action_compare(self) -> None:
        has_rank = self.table is self.ranks and self.picture is not None
        self.compare_rank(self.ranks.current_values.get("rank") if has_rank else None)

    def action_behind(self, name: str) -> None:
        """Open a table behind the overview: diagnostics, files or contents."""
        self.lay_over(screen_of(name))

    def action_printed(self) -> None:
        """Open the output of the application."""
        if self.has_job():
            self.lay_over(screen_of("output"))


def _category(values: Record) -> str | None:
    from nsystui.questions.nccl.names import is_nccl_kernel

    name = values.get("name")
    return "nccl" if isinstance(name, str) and is_nccl_kernel(name) else None
