"""Columns read on demand: only the requested columns, with the rows of a whole pack."""

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache as cache_of
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import campaign
import pytest
import sqlalchemy as sa
import synthetic
from support import edit, real_export
from synthetic.demo import TrainingJob

from nsystui.base.selection import Selection
from nsystui.exports import opening
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import kernel_summary
from nsystui.questions.queries.question import Question
from nsystui.questions.stats import all_reports, report_of
from nsystui.store import packing, tables
from nsystui.store.cache import Partial
from nsystui.store.packing import Packer
from nsystui.store.session import Session
from nsystui.store.views import used_columns

KERNELS, CALLS = tables.kernels, tables.api_calls
NATIVE, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
MADE = (
    *("all_tables", "cpu_only", "empty", "hostile_names", "instrumented_nccl", "old_schema", "open_ranges"),
    *("payload", "simulation", "two_process", "unified_memory"),
)


@pytest.fixture(scope="module")
def exports(tmp_path_factory) -> list[Path]:
    directory = tmp_path_factory.mktemp("exports")
    job = TrainingJob(ranks=1, steps=2, layers=2).write(directory)
    return [*job, *(getattr(synthetic, f"{name}_export")(directory / f"{name}.sqlite") for name in MADE)]


@pytest.fixture(scope="module")
def packed() -> Iterator[Callable[..., Session]]:
    """Yield a function that packs and opens exports, once for all tests: the answers to compare with."""
    with ExitStack() as sessions:

        @cache_of
        def add(*paths: Path) -> Session:
            session = sessions.enter_context(closing(Session()))
            for path in paths:
                session.add(path)
            return session

        yield add


@pytest.fixture(scope="module")
def of_packs(packed) -> Callable[[Path], dict[str, object]]:
    """Return a function that returns the output of every report for a packed export, computed once."""

    @cache_of
    def ask(path: Path) -> dict[str, object]:
        return {report.name: answered(packed(path), report) for report in all_reports()}

    return ask


@pytest.fixture
def partly(both) -> Callable[..., Session]:
    """Return a function that opens exports without packing them."""
    return partial(both, whole=False)


def names(session: Session) -> list[str]:
    return sorted(name for (name,) in session.rows(sa.select(KERNELS.c.name)))


def answered(session: Session, report: Question) -> object:
    """Return the rows of a report without options, and its notes."""
    answer = report.ask(OpenJob(session), Selection(), report_of(report.name)[1])
    return list(answer.page(0, 10_000)), answer.notes, answer.total


class TestSameAsPacked:
    @pytest.mark.campaign
    @pytest.mark.parametrize(("both", "few"), [("memory", True), ("cache", True), ("memory", False)], indirect=["both"])
    def test_one_report_after_the_other(self, exports, partly, of_packs, few):
        """A few exports are enough: other tests compare the columns of every export row by row."""
        real = map(real_export, ("schema2021-no-metadata", "unordered-rows-2025.6"))
        others = [exports[1], *(path for path in real if path.exists())]
        for path in exports[:1] if few else others:
            with closing(partly(path)) as session:
                for report in all_reports():
                    assert answered(session, report) == of_packs(path)[report.name], (path.name, report.name)

    @pytest.mark.campaign
    def test_a_report_needs_nothing_that_another_has_read(self, exports, partly, of_packs):
        for report in all_reports():
            with closing(partly(exports[0])) as session:
                assert answered(session, report) == of_packs(exports[0])[report.name], report.name

    @pytest.mark.campaign
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

    @pytest.mark.campaign
    def test_chunks_of_any_size(self, original, partly, packed, monkeypatch):
        query = sa.select(CALLS.c.row, CALLS.c.name, CALLS.c.start).order_by(CALLS.c.row)
        expected = packed(original).rows(query)
        monkeypatch.setattr(packing, "CHUNK_ROWS", 7)
        assert partly(original).rows(query) == expected

    @pytest.mark.parametrize("change", campaign.first(1, [
        "SET rowid = rowid + 3000000000 WHERE rowid > 50",  # a gap
        "SET demangledName = 987654321 WHERE rowid % 3 = 1",  # the short name
        'SET "start" = "start" - 500000 * (rowid % 5)',  # not in order of time
    ]))  # fmt: skip
    def test_unusual_rows(self, export, partly, session, change):
        edit(export, f"UPDATE {NATIVE} {change}")
        query = sa.select(KERNELS.c.start, KERNELS.c.name)
        session.add(export)
        assert sorted(partly(export).rows(query)) == sorted(session.rows(query))
        assert session.count(KERNELS) == 200

    @pytest.mark.campaign
    @pytest.mark.parametrize("lacking", ["shortName", "demangledName"])
    @pytest.mark.parametrize("column", ["name", "short_name", "is_nccl"])
    def test_of_two_columns_of_names_one_is_enough(self, export, partly, packed, lacking, column):
        edit(export, f"ALTER TABLE {NATIVE} DROP COLUMN {lacking}")
        query = sa.select(KERNELS.c[column], sa.func.count()).group_by(KERNELS.c[column])
        found = partly(export).rows(query)
        assert sorted(found) == sorted(packed(export).rows(query)) and None not in dict(found)

    def test_beside_reports_that_are_packed(self, original, export, partly):
        session = partly(original)
        session.add(export, whole=True)
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

    def test_no_column_that_the_export_does_not_have_is_fetched(self, exports, partly, read):
        (old,) = [path for path in exports if path.stem == "old_schema"]
        partly(old).rows(sa.select(KERNELS.c.green_context, KERNELS.c.start))
        assert not any("CAST(NULL" in query for query in read if NATIVE in query)

    def test_a_count_reads_no_more_than_it_must(self, original, partly, read):
        assert partly(original).scalar(sa.select(sa.func.count()).select_from(KERNELS)) == 200
        assert not any("demangledName" in query for query in read)

    def test_a_summary_reads_its_rows_once(self, original, partly, read):
        assert len(kernel_summary(partly(original), Selection()))
        assert len([query for query in read if "KIND_KERNEL" in query and "min(rowid)" not in query]) == 1

    def test_more_columns_come_to_those_that_are_there(self, original, partly, packed):
        session = partly(original)
        session.rows(sa.select(KERNELS.c.name))
        both = sa.select(KERNELS.c.name, KERNELS.c.device).order_by(KERNELS.c.name, KERNELS.c.device)
        assert session.rows(both) == packed(original).rows(both)
        assert len(names(session)) == 200

    def test_what_python_makes_is_made_without_packing(self, original, partly, monkeypatch):
        monkeypatch.setattr(Packer, "run", lambda _: pytest.fail("packed"))
        session = partly(original)
        assert len(names(session)) == 200
        assert len(session.rows(sa.select(tables.devices))) == 2
        assert session.reports[0].count(tables.devices) == 2
        assert session.rows(sa.select(tables.nccl_calls)) == []

    def test_of_nccl_calls_only_ranges_that_may_be_some(self, tmp_path, partly, read):
        session = partly(synthetic.payload_export(tmp_path / "payload.sqlite"))
        calls = session.scalar(sa.select(sa.func.count()).select_from(tables.nccl_calls))
        assert calls == session.reports[0].count(tables.nccl_calls) > 0
        (scan,) = [query for query in read if "blob" in query]
        assert "IN (59, 60) AND" in scan


