"""Flags that commands share (files, selection, format), the opening of a job, and the delivery of answers."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nsystui.base.answer import head, key_named
from nsystui.base.errors import DamagedError, UsageError
from nsystui.base.terminal import complain as complain
from nsystui.base.terminal import quiet_pipe
from nsystui.base.text import counted
from nsystui.commands.configuration import CLOCKS, add_limits
from nsystui.commands.request import OutputName
from nsystui.questions.queries.question import STEPS, Expected, Question, Titled, Values

if TYPE_CHECKING:
    from nsystui.base.answer import Answer, Column
    from nsystui.base.selection import Selection
    from nsystui.commands.progress import ProgressLine
    from nsystui.commands.request import Output, Request, Selecting
    from nsystui.questions.answers.remembered import Remembered
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.job.opening import JobSource


# Options that select rows of an answer, and all options whose answers are not remembered.
_NARROWING = ("filter_time", "filter_nvtx", "instances", "bucket")


class Print(argparse.Action):
    """An option that prints the lines of ``const(value)`` and exits, like ``--help``; it needs no FILE."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, values: object, __: object = None) -> None:
        from nsystui.output.files import print_lines

        print_lines(self.const(values))
        parser.exit()


def add_files(parser: argparse.ArgumentParser, nargs: str = "+", has_screens: bool = False) -> None:
    """Add the exports and the options to open them; ``nargs`` is ``*`` if no file is required."""
    parser.add_argument(
        "files", nargs=nargs, metavar="FILE", help="an export (.sqlite), a directory of them, a packed job, or a glob"
    )
    group = parser.add_argument_group("opening")
    group.add_argument("--no-cache", action="store_true", help="keep the columns in memory, write no cache")
    add_convert(group)
    if not has_screens:
        add_missing(group)
    group.add_argument(
        "--clock",
        choices=CLOCKS,
        default=CLOCKS[0],
        help="the common clock of several reports: UTC refined by collectives that all ranks took part in (default), "
        "UTC alone, or none (each from its own start)",
    )
    add_limits(group)


def add_convert(group: argparse._ActionsContainer) -> None:
    """Add ``--convert``, which makes exports of reports."""
    group.add_argument(
        "--convert", action="store_true", help="run `nsys export` on .nsys-rep files, into the cache directory"
    )


def add_missing(group: argparse._ActionsContainer) -> None:
    """Add ``--allow-missing``, for commands that answer from the files that they can open."""
    group.add_argument(
        "--allow-missing",
        action="store_true",
        help="exit with status 0, not 4, if only files that do not exist are left out",
    )


def add_dask(parser: argparse.ArgumentParser) -> None:
    """Add ``--dask``, with which a cluster computes results of reports."""
    parser.add_argument(
        "--dask",
        metavar="SCHEDULER",
        help="compute the results of single reports on a Dask cluster: the scheduler's address (tcp://host:8786) or "
        "its file; FILE is a packed job that the workers see under the same path; they need nsystui[dask]",
    )


def check_dask(question: Question, values: Values = MappingProxyType({})) -> None:
    """Raise UsageError if a question with these option ``values`` cannot run on a cluster."""
    listed = [f"--{option.flag}" for option in question.options if option.lists and option.is_given(values)]
    if listed or "reports" not in question.reads:
        name = " ".join([question.name, *listed])
        raise UsageError(f"--dask: {name} does not run on a cluster: leave --dask out")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the selection, the same for every command and table."""
    group = parser.add_argument_group("selection")
    group.add_argument(
        "--time",
        metavar="A:B",
        help="a window of job time, such as 1.2s:1.5s or 800ms: (with units); events that overlap it",
    )
    add_numbering(group, selects=True)
    group.add_argument("--devices", metavar="LIST", help="CUDA device numbers, such as 0, 0-3 or unknown")
    group.add_argument("--streams", metavar="LIST", help="CUDA stream numbers, or unknown")
    group.add_argument(
        "--filter", metavar="TEXT", help="names that contain TEXT; !TEXT that do not; /TEXT/ a regular expression"
    )


def add_numbering(group: argparse._ActionsContainer, selects: bool = False) -> None:
    """Add ``--ranks``, which assigns ranks to files, or also ``selects`` ranks."""
    what = "the rank of each file, where the exports do not have it"
    if selects:
        what = "ranks, such as 0,4-7; or the rank of each file"
    how = r"a pattern on file names with the number in a group, such as 'rank(\d+)', or FILE=RANK,FILE=RANK"
    group.add_argument("--ranks", metavar="LIST" if selects else "WHO", help=f"{what}: {how}")


def add_steps(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--step-range`` and ``--steps-by``, which define the steps."""
    for option in STEPS:
        parser.add_argument(
            f"--{option.flag}", metavar=option.metavar or None, choices=option.choices or None, help=option.help
        )


