"""The help of each command, recipe and key, the schema and columns of each question, and the words of each finding.

They equal ``test_what_is_told.txt``. The columns with the highest numbers leave first.

``python -m pytest --snapshot-update tests/commands/test_what_is_told.py`` accepts new words: look at the diff.
"""

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

from recorded import ask

from nsystui.base.selection import Selection
from nsystui.base.version import __version__
from nsystui.commands.question import add_options
from nsystui.questions.answers.schemas import empty_job
from nsystui.questions.queries.question import Titled, questions
from nsystui.questions.queries.question import ask as answer_of
from nsystui.questions.triage.rules import rules
from nsystui.ui.keys import KEYS

RECORDED = Path(__file__).with_suffix(".txt")


def pieces() -> Iterator[tuple[str, str]]:
    """Yield each piece of text with the command or question that prints it."""
    whole = ask("--help").out
    yield from (("nsystui", piece) for piece in whole.split("\n\n"))
    for name in dict.fromkeys(
        line.split()[0] for line in whole.splitlines() if line.startswith("  ") and line[2:3].isalpha()
    ):
        asked = ask(f"{name} --help")
        yield from ((name, piece) for piece in asked.out.split("\n\n") if asked.status == 0)
    for recipe in questions():
        if recipe.family == "recipe":
            yield from ((recipe.name, piece) for piece in ask(f"recipe {recipe.name} --help").out.split("\n\n"))
    for name, schema in json.loads(ask("schema").out).items():
        yield from ((f"schema:{name}", f"{key}: {json.dumps(value)}") for key, value in told(schema))
    yield from ((f"key:{key.keys}", f"{key.shown}: {key.label}: {key.help}") for key in KEYS)
    for rule in rules().values():
        yield from ((f"rule:{rule.name}", f"{name}: {kind}") for name, kind in rule.finds.items())
    with empty_job() as job:
        for question in (question for question in questions() if question.name != "diff"):
            add_options(parser := ArgumentParser(), question.options)
            asked = job, Selection(), question.read(vars(parser.parse_args([])))
            alone = [] if question.tables else [Titled("", "", answer_of(question, *asked))]
            for table in question.tables(*asked) if question.tables else alone:
                columns = [f"{column.label} ({column.importance})" for column in table.answer.columns]
                yield f"columns:{question.name}", ", ".join(columns)


def told(schema: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Yield the properties of a schema with their paths, and everything that is not a property."""
    if not isinstance(schema, dict) or ("description" in schema and "properties" not in schema):
        yield place, schema
    else:
        for key, value in schema.items():
            yield from told(value, f"{place}.{key}".removeprefix("."))


def test_help_and_schemas_tell_what_is_recorded(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    tellers: dict[str, list[str]] = {}
    for teller, piece in pieces():
        tellers.setdefault(piece.replace(__version__, "VERSION"), []).append(teller)
    now = "".join(f"# {' '.join(dict.fromkeys(several))}\n{piece}\n\n" for piece, several in tellers.items())
    if request.config.getoption("update_snapshots"):
        RECORDED.write_text(now, encoding="utf-8")
    assert RECORDED.read_text(encoding="utf-8") == now
