"""``nccl`` as a script meets it: groups, sizes, single calls, steps."""

from pathlib import Path

import campaign
import pytest
from nccl_program import Program
from synthetic import payload_export
from synthetic.demo import TrainingJob

SMALL_JOB = TrainingJob(ranks=4, steps=3, layers=2)  # that of the fixture demo_job
COLLECTIVES = len(SMALL_JOB.step_collectives) * SMALL_JOB.steps * SMALL_JOB.ranks
# A send and a receive share a kernel.
CALLS = COLLECTIVES + SMALL_JOB.steps * SMALL_JOB.ranks


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return payload_export(tmp_path_factory.mktemp("payload") / "payload.sqlite")


class TestGroups:
    def test_the_usual_ones_are_collective_and_size(self, run, payload):
        usual = run("nccl", payload, "--format", "csv")
        assert usual.out == run("nccl", payload, "--by", "collective,size", "--format", "csv").out
        assert list(usual.table[0])[:3] == ["What", "Collective", "Message Size"]
        assert usual.status == 0

    @pytest.mark.parametrize(
        "words", [("--by", "collective"), pytest.param(("--all-sizes",), marks=pytest.mark.campaign)]
    )
    def test_by_collective_alone(self, run, payload, words):
        table = run("nccl", payload, *words, "--format", "csv").table
        assert "Message Size" not in table[0]
        assert [row["Count"] for row in table if row["What"] == "kernel"] == ["1"] * 6

    def test_bandwidth_and_exposed_time_are_plain_numbers(self, run, payload):
        told = {
            row["Collective"]: row for row in run("nccl", payload, "--format", "csv").table if row["What"] == "kernel"
        }
        row = told["AllReduce"]
        assert float(row["AlgBW (B/s)"]) == pytest.approx(4 * 1024**2 / 500e-6, rel=1e-6)
        assert float(row["BusBW (B/s)"]) == pytest.approx(1.5 * 4 * 1024**2 / 500e-6, rel=1e-6)
        assert (row["Exposed Time (ns)"], row["Overlapped (%)"], row["Reduction"]) == ("500000", "0.0", "Avg")

    @pytest.mark.campaign
    def test_by_step_counts_the_same_in_each(self, run, demo_job):
        done = run("nccl", *demo_job, "--by", "rank,step", "--format", "csv")
        kernels = [row for row in done.table if row["What"] == "kernel"]
        assert {row["Step"] for row in kernels} == {str(step) for step in range(SMALL_JOB.steps)}
        assert {row["Count"] for row in kernels} == {str(len(SMALL_JOB.step_collectives))}
        assert len(kernels) == SMALL_JOB.ranks * SMALL_JOB.steps
        assert "steps are the NVTX ranges `step *` (3 a rank)" in done.err

    @pytest.mark.campaign
    def test_the_user_says_what_a_step_is(self, run, demo_job):
        done = run("nccl", demo_job[0], "--by", "step", "--step-range", "^backward$", "--format", "csv")
        told = {row["Step"]: row["Count"] for row in done.table if row["What"] == "kernel"}
        in_backward = 3  # one bucket of two layers, that of the norms, the ReduceScatter
        outside = (len(SMALL_JOB.step_collectives) - in_backward) * SMALL_JOB.steps
        assert told == {"": str(outside), **{str(step): str(in_backward) for step in range(SMALL_JOB.steps)}}
        done = run("nccl", demo_job[0], "--by", "step", "--step-range", "nowhere")
        assert "no steps: no NVTX range is called `nowhere`" in done.err

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("--by", "ranks"), "the groups are collective, size, pow2"),
            (("--by", "size,pow2"), "use only one"),
            (("--bucket", "1MiB-16MiB"), "--bucket chooses single rows"),
            (("--calls", "--bucket", "1MiB"), "the buckets are <64KiB, 64KiB-1MiB"),
            (("--by", "step", "--step-range", "("), "'re:('"),
        ],
    )
    def test_what_cannot_be_asked(self, refused, payload, words, told):
        assert told in refused("nccl", payload, *words)


