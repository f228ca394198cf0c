"""Every question that the program can be asked: the modules of ``questions/catalogue`` declare them in ``QUESTIONS``.

A new file there is all that a new question takes: it appears on the command line, in the help, in completion and in the
palette.
"""

from __future__ import annotations

import functools
import os
from importlib import import_module

from nsystui.questions.queries.question import SCREENS, Question, QuestionView, View

_CATALOGUE = "nsystui.questions.catalogue"  # by name: the questions import what this room has


@functools.cache
def questions() -> tuple[Question, ...]:
    """Every question, by its place in lists and its name."""
    # `pkgutil` finds the same, but imports `inspect`: a tenth of what `nsystui --help` takes.
    catalogue = import_module(_CATALOGUE)
    files = [file for folder in catalogue.__path__ for file in os.listdir(folder)]
    names = [file.removesuffix(".py") for file in files if file.endswith(".py") and not file.startswith("_")]
    found = [question for name in names for question in import_module(f"{_CATALOGUE}.{name}").QUESTIONS]
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


def views_of(home: str) -> tuple[QuestionView, ...]:
    """The views of a screen, in their order."""
    every = (QuestionView(one, view) for one in questions() for view in one.views or (View(one.name),))
    found = (one for one in every if one.home == home)
    return tuple(sorted(found, key=lambda one: one.view.order or one.question.order))


def view_named(name: str) -> QuestionView:
    """The view of that name on one of the `SCREENS`; raises KeyError for a name that none has."""
    for home in SCREENS:
        for found in views_of(home):
            if found.name == name:
                return found
    raise KeyError(name)


def view_of_table(table: str) -> QuestionView | None:
    """The view where a user finds the rows of a canonical table; ``None`` where no screen shows them."""
    return next((found for home in SCREENS for found in views_of(home) if table in found.view.tables), None)
