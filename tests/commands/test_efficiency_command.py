"""``nsystui efficiency``."""

import pytest
from synthetic import cpu_only_export
from synthetic.demo import TrainingJob

FACTORS = ["device_parallel", "device_load_balance", "device_communication", "device_orchestration"]


def values(rows):
    return {row["metric"]: row["percent"] for row in rows}


def tables(ran):
    return {block["table"]: block["rows"] for block in ran.json}


def test_the_tables_of_a_job(run, demo_job):
    ran = run("efficiency", *demo_job, "--format", "json")
    found = tables(ran)
    assert list(found) == ["breakdown", "device", "host"]
    assert [row["rank"] for row in found["breakdown"]] == ["all", "0", "1", "2", "3"]
    for row in found["breakdown"]:
        parts = [row[key] for key in row if key.endswith("_ns") and key.split("_ns")[0] not in
                 ("useful", "communication", "window")]  # fmt: skip
        assert sum(parts) == row["window_ns"]
    assert found["breakdown"][0]["window_ns"] == 4 * found["breakdown"][1]["window_ns"]
    device = values(found["device"])
    assert list(device) == FACTORS
    product = device["device_load_balance"] * device["device_communication"] * device["device_orchestration"] / 1e4
    assert product == pytest.approx(device["device_parallel"], abs=0.03)
    assert values(found["host"])["mpi_parallel"] is None
    assert ran.err.count("100 % of each GPU is the time in which every selected report") == 1
    assert "useful (pop): compute kernels" in ran.err


@pytest.mark.parametrize("file_format", ["table", "csv", "md"])
def test_every_format_is_printed(run, demo_job, file_format):
    ran = run("efficiency", *demo_job, "--format", file_format, "--tables", "all")
    assert ran.status == 0
    assert "load balance" in ran.out and "MFU" not in ran.out


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


def test_mfu_takes_flops_and_says_what_else_it_took(run, demo_job):
    ran = run("efficiency", *demo_job, "--flops-per-step", "1e13", "--tables", "mfu", "--format", "json")
    (row,) = ran.json
    assert row["gpus"] == 4 and row["peak_tflops"] == 989 and row["steps"] == 8
    expected = 100 * 1e13 / (row["step_time_ns"] / 1e9) / 4 / 989e12
    assert row["mfu_percent"] == pytest.approx(expected, rel=0.01)
    assert "H100 SXM data sheet" in ran.err


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


@pytest.mark.campaign
def test_what_an_export_lacks_is_said(run, tmp_path):
    ran = run("efficiency", cpu_only_export(tmp_path / "cpu.sqlite"))
    assert ran.status == 3 and "no GPU work in this export" in ran.err


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
