"""``nsystui stats``: reports of ``nsys stats`` by their names."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nsystui.commands import arguments as shared
from nsystui.questions.queries.question import Titled

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.selection import Selection
    from nsystui.questions.answers.remembered import Remembered
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.queries.question import Question

DESCRIPTION = """Reports of `nsys stats` by their names. With --format csv the output is that of
`nsys stats -q --format csv -r REPORT FILE`: same header, rows, order and rounding; with several files the statistics
are exact over all rows of all of them. A report whose tables the exports lack is told of on stderr and left out.
The MB of these reports are nsys's, of 1,000,000 bytes; every other command has bytes, in KiB and MiB of base 1024."""
EXAMPLES = """  nsystui stats -r cuda_gpu_kern_sum --format csv rank0.sqlite
  nsystui stats -r cuda_gpu_kern_sum:nvtx-name:base,cuda_gpu_mem_time_sum rank*.sqlite
  nsystui stats -r cuda_gpu_sum --filter-nvtx 'step 12' rank*.sqlite
  nsystui stats -r nvtx_gpu_proj_sum --by-rank --timeunit ms rank*.sqlite -o nvtx.csv
  nsystui stats --list-reports"""


class _ListReports(argparse.Action):
    """Prints the reports and ends, as ``--help`` does: no file is needed for it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nsystui.output.files import quiet_pipe
        from nsystui.questions.stats import all_reports, options_of

        names = [report.name + options_of(report) for report in all_reports()]
        width = max(map(len, names))
        with quiet_pipe() as stream:
            stream.writelines(
                f"{name:{width}}  {report.help}\n" for report, name in zip(all_reports(), names, strict=True)
            )
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-r",
        "--report",
        action="append",
        metavar="REPORT",
        help="report names, separated by commas (default: the usual ones, as far as the exports have their tables)",
    )
    parser.add_argument("--list-reports", action=_ListReports, nargs=0, help="print the reports and end")
    shared.add_files(parser)
    shared.add_dask(parser)
    group = parser.add_argument_group("as in nsys")
    group.add_argument(
        "--filter-time", metavar="START/END", help="events that overlap this span of job time; ns without a unit"
    )
    group.add_argument(
        "--filter-nvtx",
        metavar="RANGE[@DOMAIN][/INDEX]",
        help="events that overlap this NVTX range, of each export its own; INDEX counts from 0, @* is any domain",
    )
    group.add_argument("--timeunit", metavar="UNIT", default="ns", help="ns, us, ms or s (or nsec, usec, msec, sec)")
    group.add_argument("--by-rank", action="store_true", help="a table for each rank")
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.base.units import time_unit_of

    named = [text.strip() for words in arguments.report or () for text in words.split(",") if text.strip()]
    shared.check_output(arguments)
    time_unit_of(arguments.timeunit)
    memory = shared.remembered(arguments) if named else None
    known = [memory.recall("stats", text) for text in named] if memory is not None else []
    if not known or None in known:
        return _asked(arguments, named, memory)
    answers = zip(named, filter(None, known), strict=True)
    tables = (_table(arguments, text, None, title, answer) for text, (title, answer) in answers)
    _deliver(arguments, tables, is_alone=len(named) == 1)
    return 0


def _asked(arguments: argparse.Namespace, named: Sequence[str], memory: Remembered | None) -> int:
    """Opens the files and answers; what can be remembered is."""
    from nsystui.questions.stats import DEFAULT, lacking, report_of

    wanted = [(text, *report_of(text)) for text in named or DEFAULT]
    if arguments.dask and named:
        for _, report, _ in wanted:
            shared.check_dask(report)
    job = shared.open_job(arguments, whole=False)
    try:
        selections = list(_selections(arguments, job, _filtered(arguments, job)))
        is_alone = len(named) == 1 and not arguments.by_rank
        tables = _tables(arguments, job, wanted, selections, memory, quiet=not named, is_alone=is_alone)
        _deliver(arguments, tables, is_alone)
        return 3 if all(lacking(job.session, report) for _, report, _ in wanted) else 0
    finally:
        job.close()


def _deliver(arguments: argparse.Namespace, tables: Iterator[Titled], is_alone: bool) -> None:
    if is_alone:
        answer = next(tables).answer
        if len(answer):
            shared.deliver(arguments, answer)
        else:
            shared.deliver_empty(arguments, answer)
        return
    from nsystui.commands.tables import deliver_tables

    if not deliver_tables(arguments, tables) and not arguments.report:
        shared.complain(f"the usual reports: {shared.no_rows(arguments)}")


def _filtered(arguments: argparse.Namespace, job: OpenJob) -> Selection:
    """The selection of the flags; ``--filter-time`` and ``--filter-nvtx`` narrow it further."""
    from dataclasses import replace

    from nsystui.base.errors import UsageError
    from nsystui.questions.stats.report import filter_nvtx, filter_time, range_name

    selection = shared.selection_of(arguments, job)
    if arguments.filter_time:
        if arguments.time:
            raise UsageError("--time and --filter-time are two words for one thing: leave one out")
        selection = selection.with_window(filter_time(arguments.filter_time))
    if arguments.filter_nvtx:
        windows = filter_nvtx(job.session, range_name(arguments.filter_nvtx))
        names = [report.name for report in job.session.reports if report.index not in dict(windows)]
        if names:
            shared.complain(f"no such NVTX range, so nothing of it: {', '.join(names)}")
        selection = replace(selection, windows=windows)
    return selection


def _selections(
    arguments: argparse.Namespace, job: OpenJob, selection: Selection
) -> Iterator[tuple[int | None, Selection]]:
    """The rank (``None``: all together) and what is selected for it."""
    if not arguments.by_rank:
        yield None, selection
        return
    for item in job.ranks:
        if selection.tasks is None or item.task in selection.tasks:
            yield item.rank, selection.with_tasks(frozenset({item.task}))


def _tables(
    arguments: argparse.Namespace,
    job: OpenJob,
    wanted: Sequence[tuple[str, Question, Any]],
    selections: Sequence[tuple[int | None, Selection]],
    memory: Remembered | None,
    quiet: bool,
    is_alone: bool,
) -> Iterator[Titled]:
    """A table for each report and rank that has rows; of the others a line on stderr, unless ``quiet``.

    A report that ``is_alone`` has a table either way.
    """
    from nsystui.questions.stats import lacking

    for text, report, options in wanted:
        missing = lacking(job.session, report)
        if missing and not quiet:
            shared.complain(f"{text}: {missing}")
        if missing and not is_alone:
            continue
        for rank, selection in selections:
            answer = report.ask(job, selection, options)
            of_rank = "" if rank is None else f", rank {rank}"
            if not len(answer):
                if not missing and not quiet:
                    shared.complain(f"{text}{of_rank}: {shared.no_rows(arguments)}")
                if is_alone:
                    yield _table(arguments, text, rank, report.help, answer)
                continue
            if memory is not None and not report.name.endswith("_trace"):
                memory.keep(job, answer, report.help, "stats", text)
            yield _table(arguments, text, rank, report.help, answer)


def _table(arguments: argparse.Namespace, text: str, rank: int | None, title: str, answer: Answer) -> Titled:
    """The answer of the report ``text`` in the unit of time that was asked for."""
    from nsystui.base.units import in_unit, time_unit_of

    of_rank = "" if rank is None else f", rank {rank}"
    labels: dict[str, str | int] = {"report": text} if rank is None else {"report": text, "rank": rank}
    name = text.replace(":", "_") + ("" if rank is None else f"_rank{rank}")
    unit = time_unit_of(arguments.timeunit)
    return Titled(name, f"{text}{of_rank}: {title}", in_unit(answer, unit), labels, needs_title=rank is not None)
