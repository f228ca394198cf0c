"""Names that StringIds has lost: rows stay apart by the number of the name, and every command reports it."""

import csv
import io
from pathlib import Path

import campaign
import program
import pytest
import synthetic
from support import edit, native

CSV = ("--format", "csv")
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture
def export(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    return synthetic.benchmark_export(tmp_path / "rank0.sqlite", kernels=200)


def names(ran: program.Ran) -> list[str]:
    assert ran.status == 0, ran.err
    return [row["Name"] for row in csv.DictReader(io.StringIO(ran.out))]


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
    assert f"{rows:,} GPU kernels" in after.err and "lost" not in before.err


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
    with synthetic.ExportWriter(path) as writer:
        writer.nvtx_range(writer.thread(writer.process(100), 100, "main"), 0, 4 * 10**9, "all")
        writer.generic_source(1, "efa_metrics")
        writer.generic_type(3, 1, "EFA rdmap0s6", ["rx_bytes", "tx_bytes"])
        for second in range(3):
            writer.generic_event(second * 10**9, 3, {"rx_bytes": 9 - second, "tx_bytes": 5})
    ((number,),) = native(path, f"SELECT id FROM StringIds WHERE value = '{lost}'")
    edit(path, f"DELETE FROM StringIds WHERE id = {number}")
    asked = ("recipe", "network_traffic_map", "--no-cache", *CSV)
    ran = [program.run(*asked, path), program.run("pack", path, "-o", packed, "--ranks", "efa.sqlite=0")]
    ran.append(program.run(*asked, packed))
    for one in ran:
        assert f"lacks the names of {rows} samples of AWS's EFA adapters; export" in one.err
    assert lost == "tx_bytes" or all(f"[name {number} lost]" in one.out for one in ran[::2])  # not counted as bytes


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
