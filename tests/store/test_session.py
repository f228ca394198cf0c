"""A session: one SQL over many reports, hundreds too, in the order of the command line, on one clock."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
from support import edit
from synthetic import ExportWriter, empty_export
from synthetic.demo import CaptureSession as Capture

from nsystui.base.errors import ExportError
from nsystui.base.resources import Limits
from nsystui.exports import canonical
from nsystui.store import tables
from nsystui.store.database import connect
from nsystui.store.session import Computation, Session
from nsystui.store.views import Rows, make_view

SECOND = 10**9
START = 1_780_000_000 * SECOND
COUNT = sa.select(sa.func.count()).select_from(tables.kernels)


def export(path: Path, start: int | None = START, length: int = SECOND, kernels: int = 3) -> Path:
    """Write ``kernels`` kernels of a process, the last ends at ``length`` ns; the session begins at ``start``."""
    with ExportWriter(path, session=Capture(utc_epoch_ns=START if start is None else start)) as writer:
        process = writer.process(5_000)
        for number in range(kernels):
            end = length - 10 * (kernels - 1 - number)
            writer.kernel(process, 0, 7, end - 5, end, name=f"kernel {path.stem}", correlation_id=number)
    if start is None:
        edit(path, "DELETE FROM TARGET_INFO_SESSION_START_TIME")
    return path


def offsets(session: Session) -> list[int]:
    return [report.clock_offset for report in session.reports]


class TestOrder:
    def test_a_report_that_fails_takes_no_number(self, tmp_path, session):
        with pytest.raises(ExportError):
            session.add(tmp_path / "missing.sqlite")
        assert session.add(export(tmp_path / "a.sqlite")).index == 0

    @pytest.mark.campaign
    def test_reports_added_by_threads_without_numbers_get_one_each(self, tmp_path, both):
        paths = [export(tmp_path / f"rank{number}.sqlite", kernels=number + 1) for number in range(6)]
        session, table = both(), tables.kernels.c
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(session.add, paths))
        assert [report.index for report in session.reports] == list(range(6))
        found = session.rows(sa.select(table.report, sa.func.count()).group_by(table.report))
        assert dict(found) == {report.index: int(report.name[4:]) + 1 for report in session.reports}


class TestViews:
    @pytest.mark.campaign
    def test_a_report_joins_what_was_asked_before(self, tmp_path, session):
        assert session.scalar(COUNT) == 0
        versions = [session.version]
        for number, name in enumerate("abc"):
            session.add(export(tmp_path / f"{name}.sqlite"))
            assert session.scalar(COUNT) == 3 * (number + 1)
            versions.append(session.version)
        assert versions == sorted(set(versions))

    @pytest.mark.campaign
    def test_every_table_can_be_asked_when_nothing_is_there(self, session, tmp_path):
        session.add(empty_export(tmp_path / "empty.sqlite"))
        for table in tables.METADATA.tables.values():
            assert session.rows(sa.select(table)) == []
            assert list(session.frame(sa.select(table)).columns) == [column.name for column in table.c]
            assert session.count(table) == 0

    @pytest.mark.campaign
    def test_hundreds_of_reports_do_not_nest_too_deep(self, tmp_path, cache):
        path = export(tmp_path / "a.sqlite")
        with closing(Session(cache=cache)) as session:
            for number in range(130):
                session.add(path, index=number)
            assert session.scalar(COUNT) == 390

    def test_tables_inside_of_subqueries_are_found(self, original, session):
        session.add(original)
        kernels, calls = tables.kernels, tables.api_calls
        inner = sa.select(calls.c.correlation_id).where(calls.c.process == kernels.c.process).scalar_subquery()
        exists = sa.select(sa.func.count()).select_from(kernels).where(kernels.c.correlation_id.in_(inner))
        assert session.scalar(exists) == 200
        cte = sa.select(tables.devices.c.gpu).cte("used")
        assert sorted(session.rows(sa.select(cte.c.gpu))) == [(0,), (1,)]

    @pytest.mark.campaign
    @pytest.mark.parametrize("reports", [4, 12])
    def test_many_threads_may_ask_while_reports_join(self, tmp_path, reports):
        paths = [export(tmp_path / f"{number}.sqlite") for number in range(reports)]
        done = threading.Event()
        query = sa.select(tables.kernels.c.report, sa.func.count()).group_by(tables.kernels.c.report)

        def ask(_: int) -> None:
            while not done.is_set():
                assert set(dict(session.rows(query)).values()) <= {3}
                session.frame(sa.select(tables.kernels.c.start))

        with closing(Session()) as session, ThreadPoolExecutor(3) as pool:
            asking = pool.map(ask, range(3))
            try:
                for path in paths:
                    session.add(path)
            finally:
                done.set()
            list(asking)  # raises a thread's exception


class TestClock:
    @pytest.mark.campaign
    def test_reports_of_one_job_share_a_clock(self, tmp_path, session):
        for name, delay in (("a", 7), ("b", 0), ("c", 1_000_000_007)):
            session.add(export(tmp_path / f"{name}.sqlite", START + delay))
        assert offsets(session) == [7, 0, 1_000_000_007]
        table = tables.kernels.c
        ends = sa.select(table.report, sa.func.max(table.end + table.clock_offset)).group_by(table.report)
        assert dict(session.rows(ends)) == {0: SECOND + 7, 1: SECOND, 2: 2 * SECOND + 7}

    @pytest.mark.campaign
    @pytest.mark.parametrize(("starts", "length", "expected"), [
        ((0, 86_400 * SECOND), SECOND, [0, 0]),  # two jobs: each has its own clock
        ((0, 3_600 * SECOND), 2 * 3_600 * SECOND, [0, 3_600 * SECOND]),  # a long session may begin late
        ((100, None, 0), SECOND, [100, 0, 0]),  # one report has no start time
    ])  # fmt: skip
    def test_reports_of_different_jobs_keep_their_own_clocks(self, tmp_path, session, starts, length, expected):
        for number, start in enumerate(starts):
            begin = None if start is None else START + start
            session.add(export(tmp_path / f"{number}.sqlite", begin, length=length))
        assert offsets(session) == expected

    @pytest.mark.campaign
    def test_an_earlier_report_moves_those_that_are_there(self, tmp_path, session):
        session.add(export(tmp_path / "a.sqlite", START + 500))
        assert offsets(session) == [0]
        session.add(export(tmp_path / "b.sqlite", START))
        assert offsets(session) == [500, 0]
        assert session.scalar(sa.select(sa.func.max(tables.kernels.c.clock_offset))) == 500

    def test_the_demo_is_aligned_to_its_earliest_rank(self, demo_session):
        starts = [report.metadata.session_start_utc for report in demo_session.reports]
        assert offsets(demo_session) == [start - min(starts) for start in starts]


class TestFrames:
    @pytest.fixture
    def asked(self, tmp_path, session) -> Iterator[Session]:
        with ExportWriter(tmp_path / "f.sqlite") as writer:
            main = writer.thread(writer.process(5_000), 5_000, "main")
            writer.nvtx_range(main, 2**53, 2**53 + 1, "far", registered=True)
            writer.nvtx_range(main, 5, None, "open")
        session.add(tmp_path / "f.sqlite")
        return session

    def test_what_is_missing_leaves_the_rest_exact(self, asked):
        table = tables.nvtx_ranges.c
        frame = asked.frame(sa.select(table.start, table.end, table.domain, table.name).order_by(table.start))
        assert frame["start"].tolist() == [5, 2**53]
        assert frame["end"].tolist() == [pd.NA, 2**53 + 1]
        assert frame["end"].dtype == "Int64"
        assert frame["name"].tolist() == ["open", "far"]
        name = sa.func.nullif(table.name, "far").label("name")
        frame = asked.frame(sa.select(name, sa.cast(table.end, sa.Double).label("half")).order_by(table.start))
        assert [None if pd.isna(value) else value for value in frame["name"]] == ["open", None]
        assert np.isnan(frame["half"][0])
        ends = asked.arrays(sa.select(table.end).order_by(table.start))["end"]
        assert np.ma.getmaskarray(ends).tolist() == [True, False]
        assert asked.scalar(sa.select(tables.kernels.c.start)) is None

    def test_values_of_a_query_are_bound_and_not_written_into_it(self, asked):
        for value in ("x' OR 1=1 --", "far"):
            query = sa.select(tables.nvtx_ranges.c.name).where(tables.nvtx_ranges.c.name == value)
            assert asked.rows(query) == ([("far",)] if value == "far" else [])
            assert len(asked.frame(query)) == len(asked.rows(query))


def test_a_session_touches_neither_network_nor_working_directory(tmp_path, original, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(Session(limits=Limits(threads=1, memory=256 << 20))) as session:
        session.add(original)
        settings = ("temp_directory", "autoinstall_known_extensions", "autoload_known_extensions", "threads")
        asked = ", ".join(f"current_setting('{name}')" for name in settings)
        ((directory, *found),) = session.database.sql(f"SELECT {asked}").fetchall()
    assert found == [False, False, 1]
    assert not directory
    assert list(tmp_path.iterdir()) == []


def test_every_query_finds_the_metadata_of_files_that_another_has_read(session):
    with session.database.cursor() as cursor:
        assert cursor.execute("SELECT current_setting('parquet_metadata_cache')").fetchall() == [(True,)]


class TestPart:
    @pytest.fixture(
        params=[*(pytest.param(name, marks=pytest.mark.campaign) for name in ("in memory", "packed")), "columns"]
    )
    def session(self, request, tmp_path, cache) -> Iterator[Session]:
        with closing(Session(cache=None if request.param == "in memory" else cache)) as session:
            for number in range(5):
                path = export(tmp_path / f"rank{number}.sqlite", START + number * SECOND, kernels=number + 1)
                session.add(path, whole=request.param != "columns")
            yield session

    @pytest.mark.campaign
    def test_it_has_the_rows_of_its_reports_on_the_same_clock_until_another_joins(self, session, tmp_path):
        columns = tables.kernels.c
        query = sa.select(columns.report, columns.start + columns.clock_offset).order_by(columns.report, columns.start)
        some = query.where(columns.report.in_([1, 3]))
        every = session.rows(some)
        part = session.part([1, 3])
        assert part.rows(some) == every
        assert part.arrays(query.where(columns.report == 3))["report"].tolist() == [3] * 4
        assert session.scalar(COUNT) == 15
        assert session.part([1, 3]) is part
        told = []
        session.tell = told.append
        part.tell(Computation("a part of it", 1, 2))
        assert told == [] or part is session
        session.add(export(tmp_path / "rank9.sqlite", kernels=7))
        count = COUNT.where(columns.report.in_([1, 3]))
        assert part.scalar(count) == session.scalar(count) == 6
        again = session.part([1, 3])
        assert again is session or again is not part

    @pytest.mark.campaign
    def test_it_may_have_parts_itself_whether_or_not_the_session_was_asked_before(self, tmp_path, cache):
        paths = [export(tmp_path / f"{count}.sqlite", START + count * SECOND, kernels=count) for count in range(1, 11)]
        for _ in range(2):  # the second time they are packed
            with closing(Session(cache=cache, warn=pytest.fail)) as session:
                for path in paths:
                    session.add(path)
                assert session.part([3]).scalar(COUNT) == 4
                half = session.part(range(5))
                assert [half.part([1]).scalar(COUNT), half.part([2]).scalar(COUNT), half.scalar(COUNT)] == [2, 3, 15]


def test_a_signal_ends_a_query_as_it_ends_all_else():
    """Otherwise it would look like a failure of that query alone, and the work would continue."""

    def interrupt(number, frame):
        raise KeyboardInterrupt(number)

    endless = sa.func.range(10**13).table_valued("range")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with closing(Session()) as session, pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            session.rows(sa.select(sa.func.sum(endless.c.range)))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.campaign
@pytest.mark.parametrize("reports", [0, 1, 64, 65, 130])
def test_a_view_has_the_rows_of_every_report_once(reports):
    with closing(connect(Limits())) as database:
        database.execute("CREATE TABLE rows AS SELECT range AS start FROM range(3)")
        for _ in range(2):  # made anew when a report joins
            make_view(database, canonical.KERNELS, [Rows(report, 0, table="rows") for report in range(reports)])
        found = database.cursor().execute("SELECT count(*), count(DISTINCT report) FROM kernels").fetchone()
        assert found == (3 * reports, reports)


def test_files_of_several_reports_are_one_reading(tmp_path):
    with closing(connect(Limits())) as database:
        files = [str(tmp_path / f"it's {number}.parquet") for number in range(4)]
        for number, file in enumerate(files):
            database.execute(f"COPY (SELECT {number} AS start, 'a' AS here) TO $1 (FORMAT parquet)", [file])
        first, second, third, last = files
        # The fourth is the same export again.
        some = ((0, 10, (first, second)), (2, -5, (third,)), (3, 7, (last,)), (4, 1 << 40, (first,)))
        rows = [Rows(*one, renamed=("name", "here")) for one in some]
        rows.append(Rows(5, 0, (last,), columns=frozenset({"start", "here"})))
        make_view(database, canonical.KERNELS, rows[:-1])
        found = database.execute("SELECT * FROM kernels").fetchall()
        assert found == [(0, 10, 0, "a"), (0, 10, 1, "a"), (2, -5, 2, "a"), (3, 7, 3, "a"), (4, 1 << 40, 0, "a")]
        assert database.execute("SELECT sql FROM duckdb_views WHERE NOT internal").fetchall()[0][0].count("scan(") == 2
        only = "SELECT start FROM kernels WHERE report = 2"
        assert database.execute(only).fetchall() == [(2,)]
        plan = str(database.execute(f"EXPLAIN ANALYZE {only}").fetchall())
        assert "Total Files Read: 1" in plan or "Scanning Files: 1/3" in plan, plan
        make_view(database, canonical.KERNELS, rows, ["start"])
        assert database.execute("SELECT * FROM kernels WHERE report > 3").fetchall() == [(4, 1 << 40, 0), (5, 0, 3)]
