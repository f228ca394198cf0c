"""The errors that a user can meet: each says what is wrong, with what, and what to do next.

An error of the program itself becomes one line and a file with its details (`report_crash`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

Member = TypeVar("Member", bound=Enum)


class NsystuiError(Exception):
    """A failure to report in one clear line; ``exit_code`` is what the shell gets."""

    exit_code = 2


class UsageError(NsystuiError):
    """The words of a command or a value typed by the user make no sense."""


class ExportError(NsystuiError):
    """A file cannot be opened as an export: ``path`` names it, ``cause`` says why, ``advice`` what to do."""

    def __init__(self, path: str, cause: str, advice: str = "") -> None:
        self.path = path
        self.cause = cause
        self.advice = advice
        super().__init__(f"{path}: {cause}" + (f" ({advice})" if advice else ""))


class MissingFileError(ExportError):
    """A file is not there, or a directory has no export."""


class DamagedError(ExportError):
    """A file cannot be read because of damage in it, in a native ``table``; empty where that is not known."""

    def __init__(self, path: str, cause: str, advice: str = "", table: str = "") -> None:
        super().__init__(path, cause, advice)
        self.table = table


class MissingDataError(NsystuiError):
    """The question needs tables that the exports do not have; the text says what to record."""

    exit_code = 3


class OutputError(NsystuiError):
    """Writing failed; nothing half-written was left behind."""


def meant(word: str, names: Iterable[str], otherwise: str) -> str:
    """``did you mean NAME?`` with the nearest of some names, else ``otherwise``: the end of an error's line."""
    import difflib

    known = list(names)
    spelling = "-" if any("-" in name for name in known) else "_"
    close = difflib.get_close_matches(word.lower().replace("-", spelling).replace("_", spelling), known, n=1)
    return f"did you mean {close[0]}?" if close else otherwise


def no_such_name(option: str, word: str, names: Iterable[str]) -> UsageError:
    """Return the error for an unknown name. It quotes the nearest of ``names``, at most three.

    Near is a name that contains the word, or is like it, or has an identifier like it; the others keep their order.
    """
    import difflib
    import re

    from nsystui.base.text import shell_word

    known, folded, bearers = list(names), word.casefold(), dict[str, str]()
    for name in known[:5_000]:  # to compare them letter by letter takes a second
        for part in [name, *re.findall(r"\w+", name)]:
            bearers.setdefault(part.casefold(), name)
    inside = sorted((name for name in known if folded in name.casefold()), key=len)
    close = [bearers[part] for part in difflib.get_close_matches(folded, bearers, cutoff=0.5)]
    near = map(shell_word, list(dict.fromkeys([*inside, *close, *known]))[:3])
    return UsageError(f"{option} {shell_word(word)}: no such name; the nearest are {', '.join(near)}")


def members_of(text: str, members: type[Member], noun: str) -> tuple[Member, ...]:
    """Parse comma-separated values of an enum, each once. Raises UsageError, in words of ``noun``, for any other."""
    known = {str(member.value): member for member in members}
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise UsageError(f"{noun} {word!r}: the {noun}s are {', '.join(known)}")
    return tuple(dict.fromkeys(known[word] for word in words))


def reason_of(error: BaseException) -> str:
    """The cause of an error of the system or of a library in one line."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or next(iter(str(error).splitlines()), "") or type(error).__name__


def report_crash(error: BaseException) -> str:
    """One line about an error that nothing handled; the details are written to the file that the line names."""
    import platform
    import sys
    import tempfile
    import traceback

    from nsystui.base.text import safe_text
    from nsystui.base.version import __version__

    cause = safe_text(" ".join(f"{type(error).__name__}: {error}".split()))
    try:
        # Only its owner may read it: a traceback may hold what lies in an export.
        with tempfile.NamedTemporaryFile(
            "w", prefix="nsystui-error-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(f"nsystui {__version__}, Python {platform.python_version()}, {sys.platform}\n\n")
            file.writelines(traceback.format_exception(error))
    except OSError as refusal:
        return f"an error of nsystui itself ({cause}); its details could not be written: {refusal.strerror or refusal}"
    return f"an error of nsystui itself ({cause}); the details to report are in {safe_text(file.name)}"
