"""A report without what names machines, people and files: hosts, users, paths, commands and names of reports.

Names of kernels, NVTX ranges and functions stay: without them nothing would be told. What is known to be a name of a
host, file, command or user is replaced wherever it stands, and so is everything that looks like a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from nsystui.base.answer import TableAnswer
from nsystui.exports.discover import name_of
from nsystui.questions.job import Job
from nsystui.questions.report import JobReport
from nsystui.questions.tasks import RankedTask

T = TypeVar("T")

BASELINE = "the baseline"
"""The label of a baseline in such a report."""

_PATH = re.compile(r"(?<![\w<.])(?:~|\.{0,2}/|[A-Za-z]:\\)[\w.+@~%=-]*(?:[/\\][\w.+@~%=-]+)+")
"""A path from a root on, of two parts or more: one alone would be a division, without a root the name of a layer."""
_USER = re.compile(r"/(?:home|users|global/homes/\w)/([A-Za-z][\w.-]*)", re.IGNORECASE)
_NAMING = frozenset({"host", "hostname", "report", "file", "process", "command", "path"})
"""The keys of the columns that hold such names, however short."""
_OWN = frozenset({"key", "title", "method", "id", "severity", "kind", "under", "category", "version"})
"""The fields that hold words of this program, which may be names of a host or file, too."""
_ADVICE = frozenset({"advice", "reason", "measured"})
"""The fields of sentences of this program, in which a file called `before` is no file."""


def anonymous(report: JobReport, jobs: Sequence[Job]) -> JobReport:
    """The report with ``host-1``, ``rank-0``, ``command-1``, ``user-1`` and ``(path)`` in place of names."""
    people, files = _people(jobs), _files(jobs)
    return replace(_changed(report, _Words(people | files), _Words(people)), title="job")


class _Words:
    """Replaces names in texts."""

    def __init__(self, known: dict[str, str]) -> None:
        self._known = known
        # A path with a blank in it is known as a whole, and looks like one only up to there.
        self._places = _any_of(name for name in known if "/" in name)
        self._names = _any_of(name for name in known if "/" not in name and len(name) > 1 and not name.isdecimal())

    def text(self, text: str) -> str:
        """Whatever is known or looks like a path, wherever it stands."""
        text = _PATH.sub("(path)", self._places.sub("(path)", text))
        return self._names.sub(lambda match: self._known[match.group()], text)

    def name(self, text: str) -> str:
        """A text that is nothing but such a name."""
        return self._known.get(text) or self.text(text)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Longer names first: the short form of a host is the beginning of its full name."""
    found = sorted(names, key=len, reverse=True)
    return re.compile("|".join(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])" for name in found) or "(?!)")


def _people(jobs: Sequence[Job]) -> dict[str, str]:
    """Hosts and users."""
    hosts: dict[str, str] = {}
    users: dict[str, str] = {}
    for job in jobs:
        reports = job.session.reports
        for host in [*(report.metadata.host for report in reports), *(item.host for item in job.ranks)]:
            short = host.partition(".")[0]
            own = host if short.isdecimal() else short  # an address is no name with a domain
            if own:
                hosts[host] = hosts.setdefault(own, f"host-{_next(hosts)}")
        for text in [text for report in reports for text in (str(report.path.resolve()), report.metadata.command)]:
            for user in _USER.findall(text):
                users.setdefault(user, f"user-{_next(users)}")
    return hosts | users


def _files(jobs: Sequence[Job]) -> dict[str, str]:
    """Reports with their folders, and commands."""
    found: dict[str, str] = {}
    commands: dict[str, str] = {}
    for job in jobs:
        for report in job.session.reports:
            own = [item for item in job.ranks if item.task.report == report.index]
            label = _rank_words(own) or f"report-{report.index + 1}"
            for name in (report.name, report.path.name, name_of(report.path)):
                found.setdefault(name, label)
            found[str(report.path.parent)] = found[str(report.path.resolve().parent)] = "(path)"
            for command in (report.metadata.command, *(item.process_name for item in own)):
                name = os.path.basename(command)
                if name:
                    commands[command] = commands.setdefault(name, f"command-{_next(commands)}")
    return {name: word for name, word in (commands | found).items() if name not in ("", ".", "/")}


def _next(known: dict[str, str]) -> int:
    return len(set(known.values())) + 1


def _rank_words(own: Collection[RankedTask]) -> str:
    """``rank-3``; ``ranks-0-7`` of several in one report."""
    numbers = sorted(item.rank for item in own)
    if not numbers:
        return ""
    return f"rank-{numbers[0]}" if len(numbers) == 1 else f"ranks-{numbers[0]}-{numbers[-1]}"


def _changed(value: T, words: _Words, people: _Words) -> T:
    """The value with the texts in it changed: tuples and dataclasses are walked through."""
    changed: Any = value
    if isinstance(value, str):
        changed = words.text(value)
    elif isinstance(value, TableAnswer):
        changes = [words.name if column.key in _NAMING else words.text for column in value.columns]
        rows = [
            tuple(change(cell) if isinstance(cell, str) else cell for change, cell in zip(changes, row, strict=True))
            for row in value.rows
        ]
        changed = replace(value, rows=rows, notes=tuple(map(words.text, value.notes)))
    elif isinstance(value, tuple):
        changed = tuple(_changed(one, words, people) for one in value)
    elif is_dataclass(value) and not isinstance(value, type):
        own = {one.name: getattr(value, one.name) for one in fields(value) if one.name not in _OWN}
        made = {key: _changed(one, people if key in _ADVICE else words, people) for key, one in own.items()}
        changed = replace(value, **made)
    return changed  # type: ignore[no-any-return]
