"""Answers as CSV, JSON, Markdown, text tables and Parquet, and as text for the clipboard."""

import csv
import io
import json
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_answers import COLUMNS, FEW, Many, Rows

from nsystui.base.answer import COUNT, FILES_ONLY, NAME, Column, TableAnswer, Unit
from nsystui.base.errors import UsageError
from nsystui.base.text import width_of
from nsystui.output.findings import plain
from nsystui.output.formats import fitting, format_for_path, row_for_clipboard, write
from nsystui.output.parquet import write_parquet

STATS = Path(__file__).parents[3] / "shared/data/nsys-stats"


def written(answer: Rows | TableAnswer, file_format: str, **options: bool) -> str:
    stream = io.StringIO(newline="")
    assert write(answer, file_format, stream, **options) == len(answer)
    return stream.getvalue()


def test_csv_is_what_nsys_writes():
    head = "Time (%),Total Time (ns),Instances,Avg (ns),Name\n"
    assert written(Rows([]), "csv") == head
    assert written(FEW, "csv") == head + (
        '14.6,292789300,472,620316.3,"ncclKernel_AllReduce(ncclDevComm *, unsigned long)"\n'
        ',12,,12.0,"say ""hi""\r\n=1+1\x1b[31m"\n'
        "0.0,5000000000,1,,µ|<float>\n"
    )


def test_csv_cells_that_a_spreadsheet_would_compute_stay_as_they_are():
    names = ["=1+1", "+compute", "-x", "@step"]
    rows = csv.DictReader(io.StringIO(written(Rows([(1.0, 2, 3, 4.0, name) for name in names]), "csv")))
    assert [row["Name"] for row in rows] == names


@pytest.mark.skipif(not STATS.is_dir(), reason="no real nsys output on this machine")
@pytest.mark.parametrize("path", sorted(STATS.glob("*/cuda_gpu_kern_sum.csv")), ids=lambda path: path.parent.name)
def test_csv_of_nsys_comes_out_byte_for_byte(path):
    frame = pd.read_csv(path, keep_default_na=False)
    decimals = {"Time (%)": 1, "Avg (ns)": 1, "Med (ns)": 1, "StdDev (ns)": 1}
    units = {name: Unit.TEXT if name == "Name" else Unit.NUMBER for name in frame}
    columns = tuple(
        Column(name, header=name, label=name, unit=unit, decimals=decimals.get(name)) for name, unit in units.items()
    )
    assert written(TableAnswer.of_arrays("kernels", columns, frame), "csv") == path.read_bytes().decode()


@pytest.mark.parametrize(("megabytes", "shown"), [(1.5625, "1.562"), (0.0045, "0.004"), (0.0025, "0.003")])
def test_megabytes_are_formatted_as_c_does_it(megabytes, shown):
    """As nsys: the double nearest to 0.0045 is below 0.0045, so it rounds to 0.004."""
    columns = (
        Column("mb", header="Bytes (MB)", label="MB", unit=Unit.MEGABYTES, decimals=3),
        Column("avg", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1),
    )
    answer = TableAnswer.of_arrays("sizes", columns, pd.DataFrame({"mb": [megabytes], "avg": [1607.35]}))
    assert written(answer, "csv").splitlines()[1] == f"{shown},1607.4"
    assert json.loads(written(answer, "json")) == [{"mb": float(shown), "avg_ns": 1607.4}]


def test_whole_numbers_stay_whole_where_pandas_made_floats_of_them():
    answer = TableAnswer.of_arrays("x", (COUNT,), pd.DataFrame({"count": [1, None, 3]}))
    assert written(answer, "csv") == 'Count\n1\n""\n3\n'
    assert json.loads(written(answer, "json")) == [{"count": 1}, {"count": None}, {"count": 3}]
    assert '"count": 3}' in written(answer, "json")


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(TEXT, st.one_of(st.none(), st.integers()), TEXT), max_size=8))
def test_csv_reads_back_through_the_csv_module(rows):
    columns = (
        Column("a", header="A", label="a"),
        Column("n", header="N", label="n", unit=Unit.NUMBER),
        Column("b", header="B, b", label="b"),
    )
    read = list(csv.reader(io.StringIO(written(Rows(rows, columns), "csv"), newline="")))
    assert read == [["A", "N", "B, b"], *([a, "" if n is None else str(n), b] for a, n, b in rows)]


@given(st.lists(st.tuples(st.text(), st.one_of(st.none(), st.integers(), st.floats())), max_size=8))
def test_json_is_valid_whatever_the_data(rows):
    columns = (Column("name", header="Name", label="n"), Column("value", header="Value", label="v", unit=Unit.NUMBER))
    text = written(Rows(rows, columns), "json")
    assert text.isascii()
    read = json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    assert [row["name"] for row in read] == [name for name, _ in rows]
    assert all(row["value"] == value for row, (_, value) in zip(read, rows, strict=True) if isinstance(value, int))


