"""Screens behind the overview: nsys's diagnostics, the contents of the exports, the job's output, and the files."""

from nsystui.base.answer import Answer, Record, TableAnswer
from nsystui.base.selection import Selection, Window
from nsystui.questions.capture.job_output import output_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.question import view_of_table
from nsystui.questions.queries.reports import contents_table, diagnostics_table
from nsystui.ui.pictures.overview_lines import files_answer
from nsystui.ui.screens.table import TableScreen, TextTableScreen


class DiagnosticsScreen(TextTableScreen):
    """nsys's messages about the capture, each text once; the panel shows the full text."""

    COUNTED = "texts"
    CLOSED = "a diagnostic cannot be opened: the line below has its full text"
    CRUMBS = ("capture log",)

    def ask(self, job: OpenJob, selection: Selection) -> TableAnswer:
        return diagnostics_table(job.session, selection)


class ContentsScreen(TableScreen):
    """The rows of each kind in the exports, and how to record missing kinds."""

    COUNTED = "tables"
    MODE_KEY = "1"
    CRUMBS = ("what is recorded",)

    def ask(self, job: OpenJob, selection: Selection) -> TableAnswer:
        return contents_table(job.session)

    def row_category(self, values: Record) -> str | None:
        return None if values["rows"] else "idle"

    def open_row(self) -> None:
        table = str(self.values().get("table"))
        if not self.values().get("rows"):
            self.say(f"not recorded: {self.values().get('record')}")
        elif table == "diagnostics":
            self.lay_over(DiagnosticsScreen())
        elif (view := view_of_table(table)) is not None:
            self.app.call_later(self.go_to_view, view.name)
        else:
            self.say("no screen shows these rows yet")


class JobOutputScreen(TextTableScreen):
    """The lines that the application printed, with their times and steps if they contain them."""

    COUNTED = "lines"
    CRUMBS = ("what the application printed",)

    def ask(self, job: OpenJob, selection: Selection) -> TableAnswer:
        return output_table(job)

    def row_window(self) -> Window | None:
        """Return the nanosecond at which the line was printed, if it is known."""
        time = self.values().get("time")
        return Window(time, time + 1) if isinstance(time, int) else None

    def open_row(self) -> None:
        if self.row_window() is None:
            self.say("this line has no time")
        else:
            self.app.call_later(self.action_timeline)


class FilesScreen(TextTableScreen):
    """All files, with their metadata and progress, or the reason why they are left out."""

    COUNTED = "files"
    TEXT = "{file}: {state}"
    CLOSED = "r selects ranks; the line below shows how much of this file is read"
    CRUMBS = ("files",)

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        return files_answer(self.explorer.files.values())


OPENED = {
    "contents": ContentsScreen, "diagnostics": DiagnosticsScreen, "files": FilesScreen, "output": JobOutputScreen
}  # fmt: skip
"""Screens by their names for `screen_of`."""
