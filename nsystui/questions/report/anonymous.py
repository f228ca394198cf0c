"""Removes from a report whatever identifies machines, people and files.

A name stays only if it is harmless: an identifier of C++ or Python if it names a function, plain words of the field if
it names a range, a thread or a message. A sentence keeps the words that this program is written with, and such names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from nsystui.base.answer import TableAnswer
from nsystui.exports.discover import name_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.report.report import JobPage

T = TypeVar("T")

BASELINE = "the baseline"
"""The label of a baseline in such a report."""

_USER = re.compile(r"[/\\](?:home|users|global/homes/\w)[/\\]+([A-Za-z][\w.-]*)", re.IGNORECASE)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_SECRET = re.compile(
    rf"(?<![\d.])(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)|\w@[\w*]"
    r"|(?<![\w:])(?!\d\d:\d\d:\d\d(?![\w:]))(?=:*[\da-fA-F])(?:[\da-fA-F]{0,4}:){2,}[\da-fA-F]{0,4}(?![\w:])"
    r"|(?<![\w)>*. …])[~.]*/(?=\S)|(?:^| )[~.]*/(?=\w)|\\|//|%2[\dF]|\$[\w{(]|(?<!:)~\w|\w\.[A-Za-z]\b(?!\.)"
    r"|(?<![^\W_])(?!(?:b?f\d+|[fstui]+\d\d?|e\dm\d|\d+[dec]+)+(?![^\W_]))(?=\d*[a-f])(?=[a-f]*\d)[\da-f]{8,}(?![^\W_])"
    r"|(?=[A-Z]*\d)[A-Z\d]{16,}|(?=[^\W_]*[A-Z])(?=[^\W_]*[a-z])(?:[A-Za-z]+\d+){4}[^\W_]{4,}"
)
"""An address of IPv4, mail, IPv6 or a network card; a path, a variable or a file by one letter; a hash or a token."""
_CPP = r"\b(?:(?:un)?signed|void|bool|char|short|int|long|float|double|const|volatile|struct|class|instance|clone)\b"
_NO_FUNCTION = re.compile(
    r"[^\w\s:<>,()&*~\[\]{}#.-]|(?<!:):(?!:)|^:|(?<![\s(<,])-(?!>)|-[^\d>]|[^\W\d_a-zA-Z]|(?:INTERNAL|GLOBAL__N)_"
    rf"|\b(?!{_CPP})\w+\s+(?!{_CPP})\w"
)
"""Text that no name of a function contains. Two words follow each other only if one is a word of C++."""
_IN_BRACKETS = re.compile(r"<[^<>]*>|\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")
_NAME = re.compile(r"(?:[\w:*&]+\s+)*[\w:~*.]*\w[\w:~*.]*(?:\s*(?:const|&))*\s*")
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.\w+)+")
_TOKEN = re.compile(r"(?<!\S)([`'\"(\[{<]*)(\S+?)([`'\"\])}>,;:.!?]*)(?!\S)")
_WORD, _PIECE = re.compile(r"\w+"), re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_]+|\d+")
_BEHIND = re.compile(r"(?: \((?:main|[\d,.]+(?: [a-z]+)?)\)| <<<[^>]*>>>)*$")
"""Text that nsystui appends to a name."""
_OURS = re.compile(r"0x[\da-f]{1,16}|(?:host|user|command|ranks?|report)-\d+(-\d+)?|[A-Z]{1,3}[1-9]\d{1,3}[A-Z]?|w/o")
_NAMING = frozenset({"host", "hostname", "report", "file", "process", "command"})
"""The keys of the columns that hold such names, however short."""
_FUNCTIONS = frozenset({"name", "smart", "kernel", "call", "caller", "what", "function"})
_RANGES = frozenset({"range", "path", "thread", "text", "anchor"})
_OWN = frozenset({"key", "title", "method", "id", "severity", "kind", "under", "category", "version"})
"""The fields that hold words of this program, which may be names of a host or file, too."""
_ADVICE = frozenset({"advice", "reason", "measured"})
"""The fields of sentences of this program, in which a file called `before` is no file."""


def anonymous(report: JobPage, jobs: Sequence[OpenJob]) -> JobPage:
    """Return the report with ``host-1``, ``rank-0``, ``command-1``, ``kernel 1`` and ``range 1`` instead of names."""
    smart = {name: short for job in jobs for name, short in job.smart_names().items()}
    words = _Words(_people(jobs, repr(report)), _files(jobs), smart)
    _changed(report, words, words.text)  # numbers the names in tables, which come after the sentences
    words.learn()
    return replace(_changed(report, words, words.text), title="job")


class _Words:
    """Replaces names in texts."""

    def __init__(self, people: dict[str, str], files: dict[str, str], smart: dict[str, str]) -> None:
        self._known = {name.lower(): word for name, word in (files | people).items()}
        self._people, self._names = _any_of(people, r"(?:\.[A-Za-z][\w-]*)*"), _any_of(self._known)
        self._smart, self._labels = smart, dict[tuple[str, str], str]()
        kept = [name for name in smart if _is_function(name)]
        self._kept = frozenset(smart[name] for name in kept)
        self._hidden = frozenset(smart.values()) - self._kept
        self._bare = frozenset(word for name in (*kept, *self._kept) for word in _WORD.findall(name))
        self._texts = _any_of(())

    def learn(self) -> None:
        """Take the labels of the tables for sentences, too."""
        self._unsafe = {name.lower(): label for (_, name), label in self._labels.items()}
        self._texts = _any_of(name for _, name in self._labels if not self._is_plain(name, _ours()))

    def text(self, text: str) -> str:
        """Return a sentence in which labels are instead of names, and ``(name)`` instead of unknown words."""
        text = self._texts.sub(lambda match: self._unsafe[match[1].lower()], text)
        return self.advice(self._names.sub(self._word, self._people.sub(self._word, text)))

    def advice(self, text: str) -> str:
        """Return a sentence as `text` does, but with words that are names of files."""
        text = _TOKEN.sub(self._token, self._people.sub(self._word, text))
        return re.sub(r"\(name\)(?:\s+\(name\))+", "(name)", text)

    def cell(self, key: str, text: str) -> str:
        """Return the cell of a column: a name is kept or replaced as a whole."""
        if key in _RANGES:
            return " › ".join(self._name("range", part) for part in text.split(" › "))
        return (
            self._name("kernel" if key in _FUNCTIONS else key, text) if key in _FUNCTIONS | _NAMING else self.text(text)
        )

    def _name(self, kind: str, text: str) -> str:
        behind = _BEHIND.search(text)
        name = text[: behind.start()] if behind else text
        words = _plain() if kind == "range" else _ours()
        if label := self._known.get(name.lower()):
            return label + text[len(name) :]
        is_kept = self._is_plain(text, words) or self._is_plain(name, words)
        if is_kept or (kind == "kernel" and (name in self._kept or (name not in self._hidden and _is_function(name)))):
            return self._names.sub(self._word, self._people.sub(self._word, text))
        number = sum(one == kind for one, _ in self._labels) + 1
        return self._labels.setdefault((kind, self._smart.get(name, name)), f"{kind} {number}") + text[len(name) :]

    def _word(self, match: re.Match[str]) -> str:
        return self._known[match[1].lower()]

    def _token(self, match: re.Match[str]) -> str:
        text = match[2]
        is_dotted = _DOTTED.search(text) and not self._is_plain(text, _plain())
        is_kept = text in self._kept or _OURS.fullmatch(text) or (self._is_plain(text, _ours()) and not is_dotted)
        return match[0] if is_kept else f"{match[1]}{'(path)' if '/' in text else '(name)'}{match[3]}"

    def _is_plain(self, text: str, words: frozenset[str]) -> bool:
        """Whether each word is a number, one of the ``words``, or a word of a function's name that stays."""
        found = _WORD.findall(text)
        return not _SECRET.search(text) and all(
            _is_word(one, words) or (one in self._bare and one.lower() not in self._known) for one in found
        )