def test_json_is_one_object_a_line_with_keys():
    lines = written(FEW, "json").splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("[", "]", 5)
    keys = ("share_percent", "total_ns", "count", "mean_ns", "name")
    assert json.loads(lines[1].rstrip(",")) == dict(zip(keys, FEW.rows[0], strict=True))
    assert written(Rows([]), "json") == "[]\n"


def test_markdown_is_a_table_whose_text_shows_as_it_is():
    assert written(FEW, "md") == (
        "| Time (%) | Total Time (ns) | Instances | Avg (ns) | Name |\n"
        "| ---: | ---: | ---: | ---: | --- |\n"
        "| 14.6 | 292789300 | 472 | 620316.3 | ncclKernel_AllReduce(ncclDevComm \\*, unsigned long) |\n"
        '|  | 12 |  | 12.0 | say "hi"␍␊=1+1␛\\[31m |\n'
        "| 0.0 | 5000000000 | 1 |  | µ\\|\\<float> |\n"
    )


def test_json_is_printable_ascii_that_means_the_text():
    text = "\x1b\x7f\u2028\u200b\udcff"
    found = written(Rows([(None, None, None, None, text)]), "json")
    assert all(line.isprintable() and line.isascii() for line in found.split("\n"))
    assert json.loads(found)[0]["name"] == text


def test_a_paragraph_of_markdown_has_no_markup_but_code():
    said = "in range `a_b<c>`, <b>x</b> [y](z) __w__ | `\n# v"
    assert plain(said) == "in range `a_b<c>`, \\<b>x\\</b> \\[y\\](z) \\_\\_w\\_\\_ \\| \\`␊# v"


def test_a_table_is_aligned_worded_and_safe():
    assert written(FEW, "table") == (
        "share %   total  count  mean µs  kernel\n"
        "-------  ------  -----  -------  --------------------------------------------------\n"
        "   14.6  293 ms    472  620.316  ncclKernel_AllReduce(ncclDevComm *, unsigned long)\n"
        '      –   12 ns      –    0.012  say "hi"␍␊=1+1␛[31m\n'
        "   0.04     5 s      1        –  µ|<float>\n"
    )
    text = written(FEW, "table", ascii_only=True)
    assert text.isascii()
    assert "mean us" in text


@given(st.lists(st.tuples(st.text(), st.one_of(st.none(), st.integers(0, 10**12))), min_size=1, max_size=6))
def test_table_rows_are_single_lines_of_one_width(rows):
    columns = (NAME, Column("time", header="Time", label="time", unit=Unit.DURATION))
    lines = written(Rows(rows, columns), "table").split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(rows) + 2
    assert all(width_of(line) <= width_of(lines[1]) for line in lines)


def test_columns_that_are_compared_have_one_unit_in_a_table_of_any_width():
    columns = (
        Column("compute", header="Compute (ns)", label="compute", unit=Unit.DURATION, compared="duration"),
        Column("duration", header="Duration (ns)", label="duration", unit=Unit.DURATION, importance=1),
    )
    answer = TableAnswer("steps", columns, [(93_269, 112_485_001), (3_061, 115_652_001)])
    for shown in (answer, fitting(answer, 12)):
        *_, first, second = written(shown, "table").splitlines()
        assert (first.split()[0], second.split()[0]) == ("0.093", "0.003")


@pytest.mark.campaign
def test_rows_come_page_by_page_and_once():
    for file_format in ("csv", "json", "md", "table"):
        answer, stream = Many(), io.StringIO()
        assert write(answer, file_format, stream) == 25_000, file_format
        assert [offset for offset, _ in answer.asked] == [0, 10_000, 20_000], file_format
        assert "kernel_9" in stream.getvalue(), file_format


@pytest.mark.parametrize("file_format", ["csv", "json", "md", "table"])
def test_an_answer_that_fails_prints_nothing(monkeypatch, file_format):
    monkeypatch.setattr(Many, "page", Rows.sorted_by)  # not implemented
    stream = io.StringIO()
    with pytest.raises(NotImplementedError):
        write(Many(), file_format, stream)
    assert not stream.getvalue()


def test_formats_are_named_by_endings():
    named = {"a.CSV": "csv", Path("x/y.parquet"): "parquet", "notes.txt": "table", "busy.svg": "svg"}
    assert {path: format_for_path(path) for path in named} == named
    for name in ("kernels", "kernels.xlsx", ".csv", "a\x1b.b"):
        with pytest.raises(UsageError, match=r"\.csv, \.json, \.md, \.parquet, \.txt"):
            format_for_path(name)
    for name in ("parquet", "xml", "svg"):  # forms with characters that a stream cannot encode
        with pytest.raises(UsageError):
            write(FEW, name, io.StringIO())


