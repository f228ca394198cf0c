"""Files that are not exports, logs or tables of ncu, and damaged files, as users name them by mistake."""

from __future__ import annotations

import gzip
import io
import json
import os
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

from .shapes import two_process_export

NCU = '"ID","Kernel Name","Context","Stream","Section Name","Metric Name","Metric Unit","Metric Value"\n'
DIGITS, DEEP = "9" * 100_000, "[" * 100_000 + "]" * 100_000
LOG = """node1:1:2 [0] $CCL I$FO AllReduce: 4096 Bytes -> Algo N proto N time 1.0
node1:1:2 [0] $CCL I$FO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 acc (nil) count N datatype 7 op 0 root 0 \
comm 0x1 [nranks=N] stream 0x1
Training epoch N, iteration N/N
"""


def odd_inputs(directory: Path) -> None:
    """Write the files into ``directory``, each named after its oddity."""
    export = two_process_export(directory / "whole.sqlite").read_bytes()
    os.symlink("gone.sqlite", directory / "link.sqlite")
    os.mkfifo(directory / "pipe.sqlite")
    for name in ("folder", "parquet", "arrow"):
        (directory / name).mkdir()
    (directory / "parquet/CUPTI_ACTIVITY_KIND_KERNEL.parquet").write_bytes(b"PAR1 is the beginning only")
    (directory / "arrow/CUPTI_ACTIVITY_KIND_KERNEL.arrow").write_bytes(b"ARROW1 is the beginning only")
    with closing(sqlite3.connect(directory / "browser.sqlite")) as other, other:
        other.execute("CREATE TABLE moz_places (id INTEGER PRIMARY KEY, url TEXT)")
    with closing(sqlite3.connect(directory / "strings.sqlite")) as other, other:
        other.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    with closing(sqlite3.connect(directory / "no-tables.sqlite")) as other, other:
        other.executescript("CREATE TABLE gone (a); DROP TABLE gone")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("notes.txt", "no export")
    trace = json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{"ph": "X", "cat": "kernel"}] * 40})
    for name, content in {
        "empty.sqlite": b"",
        "text.sqlite": b"these are not the bytes you are looking for\n" * 10,
        "cut.sqlite": export[:-5000],
        "header.sqlite": export[:100],
        **{f"{size}-bytes.sqlite": export[:size] for size in (1, 15, 16, 20, 99)},
        "journal.sqlite": export,
        "journal.sqlite-journal": b"x" * 512,
        "rank0.nsys-rep": b"QUADD1\0" + bytes(200),
        "report.sqlite": b"QUADD1\0" + bytes(200),
        "rank0.qdstrm": b"stream" * 20,
        "report.ncu-rep": b"NVR\0" * 40,
        "packed.sqlite.gz": gzip.compress(b"no export\n" * 50, mtime=0),
        "notes.zip": archive.getvalue(),
        "one.arrow": b"ARROW1\0\0" + bytes(64),
        "one.parquet": b"PAR1" + bytes(64) + b"PAR1",
        "lines.json": b'{"StringIds": []}\n',
        "export.json": b'{"Type": 1, "data": []}\n' * 5,
        "cut-trace.json": trace[:900].encode(),
        "trace.json": trace.encode(),
        "no-events.json": b'{"schemaVersion": 1, "traceEvents": []}',
        "other.json": b'{"traceEvents": [{"ph": "X", "name": "of another program", "ts": 1, "dur": 2, "pid": 1}]}',
        "huge-number.json": trace.replace('"ph": "X"', '"ph": "X", "ts": 1e999999999999', 1).encode(),
        "deep-name.json": trace.replace('"ph"', f'"name": {DEEP}, "ph"', 1).encode(),
        "deep-head.json": trace.replace("{", f'{{"distributedInfo": {DEEP}, ', 1).encode(),
        "long-time.json": trace.replace('"ph"', f'"ts": {DIGITS}, "ph"', 1).encode(),
        "long-head.json": trace.replace("{", f'{{"baseTimeNanoseconds": {DIGITS}, ', 1).encode(),
        "large-exponent.json": trace.replace('"ph"', f'"ts": 1e{DIGITS[:30]}, "ph"', 1).encode(),
        "latin.json": trace.replace("kernel", "k\xe9rnel", 1).encode("latin-1"),
        "deep.json": (trace[:60] + "[" * 5000).encode(),
        "cut-trace.json.gz": gzip.compress(trace.encode(), mtime=0)[:100],
        "empty.csv": b"",
        "header.csv": NCU.encode(),
        "cut.csv": (NCU + '"0","gemm"\n').encode(),
        "other.csv": b"a,b\n1,2\n",
        "twice.csv": b"Time (%),Name,Name\n1,2,3\n",
        "unknown.csv": b"Kernel,SM Active [Throughput %]\nno such kernel,12\n",
        "empty.log": b"",
        "plain.log": b"Training begins\nTraining ends\n",
        "folded.log": b"NCCL INFO AllReduce: opCount 0 sendbuff 0x1 [repeated 3x across cluster]\n" * 3,
        "pattern.toml": b'[families]\n"a(" = "gemm"\n',
        "large.toml": b"#" * 70_000,
        "long-name.toml": b"a." * 30_000 + b"a = 1",
        "long-number.toml": b"\njobs = 0x" + b"f" * 5_000,
        "number.toml": b"jobs = 0x" + b"f" * 1_900,
        "deep.toml": b"jobs = " + (b"[" * 1_000 + b"\n") * 50,
        "digits.log": LOG.replace("N", DIGITS[:5_000]).replace("$", "N").encode(),
        "empty.stacks": b"",
    }.items():
        (directory / name).write_bytes(content)
