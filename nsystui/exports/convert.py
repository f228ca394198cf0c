"""Reports that are not SQLite, converted into exports in the cache, never next to the report."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from nsystui.base.errors import ExportError
from nsystui.base.files import drop_abandoned, opened, partial_name, remove, why_not_ours
from nsystui.base.units import size_words
from nsystui.exports import opening
from nsystui.exports.discover import export_of
from nsystui.exports.forms.form import ELSEWHERE, Advance, Form
from nsystui.exports.opening import size_in

_NOT_OPENED = "the export made of it cannot be opened"


def convert(
    path: Path, form: Form, directory: Path, advance: Advance = lambda part: None, cap: int | None = None
) -> Path:
    """Return the export of a report, making it below ``directory`` if necessary.

    It keeps the report's name, which may contain the rank. Raises ExportError if the export cannot be made, opened or
    written, or exceeds ``cap`` bytes, and any exception of ``advance``.
    """
    target = export_of(path, form, directory)
    for folder in (directory.parent, directory, target.parent):
        if why := why_not_ours(folder):
            raise ExportError(str(path), f"cannot be exported into {folder}: {why}", ELSEWHERE)
    with suppress(ExportError):  # missing, or truncated since it was made
        opening.check(target)
        with suppress(OSError):  # the cache evicts by the time of last use
            os.utime(target.parent)
        return target
    partial = target.parent / partial_name(".sqlite")

    def advance_below_cap(part: float) -> None:
        _check_size(path, partial, cap)
        advance(part)

    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        drop_abandoned(target.parent)
        form.write(path, partial, advance_below_cap)
        if export_of(path, form, directory) != target:
            raise ExportError(str(path), *opening.CHANGED)
        advance_below_cap(1)
        try:
            opening.check(partial)
        except ExportError as error:
            raise ExportError(str(path), f"{_NOT_OPENED}: {error.cause}", error.advice) from None
        _publish(path, partial, target)
    except OSError as error:
        raise ExportError(str(path), f"cannot be exported: {error.strerror or error}", ELSEWHERE) from None
    finally:
        _remove_partial(partial)
    return target


def _check_size(path: Path, partial: Path, cap: int | None) -> None:
    """Raise ExportError if the export that is being made has or will have more than ``cap`` bytes."""
    with suppress(OSError), opened(partial) as file:
        size = max(size_in(file.read(100)), os.fstat(file.fileno()).st_size)
        if cap is not None and size > cap:
            cause = f"its export takes {size_words(size)} or more, the limit of the cache is {size_words(cap)}"
            raise ExportError(str(path), cause, "raise NSYSTUI_CACHE_LIMIT, or make the export yourself")


def _publish(path: Path, partial: Path, target: Path) -> None:
    """Move a finished export to its place, unless another program made it and may be reading it."""
    with (target.parent / opening.MADE_FROM).open("ab") as made_from:
        with suppress(OSError):  # some file systems of clusters have no such locks
            fcntl.flock(made_from, fcntl.LOCK_EX)
        with suppress(ExportError):
            opening.check(target)
            return
        made_from.truncate(0)
        made_from.write(os.fsencode(path.absolute()))
        os.replace(partial, target)


def _remove_partial(partial: Path) -> None:
    with suppress(OSError):
        for file in partial.parent.glob(f"{partial.name}*"):  # SQLite may have left a journal
            remove(file)
    with suppress(OSError):
        if os.listdir(partial.parent) == [opening.MADE_FROM]:
            (partial.parent / opening.MADE_FROM).unlink()
        partial.parent.rmdir()
