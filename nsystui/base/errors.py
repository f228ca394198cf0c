"""Errors that a user can meet; their messages name the object, the problem and the next step."""

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

_Member = TypeVar("_Member", bound=Enum)


class NsystuiError(Exception):
    """A failure to report in one line, with its exit status."""

    exit_code = 2


class UsageError(NsystuiError):
    """A command or a value typed by the user is invalid."""


class ExportError(NsystuiError):
    """A file, ``path``, cannot be opened as an export because of ``cause``; ``advice`` is the next step."""

    def __init__(self, path: str, cause: str, advice: str = "") -> None:
        self.path = path
        self.cause = cause
        self.advice = advice
        super().__init__(f"{path}: {cause}" + (f" ({advice})" if advice else ""))


class MissingFileError(ExportError):
    """A file does not exist, or a directory contains no export."""


class DamagedError(ExportError):
    """A file cannot be read because a native ``table`` is damaged; empty if the table is not known."""

    def __init__(self, path: str, cause: str, advice: str = "", table: str = "") -> None:
        super().__init__(path, cause, advice)
        self.table = table


class MissingDataError(NsystuiError):
    """A question needs tables that the exports lack; the message says what to record."""

    exit_code = 3


class OutputError(NsystuiError):
    """Writing failed; no partial output remains."""


def meant(word: str, names: Iterable[str], otherwise: str) -> str:
    """Return ``did you mean NAME?`` with the nearest name, else ``otherwise``: the end of an error message."""
    import difflib

    candidates = list(names)
    spelling = "-" if any("-" in name for name in candidates) else "_"
    close = difflib.get_close_matches(word.lower().replace("-", spelling).replace("_", spelling), candidates, n=1)
    return f"did you mean {close[0]}?" if close else otherwise


def no_such_name(option: str, word: str, names: Iterable[str]) -> UsageError:
    """Return the error for an unknown name. It quotes the nearest of ``names``, at most three.

    Names that contain the word are first, then names that are similar or contain a similar word.
    """
    import difflib
    import re

    from nsystui.base.text import shell_word

    candidates, folded, names_by_part = sorted(names), word.casefold(), dict[str, str]()
    for name in candidates[:5_000]:  # comparing this many names takes a second
        for part in [name, *re.findall(r"\w+", name)]:
            names_by_part.setdefault(part.casefold(), name)
    containing = sorted((name for name in candidates if folded in name.casefold()), key=len)
    similar = [names_by_part[part] for part in difflib.get_close_matches(folded, names_by_part, cutoff=0.5)]
    nearest = [shell_word(name) for name in dict.fromkeys([*containing, *similar])][:3]
    near = f"the nearest {'are' if len(nearest) > 1 else 'is'} {', '.join(nearest)}"
    hint = near if nearest else f"none is similar; without {option}, the command lists the names"
    return UsageError(f"{option} {shell_word(word)}: no such name; {hint}")


def see_directory(name: str) -> str:
    """Return the advice to list the nearest directory of a missing file that exists."""
    import os
    from pathlib import Path

    from nsystui.base.text import shell_word

    directory = str(next(filter(os.path.isdir, Path(name).parents), "."))
    return f"see what is there: ls -l {shell_word(directory)}"


def members_of(text: str, members: type[_Member], noun: str) -> tuple[_Member, ...]:
    """Parse distinct, comma-separated values of an enum, called ``noun`` in errors. Raises UsageError."""
    members_by_word = {str(member.value): member for member in members}
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in members_by_word:
            raise UsageError(f"{noun} {word!r}: the {noun}s are {', '.join(members_by_word)}")
    return tuple(dict.fromkeys(members_by_word[word] for word in words))


def reason_of(error: BaseException) -> str:
    """Return the cause of an error of the system or a library in one line."""
    message = error.strerror if isinstance(error, OSError) else None
    return message or next(iter(str(error).splitlines()), "") or type(error).__name__


def report_crash(error: BaseException) -> str:
    """Write an unhandled error's details to a file; return a line with its cause and the file's name."""
    import platform
    import sys
    import tempfile
    import traceback

    from nsystui.base.text import safe_text
    from nsystui.base.version import __version__

    cause = safe_text(" ".join(f"{type(error).__name__}: {error}".split()))
    try:
        # Only its owner may read it: a traceback may contain data of an export.
        with tempfile.NamedTemporaryFile(
            "w", prefix="nsystui-error-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(f"nsystui {__version__}, Python {platform.python_version()}, {sys.platform}\n\n")
            file.writelines(traceback.format_exception(error))
    except OSError as refusal:
        return f"internal error of nsystui ({cause}); its details could not be written: {refusal.strerror or refusal}"
    return f"internal error of nsystui ({cause}); the details to report are in {safe_text(file.name)}"
