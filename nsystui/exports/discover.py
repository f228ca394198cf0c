"""The files that the user means: names, directories and globs become a list of paths in natural order.

A packed job is a directory of Parquet datasets, one for each canonical table, partitioned by rank:
``DIR/kernels/rank=3/….parquet`` are the kernels of rank 3, and ``DIR/reports/rank=3/report.json`` has the other facts
of its report and lists its files. A report is there if that file is, which is written last.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from nsystui.base.answer import Unit
from nsystui.base.errors import UsageError
from nsystui.base.inputs import json_in, text_of
from nsystui.base.text import shell_word
from nsystui.base.units import format_value
from nsystui.exports.forms import form_of
from nsystui.exports.forms.form import EXPORT_ENDINGS, REPORT_ENDINGS

REPORTS = "reports"
FACTS = "report.json"
_SAME_EXPORT = 60
"""Seconds by which an export may be older than its report."""
_RANK = re.compile(r"rank=([0-9]+)")


def rank_directory(rank: int) -> str:
    """The name of a rank's directory in each of the datasets."""
    return f"rank={rank}"


def stale_note(path: Path) -> str:
    """Return a note if an export is older than the report with its name, else an empty string."""
    stem, is_export, _ = path.name.partition(".sqlite")
    report = path.with_name(f"{stem}.nsys-rep")
    try:
        age = report.stat().st_mtime - path.stat().st_mtime if is_export else 0
    except OSError:
        return ""
    old = format_value(Unit.DURATION, round(age) * 10**9)
    text = f"{path} is {old} older than {report.name} beside it, and may be of an earlier run: export it again"
    return text if age > _SAME_EXPORT else ""


def is_packed_report(path: Path) -> bool:
    """Whether ``path`` is the directory of a report in a packed job, whole or not."""
    return _RANK.fullmatch(path.name) is not None and os.path.isdir(path)


def packed_reports(directory: Path) -> list[Path]:
    """The directories of the reports of a packed job; none where ``directory`` is something else."""
    try:
        names = os.listdir(directory / REPORTS)
    except OSError:
        return []
    return [directory / REPORTS / name for name in names if _RANK.fullmatch(name)]


def job_of(report: Path) -> Path:
    """The packed job that the directory of a report is in."""
    return report.absolute().parents[1]


def name_of(path: Path) -> str:
    """How the report is called that ``path`` names: an export in any form, or the directory of a packed one."""
    if is_packed_report(path):
        try:
            return str(json_in(text_of(path / FACTS))["name"])
        except (OSError, ValueError, KeyError, TypeError):  # opening it says what is wrong
            return path.name
    form = form_of(path)
    return path.stem if form is None else form.name_of(path)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A sort key under which ``rank2`` comes before ``rank10``, however many digits there are."""
    parts = [(part.isdecimal(), part) for part in re.split(r"(\d+)", name) if part]
    digits = [(is_number, part.lstrip("0") if is_number else part.lower()) for is_number, part in parts]
    return [(0, len(part), part) if is_number else (1, 0, part) for is_number, part in digits]


def discover(arguments: Iterable[str]) -> list[Path]:
    """The files meant by ``arguments``, in natural order and without doubles.

    A packed job stands for its reports, any other directory for every export in it (not below it); a name that does not
    exist but has glob characters is taken as a glob (the shell leaves it alone when quoted). A name that does not exist
    stays in the list, so that opening it says so. Raises UsageError for an empty name, as an unset variable of a script
    gives.
    """
    found: dict[str, Path] = {}
    for name in expanded(arguments):
        for path in _named(name):
            found.setdefault(os.path.realpath(path), path)
    # ``rank2`` and ``rank02`` have the same key: the name itself makes the order definite.
    return sorted(found.values(), key=lambda path: (natural_key(str(path)), str(path)))


def files_of(words: Iterable[str]) -> Iterator[Path]:
    """Yield the files that words of a command line name: exports, and every file of a packed job."""
    for word in words:
        with suppress(OSError, ValueError, UsageError):  # the word names no file
            for path in discover([os.path.expanduser(word)]):
                yield path
                yield from (job_of(path) if is_packed_report(path) else path).rglob("*")


_NAMED = 3
"""The most files that a command writes out: a job has hundreds."""


def named_shortly(arguments: Sequence[str]) -> str:
    """The words of a command line that mean the files of ``arguments``: they themselves, or their directory."""
    directories = {os.path.dirname(path) or "." for path in arguments}
    if len(arguments) > _NAMED and len(directories) == 1:
        (directory,) = directories
        if {os.path.realpath(path) for path in arguments} == {os.path.realpath(path) for path in discover([directory])}:
            return shell_word(directory)
    return " ".join(map(shell_word, arguments))


def expanded(arguments: Iterable[str]) -> Iterator[str]:
    """The names meant by ``arguments``, with those that match a glob which the shell left alone.

    Raises UsageError for an empty name, as an unset variable of a script gives.
    """
    for argument in arguments:
        if not argument:
            raise UsageError("an empty file name: is a variable of the script unset?")
        is_glob = not os.path.lexists(argument) and glob.has_magic(argument)
        yield from (is_glob and glob.glob(argument)) or [argument]


def _named(name: str) -> list[Path]:
    """The files that one name stands for. ``os.path`` looks, since a name in a closed directory must not raise here."""
    path = Path(name)
    if not os.path.isdir(name) or is_packed_report(path):
        return [path]
    return packed_reports(path) or ([path] if form_of(path) else _exports_in(path))


def _exports_in(directory: Path) -> list[Path]:
    """The exports of a directory; where it has none, its reports in other forms.

    Hidden files are not meant, as in the shell: a file server or an editor may keep its own beside the exports.
    """
    try:
        names = [name for name in os.listdir(directory) if not name.startswith(".")]
    except OSError:
        return [directory]
    exports = [directory / name for name in names if name.endswith(EXPORT_ENDINGS)]
    others = [] if exports else [path for name in names if (path := directory / name) and form_of(path)]
    # Whoever exported a report in another form means that.
    return exports or [path for path in others if not path.name.endswith(REPORT_ENDINGS)] or others or [directory]
