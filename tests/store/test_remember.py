"""Derived results: stored whole or not at all; answers are the same with and without them."""

import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
from support import job_of
from synthetic.demo import TrainingJob

import nsystui
from nsystui.base.selection import Selection, Window
from nsystui.base.version import __version__
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.gpu.utilisation import utilisation_over_time
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.listing import nvtx_tree_table
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.nvtx.tree import NvtxTree
from nsystui.questions.ranks.overview import job_facts, task_table
from nsystui.store import seals
from nsystui.store.cache import Cache
from nsystui.store.remember import (
    Caps,
    Memory,
    ResultKey,
    Results,
    bundle_of,
    json_array,
    json_of,
    remember,
    remember_each,
    write_bundles,
)

ARRAYS = {
    "times": np.array([-5, 1_780_000_000_000_000_000], np.int64), "small": np.array([0, 200, 3], np.int64),
    "negative": np.array([-1, 40_000], np.int64), "narrow": np.array([1, 2], np.int32),
    "flags": np.array([True, False]), "shares": np.array([0.5, np.nan]), "none": np.empty(0, np.int64),
    "words": json_array(["µ", None, "a\n", [1, 2**60]]),
}  # fmt: skip


class TestTheFile:
    def test_arrays_come_back_as_they_were_and_small_numbers_take_little_room(self, tmp_path):
        results = Results(("rank0",), tmp_path / "new")
        results.save("some", {**ARRAYS, "numbers": np.arange(100_000) % 100}, "1")
        found = Results(("rank0",), tmp_path / "new").load("some", "1")
        assert found is not None
        assert list(found) == [*ARRAYS, "numbers"]
        for name, array in ARRAYS.items():
            assert found[name].dtype == array.dtype, name
            np.testing.assert_array_equal(found[name], array)
        assert json_of(found["words"]) == ["µ", None, "a\n", [1, 2**60]]
        (file,) = (tmp_path / "new").iterdir()
        assert file.stat().st_size < 102_000
        assert results.load("some", "2") is None
        assert results.load("other", "1") is None

    def test_what_is_damaged_is_absent(self, tmp_path):
        Results(("rank0",), tmp_path).save("some", ARRAYS, "1")
        (file,) = tmp_path.iterdir()
        whole = file.read_bytes()
        for place in (len(whole) * part // 12 for part in range(12)):
            for damaged in (whole[:place], whole[:place] + b"\0\xff" + whole[place + 2 :], whole + b"x"):
                file.write_bytes(damaged)
                assert Results(("rank0",), tmp_path).load("some", "1") is None, place

    @pytest.mark.parametrize("place", [None, "file", "file/new"])
    def test_where_nothing_can_be_kept_nothing_fails(self, tmp_path, place):
        (tmp_path / "file").write_text("no directory")
        for options in ({}, {"caps": Caps(files=3)}):
            results = Results(("rank0",), place and tmp_path / place, **options)
            results.save("some", ARRAYS, "1")
            assert results.load("some", "1") is None

    def test_a_full_disk_leaves_nothing_behind(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        Results(("rank0",), tmp_path).save("some", ARRAYS, "1")
        assert list(tmp_path.iterdir()) == []


class TestOfSeveralReports:
    @pytest.fixture
    def results(self, tmp_path) -> Callable[..., Results]:
        return lambda *reports, **caps: Results(reports or ("rank0",), tmp_path / "answers", caps=Caps(**caps))

    def test_json_comes_back_as_it_was_and_only_the_user_may_read_it(self, results, tmp_path):
        value = {"rows": [[1, 2.5, "ä\udce9", None, 2**63]], "nothing": None}
        results().save("question", value)
        assert results().load("question") == value
        assert results().load("another") is None
        assert results().load("question", "1") is None
        assert results("rank0", "rank1").load("question") is None
        (file,) = (tmp_path / "answers").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700

    @pytest.mark.parametrize("caps", [{"files": 3}, {"size": 3 * 100}])
    def test_those_used_longest_ago_go_first(self, results, tmp_path, caps):
        for number in range(5):
            results(**caps).save(f"question {number}", "x" * 20)
            for age, file in enumerate(sorted((tmp_path / "answers").iterdir(), key=lambda path: path.stat().st_mtime)):
                os.utime(file, (1_000 + 10 * number + age, 1_000 + 10 * number + age))
        known = [number for number in range(5) if results().load(f"question {number}") is not None]
        assert known == list(range(5 - len(known), 5))
        assert 1 <= len(known) <= 3


class TestMemory:
    def test_what_is_in_memory_needs_no_file(self, tmp_path):
        results = Results(("rank0",), tmp_path, memory=Memory())
        results.save("some", ARRAYS)
        shutil.rmtree(tmp_path)
        assert results.load("some") is ARRAYS
        assert results.load("some", "1") is None

    def test_of_more_than_the_most_those_used_longest_ago_go(self):
        memory = Memory(2)
        keys = [ResultKey(("rank0",), number) for number in range(3)]
        for key in keys[:2]:
            memory.save(key, "value")
        memory.load(keys[0])
        memory.save(keys[2], "value")
        assert [memory.load(key) for key in keys] == ["value", None, "value"]

    def test_it_is_computed_once_for_each_state_of_the_reports(self):
        memory, computed = Memory(), []
        for state in ("1", "1", "2", "1"):
            remember(Results((state,), None, memory=memory), "question", lambda: computed.append(None))
            memory.forget_others((state,))
        assert len(computed) == 3

    def test_a_result_of_none_is_a_result(self):
        results, computed = Results(("rank0",), None, memory=Memory()), []
        assert remember(results, "question", lambda: computed.append(None)) is None
        assert remember(results, "question", lambda: computed.append(None)) is None
        assert len(computed) == 1

    @pytest.mark.parametrize("kept", ["in memory", "in a file"])
    def test_callers_at_once_compute_it_once(self, tmp_path, kept):
        computed, begun, has_looked = [], threading.Event(), threading.Event()

        class Watched(Memory):
            def load(self, key: ResultKey, default: object = None) -> object:
                value = super().load(key, default)
                if begun.is_set():
                    has_looked.set()
                return value

        def compute() -> int:
            computed.append(None)
            begun.set()
            assert has_looked.wait(600), "the other caller asks meanwhile"
            return len(computed)

        in_memory, in_file = (
            Results(("rank0",), None, memory=Watched()),
            Results(("rank0",), tmp_path, memory=Watched(0)),
        )
        results = in_memory if kept == "in memory" else in_file
        with ThreadPoolExecutor() as pool:
            first = pool.submit(remember, results, "question", compute)
            begun.wait()
            assert (remember(results, "question", compute), first.result()) == (1, 1)

    def test_each_run_of_reports_is_saved_before_the_next_and_computed_once(self, tmp_path):
        results, asked = (
            {rank: Results((f"rank{rank}",), tmp_path / str(rank), memory=Memory(0)) for rank in range(3)},
            [],
        )

        def compute(missing: list[int]) -> Iterator[dict[int, int]]:
            asked.append(missing)
            for rank in missing:
                yield {rank: 10 * rank}
                assert results[rank].load("question") == 10 * rank

        results[1].save("question", 10)
        assert remember_each(results, "question", None) == {1: 10}
        assert remember_each(results, "question", compute) == {0: 0, 1: 10, 2: 20}
        assert remember_each(results, "question", compute) == {0: 0, 1: 10, 2: 20}
        assert asked == [[0, 2]]

    def test_callers_at_once_compute_the_results_of_reports_once(self, tmp_path):
        asked, begun, has_looked = [], threading.Event(), threading.Event()

        class Watched(Memory):
            def load(self, key: ResultKey, default: object = None) -> object:
                if begun.is_set():
                    has_looked.set()
                return super().load(key, default)

        def compute(missing: list[int]) -> Iterator[dict[int, int]]:
            asked.append(missing)
            begun.set()
            assert has_looked.wait(600), "the other caller asks meanwhile"
            yield dict.fromkeys(missing, 1)

        results = {0: Results(("rank0",), tmp_path, memory=Watched(0))}
        with ThreadPoolExecutor() as pool:
            first = pool.submit(remember_each, results, "question", compute)
            begun.wait()
            assert remember_each(results, "question", compute) == first.result() == {0: 1}
        assert asked == [[0]]


class TestTheVersion:
    def test_it_follows_from_the_source_of_the_module(self, tmp_path):
        code = "from question import compute; from nsystui.store.remember import version_of; print(version_of(compute))"
        versions = []
        for body in ("return 1", "return 1", "return 2"):
            (tmp_path / "question.py").write_text(f"def compute():\n    {body}\n")
            versions.append(printed(code, tmp_path))
        assert versions[0] == versions[1] != versions[2]

    def test_another_release_or_other_tables_are_another_version(self, tmp_path):
        changes = ("pass", "version.__version__ = '9'", "canonical.fingerprint = lambda: 'other'")
        code = "from nsystui.base import version; from nsystui.exports import canonical; {}\n"
        code += "from nsystui.store.remember import version_of; print(version_of())"
        assert len({printed(code.format(change), tmp_path) for change in changes}) == 3

    def test_it_follows_from_all_sources_or_from_the_list_of_files_of_a_wheel(self, tmp_path):
        code = "from nsystui.store.remember import version_of; print(version_of())"
        package = Path(shutil.copytree(Path(nsystui.__file__).parent, tmp_path / "nsystui"))
        edited = printed(code, tmp_path)
        os.utime(package / "api.py", (1, 1))
        assert edited != printed(code, tmp_path)
        record = tmp_path / f"nsystui-{__version__}.dist-info" / "RECORD"
        record.parent.mkdir()
        record.write_text("nsystui/api.py,sha256=1")
        installed = printed(code, tmp_path)
        os.utime(package / "api.py", (2, 2))
        assert installed == printed(code, tmp_path)
        record.write_text("nsystui/api.py,sha256=2")
        assert installed != printed(code, tmp_path)


def printed(code: str, directory: Path) -> str:
    """Return the output of another Python that runs ``code`` in ``directory``."""
    return subprocess.check_output([sys.executable, "-c", code], cwd=directory, text=True).strip()


@pytest.fixture(scope="module")
def exports(tmp_path_factory) -> list[Path]:
    """Return four ranks whose sessions start some ms apart."""
    return TrainingJob(ranks=4, steps=2, layers=2).write(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def packs(exports, tmp_path_factory) -> Path:
    """Return a cache with the packs of ``exports`` and no results."""
    directory = tmp_path_factory.mktemp("packs")
    with opened(exports, directory):
        assert result_files(directory) == []
    return directory


@pytest.fixture
def cache(packs, tmp_path) -> Path:
    return Path(shutil.copytree(packs, tmp_path / "cache"))


def opened(paths: Sequence[Path], cache: Path | None) -> closing[OpenJob]:
    return job_of(*paths, cache=None if cache is None else Cache(cache))


def result_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/result=*"))


def overview(job: OpenJob, selection: Selection) -> object:
    busy = job.busy(selection)
    table = task_table(job.session, selection, job.ranks, busy)
    times = utilisation_over_time(busy, job.extent(selection), 50)
    return job_facts(job.session, job.ranks), table.rows, table.notes, list(map(repr, times.rows))


def tree(job: OpenJob, selection: Selection) -> object:
    found = job.nvtx_tree(selection, "rank-thread", "steps")
    return nvtx_tree_table(found).rows, arrays_of(found.ranges)


RANGE_ARRAYS = (
    "lane", "name", "row", "start", "end", "flags", "parent", "level", "self_time", "op_count",
    "gpu_start", "gpu_end", "op_time",
)  # fmt: skip


def arrays_of(ranges: NvtxRanges) -> object:
    return ranges.lanes, ranges.names, ranges.notes, {key: ranges.values(key).tolist() for key in RANGE_ARRAYS}


def everything(job: OpenJob, selection: Selection) -> object:
    return overview(job, selection), tree(job, selection)


@pytest.fixture(scope="module")
def whole(exports) -> object:
    """Return the results from all events, without a cache."""
    with opened(exports, None) as job:
        return everything(job, Selection())


def selections(job: OpenJob) -> dict[str, Selection]:
    whole, tasks = job.extent(), [item.task for item in job.ranks]
    middle = (whole.start + whole.end) // 2
    return {
        "everything": Selection(), "a window": Selection(window=Window(middle, middle + 30_000_000)),
        "two ranks": Selection(tasks=frozenset(tasks[-2:])), "a stream": Selection(streams=frozenset({7})),
        "a device": Selection(devices=frozenset({0})), "a name": Selection().with_name("step"),
    }  # fmt: skip


@pytest.mark.campaign
class TestWhatIsMadeOfThem:
    @pytest.mark.parametrize("names", [("everything", "a window"), ("two ranks", "a name")])
    def test_they_are_the_same_computed_kept_and_without_a_cache(self, exports, cache, names):
        with opened(exports, None) as plain:
            for name in names:
                chosen = selections(plain)[name]
                expected = everything(plain, chosen)
                with opened(exports, cache) as first, opened(exports, cache) as second:
                    assert everything(first, chosen) == expected, name
                    assert everything(second, chosen) == expected, name
        kinds = {file.name.split("=")[1].partition("-")[0] for file in result_files(cache)}
        assert kinds == {"busy", "counts", "holes", "kernel", "nccl", "nvtx", "processes", "unrecorded"}

    @pytest.mark.parametrize("small", [1 << 16, 0])
    def test_nothing_is_computed_twice(self, exports, cache, whole, monkeypatch, small):
        monkeypatch.setattr("nsystui.questions.nvtx.columns._SMALL", small)
        with opened(exports, cache) as job:
            assert everything(job, Selection()) == whole

        parts = ("nvtx.loading.range_parts", "nvtx.loading.launch_parts", "gpu.device_time.merged")
        for name in (*parts, "ranks.overview._counted"):
            monkeypatch.setattr(f"nsystui.questions.{name}", lambda *_, **__: pytest.fail("computed again"))
        with opened(exports, cache) as job:
            assert everything(job, Selection()) == whole

    @pytest.mark.parametrize(("small", "file"), [(1 << 16, "nvtx-read"), (0, "nvtx-start")])
    def test_the_results_of_another_version_are_left_alone(self, exports, cache, monkeypatch, small, file):
        monkeypatch.setattr("nsystui.questions.nvtx.columns._SMALL", small)
        with opened(exports, cache) as job:
            expected = tree(job, Selection())
        monkeypatch.setattr("nsystui.questions.nvtx.columns.version_of", lambda compute: "another")
        with opened(exports, cache) as job:
            assert tree(job, Selection()) == expected
        assert len(list(cache.glob(f"*/result={file}=*.bin"))) == 2 * len(exports)
        assert len(list(cache.glob(f"*/result={file}=another.bin"))) == len(exports)

    def test_times_are_right_whatever_else_is_open(self, exports, cache):
        """The clock offset of a report depends on which report started first."""
        with opened(exports, cache) as job:
            everything(job, Selection())
            assert len({report.clock_offset for report in job.session.reports}) > 1
        for some in (exports[3:], [exports[3], exports[1]]):
            with opened(some, cache) as kept, opened(some, None) as plain:
                assert everything(kept, Selection()) == everything(plain, Selection())

    def test_one_rank_keeps_only_its_own(self, exports, cache):
        with opened(exports, cache) as job:
            item: DeviceIntervals
            (item,) = job.busy(Selection(tasks=frozenset({job.ranks[1].task}))).devices
            assert item.parts.kernels.length > 0
        assert len(list(cache.glob("*/result=busy=*"))) == 1

    def test_a_narrowed_tree_is_that_of_its_selection(self, exports, cache):
        with opened(exports, cache) as job:
            for chosen in selections(job).values():
                direct = NvtxRanges.load(job.session, chosen, job.ranks)
                narrowed = job.nvtx_tree(chosen, "rank", "none")
                assert arrays_of(narrowed.ranges) == arrays_of(direct)
                assert narrowed.ranges.selection == chosen
                expected = NvtxTree.build(direct, "rank", fold="none")
                assert nvtx_tree_table(narrowed).rows == nvtx_tree_table(expected).rows


@pytest.mark.parametrize(
    "content", [b"", b"\2\0\0\0{", b'\x0d\0\0\0{"arrays": 5}', (200_000).to_bytes(4, "little") + b"[" * 200_000]
)
def test_a_good_seal_over_something_else_is_no_result_and_goes(tmp_path, content):
    results = Results(("report",), tmp_path)
    results.save("question", [1, 2])
    (file,) = tmp_path.iterdir()
    seals.write(file, ResultKey(("report",), "question").text, [content], tmp_path)
    assert results.load("question") is None and not file.exists()


def test_a_result_that_its_reader_does_not_take_is_none_and_goes(tmp_path):
    results = Results(("report",), tmp_path)
    results.save("question", {"kernels": "many"})
    assert results.load("question", read=lambda found: int(found["kernels"])) is None
    assert list(tmp_path.iterdir()) == []


class TestBundledResults:
    """Results of exports that are packed into a job: one file has all results of a group of reports."""

    VALUES: ClassVar = {"counts": {"kernels": 3}, "steps": [1, 2], "arrays": {"times": np.arange(300)}}

    @pytest.fixture
    def bundled(self, tmp_path) -> Results:
        before = Results(("export",), tmp_path / "export", tmp_path)
        bundles = {}
        for name in ("rank=0", "rank=1", "rank=2"):
            for question, value in self.VALUES.items() if name != "rank=1" else ():
                assert before.save(question, value, "1")
            bundles[name] = before.bundled(name)
        (tmp_path / "group").mkdir()
        write_bundles(tmp_path / "group", bundles)
        assert list((tmp_path / "export").iterdir()) == []
        assert [bundle_of(tmp_path / "group" / name) for name in bundles] == [*bundles.values()]
        return Results(("rank=0",), tmp_path / "group/rank=0")

    def loaded(self, results: Results) -> dict[str, object]:
        found = {question: results.load(question, "1") for question in self.VALUES}
        return {question: str(value) for question, value in found.items() if value is not None}

    @property
    def right(self) -> dict[str, str]:
        return {question: str(value) for question, value in self.VALUES.items()}

    def test_they_are_in_one_file_and_the_same(self, bundled):
        assert [path.name for path in bundled.directory.parent.iterdir()] == ["results.bin"]
        assert self.loaded(bundled) == self.right

    def test_they_are_of_these_reports_and_versions_alone(self, bundled):
        assert self.loaded(Results(("another",), bundled.directory)) == {}
        assert self.loaded(Results(("rank=0",), bundled.directory.with_name("rank=2"))) == {}
        assert bundled.load("counts", "2") is None and bundled.load("counts") is None

    def test_what_is_saved_later_comes_first(self, bundled):
        bundled.save("steps", [3], "1")
        assert self.loaded(bundled) == {**self.right, "steps": "[3]"}

    def test_what_is_saved_after_the_group_is_merged_does_not_make_it_again(self, bundled):
        shutil.rmtree(bundled.directory.parent)
        assert not bundled.save("steps", [3], "1") and not bundled.directory.parent.exists()

    @pytest.mark.campaign
    def test_a_damaged_byte_costs_results_and_changes_none(self, bundled):
        (file,) = bundled.directory.parent.iterdir()
        data = file.read_bytes()
        end = len(data) - len(bundle_of(bundled.directory.with_name("rank=2")))
        for place in range(end):
            file.write_bytes(data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :])
            found = self.loaded(bundled)
            assert found.items() <= self.right.items(), place
            assert len(found) < len(self.right) or b"rank=2" in data[place - 9 : place + 16], place
        for length in range(0, end, 7):
            file.write_bytes(data[:length])
            assert self.loaded(bundled).items() < self.right.items()