def add_format(parser: argparse.ArgumentParser, has_drawing: bool = False) -> None:
    """Add the destination and format of the answer, with SVG if ``has_drawing``."""
    group = parser.add_argument_group("output")
    formats = ("table", "csv", "json", "md", "parquet", *(("svg",) if has_drawing else ()))
    group.add_argument("--format", choices=formats, help="default: table, or as -o ends")
    add_target(group, "FILE", f"write to FILE (.csv .json .md .parquet .txt{' .svg' * has_drawing}); - is stdout")
    group.add_argument("--force", action="store_true", help="let -o overwrite a file")
    add_arranging(group)
    group.add_argument(
        "--wide", action="store_true", help="every column of a table, also where the terminal is narrower"
    )


def add_target(
    parser: argparse._ActionsContainer, metavar: str, line: str, required: bool = False, default: str | None = None
) -> None:
    """Add ``-o``, the file or directory to write, with a ``line`` of help."""
    parser.add_argument(
        "-o", "--output", dest="target", type=OutputName, metavar=metavar, help=line, required=required, default=default
    )


def add_arranging(parser: argparse._ActionsContainer) -> None:
    """Add ``--sort`` and ``--top``."""
    parser.add_argument("--sort", metavar="COLUMN", help="sort by this column (its JSON key or heading), largest first")
    parser.add_argument(
        "--top", type=int, metavar="N", help="only the first N rows (default: all; on a terminal a screenful)"
    )


def selection_of(flags: Selecting, job: OpenJob) -> Selection:
    """Return the selection of the flags. Raises UsageError for ranks that do not exist."""
    from nsystui.base.selection import NameFilter, Selection, parse_numbers, window_words

    selection = Selection(
        devices=parse_numbers(flags.devices, "devices") if flags.devices else None,
        streams=parse_numbers(flags.streams, "streams") if flags.streams else None,
        name=NameFilter(flags.filter) if flags.filter else None,
    )
    if flags.ranks and not flags.numbering:
        selection = selection.with_tasks(job.tasks_of_ranks(parse_numbers(flags.ranks, "ranks")))
    if flags.time:
        window, events = job.window(flags.time), job.extent()
        if window.start >= events.end or window.end <= events.start:
            say_notes(f"--time {flags.time}: no event is in this window; the job's events run {window_words(events)}")
        selection = selection.with_window(window)
    return selection


