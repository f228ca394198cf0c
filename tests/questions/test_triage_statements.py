"""Triage says nothing that is false or misleading: each test is a statement that it once made."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support import shared
from synthetic import ExportWriter
from synthetic.illnesses import OneGpu
from triaging import finding, job_of, triaged

from nsystui.base.selection import Selection
from nsystui.exports.writing.target import Session as DemoSession
from nsystui.exports.writing.writer import DEVICE, PAGEABLE, PINNED
from nsystui.output.findings import change_lines
from nsystui.questions.compare import Side
from nsystui.questions.tasks import world_size
from nsystui.questions.triage.baseline import against
from nsystui.questions.triage.finding import Severity

MS = 1_000_000


def with_gaps(
    path: Path, *, ranges: int = 0, os_calls: bool = False, scheduling: bool = False, samples: bool = False
) -> Path:
    """10 gaps of 10 ms between kernels of 10 ms; of the first ``ranges`` each is within a range ``load``.

    Another thread, which launches nothing, is in a range ``decode`` in each.
    """
    with ExportWriter(path, "3.25.0") as export:
        gpu = OneGpu(export)
        loader = export.thread(gpu.process, 5_001, "loader")
        for number in range(11):
            start = MS + 20 * MS * number
            gpu.kernel(start, start + 10 * MS, launched=start - 10_000)
            if ranges:
                export.nvtx_range(loader, start + 14 * MS, start + 16 * MS, "decode")
            if number < ranges:
                export.nvtx_range(gpu.main, start + 10 * MS + 1_000, start + 20 * MS - 20_000, "load")
        # What is recorded says nothing of the gaps: it is over before the first, or of another thread.
        if os_calls:
            export.osrt(gpu.main, 0, 500_000, "read")
        if scheduling:
            export.switch(gpu.main, 0, 0, is_in=True)
        if samples:
            export.sample(gpu.main, 400_000, ())
    return path


@pytest.mark.parametrize(
    ("recorded", "wanted"),
    [
        ({}, ["-t osrt", "--cpuctxsw", "--sample"]),
        ({"os_calls": True}, ["--cpuctxsw", "--sample"]),
        ({"os_calls": True, "samples": True}, ["--cpuctxsw"]),
    ],
)
def test_what_to_record_is_only_what_is_not_there(tmp_path, recorded, wanted):
    advice = finding(triaged(with_gaps(tmp_path / "a.sqlite", **recorded)), "idle-gaps").advice
    text = str(advice)
    assert [flag for flag in ("-t osrt", "--cpuctxsw", "--sample") if flag in text] == wanted
    assert "checkpoints" not in text


@pytest.mark.parametrize("name", ["ai-training-before", "dataloader-bound-a100", "mpi-cuda-saxpy-schema2.9"])
def test_a_real_export_is_not_told_to_record_what_it_has(name):
    (path,) = shared(name)
    with closing(sqlite3.connect(path)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    one = finding(triaged(path, rules=("idle_gaps",)), "idle-gaps")
    text = str(one.advice)
    assert "running main 65 %" in one.gist or not name.startswith("mpi")
    for table, flag in (("OSRT_API", "osrt"), ("SCHED_EVENTS", "--cpuctxsw"), ("COMPOSITE_EVENTS", "--sample")):
        assert table not in tables or flag not in text


@pytest.mark.parametrize(
    ("ranges", "words"), [(2, "80 % of it outside of every NVTX range"), (8, "80 % of it in NVTX range `load`")]
)
def test_gaps_without_a_range_count_against_the_most_frequent_one(tmp_path, ranges, words):
    sentence = finding(triaged(with_gaps(tmp_path / "a.sqlite", ranges=ranges)), "idle-gaps").sentence
    assert words in sentence
    assert "mostly in NVTX range" not in sentence


def one_kernel(path: Path, environment: dict[str, str], mpi: bool = False) -> Path:
    with ExportWriter(path, "3.25.0", session=DemoSession(environment=environment)) as export:
        gpu = OneGpu(export)
        gpu.kernel(MS, 50 * MS, launched=MS - 10_000)
        if mpi:
            export.mpi_collective(gpu.main, 51 * MS, 52 * MS, "MPI_Allreduce")
    return path


@pytest.mark.parametrize(
    ("environment", "mpi", "size"),
    [
        # An allocation of 8 tasks in which a batch script started one program.
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, False, None),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "3"}, False, 8),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, True, 8),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "WORLD_SIZE": "4"}, False, 4),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "WORLD_SIZE": "1"}, False, 1),
        ({"PMI_SIZE": "8", "PMI_RANK": "0"}, False, 8),
    ],
)
def test_an_allocation_is_no_job_of_so_many_ranks(tmp_path, environment, mpi, size):
    path = one_kernel(tmp_path / "a.sqlite", environment, mpi)
    with closing(job_of(path)) as job:
        assert world_size(job.session) == size
    missing = any(one.id == "ranks-missing" for one in triaged(path, rules=("capture",)).findings)
    assert missing == (size is not None and size > 1)


def stepped(path: Path, times: list[int], idle: int = 0, rank: int | None = None) -> Path:
    """Steps of so many ms; what the first one is shorter by than another, and ``idle`` ms of each, the GPU is idle."""
    with ExportWriter(
        path, "3.25.0", session=DemoSession(environment={} if rank is None else {"RANK": str(rank)})
    ) as e:
        gpu, start = OneGpu(e), MS
        for number, time in enumerate(times):
            e.nvtx_range(gpu.main, start, start + time * MS - 1_000, f"step {number}")
            gpu.kernel(start + 10_000, start + (times[0] - idle) * MS, launched=start + 1_000)
            start += time * MS
    return path


def test_a_single_rank_is_no_every_rank(tmp_path):
    found = finding(triaged(stepped(tmp_path / "a.sqlite", [20] * 10 + [80] + [20] * 3)), "slow-steps")
    assert "every rank" not in str(found.advice)
    assert "checkpoint" not in str(found.advice)


def test_slow_steps_stand_under_the_gaps_that_made_them_slow(tmp_path):
    found = triaged(stepped(tmp_path / "a.sqlite", [20] * 10 + [80] + [20] * 3))
    slow = finding(found, "slow-steps")
    assert slow.under == "idle-gaps"
    assert "60 ms of it idle time in long gaps" in slow.sentence


def test_steps_that_compute_for_longer_stand_alone(tmp_path):
    with ExportWriter(tmp_path / "a.sqlite", "3.25.0") as export:
        OneGpu(export).steps([20 * MS] * 10 + [80 * MS] + [20 * MS] * 3)
    assert finding(triaged(tmp_path / "a.sqlite"), "slow-steps").under == ""


@pytest.mark.parametrize("environment", [{}, {"RANK": "0"}])
@pytest.mark.parametrize("schema", ["2.9.1", "3.25.0"])
@pytest.mark.parametrize("change", ["UPDATE {} SET globalPid = NULL", "ALTER TABLE {} DROP COLUMN globalPid"])
@pytest.mark.parametrize("also_memory", [False, True])
def test_kernels_of_no_known_process_are_gpu_work(tmp_path, change, schema, environment, also_memory):
    path = tmp_path / "a.sqlite"
    with ExportWriter(path, schema, session=DemoSession(environment=environment)) as export:
        gpu = OneGpu(export)
        gpu.kernel(MS, 50 * MS, launched=MS - 10_000)
        if also_memory:
            gpu.copy("cudaMemcpyAsync_v3020", 50 * MS, 51 * MS)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change.format("CUPTI_ACTIVITY_KIND_KERNEL"))
        connection.commit()
    assert "no-gpu-work" not in {one.id for one in triaged(path).findings}


def test_warm_up_is_blamed_on_nothing_that_was_not_seen(tmp_path):
    found = finding(triaged(warm(tmp_path)), "warm-up")
    text = found.sentence + str(found.advice)
    assert not any(word in text for word in ("compil", "autotuning", "connections"))
    assert "idle" in found.sentence
    assert "cudaHostAlloc" in found.sentence


def warm(tmp_path: Path) -> Path:
    """12 steps of 20 ms, the first of them 100 ms, of which 80 ms are a call of ``cudaHostAlloc``."""
    path, start = tmp_path / "warm.sqlite", MS
    with ExportWriter(path, "3.25.0") as export:
        gpu = OneGpu(export)
        for number, time in enumerate([100, *[20] * 11]):
            end = start + time * MS
            export.nvtx_range(gpu.main, start, end - 1_000, f"step {number}")
            gpu.kernel(start + 10_000, start + 10 * MS, launched=start + 1_000)
            if not number:
                gpu.call("cudaHostAlloc_v3020", start + 10 * MS, end - 10 * MS)
            gpu.kernel(end - 10 * MS, end - 1_000, launched=end - 10 * MS - 5_000)
            start = end
    return path


def test_memory_that_cannot_be_opened_is_missing_peer_access_and_no_probe(tmp_path):
    with ExportWriter(tmp_path / "a.sqlite", "3.25.0") as export:
        gpu = OneGpu(export)
        gpu.kernel(MS, 50 * MS, launched=MS - 10_000)
        gpu.call("cuIpcOpenMemHandle_v2", 2 * MS, 3 * MS, return_value=217)
    found = finding(triaged(tmp_path / "a.sqlite", rules=("api_errors",)), "api-errors")
    assert "peer access" in found.sentence
    assert "probe" not in str(found.advice)
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("source", "stream", "says", "says_not"),
    [
        (PAGEABLE, 7, "pin", "pinned already"),
        (PINNED, 7, "stream of its own", "from pinned memory"),
        (PINNED, 16, "pinned already and on a stream of their own", "from pinned memory"),
    ],
)
def test_the_advice_for_copies_knows_what_is_pinned_already(tmp_path, source, stream, says, says_not):
    with ExportWriter(tmp_path / "a.sqlite", "3.25.0") as export:
        gpu = OneGpu(export)
        for number in range(10):
            start = MS + 10 * MS * number
            gpu.kernel(start, start + 5 * MS, launched=start - 10_000)
            correlation = gpu.call("cudaMemcpyAsync_v3020", start, start + 10_000)
            export.memcpy(
                gpu.process, 0, stream, start + 5 * MS, start + 10 * MS, size=MS, kind="HtoD",
                correlation_id=correlation, source=source, destination=DEVICE,
            )  # fmt: skip
    advice = str(finding(triaged(tmp_path / "a.sqlite"), "exposed-memory").advice)
    assert says in advice
    assert says_not not in advice


def test_the_launcher_of_nsys_is_not_the_program(tmp_path):
    path = tmp_path / "a.sqlite"
    with ExportWriter(path, "3.25.0", session=DemoSession(command=("/opt/app/solver", "-n", "5"))) as export:
        process = export.process(5_000, "/opt/nsys/target-linux-x64/nsys-launcher")
        main = export.thread(process, 5_000, "solver")
        export.gpu(0)
        export.cuda_context(process, 0, 1)
        export.cuda_device(process, 0, 0)
        export.api(main, MS, 2 * MS, "cudaLaunchKernel_v7000", 1)
        export.kernel(process, 0, 7, 2 * MS, 4 * MS, name="saxpy()", correlation_id=1)
    with closing(job_of(path)) as job:
        assert [item.process_name for item in job.ranks] == ["solver"]


def test_a_run_of_ten_times_the_time_got_worse(tmp_path):
    short, long = stepped(tmp_path / "a.sqlite", [20] * 3, 10), stepped(tmp_path / "b.sqlite", [200] * 3, 100)
    with closing(job_of(short)) as before, closing(job_of(long)) as after:
        found = against(Side(after, Selection(), "b"), Side(before, Selection(), "a"))
        head = change_lines(found)
        assert "Nothing got worse" not in "".join(head[:4])
        assert "10.0 × slower" in head[0]
        back = change_lines(against(Side(before, Selection(), "a"), Side(after, Selection(), "b")))[0]
        assert "10.0 × faster" in back


def test_more_steps_of_the_same_length_are_not_worse(tmp_path):
    short, long = stepped(tmp_path / "a.sqlite", [20] * 5), stepped(tmp_path / "b.sqlite", [20] * 50)
    with closing(job_of(short)) as before, closing(job_of(long)) as after:
        head = " ".join(change_lines(against(Side(after, Selection(), "b"), Side(before, Selection(), "a")))[:4])
        assert head.startswith("About as fast: a step takes 20 ms instead of 20 ms")
        assert "of 50 steps instead of 5" in head
        assert "Nothing got worse" in head
