"""``nsystui pack``: the columns of a job, made ahead of time, so that it opens without its exports."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.answer import Unit
from nsystui.base.errors import ExportError, NsystuiError, UsageError
from nsystui.base.text import counted, safe_text
from nsystui.base.units import format_value
from nsystui.commands import arguments as shared
from nsystui.commands.configuration import add_limits
from nsystui.commands.request import Request
from nsystui.questions.queries.numbering import Numbering, numbering

if TYPE_CHECKING:
    from nsystui.commands.progress import ProgressLine
    from nsystui.questions.answers.packing import RanksAhead, ReportRanks
    from nsystui.questions.job.opening import Export
    from nsystui.store.packed_job import JobReport, JobWriter
    from nsystui.store.report import Report
    from nsystui.store.session import Session

DESCRIPTION = """Writes the columns of exports into a directory, the packed job, which opens at once and without the
exports: `nsystui DIR`, or any command on DIR. Each rank may pack its own export into the same directory, at the same
time as the others: in a Slurm script, srun bash -c 'nsystui pack rank_$SLURM_PROCID.sqlite -o packed'
A rank is packed when its line is printed. After an interruption, the same command continues with the others.
The tables in it are Parquet datasets with a column of ranks, which Dask, Polars and DuckDB read as they are."""
EXAMPLES = """  nsystui pack rank*.sqlite -o packed
  nsystui pack rank_$SLURM_PROCID.sqlite -o packed
  nsystui pack node*.sqlite -o packed --ranks 'node\\d+_r(\\d+)'"""

# Each batch has a fixed cost, so small exports are packed together: at most this many, with this many bytes in total.
_MAX_EXPORTS = 64
_MAX_BYTES = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="an export (.sqlite), a directory of them, or a glob")
    shared.add_target(parser, "DIR", "the packed job, created if missing", required=True)
    parser.add_argument("--force", action="store_true", help="replace ranks that are in DIR already")
    parser.add_argument(
        "--job-output",
        action="store_true",
        help="also what the application printed, without lines that look like environment variables and without tokens",
    )
    shared.add_numbering(parser)
    group = parser.add_argument_group("opening")
    shared.add_convert(group)
    add_limits(group)


def run(request: Request) -> int:
    """Return 0 if every file is packed, else 2, because exports may be removed afterwards."""
    from nsystui.base.resources import step_back
    from nsystui.exports.discover import discover, is_packed_report
    from nsystui.store.packed_job import JobWriter

    given_numbering = numbering(request.selecting.numbering)
    if request.selecting.ranks and given_numbering is None:
        raise UsageError("--ranks gives the rank of each file here, such as 'rank(\\d+)'; every rank of FILE is packed")
    writer = JobWriter(Path(str(request.output.target)), request.output.force)
    writer.check()
    paths = discover(request.opening.files)
    for path in paths:
        if is_packed_report(path):
            raise UsageError(f"{path} is packed already: pack takes exports")
    if not paths:
        raise UsageError("no files")
    step_back()
    packing = _Run(request, writer, given_numbering, paths)
    try:
        packing.pack()
    except KeyboardInterrupt as interrupt:
        packing.look_for_packed()
        again = "starts over" if request.output.force else "continues"
        raise KeyboardInterrupt(*interrupt.args, f"{packing}; the same command {again}") from None
    for failure in packing.failures:
        shared.complain(str(failure))
    return NsystuiError.exit_code if packing.failures else 0


@dataclass
class _Run:
    """A run that packs the exports at ``paths``, a few at a time; packed reports stay if others fail."""

    request: Request
    writer: JobWriter
    numbering: Numbering | None
    paths: list[Path]
    failures: list[NsystuiError] = field(default_factory=list)
    _identities: dict[int, str] = field(default_factory=dict)
    """The identity of each export before it was read, by its number."""
    _done: dict[int, Path] = field(default_factory=dict)
    """The paths of reports in the job, by the number of their export."""
    _ranks: list[ReportRanks] = field(default_factory=list)
    """The ranks of the reports in the job, of this run and of earlier runs."""
    _waiting: set[int] = field(default_factory=set)
    """The numbers of exports that are read, but whose ranks depend on all reports."""
    _reports: list[Report] = field(default_factory=list)
    """All reports that this run has read."""
    _names: Mapping[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from nsystui.exports.discover import names_of
        from nsystui.exports.forms.form import identity_of

        for number, path in enumerate(self.paths):
            with suppress(ExportError):  # opening it reports the error
                self._identities[number] = identity_of(path, 0)
        self._names = names_of(self.paths)
        if self.numbering is not None:
            self.numbering.numbers([self._names[self.paths[number]] for number in self._identities])

    def __str__(self) -> str:
        return f"packed {counted(len(self._done), 'rank', among=len(self.paths))}"

    def look_for_packed(self) -> None:
        """Find packed exports: unchanged, with the same rank and the requested output."""
        from nsystui.questions.answers.packing import ReportRanks
        from nsystui.questions.capture.job_output import has_output
        from nsystui.store.report import Report

        def matches(report: JobReport) -> bool:
            is_rank = self.numbering is None or [*report.ranks.values()] == self.numbering.numbers([report.name])
            return is_rank and (not self.request.args["job_output"] or has_output(report))

        names = {identity: self.paths[number].name for number, identity in self._identities.items()}
        packed = {identity: report for identity, report in self.writer.packed(names).items() if matches(report)}
        done = {number: packed[identity] for number, identity in self._identities.items() if identity in packed}
        self._done = {number: report.path for number, report in done.items()}
        self._ranks = [
            ReportRanks(Report(number, self.paths[number], report.files.report, label=report.name), report.ranks, "")
            for number, report in done.items()
        ]

    def pack(self) -> None:
        """Pack every report that can be packed, and print a line for each."""
        from nsystui.commands.progress import ProgressLine
        from nsystui.questions.answers.packing import RanksAhead
        from nsystui.questions.job.opening import Export
        from nsystui.questions.queries.data_notes import left_out_note
        from nsystui.store.session import Session

        if not self.request.output.force:
            self.look_for_packed()
        if self._done:
            shared.say_notes(f"{len(self._done):,} of {len(self.paths):,} were packed before")
        remaining = [Export(number, path) for number, path in enumerate(self.paths) if number not in self._done]
        if not remaining and not os.access(self.writer.directory, os.W_OK):  # otherwise small groups may be left
            return
        limits = self.request.limits
        batches = list(_batches(remaining, limits.packs)) if remaining else []
        ahead = RanksAhead.of(dict(enumerate(self.paths))) if batches and len(batches[0]) < len(self.paths) else None
        with self.writer.staging() as cache, ProgressLine() as line:
            for batch in batches:
                self._pack(batch, Session(cache, limits), line, ahead)
            if self._waiting:
                items = sorted((self._done | {number: self.paths[number] for number in self._waiting}).items())
                self._pack(list(starmap(Export, items)), Session(cache, limits), line, None)
            line.clear()
            try:
                self.writer.merge(cache.directory)
            except NsystuiError as error:
                self.failures.append(error)
        if note := left_out_note(self._reports):
            shared.say_notes(note)

    def _pack(self, exports: list[Export], session: Session, line: ProgressLine, ahead: RanksAhead | None) -> None:
        """Pack exports, and add reports to the job if their ranks are certain, as all are without ``ahead``."""
        from nsystui.commands.progress import OpeningProgress
        from nsystui.questions.answers.packing import all_numbered, compute_first_answers, report_ranks
        from nsystui.questions.capture.job_output import keep_output
        from nsystui.questions.job.job import OpenJob
        from nsystui.questions.job.opening import JobSource, Opener

        line.head = f"{self}  "
        with closing(OpenJob(session, numbering=self.numbering)) as job:
            cache, progress = self.request.cache, OpeningProgress(line, shared.complain)
            source = JobSource(
                (), threads=session.limits.threads, convert=self.request.opening.convert,
                conversion_directory=cache.conversions, cache_cap=cache.cap,
            )  # fmt: skip
            self.failures += Opener(source, progress, self._names).add(job, exports)
            if not session.reports:
                return
            new = [report for report in session.reports if report.index not in self._waiting.union(self._done)]
            ranked, without = ahead.ranks(job) if ahead is not None else report_ranks(job)
            ranked = [item for item in ranked if item.report.index not in self._done]
            before = self._ranks + self._earlier_captures(ranked)
            ranked = all_numbered(before + ranked)[len(before) :]
            if new:
                self.failures += without
                session.tell = line.show_computing
                compute_first_answers(job)
                if self.request.args["job_output"]:
                    keep_output(session)
            self._reports += new
            without_ranks = {error.path for error in without}
            self._waiting |= {report.index for report in new if str(report.path) not in without_ranks}
            line.clear()
            self._put(sorted(ranked, key=lambda item: min(item.ranks.values())), session)

    def _earlier_captures(self, ranked: Sequence[ReportRanks]) -> list[ReportRanks]:
        """Return the captures in the job, packed by other calls, of the processes of ``ranked``."""
        from nsystui.questions.answers.packing import ReportRanks
        from nsystui.store.captures import with_joined_captures
        from nsystui.store.report import Report

        done, earlier = set(self._done.values()), []
        reports = (
            [] if self.request.output.force else self.writer.packed_as({n for r in ranked for n in r.ranks.values()})
        )
        for number, packed in enumerate(reports, len(self.paths)):
            for new in (item.report for item in ranked if packed.path not in done):
                report = Report(
                    number, new.path.with_name(f"{packed.name}.sqlite"), packed.files.report, label=packed.name
                )
                if len(with_joined_captures([report, new])) == 1:
                    earlier.append(ReportRanks(report, packed.ranks, ""))
                    break
        return earlier

    def _put(self, ranked: Sequence[ReportRanks], session: Session) -> None:
        """Add reports to the job and print a line for each; a closed stdout does not end the packing."""
        from nsystui.output.files import print_lines
        from nsystui.store.cache import size_of
        from nsystui.store.packed_job import NewReport

        new = []
        assert session.cache is not None  # it is required
        for item in ranked:
            self._waiting.discard(item.report.index)
            export = session.exports[item.report.index]
            files = session.cache.find(export)
            try:
                if files is None:  # somebody removed the columns
                    raise ExportError(str(export.path), "its columns were removed while it was packed", "pack it again")
                identity, results = self._identities[item.report.index], session.cache.results_of(export)
                report = NewReport(item.report.name, item.ranks, item.source, identity, files, results)
                self.writer.refuse(report)
                # The results move into the job with the files.
                new.append((item, report, files.size + (size_of(results.directory) if results.directory else 0)))
            except NsystuiError as error:
                self.failures.append(error)
        added_reports = self.writer.add([report for _, report, _ in new], session.cache.directory)
        try:
            for (item, _, size), added in zip(new, added_reports, strict=True):
                self._done[item.report.index] = added.path
                self._ranks.append(item)
                with suppress(SystemExit):
                    print_lines([_line(item, size, added)])
        except NsystuiError as error:
            self.failures.append(error)


def _batches(exports: Sequence[Export], min_exports: int) -> Iterator[list[Export]]:
    batch: list[Export] = []
    free_bytes = _MAX_BYTES
    for export in exports:
        size = 0
        with suppress(OSError):  # opening it reports the error
            size = export.path.stat().st_size
        if len(batch) >= min_exports and (size > free_bytes or len(batch) >= _MAX_EXPORTS):
            yield batch
            batch, free_bytes = [], _MAX_BYTES
        batch.append(export)
        free_bytes -= size
    yield batch


def _line(ranked: ReportRanks, size: int, added: JobReport) -> str:
    """Return ``rank 3  rank_3  1,234,567 rows  45.2 MiB, 12 % of the export  (captured environment)``."""
    from nsystui.exports.discover import NEXT_CAPTURE

    numbers = sorted(rank % NEXT_CAPTURE for rank in ranked.ranks.values())
    label = f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"
    words = format_value(Unit.BYTES, size)
    with suppress(OSError):  # the export was removed after packing
        words += f", {size / max(ranked.report.path.stat().st_size, 1):.0%} of the export"
    return safe_text(f"{label}  {added.name}  {counted(added.rows, 'row')}  {words}  ({ranked.source})", ascii=True)
