"""Printing for commands: data on stdout, notes on stderr, quiet when the reader goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_answers import FEW, Rows

from nsystui.base.errors import OutputError, UsageError
from nsystui.output.stdout import print_answer

PRINT_MANY = """
import sys
sys.path.insert(0, {here!r})
from small_answers import Many
from nsystui.output.stdout import print_answer
print_answer(Many(length={rows}, notes=("n",)), {file_format!r})
"""


def program(rows: int, file_format: str) -> list[str]:
    here = str(Path(__file__).parent)
    return [sys.executable, "-c", PRINT_MANY.format(here=here, rows=rows, file_format=file_format)]


def test_data_and_notes_go_their_ways(capsys):
    answer = Rows(FEW.rows, notes=("4 ranks lack\nsizes\x1b",))
    assert print_answer(answer, "csv") == 3
    captured = capsys.readouterr()
    assert captured.out.startswith("Time (%),")
    assert captured.err == "nsystui: note: 4 ranks lack␊sizes␛\n"


def test_parquet_needs_a_file():
    with pytest.raises(UsageError, match=r"-o FILE\.parquet"):
        print_answer(FEW, "parquet")


@pytest.mark.parametrize("rows", [10, 30_000])
@pytest.mark.parametrize("file_format", ["csv", "table"])
def test_a_reader_that_goes_early_ends_it_quietly(rows, file_format):
    read, write = os.pipe()
    os.close(read)  # what `| true` comes to
    result = subprocess.run(program(rows, file_format), stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, b"")


def test_head_ends_it_quietly():
    with subprocess.Popen(program(30_000, "csv"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        head = subprocess.run(["head", "-2"], stdin=process.stdout, capture_output=True)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141
    assert head.stdout.count(b"\n") == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_one_error_and_not_two():
    with open("/dev/full", "w") as full:
        result = subprocess.run(program(10, "csv"), stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.stderr.rstrip().endswith("OutputError: cannot write to standard output: No space left on device")
    assert "Exception ignored" not in result.stderr


def test_no_stdout_is_said(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="closed"):
        print_answer(FEW, "csv")


@pytest.mark.parametrize("file_format", ["csv", "md", "json", "table"])
def test_a_stream_without_utf8_fails_nothing(file_format):
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from small_answers import FEW\n"
        f"from nsystui.output.stdout import print_answer; print_answer(FEW, {file_format!r})"
    )
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True)
    assert (result.returncode, result.stderr) == (0, b"")
    text = result.stdout.decode("utf-8")
    assert text.isascii() is (file_format in ("json", "table"))


@pytest.mark.parametrize("file_format", ["csv", "md", "json", "table"])
def test_a_terminal_gets_nothing_that_it_would_obey(file_format):
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from small_answers import FEW\n"
        f"from nsystui.output.stdout import print_answer; print_answer(FEW, {file_format!r})"
    )
    terminal, end = os.openpty()
    environ = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm"}
    result = subprocess.run([sys.executable, "-c", code], env=environ, stdout=end, stderr=subprocess.PIPE)
    os.close(end)
    shown = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert (result.returncode, result.stderr) == (0, b"")
    assert "ncclKernel" in shown
    assert "\x1b" not in shown
    assert ("␛" in shown) is (file_format != "json")


def test_importing_the_output_brings_nothing_heavy():
    code = (
        "import sys; import nsystui.output.stdout, nsystui.output.files, nsystui.output.formats; "
        "import nsystui.base.terminal\n"
        "print({'textual', 'rich', 'pandas', 'numpy', 'duckdb', 'sqlalchemy'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "set()\n", result.stderr
