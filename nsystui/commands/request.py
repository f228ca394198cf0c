"""A command line as data, typed and frozen: argparse ends here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from nsystui.base.errors import ExportError, MissingFileError, UsageError
from nsystui.commands.configuration import CLOCKS, NO_CONFIG, Config, config_for, default_cache, limits_for, remembered
from nsystui.questions.queries.numbering import numbering

if TYPE_CHECKING:
    from nsystui.store.cache import Cache
    from nsystui.store.database import Limits


class OutputName(str):
    """The name of a file or directory to write, as a type of argparse."""

    __slots__ = ()


@dataclass(frozen=True)
class Opening:
    """The files, and how they are opened."""

    files: Sequence[str] = ()
    no_cache: bool = False
    convert: bool = False
    clock: str = CLOCKS[0]
    jobs: int | None = None
    memory_limit: int | None = None
    dask: str | None = None
    allow_missing: bool = False


@dataclass(frozen=True)
class Selecting:
    """The flags of the selection, as they were given; ``ranks`` may say who is which rank instead."""

    time: str | None = None
    ranks: str | None = None
    devices: str | None = None
    streams: str | None = None
    filter: str | None = None

    @property
    def numbering(self) -> str:
        """Who is which rank, as ``--ranks`` says it; empty where that chooses ranks, or is not given."""
        return self.ranks if self.ranks and numbering(self.ranks) is not None else ""

    @property
    def is_narrowing(self) -> bool:
        """Whether anything is left out."""
        return any((self.time, self.devices, self.streams, self.filter, self.ranks and not self.numbering))


@dataclass(frozen=True)
class Output:
    """Where the answer goes, in which format, and which rows of it; ``target`` is the file of ``-o``."""

    format: str | None = None
    target: str | None = None
    force: bool = False
    sort: str | None = None
    top: int | None = None
    wide: bool = False

    @property
    def is_file(self) -> bool:
        """Whether ``-o`` names a file."""
        return bool(self.target) and self.target != "-"

    @property
    def is_drawing(self) -> bool:
        """Whether an SVG drawing is asked for."""
        return self.format == "svg" or (self.is_file and str(self.target).lower().endswith(".svg"))

    @property
    def is_table(self) -> bool:
        """Whether a flag asks for a table, where there is a drawing as well."""
        return bool(self.format or self.sort or self.top is not None or self.is_file)

    def check(self, has_drawing: bool = False) -> None:
        """Raise UsageError for flags that make no sense, or a drawing of what has none."""
        from nsystui.output import formats

        if self.top is not None and self.top < 0:
            raise UsageError(f"--top {self.top}: how many rows cannot be negative")
        if self.is_file:
            ending = formats.format_for_path(str(self.target))
            if self.format and self.format != ending:
                raise UsageError(f"--format {self.format} and -o {self.target} name two formats")
        elif self.format == "parquet":
            raise UsageError("--format parquet needs a file: add -o FILE.parquet")
        if not self.is_drawing:
            return
        if not has_drawing:
            from nsystui.questions.queries.registry import questions

            having = [one.command({}) for one in questions() if one.drawing is not None]
            raise UsageError(
                f"this answer has no drawing for SVG; {', '.join(having)} have one, and so have the maps of recipes"
            )
        for flag in ("sort", "top"):
            if getattr(self, flag) is not None:
                raise UsageError(f"--{flag} is for tables: a drawing shows all")


@dataclass(frozen=True)
class Drawn:
    """How the screens are drawn, and whether they take the mouse; ``None`` where nothing was said."""

    theme: str | None = None
    ascii: bool | None = None
    color: bool | None = None
    mouse: bool | None = None


PARTIAL = 4
"""The exit status of an answer from which a file, a table or a rule is missing."""
_Part = TypeVar("_Part", Opening, Selecting, Output, Drawn)


@dataclass(frozen=True)
class Request:
    """What a command is asked: what all commands share, the config file, and the command's ``own`` options by name."""

    opening: Opening = Opening()
    selecting: Selecting = Selecting()
    output: Output = Output()
    screen: Drawn = Drawn()
    own: Mapping[str, Any] = field(default_factory=dict)
    config: Config = NO_CONFIG
    unread: list[Exception | str] = field(default_factory=list)
    """The files, tables and rules missing from the answer, a line each. Requests made from this one share the list."""
    delivered: list[str] = field(default_factory=list)
    """The names of the tables that were printed or written so far."""

    @classmethod
    def of(cls, arguments: argparse.Namespace, config: Config = NO_CONFIG) -> Request:
        """Return what a parsed command line asks for."""
        own = dict(vars(arguments))

        def part(kind: type[_Part]) -> _Part:
            return kind(**{one.name: own.pop(one.name) for one in fields(kind) if one.name in own})

        return cls(part(Opening), part(Selecting), part(Output), part(Drawn), own, config)

    def without(self, error: ExportError) -> Request | None:
        """Return the request without the file that cannot be read; ``None`` if an answer has begun, or no file is left.

        A table may turn out to be damaged when the answer is computed, and then it is computed again.
        """
        from nsystui.exports.discover import discover

        paths = list(map(str, discover(self.opening.files)))
        rest = [path for path in paths if path != error.path]
        if self.delivered or not 0 < len(rest) < len(paths):
            return None
        self.unread.append(error)
        return replace(self, opening=replace(self.opening, files=rest))

    def status(self, status: int) -> int:
        """Return ``status``, or `PARTIAL` in place of 0 and 1 if the answer goes without something."""
        may_lack = MissingFileError if self.opening.allow_missing else ()
        return PARTIAL if status in (0, 1) and any(not isinstance(one, may_lack) for one in self.unread) else status

    @property
    def limits(self) -> Limits:
        """CPU threads and memory. Raises UsageError for a variable of the environment that makes no sense."""
        return limits_for(self.opening.jobs, self.opening.memory_limit, self.config)

    @property
    def cache(self) -> Cache:
        """The cache to keep columns in. Raises UsageError for a variable of the environment that makes no sense."""
        return default_cache(self.config)


def parsed(parser: argparse.ArgumentParser, words: Sequence[str], environ: Mapping[str, str] = os.environ) -> Request:
    """Parse a command line, over what the config file says.

    Raises UsageError for a file that makes no sense, or is named and is not there, and where an option names an input
    as the file to write.
    """
    arguments = parser.parse_args(words)
    config = NO_CONFIG if arguments.no_config else config_for(arguments.config_file, environ)
    if options := {**remembered(environ, arguments.no_config), **config.options}:
        known = {action.dest for action in parser._actions}
        parser.set_defaults(**{dest: value for dest, value in options.items() if dest in known})
        arguments = parser.parse_args(words)
    values = [
        one for value in vars(arguments).values() for one in (value if isinstance(value, list | tuple) else [value])
    ]
    written: list[str] = [one for one in values if isinstance(one, OutputName) and one != "-"]
    with suppress(OSError):
        written += (
            ["/dev/stdout"] if os.path.getsize("/dev/stdout") and os.path.isfile("/dev/stdout") else []
        )  # >> FILE
    if written:
        from nsystui.exports.discover import files_of
        from nsystui.output.files import refuse_inputs

        read = [one for one in values if isinstance(one, str) and not isinstance(one, OutputName)]
        refuse_inputs(written, files_of([*read, config.path]), default_cache(config).directory)
    return Request.of(arguments, config)
