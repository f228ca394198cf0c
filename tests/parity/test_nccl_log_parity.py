"""Results on real logs against the output of nsys-profiling's awk scripts for the same files.

awk rounds numbers above 2³¹ to six digits, so sizes are compared as awk would print the exact sizes.
"""

from collections import Counter
from pathlib import Path

import pytest

from nsystui.exports.nccl_log.lines import Call, LogReader, datatype_name
from nsystui.questions.nccl_log.summary import LogSummary
from nsystui.questions.nccl_log.tables import TABLES

LOGS = Path(__file__).parents[3] / "shared/data/nccl-logs"
ORACLE = LOGS / "awk-oracle"
NAMES = sorted({path.stem for path in ORACLE.glob("*.ops")}) or [""]

pytestmark = [
    pytest.mark.skipif(not ORACLE.is_dir(), reason="the output of the awk scripts is not on this machine"),
    pytest.mark.parametrize("name", NAMES),
]


def awk(number: float) -> str:
    """Format a number as awk does: integers below 2³¹ unchanged, other numbers like C's ``%.6g``."""
    return str(int(number)) if number == int(number) and number < 2**31 else f"{number:.6g}"


def lines(name: str, ending: str) -> list[str]:
    return (ORACLE / f"{name}.{ending}").read_text(encoding="utf-8").splitlines()


def rows(name: str, table: str):
    summary = LogSummary()
    with (LOGS / f"{name}.log").open("rb") as log:
        summary.add(LogReader().read(log.read))
    answer = TABLES[table].make(summary)
    return [dict(zip([column.key for column in answer.columns], row, strict=True)) for row in answer.rows]


def test_every_call_is_that_of_comm_analyzer(name):
    with (LOGS / f"{name}.log").open("rb") as log:
        found = [line.signature for line in LogReader().read(log.read) if isinstance(line, Call)]
    printed = [f"{one.op} {one.count} {datatype_name(one.datatype)} {awk(one.size or 0)}" for one in found]
    assert printed == lines(name, "sizes")


def test_the_ops_are_those_of_per_op_stats(name):
    printed = [
        f"{row['op']} calls={row['calls']} min={awk(row['min_bytes'])} avg={awk(row['avg_bytes'])} "
        f"max={awk(row['max_bytes'])} total={awk(row['total_bytes'])}"
        for row in rows(name, "ops")
    ]
    assert sorted(printed) == sorted(lines(name, "ops"))


def test_the_buckets_are_those_of_histogram(name):
    labels = [row["bucket"].replace("–", "-").replace("iB", "B") for row in rows(name, "sizes")]  # awk's KB are KiB
    printed = [f"{row['op']}:{label} {row['calls']}" for row, label in zip(rows(name, "sizes"), labels, strict=True)]
    assert sorted(printed) == sorted(lines(name, "hist"))


def test_the_kinds_of_calls_are_those_of_aggregate_comms(name):
    printed = Counter(
        (str(row["calls"]), row["op"], str(row["count"]), row["datatype"], awk(row["bytes"]))
        for row in rows(name, "calls")
    )
    assert printed == Counter(tuple(line.split()) for line in lines(name, "agg")[1:])
