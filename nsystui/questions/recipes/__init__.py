"""The multi-report recipes of Nsight Systems: what each answers, over all ranks of a job.

See docs/numbers.md#expert-rules and docs/recipes.md#recipes. The catalogue declares them:
`nsystui.questions.queries.registry.nsys_recipes`.

They are the questions of this room, put together: a recipe has no way of its own to count what another one counts.
"""

from __future__ import annotations

from nsystui.base.errors import UsageError, meant
from nsystui.questions.queries.question import Question
from nsystui.questions.queries.registry import of_family, question_named

FAMILY = "recipe"


def all_recipes() -> tuple[Question, ...]:
    """Every recipe, in alphabetical order."""
    return of_family(FAMILY)


def recipe_named(name: str) -> Question:
    """The recipe of that name; raises UsageError, with the one that may be meant."""
    try:
        return question_named(name, FAMILY)
    except KeyError:
        names = [recipe.name for recipe in all_recipes()]
        raise UsageError(f"no recipe {name!r}: {meant(name, names, '`nsystui recipe` lists them')}") from None
