"""The catalogue of questions: a new file is a new question everywhere, and declarations are true."""

import subprocess
import sys

import pytest

from nsystui.cli import command_parser, main
from nsystui.commands import commands
from nsystui.commands.help import completed_parser
from nsystui.exports import canonical
from nsystui.questions.queries.question import (
    PALETTE,
    SCREENS,
    of_family,
    questions,
    view_named,
    view_of_table,
    views_of,
)


def test_a_question_in_a_new_file_is_a_command_with_its_options(dummy_question, demo_job, capsys):
    for words, row in ([*demo_job], f"{len(demo_job)},one"), ([demo_job[0], "--word", "two"], "1,two"):
        assert main(["dummy", *map(str, words), "--format", "csv"]) == 0
        assert capsys.readouterr().out.splitlines() == ["Ranks,Word", row]


def test_a_question_in_a_new_file_is_in_the_help(dummy_question, capsys):
    assert main(["--help"]) == 0
    assert "  dummy      how many ranks there are, and a word\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["dummy", "--help"])
    text = capsys.readouterr().out
    assert "A question of a test." in text and "--word {one,two}" in text and "--ranks LIST" in text


def test_a_question_in_a_new_file_is_completed(dummy_question):
    assert "dummy" in commands()  # which completion offers as the first word
    parser, skipped = completed_parser(["dummy"], command_parser)
    assert skipped == 1
    assert {one.dest: one.choices for one in parser._actions}["word"] == ("one", "two")


def test_the_views_of_a_question_in_a_new_file_are_on_its_screen(dummy_question, demo_job):
    assert [one.title for one in views_of("ranks")][-2:] == ["first words", "second words"]
    second = view_named("second")
    assert second.question.command(second.values) == "shown --word two"


def test_a_view_has_a_name_of_its_own_options_that_there_are_and_a_title():
    views = [view for home in SCREENS for view in views_of(home)]
    assert len({one.name for one in views}) == len(views)
    for one in views:
        assert one.title, one.name
        assert one.values.keys() <= one.question.default_values().keys(), one.name
        assert set(one.tables) <= canonical.BY_NAME.keys(), one.name


def test_the_rows_of_a_table_are_found_on_a_screen():
    assert [view_of_table(name).name for name in ("api_calls", "syncs", "nccl_calls")] == ["api", "events", "nccl"]
    assert view_of_table("diagnostics") is None


def test_what_a_question_says_of_itself_is_there():
    """Functions and tables that declarations name exist."""
    assert len({(one.family, one.name) for one in questions()}) == len(questions())
    for one in questions():
        assert {name for group in one.needs for name in group} <= canonical.BY_NAME.keys(), one.name
        assert one.help and "\n" not in one.help
        one.defaults()


def test_every_question_that_is_a_command_is_shown_by_a_screen_or_in_the_palette():
    from nsystui.ui.app import NsystuiApp

    homes = {one.name: one.rows.home for one in of_family("")}
    assert homes.pop("efficiency") == ""  # a screen that the GPU screen opens, and no mode
    assert set(homes.values()) <= {*NsystuiApp.MODES, PALETTE}
    assert list(NsystuiApp.MODES) == list(SCREENS)


def test_the_catalogue_loads_nothing_heavy():
    code = "import sys; from nsystui.questions.queries.question import questions; questions(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"dataclasses", "argparse", "sqlalchemy", "numpy", "pandas", "duckdb"}.isdisjoint(done.stdout.split())


def test_completion_knows_the_options_of_every_question():
    for one in of_family(""):
        parser, _ = completed_parser([one.name], command_parser)
        spellings = {spelling for action in parser._actions for spelling in action.option_strings}
        assert {f"--{flag}" for flag in one.takes} <= spellings
