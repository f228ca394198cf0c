"""The files that a command line names: names, directories and globs become paths in natural order.

A packed job is a directory of Parquet datasets, one for each canonical table, with the column ``rank``. Its reports are
written in groups: ``DIR/kernels/GROUP.parquet`` has the kernels of a group, and the directory ``DIR/reports/GROUP``,
which appears last, has the other facts in ``reports.jsonl``. The path of a report is ``DIR/reports/GROUP/rank=3``, the
directory of its later results, if any.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.answer import Unit
from nsystui.base.errors import UsageError
from nsystui.base.files import json_in, opened, text_of
from nsystui.base.text import shell_word
from nsystui.base.units import format_value
from nsystui.exports import EXPORT_ENDINGS, RECORDING_ENDING, REPORT_ENDINGS

if TYPE_CHECKING:
    from nsystui.exports.forms.form import Form

REPORTS = "reports"
FACTS = "reports.jsonl"
_RANK = re.compile(r"rank=([0-9]+)")
_MAX_LINE = 1 << 20
GROUP = re.compile(r"[0-9]{6}-[0-9a-f]{12}(-large)?")
"""The names of groups: a number, which is higher than the numbers of replaced groups, and a unique part."""


NEXT_CAPTURE = 1_000_000
"""The difference between the numbers of captures of one process in a packed job; ranks are smaller."""


def rank_directory(rank: int) -> str:
    """Return the name of a rank's directory in each dataset."""
    return f"rank={rank}"


def stale_note(path: Path) -> str:
    """Return a note if an export is older than the report with its name, else an empty string."""
    stem, is_export, _ = path.name.partition(".sqlite")
    report = path.parent / f"{stem}.nsys-rep"
    try:
        age = report.stat().st_mtime - path.stat().st_mtime if is_export else 0
    except OSError:
        return ""
    age_words = format_value(Unit.DURATION, round(age) * 10**9)
    note = f"{path} is {age_words} older than {report.name} next to it, and may be from an earlier run: export it again"
    return note if age > 60 else ""  # s: both are written at the end of a recording


def is_packed_report(path: Path) -> bool:
    """Return whether ``path`` is a report of a packed job, or the damaged facts of a group of reports."""
    if GROUP.fullmatch(path.parent.name):
        return path.name == FACTS or _RANK.fullmatch(path.name) is not None
    return _RANK.fullmatch(path.name) is not None and os.path.isdir(path)  # of an earlier form


def is_there(path: Path) -> bool:
    """Return whether a discovered path leads to a file or to a report of a packed job."""
    return os.path.lexists(path) or is_packed_report(path)


def versions(directory: Path) -> list[tuple[int, Path]]:
    """Return the reports of a packed job after their versions, in this order; empty for any other directory.

    The version of a rank is higher whenever the rank is packed again; the last group with the highest version counts.
    """
    names = sorted(_visible_names(directory / REPORTS))
    reports = [(0, directory / REPORTS / name) for name in names if _RANK.fullmatch(name)]  # of an earlier form
    for group in (directory / REPORTS / name for name in names if GROUP.fullmatch(name)):
        reports += [(version, group / name) for name, version in _versions_in(group).items()]
    return sorted(reports, key=lambda item: item[0])