def open_job(
    request: Request,
    whole: bool = True,
    times: bool = False,
    expected: Expected | None = None,
    partly: bool = False,
    line: ProgressLine | None = None,
) -> OpenJob:
    """Open all files that can be opened; add other files, and damaged tables, to ``request.unread``.

    Unless ``whole``, data is read when it is needed; ``expected`` announces it (`Session.expect`). For a selected
    window, or with ``times`` of several reports, clocks are aligned. With ``partly``, damaged exports may open in part.
    Jobs open at once share one ``line``. Raises NsystuiError if nothing can be opened, UsageError for invalid flags.
    """
    from nsystui.commands.progress import OpeningProgress, ProgressLine
    from nsystui.questions.job.opening import Opener

    opener = Opener(source_of(request), OpeningProgress(line := line or ProgressLine(), complain))
    job, exports = opener.start()
    job.tell, job.session.waiting, job.session.dropped = say_notes, line.waiting, request.unread
    try:
        with line, line.waiting("the columns"):
            failures = opener.add(job, exports, whole)
            if partly and not job.session.reports and any(isinstance(error, DamagedError) for error in failures):
                failures = opener.add(job, exports, whole, partly)
        job.left_out = tuple(map(str, failures))
        if not job.session.reports:
            raise request.none_opened(failures) if failures else UsageError("no files")
        request.unread.extend(failures)
        opener.join(job)
        say_notes(*filter(None, [job.several_runs]))
        is_aligned = len(job.session.reports) > 1 and bool(times or request.selecting.time)
        _expect(job, expected, request, is_aligned)
        if is_aligned:
            with line.waiting("clocks"):
                opener.align(job)
    except BaseException:
        job.close()
        raise
    return job


@contextmanager
def opened(request: Request, **how: Any) -> Iterator[tuple[OpenJob, Selection]]:
    """Open the files as `open_job` does; yield the job and the selection of the flags, and close the job."""
    with closing(open_job(request, **how)) as job:
        yield job, selection_of(request.selecting, job)


def source_of(request: Request) -> JobSource:
    """Return the exports to open, and how."""
    from nsystui.questions.job.opening import JobSource

    opening, limits, cache = request.opening, request.limits, request.cache
    return JobSource(
        tuple(opening.files), None if opening.no_cache else cache.directory, limits.threads, opening.convert,
        cache.conversions, limits.memory, cache.cap,
        ranks=request.selecting.ranks or "", clock=opening.clock, steps_by=request.args.get("steps_by"),
        families=request.config.families, dask=opening.dask,
    )  # fmt: skip


def _expect(job: OpenJob, expected: Expected | None, request: Request, is_aligned: bool) -> None:
    if expected is None:
        return
    columns, tallied = expected
    if is_aligned and request.opening.clock == "collectives":
        from nsystui.questions.collectives.alignment import columns_read

        clock = columns_read()
        columns = {table: {*columns.get(table, ()), *clock.get(table, ())} for table in {*columns, *clock}}
    job.session.expect(columns, tallied, now=bool(request.selecting.time))


def remembered(request: Request) -> Remembered | None:
    """Return remembered answers for a command's files, or ``None`` if a flag narrows the question or forbids them.

    Also ``None`` if files cannot be opened: opening them reports why.
    """
    opening, selecting = request.opening, request.selecting
    narrowing = map(request.args.get, (*_NARROWING, "by_rank", "ncu", "nccl_log"))
    if opening.no_cache or opening.dask or opening.clock != CLOCKS[0]:
        return None
    if any((selecting.is_narrowing, selecting.ranks, *narrowing)):
        return None
    from nsystui.questions.answers.remembered import Remembered

    return Remembered.of_source(source_of(request))


def say_notes(*notes: str) -> None:
    """Print notes, each on a line."""
    for note in notes:
        complain(f"note: {note}")


def deliver(request: Request, answer: Answer, notes: list[str] | None = None) -> int:
    """Print or write an answer as requested; return 3 if the exports lack its rows, else 0.

    Its notes follow it, or are added to ``notes``, which follow several tables.
    """
    from nsystui.output.files import print_answer

    has_rows = len(answer) > 0
    request.delivered.append(answer.name)
    answer = arranged(request.output, answer)
    if request.output.is_file:
        _save(request.output, answer)
    else:
        output = request.output
        print_answer(answer, output.format or "table", is_wide=output.wide, is_cut=output.top is None)
    if notes is None:
        say_notes(*answer.notes)
    else:
        notes += [note for note in answer.notes if note not in notes]
    if has_rows:
        return 0
    if not answer.total and answer.notes:
        return 3
    complain(f"{answer.name}: {no_rows(request, answer.total)}")
    return 0


