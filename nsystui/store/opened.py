"""First looks at exports: checked, metadata read, nothing packed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from nsystui.exports import metadata, opening, schema, sources
from nsystui.exports.discover import is_packed_report
from nsystui.exports.metadata import Metadata
from nsystui.store.packed_job import JobReport, read_report

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@dataclass(frozen=True)
class Opened:
    """A checked export that can be packed: its metadata, and the number of rows of each native table."""

    file: opening.ExportFile
    metadata: Metadata
    native: schema.Schema

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def rows(self) -> int:
        """The number of rows to pack."""
        return self.native.rows(source.table for source in sources.sources(self.native))

    @property
    def kernels(self) -> int | None:
        """The number of kernels, if it is known."""
        return self.native.last_rowid.get(_KERNELS)

    @property
    def name(self) -> str:
        """The name of the report in a session."""
        return self.path.stem


def look_at(path: Path) -> Opened | JobReport:
    """Open an export, or read a report of a packed job. Raises ExportError."""
    return read_report(path) if is_packed_report(path) else open_export(path)


def open_export(path: Path) -> Opened:
    """Check an export and read its metadata, in milliseconds whatever its size. Raises ExportError."""
    file = opening.check(path)
    with file.unchanged(), closing(opening.connect(path)) as connection:
        native = schema.probe(path, connection)
        return Opened(file, metadata.read(path, connection, native), native)
