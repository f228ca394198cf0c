"""``nsystui overview``, ``gpu`` and ``info``: the tables of the screens, without a screen."""

import subprocess
import sys

import pytest
from synthetic import cpu_only_export
from synthetic.demo import PLANTED_SECRET


@pytest.fixture
def rows(run):
    """The rows of a command in JSON."""

    def rows(*words):
        done = run(*words, "--format", "json")
        assert done.status == 0, done.err
        return done.json

    return rows


@pytest.mark.campaign
def test_no_command_imports_textual(demo_job):
    code = (
        "import sys; from nsystui.cli import main\n"
        f"status = sum(main([command, {str(demo_job[0])!r}]) for command in ('overview', 'gpu', 'info'))\n"
        "assert 'textual' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_overview_has_a_row_for_each_rank(run, rows, demo_job):
    found = rows("overview", *demo_job)
    assert [row["rank"] for row in found] == [0, 1, 2, 3]
    assert all(0 < row["busy_percent"] < 100 and row["kernels"] > 100 for row in found)
    assert all(row["busy_percent"] + row["idle_percent"] == pytest.approx(100, abs=0.02) for row in found)
    assert "not recorded for all of this time" in run("overview", *demo_job).err
    assert [row["rank"] for row in rows("overview", *demo_job, "--ranks", "1,3")] == [1, 3]


def test_gpu_of_a_window_counts_only_that_window(rows, demo_job):
    found = rows("gpu", *demo_job, "--time", "100ms:150ms")
    assert len(found) == 4
    assert all(row["window_ns"] == 50_000_000 == row["busy_ns"] + row["idle_ns"] for row in found)


@pytest.mark.campaign
def test_gpu_over_time_adds_up_to_gpu(rows, demo_job):
    (whole,) = rows("gpu", demo_job[0])
    bins = rows("gpu", demo_job[0], "--over-time", "--bins", 7)
    assert len(bins) == 7 and bins == sorted(bins, key=lambda row: row["start_ns"])
    assert sum(row["busy_percent"] for row in bins) / 7 == pytest.approx(whole["busy_percent"], abs=0.02)
    assert len(rows("gpu", demo_job[0], "--over-time")) == 100


@pytest.mark.parametrize("words", [("--over-time", "--bins", "0"), ("--bins", "5")])
def test_gpu_refuses_bins_that_mean_nothing(refused, demo_job, words):
    assert "--bins" in refused("gpu", demo_job[0], *words)


def test_without_gpu_work_gpu_ends_with_3_and_says_what_to_record(run, rows, tmp_path):
    path = cpu_only_export(tmp_path / "cpu.sqlite")
    done = run("gpu", path)
    assert done.status == 3 and "nsys profile -t cuda" in done.err
    assert rows("overview", path)[0]["busy_percent"] is None


def test_info_prints_facts_contents_and_diagnostics(run, demo_job):
    done = run("info", *demo_job)
    assert done.status == 0
    assert "2026.2.1.210" in done.out and "3.25.0" in done.out and "NCCL communicator" in done.out  # reports
    assert "nvtx_ranges" in done.out and "nsys profile -t mpi" in done.out  # contents
    assert "Profiling has started." in done.out  # diagnostics


def test_info_as_data_is_one_table(run, rows, demo_job):
    found = rows("info", *demo_job)
    assert [(row["report"], row["ranks"], row["rank_source"]) for row in found] == [
        (f"rank{rank}", str(rank), "NCCL communicator") for rank in range(4)
    ]
    assert all(row["json"] == "yes" and row["gpus"] == "NVIDIA H100 80GB HBM3" for row in found)
    contents = rows("info", *demo_job, "--show", "contents")
    assert {row["table"] for row in contents} >= {"kernels", "nvtx_ranges", "os_calls"}
    assert len(run("info", *demo_job, "--sort", "duration", "--top", "1").out.splitlines()) == 3


def test_info_never_shows_the_environment(run, demo_job):
    for show in ("reports", "contents", "diagnostics"):
        done = run("info", *demo_job, "--show", show, "--format", "json")
        assert PLANTED_SECRET not in done.out + done.err, show
        assert "OMPI_" not in done.out and "SLURM_" not in done.out, show


def test_info_counts_two_ranks_in_one_report(rows, shared_export):
    (row,) = rows("info", shared_export("h100-2rank-moe-before"))
    assert row["ranks"] == "0,1" and row["gpus"] is None and row["nsys"] == "2026.2.1.210"


def test_real_graphs_count_as_busy(run, shared_export):
    done = run("gpu", shared_export("cuda-graphs"), "--format", "json")
    (row,) = done.json
    assert row["graph_ns"] / row["busy_ns"] > 0.99
    assert "--cuda-graph-trace=node" in done.err
