"""The registry of all questions, which the modules of ``questions/catalogue`` declare in ``QUESTIONS``.

A new file there adds questions to the command line, the help, completion and the palette.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from importlib import import_module

from nsystui.questions.queries.question import SCREENS, Question, View

_CATALOGUE = "nsystui.questions.catalogue"  # by name, because the questions import this room


def _declared() -> Iterator[Question]:
    """Yield all questions. Imports a module when its questions are reached, first the module with most commands."""
    # `pkgutil` finds the same, but imports `inspect`: a tenth of the time of `nsystui --help`.
    files = [file for folder in import_module(_CATALOGUE).__path__ for file in os.listdir(folder)]
    names = [file.removesuffix(".py") for file in files if file.endswith(".py") and not file.startswith("_")]
    for name in sorted(names, key=lambda name: name != "summaries"):
        yield from import_module(f"{_CATALOGUE}.{name}").QUESTIONS


@functools.cache
def questions() -> tuple[Question, ...]:
    """Return all questions, by their order and name."""
    return tuple(sorted(_declared(), key=lambda question: (question.order, question.name)))


def of_family(family: str) -> tuple[Question, ...]:
    """Return the questions of a family, such as ``stats`` or ``recipe``; a question in "" is a command itself."""
    return tuple(question for question in questions() if question.family == family)


@functools.cache
def question_named(name: str, family: str = "") -> Question:
    """Return a question of a family. Raises KeyError if no question has the name."""
    for question in _declared():
        if (question.name, question.family) == (name, family):
            return question
    raise KeyError(name)


@functools.cache
def views() -> tuple[View, ...]:
    """Return the views of all questions, in their order, with the defaults of their questions."""
    complete = (
        view._replace(
            title=view.title or question.rows.title,
            order=view.order or question.order,
            label=view.label or view.name,
            home=view.home or question.rows.home,
            screen=view.screen or view.home or question.rows.home,
            question=question,
        )
        for question in questions()
        for view in question.views or (View(question.name),)
    )
    return tuple(sorted(complete, key=lambda view: view.order))


def views_of(home: str) -> tuple[View, ...]:
    """Return the views of a tab, in their order."""
    return tuple(view for view in views() if view.home == home)


def view_named(name: str) -> View:
    """Return a view on one of the `SCREENS`. Raises KeyError if no view has the name."""
    for view in views():
        if view.name == name and view.home in SCREENS:
            return view
    raise KeyError(name)


def view_of_table(table: str) -> View | None:
    """Return the view that shows the rows of a canonical table, if any."""
    return next((view for home in SCREENS for view in views_of(home) if table in view.tables), None)
