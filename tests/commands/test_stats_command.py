"""``nsystui stats``: tables, order, filters and names; tests/parity has the numbers."""

import csv
import io

import duckdb
import pytest
from synthetic import ExportWriter

SUM, SIZES = "cuda_gpu_kern_sum", "cuda_gpu_mem_size_sum"


def tables(text: str) -> list[list[dict[str, str]]]:
    """Return the tables of CSV, separated by empty lines, without their titles."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        found.append(list(csv.DictReader(io.StringIO("\n".join(lines)))))
    return found


class TestFilters:
    def test_a_span_keeps_the_events_that_overlap_it(self, run, demo_job):
        (name,) = (row["name"] for row in run("kernels", demo_job[0], "--format", "json", "--top", "1").json)
        second = run("kernels", demo_job[0], "--instances", name, "--format", "json").json[1]
        low, high = second["start_ns"] + 1, second["start_ns"] + 2
        done = run("stats", "-r", SUM, demo_job[0], "--filter-time", f"{low}ns/{high}ns", "--format", "csv")
        (found,) = [row for row in done.table if row["Name"] == name]
        assert (found["Instances"], found["Total Time (ns)"]) == ("1", str(second["duration_ns"]))

    @pytest.mark.campaign
    def test_an_nvtx_range_is_the_window_and_each_rank_has_its_own(self, run, demo_job):
        def steps(index: int) -> list[int]:
            done = run("stats", "-r", SUM, *demo_job, "--by-rank", "--filter-nvtx", f"step {index}", "--format", "csv")
            return [sum(int(row["Instances"]) for row in table) for table in tables(done.out)]

        first, second = steps(1), steps(2)
        assert len(first) == len(second) == 4
        assert all(40 < count < 200 for count in [*first, *second])

    def test_the_index_and_the_domain_choose_among_ranges_of_one_name(self, run, demo_job):
        def total(name: str) -> int:
            done = run("stats", "-r", "nvtx_sum", demo_job[0], "--filter-nvtx", name, "--format", "csv")
            return sum(int(row["Total Time (ns)"]) for row in done.table)

        assert total("ncclAllReduce@NCCL") == total("ncclAllReduce@*/0") != total("ncclAllReduce@NCCL/5")


class TestTimeUnit:
    def test_headings_and_numbers_are_in_it(self, run, demo_job):
        words = ["stats", "-r", SUM, demo_job[0], "--format", "csv"]
        plain, scaled = run(*words).table, run(*words, "--timeunit", "msec").table
        (micro, *_) = run(*words, "--timeunit", "usec").table
        assert len(micro["Avg (us)"].partition(".")[2]) == 3
        assert "Total Time (ms)" in scaled[0] and "Total Time (ns)" not in scaled[0]
        assert [row["Total Time (ms)"] for row in scaled] == [
            f"{int(row['Total Time (ns)']) / 1e6:.4f}" for row in plain
        ]
        assert [row["Time (%)"] for row in scaled] == [row["Time (%)"] for row in plain]

    def test_halves_are_formatted_as_c_does_it(self, run, tmp_path):
        shown = {150: "0.0001", 2_250_050: "2.2500", 3_000_450: "3.0004", 1_562_550: "1.5626"}
        with ExportWriter(tmp_path / "half.sqlite") as export:
            process = export.process(1)
            for number, length in enumerate(shown, 1):
                export.kernel(process, 0, 7, 0, length, name=str(length), correlation_id=number)
        words = ("stats", "-r", SUM, tmp_path / "half.sqlite", "--format", "csv", "--timeunit", "msec")
        for row in run(*words).table:
            length = int(row["Name"])
            assert row["Avg (ms)"] == row["Total Time (ms)"] == shown[length] == f"{length / 1e6:.4f}"


class TestBlocks:
    def test_files_get_the_names_of_their_reports(self, run, demo_job, tmp_path):
        done = run("stats", "-r", f"{SUM}:base,{SIZES}", demo_job[0], "-o", tmp_path / "out.csv")
        assert (done.status, done.out) == (0, "")
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"out_{SUM}_base.csv", f"out_{SIZES}.csv"]

    def test_a_file_that_is_there_is_not_overwritten(self, run, demo_job, tmp_path):
        taken = tmp_path / f"out_{SIZES}.csv"
        taken.write_text("mine")
        assert run("stats", "-r", f"{SUM},{SIZES}", demo_job[0], "-o", tmp_path / "out.csv").status != 0
        assert taken.read_text() == "mine"

    def test_parquet_holds_the_same_rows(self, run, demo_job, tmp_path):
        target = tmp_path / "out.parquet"
        words = ["stats", "-r", SUM, demo_job[0]]
        assert run(*words, "--format", "parquet", "-o", target).status == 0
        ((count,),) = duckdb.sql(f"SELECT count(*) FROM '{target}'").fetchall()
        assert count == len(run(*words, "--format", "csv").table)
