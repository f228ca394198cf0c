"""Questions as data for the command line, the help, completion and the palette.

The modules of ``questions/catalogue`` declare them in ``QUESTIONS``: a new file there adds questions everywhere. A
declaration imports heavy modules only when its question is asked. `NamedTuple`, because ``nsystui --help`` lists all
questions, and importing ``dataclasses`` would take a third of its time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from nsystui.base.anchors import ANCHORS

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.drawing import Drawing as Shapes
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.recipes.recipe import RecipeMap

Expected = tuple[Mapping[str, Collection[str]], Collection[str] | None]
"""The columns to read by table, and the tables whose rows to count: see `Session.expect`."""
_NO_VALUES: Mapping[str, Any] = MappingProxyType({})
Values = Mapping[str, Any]
"""The value of each option by its name."""

PALETTE, COMPARISON = "palette", "comparison"
"""Homes of questions without a screen; a question in `COMPARISON` first asks for the other job."""

SCREENS = {
    "overview": "Overview",
    "kernels": "Kernels",
    "nccl": "NCCL",
    "gpu": "GPU",
    "nvtx": "NVTX",
    "events": "Events",
    "ranks": "Ranks",
    "host": "Host",
    "steps": "Steps",
    "timeline": "Timeline",
}
"""Screen titles by mode, in the order of their keys."""

RowKind = Literal[
    "kernel",
    "range",
    "memory",
    "api",
    "os",
    "mpi",
    "nccl",
    "device",
    "rank",
    "step",
    "stream",
    "event",
    "time",
    "thread",
    "function",
    "other",
]
"""The subject of a row, which decides what can be opened from it."""


class Option(NamedTuple):
    """An option of a question: ``--flag`` on the command line, a switch unless it has ``metavar`` or ``choices``.

    ``kind`` parses the value. ``without_value`` is the value of the flag alone, if its value is optional;
    ``has_several`` values follow one flag. ``group`` titles its section of the help, ``one_of`` names a set of mutually
    exclusive options. ``alias``: a second flag. ``lists``: the answer then lists single events, each with its time.
    """

    flag: str
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    default: Any = None
    kind: Callable[[str], Any] = str
    without_value: str | None = None
    has_several: bool = False
    group: str = "table"
    one_of: str = ""
    alias: str = ""
    lists: bool = False

    @property
    def name(self) -> str:
        """The key of its value."""
        return self.flag.replace("-", "_")

    def is_given(self, values: Values) -> bool:
        """Return whether it has a value; 0 and an empty string are values."""
        value = values.get(self.name)
        return value is not None and value is not False

    @property
    def is_switch(self) -> bool:
        return not (self.metavar or self.choices)


STEPS = (
    Option(
        "step-range",
        "which NVTX ranges (domain:text) are steps; a group in it is their number (default: ranges such as "
        "`step 7` or `train_step` that hold most of the GPU's work)",
        metavar="REGEX",
        group="",
    ),
    Option(
        "steps-by",
        "how steps are found (default: NVTX ranges, else regular work of the GPU)",
        choices=ANCHORS,
        group="",
    ),
)
"""Options that define steps."""


def steps_in(group: str) -> tuple[Option, ...]:
    """Return `STEPS` in a group of the help."""
    return tuple(option._replace(group=group) for option in STEPS)


_BINS = 100
OVER_TIME = (
    Option("over-time", "one row for each span of the time", one_of="table"),
    Option("bins", f"number of spans with --over-time (default: {_BINS})", metavar="N", kind=int),
)
"""Options of questions with an answer by span of time; `read_bins` parses them."""


def read_bins(values: Values) -> dict[str, Any]:
    """Return the values with the number of spans. Raises UsageError if it is below 1 or has no effect."""
    bins = values["bins"]
    if bins is None:
        return {**values, "bins": _BINS}
    from nsystui.base.errors import UsageError

    if bins < 1:
        raise UsageError(f"--bins {bins}: at least one is needed")
    if not values["over_time"]:
        raise UsageError("--bins needs --over-time")
    return dict(values)


class TextDrawing(NamedTuple):
    """An answer as lines of text, with its notes."""

    lines: list[str]
    notes: tuple[str, ...]


class View(NamedTuple):
    """A view of a tab, usually a table of a ``question``; ``name`` is unique among all views.

    ``title`` follows the screen's title (default: the question's), ``counted`` is the noun in "12 of 34 rows".
    ``values`` are the question's options that differ from their defaults, ``sort`` the sort column and whether it
    descends. ``label``: its word in the view bar (default: its name). ``tables``: the canonical tables whose rows it
    shows. ``order``: its position in the tab (default: the question's). ``home``: its tab, if not the question's, and
    ``screen`` the screen that shows it, if not the tab's first. If ``needs`` names canonical tables, it is offered only
    if at least one of them has rows. `_views` fills in the defaults.
    """

    name: str
    title: str = ""
    counted: str = "rows"
    values: Values = _NO_VALUES
    sort: tuple[str | None, bool] = (None, True)
    tables: tuple[str, ...] = ()
    order: int = 0
    label: str = ""
    home: str = ""
    screen: str = ""
    needs: tuple[str, ...] = ()
    question: Question = None  # type: ignore[assignment]  # only views without a table have no question

    def ask(self, job: OpenJob, selection: Selection, values: Values = _NO_VALUES) -> Answer:
        """Return its answer; ``values`` that are not options of the question are ignored."""
        given = {**self.question.default_values(), **self.values}
        given |= {name: value for name, value in values.items() if name in given}
        return self.question.ask(job, selection, self.question.read(given))


class Titled(NamedTuple):
    """One of several tables of an answer. ``name`` is for flags and files, ``title`` for people.

    ``labels`` identify the table in JSON (default: its name). ``needs_title``: the columns alone do not identify it.
    """

    name: str
    title: str
    answer: Answer
    labels: Mapping[str, str | int] = {}
    needs_title: bool = False


Ask = Callable[["OpenJob", "Selection", Any], "Answer"]


class ShownRows(NamedTuple):
    """The subject of a row of an answer, and the screen that shows it with ``title``.

    ``home``: a mode of the application, `PALETTE`, `COMPARISON`, or empty.
    """

    kind: RowKind = "other"
    home: str = PALETTE
    title: str = ""


class Question(NamedTuple):
    """A question: its name on the command line (after the name of its ``family``) and one line of help.

    ``ask`` answers it for a job, a selection and options; ``read`` makes the options from their values, or raises
    UsageError. Unless a table is requested, ``map`` answers with lanes over time and ``draw`` with text, or ``None`` if
    there is nothing to draw. ``drawing`` answers with shapes for a file, and so does every ``map``. ``tables`` answers
    a command with several tables; ``ask`` returns the first of them.

    ``other`` returns the files and the time window of another job to compare with, if any. ``compare`` then reads that
    job first, and returns the options with the facts that the answer needs from it.

    ``needs``: the exports must have at least one table of each group. ``differs``: differences from NVIDIA's report of
    that name, such as its errors.

    How the exports are read: ``whole`` reads nearly everything at once; otherwise only requested columns are read,
    which ``expected`` predicts if it can. ``times``: the answer has times of several reports, so their clocks are
    aligned. ``reports``: the answer combines a result per report, so workers of a cluster can compute it.

    ``views`` show its ``rows``. ``order``: its position in lists, small numbers first.
    """

    name: str
    help: str
    ask: Ask
    family: str = ""
    description: str = ""
    examples: str = ""
    topic: str = "numbers"
    order: int = 500
    options: tuple[Option, ...] = ()
    needs: tuple[tuple[str, ...], ...] = ()
    differs: tuple[str, ...] = ()
    read: Callable[[Values], Any] = dict
    map: Callable[[OpenJob, Selection, Any], RecipeMap] | None = None
    draw: Callable[[OpenJob, Selection, Any], TextDrawing | None] | None = None
    drawing: Callable[[OpenJob, Selection, Any], Shapes | None] | None = None
    tables: Callable[[OpenJob, Selection, Any], list[Titled]] | None = None
    other: Callable[[Values], tuple[Sequence[str], str | None] | None] | None = None
    compare: Callable[[OpenJob, Selection, Any], Any] | None = None
    reads: tuple[Literal["whole", "times", "reports"], ...] = ()
    expected: Callable[[Values], Expected] | None = None
    rows: ShownRows = ShownRows()
    views: tuple[View, ...] = ()

    @property
    def takes(self) -> frozenset[str]:
        """The flags of its options, without leading hyphens."""
        return frozenset(option.flag for option in self.options)

    def defaults(self) -> Any:
        """Return the options with their default values."""
        return self.read(self.default_values())

    def default_values(self) -> dict[str, Any]:
        return {option.name: option.default for option in self.options}

    def key(self, values: Values) -> tuple[str, ...]:
        """Return the words that identify its answer in the cache, which holds no answers that list single events."""
        return (
            *filter(None, (self.family,)),
            self.name,
            *(str(values[option.name]) for option in self.options if not option.lists),
        )

    def command(self, values: Values, files: str = "") -> str:
        """Return the command that asks the question of ``files``; ``values`` differ from the defaults."""
        from nsystui.base.text import shell_word

        name, *words = {"": (self.name,), "stats": ("stats", "-r", self.name)}.get(
            self.family, (self.family, self.name)
        )
        for option in self.options:
            if option.name in values:
                words += [f"--{option.flag}", *([] if option.is_switch else [shell_word(str(values[option.name]))])]
        return " ".join((name, *filter(None, (files,)), *words))


def chosen_tables(text: str | None, tables: Sequence[str], default_tables: Sequence[str]) -> list[str]:
    """Return the tables listed in ``text``, in the order of ``tables``; ``all`` lists all. Raises UsageError."""
    names = set(default_tables) if text is None else {name.strip() for name in text.split(",") if name.strip()}
    if not names or names - {*tables, "all"}:
        from nsystui.base.errors import UsageError

        raise UsageError(f"--tables {text!r}: the tables are {', '.join(tables)}, all")
    return [name for name in tables if name in names or "all" in names]


_CATALOGUE = "nsystui.questions.catalogue"  # by name, because the questions import this room


def _declared() -> Iterator[Question]:
    """Yield all questions; imports a module when its questions are reached.

    The first module has most commands. The last modules have nsys's own questions, which no finding names.
    """
    # `pkgutil` finds the same, but imports `inspect`: a tenth of the time of `nsystui --help`.
    files = [file for folder in import_module(_CATALOGUE).__path__ for file in os.listdir(folder)]
    names = [file.removesuffix(".py") for file in files if file.endswith(".py") and not file.startswith("_")]
    for name in sorted(names, key=lambda name: (name.startswith("nsys"), name != "summaries", name)):
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


def _views(questions: Iterable[Question]) -> Iterator[View]:
    """Yield the views of questions, with the defaults of their questions."""
    for question in questions:
        for view in question.views or (View(question.name),):
            yield view._replace(
                title=view.title or question.rows.title,
                order=view.order or question.order,
                label=view.label or view.name,
                home=view.home or question.rows.home,
                screen=view.screen or view.home or question.rows.home,
                question=question,
            )


@functools.cache
def views() -> tuple[View, ...]:
    """Return the views of all questions, in their order."""
    return tuple(sorted(_views(questions()), key=lambda view: view.order))


def views_of(home: str) -> tuple[View, ...]:
    """Return the views of a tab, in their order."""
    return tuple(view for view in views() if view.home == home)


@functools.cache
def view_named(name: str) -> View:
    """Return a view on one of the `SCREENS`. Raises KeyError if no view has the name."""
    for view in _views(_declared()):
        if view.name == name and view.home in SCREENS:
            return view
    raise KeyError(name)


def view_of_table(table: str) -> View | None:
    """Return the view that shows the rows of a canonical table, if any."""
    return next((view for home in SCREENS for view in views_of(home) if table in view.tables), None)


def ask(question: Question, job: OpenJob, selection: Selection, options: Any = None) -> Answer:
    """Answer a question as a table; if the data were not recorded, it is empty, and a note says what to record.

    ``options`` defaults to the question's defaults. Raises UsageError for an unknown name.
    """
    from dataclasses import replace

    from nsystui.base.answer import adapted

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
    from dataclasses import replace

    assert question.map is not None
    with job.session.waiting(question.name):
        recipe_map = question.map(job, selection, question.defaults() if options is None else options)
    missing = lacking(question, job) if not recipe_map.lines else ()
    return replace(recipe_map, notes=tuple(dict.fromkeys((*missing, *recipe_map.notes))))


def lacking(question: Question, job: OpenJob) -> tuple[str, ...]:
    """Return a sentence for each group of tables that are empty in all exports."""
    from nsystui.exports import canonical
    from nsystui.questions.queries.recording import recording_advice

    subject = "this export" if len(job.session.reports) == 1 else "these exports"
    groups = [[canonical.BY_NAME[name] for name in group] for group in question.needs]
    return tuple(
        f"no {' or '.join(table.what for table in group)} in {subject}: "
        + recording_advice(job.session, job.session.reports, *group)
        for group in groups
        if not any(job.session.count(table) for table in group)
    )
