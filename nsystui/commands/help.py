"""``nsystui help``: the documentation; and completion for shells, made by argcomplete from the parsers of commands."""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path

from nsystui.base.errors import UsageError, meant
from nsystui.base.terminal import no_color, original_environ, size, wants_ascii
from nsystui.base.text import ascii_glyphs
from nsystui.commands import FILE_NAMES, commands, is_command
from nsystui.commands.request import Request
from nsystui.output.files import print_lines

DESCRIPTION = """Shows a topic of the documentation: on a terminal through a pager ($PAGER, else less), otherwise as
plain Markdown. Without TOPIC it lists the topics; the name of a command shows the help of that command."""
EXAMPLES = """  nsystui help
  nsystui help numbers
  nsystui help nccl"""

_DIRECTORY = Path(__file__).parents[1] / "docs"
_LINK = re.compile(r"\[([^]]+)\]\((?:([a-z-]+)\.md)?(?:#[a-z0-9-]+)?\)")


def topics() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.md")))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a topic, or the name of a command")


def delegated(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the command whose help is requested, if the word is not a topic."""
    if len(words) != 1 or not re.fullmatch("[a-z]+(-[a-z]+)?", words[0]) or words[0] in topics():
        return None
    return (words[0], ["--help"]) if words[0] in commands() else None


def run(request: Request) -> int:
    topic = request.args["topic"]
    if topic is None:
        width = max(map(len, topics()))
        print_lines(["topics (`nsystui help TOPIC` shows one):"])
        titles = {name: _text(name, name).partition("\n")[0].removeprefix("# ") for name in topics()}
        print_lines(f"  {name:{width}}  {title}" for name, title in titles.items())
        return 0
    text = _text(topic.lower().removesuffix(".md"), topic)
    environ = original_environ()
    if sys.stdout is None or not sys.stdout.isatty() or environ.get("TERM", "dumb") == "dumb":
        print_lines(text.splitlines())
    else:
        _page(rendered(text, size(sys.stdout.fileno())[0], environ, sys.stdout.encoding), environ)
    return 0


def _text(name: str, word: str) -> str:
    if name not in topics():
        hint = meant(name, topics(), "`nsystui help` lists the topics")
        raise UsageError(f"there is no topic {word!r}: {hint}")
    return (_DIRECTORY / f"{name}.md").read_text(encoding="utf-8")


def _link_text(link: re.Match[str]) -> str:
    """Replace a link to a topic, because a terminal may not follow links."""
    words, topic = link.groups()
    if not topic:
        return words
    return f"`nsystui help {topic}`" if words == topic else f"{words} (`nsystui help {topic}`)"


def rendered(markdown: str, columns: int, environ: Mapping[str, str], encoding: str | None) -> str:
    """Return Markdown as lines for a terminal, with escape sequences; in ASCII if the terminal has no UTF-8."""
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.theme import Theme

    in_ascii = wants_ascii(environ, encoding)
    # Keep the terminal's colours: rich's black background is hard to read on a light terminal.
    styles = {"markdown.code": "bold", "markdown.h1": "bold", "markdown.h2": "bold underline"}
    console = Console(
        file=StringIO(),
        width=min(columns, 100),  # longer lines are hard to read
        force_terminal=environ.get("TERM", "dumb") != "dumb",
        no_color=no_color(environ),
        theme=Theme(styles),
        _environ=environ,
    )
    with console.capture() as capture:
        text = _LINK.sub(_link_text, markdown)
        text = text.replace("⏎", "enter") if in_ascii else text
        console.print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))
    return ascii_glyphs(capture.get()) if in_ascii else capture.get()


def _page(text: str, environ: Mapping[str, str]) -> None:
    import signal
    import subprocess

    if pager := environ.get("PAGER", "less" if shutil.which("less") else "").strip():
        # less passes the escape sequences on with -R; -F and -X leave a short text on the screen.
        options = {"LESS": f"-R {environ.get('LESS', '-F -X')}"}
        # Ctrl-C is a key of the pager; unlike SIG_IGN, a handler is not inherited.
        handler = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            process = subprocess.Popen(pager, shell=True, stdin=subprocess.PIPE, env={**os.environ, **options})
            process.communicate(text.encode())
        finally:
            signal.signal(signal.SIGINT, handler)
        if process.returncode != 127:  # a shell's status for a missing program
            return
    print_lines(text.splitlines())


SHELLS = ("bash", "zsh", "fish")

_Words = Mapping[str, str]
"""Words that may be completed, with a line about each (or an empty text)."""


def script(shell: str) -> str:
    """Return the shell code that asks the program for completions."""
    from argcomplete.shell_integration import shellcode

    # zsh prints "--" after words without a description if they end in a colon.
    code = shellcode(["nsystui"], shell=shell)
    return code.replace("        _describe", '        completions=("${(@)completions%:}")\n        _describe')


def complete(parser_of: Callable[[str], argparse.ArgumentParser]) -> None:
    """Print the completions at the shell's cursor, and end the program."""
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
    """Return the parser of a command line with these complete words, and how many of them name its command."""
    is_named = bool(words) and is_command(words[0])
    name = words[0] if is_named else "open"
    parser = parser_of(name)
    for action in parser._actions:
        if (completer := _completer(action, name, has_commands=not words)) is not None:
            action.completer = completer  # type: ignore[attr-defined]
    if not words or words[0] == "--print-completion":
        parser.add_argument("--version", action="store_true", help="print the version")
        parser.add_argument("--print-completion", choices=SHELLS, help="print the completion of a shell")
    return parser, int(is_named)


def _completer(action: argparse.Action, command: str, has_commands: bool) -> Callable[..., Iterable[str]] | None:
    """Return a function that offers completions; ``None`` for an action that has only choices."""
    from argcomplete.completers import DirectoriesCompleter, FilesCompleter

    if action.metavar == "DIR":
        return DirectoriesCompleter()
    if action.metavar == "REPORT":
        reports = _names_of("stats")
        return lambda prefix, **_: _in_list(prefix, reports)
    if action.dest == "explain":
        from nsystui.questions.triage.thresholds import explained

        return lambda **_: {name: meaning for name, (meaning, _) in explained().items()}
    if action.metavar == "NAME=VALUE":
        from nsystui.questions.triage.thresholds import meanings

        return lambda **_: {f"{name}=": meaning for name, _, meaning in meanings()}
    if words := _recorded().get(f"{command} {action.dest}"):
        return lambda prefix, **_: _in_list(prefix, dict.fromkeys(words, ""))
    if action.dest == "recipe":
        return lambda **_: _names_of("recipe")
    if action.dest == "topic":
        return lambda **_: topics()
    if action.metavar not in FILE_NAMES:
        return None
    files = FilesCompleter()
    if action.option_strings or not has_commands:
        return files
    return lambda prefix, **_: {**commands(), **dict.fromkeys(files(prefix), "")}


def _names_of(family: str) -> _Words:
    from nsystui.questions.queries.question import of_family

    return {question.name: question.help for question in of_family(family)}


def _recorded() -> Mapping[str, Sequence[str]]:
    """Return the values of options by command and option; ``tests/update_docs.py`` asks the questions for them."""
    lines = (Path(__file__).parent / "completions.txt").read_text(encoding="utf-8").splitlines()
    return {key: words.split() for key, _, words in (line.partition(": ") for line in lines)}


def _in_list(prefix: str, words: _Words) -> _Words:
    start = prefix[: prefix.rfind(",") + 1]
    return {start + word: line for word, line in words.items()}
