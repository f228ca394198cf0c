"""The rows of a selection: the same in SQL, in memory, and by a plain reading of the rules."""

import re
import warnings
from contextlib import closing
from itertools import product

import pytest
import sqlalchemy as sa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from synthetic import ExportWriter
from synthetic.demo import CaptureSession as Capture

from nsystui.base.errors import UsageError
from nsystui.base.resources import Limits
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.exports.canonical import BY_NAME
from nsystui.questions.queries.conditions import matches, of_reports, of_tasks, starts_within, where
from nsystui.store import tables
from nsystui.store.database import connect, engine_of
from nsystui.store.session import Session
from nsystui.store.tables import LEAST_OFFSET, MOST_OFFSET
from nsystui.store.views import Rows, make_view

RANGES = {
    "before": (0, 100), "touching the start": (100, 200), "across the start": (150, 250), "from the start": (200, 230),
    "inside": (220, 240), "an instant at the start": (200, 200), "an instant inside": (250, 250),
    "the same": (200, 300), "across it": (100, 400), "across the end": (290, 310), "touching the end": (300, 400),
    "an instant at the end": (300, 300), "after": (310, 400), "open before": (50, None), "open inside": (250, None),
    "open at the end": (300, None),
}  # fmt: skip
MARKS = {"mark before": 199, "mark at the start": 200, "mark at the last moment": 299, "mark at the end": 300}


def overlaps(start: int, end: int | None, window: tuple[int, int]) -> bool:
    """Return whether a range overlaps a window: it begins before its end, and ends after its start or begins in it."""
    low, high = window
    return start < high and (start >= low or end is None or end > low)


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    """Yield two reports with the ranges ``RANGES``, the second recorded 1,000 ns later."""
    place = tmp_path_factory.mktemp("where")
    with closing(Session()) as session:
        for number, delay in enumerate((0, 1_000)):
            path = place / f"rank{number}.sqlite"
            with ExportWriter(path, session=Capture(utc_epoch_ns=1_780_000_000_000_000_000 + delay)) as export:
                process = export.process(5_000 + number)
                main = export.thread(process, 5_000 + number, "main")
                for name, (start, end) in RANGES.items():
                    export.nvtx_range(main, start, end, name)
                for name, time in MARKS.items():
                    export.nvtx_mark(main, time, name)
                export.gpu_metric_names(0, ("SMs Active",))
                for time in MARKS.values():
                    export.gpu_metric(0, time, (50,))
                for device, stream in product((0, 1), (7, 8)):
                    export.kernel(process, device, stream, 220, 230, name=f"d{device} s{stream}", correlation_id=None)
            session.add(path)
        yield session


def names(session: Session, table: sa.Table, selection: Selection) -> set[tuple[int, str]]:
    conditions = where(table, selection, table.c.name)
    return set(session.rows(sa.select(table.c.report, table.c.name).where(*conditions)))


class TestWindow:
    @pytest.mark.campaign
    @settings(max_examples=40)
    @given(low=st.integers(-50, 450), length=st.integers(0, 300))
    @example(200, 100)
    @example(200, 1)
    @example(250, 0)
    @example(200, 0)
    @example(300, 0)
    @example(0, 1)
    @example(0, 10**6)
    def test_what_overlaps_it_is_in_it(self, shifted, low, length):
        found = names(shifted, tables.nvtx_ranges, Selection(window=Window(low, low + length)))
        expected = {name for name, (start, end) in RANGES.items() if overlaps(start, end, (low, low + length))}
        assert {name for report, name in found if report == 0} == expected

    def test_a_moment_belongs_to_the_window_that_it_lies_in(self, shifted):
        found = names(shifted, tables.nvtx_marks, Selection(window=Window(200, 300)))
        assert found == {(0, "mark at the start"), (0, "mark at the last moment")}

        table, selection = tables.gpu_metrics, Selection(window=Window(200, 300))
        found = shifted.rows(sa.select(table.c.report, table.c.time).where(*where(table, selection)))
        assert sorted(found) == [(0, 200), (0, 299)]

    def test_it_is_a_span_of_job_time(self, shifted):
        later = Selection(window=Window(1_200, 1_300))
        assert names(shifted, tables.nvtx_marks, later) == {(1, "mark at the start"), (1, "mark at the last moment")}
        open_ones = {name for report, name in names(shifted, tables.nvtx_ranges, later) if report == 0}
        assert open_ones == {"open before", "open inside", "open at the end"}
        with pytest.raises(UsageError, match="ends"):
            Window(2, 1)


