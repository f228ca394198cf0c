"""Columns read on demand: only those that are asked for, and the same rows as a whole pack has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache as cache_of
from pathlib import Path

import pytest
import sqlalchemy as sa
from support import damage_rows, edit, real_exports
from synthetic import (
    all_tables_export,
    cpu_only_export,
    empty_export,
    hostile_names_export,
    instrumented_nccl_export,
    old_schema_export,
    open_ranges_export,
    payload_export,
    simulation_export,
    two_process_export,
    unified_memory_export,
)

from nsystui.base.errors import ExportError
from nsystui.base.selection import Selection
from nsystui.exports.demo import TrainingJob
from nsystui.exports.opening import ArrowReader
from nsystui.questions.job import Job
from nsystui.questions.kernels import kernel_summary
from nsystui.questions.question import Question
from nsystui.questions.stats import all_reports, report_of
from nsystui.store import on_demand, tables
from nsystui.store.cache import Cache, Partial
from nsystui.store.packing import Packer
from nsystui.store.session import Session
from nsystui.store.views import used_columns

KERNELS, CALLS = tables.kernels, tables.api_calls
NATIVE = "CUPTI_ACTIVITY_KIND_KERNEL"
MAKERS: tuple[Callable[[Path], Path], ...] = (
    all_tables_export,
    cpu_only_export,
    empty_export,
    hostile_names_export,
    instrumented_nccl_export,
    old_schema_export,
    open_ranges_export,
    payload_export,
    simulation_export,
    two_process_export,
    unified_memory_export,
)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("exports")
    job = TrainingJob(ranks=1, steps=2, layers=2).write(directory)
    return [*job, *(maker(directory / f"{maker.__name__}.sqlite") for maker in MAKERS)]


@pytest.fixture(scope="module")
def packed() -> Iterator[Callable[..., Session]]:
    """Opens exports whole, once for all tests: what the others are compared with."""
    with ExitStack() as sessions:

        @cache_of
        def add(*paths: Path) -> Session:
            session = sessions.enter_context(closing(Session()))
            for path in paths:
                session.add(path)
            return session

        yield add


@pytest.fixture(scope="module")
def of_packs(packed: Callable[[Path], Session]) -> Callable[[Path], dict[str, object]]:
    """The output of every report for a packed export, computed once."""

    @cache_of
    def ask(path: Path) -> dict[str, object]:
        return {report.name: answered(packed(path), report) for report in all_reports()}

    return ask


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return two_process_export(tmp_path / "rank0.sqlite")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries that went to SQLite by the reader."""
    queries: list[str] = []
    stream = ArrowReader.stream

    def spied(reader: ArrowReader, query: str) -> object:
        queries.append(query)
        return stream(reader, query)

    monkeypatch.setattr(ArrowReader, "stream", spied)
    return queries


