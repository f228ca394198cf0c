"""Answers, texts and traces to stdout or files, which are complete or absent and replaced only on request."""

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

from nsystui.base.answer import FILES_ONLY, Answer, TableAnswer, head
from nsystui.base.errors import MissingDataError, OutputError, UsageError
from nsystui.base.files import drop_abandoned, partial_name
from nsystui.base.terminal import complain, original_environ, quiet_pipe, size, text_width, wants_ascii
from nsystui.base.text import ascii_glyphs, counted, safe_text
from nsystui.output.formats import fitting, format_for_path, write

if TYPE_CHECKING:
    from nsystui.questions.trace.trace import Trace


class _SafeLines:
    """A terminal's stream that makes each line safe, and shows line breaks inside it as ``␊``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> object:
        return self._stream.write(safe_text(line.removesuffix("\n")) + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines made safe, in ASCII if UTF-8 cannot be shown. Raises the errors of `quiet_pipe`."""
    with quiet_pipe() as stream:
        is_ascii = wants_ascii(original_environ() if stream.isatty() else {"LC_ALL": "C.UTF-8"}, stream.encoding)
        stream.writelines(f"{ascii_glyphs(line) if is_ascii else line}\n" for line in map(safe_text, lines))


def print_answer(answer: Answer, file_format: str, *, is_wide: bool = True, is_cut: bool = False) -> int:
    """Print ``answer`` as ``table``, ``csv``, ``json`` or ``md`` without its notes; return the number of rows.

    On a terminal, a table is fitted to the width unless ``is_wide``, and ends after a screenful if ``is_cut``; stderr
    reports omissions. CSV, JSON and Markdown are UTF-8 in every locale; a table is ASCII if UTF-8 cannot be shown. Text
    in CSV is raw, except on a terminal, which might obey control characters. Raises ``UsageError`` for Parquet, and the
    errors of `quiet_pipe`.
    """
    if file_format == "parquet":
        raise UsageError("Parquet cannot go to standard output: name a file with -o FILE.parquet")
    omissions = ""
    with quiet_pipe() as stream:
        encoding = stream.encoding if file_format == "table" else "utf-8"
        if file_format == "table" and stream.isatty():
            answer, omissions = _fitted(answer, is_wide, is_cut)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="backslashreplace", newline="")
        # A file or pipe may be read anywhere: only the stream's encoding counts.
        environ = original_environ() if stream.isatty() else {"LC_ALL": "C.UTF-8"}
        target = _SafeLines(stream) if file_format == "csv" and stream.isatty() else stream
        rows = write(answer, file_format, target, ascii_only=wants_ascii(environ, encoding))
    if omissions:
        complain(omissions)
    return rows


_MIN_ROWS = 5


def _fitted(answer: Answer, is_wide: bool, is_cut: bool) -> tuple[Answer, str]:
    """Return the part of the answer that fits the terminal, and a remark on omissions."""
    width, height = text_width(), size(1)[1]
    remarks = []
    # The other lines: the prompt, the heading, the omissions, and a note.
    max_rows = max(height - 6, _MIN_ROWS)
    total = len(answer)
    if is_cut and total > max_rows:
        answer = head(answer, max_rows)
        remarks.append(f"{max_rows} of {total:,} rows (--top N for more)")
    if not is_wide and len(answer) <= 10_000:  # nobody reads longer tables on a screen
        table = TableAnswer(answer.name, answer.columns, answer.page(0, len(answer)), answer.total, answer.notes)
        fitted = fitting(table, width)
        hidden = [
            before.label
            for before, after in zip(table.columns, fitted.columns, strict=True)
            if before.importance < FILES_ONLY <= after.importance
        ]
        answer = fitted
        if hidden:
            remarks.append(f"{counted(len(hidden), 'column')} hidden: {', '.join(hidden)} (--wide shows all)")
    return answer, "; ".join(remarks)


class TargetExistsError(OutputError):
    """The refusal to replace an existing file. The caller may ask the user to ``overwrite`` it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} already exists (--force overwrites it)")


def save(answer: Answer, path: str | os.PathLike[str], overwrite: bool = False) -> int:
    """Save ``answer`` in the format of the ending of ``path``; return the number of rows.

    A leading ``~`` is the home directory. A temporary file in the same directory is renamed at the end; if the writing
    stops, nothing remains. A link's target is replaced, not the link. Raises `TargetExistsError`, ``OutputError`` with
    the reason in one line, and ``UsageError`` for an unknown ending.
    """
    form = format_for_path(os.path.expanduser(path))
    return save_together({Path(path): lambda temporary: _write_file(answer, temporary, form)}, overwrite)[0]


def save_text(text: str, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Save ``text`` as ``path``, like `save` and with its errors."""
    save_together({Path(path): text}, overwrite)


