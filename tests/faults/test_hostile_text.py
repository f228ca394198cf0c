"""Names with escape sequences and invisible characters: no output lets a terminal obey or hide them."""

import csv
import io
import json
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import jobs
import program
import pytest
import synthetic
from campaign import some
from harness import Terminal
from scenes import SCENES
from synthetic import demo, hostile

from nsystui.questions.job.opening import JobSource
from nsystui.ui.app import NsystuiApp

LOG = "".join(
    f"n{text}:1:7 [0] NCCL INFO comm 0xc{number}{text} rank 0 nranks 2 cudaDev 0 busId b000 commId 0xfe - "
    "Init COMPLETE\n"
    f"n{text}:1:7 [0] NCCL INFO AllReduce{text}: opCount {number:x} sendbuff 0x1 recvbuff 0x2 count 100 datatype 7 "
    f"op 0 root 0 comm 0xc{number}{text} [nranks=2] stream 0x3{text}\n"
    f"n{text}:1:7 [0] NCCL WARN {text} something {text}\n"
    for number, text in enumerate(" ".join(one.splitlines()) for one in hostile.TEXTS)
)
FORMATS = ("table", "csv", "json", "md")


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> list[Path]:
    """Return two ranks with hostile texts, file names and directory."""
    directory = tmp_path_factory.mktemp("hostile") / "job\x1b]0;owned\x07\u200b"
    directory.mkdir()
    paths = [hostile.renamed(path) for path in demo.TrainingJob(ranks=2, steps=2, layers=1).write(directory)]
    return [path.rename(path.with_name(f"rank{number}\u2028\x9b31m.sqlite")) for number, path in enumerate(paths)]


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> list[Path]:
    """Return exports of tables that the job lacks: managed memory, MPI, graphs, and bare names."""
    directory = tmp_path_factory.mktemp("others")
    names = ("unified_memory", "whole_graph", "two_process", "simulation")
    made = [hostile.renamed(getattr(synthetic, f"{name}_export")(directory / f"{name}.sqlite")) for name in names]
    return [*made, synthetic.hostile_names_export(directory / "names.sqlite")]


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "nccl\u200b\x1b[5m.log"
    path.write_text(LOG, encoding="utf-8", errors="surrogateescape")
    return path


def trouble(ran: program.Ran) -> str:
    """Return the parts of a command's output that a terminal would obey or hide."""
    found = hostile.unprintable(ran.out) | hostile.unprintable(ran.err)
    lines = [line for line in (ran.out + ran.err).split("\n") if hostile.unprintable(line)]
    return f"{ran.words[:3]} {ran.words[-2:]}: {sorted(found)}\n{lines[:3]}" if found else ""


def expect_printable(ran: Sequence[program.Ran]) -> None:
    """Check that no command failed or printed text that a terminal would obey or hide."""
    assert not program.failures(ran)
    assert not [found for one in ran if (found := trouble(one))]


def asked(words: tuple[str, ...], files: list[Path], formats: Sequence[str] = FORMATS) -> list[program.Ran]:
    """Run a command in these formats: CSV as on a terminal, because a file gets unchanged text."""
    ran = [program.run(*words, *files, *([] if fmt == "table" else ["--format", fmt]), is_terminal=fmt == "csv")
           for fmt in formats]  # fmt: skip
    return [one for one in ran if "unrecognized arguments" not in one.err]


@pytest.mark.campaign
@pytest.mark.parametrize("part", some(4, range(4)))
def test_no_command_prints_in_any_format_what_a_terminal_obeys_or_hides(part, job, others):
    ran = []
    for words in program.questions()[part::4]:
        ran += asked(words, job)
        if words[0] in ("memory", "mpi", "osrt", "events", "stats", "triage", "info"):
            ran += [one for path in others for one in asked(words, [path], ("table", "md"))]
    expect_printable(ran)


@pytest.mark.parametrize("which", [slice(1, 2), pytest.param(slice(None), marks=pytest.mark.campaign)], ids=str)
def test_commands_that_write_files_say_so_in_printable_lines(job, tmp_path, which):
    """Data in the files is unchanged, except in Paraver's labels and Markdown, which people read."""
    writing = [*program.writers(tmp_path, job), ("kernels", *job, "-o", tmp_path / "job\x1b[5m" / "out.csv")]
    writing[-1:-1] = [("triage", *job, "-o", tmp_path / name) for name in ("triage.md", "triage.txt")]
    expect_printable([program.run(*words) for words in writing[which]])
    files = [*tmp_path.glob("*.md"), *tmp_path.glob("*.txt"), *tmp_path.glob("job.*")]
    assert files
    for path in files:
        assert not hostile.unprintable(path.read_text(encoding="utf-8")), path.name