@pytest.fixture(params=["memory", "cache"])
def partly(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Opens exports without packing them."""
    opened: list[Session] = []

    def add(*paths: Path) -> Session:
        cache = Cache(tmp_path / "cache") if request.param == "cache" else None
        opened.append(Session(cache=cache, warn=pytest.fail))
        for path in paths:
            opened[-1].add(path, whole=False)
        return opened[-1]

    yield add
    for session in opened:
        session.close()


def names(session: Session) -> list[str]:
    return sorted(name for (name,) in session.rows(sa.select(KERNELS.c.name)))


def answered(session: Session, report: Question) -> object:
    """The rows of a report without options, and what stands below them."""
    answer = report.ask(Job(session), Selection(), report_of(report.name)[1])
    return list(answer.page(0, 10_000)), answer.notes, answer.total


cached_in_campaign = pytest.mark.parametrize(
    "partly", ["memory", pytest.param("cache", marks=pytest.mark.campaign)], indirect=True
)
"""What takes long: always in memory, through a cache in campaigns."""


class TestSameAsPacked:
    @pytest.mark.campaign
    @cached_in_campaign
    def test_one_report_after_the_other(self, exports, partly, of_packs):
        """Of one export: that the columns of every export are the same is told row by row below."""
        self.ask_all(partly, of_packs, exports[0])

    @pytest.mark.campaign
    @pytest.mark.parametrize("partly", ["memory"], indirect=True)
    def test_of_more_exports_too(self, exports, partly, of_packs):
        self.ask_all(partly, of_packs, exports[1], *sorted(real_exports(), key=lambda real: real.stat().st_size)[:2])

    @staticmethod
    def ask_all(partly, of_packs, *paths: Path) -> None:
        for path in paths:
            with closing(partly(path)) as session:
                for report in all_reports():
                    assert answered(session, report) == of_packs(path)[report.name], (path.name, report.name)

    @pytest.mark.campaign
    @cached_in_campaign
    def test_a_report_needs_nothing_that_another_has_read(self, exports, partly, of_packs):
        for report in all_reports():
            with closing(partly(exports[0])) as session:
                assert answered(session, report) == of_packs(exports[0])[report.name], report.name

    @cached_in_campaign
    def test_every_row_of_every_table_and_the_facts(self, exports, partly, packed):
        whole = packed(*exports)
        with closing(partly(*exports)) as session:
            for table in tables.METADATA.tables.values():
                expected, found = (sorted(each.rows(sa.select(table)), key=repr) for each in (whole, session))
                assert found == expected, table.name
            for one, other in zip(whole.reports, session.reports, strict=True):
                expected, found = one.packed, other.packed
                assert (found.first_event, found.last_event) == (expected.first_event, expected.last_event), one.name
                assert found.metadata == expected.metadata, one.name
                assert dict(found.counts) == expected.counts, one.name

    def test_chunks_of_any_size(self, export, partly, monkeypatch):
        query = sa.select(CALLS.c.row, CALLS.c.name, CALLS.c.start)
        with closing(Session()) as whole:
            whole.add(export)
            expected = whole.rows(query.order_by(CALLS.c.row))
        monkeypatch.setattr(on_demand, "CHUNK_ROWS", 7)
        assert partly(export).rows(query.order_by(CALLS.c.row)) == expected

    @pytest.mark.parametrize(
        "change",
        [
            "SET demangledName = 987654321 WHERE rowid % 3 = 1",  # those have the short name
            'SET "start" = "start" - 500000 * (rowid % 5)',  # no longer in the order of time
            "SET rowid = rowid + 3000000000 WHERE rowid > 50",  # a gap
        ],
    )
    def test_unusual_rows(self, export, partly, change):
        edit(export, f"UPDATE {NATIVE} {change}")
        query = sa.select(KERNELS.c.start, KERNELS.c.name)
        with closing(Session()) as whole:
            whole.add(export)
            assert sorted(partly(export).rows(query)) == sorted(whole.rows(query))
            assert whole.count(KERNELS) == 200

    def test_beside_reports_that_are_packed(self, tmp_path, partly):
        first, second = (two_process_export(tmp_path / f"{name}.sqlite") for name in "ab")
        session = partly(first)
        session.add(second, whole=True)
        query = sa.select(KERNELS.c.report, sa.func.count()).group_by(KERNELS.c.report).order_by(KERNELS.c.report)
        assert session.rows(query) == [(0, 200), (1, 200)]
        assert len(session.rows(sa.select(KERNELS))) == 400


class TestOnlyWhatIsAsked:
    def test_other_tables_and_columns_stay_unread_and_nothing_is_read_twice(self, export, partly, read):
        session = partly(export)
        assert session.reports[0].has(KERNELS)
        assert read == []
        session.rows(sa.select(KERNELS.c.name, KERNELS.c.end - KERNELS.c.start))
        scans = [query for query in read if "StringIds" not in query]
        assert scans
        assert all(NATIVE in query for query in scans)
        for column in ("gridX", "deviceId", "globalPid", "shortName", '"mangledName"'):
            assert not any(column in query for query in scans), column
        read.clear()
        session.rows(sa.select(KERNELS.c.name, KERNELS.c.end))
        session.rows(sa.select(KERNELS.c.name))
        assert read == []

    def test_no_column_that_the_export_does_not_have_is_fetched(self, tmp_path, partly, read):
        old = old_schema_export(tmp_path / "old.sqlite")
        partly(old).rows(sa.select(KERNELS.c.green_context, KERNELS.c.start))
        assert not any("CAST(NULL" in query for query in read if NATIVE in query)

    def test_a_count_reads_no_more_than_it_must(self, export, partly, read):
        assert partly(export).scalar(sa.select(sa.func.count()).select_from(KERNELS)) == 200
        assert not any("demangledName" in query for query in read)

    def test_a_summary_reads_its_rows_once(self, export, partly, monkeypatch):
        monkeypatch.setattr(on_demand, "count", lambda *_: pytest.fail("the rows are counted before they are read"))
        assert len(kernel_summary(partly(export), Selection()))

    def test_more_columns_come_to_those_that_are_there(self, export, partly):
        session = partly(export)
        session.rows(sa.select(KERNELS.c.name))
        both = sa.select(KERNELS.c.name, KERNELS.c.device).order_by(KERNELS.c.name, KERNELS.c.device)
        with closing(Session()) as whole:
            whole.add(export)
            assert session.rows(both) == whole.rows(both)
        assert len(names(session)) == 200

    def test_what_python_makes_is_made_without_packing(self, export, partly, monkeypatch):
        monkeypatch.setattr(Packer, "run", lambda _: pytest.fail("packed"))
        session = partly(export)
        assert len(names(session)) == 200
        assert len(session.rows(sa.select(tables.devices))) == 2
        assert session.reports[0].count(tables.devices) == 2
        assert session.rows(sa.select(tables.nccl_calls)) == []

    def test_of_nccl_calls_only_ranges_that_may_be_some(self, tmp_path, partly, read):
        session = partly(payload_export(tmp_path / "payload.sqlite"))
        calls = session.scalar(sa.select(sa.func.count()).select_from(tables.nccl_calls))
        assert calls == session.reports[0].count(tables.nccl_calls) > 0
        (scan,) = [query for query in read if "blob" in query]
        assert "IN (59, 60) AND" in scan


class TestKept:
    @pytest.fixture
    def ask(self, cache: Cache) -> Callable[..., list[str]]:
        def ask(path: Path, warn: Callable[[str], object] = pytest.fail) -> list[str]:
            with closing(Session(cache=cache, warn=warn)) as session:
                session.add(path, whole=False)
                return names(session)

        return ask

    def test_another_session_finds_them(self, export, ask, read):
        before = ask(export)
        read.clear()
        assert ask(export) == before
        assert read == []

    def test_a_changed_export_is_read_anew(self, export, ask):
        before = ask(export)
        edit(export, f"DELETE FROM {NATIVE} WHERE rowid > 100")
        os.utime(export, ns=(1, 1))
        assert len(before) == 200
        assert len(ask(export)) == 100

    def test_a_whole_pack_is_used_where_there_is_one(self, export, cache, ask, read):
        with closing(Session(cache=cache)) as session:
            session.add(export)
        read.clear()
        assert len(ask(export)) == 200
        assert read == []

    def test_an_interrupted_reading_leaves_nothing(self, export, cache, ask, monkeypatch):
        def stop(*_: object) -> int:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Partial, "write", stop)
            with pytest.raises(KeyboardInterrupt):
                ask(export)
        assert list(cache.directory.iterdir()) == []
        assert len(ask(export)) == 200

    @pytest.mark.parametrize("how", ["cut", "gone", "facts"])
    def test_damaged_columns_count_as_absent(self, export, cache, ask, how):
        ask(export)
        (place,) = cache.directory.iterdir()
        (file,) = place.glob("*.parquet")
        if how == "cut":
            file.write_bytes(file.read_bytes()[:-10])
        elif how == "gone":
            file.unlink()
        else:
            (place / "report.json").write_text("{")
        assert len(ask(export)) == 200
        assert [path.name for path in cache.directory.iterdir()] == [place.name]

    def test_the_cache_can_remove_them(self, export, cache, ask):
        ask(export)
        Cache(cache.directory, cap=0).trim()
        assert list(cache.directory.iterdir()) == []

    def test_what_a_session_reads_from_stays(self, export, cache):
        with closing(Session(cache=Cache(cache.directory, cap=0))) as session:
            session.add(export, whole=False)
            names(session)
            session.add(two_process_export(export.with_name("other.sqlite")))
            assert len(names(session)) == 400

    def test_a_cache_that_cannot_be_written_is_a_warning_and_memory(self, export, cache, ask):
        cache.directory.write_text("a file where the directory should be")
        said: list[str] = []
        assert len(ask(export, said.append)) == 200
        (line,) = said
        assert line.startswith(f"the cache {cache.directory} cannot be written (")
        assert line.endswith("): keeping columns in memory")


class TestDamagedExports:
    def test_what_is_no_export_is_told_at_once(self, tmp_path, partly):
        (tmp_path / "no.sqlite").write_bytes(b"no export")
        with pytest.raises(ExportError, match="not a SQLite file"):
            partly(tmp_path / "no.sqlite")

    @pytest.fixture
    def damaged(self, exports: list[Path], tmp_path: Path) -> Path:
        """An export whose schema is whole, and whose rows are not."""
        path = tmp_path / "damaged.sqlite"
        shutil.copy(exports[0], path)
        damage_rows(path, NATIVE)
        return path

    def test_pages_that_cannot_be_read_are_an_error_of_the_export(self, damaged, partly):
        session = partly(damaged)
        with pytest.raises(ExportError, match="SQLite cannot read it"):
            names(session)

    @pytest.mark.parametrize(("table", "rows"), [(KERNELS, 200), (tables.devices, 2)])
    def test_the_others_are_answered_after_a_warning(self, damaged, export, table, rows):
        said: list[str] = []
        with closing(Session(warn=said.append)) as session:
            session.add(damaged, whole=False)
            session.add(export, whole=False)
            assert len(session.rows(sa.select(table))) == rows
            assert [report.path for report in session.reports] == [export]
        (line,) = said
        assert line.startswith(f"{damaged}: SQLite cannot read it")


def test_the_columns_that_a_query_uses_are_found_anywhere_in_it():
    inner = sa.select(KERNELS.c.name.label("text"), (KERNELS.c.end - KERNELS.c.start).label("length")).subquery()
    exists = sa.exists().where(CALLS.c.correlation_id == 7)
    other = KERNELS.alias("other")
    window = sa.func.row_number().over(partition_by=other.c.device, order_by=other.c.row)
    cases = [
        (
            sa.select(inner.c.text, sa.func.sum(inner.c.length)).where(exists),
            {"kernels": {"name", "start", "end"}, "api_calls": {"correlation_id"}},
        ),
        (sa.select(KERNELS), {"kernels": set(KERNELS.c.keys())}),
        (sa.select(sa.func.count()).select_from(KERNELS), {"kernels": set()}),
        (sa.select(window), {"kernels": {"device", "row"}}),
        (
            sa.union_all(sa.select(KERNELS.c.start), sa.select(CALLS.c.end)),
            {"kernels": {"start"}, "api_calls": {"end"}},
        ),
    ]
    for query, expected in cases:
        assert used_columns(query) == expected, query
