"""The cache after killed processes, with several processes, and with files that another user wrote."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import campaign
import program
import pytest
import sqlalchemy as sa
import synthetic
from disks import fill, half_written, small_disk

from nsystui.base.errors import ExportError
from nsystui.base.files import drop_abandoned, is_abandoned, partial_name
from nsystui.output.files import save_text
from nsystui.store import seals, tables
from nsystui.store.cache import Cache, Partial
from nsystui.store.session import Session

COUNT = sa.select(sa.func.count(), sa.func.sum(tables.kernels.c.start), sa.func.sum(tables.kernels.c.end))


# Faults of one run of a command, one later each time: it kills itself before a change that Python makes in the cache
# (kill), is refused the change (fail), may write no larger file, DuckDB neither (size), or gets no memory for a query
# (the name of the error). The next run must answer right. For `pack`, the answers of the packed job count.
FAULTS = """
import os, re, resource, shutil, signal
import duckdb, numpy, pandas, sqlalchemy, program
from nsystui.store import session
place, step, how, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
# A cache there would remove the partial files of a killed `pack`, which are how the next one finds what it moved.
os.environ["NSYSTUI_CACHE_DIR"] = f"{place}.cache" if words[0] == "pack" else str(place)
os.setpriority = lambda *_: None  # the walk takes hours at a low priority on a busy machine
sys.dont_write_bytecode = True  # Python would leave a module's bytecode cut off, for every start to come
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime"}
SAID = {"fail": "no space left", "size": "file too large"}.get(how, "memory")
packs = words[0] == "pack"

def change_fails_at(number):
    left = [number]
    def hook(event, given):
        is_change = event in CHANGES or (event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR))
        if is_change and f"{place}/" in f"{given[0]}/":
            left[0] -= 1
            if left[0] < 0 and how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if left[0] == -1:
                struck.write_text(event)
                raise OSError(28, "No space left on device", str(given[0]))
    sys.addaudithook(hook)

def query_fails_at(number, error):
    left = [number]
    def failing(method):
        def call(*values, **named):
            left[0] -= 1
            if left[0] == -1:
                struck.touch()
                raise error("Out of Memory Error: failed to allocate")
            return method(*values, **named)
        return call
    for name in ("execute", "fetchall", "fetchnumpy", "from_arrow"):
        setattr(duckdb.DuckDBPyConnection, name, failing(getattr(duckdb.DuckDBPyConnection, name)))
    connect, every_frame = duckdb.connect, {"python_scan_all_frames": "true"}  # tables are variables of the caller
    duckdb.connect = lambda path=":memory:", config={}: connect(path, config=config | every_frame)

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def strike(number):
    if how == "size":
        if number <= largest:
            struck.touch()
        limit(number)
    elif how in ("kill", "fail"):
        change_fails_at(number)
    else:
        query_fails_at(number, getattr(duckdb, how, MemoryError))

def run(at, out):
    child = os.fork()
    if not child:
        if at is not None:
            strike(at)
        ran = program.run(*words)
        limit(resource.RLIM_INFINITY)
        said = sum(SAID in line for line in ran.err.lower().splitlines())
        refused = ran.status == 2 and (packs or not ran.out) and said > 0
        answered = (packs or ran.out == right.out) and ran.status == right.status and said <= 1
        failed = bool(ran.trouble) or "{" in ran.err or not (refused or answered)
        if packs and at is None:
            failed, ran = ran.status != 0, answer()
        out.write_text(ran.out + ran.err + ran.trouble)
        os._exit(failed)
    return os.waitpid(child, 0)[1]

def answer():
    return program.run("kernels", words[-1], "--format", "csv", "--no-cache")

def names():
    every = (path for path in place.rglob("*") if packs or path.suffix != ".parquet")
    return sorted(re.sub("[0-9]{6}-[0-9a-f]{12}", "GROUP", str(path.relative_to(place))) for path in every)

out, struck = place.with_suffix(".txt"), place.with_suffix(".struck")
before = place.with_suffix(".before")
right = program.run(*words)
if "--force" in words:
    shutil.copytree(place, before)
else:
    shutil.rmtree(place)
    before.mkdir()
assert run(None, out) == 0, out.read_text()
expected, there = out.read_text(), names()
largest = max(path.stat().st_size for path in place.rglob("*") if path.is_file())
at = 0
while True:
    shutil.rmtree(place)
    if list(before.iterdir()):
        shutil.copytree(before, place)
    out.unlink(missing_ok=True)
    struck.unlink(missing_ok=True)
    status = run(at, out)
    if status != signal.SIGKILL and not struck.exists():
        break
    assert how == "kill" or status == 0, (at, status, out.exists() and out.read_text())
    # What cannot be removed is left to the next run.
    removes = struck.exists() and struck.read_text() in ("os.remove", "os.rmdir")
    assert how == "kill" or removes or ".partial-" not in str(names()), (at, names())
    assert run(None, out) == 0, (at, out.read_text())
    assert out.read_text() == expected, (at, out.read_text())
    # Where an answer was given nothing but that is needed the next time; a result that could not be kept is not there.
    is_less = how != "kill" and (not packs or set(names()) < set(there))
    assert names() == there or is_less, (at, set(names()) ^ set(there))
    at += step
