"""Reports of a packed job: what each says of itself, and its files. The export itself is not needed any more."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsystui.base.errors import ExportError
from nsystui.exports import canonical
from nsystui.exports.metadata import Metadata
from nsystui.exports.packed_job import FACTS, job_of
from nsystui.store.cache import PackedFiles
from nsystui.store.pack import PackedReport
from nsystui.store.seals import Seal, check, facts_of, of_content, seal_of

VERSION = 6
"""Raised whenever packed jobs change their form, or the canonical tables theirs: older ones are packed again."""

RENAMED: Mapping[str, tuple[str, str]] = {
    canonical.NCCL_CALLS.name: ("rank", "communicator_rank"),
    canonical.MPI_RANKS.name: ("rank", "mpi_rank"),
}
"""Of some tables a field, and its name in the files: a dataset has ``rank`` from its directories."""

_FILE = re.compile(r"([a-z_]+)/rank=[0-9]+/[A-Za-z0-9-]+\.parquet")
_AGAIN = "pack its export again"


@dataclass(frozen=True)
class JobReport:
    """A report of a packed job. ``ranks``: which rank each of its processes is (by NVIDIA's globalPid).

    ``identity`` is another one whenever the report is packed again.
    """

    name: str
    ranks: Mapping[int, int]
    identity: str
    files: PackedFiles

    @property
    def path(self) -> Path:
        """Its directory in the packed job."""
        return self.files.directory

    @property
    def metadata(self) -> Metadata:
        return self.files.report.metadata

    @property
    def rows(self) -> int:
        """How many rows its canonical tables have."""
        return sum(self.files.report.counts.values())

    @property
    def size(self) -> int:
        """The bytes of all that lies with it, and of its files in the datasets."""
        files = [file for paths in self.files.files.values() for file in paths]
        return self.files.size + sum(file.stat().st_size for file in files)

    @property
    def kernels(self) -> int | None:
        """How many kernels it has."""
        return self.files.report.counts.get(canonical.KERNELS.name)


def facts_to_json(
    name: str, ranks: Mapping[int, int], source: str, identity: str, report: PackedReport, files: Mapping[str, Seal]
) -> dict[str, Any]:
    """What ``read_report`` reads. ``source`` is what told the ranks; ``files`` are the seals of the files in the job.

    Where programs lie on the machine is left out.
    """
    facts = report.to_json()
    facts["metadata"]["command"] = facts["metadata"]["command"].rpartition("/")[2]
    tasks = [{"process": process, "rank": rank} for process, rank in sorted(ranks.items(), key=lambda item: item[1])]
    known = {"version": VERSION, "name": name, "identity": identity, "rank_source": source, "tasks": tasks}
    return {**known, **facts, "files": dict(files)}


def read_report(directory: Path) -> JobReport:
    """Opens a report of a packed job by its directory in there.

    Raises ExportError where it is damaged, not whole, or of another version.
    """
    name = str(directory)
    try:
        text = (directory / FACTS).read_text(encoding="utf-8")
        facts = json.loads(text)
    except FileNotFoundError:
        raise ExportError(name, f"not a whole packed report: no {FACTS} in it", _AGAIN) from None
    except OSError as error:
        raise ExportError(name, f"cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ExportError(name, f"damaged: {FACTS} is not what was written", _AGAIN) from None
    try:
        if facts["version"] != VERSION:
            raise ExportError(name, "packed by another version of nsystui", _AGAIN)
        facts = facts_of(text)
        seals = {job_of(directory) / file: seal_of(seal) for file, seal in facts["files"].items()}
        files = _files(directory, seals)
        ranks = {int(task["process"]): int(task["rank"]) for task in facts["tasks"]}
        packed = PackedFiles(directory, PackedReport.from_json(facts), files, RENAMED, seals)
        return JobReport(str(facts["name"]), ranks, str(facts["identity"]), packed)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ExportError(name, f"damaged: {FACTS} is not what was written", _AGAIN) from None


def _files(directory: Path, seals: Mapping[Path, Seal]) -> dict[str, tuple[Path, ...]]:
    """The files of each canonical table. Raises ExportError for one that is not as it was written."""
    job = job_of(directory)
    found: dict[str, tuple[Path, ...]] = {}
    for file, seal in seals.items():
        name = str(file.relative_to(job))
        match = _FILE.fullmatch(name)
        if match is None:
            raise ValueError(f"{name}: no file of a packed job")
        try:
            there_are = file.stat().st_size
            if there_are != seal[0]:
                raise ExportError(str(directory), f"damaged: {name} has {there_are:,} of {seal[0]:,} bytes", _AGAIN)
            check(file, seal, of_content)
        except OSError as error:
            raise ExportError(str(directory), f"damaged: {name}: {error.strerror or error}", _AGAIN) from None
        except ValueError:
            raise ExportError(str(directory), f"damaged: {name} is not what was written", _AGAIN) from None
        found[match[1]] = (*found.get(match[1], ()), file)
    return found
