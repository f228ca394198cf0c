r"""Answers written page by page as CSV, JSON, Markdown, or text tables; a row as text for the clipboard.

Ten million rows need the memory of one page.

CSV equals the output of ``nsys stats --format csv``, byte for byte if the numbers are the same. Files get plain values
(ns, bytes) with the decimals of the column; text tables word them like a screen. Unknown and non-finite values are
empty in CSV and Markdown and ``null`` in JSON, never 0.

Text is raw in CSV and JSON, which has ``\u`` escapes. Text tables and Markdown, for people, contain the result of
`nsystui.base.text.safe_text`. A cell that begins with ``=``, ``+``, ``-`` or ``@`` is unchanged: an NVTX range may be
called ``=compute``, and data altered for spreadsheets is wrong elsewhere. Import such columns as text.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, compress, islice
from os import PathLike, fspath
from pathlib import PurePath
from typing import Any, Protocol

from nsystui.base.answer import (
    FILES_ONLY,
    PLACES,
    UNKNOWN,
    Answer,
    Column,
    Row,
    TableAnswer,
    Unit,
    Value,
    column_batches,
    iter_rows,
)
from nsystui.base.errors import UsageError
from nsystui.base.text import ascii_glyphs, cut_apart, safe_text, width_of
from nsystui.base.units import Wording, round_half_up, wordings

FORMATS = ("table", "csv", "json", "md", "parquet")
"""Formats of tables, as words of ``--format``."""
DRAWING = "svg"
"""The format of drawings, see `nsystui.output.svg`."""

_ENDINGS = {".csv": "csv", ".json": "json", ".md": "md", ".parquet": "parquet", ".txt": "table", ".svg": DRAWING}


class Writable(Protocol):
    """The target of answers: an open text file, or another object that takes text."""

    def write(self, text: str, /) -> object: ...


def format_for_path(path: str | PathLike[str]) -> str:
    """Return the format for the ending of ``path``. Raises ``UsageError``, which lists the endings."""
    ending = PurePath(fspath(path)).suffix.lower()
    if ending not in _ENDINGS:
        raise UsageError(f"{safe_text(fspath(path))}: the name must end in one of {', '.join(_ENDINGS)}")
    return _ENDINGS[ending]


def file_values(column: Column, values: Sequence[Any]) -> Sequence[Value]:
    """Return the values of ``column`` for a file, rounded to its decimals; unknown and non-finite values are ``None``.

    Without decimals, whole floats become integers: pandas makes them floats if a value is missing.
    """
    if column.unit in PLACES and UNKNOWN in values:
        values = [None if value == UNKNOWN else value for value in values]
    kinds = set(map(type, values))
    if not any(issubclass(kind, float) for kind in kinds) and not column.decimals:
        return values  # fast path at the speed of C, for most columns
    if kinds == {float} and column.decimals and all(map(float.is_integer, values)):
        return values  # such as statistics of names with one event each
    # In nsys, C's formatting rounds sizes, and SQL rounds other values.
    round_value = round if column.unit in (Unit.MEGABYTES, Unit.MEGABYTE_RATE) else round_half_up
    return [_file_value(column.decimals, round_value, value) for value in values]


def _file_value(decimals: int | None, round_value: Callable[[float, int], float], value: Value) -> Value:
    if value is None or isinstance(value, str):
        return value
    if not math.isfinite(value):
        return None
    if decimals is None:
        return int(value) if value == int(value) else value
    return round_value(float(value), decimals) if decimals else round(value)


def _file_pages(answer: Answer) -> Iterator[list[Sequence[Value]]]:
    for page in column_batches(answer):
        yield [file_values(column, values) for column, values in zip(answer.columns, page, strict=True)]


def write(answer: Answer, file_format: str, stream: Writable, *, ascii_only: bool = False) -> int:
    r"""Write ``answer`` to ``stream`` as ``table``, ``csv``, ``json`` or ``md``; return the number of rows.

    ``stream`` should not translate line ends (``newline=""``); every line ends in ``\n``. With ``ascii_only``, a table
    is ASCII, for terminals without UTF-8. Raises ``UsageError`` for ``parquet`` (see `nsystui.output.parquet`) and
    unknown formats, and the errors of the stream and the answer.
    """
    if file_format == "table":
        return _write_table(answer, stream, ascii_only)
    if file_format == DRAWING:
        raise UsageError("SVG is a format of drawings, and this is a table: choose one of " + ", ".join(FORMATS))
    writers = {"csv": _write_csv, "json": _write_json, "md": _write_markdown}
    if file_format == "parquet":
        raise UsageError("Parquet is a file format: name a file that ends in .parquet")
    if file_format not in writers:
        raise UsageError(f"there is no format {file_format!r}: choose one of {', '.join(FORMATS)}")
    return writers[file_format](answer, stream)


_NEEDS_QUOTES = re.compile(r'[,\r\n]|^"')
"""Cells that nsys quotes in CSV; it does not quote a cell only because of a ``"`` inside."""
_ALONE_NEEDS_QUOTES = re.compile(r'[,\r\n"]|^$')
"""Cells that nsys quotes in a table of one column."""


