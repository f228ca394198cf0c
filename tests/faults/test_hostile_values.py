"""Rows that nsys would never write: every command answers or reports why it cannot, and no command hangs."""

import resource
import shutil
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path

import campaign
import program
import pytest
import sqlalchemy as sa
import synthetic
from support import edit
from synthetic import demo, hostile

from nsystui.store import tables
from nsystui.store.session import Session

MADE = ("simulation", "unified_memory", "whole_graph", "two_process", "payload")
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture(scope="module")
def loose(tmp_path_factory) -> list[Path]:
    """Return exports with every table that the program reads, whose columns accept any value."""
    place = tmp_path_factory.mktemp("loose")
    made = [getattr(synthetic, f"{name}_export")(place / f"{name}.sqlite") for name in MADE]
    made += demo.TrainingJob(ranks=1, steps=2, layers=1).write(place)
    return [hostile.loosened(path, place / f"loose-{number}.sqlite") for number, path in enumerate(made)]


@pytest.fixture
def export(tmp_path, loose) -> Path:
    return Path(shutil.copyfile(loose[3], tmp_path / "rank0.sqlite"))


@contextmanager
def little_memory(size: int):
    """Limit this process's memory to its present memory and ``size`` bytes."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("seeds", "questions"),
    [(range(7), 2), pytest.param(range(1_000, 1_000 + campaign.cases(3)), None, marks=pytest.mark.campaign)],
    ids=["few", "all"],
)
def test_commands_answer_whatever_is_in_the_columns(tmp_path, loose, seeds, questions):
    """Failures are listed with the damage that caused them."""
    for seed in seeds:
        path = tmp_path / f"seed-{seed}.sqlite"
        damage = hostile.damaged(loose[seed % len(loose)], path, seed)
        before = program.unchanged(tmp_path)
        asked = program.questions()
        if questions is not None:
            asked = [asked[(seed * questions + number) % len(asked)] for number in range(questions)]
        with little_memory(4 << 30):
            ran = [program.run(*words, path, "--no-cache") for words in asked]
        assert not program.failures(ran), f"seed {seed}\n" + "\n".join(damage)
        assert program.unchanged(tmp_path) == before
        path.unlink()


def starts(path: Path, whole: bool) -> list[int | None]:
    with closing(Session()) as session:
        session.add(path, whole=whole)
        kernels = tables.kernels.c
        return [start for (start,) in session.rows(sa.select(kernels.start).order_by(kernels.row))]


class TestTimes:
    @pytest.mark.campaign
    def test_a_row_at_one_that_cannot_be_is_left_out(self, export, whole):
        before = starts(export, whole)
        numbers = ("-351429369363", "9223372036854775807", "-9223372036854775808", "1e300")
        for time in (*numbers, "NULL", "'soon'", "x'ff'"):
            edit(export, f"UPDATE {KERNEL} SET start = {time} WHERE rowid = 2")
            assert starts(export, whole) == [before[0], *before[2:]], time
        edit(export, f"UPDATE {KERNEL} SET start = -376735 WHERE rowid = 2")
        assert starts(export, whole) == [before[0], -376735, *before[2:]]  # just before the session: it stays

    def test_those_long_before_the_session_stay_where_nsys_shifted_all(self, export, whole):
        edit(export, f'UPDATE {KERNEL} SET start = start - 5000000000, "end" = "end" - 5000000000')
        assert starts(export, whole) == []
        edit(export, "INSERT INTO META_DATA_EXPORT (name, value) VALUES ('EXPORT_PARAM_TIME_SHIFT', '-5000000000')")
        assert len(starts(export, whole)) == 200

    @pytest.mark.campaign
    def test_those_that_nsys_made_utc_are_those_since_the_session_began(self, tmp_path):
        """``nsys export --ts-normalize``."""
        (export,) = demo.TrainingJob(ranks=1, steps=2, layers=1).write(tmp_path)
        asked = [(name, export, "--no-cache", "--format", "csv") for name in ("triage", "events", "gpu", "nvtx")]
        expected = [program.run(*words).out for words in asked]
        with closing(sqlite3.connect(export)) as connection:
            columns = connection.execute(
                "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table' AND "
                "c.name IN ('start', 'end', 'timestamp') AND m.name NOT LIKE 'ANALYSIS%'"
            ).fetchall()
        utc = "(SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME)"
        edit(export, *(f'UPDATE {table} SET "{column}" = "{column}" + {utc}' for table, column in columns))
        edit(export, "UPDATE META_DATA_EXPORT SET value = 'true' WHERE name = 'EXPORT_PARAM_TIME_NORMALIZE'")
        edit(export, "INSERT INTO META_DATA_EXPORT (name, value) VALUES ('EXPORT_PARAM_TIME_NORMALIZE', 'true')")
        assert [program.run(*words).out for words in asked] == expected


@pytest.mark.campaign
def test_a_kernel_of_centuries_takes_no_memory(export):
    edit(export, f'UPDATE {KERNEL} SET "end" = 4611686018427387904 WHERE rowid % 50 = 0')
    with little_memory(3 << 30):
        for words in (("triage",), ("gpu",), ("timeline",), ("events",), ("export", "--trace", "-")):
            program.answered(*words, export)


@pytest.mark.campaign
def test_strings_of_one_id_double_no_rows(export):
    edit(export, "INSERT INTO StringIds SELECT * FROM StringIds")
    assert len(starts(export, whole=True)) == len(starts(export, whole=False)) == 200


@pytest.mark.campaign
def test_strings_whose_ids_are_no_numbers_are_missing(export):
    edit(export, "UPDATE StringIds SET id = '' WHERE rowid = 1", "UPDATE StringIds SET id = NULL WHERE rowid = 2")
    assert {program.answered("kernels", export, *more).status for more in ((), ("--no-cache",))} == {0}


def test_ranges_that_all_end_before_they_start_are_not_called_unrecorded(tmp_path):
    path = synthetic.payload_export(tmp_path / "rank0.sqlite")
    edit(path, 'UPDATE NVTX_EVENTS SET start = "end", "end" = start WHERE "end" > start')
    for more in ((), ("--fold", "none"), ("--summary",)):
        ran = program.answered("nvtx", path, *more)
        assert ran.status in (0, 3) and "NVTX ranges (" in ran.err and "record with" not in ran.err


@pytest.mark.campaign
@pytest.mark.parametrize("length", [100_000, 10_000_000])
def test_a_name_of_megabytes(tmp_path, length):
    path = tmp_path / "long.sqlite"
    with demo.ExportWriter(path) as export:
        process = export.process(5_000)
        export.nvtx_range(export.thread(process, 5_000, "main"), 0, 900_000, "n" * length)
        export.kernel(process, 0, 7, 1_000, 2_000, name="k" * length, correlation_id=1)
    ran = [program.answered(name, path, "--no-cache") for name in ("kernels", "nvtx", "events")]
    # A table on a terminal does not print it whole.
    assert max(len(line) for one in ran for line in one.out.splitlines()) < 2 * length


@pytest.mark.campaign
def test_ranges_nested_thousands_deep(tmp_path):
    path = synthetic.deep_nvtx_export(tmp_path / "deep.sqlite", depth=8_000)
    for words in (("nvtx", "--depth", "3"), ("timeline", "--all-lanes")):
        program.answered(*words, path, "--no-cache")


DIGITS = "9" * 5_000


@pytest.fixture
def demo_export(tmp_path):
    (path,) = demo.TrainingJob(ranks=1, steps=2, layers=1).write(tmp_path)
    return path


@pytest.mark.campaign
def test_commands_answer_whatever_numbers_are_in_the_texts_of_an_export(demo_export, asked):
    edit(
        demo_export,
        f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{DIGITS}'",
        f"UPDATE META_DATA_CAPTURE SET value = 'RANK=\"{DIGITS}\"' WHERE name LIKE '%ENVIRONMENT%'",
        f"UPDATE META_DATA_EXPORT SET value = '{DIGITS}'",
        f"UPDATE NVTX_EVENTS SET text = 'step {DIGITS}', textId = NULL WHERE eventType = 59",
        f"UPDATE NVTX_EVENTS SET jsonText = '{{\"Message size [bytes]\": {DIGITS}}}'",
        f"UPDATE StringIds SET value = value || '{DIGITS}'",
    )
    assert not program.failures([program.run(*words, demo_export) for words in asked])


@pytest.mark.campaign
def test_one_among_the_words_or_in_the_config_file_is_named_as_wrong(demo_export, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(f"jobs = {DIGITS}\n")
    flags = {"--ranks": "{}", "--jobs": "{}", "--memory-limit": "{}G", "--time": "{}:"}
    for words in (
        *(("kernels", flag, value.format(DIGITS)) for flag, value in flags.items()),
        *(("kernels", "--ranks", f"rank0={DIGITS}"), ("kernels", DIGITS), ("kernels", "1" + DIGITS)),
        *(("stats", "-r", f"um_sum:rows={DIGITS}"), ("stats", "-r", "nvtx_sum", "--filter-nvtx", f"step/{DIGITS}")),
    ):
        assert program.answered(*words, demo_export).err, words
    ran = program.answered("kernels", demo_export, "--config", config)
    assert ran.status == 2 and "config.toml" in ran.err
