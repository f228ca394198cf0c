"""``nsystui nccl-log``: NCCL's debug log as tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nsystui.base.answer import Unit
from nsystui.base.errors import ExportError, MissingDataError, NsystuiError
from nsystui.base.units import format_value
from nsystui.commands import arguments as shared
from nsystui.commands.request import Request
from nsystui.exports.nccl_log.files import OpenLog, named, open_log, size_of
from nsystui.exports.nccl_log.lines import LogReader
from nsystui.questions.nccl_log.summary import LogSummary, StepCut, notes, nothing, steps_of
from nsystui.questions.nccl_log.tables import TABLES
from nsystui.questions.queries.question import Titled, chosen_tables

if TYPE_CHECKING:
    from nsystui.commands.progress import ProgressLine

DESCRIPTION = """Debug logs of NCCL and RCCL (NCCL_DEBUG=INFO) and NCCL Inspector's records as tables, in one pass:
calls and bytes by op, message sizes in buckets, calls by op, count and datatype, communicators with their ranks, rings,
trees and transports and what looks wrong in them, NCCL's choices of algorithm, results of nccl-tests, and the
iterations that NeMo, Megatron-LM, Lightning and DeepSpeed report.
Record with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING."""
EXAMPLES = """  nsystui nccl-log slurm-4711.out
  nsystui nccl-log nccl.*.log.gz --steps 45:50
  nsystui nccl-log nccl.*.log --tables ranks,gpus
  nsystui nccl-log 'nccl-inspector-4711/*.log' --tables inspector
  nsystui nccl-log nccl.*.log --tables problems,rings,trees,transports
  nsystui nccl-log train.log --tables calls --format csv -o calls.csv
  zstd -dc nccl.log.zst | nsystui nccl-log -

tables (those with * only if asked for):
""" + "\n".join(f"  {name + '*' * (not table.is_usual):14} {table.title}" for name, table in TABLES.items())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a log, plain or .gz, or - for standard input")
    shared.add_missing(parser)
    group = parser.add_argument_group("log")
    group.add_argument(
        "--steps",
        metavar="A:B",
        help="only the lines from training iteration A (`Training epoch 0, iteration A/99`) to "
        "iteration B+1, in each file by its own lines; A: and :B leave an end open",
    )
    group.add_argument("--tables", metavar="LIST", help="which tables, separated by commas (see below), or all")
    shared.add_format(parser)


def run(request: Request) -> int:
    args = request.args
    request.output.check()
    names = chosen_tables(args["tables"], tuple(TABLES), [name for name, table in TABLES.items() if table.is_usual])
    if request.output.sort is not None:  # before the reading, which may take minutes
        shared.check_sort(
            request.output.sort, {name: table.make(LogSummary()).columns for name, table in TABLES.items()}, names
        )
    cut = StepCut(steps_of(args["steps"])) if args["steps"] is not None else None
    summary, reader = LogSummary(), LogReader()
    _read_all(request, summary, reader, cut)
    summary.lines, summary.results = reader.lines, reader.reported
    tables = _tables(names, summary, cut, is_named=args["tables"] not in (None, "all"))
    if len(names) > 1:
        shared.deliver_tables(request, tables)
    elif tables:
        shared.deliver(request, tables[0].answer)
    else:
        shared.deliver_empty(request.output, TABLES[names[0]].make(summary))
    return 0 if tables else MissingDataError.exit_code


def _read_all(request: Request, summary: LogSummary, reader: LogReader, cut: StepCut | None) -> None:
    """Read every log; add errors to ``request.unread``. Raises NsystuiError if no log is readable."""
    from nsystui.commands.progress import ProgressLine

    names = named(request.opening.files)
    sizes = [size_of(name) for name in names]
    offset = opened_logs = 0
    with ProgressLine(None if None in sizes else sum(filter(None, sizes))) as line:
        for name, size in zip(names, sizes, strict=True):
            try:
                with open_log(name) as log:
                    opened_logs += 1
                    _read(log, summary, reader, cut, line, offset)
            except ExportError as error:
                request.unread.append(error)
            offset += size or 0
    if not opened_logs:
        raise NsystuiError("no log could be opened")


def _read(
    log: OpenLog, summary: LogSummary, reader: LogReader, cut: StepCut | None, line: ProgressLine, offset: int
) -> None:
    """Add a log that begins ``offset`` bytes after the first log's beginning."""

    def read(size: int) -> bytes:
        position = offset + log.position
        line.show(lambda: f"reading {log.name}  {format_value(Unit.BYTES, position)}", position)
        return log.read(size)

    if cut is None:
        summary.add(reader.read(read))
        return
    heard, outside = cut.heard.number, cut.outside
    summary.add(cut.of(reader.read(read)))
    if cut.heard.number == heard and cut.outside > outside:
        line.clear()
        shared.complain(f"{log.name}: no training lines to cut it by, so --steps leaves all of its calls out")


def _tables(names: Sequence[str], summary: LogSummary, cut: StepCut | None, is_named: bool) -> list[Titled]:
    """Return tables with rows, with the notes on the last; report requested tables without rows on stderr."""
    answers = {name: TABLES[name].make(summary) for name in names}
    filled = [name for name, answer in answers.items() if len(answer)]
    has_calls = summary.calls or summary.inspected
    is_empty = cut.chosen == 0 if cut is not None else not (has_calls or set(filled) - {"lines"})
    if is_empty:
        shared.complain(nothing(summary, cut))
        return []
    if is_named:
        for name in [name for name in names if name not in filled]:
            shared.complain(f"{name}: no rows")
    if filled:
        answers[filled[-1]] = replace(answers[filled[-1]], notes=tuple(notes(summary, cut)))
    return [Titled(name, TABLES[name].title, answers[name]) for name in filled]
