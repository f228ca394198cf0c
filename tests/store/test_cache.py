"""The cache: used if it matches the export, packed anew if not, and never a reason to fail."""

import os
import re
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import campaign
import pytest
import sqlalchemy as sa
from disks import fill, half_written, small_disk
from synthetic import empty_export

from nsystui.cli import main
from nsystui.exports.opening import check
from nsystui.store import cache as cache_module
from nsystui.store import tables
from nsystui.store.cache import Cache, PackedFiles, Partial, drop_left
from nsystui.store.packing import Packer
from nsystui.store.report import PackedReport
from nsystui.store.session import Session


@pytest.fixture
def packs(monkeypatch) -> list[Path]:
    """Return the list that gets an export each time it is packed."""
    packed: list[Path] = []
    run = Packer.run

    def counted(packer: Packer) -> PackedReport:
        packed.append(packer.path)
        return run(packer)

    monkeypatch.setattr(Packer, "run", counted)
    return packed


def kernels(cache: Cache | None, *paths: Path, warn: list[str] | None = None) -> int:
    """Count the kernels of ``paths`` in a new session; a warning fails unless ``warn`` collects it."""
    with closing(Session(cache=cache, warn=pytest.fail if warn is None else warn.append)) as session:
        for path in paths:
            session.add(path)
        return int(session.scalar(sa.select(sa.func.count()).select_from(tables.kernels)))


def places(cache: Cache) -> list[Path]:
    return sorted(cache.directory.iterdir())


def names(cache: Cache) -> list[str]:
    return [path.name for path in places(cache)]


@pytest.mark.campaign
class TestHitsAndMisses:
    def test_another_name_for_the_same_file_is_the_same(self, export, cache, packs, monkeypatch, tmp_path):
        (tmp_path / "link.sqlite").symlink_to(export)
        monkeypatch.chdir(tmp_path)
        for path in (export, Path("rank0.sqlite"), tmp_path / "link.sqlite", tmp_path / "cache/../rank0.sqlite"):
            kernels(cache, path)
        assert packs == [export]

    def test_any_change_makes_another_export_of_it_even_one_that_keeps_size_and_time(self, export, cache, packs):
        kernels(cache, export)
        status = export.stat()
        for number, content in enumerate((export.read_bytes(), export.read_bytes() + bytes(4096)), 2):
            export.write_bytes(content)
            os.utime(export, ns=(status.st_atime_ns, status.st_mtime_ns))
            kernels(cache, export)
            assert len(packs) == number

    def test_files_of_one_name_in_two_directories_do_not_meet_and_one_without_rows_is_kept(
        self, tmp_path, cache, original, packs
    ):
        other = empty_export(tmp_path / original.name)
        assert [kernels(cache, path) for path in (original, other, original, other)] == [200, 0, 200, 0]
        assert packs == [original, other]

    def test_another_version_of_the_store_packs_anew(self, export, cache, packs, monkeypatch):
        kernels(cache, export)
        monkeypatch.setattr(cache_module, "version_of_reading", lambda: "another")
        kernels(cache, export)
        assert len(packs) == 2

    def test_names_of_places_are_plain(self, tmp_path, cache, original):
        for name in ("it's 100% [*?].sqlite", "größe.sqlite", os.fsdecode(b"latin-\xe9.sqlite"), "-"):
            kernels(cache, shutil.copyfile(original, tmp_path / name))
        assert len(names(cache)) == 4
        assert all(re.fullmatch("[a-zA-Z0-9-]+", name) for name in names(cache))

    def test_the_directory_may_be_called_anything(self, tmp_path, export, packs):
        for number, name in enumerate(["we[ir]d*?", "job=12", "report=7", "a b", "it's", "größe"], 1):
            cache = Cache(tmp_path / name / "cache")
            assert kernels(cache, export) == kernels(cache, export) == 200, name
            assert len(packs) == number, name


