"""Python interface for notebooks and scripts: opens a job and answers the command line's questions as pandas frames.

>>> import nsystui
>>> with nsystui.open("rank*.sqlite") as job:            # doctest: +SKIP
...     kernels = job.ask("kernels", by="rank", time="1.2s:1.5s")

Questions and options have the names of the command line, with ``_`` for ``-``; see ``nsystui help python``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from io import StringIO
from typing import TYPE_CHECKING, Any, NoReturn

from nsystui.base.errors import MissingFileError, NsystuiError, UsageError, meant
from nsystui.commands import Parser, is_command

if TYPE_CHECKING:
    from pathlib import Path

    import pandas

    from nsystui.base.answer import Answer
    from nsystui.commands.request import Request
    from nsystui.questions.job.job import OpenJob as OpenedJob
    from nsystui.questions.queries.question import Question

    _Asked = Callable[..., pandas.DataFrame]

__all__ = ["Job", "NsystuiError", "Svg", "UsageError", "catalogue", "diff", "open"]


def open(*files: str | os.PathLike[str], **options: Any) -> Job:  # noqa: A001  # nsystui.open reads naturally
    """Open exports, directories of exports, packed jobs or globs as a job.

    ``options`` are listed under "opening" in ``nsystui kernels --help``, such as ``clock="utc"``, ``jobs=8`` or
    ``no_cache=True``; also ``step_range``, ``steps_by`` and ``ranks`` (which file is which rank). Warns of files that
    cannot be opened, except missing files if ``allow_missing=True``. Raises NsystuiError if no file can be opened, and
    UsageError for invalid options.
    """
    from nsystui.commands import arguments as shared
    from nsystui.commands.configuration import add_config
    from nsystui.commands.request import parsed
    from nsystui.questions.job.opening import Listener, Opener

    parser = _Parser(prog="nsystui.open", add_help=False)
    shared.add_files(parser)
    shared.add_steps(parser)
    shared.add_numbering(parser.add_argument_group(), selects=True)
    add_config(parser)
    request = parsed(parser, [*_words(options), "--", *(os.fspath(file) for file in files)])
    opener = Opener(shared.source_of(request), Listener())
    opened, exports = opener.start()
    try:
        if request.args["step_range"] is not None:
            opened.step_range = request.args["step_range"]
        failures = opener.add(opened, exports)
        for failure in failures if opened.session.reports else ():
            if not (request.opening.allow_missing and isinstance(failure, MissingFileError)):
                warnings.warn(str(failure), stacklevel=2)
        if not opened.session.reports:
            raise failures[0] if failures else UsageError("no files")
        opener.align(opened)
    except BaseException:
        opened.session.close()
        raise
    return Job(opened)


def catalogue() -> pandas.DataFrame:
    """List the questions that a job can answer, with a line of ``help`` for each ``question``.

    Names of two words, such as ``"stats cuda_gpu_kern_sum"``, are reports of ``nsys stats`` and recipes of
    ``nsys recipe``.
    """
    import pandas

    return pandas.DataFrame(_catalogue().items(), columns=["question", "help"])


def _catalogue() -> Mapping[str, str]:
    from nsystui.questions.queries.question import COMPARISON
    from nsystui.questions.queries.question import questions as all_questions

    return {f"{item.family} {item.name}".strip(): item.help for item in all_questions() if item.rows.home != COMPARISON}


def diff(
    a: Job | str | os.PathLike[str],
    b: Job | str | os.PathLike[str],
    table: str = "summary",
    step_range: str | None = None,
) -> pandas.DataFrame:
    """Return a table of ``nsystui diff`` (summary, kernels, families, nvtx, nccl, memory, …) for two jobs.

    Files, directories and globs are opened, and closed again. Raises UsageError for an unknown table.
    """
    from nsystui.base.selection import Selection
    from nsystui.questions.compare import TABLES, ComparisonOptions
    from nsystui.questions.compare.side import Side, job_labels

    if table not in TABLES:
        raise UsageError(f"diff: there is no table {table!r}: {meant(table, TABLES, 'there are ' + ', '.join(TABLES))}")
    with ExitStack() as opened:
        sides = [side if isinstance(side, Job) else opened.enter_context(open(side)) for side in (a, b)]
        jobs = [side._job for side in sides]
        labels = job_labels(jobs, [list(map(str, side.files)) for side in sides])
        before, after = (Side(job, Selection(), label) for job, label in zip(jobs, labels, strict=True))
        return frame_of(TABLES[table].make(before, after, ComparisonOptions(step_range=step_range)))


class Svg(str):
    """A drawing as the text of an SVG file, which notebooks show."""

    def _repr_svg_(self) -> str:
        return str(self)

    _repr_html_ = _repr_svg_


_WIDTH = 100
"""The width of the table of a job, in cells."""


class Job:
    """An open job. Close it with a ``with`` block or `close`. Only one thread may use it at a time.

    Each question of `catalogue` is a method, too: ``job.kernels(by="rank")`` is ``job.ask("kernels", by="rank")``.
    """

    api: _Asked
    budget: _Asked
    calltree: _Asked
    efficiency: _Asked
    events: _Asked
    functions: _Asked
    gaps: _Asked
    gpu: _Asked
    gpu_memory: _Asked
    kernels: _Asked
    libraries: _Asked
    memory: _Asked
    metrics: _Asked
    mpi: _Asked
    nccl: _Asked
    network: _Asked
    nvtx: _Asked
    osrt: _Asked
    overhead: _Asked
    overview: _Asked
    path: _Asked
    steps: _Asked
    streams: _Asked
    threads: _Asked
    timeline: _Asked

    def __init__(self, job: OpenedJob) -> None:
        self._open: OpenedJob | None = job

    @property
    def _job(self) -> OpenedJob:
        if self._open is None:
            raise UsageError("this job is closed: open it again with nsystui.open")
        return self._open

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:  # mypy refuses names that are not declared above

        def __getattr__(self, name: str) -> _Asked:
            if name not in Job.__annotations__:
                raise AttributeError(f"a job has no attribute {name!r}: nsystui.catalogue() lists its questions")
            question = _question(name.replace("_", "-"))

            def method(**options: Any) -> pandas.DataFrame:
                return self.ask(question.name, **options)

            names = ", ".join(option.name for option in question.options)
            method.__name__, method.__doc__ = (
                name,
                f"{question.description}\n\nOptions, besides those of `ask`: {names}",
            )
            return method

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *Job.__annotations__}

    def __repr__(self) -> str:
        from nsystui.base.answer import TableAnswer
        from nsystui.base.selection import Selection
        from nsystui.output.formats import fitting, write
        from nsystui.questions.queries.question import ask

        if self._open is None:
            return "<nsystui.Job, closed>"
        ranks, text = ask(_question("overview"), self._open, Selection(), None), StringIO()
        write(fitting(TableAnswer(ranks.name, ranks.columns, ranks.page(0, len(ranks))), _WIDTH), "table", text)
        return text.getvalue().rstrip("\n")

    def _repr_html_(self) -> str | None:
        return None if self._open is None else self.ask("overview").to_html(index=False)

    def close(self) -> None:
        """Release the files and the memory."""
        if self._open is not None:
            self._open.session.close()
            self._open = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The open exports, in the order of their ranks."""
        return tuple(source.path for report in self._job.session.reports for source in report.sources)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the job."""
        return tuple(task.rank for task in self._job.ranks)

    def ask(self, question: str, **options: Any) -> pandas.DataFrame:
        """Answer a question of `catalogue`.

        ``options`` are the options of the command of that name, ``sort``, ``top``, and the selection (``devices``,
        ``streams``, ``filter``, ``time="1.2s:1.5s"`` or, in seconds, ``(1.2, 1.5)``, ``ranks="0,4-7"`` or ``[0, 4]``).
        A switch is ``True``.

        Columns have the names of the JSON output, with the unit at the end. ``frame.attrs["units"]`` maps columns to
        quantities; ``frame.attrs["notes"]`` lists remarks, such as what an export lacks. Times are integers in ns of
        job time; missing values are ``<NA>``. Raises UsageError for an unknown question or option, and if the job is
        closed.
        """
        from nsystui.commands.arguments import arranged, selection_of
        from nsystui.questions.queries.question import ask

        declaration = _question(question)
        request = self._parsed(question, declaration, options)
        answer = ask(declaration, self._job, selection_of(request.selecting, self._job), declaration.read(request.args))
        return frame_of(arranged(request.output, answer))

    def draw(self, question: str, **options: Any) -> Svg:
        """Draw a question whose command offers ``--format svg``; ``options`` are as in `ask`.

        Raises UsageError if the question has no drawing, or there is nothing to draw.
        """
        from nsystui.commands.arguments import selection_of
        from nsystui.commands.question import drawn
        from nsystui.output.svg import svg

        declaration = _question(question)
        if declaration.drawing is None and declaration.map is None:
            raise UsageError(f"{question} has no drawing: job.ask({question!r}) returns its table")
        request = self._parsed(question, declaration, options)
        selection = selection_of(request.selecting, self._job)
        drawing = drawn(declaration, self._job, selection, declaration.read(request.args))
        if drawing is None:
            raise UsageError(f'{question}: there is nothing to draw; job.ask({question!r}).attrs["notes"] says why')
        return Svg(svg(drawing))

    def triage(self, thresholds: Mapping[str, float] | None = None, **selection: Any) -> pandas.DataFrame:
        """Check the job for problems: return a row for each finding, worst first, then for each rule that lacks data.

        ``thresholds`` have the names in ``nsystui triage --help``; ``selection`` is as in `ask`. The column ``ranks``
        holds lists of numbers.
        """
        from nsystui.commands.arguments import selection_of
        from nsystui.questions.triage.run import triage, triage_table
        from nsystui.questions.triage.thresholds import Thresholds

        changed = Thresholds().changed([f"{name}={value}" for name, value in (thresholds or {}).items()])
        request = self._parsed("triage", None, selection)
        result = triage(self._job, selection_of(request.selecting, self._job), changed)
        frame = frame_of(triage_table(result))
        ranks = [sorted(finding.ranks) for finding in result.findings]
        return frame.assign(ranks=ranks + [[] for _ in result.not_checked])

    def _parsed(self, name: str, question: Question | None, options: Mapping[str, Any]) -> Request:
        from nsystui.commands import arguments as shared
        from nsystui.commands.question import add_options
        from nsystui.commands.request import Request

        parser = _Parser(prog=name, add_help=False, allow_abbrev=False)
        shared.add_selection(parser)
        if question is not None:
            add_options(parser, question.options)
            shared.add_arranging(parser)
        return Request.of(parser.parse_args(_words(options)))


def frame_of(answer: Answer) -> pandas.DataFrame:
    """Convert an answer to a frame, with the column names of files and nullable types."""
    import pandas

    from nsystui.base.answer import PLACES, UNKNOWN, Unit, iter_rows

    keys = [column.file_key for column in answer.columns]
    frame = pandas.DataFrame.from_records(list(iter_rows(answer)), columns=keys)
    for key, column in zip(keys, answer.columns, strict=True):
        if column.unit in PLACES:
            frame[key] = frame[key].mask(frame[key] == UNKNOWN)
        # The type depends on the column, not on its values: frames of several jobs can be concatenated.
        kind = "string" if column.unit is Unit.TEXT else "Float64" if column.decimals is not None else "Int64"
        try:
            frame[key] = frame[key].astype(kind)
        except (TypeError, ValueError):  # values of several kinds
            frame[key] = frame[key].convert_dtypes()
    frame.attrs["units"] = {column.file_key: column.unit.value for column in answer.columns}
    frame.attrs["notes"] = list(answer.notes)
    return frame


class _Parser(Parser):
    """The command line's parser, which raises its errors: options mean the same in Python and in a shell."""

    def error(self, message: str) -> NoReturn:
        _, _, words = message.partition("unrecognized arguments: --")
        options = [option.lstrip("-").replace("-", "_") for action in self._actions for option in action.option_strings]
        if words:
            name = words.partition("=")[0].replace("-", "_")
            message = f"there is no option {name!r}: {meant(name, options, 'there are ' + ', '.join(options))}"
        raise UsageError(f"{self.prog}: {message}")


def _words(options: Mapping[str, Any]) -> list[str]:
    """Convert keyword arguments to command-line words: ``ranks=[0, 4]`` to ``--ranks=0,4``, ``time`` in seconds."""
    words = []
    for name, value in options.items():
        if name == "time" and isinstance(value, tuple):
            value = ":".join("" if end is None else f"{end}s" for end in value)
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            is_several = isinstance(value, Iterable) and not isinstance(value, str)
            words.append(f"{flag}={','.join(map(str, value)) if is_several else value}")
    return words


def _question(name: str) -> Question:
    from nsystui.questions.queries.question import question_named

    family, _, report = name.rpartition(" ")
    try:
        return question_named(report, family)
    except KeyError:
        import difflib

        close = difflib.get_close_matches(name, _catalogue(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "nsystui.catalogue() lists them"
        hint = f"it is a command, `nsystui {name}`" if is_command(name) else hint
        hint = "job.triage() is the triage" if name == "triage" else hint
        raise UsageError(f"no question is called {name!r}: {hint}") from None
