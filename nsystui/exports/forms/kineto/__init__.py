"""Traces of the PyTorch profiler (Kineto): ``*.pt.trace.json``, plain or compressed with gzip, one for each rank.

A trace is read in bounded memory, and written as nsys would have written it: `reading` has its events and facts,
`translation` turns them into rows, `export` writes the rows, `collectives` reads PyTorch's records of NCCL's calls. See
docs/exports.md#pytorch.
"""

import os
from pathlib import Path

from nsystui.exports.forms.form import Advance, Form
from nsystui.exports.forms.kineto.reading import is_trace

_ENDINGS = (".pt.trace.json.gz", ".pt.trace.json", ".json.gz", ".json")


def _is_trace(path: Path) -> bool:
    return path.name.endswith(_ENDINGS) and os.path.isfile(path) and is_trace(path)


def _write(path: Path, target: Path, advance: Advance) -> None:
    from nsystui.exports.forms.kineto.translation import translate

    translate(path, target, advance)


KINETO = Form("a trace of the PyTorch profiler", _ENDINGS, _is_trace, _write)
