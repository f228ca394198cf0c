"""Files in odd places, files that change while they are read, and systems with little memory or other limits."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import campaign
import program
import pytest
import sqlalchemy as sa
import synthetic
from campaign import SEED, cases
from disks import half_written

from nsystui.base.errors import ExportError
from nsystui.store import tables
from nsystui.store.cache import Cache
from nsystui.store.session import Session

NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#define REFUSE(name) int name(int fd, int command, ...) { \\
    va_list words; va_start(words, command); void *word = va_arg(words, void *); va_end(words); \\
    if (command == F_SETLK || command == F_SETLKW || command == F_GETLK || command == F_OFD_SETLK) \\
        { errno = ENOSYS; return -1; } \\
    static int (*real)(int, int, ...); if (!real) real = dlsym(RTLD_NEXT, #name); \\
    return real(fd, command, word); }
REFUSE(fcntl)
REFUSE(fcntl64)
int flock(int fd, int how) { errno = ENOSYS; return -1; }
int lockf(int fd, int how, long size) { errno = ENOSYS; return -1; }
"""

EVERYTHING = """
import program
export, out = map(Path, sys.argv[1:3])
out.mkdir()
questions = program.questions()
asked = [(*words, export) for words in questions[::3]]
asked += [(*words, export, "-o", out / f"{number}.parquet") for number, words in enumerate(questions[:12:3])]
for ran in map(lambda words: program.run(*words), [*asked, *program.writers(out, [export])]):
    if ran.trouble or "cannot be written" in ran.err or "lock" in ran.err or "Function not" in ran.err:
        print(ran)
"""


def of_bad_file(path: Path, good: Path) -> str:
    """Return the message about a file that is not an export; an export next to it is answered as if it were alone."""
    alone, both = program.run("kernels", good, "--format", "csv"), program.run("kernels", path, good, "--format", "csv")
    assert not program.failures([alone, both])
    assert (both.status, both.out) == (4, alone.out)
    (line,) = [line for line in both.err.splitlines() if path.name in line]
    return line


@pytest.mark.campaign
class TestKinds:
    def test_a_socket_and_links_in_a_circle(self, tmp_path, export, monkeypatch):
        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        with closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.bind("s.sqlite")
            assert "not a regular file" in of_bad_file(tmp_path / "s.sqlite", export)
        (tmp_path / "a.sqlite").symlink_to(tmp_path / "b.sqlite")
        (tmp_path / "b.sqlite").symlink_to(tmp_path / "a.sqlite")
        assert "Too many levels of symbolic links" in of_bad_file(tmp_path / "a.sqlite", export)

    def test_names_in_every_message_and_table(self, tmp_path, original):
        names = ["a b'c\"d.sqlite", "new\nline.sqlite", os.fsdecode(b"\xff\xfe.sqlite"), "y" * 248]
        names += ["-rf.sqlite", "=1+1.sqlite", "%s%n{0}.sqlite", "$(touch pwned).sqlite", "[a]*?.sqlite", "~x.sqlite"]
        for name in (*names, "\x1b[31m.sqlite", "x?mode=rw&#%2e%2e%2f.sqlite", " .sqlite", "a\\b|;.sqlite"):
            path = shutil.copyfile(original, tmp_path / name)
            for words in (("info",), ("export", "--trace", "-")):
                ran = program.answered(*words, path)
                assert ran.status == 0
                assert not [line for line in ran.err.splitlines() if line.startswith("line.sqlite")]
                assert "\x1b" not in ran.err
            path.unlink()
        assert not list(tmp_path.iterdir()), "nothing else was written"


def replace(path: Path, content: bytes) -> None:
    path.with_suffix(".new").write_bytes(content)
    os.replace(path.with_suffix(".new"), path)


def replace_in_place(path: Path, content: bytes) -> None:
    """Replace the content as ``rsync --inplace --times`` does: inode, size and time stay."""
    status = path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_link(path: Path, content: bytes) -> None:
    path.with_suffix(".target").write_bytes(content)
    path.with_suffix(".link").symlink_to(path.with_suffix(".target"))
    os.replace(path.with_suffix(".link"), path)


WAYS = [replace, replace_in_place, replace_link]
CHANGED = "changed while it was read"