def _is_function(name: str) -> bool:
    """Whether the name is an identifier of C++ or Python with its template arguments and parameters."""
    text = re.sub(r"\(anonymous namespace\)|<unnamed>| λ\d*", "", name)
    bare = text
    while (shorter := _IN_BRACKETS.sub("", bare)) != bare:
        bare = shorter
    dotted = (word for one in _DOTTED.findall(text) for word in _WORD.findall(one))
    is_name = _NAME.fullmatch(bare) and not _NO_FUNCTION.search(text) and not _SECRET.search(text)
    return bool(is_name) and all(_is_word(one, _plain()) for one in dotted)


def _is_word(word: str, words: frozenset[str]) -> bool:
    pieces = (
        [] if word.isdecimal() or word.lower() in words else _PIECE.findall(word.lower() if word.isupper() else word)
    )
    known = (one.isdecimal() or one.lower() in (words if len(one) > 2 else _plain()) for one in pieces)
    return all(is_known or (len(one) == 1 and "_" in word) for one, is_known in zip(pieces, known, strict=True))


@cache
def _plain() -> frozenset[str]:
    """Return the plain words of the field, of which none names a person, a machine or a project."""
    return frozenset((Path(__file__).parent / "plain_words.txt").read_text(encoding="utf-8").split())