def _write_csv(answer: Answer, stream: Writable) -> int:
    needs_quotes = _NEEDS_QUOTES if len(answer.columns) > 1 else _ALONE_NEEDS_QUOTES

    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"' if needs_quotes.search(cell) else cell

    def line(cells: Iterable[str]) -> str:
        return ",".join(cells) + "\n"

    return _write_lines(answer, stream, line(quoted(column.header) for column in answer.columns), line, quoted)


def _write_lines(
    answer: Answer, stream: Writable, heading: str, line: Callable[[Iterable[str]], str], escape: Callable[[str], str]
) -> int:
    """Write the heading, and each row as a line of its escaped cells; return the number of rows."""
    following = _file_pages(answer)
    first = [*islice(following, 1)]  # an answer that fails writes nothing
    stream.write(heading)
    rows = 0
    for page in chain(first, following):
        formats, cells = _formatted(answer.columns, page, escape)
        row_format = line(formats)
        for row in zip(*cells, strict=True):
            stream.write(row_format % row)
            rows += 1
    return rows


def _formatted(
    columns: Sequence[Column], page: Iterable[Sequence[Any]], escape: Callable[[str], str]
) -> tuple[list[str], list[Sequence[Any]]]:
    """Return the ``%`` format of each column, and the cells to insert.

    Texts pass through ``escape``; missing values are empty. One ``%`` formats a line: there may be millions.
    """
    formats: list[str] = []
    cells: list[Sequence[Any]] = []
    for column, values in zip(columns, page, strict=True):
        kinds = set(map(type, values))
        cell_format = "%s"
        if kinds == {float} and column.decimals:
            if all(map(float.is_integer, values)) and 0.0 not in values:  # zero may be negative
                cell_format, values = "%s." + "0" * column.decimals, list(map(int, values))
            else:
                cell_format = f"%.{column.decimals}f"
        elif kinds == {str}:
            values = list(map(escape, values))
        elif kinds != {int}:
            values = [_cell_text(value, column.decimals, escape) for value in values]
        formats.append(cell_format)
        cells.append(values)
    return formats, cells


def _cell_text(value: Value, decimals: int | None, escape: Callable[[str], str]) -> str:
    if value is None or isinstance(value, str):
        return escape(value or "")
    return format(value, f".{decimals}f") if decimals and isinstance(value, float) else str(value)


def to_json(value: object) -> str:
    """Return ``value`` as a line of JSON in printable ASCII. Raises ValueError for non-finite numbers."""
    return json.dumps(value, allow_nan=False).replace("\x7f", "\\u007f")


def _write_json(answer: Answer, stream: Writable) -> int:
    r"""Write an array of objects with the columns' keys, one per line, in ASCII (``\u`` escapes)."""
    keys = [to_json(column.file_key).replace("%", "%%") for column in answer.columns]
    line = "%s\n{" + ", ".join(f"{key}: %s" for key in keys) + "}"
    separator = "["
    rows = 0
    for page in _file_pages(answer):
        # Numbers in files are finite.
        cells = [values if set(map(type, values)) <= {int, float} else map(to_json, values) for values in page]
        for row in zip(*cells, strict=True):
            stream.write(line % (separator, *row))
            separator = ","
            rows += 1
    stream.write("\n]\n" if rows else "[]\n")
    return rows


# Markup in kernels' names: "f<float>" is an HTML tag, "__half, __half" is bold.
_MARKUP = re.compile(r"[\\`*<\[\]|&~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")


def markdown_text(text: str) -> str:
    """Return ``text`` with its markup escaped, as one line for a table or paragraph of Markdown."""
    return _MARKUP.sub(r"\\\g<0>", safe_text(text))


