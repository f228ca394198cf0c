"""``nsystui demo``: a job to look around in, written by the program itself."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.errors import OutputError
from nsystui.commands import arguments as shared
from nsystui.commands.request import Opening, Request

if TYPE_CHECKING:
    from nsystui.demo import ServingJob, TrainingJob

DESCRIPTION = """Writes the exports of a demo training job (several ranks on two or more hosts of at most eight GPUs,
NCCL with message sizes, NVTX, GPU metrics, CPU samples and scheduling, GPU memory, one straggler rank, one stall) and
opens them. The more ranks, the smaller the model: 1,024 of them take less than 1 GiB. With --server the job is an
inference server with tensor parallelism over up to eight GPUs of a host: prefill, mixed and decode steps, CUDA graphs,
custom all-reduce, decoding that the host bounds, one slow prefill."""
EXAMPLES = """  nsystui demo
  nsystui demo --ranks 8 --directory demo-job --write-only
  nsystui demo --ranks 1024 --directory big-job --write-only
  nsystui demo --form kineto
  nsystui demo --server
  nsystui nccl demo-job/"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.commands.open import add_screen

    parser.add_argument("--server", action="store_true", help="an inference server in place of the training job")
    ranks, steps = "number of ranks (default: 4; of a server 2)", "steps (default: 12; of a server 200)"
    parser.add_argument("--ranks", type=int, dest="size", metavar="N", help=ranks)
    parser.add_argument("--steps", type=int, metavar="N", help=steps)
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


def run(request: Request) -> int:
    own = request.own
    if own["write_only"]:
        from nsystui.output.files import print_lines

        directory = Path(own["directory"] or "nsystui-demo")
        print_lines(map(str, _write(directory, request)))
        return 0
    if own["directory"]:
        return _open(_write(Path(own["directory"]), request), request)
    with tempfile.TemporaryDirectory(prefix="nsystui-demo-") as name:
        return _open(_write(Path(name) / "demo-job", request), request)


def _write(directory: Path, request: Request) -> list[Path]:
    """The files, never over any that are there already: ``rank0.sqlite`` may be somebody's only copy."""
    import sqlite3

    from nsystui.base.resources import cpus
    from nsystui.demo.kineto import ENDING, write_trace

    job = _job(request)
    is_traces = request.own["form"] == "kineto"
    paths = [directory / f"rank{rank}{ENDING if is_traces else '.sqlite'}" for rank in range(job.ranks)]
    processes = _processes(job.ranks, cpus())
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


def _job(request: Request) -> ServingJob | TrainingJob:
    from nsystui.demo import ServingJob, TrainingJob

    kind: type[ServingJob | TrainingJob] = ServingJob if request.own["server"] else TrainingJob
    ranks, steps = request.own["size"], request.own["steps"]
    try:
        return kind.of_any_size(kind.ranks if ranks is None else ranks, kind.steps if steps is None else steps)
    except ValueError as error:
        raise OutputError(str(error)) from None


# So few exports are written before other processes have started.
_FEW = 16
# The most exports that one process has open: systems allow 1,024 open files.
_AT_A_TIME = 256


def _processes(ranks: int, cpus: int) -> int:
    """How many processes write the exports."""
    return 1 if ranks <= _FEW else max(cpus, -(-ranks // _AT_A_TIME))


def _open(paths: list[Path], request: Request) -> int:
    from nsystui.commands import open as opening

    shared.complain(f"demo job of {len(paths)} ranks in {paths[0].parent}")
    # The columns of a job that is thrown away are not worth keeping.
    is_kept = request.own["directory"] is not None
    return opening.run(replace(request, opening=Opening([str(path) for path in paths], no_cache=not is_kept)))
