"""The cache where processes are killed, meet, or find what somebody else has written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import program
import pytest
import sqlalchemy as sa
import synthetic
from disks import half_written

from nsystui.base.errors import ExportError
from nsystui.exports.partial_files import drop_abandoned, is_abandoned, partial_name
from nsystui.store import seals, tables
from nsystui.store.cache import Cache, Partial
from nsystui.store.session import Session

CASES = int(os.environ.get("NSYSTUI_CAMPAIGN", "0"))
COUNT = sa.select(sa.func.count(), sa.func.sum(tables.kernels.c.start), sa.func.sum(tables.kernels.c.end))


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return synthetic.two_process_export(tmp_path_factory.mktemp("original") / "rank0.sqlite")


@pytest.fixture
def export(tmp_path, original) -> Path:
    (tmp_path / "job").mkdir()
    return Path(shutil.copyfile(original, tmp_path / "job" / "rank0.sqlite"))


# Kills itself before the next change that Python makes in the directory, one change later each time.
KILLS = """
import os, shutil, signal
import duckdb, numpy, pandas, sqlalchemy, program
from nsystui.store import session
place, step, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
os.environ["NSYSTUI_CACHE_DIR"] = str(place)
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime"}

def die_at(number):
    left = [number]
    def hook(event, given):
        is_change = event in CHANGES or (event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR))
        if is_change and str(place) in str(given[0]):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def run(kill_at, out):
    child = os.fork()
    if not child:
        if kill_at is not None:
            die_at(kill_at)
        ran = program.run(*words)
        out.write_text(ran.out + ran.err + ran.trouble)
        os._exit(bool(ran.trouble))
    return os.waitpid(child, 0)[1]

def names():
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.suffix != ".parquet")

out = place.with_suffix(".txt")
assert run(None, out) == 0, out.read_text()
expected, there = out.read_text(), names()
killed = 0
while True:
    shutil.rmtree(place)
    out.unlink(missing_ok=True)
    if run(killed, out) != signal.SIGKILL:
        break
    assert run(None, out) == 0, (killed, out.read_text())
    assert out.read_text() == expected, (killed, out.read_text())
    assert names() == there, (killed, names(), there)
    killed += step
