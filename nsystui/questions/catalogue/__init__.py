"""Every question that the program can be asked: each module of this folder declares some in ``QUESTIONS``.

A new file here is all that a new question takes: it appears on the command line, in the help, in completion and in the
palette.
"""

from __future__ import annotations

import functools
import os
from importlib import import_module

from nsystui.questions.question import Question


@functools.cache
def questions() -> tuple[Question, ...]:
    """Every question, by its place in lists and its name."""
    # `pkgutil` finds the same, but imports `inspect`: a tenth of what `nsystui --help` takes.
    files = [file for folder in __path__ for file in os.listdir(folder)]
    names = [file.removesuffix(".py") for file in files if file.endswith(".py") and not file.startswith("_")]
    found = [question for name in names for question in import_module(f"{__name__}.{name}").QUESTIONS]
    return tuple(sorted(found, key=lambda one: (one.order, one.name)))


def of_family(family: str) -> tuple[Question, ...]:
    """The questions of a family, such as ``stats`` and ``recipe``; those that are a command each have none."""
    return tuple(question for question in questions() if question.family == family)


def question_named(name: str, family: str = "") -> Question:
    """The question of that name; raises KeyError for a name that none has."""
    for question in of_family(family):
        if question.name == name:
            return question
    raise KeyError(name)
