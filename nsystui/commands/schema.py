"""``nsystui schema``: the form of each answer in JSON, for programs."""

from __future__ import annotations

import argparse
import json

from nsystui.base.errors import UsageError
from nsystui.questions.question import Question

DESCRIPTION = """The JSON Schema of what a command writes with --format json: its keys, their types and units.
A key ends in the unit of its values, where they have one: total_ns. It needs no export. Without a command: the
schemas of all questions, by their names. The version at the end of `$id` grows when a key goes or changes its meaning;
keys may be added. In version 1 keys had no units: total."""
EXAMPLES = """  nsystui schema kernels
  nsystui schema kernels --by rank,family
  nsystui schema stats cuda_gpu_kern_sum
  nsystui schema > schemas.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND", help="a command with its options, but without files"
    )


def run(arguments: argparse.Namespace) -> int:
    from nsystui.output.stdout import print_lines
    from nsystui.questions.catalogue import questions
    from nsystui.questions.question import COMPARISON
    from nsystui.questions.schemas import empty_job, schema_of

    with empty_job() as job:
        if arguments.words:
            found = _question(arguments.words)
            schema = schema_of(job, found, _values(found, arguments.words[len(found.family.split()) + 1 :]))
        else:
            alone = (one for one in questions() if one.home != COMPARISON)
            schema = {f"{one.family} {one.name}".strip(): schema_of(job, one, one.default_values()) for one in alone}
    print_lines(json.dumps(schema, indent=1).splitlines())
    return 0


def _question(words: list[str]) -> Question:
    """The question that the words begin with. Raises UsageError where there is none."""
    from nsystui.questions.catalogue import question_named, questions

    families = {question.family for question in questions()} - {""}
    family = words[0] if words[0] in families else ""
    name = words[1] if family and len(words) > 1 else words[0]
    try:
        return question_named(name, family)
    except KeyError:
        raise UsageError(f"schema: no question is called {name!r}: `nsystui schema` has them all") from None


def _values(question: Question, words: list[str]) -> dict[str, object]:
    from nsystui.commands.question import add_options

    parser = argparse.ArgumentParser(prog=f"nsystui schema {question.name}")
    add_options(parser, question.options)
    return vars(parser.parse_args(words))
