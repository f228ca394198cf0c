"""Reports in other forms than SQLite, turned into exports in the cache, never beside the report."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from nsystui.base.errors import ExportError
from nsystui.base.inputs import opened
from nsystui.base.partial_files import drop_abandoned, partial_name, remove, why_not_ours
from nsystui.base.units import size_words
from nsystui.exports import opening
from nsystui.exports.discover import is_packed_report
from nsystui.exports.forms import form_of
from nsystui.exports.forms.form import ELSEWHERE, Advance, Form, identity_of, size_in


def export_of(path: Path, form: Form, directory: Path) -> Path:
    """Where ``convert`` puts the export of a report: alone in a directory below ``directory``.

    Raises ExportError where there is no such report.
    """
    return directory / identity_of(path, form.version) / f"{form.name_of(path)}.sqlite"


def made_before(path: Path, directory: Path) -> Path:
    """The export that was made of a report before; the path itself where there is none, or it is an export.

    Raises ExportError where there is no such report.
    """
    form = None if is_packed_report(path) else form_of(path)
    target = path if form is None else export_of(path, form, directory)
    return target if target.exists() else path


def convert(
    path: Path, form: Form, directory: Path, advance: Advance = lambda part: None, cap: int | None = None
) -> Path:
    """Makes the export of a report below ``directory`` (made if need be) and returns it; one made before is used again.

    The export keeps the name of the report, which may tell its rank. Raises ExportError where it cannot be made, is
    none, has more than ``cap`` bytes, or ``directory`` cannot be written, and what ``advance`` raises.
    """
    target = export_of(path, form, directory)
    for folder in (directory.parent, directory, target.parent):
        if why := why_not_ours(folder):
            raise ExportError(str(path), f"cannot be exported into {folder}: {why}", ELSEWHERE)
    with suppress(ExportError):  # none was made before, or it was cut since
        opening.check(target)
        with suppress(OSError):  # the time of its last use, by which the cache is kept under its cap
            os.utime(target.parent)
        return target
    partial = target.parent / partial_name(".sqlite")

    def checked(part: float) -> None:
        with suppress(OSError), opened(partial) as file:
            size = max(size_in(file.read(100)), os.fstat(file.fileno()).st_size)
            if cap is not None and size > cap:
                cause = f"its export takes {size_words(size)} or more, the limit of the cache is {size_words(cap)}"
                raise ExportError(str(path), cause, "raise NSYSTUI_CACHE_LIMIT, or make the export yourself")
        advance(part)

    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        drop_abandoned(target.parent)
        form.write(path, partial, checked)
        if export_of(path, form, directory) != target:
            raise ExportError(str(path), *opening.CHANGED)
        checked(1)
        try:
            opening.check(partial)
        except ExportError as error:
            cause = f"the export made of it cannot be opened: {error.cause}"
            raise ExportError(str(path), cause, error.advice) from None
        with (target.parent / opening.MADE_FROM).open("ab") as source:
            with suppress(ImportError, OSError):  # Windows and some disks of clusters have no such locks
                import fcntl

                fcntl.flock(source, fcntl.LOCK_EX)
            with suppress(ExportError):  # another program made it meanwhile and may be reading it
                opening.check(target)
                return target
            source.truncate(0)
            source.write(os.fsencode(path.absolute()))
            os.replace(partial, target)
    except OSError as error:
        raise ExportError(str(path), f"cannot be exported: {error.strerror or error}", ELSEWHERE) from None
    finally:
        _leave_nothing_half(partial)
    return target


def _leave_nothing_half(partial: Path) -> None:
    """Removes what was begun, with its directory where nothing else is in it."""
    with suppress(OSError):
        for file in partial.parent.glob(f"{partial.name}*"):  # SQLite may keep a journal beside it
            remove(file)
    with suppress(OSError):
        if os.listdir(partial.parent) == [opening.MADE_FROM]:
            (partial.parent / opening.MADE_FROM).unlink()
        partial.parent.rmdir()
