"""Reports (``.nsys-rep``) turned into exports with NVIDIA's own ``nsys export``, never beside the report."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from nsystui.errors import ExportError
from nsystui.exports.discover import REPORT_ENDINGS

# What makes message sizes readable; older versions do not know these options.
_WITH_PAYLOADS = ("--include-json=true", "--include-blobs=true")


def is_report(path: Path) -> bool:
    """Whether the name is that of a report, not of an export."""
    return path.suffix in REPORT_ENDINGS


def nsys() -> str | None:
    """Where ``nsys`` is, if it is on the PATH."""
    return shutil.which("nsys")


def convert(report: Path, directory: Path) -> Path:
    """Exports ``report`` into ``directory`` (made if need be) and returns the export; one made before is used again.

    Raises ExportError where ``nsys`` is missing or fails.
    """
    program = nsys()
    if program is None:
        raise ExportError(
            str(report), "a report, and nsys is not on the PATH to export it", "module load it, or export"
        )
    try:
        status = os.stat(report)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ExportError(str(report), error.strerror or str(error)) from None
    identity = f"{os.path.realpath(report)}|{status.st_size}|{status.st_mtime_ns}"
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]
    target = directory / f"{report.stem}-{digest}.sqlite"
    if target.exists():
        return target
    partial = directory / f".partial-{os.getpid()}-{target.name}"
    command = [program, "export", "-t", "sqlite", "--force-overwrite=true", "-o", str(partial)]
    last = ""
    for options in (_WITH_PAYLOADS, ()):
        done = subprocess.run([*command, *options, str(report)], capture_output=True, text=True, check=False)
        if done.returncode == 0 and partial.exists():
            os.replace(partial, target)
            return target
        last = (done.stderr or done.stdout).strip()
        partial.unlink(missing_ok=True)
    raise ExportError(str(report), f"nsys export failed: {last.splitlines()[-1] if last else 'no message'}")
