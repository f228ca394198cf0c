"""The registry of all questions, which the modules of ``questions/catalogue`` declare in ``QUESTIONS``.

A new file there adds questions to the command line, the help, completion and the palette.
"""

from __future__ import annotations

import functools
import os
from importlib import import_module

from nsystui.questions.queries.question import SCREENS, Question, QuestionView, View

_CATALOGUE = "nsystui.questions.catalogue"  # by name, because the questions import this room


@functools.cache
def questions() -> tuple[Question, ...]:
    """Return all questions, by their order and name."""
    # `pkgutil` finds the same, but imports `inspect`: a tenth of the time of `nsystui --help`.
    catalogue = import_module(_CATALOGUE)
    files = [file for folder in catalogue.__path__ for file in os.listdir(folder)]
    names = [file.removesuffix(".py") for file in files if file.endswith(".py") and not file.startswith("_")]
    declared = [question for name in names for question in import_module(f"{_CATALOGUE}.{name}").QUESTIONS]
    return tuple(sorted(declared, key=lambda question: (question.order, question.name)))


def of_family(family: str) -> tuple[Question, ...]:
    """Return the questions of a family, such as ``stats`` or ``recipe``; a question in "" is a command itself."""
    return tuple(question for question in questions() if question.family == family)


def question_named(name: str, family: str = "") -> Question:
    """Return a question of a family. Raises KeyError if no question has the name."""
    for question in of_family(family):
        if question.name == name:
            return question
    raise KeyError(name)


def views_of(home: str) -> tuple[QuestionView, ...]:
    """Return the views of a screen, in their order."""
    views = (QuestionView(item, view) for item in questions() for view in item.views or (View(item.name),))
    shown = (view for view in views if view.home == home)
    return tuple(sorted(shown, key=lambda view: view.view.order or view.question.order))


def view_named(name: str) -> QuestionView:
    """Return a view on one of the `SCREENS`. Raises KeyError if no view has the name."""
    for home in SCREENS:
        for view in views_of(home):
            if view.name == name:
                return view
    raise KeyError(name)


def view_of_table(table: str) -> QuestionView | None:
    """Return the view that shows the rows of a canonical table, if any."""
    return next((view for home in SCREENS for view in views_of(home) if table in view.view.tables), None)
