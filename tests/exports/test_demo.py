"""The demo writer writes what nsys would write, and its scenarios are what they say they are."""

import struct
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import synthetic
from support import native as query
from support import native_count as count
from support import real_exports
from synthetic import ExportWriter, demo, training_job
from synthetic.demo import CaptureSession, NcclPayloads, TrainingJob
from synthetic.demo.nccl import payload_schema

Rows = list[tuple[Any, ...]]


def table_names(path: Path) -> set[str]:
    return {name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


SMALL = TrainingJob(ranks=4, steps=3, layers=4)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return SMALL.write(tmp_path_factory.mktemp("job"))


def schema_of(path: Path) -> str:
    table = "META_DATA_EXPORT" if "META_DATA_EXPORT" in table_names(path) else "EXPORT_META_DATA"
    [(schema,)] = query(path, f"SELECT value FROM {table} WHERE name = 'EXPORT_SCHEMA_VERSION'")
    return schema


def declared_columns(path: Path, table: str, *, but: str = "") -> Rows:
    """(name, type, not null, primary key) of the columns of a table without the column `but`."""
    found = query(path, f"SELECT name, type, [notnull], pk FROM pragma_table_info('{table}')")
    return [column for column in found if column[0] != but]


class TestFileFormat:
    @pytest.mark.skipif(not real_exports(), reason="no real exports on this machine (../shared/data/exports)")
    def test_columns_are_those_of_real_exports_of_the_same_schema(self):
        compared = 0
        different: dict[tuple[str, str], tuple[Rows, Rows]] = {}
        for real in real_exports():
            version = tuple(map(int, schema_of(real).split(".")))
            for table in table_names(real).intersection(ExportWriter.tables.names(version)):
                # Users of 2.9.1 added a text column `name` to some tables (the user guide's own example).
                added = "name" if version == (2, 9, 1) and table.startswith("CUPTI") else ""
                theirs = declared_columns(real, table, but=added)
                declared = ExportWriter.tables.columns(table, version)
                ours = [(column.name, column.type, column.not_null, column.primary_key) for column in declared]
                compared += 1
                if ours != [(*column[:2], bool(column[2]), bool(column[3])) for column in theirs]:
                    different[real.name, table] = (ours, theirs)
        assert different == {}
        assert compared > 300

    def test_file_has_page_size_rollback_journal_and_no_index(self, tmp_path):
        for schema in demo.SCHEMAS:
            path = synthetic.old_schema_export(tmp_path / f"{schema}.sqlite", schema)
            header = path.read_bytes()[:100]
            assert struct.unpack(">HBB", header[16:20]) == (4096, 1, 1), schema
            assert struct.unpack(">I", header[28:32])[0] * 4096 == path.stat().st_size, schema
            assert query(path, "SELECT name FROM sqlite_master WHERE type = 'index'") == [], schema
            assert query(path, "PRAGMA integrity_check") == [("ok",)], schema

    def test_table_exists_only_when_it_has_rows_unless_all_of_the_version_are_made(self, tmp_path):
        path = synthetic.empty_export(tmp_path / "empty.sqlite")
        assert {name for name in table_names(path) if not name.startswith("ENUM_")} == {
            "StringIds", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS",
            "META_DATA_CAPTURE", "META_DATA_EXPORT",
        }  # fmt: skip
        path = synthetic.all_tables_export(tmp_path / "all.sqlite", "3.7.2")
        assert set(ExportWriter.tables.names((3, 7))) <= table_names(path)
        assert count(path, "CUPTI_ACTIVITY_KIND_KERNEL") == 0

    def test_what_cannot_be_written_is_refused_and_leaves_no_file(self, tmp_path):
        path = tmp_path / "x.sqlite"
        with pytest.raises(ValueError, match=r"unknown export schema '9\.9\.9'"):
            ExportWriter(path, "9.9.9")
        with pytest.raises(ValueError, match="binary payloads"):
            training_job(tmp_path, schema="3.7.2", payload="binary")
        with pytest.raises(ValueError, match=r"2\.9\.1 has no table MPI_RANKS"), ExportWriter(path, "2.9.1") as export:
            export.mpi_rank(export.thread(export.process(1), 1, "x"), 0)
        with pytest.raises(KeyError), ExportWriter(path):
            raise KeyError
        with pytest.raises(ValueError, match="at least one rank, step"):
            TrainingJob(ranks=0)
        assert list(tmp_path.iterdir()) == []

    def test_session_lasts_until_the_last_event_unless_told_otherwise(self, tmp_path):
        for duration, expected in ((None, 7_000), (5_000, 5_000)):
            with ExportWriter(tmp_path / "x.sqlite", session=CaptureSession(duration=duration)) as export:
                export.osrt(export.thread(export.process(1), 1, "x"), 0, 7_000, "poll")
            assert query(tmp_path / "x.sqlite", "SELECT duration FROM ANALYSIS_DETAILS") == [(expected,)]


class TestTrainingJob:
    def test_every_gpu_operation_has_one_api_call_that_began_before_it(self, job):
        for path, table in product(job, ("KERNEL", "MEMCPY", "MEMSET")):
            unmatched = query(
                path,
                f"SELECT k.correlationId, count(r.start) FROM CUPTI_ACTIVITY_KIND_{table} k "
                "LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId "
                "AND (r.globalTid & ~0xFFFFFF) = k.globalPid AND r.start < k.start "
                "GROUP BY k.rowid HAVING count(r.start) != 1",
            )
            assert unmatched == [], (path.name, table)

    def test_kernels_of_a_stream_do_not_overlap(self, job):
        for path in job:
            busy = query(path, "SELECT streamId, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY streamId, start")
            assert all(before[2] <= after[1] for before, after in pairwise(busy) if before[0] == after[0])

    def test_nccl_kernels_are_launched_inside_ncclGroupEnd(self, job):  # noqa: N802
        for path in job:
            outside = query(
                path,
                "SELECT k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds n ON n.id = k.shortName "
                "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId) WHERE n.value LIKE 'nccl%' AND 1 != ("
                "SELECT count(*) FROM NVTX_EVENTS e JOIN StringIds t ON t.id = e.textId WHERE t.value = 'ncclGroupEnd' "
                "AND e.domainId = 1 AND e.globalTid = r.globalTid AND e.start <= r.start AND e.end >= r.end)",
            )
            assert outside == []

    def test_nvtx_ranges_of_a_thread_nest(self, job):
        ranges = query(
            job[0],
            "SELECT globalTid, start, end FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY globalTid, start, end DESC",
        )
        open_ends: list[tuple[int, int]] = []
        for thread, start, end in ranges:
            while open_ends and (open_ends[-1][0] != thread or open_ends[-1][1] <= start):
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1][1]
            open_ends.append((thread, end))

    def test_hosts_of_a_job_of_any_size_have_at_most_eight_ranks(self):
        for ranks, hosts in ((1, 1), (4, 2), (16, 2), (17, 3), (64, 8), (1024, 128)):
            layout = TrainingJob.of_any_size(ranks, steps=12).layout
            names = [layout.hostname(rank) for rank in range(ranks)]
            assert len(set(names)) == hosts, ranks
            assert max(map(names.count, names)) <= 8, ranks
            assert names == sorted(names), ranks


