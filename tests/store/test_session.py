"""A session: many reports behind one SQL, in the order of the command line, on one clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
from synthetic import ExportWriter, empty_export, two_process_export

from nsystui.base.errors import ExportError
from nsystui.exports.demo import Session as Capture
from nsystui.store import tables
from nsystui.store.cache import Cache
from nsystui.store.database import Limits
from nsystui.store.session import Computation, Session

SECOND = 10**9
START = 1_780_000_000 * SECOND


def export(path: Path, start: int | None = START, length: int = SECOND, kernels: int = 3) -> Path:
    """``kernels`` kernels of one process, the last of which ends at ``length`` ns; the session begins at ``start``."""
    with ExportWriter(path, session=Capture(utc_epoch_ns=START if start is None else start)) as writer:
        process = writer.process(5_000)
        for number in range(kernels):
            end = length - 10 * (kernels - 1 - number)
            writer.kernel(process, 0, 7, end - 5, end, name=f"kernel {path.stem}", correlation_id=number)
    if start is None:
        from support import edit

        edit(path, "DELETE FROM TARGET_INFO_SESSION_START_TIME")
    return path


def offsets(session: Session) -> list[int]:
    return [report.clock_offset for report in session.reports]


class TestOrder:
    def test_reports_added_out_of_order_stand_in_order(self, tmp_path, session):
        paths = [export(tmp_path / f"{name}.sqlite", kernels=number + 1) for number, name in enumerate("abcd")]
        for number in (2, 0, 3, 1):
            session.add(paths[number], index=number)
        assert [report.name for report in session.reports] == ["a", "b", "c", "d"]
        assert [report.index for report in session.reports] == [0, 1, 2, 3]
        table = tables.kernels.c
        counts = sa.select(table.report, table.name, sa.func.count()).group_by(table.report, table.name)
        assert session.rows(counts.order_by(table.report)) == [
            (number, f"kernel {name}", number + 1) for number, name in enumerate("abcd")
        ]

    def test_without_numbers_they_count_up(self, tmp_path, session):
        for name in "ab":
            session.add(export(tmp_path / f"{name}.sqlite"))
        assert [report.index for report in session.reports] == [0, 1]

    def test_a_report_that_fails_takes_no_number(self, tmp_path, session):
        with pytest.raises(ExportError):
            session.add(tmp_path / "missing.sqlite")
        assert session.add(export(tmp_path / "a.sqlite")).index == 0

    @pytest.mark.parametrize("cached", [False, True])
    def test_reports_added_by_threads_without_numbers_get_one_each(self, tmp_path, cached):
        paths = [export(tmp_path / f"rank{number}.sqlite", kernels=number + 1) for number in range(6)]
        cache = Cache(tmp_path / "cache") if cached else None
        with closing(Session(cache=cache, warn=pytest.fail)) as session, ThreadPoolExecutor(6) as pool:
            list(pool.map(session.add, paths))
            assert [report.index for report in session.reports] == list(range(6))
            table = tables.kernels.c
            found = session.rows(sa.select(table.report, sa.func.count()).group_by(table.report))
            assert dict(found) == {report.index: int(report.name[4:]) + 1 for report in session.reports}


class TestViews:
    def test_a_report_joins_what_was_asked_before(self, tmp_path, session):
        count = sa.select(sa.func.count()).select_from(tables.kernels)
        assert session.scalar(count) == 0
        versions = [session.version]
        for number, name in enumerate("abc"):
            session.add(export(tmp_path / f"{name}.sqlite"))
            assert session.scalar(count) == 3 * (number + 1)
            versions.append(session.version)
        assert versions == sorted(set(versions))

    def test_every_table_can_be_asked_when_nothing_is_there(self, session, tmp_path):
        session.add(empty_export(tmp_path / "empty.sqlite"))
        for table in tables.METADATA.tables.values():
            assert session.rows(sa.select(table)) == []
            assert list(session.frame(sa.select(table)).columns) == [column.name for column in table.c]
            assert session.count(table) == 0

    def test_hundreds_of_reports_do_not_nest_too_deep(self, tmp_path):
        path = export(tmp_path / "a.sqlite")
        with closing(Session(cache=Cache(tmp_path / "cache"))) as session:
            for number in range(130):
                session.add(path, index=number)
            assert session.scalar(sa.select(sa.func.count()).select_from(tables.kernels)) == 390

    def test_tables_inside_of_subqueries_are_found(self, tmp_path, session):
        session.add(two_process_export(tmp_path / "two.sqlite"))
        kernels, calls = tables.kernels, tables.api_calls
        inner = sa.select(calls.c.correlation_id).where(calls.c.process == kernels.c.process).scalar_subquery()
        exists = sa.select(sa.func.count()).select_from(kernels).where(kernels.c.correlation_id.in_(inner))
        assert session.scalar(exists) == 200
        cte = sa.select(tables.devices.c.gpu).cte("used")
        assert sorted(session.rows(sa.select(cte.c.gpu))) == [(0,), (1,)]

    def test_many_threads_may_ask_while_reports_join(self, tmp_path):
        paths = [export(tmp_path / f"{number}.sqlite") for number in range(12)]
        with closing(Session()) as session:
            done = threading.Event()
            problems: list[BaseException] = []

            def ask() -> None:
                query = sa.select(tables.kernels.c.report, sa.func.count()).group_by(tables.kernels.c.report)
                while not done.is_set():
                    try:
                        assert set(dict(session.rows(query)).values()) <= {3}
                        session.frame(sa.select(tables.kernels.c.start))
                    except BaseException as error:
                        problems.append(error)
                        return

            threads = [threading.Thread(target=ask) for _ in range(3)]
            for thread in threads:
                thread.start()
            for path in paths:
                session.add(path)
            done.set()
            for thread in threads:
                thread.join()
        assert problems == []


class TestClock:
    def test_reports_of_one_job_share_a_clock(self, tmp_path, session):
        for name, delay in (("a", 7), ("b", 0), ("c", 1_000_000_007)):
            session.add(export(tmp_path / f"{name}.sqlite", START + delay))
        assert offsets(session) == [7, 0, 1_000_000_007]
        table = tables.kernels.c
        ends = sa.select(table.report, sa.func.max(table.end + table.clock_offset)).group_by(table.report)
        assert dict(session.rows(ends)) == {0: SECOND + 7, 1: SECOND, 2: 2 * SECOND + 7}

    def test_an_earlier_report_moves_those_that_are_there(self, tmp_path, session):
        session.add(export(tmp_path / "a.sqlite", START + 500))
        assert offsets(session) == [0]
        session.add(export(tmp_path / "b.sqlite", START))
        assert offsets(session) == [500, 0]
        assert session.scalar(sa.select(sa.func.max(tables.kernels.c.clock_offset))) == 500

    def test_reports_of_different_jobs_keep_their_own_clocks(self, tmp_path, session):
        session.add(export(tmp_path / "monday.sqlite", START))
        session.add(export(tmp_path / "tuesday.sqlite", START + 86_400 * SECOND))
        assert offsets(session) == [0, 0]

    def test_a_long_session_may_begin_late(self, tmp_path, session):
        hour = 3_600 * SECOND
        session.add(export(tmp_path / "a.sqlite", START, length=2 * hour))
        session.add(export(tmp_path / "b.sqlite", START + hour, length=hour))
        assert offsets(session) == [0, hour]

    def test_a_report_that_does_not_say_when_it_began_keeps_its_clock(self, tmp_path, session):
        session.add(export(tmp_path / "a.sqlite", START + 100))
        session.add(export(tmp_path / "b.sqlite", None))
        session.add(export(tmp_path / "c.sqlite", START))
        assert offsets(session) == [100, 0, 0]

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

    def test_integers_stay_exact_where_some_are_missing(self, asked):
        table = tables.nvtx_ranges.c
        frame = asked.frame(sa.select(table.start, table.end, table.domain, table.name).order_by(table.start))
        assert frame["start"].tolist() == [5, 2**53]
        assert frame["end"].tolist() == [pd.NA, 2**53 + 1]
        assert frame["end"].dtype == "Int64"
        assert frame["name"].tolist() == ["open", "far"]

    def test_text_that_is_missing_is_none(self, asked):
        domain = sa.func.nullif(tables.nvtx_ranges.c.name, "far").label("name")
        frame = asked.frame(sa.select(domain).order_by(tables.nvtx_ranges.c.start))
        assert [None if pd.isna(value) else value for value in frame["name"]] == ["open", None]

    def test_floats_that_are_missing_are_nan(self, asked):
        half = sa.cast(tables.nvtx_ranges.c.end, sa.Double).label("half")
        assert np.isnan(asked.frame(sa.select(half).order_by(tables.nvtx_ranges.c.start))["half"][0])

    def test_arrays_mask_what_is_missing(self, asked):
        ends = asked.arrays(sa.select(tables.nvtx_ranges.c.end).order_by(tables.nvtx_ranges.c.start))["end"]
        assert np.ma.getmaskarray(ends).tolist() == [True, False]

    def test_values_of_a_query_are_bound_and_not_written_into_it(self, asked):
        name = "x' OR 1=1 --"
        for value in (name, "far"):
            query = sa.select(tables.nvtx_ranges.c.name).where(tables.nvtx_ranges.c.name == value)
            assert asked.rows(query) == ([("far",)] if value == "far" else [])
            assert len(asked.frame(query)) == len(asked.rows(query))

    def test_a_scalar_of_nothing_is_none(self, asked):
        assert asked.scalar(sa.select(tables.kernels.c.start)) is None


def test_a_session_touches_neither_network_nor_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "elsewhere"
    place.mkdir()
    path = export(place / "a.sqlite")
    with closing(Session(limits=Limits(threads=1, memory=256 << 20))) as session:
        session.add(path)
        settings = "temp_directory, autoinstall_known_extensions, autoload_known_extensions, threads"
        (found,) = session.database.sql(
            "SELECT " + ", ".join(f"current_setting('{name}')" for name in settings.split(", "))
        ).fetchall()
    assert found[1:] == (False, False, 1)
    assert not found[0]
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_every_query_finds_the_metadata_of_files_that_another_has_read(session: Session) -> None:
    with session.database.cursor() as cursor:
        assert cursor.execute("SELECT current_setting('parquet_metadata_cache')").fetchall() == [(True,)]


class TestPart:
    """Questions about some of many reports."""

    @pytest.fixture(params=["in memory", "packed", "columns"])
    def session(self, request, tmp_path) -> Iterator[Session]:
        cache = None if request.param == "in memory" else Cache(tmp_path / "cache")
        with closing(Session(cache=cache)) as session:
            for number in range(5):
                path = export(tmp_path / f"rank{number}.sqlite", START + number * SECOND, kernels=number + 1)
                session.add(path, whole=request.param != "columns")
            yield session

    def test_it_has_the_rows_of_its_reports_on_the_same_clock(self, session):
        columns = tables.kernels.c
        query = sa.select(columns.report, columns.start + columns.clock_offset).order_by(columns.report, columns.start)
        every = session.rows(query.where(columns.report.in_([1, 3])))
        part = session.part([1, 3])
        assert part.rows(query.where(columns.report.in_([1, 3]))) == every
        assert part.arrays(query.where(columns.report == 3))["report"].tolist() == [3] * 4
        assert session.rows(sa.select(sa.func.count()).select_from(tables.kernels)) == [(15,)]

    def test_a_report_that_joins_is_no_part_of_it(self, session, tmp_path):
        part = session.part([0, 1])
        session.add(export(tmp_path / "rank9.sqlite", kernels=7))
        columns = tables.kernels.c
        count = sa.select(sa.func.count()).select_from(tables.kernels).where(columns.report.in_([0, 1]))
        assert part.scalar(count) == session.scalar(count) == 3

    def test_it_may_have_parts_itself(self, tmp_path):
        with closing(Session()) as session:
            for number in range(10):
                session.add(export(tmp_path / f"rank{number}.sqlite", START + number * SECOND, kernels=number + 1))
            half = session.part(range(5))
            count = sa.select(sa.func.count()).select_from(tables.kernels)
            assert [half.part([1]).scalar(count), half.part([2]).scalar(count), half.scalar(count)] == [2, 3, 15]

    def test_a_part_of_a_session_that_was_asked_nothing_before(self, tmp_path):
        paths = [export(tmp_path / f"{number}.sqlite", kernels=number + 1) for number in range(10)]
        for _ in range(2):  # the second time they are packed
            with closing(Session(cache=Cache(tmp_path / "cache"), warn=pytest.fail)) as session:
                for path in paths:
                    session.add(path)
                assert session.part([3]).scalar(sa.select(sa.func.count()).select_from(tables.kernels)) == 4

    def test_it_tells_nothing_of_its_own(self, session):
        told = []
        session.tell = told.append
        session.part([0, 1]).tell(Computation("a part of it", 1, 2))
        assert told == [] or session.part([0, 1]) is session

    def test_the_same_part_is_made_once_until_the_reports_change(self, session, tmp_path):
        part = session.part([0, 1])
        assert session.part([0, 1]) is part
        session.add(export(tmp_path / "rank9.sqlite"))
        again = session.part([0, 1])
        assert again is session or again is not part
