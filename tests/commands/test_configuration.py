"""The config file: its settings, what overrides them, and the messages on its mistakes."""

import os
from pathlib import Path

import pytest

from nsystui.base.errors import OutputError, UsageError
from nsystui.cli import command_parser
from nsystui.commands.configuration import default_cache, default_path, keys, limits_for, read_config, remember_theme
from nsystui.commands.request import parsed as request_of

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
    flags = ["a.sqlite", "--clock", "own", "--mouse", "--no-ascii", "--color"]
    opened = parsed("open", flags, environ)
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
    ("# one\nmemory_limit = '1G'\n", ":2: there is no key 'memory_limit': did you mean memory-limit?"),
    ("jobz = 4\n", ":1: there is no key 'jobz': did you mean jobs?"),
    ("telemetry = true\n", ":1: there is no key 'telemetry': there are cache-dir, cache-limit, jobs,"),
    ("[triage]\n\ngap_sm = 5\n", ":3: [triage] has no key 'gap_sm': did you mean gap_ms?"),
    ("triage.gap = 5\n", ":1: [triage] has no key 'gap': did you mean gap_ms?"),
    ("[triag]\ngap_ms = 5\n", ":1: there is no key 'triag': did you mean triage?"),
    ('jobs = "4"\n', ':1: jobs is the text "4"; write jobs = 4'),
    ("jobs = 0\n", ":1: jobs = 0: give a number of threads, 1 to 256"),
    ("jobs = true\n", ":1: jobs is true; write jobs = 4"),
    ("memory-limit = 1.5\n", ':1: memory-limit is 1.5; write memory-limit = "1G"'),
    ("memory-limit = '1X'\n", ":1: memory-limit = 1X: '1X' is not a size: give a number with M or G"),
    ("memory-limit = '1M'\n", ":1: memory-limit = 1M: too little to read an export with"),
    ("clock = 'gps'\n", ':1: clock is the text "gps"; it may be "collectives", "utc", "own"'),
    ("step-range = '('\n", ":1: step-range is not a regular expression:"),
    ("ascii = 'yes'\n", ':1: ascii is the text "yes"; write ascii = true, or false'),
    ("cache-dir = '$NOWHERE/x'\n", ":1: cache-dir names $NOWHERE, which is not set"),
    ("triage = 5\n", ":1: triage is 5; write [triage] and below it lines such as gap_ms = 5"),
    ("[triage]\ngap_ms = '5'\n", ':2: gap_ms is the text "5"; write gap_ms = 5'),
    ("[triage]\ngap_ms = -5\n", ":2: gap_ms=-5: '-5' is not a number of 0 or more"),
    ("families = 5\n", ":1: families is 5; write [families] and below it lines such as 'my_attention' ="),
    ("[families]\n'fmha' = 'atention'\n", ':2: fmha is the text "atention"; the families are "GEMM", "attention"'),
    ("[families]\n'(' = 'GEMM'\n", ":2: ( is not a regular expression:"),
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


@pytest.mark.parametrize("command", [("kernels", "--by", "family"), ("stats", "-r", "nvtx_kern_sum:family")])
def test_families_of_kernels_are_the_users_own(tmp_path, run, demo_job, command):
    path = tmp_path / "config.toml"
    asked = (*command, demo_job[0], "--format", "csv")
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