print(at)
"""


class TestKilled:
    """Killed or refused at any change of the cache: the next run answers right and leaves the usual files."""

    @pytest.mark.campaign
    @pytest.mark.parametrize(("words", "how", "step"), [
        *((words, "kill", step) for words, step in (
            ("kernels --format csv", 3), ("overview --format csv", 60), ("events --format csv", 120),
        )),
        *((words, "fail", step) for words, step in (
            ("kernels --format csv", 3), ("overview --format csv", 60), ("nvtx --format csv", 60),
            ("export --trace PLACE/t.json --force", 24),
        )),
        *campaign.some(12, [
            *((words, "size", step) for words, step in (
                ("kernels --format csv", 1500), ("events --format csv", 3000),
                ("export --trace PLACE/t.json --force", 6000), ("overview --format csv", 1500),
            )),
            *((f"{name} --format csv", error, step)
              for name, step in (("kernels", 3), ("overview", 20), ("nvtx", 40), ("events", 40))
              for error in ("OutOfMemoryException", "MemoryError")),
        ]),
        *campaign.some(10, [
            (words, how, step)
            for how, step in (
                ("kill", 450), ("fail", 450), ("size", 30000), ("OutOfMemoryException", 700), ("MemoryError", 700)
            )
            for words in ("pack -o PLACE", "pack --force -o PLACE")
        ]),
    ])  # fmt: skip
    def test_at_every_stage(self, export, tmp_path, words, how, step):
        """Every n-th change or write. Answers are right, or their absence is explained; the next run completes all."""
        place, step, exports = tmp_path / "cache", campaign.step(step), [export]
        if how not in ("kill", "fail") or words.startswith("pack"):
            exports = synthetic.training_job(tmp_path / "small", ranks=1 + words.startswith("pack"), steps=1, layers=1)
        command, *rest = words.replace("PLACE", str(place)).split()
        done = program.alone(FAULTS, place, str(step), how, command, *exports, *rest)
        assert done.returncode == 0, done.stderr
        least = {"kill": 8, "fail": 1}.get(how, step) if command != "pack" else step
        assert int(done.stdout) >= least

    def test_what_a_living_process_writes_stays_and_what_another_machine_writes_does_for_a_day(self, tmp_path):
        mine, other = tmp_path / partial_name(), tmp_path / ".partial-00000000-99999999-abc"
        for path in (mine, other):
            path.mkdir()
            assert not is_abandoned(path)
        drop_abandoned(tmp_path)
        assert mine.exists() and other.exists()
        os.utime(other, (1, 1))
        save_text("text", str(tmp_path / "a.txt"))
        assert other.exists(), "the next pack into this folder finds there what a killed pack moved"
        drop_abandoned(tmp_path)
        assert mine.exists() and not other.exists()

    @pytest.mark.campaign
    @pytest.mark.parametrize("words", ["kernels", "info", "nccl-log", "demo --write-only --directory"])
    def test_what_a_dead_process_left_goes_with_the_next_command(self, export, tmp_path, monkeypatch, words):
        """Also with a command that repeats a remembered answer, or needs no answer."""
        cache = tmp_path / "cache"
        monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(cache))
        words = words.split()
        file = {"demo": tmp_path / "demo", "nccl-log": tmp_path / "no.log"}.get(words[0], export)
        places = [cache, cache / "exports" / "0123456789abcdef"]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        dies = "from nsystui.base.files import partial_name\n"
        dies += "for place in sys.argv[1:]: (Path(place) / partial_name()).mkdir()"
        for _ in range(2):
            assert program.alone(dies, *places).returncode == 0
            left = [path for place in places for path in place.glob(".partial-*")]
            assert len(left) == 2 and all(map(is_abandoned, left))
            program.run(*words, file)
            assert half_written(cache) == []


@pytest.mark.campaign
@pytest.mark.parametrize("command", campaign.first(1, ["kernels", "events"]))
def test_two_processes_pack_one_export_at_once(export, tmp_path, command):
    cache, words = tmp_path / "cache", (command, export, "--format", "csv")
    with ThreadPoolExecutor(2) as pool:
        ran = [pool.submit(program.outside, *words, NSYSTUI_CACHE_DIR=str(cache)) for _ in range(2)]
        done = [one.result() for one in ran]
    expected = program.run(*words, "--no-cache").out
    assert [(one.returncode, one.stdout, one.stderr) for one in done] == [(0, expected, done[0].stderr)] * 2
    assert half_written(cache) == []
    assert len({place.name.partition(".")[0] for place in cache.iterdir() if place.name.startswith("rank0")}) == 1


@pytest.mark.campaign
class TestOthers:
    """Files that another user may have written are neither read nor changed; every question is answered."""

    def refused(self, export: Path, cache: Path, why: str) -> None:
        before = sorted(cache.rglob("*"))
        words = ("kernels", export, "--format", "csv")
        ran = program.outside(*words, NSYSTUI_CACHE_DIR=str(cache))
        (line,) = ran.stderr.strip().splitlines()
        assert line.startswith(f"nsystui: warning: the cache {cache} is not used: ") and why in line
        assert ran.stdout == program.run(*words, "--no-cache").out
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
            lines = "import program\nfor name in ('kernels', 'nvtx'): program.run(name, sys.argv[1])"
            done = program.alone(lines, export, NSYSTUI_CACHE_DIR=str(tmp_path / "cache"))
        finally:
            os.umask(before)
        assert done.returncode == 0, done.stderr
        directories = [tmp_path / "cache", *(path for path in (tmp_path / "cache").rglob("*") if path.is_dir())]
        assert len(directories) > 4
        assert {oct(path.stat().st_mode & 0o777) for path in directories} == {"0o700"}


class TestTampered:
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

    def test_one_that_duckdb_stumbles_over_is_a_line_and_gone(self, export, tmp_path, whole):
        """The file is damaged after its check, as by a failing disk."""
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

    def test_a_copy_of_the_cache_is_as_good(self, export, tmp_path, monkeypatch, whole):
        """The files are read once to check them, and not again."""
        self.kept(export, tmp_path / "cache", whole)
        shutil.copytree(tmp_path / "cache", tmp_path / "copy")
        monkeypatch.setattr(Cache, "begin", lambda *_: pytest.fail("packed again"))
        monkeypatch.setattr(Partial, "write", lambda *_: pytest.fail("read again"))
        right = self.answer(export, tmp_path / "cache", whole)
        assert self.answer(export, tmp_path / "copy", whole) == right
        monkeypatch.setattr(seals, "checksum", lambda file: pytest.fail("looked through again"))
        assert self.answer(export, tmp_path / "copy", whole) == right
        assert half_written(tmp_path / "copy") == []


WORDS = ("kernels", "--format", "csv")


@pytest.mark.campaign
def test_whatever_is_in_the_place_of_the_cache_stays_and_the_answer_is_the_same(export, tmp_path, monkeypatch):
    expected = program.run(*WORDS, export, "--no-cache")
    places = {name: tmp_path / name for name in ("file", "link", "dangling", "circle", "pipe")}
    places["file"].write_text("mine")
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    for name, target in (("link", "elsewhere"), ("dangling", "nowhere"), ("circle", "circle")):
        places[name].symlink_to(target)
    os.mkfifo(places["pipe"])
    modes = {name: place.lstat().st_mode for name, place in places.items()}
    for name, place in {**places, "below": places["file"] / "cache"}.items():
        monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(place))
        ran = program.run(*WORDS, export)
        assert (ran.status, ran.out, ran.trouble) == (0, expected.out, "")
        assert len(ran.err.splitlines()) == (name != "link")
        assert name == "link" or f"nsystui: warning: the cache {place} " in ran.err
    assert {name: place.lstat().st_mode for name, place in places.items()} == modes
    assert places["file"].read_text() == "mine" and not (tmp_path / "nowhere").exists()
    assert list((tmp_path / "elsewhere").iterdir())


@pytest.mark.campaign
def test_wrong_clocks_and_a_full_disk_change_no_answer(export, tmp_path):
    expected = program.run(*WORDS, export, "--no-cache").out
    cache = str(tmp_path / "cache")
    for years in (0, 30, -40, 0):
        wrong = f"import time; now = time.time; time.time = lambda: now() + {years * 365 * 86400}"
        ran = program.outside(*WORDS, export, before=wrong, NSYSTUI_CACHE_DIR=cache)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, expected, "")
        for path in (tmp_path / "cache").rglob("*"):
            os.utime(path, (4e9, 4e9) if years else None)
    with small_disk(tmp_path) as disk:
        (disk / "cache").mkdir(mode=0o700)
        fill(disk)
        for _ in range(2):
            ran = program.outside(*WORDS, export, NSYSTUI_CACHE_DIR=str(disk / "cache"))
            assert (ran.returncode, ran.stdout) == (0, expected) and len(ran.stderr.splitlines()) <= 1
