"""Compressed exports: ``.sqlite.gz``, ``.zst``, ``.xz``, ``.bz2``, and a ``.zip`` with one export in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nsystui.base.errors import ExportError, reason_of
from nsystui.base.inputs import opened
from nsystui.base.text import shell_word
from nsystui.exports.forms.form import EXPORT_COMMAND, EXPORT_ENDINGS, Advance, Form, is_export, size_in

if TYPE_CHECKING:
    import zipfile

_ZIP = ".zip"
_ENDINGS = (".gz", ".zst", ".xz", ".bz2")
_PIECE = 1 << 22
_HEAD = 100
# Real exports compress to an eighth at best; up to _SMALL bytes do no harm.
_MAX_RATIO = 100
_SMALL = 1 << 26
_MADE_BY = f"nsystui opens what this writes, compressed: {EXPORT_COMMAND} FILE.nsys-rep"


def _is_compressed(path: Path) -> bool:
    if path.suffix == _ZIP:
        return os.path.isfile(path)
    return path.suffix in _ENDINGS and path.name.removesuffix(path.suffix).endswith(EXPORT_ENDINGS)


def _unpack(path: Path, target: Path, advance: Advance) -> None:
    # The libraries' errors have no common class: EOFError, zlib.error, LZMAError, BadZipFile, ArrowInvalid …
    try:
        with opened(path) as packed, _unpacked(path, packed) as stream, open(target, "wb") as out:
            total = max(os.fstat(packed.fileno()).st_size, 1)
            max_size = max(total * _MAX_RATIO, _SMALL)
            head = piece = stream.read(_HEAD)
            if not is_export(head):
                raise ExportError(str(path), "no export in it: the unpacked content is not SQLite", _MADE_BY)
            while piece:
                if max(size_in(head), out.tell() + len(piece)) > max_size:
                    cause = f"it unpacks to more than {_MAX_RATIO} times its size, which no export does"
                    raise ExportError(str(path), cause, "compress the export again")
                out.write(piece)
                advance(min(packed.tell() / total, 1.0))
                piece = stream.read(_PIECE)
    except (ExportError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ExportError(str(path), f"cannot be unpacked: {reason_of(error)}", "copy or compress it again") from None


@contextmanager
def _unpacked(path: Path, packed: IO[bytes]) -> Iterator[Any]:
    if path.suffix == _ZIP:
        import zipfile

        with zipfile.ZipFile(packed) as archive, archive.open(_member(path, archive)) as stream:
            yield stream
    elif path.suffix == ".zst":
        try:
            import pyarrow
        except ImportError:
            advice = f"pip install 'nsystui[formats]', or unpack it: unzstd {shell_word(str(path))}"
            raise ExportError(str(path), "compressed with zstd, which needs pyarrow", advice) from None
        with pyarrow.CompressedInputStream(pyarrow.PythonFile(packed, "r"), "zstd") as stream:
            yield stream
    else:
        import bz2
        import gzip
        import lzma

        opener: Any = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}[path.suffix]
        with opener(packed) as stream:
            yield stream


def _member(path: Path, archive: zipfile.ZipFile) -> str:
    names = [name for name in archive.namelist() if name.endswith(EXPORT_ENDINGS)]
    if len(names) == 1:
        return names[0]
    cause = f"{len(names)} exports in it" if names else "no export in it: none of its files ends in .sqlite"
    advice = f"unpack it, and name what to open: unzip {shell_word(str(path))}"
    raise ExportError(str(path), cause, advice)


COMPRESSED = Form("a compressed export", (_ZIP, *_ENDINGS), _is_compressed, _unpack)