class TestKept:
    @pytest.fixture
    def ask(self, cache) -> Callable[..., list[str]]:
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

    @pytest.mark.campaign
    def test_a_whole_pack_is_used_where_there_is_one(self, export, cache, ask, read):
        with closing(Session(cache=cache)) as session:
            session.add(export)
        read.clear()
        assert len(ask(export)) == 200
        assert read == []

    def test_an_interrupted_reading_leaves_nothing(self, export, cache, ask, monkeypatch):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Partial, "write", Mock(side_effect=KeyboardInterrupt))
            ask(export)
        assert list(cache.directory.iterdir()) == []
        assert len(ask(export)) == 200

    @pytest.mark.campaign
    def test_ctrl_c_does_not_wait_for_the_rest(self, export, cache, ask, monkeypatch):
        read, stopped = Packer.read, []

        def interrupted(packer: Packer, *words: object) -> object:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(3000):
                if packer.is_cancelled():
                    stopped.append(packer.path)
                    break
                time.sleep(0.01)
            return read(packer, *words)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Packer, "read", interrupted)
            ask(export)
        assert stopped == [export]
        assert list(cache.directory.iterdir()) == []
        assert len(ask(export)) == 200

    def test_pages_that_sqlite_reads_are_checked_once(self, export, cache, monkeypatch):
        edit(export, "PRAGMA auto_vacuum = 1", "VACUUM")
        asked: list[str] = []
        connect = opening.connect

        def traced(*words: Any) -> sqlite3.Connection:
            connection = connect(*words)
            connection.set_trace_callback(asked.append)
            return connection

        monkeypatch.setattr(opening, "connect", traced)
        for _ in range(2):
            with closing(Session(cache)) as session:
                session.tally(session.add(export, whole=False), CALLS)
                session.rows(sa.select(CALLS.c.start))
                session.rows(sa.select(KERNELS.c.start))
        assert [asked.count(f'PRAGMA quick_check("{table}")') for table in (NATIVE, RUNTIME)] == [1, 1]

    @pytest.mark.parametrize("how", campaign.first(2, ["gone", "facts", "cut"]))
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


def test_the_columns_that_a_query_uses_are_found_anywhere_in_it():
    inner = sa.select(KERNELS.c.name.label("text"), (KERNELS.c.end - KERNELS.c.start).label("length")).subquery()
    nested = sa.select(inner.c.text, sa.func.sum(inner.c.length)).where(sa.exists().where(CALLS.c.correlation_id == 7))
    other = KERNELS.alias("other")
    window = sa.func.row_number().over(partition_by=other.c.device, order_by=other.c.row)
    union = sa.union_all(sa.select(KERNELS.c.start), sa.select(CALLS.c.end))
    cases = [
        (nested, {"kernels": {"name", "start", "end"}, "api_calls": {"correlation_id"}}),
        (sa.select(KERNELS), {"kernels": set(KERNELS.c.keys())}),
        (sa.select(sa.func.count()).select_from(KERNELS), {"kernels": set()}),
        (sa.select(window), {"kernels": {"device", "row"}}),
        (union, {"kernels": {"start"}, "api_calls": {"end"}}),
    ]
    for query, expected in cases:
        assert used_columns(query) == expected, query
