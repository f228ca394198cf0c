"""``nsystui help``: the documentation that ships with the program, a topic at a time."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nsystui.base.errors import UsageError, meant
from nsystui.base.terminal import no_color, original_environ, wants_ascii
from nsystui.commands import commands
from nsystui.output.stdout import print_lines

DESCRIPTION = """Shows a topic of the documentation: on a terminal through a pager ($PAGER, else less), otherwise as
plain Markdown. Without TOPIC it lists the topics; the name of a command shows the help of that command."""
EXAMPLES = """  nsystui help
  nsystui help numbers
  nsystui help nccl"""

_DIRECTORY = Path(__file__).parents[1] / "docs"
_WIDEST = 100
"""Columns; longer lines are hard to read."""
_LINK = re.compile(r"\[([^]]+)\]\((?:([a-z-]+)\.md)?(?:#[a-z0-9-]+)?\)")
_NOT_FOUND = 127
"""The status of a shell whose program does not exist."""


def topics() -> tuple[str, ...]:
    """The name of every topic."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.md")))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a topic, or the name of a command")


def delegated(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """The command whose help is asked for, where the word is no topic."""
    if len(words) != 1 or not re.fullmatch("[a-z]+(-[a-z]+)?", words[0]) or words[0] in topics():
        return None
    return (words[0], ["--help"]) if words[0] in commands() else None


def run(arguments: argparse.Namespace) -> int:
    if arguments.topic is None:
        width = max(map(len, topics()))
        print_lines(["topics (`nsystui help TOPIC` shows one):"])
        print_lines(f"  {name:{width}}  {_title(name)}" for name in topics())
        return 0
    text = _text(arguments.topic.lower().removesuffix(".md"), arguments.topic)
    environ = original_environ()
    if sys.stdout is None or not sys.stdout.isatty() or environ.get("TERM", "dumb") == "dumb":
        print_lines(text.splitlines())
    else:
        _page(rendered(text, _columns(), environ, sys.stdout.encoding), environ)
    return 0


def _title(name: str) -> str:
    return _text(name, name).partition("\n")[0].removeprefix("# ")


def _text(name: str, word: str) -> str:
    """The Markdown of a topic; raises UsageError for a ``word`` that is none."""
    if name not in topics():
        hint = meant(name, topics(), "`nsystui help` lists the topics")
        raise UsageError(f"there is no topic {word!r}: {hint}")
    return (_DIRECTORY / f"{name}.md").read_text(encoding="utf-8")


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _named(link: re.Match[str]) -> str:
    """The text in place of a link to a topic, for a terminal that cannot follow links."""
    words, topic = link.groups()
    if not topic:
        return words
    return f"`nsystui help {topic}`" if words == topic else f"{words} (`nsystui help {topic}`)"


def rendered(markdown: str, columns: int, environ: Mapping[str, str], encoding: str | None) -> str:
    """Markdown as lines for a terminal, with its escape sequences; in ASCII where the terminal has no UTF-8."""
    from io import StringIO

    from rich.console import Console
    from rich.markdown import Markdown
    from rich.theme import Theme

    from nsystui.base.text import ascii_glyphs

    in_ascii = wants_ascii(environ, encoding)
    # Words keep the terminal's own colours: rich's black background is hard to read on a light terminal.
    styles = {"markdown.code": "bold", "markdown.h1": "bold", "markdown.h2": "bold underline"}
    console = Console(
        file=StringIO(),
        width=min(columns, _WIDEST),
        force_terminal=environ.get("TERM", "dumb") != "dumb",
        no_color=no_color(environ),
        theme=Theme(styles),
        _environ=environ,
    )
    with console.capture() as capture:
        text = _LINK.sub(_named, markdown)
        text = text.replace("⏎", "enter") if in_ascii else text
        console.print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))
    return ascii_glyphs(capture.get()) if in_ascii else capture.get()


def _page(text: str, environ: Mapping[str, str]) -> None:
    """Shows a text through the user's pager, or prints it where there is none."""
    import shutil
    import signal
    import subprocess

    pager = environ.get("PAGER", "less" if shutil.which("less") else "").strip()
    if pager:
        # less passes the escape sequences on with -R; -F and -X leave a short text on the screen.
        options = {"LESS": f"-R {environ.get('LESS', '-F -X')}"}
        # Ctrl-C is a key of the pager from its start on; unlike SIG_IGN, a handler is not inherited.
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            process = subprocess.Popen(pager, shell=True, stdin=subprocess.PIPE, env={**os.environ, **options})
            process.communicate(text.encode())
        finally:
            signal.signal(signal.SIGINT, before)
        if process.returncode != _NOT_FOUND:
            return
    print_lines(text.splitlines())
