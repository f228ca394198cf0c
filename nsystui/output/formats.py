r"""Answers written as CSV, JSON, Markdown, text tables or clipboard text, a page at a time.

Ten million rows need the memory of one page.

CSV is what ``nsys stats --format csv`` writes, byte for byte where the numbers are the same. Files get plain values
(ns, bytes) with the decimals that the column names; the text table words them as a screen does. What a file cannot know
is empty in CSV and Markdown and ``null`` in JSON, and so is a number that is not finite; it is never 0.

CSV and JSON carry text raw, as the profiled program wrote it, JSON in ``\u`` escapes; a text table and Markdown are
for people, and get what `nsystui.base.text.safe_text` makes of it. A cell that begins with ``=``, ``+``, ``-`` or ``@``
stays as it is: an NVTX range may be called ``=compute``, and data that is altered for the sake of spreadsheets is wrong
everywhere else. Import it as text there.
"""

from __future__ import annotations

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
from nsystui.base.text import ascii_glyphs, safe_text, width_of
from nsystui.base.units import Wording, round_half_up, wordings

FORMATS = ("table", "csv", "json", "md", "parquet")
"""The names of the formats of tables, as ``--format`` takes them."""
DRAWING = "svg"
"""The format of drawings: of questions that have one, see `nsystui.output.svg`."""

_ENDINGS = {".csv": "csv", ".json": "json", ".md": "md", ".parquet": "parquet", ".txt": "table", ".svg": DRAWING}

Progress = Callable[[int], None]
"""Called with the number of rows written so far, after each page; what it raises stops the writing."""

_PAGE = 10_000


class Writable(Protocol):
    """The target of answers: an open text file, or anything else that takes text."""

    def write(self, text: str, /) -> object: ...


def format_for_path(path: str | PathLike[str]) -> str:
    """The format that the ending of ``path`` names; raises ``UsageError`` with the endings there are."""
    ending = PurePath(fspath(path)).suffix.lower()
    if ending not in _ENDINGS:
        raise UsageError(f"{safe_text(fspath(path))}: the name must end in one of {', '.join(_ENDINGS)}")
    return _ENDINGS[ending]


def pages(answer: Answer, size: int = _PAGE) -> Iterator[list[Row]]:
    """The rows of ``answer`` in lists of ``size``, the last one shorter."""
    rows = iter_rows(answer)
    while page := list(islice(rows, size)):
        yield page


def file_values(column: Column, values: Sequence[Any]) -> Sequence[Value]:
    """The values of ``column`` as a file gets them: not finite or not known is ``None``, decimals are the column's.

    A column without decimals that holds whole floats gets integers: pandas makes floats of them where one is missing.
    """
    if column.unit in PLACES and UNKNOWN in values:
        values = [None if value == UNKNOWN else value for value in values]
    kinds = set(map(type, values))
    if not any(issubclass(kind, float) for kind in kinds) and not column.decimals:
        return values  # nothing to do, found at the speed of C: most columns, and rows come in millions
    if kinds == {float} and column.decimals and all(map(float.is_integer, values)):
        return values  # as the statistics of names that have one event each
    # Sizes nsys leaves to C's formatting; values with decimals next to them were rounded in its SQL.
    rounded = round if column.unit in (Unit.MEGABYTES, Unit.MEGABYTE_RATE) else round_half_up
    return [_file_value(column.decimals, rounded, value) for value in values]


def _file_value(decimals: int | None, rounded: Callable[[float, int], float], value: Value) -> Value:
    if value is None or isinstance(value, str):
        return value
    if not math.isfinite(value):
        return None
    if decimals is None:
        return int(value) if value == int(value) else value
    return rounded(float(value), decimals) if decimals else round(value)


def _file_pages(answer: Answer, progress: Progress | None) -> Iterator[list[Sequence[Value]]]:
    """Pages of columns with the values that files get; ``progress`` is called when a page has been used."""
    done = 0
    for page in column_batches(answer):
        yield [file_values(column, values) for column, values in zip(answer.columns, page, strict=True)]
        done += len(page[0])
        if progress:
            progress(done)


def write(
    answer: Answer, file_format: str, stream: Writable, *, ascii_only: bool = False, progress: Progress | None = None
) -> int:
    """Writes ``answer`` to ``stream`` as ``table``, ``csv``, ``json`` or ``md``; returns the number of rows.

    ``stream`` should not translate line ends (``newline=""``); every line ends in ``\\n``. With ``ascii_only`` a table
    has ASCII only, for terminals without UTF-8. Raises ``UsageError`` for ``parquet`` (see `nsystui.output.parquet`)
    and for unknown formats, and whatever the stream, the answer and ``progress`` raise.
    """
    if file_format == "table":
        return _write_table(answer, stream, ascii_only, progress)
    if file_format == DRAWING:
        raise UsageError("SVG is a format of drawings, and this is a table: choose one of " + ", ".join(FORMATS))
    writers = {"csv": _write_csv, "json": _write_json, "md": _write_markdown}
    if file_format == "parquet":
        raise UsageError("Parquet is a file format: name a file that ends in .parquet")
    if file_format not in writers:
        raise UsageError(f"there is no format {file_format!r}: choose one of {', '.join(FORMATS)}")
    return writers[file_format](answer, stream, progress)


