"""Every question that the program can be asked: each module of this folder declares some in ``QUESTIONS``.

A new file here is all that a new question takes: it appears on the command line, in the help, in completion and in the
palette.
"""

from __future__ import annotations

import functools
import pkgutil
from importlib import import_module

from nsystui.questions.question import Question


@functools.cache
def questions() -> tuple[Question, ...]:
    """Every question, by its place in lists and its name."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [question for module in modules for question in module.QUESTIONS]
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