@pytest.mark.campaign
class TestDamage:
    """An incomplete pack counts as absent, and the next pack replaces it."""

    def test_a_part_of_a_table_that_is_missing_is_noticed(self, export, cache, packs, monkeypatch):
        monkeypatch.setattr("nsystui.store.packing.CHUNK_ROWS", 64)
        monkeypatch.setattr("nsystui.store.packing.BAND_ROWS", 64)
        kernels(cache, export)
        (directory,) = places(cache)
        sorted(directory.glob("kernels-*.parquet"))[1].unlink()
        assert (kernels(cache, export), len(packs)) == (200, 2)

    def test_a_file_in_the_place_of_a_pack(self, export, cache):
        cache.directory.mkdir()
        cache.path_of(check(export)).write_text("in the way")
        warnings: list[str] = []
        assert kernels(cache, export, warn=warnings) == 200
        assert len(warnings) <= 1


class TestTrimming:
    def put(self, cache: Cache, name: str, size: int, used: float) -> Path:
        """Write a file in the cache; it and its directory were last used at this time, seconds."""
        file = cache.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))
        for path in (file, file.parent):
            os.utime(path, (used, used))
        return file

    def make(self, cache: Cache, *names: str) -> None:
        """Write packs of 1,000 bytes, the least recently used first."""
        for age, name in enumerate(reversed(names)):
            self.put(cache, f"{name}/report.json", 2, 1_000_000 - age)
            self.put(cache, f"{name}/kernels-00000.parquet", 1_000 - 2, time.time() + age)  # with its directory

    def test_what_was_used_longest_ago_goes_first_and_only_over_the_cap(self, cache):
        self.make(cache, "a", "b", "c", "d")
        for cap, left in ((4_000, ["a", "b", "c", "d"]), (2_500, ["c", "d"])):
            Cache(cache.directory, cap=cap).trim()
            assert names(cache) == left

    @pytest.mark.campaign
    def test_opening_counts_as_use(self, export, cache, packs):
        kernels(cache, export)
        (mine,) = places(cache)
        cache = Cache(cache.directory, cap=sum(file.stat().st_size for file in mine.iterdir()) + 1_500)
        os.utime(mine / "report.json", (1, 1))
        self.make(cache, "a", "b", "c")
        kernels(cache, export)
        cache.trim()
        assert names(cache) == ["c", mine.name]
        assert len(packs) == 1

    @pytest.mark.campaign
    def test_what_a_session_reads_from_stays_even_over_the_cap(self, tmp_path, original):
        cache = Cache(tmp_path / "cache", cap=1)
        paths = [shutil.copyfile(original, tmp_path / f"rank{number}.sqlite") for number in range(3)]
        assert kernels(cache, *paths) == 600
        assert kernels(cache, paths[0]) == 200

    def test_other_things_in_the_directory_stay(self, tmp_path):
        cache = Cache(tmp_path / "cache", cap=0)
        self.make(cache, "a")
        for name in ("notes.txt", "exports/rank0.sqlite"):
            self.put(cache, name, 4, time.time())
        cache.trim()
        assert names(cache) == ["exports", "notes.txt"]

    def everything(self, cache: Cache) -> list[str]:
        files = (path for path in cache.directory.rglob("*") if not path.is_dir())
        return sorted(str(path.relative_to(cache.directory)) for path in files)

    def test_everything_that_is_kept_counts(self, tmp_path):
        self.make(Cache(tmp_path / "cache"), "pack")
        cache = Cache(tmp_path / "cache", cap=5_000)
        self.put(cache, "pack/result=nvtx=1.bin", 1_000, 1)
        kept = [".partial-1-abc/kernels-0.parquet", "answers/0123.bin", "exports/0123456789abcdef/rank0.sqlite"]
        for number, name in enumerate(kept):
            self.put(cache, name, 1_000, 2_000_002 - number)
        cache.trim()
        assert len(self.everything(cache)) == 6
        Cache(cache.directory, cap=4_999).trim()
        assert self.everything(cache) == kept

    def test_whatever_it_is_the_oldest_goes_first(self, tmp_path):
        files = {
            "pack": f"rank0-{'0' * 24}/report.json",
            "columns": f"rank1-{'1' * 24}.kernels-{'1' * 12}/report.json",
            "answer": "answers/2222.bin",
            "conversion": f"exports/{'3' * 16}/rank3.sqlite",
        }
        for first in files:
            cache = Cache(tmp_path / first, cap=3_000)
            for number, (kind, name) in enumerate(files.items()):
                self.put(cache, name, 1_000, 1 if kind == first else 1_000 + number)
            cache.trim()
            assert self.everything(cache) == sorted(name for kind, name in files.items() if kind != first)

    def test_what_is_in_use_stays_whatever_it_is(self, tmp_path):
        cache = Cache(tmp_path / "cache", cap=0)
        pack = cache.directory / f"rank0-{'0' * 24}"
        conversion = cache.conversions / ("3" * 16)
        kept = [f"{pack.name}/report.json", f"{pack.name}.kernels-{'1' * 12}/report.json", "exports/3333333333333333/a"]
        for name in [*kept, f"rank1-{'1' * 24}/report.json", f"exports/{'4' * 16}/a"]:
            self.put(cache, name, 10, 1)
        cache.trim({pack, conversion})
        assert self.everything(cache) == sorted(kept)

    def test_what_is_being_converted_stays_and_what_was_left_half_way_goes(self, tmp_path):
        cache = Cache(tmp_path / "cache", cap=0)
        now = time.time()
        self.put(cache, f"exports/{'1' * 16}/.partial-7.sqlite", 10, now)
        self.put(cache, f"exports/{'2' * 16}/.partial-8.sqlite", 10, now - 2 * 86_400)
        self.put(cache, f"rank0-{'0' * 24}/kernels-0.parquet", 10, 1)  # its removal was interrupted
        cache.trim()
        assert self.everything(cache) == [f"exports/{'1' * 16}/.partial-7.sqlite"]

    def test_answers_and_columns_of_real_questions_are_found(self, tmp_path, export, monkeypatch):
        """The program writes files with the names above."""
        monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
        words = ["stats", "-r", "cuda_gpu_kern_sum", "--format", "csv", "-o", str(tmp_path / "out.csv"), str(export)]
        assert main(words) == 0
        cache = Cache(tmp_path / "cache", cap=0)
        kinds = {name.partition("/")[0].rpartition("-")[0].rpartition(".")[2] for name in self.everything(cache)}
        assert {"kernels", ""} <= kinds
        assert cache.trim() == 0
        assert self.everything(cache) == []

    @pytest.mark.campaign
    def test_the_cache_is_only_looked_through_where_there_may_be_too_much_in_it(self, tmp_path, original, monkeypatch):
        looked: list[float] = []
        trim = Cache.trim
        monkeypatch.setattr(Cache, "trim", lambda cache, keep=(): (looked.append(cache.cap), trim(cache, keep))[1])
        paths = [shutil.copyfile(original, tmp_path / f"rank{number}.sqlite") for number in range(4)]
        for cache, expected in ((Cache(tmp_path / "cache"), 1), (Cache(tmp_path / "other", cap=1), 5)):
            kernels(cache, *paths)
            assert len(looked) == expected

    @pytest.mark.campaign
    def test_a_pack_that_another_process_removes_meanwhile_is_no_failure(self, export, cache, monkeypatch):
        self.make(cache, "a", "b")
        monkeypatch.setattr(Path, "iterdir", lambda path: iter([path / "gone", path / "a"]))
        cache.trim()
        assert kernels(cache, export) == 200

    def test_partial_packs_of_killed_processes_go_after_a_day(self, cache):
        now = time.time()
        old = self.put(cache, ".partial-00000000-1-old/kernels-00000.parquet", 4, now - 2 * 86_400)
        new = self.put(cache, ".partial-00000000-2-new/kernels-00000.parquet", 4, now)
        drop_left(cache.directory)
        assert (old.parent.exists(), new.exists()) == (False, True)


