"""What a parser takes, in the words of a completion script and of a manual: read off the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
