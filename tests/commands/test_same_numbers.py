"""One word is one number: what several commands say of a job with the same word is the same."""

import re

import pytest
from synthetic import training_job

from nsystui.base.answer import Unit
from nsystui.base.units import format_value

pytestmark = pytest.mark.campaign

SHARES = ("busy_percent", "compute_percent", "nccl_percent", "exposed_nccl_percent", "memory_percent", "idle_percent")
WINDOW = ("--time", "300ms:1200ms")


def shares(rows):
    return [[row[key] for key in SHARES] for row in rows]


@pytest.fixture(scope="module")
def job(written_once):
    """Four ranks with a straggler."""
    return written_once("python", lambda directory: training_job(directory, ranks=4, steps=6, layers=4))


@pytest.fixture(scope="module")
def asked():
    """The answers that were given before."""
    return {}


@pytest.fixture
def rows(run, job, asked):
    """The rows of a command about the job."""

    def rows(*words):
        if words not in asked:
            ran = run(*words[0].split(), *job, *words[1:], "--format", "json")
            assert ran.status == 0, ran.err
            asked[words] = ran.json
        return asked[words]

    return rows


@pytest.mark.parametrize("window", [(), WINDOW], ids=["all time", "a window"])
def test_overview_gpu_and_ranks_have_the_same_shares(rows, window):
    overview = rows("overview", *window)
    assert shares(overview) == shares(rows("gpu", *window)) == shares(rows("ranks", *window))
    assert [row["kernels"] for row in overview] == [row["kernels"] for row in rows("ranks", *window)]


def test_the_comparison_has_their_means(run, rows, job):
    summary = run("diff", *job, "--", *job, "--tables", "summary", "--format", "json").json
    told = {row["what"].strip(): row["a"] for row in summary}
    overview = rows("overview")
    names = ("GPU busy", "compute", "NCCL", "exposed NCCL", "memory", "GPU idle")
    for name, key in zip(names, SHARES, strict=True):
        assert told[name] == pytest.approx(sum(row[key] for row in overview) / 4, abs=0.011), name
    assert told["kernels launched"] == sum(row["kernels"] for row in overview)


def test_efficiency_divides_the_same_shares_over_the_same_window(rows):
    (breakdown,) = [block["rows"] for block in rows("efficiency", *WINDOW) if block["table"] == "breakdown"]
    for own, overview in zip(breakdown[1:], rows("overview", *WINDOW), strict=True):
        part = {key.removesuffix("_percent"): value for key, value in own.items()}
        compute = part["compute_only"] + part["compute_nccl"] + part["compute_memory"] + part["all_three"]
        nccl = part["nccl_only"] + part["compute_nccl"] + part["nccl_memory"] + part["all_three"]
        assert part["idle"] == overview["idle_percent"]
        assert part["useful"] == overview["compute_percent"] == pytest.approx(compute, abs=0.025)
        assert nccl == pytest.approx(overview["nccl_percent"], abs=0.025)
        assert part["nccl_only"] + part["nccl_memory"] == pytest.approx(overview["exposed_nccl_percent"], abs=0.015)


def test_efficiency_names_its_window_where_it_is_not_that_of_the_other_tables(run, rows, job):
    ran = run("efficiency", *job, "--tables", "breakdown,device")
    (breakdown,) = [block["rows"] for block in rows("efficiency") if block["table"] == "breakdown"]
    own, whole = breakdown[1]["window_ns"], rows("gpu")[0]["window_ns"]
    assert own < whole  # ranks begin to record some ms apart
    assert f"add up to 100 % = {format_value(Unit.DURATION, own)}" in ran.out
    assert f"in other tables {format_value(Unit.DURATION, whole)}, from first to last event" in ran.err


def test_maps_of_recipes_have_the_same_shares(rows):
    gpu = rows("gpu")
    time_map = rows("recipe cuda_gpu_time_util_map")
    nccl_map = rows("recipe nccl_gpu_time_util_map")

    def mean(table, rank, key):
        # Where a rank was not recorded, the map is empty and the total counts it as idle.
        own = [row for row in table if row["rank"] == rank]
        return sum(row[key] or 0 for row in own) / len(own)

    for row in gpu:
        rank = row["rank"]
        assert mean(time_map, rank, "busy_percent") == pytest.approx(row["busy_percent"], abs=0.1)
        assert mean(nccl_map, rank, "compute_percent") == pytest.approx(row["compute_percent"], abs=0.1)
        assert mean(nccl_map, rank, "nccl_percent") == pytest.approx(row["nccl_percent"], abs=0.1)
        both = row["compute_percent"] + row["exposed_nccl_percent"]
        assert mean(time_map, rank, "all_percent") == pytest.approx(both, abs=0.1)
        assert mean(nccl_map, rank, "all_percent") == mean(time_map, rank, "all_percent")


def test_the_exposed_time_of_collectives_is_that_of_the_gpus(rows):
    """In the demo no two NCCL kernels of a GPU run side by side."""
    assert sum(row["exposed_ns"] or 0 for row in rows("nccl")) == sum(row["exposed_nccl_ns"] for row in rows("gpu"))


def test_the_straggler_has_the_counts_and_the_wait_of_the_ranks(rows):
    (finding,) = [row for row in rows("triage") if row["id"] == "straggler"]
    rank = next(row for row in rows("ranks") if row["rank"] == 2)
    late, of = re.search(r"last at ([\d,]+) of ([\d,]+) collectives", finding["sentence"]).groups()
    assert (int(late), int(of)) == (rank["late"], rank["collectives"])
    # Of four GPUs three wait: the cost is the mean over all, the sentence says what those lose that wait.
    lost = round(finding["cost_ns"] * 4 / 3)
    exposed, wait = (format_value(Unit.DURATION, value) for value in (lost, rank["wait_caused_ns"]))
    assert f"loses {exposed} waiting ({wait} including waits that compute hides)." in finding["sentence"]


def test_steps_have_one_median(rows):
    assert [row["step_median_ns"] for row in rows("ranks")] == [
        pytest.approx(row["median_ns"], abs=1) for row in rows("steps") if row["rank"] != "all"
    ]