def test_data_for_programs_is_exact(job, tmp_path):
    """CSV, JSON and Parquet have the export's names, character for character."""
    import duckdb

    with closing(sqlite3.connect(job[0])) as connection:
        query = "SELECT DISTINCT value FROM StringIds JOIN CUPTI_ACTIVITY_KIND_KERNEL ON id = demangledName"
        names = {text for (text,) in connection.execute(query)}
    for ending in ("csv", "json", "parquet"):
        assert not program.run("kernels", job[0], "-o", tmp_path / f"k.{ending}").trouble
    rows = {
        "csv": csv.DictReader(io.StringIO((tmp_path / "k.csv").read_bytes().decode(), newline="")),
        "json": json.loads((tmp_path / "k.json").read_text(encoding="ascii")),
        "parquet": duckdb.read_parquet(str(tmp_path / "k.parquet")).df().to_dict("records"),
    }
    for ending, found in rows.items():
        assert {row.get("name", row.get("Name")) for row in found} == names, ending
    assert len({hostile.TEXTS.index(one) for one in hostile.TEXTS for name in names if name.endswith(one)}) > 5


@pytest.mark.campaign
def test_files_that_are_no_exports_and_words_that_make_no_sense(job, log, tmp_path):
    bad = tmp_path / "no\x1b]0;t\x07\u200b\n\udcff.sqlite"
    bad.write_bytes(b"hello")
    config = tmp_path / "con\u202efig.toml"
    config.write_text('"\\u001b[31m" = 1\n', encoding="utf-8")
    other = tmp_path / "other.toml"
    other.write_text('sort = "\\u001b]0;t\\u0007\\u2028"\njobs = "\\u001b"\n', encoding="utf-8")
    asked = [
        *(("kernels", path) for path in (bad, f"{bad}x", tmp_path / "\x1b[5m*", bad.with_suffix(".nsys-rep"))),
        *(("kernels", job[0], flag, "/[\x1b[5m/") for flag in ("--sort", "--filter", "--time", "--ranks", "--x\x1b")),
        *(("kernels", job[0], "--config", path) for path in (config, other, tmp_path / "\x1b")),
        *(("nccl-log", *logs) for logs in ((bad, log), (f"{log}x",))), ("kernels", job[0], "-o", f"{bad}.csv\x1b"),
        ("recipe", "\x1b[5m"), ("stats", "-r", "\x1b[5m", job[0]), ("\x1b[5m",), ("--\x1b",),
        ("nccl", job[0], "--nccl-log", log), ("export", "--trace", "x\x1b", job[0]),
        ("demo", "--write-only", "--directory", tmp_path / "de\x1b[5mmo\udcff"),
    ]  # fmt: skip
    bad.with_suffix(".nsys-rep").write_bytes(b"QUADD")
    expect_printable([program.run(*words) for words in asked])


def test_logs_of_nccl(log):
    ran = asked(("nccl-log",), [log])
    expect_printable(ran)
    assert all("n" in one.out for one in ran)


def test_a_command_for_a_shell_is_one_quoted_printable_line(job):
    """Also for names of programs with quotes, or with characters that a terminal obeys."""
    ran = program.run("ncu", *job, "--top", "100")
    commands = [line for line in ran.out.split("\n") if line and not line.startswith("# ")]
    assert commands and all(line.startswith("ncu ") and line.endswith(" ...") for line in commands)
    assert all(len(line.split("\n")) == 1 and not hostile.unprintable(line) and shlex.split(line) for line in commands)


@pytest.mark.campaign
def test_what_bash_runs_of_it_is_the_program_itself(tmp_path):
    path = tmp_path / "rank0.sqlite"
    with demo.ExportWriter(path) as export:
        for number, text in enumerate(hostile.TEXTS):
            process = export.process(5_000 + number, f"/opt/app{text}")
            export.thread(process, 5_000 + number, "main")
            export.kernel(process, 0, 7, 1_000, 2_000, name="axpy", short="axpy", correlation_id=1)
    told = program.run("ncu", path, "--top", "100").out.split("\n")
    commands = [line.removesuffix(" ...") for line in told if line.startswith("ncu ")]
    assert not [command for command in commands if hostile.unprintable(command)]
    script = "\n".join(["ncu() { printf '%s\\0' \"${@: -1}\"; }", *commands])
    done = subprocess.run(["bash", "-c", script], capture_output=True)
    expected = {f"/opt/app{text}".rpartition("/")[2] for text in hostile.TEXTS}
    assert (set(done.stdout.decode().split("\0")) - {""}, done.stderr) == (expected, b"")


WALKS = (
    *(scene.keys for scene in SCENES),
    ("1", "enter", "enter"), ("1", "d"), ("1", "i"), ("1", "tab", "enter", "n", "n"),
    ("2", "a", "f", "v", "s"), ("2", "u", "y"), ("2", "y", "e"), ("2", "enter", "u"), ("2", "slash"),
    ("3", "b", "c"), ("3", "v", "s", "d", "enter"), ("3", "enter", "c", "c"),
    ("4", "o", "m", "V", "b", "a", "enter"),
    ("5", "b", "o", "n", "c"), ("5", "v", "b", "enter"), ("5", "d", "y"),
    ("6", "enter", "down", "c", "y"), ("6", "K"), ("6", "E"),
    ("7", "v", "c"), ("7", "C"), ("9", "v", "p"),
    ("L", "space", "down", "space", "right_square_bracket", "enter"), ("L", "o"), ("L", "u"), ("ctrl+p",),
)  # fmt: skip


