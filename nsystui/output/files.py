"""Answers, texts and traces: printed, or saved under a name, whole or not at all, never over an unmeant file.

A trace is one file of Chrome's Trace Events, or Paraver's three files.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

from nsystui.base.answer import FILES_ONLY, Answer, Head, TableAnswer
from nsystui.base.errors import MissingDataError, OutputError, UsageError
from nsystui.base.partial_files import drop_abandoned, partial_name
from nsystui.base.terminal import complain, original_environ, size, text_width, wants_ascii
from nsystui.base.text import ascii_glyphs, safe_text
from nsystui.output.formats import Progress, fitting, format_for_path, write
from nsystui.output.pipe import quiet_pipe

if TYPE_CHECKING:
    from nsystui.questions.trace.trace import Trace


class _SafeLines:
    """A terminal that gets raw rows: each is made safe, and a line break inside of one shows as ``␊``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> object:
        return self._stream.write(safe_text(line.removesuffix("\n")) + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines made safe, in ASCII where UTF-8 could not be shown. Raises what `quiet_pipe` raises."""
    with quiet_pipe() as stream:
        environ = original_environ() if stream.isatty() else {"LC_ALL": "C.UTF-8"}
        plain = wants_ascii(environ, stream.encoding)
        safe_lines = map(safe_text, lines)
        stream.writelines(f"{ascii_glyphs(line) if plain else line}\n" for line in safe_lines)


def print_answer(answer: Answer, file_format: str, *, is_wide: bool = True, is_cut: bool = False) -> int:
    """Prints ``answer`` as ``table``, ``csv``, ``json`` or ``md`` without its notes; returns the rows printed.

    A table on a terminal fits its width unless it ``is_wide``; it is cut after a screenful if it ``is_cut``. A line on
    stderr says what was left out.
    CSV, JSON and Markdown are UTF-8 whatever the locale says, as in a file; a table is ASCII where UTF-8 could not be
    shown. Text in CSV is raw, except on a terminal, which would obey what it holds. Raises ``UsageError`` for Parquet,
    which is not for terminals and pipes, and what `quiet_pipe` raises.
    """
    if file_format == "parquet":
        raise UsageError("Parquet cannot go to standard output: name a file with -o FILE.parquet")
    left_out = ""
    with quiet_pipe() as stream:
        encoding = stream.encoding if file_format == "table" else "utf-8"
        if file_format == "table" and stream.isatty():
            answer, left_out = _fitted(answer, is_wide, is_cut)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="backslashreplace", newline="")
        # A file or a pipe is read who knows where: only what the stream can encode counts there.
        environ = original_environ() if stream.isatty() else {"LC_ALL": "C.UTF-8"}
        target = _SafeLines(stream) if file_format == "csv" and stream.isatty() else stream
        rows = write(answer, file_format, target, ascii_only=wants_ascii(environ, encoding))
    if left_out:
        complain(left_out)
    return rows


_BESIDE_ROWS = 6
"""The lines of a screenful that are no rows: the prompt, the heading, what was left out, and a note."""
_FEWEST_ROWS = 5
_MOST_FITTED = 10_000
"""Tables of more rows are printed as they come: nobody reads their columns on a screen."""


def _fitted(answer: Answer, is_wide: bool, is_cut: bool) -> tuple[Answer, str]:
    """The answer as it fits the terminal, and what was left out."""
    width, height = text_width(), size(1)[1]
    told = []
    most = max(height - _BESIDE_ROWS, _FEWEST_ROWS)
    whole = len(answer)
    if is_cut and whole > most:
        answer = Head(answer, most)
        told.append(f"{most} of {whole:,} rows (--top N for more)")
    if not is_wide and len(answer) <= _MOST_FITTED:
        rows = answer.page(0, len(answer))
        table = TableAnswer(answer.name, answer.columns, rows, answer.total, answer.notes)
        fitted = fitting(table, width)
        gone = [
            before.label
            for before, after in zip(table.columns, fitted.columns, strict=True)
            if before.importance < FILES_ONLY <= after.importance
        ]
        answer = fitted
        if gone:
            told.append(f"without the columns {', '.join(gone)} (--wide has them)")
    return answer, "; ".join(told)


_QUICK = 4  # of gzip's levels: twice as fast as its default, a tenth larger


class TargetExistsError(OutputError):
    """The name is taken; the file there is as it was. The caller may ask the user and save with ``overwrite``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} exists already (--force overwrites it)")