class TestSingleRows:
    @pytest.mark.campaign
    def test_a_row_for_each_call(self, run, demo_job):
        table = run("nccl", *demo_job, "--calls", "--format", "csv").table
        assert len(table) == CALLS
        assert not [row for row in table if not row["Kernel"].startswith("ncclDevKernel_")]
        keys = ("Message Size (B)", "Start (ns)", "Duration (ns)", "Kernel Start (ns)", "Kernel Duration (ns)", "Rank")
        assert all(row[key].isdecimal() for row in table for key in keys)
        assert {row["Rank"] for row in table} == {str(rank) for rank in range(SMALL_JOB.ranks)}
        assert len(run("nccl", *demo_job, "--kernels", "--format", "csv").table) == COLLECTIVES

    @pytest.mark.campaign
    def test_only_those_of_a_collective_or_of_a_management_call(self, run, payload):
        assert [row["Name"] for row in run("nccl", payload, "--calls", "Send", "--format", "csv").table] == ["ncclSend"]
        assert len(run("nccl", payload, "--calls", "ncclGroupEnd", "--format", "csv").table) == 1
        assert len(run("nccl", payload, "--kernels", "AllGather", "--format", "csv").table) == 1

    def test_only_those_of_a_bucket(self, run, payload):
        table = run("nccl", payload, "--calls", "--bucket", "64KiB-1MiB", "--format", "csv").table
        assert [row["Name"] for row in table] == ["ncclReduceScatter", "ncclSend", "ncclRecv"]

    @pytest.mark.parametrize("option", ["--calls", "--kernels", "--sizes"])
    def test_a_file_is_no_collective(self, refused, payload, option):
        assert "write the files first" in refused("nccl", option, payload)


class TestSizes:
    @pytest.mark.campaign
    def test_kernels_by_exact_size(self, run, payload):
        table = run("nccl", payload, "--sizes", "--format", "csv").table
        assert [(row["Collective"], row["Message Size (B)"]) for row in table] == [
            ("AllGather", "65535"),
            ("AllReduce", str(4 * 1024**2)),
            ("Broadcast", str(1024**2)),
            ("Reduce", str(16 * 1024**2)),
            ("ReduceScatter", "65536"),
            ("SendRecv", str(2 * 1_048_575)),
        ]
        assert {row["Med (ns)"] for row in table} == {"500000.0"}
        assert {row["CV (%)"] for row in table} == {"0.0"}

    @pytest.mark.parametrize(
        ("how", "key", "value"),
        campaign.first(1, [("bucket", "Message Size", "<64KiB"), ("pow2", "Message Size From (B)", "32768")]),
    )
    def test_kernels_by_ranges_of_sizes(self, run, payload, how, key, value):
        assert run("nccl", payload, "--sizes", how, "--format", "csv").table[0][key] == value


def test_help_tells_every_group_and_what_the_measures_mean(run):
    text = run("nccl", "--help").out
    for word in ("pow2", "datatype", "reduction", "exposed", "busbw", "--step-range", "2(n-1)/n"):
        assert word in text


def test_logs_tell_sizes_that_the_export_does_not(run, tmp_path):
    program = Program(tmp_path / "rank0.sqlite")
    for _ in range(2):
        program.call("ncclAllReduce", launches=1, kernel="AllReduce")
    program.export.close()
    line = "node001:5000:5000 [0] NCCL INFO AllReduce: opCount {} sendbuff 0x7 recvbuff 0x9 count {} datatype 7 op 0 "
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    for number, log in enumerate(logs):
        text = line.format(number, 100 * (number + 1)) + "root 0 comm 0x55b6 [nranks=4] stream 0x55\n"
        log.write_text(text, encoding="utf-8")
    told = run("nccl", program.export.path, "--by", "collective,bytes", "--format", "csv", "--nccl-log", *logs)
    assert [(row["What"], row["Message Size (B)"], row["Datatype"]) for row in told.table] == [
        ("kernel", "400", "fp32"), ("kernel", "800", "fp32"), ("call", "400", "fp32"), ("call", "800", "fp32"),
    ]  # fmt: skip
    assert "message sizes from the debug log, by the order of the calls: 2" in told.err


def test_a_log_that_is_not_there_is_named(refused, payload, tmp_path):
    assert "no.log" in refused("nccl", payload, "--nccl-log", tmp_path / "no.log")