class TestPlaces:
    def test_tasks(self, shifted):
        first, second = sorted(shifted.rows(sa.select(tables.processes.c.report, tables.processes.c.process)))
        only = Selection(tasks=frozenset({Task(*second)}))
        assert {report for report, _ in names(shifted, tables.nvtx_ranges, only)} == {1}
        both = Selection(tasks=frozenset({Task(*first), Task(*second)}))
        assert names(shifted, tables.nvtx_ranges, both) == names(shifted, tables.nvtx_ranges, Selection())
        assert names(shifted, tables.nvtx_ranges, Selection(tasks=frozenset({Task(first[0], second[1])}))) == set()

    @pytest.mark.campaign
    @settings(max_examples=60)
    @given(tasks=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 11))))
    @example({(1, 1)})
    @example({(report, 7) for report in range(1, 5)})
    @example({(2, process) for process in range(12)} | {(5, 3)})
    def test_of_any_tasks_and_reports_the_rows_are_found(self, shifted, tasks):
        every = set(product(range(6), range(12)))
        columns = (sa.column(key, sa.BigInteger) for key in ("report", "process"))
        table = sa.values(*columns, name="rows").data(sorted(every)).alias("rows")
        wanted = frozenset(Task(*one) for one in tasks)
        assert set(shifted.rows(sa.select(table).where(of_tasks(table, wanted)))) == tasks
        reports = {report for report, _ in tasks}
        of_these = {one for one in every if one[0] in reports}
        assert set(shifted.rows(sa.select(table).where(of_reports(table.c.report, reports)))) == of_these

    def test_no_task_is_not_every_task(self, shifted):
        assert names(shifted, tables.nvtx_ranges, Selection(tasks=frozenset())) == set()
        assert names(shifted, tables.kernels, Selection(devices=frozenset())) == set()
        assert names(shifted, tables.kernels, Selection(streams=frozenset())) == set()

    def test_devices_and_streams(self, shifted):
        def kernels(**fields: frozenset[int]) -> set[str]:
            return {name for _, name in names(shifted, tables.kernels, Selection(**fields))}

        assert kernels(devices=frozenset({1})) == {"d1 s7", "d1 s8"}
        assert kernels(streams=frozenset({7, 99})) == {"d0 s7", "d1 s7"}
        assert kernels(devices=frozenset({0}), streams=frozenset({8})) == {"d0 s8"}

    def test_a_table_without_the_column_is_not_filtered_by_it(self, shifted):
        selection = Selection(devices=frozenset({1}), streams=frozenset({7}))
        assert names(shifted, tables.nvtx_marks, selection) == names(shifted, tables.nvtx_marks, Selection())

    def test_everything_is_no_condition(self):
        assert all(where(table, Selection()) == [] for table in tables.METADATA.tables.values())
        assert Selection().is_everything
        assert not Selection(tasks=frozenset()).is_everything


