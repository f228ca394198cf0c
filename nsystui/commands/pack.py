"""``nsystui pack``: the columns of a job made ahead of time, so that it opens without its exports."""

from __future__ import annotations

import argparse
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.errors import ExportError, NsystuiError, UsageError
from nsystui.base.text import safe_text
from nsystui.commands import arguments as shared
from nsystui.commands.configuration import add_limits

if TYPE_CHECKING:
    from nsystui.commands.progress import ProgressLine
    from nsystui.questions.opening import Opener
    from nsystui.questions.packing import ReportRanks
    from nsystui.store.cache import Cache
    from nsystui.store.database import Limits
    from nsystui.store.packed_job import JobReport, JobWriter, NewReport
    from nsystui.store.session import Session

DESCRIPTION = """Writes the columns of exports into a directory, the packed job, which opens at once and without the
exports: `nsystui DIR`, or any command on DIR. Each rank may pack its own export into the same directory, at the same
time as the others: in a Slurm script, srun bash -c 'nsystui pack rank_$SLURM_PROCID.sqlite -o packed'
The tables in it are Parquet datasets partitioned by rank, which Dask, Polars and DuckDB read as they are."""
EXAMPLES = """  nsystui pack rank*.sqlite -o packed
  nsystui pack rank_$SLURM_PROCID.sqlite -o packed
  nsystui pack node*.sqlite -o packed --ranks 'node\\d+_r(\\d+)'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="an export (.sqlite), a directory of them, or a glob")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="the packed job, made if need be")
    parser.add_argument("--force", action="store_true", help="replace ranks that are in DIR already")
    parser.add_argument(
        "--job-output",
        action="store_true",
        help="what the application printed, too, but for lines that look like environment variables, and tokens",
    )
    parser.add_argument(
        "--ranks",
        metavar="WHO",
        help="who is which rank, where the exports do not tell it: a pattern on the file names with the number in a "
        r"group, such as 'rank(\d+)', or FILE=RANK,FILE=RANK",
    )
    group = parser.add_argument_group("opening")
    group.add_argument(
        "--convert",
        action="store_true",
        help="run `nsys export` on .nsys-rep files (QdstrmImporter before that on .qdstrm), into the cache directory",
    )
    add_limits(group)


def run(arguments: argparse.Namespace) -> int:
    """0 where every file was packed, else 2: whoever removes exports afterwards must know."""
    from nsystui.base.resources import step_back
    from nsystui.exports.discover import discover, is_packed_report
    from nsystui.questions.numbering import numbering
    from nsystui.store.packed_job import JobWriter

    if arguments.ranks and numbering(arguments.ranks) is None:
        raise UsageError("--ranks is for who is which rank here, such as 'rank(\\d+)'; every rank of FILE is packed")
    writer = JobWriter(Path(arguments.output), arguments.force)
    writer.check()
    paths = discover(arguments.files)
    for path in paths:
        if is_packed_report(path):
            raise UsageError(f"{path} is packed already: pack takes exports")
    if not paths:
        raise UsageError("no files")
    step_back()
    failures = _packed(writer, paths, arguments)
    for failure in failures:
        shared.complain(str(failure))
    return NsystuiError.exit_code if failures else 0


def _packed(writer: JobWriter, paths: list[Path], arguments: argparse.Namespace) -> list[NsystuiError]:
    """Packs every report that can be packed, with a line for each; returns the errors of the others."""
    from nsystui.commands.configuration import limits_of
    from nsystui.commands.progress import ProgressLine
    from nsystui.questions.job import Job
    from nsystui.questions.job_output import keep_output
    from nsystui.questions.numbering import numbering
    from nsystui.questions.opening import Export
    from nsystui.questions.packing import compute_first_answers, report_ranks
    from nsystui.store.session import Session

    limits = limits_of(arguments)
    failures: list[NsystuiError] = []
    with writer.staging() as cache:
        session = Session(cache=cache, limits=limits)
        job = Job(session, numbering=numbering(arguments.ranks or ""), tell=shared.say_note)
        try:
            with ProgressLine() as line:
                failures += _opener(arguments, limits, line).add(job, list(starmap(Export, enumerate(paths))))
                if not session.reports:
                    return failures
                found, without = report_ranks(job)
                failures += without
                session.tell = line.show_computing
                compute_first_answers(job)
                if arguments.job_output:
                    keep_output(session)
            for one in sorted(found, key=lambda one: min(one.ranks.values())):
                try:
                    added = writer.add(_new(session, cache, one), cache.directory)
                except NsystuiError as error:
                    failures.append(error)
                else:
                    print(_line(one, added))
        finally:
            job.close()
    return failures


def _opener(arguments: argparse.Namespace, limits: Limits, line: ProgressLine) -> Opener:
    """Reads the exports; what it converts for that goes into the cache."""
    from nsystui.commands.configuration import config_of, default_cache
    from nsystui.commands.progress import OpeningProgress
    from nsystui.questions.opening import Opener, Source

    conversions = default_cache(config_of(arguments)).conversions
    source = Source((), threads=limits.threads, convert=arguments.convert, conversion_directory=conversions)
    return Opener(source, OpeningProgress(line, shared.complain))


def _new(session: Session, cache: Cache, found: ReportRanks) -> NewReport:
    from nsystui.store.packed_job import NewReport

    export = session.exports[found.report.index]
    files = cache.find(export)
    if files is None:  # somebody has removed what was written
        raise ExportError(str(export.path), "its columns were removed while it was packed", "pack it again")
    return NewReport(found.report.name, found.ranks, found.source, files, cache.results_of(export))


def _line(found: ReportRanks, added: JobReport) -> str:
    """``rank 3  rank_3  1,234,567 rows  45.2 MiB, 12 % of the export  (captured environment)``."""
    from nsystui.base.columns import Unit
    from nsystui.base.units import format_value

    numbers = sorted(found.ranks.values())
    who = f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"
    share = added.size / max(found.report.path.stat().st_size, 1)
    size = f"{format_value(Unit.BYTES, added.size)}, {share:.0%} of the export"
    return safe_text(f"{who}  {added.name}  {added.rows:,} rows  {size}  ({found.source})", ascii=True)
