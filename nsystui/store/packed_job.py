"""Packed jobs: reading their reports, without the exports, and writing them.

A report is prepared in a hidden directory and renamed, so that several processes and machines may write one job at
once. Its file names are unique, and ``report.json``, which lists them, appears last: until then, the report is not
read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nsystui.base.errors import ExportError, OutputError, UsageError, reason_of
from nsystui.base.inputs import json_in, text_of
from nsystui.base.parquet_file import copy_to_parquet
from nsystui.base.partial_files import drop_abandoned, partial_name
from nsystui.exports import canonical, discover
from nsystui.exports.forms.form import EXPORT_ENDINGS, REPORT_ENDINGS
from nsystui.exports.metadata import BlockingStream, CudaDevice, Gpu, Metadata
from nsystui.exports.schema import GpuClock
from nsystui.store.cache import PARQUET_FORM, Cache, PackedFiles
from nsystui.store.database import Limits, connect
from nsystui.store.report import PackedReport
from nsystui.store.results import Results
from nsystui.store.seals import ANOTHER, Seal, check, facts_of, facts_text, modified_ns, seal_of, sealed

if TYPE_CHECKING:
    import duckdb

RENAMED: Mapping[str, tuple[str, str]] = {
    canonical.NCCL_CALLS.name: ("rank", "communicator_rank"),
    canonical.MPI_RANKS.name: ("rank", "mpi_rank"),
}
"""A field and its name in the files, by table: in a dataset, ``rank`` is read from the directories."""


def form_version() -> str:
    """Return the version of packed jobs, derived from their columns and facts."""
    facts = [
        [item.name for item in fields(kind)]
        for kind in (Metadata, Gpu, CudaDevice, BlockingStream, GpuClock, PackedReport)
    ]
    definition = json.dumps([canonical.fingerprint(), facts, RENAMED])
    return hashlib.sha256(definition.encode()).hexdigest()[:12]


_FILE = re.compile(r"([a-z_]+)/rank=[0-9]+/[A-Za-z0-9-]+\.parquet")
_AGAIN = "pack its export again"


@dataclass(frozen=True)
class JobReport:
    """A report of a packed job. ``ranks`` contains the rank of each of its processes, by NVIDIA's globalPid.

    ``identity`` changes when the report is packed again; ``export`` is the identity of its export.
    """

    name: str
    ranks: Mapping[int, int]
    identity: str
    files: PackedFiles
    export: str = ""

    @property
    def path(self) -> Path:
        """The directory of the report in the packed job."""
        return self.files.directory

    @property
    def metadata(self) -> Metadata:
        return self.files.report.metadata

    @property
    def rows(self) -> int:
        """The number of rows of its canonical tables."""
        return sum(self.files.report.counts.values())

    @property
    def size(self) -> int:
        """The size of its directory and its dataset files, bytes."""
        files = [file for paths in self.files.files.values() for file in paths]
        return self.files.size + sum(file.stat().st_size for file in files)

    @property
    def kernels(self) -> int | None:
        return self.files.report.counts.get(canonical.KERNELS.name)


def read_report(directory: Path) -> JobReport:
    """Read a report of a packed job. Raises ExportError if it is damaged, incomplete, or of another version."""
    name = str(directory)
    try:
        facts = json_in(text_of(directory / discover.FACTS))
    except FileNotFoundError:
        raise ExportError(name, f"not a whole packed report: no {discover.FACTS} in it", _AGAIN) from None
    except OSError as error:
        raise ExportError(name, f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ExportError(name, f"damaged: {discover.FACTS} is not what was written", _AGAIN) from None
    try:
        if facts["version"] != form_version():
            raise ExportError(name, "packed by another version of nsystui", _AGAIN)
        facts = facts_of(facts)
        files, seals = _files(directory, facts["files"])
        ranks = {int(task["process"]): int(task["rank"]) for task in facts["tasks"]}
        packed = PackedFiles(directory, PackedReport.from_json(facts), files, RENAMED, seals)
        export = str(facts.get("export", ""))  # earlier versions do not record it
        return JobReport(str(facts["name"]), ranks, str(facts["identity"]), packed, export)
    except ANOTHER:
        raise ExportError(name, f"damaged: {discover.FACTS} is not what was written", _AGAIN) from None


def _files(directory: Path, entries: Mapping[str, Any]) -> tuple[dict[str, tuple[Path, ...]], dict[Path, Seal]]:
    """Return the files of each canonical table, and their seals.

    Raises ExportError if a file has changed, and one of `ANOTHER` if ``entries`` are not file names with seals.
    """
    job = discover.job_of(directory)
    files: dict[str, tuple[Path, ...]] = {}
    seals = {}
    for name, stored_seal in entries.items():
        file, seal, match = Path(f"{job}/{name}"), seal_of(stored_seal), _FILE.fullmatch(name)
        if match is None:
            raise ValueError(f"{name}: no file of a packed job")
        fault = ""
        try:
            check(file, seal, modified_ns)
        except ValueError:
            size = file.stat().st_size
            fault = " is not what was written" if size == seal[0] else f" has {size:,} of {seal[0]:,} bytes"
        except OSError as error:
            fault = f": {reason_of(error)}"
        if fault:
            raise ExportError(str(directory), f"damaged: {name}{fault}", _AGAIN)
        files[match[1]] = (*files.get(match[1], ()), file)
        seals[file] = seal
    return files, seals


_NO_CAP = 1 << 62


@dataclass(frozen=True)
class NewReport:
    """A report to add to a packed job: its name, the rank of each process, and the ``source`` of these ranks.

    ``export`` is the identity of its origin (`exports.forms.form.identity_of`). ``files`` and computed ``results`` are
    in the cache of ``JobWriter.staging``.
    """

    name: str
    ranks: Mapping[int, int]
    source: str
    export: str
    files: PackedFiles
    results: Results

    @property
    def rank(self) -> int:
        """The rank under which it is stored: the lowest rank of its processes."""
        return min(self.ranks.values())

    def to_json(self, identity: str, files: Mapping[str, Seal]) -> dict[str, Any]:
        """Return the facts that ``read_report`` reads; ``files`` contains the seals by file name.

        The directory of the recorded program is left out.
        """
        facts = self.files.report.to_json()
        facts["metadata"]["command"] = facts["metadata"]["command"].rpartition("/")[2]
        ranks = sorted(self.ranks.items(), key=lambda item: item[1])
        tasks = [{"process": process, "rank": rank} for process, rank in ranks]
        header = {"version": form_version(), "name": self.name, "identity": identity, "export": self.export}
        return {**header, "rank_source": self.source, "tasks": tasks, **facts, "files": dict(files)}


@dataclass(frozen=True)
class JobWriter:
    """A writer of reports to the packed job in ``directory``; it replaces reports only with ``force``."""

    directory: Path
    force: bool = False

    @cached_property
    def _database(self) -> duckdb.DuckDBPyConnection:
        """A database for all reports, because making one takes as long as writing a few files."""
        return connect(Limits(1))

    def check(self) -> None:
        """Raise UsageError if the directory is a file or contains exports, and OutputError if it cannot be read."""
        if os.path.lexists(self.directory) and not os.path.isdir(self.directory):
            raise UsageError(f"-o {self.directory}: not a directory")
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OutputError(f"-o {self.directory}: {error.strerror or error}") from None
        drop_abandoned(self.directory)
        if any(name.endswith(EXPORT_ENDINGS + REPORT_ENDINGS) for name in names if not name.startswith(".")):
            raise UsageError(f"-o {self.directory}: exports are in it; name a directory for the packed job alone")

    def packed(self, exports: Mapping[str, str]) -> dict[str, JobReport]:
        """Return the complete reports in the job, by the identity of their export.

        ``exports`` contains the names by identity. In a much larger job, only reports whose rank is in one of these
        names are read, so that not every packing process reads all.
        """
        paths = discover.packed_reports(self.directory)
        if len(paths) > 2 * len(exports):
            numbers = {int(number) for name in exports.values() for number in re.findall("[0-9]+", name)}
            paths = [path for path in paths if int(path.name.partition("=")[2]) % discover.NEXT_CAPTURE in numbers]
        reports = {}
        for path in paths:
            with suppress(ExportError):
                report = read_report(path)
                reports[report.export] = report
        return {identity: reports[identity] for identity in exports if identity in reports}

    def packed_as(self, ranks: Collection[int]) -> list[JobReport]:
        """Return the complete reports in the job that are captures of ``ranks``, by number."""
        reports = []
        for path in discover.packed_reports(self.directory):
            with suppress(ExportError):
                if int(path.name.partition("=")[2]) % discover.NEXT_CAPTURE in ranks:
                    reports.append(read_report(path))
        return sorted(reports, key=lambda report: min(report.ranks.values()))

    @contextmanager
    def staging(self) -> Iterator[Cache]:
        """Yield a cache in the job's directory, and remove it afterwards. Raises OutputError if it is not writable."""
        with self._write_errors():
            self.directory.mkdir(parents=True, exist_ok=True)
            target_directory = self.directory / partial_name()
            target_directory.mkdir()
        try:
            yield Cache(target_directory, _NO_CAP, is_required=True)
        finally:
            try:
                shutil.rmtree(target_directory, ignore_errors=True)
            finally:  # a signal may have interrupted the removal
                shutil.rmtree(target_directory, ignore_errors=True)

    def add(self, report: NewReport, staging: Path) -> JobReport:
        """Add a report to the job.

        Raises OutputError, without changing the job, if its rank exists or the disk is full; and if a file of the
        replaced report cannot be removed.
        """
        target_directory = self.directory / discover.REPORTS / discover.rank_directory(report.rank)
        if not self.force:
            self._refuse(target_directory, report)
        with self._write_errors():
            identity = uuid4().hex[:12]
            prepared = staging / f"report-{identity}"
            prepared.mkdir()
            report.results.move(Results((identity,), prepared))
            moves = {
                self.directory / table / discover.rank_directory(report.rank) / f"{identity}-{number}": file
                for file in _prepared(report.files, prepared, self._database)
                for table, _, number in [file.name.rpartition("-")]
            }
            seals_by_target = {target: sealed(file) for target, file in moves.items()}
            seals = {str(target.relative_to(self.directory)): seal for target, seal in seals_by_target.items()}
            facts = facts_text(report.to_json(identity, seals), indent=1)
            (prepared / discover.FACTS).write_text(facts, encoding="utf-8")
            self._publish(moves, prepared, target_directory, report)
            self._remove_others(report.rank, moves)
        try:
            return read_report(target_directory)
        except ExportError as error:
            raise OutputError(f"{error}: did another process pack it at the same time?") from None

    def _publish(self, moves: Mapping[Path, Path], prepared: Path, target_directory: Path, report: NewReport) -> None:
        """Move the files into the datasets, then the report: all or nothing."""
        moved: list[Path] = []
        replaced = prepared.with_name(f"{prepared.name}-before")
        try:
            for target, file in moves.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                file.rename(target)
                moved.append(target)
            target_directory.parent.mkdir(exist_ok=True)
            if self.force:
                with suppress(FileNotFoundError):
                    target_directory.rename(replaced)
            try:
                prepared.rename(target_directory)
            except OSError:
                self._refuse(target_directory, report)  # another process was faster
                raise
        except BaseException:
            if not prepared.exists():  # interrupted after the last step
                raise
            with suppress(OSError):
                replaced.rename(target_directory)
            for target in moved:
                target.unlink(missing_ok=True)
                with suppress(OSError):
                    target.parent.rmdir()
                    target.parent.parent.rmdir()
            raise

    def _refuse(self, target_directory: Path, report: NewReport) -> None:
        if discover.is_packed_report(target_directory):
            rank = report.rank % discover.NEXT_CAPTURE
            existing = f"{self.directory} has rank {rank} already (of {discover.name_of(target_directory)})"
            advice = f"--force replaces it, --ranks says which rank {report.name} is"
            raise OutputError(f"{report.name} is rank {rank} ({report.source}), and {existing}: {advice}")

    def _remove_others(self, rank: int, new_files: Mapping[Path, Path]) -> None:
        """Remove files that a replaced report or a killed process left in the datasets.

        Raises OutputError if a file cannot be removed, after removing all others.
        """
        refused = ""
        for table in canonical.TABLES:
            partition = self.directory / table.name / discover.rank_directory(rank)
            for file in partition.glob("*.parquet"):
                try:
                    if file not in new_files:
                        file.unlink(missing_ok=True)
                except OSError as error:
                    refused = f"{file}, which it replaced, cannot be removed ({reason_of(error)})"
            with suppress(OSError):
                partition.rmdir()
        if refused:
            raise OutputError(f"rank {rank} is packed, but {refused}: remove it, or Dask counts its rows twice")

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except (OSError, duckdb.IOException) as error:
            raise OutputError(f"{self.directory} cannot be written ({reason_of(error)})") from None


def _prepared(files: PackedFiles, directory: Path, database: duckdb.DuckDBPyConnection) -> Iterator[Path]:
    """Yield the files of a pack; write them again for tables with a renamed field."""
    for table, paths in files.files.items():
        if table not in RENAMED:
            yield from paths
            continue
        name, stored = RENAMED[table]
        renamed_directory = directory.with_name(f"{directory.name}-{table}")
        renamed_directory.mkdir()
        for path in paths:
            select = f'SELECT * RENAME ("{name}" AS "{stored}") FROM read_parquet($2)'
            copy_to_parquet(database, select, renamed_directory / path.name, PARQUET_FORM, (str(path),))
            yield renamed_directory / path.name
