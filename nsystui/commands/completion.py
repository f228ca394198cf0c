"""Completion scripts for bash, zsh and fish, made from the parsers themselves: ``nsystui --print-completion SHELL``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from nsystui.commands.parser_shape import DIRECTORIES, FILES, Command, Option, Place

DEFAULT = "open"
"""The command of a command line that names none."""


def script(shell: str, commands: Sequence[Command]) -> str:
    """The script that teaches ``shell`` the commands, their options and what may stand behind them."""
    return "\n".join(SHELLS[shell](commands)) + "\n"


def _top_options() -> tuple[str, ...]:
    return ("--help", "--version", "--print-completion", "--print-man")


def _default(commands: Sequence[Command]) -> Command:
    return next(command for command in commands if command.name == DEFAULT)


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
