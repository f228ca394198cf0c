"""Flags, variables and the config file: which of them holds, mistakes, and commands without enough memory or disk."""

import os
import shlex
import sys
from pathlib import Path

import campaign
import pytest
from disks import fill, half_written, small_disk
from synthetic import two_process_export

from nsystui.base import resources, terminal
from nsystui.base.errors import OutputError, UsageError
from nsystui.base.resources import NICE, SMALLEST_MEMORY, Limits, usual_threads
from nsystui.cli import command_parser
from nsystui.commands.configuration import default_cache, default_path, keys, limits_for, read_config, remember_theme
from nsystui.commands.request import parsed as request_of
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


EVERYTHING = """# for the cluster
cache-dir = "$SCRATCH/nsystui"
cache-limit = "5G"
jobs = 4
memory-limit = "1.5G"
clock = "utc"
step-range = '^iteration (\\d+)'
ascii = true
color = false
mouse = false
theme = "light"

[families]
'my_attention' = "attention"

[triage]
gap_ms = 5
straggler_percent = 1.5
"""


@pytest.fixture
def home(tmp_path):
    """Return a user's environment, and the path of that user's config file."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "SCRATCH": "/scratch/me"}
    path = tmp_path / "nsystui" / "config.toml"
    path.parent.mkdir()
    return environ, path


def parsed(command, words, environ):
    return request_of(command_parser(command), words, environ)


def limits_of(request, environ):
    return limits_for(request.opening.jobs, request.opening.memory_limit, request.config, environ)


def test_the_example_sets_every_key(home):
    environ, path = home
    path.write_text(EVERYTHING)
    opened = parsed("open", ["a.sqlite"], environ)
    assert (opened.opening.clock, opened.args["step_range"]) == ("utc", r"^iteration (\d+)")
    assert (opened.screen.ascii, opened.screen.color, opened.screen.mouse) == (True, False, False)
    assert opened.screen.theme == "light"
    limits = limits_of(opened, environ)
    assert (limits.threads, limits.memory) == (4, 3 << 29)
    cache = default_cache(opened.config, environ)
    assert (cache.directory, cache.cap) == (Path("/scratch/me/nsystui"), 5 << 30)
    assert parsed("triage", ["a.sqlite"], environ).args["set"] == ["gap_ms=5", "straggler_percent=1.5"]
    assert opened.config.families == (("attention", "my_attention"),)
    assert all(f"{key} =" in EVERYTHING or f"[{key}]" in EVERYTHING for key in keys())


def test_flags_beat_the_environment_which_beats_the_file(home):
    environ, path = home
    path.write_text(EVERYTHING)
    both = {**environ, "NSYSTUI_JOBS": "3", "NSYSTUI_CACHE_DIR": "/other", "NSYSTUI_CACHE_LIMIT": "1G"}
    assert limits_of(parsed("open", ["a.sqlite"], both), both).threads == 3
    assert limits_of(parsed("open", ["a.sqlite", "--jobs", "2"], both), both).threads == 2
    cache = default_cache(parsed("open", ["a.sqlite"], both).config, both)
    assert (cache.directory, cache.cap) == (Path("/other"), 1 << 30)
    opened = parsed("open", ["a.sqlite", "--clock", "own", "--mouse", "--no-ascii", "--color"], environ)
    assert (opened.opening.clock, opened.screen.mouse, opened.screen.ascii, opened.screen.color) == (
        "own", True, False, True,
    )  # fmt: skip
    assert parsed("triage", ["a.sqlite", "--set", "gap_ms=7"], environ).args["set"][-1] == "gap_ms=7"


def test_a_file_that_is_named_takes_the_place_of_the_users(home, tmp_path):
    environ, path = home
    path.write_text("jobs = 4\n")
    other = tmp_path / "other.toml"
    other.write_text('clock = "own"\n')
    config = parsed("open", ["a.sqlite", "--config", str(other)], environ).config
    assert (config.path, config.jobs) == (str(other), None)
    assert parsed("open", ["a.sqlite", "--no-config"], environ).config.path == ""


def test_a_named_file_that_is_not_there_is_an_error_and_the_usual_one_is_not(home, tmp_path):
    environ, _ = home
    assert parsed("open", ["a.sqlite"], environ).config.path == ""
    with pytest.raises(UsageError, match=r"none\.toml: No such file or directory"):
        parsed("open", ["a.sqlite", "--config", str(tmp_path / "none.toml")], environ)


@pytest.mark.parametrize(("text", "said"), [
    ("# one\nmemory_limit = '1G'\n", ": there is no key 'memory_limit': did you mean memory-limit?"),
    ("jobz = 4\n", ": there is no key 'jobz': did you mean jobs?"),
    ("telemetry = true\n", ": there is no key 'telemetry': there are cache-dir, cache-limit, jobs,"),
    ("[triage]\n\ngap_sm = 5\n", ": [triage] has no key 'gap_sm': did you mean gap_ms?"),
    ("triage.gap = 5\n", ": [triage] has no key 'gap': did you mean gap_ms?"),
    ("[triag]\ngap_ms = 5\n", ": there is no key 'triag': did you mean triage?"),
    ('jobs = "4"\n', ': jobs is the text "4"; write jobs = 4'),
    ("jobs = 0\n", ": jobs = 0: give a number of threads, 1 to 256"),
    ("jobs = true\n", ": jobs is true; write jobs = 4"),
    ("memory-limit = 1.5\n", ': memory-limit is 1.5; write memory-limit = "1G"'),
    ("memory-limit = '1X'\n", ": memory-limit = 1X: '1X' is not a size: give a number with M or G"),
    ("memory-limit = '1M'\n", ": memory-limit = 1M: too little to read an export with"),
    ("clock = 'gps'\n", ': clock is the text "gps"; it may be "collectives", "utc", "own"'),
    ("step-range = '('\n", ": step-range is not a regular expression:"),
    ("ascii = 'yes'\n", ': ascii is the text "yes"; write ascii = true, or false'),
    ("cache-dir = '$NOWHERE/x'\n", ": cache-dir names $NOWHERE, which is not set"),
    ("triage = 5\n", ": triage is 5; write [triage] and below it lines such as gap_ms = 5"),
    ("[triage]\ngap_ms = '5'\n", ': gap_ms is the text "5"; write gap_ms = 5'),
    ("[triage]\ngap_ms = -5\n", ": gap_ms=-5: '-5' is not a number of 0 or more"),
    ("families = 5\n", ": families is 5; write [families] and below it lines such as 'my_attention' ="),
    ("[families]\n'fmha' = 'atention'\n", ': fmha is the text "atention"; the families are "GEMM", "attention"'),
    ("[families]\n'(' = 'GEMM'\n", ": ( is not a regular expression:"),
    ("jobs = \n", ": not TOML: Invalid value (at line 1,"),
    (f"jobs = {'[' * 990}{']' * 990}\n", ": its lists are nested too deep"),
])  # fmt: skip
def test_a_mistake_is_one_line_with_the_place_and_what_to_write(tmp_path, text, said):
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_config(path, {})
    assert str(raised.value).startswith(str(path) + said)
    assert "\n" not in str(raised.value)


def test_families_of_kernels_are_the_users_own(tmp_path, run, demo_job):
    path = tmp_path / "config.toml"
    asked = ("kernels", "--by", "family", demo_job[0], "--format", "csv")
    usual = run(*asked)
    path.write_text("[families]\n'^nvjet|gemm' = 'communication'\n")
    changed = run(*asked, "--config", path)
    assert "GEMM" in usual.out and "communication" not in usual.out
    assert "GEMM" not in changed.out and "communication" in changed.out
    assert run(*asked).out == usual.out


def test_bytes_that_are_no_text_are_told(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"jobs = 4\n# \xff\n")
    with pytest.raises(UsageError, match="not UTF-8 at byte 11"):
        read_config(path, {})


def test_a_step_range_for_every_command_is_no_mistake_in_one_that_needs_none(run, tmp_path, demo_job):
    path = tmp_path / "config.toml"
    path.write_text("step-range = '^step (\\d+)'\n")
    assert run("efficiency", demo_job[0], "--config", path).status == 0


def test_where_the_file_is_looked_for(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert default_path({"XDG_CONFIG_HOME": "/etc/xdg"}) == Path("/etc/xdg/nsystui/config.toml")
    for environ in ({}, {"XDG_CONFIG_HOME": ""}, {"XDG_CONFIG_HOME": "relative"}):
        assert default_path(environ) == Path("/home/me/.config/nsystui/config.toml")


def test_a_theme_chosen_on_a_screen_holds_for_later_sessions_but_flags_and_the_file_come_first(home):
    environ, path = home

    def theme(*flags: str) -> str | None:
        return parsed("open", ["a.sqlite", *flags], environ).screen.theme

    assert theme() is None
    remember_theme("light", environ)
    assert (theme(), theme("--theme", "dark"), theme("--no-config")) == ("light", "dark", None)
    path.write_text('theme = "dark"')
    assert theme() == "dark"
    path.unlink()
    remember_theme("", environ)
    assert theme() is None


def test_what_cannot_be_a_remembered_theme_is_no_theme_and_is_not_replaced(home):
    environ, path = home
    kept = path.with_name("theme")
    for text in ("green", "light\ndark", "l" * 100_000, "\udcff"):
        kept.write_text(text, errors="surrogateescape")
        assert parsed("open", ["a.sqlite"], environ).screen.theme is None
    kept.unlink()
    os.mkfifo(kept)  # reading and writing must not wait for its other end
    assert parsed("open", ["a.sqlite"], environ).screen.theme is None
    with pytest.raises(OutputError, match="not a regular file"):
        remember_theme("dark", environ)
