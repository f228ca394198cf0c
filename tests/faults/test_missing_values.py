"""Values that nsys left out: if any column is NULL, commands answer, and count the row as unknown."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import campaign
import program
import pytest
import synthetic
from support import edit
from synthetic import demo, hostile

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MADE = (
    "simulation", "unified_memory", "whole_graph", "two_process", "payload", "node_graph", "open_ranges", "cpu_only",
)  # fmt: skip
OTHERS = [
    tuple(words.split())
    for words in (
        "threads", "functions", "calltree", "gaps", "path", "streams", "overhead", "budget", "libraries", "gpu-memory",
        "network", "network --by collective", "metrics", "kernels --by stream", "kernels --by device",
    )
]  # fmt: skip
"""Questions that `program.questions` lacks."""


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("job")
    (path,) = demo.TrainingJob(ranks=1, steps=2, layers=1).write(place)
    return hostile.loosened(path, place / "loose.sqlite")


@pytest.fixture
def export(tmp_path, job) -> Path:
    return Path(shutil.copyfile(job, tmp_path / "rank0.sqlite"))


def loosened(name: str, place: Path, job: Path) -> Path:
    if name == "job":
        return job
    return hostile.loosened(getattr(synthetic, f"{name}_export")(place / "made.sqlite"), place / "loose.sqlite")


def with_gaps(original: Path, path: Path) -> Path:
    """Write a copy of a loosened export in which each column of each table is NULL in one row."""
    shutil.copyfile(original, path)
    with closing(sqlite3.connect(path)) as connection:
        for table, columns in hostile.tables(path).items():
            rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table}")]
            for number, column in enumerate(columns):
                row = rows[(7 * number + 3) % len(rows)]
                connection.execute(f'UPDATE {table} SET "{column}" = NULL WHERE rowid = ?', (row,))
        connection.commit()
    return path


@pytest.mark.parametrize("name", campaign.first(0, MADE))
def test_every_question_is_answered_where_each_column_lacks_a_value(tmp_path, job, name):
    path = with_gaps(loosened(name, tmp_path, job), tmp_path / "rank0.sqlite")
    assert not program.failures([program.run(*words, path) for words in (*program.questions(), *OTHERS)])
    if name != MADE[0]:
        assert not program.failures([program.run(*words) for words in program.writers(tmp_path, [path])])


@pytest.mark.campaign
@pytest.mark.parametrize("name", campaign.some(len(MADE), MADE))
def test_a_column_may_be_missing_in_every_row(tmp_path, job, name):
    """Ask one question for each of some columns, which the seed chooses."""
    loose = loosened(name, tmp_path, job)
    questions = [*program.questions(), *OTHERS]
    number = campaign.SEED
    every = [(table, column) for table, columns in hostile.tables(loose).items() for column in columns]
    for table, column in campaign.some(12, every):
        path = Path(shutil.copyfile(loose, tmp_path / "rank0.sqlite"))
        edit(path, f'UPDATE {table} SET "{column}" = NULL')
        number += 5
        failed = program.failures([program.run(*questions[number % len(questions)], path, "--no-cache")])
        assert not failed, f"{table}.{column}\n{failed}"


@pytest.mark.parametrize("assigned", ["nameId = NULL", "globalTid = NULL WHERE rowid % 7 = 0"])
def test_triage_judges_calls_that_lack_a_name_or_a_thread(export, assigned):
    edit(export, f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET {assigned}")
    assert not program.failures([program.run("triage", export)])


class TestAKernelWithoutAPlace:
    def test_is_counted_and_called_unknown(self, export):
        before = [sum(int(row["Operations"]) for row in program.rows("streams", export))]
        edit(export, f"UPDATE {KERNEL} SET deviceId = NULL WHERE rowid = 5")
        edit(export, f"UPDATE {KERNEL} SET streamId = NULL WHERE rowid = 8")
        told = program.answered("streams", export).out
        assert told.count("unknown device") == told.count("unknown stream") == 1
        rows = program.rows("streams", export)
        assert [sum(int(row["Operations"]) for row in rows)] == before
        assert [row["Operations"] for row in rows if "" in (row["Device"], row["Strm"])] == ["1", "1"]

    @pytest.mark.campaign
    def test_is_no_further_gpu(self, export):
        (before,) = program.rows("overview", export)
        edit(export, f"UPDATE {KERNEL} SET deviceId = NULL WHERE rowid = 5")
        (after,) = program.rows("overview", export)
        assert [after[name] for name in ("GPU", "GPU Model", "Kernels")] == [before["GPU"], before["GPU Model"], "100"]
        assert float(before["Busy (%)"]) - 0.2 < float(after["Busy (%)"]) <= float(before["Busy (%)"])
        assert "unknown device does not count in means" in program.answered("overview", export).err

    def test_can_be_selected(self, export):
        edit(export, f"UPDATE {KERNEL} SET deviceId = NULL WHERE rowid = 5")
        (row,) = program.rows("kernels", export, "--devices", "unknown")
        assert row["Instances"] == "1"

    def test_may_be_all_that_there_are(self, export):
        edit(export, f"UPDATE {KERNEL} SET deviceId = NULL, streamId = NULL, contextId = NULL")
        (row,) = program.rows("overview", export)
        assert row["Kernels"] == "100"
