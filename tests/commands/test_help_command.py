"""``nsystui help``: lists the topics, shows a topic, and suggests the nearest."""

import re
import subprocess
import sys
from pathlib import Path

import campaign
import pytest
from harness import Terminal
from recorded import decimal_names

import nsystui
from nsystui.cli import command_parser
from nsystui.commands import commands
from nsystui.commands.help import rendered

DOCS = Path(nsystui.__file__).parent / "docs"
TOPICS = sorted(path.stem for path in DOCS.glob("*.md"))
WORDS = [sys.executable, "-m", "nsystui", "help"]
KEYS = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PAGER": "cat"}


def test_without_a_topic_it_lists_every_topic_with_its_first_line(run):
    done = run("help")
    assert (done.status, done.err) == (0, "")
    for topic in TOPICS:
        title = (DOCS / f"{topic}.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert any(line.strip().split(maxsplit=1) == [topic, title] for line in done.out.splitlines()), topic
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_in_a_pipe_is_plain_text(run, topic):
    done = run("help", topic)
    assert (done.status, done.err) == (0, "")
    assert done.out == (DOCS / f"{topic}.md").read_text(encoding="utf-8")


def test_the_name_of_a_command_gives_the_help_of_that_command(run):
    assert run("help", "kernels").out == run("kernels", "--help").out
    assert run("help", "nccl-log").out == run("nccl-log", "--help").out


def test_case_and_ending_of_a_topic_do_not_matter(run):
    assert run("help", "Numbers.md").out == run("help", "numbers").out


@pytest.mark.campaign
def test_on_a_terminal_a_topic_goes_through_the_pager(tmp_path):
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGED\nexec cat\n")
    pager.chmod(0o755)
    with Terminal([*WORDS, "numbers"], KEYS | {"PAGER": str(pager)}) as terminal:
        assert terminal.wait_exit(30) == 0
        assert b"PAGED" in terminal.received and b"Hyndman" in terminal.received
        assert b"# Numbers" not in terminal.received


@pytest.mark.parametrize("environment", campaign.first(
    1, [{"PAGER": "no-such-pager"}, {"PAGER": ""}, {"TERM": "dumb"}, {"PAGER": None, "PATH": "/nowhere"}]
))  # fmt: skip
def test_without_a_pager_a_topic_is_printed(environment):
    with Terminal([*WORDS, "glossary"], KEYS | environment) as terminal:
        assert terminal.wait_exit(30) == 0
        assert b"straggler" in terminal.received
        assert (b"not found" in terminal.received) == (environment.get("PAGER") == "no-such-pager")


def test_ctrl_c_is_a_key_of_the_pager(tmp_path):
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\ntrap 'echo INTERRUPTED; exit 0' INT\necho READY\nwhile :; do sleep 0.1; done\n")
    pager.chmod(0o755)
    with Terminal([*WORDS, "glossary"], KEYS | {"PAGER": str(pager)}) as terminal:
        terminal.wait_for("READY")
        terminal.press("ctrl+c")
        assert terminal.wait_exit(30) == 0
        assert b"INTERRUPTED" in terminal.received and b"Traceback" not in terminal.received


@pytest.mark.parametrize("topic", campaign.first(5, TOPICS))
def test_a_topic_fits_into_80_columns_of_a_terminal(topic):
    text = (DOCS / f"{topic}.md").read_text(encoding="utf-8")
    shown = rendered(text, 80, {"TERM": "dumb", "LANG": "C.UTF-8"}, "utf-8")
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("…") == text.count("…"), "a cell was cut"


@pytest.mark.campaign
@pytest.mark.parametrize("topic", campaign.some(6, TOPICS))
def test_a_terminal_without_utf8_gets_ascii(topic):
    shown = rendered((DOCS / f"{topic}.md").read_text(encoding="utf-8"), 80, {"TERM": "dumb", "LC_ALL": "C"}, "ascii")
    assert shown.isascii()
    assert max(map(len, shown.splitlines())) <= 80


def test_a_link_is_the_command_that_shows_its_topic():
    text = "see [ranks](ranks.md#clock), [the terms](glossary.md), [below](#figures), [POP](https://pop-coe.eu)"
    shown = rendered(text, 100, {"TERM": "dumb", "LANG": "C.UTF-8"}, "utf-8")
    told = "see nsystui help ranks, the terms (nsystui help glossary), below, POP (https://pop-coe.eu)"
    assert " ".join(shown.split()) == told


def test_a_topic_in_a_pipe_loads_nothing_that_it_does_not_use():
    code = "import sys; from nsystui.cli import main; main(['help', 'numbers']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert loaded.isdisjoint({"rich", "textual", "pandas", "numpy", "sqlalchemy", "duckdb"})


ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "nsystui/docs").glob("*.md"))]


def test_neither_help_nor_documentation_has_an_amount_with_a_decimal_name():
    for command in commands():
        assert decimal_names(command_parser(command).format_help()) == [], command
    for page in PAGES:
        assert decimal_names(page.read_text(encoding="utf-8")) == [], page


def test_the_program_has_no_such_name_in_its_texts_but_in_the_columns_of_nsys():
    package = ROOT / "nsystui"
    found = {}
    for path in sorted(package.rglob("*.py")):
        texts = re.findall(
            r'"[^"\n]*"', re.sub(r'""".*?"""|#.*', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        )
        if lines := decimal_names("\n".join(texts)):
            found[path.relative_to(package).as_posix()] = lines
    assert [path for path in found if not path.startswith("questions/stats/")] == []