class TestNcclPayloads:
    def test_new_layout_is_the_one_of_a_real_export(self):
        scatter, init = (
            payload_schema(name, NcclPayloads.SINCE_2_25) for name in ("ncclReduceScatter", "ncclCommInitRankConfig")
        )
        assert [(one.schema_id, one.size) for one in (scatter, init)] == [(16_777_223, 24), (16_777_227, 24)]
        assert [(entry.label, entry.type, entry.offset) for entry in scatter.entries] == [
            ("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8), ("Reduction operation", 16_777_232, 16),
        ]  # fmt: skip


class TestSpecialExports:
    @pytest.mark.campaign
    def test_benchmark_keeps_the_proportions_of_training(self, tmp_path):
        path = synthetic.benchmark_export(tmp_path / "x.sqlite", kernels=10_000)
        rows = {name: count(path, name) for name in table_names(path)}
        assert rows["CUPTI_ACTIVITY_KIND_KERNEL"] == 10_000
        assert rows["CUPTI_ACTIVITY_KIND_RUNTIME"] == pytest.approx(17_600, rel=0.01)
        assert rows["NVTX_EVENTS"] == pytest.approx(4_700, rel=0.01)
        assert query(path, "SELECT count(DISTINCT demangledName) FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(200,)]
        for table in ("KERNEL", "RUNTIME", "MEMCPY"):
            starts = [start for (start,) in query(path, f"SELECT start FROM CUPTI_ACTIVITY_KIND_{table}")]
            assert starts == sorted(starts)

    @pytest.mark.parametrize("schema", ["2021", "2.9.1", "3.28.1"])
    def test_special_exports_exist_in_oldest_and_newest_schema(self, tmp_path, schema):
        specials = "two_process hostile_names open_ranges deep_nvtx unified_memory nccl_without_nvtx empty all_tables"
        for name in f"{specials} delayed_capture node_graph simulation".split():
            path = getattr(synthetic, f"{name}_export")(tmp_path / f"{name}.sqlite", schema=schema)
            assert query(path, "PRAGMA quick_check") == [("ok",)], name