@pytest.mark.campaign
class TestUnwritable:
    """After one warning, columns are kept in memory."""

    WORDS = """
import resource, sys
from pathlib import Path
from nsystui.store.cache import Cache
from nsystui.store.session import Session
from nsystui.store import tables
import sqlalchemy as sa
if len(sys.argv) > 3:
    sys.dont_write_bytecode = True  # Python would leave a module's bytecode cut off, for every start to come
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
session = Session(cache=Cache(Path(sys.argv[2])), warn=lambda text: print("WARNING", text))
session.add(Path(sys.argv[1]))
print("KERNELS", session.scalar(sa.select(sa.func.count()).select_from(tables.kernels)))
"""

    def test_a_directory_without_permission(self, export, tmp_path, unprivileged):
        for mode in (0o000, 0o500):
            directory = tmp_path / f"cache {mode}"
            directory.mkdir(mode=mode)
            try:
                done = unprivileged("-c", self.WORDS, str(export), str(directory))
            finally:
                directory.chmod(0o700)
            first, last = done.stdout.splitlines()
            assert first.startswith(f"WARNING the cache {directory} cannot be written (Permission denied)"), mode
            assert last == "KERNELS 200", mode

    def test_a_full_pack_in_a_directory_that_is_only_readable_is_used(self, export, cache, unprivileged):
        kernels(cache, export)
        (mine,) = places(cache)
        for path, mode in ((mine / "report.json", 0o400), (mine, 0o500), (cache.directory, 0o500)):
            path.chmod(mode)
        words = """
import os, sys
os.utime = lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
""" + self.WORDS.replace("session = ", "from nsystui.store.packing import Packer; Packer.run = None\nsession = ")
        try:
            done = unprivileged("-c", words, str(export), str(cache.directory))
        finally:
            cache.directory.chmod(0o700)
            mine.chmod(0o700)
        assert done.stdout.splitlines() == ["KERNELS 200"], done.stderr