def save(
    answer: Answer,
    path: str | os.PathLike[str],
    overwrite: bool = False,
    *,
    file_format: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Saves ``answer`` as ``path`` in the format that its ending names, or ``file_format``; returns the rows written.

    A ``~`` at the beginning is the home directory. The rows go to a temporary file in the same directory, which takes
    the name at the end; whatever stops the writing (``progress`` may, by raising) leaves nothing behind. Over a link,
    the file that it points to is replaced. Raises `TargetExistsError`, ``OutputError`` with one line that says why,
    and ``UsageError`` for an ending that names no format.
    """
    chosen = file_format or format_for_path(os.path.expanduser(path))
    return save_together({Path(path): lambda temporary: _write_file(answer, temporary, chosen, progress)}, overwrite)[0]


def save_text(text: str, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Saves ``text`` as ``path``, in the same way and with the same errors as `save`."""
    save_together({Path(path): text}, overwrite)


def save_stream(path: str | os.PathLike[str], overwrite: bool, fill: Callable[[BinaryIO], int]) -> int:
    """Saves what ``fill`` writes, in the same way and with the same errors as `save`; returns what ``fill`` returns.

    The bytes are compressed where the name ends in ``.gz``.
    """
    return save_together({Path(path): streamed(path, fill)}, overwrite)[0]


def streamed(path: str | os.PathLike[str], fill: Callable[[BinaryIO], int]) -> Contents:
    """Return contents for `save_together` that ``fill`` writes, compressed if the name ends in ``.gz``."""
    is_compressed = os.fspath(path).lower().endswith(".gz")
    return lambda temporary: _write_stream(fill, temporary, is_compressed)


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """Raises `TargetExistsError` where the name is taken: for who writes several files, before the first."""
    target = os.path.expanduser(path)
    if os.path.lexists(target):
        raise TargetExistsError(safe_text(target))


def refuse_inputs(written: Iterable[str | os.PathLike[str]], read: Iterable[Path], cache: Path | None) -> None:
    """Raise UsageError if a file to write is also an input, or lies in the cache.

    Links count, since files are compared by device and inode. All files of a trace or report are compared.
    """
    taken: list[tuple[Path, os.stat_result]] = []
    for name in written:
        files = [*trace_files(name)]
        with suppress(OSError, ValueError):  # the name is too long, or that of the root
            files += Path(os.path.expanduser(name)).with_suffix(".files").glob("*")
        for file in files:
            if os.path.isfile(file) and os.path.getsize(file):  # a shell's > has emptied it already
                taken.append((file, os.stat(file)))
            if cache is not None and Path(os.path.realpath(cache)) in Path(os.path.realpath(file)).parents[1:]:
                raise UsageError(f"{safe_text(str(file))} is in the cache, where only columns are: name another file")
    for path in filter(os.path.isfile, read if taken else ()):
        for file, state in taken:
            if os.path.samestat(state, os.stat(path)):
                raise UsageError(f"{safe_text(str(file))} is an input ({safe_text(str(path))}): name another file")


Contents = str | Callable[[Path], int]
"""A text, or a function that writes a new file and returns its number of rows."""


def save_together(contents: Mapping[Path, Contents], overwrite: bool) -> list[int]:
    """Save all of the files or none, and return the number of rows of each. Raises the errors of `save`.

    All are written under temporary names first. Where one cannot take its name, the others give theirs back.
    """
    places = {_target(path, overwrite): content for path, content in contents.items()}
    rows, temporaries, undo = list[int](), list[Path](), list[Callable[[], object]]()
    try:
        for target, content in places.items():
            temporaries.append(target.with_name(partial_name()))
            with _explained(target):
                write = partial(_write_text, content) if isinstance(content, str) else content
                rows.append(write(temporaries[-1]))
        for target, temporary in zip(places, temporaries.copy(), strict=True):
            is_new, old = not os.path.exists(target), target.with_name(partial_name())
            with _explained(target):
                if not is_new and len(places) > 1:
                    with suppress(OSError):  # some file systems have no hard links
                        os.link(target, old)
                        undo.append(partial(old.replace, target))
                        temporaries.append(old)
                _take_name(temporary, target, overwrite)
                undo += [target.unlink] * is_new
    except BaseException:
        for step in undo:
            with suppress(OSError):
                step()
        raise
    finally:
        for temporary in temporaries:
            with suppress(OSError):  # it has its name, or was never there
                temporary.unlink()
    return rows


def _target(path: Path, overwrite: bool) -> Path:
    """Return the path to write: of a link, its target. Remove the temporary files of killed programs beside it."""
    target = Path(os.path.expanduser(path))
    shown_name = safe_text(str(target))
    if os.path.isdir(target):
        raise OutputError(f"{shown_name} is a directory")
    if os.path.exists(target) and not os.path.isfile(target):  # renaming over /dev/null would be a disaster for root
        raise OutputError(f"{shown_name} is not a regular file")
    if not overwrite and os.path.lexists(target):  # asked again at the end; this saves the user the wait
        raise TargetExistsError(shown_name)
    drop_abandoned(target.parent)
    return Path(os.path.realpath(target)) if overwrite else target


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    """Replace an OSError by an OutputError, whose line names the file and the reason."""
    try:
        yield
    except FileExistsError:
        raise TargetExistsError(safe_text(str(target))) from None
    except OSError as error:
        raise OutputError(f"cannot write {safe_text(str(target))}: {_why(error, target.parent)}") from error


def _write_file(answer: Answer, path: Path, file_format: str, progress: Progress | None) -> int:
    """Writes the file, and waits until the disk has it: over NFS, a full disk or quota shows only then."""
    if file_format == "parquet":
        from nsystui.output.parquet import write_parquet

        rows = write_parquet(answer, path, progress)
        with path.open("rb") as written:
            os.fsync(written.fileno())
        return rows
    # A lone surrogate (a path that is not UTF-8 has them) is written as \udcff: the file is UTF-8 in any case.
    with path.open("x", encoding="utf-8", errors="backslashreplace", newline="") as stream:
        rows = write(answer, file_format, stream, progress=progress)
        stream.flush()
        os.fsync(stream.fileno())
    return rows


def _write_text(text: str, path: Path) -> int:
    with path.open("x", encoding="utf-8", errors="backslashreplace", newline="") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    return text.count("\n")


def _write_stream(fill: Callable[[BinaryIO], int], path: Path, is_compressed: bool) -> int:
    import gzip

    with path.open("xb") as file:
        if is_compressed:
            # No name and no time in it: the same rows make the same file.
            with gzip.GzipFile("", "wb", _QUICK, file, mtime=0) as packed:
                rows = fill(cast("BinaryIO", packed))
        else:
            rows = fill(file)
        file.flush()
        os.fsync(file.fileno())
    return rows


def _take_name(temporary: Path, target: Path, overwrite: bool) -> None:
    """Gives the finished file its name; raises ``FileExistsError`` if that is taken and shall not be overwritten."""
    if overwrite:
        with suppress(OSError):  # no file to replace, or not ours: then the umask decides, as for any new file
            shutil.copymode(target, temporary)
        temporary.replace(target)
        return
    # Renaming replaces silently, and hard links do not exist everywhere. So the name is claimed by an empty file,
    # which fails if anyone has it, and then replaced.
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    try:
        temporary.replace(target)
    except BaseException:
        target.unlink()
        raise


def _why(error: OSError, directory: Path) -> str:
    """The reason of ``error`` in the words of someone who knows what was being done."""
    folder = safe_text(str(directory))
    reasons = {
        errno.ENOENT: f"the directory {folder} does not exist",
        errno.ENOTDIR: f"{folder} is not a directory",
        errno.EACCES: f"no permission to write in {folder}",
        errno.EPERM: f"no permission to write in {folder}",
        errno.EROFS: f"{folder} is on a read-only file system",
        errno.ENOSPC: f"no space left on the file system of {folder}: make room, or name another place",
        errno.EDQUOT: f"the disk quota on the file system of {folder} is used up: make room, or name another place",
        errno.ENAMETOOLONG: "the name is too long",
    }
    return reasons.get(error.errno or 0) or safe_text(error.strerror or str(error))


_LONGEST_NAME = 150  # bytes: far from the 255 of file systems, and it still fits a prompt


def propose_name(job: str, pane: str, filter_text: str | None, extension: str) -> str:
    """A file name that says what is in it: ``rank0-kernels-nvjet.csv``, ``llama-nccl.csv``.

    The name has only ASCII letters, digits and ``. _ -``, so that no shell and no file system trips over it, begins
    with a letter or digit, and has at most 150 bytes: a long filter is cut first.
    """
    name = job.rstrip("/").rpartition("/")[2]
    for export_ending in (".sqlite", ".nsys-rep", ".qdrep", ".parquet", ".arrow", ".db"):
        name = name.removesuffix(export_ending)
    ending = "." + (_slug(extension) or "txt")
    stem = "-".join(filter(None, [_slug(name) or "report", _slug(pane)]))
    negated = (filter_text or "").startswith("!")
    detail = _slug(("not-" if negated else "") + (filter_text or "").removeprefix("!").removeprefix("re:"))
    room = _LONGEST_NAME - len(ending)
    if len(stem) > room:  # the beginning says the job, the end says the rank and the pane
        stem = stem[: room // 2].rstrip("-._") + "-" + stem[len(stem) - room // 2 + 1 :].lstrip("-._")
    detail = detail[: max(0, room - len(stem) - 1)].rstrip("-._")
    return "-".join(filter(None, [stem, detail])) + ending


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^0-9A-Za-z._]+", "-", plain).strip("-._")


CHROME = (".json", ".json.gz")
PARAVER = (".prv", ".prv.gz")
VIEWS = ("states", "nvtx", "nccl", "metrics", "durations", "useful")
"""The views of a Paraver trace; the file of one is ``job.states.cfg``."""


def check_ending(path: str | os.PathLike[str]) -> None:
    """Raises ``UsageError`` for a name whose ending is of no format."""
    name = os.fspath(path).lower()
    if not name.endswith((*CHROME, *PARAVER)):
        raise UsageError(
            f"{os.fspath(path)}: a trace ends in {', '.join(CHROME)} (Perfetto) or {', '.join(PARAVER)} (Paraver)"
        )


def trace_files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Every file that the trace called ``path`` may have: Paraver's are ``.prv``, ``.pcf``, ``.row`` and the views."""
    target = Path(os.path.expanduser(path))
    if not target.name.lower().endswith(PARAVER):
        return (target,)
    stem = target.name[: target.name.lower().rindex(".prv")]
    names = (f"{stem}.pcf", f"{stem}.row", *(f"{stem}.{view}.cfg" for view in VIEWS))
    return (target, *(target.with_name(name) for name in names))


def save_trace(
    trace: Trace, path: str | os.PathLike[str], overwrite: bool = False, progress: Progress = lambda rows: None
) -> int:
    """Writes the files of ``path`` and returns how many events of the export are in them.

    Raises what `save` raises, and ``MissingDataError`` where the trace has nothing: then no file is written.
    """
    check_ending(path)
    refuse_empty(trace)
    files = trace_files(path)
    if not overwrite:
        for file in files:
            refuse_existing(file)
    if len(files) == 1:
        from nsystui.output.chrome_trace import write_chrome_trace

        return save_stream(path, overwrite, lambda stream: write_chrome_trace(trace, stream, progress))
    from nsystui.output.paraver import ParaverRows, view_texts, write_records
    from nsystui.output.paraver_types import EventTypes

    if not trace.layout.processes:
        raise MissingDataError("a Paraver trace needs calls, ranges or GPU work: select some")
    rows, types = ParaverRows(trace), EventTypes.of(trace)
    records = streamed(path, lambda stream: write_records(trace, rows, types, stream, progress))
    names = streamed(
        files[1], lambda stream: stream.write(types.pcf().encode(errors="backslashreplace"))
    )  # made once the records are written
    views = {files[3 + VIEWS.index(view)]: text for view, text in view_texts(types).items()}
    return save_together({files[0]: records, files[1]: names, files[2]: rows.row_file(), **views}, overwrite)[0]


def refuse_empty(trace: Trace) -> None:
    """Raises ``MissingDataError`` for a trace of nothing, with what the exports lack."""
    if not trace.layout.processes and not trace.layout.sampled:
        raise MissingDataError("; ".join(("there is nothing in the selection to make a trace of", *trace.notes)))