def streamed(path: str | os.PathLike[str], fill: Callable[[BinaryIO], int]) -> _Contents:
    """Return contents for `save_together` that ``fill`` writes, compressed if the name ends in ``.gz``."""

    def write(temporary: Path) -> int:
        import gzip

        with temporary.open("xb") as file:
            if not os.fspath(path).lower().endswith(".gz"):
                return fill(file)
            # Without name and time, the same rows make the same file.
            # Level 4 is twice as fast as the default, and the file a tenth larger.
            with gzip.GzipFile("", "wb", 4, file, mtime=0) as compressed:
                return fill(cast("BinaryIO", compressed))

    return write


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """Raise `TargetExistsError` if the name is taken."""
    target = os.path.expanduser(path)
    if os.path.lexists(target):
        raise TargetExistsError(safe_text(target))


def refuse_inputs(written: Iterable[str | os.PathLike[str]], read: Iterable[Path], cache: Path | None) -> None:
    """Raise UsageError if an output (any file of a trace) is also an input, or is in the cache.

    Files are compared by device and inode, so that links count.
    """
    outputs: list[tuple[Path, os.stat_result]] = []
    for name in written:
        for file in trace_files(name):
            if os.path.isfile(file) and os.path.getsize(file):  # if empty, a shell's > has already emptied it
                outputs.append((file, os.stat(file)))
            if cache is not None and Path(os.path.realpath(cache)) in Path(os.path.realpath(file)).parents[1:]:
                raise UsageError(
                    f"{safe_text(str(file))} is in the cache directory, which is only for nsystui: name another file"
                )
    for path in filter(os.path.isfile, read if outputs else ()):
        for file, state in outputs:
            if os.path.samestat(state, os.stat(path)):
                raise UsageError(f"{safe_text(str(file))} is an input ({safe_text(str(path))}): name another file")


_Contents = str | Callable[[Path], int]
"""A text, or a function that writes a new file and returns its number of rows."""


def save_together(contents: Mapping[Path, _Contents], overwrite: bool) -> list[int]:
    """Save all files or none; return the number of rows of each. Raises the errors of `save`.

    If a renaming fails, files replaced before are restored, and new files removed.
    """
    contents_by_target = {_target(path, overwrite): content for path, content in contents.items()}
    rows, temporaries, undo = list[int](), list[Path](), list[Callable[[], object]]()
    try:
        for target, content in contents_by_target.items():
            temporaries.append(target.with_name(partial_name()))
            with _explained(target):
                write = partial(_write_text, content) if isinstance(content, str) else content
                rows.append(write(temporaries[-1]))
                with temporaries[-1].open("rb") as written:  # over NFS, a full disk or quota shows only now
                    os.fsync(written.fileno())
        for target, temporary in zip(contents_by_target, temporaries.copy(), strict=True):
            is_new, backup = not os.path.exists(target), target.with_name(partial_name())
            with _explained(target):
                if not is_new and len(contents_by_target) > 1:
                    with suppress(OSError):  # some file systems have no hard links
                        os.link(target, backup)
                        undo.append(partial(backup.replace, target))
                        temporaries.append(backup)
                _take_name(temporary, target, overwrite)
                undo += [target.unlink] * is_new
    except BaseException:
        for step in undo:
            with suppress(OSError):
                step()
        raise
    finally:
        for temporary in temporaries:
            with suppress(OSError):  # it is renamed, or was never created
                temporary.unlink()
    return rows


def _target(path: Path, overwrite: bool) -> Path:
    """Return the path to write (a link's target), and remove killed programs' temporary files next to it."""
    target = Path(os.path.expanduser(path))
    shown_name = safe_text(str(target))
    if os.path.isdir(target):
        raise OutputError(f"{shown_name} is a directory")
    if os.path.exists(target) and not os.path.isfile(target):  # as root, renaming would replace /dev/null
        raise OutputError(f"{shown_name} is not a regular file")
    if not overwrite and os.path.lexists(target):  # checked again at the end; this saves the user the wait
        raise TargetExistsError(shown_name)
    drop_abandoned(target.parent, folders=False)  # a killed `pack` left a record there
    return Path(os.path.realpath(target)) if overwrite else target


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise TargetExistsError(safe_text(str(target))) from None
    except OSError as error:
        folder = safe_text(str(target.parent))
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
        why = reasons.get(error.errno or 0) or safe_text(error.strerror or str(error))
        raise OutputError(f"cannot write {safe_text(str(target))}: {why}") from error


def _write_file(answer: Answer, path: Path, file_format: str) -> int:
    if file_format == "parquet":
        from nsystui.output.parquet import write_parquet

        return write_parquet(answer, path)
    with _new_text(path) as stream:
        return write(answer, file_format, stream)


def _write_text(text: str, path: Path) -> int:
    with _new_text(path) as stream:
        stream.write(text)
    return text.count("\n")


