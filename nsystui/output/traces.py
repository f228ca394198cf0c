"""A trace of a selection as files of other tools: Chrome's Trace Events, or Paraver's three files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.errors import MissingDataError, UsageError
from nsystui.output.files import refuse_existing, save_stream, save_text

if TYPE_CHECKING:
    from nsystui.output.chrome_trace import Progress
    from nsystui.questions.trace.trace import Trace

CHROME = (".json", ".json.gz")
PARAVER = (".prv", ".prv.gz")


def check_ending(path: str | os.PathLike[str]) -> None:
    """Raises ``UsageError`` for a name whose ending is of no format."""
    name = os.fspath(path).lower()
    if not name.endswith((*CHROME, *PARAVER)):
        raise UsageError(
            f"{os.fspath(path)}: a trace ends in {', '.join(CHROME)} (Perfetto) or {', '.join(PARAVER)} (Paraver)"
        )


def files_of(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Every file of the trace that is called ``path``: Paraver wants ``.pcf`` and ``.row`` beside its ``.prv``."""
    target = Path(path).expanduser()
    if not target.name.lower().endswith(PARAVER):
        return (target,)
    stem = target.name[: target.name.lower().rindex(".prv")]
    return (target, target.with_name(f"{stem}.pcf"), target.with_name(f"{stem}.row"))


def save_trace(
    trace: Trace, path: str | os.PathLike[str], overwrite: bool = False, progress: Progress = lambda rows: None
) -> int:
    """Writes the files of ``path`` and returns how many events of the export are in them.

    Raises what `files.save` raises, and ``MissingDataError`` where the trace has nothing: then no file is written.
    """
    check_ending(path)
    refuse_empty(trace)
    files = files_of(path)
    if not overwrite:
        for file in files:
            refuse_existing(file)
    if len(files) == 1:
        from nsystui.output.chrome_trace import write_chrome_trace

        return save_stream(path, overwrite, lambda stream: write_chrome_trace(trace, stream, progress))
    from nsystui.output.paraver import Rows, write_records
    from nsystui.output.paraver_labels import EventTypes

    if not trace.layout.processes:
        raise MissingDataError("a Paraver trace needs calls, ranges or GPU work, and the selection has none")
    rows, types = Rows(trace), EventTypes.of(trace)
    written = save_stream(path, overwrite, lambda stream: write_records(trace, rows, types, stream, progress))
    save_text(types.pcf(), files[1], overwrite)
    save_text(rows.row_file(), files[2], overwrite)
    return written


def refuse_empty(trace: Trace) -> None:
    """Raises ``MissingDataError`` for a trace of nothing, with what the exports lack."""
    if not trace.layout.processes and not trace.layout.sampled:
        raise MissingDataError("; ".join(("there is nothing in the selection to make a trace of", *trace.notes)))