class Found(dict):
    """Parts that a terminal would obey or hide: of screens, and of the clipboard except tabs."""

    def look(self, app: NsystuiApp, where: object) -> None:
        text = "".join(segment.text for strip in app.screen._compositor.render_strips() for segment in strip)
        if bad := hostile.unprintable(text) | hostile.unprintable(app.clipboard.replace("\t", " ")):
            self[where] = sorted(bad)


@pytest.mark.campaign
@pytest.mark.parametrize("size", some(2, [jobs.NARROW, (160, 48)]), ids=str)
async def test_every_screen_shows_and_copies_printable_text(job, cache_directory, size):
    found = Found()
    async with jobs.running(job, cache_directory, size) as (app, pilot):
        for keys in some(len(WALKS), WALKS):
            for number, key in enumerate(keys, 1):
                await pilot.press(key)
                found.look(app, keys[:number])
            await back(app, pilot)
    assert found == {}


async def back(app: NsystuiApp, pilot: object) -> None:
    while len(app.screen_stack) > 1 or app.screen.prompt.is_open:
        await pilot.press("escape")


@pytest.mark.campaign
@pytest.mark.parametrize("texts", [hostile.TEXTS[:2], hostile.TEXTS[2:]], ids=["few", "others"])
async def test_prompts_and_what_is_selected_show_a_name_in_printable_text(job, cache_directory, texts):
    """Keys and a paste from another window put a name into a filter; the pasted text is cleaned."""
    found = Found()
    async with jobs.running(job[:1], cache_directory) as (app, pilot):
        await pilot.press("2")
        for number, text in enumerate(some(len(texts), texts)):
            app.select(app.selection.with_name(f"x{text}"))
            await pilot.pause()
            for key in ("f", "e"):
                await pilot.press(key)
                assert app.screen.prompt.is_open
                found.look(app, (number, key))
                if key != "f":
                    app.screen.prompt.input.value = f"/no/{text}/x"
                    await pilot.press("enter")
                    assert app.screen.prompt.is_open
                    found.look(app, (number, key, "enter"))
                await pilot.press("home", "shift+end", "ctrl+x")
                assert app.clipboard
                found.look(app, (number, key, "copied"))
                await pilot.press("escape")
    assert found == {}


@pytest.mark.campaign
async def test_the_screens_of_a_log_show_printable_text(log):
    found = Found()
    app = NsystuiApp(JobSource((), logs=(str(log),)))
    async with app.run_test(size=jobs.WIDE) as pilot:
        jobs.line_with(app, "calls in")
        for key in ("tab", "enter", "y", "escape", *["tab"] * 6):
            await pilot.press(key)
            found.look(app, key)
        for key in ("1", "L"):
            await pilot.press("escape", key)
            jobs.line_with(app, "no export is open")
    assert found == {}


SEQUENCE = re.compile(
    rb"\x1b\[([0-9;:?<>=]*)([ -/]*[@-~])|\x1b\]52;c;[A-Za-z0-9+/=]*\x07|\x1b(?:\]22;default\x07|[78=>])"
)


def sent(files: list[Path], cache: Path) -> tuple[set[bytes], set[bytes], str]:
    """Return every screen's output to a terminal: colours, other sequences except positions, and other characters."""
    words = [sys.executable, "-m", "nsystui", *map(str, files)]
    with Terminal(words, {"NSYSTUI_CACHE_DIR": str(cache)}, columns=120, lines=36) as terminal:
        terminal.wait_for("Kernels")
        for key in ("2", "u", "escape", "y", "f", "escape", *"34567L1Wq"):
            terminal.mark()
            terminal.press(key)
            terminal.answer(quiet=0.5)
        terminal.press("q")
        assert terminal.wait_exit() == 0
        received = terminal.received
    found = [match.groups() for match in SEQUENCE.finditer(received)]
    colours = {numbers for numbers, end in found if end == b"m"}
    others = {numbers + end for numbers, end in found if end is not None and end not in b"mABCDGHXd"}
    return colours, others, SEQUENCE.sub(b"", received).decode()


@pytest.mark.campaign
def test_a_terminal_gets_the_programs_own_sequences_and_printable_text(job, demo_job, cache_directory):
    """A job with hostile names sends no kinds of sequences that a job with plain names does not send."""
    usual, hostile_ = sent(demo_job[:2], cache_directory), sent(job, cache_directory)
    assert b"31;45;5" not in hostile_[0]
    assert hostile_[1] <= usual[1]
    text = hostile_[2].replace("\r", "").replace("\x1b]11;?\x07", "")  # the question for the colour of the page
    assert not hostile.unprintable(text)
