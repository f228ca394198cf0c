"""Kept arrays: there whole or not at all, and what is made of them is what is made without them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from nsystui.base.selection import Selection, Window
from nsystui.exports.demo import TrainingJob
from nsystui.questions.device_time import DeviceIntervals
from nsystui.questions.job import Job
from nsystui.questions.nvtx.listing import nvtx_tree_table
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.nvtx.tree import NvtxTree
from nsystui.questions.overview import job_facts, task_table
from nsystui.questions.utilisation import utilisation_over_time
from nsystui.store.cache import Cache
from nsystui.store.kept import Kept, json_array, json_of
from nsystui.store.session import Session

ARRAYS = {
    "times": np.array([-5, 1_780_000_000_000_000_000], np.int64),
    "small": np.array([0, 200, 3], np.int64),
    "negative": np.array([-1, 40_000], np.int64),
    "narrow": np.array([1, 2], np.int32),
    "flags": np.array([True, False]),
    "shares": np.array([0.5, np.nan]),
    "none": np.empty(0, np.int64),
    "words": json_array(["µ", None, "a\n", [1, 2**60]]),
}


class TestTheFile:
    """One file of arrays."""

    def test_arrays_come_back_as_they_were(self, tmp_path: Path) -> None:
        Kept(tmp_path).save("some", 1, ARRAYS)
        found = Kept(tmp_path).load("some", 1)
        assert found is not None
        assert list(found) == list(ARRAYS)
        for name, array in ARRAYS.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
        assert json_of(found["words"]) == ["µ", None, "a\n", [1, 2**60]]

    def test_small_numbers_take_little_room(self, tmp_path: Path) -> None:
        Kept(tmp_path).save("some", 1, {"numbers": np.arange(100_000) % 100})
        (file,) = tmp_path.iterdir()
        assert file.stat().st_size < 101_000

    def test_another_version_or_name_is_another_file(self, tmp_path: Path) -> None:
        Kept(tmp_path).save("some", 1, ARRAYS)
        assert Kept(tmp_path).load("some", 2) is None
        assert Kept(tmp_path).load("other", 1) is None

    @pytest.mark.parametrize("part", range(12))
    def test_what_is_damaged_is_absent(self, tmp_path: Path, part: int) -> None:
        Kept(tmp_path).save("some", 1, ARRAYS)
        (file,) = tmp_path.iterdir()
        whole = file.read_bytes()
        place = len(whole) * part // 12
        for damaged in (whole[:place], whole[:place] + b"\0\xff" + whole[place + 2 :], whole + b"x"):
            file.write_bytes(damaged)
            assert Kept(tmp_path).load("some", 1) is None

    def test_without_a_directory_nothing_is_kept(self) -> None:
        Kept(None).save("some", 1, ARRAYS)
        assert Kept(None).load("some", 1) is None

    def test_their_directory_is_made_for_the_first(self, tmp_path: Path) -> None:
        Kept(tmp_path / "new").save("some", 1, ARRAYS)
        assert Kept(tmp_path / "new").load("some", 1) is not None

    def test_a_directory_that_cannot_be_made_is_no_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("no directory")
        Kept(tmp_path / "file" / "new").save("some", 1, ARRAYS)
        assert Kept(tmp_path / "file" / "new").load("some", 1) is None

    def test_a_full_disk_leaves_nothing_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*paths: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        Kept(tmp_path).save("some", 1, ARRAYS)
        assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four ranks whose sessions start some ms apart."""
    return TrainingJob(ranks=4, steps=2, layers=2).write(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def packs(exports: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has the packs of ``exports`` and nothing kept."""
    directory = tmp_path_factory.mktemp("packs")
    with opened(exports, directory) as job:
        assert job.session.reports
    assert kept_files(directory) == []
    return directory


@pytest.fixture
def cache(packs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packs, tmp_path / "cache"))


@contextmanager
def opened(paths: Sequence[Path], cache: Path | None) -> Iterator[Job]:
    session = Session(cache=None if cache is None else Cache(cache))
    for path in paths:
        session.add(path)
    job = Job(session)
    yield job
    job.close()


def kept_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/kept-*"))


def overview(job: Job, selection: Selection) -> object:
    busy = job.busy(selection)
    table = task_table(job.session, selection, job.ranks, busy)
    times = utilisation_over_time(busy, job.extent(selection), 50)
    return job_facts(job.session, job.ranks), table.rows, table.notes, list(map(repr, times.rows))


def tree(job: Job, selection: Selection) -> object:
    found = job.nvtx_tree(selection, "rank-thread", True)
    return nvtx_tree_table(found).rows, arrays_of(found.ranges)


def arrays_of(ranges: NvtxRanges) -> object:
    arrays = {key: (value.dtype, value.tolist()) for key, value in vars(ranges).items() if hasattr(value, "tolist")}
    return ranges.lanes, ranges.names, ranges.notes, arrays


def everything(job: Job, selection: Selection) -> object:
    return overview(job, selection), tree(job, selection)


def selections(job: Job) -> dict[str, Selection]:
    whole, tasks = job.extent(), [item.task for item in job.ranks]
    middle = (whole.start + whole.end) // 2
    return {
        "everything": Selection(),
        "a window": Selection(window=Window(middle, middle + 30_000_000)),
        "two ranks": Selection(tasks=frozenset(tasks[-2:])),
        "a stream": Selection(streams=frozenset({7})),
        "a device": Selection(devices=frozenset({0})),
        "a name": Selection().with_name("step"),
    }


class TestWhatIsMadeOfThem:
    """Overviews and trees, with and without kept arrays."""

    def test_they_are_the_same_computed_kept_and_without_a_cache(self, exports: list[Path], cache: Path) -> None:
        with opened(exports, None) as plain:
            some = ("everything", "a window", "two ranks", "a name")
            expected = [(chosen, everything(plain, chosen)) for chosen in map(selections(plain).get, some)]
        for chosen, found in expected:
            with opened(exports, cache) as first, opened(exports, cache) as second:
                assert everything(first, chosen) == found
                assert everything(second, chosen) == found
        kinds = {file.name.rpartition("-")[0] for file in kept_files(cache)}
        assert kinds == {"kept-busy", "kept-counts", "kept-nccl-ranks", "kept-nvtx", "kept-nvtx-gpu", "kept-processes"}

    def test_nothing_is_computed_twice(self, exports: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with opened(exports, cache) as job:
            expected = everything(job, Selection())

        def refused(*arguments: object, **rest: object) -> None:
            raise AssertionError("computed again")

        for name in ("nvtx.ranges.read_ranges", "nvtx.ranges.read_launches", "work_intervals._merged"):
            monkeypatch.setattr(f"nsystui.questions.{name}", refused)
        monkeypatch.setattr("nsystui.questions.overview._counted", refused)
        with opened(exports, cache) as job:
            assert everything(job, Selection()) == expected

    @pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"\x80" * len(data)])
    def test_damaged_files_are_made_anew(
        self, exports: list[Path], cache: Path, damage: Callable[[bytes], bytes]
    ) -> None:
        with opened(exports, cache) as job:
            expected = everything(job, Selection())
        whole = {file: file.read_bytes() for file in kept_files(cache)}
        for file, data in whole.items():
            file.write_bytes(damage(data))
        with opened(exports, cache) as job:
            assert everything(job, Selection()) == expected
        assert {file: file.read_bytes() for file in kept_files(cache)} == whole

    def test_what_an_older_version_kept_is_left_alone(
        self, exports: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with opened(exports, cache) as job:
            expected = tree(job, Selection())
        monkeypatch.setattr("nsystui.questions.nvtx.ranges._RANGES_VERSION", 2)
        with opened(exports, cache) as job:
            assert tree(job, Selection()) == expected
        assert len(list(cache.glob("*/kept-nvtx-2.bin"))) == len(exports)

    def test_times_are_right_whatever_else_is_open(self, exports: list[Path], cache: Path) -> None:
        """The clock offset of a report depends on which report started first."""
        with opened(exports, cache) as job:
            everything(job, Selection())
            assert len({report.clock_offset for report in job.session.reports}) > 1
        for some in (exports[3:], [exports[3], exports[1]]):
            with opened(some, cache) as kept, opened(some, None) as plain:
                assert everything(kept, Selection()) == everything(plain, Selection())

    def test_a_cache_that_cannot_be_written_serves(
        self, exports: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*arguments: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        with opened(exports, None) as job:
            expected = everything(job, Selection())
        monkeypatch.setattr(os, "replace", refused)
        with opened(exports, cache) as job:
            assert everything(job, Selection()) == expected
        assert kept_files(cache) == []

    def test_one_rank_keeps_only_its_own(self, exports: list[Path], cache: Path) -> None:
        with opened(exports, cache) as job:
            item: DeviceIntervals
            (item,) = job.busy(Selection(tasks=frozenset({job.ranks[1].task}))).devices
            assert item.parts.kernels.length > 0
        assert len(list(cache.glob("*/kept-busy-*"))) == 1

    def test_a_narrowed_tree_is_that_of_its_selection(self, exports: list[Path], cache: Path) -> None:
        with opened(exports, cache) as job:
            for chosen in selections(job).values():
                direct = NvtxRanges.load(job.session, chosen, job.ranks)
                narrowed = job.nvtx_tree(chosen, "rank", False)
                assert arrays_of(narrowed.ranges) == arrays_of(direct)
                assert narrowed.ranges.selection == chosen
                expected = NvtxTree.build(direct, "rank", fold_numbers=False)
                assert nvtx_tree_table(narrowed).rows == nvtx_tree_table(expected).rows