_NEEDS_QUOTES = re.compile(r'[,\r\n]|^"')
"""What is quoted in nsys's CSV: a cell with ``"`` in it, but neither comma nor line end, stays as it is."""
_ALONE_NEEDS_QUOTES = re.compile(r'[,\r\n"]|^$')
"""The same for the only cell of a line."""


def _write_csv(answer: Answer, stream: Writable, progress: Progress | None) -> int:
    needs_quotes = _NEEDS_QUOTES if len(answer.columns) > 1 else _ALONE_NEEDS_QUOTES

    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"' if needs_quotes.search(cell) else cell

    stream.write(",".join(quoted(column.header) for column in answer.columns) + "\n")
    rows = 0
    for page in _file_pages(answer, progress):
        marks, cells = _marked(answer.columns, page, quoted)
        line = ",".join(marks) + "\n"
        for row in zip(*cells, strict=True):
            stream.write(line % row)
            rows += 1
    return rows


def _marked(
    columns: Sequence[Column], page: Iterable[Sequence[Any]], worded: Callable[[str], str]
) -> tuple[list[str], list[Sequence[Any]]]:
    """What stands in a line for each column of ``page``, and the cells that ``%`` puts there.

    Texts are ``worded``, and empty where there is none. One ``%`` makes a line: a million rows have as many millions of
    cells as there are columns.
    """
    marks: list[str] = []
    cells: list[Sequence[Any]] = []
    for column, values in zip(columns, page, strict=True):
        kinds = set(map(type, values))
        mark = "%s"
        if kinds == {float} and column.decimals:
            if all(map(float.is_integer, values)) and 0.0 not in values:  # zero may be negative
                mark, values = "%s." + "0" * column.decimals, list(map(int, values))
            else:
                mark = f"%.{column.decimals}f"
        elif kinds == {str}:
            values = list(map(worded, values))
        elif kinds != {int}:
            values = [_text(value, column.decimals, worded) for value in values]
        marks.append(mark)
        cells.append(values)
    return marks, cells


def _text(value: Value, decimals: int | None, worded: Callable[[str], str]) -> str:
    if value is None or isinstance(value, str):
        return worded(value or "")
    return format(value, f".{decimals}f") if decimals and isinstance(value, float) else str(value)


def to_json(value: object) -> str:
    """``value`` as JSON of printable ASCII on one line; raises ValueError for a number that is not finite."""
    return json.dumps(value, allow_nan=False).replace("\x7f", "\\u007f")


def _write_json(answer: Answer, stream: Writable, progress: Progress | None) -> int:
    """An array of objects with the columns' keys, one object a line, in ASCII (``\\u`` escapes) whatever the stream."""
    keys = [to_json(column.file_key).replace("%", "%%") for column in answer.columns]
    line = "%s\n{" + ", ".join(f"{key}: %s" for key in keys) + "}"
    separator = "["
    rows = 0
    for page in _file_pages(answer, progress):
        for row in zip(*map(_json_cells, page), strict=True):
            stream.write(line % (separator, *row))
            separator = ","
            rows += 1
    stream.write("\n]\n" if rows else "[]\n")
    return rows


def _json_cells(values: Sequence[Value]) -> Sequence[Value]:
    """The values as ``%s`` writes them in JSON; numbers are finite, as all of files."""
    return values if set(map(type, values)) <= {int, float} else [to_json(value) for value in values]


# What would be markup if it stood in a kernel's name: "f<float>" is an HTML tag, "__half, __half" is bold.
_MARKUP = re.compile(r"[\\`*<\[\]|&~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")


def markdown_text(text: str) -> str:
    """``text`` on one line of Markdown, in a table or a paragraph, with no markup of its own."""
    return _MARKUP.sub(r"\\\g<0>", safe_text(text))


