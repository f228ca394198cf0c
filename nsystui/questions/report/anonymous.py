"""Removal of everything in a report that identifies machines, people and files.

A name stays only if it is harmless: an identifier of C++ or Python for a function, plain words for a range, a thread or
a message. A sentence keeps this program's words and harmless names.
"""

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
"""The label of a baseline in an anonymous report."""

_USER = re.compile(r"[/\\](?:home|users|global/homes/\w)[/\\]+([A-Za-z][\w.-]*)", re.IGNORECASE)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_SECRET = re.compile(
    rf"(?<![\d.])(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)|\w@[\w*]"
    r"|(?<![\w:])(?!\d\d:\d\d:\d\d(?![\w:]))(?=:*[\da-fA-F])(?:[\da-fA-F]{0,4}:){2,}[\da-fA-F]{0,4}(?![\w:])"
    r"|(?<![\w)>*. …])[~.]*/(?=\S)|(?:^| )[~.]*/(?=\w)|\\|//|%2[\dF]|\$[\w{(]|(?<!:)~\w|\w\.[A-Za-z]\b(?!\.)"
    r"|(?<![^\W_])(?!(?:b?f\d+|[fstui]+\d\d?|e\dm\d|\d+[dec]+)+(?![^\W_]))(?=\d*[a-f])(?=[a-f]*\d)[\da-f]{8,}(?![^\W_])"
    r"|(?=[A-Z]*\d)[A-Z\d]{16,}|(?=[^\W_]*[A-Z])(?=[^\W_]*[a-z])(?:[A-Za-z]+\d+){4}[^\W_]{4,}"
)
"""An address (IPv4, mail, IPv6, network card); a path, a variable, a file with one-letter ending; a hash, a token."""
_CPP = r"\b(?:(?:un)?signed|void|bool|char|short|int|long|float|double|const|volatile|struct|class|instance|clone)\b"
_NO_FUNCTION = re.compile(
    r"[^\w\s:<>,()&*~\[\]{}#.-]|(?<!:):(?!:)|^:|(?<![\s(<,])-(?!>)|-[^\d>]|[^\W\d_a-zA-Z]|(?:INTERNAL|GLOBAL__N)_"
    rf"|\b(?!{_CPP})\w+\s+(?!{_CPP})\w"
)
"""Text that no function's name contains. Two words follow each other only if one is a word of C++."""
_IN_BRACKETS = re.compile(r"<[^<>]*>|\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")
_NAME = re.compile(r"(?:[\w:*&]+\s+)*[\w:~*.]*\w[\w:~*.]*(?:\s*(?:const|&))*\s*")
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.\w+)+")
_TOKEN = re.compile(r"(?<!\S)([`'\"(\[{<]*)(\S+?)([`'\"\])}>,;:.!?]*)(?!\S)")
_WORD, _PIECE = re.compile(r"\w+"), re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_]+|\d+")
_SUFFIX = re.compile(r"(?: \((?:main|[\d,.]+(?: [a-z]+)?)\)| <<<[^>]*>>>)*$")
"""Text that nsystui appends to a name."""
_OURS = re.compile(r"0x[\da-f]{1,16}|(?:host|user|command|ranks?|report)-\d+(-\d+)?|[A-Z]{1,3}[1-9]\d{1,3}[A-Z]?|w/o")
_NAMING = frozenset({"host", "hostname", "report", "file", "process", "command"})
"""Columns with names of hosts, files, processes and commands, however short."""
_FUNCTIONS = frozenset({"name", "smart", "kernel", "call", "caller", "what", "function"})
_RANGES = frozenset({"range", "path", "thread", "text", "anchor"})
_OUR_FIELDS = frozenset({"key", "title", "method", "id", "severity", "kind", "under", "category", "version"})
"""Fields with words of this program, which may also be names of a host or file."""
_ADVICE = frozenset({"advice", "reason", "measured"})
"""Fields with this program's sentences, which keep words such as `before`, even if a file has that name."""


def anonymous(report: JobPage, jobs: Sequence[OpenJob]) -> JobPage:
    """Return the report with ``host-1``, ``rank-0``, ``command-1``, ``kernel 1`` and ``range 1`` instead of names."""
    smart = {name: short for job in jobs for name, short in job.smart_names().items()}
    words = _Words(_people(jobs, repr(report)), _files(jobs), smart)
    _change(report, words, words.text)  # labels the names in tables, which follow the sentences
    words.learn()
    return replace(_change(report, words, words.text), title="job")


