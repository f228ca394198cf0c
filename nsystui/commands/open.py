"""``nsystui FILE…``: the screens."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nsystui.base import terminal
from nsystui.base.errors import UsageError

if TYPE_CHECKING:
    from nsystui.commands.named_files import NamedFiles
    from nsystui.questions.opening import Source
    from nsystui.ui.app import Look, NsystuiApp

DESCRIPTION = """Opens Nsight Systems exports in the terminal: overview, kernels, NCCL, GPU utilisation, NVTX
tree, events. Logs of NCCL (NCCL_DEBUG=INFO) alone open as tables of their calls, sizes and communicators.
Exports are read where they lie and never changed; what was read once is kept as columns in the cache."""
EXAMPLES = """  nsystui rank*.sqlite
  nsystui results/
  nsystui packed/                               what nsystui pack wrote
  nsystui rank*.sqlite --nccl-log 'nccl*.log'
  nsystui nccl*.log
  nsystui report1.nsys-rep --convert"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.commands.arguments import add_files, add_step_range

    add_files(parser)
    parser.add_argument(
        "--nccl-log",
        action="extend",
        nargs="+",
        metavar="LOG",
        help="NCCL's debug logs of the same job (plain, .gz or globs), after FILE: l on the NCCL screen shows them",
    )
    parser.add_argument(
        "--ranks",
        metavar="WHO",
        help="who is which rank, where the exports do not tell it: a pattern on the file names with the number in a "
        r"group, such as 'rank(\d+)', or FILE=RANK,FILE=RANK",
    )
    add_step_range(parser)
    add_screen(parser.add_argument_group("screen"))


def add_screen(group: argparse._ArgumentGroup) -> None:
    """How the screens are drawn, and whether they take the mouse."""
    _add_switch(group, "ascii", "draw with ASCII only (automatic without UTF-8)", "only where there is no UTF-8")
    _add_switch(group, "color", "colours, even with NO_COLOR", "no colours")
    _add_switch(group, "mouse", "use the mouse (off by default over SSH)", "leave the mouse to the terminal")


def _add_switch(group: argparse._ArgumentGroup, name: str, yes: str, no: str) -> None:
    """``--name`` and ``--no-name``, of which the last counts; ``None`` where neither is given."""
    group.add_argument(f"--{name}", action="store_true", default=None, help=yes)
    group.add_argument(f"--no-{name}", dest=name, action="store_false", default=None, help=no)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.commands.named_files import named_files

    files = named_files(arguments.files, arguments.nccl_log)
    environ = checked_terminal("kernels" if files.exports else "nccl-log")
    return start(arguments, environ, files)


def checked_terminal(command: str) -> Mapping[str, str]:
    """The shell's environment; raises UsageError without a terminal to draw on, with the ``command`` to use instead."""
    environ = terminal.original_environ()
    is_drawn_on = sys.__stderr__ is not None and sys.__stderr__.isatty()
    is_typed_on = sys.stdin is not None and sys.stdin.isatty()  # None: it was closed
    refusal = terminal.check(environ, is_typed_on, is_drawn_on, command)
    if refusal:
        raise UsageError(refusal)
    return environ


def start(arguments: argparse.Namespace, environ: Mapping[str, str], files: NamedFiles) -> int:
    """Runs the application and returns its exit status."""
    from nsystui.ui.app import NsystuiApp

    look = look_of(arguments, environ)
    app = NsystuiApp(source_of(arguments, files), look) if files.exports else _log_app(files, look)
    return run_app(arguments, environ, app)


def look_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Look:
    """How to draw on this terminal."""
    from nsystui.ui.app import Look

    encoding = sys.__stderr__.encoding if sys.__stderr__ is not None else None
    no_color = terminal.no_color(environ) if arguments.color is None else not arguments.color
    if arguments.color is not None:  # Textual asks the environment itself
        os.environ.pop("NO_COLOR", None)
        os.environ.update({"NO_COLOR": "1"} if no_color else {})
    return Look(
        no_color=no_color,
        few_colors=terminal.few_colors(environ),
        ascii_only=arguments.ascii or terminal.wants_ascii(environ, encoding),
    )


def run_app(arguments: argparse.Namespace, environ: Mapping[str, str], app: NsystuiApp) -> int:
    """Runs it to its end, tells why nothing could be shown, and returns the exit status.

    Raises what ended it where that was an error of its own.
    """
    from nsystui.commands.arguments import complain

    app.run(mouse=not terminal.over_ssh(environ) if arguments.mouse is None else arguments.mouse)
    if app.failure is not None:
        raise app.failure
    for reason in app.reasons:
        complain(reason)
    return app.return_code or 0


def _log_app(files: NamedFiles, look: Look) -> NsystuiApp:
    """The screens of logs alone: other ones, which a start on exports need not import."""
    from nsystui.questions.opening import Source
    from nsystui.ui.log_app import LogApp

    return LogApp(Source((), logs=files.logs), look)


def source_of(arguments: argparse.Namespace, files: NamedFiles) -> Source:
    """What the flags say of opening exports and logs."""
    from dataclasses import replace

    from nsystui.commands import arguments as shared

    return replace(
        shared.source_of(arguments),
        files=files.exports,
        logs=files.logs,
        ranks=_numbered(arguments, files),
        step_range=_step_range(arguments),
    )


def _step_range(arguments: argparse.Namespace) -> str | None:
    """Which NVTX ranges are steps; raises UsageError where that is no regular expression."""
    from nsystui.base.selection import NameFilter

    wanted: str | None = arguments.step_range
    if wanted is not None:
        NameFilter(f"re:{wanted}")
    return wanted


def _numbered(arguments: argparse.Namespace, files: NamedFiles) -> str:
    """What ``--ranks`` says of who is which rank; raises UsageError where it does not fit the files."""
    from nsystui.exports.discover import discover
    from nsystui.exports.packed_job import name_of
    from nsystui.questions.numbering import numbering

    if not arguments.ranks:
        return ""
    given = numbering(arguments.ranks)
    if given is None:
        raise UsageError("--ranks is for who is which rank here, such as 'rank(\\d+)': r on a screen chooses ranks")
    given.numbers([name_of(path) for path in discover(files.exports)])
    return str(arguments.ranks)
