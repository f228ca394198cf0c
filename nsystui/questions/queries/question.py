"""A question that the program can be asked, as data: the command line, the help, completion and the palette read it.

A declaration loads nothing heavy: it imports what it needs where it is asked. `NamedTuple` rather than a dataclass,
since ``nsystui --help`` lists all questions and importing ``dataclasses`` would take a third of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    Expected = tuple[Mapping[str, Sequence[str]], Sequence[str]]
    """Columns that will be read of each table, and the tables whose rows will be counted: see `Session.expect`."""

_NO_VALUES: Mapping[str, Any] = MappingProxyType({})
Values = Mapping[str, Any]
"""The value of each option by its name."""

PALETTE, COMPARISON = "palette", "comparison"
"""The homes of questions that no screen of their own shows; one of two sides first asks for the other."""

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
"""The titles of the screens by their modes, in the order of their keys."""

Row = Literal[
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
"""The subject of a row of an answer, which decides what can be opened from it."""


class Option(NamedTuple):
    """An option of a question: ``--flag`` on the command line, a switch unless it has ``metavar`` or ``choices``.

    ``kind`` reads the value. ``without_value`` is the value of the flag alone, for a value that may be left out;
    ``has_several`` values follow one flag. ``group`` is the title of its part of the help, ``one_of`` names a set of
    which only one option may be given. ``members``: the enum ``module:name`` whose values it lists, separated by
    commas. ``lists``: with it the answer has single events, each with its time.
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
    members: str = ""
    lists: bool = False

    @property
    def name(self) -> str:
        """The key of its value."""
        return self.flag.replace("-", "_")

    def is_given(self, values: Values) -> bool:
        """Whether its value is there: 0 and an empty word are values, too."""
        value = values.get(self.name)
        return value is not None and value is not False

    @property
    def is_switch(self) -> bool:
        return not (self.metavar or self.choices)


STEPS = (
    Option(
        "step-range",
        "which NVTX ranges (domain:text) are steps; a group in it is their number (default: numbered ranges, such "
        "as `step 7`, that hold half of the GPU's work)",
        metavar="REGEX",
        group="",
    ),
    Option(
        "steps-by",
        "what steps are found by (default: NVTX ranges; without them what comes back regularly in the GPU's work)",
        choices=ANCHORS,
        group="",
    ),
)
"""What the steps are: of every question that has any."""


def steps_in(group: str) -> tuple[Option, ...]:
    """`STEPS` in a group of the help."""
    return tuple(option._replace(group=group) for option in STEPS)


_BINS = 100
OVER_TIME = (
    Option("over-time", "one row for each span of the time", one_of="table"),
    Option("bins", f"with --over-time: into how many spans (default: {_BINS})", metavar="N", kind=int),
)
"""The options of a question that is also answered span by span; `read_bins` reads them."""


def read_bins(values: Values) -> dict[str, Any]:
    """The values with the number of spans. Raises UsageError for one that makes no sense."""
    bins = values["bins"]
    if bins is None:
        return {**values, "bins": _BINS}
    from nsystui.base.errors import UsageError

    if bins < 1:
        raise UsageError(f"--bins {bins}: at least one is needed")
    if not values["over_time"]:
        raise UsageError("--bins goes with --over-time")
    return dict(values)


class TextDrawing(NamedTuple):
    """An answer as lines of text, with its notes."""

    lines: list[str]
    notes: tuple[str, ...]