class _Words:
    """Replacements for the names in texts."""

    def __init__(self, people: dict[str, str], files: dict[str, str], smart: dict[str, str]) -> None:
        self._replacements = {name.lower(): word for name, word in (files | people).items()}
        self._people, self._names = _any_of(people, r"(?:\.[A-Za-z][\w-]*)*"), _any_of(self._replacements)
        self._smart, self._labels = smart, dict[tuple[str, str], str]()
        safe_names = [name for name in smart if _is_function(name)]
        self._safe = frozenset(smart[name] for name in safe_names)
        self._hidden = frozenset(smart.values()) - self._safe
        self._bare = frozenset(word for name in (*safe_names, *self._safe) for word in _WORD.findall(name))
        self._texts = _any_of(())

    def learn(self) -> None:
        """Use the labels of the tables in sentences, too."""
        self._label_by_name = {name.lower(): label for (_, name), label in self._labels.items()}
        self._texts = _any_of(name for _, name in self._labels if not self._is_plain(name, _ours()))

    def text(self, text: str) -> str:
        """Return a sentence with labels instead of names, and ``(name)`` instead of unknown words."""
        text = self._texts.sub(lambda match: self._label_by_name[match[1].lower()], text)
        return self.advice(self._names.sub(self._word, self._people.sub(self._word, text)))

    def advice(self, text: str) -> str:
        """Return a sentence like `text`, without labels for files, commands and names in tables."""
        text = _TOKEN.sub(self._token, self._people.sub(self._word, text))
        return re.sub(r"\(name\)(?:\s+\(name\))+", "(name)", text)

    def cell(self, key: str, text: str) -> str:
        """Return a cell of a column: a name is kept or replaced as a whole."""
        if key in _RANGES:
            return " › ".join(self._name("range", part) for part in text.split(" › "))
        return (
            self._name("kernel" if key in _FUNCTIONS else key, text) if key in _FUNCTIONS | _NAMING else self.text(text)
        )

    def _name(self, kind: str, text: str) -> str:
        suffix = _SUFFIX.search(text)
        name = text[: suffix.start()] if suffix else text
        words = _plain() if kind == "range" else _ours()
        if label := self._replacements.get(name.lower()):
            return label + text[len(name) :]
        is_kept = self._is_plain(text, words) or self._is_plain(name, words)
        if is_kept or (kind == "kernel" and (name in self._safe or (name not in self._hidden and _is_function(name)))):
            return self._names.sub(self._word, self._people.sub(self._word, text))
        number = sum(label_kind == kind for label_kind, _ in self._labels) + 1
        return self._labels.setdefault((kind, self._smart.get(name, name)), f"{kind} {number}") + text[len(name) :]

    def _word(self, match: re.Match[str]) -> str:
        return self._replacements[match[1].lower()]

    def _token(self, match: re.Match[str]) -> str:
        text = match[2]
        is_dotted = _DOTTED.search(text) and not self._is_plain(text, _plain())
        is_kept = text in self._safe or _OURS.fullmatch(text) or (self._is_plain(text, _ours()) and not is_dotted)
        return match[0] if is_kept else f"{match[1]}{'(path)' if '/' in text else '(name)'}{match[3]}"

    def _is_plain(self, text: str, words: frozenset[str]) -> bool:
        """Return whether each word is a number, in ``words``, or part of a kept function name."""
        parts = _WORD.findall(text)
        return not _SECRET.search(text) and all(
            _is_word(part, words) or (part in self._bare and part.lower() not in self._replacements) for part in parts
        )


def _is_function(name: str) -> bool:
    text = re.sub(r"\(anonymous namespace\)|<unnamed>| λ\d*", "", name)
    bare = text
    while (shorter := _IN_BRACKETS.sub("", bare)) != bare:
        bare = shorter
    dotted = (word for name_part in _DOTTED.findall(text) for word in _WORD.findall(name_part))
    is_name = _NAME.fullmatch(bare) and not _NO_FUNCTION.search(text) and not _SECRET.search(text)
    return bool(is_name) and all(_is_word(word, _plain()) for word in dotted)


def _is_word(word: str, words: frozenset[str]) -> bool:
    pieces = (
        [] if word.isdecimal() or word.lower() in words else _PIECE.findall(word.lower() if word.isupper() else word)
    )
    checks = (piece.isdecimal() or piece.lower() in (words if len(piece) > 2 else _plain()) for piece in pieces)
    return all(is_plain or (len(piece) == 1 and "_" in word) for piece, is_plain in zip(pieces, checks, strict=True))


