"""``nsystui schema``: the JSON schema of each answer, for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsystui.base.errors import UsageError
from nsystui.commands import Parser, commands
from nsystui.commands.request import Request
from nsystui.questions.queries.question import COMPARISON, Question, Titled, chosen_tables

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob

DESCRIPTION = """The JSON Schema of what a command writes with --format json: its keys, their types and units.
A key ends in the unit of its values, if they have one: total_ns. It needs no export. Without a command: the
schemas of all commands that answer in JSON, by their names. The version at the end of `$id` grows when a key is
removed or changes its meaning; keys may be added. In version 1 keys had no units: total."""
EXAMPLES = """  nsystui schema kernels
  nsystui schema kernels --by rank,family
  nsystui schema triage --baseline
  nsystui schema stats cuda_gpu_kern_sum
  nsystui schema > schemas.json"""

_COMMANDS = ("triage", "info", "diff", "ncu", "nccl-log")
"""The commands that answer in JSON and are not questions."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND", help="a command with its options, but without files"
    )


def run(request: Request) -> int:
    from nsystui.commands.question import add_options
    from nsystui.output.files import print_lines
    from nsystui.questions.answers.schemas import empty_job, schema_of
    from nsystui.questions.queries.question import questions

    words = request.args["words"]
    with empty_job() as job:
        if not words:
            single = (cmd for cmd in questions() if cmd.rows.home != COMPARISON)
            schema = {f"{cmd.family} {cmd.name}".strip(): schema_of(job, cmd, cmd.default_values()) for cmd in single}
            schema |= {name: _command_schema(job, name, ()) for name in _COMMANDS}
        elif words[0] in _COMMANDS:
            schema = _command_schema(job, words[0], words[1:])
        else:
            question = _question(words)
            parser = Parser(prog=f"nsystui schema {question.name}")
            add_options(parser, question.options)
            values = vars(parser.parse_args(words[len(question.family.split()) + 1 :]))
            schema = schema_of(job, question, values)
    print_lines(json.dumps(schema, indent=1).splitlines())
    return 0


def _question(words: list[str]) -> Question:
    from nsystui.questions.queries.question import question_named, questions

    families = {question.family for question in questions()} - {""}
    family = words[0] if words[0] in families else ""
    name = words[1] if family and len(words) > 1 else words[0]
    try:
        return question_named(name, family)
    except KeyError:
        raise UsageError(f"schema: no answer in JSON is called {name!r}: `nsystui schema` has them all") from None


def _command_schema(job: OpenJob, name: str, words: Sequence[str]) -> dict[str, Any]:
    from nsystui.questions.answers.schemas import schema_of_tables

    parser = Parser(prog=f"nsystui schema {name}")
    make = {"triage": _triage, "info": _info, "diff": _diff, "ncu": _ncu, "nccl-log": _nccl_log}[name]
    return schema_of_tables(name, commands()[name], make(job, parser, words))


def _triage(job: OpenJob, parser: argparse.ArgumentParser, words: Sequence[str]) -> list[Titled]:
    from nsystui.base.selection import Selection
    from nsystui.questions.compare.side import Side
    from nsystui.questions.triage.baseline import against, against_table
    from nsystui.questions.triage.run import triage, triage_table

    parser.add_argument("--baseline", nargs="*", metavar="OTHER")
    if parser.parse_args(words).baseline is None:
        return [Titled("triage", "", triage_table(triage(job)))]
    side = Side(job, Selection(), "")
    return [Titled("triage", "", against_table(against(side, side)))]


def _info(job: OpenJob, parser: argparse.ArgumentParser, words: Sequence[str]) -> list[Titled]:
    from nsystui.commands.info import TABLES, table_of

    group = parser.add_mutually_exclusive_group()
    group.add_argument("--show", choices=TABLES, default=TABLES[0])
    group.add_argument("--job-output", action="store_const", dest="show", const="job-output")
    return [Titled("info", "", table_of(job, parser.parse_args(words).show))]


def _ncu(job: OpenJob, parser: argparse.ArgumentParser, words: Sequence[str]) -> list[Titled]:
    from nsystui.questions.trace.ncu import ncu_table

    parser.parse_args(words)
    return [Titled("ncu", "", ncu_table(job, ()))]


def _diff(job: OpenJob, parser: argparse.ArgumentParser, words: Sequence[str]) -> list[Titled]:
    from nsystui.base.answer import Unit
    from nsystui.base.selection import Selection
    from nsystui.questions.compare import TABLES, ComparisonOptions
    from nsystui.questions.compare.side import Side

    parser.add_argument("--tables", metavar="LIST")
    names = chosen_tables(parser.parse_args(words).tables, tuple(TABLES), tuple(TABLES))
    side = Side(job, Selection(), "")
    # Counts and times per rank or per step are not whole numbers.
    divided = (Unit.COUNT, Unit.DURATION, Unit.CHANGE, Unit.BYTES)
    tables = []
    for name in names:
        table = TABLES[name].make(side, side, ComparisonOptions())
        columns = (replace(column, decimals=1) if column.unit in divided else column for column in table.columns)
        tables.append(Titled(name, "", replace(table, columns=tuple(columns))))
    return tables


def _nccl_log(_: OpenJob, parser: argparse.ArgumentParser, words: Sequence[str]) -> list[Titled]:
    from nsystui.questions.nccl_log.summary import LogSummary
    from nsystui.questions.nccl_log.tables import TABLES

    parser.add_argument("--tables", metavar="LIST")
    names = chosen_tables(parser.parse_args(words).tables, tuple(TABLES), tuple(TABLES))
    return [Titled(name, "", TABLES[name].make(LogSummary())) for name in names]
