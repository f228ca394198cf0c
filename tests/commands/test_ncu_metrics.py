"""``nsystui kernels --ncu``: Nsight Compute's measurements, next to the rows of its kernels."""

import csv
from pathlib import Path

import campaign
import pytest
from synthetic import ExportWriter

from nsystui.exports.ncu_csv import LIMITS
from nsystui.questions.kernels.ncu_metrics import bound_of, limiter_of

# (full name, short name, mangled name, grid)
KERNELS = (
    ("void gemm<(int)4, (bool)1>(float *)", "gemm", "_Z4gemmILi4ELb1EEvPf", (8, 1, 1)),
    ("void gemm<(int)8, (bool)1>(float *)", "gemm", "_Z4gemmILi8ELb1EEvPf", (16, 1, 1)),
    ("axpy(float *)", "axpy", "_Z4axpyPf", (4, 1, 1)),
    ("axpy(float *)", "axpy", "_Z4axpyPf", (2, 1, 1)),
    ("other()", "other", "_Z5otherv", (1, 1, 1)),
)
GEMM_4, GEMM_8 = KERNELS[0][0], KERNELS[1][0]


@pytest.fixture
def export(tmp_path) -> Path:
    path = tmp_path / "rank0.sqlite"
    with ExportWriter(path) as writer:
        writer.gpu(0)
        process = writer.process(5_000, "/opt/app")
        for number, (name, short, mangled, grid) in enumerate(KERNELS):
            start = 1_000 * (number + 1)
            writer.kernel(
                process, 0, 7, start, start + 100, name=name, short=short, mangled=mangled, grid=grid,
                block=(128, 1, 1), correlation_id=number + 1,
            )  # fmt: skip
    return path


