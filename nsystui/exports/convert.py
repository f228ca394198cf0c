"""Reports (``.nsys-rep``) turned into exports with NVIDIA's own ``nsys export``, never beside the report."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from nsystui.base.errors import ExportError
from nsystui.base.text import shell_word
from nsystui.exports import opening
from nsystui.exports.discover import RECORDING_ENDING, REPORT_ENDINGS
from nsystui.exports.partial_files import drop_abandoned, partial_name, why_not_ours

# What makes message sizes readable; older versions do not know these options.
_WITH_PAYLOADS = ("--include-json=true", "--include-blobs=true")
_ELSEWHERE = "NSYSTUI_CACHE_DIR names another place for exports"
# A disk with less room than this is full, bytes.
_LITTLE = 1 << 20


def is_report(path: Path) -> bool:
    """Whether the name is that of a report that ``nsys export`` takes, not of an export or a recording."""
    return path.suffix in REPORT_ENDINGS and path.suffix != RECORDING_ENDING


def nsys() -> str | None:
    """Where ``nsys`` is, if it is on the PATH."""
    return shutil.which("nsys")


def export_of(report: Path, directory: Path) -> Path:
    """Where ``convert`` puts the export of ``report``: alone in a directory below ``directory``.

    Raises ExportError where there is no such report.
    """
    try:
        status = os.stat(report)
    except OSError as error:
        raise ExportError(str(report), error.strerror or str(error), _look(report)) from None
    identity = f"{os.path.realpath(report)}|{status.st_size}|{status.st_mtime_ns}"
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]
    return directory / digest / f"{report.stem}.sqlite"


def convert(report: Path, directory: Path) -> Path:
    """Exports ``report`` below ``directory`` (made if need be) and returns the export; one made before is used again.

    The export keeps the name of the report, which may tell its rank. Raises ExportError where ``nsys`` is missing or
    fails, or ``directory`` cannot be written.
    """
    target = export_of(report, directory)
    for folder in (directory.parent, directory, target.parent):
        if why := why_not_ours(folder):
            raise ExportError(str(report), f"is not exported into {folder}: {why}", _ELSEWHERE)
    if _is_whole(target):
        with suppress(OSError):  # the time of its last use, by which the cache is kept under its cap
            os.utime(target.parent)
        return target
    program = nsys()
    if program is None:
        advice = "load the module that has it, or run `nsys export -t sqlite` where it is"
        raise ExportError(str(report), "a report, and nsys is not on the PATH to export it", advice)
    partial = target.parent / partial_name(".sqlite")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        drop_abandoned(target.parent)
        problem = _export(program, report, partial)
        if not problem:
            os.replace(partial, target)
    except OSError as error:
        raise ExportError(str(report), f"cannot be exported: {error.strerror or error}", _ELSEWHERE) from None
    finally:
        # As long as what did not fit is still there.
        advice = _ELSEWHERE if _is_full(partial) else f"try it by hand: {program} export --help"
        _leave_nothing_half(partial)
    if problem:
        raise ExportError(str(report), f"nsys export failed: {problem}", advice)
    return target


def _is_whole(target: Path) -> bool:
    """Whether an export that was made before is there, and is none that was cut since."""
    try:
        opening.check(target)
    except ExportError:
        return False
    return True


def _export(program: str, report: Path, target: Path) -> str:
    """Runs ``nsys export``, without the newer options where it does not know them; what it said, if it failed."""
    message = ""
    for options in (_WITH_PAYLOADS, ()):
        command = [program, "export", "-t", "sqlite", "--force-overwrite=true", "-o", str(target), *options]
        # With the whole path, since a name may begin with a dash. The keys of the user are not for nsys.
        command.append(str(report.absolute()))
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode == 0 and target.exists():
            return ""
        message = (done.stderr.strip() or done.stdout.strip()).decode("utf-8", "replace")
    return message.splitlines()[-1] if message else "no message"


def _is_full(partial: Path) -> bool:
    try:
        return shutil.disk_usage(partial.parent).free < _LITTLE
    except OSError:
        return False


def _leave_nothing_half(partial: Path) -> None:
    """Removes what ``nsys`` began, with its directory where nothing else is in it."""
    with suppress(OSError):
        for file in partial.parent.glob(f"{partial.name}*"):  # SQLite may keep a journal beside it
            file.unlink()
    with suppress(OSError):
        partial.parent.rmdir()


def _look(report: Path) -> str:
    return f"see what is there: ls -l {shell_word(str(report.parent))}"
