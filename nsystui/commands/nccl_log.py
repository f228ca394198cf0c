"""``nsystui nccl-log``: NCCL's debug log as tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsystui.commands import arguments as shared
from nsystui.questions.nccl_log.tables import TABLES

if TYPE_CHECKING:
    from nsystui.commands.blocks import Block
    from nsystui.commands.reading_bar import ReadingBar
    from nsystui.exports.nccl_log.files import OpenLog
    from nsystui.exports.nccl_log.lines import LogReader
    from nsystui.questions.nccl_log.steps import StepCut
    from nsystui.questions.nccl_log.summary import Summary

DESCRIPTION = """The debug log of NCCL and RCCL (NCCL_DEBUG=INFO) as tables, in one pass and in little memory:
calls and bytes by op, message sizes in buckets, calls by op, count and datatype, communicators with their ranks,
NCCL's choices of algorithm, and step times of NeMo's own lines.
Record with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING."""
EXAMPLES = """  nsystui nccl-log slurm-4711.out
  nsystui nccl-log nccl.*.log.gz --steps 45:50
  nsystui nccl-log nccl.*.log --tables ranks,gpus
  nsystui nccl-log train.log --tables calls --format csv -o calls.csv
  zstd -dc nccl.log.zst | nsystui nccl-log -

tables (those with * only if asked for):
""" + "\n".join(f"  {name + '*' * (not table.is_usual):14} {table.title}" for name, table in TABLES.items())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a log, plain or .gz, or - for standard input")
    group = parser.add_argument_group("log")
    group.add_argument(
        "--steps",
        metavar="A:B",
        help="only what stands from the line of training iteration A (`Training epoch 0, iteration A/99`) to that of "
        "iteration B+1, in each file by its own lines; A: and :B leave an end open",
    )
    group.add_argument("--tables", metavar="LIST", help="which tables, separated by commas (see below), or all")
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.base.errors import MissingDataError
    from nsystui.commands.blocks import deliver_blocks
    from nsystui.exports.nccl_log.lines import LogReader
    from nsystui.questions.nccl_log.steps import StepCut, steps_of
    from nsystui.questions.nccl_log.summary import Summary

    shared.check_output(arguments)
    names = _names(arguments.tables)
    _check_sort(arguments.sort, names)
    cut = StepCut(steps_of(arguments.steps)) if arguments.steps is not None else None
    summary, reader = Summary(), LogReader()
    _read_all(arguments, summary, reader, cut)
    summary.lines = reader.lines
    blocks = _blocks(names, summary, cut, is_named=arguments.tables not in (None, "all"))
    if len(names) > 1:
        deliver_blocks(arguments, blocks)
    elif blocks:
        shared.deliver(arguments, blocks[0].answer)
    else:
        shared.deliver_empty(arguments, TABLES[names[0]].make(summary))
    return 0 if blocks else MissingDataError.exit_code


def _names(text: str | None) -> list[str]:
    """The tables that ``--tables`` names, in the order of `TABLES`; the usual ones without it. Raises UsageError."""
    from nsystui.base.errors import UsageError

    if text is None:
        return [name for name, table in TABLES.items() if table.is_usual]
    asked = {name.strip() for name in text.split(",") if name.strip()}
    wrong = sorted(asked - {*TABLES, "all"})
    if wrong or not asked:
        raise UsageError(f"--tables {text!r}: the tables are {', '.join(TABLES)}, all")
    return [name for name in TABLES if name in asked or "all" in asked]


def _check_sort(key: str | None, names: Sequence[str]) -> None:
    """Raises UsageError where a table lacks the column to sort by: before the reading, which may take minutes."""
    from nsystui.base.errors import UsageError
    from nsystui.questions.nccl_log.summary import Summary

    if key is None:
        return
    keys = {name: [column.key for column in table.make(Summary()).columns] for name, table in TABLES.items()}
    lacking = [name for name in names if key not in keys[name]]
    if lacking:
        having = ",".join(name for name in TABLES if key in keys[name])
        advice = f"choose with --tables {having}" if having else f"the columns are {', '.join(keys[lacking[0]])}"
        raise UsageError(f"--sort {key}: not a column of {', '.join(lacking)}; {advice}")


def _read_all(arguments: argparse.Namespace, summary: Summary, reader: LogReader, cut: StepCut | None) -> None:
    """Adds every log that can be read; of the others a line on stderr. Raises NsystuiError where none can."""
    from nsystui.base.errors import ExportError, NsystuiError
    from nsystui.commands.reading_bar import reading_bar
    from nsystui.exports.nccl_log.files import named, open_log, size_of

    names = named(arguments.files)
    sizes = [size_of(name) for name in names]
    done = opened = 0
    with reading_bar(None if None in sizes else sum(filter(None, sizes))) as bar:
        for name, size in zip(names, sizes, strict=True):
            try:
                with open_log(name) as log:
                    opened += 1
                    _read(log, summary, reader, cut, bar, done)
            except ExportError as error:
                bar.clear()
                shared.complain(str(error))
            done += size or 0
    if not opened:
        raise NsystuiError("no log could be opened")


def _read(log: OpenLog, summary: Summary, reader: LogReader, cut: StepCut | None, bar: ReadingBar, before: int) -> None:
    """Adds one log, which begins ``before`` bytes after the first one."""

    def read(size: int) -> bytes:
        bar.show(before + log.position, log.name)
        return log.read(size)

    if cut is None:
        summary.add(reader.read(read))
        return
    heard, outside = cut.heard, cut.outside
    summary.add(cut.of(reader.read(read)))
    if cut.heard == heard and cut.outside > outside:
        bar.clear()
        shared.complain(f"{log.name}: no training lines to cut it by, so --steps leaves all of its calls out")


def _blocks(names: Sequence[str], summary: Summary, cut: StepCut | None, is_named: bool) -> list[Block]:
    """The tables that have rows, with the notes on the last; those asked for by name that have none, on stderr."""
    from dataclasses import replace

    from nsystui.commands.blocks import Block
    from nsystui.questions.nccl_log.summary import notes, nothing

    answers = {name: TABLES[name].make(summary) for name in names}
    filled = [name for name, answer in answers.items() if len(answer)]
    is_empty = cut.chosen == 0 if cut is not None else not (summary.calls or set(filled) - {"lines"})
    if is_empty:
        shared.complain(nothing(summary, cut))
        return []
    if is_named:
        for name in [name for name in names if name not in filled]:
            shared.complain(f"{name}: no rows")
    if filled:
        answers[filled[-1]] = replace(answers[filled[-1]], notes=notes(summary, cut))
    return [Block(TABLES[name].title, {"table": name}, name, answers[name]) for name in filled]
