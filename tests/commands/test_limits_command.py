"""The flags and variables for shared machines, and commands without enough memory or disk."""

import os
import shlex
import sys
from pathlib import Path

import campaign
import pytest
from disks import fill, half_written, small_disk
from synthetic import two_process_export

from nsystui.base import resources, terminal
from nsystui.base.resources import NICE, usual_threads
from nsystui.commands.configuration import default_cache
from nsystui.store.database import SMALLEST_MEMORY, Limits
from nsystui.store.session import Session

MB = 1 << 20
NAMES = ("NSYSTUI_JOBS", "NSYSTUI_MEMORY_LIMIT", "NSYSTUI_CACHE_LIMIT")


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch) -> Path:
    """Return a new cache for each test, and remove the user's variables."""
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    return two_process_export(tmp_path_factory.mktemp("export") / "rank0.sqlite")


@pytest.fixture
def used(monkeypatch) -> list[Limits]:
    """Return the list that gets the limits of each session."""
    seen: list[Limits] = []
    begin = Session.__post_init__

    def noted(session: Session) -> None:
        seen.append(session.limits)
        begin(session)

    monkeypatch.setattr(Session, "__post_init__", noted)
    return seen


class TestWhatIsAllowed:
    @pytest.mark.campaign
    def test_the_flags_say_it_else_the_variables(self, run, export, used, monkeypatch):
        assert run("info", "--jobs", "3", "--memory-limit", "1.5G", export).status == 0
        monkeypatch.setenv("NSYSTUI_JOBS", "4")
        monkeypatch.setenv("NSYSTUI_MEMORY_LIMIT", "500MiB")
        for flags in ((), ("--jobs", "1"), ("--memory-limit", "1g")):
            assert run("info", *flags, export).status == 0
        assert used == [Limits(3, 1536 * MB), Limits(4, 500 * MB), Limits(1, 500 * MB), Limits(4, 1024 * MB)]

    @pytest.mark.campaign
    def test_an_empty_variable_is_none(self, run, export, used, monkeypatch):
        for name in NAMES:
            monkeypatch.setenv(name, "")
        assert run("info", export).status == 0
        assert used[0].memory <= Limits().memory

    @pytest.mark.parametrize(
        ("there_is", "memory"),
        campaign.first(1, [(64 * 1024, 1024), (None, 1024), (2048, 1024), (1000, 500), (100, SMALLEST_MEMORY // MB)]),
    )
    def test_without_them_half_of_a_small_machine(self, run, export, used, monkeypatch, there_is, memory):
        monkeypatch.setattr(resources, "memory", lambda: None if there_is is None else there_is * MB)
        assert run("info", export).status == 0
        assert used[0].memory == memory * MB

    @pytest.mark.parametrize(("cpus", "threads"), campaign.first(2, [(1, 1), (2, 2), (128, 2)]))
    def test_without_them_two_threads_at_most(self, run, export, used, monkeypatch, cpus, threads):
        monkeypatch.setattr(resources, "cpus", lambda: cpus)
        monkeypatch.setattr(resources, "usual_threads", usual_threads)
        assert run("info", export).status == 0
        assert used[0].threads == threads

    def test_the_screens_get_them_too(self, run, export, monkeypatch):
        from nsystui.ui.app import NsystuiApp

        seen = []
        monkeypatch.setattr(terminal, "check", lambda *_: "")
        monkeypatch.setattr(NsystuiApp, "run", lambda self, mouse: seen.append(self.source))
        monkeypatch.setenv("NSYSTUI_CACHE_LIMIT", "3G")
        assert run("open", "--jobs", "5", "--memory-limit", "700M", export).status == 0
        (source,) = seen
        assert (source.threads, source.memory, source.cache_cap) == (5, 700 * MB, 3 << 30)


class TestNonsense:
    def test_of_a_variable_names_the_variable(self, refused, export, monkeypatch):
        wrong = {
            "NSYSTUI_MEMORY_LIMIT": ("1M", "x"),
            "NSYSTUI_JOBS": ("0", "two"),
            "NSYSTUI_CACHE_LIMIT": ("-1", "big"),
        }
        for name, values in wrong.items():
            for value in values:
                monkeypatch.setenv(name, value)
                assert refused("info", export, lines=1).startswith(f"nsystui: {name}={value}: ")
            monkeypatch.delenv(name)


class TestCacheLimit:
    def test_it_is_twenty_gigabytes_unless_the_variable_says_else(self):
        for said, cap in (
            ({}, 20 << 30),
            ({"NSYSTUI_CACHE_LIMIT": "512M"}, 512 * MB),
            ({"NSYSTUI_CACHE_LIMIT": "0"}, 0),
        ):
            assert default_cache(environ={"NSYSTUI_CACHE_DIR": "/c", **said}).cap == cap


class TestConversions:
    @pytest.fixture
    def report(self, tmp_path) -> Path:
        path = tmp_path / "run.nsys-rep"
        path.write_bytes(b"QUADD")
        return path

    @pytest.mark.campaign
    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
    def test_nsys_steps_back_too(self, run, tmp_path, export, report, monkeypatch, fake_nsys):
        monkeypatch.setattr(resources, "NICE", NICE)
        nice = tmp_path / "nice"
        fake_nsys(f'nice > {shlex.quote(str(nice))}\ncp {shlex.quote(str(export))} "$out"')
        assert run("info", report, "--convert").status == 0
        assert int(nice.read_text()) >= NICE

    def test_an_export_that_is_read_stays_over_the_cap(self, run, export, report, monkeypatch, directory, fake_nsys):
        monkeypatch.setenv("NSYSTUI_CACHE_LIMIT", "1")
        fake_nsys(f'cp {shlex.quote(str(export))} "$out"')
        done = run("kernels", report, "--convert", "--format", "csv")
        assert (done.status, done.err) == (0, "")
        assert sum(int(row["Instances"]) for row in done.table) == 200
        assert len(list((directory / "exports").iterdir())) == 1

    @pytest.mark.campaign
    def test_use_makes_an_export_new_and_age_makes_room(self, run, export, report, monkeypatch, directory, fake_nsys):
        fake_nsys(f'cp {shlex.quote(str(export))} "$out"')
        assert run("info", report, "--convert").status == 0
        (old,) = (directory / "exports").iterdir()
        os.utime(old, (1, 1))
        assert run("info", report, "--convert").status == 0
        assert old.stat().st_mtime > 1
        os.utime(old, (1, 1))
        monkeypatch.setenv("NSYSTUI_CACHE_LIMIT", "1")
        assert run("info", export).status == 0
        assert not old.exists()

    def test_a_full_disk_says_where_else_and_leaves_nothing(self, refused, tmp_path, report, monkeypatch, fake_nsys):
        """nsys writes its export to a file, which cannot be in memory instead."""
        fake_nsys(
            'cat /dev/zero > "$out" 2>/dev/null; cp "$out" "$out-journal" 2>/dev/null; echo disk full >&2; exit 1'
        )
        with small_disk(tmp_path, "size=1m") as disk:
            monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(disk / "cache"))
            said = refused("info", report, "--convert")
            assert f"{report}: nsys export failed: disk full" in said
            assert "NSYSTUI_CACHE_DIR sets another directory" in said
            assert list((disk / "cache" / "exports").rglob("*")) == []


class TestFullDisk:
    @pytest.mark.parametrize(
        "words", campaign.first(1, [["stats", "-r", "cuda_gpu_kern_sum"], ["kernels"], ["overview"], ["gpu"]])
    )
    def test_commands_answer_as_ever(self, run, tmp_path, export, monkeypatch, words):
        expected = run(*words, export, "--no-cache", "--format", "csv").out
        with small_disk(tmp_path) as disk:
            fill(disk)
            monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(disk / "cache"))
            done = run(*words, export, "--format", "csv")
            assert (done.status, done.out) == (0, expected)
            warnings = [line for line in done.err.splitlines() if "warning" in line]
            assert warnings
            assert all("cannot be written (" in line and line.endswith("in memory") for line in warnings)
            assert half_written(disk) == []
