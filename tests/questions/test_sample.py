"""A first look before packing: marked as a sample, and right within it."""

from pathlib import Path

import pytest
import synthetic
from support import edit, native, native_count

from nsystui.base.answer import iter_rows
from nsystui.questions.capture.sample import sampled_kernels
from nsystui.store.opened import open_export


def names_of(path: Path) -> set[str]:
    query = "SELECT DISTINCT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
    return {name for (name,) in native(path, query)}


def first_sample(*paths):
    return sampled_kernels([open_export(path) for path in paths])


def test_a_small_export_is_sampled_whole(tmp_path):
    path = synthetic.two_process_export(tmp_path / "two.sqlite")
    answer = first_sample(path)
    rows = list(iter_rows(answer))
    assert {row[-1] for row in rows} == names_of(path)
    assert sum(row[0] for row in rows) == pytest.approx(100)
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), reverse=True)
    assert answer.notes[0].startswith("sample: 192 of 200 kernels (96 %)")
    edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start")
    assert {row[0] for row in iter_rows(first_sample(path))} == {0.0}  # zero durations have no share


@pytest.mark.campaign
def test_no_row_counts_twice_and_the_share_of_rows_is_true(tmp_path):
    for kernels in (1, 2, 63, 64, 65, 100, 5_000):
        path = synthetic.benchmark_export(tmp_path / f"{kernels}.sqlite", kernels=kernels, names=7)
        answer = first_sample(path)
        sampled = sum(row[1] for row in iter_rows(answer))
        assert 0 < sampled <= min(kernels, 64 * 64), kernels
        assert sampled >= min(kernels, 64 * 64) * 0.5, kernels
        assert f"sample: {sampled:,} of {kernels:,} kernels" in answer.notes[0]


def test_it_is_taken_from_every_part_of_the_file(tmp_path):
    path = synthetic.benchmark_export(tmp_path / "b.sqlite", kernels=6_400, names=5)
    edit(path, "UPDATE StringIds SET value = 'late' WHERE id = (SELECT max(id) FROM StringIds)")
    edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = (SELECT max(id) FROM StringIds) WHERE rowid > 4800")
    late = {row[-1]: row[1] for row in iter_rows(first_sample(path))}["late"]
    assert late == pytest.approx(64 * 64 / 4, rel=0.1)


def test_without_kernels_there_is_none(tmp_path):
    assert sampled_kernels([]) is None
    assert first_sample(synthetic.cpu_only_export(tmp_path / "cpu.sqlite")) is None
    assert first_sample(synthetic.all_tables_export(tmp_path / "all.sqlite")) is None


def test_an_export_that_fails_meanwhile_is_left_out(tmp_path):
    good, gone, broken = (
        synthetic.two_process_export(tmp_path / f"{name}.sqlite") for name in ("good", "gone", "broken")
    )
    opened = [open_export(path) for path in (gone, broken, good)]
    gone.unlink()
    (root,) = native(broken, "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'")[0]
    with broken.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    assert {row[-1] for row in iter_rows(sampled_kernels(opened))} == names_of(good)


def test_hostile_and_missing_names_are_rows_like_others(tmp_path):
    path = synthetic.hostile_names_export(tmp_path / "h.sqlite")
    edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = -1 WHERE rowid = 1")
    answer = first_sample(path)
    assert {row[-1] for row in iter_rows(answer)} == set(synthetic.HOSTILE_NAMES[1:])
    assert sum(row[1] for row in iter_rows(answer)) == native_count(path, "CUPTI_ACTIVITY_KIND_KERNEL")
