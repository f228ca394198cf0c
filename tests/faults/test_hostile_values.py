"""Rows that nsys would never write: every command answers or says why not, and nothing takes for ever."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager
from pathlib import Path

import hostile
import program
import pytest
import sqlalchemy as sa
import synthetic
from support import edit

from nsystui.exports import demo
from nsystui.store import tables
from nsystui.store.session import Session

CASES = int(os.environ.get("NSYSTUI_CAMPAIGN", "0"))
MAKERS = (
    synthetic.simulation_export,
    synthetic.unified_memory_export,
    synthetic.whole_graph_export,
    synthetic.two_process_export,
    synthetic.payload_export,
)
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture(scope="module")
def loose(tmp_path_factory) -> list[Path]:
    """Exports of every table that the program reads, whose columns take anything."""
    place = tmp_path_factory.mktemp("loose")
    made = [make(place / f"{make.__name__}.sqlite") for make in MAKERS]
    made += demo.TrainingJob(ranks=1, steps=2, layers=1).write(place)
    return [hostile.loosened(path, place / f"loose-{number}.sqlite") for number, path in enumerate(made)]


@pytest.fixture
def export(tmp_path, loose) -> Path:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(loose[3].read_bytes())
    return path


@contextmanager
def little_memory(size: int):
    """No allocation may bring this process over so much more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def campaign(directory: Path, loose: list[Path], seeds: range, questions: int | None = None) -> list[str]:
    """The failures, each with the damage that caused it."""
    trouble = []
    for seed in seeds:
        path = directory / f"seed-{seed}.sqlite"
        damage = hostile.damaged(loose[seed % len(loose)], path, seed)
        before = program.unchanged(directory)
        asked = program.questions()
        if questions is not None:
            asked = [asked[(seed * questions + number) % len(asked)] for number in range(questions)]
        ran = [program.run(*words, path, "--no-cache") for words in asked]
        if program.failures(ran):
            trouble.append(f"seed {seed}: {program.failures(ran)}\n" + "\n".join(damage))
        assert program.unchanged(directory) == before
        path.unlink()
    return trouble


def test_commands_answer_whatever_is_in_the_columns(tmp_path, loose):
    with little_memory(4 << 30):
        assert campaign(tmp_path, loose, range(7), questions=3) == []


