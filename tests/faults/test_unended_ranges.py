"""Ranges that never ended are counted apart, without a duration; ranges may begin long before the capture."""

import csv
import io
import json

import program
import pytest
import synthetic
from synthetic.writing.writer import PUSH_POP, START_END


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("style", [PUSH_POP, START_END])
def test_ranges_that_never_ended_are_counted_apart_in_every_table(tmp_path, style):
    """60 of 100 ranges on one thread never ended, and one range on another thread."""
    path = tmp_path / "a.sqlite"
    with synthetic.ExportWriter(path) as writer:
        process = writer.process(100)
        thread, main = writer.thread(process, 150, "sender"), writer.thread(process, 100, "main")
        for number in range(100):
            end = 1_000 * number + 600 if number % 5 < 2 else None
            writer.nvtx_range(thread, 1_000 * number, end, "Send(size=1)", style=style)
        writer.nvtx_range(main, 5_000, None, "whole job", style=style)
        writer.nvtx_range(main, 0, 100_000, "main")
    ran = {words: program.run(*words.split(), path, "--format", "csv") for words in ("nvtx", "nvtx --summary")}
    tree, summary = (
        {row[name]: row for row in rows_of(ran[words].out)} for words, name in zip(ran, ["Path", "Range"], strict=True)
    )
    send = tree["Send(size=1)"]
    assert (send["Instances"], send["Never Ended"], send["Total Time (ns)"], send["Avg (ns)"]) == (
        "40", "60", "24000", "600.0",
    )  # fmt: skip
    alone = next(row for name, row in tree.items() if name.endswith("whole job"))
    assert (alone["Instances"], alone["Never Ended"], alone["Total Time (ns)"]) == ("0", "1", "")
    assert (summary["Send(size=1)"]["Instances"], summary["Send(size=1)"]["Total Time (ns)"]) == ("40", "24000")
    of_nsys = program.run("stats", "-r", "nvtx_sum", path, "--format", "csv")
    assert {row["Range"].strip(":"): row["Instances"] for row in rows_of(of_nsys.out)}["Send(size=1)"] == "100"
    said = "never ended in this export: 61 NVTX ranges"
    asked = ("events", "timeline --all-lanes --width 80", "triage", "export --trace -")
    for one in [*ran.values(), of_nsys, *(program.run(*words.split(), path) for words in asked)]:
        assert one.err.count(said) == 1, one
    again = program.run("nvtx", path)
    assert again.err.count(said) == 1
    trace = program.run("export", "--trace", "-", path, "--kinds", "nvtx").out
    assert max(event.get("dur", 0) for event in json.loads(trace)["traceEvents"]) <= 100


def test_ranges_from_long_before_the_capture_stay_and_do_not_stretch_it(tmp_path):
    path = tmp_path / "a.sqlite"
    with synthetic.ExportWriter(path) as writer:
        process = writer.process(100)
        main = writer.thread(process, 100, "main")
        writer.nvtx_range(main, -20 * 10**9, None, "never ended")
        writer.nvtx_range(main, -10 * 10**9, 700, "before")
        writer.nvtx_range(main, -9 * 10**9, -8 * 10**9, "ncclAllReduce")
        for number in range(10):
            writer.kernel(process, 0, 7, 1_000 * number, 1_000 * number + 500, name="work", correlation_id=None)
    ran = program.run("nvtx", path, "--format", "csv")
    assert {row["Path"] for row in rows_of(ran.out)} == {"never ended", "before", "before › ncclAllReduce"}
    assert "impossible" not in ran.err
    (gpu,) = rows_of(program.run("gpu", path, "--format", "csv").out)
    assert float(gpu["Busy (%)"]) > 50
