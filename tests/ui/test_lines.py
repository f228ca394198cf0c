"""The lines around a screen and the prompt, in Textual's test driver."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from jobs import WidgetApp, press, resize, rested, shown
from textual.widgets import Input

from nsystui.base.errors import UsageError
from nsystui.ui.widgets import frame
from nsystui.ui.widgets.frame import (
    Choice,
    ChoiceLine,
    KeyLine,
    SelectionLine,
    TextLine,
    TitleLine,
    progress_bar,
)
from nsystui.ui.widgets.panels import DetailPane
from nsystui.ui.widgets.prompt import LinePrompt
from nsystui.ui.widgets.window_table import WindowTable

TABS = (("1", "Overview", "Ovw"), ("2", "Kernels", "Krn"), ("3", "NCCL", "NCCL"))
KEYS = (("⏎", "open"), ("/", "find"), ("t", "time window"), ("?", "help"), ("q", "quit"))


class LinesApp(WidgetApp):
    def __init__(self) -> None:
        self.title_line, self.selection_line = TitleLine(TABS, "2"), SelectionLine()
        self.choices, self.key_line, self.prompt = ChoiceLine(), KeyLine(KEYS), LinePrompt()
        self.answers: list[object] = []
        above = (self.title_line, self.selection_line, self.choices)
        super().__init__(*above, WindowTable(), self.prompt, self.key_line)


def line(widget: TextLine) -> str:
    return widget.render_line(0).text.rstrip()


async def test_a_narrower_title_gives_up_the_job_the_length_of_names_and_then_the_status():
    async with shown(LinesApp()) as (app, pilot):
        app.title_line.set_status("● loaded")
        app.title_line.update("demo-job")
        for width, left, right in (
            (80, "nsystui  demo-job  1 Overview│2 Kernels│3 NCCL", "● loaded"),
            (56, "nsystui  1 Overview│2 Kernels│3 NCCL", "● loaded"),
            (40, "nsystui  1 Ovw│2 Krn│3 NCCL", "● loaded"),
            (30, "1 Ovw│2 Krn│3 NCCL", "● loaded"),
            (20, "1 Ovw│2 Krn│3 NCCL", ""),
            (6, "1│2│3", ""),
        ):
            assert line((await resize(pilot, width, 24)).title_line) == (left + right.rjust(width - len(left))).rstrip()
        (await resize(pilot, 100, 24)).title_line.update("f[bold]\x1b]0;x\x07")
        assert "f[bold]␛]0;x␇" in line(app.title_line)
        app.selection_line.update("all time")
        app.selection_line.show_count("9,600 of 9,600 instances")
        assert line(app.selection_line) == "all time" + "9,600 of 9,600 instances".rjust(92)


async def test_choices_show_as_many_options_as_fit_and_keep_what_is_chosen():
    async with shown(LinesApp(), (34, 24)) as (app, pilot):
        app.choices.show_choices((), (Choice("by", ("time", "rank", "device", "stream", "grid"), 3, int),))
        await pilot.pause()
        assert line(app.choices).split() == ["by", "time", "rank", "[stream]", "grid", "…"], "the next ones first"
        choices = (Choice("view", ("kernels", "memory", "API"), 0, int), Choice("by", ("name", "rank"), 0, int))
        for width in (80, 48, 44):
            await pilot.resize_terminal(width, 24)
            app.choices.show_choices(("sgemm",), choices)
            await pilot.pause()
            assert [part for part in line(app.choices).split() if part.startswith("[")] == ["[kernels]", "[name]"]
            assert len(line(app.choices)) <= width


async def test_what_says_nothing_new_is_not_drawn_again(monkeypatch):
    async with shown(LinesApp()) as (app, _):
        app.selection_line.update("ranks 0-63")
        drawn = Mock()
        monkeypatch.setattr(app.selection_line, "refresh", drawn)
        for text, count in (("ranks 0-63", 0), ("rank 37", 1)):
            app.selection_line.update(text)
            assert drawn.call_count == count


async def test_progress_is_shown_twice_a_second_at_most(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(frame, "time", SimpleNamespace(monotonic=lambda: now[0]))
    async with shown(LinesApp()) as (app, _):
        status = app.title_line
        for seconds, text, drawn in ((1, "1 %", "1 %"), (0.1, "2 %", "1 %"), (0.5, "3 %", "3 %"), (0, "", "")):
            now[0] += seconds  # 0.1 s is too soon, and the end is shown at once
            status.set_status(text)
            assert line(status).removeprefix("nsystui  1 Overview│2 Kernels│3 NCCL").strip() == drawn
            assert status.status == text


async def test_the_last_progress_is_shown_even_if_nothing_follows_and_a_notice_for_a_while(monkeypatch):
    monkeypatch.setattr(frame, "UPDATE_INTERVAL", 0.05)
    async with shown(LinesApp()) as (app, pilot):
        app.title_line.set_status("1 %")
        app.title_line.set_status("2 %")
        app.key_line.say("c: this row has no API call", seconds=0.05)
        assert line(app.key_line) == "c: this row has no API call"
        assert line((await rested(pilot)).title_line).endswith("2 %") and line(app.key_line).startswith("⏎ open")


@pytest.mark.campaign
async def test_progress_leaves_words_away_before_it_cuts_the_bar_and_keys_are_cut_to_whole_ones(monkeypatch):
    monkeypatch.setattr(frame, "UPDATE_INTERVAL", 0.0)
    async with shown(LinesApp()) as (app, pilot):
        app.title_line.set_status("loading 0 of 1  ▓░░░░░░░░░ 10 %  344,062 rows")
        for width, status, keys in (
            (80, "loading 0 of 1  ▓░░░░░░░░░ 10 %  344,062 rows", "⏎ open  / find  t time window  ? help  q quit"),
            (54, "loading 0 of 1  ▓░░░░░░░░░ 10 %", "⏎ open  / find  t time window  ? help  q quit"),
            (44, "▓░░░░░░░░░ 10 %", "⏎ open  / find  t time window  ? help"),
            (34, "loading 10 %", "⏎ open  / find  ? help"),
            (8, "1│2│3", "? help"),
        ):
            await resize(pilot, width, 24)
            assert line(app.title_line).split("NCCL")[-1].strip() == status
            assert line(app.key_line) == keys


def test_a_full_bar_means_done():
    assert progress_bar(0.71) == "▓▓▓▓▓▓▓░░░ 71 %" and progress_bar(0.999) == "▓▓▓▓▓▓▓▓▓░ 99 %"
    assert [progress_bar(value, 2) for value in (-1, 2)] == ["░░ 0 %", "▓▓ 100 %"]


def time_of(text):
    if text == "x":
        raise UsageError("not a time: [x]")
    return int(text)


async def test_a_prompt_takes_a_text_that_will_do_or_is_cancelled():
    async with shown(LinesApp()) as (app, pilot):
        table, height = app.focused, app.query_one(WindowTable).size.height
        assert table is not None and not app.prompt.is_open
        await pilot.press("tab", "tab")
        assert not isinstance(app.focused, Input), "a closed prompt takes no focus and no room"
        table.focus()
        (await rested(pilot)).prompt.ask("/", "nvj", str.upper, app.answers.append)
        await pilot.pause()
        assert (await press(pilot, "e", "t")).prompt.input.value == "nvjet" and app.query_one(
            WindowTable
        ).size.height == height == 21
        assert app.query_one(Input).cursor_blink is False
        assert (await press(pilot, "enter")).answers == ["NVJET"] and not app.prompt.is_open and app.focused is table

        app.prompt.ask("go to", "", time_of, app.answers.append)
        await pilot.pause()
        assert (await press(pilot, "x", "enter")).prompt.is_open and app.prompt.has_class("-failed")
        assert "not a time: [x]" in str(app.prompt.query_one(".line-prompt--message").render())
        assert not (await press(pilot, "backspace", "1")).prompt.has_class("-failed")
        assert (await press(pilot, "enter")).answers == ["NVJET", 1]

        app.prompt.ask("export to", "kernels.csv", str, app.answers.append)
        await pilot.pause()
        assert (await press(pilot, "escape")).answers == ["NVJET", 1] and app.focused is table


async def test_details_go_on_below_while_there_is_room():
    facts, pane = [f"fact {number} of the row" for number in range(8)], DetailPane()

    async with shown(WidgetApp(pane), (60, 12)) as (_, pilot):
        pane.show([["name"], facts], "⏎ open")
        await pilot.pause()
        lines = [line.strip() for line in pane.texts if line.strip()]
        assert lines[0] == "name" and lines[-1] == "⏎ open"
        assert all(any(fact in line for line in lines) for fact in facts) and max(map(len, pane.texts)) <= 60