class TestFilterInMemory:
    @pytest.mark.parametrize(("text", "passing", "failing"), [
        ("gemm", ["ampere_sgemm_128x64", "SGEMM", "gemm"], ["gem", ""]),
        ("GEMM", ["SGEMM"], ["sgemm", "Gemm"]),
        ("Gemm", ["Gemm<float>"], ["gemm", "GEMM"]),
        ("!nccl", ["sgemm", ""], ["ncclDevKernel", "NCCL"]),
        ("!NCCL", ["ncclDevKernel"], ["xNCCLx"]),
        ("/^nccl.*Ring$/", ["nccl_Ring"], ["nccl_ring", "xnccl_Ring"]),
        ("/^nccl/", ["ncclDevKernel", "NCCL"], ["xnccl"]),
        ("!/^nccl/", ["xnccl"], ["NCCL"]),
        ("re:a|b", ["xbx", "A"], ["c"]),
        ("!re:^$", ["x"], [""]),
        (r"/nccl\S+_LL/", ["ncclX_LL"], ["nccl_", "ncclX_ll"]),
        (r"/nccl\S\D/", ["NCCLxy"], ["nccl x"]),
        ("a/b", ["A/B"], ["ab"]),
        ("/a", ["x/a"], ["a"]),
        ("//", ["x//y"], ["x/y"]),
        ("re", ["re:x", "more"], ["r"]),
        ("[x", ["a[X"], ["x"]),
        ("a.b", ["A.B"], ["axb"]),
        ("größe", ["GRÖSSE GRÖßE"], ["grosse"]),
        ("i", ["İ", "I"], ["ı"]),
        ("σ", ["ΑΣ", "ΣΑ"], ["ς"]),
        ("%", ["100 %"], ["100"]),
        ("_", ["a_b"], ["ab"]),
        ("!", [], ["", "x"]),
    ])  # fmt: skip
    def test_what_passes(self, text, passing, failing):
        wanted = NameFilter(text)
        assert [name for name in passing if not wanted.matches(name)] == []
        assert [name for name in failing if wanted.matches(name)] == []

    @pytest.mark.parametrize("text", ["/(/", "re:[", "!/*x/", "re:a{2,1}", r"/(?P<x>a)(?P<x>b)/", "re:\\"])
    def test_what_is_no_regular_expression_is_said(self, text):
        with pytest.raises(UsageError, match=re.escape(repr(text))):
            NameFilter(text)

    def test_empty_odd_and_broken_texts(self):
        assert Selection().with_name("") == Selection().with_name(None) == Selection()
        with warnings.catch_warnings():  # Python must not write warnings over the screen
            warnings.simplefilter("error")
            NameFilter("/[[a]--[b]]/").matches("x")


class TestFilterInSql:
    def passes(self, session: Session, wanted: NameFilter, names: list[str | None]) -> list[bool]:
        column = sa.cast(sa.func.unnest(sa.literal(names, sa.ARRAY(sa.Text))), sa.Text)
        rows = sa.select(column.label("name")).subquery()
        return [bool(found) for (found,) in session.rows(sa.select(matches(rows.c.name, wanted)))]

    TEXT = st.text(st.sampled_from("aAbBzZ _.%*?!:/\\[](){}'\"ßẞİıſKσςΣäÄéÉжЖ内😀\n"), max_size=8)

    @pytest.mark.campaign
    @settings(max_examples=120)
    @given(text=TEXT, names=st.lists(TEXT, max_size=5))
    @example(text="σ", names=["ΑΣ"])
    @example(text="i̇", names=["İ"])
    @example(text="!'", names=["it's", ""])
    def test_substrings_match_the_same_names_as_in_memory(self, shifted, text, names):
        try:
            wanted = NameFilter(text)
        except UsageError:
            return
        if wanted.is_regex:
            return
        assert self.passes(shifted, wanted, [*names, None]) == [wanted.matches(name or "") for name in [*names, None]]

    PATTERN = st.lists(
        st.sampled_from(["a", "B", "z", ".", ".*", "a+", "b?", "[ab]", "[^a]", "(a|b)", "^", r"\.", r"\d", r"\S",
                         "x{2}"]), min_size=1, max_size=6,
    ).map("".join)  # fmt: skip

    @pytest.mark.campaign
    @settings(max_examples=60)
    @given(
        pattern=PATTERN,
        inverse=st.booleans(),
        names=st.lists(st.text(st.sampled_from("aAbBzZx1.äÄ\n"), max_size=8), max_size=5),
    )
    def test_regular_expressions_match_the_same_names_as_in_memory(self, shifted, pattern, inverse, names):
        wanted = NameFilter(("!" if inverse else "") + "re:" + pattern)
        assert self.passes(shifted, wanted, names) == [wanted.matches(name) for name in names]

    @pytest.mark.parametrize("text", ["/a(?=b)/", "/(?<!x)y/", r"/(a)\1/", "re:a{5000}", "!/(?!nccl)/"])
    def test_what_only_python_knows_is_said_and_not_a_failed_query(self, shifted, text):
        wanted = NameFilter(text)
        with pytest.raises(UsageError, match=re.escape(repr(text))) as error:
            names(shifted, tables.kernels, Selection(name=wanted))
        assert len(str(error.value).splitlines()) == 1

    def test_a_filter_is_bound_and_not_written_into_the_query(self, shifted):
        assert names(shifted, tables.kernels, Selection(name=NameFilter("' OR ''='"))) == set()
        assert names(shifted, tables.kernels, Selection(name=NameFilter("/' OR ''='/"))) == set()

    def test_it_applies_to_the_given_name_only(self, shifted):
        table = tables.kernels
        assert where(table, Selection(name=NameFilter("d1"))) == []
        assert {name for _, name in names(shifted, table, Selection(name=NameFilter("d1")))} == {"d1 s7", "d1 s8"}