@pytest.fixture
def ncu(tmp_path):
    """Return a writer of raw pages; a launch is name, grid, duration in µs, compute and memory throughput."""

    def write(*launches: tuple[str, str, str, str, str], name: str = "report.csv") -> Path:
        path = tmp_path / name
        metrics = (
            "gpu__time_duration.sum",
            "sm__throughput.avg.pct_of_peak_sustained_elapsed",
            "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
            *(f"launch__occupancy_limit_{word}" for word in ("registers", "shared_mem", "warps", "blocks")),
        )
        with path.open("w", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerow(["ID", "Kernel Name", "Block Size", "Grid Size", *metrics])
            writer.writerow(["", "", "", "", "us", "%", "%", "block", "block", "block", "block"])
            for number, (kernel, grid, *values) in enumerate(launches):
                writer.writerow([number, kernel, "(128, 1, 1)", grid, *values, "4", "4", "16", "32"])
        return path

    return write


def rows_of(done) -> dict[str, dict]:
    assert done.status == 0, done.err
    return {row["name"]: row for row in done.json}


def test_means_over_the_profiled_launches_stand_in_the_row_of_the_kernel(run, export, ncu):
    path = ncu(("axpy(float *)", "(4, 1, 1)", "1", "30", "90"), ("axpy(float *)", "(4, 1, 1)", "3", "20", "70"))
    found = rows_of(run("kernels", export, "--ncu", path, "--format", "json"))
    axpy = found["axpy(float *)"]
    assert [axpy[f"ncu_{name}"] for name in ("launches", "duration_ns", "compute_percent", "memory_percent")] == [
        2, 2000, 25, 80,
    ]  # fmt: skip
    assert (axpy["ncu_bound"], axpy["ncu_limiter"]) == ("memory", "registers, shared memory")
    assert {found["other()"][key] for key in axpy if key.startswith("ncu_")} == {None}


@pytest.mark.campaign
def test_several_files_are_added_up_and_one_named_twice_counts_once(run, export, ncu):
    launch = ("axpy(float *)", "(4, 1, 1)", "1", "30", "90")
    files = [ncu(launch, name="rank0.csv"), ncu(launch, launch, name="rank1.csv")]
    found = rows_of(run("kernels", export, "--ncu", *files, files[0], "--format", "json"))
    assert found["axpy(float *)"]["ncu_launches"] == 3


@pytest.mark.parametrize(
    "name", campaign.first(1, ["gemm", GEMM_4, "void gemm<4, true>(float*)", "_Z4gemmILi4ELb1EEvPf"])
)
def test_a_kernel_is_known_by_each_form_of_its_name(run, export, ncu, name):
    found = rows_of(run("kernels", export, "--ncu", ncu((name, "(8, 1, 1)", "1", "50", "20")), "--format", "json"))
    assert found[GEMM_4]["ncu_bound"] == "latency"
    assert found[GEMM_8]["ncu_launches"] is None


def test_instances_of_a_function_whose_shape_tells_nothing_are_told(run, export, ncu):
    path = ncu(("gemm", "(7, 1, 1)", "1", "50", "20"), ("other()", "(1, 1, 1)", "1", "50", "20"))
    done = run("kernels", export, "--ncu", path, "--format", "csv")
    assert "gemm: several kernels have this name" in done.err and "--names short" in done.err
    assert "7" not in [row["NCU Launches"] for row in done.table]
    short = rows_of(run("kernels", export, "--ncu", path, "--names", "short", "--format", "json"))
    assert short["gemm"]["ncu_launches"] == 1


def test_a_kernel_that_the_exports_do_not_have_is_told(run, export, ncu):
    done = run("kernels", export, "--ncu", ncu(("gone\x1b[2J()", "(7, 1, 1)", "1", "50", "20")), "--format", "csv")
    assert done.status == 0 and "gone" in done.err and "exports do not contain" in done.err and "\x1b" not in done.err
    # Names that the filter excludes are matched, too.
    path = ncu(("other()", "(1, 1, 1)", "1", "50", "20"))
    assert "exports do not contain" not in run("kernels", export, "--filter", "axpy", "--ncu", path).err


@pytest.mark.campaign
def test_by_shape_the_launches_of_each_shape_are_apart(run, export, ncu):
    path = ncu(("axpy", "(4, 1, 1)", "1", "30", "90"), ("axpy", "(2, 1, 1)", "5", "30", "90"))
    done = run("kernels", export, "--by", "shape", "--ncu", path, "--format", "json")
    found = {tuple(row["grid"].split()): row["ncu_duration_ns"] for row in done.json if row["name"] == "axpy(float *)"}
    assert found == {("4", "1", "1"): 1000, ("2", "1", "1"): 5000}


@pytest.mark.campaign
def test_a_changed_file_changes_the_answer(run, export, ncu):
    words = ("kernels", export, "--format", "json", "--ncu")
    assert rows_of(run(*words, ncu(("other()", "(1, 1, 1)", "1", "30", "90"))))["other()"]["ncu_duration_ns"] == 1000
    assert rows_of(run(*words, ncu(("other()", "(1, 1, 1)", "2", "30", "90"))))["other()"]["ncu_duration_ns"] == 2000
    assert "ncu_duration_ns" not in rows_of(run(*words[:-1]))["other()"]


@pytest.mark.parametrize(("compute", "memory", "bound"), [
    (59.9, 12.0, "latency"),
    (60.0, 12.0, "compute"),
    (12.0, 79.0, "memory"),
    (65.0, 74.9, "both"),
    (65.0, 75.0, "memory"),
    (79.0, 81.0, "memory"),
    (95.0, 82.0, "compute"),
    (None, 82.0, None),
    (82.0, None, None),
])  # fmt: skip
def test_the_bound_follows_the_rule_of_nsight_compute(compute, memory, bound):
    assert bound_of(compute, memory) == bound


def test_an_occupancy_limiter_needs_all_limits():
    limits = dict(zip(LIMITS, (8.0, 4.0, 16.0, 32.0), strict=True))
    assert limiter_of(limits) == "shared memory"
    assert limiter_of({**limits, "registers": 4.0}) == "registers, shared memory"
    assert all(limiter_of({key: limits[key] for key in limits if key != lost}) is None for lost in limits)
