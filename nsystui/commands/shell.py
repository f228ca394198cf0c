"""Completion by argcomplete and the manual page by argparse-manpage, both from the parsers of the commands."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from nsystui.base.errors import NsystuiError
from nsystui.base.text import ascii_glyphs
from nsystui.base.version import __version__
from nsystui.commands import commands, is_command

SHELLS = ("bash", "zsh", "fish")

Words = Mapping[str, str]
"""Words that may stand in a place, with a line about each (empty for none)."""


def script(shell: str) -> str:
    """The code that has a shell ask the program for completions."""
    from argcomplete.shell_integration import shellcode

    return shellcode(["nsystui"], shell=shell)


def complete(parser_of: Callable[[str], argparse.ArgumentParser]) -> None:
    """Prints for the shell what may stand at its cursor, and ends the program."""
    from argcomplete import autocomplete
    from argcomplete.completers import SuppressCompleter
    from argcomplete.lexers import split_line

    *_, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    parser, skipped = completed_parser(words[1:], parser_of)
    os.environ["_ARGCOMPLETE"] = str(1 + skipped)
    autocomplete(parser, always_complete_options=False, default_completer=SuppressCompleter())


def completed_parser(
    words: Sequence[str], parser_of: Callable[[str], argparse.ArgumentParser]
) -> tuple[argparse.ArgumentParser, int]:
    """The parser of a command line whose complete words are ``words``, and how many of them name its command."""
    is_named = bool(words) and is_command(words[0])
    parser = parser_of(words[0] if is_named else "open")
    for action in parser._actions:
        completer = _completer(action, has_commands=not words)
        if completer is not None:
            action.completer = completer  # type: ignore[attr-defined]
    if not words or words[0] == "--print-completion":
        parser.add_argument("--version", action="store_true", help="print the version")
        parser.add_argument("--print-completion", choices=SHELLS, help="print the completion of a shell")
        parser.add_argument("--print-man", action="store_true", help="print the manual page")
    return parser, int(is_named)


def _completer(action: argparse.Action, has_commands: bool) -> Callable[..., Iterable[str]] | None:
    """Offers what may stand in the place of an action; ``None``: its choices, if any."""
    from argcomplete.completers import DirectoriesCompleter, FilesCompleter

    if action.metavar == "DIR":
        return DirectoriesCompleter()
    if action.metavar == "REPORT":
        reports = _names_of("stats")
        return lambda prefix, **_: _in_list(prefix, reports)
    if action.dest == "recipe":
        return lambda **_: _names_of("recipe")
    if action.dest == "topic":
        from nsystui.commands.help import topics

        return lambda **_: topics()
    if action.metavar not in ("FILE", "FILE.prv", "LOG", "OTHER"):
        return None
    files = FilesCompleter()
    if action.option_strings or not has_commands:
        return files
    return lambda prefix, **_: {**commands(), **dict.fromkeys(files(prefix), "")}


def _names_of(family: str) -> Words:
    from nsystui.questions.catalogue import of_family

    return {question.name: question.help for question in of_family(family)}


def _in_list(prefix: str, words: Words) -> Words:
    """The words behind the last comma, each with what stands before it."""
    before = prefix[: prefix.rfind(",") + 1]
    return {before + word: line for word, line in words.items()}


def manual(make: Callable[..., argparse.ArgumentParser], top: argparse.ArgumentParser) -> str:
    """The manual page in roff; ``make`` is `cli.command_parser`, ``top`` the parser of the program's own help."""
    try:
        from argparse_manpage.manpage import Manpage
    except ImportError:
        raise NsystuiError("--print-man needs argparse-manpage: pip install 'nsystui[man]'") from None

    sections = re.split(r"^(\w[\w ]*):\n", top.epilog or "", flags=re.MULTILINE)[1:]
    top.epilog = None
    top.description = (top.description or "").partition("\n")[0]
    added = top.add_subparsers(title="commands")
    for name, line in commands().items():
        parser = make(name, lambda name=name, line=line, **about: added.add_parser(name, help=line, **about))
        parser.description, parser.epilog = f"{parser.description}\n\n{parser.epilog}", None
    about = {"project_name": "nsystui", "version": __version__, "manual_title": "User Commands"}
    page = Manpage(top, about, format="single-commands-section")
    page.description = "explore Nsight Systems exports in the terminal"
    page.add_section("synopsis", "=", _escaped(re.sub("^ *", "  ", top.usage or "", flags=re.MULTILINE)))
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        page.add_section(title, "=", _escaped(text))
    # A line of text that begins with a dot would be taken for a macro.
    lines = re.sub(r"^(?=['.](?![A-Z]))", r"\\&", str(page), flags=re.MULTILINE)
    return ascii_glyphs(lines.replace("…", "..."))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")