def _versions_in(group: Path) -> dict[str, int]:
    """Return the version of each report in a group, or of its facts if these are damaged."""
    try:
        with opened(group / FACTS) as file:
            ranks = json_in(file.readline(_MAX_LINE))["ranks"]
        return {rank_directory(int(rank)): int(version) for rank, version in ranks.items()}
    except FileNotFoundError:  # opening the facts reports the error, unless the group was merged
        return {FACTS: 0} if os.path.isdir(group) else {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {FACTS: 0}


def packed_reports(directory: Path) -> list[Path]:
    """Return the newest report of each rank of a packed job; empty for any other directory."""
    paths = (path for _, path in versions(directory))
    return list({path if path.name == FACTS else path.name: path for path in paths}.values())


def rank_of(report: Path) -> int:
    """Return the rank in the name of a report, or -1."""
    return int(report.name.partition("=")[2] or -1)


def job_of(report: Path) -> Path:
    """Return the packed job of a report's directory."""
    return report.absolute().parents[1 if report.absolute().parent.name == REPORTS else 2]


def facts_of_group(report: Path) -> tuple[str, dict[str, str]]:
    """Return the facts of a report's group and of each report by name, JSON. Raises OSError and ValueError."""
    header, *lines = text_of(report.with_name(FACTS)).split("\n")
    return header, dict(line.split(" ", 1) for line in lines)


def form_of(path: Path) -> Form | None:
    """Return the form of a file or directory; ``None`` if it is a SQLite export, or unknown.

    Never raises: opening a file reports the error.
    """
    if path.name.endswith(EXPORT_ENDINGS):
        return None
    from nsystui.exports.forms.kineto import KINETO
    from nsystui.exports.forms.nsys import PARQUET, REPORT

    return next((form for form in (REPORT, KINETO, PARQUET) if form.is_of(path)), None)


def export_of(path: Path, form: Form, directory: Path) -> Path:
    """Return the path of a report's export, alone in a directory. Raises ExportError if the report does not exist."""
    from nsystui.exports.forms.form import identity_of

    return directory / identity_of(path, form.version) / f"{form.name_of(path)}.sqlite"


def made_before(path: Path, directory: Path) -> Path:
    """Return a report's cached export; ``path`` itself if it is an export or not yet converted.

    Raises ExportError if the report does not exist.
    """
    form = None if is_packed_report(path) else form_of(path)
    target = path if form is None else export_of(path, form, directory)
    return target if target.exists() else path


def name_of(path: Path) -> str:
    """Return the name of a report: an export in any form, or its directory in a packed job."""
    if is_packed_report(path):
        try:
            return str(json_in(facts_of_group(path)[1][path.name])["name"])
        except (OSError, ValueError, LookupError, TypeError):  # opening it reports the error
            return path.name
    form = form_of(path)
    return path.stem if form is None else form.name_of(path)


def names_of(paths: Sequence[Path]) -> Mapping[Path, str]:
    """Return the name of each report; equal names get the directories that distinguish them."""
    parents = {path: (job_of(path) if is_packed_report(path) else path.absolute().parent).parts[1:] for path in paths}
    stems = {path: name_of(path) for path in paths}
    uses = Counter((parents[path], stem) for path, stem in stems.items())
    names = stems = {path: path.name if uses[parents[path], stem] > 1 else stem for path, stem in stems.items()}
    for depth in range(1, max(map(len, parents.values()), default=0) + 1):
        counts = Counter(names.values())
        longer = {path: "/".join((*parents[path][-depth:], stem)) for path, stem in stems.items()}
        names = {path: longer[path] if counts[name] > 1 else name for path, name in names.items()}
    return names


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts ``rank2`` before ``rank10``, for numbers of any length."""
    parts = [(part.isdecimal(), part) for part in re.split(r"(\d+)", name) if part]
    comparable = [(is_number, part.lstrip("0") if is_number else part.lower()) for is_number, part in parts]
    return [(0, len(part), part) if is_number else (1, 0, part) for is_number, part in comparable]


def discover(arguments: Iterable[str]) -> list[Path]:
    """Return the files named by ``arguments``, in natural order and without duplicates.

    A packed job becomes its reports, any other directory its exports or, without exports, the exports of its
    subdirectories. Missing names with glob characters are expanded (the shell does not expand quoted globs); without a
    match they remain, and opening them reports the error. Raises UsageError for an empty name, such as an unset
    variable.
    """
    paths: dict[str, Path] = {}
    for name in expanded(arguments):
        for path in _named(name):
            paths.setdefault(os.path.realpath(path), path)
    # ``rank2`` and ``rank02`` have the same key: the path decides. The group of a rank is chance.
    keys = {path: path.parents[1] / path.name if GROUP.fullmatch(path.parent.name) else path for path in paths.values()}
    return sorted(keys, key=lambda path: (natural_key(str(keys[path])), str(path)))


def files_of(words: Iterable[str]) -> Iterator[Path]:
    """Yield the named files: exports, and every file of a packed job."""
    jobs: set[Path] = set()
    for word in words:
        with suppress(OSError, ValueError, UsageError):  # the word names no file
            for path in discover([os.path.expanduser(word)]):
                yield path
                directory = job_of(path) if is_packed_report(path) else path
                if directory not in jobs:  # a job has hundreds of reports
                    jobs.add(directory)
                    yield from directory.rglob("*")


def named_shortly(arguments: Sequence[str]) -> str:
    """Return ``arguments`` as shell words, or their directory if they are many, and all its files."""
    directories = {os.path.dirname(path) or "." for path in arguments}
    if len(arguments) > 3 and len(directories) == 1:  # a job has hundreds
        (directory,) = directories
        if {os.path.realpath(path) for path in arguments} == {os.path.realpath(path) for path in discover([directory])}:
            return shell_word(directory)
    return " ".join(map(shell_word, arguments))


def expanded(arguments: Iterable[str]) -> Iterator[str]:
    """Yield ``arguments``, expanding globs that the shell left alone. Raises UsageError if a name is empty."""
    for argument in arguments:
        if not argument:
            raise UsageError("an empty file name: is a variable of the script unset?")
        is_glob = not os.path.lexists(argument) and glob.has_magic(argument)
        yield from (is_glob and glob.glob(argument)) or [argument]


def _named(name: str) -> list[Path]:
    """Return the files that a name means. `os.path` does not raise if the directory forbids access."""
    path = Path(name)
    if not os.path.isdir(name) or is_packed_report(path):
        return [path]
    if exports := packed_reports(path) or ([path] if form_of(path) else _exports_in(path)):
        return exports
    inside = (path / name for name in _visible_names(path))
    below = [packed_reports(folder) or _exports_in(folder) for folder in inside if os.path.isdir(folder)]
    return list(chain.from_iterable(below)) or [path]


def _visible_names(directory: Path) -> list[str]:
    """Return the names in a directory, without hidden files: file servers and editors may leave some."""
    try:
        return [name for name in os.listdir(directory) if not name.startswith(".")]
    except OSError:
        return []


def _exports_in(directory: Path) -> list[Path]:
    paths = [directory / name for name in _visible_names(directory)]
    if exports := [path for path in paths if path.name.endswith(EXPORT_ENDINGS)]:
        return exports
    reports = [path for path in paths if path.name.endswith((*REPORT_ENDINGS, RECORDING_ENDING))]
    # If a report was also exported in another form, that form is opened.
    return [path for path in paths if path not in reports and form_of(path)] or reports
