"""``nsystui overview``, ``gpu`` and ``info``: the tables of the screens, without a screen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import cpu_only_export

from nsystui.cli import main
from nsystui.exports.demo import PLANTED_SECRET


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def rows(text: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(text)
    return found


def test_no_command_imports_textual(demo_job: list[Path]) -> None:
    code = (
        "import sys; from nsystui.cli import main\n"
        f"status = sum(main([command, {str(demo_job[0])!r}]) for command in ('overview', 'gpu', 'info'))\n"
        "assert 'textual' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["overview", "gpu", "info"])
@pytest.mark.parametrize("file_format", ["table", "csv"])
def test_every_format_is_printed(demo_job, capsys, command, file_format):
    status, out, _ = run(capsys, command, *demo_job, "--format", file_format)
    assert status == 0 and len(out.splitlines()) >= 5


def test_overview_has_a_row_for_each_rank(demo_job, capsys):
    _, out, err = run(capsys, "overview", *demo_job, "--format", "json")
    found = rows(out)
    assert [row["rank"] for row in found] == [0, 1, 2, 3]
    assert all(0 < row["busy_percent"] < 100 and row["kernels"] > 100 for row in found)
    assert all(row["busy_percent"] + row["idle_percent"] == pytest.approx(100, abs=0.02) for row in found)
    assert "not recorded for all of this time" in err
    _, out, _ = run(capsys, "overview", *demo_job, "--ranks", "1,3", "--format", "json")
    assert [row["rank"] for row in rows(out)] == [1, 3]


def test_gpu_of_a_window_counts_only_that_window(demo_job, capsys):
    _, out, _ = run(capsys, "gpu", *demo_job, "--time", "100ms:150ms", "--format", "json")
    found = rows(out)
    assert len(found) == 4
    assert all(row["window_ns"] == 50_000_000 == row["busy_ns"] + row["idle_ns"] for row in found)


def test_gpu_over_time_adds_up_to_gpu(demo_job, capsys):
    _, out, _ = run(capsys, "gpu", demo_job[0], "--format", "json")
    (whole,) = rows(out)
    _, out, _ = run(capsys, "gpu", demo_job[0], "--over-time", "--bins", 7, "--format", "json")
    bins = rows(out)
    assert len(bins) == 7 and bins == sorted(bins, key=lambda row: row["start_ns"])
    mean = sum(row["busy_percent"] for row in bins) / 7
    assert mean == pytest.approx(whole["busy_percent"], abs=0.02)
    _, out, _ = run(capsys, "gpu", demo_job[0], "--over-time", "--format", "json")
    assert len(rows(out)) == 100


@pytest.mark.parametrize("words", [("--over-time", "--bins", "0"), ("--bins", "5")])
def test_gpu_refuses_bins_that_mean_nothing(demo_job, capsys, words):
    status, out, err = run(capsys, "gpu", demo_job[0], *words)
    assert (status, out) == (2, "") and "--bins" in err


def test_without_gpu_work_gpu_ends_with_3_and_says_what_to_record(tmp_path, capsys):
    path = cpu_only_export(tmp_path / "cpu.sqlite")
    status, _, err = run(capsys, "gpu", path)
    assert status == 3 and "nsys profile -t cuda" in err
    status, out, _ = run(capsys, "overview", path, "--format", "json")
    assert status == 0 and rows(out)[0]["busy_percent"] is None


def test_info_prints_facts_contents_and_diagnostics(demo_job, capsys):
    status, out, _ = run(capsys, "info", *demo_job)
    assert status == 0
    assert "2026.2.1.210" in out and "3.25.0" in out and "NCCL communicator" in out  # reports
    assert "nvtx_ranges" in out and "nsys profile -t mpi" in out  # contents
    assert "Profiling has started." in out  # diagnostics


def test_info_as_data_is_one_table(demo_job, capsys):
    _, out, _ = run(capsys, "info", *demo_job, "--format", "json")
    found = rows(out)
    assert [(row["report"], row["ranks"], row["rank_source"]) for row in found] == [
        (f"rank{rank}", str(rank), "NCCL communicator") for rank in range(4)
    ]
    assert all(row["json"] == "yes" and row["gpus"] == "NVIDIA H100 80GB HBM3" for row in found)
    _, out, _ = run(capsys, "info", *demo_job, "--format", "json", "--show", "contents")
    assert {row["table"] for row in rows(out)} >= {"kernels", "nvtx_ranges", "os_calls"}
    _, out, _ = run(capsys, "info", *demo_job, "--sort", "duration", "--top", "1")
    assert len(out.splitlines()) == 3


def test_info_never_shows_the_environment(demo_job, capsys):
    for show in ("reports", "contents", "diagnostics"):
        _, out, err = run(capsys, "info", *demo_job, "--show", show, "--format", "json")
        assert PLANTED_SECRET not in out + err
        assert "OMPI_" not in out and "SLURM_" not in out


def test_info_counts_two_ranks_in_one_report(shared_export, capsys):
    _, out, _ = run(capsys, "info", shared_export("h100-2rank-moe-before"), "--format", "json")
    (row,) = rows(out)
    assert row["ranks"] == "0,1" and row["gpus"] is None and row["nsys"] == "2026.2.1.210"


def test_real_graphs_count_as_busy(shared_export, capsys):
    _, out, err = run(capsys, "gpu", shared_export("cuda-graphs"), "--format", "json")
    (row,) = rows(out)
    assert row["graph_ns"] / row["busy_ns"] > 0.99
    assert "--cuda-graph-trace=node" in err