def test_duckdb_takes_case_apart_as_python_does():
    """``NameFilter.matches`` relies on this for every letter, except a Turkish letter."""
    import duckdb  # not at the top: hypothesis keeps the module, and DuckDB complains of what outlives Python

    letters = [chr(code) for code in range(1, 0x11000) if not 0xD800 <= code < 0xE000]
    found = duckdb.execute("SELECT lower(x) FROM (SELECT unnest($1) AS x)", [letters]).fetchall()
    assert [letter for letter, (lower,) in zip(letters, found, strict=True) if lower != letter.lower()] == ["İ"]


STEP = Window(50_000, 50_010, step=1, spans=((0, 50_000, 50_010),))


@pytest.mark.parametrize(
    ("table", "conditions"),
    [
        (tables.kernels, where(tables.kernels, Selection(window=Window(50_000, 50_010)))),
        (tables.kernels, where(tables.kernels, Selection(window=STEP))),
        (tables.kernels, starts_within(tables.kernels, 50_000, 50_010)),
        (tables.gpu_metrics, where(tables.gpu_metrics, Selection(window=Window(50_000, 50_010)))),
    ],
)
def test_a_time_window_reads_few_row_groups(tmp_path, table, conditions):
    """Reading all of ten million rows for each window would take most of a triage."""
    file = str(tmp_path / "rows.parquet")
    rows = 'SELECT range AS time, range AS start, range + 1 AS "end" FROM range(100_000)'
    with closing(connect(Limits())) as database:
        database.execute(f"COPY ({rows}) TO $1 (FORMAT parquet, ROW_GROUP_SIZE 2048)", [file])
        make_view(database, BY_NAME[table.name], [Rows(0, 7, (file,))])
        query = sa.select(sa.func.count()).select_from(table).where(*conditions)
        query = query.params({LEAST_OFFSET.key: 7, MOST_OFFSET.key: 7})
        text = str(query.compile(dialect=engine_of(database.cursor).dialect, compile_kwargs={"literal_binds": True}))
        assert database.execute(text).fetchall() == [(10,)]
        (plan,) = database.execute(f"EXPLAIN ANALYZE {text}").fetchall()
        scanned = re.search(r"Row Groups Scanned: (\d+) ?/ ?49", str(plan))
        assert scanned is not None and int(scanned[1]) <= 2, plan