def _write_markdown(answer: Answer, stream: Writable, progress: Progress | None) -> int:
    """A GitHub table; a line break in a cell shows as ``␊``, so that the row stays one line."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |\n"

    stream.write(line(markdown_text(column.header) for column in answer.columns))
    stream.write(line("---" if column.unit is Unit.TEXT else "---:" for column in answer.columns))
    rows = 0
    for page in _file_pages(answer, progress):
        marks, cells = _marked(answer.columns, page, markdown_text)
        marked = line(marks)
        for row in zip(*cells, strict=True):
            stream.write(marked % row)
            rows += 1
    return rows


class _TableColumn:
    """The layout of one column of a text table, measured on the first page."""

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
        """The value worded and padded; a later one that is wider than all of the first page sticks out."""
        return self._pad(self._wording.cell(value))


def _table_columns(columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[_TableColumn]:
    values: Iterable[Sequence[Value]] = zip(*rows, strict=True) if rows else [()] * len(columns)
    return map(_TableColumn, columns, wordings(columns, rows), values)


_LEAST_TEXT, _NAME_SHARE = 12, 0.4


def fitting(answer: TableAnswer, width: int) -> TableAnswer:
    """Return the answer for a text of lines of ``width`` cells; a file has all of it.

    Less important columns leave first, of equals numbers before texts and the last first. The last column, if that is
    text, keeps 0.4 of a line meanwhile. Then texts are cut at their ends, the widest first, before numbers of
    importance 0 leave, the last first.
    """
    widths = [column.width for column in _table_columns(answer.columns, answer.rows)]
    shown = [number for number, column in enumerate(answer.columns) if column.importance < FILES_ONLY]
    first, last = shown[0], shown[-1]
    texts = {number for number in shown if answer.columns[number].unit is Unit.TEXT}
    name_width = max(2 * _LEAST_TEXT, int(_NAME_SHARE * width))

    def needed(is_cut: bool) -> int:
        """The cells of a line, with texts of their least widths where these are cut."""
        least = {number: min(widths[number], _LEAST_TEXT) for number in texts if is_cut}
        if last in texts:
            least[last] = min(widths[last], name_width)
        return sum(least.get(number, widths[number]) + 2 for number in shown) - 2

    def order(number: int) -> tuple[bool, int, bool, int]:
        importance = answer.columns[number].importance
        return importance == 0, -importance, number in texts, -number

    for number in sorted(set(shown) - {first, *({last} & texts)}, key=order):
        is_needed = answer.columns[number].importance == 0
        if needed(is_needed or number in texts) <= width:
            break
        if not (is_needed and number in texts):
            shown.remove(number)
    while sum(widths[number] + 2 for number in shown) - 2 > width:
        longest = max(texts.intersection(shown), key=lambda number: widths[number], default=None)
        if longest is None or widths[longest] <= _LEAST_TEXT:
            break
        widths[longest] -= 1
    columns = tuple(
        column if number in shown else column.with_importance(FILES_ONLY)
        for number, column in enumerate(answer.columns)
    )
    rows = [
        tuple(_cut_end(cell, widths[n]) if n in texts else cell for n, cell in enumerate(row)) for row in answer.rows
    ]
    return replace(answer, columns=columns, rows=rows)


def _cut_end(value: Value, room: int) -> Value:
    if not isinstance(value, str) or width_of(safe_text(value)) <= room:
        return value
    text = safe_text(value)
    while width_of(text) > room - 1:
        text = text[:-1]
    return text + "…"


def _write_table(answer: Answer, stream: Writable, ascii_only: bool, progress: Progress | None) -> int:
    """Aligned text of full width, nothing cut; widths are those of the first page, so that the rest can stream."""

    def put(cells: Iterable[str]) -> None:
        line = "  ".join(cells).rstrip() + "\n"
        stream.write(ascii_glyphs(line) if ascii_only else line)

    remaining = pages(answer)
    first = next(remaining, [])
    is_shown = [column.importance < FILES_ONLY for column in answer.columns]
    columns = list(compress(_table_columns(answer.columns, first), is_shown))
    put(column.heading for column in columns)
    put("-" * column.width for column in columns)
    rows = 0
    for page in chain([first], remaining):
        for row in page:
            put(column.cell(value) for column, value in zip(columns, compress(row, is_shown), strict=True))
        rows += len(page)
        if progress:
            progress(rows)
    return rows


CLIPBOARD_LIMIT = 74_000
"""The maximum of text for a terminal's clipboard (OSC 52), bytes: hterm stops at 100,000, and base64 adds a third.

Terminals differ, and some silently keep less; none answers, so that a caller cannot know whether the text arrived.
"""


def _tsv_line(cells: Iterable[Value]) -> str:
    # Tabs and line breaks would be cells and rows, and a control could act in the shell where the text is pasted.
    return "\t".join("" if cell is None else safe_text(str(cell)) for cell in cells)


def row_for_clipboard(columns: Sequence[Column], row: Sequence[Value]) -> str:
    """One row as tab-separated plain values (those of a CSV file), without a heading and without a line end."""
    return _tsv_line(file_values(column, [value])[0] for column, value in zip(columns, row, strict=True))


def text_for_clipboard(answer: Answer, limit: int = CLIPBOARD_LIMIT) -> str | None:
    """The whole table, headings first, as tab-separated lines that a spreadsheet takes apart when pasted.

    ``None`` if it has more than ``limit`` bytes: found on the way, so that a table of millions of rows is not built.
    """
    lines = [_tsv_line(column.header for column in answer.columns)]
    size = len(lines[0].encode("utf-8", "replace")) + 1
    for page in pages(answer, 500):
        for row in page:
            lines.append(row_for_clipboard(answer.columns, row))
            size += len(lines[-1].encode("utf-8", "replace")) + 1
        if size > limit:
            return None
    return "\n".join(lines) + "\n" if size <= limit else None
