"""Packed jobs: reading their reports, without the exports, and writing them.

Reports are written in groups of up to 64, with one Parquet file for each table. A group is prepared in a hidden
directory, which lists its files and is renamed last: until then, no report of it is read. So several processes and
machines may write one job at once. Small groups are merged later: a report is read from its newest group, and groups
from which no report is read are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nsystui.base.errors import ExportError, OutputError, UsageError, reason_of
from nsystui.base.files import PARTIAL, drop_abandoned, is_abandoned, json_in, partial_name, remove
from nsystui.base.parquet_file import copy_to_parquet
from nsystui.base.resources import Limits
from nsystui.base.types import grouped
from nsystui.exports import EXPORT_ENDINGS, REPORT_ENDINGS, canonical, discover
from nsystui.exports.metadata import BlockingStream, CudaDevice, Gpu, Metadata
from nsystui.exports.schema import GpuClock
from nsystui.store.cache import PARQUET_FORM, Cache, PackedFiles
from nsystui.store.database import REPLACED, connect
from nsystui.store.remember import Results, bundle_of, write_bundles
from nsystui.store.report import PackedReport
from nsystui.store.seals import ANOTHER, Seal, changed, check, facts_of, facts_text, modified_ns, seal_of, sealed

if TYPE_CHECKING:
    import duckdb

RENAMED: Mapping[str, tuple[str, str]] = {
    canonical.NCCL_CALLS.name: ("rank", "communicator_rank"),
    canonical.MPI_RANKS.name: ("rank", "mpi_rank"),
}
"""A field and its name in the files, by table: ``rank`` is the rank of the report there."""


def form_version() -> str:
    """Return the version of packed jobs, derived from their columns and facts."""
    facts = [
        [item.name for item in fields(kind)]
        for kind in (Metadata, Gpu, CudaDevice, BlockingStream, GpuClock, PackedReport)
    ]
    return hashlib.sha256(json.dumps(["groups", canonical.fingerprint(), facts, RENAMED]).encode()).hexdigest()[:12]


_FILE = re.compile(rf"([a-z_]+)/{discover.GROUP.pattern}\.parquet")
_AGAIN = "pack its export again"
_OTHER_VERSION = "packed by another version of nsystui"
_NO_CAP = 1 << 62
_MAX_REPORTS = 64
"""The most reports of a group."""
_LARGE = 4 << 20
"""Bytes of a report that is a group alone, because merging it would take long and spare few files."""
_IS_LARGE = "-large"
_MERGING = ".merging"
"""The directory of the process that merges groups."""
# The rows of new reports from files without ranks, and rows of reports in other groups; each file has a list in $3.
_NEW = "SELECT * EXCLUDE filename{}, CAST(list_extract($3, list_position($2, filename))[1] AS INTEGER) AS rank {}"
_MOVED = "SELECT * EXCLUDE filename {1} WHERE list_contains(list_extract($3, list_position($2, filename)), rank)"
_FROM = "FROM read_parquet($2, filename = true, hive_partitioning = false)"


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
    def kernels(self) -> int | None:
        return self.files.report.counts.get(canonical.KERNELS.name)


def read_report(directory: Path) -> JobReport:
    """Read a report of a packed job. Raises ExportError if it is damaged, incomplete, or of another version."""
    name = str(directory)
    group, again = directory.parent.name, _AGAIN
    if directory.name == discover.FACTS:
        again = f"remove {discover.REPORTS}/{group} and */{group}.parquet, and pack its exports again"
    damaged = ExportError(name, f"damaged: {discover.FACTS} is not what was written", again)
    try:
        header, lines = discover.facts_of_group(directory)
        group_facts = json_in(header)
    except FileNotFoundError:
        if (directory / "report.json").exists():
            raise ExportError(name, _OTHER_VERSION, _AGAIN) from None
        missing = f"not a whole packed report: no {discover.FACTS} in it", again
        raise ExportError(name, *missing if directory.parent.exists() else REPLACED) from None
    except OSError as error:
        raise ExportError(name, f"cannot be read: {error.strerror or error}") from None
    except ANOTHER:
        raise damaged from None
    try:
        if group_facts["version"] != form_version():
            raise ExportError(name, _OTHER_VERSION, _AGAIN)
        facts = facts_of(json_in(lines[directory.name]))
        report = PackedReport.from_json(facts)
        files, seals = _files(directory, facts_of(group_facts)["files"], report)
        ranks = {int(task["process"]): int(task["rank"]) for task in facts["tasks"]}
        rank = discover.rank_of(directory) if len(group_facts["ranks"]) > 1 else None
        packed = PackedFiles(directory, report, files, RENAMED, seals, rank)
        return JobReport(str(facts["name"]), ranks, str(facts["identity"]), packed, str(facts["export"]))
    except ANOTHER:
        raise damaged from None


def _files(
    directory: Path, entries: Mapping[str, Any], report: PackedReport
) -> tuple[dict[str, tuple[Path, ...]], dict[Path, Seal]]:
    """Return the file of each canonical table with rows of a report, and their seals.

    Raises ExportError if a file has changed, and one of `ANOTHER` if ``entries`` are not file names with seals.
    """
    job = discover.job_of(directory)
    files: dict[str, tuple[Path, ...]] = {}
    seals = {}
    for name, stored_seal in entries.items():
        file, seal, match = Path(f"{job}/{name}"), seal_of(stored_seal), _FILE.fullmatch(name)
        if match is None:
            raise ValueError(f"{name}: no file of a packed job")
        if not report.counts.get(match[1]):
            continue
        fault = ""
        try:
            check(file, seal, modified_ns)
        except ValueError:
            size = file.stat().st_size
            fault = " is not what was written" if size == seal[0] else f" has {size:,} of {seal[0]:,} bytes"
        except OSError as error:
            fault = f": {reason_of(error)}"
        if fault and not directory.parent.exists():
            raise ExportError(str(directory), *REPLACED)
        if fault:
            raise ExportError(str(directory), f"damaged: {name}{fault}", _AGAIN)
        files[match[1]] = (file,)
        seals[file] = seal
    return files, seals


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

    def to_json(self, identity: str) -> dict[str, Any]:
        """Return the facts that ``read_report`` reads. The directory of the recorded program is left out."""
        facts = self.files.report.to_json()
        facts["metadata"]["command"] = facts["metadata"]["command"].rpartition("/")[2]
        ranks = sorted(self.ranks.items(), key=lambda item: item[1])
        tasks = [{"process": process, "rank": rank} for process, rank in ranks]
        header = {"name": self.name, "identity": identity, "export": self.export}
        return {**header, "rank_source": self.source, "tasks": tasks, **facts}


@dataclass(frozen=True)
class _Member:
    """A report to write into a group: facts, bundle of results, and files by table; ``version`` is the rank's."""

    rank: int
    version: int
    facts: Mapping[str, Any]
    results: bytes
    files: Mapping[str, tuple[Path, ...]]
    size: int = 0

    @property
    def name(self) -> str:
        return discover.rank_directory(self.rank)


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
        with self._write_errors():
            for group in self.directory.glob(f"{PARTIAL}*/*"):  # a killed process may have moved its files
                if discover.GROUP.fullmatch(group.name) and is_abandoned(group.parent):
                    for file in self.directory.glob(f"*/{group.name}.parquet"):
                        file.unlink(missing_ok=True)
        drop_abandoned(self.directory)
        if any(name.endswith(EXPORT_ENDINGS + REPORT_ENDINGS) for name in names if not name.startswith(".")):
            raise UsageError(f"-o {self.directory}: exports are in it; name a directory for the packed job alone")

    def packed(self, exports: Mapping[str, str]) -> dict[str, JobReport]:
        """Return the complete reports in the job, by the identity of their export.

        ``exports`` contains the names by identity. In a much larger job, only reports whose rank is in one of these
        names are read, so that not every packing process reads all.
        """
        numbers = {int(number) for name in exports.values() for number in re.findall("[0-9]+", name)}
        is_large = len(discover.packed_reports(self.directory)) > 2 * len(exports)
        reports = {report.export: report for report in self._readable(numbers if is_large else None)}
        return {identity: reports[identity] for identity in exports if identity in reports}

    def packed_as(self, ranks: Collection[int]) -> list[JobReport]:
        """Return the complete reports in the job that are captures of ``ranks``, by number."""
        return sorted(self._readable(ranks), key=lambda report: min(report.ranks.values()))

    def _readable(self, ranks: Collection[int] | None) -> Iterator[JobReport]:
        for path in discover.packed_reports(self.directory):
            if ranks is None or discover.rank_of(path) % discover.NEXT_CAPTURE in ranks:
                with suppress(ExportError):
                    yield read_report(path)

    @contextmanager
    def staging(self) -> Iterator[Cache]:
        """Yield a cache in the job's directory, and remove it afterwards. Raises OutputError if it is not writable."""
        with self._write_errors():
            self.directory.mkdir(parents=True, exist_ok=True)
            target_directory = self.directory / partial_name()
            target_directory.mkdir()
        try:
            yield Cache(target_directory, cap=_NO_CAP, is_required=True)
        finally:
            try:
                shutil.rmtree(target_directory, ignore_errors=True)
            finally:  # a signal may have interrupted the removal
                shutil.rmtree(target_directory, ignore_errors=True)

    def refuse(self, report: NewReport) -> None:
        """Raise OutputError if the report's rank is in the job and may not be replaced."""
        name = discover.rank_directory(report.rank)
        for path in () if self.force else discover.packed_reports(self.directory):
            if path.name == name:
                rank = report.rank % discover.NEXT_CAPTURE
                existing = f"{self.directory} has rank {rank} already (of {discover.name_of(path)})"
                advice = f"--force replaces it, --ranks says which rank {report.name} is"
                raise OutputError(f"{report.name} is rank {rank} ({report.source}), and {existing}: {advice}")

    def add(self, reports: Sequence[NewReport], staging: Path) -> Iterator[JobReport]:
        """Add reports to the job, small reports together, and yield each when it is in the job.

        Raises OutputError if the disk is full, and if another process packed one of their ranks at the same time.
        """
        before = {path.name: version for version, path in discover.versions(self.directory)}
        members = []
        with self._write_errors():
            for new in reports:
                identity, version = uuid4().hex[:12], before.get(discover.rank_directory(new.rank), 0) + 1
                facts, results = new.to_json(identity), new.results.bundled(identity)
                members.append(_Member(new.rank, version, facts, results, new.files.files, new.files.size))
        for group in _groups(members):
            with self._write_errors():
                self._write(group, staging, _NEW)
            try:
                versions = self._versions({item.name for item in group})
            except ExportError as error:
                raise OutputError(f"{error}: did another process pack it at the same time?") from None
            for item in group:
                if {version.identity for version in versions[item.name]} != {item.facts["identity"]}:
                    rank = f"{self.directory}: rank {item.rank} was packed by another process at the same time"
                    raise OutputError(f"{rank}, and one replaced the other: pack it again with --force")
                yield versions[item.name][-1]

    def _versions(self, names: Collection[str]) -> dict[str, list[JobReport]]:
        """Return the reports of some ranks in all groups, or only the newest if it may replace others."""
        while True:
            all_reports = [path for _, path in discover.versions(self.directory)]
            paths = discover.packed_reports(self.directory) if self.force else all_reports
            try:
                return grouped((path.name, read_report(path)) for path in paths if path.name in names)
            except ExportError:
                if all(path.parent.exists() for path in paths):
                    raise
                # Another process has merged a group meanwhile: look again.

    def _write(self, members: Sequence[_Member], staging: Path, select: str) -> None:
        """Write a group, and publish it: all or nothing."""
        names = [path.parent.name for _, path in discover.versions(self.directory)]
        number = 1 + max((int(name[:6]) for name in names if discover.GROUP.fullmatch(name)), default=0)
        ending = _IS_LARGE if members[0].size > _LARGE else ""
        prepared = staging / f"{number:06d}-{uuid4().hex[:12]}{ending}"
        prepared.mkdir()
        moves = self._table_files(members, prepared, select)
        seals = {f"{target.parent.name}/{target.name}": sealed(file) for target, file in moves.items()}
        for file in moves.values() if select is _MOVED else ():  # the files that they replace will be removed
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())
        header = {"version": form_version(), "ranks": {item.rank: item.version for item in members}, "files": seals}
        lines = [facts_text(header), *(f"{item.name} {facts_text(item.facts)}" for item in members)]
        (prepared / discover.FACTS).write_text("\n".join(lines), encoding="utf-8")
        write_bundles(prepared, {item.name: item.results for item in members})
        self._publish(moves, prepared)

    def _table_files(self, members: Sequence[_Member], prepared: Path, select: str) -> dict[Path, Path]:
        """Write the file of each table next to a prepared group; return them by the paths at which they belong."""
        moves = {}
        for table in (table.name for table in canonical.TABLES):
            ranks_of_file = grouped((str(file), item.rank) for item in members for file in item.files.get(table, ()))
            if not ranks_of_file:
                continue
            name, stored = RENAMED.get(table, ("", ""))
            query = select.format(f' RENAME ("{name}" AS "{stored}")' if name else "", _FROM)
            file = prepared.with_name(f"{prepared.name}-{table}.parquet")
            parameters = [*ranks_of_file], [*ranks_of_file.values()]
            ((written,),) = copy_to_parquet(self._database, query, file, PARQUET_FORM, parameters)
            if written != sum(item.facts["counts"][table] for item in members if table in item.files):
                raise OutputError(f"{self.directory}: {table} has {written:,} rows: pack it again")
            moves[self.directory / table / f"{prepared.name}.parquet"] = file
        return moves

    def _publish(self, moves: Mapping[Path, Path], prepared: Path) -> None:
        """Move the files into the datasets, then the group: all or nothing."""
        moved: list[Path] = []
        try:
            for target, file in moves.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                file.rename(target)
                moved.append(target)
            (self.directory / discover.REPORTS).mkdir(exist_ok=True)
            prepared.rename(self.directory / discover.REPORTS / prepared.name)
        except BaseException:
            if not prepared.exists():  # interrupted after the last step
                raise
            for target in moved:
                target.unlink(missing_ok=True)
                with suppress(OSError):
                    target.parent.rmdir()
            raise

    def merge(self, staging: Path) -> None:
        """Merge small groups, and remove replaced groups, unless another process is merging.

        Raises OutputError if the disk is full, and if a replaced file cannot be removed; every report stays readable.
        """
        import duckdb

        merged: list[tuple[int, Path]] | None = None
        with self._write_errors():
            # A process that finds another merging leaves its own group to it.
            while discover.versions(self.directory) != merged and self._begin_merging(staging):
                try:
                    self._sweep()
                    while chosen := self._mergeable():
                        try:
                            self._write_again(chosen, staging)
                        except (OSError, ExportError, duckdb.Error):
                            if all(path.parent.exists() for _, path in chosen):
                                raise
                            return  # another process has merged them
                        self._sweep()
                    merged = discover.versions(self.directory)
                finally:
                    remove(self.directory / _MERGING)

    def _write_again(self, chosen: Sequence[tuple[int, Path]], staging: Path) -> None:
        """Write reports into new groups. Their own groups stay."""
        members = []
        for version, path in sorted(chosen, key=lambda item: discover.rank_of(item[1])):
            facts = facts_of(json_in(discover.facts_of_group(path)[1][path.name]))
            files = read_report(path).files.files
            members.append(_Member(discover.rank_of(path), version, facts, bundle_of(path), files))
        for group in _groups(members):
            self._write(group, staging, _MOVED)
        by_name = {path.name: path for path in discover.packed_reports(self.directory)}
        for _, path in chosen:
            with suppress(OSError):  # it may have no results of later questions, or the new group some already
                path.rename(by_name[path.name])

    def _begin_merging(self, staging: Path) -> bool:
        """Return whether no other process merges the job; until `_MERGING` is removed, none will."""
        merging, prepared = self.directory / _MERGING, staging / _MERGING
        with suppress(OSError):
            if all(map(is_abandoned, merging.iterdir())):
                remove(merging)
        prepared.mkdir(exist_ok=True)
        (prepared / partial_name()).touch()
        with suppress(OSError):  # a directory with a file is not replaced
            prepared.rename(merging)
            return True
        return False

    def _mergeable(self) -> list[tuple[int, Path]]:
        """Return the reports of groups to write again: some of their reports were replaced, or they are small.

        A small group is merged if the smaller groups have as many reports, so that a report is merged few times.
        """
        newest = set(discover.packed_reports(self.directory))
        by_group = grouped((path.parent, (version, path)) for version, path in discover.versions(self.directory))
        stale: list[list[tuple[int, Path]]] = []
        small: list[list[tuple[int, Path]]] = []
        for group, all_reports in by_group.items():
            reports = [item for item in all_reports if item[1] in newest]
            is_small = len(reports) < _MAX_REPORTS and not group.name.endswith(_IS_LARGE)
            is_stale = 0 < len(reports) < len(all_reports)
            if (is_stale or is_small) and reports and discover.GROUP.fullmatch(group.name) and _are_whole(reports):
                (stale if is_stale else small).append(reports)
        small.sort(key=len)
        counts = [*accumulate(map(len, small))]
        last = max((n for n in range(1, len(small)) if len(small[n]) <= counts[n - 1]), default=-1)
        return [item for reports in stale + small[: last + 1] for item in reports]

    def _sweep(self) -> None:
        """Remove groups from which no report is read. Raises OutputError if a file cannot be removed."""
        reports = self.directory / discover.REPORTS
        groups = [path for path in reports.glob("*") if discover.GROUP.fullmatch(path.name)]
        newest = discover.packed_reports(self.directory)
        replaced = {group.name for group in groups} - {path.parent.name for path in newest}
        for file in (file for name in replaced for file in self.directory.glob(f"*/{name}.parquet")):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                cause = f"{file}, which was replaced, cannot be removed ({reason_of(error)})"
                raise OutputError(f"all is packed, but {cause}: remove it, or Dask counts its rows twice") from None
        names = {path.name for path in newest if path.parent != reports}
        earlier_form = [path for path in self.directory.glob("*/rank=*") if path.name in names]
        for directory in (*(reports / name for name in replaced), *earlier_form):
            removed = self.directory / partial_name()
            directory.rename(removed)
            remove(removed)

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except (OSError, duckdb.IOException) as error:
            raise OutputError(f"{self.directory} cannot be written ({reason_of(error)})") from None


def _groups(members: Sequence[_Member]) -> Iterator[Sequence[_Member]]:
    """Yield the members of each group to write."""
    yield from ([item] for item in members if item.size > _LARGE)
    small = [item for item in members if item.size <= _LARGE]
    for first in range(0, len(small), _MAX_REPORTS):
        yield small[first : first + _MAX_REPORTS]


def _are_whole(reports: Iterable[tuple[int, Path]]) -> bool:
    """Return whether reports and their files, which are read, are as they were written."""
    try:
        return not any(changed(read_report(path).files.seals) for _, path in reports)
    except ExportError:
        return False