def _write_markdown(answer: Answer, stream: Writable) -> int:
    """Write a GitHub table. Line breaks in a cell become ``␊``, so that a row is a line."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |\n"

    headings = line(markdown_text(column.header) for column in answer.columns)
    headings += line("---" if column.unit is Unit.TEXT else "---:" for column in answer.columns)
    return _write_lines(answer, stream, headings, line, markdown_text)


class _TableColumn:
    """The layout of a column of a text table, measured on the first page."""

    def __init__(self, column: Column, wording: Wording, values: Sequence[Value]) -> None:
        self._wording = wording
        self._is_text = column.unit is Unit.TEXT
        label = safe_text(self._wording.heading(column.label))
        self.width = max(width_of(label), max(map(width_of, map(self._wording.cell, values)), default=0))
        self.heading = self._pad(label)

    def _pad(self, cell: str) -> str:
        blanks = " " * (self.width - width_of(cell))
        return cell + blanks if self._is_text else blanks + cell

    def cell(self, value: Value) -> str:
        """Return the value worded and padded. Values wider than on the first page exceed the column."""
        return self._pad(self._wording.cell(value))


def _table_columns(columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[_TableColumn]:
    values: Iterable[Sequence[Value]] = zip(*rows, strict=True) if rows else [()] * len(columns)
    return map(_TableColumn, columns, wordings(columns, rows), values)


_MIN_TEXT_WIDTH, _NAME_SHARE = 12, 0.4


def fitting(answer: TableAnswer, width: int) -> TableAnswer:
    """Return the answer reduced to lines of ``width`` cells; files get the complete answer.

    Hides the least important columns first; of equally important columns, numbers before texts and the last first.
    The last column, if it is text, keeps 0.4 of a line. Then cuts texts, the widest first (see `cut_apart`).
    Hides numbers of importance 0, the last first, only if cut texts are not enough.
    """
    widths = [column.width for column in _table_columns(answer.columns, answer.rows)]
    shown = [number for number, column in enumerate(answer.columns) if column.importance < FILES_ONLY]
    first, last = shown[0], shown[-1]
    texts = {number for number in shown if answer.columns[number].unit is Unit.TEXT}
    name_width = max(2 * _MIN_TEXT_WIDTH, int(_NAME_SHARE * width))

    def needed(is_cut: bool) -> int:
        """Return the width of a line, with texts at minimum widths if they are cut."""
        min_widths = {number: min(widths[number], _MIN_TEXT_WIDTH) for number in texts if is_cut}
        if last in texts:
            min_widths[last] = min(widths[last], name_width)
        return sum(min_widths.get(number, widths[number]) + 2 for number in shown) - 2

    def order(number: int) -> tuple[bool, int, bool, int]:
        importance = answer.columns[number].importance
        return importance == 0, -importance, number in texts, -number

    for number in sorted(set(shown) - {first, *({last} & texts)}, key=order):
        is_needed = answer.columns[number].importance == 0
        if needed(is_needed) <= width:
            break
        if not (is_needed and number in texts):
            shown.remove(number)
    hidden = {number: column.with_importance(FILES_ONLY) for number, column in enumerate(answer.columns)}
    columns = tuple(column if number in shown else hidden[number] for number, column in enumerate(answer.columns))
    return replace(answer, columns=columns, rows=_cut_texts(answer.rows, widths, shown, texts, width))


def _cut_texts(rows: Sequence[Row], widths: list[int], shown: Sequence[int], texts: set[int], width: int) -> list[Row]:
    """Cut the texts of ``shown`` columns, the widest first, so that lines have ``width`` cells."""
    while sum(widths[number] + 2 for number in shown) - 2 > width:
        longest = max(texts.intersection(shown), key=lambda number: widths[number], default=None)
        if longest is None or widths[longest] <= _MIN_TEXT_WIDTH:
            break
        widths[longest] -= 1
    safe = [[safe_text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    cuts = {n: cut_apart((cell for row in safe if isinstance(cell := row[n], str)), widths[n]) for n in texts}
    return [tuple(cuts.get(n, {}).get(str(cell), cell) for n, cell in enumerate(row)) for row in safe]


def _write_table(answer: Answer, stream: Writable, ascii_only: bool) -> int:
    """Write aligned, uncut text. The first page sets the widths, so that later pages can stream."""

    def put(cells: Iterable[str]) -> None:
        line = "  ".join(cells).rstrip() + "\n"
        stream.write(ascii_glyphs(line) if ascii_only else line)

    following = iter_rows(answer)
    first = list(islice(following, 10_000))
    is_shown = [column.importance < FILES_ONLY for column in answer.columns]
    columns = list(compress(_table_columns(answer.columns, first), is_shown))
    put(column.heading for column in columns)
    put("-" * column.width for column in columns)
    rows = 0
    for row in chain(first, following):
        put(column.cell(value) for column, value in zip(columns, compress(row, is_shown), strict=True))
        rows += 1
    return rows


def row_for_clipboard(columns: Sequence[Column], row: Sequence[Value]) -> str:
    """Return a row as tab-separated plain values (the values of CSV), without a line end."""
    values = (file_values(column, [value])[0] for column, value in zip(columns, row, strict=True))
    # Tabs and line breaks would separate cells and rows; pasted into a shell, a control could act.
    return "\t".join("" if value is None else safe_text(str(value)) for value in values)