@cache
def _plain() -> frozenset[str]:
    """Return plain words of the field, which name no person, machine or project."""
    return frozenset((Path(__file__).parent / "plain_words.txt").read_text(encoding="utf-8").split())


@cache
def _ours() -> frozenset[str]:
    """Return the words of this program's sources and comments, and the plain words."""
    rooms = [Path(__file__).parents[2] / room for room in ("questions", "base", "exports", "store")]
    texts = (file.read_text(encoding="utf-8") for room in rooms for file in room.rglob("*.py"))
    words = {word for text in texts for word in _WORD.findall(text)}
    return _plain() | {piece.lower() for word in words for piece in (word, *_PIECE.findall(word))}


def _any_of(names: Iterable[str], suffix: str = "") -> re.Pattern[str]:
    """Return a pattern of the names, longest first: a host's short name begins its full name."""
    ordered = sorted((name for name in names if len(name) > 1 and not name.isdecimal()), key=len, reverse=True)
    alternatives = "|".join(map(re.escape, ordered)) or "(?!)"
    return re.compile(rf"(?<![A-Za-z0-9])({alternatives})(?![A-Za-z0-9]){suffix}", re.IGNORECASE)


def _people(jobs: Sequence[OpenJob], report_text: str) -> dict[str, str]:
    """Return labels for hosts, for users in paths and in the report's text, and for owners of files."""
    hosts: dict[str, str] = {}
    users: dict[str, str] = {}
    for job in jobs:
        reports = job.session.reports
        for host in [*(report.metadata.host for report in reports), *(item.host for item in job.ranks)]:
            short = host.partition(".")[0]
            host_name = host if short.isdecimal() else short  # an address is not a name with a domain
            if host_name:
                hosts[host] = hosts.setdefault(host_name, f"host-{_next(hosts)}")
        for report in reports:
            texts = [str(report.path.resolve()), report.metadata.command, report_text]
            with suppress(KeyError, OSError):
                texts.append(f"/home/{report.path.owner()}")
            for user in (user.lower() for text in texts for user in _USER.findall(text)):
                if user != "root":  # a word of collectives
                    users.setdefault(user, f"user-{_next(users)}")
    people = users | hosts
    # Names that are listed together have a star for numbers.
    return {re.sub(r"\d+", "*", name): word for name, word in people.items() if not name.isdecimal()} | people


def _files(jobs: Sequence[OpenJob]) -> dict[str, str]:
    """Return labels for reports with their folders, and for commands."""
    labels: dict[str, str] = {}
    commands: dict[str, str] = {}
    for job in jobs:
        for report in job.session.reports:
            members = [item for item in job.ranks if item.task.report == report.index]
            ranks = sorted(item.rank for item in members)
            report_label = f"ranks-{ranks[0]}-{ranks[-1]}" if ranks else f"report-{report.index + 1}"
            label = f"rank-{ranks[0]}" if len(ranks) == 1 else report_label
            for name in (report.name, report.path.name, name_of(report.path)):
                labels.setdefault(name, label)
            labels[str(report.path.parent)] = labels[str(report.path.resolve().parent)] = "(path)"
            for command in (report.metadata.command, *(item.process_name for item in members)):
                name = os.path.basename(command)
                if name:
                    commands[command] = commands.setdefault(name, f"command-{_next(commands)}")
    return {name: word for name, word in (commands | labels).items() if name not in ("", ".", "/")}


def _next(labels: dict[str, str]) -> int:
    return len(set(labels.values())) + 1


def _change(value: T, words: _Words, edit: Callable[[str], str]) -> T:
    changed: Any = value
    if isinstance(value, str):
        changed = edit(value)
    elif isinstance(value, TableAnswer):
        keys = [column.key for column in value.columns]
        rows = [
            tuple(words.cell(key, cell) if isinstance(cell, str) else cell for key, cell in zip(keys, row, strict=True))
            for row in value.rows
        ]
        changed = replace(value, rows=rows, notes=tuple(map(words.text, value.notes)))
    elif isinstance(value, tuple):
        changed = tuple(_change(item, words, edit) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        values = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in _OUR_FIELDS}
        updates = {key: _change(item, words, words.advice if key in _ADVICE else edit) for key, item in values.items()}
        changed = replace(value, **updates)
    return changed  # type: ignore[no-any-return]
