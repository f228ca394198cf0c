"""``nsystui stats``: reports of ``nsys stats`` by their names."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsystui.base.errors import UsageError
from nsystui.base.units import in_unit, time_unit_of
from nsystui.commands import arguments as shared
from nsystui.commands.request import Request
from nsystui.questions.queries.question import Question, Titled

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.selection import Selection
    from nsystui.questions.answers.remembered import Remembered
    from nsystui.questions.job.job import OpenJob

DESCRIPTION = """Reports of `nsys stats` by their names. With --format csv the output is that of
`nsys stats -q --format csv -r REPORT FILE`: same header, rows, order and rounding; with several files the statistics
are exact over all rows of all of them. A report whose tables the exports lack is left out, with a message on stderr.
The MB of these reports are nsys's, of 1,000,000 bytes; every other command has bytes, in KiB and MiB of base 1024."""
EXAMPLES = """  nsystui stats -r cuda_gpu_kern_sum --format csv rank0.sqlite
  nsystui stats -r cuda_gpu_kern_sum:nvtx-name:base,cuda_gpu_mem_time_sum rank*.sqlite
  nsystui stats -r cuda_gpu_sum --filter-nvtx 'step 12' rank*.sqlite
  nsystui stats -r nvtx_gpu_proj_sum --by-rank --timeunit ms rank*.sqlite -o nvtx.csv
  nsystui stats --list-reports"""


def _listing(_: object) -> list[str]:
    from nsystui.questions.stats import all_reports, options_of

    names = [report.name + options_of(report) for report in all_reports()]
    width = max(map(len, names))
    return [f"{name:{width}}  {report.help}" for report, name in zip(all_reports(), names, strict=True)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-r",
        "--report",
        action="append",
        metavar="REPORT",
        help="report names, separated by commas (default: the usual ones, as far as the exports have their tables)",
    )
    parser.add_argument(
        "--list-reports", action=shared.Print, nargs=0, const=_listing, help="print the reports and end"
    )
    shared.add_files(parser)
    shared.add_dask(parser)
    group = parser.add_argument_group("as in nsys")
    group.add_argument(
        "--filter-time", metavar="START/END", help="events that overlap this span of job time, such as 1.2s/1.5s"
    )
    group.add_argument(
        "--filter-nvtx",
        metavar="RANGE[@DOMAIN][/INDEX]",
        help="events that overlap this NVTX range, separate for each export; INDEX counts from 0, @* is any domain",
    )
    group.add_argument("--timeunit", metavar="UNIT", default="ns", help="ns, us, ms or s (or nsec, usec, msec, sec)")
    group.add_argument("--by-rank", action="store_true", help="a table for each rank")
    shared.add_selection(parser)
    shared.add_format(parser)


def run(request: Request) -> int:
    names = [text.strip() for words in request.args["report"] or () for text in words.split(",") if text.strip()]
    request.check()
    time_unit_of(request.args["timeunit"])
    memory = shared.remembered(request) if names else None
    cached = [memory.recall("stats", text) for text in names] if memory is not None else []
    if not cached or None in cached:
        return _answer(request, names, memory)
    answers = zip(names, filter(None, cached), strict=True)
    tables = (_table(request, text, None, title, answer) for text, (title, answer) in answers)
    _deliver(request, tables, is_alone=len(names) == 1)
    return 0


def _answer(request: Request, names: Sequence[str], memory: Remembered | None) -> int:
    from nsystui.questions.stats import DEFAULT, lacking, report_of

    wanted = [(text, *report_of(text)) for text in names or DEFAULT]
    if request.opening.dask and names:
        for _, report, _ in wanted:
            shared.check_dask(report)
    with shared.opened(request, whole=False) as (job, selection):
        selections = _selections(request, job, selection)
        is_alone = len(names) == 1 and not request.args["by_rank"]  # a table even without rows
        tables = list(_tables(request, job, wanted, selections, memory, is_alone))
        _deliver(request, iter(tables), is_alone)  # nothing is printed before all is read
        return 3 if all(lacking(job.session, report) for _, report, _ in wanted) else 0


def _tables(
    request: Request, job: OpenJob, wanted: Sequence[tuple[str, Question, Any]],
    selections: Sequence[tuple[int | None, Selection]], memory: Remembered | None, is_alone: bool,
) -> Iterator[Titled]:  # fmt: skip
    """Yield a table per report and rank with rows; explain missing tables of named reports on stderr."""
    from nsystui.questions.stats import lacking

    is_named = bool(request.args["report"])
    for text, report, options in wanted:
        missing = lacking(job.session, report)
        if missing and is_named:
            shared.complain(f"{text}: {missing}")
        for rank, selection in selections if is_alone or not missing else ():
            with job.session.waiting(text):
                answer = report.ask(job, selection, options)
            if is_named and not (len(answer) or missing):
                shared.complain(f"{text}{f', rank {rank}' * (rank is not None)}: {shared.no_rows(request)}")
            if len(answer) and memory is not None and not report.name.endswith("_trace"):
                memory.keep(job, answer, report.help, "stats", text)
            if len(answer) or is_alone:
                yield _table(request, text, rank, report.help, answer)


def _deliver(request: Request, tables: Iterator[Titled], is_alone: bool) -> None:
    if is_alone:
        answer = next(tables).answer
        if len(answer):
            shared.deliver(request, answer)
        else:
            shared.deliver_empty(request.output, answer)
        return
    if not shared.deliver_tables(request, tables) and not request.args["report"]:
        shared.complain(f"the usual reports: {shared.no_rows(request)}")


def _selections(request: Request, job: OpenJob, selection: Selection) -> list[tuple[int | None, Selection]]:
    """Return the filtered selection; with ``--by-rank``, of each rank, with its number."""
    from nsystui.questions.queries.tasks import selected_ranks
    from nsystui.questions.stats.report import filter_nvtx, filter_time, range_name

    args = request.args
    if args["filter_time"]:
        if request.selecting.time:
            raise UsageError("--time and --filter-time mean the same: leave one out")
        selection = selection.with_window(filter_time(args["filter_time"]))
    if args["filter_nvtx"]:
        windows = filter_nvtx(job.session, range_name(args["filter_nvtx"]))
        if names := [report.name for report in job.session.reports if report.index not in dict(windows)]:
            shared.complain(f"no such NVTX range in {', '.join(names)}: nothing of these exports is shown")
        selection = replace(selection, windows=windows)
    if not args["by_rank"]:
        return [(None, selection)]
    ranks = selected_ranks(job.ranks, selection)
    return [(item.rank, selection.with_tasks(frozenset({item.task}))) for item in ranks]


def _table(request: Request, text: str, rank: int | None, title: str, answer: Answer) -> Titled:
    of_rank = "" if rank is None else f", rank {rank}"
    labels: dict[str, str | int] = {"report": text} if rank is None else {"report": text, "rank": rank}
    name = text.replace(":", "_") + ("" if rank is None else f"_rank{rank}")
    unit = time_unit_of(request.args["timeunit"])
    return Titled(name, f"{text}{of_rank}: {title}", in_unit(answer, unit), labels, needs_title=rank is not None)
