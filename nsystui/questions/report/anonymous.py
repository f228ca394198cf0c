"""A report without what names machines, people and files: hosts, users, paths, commands and names of reports.

Names of kernels, NVTX ranges and functions stay: without them nothing would be told. What is known to be a name of a
host, file, command or user is replaced wherever it stands, and so is everything that looks like a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from nsystui.base.answer import TableAnswer
from nsystui.exports.discover import name_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.report.report import JobPage

T = TypeVar("T")

BASELINE = "the baseline"
"""The label of a baseline in such a report."""

_SLASH = r"[/\\\u2044\u2215\uFF0F\uFF3C]+(?!x[0-9A-F]{2})(?=\S)"
_CODE = "pyc?|pyx|ipynb|cuh?|cpp|cxx|hpp|ptx|cubin|sqlite|nsys-rep|qdrep|csv|ya?ml|parquet|hdf5|ckpt|safetensors"
# Without a folder before it such a name may be a function: torch.log.
_PLAIN = "c|cc|h|so|o|sh|txt|log|out|err|json|toml|cfg|ini|md|tar|t?gz|zip|pth?|bin|pkl|np[yz]|h[5*]|exe|dll"
_BEGINNINGS = (
    rf"(?<![\w*])(?:[A-Z]:|~|\.+)?{_SLASH}",
    rf"(?<!\w)(?:[$~][\w.-]+|home|users|lustre|gpfs|scratch){_SLASH}",
    r"\S+\\(?!x[0-9A-F]{2})(?=\S)",
    r"\S*%[2*]F",
    rf"(?<!\w)[\w.+@~%=*-]*/[\w.+@~%=*/-]*\.(?:{_CODE}|{_PLAIN})\b",
    rf"(?<!\w)(?!(?:FILE|REPORT)\.nsys-rep)[\w+@~%=*-][\w.+@~%=*-]*\.(?:{_CODE})\b",
)
_PATH = re.compile(rf"(?:{'|'.join(_BEGINNINGS)})(?:(?! › ).)*", re.IGNORECASE | re.DOTALL)
"""A path, from a root or a folder of users on, or a file by its ending; other names with slashes are those of layers.
With all that follows, up to the next range: nothing tells where the name of a file ends."""
_USER = re.compile(r"[/\\](?:home|users|global/homes/\w)[/\\]+([A-Za-z][\w.-]*)", re.IGNORECASE)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_ADDRESS = re.compile(
    rf"(?<![\d.])(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)|[\w.+*-]+@(?:(?=host-\d)|(?:[\w*-]+\.)+[A-Z]{{2,}}\b|[\w.-]*…)"
    r"|(?<=\buser[=:])\s*[^\s,;]+|(?<=\busername[=:])\s*[^\s,;]+|(?<=\blogname[=:])\s*[^\s,;]+",
    re.IGNORECASE,
)
"""A network or mail address, and what follows ``user=`` and the like."""
_NAMING = frozenset({"host", "hostname", "report", "file", "process", "command", "path"})
"""The keys of the columns that hold such names, however short."""
_OWN = frozenset({"key", "title", "method", "id", "severity", "kind", "under", "category", "version"})
"""The fields that hold words of this program, which may be names of a host or file, too."""
_ADVICE = frozenset({"advice", "reason", "measured"})
"""The fields of sentences of this program, in which a file called `before` is no file."""


def anonymous(report: JobPage, jobs: Sequence[OpenJob]) -> JobPage:
    """The report with ``host-1``, ``rank-0``, ``command-1``, ``user-1`` and ``(path)`` in place of names."""
    heard = _Heard()
    _changed(report, heard, heard)
    people, files = _people(jobs, heard.texts), _files(jobs)
    return replace(_changed(report, _Words(people, files), _Words(people, {})), title="job")


class _Heard:
    """Keeps texts as they are, to look for users in them."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def text(self, text: str) -> str:
        self.texts.append(text)
        return text

    name = text


class _Words:
    """Replaces names in texts."""

    def __init__(self, people: dict[str, str], files: dict[str, str]) -> None:
        known = files | people
        self._known = {name.lower(): word for name, word in known.items()}
        # A path with a blank in it is known as a whole, and looks like one only up to there.
        self._places = _any_of(name for name in known if "/" in name)
        self._people = _any_of(people, r"(?:\.[A-Za-z][\w-]*)*")
        self._names = _any_of(name for name in known if "/" not in name)

    def text(self, text: str) -> str:
        """Whatever is known or looks like a path, wherever it stands."""
        text = _PATH.sub("(path)", self._places.sub("(path)", text))
        for names in (self._people, self._names):
            text = names.sub(lambda match: self._known[match.group(1).lower()], text)
        return _ADDRESS.sub("(address)", text)

    def name(self, text: str) -> str:
        """A text that is nothing but such a name."""
        return self._known.get(text.lower()) or self.text(text)


def _any_of(names: Iterable[str], rest: str = "") -> re.Pattern[str]:
    """Longer names first: the short form of a host is the beginning of its full name. ``rest`` is what may follow."""
    found = sorted((name for name in names if len(name) > 1 and not name.isdecimal()), key=len, reverse=True)
    every = "|".join(map(re.escape, found)) or "(?!)"
    return re.compile(rf"(?<![A-Za-z0-9])({every})(?![A-Za-z0-9]){rest}", re.IGNORECASE)


def _people(jobs: Sequence[OpenJob], texts: Sequence[str]) -> dict[str, str]:
    """Hosts and users: those of the ``texts``, of the paths, and the owners of the files."""
    hosts: dict[str, str] = {}
    users: dict[str, str] = {}
    for job in jobs:
        reports = job.session.reports
        for host in [*(report.metadata.host for report in reports), *(item.host for item in job.ranks)]:
            short = host.partition(".")[0]
            own = host if short.isdecimal() else short  # an address is no name with a domain
            if own:
                hosts[host] = hosts.setdefault(own, f"host-{_next(hosts)}")
        for report in reports:
            named = [str(report.path.resolve()), report.metadata.command, *texts]
            with suppress(KeyError, OSError):
                named.append(f"/home/{report.path.owner()}")
            for user in (user.lower() for text in named for user in _USER.findall(text)):
                if user != "root":  # a word of collectives
                    users.setdefault(user, f"user-{_next(users)}")
    people = users | hosts
    # In names that are told together a star stands for numbers.
    return {re.sub(r"\d+", "*", name): word for name, word in people.items() if not name.isdecimal()} | people


def _files(jobs: Sequence[OpenJob]) -> dict[str, str]:
    """Reports with their folders, commands, and what is left of a path as the smart name of a kernel."""
    found: dict[str, str] = {}
    commands: dict[str, str] = {}
    for job in jobs:
        smart = job.smart_names().items()
        found |= {short: "(path)" for full, short in smart if _PATH.search(full) or _ADDRESS.search(full)}
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


def _changed(value: T, words: _Words | _Heard, people: _Words | _Heard) -> T:
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
