"""``nsystui overview``, ``gpu`` and ``info``: the tables of the screens, without a screen."""

import subprocess
import sys

import pytest
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


def test_info_never_shows_the_environment(run, demo_job):
    for show in ("reports", "contents", "diagnostics"):
        done = run("info", *demo_job, "--show", show, "--format", "json")
        assert PLANTED_SECRET not in done.out + done.err, show
        assert "OMPI_" not in done.out and "SLURM_" not in done.out, show


def test_info_counts_two_ranks_in_one_report(rows, shared_export):
    (row,) = rows("info", shared_export("h100-2rank-moe-before"))
    assert row["ranks"] == "0,1" and row["gpus"] is None and row["nsys"] == "2026.2.1.210"