class TestChanges:
    """An answer describes the export at one moment, and is never kept for another state."""

    @pytest.fixture(scope="class")
    def contents(self, tmp_path_factory) -> tuple[bytes, bytes]:
        """Return two exports of the same size; the second has half as many kernels."""
        path = synthetic.two_process_export(tmp_path_factory.mktemp("contents") / "rank0.sqlite")
        before = path.read_bytes()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 2 = 0")
        assert path.stat().st_size == len(before)
        return before, path.read_bytes()

    @staticmethod
    def kernels(path: Path, cache: Path, **options: Any) -> int:
        with closing(Session(cache=Cache(cache))) as session:
            session.add(path, **options)
            return int(session.scalar(sa.select(sa.func.count()).select_from(tables.kernels)))

    @pytest.mark.parametrize("way", campaign.first(1, WAYS))
    def test_packing_an_export_that_changes_says_so_and_keeps_nothing(self, tmp_path, contents, way):
        export, cache = tmp_path / "rank0.sqlite", tmp_path / "cache"
        export.write_bytes(contents[0])
        changes = iter([partial(way, export, contents[1])])
        with pytest.raises(ExportError, match=CHANGED):
            self.kernels(export, cache, report_progress=lambda _: next(changes, lambda: None)())
        assert self.kernels(export, cache) == 100

    @pytest.mark.parametrize("way", [*WAYS, lambda path, _: path.unlink(), lambda path, _: os.truncate(path, 10_000)])
    def test_columns_of_an_export_that_has_changed_are_refused(self, tmp_path, contents, way):
        export = tmp_path / "rank0.sqlite"
        export.write_bytes(contents[0])
        with closing(Session(cache=Cache(tmp_path / "cache"))) as session:
            report = session.add(export, whole=False)
            way(export, contents[1])
            for read in (lambda: session.rows(sa.select(tables.kernels.c.start)), lambda: report.count(tables.kernels)):
                with pytest.raises(ExportError, match=CHANGED):
                    read()
        if export.exists() and export.stat().st_size == len(contents[1]):
            assert self.kernels(export, tmp_path / "cache", whole=False) == 100

    @pytest.mark.campaign
    @pytest.mark.parametrize("way", WAYS)
    def test_an_export_that_changes_at_any_moment_gives_the_old_answer_the_new_one_or_says_so(
        self, tmp_path, contents, way
    ):
        answers = []
        for content in contents:
            (tmp_path / "rank0.sqlite").write_bytes(content)
            answers.append(program.run("kernels", tmp_path / "rank0.sqlite", "--format", "csv").out)
        random = Random(SEED)
        for number in range(cases(8)):
            export = tmp_path / f"{number}/rank0.sqlite"
            export.parent.mkdir()
            export.write_bytes(contents[0])
            change = threading.Timer(random.uniform(0, 0.1), way, (export, contents[1]))
            change.start()
            ran = program.run("kernels", export, "--format", "csv")
            change.join()
            assert ran.out in answers if ran.status == 0 else (ran.status == 2 and CHANGED in ran.err), number
            assert program.run("kernels", export, "--format", "csv").out == answers[1], number


class TestWithLess:
    @pytest.fixture(scope="class")
    def no_locks(self, tmp_path_factory) -> str:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None or sys.platform != "linux":
            pytest.skip("this takes a C compiler and Linux")
        place = tmp_path_factory.mktemp("locks")
        (place / "locks.c").write_text(NO_LOCKS)
        words = [compiler, "-shared", "-fPIC", "-o", str(place / "locks.so"), str(place / "locks.c"), "-ldl"]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("the C compiler here makes no shared library")
        return str(place / "locks.so")

    @pytest.mark.campaign
    def test_commands_work_without_locks(self, export, tmp_path, no_locks):
        """Every third command; columns are kept, so that the next command finds them."""
        place = {"LD_PRELOAD": no_locks, "NSYSTUI_CACHE_DIR": str(tmp_path / "cache")}
        done = program.alone(EVERYTHING, export, tmp_path / "out", **place)
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
        assert list((tmp_path / "cache").glob("*/*.parquet"))
        assert half_written(tmp_path) == []

    def test_the_library_refuses_locks(self, no_locks):
        lines = "import fcntl, tempfile\nfcntl.lockf(tempfile.TemporaryFile(), fcntl.LOCK_EX)"
        assert "not implemented" in program.alone(lines, LD_PRELOAD=no_locks).stderr

    def limited(self, directory: Path, limit: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command under a limit of the system, with a new cache."""
        before = f"import resource\nresource.setrlimit(resource.RLIMIT_{limit})"
        return program.outside(*words, before=before, NSYSTUI_CACHE_DIR=str(directory / "cache"))

    @pytest.mark.campaign
    @pytest.mark.parametrize(("files", "command", "limits"), [(40, "kernels", "32, 32"), (16, "info", "24, 4096")])
    def test_fewer_open_files_than_exports_will_do_and_a_low_limit_that_may_be_raised_is(
        self, tmp_path, original, files, command, limits
    ):
        place = tmp_path / "many"
        place.mkdir()
        for number in range(files):
            shutil.copyfile(original, place / f"rank{number}.sqlite")
        done = self.limited(tmp_path, f"NOFILE, ({limits})", command, place, "--format", "csv")
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        assert command == "kernels" or len(done.stdout.splitlines()) == 17
        assert half_written(tmp_path / "cache") == []

    @pytest.mark.campaign
    def test_little_address_space_is_enough(self, tmp_path):
        path = synthetic.benchmark_export(tmp_path / "rank0.sqlite", kernels=20_000)
        done = self.limited(tmp_path, "AS, (512 << 20, 512 << 20)", "overview", path)
        assert done.returncode == 0, done.stderr

    @pytest.mark.campaign
    def test_any_address_space_is_an_answer_or_a_message_and_the_cache_is_whole(self, tmp_path, monkeypatch):
        monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
        words = ("overview", synthetic.benchmark_export(tmp_path / "rank0.sqlite", kernels=20_000), "--format", "csv")
        right = program.run(*words, "--no-cache").out
        for size in range(390, 530, campaign.step(40)):
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
            done = self.limited(tmp_path, f"AS, ({size} << 20, {size} << 20)", *words)
            refused = done.returncode == 2 and not done.stdout and "memory" in done.stderr.splitlines()[-1]
            assert refused or (done.returncode, done.stdout) == (0, right), (size, done)
            assert half_written(tmp_path) == [], size
            assert program.run(*words).out == right, size

    def test_too_little_address_space_is_a_message(self, tmp_path, original):
        done = self.limited(tmp_path, "AS, (300 << 20, 300 << 20)", "overview", original)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "nsystui: not enough memory: this process may have 300MiB, the minimum is 400MiB: " + (
            "raise `ulimit -v`\n"
        )
