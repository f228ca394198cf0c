"""The multi-report recipes of Nsight Systems, each answered over all ranks of a job.

See docs/numbers.md#expert-rules and docs/recipes.md#recipes. The catalogue declares them:
`nsystui.questions.queries.question.nsys_recipes`. They combine existing questions, so that all numbers agree.
"""

from nsystui.base.errors import UsageError, meant
from nsystui.questions.queries.question import Question, of_family, question_named

FAMILY = "recipe"


def all_recipes() -> tuple[Question, ...]:
    """Return all recipes in alphabetical order."""
    return of_family(FAMILY)


def recipe_named(name: str) -> Question:
    """Return the recipe called ``name``. Raises UsageError, which suggests a similar name."""
    try:
        return question_named(name, FAMILY)
    except KeyError:
        names = [recipe.name for recipe in all_recipes()]
        raise UsageError(f"no recipe {name!r}: {meant(name, names, '`nsystui recipe` lists them')}") from None
