"""Completion for bash, zsh and fish, and the manual page, made from the parsers of the commands.

Libraries lose too much here. shtab completes neither ``nsystui FILE --OPTION`` nor a file as the first word, since a
command of its own has to be named, and no list such as ``stats -r A,B``. The page of argparse-manpage repeats the
shared options for each command, which makes it three times as long, and has nothing of the environment.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nsystui import __version__

FILES, DIRECTORIES, NOTHING = "files", "directories", "nothing"
"""What may stand in a place where no fixed words do."""

_BY_METAVAR = {"FILE": FILES, "LOG": FILES, "DIR": DIRECTORIES}


@dataclass(frozen=True)
class Place:
    """What may stand somewhere: ``words``, or else files, directories or nothing that is known (``kind``).

    With ``is_list`` several words, separated by commas.
    """

    kind: str = NOTHING
    words: tuple[str, ...] = ()
    is_list: bool = False


@dataclass(frozen=True)
class Option:
    """An option with all its spellings. ``value`` is what stands behind it, ``None`` for a switch.

    ``metavar`` is how its help calls the value. ``is_optional``: the value may be left out.
    """

    spellings: tuple[str, ...]
    help: str
    value: Place | None
    metavar: str
    is_optional: bool = False
    repeats: bool = False


@dataclass(frozen=True)
class Group:
    """Options that the help has under one title."""

    title: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Command:
    """A command of the program: its options in their groups, and what its words without a hyphen may be, in order.

    The last of ``positionals`` repeats.
    """

    name: str
    summary: str
    usage: str
    description: str
    epilog: str
    groups: tuple[Group, ...]
    positionals: tuple[Place, ...]

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(option for group in self.groups for option in group.options)


def commands_of(parsers: Mapping[str, tuple[str, argparse.ArgumentParser]]) -> list[Command]:
    """The shape of every command, from its line of help and its parser."""
    return [_command(name, summary, parser) for name, (summary, parser) in parsers.items()]


def _command(name: str, summary: str, parser: argparse.ArgumentParser) -> Command:
    groups = []
    for group in parser._action_groups:
        options = tuple(_option(parser, action) for action in group._group_actions if _is_shown_option(action))
        if options:
            groups.append(Group(group.title or "", options))
    positionals = tuple(_place(action) for action in parser._actions if not action.option_strings)
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    return Command(
        name, summary, usage, parser.description or "", parser.epilog or "", tuple(groups), positionals or (Place(),)
    )


def _is_shown_option(action: argparse.Action) -> bool:
    return bool(action.option_strings) and action.help != argparse.SUPPRESS


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> Option:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return Option(
        tuple(action.option_strings),
        text,
        None if action.nargs == 0 else _place(action),
        "" if action.nargs == 0 else _metavar(action),
        action.nargs in ("?", "*"),
        isinstance(action, (argparse._AppendAction, argparse._ExtendAction)),
    )


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def _place(action: argparse.Action) -> Place:
    if action.choices is not None:
        return Place(words=tuple(map(str, action.choices)))
    if action.metavar == "REPORT":
        return Place(words=_names_of("stats"), is_list=True)
    if action.dest == "recipe":
        return Place(words=_names_of("recipe"))
    if action.dest == "topic":
        from nsystui.commands.help import topics

        return Place(words=topics())
    return Place(_BY_METAVAR.get(str(action.metavar), NOTHING))


def _names_of(family: str) -> tuple[str, ...]:
    from nsystui.questions.catalogue import of_family

    return tuple(question.name for question in of_family(family))


def sentences(text: str) -> Iterator[str]:
    """The paragraphs of a description, each on one line."""
    for paragraph in text.split("\n\n"):
        yield " ".join(paragraph.split())


DEFAULT = "open"
"""The command of a command line that names none."""


def script(shell: str, commands: Sequence[Command]) -> str:
    """The script that teaches ``shell`` the commands, their options and what may stand behind them."""
    return "\n".join(SHELLS[shell](commands)) + "\n"


def _top_options() -> tuple[str, ...]:
    return ("--help", "--version", "--print-completion", "--print-man")


# --- bash ---

_BASH_HELPERS = """# Completion of nsystui for bash: source this file, or put it into the directory of your completions.
_nsystui_files() {
    local name
    compopt -o filenames 2>/dev/null
    while IFS= read -r name; do COMPREPLY+=("$name"); done < <(compgen "$1" -- "$cur")
}
_nsystui_words() { COMPREPLY+=($(compgen -W "$1" -- "$cur")); }
_nsystui_list() {
    local before=
    if [[ $cur == *,* ]]; then before=${cur%,*},; fi
    compopt -o nospace 2>/dev/null
    COMPREPLY+=($(compgen -P "$before" -W "$1" -- "${cur##*,}"))
}
_nsystui() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=open first=1
    COMPREPLY=()
    if [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; elif [[ $cur == = ]]; then cur=; fi"""


def _bash(commands: Sequence[Command]) -> Iterator[str]:
    names = [command.name for command in commands]
    yield _BASH_HELPERS
    yield "    if ((COMP_CWORD > 1)); then"
    yield "        case ${COMP_WORDS[1]} in"
    yield f"            {'|'.join(names)}) command=${{COMP_WORDS[1]}}; first=2;;"
    yield "        esac"
    yield "    fi"
    yield '    if [[ $prev == --print-completion ]]; then _nsystui_words "bash zsh fish"; return; fi'
    yield '    case "$command $prev" in'
    for command in commands:
        for option in command.options:
            if option.value is not None and not option.is_optional:
                patterns = "|".join(f'"{command.name} {spelling}"' for spelling in option.spellings)
                yield f"        {patterns}) {_bash_place(option.value)}return;;"
    yield "    esac"
    yield "    if [[ $cur == -* ]]; then"
    yield "        case $command in"
    for command in commands:
        words = [spelling for option in command.options for spelling in option.spellings if len(spelling) > 2]
        yield f'            {command.name}) _nsystui_words "{" ".join(words)}";;'
    yield "        esac"
    yield f'        if ((COMP_CWORD == 1)); then _nsystui_words "{" ".join(_top_options()[1:])}"; fi'
    yield "        return"
    yield "    fi"
    yield f'    if ((COMP_CWORD == 1)); then _nsystui_words "{" ".join(names)}"; fi'
    for command in commands:
        first = command.positionals[0]
        if first.words:
            yield f"    if [[ $command == {command.name} ]] && ((COMP_CWORD == first)); then"
            yield f"        {_bash_place(first)}return"
            yield "    fi"
    takes_files = [command.name for command in commands if command.positionals[-1].kind == FILES]
    yield f"    case $command in {'|'.join(takes_files)}) _nsystui_files -f;; esac"
    yield "}"
    yield "complete -F _nsystui nsystui"


def _bash_place(place: Place) -> str:
    if place.words:
        return f'_nsystui_{"list" if place.is_list else "words"} "{" ".join(place.words)}"; '
    return {FILES: "_nsystui_files -f; ", DIRECTORIES: "_nsystui_files -d; "}.get(place.kind, "")


# --- zsh ---


def _zsh(commands: Sequence[Command]) -> Iterator[str]:
    yield "#compdef nsystui"
    yield "# Completion of nsystui for zsh: put this as _nsystui into a directory of your $fpath."
    yield "_nsystui() {"
    yield "    local -a commands"
    yield "    commands=("
    for command in commands:
        yield f"        {shlex.quote(f'{command.name}:{_plain(command.summary)}')}"
    yield "    )"
    yield "    local command=open"
    yield "    if ((CURRENT > 2)) && [[ ${commands[(r)${words[2]}:*]} != '' ]]; then"
    yield "        command=${words[2]}; shift words; ((CURRENT--))"
    yield "    elif ((CURRENT == 2)) && [[ ${words[2]} != -* ]]; then"
    yield "        _describe -t commands command commands"
    yield "        _files"
    yield "        return"
    yield "    elif ((CURRENT == 2)); then"
    yield f"        compadd -- {' '.join(_top_options()[1:])}"
    yield "    elif [[ ${words[2]} == --print-completion ]]; then"
    yield "        compadd bash zsh fish"
    yield "        return"
    yield "    fi"
    yield "    case $command in"
    for command in commands:
        yield f"        {command.name})"
        specs = [spec for option in command.options for spec in _zsh_option(option)]
        specs += _zsh_positionals(command)
        yield "            _arguments -s \\"
        yield " \\\n".join(f"                {shlex.quote(spec)}" for spec in specs) + ";;"
    yield "    esac"
    yield "}"
    yield 'if [[ ${funcstack[1]} == _nsystui ]]; then _nsystui "$@"; else compdef _nsystui nsystui; fi'


def _zsh_option(option: Option) -> Iterator[str]:
    text = re.sub(r"([\[\]:\\])", r"\\\1", _plain(option.help))
    value = ""
    if option.value is not None:
        colon = "::" if option.is_optional else ":"
        value = f"{colon}{re.sub(r'[^A-Za-z ]', ' ', option.metavar).strip().lower()[:20] or 'value'}:"
        value += _zsh_place(option.value)
    for spelling in option.spellings:
        equals = "=" if value and spelling.startswith("--") else ""
        yield f"{'*' if option.repeats else ''}{spelling}{equals}[{text}]{value}"


def _zsh_place(place: Place) -> str:
    if place.is_list:
        return f"_sequence compadd - {' '.join(place.words)}"
    if place.words:
        return f"({' '.join(place.words)})"
    return {FILES: "_files", DIRECTORIES: "_files -/"}.get(place.kind, "")


def _zsh_positionals(command: Command) -> Iterator[str]:
    *firsts, last = command.positionals
    for number, place in enumerate(firsts, 1):
        yield f"{number}:word:{_zsh_place(place)}"
    yield f"*:file:{_zsh_place(last)}"


# --- fish ---


def _fish(commands: Sequence[Command]) -> Iterator[str]:
    names = " ".join(command.name for command in commands)
    yield "# Completion of nsystui for fish: put this as nsystui.fish into ~/.config/fish/completions."
    yield "function __nsystui_first; test (count (commandline -opc)) -eq 1; end"
    yield "function __nsystui_command"
    yield "    set -l words (commandline -opc)"
    yield "    test (count $words) -gt 1; and contains -- $words[2] $argv"
    yield "end"
    for command in commands:
        yield f"complete -c nsystui -n __nsystui_first -a {command.name} -d {_fish_quoted(_plain(command.summary))}"
    yield "complete -c nsystui -n __nsystui_first -l version -d 'print the version'"
    yield "complete -c nsystui -n __nsystui_first -l print-man -d 'print the manual page'"
    without = f"complete -c nsystui -n 'not __nsystui_command {names}'"
    yield f"{without} -l print-completion -x -a 'bash zsh fish' -d completion"
    for command in commands:
        is_default = command.name == DEFAULT
        condition = f"'__nsystui_command {command.name}'"
        if is_default:
            condition = f"'not __nsystui_command {names}; or __nsystui_command open'"
        for option in command.options:
            yield f"complete -c nsystui -n {condition} {_fish_option(option)}"
        if command.positionals[0].words:
            words = _fish_quoted(" ".join(command.positionals[0].words))
            yield f"complete -c nsystui -n {condition} -a {words}"


def _fish_option(option: Option) -> str:
    parts = [
        f"-l {spelling[2:]}" if spelling.startswith("--") else f"-s {spelling[1:]}" for spelling in option.spellings
    ]
    place = option.value
    if place is not None and place.words:
        words = " ".join(place.words)
        # What stands before the last comma stays.
        listed = f"(__fish_complete_list , 'printf \"%s\\n\" {words}')" if place.is_list else words
        parts += ["-x", f"-a {_fish_quoted(listed)}"]
    elif place is not None and not option.is_optional:
        parts.append({FILES: "-r -F", DIRECTORIES: "-x -a '(__fish_complete_directories)'"}.get(place.kind, "-x"))
    return " ".join([*parts, f"-d {_fish_quoted(_plain(option.help))}"])


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _plain(text: str) -> str:
    """The first clause of a help text, short enough to stand beside a word."""
    line = " ".join(text.split())
    first = re.split(r"; |: | \(|, such as", line)[0]
    return first if len(first) <= 80 else first[:79] + "…"


SHELLS: dict[str, Callable[[Sequence[Command]], Iterator[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
"""Each shell that there is a script for, and what writes it."""


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
        yield from _man_command(command, shared)
    yield ".SH OPTIONS OF SEVERAL COMMANDS"
    for option in shared:
        yield from _man_option(option)
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


def _man_command(command: Command, shared: Sequence[Option]) -> Iterator[str]:
    yield f".SS nsystui {_escaped(command.name)}"
    yield from _text(command.description)
    yield ".PP"
    yield _escaped(command.usage)
    for option in command.options:
        if option not in shared and option.spellings != _HELP:
            yield from _man_option(option)
    title, _, examples = command.epilog.partition("\n")
    yield ".PP"
    yield f"{title[:1].upper()}{title[1:]}"
    yield from _verbatim(examples.splitlines())


def _man_option(option: Option) -> Iterator[str]:
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