class TestFullDisk:
    """A small disk becomes full: a warning, columns in memory, and no half-written file."""

    @pytest.mark.parametrize("options", ["size=8k", "nr_inodes=4"])
    @pytest.mark.parametrize("whole", campaign.first(1, [False, True]))
    def test_the_columns_are_kept_in_memory(self, export, tmp_path, options, whole):
        warnings: list[str] = []
        with small_disk(tmp_path, options) as disk:
            with closing(Session(Cache(disk / "cache"), warn=warnings.append)) as session:
                session.add(export, whole=whole)
                columns = [tables.kernels.c.start, tables.kernels.c.end, tables.kernels.c.name, tables.api_calls.c.name]
                counted = sa.select(sa.func.count(), *map(sa.func.max, columns))
                assert session.scalar(counted.select_from(tables.kernels).join(tables.api_calls, sa.true())) > 200
            assert list((disk / "cache").iterdir()) == []
        (warning,) = warnings
        for said in ("cannot be written (", "No space left on device", "keeping columns in memory"):
            assert said in warning

    def test_answers_are_not_remembered(self, tmp_path):
        with small_disk(tmp_path) as disk:
            answers = Cache(disk).results_of_several(["rank0"])
            answers.save("before", 1)
            fill(disk)
            answers.save("question", "x" * 10_000)
            assert answers.load("question") is None
            assert answers.load("before") == 1
            assert half_written(disk) == []


@pytest.mark.campaign
class TestSideBySide:
    def test_another_process_was_faster(self, export, cache, monkeypatch):
        finish = Partial.finish

        def late(partial: Partial[PackedFiles], facts: dict[str, Any]) -> PackedFiles:
            monkeypatch.setattr(Partial, "finish", finish)
            assert kernels(cache, export) == 200
            return finish(partial, facts)

        monkeypatch.setattr(Partial, "finish", late)
        assert kernels(cache, export) == 200
        assert len(places(cache)) == 1


class TestPlace:
    def test_the_variable_decides_and_without_it_the_systems_cache(self, tmp_path, monkeypatch):
        assert cache_module.default_directory({"NSYSTUI_CACHE_DIR": str(tmp_path)}) == tmp_path
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        for environ in ({}, {"NSYSTUI_CACHE_DIR": ""}):
            assert cache_module.default_directory(environ).name == "nsystui"
