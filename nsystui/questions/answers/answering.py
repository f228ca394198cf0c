"""Answers of questions of the catalogue, with notes on data that the exports lack."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsystui.base.answer import Answer, adapted
from nsystui.base.selection import Selection
from nsystui.exports import canonical
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.question import Question
from nsystui.questions.queries.recording import recording_advice

if TYPE_CHECKING:
    from nsystui.questions.recipes.recipe import RecipeMap


def ask(question: Question, job: OpenJob, selection: Selection, options: Any = None) -> Answer:
    """Answer a question as a table; if the data were not recorded, it is empty, and a note says what to record.

    ``options`` defaults to the question's defaults. Raises UsageError for an unknown name.
    """
    options = question.defaults() if options is None else options
    with job.session.waiting(question.name):
        answer = question.ask(job, selection, options)
    if not question.needs:
        return answer
    missing = lacking(question, job) if not len(answer) else ()
    notes = tuple(dict.fromkeys((*missing, *answer.notes)))
    return replace(adapted(answer), name=question.name.replace("_", "-"), notes=notes)


def draw_map(question: Question, job: OpenJob, selection: Selection, options: Any = None) -> RecipeMap:
    """Return the map of a question that has a ``map``, with notes on missing data."""
    assert question.map is not None
    with job.session.waiting(question.name):
        recipe_map = question.map(job, selection, question.defaults() if options is None else options)
    missing = lacking(question, job) if not recipe_map.lines else ()
    return replace(recipe_map, notes=tuple(dict.fromkeys((*missing, *recipe_map.notes))))


def lacking(question: Question, job: OpenJob) -> tuple[str, ...]:
    """Return a sentence for each group of tables that are empty in all exports."""
    subject = "this export" if len(job.session.reports) == 1 else "these exports"
    groups = [[canonical.BY_NAME[name] for name in group] for group in question.needs]
    return tuple(
        f"no {' or '.join(table.what for table in group)} in {subject}: "
        + recording_advice(job.session, job.session.reports, *group)
        for group in groups
        if not any(job.session.count(table) for table in group)
    )
