"""A report without what names machines, people and files: hosts, users, paths, commands and names of reports.

Names of kernels, NVTX ranges and functions stay: without them nothing would be told. What is known to be a name of a
host, file, command or user is replaced wherever it stands, and so is everything that looks like a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from nsystui.base.answer import TableAnswer
from nsystui.exports.discover import name_of
from nsystui.questions.compare import Side
from nsystui.questions.job import Job
from nsystui.questions.overview import job_facts
from nsystui.questions.report import JobReport
from nsystui.questions.tasks import RankedTask

T = TypeVar("T")

_PATH = re.compile(r"(?<![\w<.])(?:~|\.{0,2}/|[A-Za-z]:\\)[\w.+@~%=-]*(?:[/\\][\w.+@~%=-]+)+")
"""A path from a root on, of two parts or more: one alone would be a division, without a root the name of a layer."""
_USER = re.compile(r"/(?:home|users|u|scratch|work|global/homes/\w)/([A-Za-z][\w.-]*)", re.IGNORECASE)
_NAMING = frozenset({"host", "hostname", "report", "file", "process", "command", "path"})
"""The keys of the columns that hold such names, however short."""
_OWN = frozenset({"key", "title", "method", "id", "severity", "kind", "under", "category", "version"})
"""The fields that hold words of this program, which may be names of a host or file, too."""
_Word = Callable[[str], str]


def anonymous(report: JobReport, jobs: Sequence[Job], baseline: Side | None = None) -> JobReport:
    """The report with ``host-1``, ``rank-0``, ``command-1``, ``user-1`` and ``(path)`` in place of names."""
    known = _known(jobs)
    if baseline is not None:
        known[baseline.label] = "the baseline"
    word = _replacer(known)

    def name(text: str) -> str:
        return known.get(text) or word(text)

    return replace(_changed(report, word, name), title="job" if baseline is None else "this job")


def _known(jobs: Sequence[Job]) -> dict[str, str]:
    """The words for every name that the metadata of the reports tell."""
    found: dict[str, str] = {}

    def number(kind: str, names: Iterable[str]) -> None:
        for name in names:
            if name and name not in found:
                found[name] = f"{kind}-{sum(word.startswith(f'{kind}-') for word in set(found.values())) + 1}"

    for job in jobs:
        reports = job.session.reports
        hosts = [*(report.metadata.host for report in reports), *(item.host for item in job.ranks)]
        number("host", (host.partition(".")[0] for host in hosts))
        found.update((host, found[host.partition(".")[0]]) for host in hosts if host)
        for report in reports:
            own = [item for item in job.ranks if item.task.report == report.index]
            label = _rank_words(own) or f"report-{report.index + 1}"
            for name in (report.name, report.path.name, name_of(report.path)):
                found.setdefault(name, label)
            commands = (report.metadata.command, os.path.basename(report.metadata.command))
            number("command", commands[-1:])
            found.setdefault(commands[0], found.get(commands[1], "command"))
            texts = (str(report.path), report.metadata.command)
            number("user", (name for text in texts for name in _USER.findall(text)))
            folder = Path(report.path).resolve().parent
            found.setdefault(str(folder), "(path)")
        title = job_facts(job.session, job.ranks).title
        found.setdefault(title, "job")
    return {name: word for name, word in found.items() if name}


def _rank_words(own: Sequence[RankedTask]) -> str:
    """``rank-3``; ``ranks-0-7`` of several in one report."""
    numbers = sorted(item.rank for item in own)
    if not numbers:
        return ""
    return f"rank-{numbers[0]}" if len(numbers) == 1 else f"ranks-{numbers[0]}-{numbers[-1]}"


def _replacer(known: dict[str, str]) -> _Word:
    # Longer names first: the short form of a host is the beginning of its full name.
    names = sorted((name for name in known if len(name) > 1 and not name.isdecimal()), key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])" for name in names) or "(?!)")

    def word(text: str) -> str:
        return pattern.sub(lambda match: known[match.group()], _PATH.sub("(path)", text))

    return word


def _changed(value: T, word: _Word, name: _Word) -> T:
    """The value with the texts in it changed: tuples and dataclasses are walked through."""
    changed: Any = value
    if isinstance(value, str):
        changed = word(value)
    elif isinstance(value, TableAnswer):
        kinds = [name if column.key in _NAMING else word for column in value.columns]
        rows = [
            tuple(change(cell) if isinstance(cell, str) else cell for change, cell in zip(kinds, row, strict=True))
            for row in value.rows
        ]
        changed = replace(value, rows=rows, notes=tuple(map(word, value.notes)))
    elif isinstance(value, tuple):
        changed = tuple(_changed(one, word, name) for one in value)
    elif is_dataclass(value) and not isinstance(value, type):
        own = {one.name: getattr(value, one.name) for one in fields(value) if one.name not in _OWN}
        changed = replace(value, **{key: _changed(one, word, name) for key, one in own.items()})
    return changed  # type: ignore[no-any-return]
