"""The commands of the shell: the questions of the catalogue, and a module for each other command.

Only ``open`` and ``diff --screen`` import textual.
"""

import argparse
from contextlib import suppress
from typing import NoReturn

from nsystui.base.text import is_utf8, readable

_COMMANDS = {
    "open": (0, "open the screens (what `nsystui FILE…` does)", "screens"),
    "triage": (10, "what is wrong with the job: findings, worst first, and how to fix them", "triage"),
    "report": (15, "all of a job on one HTML page to send", "report"),
    "diff": (130, "two jobs, ranks, groups or spans of time, side by side", "compare"),
    "stats": (180, "reports of `nsys stats`, by their names", "recipes"),
    "recipe": (190, "recipes of `nsys recipe`, by their names: over all ranks, as tables and maps", "recipes"),
    "ncu": (900, "commands that have Nsight Compute profile selected kernels", "other-tools"),
    "export": (910, "a trace of the selection for Perfetto, Chrome or Paraver", "other-tools"),
    "pack": (920, "make the columns of a job ahead of time: it then opens without its exports", "cluster"),
    "record": (925, "the commands that record what a question needs; runs none", "cluster"),
    "info": (930, "what recorded the exports, and what they hold", "exports"),
    "schema": (935, "the keys, types and units of every answer in JSON", "agents"),
    "demo": (940, "write a demo job of several ranks and open it", "screens"),
    "help": (950, "the documentation, by topic: numbers, nccl, triage, cluster …", ""),
    "nccl-log": (960, "calls, sizes and communicators of NCCL's debug log", "nccl"),
}
"""The commands that are not questions: order and line in the help, and topic. Names of modules have ``_`` for ``-``."""

GROUPS = {
    "start here": "open triage overview info",
    "time": "kernels steps path gpu metrics budget gaps efficiency nvtx timeline events streams",
    "communication": "nccl ranks network mpi nccl-log",
    "CPU and memory": "memory gpu-memory api osrt overhead threads functions libraries calltree",
    "compare": "diff stats recipe",
    "hand over": "report export ncu schema",
    "set up": "record pack demo help",
}
"""The groups of the program's help, with their commands."""

FILE_NAMES = ("FILE", "FILE.prv", "LOG", "OTHER", "CSV", "DIR", "SCHEDULER", "-- COMMAND")
"""Placeholders of arguments that name files, whose names may have any bytes."""


class Parser(argparse.ArgumentParser):
    """A parser that refuses empty options, and bytes that no export's text has."""

    def _get_value(self, action: argparse.Action, arg_string: str) -> object:
        """Convert a word like argparse. Raises ArgumentError for bytes that no export's text has."""
        if "\0" in arg_string or not (is_utf8(arg_string) or action.metavar in FILE_NAMES or action.dest == "ranks"):
            raise argparse.ArgumentError(action, f"{arg_string!r} is not UTF-8 text, or has a NUL byte")
        return super()._get_value(action, arg_string)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> object:
        """Convert the words of an option. Keep ``--``, which argparse drops. Raises ArgumentError for an empty word."""
        if action.option_strings and "" in arg_strings:
            raise argparse.ArgumentError(action, "its value is empty: is a variable of the script unset?")
        if not action.option_strings or arg_strings != ["--"]:
            return super()._get_values(action, arg_strings)
        value = self._get_value(action, "--")
        self._check_value(action, value)
        return [value] if action.nargs in ("+", "*") else value

    def error(self, message: str) -> NoReturn:
        super().error(readable(message))


def commands() -> dict[str, str]:
    """Return every command with its line of help, in the help's order."""
    from nsystui.questions.queries.question import of_family

    entries = {name: (order, line) for name, (order, line, _) in _COMMANDS.items()}
    entries |= {question.name: (question.order, question.help) for question in of_family("")}
    return {name: line for name, (_, line) in sorted(entries.items(), key=lambda entry: entry[1][0])}


def is_command(word: str) -> bool:
    """Return whether a word is a command, without loading the catalogue for an option or most files."""
    if word in _COMMANDS:
        return True
    if word.startswith("-") or not (word.replace("-", "").isalpha() and word.islower()):
        return False
    from nsystui.questions.queries.question import question_named

    with suppress(KeyError):
        question_named(word)
        return True
    return False


def topic_of(name: str) -> str:
    """Return the topic of the documentation that explains a command, or an empty text."""
    from nsystui.questions.queries.question import question_named

    return _COMMANDS[name][2] if name in _COMMANDS else question_named(name).topic


def is_question(name: str) -> bool:
    return name not in _COMMANDS