def check_sort(
    sort_key: str | None, columns: Mapping[str, Sequence[Column]], tables: Sequence[str] | None = None
) -> None:
    """Raise UsageError if a table lacks the column to sort by; ``columns`` contains the columns of all tables."""
    if sort_key is None:
        return
    sortable = [name for name, table_columns in columns.items() if key_named(table_columns, sort_key) is not None]
    if lacking := [name for name in tables or columns if name not in sortable]:
        names = ", ".join(column.file_key for column in columns[lacking[0]])
        advice = f"choose with --tables {','.join(sortable)}" if sortable else f"the columns are {names}"
        raise UsageError(f"--sort {sort_key}: not a column of {', '.join(lacking)}; {advice}")


def deliver_several(request: Request, tables: Sequence[Titled]) -> int:
    """Deliver the tables of an answer; return the exit status, 3 if no table has rows."""
    if len(tables) == 1:
        return deliver(request, tables[0].answer)
    check_sort(request.output.sort, {table.name: table.answer.columns for table in tables})
    deliver_tables(request, tables)
    return 0 if any(len(table.answer) for table in tables) else 3


def deliver_tables(request: Request, tables: Iterable[Titled]) -> int:
    """Print or write the tables as they arrive, and return their number.

    For a file ``out.csv``, each table is in ``out_NAME.csv``. JSON is one array of objects, each with a table's labels
    and ``rows``. The notes of all tables follow the last. Raises the errors of `deliver`.
    """
    from nsystui.output.files import print_lines
    from nsystui.output.formats import to_json

    number = 0
    notes: list[str] = []
    is_json = request.output.format == "json" and not request.output.is_file
    for number, table in enumerate(tables, 1):
        if request.output.is_file:
            target = Path(str(request.output.target))
            path = target.with_name(f"{target.stem}_{table.name}{target.suffix}")
            deliver(replace(request, output=replace(request.output, target=str(path))), table.answer, notes)
        elif is_json:
            labels = to_json(dict(table.labels) or {"table": table.name}).removesuffix("}")
            with quiet_pipe() as stream:
                stream.write(f'{"," if number > 1 else "["}\n{labels}, "rows": ')
            deliver(request, table.answer, notes)
            with quiet_pipe() as stream:
                stream.write("}")
        else:
            if number > 1:
                print_lines([""])
            if table.needs_title or request.output.format in (None, "table", "md"):
                print_lines([f"## {table.title}", ""] if request.output.format == "md" else [f"# {table.title}"])
            deliver(request, table.answer, notes)
    if is_json:
        print_lines(["", "]"] if number else ["[]"])
    say_notes(*notes)
    return number


def deliver_empty(output: Output, answer: Answer) -> None:
    """Deliver a table without rows, after its reason: a file has columns, JSON an empty list."""
    if output.is_file:
        _save(output, answer)
    elif output.format == "json":
        from nsystui.output.files import print_lines

        print_lines(["[]"])


def no_rows(request: Request, total: int | None = None) -> str:
    """Return why a table with recorded data is empty; ``total`` counts rows before the filter."""
    if request.selecting.is_narrowing or any(map(request.args.get, _NARROWING)):
        return "no rows in this selection"
    return (
        f"no rows: none of {total:,} matches the selection" if total else "no rows: these exports contain none of this"
    )


def _save(output: Output, answer: Answer) -> None:
    from nsystui.output import files

    rows = files.save(answer, Path(str(output.target)), overwrite=output.force)
    complain(f"wrote {counted(rows, 'row')} to {output.target}")


def arranged(output: Output, answer: Answer) -> Answer:
    """Return an answer, sorted and cut by the flags."""
    if output.sort:
        key = key_named(answer.columns, output.sort)
        if key is None:
            names = ", ".join(column.file_key for column in answer.columns)
            raise UsageError(f"--sort {output.sort}: the columns are {names}")
        answer = answer.sorted_by(key, descending=True)
    return head(answer, output.top) if output.top is not None else answer