@cache
def _ours() -> frozenset[str]:
    """Return the words that this program is written with."""
    rooms = [Path(__file__).parents[2] / room for room in ("questions", "base", "exports", "store")]
    texts = (file.read_text(encoding="utf-8") for room in rooms for file in room.rglob("*.py"))
    found = {word for text in texts for word in _WORD.findall(text)}
    return _plain() | {one.lower() for word in found for one in (word, *_PIECE.findall(word))}


def _any_of(names: Iterable[str], rest: str = "") -> re.Pattern[str]:
    """Longer names first: the short form of a host is the beginning of its full name. ``rest`` is what may follow."""
    found = sorted((name for name in names if len(name) > 1 and not name.isdecimal()), key=len, reverse=True)
    every = "|".join(map(re.escape, found)) or "(?!)"
    return re.compile(rf"(?<![A-Za-z0-9])({every})(?![A-Za-z0-9]){rest}", re.IGNORECASE)


def _people(jobs: Sequence[OpenJob], told: str) -> dict[str, str]:
    """Return the hosts and users: of the paths in what the report told, and the owners of the files."""
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
            named = [str(report.path.resolve()), report.metadata.command, told]
            with suppress(KeyError, OSError):
                named.append(f"/home/{report.path.owner()}")
            for user in (user.lower() for text in named for user in _USER.findall(text)):
                if user != "root":  # a word of collectives
                    users.setdefault(user, f"user-{_next(users)}")
    people = users | hosts
    # In names that are told together a star stands for numbers.
    return {re.sub(r"\d+", "*", name): word for name, word in people.items() if not name.isdecimal()} | people


def _files(jobs: Sequence[OpenJob]) -> dict[str, str]:
    """Return the reports with their folders, and the commands."""
    found: dict[str, str] = {}
    commands: dict[str, str] = {}
    for job in jobs:
        for report in job.session.reports:
            own = [item for item in job.ranks if item.task.report == report.index]
            ranks = sorted(item.rank for item in own)
            several = f"ranks-{ranks[0]}-{ranks[-1]}" if ranks else f"report-{report.index + 1}"
            label = f"rank-{ranks[0]}" if len(ranks) == 1 else several
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


def _changed(value: T, words: _Words, text: Callable[[str], str]) -> T:
    """The value with the texts in it changed: tuples and dataclasses are walked through."""
    changed: Any = value
    if isinstance(value, str):
        changed = text(value)
    elif isinstance(value, TableAnswer):
        keys = [column.key for column in value.columns]
        rows = [
            tuple(words.cell(key, cell) if isinstance(cell, str) else cell for key, cell in zip(keys, row, strict=True))
            for row in value.rows
        ]
        changed = replace(value, rows=rows, notes=tuple(map(words.text, value.notes)))
    elif isinstance(value, tuple):
        changed = tuple(_changed(one, words, text) for one in value)
    elif is_dataclass(value) and not isinstance(value, type):
        own = {one.name: getattr(value, one.name) for one in fields(value) if one.name not in _OWN}
        made = {key: _changed(one, words, words.advice if key in _ADVICE else text) for key, one in own.items()}
        changed = replace(value, **made)
    return changed  # type: ignore[no-any-return]
