"""A parsed command line as typed, frozen data."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from nsystui.base.errors import ExportError, MissingFileError, NsystuiError, UsageError
from nsystui.commands.configuration import CLOCKS, NO_CONFIG, Config, config_for, default_cache, limits_for, remembered

if TYPE_CHECKING:
    from nsystui.base.resources import Limits
    from nsystui.store.cache import Cache


class OutputName(str):
    """The name of a file or directory to write, as a type of argparse."""

    __slots__ = ()


@dataclass(frozen=True)
class Opening:
    """The files, and the flags for opening them."""

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
    """The flags of the selection as given; ``ranks`` may assign ranks to files instead."""

    time: str | None = None
    ranks: str | None = None
    devices: str | None = None
    streams: str | None = None
    filter: str | None = None

    @property
    def numbering(self) -> str:
        """The assignment of ranks to files in ``--ranks``, else empty."""
        from nsystui.questions.queries.numbering import numbering

        return self.ranks if self.ranks and numbering(self.ranks) is not None else ""

    @property
    def is_narrowing(self) -> bool:
        """Whether the flags leave anything out."""
        return any((self.time, self.devices, self.streams, self.filter, self.ranks and not self.numbering))


@dataclass(frozen=True)
class Output:
    """The flags for the answer's destination, format and rows; ``target`` is the file of ``-o``."""

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
        """Whether an SVG drawing is requested."""
        return self.format == "svg" or (self.is_file and str(self.target).lower().endswith(".svg"))

    @property
    def is_table(self) -> bool:
        """Whether a flag requests a table, even if there is a drawing."""
        return bool(self.format or self.sort or self.top is not None or self.is_file)

    def check(self, has_drawing: bool = False) -> None:
        """Raise UsageError for contradictory flags, or for a drawing unless ``has_drawing``."""
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
            from nsystui.questions.queries.question import questions

            drawn = [question.command({}) for question in questions() if question.drawing is not None]
            raise UsageError(
                f"this answer has no drawing for SVG; {', '.join(drawn)} have one, and so have the maps of recipes"
            )
        for flag in ("sort", "top"):
            if getattr(self, flag) is not None:
                raise UsageError(f"--{flag} is for tables: a drawing shows all")


@dataclass(frozen=True)
class Drawn:
    """The flags for drawing the screens and for the mouse; ``None`` if not given."""

    theme: str | None = None
    ascii: bool | None = None
    color: bool | None = None
    mouse: bool | None = None


PARTIAL = 4
"""The exit status of an answer that lacks a file, a table or a rule."""
_MOST_ERRORS = 3  # about the same problem
_Part = TypeVar("_Part", Opening, Selecting, Output, Drawn)


@dataclass(frozen=True)
class Request:
    """A request to a command: shared flags, the config file, and the command's own ``args`` by name."""

    opening: Opening = Opening()
    selecting: Selecting = Selecting()
    output: Output = Output()
    screen: Drawn = Drawn()
    args: Mapping[str, Any] = field(default_factory=dict)
    config: Config = NO_CONFIG
    unread: list[Exception | str] = field(default_factory=list)
    """The files, tables and rules missing from the answer, a line each. Derived requests share the list."""
    delivered: list[str] = field(default_factory=list)
    """The names of the tables already printed or written."""

    @classmethod
    def of(cls, arguments: argparse.Namespace, config: Config = NO_CONFIG) -> Request:
        """Return the request of a parsed command line."""
        args = dict(vars(arguments))

        def part(kind: type[_Part]) -> _Part:
            return kind(**{item.name: args.pop(item.name) for item in fields(kind) if item.name in args})

        return cls(part(Opening), part(Selecting), part(Output), part(Drawn), args, config)

    def check(self, has_drawing: bool = False) -> None:
        """Check the output, and before heavy imports that a FILE exists. Raises UsageError, NsystuiError."""
        from nsystui.exports.discover import discover, is_there
        from nsystui.exports.opening import check

        self.output.check(has_drawing)
        paths = discover(self.opening.files)
        if any(map(is_there, paths)):
            return
        failures = list[ExportError]()
        for path in paths:
            try:
                check(path)
            except ExportError as error:
                failures.append(error)
        raise self.none_opened(failures)

    def none_opened(self, failures: Sequence[NsystuiError]) -> NsystuiError:
        """Return the error of a job without a readable file, one line if many files have the same problem."""
        if len(failures) > _MOST_ERRORS and len({getattr(error, "cause", error) for error in failures}) == 1:
            return NsystuiError(f"{failures[0]}; no export could be opened: all {len(failures):,} have this problem")
        self.unread.extend(failures)
        return NsystuiError("no export could be opened")

    def without(self, error: ExportError) -> Request | None:
        """Return the request without an unreadable file; ``None`` if an answer has begun, or no file remains.

        If a table proves damaged while the answer is computed, the answer is computed again without that file.
        """
        from nsystui.exports.discover import discover

        paths = list(map(str, discover(self.opening.files)))
        remaining = [path for path in paths if path != error.path]
        if self.delivered or not 0 < len(remaining) < len(paths):
            return None
        self.unread.append(error)
        return replace(self, opening=replace(self.opening, files=remaining))

    def status(self, status: int) -> int:
        """Return ``status``, or `PARTIAL` instead of 0 and 1 if the answer lacks something."""
        may_lack = MissingFileError if self.opening.allow_missing else ()
        return PARTIAL if status in (0, 1) and any(not isinstance(item, may_lack) for item in self.unread) else status

    @property
    def limits(self) -> Limits:
        """CPU threads and memory. Raises UsageError for an invalid environment variable."""
        return limits_for(self.opening.jobs, self.opening.memory_limit, self.config)

    @property
    def cache(self) -> Cache:
        """The cache for columns. Raises UsageError for an invalid environment variable."""
        return default_cache(self.config)


def parsed(parser: argparse.ArgumentParser, words: Sequence[str], environ: Mapping[str, str] = os.environ) -> Request:
    """Parse a command line, with defaults from the config file.

    Raises UsageError if the config file is invalid, or was named and is missing, or an option names an input as output.
    """
    arguments = parser.parse_args(words)
    config = NO_CONFIG if arguments.no_config else config_for(arguments.config_file, environ)
    if options := {**remembered(environ, arguments.no_config), **config.options}:
        destinations = {action.dest for action in parser._actions}
        parser.set_defaults(**{dest: value for dest, value in options.items() if dest in destinations})
        arguments = parser.parse_args(words)
    values = [
        item for value in vars(arguments).values() for item in (value if isinstance(value, list | tuple) else [value])
    ]
    outputs: list[str] = [item for item in values if isinstance(item, OutputName) and item != "-"]
    with suppress(OSError):
        outputs += (
            ["/dev/stdout"] if os.path.getsize("/dev/stdout") and os.path.isfile("/dev/stdout") else []
        )  # >> FILE
    if outputs:
        from nsystui.exports.discover import files_of
        from nsystui.output.files import refuse_inputs

        inputs = [item for item in values if isinstance(item, str) and not isinstance(item, OutputName)]
        refuse_inputs(outputs, files_of([*inputs, config.path]), default_cache(config).directory)
    return Request.of(arguments, config)
