"""Ranges that never ended are counted apart, without a duration; lost names keep rows apart, and are reported."""

import json
from pathlib import Path

import campaign
import program
import pytest
import synthetic
from support import edit, native
from synthetic.writing.writer import PUSH_POP, START_END


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("style", campaign.first(1, [PUSH_POP, START_END]))
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
        {row[name]: row for row in program.rows_of(ran[words])}
        for words, name in zip(ran, ["Path", "Range"], strict=True)
    )
    send = tree["Send(size=1)"]
    assert (send["Instances"], send["Never Ended"], send["Total Time (ns)"], send["Avg (ns)"]) == (
        "40", "60", "24000", "600.0",
    )  # fmt: skip
    alone = next(row for name, row in tree.items() if name.endswith("whole job"))
    assert (alone["Instances"], alone["Never Ended"], alone["Total Time (ns)"]) == ("0", "1", "")
    assert (summary["Send(size=1)"]["Instances"], summary["Send(size=1)"]["Total Time (ns)"]) == ("40", "24000")
    of_nsys = program.run("stats", "-r", "nvtx_sum", path, "--format", "csv")
    assert {row["Range"].strip(":"): row["Instances"] for row in program.rows_of(of_nsys)}["Send(size=1)"] == "100"
    said = "never ended in this export: 61 NVTX ranges"
    asked = ("events", "timeline --all-lanes --width 80", "triage", "export --trace -")
    for one in [*ran.values(), of_nsys, *(program.run(*words.split(), path) for words in asked)]:
        assert one.err.count(said) == 1, one
    assert program.run("nvtx", path).err.count(said) == 1
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
    assert {row["Path"] for row in program.rows_of(ran)} == {"never ended", "before", "before › ncclAllReduce"}
    assert "impossible" not in ran.err
    (gpu,) = program.rows_of(program.run("gpu", path, "--format", "csv"))
    assert float(gpu["Busy (%)"]) > 50


CSV = ("--format", "csv")
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture
def export(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    return synthetic.benchmark_export(tmp_path / "rank0.sqlite", kernels=200)


def names(ran: program.Ran) -> list[str]:
    assert ran.status == 0, ran.err
    return [row["Name"] for row in program.rows_of(ran)]


@pytest.mark.campaign
@pytest.mark.parametrize("statement", ["UPDATE StringIds SET id = id + 1000000", "DELETE FROM StringIds WHERE id > 1"])
def test_rows_keep_apart_and_every_answer_says_what_is_lost(export, statement):
    ids = [name for (name,) in native(export, f"SELECT DISTINCT demangledName FROM {KERNELS}")]
    edit(export, statement)
    for _ in range(2):  # the second time from the cache
        ran = program.run("kernels", export, *CSV)
        assert sorted(names(ran)) == sorted(f"[name {one} lost]" for one in ids)
        assert "string table" in ran.err and "200 GPU kernels" in ran.err and len(ran.err.splitlines()) == 1
    for words in (("gpu",), ("events",), ("stats", "-r", "cuda_gpu_kern_sum")):
        assert "lacks the names of" in program.run(*words, export).err, words


@pytest.mark.campaign
def test_one_lost_name_leaves_the_others_alone(export):
    before = program.run("kernels", export, "--names", "full", *CSV)
    ((lost,),) = native(export, f"SELECT demangledName FROM {KERNELS} LIMIT 1")
    ((rows,),) = native(export, f"SELECT count(*) FROM {KERNELS} WHERE demangledName = {lost}")
    ((name,),) = native(export, f"SELECT value FROM StringIds WHERE id = {lost}")
    edit(export, f"DELETE FROM StringIds WHERE id = {lost}")
    after = program.run("kernels", export, "--names", "full", *CSV)
    assert set(names(before)) - set(names(after)) == {name}
    assert set(names(after)) - set(names(before)) == {f"[name {lost} lost]"}
    words = "1 row of GPU kernels" if rows == 1 else f"{rows:,} GPU kernels"
    assert words in after.err and "lost" not in before.err


@pytest.mark.campaign
def test_a_packed_job_tells_what_was_lost(export, tmp_path):
    edit(export, "DELETE FROM StringIds WHERE id > 1")
    packed = tmp_path / "packed"
    assert program.run("pack", export, "-o", packed).status == 0
    ran = program.run("kernels", packed, *CSV)
    assert "[name" in ran.out and "200 GPU kernels" in ran.err


@pytest.mark.campaign
def test_ranges_of_a_domain_whose_name_is_lost_say_so(export):
    synthetic.payload_export(export)
    ((ranges,),) = native(export, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType <> 75 AND domainId = 1")
    asked = [(*words, export, *CSV) for words in (("nvtx", "--summary"), ("nccl",))]
    right, calls = [program.run(*words).out for words in asked]
    edit(export, "UPDATE NVTX_EVENTS SET text = NULL, textId = 987654 WHERE eventType = 75")
    ran, again = [program.run(*words) for words in asked]
    assert ran.out == right.replace("NCCL:", "[name 987654 lost]:") != right
    assert f"lacks the names of {ranges:,} NVTX ranges; export" in ran.err
    assert again.out == calls != ""


@pytest.mark.parametrize(
    ("lost", "rows"), campaign.first(1, [("tx_bytes", 3), ("efa_metrics", 6), ("EFA rdmap0s6", 6)])
)
def test_samples_of_efa_whose_source_type_or_field_is_lost_are_counted(tmp_path, lost, rows):
    """As long as one name identifies them as EFA's."""
    path, packed = tmp_path / "efa.sqlite", tmp_path / "packed"
    samples = [{"rx_bytes": 9 - second, "tx_bytes": 5} for second in range(3)]
    synthetic.efa_export(path, samples, kind="EFA rdmap0s6")
    ((number,),) = native(path, f"SELECT id FROM StringIds WHERE value = '{lost}'")
    edit(path, f"DELETE FROM StringIds WHERE id = {number}")
    asked = ("recipe", "network_traffic_map", "--no-cache", *CSV)
    ran = [program.run(*asked, path), program.run("pack", path, "-o", packed, "--ranks", "efa.sqlite=0")]
    ran.append(program.run(*asked, packed))
    for one in ran:
        assert f"lacks the names of {rows} samples of AWS's EFA adapters; export" in one.err
    assert lost == "tx_bytes" or all(f"[name {number} lost]" in one.out for one in ran[::2])  # not counted as bytes


@pytest.mark.campaign
def test_kernels_and_ranges_without_a_name_are_labelled(tmp_path):
    path = tmp_path / "rank0.sqlite"
    with synthetic.ExportWriter(path) as writer:
        process = writer.process(100)
        for number, name in enumerate(["", "  ", "Kernel", "Unknown"]):
            writer.kernel(process, 0, 7, 100 * number, 100 * number + 50, name=name, correlation_id=None)
        for start, text in enumerate(["", "load"]):
            writer.nvtx_range(writer.thread(process, 100, "main"), 1000 * start, 1000 * start + 500, text)
    kernels = program.run("kernels", path, "--names", "full", *CSV)
    assert sorted(names(kernels)) == ["Kernel", "Unknown", "[no name]"]
    asked = [("nvtx",), ("nvtx", "--summary"), ("timeline", "--all-lanes", "--width", "80")]
    assert [words for words in asked if "[no name]" not in program.run(*words, path, "--no-cache").out] == []
    assert "string table" not in kernels.err
