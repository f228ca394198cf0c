"""``nsystui FILE…``: the screens."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from glob import has_magic
from typing import TYPE_CHECKING

from nsystui.base import terminal
from nsystui.base.errors import UsageError, see_directory
from nsystui.base.text import shell_word
from nsystui.commands.configuration import THEMES, remember_theme
from nsystui.commands.request import Drawn, Request
from nsystui.exports import EXPORT_ENDINGS
from nsystui.exports.discover import discover, is_there, names_of
from nsystui.exports.nccl_log.files import STDIN, FileKind, kind_of, named
from nsystui.questions.queries.numbering import numbering

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.job.opening import JobSource
    from nsystui.questions.nccl_log.summary import IterationSpan
    from nsystui.ui.app import Look, NsystuiApp


DESCRIPTION = """Opens Nsight Systems exports in the terminal: overview, kernels, NCCL, GPU utilisation, NVTX
tree, events. Logs of NCCL (NCCL_DEBUG=INFO) alone open as tables of their calls, sizes and communicators.
Exports are read where they lie and never changed; what was read once is kept as columns in the cache."""
EXAMPLES = """  nsystui rank*.sqlite
  nsystui results/
  nsystui packed/                               what nsystui pack wrote
  nsystui rank*.sqlite --nccl-log 'nccl*.log'
  nsystui nccl*.log
  nsystui nccl*.log --steps 45:50
  nsystui report1.nsys-rep --convert"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.commands.arguments import add_dask, add_files, add_numbering, add_steps

    add_files(parser, has_screens=True)
    add_dask(parser)
    parser.add_argument(
        "--nccl-log",
        action="extend",
        nargs="+",
        metavar="LOG",
        help="NCCL's debug logs or NCCL Inspector's records of the same job, after FILE: a view of the NCCL screen",
    )
    parser.add_argument(
        "--steps",
        metavar="A:B",
        help="only training iterations A to B of the logs, by the lines of the training program; A: and :B leave an "
        "end open",
    )
    add_numbering(parser)
    add_steps(parser)
    add_screen(parser.add_argument_group("screen"))


def add_screen(group: argparse._ArgumentGroup) -> None:
    """Add options for drawing the screens, and for the mouse."""
    group.add_argument(
        "--theme",
        choices=THEMES,
        help="colours for a dark or a light terminal (default: as chosen on a screen, else as the terminal says)",
    )
    _add_switch(group, "ascii", "draw with ASCII only (automatic without UTF-8)", "only where there is no UTF-8")
    _add_switch(group, "color", "colours, even with NO_COLOR", "no colours")
    _add_switch(group, "mouse", "use the mouse (off by default over SSH)", "leave the mouse to the terminal")


def _add_switch(group: argparse._ArgumentGroup, name: str, yes: str, no: str) -> None:
    """Add ``--name`` and ``--no-name``, of which the last counts; the default is ``None``."""
    group.add_argument(f"--{name}", action="store_true", default=None, help=yes)
    group.add_argument(f"--no-{name}", dest=name, action="store_false", default=None, help=no)


