"""Saving: whole or not at all, and never over another file."""

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from io import BytesIO, TextIOWrapper
from itertools import product
from pathlib import Path

import campaign
import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_answers import FEW, Many, Rows

from nsystui.base.answer import Row
from nsystui.base.errors import OutputError, UsageError
from nsystui.base.terminal import complain
from nsystui.output.files import TargetExistsError, print_answer, propose_name, save

ENDINGS = ["csv", "json", "md", "txt", "parquet"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_saved_whole_under_its_name_only(tmp_path, ending):
    path = tmp_path / f"kernels.{ending}"
    assert save(FEW, path) == 3
    assert list(tmp_path.iterdir()) == [path]
    if ending == "parquet":
        with duckdb.connect() as connection:
            assert connection.read_parquet(str(path)).fetchall()[0] == FEW.rows[0]
    else:
        assert "ncclKernel_AllReduce" in path.read_text(encoding="utf-8")
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 & umask == 0


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_existing_file_is_left_unless_asked(tmp_path, ending):
    path = tmp_path / f"kernels.{ending}"
    path.write_text("mine")
    path.chmod(0o600)
    with pytest.raises(TargetExistsError, match="already exists"):
        save(FEW, path)
    assert path.read_text() == "mine"
    assert save(FEW, path, overwrite=True) == 3
    assert path.read_bytes() != b"mine"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


class Late(Rows):
    """Rows during whose reading another program writes a file."""

    def __init__(self, rows: Sequence[Row], path: Path) -> None:
        super().__init__(rows)
        self._path = path

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        self._path.write_text("theirs")
        return super().page(offset, limit)


def test_a_file_that_appears_meanwhile_is_left(tmp_path):
    path = tmp_path / "kernels.csv"
    with pytest.raises(TargetExistsError):
        save(Late(FEW.rows, path), path)
    assert path.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_written_through_only_when_asked(tmp_path):
    link, real = tmp_path / "link.csv", tmp_path / "real.csv"
    link.symlink_to(real)
    with pytest.raises(TargetExistsError):
        save(FEW, link)
    assert not real.exists()
    save(FEW, link, overwrite=True)
    assert link.is_symlink()
    assert real.read_text().startswith("Time")


class Failing(Rows):
    def page(self, offset: int, limit: int) -> Sequence[Row]:
        raise RuntimeError("the answer failed")


@pytest.mark.campaign
def test_what_stops_the_writing_leaves_nothing(tmp_path):
    for ending, overwrite in product(ENDINGS, (False, True)):
        with pytest.raises(RuntimeError, match="the answer failed"):
            save(Failing([(1,)]), tmp_path / f"a.{ending}", overwrite)
        assert list(tmp_path.iterdir()) == [], (ending, overwrite)


def one_line(error: pytest.ExceptionInfo[OutputError]) -> str:
    assert str(error.value).isprintable()
    return str(error.value)


def test_a_missing_directory_is_named(tmp_path):
    (tmp_path / "file").touch()
    for ending, place in product(ENDINGS, ("none does not exist", "file is not a directory")):
        with pytest.raises(OutputError) as error:
            save(FEW, tmp_path / place.partition(" ")[0] / f"a.{ending}")
        assert f"{tmp_path}/{place}" in one_line(error), ending


def test_what_is_no_file_is_never_replaced(tmp_path):
    (tmp_path / "d.csv").mkdir()
    os.mkfifo(tmp_path / "p.csv")
    for name, why in (("d.csv", "is a directory"), ("p.csv", "is not a regular file")):
        with pytest.raises(OutputError, match=why):
            save(FEW, tmp_path / name, overwrite=True)


def test_a_name_without_a_known_ending_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"\.parquet"):
        save(FEW, tmp_path / "kernels")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("exists", campaign.first(1, [True, False]))
def test_a_full_disk_says_so_and_leaves_what_was_there(tmp_path, monkeypatch, ending, exists):
    path = tmp_path / f"a.{ending}"
    # Python would leave truncated bytecode of a module that is imported meanwhile.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    if exists:
        path.write_text("mine")
    # A limit on the size of files fails like a full disk: in the middle of a write.
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OutputError) as error:
            save(Many(length=130_000 if ending == "parquet" else 5_000), path, overwrite=exists)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert one_line(error).endswith("File too large")
    assert [entry.read_text() for entry in tmp_path.iterdir()] == (["mine"] if exists else [])


def test_the_reasons_of_the_system_are_worded(tmp_path, monkeypatch):
    reasons = {
        errno.ENOSPC: "no space left", errno.EDQUOT: "quota", errno.EACCES: "no permission", errno.EROFS: "read-only",
    }  # fmt: skip
    for code, words in reasons.items():

        def fail(descriptor: int, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OutputError, match=words):
            save(FEW, tmp_path / "a.csv")
        assert list(tmp_path.iterdir()) == [], words


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_duckdbs_words_for_a_full_disk_become_ours(tmp_path):
    from nsystui.output.parquet import _copy

    with duckdb.connect() as connection, pytest.raises(OSError, match="No space left") as error:
        _copy(connection, "SELECT range FROM range(1000000)", Path("/dev/full"))
    assert error.value.errno == errno.ENOSPC


def test_odd_names_and_text_are_no_obstacle(tmp_path):
    rows = Rows([(None, 1, 1, None, "r\udcff \x00 é")])
    for ending in ENDINGS:
        path = tmp_path / f'-it\'s; a "[file]" * ï.{ending}'
        assert save(rows, path) == 1
        if ending != "parquet":
            path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("job", "pane", "filter_text", "extension", "name"), [
    ("rank0.sqlite", "kernels", "nvjet", "csv", "rank0-kernels-nvjet.csv"),
    ("/scratch/job 5/rank0.nsys-rep", "kernels", None, ".json", "rank0-kernels.json"),
    ("llama", "nccl", "", "csv", "llama-nccl.csv"),
    ("", "kernels", None, "md", "report-kernels.md"),
    ("é $(rm -rf ~).sqlite", "GPU", "!/void .*<float>/", "csv", "e-rm-rf-GPU-not-void-.-float.csv"),
    ("...sqlite", "events", "漢", "csv", "report-events.csv"),
])  # fmt: skip
def test_proposed_names(job, pane, filter_text, extension, name):
    assert propose_name(job, pane, filter_text, extension) == name


@given(st.text(), st.text(), st.one_of(st.none(), st.text()))
def test_proposed_names_are_safe_and_short(job, pane, filter_text):
    name = propose_name(job * 40, pane * 30, filter_text and filter_text * 50, "csv")
    assert len(name.encode()) <= 150
    assert name.endswith(".csv")
    assert name[0].isalnum()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


FORMATS = ("table", "json", "csv", "md")


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
    code = program(f"Many(length={rows}, notes=('n',))", file_format)
    result = subprocess.run(code, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, b"")


def test_no_stdout_is_said(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="closed"):
        print_answer(FEW, "csv")


@pytest.mark.parametrize("file_format", ["table", "json", "csv", "md"])
def test_a_stream_without_utf8_fails_nothing(monkeypatch, file_format):
    stream = TextIOWrapper(BytesIO(), encoding="ascii", newline="\r\n")
    monkeypatch.setattr(sys, "stdout", stream)
    print_answer(FEW, file_format)
    text = stream.buffer.getvalue().decode("utf-8")
    assert text.isascii() is (file_format in ("json", "table"))
    assert "\r\n" not in text or file_format == "csv"


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
