"""``nsystui FILE…`` on logs of NCCL: which files are logs, and which can be opened together."""

import gzip
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from nsystui.base.errors import UsageError
from nsystui.commands.open import named_files
from nsystui.exports.nccl_log.files import LOOKED_AT, FileKind, kind_of

LINE = b"n0:1:7 [0] NCCL INFO NET/IB : No device found.\n"


@pytest.fixture
def log(tmp_path) -> str:
    return written(tmp_path / "nccl.0.log", LINE)


@pytest.fixture
def export(tmp_path) -> str:
    path = tmp_path / "rank0.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    return str(path)


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


class TestKinds:
    @pytest.mark.parametrize("content", [
        LINE,
        b"[1,3]<stderr>:n0:1:7 [0] NCCL WARN Cuda failure\n",
        b"n0:1:7 [0] NCCL TRACE opens\n",
        b"RCCL version 2.18.3 HIP\n",
        b"progress 10%\r" * 1000 + LINE,
        b"x" * (LOOKED_AT - 2 * len(LINE)) + LINE,
        b"y" * (256 * 1024 - 20) + LINE,
        gzip.compress(b"before\n" * 1000 + LINE),
        b"Training epoch 0, iteration 45/99 | train_step_timing in s: 1.5\n",
    ], ids=["info", "warn", "trace", "rccl", "bar", "late", "across", "gzip", "training"])  # fmt: skip
    def test_lines_of_nccl_make_a_log_whatever_its_name(self, tmp_path, content):
        assert kind_of(written(tmp_path / "rank0.sqlite", content)) is FileKind.LOG

    @pytest.mark.parametrize(
        "content",
        [b"", b"loss 1.0\nNCCL_DEBUG=INFO\n", b"\0" * 1000, b"\x1f\x8bno gzip", b"x" * LOOKED_AT * 2 + LINE],
        ids=["empty", "output", "zeros", "damaged", "too late"],
    )
    def test_anything_else_is_neither(self, tmp_path, content):
        assert kind_of(written(tmp_path / "nccl.log", content)) is None

    @pytest.mark.parametrize("content", [b"SQLite format 3\0" + LINE, b"QUADD" + LINE])
    def test_what_nsys_writes_is_no_log(self, tmp_path, content):
        assert kind_of(written(tmp_path / "nccl.log", content)) is FileKind.EXPORT

    def test_what_cannot_be_looked_at_is_neither(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for name in (tmp_path / "pipe", tmp_path, tmp_path / "gone", "a\0b"):
            assert kind_of(str(name)) is None


class TestTogether:
    def test_logs_alone(self, log, tmp_path):
        other = written(tmp_path / "nccl.10.log.gz", gzip.compress(LINE))
        assert named_files([other, log], None) == ((), (log, other))

    def test_a_log_without_a_line_of_nccl_goes_with_the_others(self, log, tmp_path):
        quiet = written(tmp_path / "nccl.1.log", b"hello\n")
        assert named_files([log, quiet], None)[1] == (log, quiet)

    def test_a_quoted_glob(self, log, tmp_path):
        assert named_files([str(tmp_path / "nccl*.log")], None)[1] == (log,)

    def test_exports_alone_stay_as_they_were_named(self, export, tmp_path):
        assert named_files([str(tmp_path)], None) == ((str(tmp_path),), ())
        assert named_files([export], None) == ((export,), ())

    def test_both(self, export, log, tmp_path):
        assert named_files([export], [str(tmp_path / "*.log")]) == ((export,), (log,))

    def test_neither_is_left_to_the_opening_of_exports(self, tmp_path):
        path = written(tmp_path / "notes.txt", b"hello\n")
        assert named_files([path], None) == ((path,), ())

    def test_only_a_few_of_many_names_are_written_out(self, export, tmp_path):
        logs = [written(tmp_path / f"nccl.{number}.log", LINE) for number in range(9)]
        with pytest.raises(UsageError) as refused:
            named_files([export, *logs], None)
        assert str(refused.value).endswith("nccl.1.log …")

    def test_logs_in_both_places_are_refused(self, log):
        with pytest.raises(UsageError, match="name it after --nccl-log"):
            named_files([log], [log])

    @pytest.mark.parametrize(("name", "said"), [
        ("gone*.log", "no such file"),
        ("", "a directory; name the logs in it"),
        ("rank0.sqlite", "name exports before --nccl-log"),
    ])  # fmt: skip
    def test_what_cannot_be_a_log_is_refused_before_anything_is_opened(self, export, tmp_path, name, said):
        with pytest.raises(UsageError, match=said):
            named_files([export], [str(tmp_path / name)])

    def test_standard_input_is_for_the_keys(self, export):
        with pytest.raises(UsageError, match="nsystui nccl-log -"):
            named_files([export], ["-"])


class TestCommand:
    def test_without_a_terminal_the_command_for_logs_is_named(self, refused, log):
        assert "nsystui nccl-log FILE" in refused(log)