def _new_text(path: Path) -> TextIO:
    # A lone surrogate, as in a path that is not UTF-8, is written as \udcff: the file is always UTF-8.
    return path.open("x", encoding="utf-8", errors="backslashreplace", newline="")


def _take_name(temporary: Path, target: Path, overwrite: bool) -> None:
    """Rename the finished file. Raises ``FileExistsError`` if the name is taken, unless ``overwrite``."""
    if overwrite:
        with suppress(OSError):  # no file to replace, or another user's: the umask applies
            shutil.copymode(target, temporary)
        temporary.replace(target)
        return
    # Renaming replaces silently, and some file systems have no hard links. So an empty file claims the name, which
    # fails if it is taken, and is then replaced.
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    try:
        temporary.replace(target)
    except BaseException:
        target.unlink()
        raise


def propose_name(job: str, pane: str, filter_text: str | None, extension: str) -> str:
    """Return a file name for the content: ``rank0-kernels-nvjet.csv``, ``llama-nccl.csv``.

    It has at most 150 ASCII letters, digits and ``. _ -``, which any shell and file system accepts, and begins with a
    letter or digit. A long filter is shortened first.
    """
    name = job.rstrip("/").rpartition("/")[2]
    for export_ending in (".sqlite", ".nsys-rep", ".qdrep", ".parquet", ".arrow", ".db"):
        name = name.removesuffix(export_ending)
    ending = "." + (_slug(extension) or "txt")
    stem = "-".join(filter(None, [_slug(name) or "report", _slug(pane)]))
    negated = (filter_text or "").startswith("!")
    detail = _slug(("not-" if negated else "") + (filter_text or "").removeprefix("!").removeprefix("re:"))
    room = 150 - len(ending)  # far below the 255 of file systems; still fits a prompt
    if len(stem) > room:  # the beginning names the job, the end names the rank and the pane
        stem = stem[: room // 2].rstrip("-._") + "-" + stem[len(stem) - room // 2 + 1 :].lstrip("-._")
    detail = detail[: max(0, room - len(stem) - 1)].rstrip("-._")
    return "-".join(filter(None, [stem, detail])) + ending


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^0-9A-Za-z._]+", "-", plain).strip("-._")


CHROME = (".json", ".json.gz")
PARAVER = (".prv", ".prv.gz")
VIEWS = ("states", "nvtx", "nccl", "metrics", "durations", "useful")
"""The views of a Paraver trace, in files such as ``job.states.cfg``."""


def check_ending(path: str | os.PathLike[str]) -> None:
    """Raise ``UsageError`` if the ending of a name has no format."""
    if not os.fspath(path).lower().endswith((*CHROME, *PARAVER)):
        raise UsageError(
            f"{os.fspath(path)}: a trace ends in {', '.join(CHROME)} (Perfetto) or {', '.join(PARAVER)} (Paraver)"
        )


def trace_files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return all files that the trace ``path`` may have: for Paraver, ``.prv``, ``.pcf``, ``.row`` and views."""
    target = Path(os.path.expanduser(path))
    if not target.name.lower().endswith(PARAVER):
        return (target,)
    stem = target.name[: target.name.lower().rindex(".prv")]
    names = (f"{stem}.pcf", f"{stem}.row", *(f"{stem}.{view}.cfg" for view in VIEWS))
    return (target, *(target.with_name(name) for name in names))


def save_trace(trace: Trace, path: str | os.PathLike[str], overwrite: bool = False) -> int:
    """Write the files of ``path``; return the number of the export's events in them.

    Raises the errors of `save`, and ``MissingDataError`` for an empty trace.
    """
    check_ending(path)
    refuse_empty(trace)
    files = trace_files(path)
    if not overwrite:
        for file in files:
            refuse_existing(file)
    if len(files) == 1:
        from nsystui.output.chrome_trace import write_chrome_trace

        return save_together({Path(path): streamed(path, partial(write_chrome_trace, trace))}, overwrite)[0]
    from nsystui.output.paraver import ParaverRows, view_texts, write_records
    from nsystui.output.paraver_types import EventTypes

    if not trace.layout.processes:
        raise MissingDataError("a Paraver trace needs calls, ranges or GPU work: select some")
    rows, types = ParaverRows(trace), EventTypes.of(trace)
    records = streamed(path, lambda stream: write_records(trace, rows, types, stream))
    names = streamed(files[1], lambda stream: stream.write(types.pcf().encode(errors="backslashreplace")))
    views = {files[3 + VIEWS.index(view)]: text for view, text in view_texts(types).items()}
    return save_together({files[0]: records, files[1]: names, files[2]: rows.row_file(), **views}, overwrite)[0]


def refuse_empty(trace: Trace) -> None:
    """Raise ``MissingDataError`` for an empty trace; the message names the missing data."""
    if not trace.layout.processes and not trace.layout.sampled:
        raise MissingDataError("; ".join(("the selection has no events for a trace", *trace.notes)))
