"""``help questions``: every command there runs, on the demo and on real exports, and every key exists."""

import fnmatch
import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import campaign
import pytest
from support import REAL_EXPORTS, shared

from nsystui.cli import command_parser
from nsystui.commands import commands
from nsystui.ui.keys import KEYS

PAGE = Path(__file__).parents[2] / "nsystui/docs/questions.md"
REAL = ("ddp-a100-rank*of4", "h100-2rank-moe-before*", "gemm-pageable*")
WORDS = {"REGEX": r"step (\d+)", "WORD": "nvtx", "N": "0", "gc": "e"}
"""Values for the placeholders; the demos have no sample in a garbage collector."""
NOTHING = 3
"""The exit status of an answer without rows, whose reason is on stderr."""


class Row(NamedTuple):
    """A row of the page. ``commands`` and ``keys``: the code in their cells."""

    section: str
    question: str
    commands: list[str]
    keys: list[str]


def rows_of_the_page() -> Iterator[Row]:
    section = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if section and len(cells) == 6 and cells[1] not in ("question", "---"):
            yield Row(section, cells[1], *(re.findall("`([^`]+)`", cell) for cell in cells[2:4]))


ROWS = list(rows_of_the_page())


def of_commands(rows: list[Row]) -> list[str]:
    """Return each command once; code that is not a command, such as the table ``[families]``, is left out."""
    found = dict.fromkeys(text for row in rows for text in row.commands)
    return [text for text in found if text.split()[0] in commands()]


def filled(text: str, files: list[Path]) -> list[str | Path]:
    """Return the words of a command with its placeholders filled; ``A -- B`` are the files twice."""
    words = [WORDS.get(word, word) for word in shlex.split(text.replace("per-step N", "per-step 1e12"))]
    if words[0] != "diff":
        return [*words, *files]
    sides = words.index("A") if "A" in words else len(words)
    return ["diff", *words[sides + 3 :], *files, "--", *files]


def test_every_row_has_a_command_or_says_why_not_and_every_key_is_one_of_the_program():
    assert len(ROWS) >= 70
    shown = {key for one in KEYS for key in one.shown.split()}
    for row in ROWS:
        line = next(one for one in PAGE.read_text(encoding="utf-8").splitlines() if f"| {row.question} |" in one)
        assert row.commands or len(line.rstrip(" |").rpartition("|")[2].strip()) > 10, row.question
        assert [key for key in row.keys if key not in shown and not key.isdigit()] == [], row.question


@pytest.mark.parametrize("text", of_commands(ROWS))
def test_every_command_is_one_that_the_program_takes(text):
    if "CSV" not in text.split():
        command, *words = filled(text, [Path("rank0.sqlite")])
        command_parser(str(command)).parse_args([str(word) for word in words])


def check(run, text: str, files: list[Path], may_be_empty: bool) -> None:
    if "CSV" in text.split():
        return  # test_ncu_metrics has the tables of Nsight Compute
    done = run(*filled(text, files), "--format", "csv") if text.split()[0] != "info" else run("info", *files)
    told = f"{text}: {done.status} {done.err}"
    assert "Traceback" not in done.err and done.status in ((0, NOTHING) if may_be_empty else (0,)), told
    has_rows = done.status == 0 and done.out.count("\n") >= 2
    assert has_rows or (may_be_empty and done.err.startswith("nsystui: ")), told


@pytest.mark.campaign
@pytest.mark.parametrize("text", campaign.some(20, of_commands(ROWS)))
def test_every_command_answers_of_the_demo(run, demo_job, text):
    check(run, text, demo_job, may_be_empty=text in ("mpi", "events --kinds ucx", "events --kinds hostfunc"))


@pytest.mark.campaign
@pytest.mark.parametrize("text", of_commands([row for row in ROWS if row.section == "Inference and the host"]))
def test_every_command_on_inference_answers_of_the_demo_of_a_server(run, demo_server, text):
    check(run, text, demo_server, may_be_empty=text.startswith("functions") or text == "events --kinds hostfunc")


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "text"), campaign.some(25, product(REAL, of_commands(ROWS))))
def test_every_command_answers_of_real_exports_or_says_what_they_lack(run, name, text):
    check(run, text, shared(*fnmatch.filter(REAL_EXPORTS, name)), may_be_empty=True)
