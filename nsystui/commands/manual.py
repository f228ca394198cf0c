"""The manual page, made from the parsers themselves: ``nsystui --print-man``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from nsystui import __version__
from nsystui.commands.parser_shape import Command, Option, sentences

_HELP = ("-h", "--help")
_SEVERAL = 3
# Their first letter would otherwise be an order to roff.
_CONTROL = (".", "'")
_GLYPHS = {
    "\\": "\\e",
    "-": "\\-",
    "’": "\\(cq",
    "…": "...",
    "–": "\\(en",
    "→": "\\(->",
    "µ": "u",
    "·": "*",
    "×": "\\(mu",
}


def manual(commands: Sequence[Command], epilog: str) -> str:
    """The page in roff with the macros of ``man``; ``epilog`` is that of the program's own help."""
    return "\n".join(_lines(commands, epilog)) + "\n"


def _lines(commands: Sequence[Command], epilog: str) -> Iterator[str]:
    sections = _sections(epilog)
    yield f'.TH NSYSTUI 1 "" "nsystui {_escaped(__version__)}" "User Commands"'
    yield ".SH NAME"
    yield "nsystui \\- explore Nsight Systems exports in the terminal"
    yield ".SH SYNOPSIS"
    yield ".nf"
    yield "\\fBnsystui\\fR [\\fIOPTIONS\\fR] \\fIFILE\\fR..."
    yield "\\fBnsystui\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR] \\fIFILE\\fR..."
    yield "\\fBnsystui\\fR \\fB\\-\\-version\\fR | \\fB\\-\\-print\\-man\\fR"
    yield "\\fBnsystui\\fR \\fB\\-\\-print\\-completion\\fR bash|zsh|fish"
    yield ".fi"
    yield ".SH DESCRIPTION"
    yield from _text(next(command for command in commands if command.name == "open").description)
    yield from _text(" ".join(sections.pop("files", ())))
    yield ".SH COMMANDS"
    shared = _shared(commands)
    for command in commands:
        yield from _command(command, shared)
    yield ".SH OPTIONS OF SEVERAL COMMANDS"
    for option in shared:
        yield from _option(option)
    for title in ("environment", "exit status"):
        yield f".SH {title.upper()}"
        for line in sections.pop(title, ()):
            name, _, told = line.strip().partition("  ")
            yield ".TP"
            yield f".B {_escaped(name)}"
            yield _first_safe(_escaped(told.strip()))
    yield ".SH FILES"
    yield ".TP"
    yield ".I $XDG_CONFIG_HOME/nsystui/config.toml"
    yield "Defaults for options, in TOML."
    yield ".SH EXAMPLES"
    yield from _verbatim(sections.pop("examples", ()))


def _shared(commands: Sequence[Command]) -> list[Option]:
    """The options that are the same in several commands, in the order in which they come up."""
    counts = Counter(option for command in commands for option in command.options)
    return [option for option, count in counts.items() if count >= _SEVERAL and option.spellings != _HELP]


def _command(command: Command, shared: Sequence[Option]) -> Iterator[str]:
    yield f".SS nsystui {_escaped(command.name)}"
    yield from _text(command.description)
    yield ".PP"
    yield _escaped(command.usage)
    for option in command.options:
        if option not in shared and option.spellings != _HELP:
            yield from _option(option)
    title, _, examples = command.epilog.partition("\n")
    yield ".PP"
    yield f"{title[:1].upper()}{title[1:]}"
    yield from _verbatim(examples.splitlines())


def _option(option: Option) -> Iterator[str]:
    value = ""
    if option.metavar:
        value = (
            f" [\\fI{_escaped(option.metavar)}\\fR]" if option.is_optional else f" \\fI{_escaped(option.metavar)}\\fR"
        )
    yield ".TP"
    yield ", ".join(f"\\fB{_escaped(spelling)}\\fR{value}" for spelling in option.spellings)
    yield _first_safe(_escaped(" ".join(option.help.split())))


def _verbatim(lines: Sequence[str]) -> Iterator[str]:
    yield ".PP"
    yield ".nf"
    yield from (_first_safe(_escaped(line)) for line in lines)
    yield ".fi"


def _text(text: str) -> Iterator[str]:
    for paragraph in sentences(text):
        yield ".PP"
        yield _first_safe(_escaped(paragraph))


def _sections(epilog: str) -> dict[str, list[str]]:
    """The lines below each title of the program's help; a title stands at the margin and ends in a colon."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in epilog.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            lines = found.setdefault(line[:-1], [])
        elif line:
            lines.append(line)
    return found


def _escaped(text: str) -> str:
    escaped = "".join(_GLYPHS.get(letter, letter) for letter in text)
    return "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in escaped)


def _first_safe(line: str) -> str:
    return f"\\&{line}" if line.startswith(_CONTROL) else line
