"""The errors that a user can meet. Each says what is wrong, with what, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable


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