print(killed)
"""


class TestKilled:
    """At every change that is made in the cache: the next run answers right and leaves what it always leaves."""

    @pytest.mark.parametrize(("words", "step"), [(("kernels",), 3), (("overview",), 19), (("events",), 43)])
    def test_at_every_stage(self, export, tmp_path, words, step):
        """At every ``step`` of them, for the many: at all in the long campaign."""
        step = 1 if CASES else step
        done = program.alone(KILLS, tmp_path / "cache", str(step), *words, export, "--format", "csv")
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 8

    def test_what_a_living_process_writes_stays(self, tmp_path):
        mine = tmp_path / partial_name()
        mine.mkdir()
        drop_abandoned(tmp_path)
        assert mine.exists() and not is_abandoned(mine)

    @pytest.mark.parametrize(
        "words", [("kernels",), ("info",), ("nccl-log",), ("demo", "--write-only", "--ranks", "1", "--directory")]
    )
    def test_what_a_dead_process_left_goes_with_the_next_command(self, export, tmp_path, monkeypatch, words):
        """Whichever it is, and whether it finds an answer that is remembered, or needs none."""
        cache = tmp_path / "cache"
        monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(cache))
        places = [cache, cache / "exports" / "0123456789abcdef"]
        file = {"demo": tmp_path / "demo", "nccl-log": tmp_path / "no.log"}.get(words[0], export)
        for _ in range(2):
            for place in places:
                place.mkdir(parents=True, exist_ok=True)
                self.left_by_a_dead_process(place)
            program.run(*words, file)
            assert half_written(cache) == []

    def left_by_a_dead_process(self, place: Path) -> None:
        lines = "from nsystui.exports.partial_files import partial_name\n(Path(sys.argv[1]) / partial_name()).mkdir()"
        assert program.alone(lines, place).returncode == 0
        assert all(is_abandoned(left) for left in place.glob(".partial-*"))
        assert half_written(place)

    def test_what_another_machine_writes_stays_for_a_day(self, tmp_path):
        other = tmp_path / ".partial-00000000-99999999-abc"
        other.mkdir()
        assert not is_abandoned(other)
        os.utime(other, (1, 1))
        drop_abandoned(tmp_path)
        assert not other.exists()


class TestTwoProcesses:
    @pytest.mark.parametrize("words", [("kernels",), ("events",)])
    def test_pack_one_export_at_once(self, export, tmp_path, words):
        cache = tmp_path / "cache"
        lines = "import sys\nfrom nsystui.cli import main\nsys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", lines, *words, str(export), "--format", "csv"]
        environment = {**os.environ, "NSYSTUI_CACHE_DIR": str(cache)}
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
            for _ in range(2)
        ]
        said = [process.communicate() for process in running]
        assert [process.returncode for process in running] == [0, 0], said
        assert len(set(said)) == 1
        assert said[0] == (program.run(*words, export, "--format", "csv", "--no-cache").out, said[0][1])
        assert half_written(cache) == []
        assert len({place.name.partition(".")[0] for place in cache.iterdir() if place.name.startswith("rank0")}) == 1


class TestOthers:
    """Files that somebody else may have written are not read or added to; everything is answered."""

    def refused(self, export: Path, cache: Path, why: str) -> None:
        before = sorted(cache.rglob("*"))
        ran = program.alone(
            "import program\nran = program.run(*sys.argv[1:])\nprint(ran.out)\nprint(ran.err, file=sys.stderr)",
            "kernels",
            export,
            "--format",
            "csv",
            NSYSTUI_CACHE_DIR=str(cache),
        )
        (line,) = ran.stderr.strip().splitlines()
        assert line.startswith(f"nsystui: warning: the cache {cache} is not used: ") and why in line
        assert ran.stdout.strip() == program.run("kernels", export, "--format", "csv", "--no-cache").out.strip()
        assert sorted(cache.rglob("*")) == before

    def test_a_directory_that_everybody_can_write_to(self, export, tmp_path):
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache").chmod(0o777)
        self.refused(export, tmp_path / "cache", "every user can write to it")

    @pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away")
    def test_a_directory_of_another_user(self, export, tmp_path):
        with closing(Session(Cache(tmp_path / "cache"))) as session:
            session.add(export)
        os.chown(tmp_path / "cache", 54321, 54321)
        self.refused(export, tmp_path / "cache", "belongs to another user")

    def test_what_is_made_is_for_the_user_alone(self, export, tmp_path):
        before = os.umask(0)
        try:
            done = program.alone(
                "import program\nfor name in ('kernels', 'overview', 'nvtx'): program.run(name, sys.argv[1])",
                export,
                NSYSTUI_CACHE_DIR=str(tmp_path / "cache"),
            )
        finally:
            os.umask(before)
        assert done.returncode == 0, done.stderr
        directories = [tmp_path / "cache", *(path for path in (tmp_path / "cache").rglob("*") if path.is_dir())]
        assert len(directories) > 4
        assert {oct(path.stat().st_mode & 0o777) for path in directories} == {"0o700"}


class TestTampered:
    """A file of the same size with other bytes."""

    def kept(self, export: Path, cache: Path, whole: bool) -> list[Path]:
        self.answer(export, cache, whole)
        return sorted(cache.glob("*/kernels-*.parquet" if whole else "*.kernels-*/*.parquet"))

    def answer(self, export: Path, cache: Path, whole: bool) -> tuple[int, ...]:
        with closing(Session(Cache(cache), warn=pytest.fail)) as session:
            session.add(export, whole=whole)
            return tuple(session.rows(COUNT)[0])

    def flip(self, file: Path, place: float, keep_time: bool) -> None:
        data, status = bytearray(file.read_bytes()), file.stat()
        data[int(place * len(data))] ^= 0x55
        file.write_bytes(data)
        if keep_time:
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    @pytest.mark.parametrize("whole", [True, False], ids=["packed", "columns"])
    @pytest.mark.parametrize("place", [0.01, 0.3, 0.6, 0.99])
    def test_it_is_read_again_from_the_export(self, export, tmp_path, whole, place):
        (file,) = self.kept(export, tmp_path / "cache", whole)
        right = self.answer(export, tmp_path / "cache", whole)
        self.flip(file, place, keep_time=False)
        assert self.answer(export, tmp_path / "cache", whole) == right
        assert self.answer(export, tmp_path / "cache", whole) == right

    @pytest.mark.parametrize("whole", [True, False], ids=["packed", "columns"])
    def test_one_that_duckdb_stumbles_over_is_a_line_and_gone(self, export, tmp_path, whole):
        """Damaged after it was looked at, as where a disk forgets."""
        (file,) = self.kept(export, tmp_path / "cache", whole)
        right = self.answer(export, tmp_path / "cache", whole)
        with closing(Session(Cache(tmp_path / "cache"), warn=pytest.fail)) as session:
            session.add(export, whole=whole)
            if not whole:
                session.rows(COUNT)
            data = file.read_bytes()
            file.write_bytes(data[:4] + bytes(len(data) - 204) + data[-200:])
            with pytest.raises(ExportError) as error:
                session.rows(COUNT)
        assert str(error.value) == f"{export}: what the cache has of it was damaged (it is removed: start again)"
        assert self.answer(export, tmp_path / "cache", whole) == right

    @pytest.mark.parametrize("whole", [True, False], ids=["packed", "columns"])
    def test_one_with_the_time_of_before_is_read_again_too(self, export, tmp_path, whole):
        (file,) = self.kept(export, tmp_path / "cache", whole)
        right = self.answer(export, tmp_path / "cache", whole)
        self.flip(file, 0.4, keep_time=True)
        assert self.answer(export, tmp_path / "cache", whole) == right

    @pytest.mark.parametrize("whole", [True, False], ids=["packed", "columns"])
    def test_a_copy_of_the_cache_is_as_good(self, export, tmp_path, monkeypatch, whole):
        """Its files are read once to tell so, and not again."""
        self.kept(export, tmp_path / "cache", whole)
        shutil.copytree(tmp_path / "cache", tmp_path / "copy")
        monkeypatch.setattr(Cache, "begin", lambda *_: pytest.fail("packed again"))
        monkeypatch.setattr(Partial, "write", lambda *_: pytest.fail("read again"))
        right = self.answer(export, tmp_path / "cache", whole)
        assert self.answer(export, tmp_path / "copy", whole) == right
        monkeypatch.setattr(seals, "checksum", lambda file: pytest.fail("looked through again"))
        assert self.answer(export, tmp_path / "copy", whole) == right
        assert half_written(tmp_path / "copy") == []

    @pytest.mark.parametrize(
        ("what", "place"),
        [
            ("report.json", 0.2),
            ("report.json", 0.9),
            ("answers/*.bin", 0.5),
            ("*.results/result=*", 0.2),
            ("*.results/result=*", 0.9),
        ],
    )
    def test_everything_else_that_is_kept(self, export, tmp_path, monkeypatch, what, place):
        monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
        asked = [("kernels",), ("overview",), ("nvtx",)]
        right = [program.run(*words, export, "--format", "csv").out for words in asked]
        files = sorted((tmp_path / "cache").rglob(what))
        assert files
        for file in files:
            self.flip(file, place, keep_time=True)
        ran = [program.run(*words, export, "--format", "csv") for words in asked]
        assert not program.failures(ran)
        assert [one.out for one in ran] == right
