"""``nsystui FILE…``: the screens."""

from __future__ import annotations

import argparse
import os
import sys

from nsystui import terminal
from nsystui.errors import UsageError

DESCRIPTION = """Opens Nsight Systems exports in the terminal: overview, kernels, NCCL, GPU utilisation, NVTX
tree, events.
Exports are read where they lie and never changed; what was read once is kept as columns in the cache."""
EXAMPLES = """  nsystui rank*.sqlite
  nsystui results/
  nsystui report1.nsys-rep --convert"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.commands.arguments import add_files

    add_files(parser)
    group = parser.add_argument_group("screen")
    group.add_argument("--ascii", action="store_true", help="draw with ASCII only (automatic without UTF-8)")
    group.add_argument("--mouse", action="store_true", help="use the mouse (off by default over SSH)")
    group.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")


def run(arguments: argparse.Namespace) -> int:
    environ = terminal.original_environ()
    refusal = terminal.check(environ, sys.stdin.isatty(), sys.__stderr__ is not None and sys.__stderr__.isatty())
    if refusal:
        raise UsageError(refusal)
    return start(arguments, environ)


def start(arguments: argparse.Namespace, environ: object) -> int:
    """Runs the application and returns its exit status."""
    from nsystui.commands.arguments import complain
    from nsystui.store.place import default_directory
    from nsystui.ui.app import Look, NsystuiApp
    from nsystui.ui.loading import Source

    shell = dict(environ)  # type: ignore[call-overload]
    encoding = sys.__stderr__.encoding if sys.__stderr__ is not None else None
    look = Look(
        no_color=terminal.no_color(shell),
        few_colors=terminal.few_colors(shell),
        ascii_only=arguments.ascii or terminal.wants_ascii(shell, encoding),
    )
    directory = default_directory()
    source = Source(
        tuple(arguments.files),
        None if arguments.no_cache else directory,
        arguments.jobs if arguments.jobs > 0 else min(2, os.cpu_count() or 1),
        arguments.convert,
        directory / "exports",
    )
    mouse = arguments.mouse or not (arguments.no_mouse or terminal.over_ssh(shell))
    app = NsystuiApp(source, look)
    app.run(mouse=mouse)
    for reason in app.reasons:
        complain(reason)
    return app.return_code or 0
