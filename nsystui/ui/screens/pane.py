"""What every screen can do: go to another one, go back, and change the one selection by hand."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual import on

from nsystui.ui.ascii import key_name
from nsystui.ui.describe import spans
from nsystui.ui.screens.exporting import ExportingScreen, checker
from nsystui.ui.widgets.prompt import LinePrompt

if TYPE_CHECKING:
    from textual.screen import Screen

    from nsystui.base.selection import Selection, Window
    from nsystui.questions.question import Question


class Pane(ExportingScreen):
    """Base of all screens. A drilled screen lies over its mode's screen; Esc closes it."""

    # -- going places ---------------------------------------------------------------------------------------------

    @property
    def is_drilled(self) -> bool:
        """Whether this screen lies over another one of its mode."""
        return len(self.app.screen_stack) > 1

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.is_mounted and not self.is_covered  # what it would act on is not there before

    async def action_mode(self, name: str) -> None:
        await self.app.switch_mode(name)

    async def action_timeline(self) -> None:
        """The timeline of the selection; it goes back to here."""
        if self.app.current_mode == "timeline":
            self.say("this is the timeline")
            return
        self.explorer.remember_way()
        await self.app.switch_mode("timeline")

    def action_back(self) -> None:
        if self.is_drilled:
            self.leave()
        elif not self.explorer.undo_selection():
            if self.explorer.stop_loading():
                self.say("stopping…")
            else:
                self.say("nothing to go back to: q quits")

    def action_resume(self) -> None:
        if not self.explorer.resume_loading():
            self.say("nothing is left to load")

    def action_quit(self) -> None:
        self.explorer.stop_loading()
        self.app.exit(return_code=0)

    def action_help(self) -> None:
        from nsystui.ui.screens.help import HelpScreen

        self.lay_over(HelpScreen(self.places(), partial(key_name, app=self.app)))

    # -- recipes --------------------------------------------------------------------------------------------------

    def action_recipes(self) -> None:
        """The palette."""
        from nsystui.ui.palette import RecipePalette

        if self._needs_job():
            self.lay_over(RecipePalette())

    def open_question(self, question: Question) -> None:
        """The table of a question, or its map, over this screen."""
        from nsystui.questions.question import COMPARISON

        if question.home == COMPARISON:
            self._ask_what_to_compare()
            return
        from nsystui.ui.screens.recipe import RecipeMapScreen, RecipeScreen

        self.lay_over(RecipeScreen(question) if question.map is None else RecipeMapScreen(question))

    def _ask_what_to_compare(self) -> None:
        """Another job, or groups of ranks where there are several."""
        groups = ", or ranks A -- B" if self.job is not None and len(self.job.ranks) > 1 else ""
        self.prompt.open("diff", f"compare with a path{groups}", "", checker(self._comparison))

    def _comparison(self, text: str) -> Screen[None]:
        """What a line of the palette's ``diff`` asks for; raises NsystuiError."""
        from nsystui.ui.screens.comparing import comparison_of_groups, is_of_ranks
        from nsystui.ui.screens.other_job import OtherJobScreen, files_of_other

        assert self.job is not None
        if is_of_ranks(text):
            return comparison_of_groups(self.job, self.selection, text)
        return OtherJobScreen(self.job, self.explorer.source, files_of_other(text))

    @on(LinePrompt.Submitted)
    def _to_compare_given(self, message: LinePrompt.Submitted) -> None:
        if message.purpose == "diff":
            message.stop()
            self.lay_over(self._comparison(message.value))

    # -- the selection by hand ------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        name = self.selection.name
        self.prompt.open("filter", "find", name.text if name else "", checker(self._filtered))

    def action_ranks(self) -> None:
        if self._needs_job():
            chosen = self.selection.tasks
            ranks = () if chosen is None or self.job is None else [r.rank for r in self.job.ranks if r.task in chosen]
            self.prompt.open("ranks", "ranks", spans(ranks), checker(self._with_ranks))

    def action_devices(self) -> None:
        self.prompt.open("devices", "devices", spans(self.selection.devices or ()), checker(self._with_devices))

    def action_window(self) -> None:
        if self._needs_job():
            window = self.selection.window
            self.prompt.open(
                "window", "time", f"{window.start}:{window.end}" if window else "", checker(self._with_window)
            )

    def _needs_job(self) -> bool:
        if self.job is None:
            self.say("nothing is loaded yet")
        return self.job is not None

    def _filtered(self, text: str) -> Selection:
        return self.selection.with_name(text)

    def _with_ranks(self, text: str) -> Selection:
        from nsystui.questions.typed import numbers

        assert self.job is not None
        return self.selection.with_tasks(self.job.tasks_of_ranks(numbers(text, "ranks")) if text.strip() else None)

    def _with_devices(self, text: str) -> Selection:
        from dataclasses import replace

        from nsystui.questions.typed import numbers

        return replace(self.selection, devices=numbers(text, "devices") if text.strip() else None)

    def _with_window(self, text: str) -> Selection:
        from nsystui.questions.typed import window

        assert self.job is not None
        return self.selection.with_window(window(text, self.job.extent()) if text.strip() else None)

    @on(LinePrompt.Submitted)
    def _prompt_submitted(self, message: LinePrompt.Submitted) -> None:
        make = {
            "filter": self._filtered,
            "ranks": self._with_ranks,
            "devices": self._with_devices,
            "window": self._with_window,
        }.get(message.purpose)
        if make is not None:
            message.stop()
            self.explorer.select(make(message.value))

    def select_window(self, window: Window) -> None:
        """Looks at this span of time on every screen."""
        self.explorer.select(self.selection.with_window(window))
