"""``nsystui demo``: a job to look around in, written by the program itself."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from nsystui.base.errors import OutputError
from nsystui.commands import arguments as shared

DESCRIPTION = """Writes the exports of a demo training job (several ranks on two or more hosts of at most eight GPUs,
NCCL with message sizes, NVTX, GPU metrics, CPU samples and scheduling, GPU memory, one straggler rank, one stall) and
opens them. The more ranks, the smaller the model: 1,024 of them take less than 1 GiB."""
EXAMPLES = """  nsystui demo
  nsystui demo --ranks 8 --directory demo-job --write-only
  nsystui demo --ranks 1024 --directory big-job --write-only
  nsystui demo --form kineto
  nsystui nccl demo-job/"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.commands.open import add_screen

    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="number of ranks (default: 4)")
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="training steps (default: 12)")
    parser.add_argument(
        "--form",
        choices=("sqlite", "kineto"),
        default="sqlite",
        help="exports of nsys, or traces of the PyTorch profiler of the same job (default: sqlite)",
    )
    parser.add_argument(
        "--directory",
        metavar="DIR",
        help="where to write the exports (default: a temporary directory, removed at the end)",
    )
    parser.add_argument("--write-only", action="store_true", help="write the exports into --directory and open nothing")
    add_screen(parser.add_argument_group("screen"))


def run(arguments: argparse.Namespace) -> int:
    if arguments.ranks < 1 or arguments.steps < 1:
        raise OutputError("a job has at least one rank and one step")
    if arguments.write_only:
        from nsystui.output.files import print_lines

        directory = Path(arguments.directory or "nsystui-demo")
        print_lines(map(str, _write(directory, arguments)))
        return 0
    if arguments.directory:
        return _open(_write(Path(arguments.directory), arguments), arguments)
    with tempfile.TemporaryDirectory(prefix="nsystui-demo-") as name:
        return _open(_write(Path(name) / "demo-job", arguments), arguments)


def _write(directory: Path, arguments: argparse.Namespace) -> list[Path]:
    """The files, never over any that are there already: ``rank0.sqlite`` may be somebody's only copy."""
    import sqlite3

    from nsystui.base.resources import cpus
    from nsystui.demo import TrainingJob
    from nsystui.demo.kineto import ENDING, write_trace

    job = TrainingJob.of_any_size(arguments.ranks, arguments.steps)
    is_traces = arguments.form == "kineto"
    paths = [directory / f"rank{rank}{ENDING if is_traces else '.sqlite'}" for rank in range(arguments.ranks)]
    processes = _processes(arguments.ranks, cpus())
    try:
        directory.mkdir(parents=True, exist_ok=True)
        taken = next((path for path in paths if path.exists()), None)
        if taken is not None:
            raise OutputError(f"{taken} is there already: choose another --directory")
        if not is_traces:
            return job.write(directory, processes)
        with tempfile.TemporaryDirectory(prefix="nsystui-demo-") as name:
            for export, trace in zip(job.write(name, processes), paths, strict=True):
                write_trace(export, trace)
        return paths
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot write the demo job into {directory}: {reason}") from None


# So few exports are written before other processes have started.
_FEW = 16
# The most exports that one process has open: systems allow 1,024 open files.
_AT_A_TIME = 256


def _processes(ranks: int, cpus: int) -> int:
    """How many processes write the exports."""
    return 1 if ranks <= _FEW else max(cpus, -(-ranks // _AT_A_TIME))


def _open(paths: list[Path], arguments: argparse.Namespace) -> int:
    from nsystui.commands import open as opening
    from nsystui.commands.configuration import apply, config_of

    parser = argparse.ArgumentParser()
    opening.add_arguments(parser)
    apply(parser, config_of(arguments))
    # The columns of a job that is thrown away are not worth keeping.
    flags = [] if arguments.directory else ["--no-cache"]
    given = parser.parse_args([*flags, *map(str, paths)])
    shared.complain(f"demo job of {len(paths)} ranks in {paths[0].parent}")
    for name in ("ascii", "color", "mouse", "config"):
        setattr(given, name, getattr(arguments, name))
    return opening.run(given)
