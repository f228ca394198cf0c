"""``nsystui demo``: a job to look around in; the package contains its exports."""

import argparse
import os
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, cast

from nsystui.base.errors import OutputError
from nsystui.base.text import counted
from nsystui.commands import arguments as shared
from nsystui.commands.request import Opening, OutputName, Request

DESCRIPTION = """Writes the exports of a demo training job (four ranks on two hosts, NCCL with message sizes, NVTX, GPU
metrics, CPU samples and scheduling, GPU memory, one straggler rank, one stall) and opens them. With --server the job is
an inference server with tensor parallelism over two GPUs: prefill, mixed and decode steps, CUDA graphs, custom
all-reduce, decoding that the host bounds, one slow prefill."""
EXAMPLES = """  nsystui demo
  nsystui demo --directory demo-job --write-only
  nsystui demo --server
  nsystui nccl demo-job/"""

_DATA = Path(__file__).parents[1] / "demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.commands.open import add_screen

    parser.add_argument("--server", action="store_true", help="an inference server instead of the training job")
    parser.add_argument(
        "--directory",
        type=OutputName,
        metavar="DIR",
        help="where to write the exports (default: a temporary directory, removed at the end)",
    )
    parser.add_argument("--write-only", action="store_true", help="write the exports into --directory and open nothing")
    add_screen(parser.add_argument_group("screen"))


def run(request: Request) -> int:
    args = request.args
    if args["write_only"]:
        from nsystui.output.files import print_lines

        print_lines(map(str, _unpack(Path(args["directory"] or "nsystui-demo"), request)))
        return 0
    if args["directory"]:
        return _open(_unpack(Path(args["directory"]), request), request)
    with tempfile.TemporaryDirectory(prefix="nsystui-demo-") as name:
        return _open(_unpack(Path(name) / "demo-job", request), request)


def _unpack(directory: Path, request: Request) -> list[Path]:
    """Write the exports. Existing files stay: ``rank0.sqlite`` may be somebody's only copy."""
    import tarfile

    from nsystui.output.files import save_together

    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tarfile.open(_DATA / ("server.tar.xz" if request.args["server"] else "training.tar.xz"), "r:xz") as tar:
            exports = {directory / member.name: cast(IO[bytes], tar.extractfile(member)).read() for member in tar}
        existing = next((path for path in exports if os.path.lexists(path)), None)
        if existing is not None:
            raise OutputError(f"{existing} already exists: choose another --directory")
        save_together({path: partial(Path.write_bytes, data=data) for path, data in exports.items()}, overwrite=False)
    except tarfile.CompressionError:
        raise OutputError("this Python has no module lzma, which unpacks the demo job: use another Python") from None
    except OSError as error:
        raise OutputError(f"cannot write the demo job into {directory}: {error.strerror or error}") from None
    return list(exports)


def _open(paths: list[Path], request: Request) -> int:
    from nsystui.commands import open as opening

    # The columns of a temporary job are not worth keeping.
    is_kept = request.args["directory"] is not None
    until = "" if is_kept else ", removed at the end (--directory DIR keeps it)"
    shared.complain(f"demo job of {counted(len(paths), 'rank')} in {paths[0].parent}{until}")
    return opening.run(replace(request, opening=Opening([str(path) for path in paths], no_cache=not is_kept)))
