"""Printing for commands: data on stdout, notes on stderr, quiet when the reader closes the pipe."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_answers import FEW

from nsystui.base.errors import OutputError, UsageError
from nsystui.base.terminal import complain
from nsystui.output.files import print_answer

FORMATS = ("table", "json", "csv", "md")  # the last two switch the stream to UTF-8 for good


def program(answer: str, *formats: str) -> list[str]:
    """Return the command line of a Python that prints an answer of ``small_answers`` in formats."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from small_answers import FEW, Many
from nsystui.output.files import print_answer
for file_format in {formats!r}:
    print_answer({answer}, file_format)
    print("END", flush=True)
"""
    return [sys.executable, "-c", code]


def many(rows: int) -> str:
    return f"Many(length={rows}, notes=('n',))"


def test_notes_are_made_safe_and_go_to_stderr(capsys):
    complain("note: 4 ranks lack\nsizes\x1b")
    assert capsys.readouterr() == ("", "nsystui: note: 4 ranks lack␊sizes␛\n")


def test_parquet_needs_a_file():
    with pytest.raises(UsageError, match=r"-o FILE\.parquet"):
        print_answer(FEW, "parquet")


@pytest.mark.parametrize("rows", [10, 30_000])
@pytest.mark.parametrize("file_format", ["csv", "table"])
def test_a_reader_that_goes_early_ends_it_quietly(rows, file_format):
    read, write = os.pipe()
    os.close(read)  # the effect of `| true`
    result = subprocess.run(program(many(rows), file_format), stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, b"")


def test_no_stdout_is_said(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="closed"):
        print_answer(FEW, "csv")


def test_a_stream_without_utf8_fails_nothing():
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(program("FEW", *FORMATS), env=environ, capture_output=True)
    assert (result.returncode, result.stderr) == (0, b"")
    *texts, _ = result.stdout.decode("utf-8").split("END\n")
    for file_format, text in zip(FORMATS, texts, strict=True):
        assert text.isascii() is (file_format in ("json", "table")), file_format


def test_a_terminal_gets_nothing_that_it_would_obey():
    terminal, end = os.openpty()
    environ = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm"}
    result = subprocess.run(program("FEW", *FORMATS), env=environ, stdout=end, stderr=subprocess.PIPE)
    os.close(end)
    *texts, _ = os.read(terminal, 10_000).decode().split("END\r\n")
    os.close(terminal)
    assert (result.returncode, result.stderr) == (0, b"")
    for file_format, shown in zip(FORMATS, texts, strict=True):
        assert "ncclKernel" in shown, file_format
        assert "\x1b" not in shown, file_format
        assert ("␛" in shown) is (file_format != "json"), file_format
