"""The catalogue's questions as commands: all open, select, ask, deliver and close alike."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsystui.base.answer import Answer, TableAnswer
from nsystui.base.errors import UsageError, no_such_name
from nsystui.commands import arguments as shared
from nsystui.commands.request import Request, Selecting
from nsystui.questions.queries.question import Option, Question, TextDrawing

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nsystui.base.drawing import Drawing
    from nsystui.base.selection import Selection
    from nsystui.questions.answers.remembered import Remembered
    from nsystui.questions.job.job import OpenJob


class QuestionCommand:
    """A question with the interface of a command module."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.DESCRIPTION = question.description
        self.EXAMPLES = question.examples

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags of every question, and of this question."""
        shared.add_files(parser)
        if "reports" in self.question.reads:
            shared.add_dask(parser)
        add_options(parser, self.question.options)
        shared.add_selection(parser)
        shared.add_format(parser, self.question.drawing is not None or self.question.map is not None)

    def run(self, request: Request) -> int:
        return run(self.question, request)


def add_options(
    parser: argparse.ArgumentParser, options: Sequence[Option], about: Mapping[str, str] | None = None
) -> None:
    """Add the flags of options, in their groups; ``about`` contains a sentence for some groups."""
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    sets: dict[tuple[str, str], argparse._ActionsContainer] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group, (about or {}).get(option.group))
        container = groups[option.group]
        if option.one_of:
            key = (option.group, option.one_of)
            container = sets[key] = sets.get(key) or container.add_mutually_exclusive_group()
        words: dict[str, Any] = {"help": option.help, "default": option.default, "type": _reader(option.kind)}
        if option.is_switch:
            words = {"help": option.help, "action": "store_true"}
        if option.metavar:
            words["metavar"] = option.metavar
        if option.choices:
            words["choices"] = option.choices
        if option.has_several:
            words |= {"action": "extend", "nargs": "+"}
        if option.without_value is not None:
            words |= {"nargs": "?", "const": option.without_value}
        container.add_argument(*(f"--{flag}" for flag in (option.flag, option.alias) if flag), **words)


def _reader(kind: Callable[[str], object]) -> Callable[[str], object]:
    """Return a reader of values; argparse reports its errors after the option's name."""

    def read(text: str) -> object:
        try:
            return kind(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    read.__name__ = kind.__name__  # argparse: invalid int value
    return read


def run(question: Question, request: Request) -> int:
    """Recall the answer, or compute it; deliver it on stdout or in a file, and return the exit status."""
    request.check(has_drawing=question.drawing is not None or question.map is not None)
    if request.opening.dask:
        shared.check_dask(question, request.args)
    memory, key = _memory(question, request), question.key(request.args)
    if memory is not None and (cached := memory.recall(*key)) is not None:
        return shared.deliver(request, cached[1])
    options = _options(question, request)
    with _opened(question, request) as (job, selection):
        if request.output.is_drawing:
            return _as_svg(question, request, job, selection, options)
        is_text = not request.output.is_table
        if is_text and (status := _as_text(question, request, job, selection, options)) is not None:
            return status
        if question.tables is not None:
            with job.session.waiting(question.name):
                tables = question.tables(job, selection, options)
            return shared.deliver_several(request, tables)
        answer = _answer(question, request, job, selection, options)
        if memory is not None:
            memory.keep(job, answer, "", *key)
        return shared.deliver(request, answer)


def _memory(question: Question, request: Request) -> Remembered | None:
    """Return the remembered answers, or ``None`` for drawings, several tables and lists of single events."""
    lists = any(option.lists and option.is_given(request.args) for option in question.options)
    is_text = not request.output.is_table and (question.map is not None or question.draw is not None)
    if request.output.is_drawing or is_text or lists or question.tables is not None:
        return None
    return shared.remembered(request)


def _options(question: Question, request: Request) -> Any:
    """Return the options; read the job to compare with, if any. The selection does not apply to that job."""
    options = question.read(request.args)
    source = question.other(request.args) if question.other is not None else None
    if question.compare is None or not source:
        return options
    other = replace(request, opening=replace(request.opening, files=source[0]), selecting=Selecting(source[1]))
    with _opened(question, other) as (job, selection), job.session.waiting(question.name):
        return question.compare(job, selection, options)


def _answer(question: Question, request: Request, job: OpenJob, selection: Selection, options: object) -> Answer:
    """Return the table. Raises UsageError if no row of the job has the name of ``--instances``."""
    from nsystui.base.selection import Selection
    from nsystui.questions.queries.question import ask

    answer, name = ask(question, job, selection, options), request.args.get("instances")
    if name and not answer.total:
        unfiltered = ask(question, job, Selection(), question.read({**request.args, "instances": None}))
        if isinstance(unfiltered, TableAnswer) and len(unfiltered):
            raise no_such_name("--instances", name, map(str, unfiltered.cells("name")))
    return answer


def drawn(question: Question, job: OpenJob, selection: Selection, options: object) -> Drawing | None:
    """Return the question's drawing or map, or ``None`` if there is nothing to draw."""
    from nsystui.questions.queries.question import draw_map
    from nsystui.questions.report.drawings import map_lanes

    if question.drawing is None:
        return map_lanes(draw_map(question, job, selection, options))
    with job.session.waiting(question.name):
        return question.drawing(job, selection, options)


def _as_svg(question: Question, request: Request, job: OpenJob, selection: Selection, options: object) -> int:
    """Print or write the drawing; return 3 if there is nothing to draw, which the table's notes explain."""
    from nsystui.output.files import print_lines, save_text
    from nsystui.output.svg import svg
    from nsystui.questions.queries.question import ask

    drawing = drawn(question, job, selection, options)
    if drawing is None:
        shared.say_notes(*ask(question, job, selection, options).notes)
        shared.complain(f"{question.name}: there is nothing to draw")
        return 3
    if request.output.is_file:
        save_text(svg(drawing), str(request.output.target), overwrite=request.output.force)
        shared.complain(f"wrote the drawing to {request.output.target}")
    else:
        print_lines(svg(drawing).splitlines())
    return 0


def _opened(question: Question, request: Request) -> AbstractContextManager[tuple[OpenJob, Selection]]:
    lists = any(option.is_given(request.args) for option in question.options if option.lists)
    values = {**vars(request.selecting), **request.args}
    expected = question.expected(values) if question.expected is not None else None
    times = lists or "times" in question.reads
    return shared.opened(request, whole="whole" in question.reads, times=times, expected=expected)


def _as_text(question: Question, request: Request, job: OpenJob, selection: Selection, options: Any) -> int | None:
    """Print a question's drawing; return the exit status, or ``None`` if nothing is drawn."""
    drawing: TextDrawing | None = None
    if question.map is not None:
        from nsystui.commands.map_drawing import draw

        drawing = draw(question, job, selection, options, request.args["width"], request.args["bins"])
    elif question.draw is not None:
        with job.session.waiting(question.name):
            drawing = question.draw(job, selection, options)
    if drawing is None:
        return None
    from nsystui.output.files import print_lines

    print_lines(drawing.lines)
    shared.say_notes(*drawing.notes)
    return 0 if drawing.lines or not drawing.notes else 3
