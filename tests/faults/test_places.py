"""Files that lie in odd places or change while they are read, and systems that give less than one expects."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import program
import pytest
import sqlalchemy as sa
import synthetic
from disks import half_written
from support import fingerprint

from nsystui.base.errors import ExportError
from nsystui.store import tables
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

SCREENS = """
import asyncio, jobs
async def look():
    async with jobs.running([Path(sys.argv[1])], Path(sys.argv[2]), jobs.WIDE) as (app, pilot):
        for key in ("2", "3", "4"):
            await pilot.press(key)
            if [line for line in jobs.screen_text(app) if "cannot be" in line]:
                print(jobs.screen_text(app))
asyncio.run(look())
"""


def of_bad_file(path: Path, good: Path) -> str:
    """The message about a file that is none, beside one that is answered as if it were alone."""
    alone, both = program.run("kernels", good, "--format", "csv"), program.run("kernels", path, good, "--format", "csv")
    assert not program.failures([alone, both])
    assert (both.status, both.out) == (0, alone.out)
    (line,) = [line for line in both.err.splitlines() if path.name in line]
    return line


class TestKinds:
    def test_a_socket_and_links_in_a_circle(self, tmp_path, export, monkeypatch):
        monkeypatch.chdir(tmp_path)  # the name of a socket may not be long
        with closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.bind("s.sqlite")
            assert "not a regular file" in of_bad_file(tmp_path / "s.sqlite", export)
        (tmp_path / "a.sqlite").symlink_to(tmp_path / "b.sqlite")
        (tmp_path / "b.sqlite").symlink_to(tmp_path / "a.sqlite")
        assert "Too many levels of symbolic links" in of_bad_file(tmp_path / "a.sqlite", export)

    def test_names_in_every_message_and_table(self, tmp_path, original):
        for name in ("a b'c\"d.sqlite", "new\nline.sqlite", os.fsdecode(b"\xff\xfe.sqlite"), "y" * 248):
            path = shutil.copyfile(original, tmp_path / name)
            for words in (("info",), ("export", "--trace", "-")):
                ran = program.answered(*words, path)
                assert ran.status == 0
                assert not [line for line in ran.err.splitlines() if line.startswith("line.sqlite")]


class TestChanges:
    """Of a file that is exchanged while it is open nothing is kept under the name of the other."""

    @pytest.mark.parametrize("how", ["deleted", "replaced", "cut"])
    def test_while_it_is_open(self, export, tmp_path, how):
        count = sa.select(sa.func.count(), sa.func.sum(tables.kernels.c.start))
        with closing(Session()) as session:
            session.add(export, whole=False)
            if how == "deleted":
                export.unlink()
            elif how == "replaced":
                os.replace(synthetic.empty_export(tmp_path / "other.sqlite"), export)
            else:
                os.truncate(export, 10_000)
            try:
                ((rows, _),) = session.rows(count)
            except ExportError as error:
                assert str(export) in str(error) and len(str(error).splitlines()) == 1
            else:
                assert rows == 200

    def test_one_that_grows_is_said_to_be_written(self, export, original):
        export.write_bytes(original.read_bytes()[:-4096])
        assert "cut short or still being written" in program.run("kernels", export).err
        export.write_bytes(original.read_bytes())
        assert program.run("kernels", export).status == 0


class TestWithLess:
    WRITING = (("pack", "-o", "packed"), ("export", "--trace", "job.json"))
    OTHERS = [pytest.param(words, marks=pytest.mark.campaign) for words in WRITING]

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

    @pytest.mark.parametrize("words", [("kernels",), *OTHERS], ids=" ".join)
    def test_a_mount_without_locks(self, export, tmp_path, no_locks, words, monkeypatch):
        monkeypatch.chdir(tmp_path)
        more = ("--ranks", f"{export}=0") if words[0] == "pack" else ()
        if words[0] == "pack":
            export.unlink()
            synthetic.whole_graph_export(export)  # of one process
        before = fingerprint(export.parent)
        done = program.outside(*words, export, *more, LD_PRELOAD=no_locks, NSYSTUI_CACHE_DIR=str(tmp_path / "cache"))
        assert done.returncode == 0 and "cannot be written" not in done.stderr, done.stderr
        assert fingerprint(export.parent) == before
        assert half_written(tmp_path) == []
        again = program.run(words[0], export, *words[1:], *more, *(("--force",) if len(words) > 2 else ()))
        # A pack has an identity of its own, which compresses to a few bytes more or fewer.
        assert re.sub(r"[\d.]+ KiB", "", again.out) == re.sub(r"[\d.]+ KiB", "", done.stdout)
        if words[0] == "pack":
            answers = [program.run("kernels", place, "--format", "csv").out for place in (export, tmp_path / "packed")]
            assert answers[0] == answers[1] != ""

    @pytest.mark.campaign
    def test_commands_work_without_locks(self, export, tmp_path, no_locks):
        """And keep what they read, so that the next one finds it. Every third of them."""
        place = {"LD_PRELOAD": no_locks, "NSYSTUI_CACHE_DIR": str(tmp_path / "cache")}
        done = program.alone(EVERYTHING, export, tmp_path / "out", **place)
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
        assert list((tmp_path / "cache").glob("*/*.parquet"))
        assert half_written(tmp_path) == []

    @pytest.mark.campaign
    def test_screens_keep_what_they_read_without_locks(self, export, tmp_path, no_locks):
        cache = tmp_path / "cache"
        done = program.alone(SCREENS, export, cache, LD_PRELOAD=no_locks)
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
        assert list(cache.glob("*/kernels-*.parquet"))
        assert half_written(cache) == []

    def test_the_library_refuses_locks(self, no_locks):
        lines = "import fcntl, tempfile\nfcntl.lockf(tempfile.TemporaryFile(), fcntl.LOCK_EX)"
        assert "not implemented" in program.alone(lines, LD_PRELOAD=no_locks).stderr

    def limited(self, directory: Path, limit: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """A command for which the system sets a limit, with a cache of its own."""
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

    def test_too_little_address_space_is_a_message(self, tmp_path, original):
        done = self.limited(tmp_path, "AS, (300 << 20, 300 << 20)", "overview", original)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "nsystui: not enough memory: this process may have 300MiB, the minimum is 400MiB: " + (
            "raise `ulimit -v`\n"
        )
