"""``nsystui efficiency``."""

import pytest
from synthetic.demo import TrainingJob


def values(rows):
    return {row["metric"]: row["percent"] for row in rows}


def test_files_get_a_name_each(run, demo_job, tmp_path):
    run("efficiency", *demo_job, "-o", tmp_path / "job.csv", "--tables", "breakdown,processes")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job_breakdown.csv", "job_processes.csv"]


def test_useful_is_a_choice(run, demo_job):
    pop, talp = (
        values(run("efficiency", *demo_job, "--tables", "device", "--format", "json", "--useful", useful).json)
        for useful in ("pop", "talp")
    )
    assert pop["device_parallel"] < talp["device_parallel"]
    assert pop["device_orchestration"] == talp["device_orchestration"]


@pytest.mark.campaign
def test_a_job_against_itself_scales_and_against_fewer_ranks_too(run, demo_job, tmp_path):
    device = ("--tables", "device", "--format", "json")
    itself = values(run("efficiency", *demo_job, *device, "--baseline", *demo_job).json)
    assert itself["device_computation_scalability"] == 100
    assert itself["device_global"] == itself["device_parallel"]
    small = TrainingJob(ranks=2, steps=3, layers=2, straggler=None).write(tmp_path / "two")
    ran = run("efficiency", *demo_job, *device, "--baseline", *small, "--scaling", "weak")
    assert values(ran.json)["device_computation_scalability"] == pytest.approx(100, abs=15)
    assert "weak scaling from 2 to 4 GPUs" in ran.err
    assert all(row["baseline_percent"] is not None for row in ran.json[:4])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tables", "nothing"], "the tables are breakdown, device, host, processes, mfu, all"),
        (["--tables", "mfu"], "needs --flops-per-step"),
        (["--flops-per-step", "-3"], "must be more than 0"),
        (["--flops-per-step", "nan"], "must be more than 0"),
        (["--peak-tflops", "312"], "goes with --flops-per-step"),
        (["--scaling", "weak"], "goes with --baseline"),
        (["--sort", "idle_percent"], "choose with --tables breakdown"),
        (["--flops-per-step", "1e13", "--step-range", "("], "filter"),
    ],
)
def test_wrong_words_are_one_line(refused, demo_job, words, said):
    assert said in refused("efficiency", *demo_job, *words, lines=1)
