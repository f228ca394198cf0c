"""Arbitrary small exports: tables and columns are missing at random, and every answer is right."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import campaign
import jobs
import program
import pytest
import synthetic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import ExportWriter
from synthetic.demo import SCHEMAS

QUIET = settings(
    deadline=None,
    derandomize=campaign.SEED == 1,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
NEVER_GONE = {"StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SYSTEM_ENV"}


def written(path: Path, choose: st.DataObject) -> Path:
    """Write an export of some schema version with a few rows in each table, without some tables and columns."""
    label = choose.draw(st.sampled_from(list(SCHEMAS)))
    version = SCHEMAS[label].version
    choose.draw(st.sampled_from([synthetic.old_schema_export, synthetic.all_tables_export]))(path, label)
    number = st.sampled_from([0, 1, 7, 59, 60, 75, 1_000, 50_000, 1_000_000, 1 << 24, (5_000 << 24) | 5_000, 1 << 40])
    with closing(sqlite3.connect(path)) as connection:
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in sorted(there & set(ExportWriter.tables.names(version))):
            described = ExportWriter.tables.columns(table, version)
            for _ in range(choose.draw(st.integers(0, 2))):
                values = [
                    None if not one.not_null and choose.draw(st.booleans())
                    else choose.draw(st.sampled_from(["", "step 1", "ncclAllReduce", "{}"])) if one.type == "TEXT"
                    else choose.draw(number)
                    for one in described
                ]  # fmt: skip
                places = ", ".join("?" * len(values))
                connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", values)
            if table not in NEVER_GONE and choose.draw(st.integers(0, 5)) == 0:
                connection.execute(f"DROP TABLE {table}")
            elif choose.draw(st.integers(0, 3)) == 0:
                names = [one.name for one in described if not one.primary_key]
                if len(names) > 1:
                    connection.execute(f'ALTER TABLE {table} DROP COLUMN "{choose.draw(st.sampled_from(names))}"')
        connection.commit()
    return path


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("examples", "part"), [(3, 24), pytest.param(campaign.cases(4), 3, marks=pytest.mark.campaign)], ids=["few", "many"]
)
def test_commands_answer(examples, part):
    """Run one in ``part`` of the commands for each export."""

    @settings(QUIET, max_examples=examples)
    @given(choose=st.data())
    def answers(choose):
        with tempfile.TemporaryDirectory() as name:
            path = written(Path(name) / "rank0.sqlite", choose)
            asked = program.questions()[choose.draw(st.integers(0, part - 1)) :: part]
            assert not program.failures([program.run(*words, path, "--no-cache") for words in asked])

    answers()


@pytest.mark.parametrize("number", [pytest.param(one, marks=pytest.mark.campaign) for one in range(campaign.cases(2))])
async def test_every_screen_is_shown(tmp_path, number):
    drawn = []

    @settings(QUIET, max_examples=number + 2)
    @given(choose=st.data())
    def write(choose):
        path = tmp_path / f"{len(drawn)}.sqlite"
        drawn.append(path)
        written(path, choose)

    write()
    async with jobs.running(drawn[-1:], None, jobs.NARROW) as (app, pilot):
        for key in ("2", "3", "4", "5", "6", "7", "9", "L", "1"):
            await pilot.press(key)
        assert jobs.screen_text(app)