class View(NamedTuple):
    """A table of a question on the screen that is its home, by a name that no other view has.

    ``title`` stands behind that of the screen (default: the question's), ``counted`` in "12 of 34 rows". ``values``
    are those of the question's options that differ from their defaults, ``sort`` the column by which the answer comes
    sorted, and whether it descends. ``label``: the word for it among the views of its screen (default: its name).
    ``tables``: the canonical tables whose rows a user finds there. ``order``: its
    place among the views of the screen (default: the question's). ``home``: its screen, if not the question's.
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


class Titled(NamedTuple):
    """One of several tables of an answer. ``name`` is for flags and files, ``title`` for people.

    ``labels`` tell it from the others in JSON (default: its name). With ``needs_title`` its columns alone do not.
    """

    name: str
    title: str
    answer: Answer
    labels: Mapping[str, str | int] = {}
    needs_title: bool = False


Ask = Callable[["OpenJob", "Selection", Any], "Answer"]


class Question(NamedTuple):
    """A question, by its name on the command line (behind the name of its ``family``) and one line of help.

    ``ask`` answers it for a job, a selection and options; options are what ``read`` makes of their values, raising
    UsageError for those that make no sense. Where nobody asks for a table, ``map`` answers with lanes over time and
    ``draw`` with text; ``draw`` returns ``None`` where there is nothing to draw. ``drawing`` answers with shapes, for a
    file; so does every ``map``.

    ``tables`` answers a command with several tables, of which ``ask`` returns the first.

    ``other`` returns the files of another job that the answer is compared with and the window of its time, ``None``
    without one; ``compare`` is asked about that job first, and returns the options with what the answer takes from it.

    ``needs``: of each group of canonical tables the exports must have one. ``differs``: what NVIDIA's of that name
    gets wrong and this one does not, or counts otherwise.

    How the exports are read: ``is_whole`` all at once, for a question about nearly everything in them, else the columns
    that it asks for, where ``expected`` can say ahead which. ``has_times``: its answer has moments of several reports,
    for which their clocks are made one. ``of_reports``: it is made of what is computed of each report by itself, so
    that the workers of a cluster compute it.

    ``row`` is what a row of the answer is about, and ``home`` the screen that shows it (a mode of the application,
    `PALETTE`, `COMPARISON`, or empty for none): under ``title``, in its ``views``, of which a question has at least
    one. ``order``: its place in lists, small numbers first.
    """

    name: str
    help: str
    ask: Ask
    family: str = ""
    description: str = ""
    examples: str = ""
    topic: str = ""
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
    is_whole: bool = False
    expected: Callable[[Values], Expected] | None = None
    has_times: bool = False
    of_reports: bool = False
    row: Row = "other"
    home: str = PALETTE
    title: str = ""
    views: tuple[View, ...] = ()

    @property
    def takes(self) -> frozenset[str]:
        """The flags of its options, without hyphens before them."""
        return frozenset(option.flag for option in self.options)

    def defaults(self) -> Any:
        """The options that nobody changed."""
        return self.read(self.default_values())

    def default_values(self) -> dict[str, Any]:
        return {option.name: option.default for option in self.options}

    def key(self, values: Values) -> tuple[str, ...]:
        """The words by which its answer is remembered; of options that list single rows there is no answer to keep."""
        return (
            *filter(None, (self.family,)),
            self.name,
            *(str(values[option.name]) for option in self.options if not option.lists),
        )

    def command(self, values: Values, files: str = "") -> str:
        """Return the command that asks it of ``files``; ``values`` are those that differ from the defaults."""
        from nsystui.base.text import shell_word

        name, *words = {"": (self.name,), "stats": ("stats", "-r", self.name)}.get(
            self.family, (self.family, self.name)
        )
        for option in self.options:
            if option.name in values:
                words += [f"--{option.flag}", *([] if option.is_switch else [shell_word(str(values[option.name]))])]
        return " ".join((name, *filter(None, (files,)), *words))


class QuestionView(NamedTuple):
    """A view with its question."""

    question: Question
    view: View

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def title(self) -> str:
        return self.view.title or self.question.title

    @property
    def home(self) -> str:
        """The screen that shows it."""
        return self.view.home or self.question.home

    def ask(self, job: OpenJob, selection: Selection, values: Values = _NO_VALUES) -> Answer:
        """Its answer; those of the ``values`` count that the question has an option for."""
        given = {**self.question.default_values(), **self.view.values}
        given |= {name: value for name, value in values.items() if name in given}
        return self.question.ask(job, selection, self.question.read(given))


def chosen_tables(text: str | None, tables: Sequence[str], usual: Sequence[str]) -> list[str]:
    """The tables that a list names, ``all`` for each, in their own order; the usual ones without. Raises UsageError."""
    chosen = set(usual) if text is None else {name.strip() for name in text.split(",") if name.strip()}
    if not chosen or chosen - {*tables, "all"}:
        from nsystui.base.errors import UsageError

        raise UsageError(f"--tables {text!r}: the tables are {', '.join(tables)}, all")
    return [name for name in tables if name in chosen or "all" in chosen]


def in_module(module: str, table: str, name: str) -> Callable[..., Any]:
    """The function under ``name`` in a table of a module, which is imported when the function is called."""

    def call(*words: Any) -> Any:
        return getattr(import_module(f"nsystui.questions.{module}"), table)[name](*words)

    return call


def function(place: str, *options: str) -> Callable[[OpenJob, Selection, Values], Any]:
    """The function ``module:name`` of ``nsystui.questions``, imported when called, with the ``options`` in order."""
    module, _, name = place.partition(":")

    def call(job: OpenJob, selection: Selection, values: Values) -> Any:
        found = getattr(import_module(f"nsystui.questions.{module}"), name)
        return found(job, selection, *(values[option] for option in options))

    return call