@pytest.mark.campaign
@pytest.mark.skipif(not CASES, reason="set NSYSTUI_CAMPAIGN to the number of cases")
def test_every_command_answers_whatever_is_in_the_columns(tmp_path, loose):
    with little_memory(4 << 30):
        assert campaign(tmp_path, loose, range(1_000, 1_000 + CASES // 50)) == []


def starts(path: Path, whole: bool, table: sa.Table = tables.kernels) -> list[int | None]:
    session = Session()
    session.add(path, whole=whole)
    try:
        return [start for (start,) in session.rows(sa.select(table.c.start).order_by(table.c.row))]
    finally:
        session.close()


@pytest.mark.parametrize("whole", [True, False], ids=["packed", "read"])
class TestTimes:
    @pytest.mark.parametrize(
        "time", ["NULL", "-351429369363", "9223372036854775807", "-9223372036854775808", "1e300", "'soon'", "x'ff'"]
    )
    def test_a_row_at_one_that_cannot_be_is_left_out(self, export, whole, time):
        before = starts(export, whole)
        edit(export, f"UPDATE {KERNEL} SET start = {time} WHERE rowid = 2")
        assert starts(export, whole) == [before[0], *before[2:]]

    def test_those_just_before_the_session_stay(self, export, whole):
        edit(export, f"UPDATE {KERNEL} SET start = -376735 WHERE rowid = 2")
        assert starts(export, whole)[1] == -376735

    def test_those_long_before_the_session_stay_where_nsys_shifted_all(self, export, whole):
        shift = "INSERT INTO META_DATA_EXPORT (name, value) VALUES ('EXPORT_PARAM_TIME_SHIFT', '-5000000000')"
        edit(
            export, f"UPDATE {KERNEL} SET start = start - 5000000000", f'UPDATE {KERNEL} SET "end" = "end" - 5000000000'
        )
        assert starts(export, whole) == []
        edit(export, shift)
        assert len(starts(export, whole)) == 200

    def test_all_of_a_table_may_be_left_out(self, export, whole):
        edit(export, f'UPDATE {KERNEL} SET start = NULL, "end" = NULL')
        assert starts(export, whole) == []


@pytest.mark.parametrize("words", [("triage",), ("gpu",), ("timeline",), ("events",), ("export", "--trace", "-")])
def test_a_kernel_of_centuries_takes_no_memory(export, words):
    edit(export, f'UPDATE {KERNEL} SET "end" = 4611686018427387904 WHERE rowid % 50 = 0')
    with little_memory(3 << 30):
        assert not program.failures([program.run(*words, export)])


def test_strings_of_one_id_double_no_rows(export):
    edit(export, "INSERT INTO StringIds SELECT * FROM StringIds")
    assert len(starts(export, whole=True)) == len(starts(export, whole=False)) == 200


def test_strings_whose_ids_are_no_numbers_are_missing(export):
    edit(export, "UPDATE StringIds SET id = '' WHERE rowid = 1", "UPDATE StringIds SET id = NULL WHERE rowid = 2")
    ran = [program.run("kernels", export, *more) for more in ((), ("--no-cache",))]
    assert not program.failures(ran) and {one.status for one in ran} == {0}


def test_ranges_that_all_end_before_they_start_are_not_called_unrecorded(tmp_path):
    path = synthetic.payload_export(tmp_path / "rank0.sqlite")
    edit(path, 'UPDATE NVTX_EVENTS SET start = "end", "end" = start WHERE "end" > start')
    ran = [program.run("nvtx", path, *more) for more in ((), ("--no-fold",), ("--summary",))]
    assert not program.failures(ran) and {one.status for one in ran} <= {0, 3}
    assert all("NVTX ranges (" in one.err and "record with" not in one.err for one in ran)


def test_kernels_of_no_process_have_a_command_all_the_same(export):
    edit(export, f"UPDATE {KERNEL} SET globalPid = NULL WHERE rowid % 2 = 0")
    ran = program.run("ncu", export)
    assert not program.failures([ran]) and ran.status == 0


def test_a_name_of_ten_megabytes(tmp_path):
    path = tmp_path / "long.sqlite"
    with demo.ExportWriter(path) as export:
        process = export.process(5_000)
        main = export.thread(process, 5_000, "main")
        export.nvtx_range(main, 0, 900_000, "n" * 10_000_000)
        export.kernel(process, 0, 7, 1_000, 2_000, name="k" * 10_000_000, correlation_id=1)
    words = ("kernels", "nvtx", "events")
    ran = [program.run(name, path, "--no-cache") for name in words]
    assert not program.failures(ran)
    # A table on a terminal does not print it whole.
    assert max(len(line) for one in ran for line in one.out.splitlines()) < 20_000_000


def test_ranges_nested_deeper_than_anyone_reads_are_cut_with_a_note(tmp_path):
    path = synthetic.deep_nvtx_export(tmp_path / "deep.sqlite", depth=10_020)
    ran = program.run("nvtx", path, "--no-cache", "--format", "csv")
    assert not program.failures([ran])
    assert len(ran.out.splitlines()) == 1 + 1_000 and len(ran.out) < 100_000_000
    assert "20 ranges are left out that lie in more than 9,999 others" in ran.err
    assert "9,000 paths more than 1,000 levels deep are left out: --depth shows more" in ran.err


def test_ranges_nested_thousands_deep(tmp_path):
    path = synthetic.deep_nvtx_export(tmp_path / "deep.sqlite", depth=8_000)
    ran = [program.run(*words, path, "--no-cache") for words in (("nvtx", "--depth", "3"), ("timeline", "--all-lanes"))]
    assert not program.failures(ran)
