"""Which of the files that the screens shall open are exports, and which are logs of NCCL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from nsystui.base.errors import UsageError
from nsystui.base.text import shell_word
from nsystui.exports.discover import EXPORT_ENDINGS, discover
from nsystui.exports.nccl_log.files import STDIN, FileKind, kind_of, named

_SHOWN = 2
"""How many names of each kind an error writes out: a job has hundreds."""


@dataclass(frozen=True)
class NamedFiles:
    """What to open: ``exports`` as the user named them, ``logs`` one by one. One of the two may be empty."""

    exports: tuple[str, ...]
    logs: tuple[str, ...] = ()


def named_files(files: Sequence[str], log_patterns: Sequence[str] | None) -> NamedFiles:
    """Tells the files apart by their content; ``log_patterns`` are the names and globs of ``--nccl-log``.

    What is neither counts as an export, which opening it then denies in the words of that file, unless a log is among
    the files: the output of a rank that called nothing has no line of NCCL. Raises UsageError for what cannot go
    together, with the command that does.
    """
    paths = [str(path) for path in discover(files)]
    exports, logs = _told_apart(paths)
    if logs and exports:
        raise UsageError(
            f"{exports[0]} is {FileKind.EXPORT.value}, {logs[0]} {FileKind.LOG.value}: to see both, write "
            f"nsystui {_words(exports)} --nccl-log {_words(logs)}"
        )
    if logs and log_patterns:
        raise UsageError(f"{logs[0]} is {FileKind.LOG.value}: name it after --nccl-log, and before that an export")
    return NamedFiles((), tuple(paths)) if logs else NamedFiles(tuple(files), _logs(log_patterns or ()))


def _told_apart(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Which are exports, and which logs, as far as it matters; what is neither is in neither list.

    Among files like the first one, those that are named like it are not looked at: a job has hundreds, on a file
    system where each look takes time that the first window would wait for, and reading them says what they are.
    """
    first = kind_of(paths[0]) if paths else None
    logs = {path for path in paths if first is FileKind.LOG and not path.endswith(EXPORT_ENDINGS)}
    exports = {path for path in paths if first is FileKind.EXPORT and path.endswith(EXPORT_ENDINGS)}
    for path in paths:
        if path not in logs and path not in exports:
            kind = kind_of(path)
            logs |= {path} if kind is FileKind.LOG else set()
            exports |= {path} if kind is FileKind.EXPORT else set()
    return [path for path in paths if path in exports], [path for path in paths if path in logs]


def _logs(patterns: Sequence[str]) -> tuple[str, ...]:
    """The logs of ``--nccl-log``. Raises UsageError for one that is not there, or is no log at all."""
    names = named(patterns)
    for name in names:
        problem = _problem(name)
        if problem:
            raise UsageError(f"--nccl-log {shell_word(name)}: {problem}")
    return tuple(names)


def _problem(name: str) -> str:
    """Why there can be no log under this name; empty if there can."""
    if name == STDIN:
        return "the screens read keys from standard input; `nsystui nccl-log -` reads a log from it"
    if not os.path.lexists(name):
        return "no such file"
    if os.path.isdir(name):
        return f"a directory; name the logs in it: {shell_word(name.rstrip('/'))}/*.log"
    if name.endswith(EXPORT_ENDINGS) and kind_of(name) is FileKind.EXPORT:
        return f"{FileKind.EXPORT.value}; exports stand before --nccl-log"
    return ""


def _words(names: Sequence[str]) -> str:
    more = " …" if len(names) > _SHOWN else ""
    return " ".join(shell_word(name) for name in names[:_SHOWN]) + more