def test_parquet_has_the_types_and_values_also_of_nothing(tmp_path):
    path = tmp_path / "it's [here] *.parquet"
    values = [FEW.rows[0], FEW.rows[1], (0.04, 5_000_000_000, 1, None, "µ|<float>")]
    for answer, expected in ((FEW, values), (Rows([]), [])):
        assert write_parquet(answer, path) == len(expected)
        with duckdb.connect() as connection:
            relation = connection.read_parquet(str(path))
            assert relation.columns == [column.file_key for column in COLUMNS]
            assert [str(kind) for kind in relation.types] == ["DOUBLE", "BIGINT", "BIGINT", "DOUBLE", "VARCHAR"]
            assert relation.fetchall() == expected
        assert list(tmp_path.iterdir()) == [path]


def test_parquet_streams_in_order_and_widens_a_type_that_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr("nsystui.output.parquet._BATCH", 1_000)
    # The type is integer, the values are quarters.
    undeclared = Column("mean", header="Avg (ns)", label="mean", unit=Unit.DURATION)
    answer = Many(length=25_500, columns=(*COLUMNS[:3], undeclared, *COLUMNS[4:]))
    path = tmp_path / "many.parquet"
    assert write_parquet(answer, path) == 25_500
    with duckdb.connect() as connection:
        rows = connection.read_parquet(str(path)).fetchall()
    assert rows == list(Many(length=25_500).page(0, 25_500))
    assert list(tmp_path.iterdir()) == [path]


WHOLE = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
REAL = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


@pytest.mark.campaign
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.one_of(st.none(), TEXT), WHOLE, REAL), max_size=6))
def test_parquet_reads_back_through_duckdb(tmp_path, rows):
    columns = (
        Column("text", header="T", label="t"),
        Column("whole", header="W", label="w", unit=Unit.NUMBER),
        Column('a "real"', header="R", label="r", unit=Unit.NUMBER, decimals=2),
    )
    path = tmp_path / "x.parquet"
    write_parquet(Rows(rows, columns), path)
    with duckdb.connect() as connection:
        assert connection.read_parquet(str(path)).fetchall() == rows


def test_parquet_keeps_values_that_its_types_do_not_hold(tmp_path):
    columns = (
        Column("id", header="Id", label="id", unit=Unit.NUMBER),
        Column("path", header="Path", label="p"),
        Column("grid", header="G", label="g", unit=Unit.NUMBER),
    )
    write_parquet(Rows([(2**64 - 1, "r\udcff", "1·1"), (1, None, 5)], columns), tmp_path / "x.parquet")
    with duckdb.connect() as connection:
        rows = connection.read_parquet(str(tmp_path / "x.parquet")).fetchall()
    assert rows == [("18446744073709551615", "r\\udcff", "1·1"), ("1", None, "5")]


# Text for a terminal


@pytest.mark.parametrize("width", [80, 100, 120, 200, 400])
def test_a_table_for_a_terminal_is_as_wide_as_that_and_keeps_what_matters(width):
    columns = (
        Column("first", header="First", label="first", unit=Unit.COUNT),
        *(Column(f"more{n}", header=f"More {n}", label="x" * 20, unit=Unit.COUNT, importance=n) for n in (3, 1, 2)),
        Column("name", header="Name", label="name"),
    )
    answer = TableAnswer("wide", columns, [(1, 2, 3, 4, "a name " * 30), (5, 6, 7, 8, "short")])
    text = written(fitting(answer, width), "table")
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    shown = [len(column.label) for column in fitting(answer, width).columns if column.importance < FILES_ONLY]
    assert (len(shown), "…" in text) == {80: (3, True), 100: (4, True), 120: (4, True)}.get(width, (5, width < 283))
    assert "short" in lines[-1]


def test_a_text_that_matters_less_leaves_before_others_are_cut():
    columns = (
        Column("cause", header="Cause", label="cause"),
        Column("caller", header="Caller", label="caller", importance=1),
        Column("time", header="Time", label="time", unit=Unit.COUNT),
    )
    answer = TableAnswer("gaps", columns, [("in calls that allocate or free memory", "torch::autograd::Engine", 5)])
    first, *_ = written(fitting(answer, 60), "table").splitlines()[2:]
    assert first.split() == ["in", "calls", "that", "allocate", "or", "free", "memory", "5"]


# Text for the terminal's clipboard


def test_a_row_is_tab_separated_plain_values():
    row = "14.6\t292789300\t472\t620316.3\tncclKernel_AllReduce(ncclDevComm *, unsigned long)"
    assert row_for_clipboard(COLUMNS, FEW.rows[0]) == row


def test_a_pasted_row_stays_one_row_and_does_nothing():
    row = (None, 1, 1, None, "a\tb\nrm -rf ~\r\n\x1b[201~")
    assert row_for_clipboard(COLUMNS, row) == "\t1\t1\t\ta␉b␊rm -rf ~␍␊␛[201~"
