"""``nccl-log`` and ``nccl`` in a script."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from nccl_jobs import Program
from synthetic.nccl_log import call, init, step

LINES = [init(pid=1, rank=0), init(pid=2, rank=1)]
for n in (44, 45, 46):
    LINES += [step(n, n / 10, 1250), call(pid=1, op_count=n, count=2**31), call(pid=2, op_count=n, count=100)]
LOG = "\n".join([*LINES, ""])


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "nccl.log"
    path.write_text(LOG)
    return path


class TestTables:
    def test_several_tables_go_to_a_file_each(self, run, log, tmp_path):
        assert run("nccl-log", log, "--tables", "ops,sizes", "-o", tmp_path / "out.parquet").status == 0
        assert {path.name for path in tmp_path.glob("out*")} == {"out_ops.parquet", "out_sizes.parquet"}
        assert run("nccl-log", log, "--tables", "ops", "-o", tmp_path / "one.csv").status == 0
        assert (tmp_path / "one.csv").read_text().startswith("Op,Calls,")


class TestFiles:
    def ops(self, done) -> str:
        (row,) = done.table
        return row["Calls"]

    def test_many_files_are_added_up_and_one_given_twice_counts_once(self, run, log, tmp_path):
        (tmp_path / "other.log").write_text(call(pid=3, count=1) + "\n")
        words = ["--tables", "ops", "--format", "csv"]
        assert self.ops(run("nccl-log", log, log, tmp_path / "other.log", *words)) == "7"
        assert self.ops(run("nccl-log", f"{tmp_path}/*.log", *words)) == "7"

    def test_gz_is_known_by_its_bytes_and_one_that_ends_early_is_told(self, run, log, tmp_path):
        packed = tmp_path / "packed"
        packed.write_bytes(gzip.compress(LOG.encode()))
        words = ["--tables", "ops", "--format", "csv"]
        assert self.ops(run("nccl-log", packed, *words)) == "6"
        packed.write_bytes(gzip.compress((LOG * 50).encode(), 0)[:2000])
        done = run("nccl-log", packed, *words)
        assert done.status == 4
        assert f"{packed}: the .gz ends early" in done.err
        assert int(self.ops(done)) >= 6

    def test_standard_input_is_read(self, run, log, monkeypatch):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(LOG.encode()))))
        assert self.ops(run("nccl-log", "-", "--tables", "ops", "--format", "csv")) == "6"

    def test_what_cannot_be_read_is_told_and_the_rest_is_read(self, run, refused, log, tmp_path):
        (tmp_path / "empty.log").touch()
        (tmp_path / "export.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))
        (tmp_path / "log.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
        bad = ["empty.log", "export.sqlite", "log.zst", "missing.log", "."]
        done = run("nccl-log", log, *(tmp_path / name for name in bad), "--tables", "ops", "--format", "csv")
        assert (done.status, self.ops(done)) == (4, "6")
        for told in ("it is empty", "nsystui nccl ", "zstd -dc", "no such file", "a directory"):
            assert told in done.err
        assert "no log could be opened" in refused("nccl-log", *(tmp_path / name for name in bad))

    def test_an_unreadable_file_is_one_line(self, log, unprivileged):
        log.chmod(0)
        done = unprivileged("-m", "nsystui", "nccl-log", str(log))
        assert done.returncode == 2
        assert "cannot be opened" in done.stderr and "Traceback" not in done.stderr


def record(number: int, **more: object) -> str:
    """Return a record of NCCL Inspector, format v4.2."""
    header = {"id": "0xfe", "rank": 0, "n_ranks": 2, "nnodes": 1}
    metadata = {"inspector_output_format_version": "v4.2", "hostname": "n1", "pid": 1}
    perf = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 400, "coll_exec_time_us": 10, **more}
    return json.dumps({"header": header, "metadata": metadata, "coll_perf": perf}) + "\n"


class TestInspector:
    FAST = {"coll_algo": "NVLS", "coll_proto": "SIMPLE", "coll_exec_time_us": 2, "coll_busbw_gbs": 9.0}

    def test_calls_are_added_up_by_kind_and_gaps_are_counted(self, run, records, tmp_path):
        path = tmp_path / "n1-pid1.log.gz"
        text = record(0) + record(3, coll_exec_time_us=30) + record(4, **self.FAST) + record(5)[:80]
        path.write_bytes(gzip.compress(text.encode()))
        slow, fast = records("nccl-log", path, "--tables", "inspector")
        assert (slow["algorithm"], slow["calls"], slow["bytes"], slow["busbw_bytes_per_s"]) == (None, 2, 400, None)
        assert (slow["avg_ns"], slow["min_ns"], slow["max_ns"]) == (20_000, 10_000, 30_000)
        assert (fast["algorithm"], fast["protocol"], fast["calls"], fast["busbw_bytes_per_s"]) == (
            "NVLS", "SIMPLE", 1, 9e9,
        )  # fmt: skip
        told = run("nccl-log", path).err
        assert "3 calls in 4 lines; 1 more could not be read (1 of NCCL Inspector: cut" in told
        assert "no record of 2 collectives" in told and "no calls" not in told

    def test_records_beside_a_debug_log_do_not_count_twice(self, records, log, tmp_path):
        (tmp_path / "n1-pid1.log").write_text(record(0))
        found = records("nccl-log", log, tmp_path / "n1-pid1.log", "--tables", "ops,inspector,lines")
        tables = {block["table"]: block["rows"] for block in found}
        assert [row["calls"] for row in tables["ops"]] == [6]
        assert [row["calls"] for row in tables["inspector"]] == [1]
        assert {"what": "calls of NCCL Inspector", "number": 1} in tables["lines"]

    def test_other_json_and_records_over_several_lines_are_refused(self, run, tmp_path):
        path = tmp_path / "other.json"
        for text, told in (
            ('{"traceEvents": []}', "no calls of NCCL in 1 line: record with"),
            (json.dumps(json.loads(record(0)), indent=1), "(a record of NCCL Inspector is one line)"),
        ):
            path.write_text(text)
            done = run("nccl-log", path)
            assert (done.status, done.out) == (3, "") and told in done.err


class TestProgram:
    def test_it_loads_nothing_heavy_and_is_quiet_for_head(self, log):
        code = (
            "import sys; from nsystui.cli import main; main(sys.argv[1:]); "
            "print(*sys.modules, file=sys.stderr)"
        )  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code, "nccl-log", str(log), "--format", "json"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout)
        loaded = {name.partition(".")[0] for name in done.stderr.split()}
        assert loaded.isdisjoint({"pandas", "numpy", "duckdb", "sqlalchemy", "textual", "rich"})
        piped = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m nsystui nccl-log {log} --tables all | head -1"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert piped.stdout == "# Step time and TFLOPS per GPU, from the training's own lines\n"
        assert "Traceback" not in piped.stderr


# A send and a receive share a kernel.


@pytest.mark.campaign
def test_logs_tell_sizes_that_the_export_does_not(run, tmp_path):
    program = Program(tmp_path / "rank0.sqlite")
    for _ in range(2):
        program.call("ncclAllReduce", launches=1, kernel="AllReduce")
    program.export.close()
    line = "node001:5000:5000 [0] NCCL INFO AllReduce: opCount {} sendbuff 0x7 recvbuff 0x9 count {} datatype 7 op 0 "
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    for number, log in enumerate(logs):
        text = line.format(number, 100 * (number + 1)) + "root 0 comm 0x55b6 [nranks=4] stream 0x55\n"
        log.write_text(text, encoding="utf-8")
    told = run("nccl", program.export.path, "--by", "collective,bytes", "--format", "csv", "--nccl-log", *logs)
    assert [(row["What"], row["Message Size (B)"], row["Datatype"]) for row in told.table] == [
        ("kernel", "400", "fp32"), ("kernel", "800", "fp32"), ("call", "400", "fp32"), ("call", "800", "fp32"),
    ]  # fmt: skip
    assert "message sizes from the debug log, by the order of the calls: 2" in told.err