def delegated(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the command line of `diff` if the words are ``A… -- B…``, which compares two jobs."""
    before = words[: words.index("--")] if "--" in words else ()
    return ("diff", list(words)) if any(os.path.lexists(word) or has_magic(word) for word in before) else None


def run(request: Request) -> int:
    exports, logs = named_files(request.opening.files, request.args.get("nccl_log"))
    steps = _log_steps(request, logs)
    if exports and not any(map(is_there, discover(exports))):
        raise UsageError(f"{exports[0]}: no such file ({see_directory(exports[0])})")
    environ = checked_terminal("kernels" if exports else "nccl-log")
    from nsystui.questions.job.opening import JobSource
    from nsystui.ui.app import NsystuiApp

    source = replace(source_of(request, exports) if exports else JobSource(()), logs=logs, log_steps=steps)
    app = NsystuiApp(source, look_of(request.screen, environ))
    status = run_app(request.screen, environ, app)
    return _compare(request.screen, environ, app) if app.other_files else status


def _compare(screen: Drawn, environ: Mapping[str, str], app: NsystuiApp) -> int:
    """Compare the job of a closed application with the other job that its user named."""
    from nsystui.base.selection import Selection
    from nsystui.questions.compare import ComparisonOptions, Side, job_labels
    from nsystui.questions.kernels.summary import Names
    from nsystui.ui.diff_app import DiffApp

    if app.job is not None:
        app.job.close()
    sources = app.source, replace(app.source, files=app.other_files, logs=(), ranks="")

    def sides_of(jobs: Sequence[OpenJob]) -> tuple[Side, Side]:
        a, b = map(Side, jobs, (Selection(), Selection()), job_labels(jobs, [source.files for source in sources]))
        return a, b

    options, look = ComparisonOptions(Names.SMART), look_of(screen, environ)
    return run_app(screen, environ, DiffApp(sources, sides_of, options, look))


def checked_terminal(command: str) -> Mapping[str, str]:
    """Return the shell's environment. Raises UsageError without a terminal, suggesting ``command`` instead."""
    environ = terminal.original_environ()
    stderr_is_tty = sys.__stderr__ is not None and sys.__stderr__.isatty()
    stdin_is_tty = sys.stdin is not None and sys.stdin.isatty()  # None: it was closed
    if refusal := terminal.check(environ, stdin_is_tty, stderr_is_tty, command):
        raise UsageError(refusal)
    return environ


def look_of(screen: Drawn, environ: Mapping[str, str]) -> Look:
    """Return how to draw on this terminal."""
    from nsystui.ui.app import Look

    encoding = sys.__stderr__.encoding if sys.__stderr__ is not None else None
    no_color = terminal.no_color(environ) if screen.color is None else not screen.color
    if screen.color is not None:  # Textual reads the environment itself
        os.environ.pop("NO_COLOR", None)
        os.environ.update({"NO_COLOR": "1"} if no_color else {})
    return Look(
        no_color=no_color,
        few_colors=terminal.few_colors(environ),
        light=None if screen.theme is None else screen.theme == "light",
        is_page_light=terminal.is_page_light(environ),
        remember=remember_theme,
        ascii_only=screen.ascii or terminal.wants_ascii(environ, encoding),
    )


def run_app(screen: Drawn, environ: Mapping[str, str], app: NsystuiApp) -> int:
    """Run an application, report why nothing was shown, and return the exit status. Raises `app.failure`."""
    from nsystui.commands.arguments import complain

    app.run(mouse=not terminal.over_ssh(environ) if screen.mouse is None else screen.mouse)
    if app.failure is not None:
        raise app.failure
    for reason in app.reasons:
        complain(reason)
    return app.return_code or 0


def _log_steps(request: Request, logs: Sequence[str]) -> IterationSpan | None:
    """Return the steps of ``--steps``. Raises UsageError if there is no log to select them in."""
    steps = request.args["steps"] if "nccl_log" in request.args else None
    if steps is None:
        return None
    if not logs:
        raise UsageError("--steps chooses iterations of logs: name them after --nccl-log (--step-range is for NVTX)")
    from nsystui.questions.nccl_log.summary import steps_of

    return steps_of(steps)


def source_of(request: Request, files: tuple[str, ...]) -> JobSource:
    """Return the exports to open, and how. Raises UsageError."""
    from nsystui.base.selection import NameFilter
    from nsystui.commands import arguments as shared

    step_range: str | None = request.args.get("step_range")
    if step_range is not None:
        NameFilter(f"re:{step_range}")  # refuses an invalid regular expression
    ranks = _rank_numbering(request, files)
    return replace(shared.source_of(request), files=files, ranks=ranks, step_range=step_range)


def _rank_numbering(request: Request, files: Sequence[str]) -> str:
    """Return the numbering of ``--ranks``. Raises UsageError if it does not fit the files."""
    if not request.selecting.ranks:
        return ""
    assignment = numbering(request.selecting.ranks)
    if assignment is None:
        raise UsageError("--ranks gives the rank of each file here, such as 'rank(\\d+)'; r on a screen selects ranks")
    assignment.numbers([*names_of(discover(files)).values()])
    return str(request.selecting.ranks)


_MAX_NAMES = 2
"""How many names of each kind an error lists: a job has hundreds."""


def named_files(files: Sequence[str], log_patterns: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return exports as the user named them, and single logs; ``log_patterns`` are names and globs of ``--nccl-log``.

    If a log is among the files, unknown files count as logs, because a rank that called nothing has no line of NCCL;
    otherwise as exports, and opening them reports the error. Raises UsageError for files that cannot be opened
    together, with the command that can.
    """
    paths = [str(path) for path in discover(files)]
    exports, logs = _separated(paths)
    if logs and exports:
        raise UsageError(
            f"{exports[0]} is {FileKind.EXPORT.value}, {logs[0]} {FileKind.LOG.value}: to see both, write "
            f"nsystui {_shell_words(exports)} --nccl-log {_shell_words(logs)}"
        )
    if logs and log_patterns:
        raise UsageError(f"{logs[0]} is {FileKind.LOG.value}: name it after --nccl-log, and before that an export")
    if logs:
        return (), tuple(paths)
    named_logs = named(log_patterns or ())
    for name in named_logs:
        if problem := _problem(name):
            raise UsageError(f"--nccl-log {shell_word(name)}: {problem}")
    return tuple(files), tuple(named_logs)


def _separated(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return exports and logs; unknown files are in neither list.

    Files with an ending of the first file's kind are not examined: each access would delay the first window. Opening
    them reports other kinds.
    """
    first = kind_of(paths[0]) if paths else None
    logs = {path for path in paths if first is FileKind.LOG and not path.endswith(EXPORT_ENDINGS)}
    exports = {path for path in paths if first is FileKind.EXPORT and path.endswith(EXPORT_ENDINGS)}
    for path in paths:
        if path not in logs and path not in exports:
            kind = kind_of(path)
            logs |= {path} if kind is FileKind.LOG else set()
            exports |= {path} if kind is FileKind.EXPORT else set()
    return [path for path in paths if path in exports], [path for path in paths if path in logs]


def _problem(name: str) -> str:
    if name == STDIN:
        return "the screens read keys from standard input; `nsystui nccl-log -` reads a log from it"
    if not os.path.lexists(name):
        return "no such file"
    if os.path.isdir(name):
        return f"a directory; name the logs in it: {shell_word(name.rstrip('/'))}/*.log"
    if name.endswith(EXPORT_ENDINGS) and kind_of(name) is FileKind.EXPORT:
        return f"{FileKind.EXPORT.value}; name exports before --nccl-log"
    return ""


def _shell_words(names: Sequence[str]) -> str:
    more = " …" if len(names) > _MAX_NAMES else ""
    return " ".join(shell_word(name) for name in names[:_MAX_NAMES]) + more
