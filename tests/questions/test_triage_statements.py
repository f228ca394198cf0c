"""Triage states nothing false or misleading: each test is about a statement that it once made."""

from contextlib import closing
from itertools import product
from pathlib import Path

import pytest
from support import edit, open_job
from synthetic import ExportWriter, whole_graph_export
from synthetic.demo import TrainingJob
from synthetic.demo.model import nccl_kernel
from synthetic.gpu_program import Program
from synthetic.illnesses import one_gpu
from synthetic.writing.host import Frame
from synthetic.writing.target import CaptureSession as DemoSession
from synthetic.writing.writer import MANAGED
from triaging import finding, judged, told, triaged

from nsystui.base.selection import Selection
from nsystui.output.findings import change_lines
from nsystui.questions.collectives.alignment import ClockMode
from nsystui.questions.compare import Side
from nsystui.questions.host.gaps import gaps_table
from nsystui.questions.host.host_work import host_work
from nsystui.questions.host.idle_spans import IdleSpan
from nsystui.questions.host.time_budget import budget_with_causes
from nsystui.questions.queries.tasks import world_size
from nsystui.questions.ranks.steps import steps_by_rank
from nsystui.questions.triage.baseline import against
from nsystui.questions.triage.run import triage

pytestmark = pytest.mark.campaign

MS = 1_000_000
MIGRATION = {"kind": "UvmHtoD", "source": MANAGED, "destination": MANAGED, "migration_cause": 2}


def with_gaps(
    path: Path, *, ranges: int = 0, os_calls: bool = False, scheduling: bool = False, samples: bool = False
) -> Path:
    """Write 10 gaps of 10 ms between kernels of 10 ms; each of the first ``ranges`` is within a range ``load``.

    Another thread, which launches nothing, is in a range ``decode`` in each.
    """
    with one_gpu(path) as gpu:
        loader = gpu.export.thread(gpu.process, 5_001, "loader")
        for number, start in enumerate(gpu.rounds(11, 20 * MS, 10 * MS)):
            if ranges:
                gpu.export.nvtx_range(loader, start + 14 * MS, start + 16 * MS, "decode")
            if number < ranges:
                gpu.export.nvtx_range(gpu.main, start + 10 * MS + 1_000, start + 20 * MS - 20_000, "load")
        # The records do not explain the gaps: they end before the first gap, or are of another thread.
        if os_calls:
            gpu.export.osrt(gpu.main, 0, 500_000, "read")
        if scheduling:
            gpu.export.switch(gpu.main, 0, 0, is_in=True)
        if samples:
            gpu.export.sample(gpu.main, 400_000, ())
    return path


@pytest.mark.parametrize(("recorded", "wanted"), [
    ({}, ["-t osrt", "--cpuctxsw", "--sample"]),
    ({"os_calls": True}, ["--cpuctxsw", "--sample"]),
    ({"os_calls": True, "samples": True}, ["--cpuctxsw"]),
])  # fmt: skip
def test_what_to_record_is_only_what_is_not_there(tmp_path, recorded, wanted):
    text = str(finding(triaged(with_gaps(tmp_path / "a.sqlite", **recorded), rules=("idle_gaps",)), "idle-gaps").advice)
    assert [flag for flag in ("-t osrt", "--cpuctxsw", "--sample") if flag in text] == wanted
    assert "checkpoints" not in text


@pytest.mark.parametrize(
    ("ranges", "words"), [(2, "80 % of it was outside of every NVTX range"), (8, "80 % of it was in NVTX range `load`")]
)
def test_gaps_without_a_range_count_against_the_most_frequent_one(tmp_path, ranges, words):
    found = triaged(with_gaps(tmp_path / "a.sqlite", ranges=ranges), rules=("idle_gaps",))
    told(finding(found, "idle-gaps"), words, never=("mostly in NVTX range",))


@pytest.mark.parametrize(("environment", "mpi", "size"), [
    # An allocation of 8 tasks in which a batch script started one program.
    ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, False, None),
    ({"SLURM_NTASKS": "8", "SLURM_PROCID": "3"}, False, 8),
    ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, True, 8),
    ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "WORLD_SIZE": "4"}, False, 4),
    ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "WORLD_SIZE": "1"}, False, 1),
    ({"PMI_SIZE": "8", "PMI_RANK": "0"}, False, 8),
])  # fmt: skip
def test_an_allocation_is_no_job_of_so_many_ranks(tmp_path, environment, mpi, size):
    with one_gpu(tmp_path / "a.sqlite", session=DemoSession(environment=environment)) as gpu:
        gpu.kernel(MS, 50 * MS, launched=MS - 10_000)
        if mpi:
            gpu.export.mpi_collective(gpu.main, 51 * MS, 52 * MS, "MPI_Allreduce")
    with closing(open_job(tmp_path / "a.sqlite")) as job:
        assert world_size(job.session) == size
        missing = any(one.id == "ranks-missing" for one in judged(job, rules=("capture",)).findings)
    assert missing == (size is not None and size > 1)


def stepped(path: Path, times: list[int], idle: int = 0) -> Path:
    """Write steps of these durations, ms; the GPU works in each as long as the first step, less ``idle`` ms."""
    with one_gpu(path) as gpu:
        start = MS
        for number, time in enumerate(times):
            gpu.export.nvtx_range(gpu.main, start, start + time * MS - 1_000, f"step {number}")
            gpu.kernel(start + 10_000, start + (times[0] - idle) * MS, launched=start + 1_000)
            start += time * MS
    return path


STEPS = ("idle_gaps", "step_times")


def test_slow_steps_stand_under_the_gaps_that_made_them_slow(tmp_path):
    slow = finding(triaged(stepped(tmp_path / "a.sqlite", [20] * 10 + [80] + [20] * 3), rules=STEPS), "slow-steps")
    assert slow.under == "idle-gaps"
    told(slow, "60 ms is idle time in long gaps.")
    assert not any(word in str(slow.advice) for word in ("Every rank", "checkpoint"))  # there is only one rank


def test_slow_steps_are_held_against_the_median_that_the_table_of_steps_has(tmp_path):
    """The median of all steps is 10 ms; without the warm-up it would be 15 ms."""
    with closing(open_job(stepped(tmp_path / "a.sqlite", [10] * 5 + [20, 60, 20, 20, 10]))) as job:
        (row,) = steps_by_rank(job.ranks, job.steps()).records()
        slow = finding(judged(job, rules=("step_times",)), "slow-steps")
    assert row["median"] == pytest.approx(10 * MS, rel=0.01)
    told(slow, f"{row['slow']} of 8 steps (number 5, 6, 7 and 1 more) took more", "instead of 10 ms")
    assert slow.cost == pytest.approx((3 * 10 + 50) * MS, rel=0.01)


def test_time_before_the_capture_of_a_rank_began_is_no_start_up(tmp_path):
    """The capture of rank 1 begins 300 ms after the capture of rank 0.

    Each GPU works from 100 ms after that to 900 ms.
    """
    paths = [tmp_path / f"rank{rank}.sqlite" for rank in range(2)]
    for rank, path in enumerate(paths):
        late = 300 * MS * rank
        session = DemoSession(environment={"RANK": str(rank)}, utc_epoch_ns=DemoSession.utc_epoch_ns + late)
        with one_gpu(path, session=session, gpu=rank) as gpu:
            gpu.call("cudaFree_v3020", 0, 10_000)
            for start in range(100 * MS, 900 * MS - late, 10 * MS):
                gpu.kernel(start, start + 10 * MS, launched=start - 10_000)
    with closing(open_job(*paths)) as job:
        job.align(ClockMode.UTC)
        found, summed = triage(job, names=("start_and_end",)), gaps_table(job, Selection())
    assert found.budget.startup == pytest.approx(2 * 100 * MS, abs=10)
    assert found.budget.unrecorded == pytest.approx(300 * MS, abs=10)
    assert sum(summed.cells("time")) == found.budget.idle
    assert "not recorded" in found.account


def test_steps_that_compute_for_longer_stand_alone(tmp_path):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        gpu.steps([20 * MS] * 10 + [80 * MS] + [20 * MS] * 3)
    assert finding(triaged(tmp_path / "a.sqlite", rules=STEPS), "slow-steps").under == ""


CHANGES = (
    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL",
    "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid",
)


@pytest.mark.parametrize(("schema", "also_memory"), product(("2.9.1", "3.25.0"), (False, True)))
def test_kernels_of_no_known_process_are_gpu_work(tmp_path, schema, also_memory):
    for number, (environment, change) in enumerate(product(({}, {"RANK": "0"}), CHANGES)):
        path = tmp_path / f"{number}.sqlite"
        with one_gpu(path, schema, session=DemoSession(environment=environment)) as gpu:
            gpu.kernel(MS, 50 * MS, launched=MS - 10_000)
            if also_memory:
                gpu.copy("cudaMemcpyAsync_v3020", 50 * MS, 51 * MS)
        edit(path, change)
        found = triaged(path, rules=("capture",))
        assert "no-gpu-work" not in {one.id for one in found.findings}, (environment, change)


def test_a_gpu_that_hardly_works_is_in_no_healthy_job(tmp_path):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        gpu.call("cudaMalloc_v3020", 0, 900 * MS)
        gpu.kernel(901 * MS, 902 * MS, launched=900 * MS)
        gpu.call("cudaFree_v3020", 902 * MS, 999 * MS)
    found = triaged(tmp_path / "a.sqlite", rules=("start_and_end",))
    assert not found.health and found.headline.startswith("The GPU hardly works. 1 remark.")
    assert found.summary.startswith("The GPU is busy <1 % of the time.")


def test_page_faults_that_were_not_recorded_are_not_0(tmp_path):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for start in gpu.rounds(5, 5 * MS, 5 * MS):
            gpu.export.memcpy(gpu.process, 0, 7, start, start + MS, size=2_000_000, correlation_id=None, **MIGRATION)
            gpu.export.cpu_page_fault(gpu.process, start, 0x7F00_0000_0000)
    found = finding(triaged(tmp_path / "a.sqlite", rules=("unified_memory",)), "unified-memory")
    told(found, "GPU page faults not recorded and 5 CPU page faults")
    (row,) = found.evidence.records()
    assert (row["gpu_faults"], row["cpu_faults"]) == (None, 5)


@pytest.mark.parametrize(("prefetches", "advice"), [(False, "Prefetch the pages"), (True, "earlier, or on another")])
def test_pages_that_move_before_kernels_are_prefetched_not_pinned(tmp_path, prefetches, advice):
    """20 rounds of a launch, 2 ms in which pages move, and 3 ms of the kernel, which waited for them."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for number, start in enumerate(range(4 * MS, 104 * MS, 5 * MS)):
            gpu.export.nvtx_range(gpu.main, start - 2 * MS - 20_000, start + 3 * MS - 30_000, f"step {number}")
            gpu.kernel(start, start + 3 * MS, launched=start - 2 * MS - 10_000)
            if prefetches:
                gpu.export.api(gpu.main, start - 2 * MS - 9_000, start - 2 * MS, "cudaMemPrefetchAsync_v8000", None)
            gpu.export.memcpy(gpu.process, 0, 7, start - 2 * MS, start, size=2_000_000, correlation_id=0, **MIGRATION)
    result = triaged(tmp_path / "a.sqlite", rules=("unified_memory", "exposed_memory", "memory_copies", "step_traffic"))
    assert {item.id for item in result.findings} == {"unified-memory", "exposed-memory"}
    assert "blocked most by unified memory" in result.summary
    for item in result.findings:
        told(item, advises=(advice, "cudaMemPrefetchAsync"), never=("inned memory", "separate stream"))
        assert item.gain is not None and item.gain.recoverable > 1.8 * MS


def test_warm_up_is_blamed_on_nothing_that_was_not_seen(tmp_path):
    """12 steps of 20 ms, the first of them 100 ms, of which 80 ms are a call of ``cudaHostAlloc``."""
    with one_gpu(tmp_path / "warm.sqlite") as gpu:
        start = MS
        for number, time in enumerate([100, *[20] * 11]):
            end = start + time * MS
            gpu.export.nvtx_range(gpu.main, start, end - 1_000, f"step {number}")
            gpu.kernel(start + 10_000, start + 10 * MS, launched=start + 1_000)
            if not number:
                gpu.call("cudaHostAlloc_v3020", start + 10 * MS, end - 10 * MS)
            gpu.kernel(end - 10 * MS, end - 1_000, launched=end - 10 * MS - 5_000)
            start = end
    found = finding(triaged(tmp_path / "warm.sqlite", rules=STEPS), "warm-up")
    told(found, "idle", "cudaHostAlloc", never=("compil", "autotuning", "connections"))


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
    with closing(open_job(path)) as job:
        assert [item.process_name for item in job.ranks] == ["solver"]


@pytest.mark.parametrize(("short", "long", "words"), [
    (([20] * 3, 10), ([200] * 3, 100), ["10.0 × slower"]),
    # More steps of the same length are not worse.
    (([20] * 5,), ([20] * 50,), ["About as fast: a step takes 20 ms on both sides", "of 50 steps instead of 5"]),
])  # fmt: skip
def test_a_run_of_ten_times_the_time_got_worse_unless_it_has_ten_times_the_steps(tmp_path, short, long, words):
    paths = stepped(tmp_path / "a.sqlite", *short), stepped(tmp_path / "b.sqlite", *long)
    with closing(open_job(paths[0])) as before, closing(open_job(paths[1])) as after:
        head = " ".join(change_lines(against(Side(after, Selection(), "b"), Side(before, Selection(), "a")))[:4])
    assert [one for one in words if one not in head] == [] and ("Nothing got worse" in head) == (len(words) == 2)


def test_what_cuda_graphs_hide_is_not_said_to_be_missing_nor_to_be_well(tmp_path):
    path = whole_graph_export(tmp_path / "a.sqlite")
    found = triaged(path, rules=("exposed_communication", "exposed_memory"))
    assert {one.why.partition(": ")[2] for one in found.not_checked} == {
        "this job has none outside of its CUDA graphs, which were not traced inside"
    }
    found = triaged(path)
    assert found.health == "No issues found outside of CUDA graphs, which were not traced inside"
    assert "No loss was found outside of CUDA graphs, which were not traced inside." in found.summary


def test_a_tail_that_is_the_profilers_is_not_to_be_shortened(tmp_path):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for _ in gpu.rounds(4, 10 * MS, 10 * MS):
            pass
        gpu.export.profiler_overhead(gpu.main, 42 * MS, 80 * MS, "CUPTI Buffer flush")
        gpu.call("cudaDeviceSynchronize_v3020", 80 * MS, 81 * MS)
    tail = finding(triaged(tmp_path / "a.sqlite", rules=("start_and_end",)), "tail")
    told(tail, "38 ms the profiler's own work", advises=("a run without nsys",), never=("shorten", "pays"))


def test_one_rank_alone_does_not_tell_who_is_late_and_nothing_hides_what_is_alone_on_its_gpu(tmp_path):
    """One rank of eight runs only an AllGather."""
    session = DemoSession(environment={"RANK": "0", "SLURM_NTASKS": "8"})
    with one_gpu(tmp_path / "a.sqlite", session=session) as gpu:
        gpu.kernel(MS, 90 * MS, launched=MS // 2, name=nccl_kernel("AllGather").name)
    found = triaged(tmp_path / "a.sqlite", rules=("capture", "exposed_communication"))
    told(finding(found, "ranks-missing"), "Only 1 of 8 ranks is open.")
    told(finding(found, "exposed-communication"), "in AllGather", advises=("no compute to hide", "Open all ranks"),
         never=("overlap communication", "blocks"))  # fmt: skip


@pytest.mark.parametrize("has_steps", [False, True])
def test_the_collective_of_a_kernel_that_hides_it_is_unknown(tmp_path, has_steps):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for number, start in enumerate(gpu.rounds(12, 16 * MS, 10 * MS)):
            if has_steps:
                gpu.export.nvtx_range(gpu.main, start - 20_000, start + 15 * MS, f"step {number}")
            for call in range(2):
                begin = start + (10 + 2 * call) * MS
                gpu.kernel(begin, begin + 2 * MS, launched=start - 5_000, name="ncclDevKernel_Generic_4")
    one = finding(triaged(tmp_path / "a.sqlite", rules=("exposed_communication",)), "exposed-communication")
    calls = "2 kernels of unknown collective a step" if has_steps else "24 kernels of unknown collective"
    told(one, f"is in kernels of unknown collective ({calls})", never=("nan", "None", "smaller buckets"))


def test_communication_that_is_exposed_for_a_good_part_is_not_said_to_be_overlapped(tmp_path):
    """8 steps of 100 ms, with 24 ms of NCCL: 16 during a kernel, 8 alone; and one more kernel alone."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for start in gpu.rounds(8, 100 * MS, 90 * MS):
            begin = start + 74 * MS
            gpu.kernel(begin, begin + 24 * MS, launched=start, name=nccl_kernel("AllReduce").name)
    one = finding(triaged(tmp_path / "a.sqlite", rules=("exposed_communication",)), "communication")
    told(one, "Compute hides 67 % of", advises=("overlap communication with compute",), never=("No action",))


def test_the_busiest_kernel_is_not_said_to_be_all_that_can_gain_in_a_job_that_waits_longer(tmp_path):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for _ in gpu.rounds(20, 10 * MS, 4 * MS):
            pass
    one = finding(triaged(tmp_path / "a.sqlite", rules=("dominant_kernel",)), "dominant-kernel")
    told(one, advises=("No other kernel can save as much time",), never=("nothing else",))


def test_the_straggler_that_is_gone_and_the_one_that_is_new_are_told_by_their_ranks(tmp_path):
    jobs = (TrainingJob(ranks=2, steps=8, layers=4, straggler=rank, stall_ms=0) for rank in range(2))
    paths = [job.write(tmp_path / str(rank)) for rank, job in enumerate(jobs)]
    with closing(open_job(*paths[1])) as job, closing(open_job(*paths[0])) as baseline:
        text = "\n".join(change_lines(against(Side(job, Selection(), "B"), Side(baseline, Selection(), "A"))))
    assert "NEW     W  straggler of rank 1  " in text
    assert "GONE    W  straggler of rank 0 (was " in text


US = 1_000


@pytest.mark.parametrize("ahead", [0, 1_500])
def test_the_range_of_a_launch_bound_stretch_is_that_of_its_launches(tmp_path, ahead):
    """A loop in `main_loop`; a thread that makes most calls, and launches the next kernel, is in `evaluate`."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        start, every, length = 11 * MS, 5 * US, 2 * US
        other = gpu.export.thread(gpu.process, 5_001, "evaluator")
        gpu.kernel(MS, MS + length, launched=MS - 10_000)
        gpu.export.nvtx_range(gpu.main, start - 10 * US, start + 500 * every, "main_loop")
        gpu.export.nvtx_range(other, start, start + 499 * every, "evaluate")
        for number in range(600):
            now = start + number * US
            gpu.export.api(other, now, now + 500, "cudaEventQuery_v3020", 10_000 + number)
        for number in range(500):
            begin = start + every * number
            gpu.kernel(begin, begin + length, launched=begin - 2_500 - ahead)
        gpu.main, main = other, gpu.main
        gpu.kernel(60 * MS, 60 * MS + length, launched=60 * MS - 10 * US)
        gpu.main = main
    found = triaged(tmp_path / "a.sqlite", rules=("launch_bound",), settings=("launch_percent=99",))
    told(finding(found, "launch-bound"), "in NVTX range `main_loop`,", never=("evaluate",))


def test_without_calls_the_launching_thread_is_unknown_and_has_no_range(tmp_path):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        gpu.export.nvtx_range(gpu.export.thread(gpu.process, 5_001, "evaluator"), MS, 20 * MS, "evaluate")
        for begin in (MS, 10 * MS):
            gpu.export.kernel(gpu.process, 0, 7, begin, begin + MS, name="work(float*)", correlation_id=None)
    with closing(open_job(tmp_path / "a.sqlite")) as job:
        (work,) = host_work(job, [IdleSpan(job.ranks[0].task, 0, 2 * MS, 10 * MS)])
    assert (work.range_name, work.next_range) == (None, None)


@pytest.mark.parametrize("of_main", [True, False])
def test_the_work_of_another_thread_is_not_in_the_range_of_the_launching_thread(tmp_path, of_main):
    """In a gap of 20 ms in `evaluate` a thread is in ``cudaMalloc``: the launching thread, or another."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        gpu.kernel(MS, 2 * MS, launched=MS - 10 * US)
        thread = gpu.main if of_main else gpu.export.thread(gpu.process, 5_001, "loader")
        gpu.export.nvtx_range(gpu.main, 3 * MS, 21 * MS, "evaluate")
        gpu.export.api(thread, 4 * MS, 20 * MS, "cudaMalloc_v3020", 9_999)
        for begin in range(22 * MS, 60 * MS, MS):
            gpu.kernel(begin, begin + MS - US, launched=begin - 10 * US)
    with closing(open_job(tmp_path / "a.sqlite")) as job:
        text = " ".join(budget_with_causes(job, Selection()).notes)
    assert ("cudaMalloc in `evaluate`" in text) == of_main, text
    assert ("cudaMalloc on loader 5001 " in text) != of_main and "5001 in" not in text, text


@pytest.mark.parametrize(("of_main", "runs", "words", "reason"), [
    (True, False, "idles 190 ms (19 gaps of 1 ms or more, in NVTX ranges", "nothing else of that thread was recorded"),
    (True, True, "prepares the input itself for 91 %", "launches nothing meanwhile"),
    (False, True, "", ""),
    (False, False, "", ""),
])  # fmt: skip
def test_a_data_loader_is_blamed_only_for_what_was_seen_of_the_launching_thread(tmp_path, of_main, runs, words, reason):
    """20 steps of 20 ms, half of each idle, while a range `load_batch` is open on the launching thread or another."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        thread = gpu.main if of_main else gpu.export.thread(gpu.process, 5_001, "prefetch")
        for number, start in enumerate(gpu.rounds(20, 20 * MS, 10 * MS)):
            gpu.export.nvtx_range(gpu.main, start - 50 * US, start + 19_900 * US, f"step {number}")
            gpu.export.nvtx_range(thread, start + 10_020 * US, start + 19 * MS, "load_batch")
            if runs:
                gpu.export.on_cpu(gpu.main, start - 100 * US, start + 19 * MS, (Frame("shuffle", "/x/app.so"),))
    found = triaged(tmp_path / "a.sqlite", rules=("input_pipeline", "idle_gaps", "low_utilisation"))
    if of_main:
        told(finding(found, "input-pipeline"), words, advises=(reason,), never=("thread waits",))
    else:
        (idle,) = found.findings
        told(idle, "All of it was in ", "in NVTX range `step *`", never=("load",))


@pytest.mark.parametrize("gap", [60 * US, 4 * MS])
def test_gaps_between_kernels_whose_launches_were_not_recorded_have_no_cause(tmp_path, gap):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for _ in gpu.rounds(200, 2 * gap, gap):
            pass
    edit(tmp_path / "a.sqlite", "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    for one in triaged(tmp_path / "a.sqlite", rules=("idle_gaps", "low_utilisation")).findings:
        told(one, advises=("CUDA was traced, but no event of this kind was recorded",), never=("pace of the CPU",))


def test_all_long_gaps_have_a_cause_and_what_is_not_recorded_of_one_rank_is_advised(tmp_path):
    """Two ranks with 200 gaps of 2 ms; only of the first rank, the export shows that its thread polls."""
    for rank, osrt in enumerate((True, False)):
        session = DemoSession(environment={"RANK": str(rank)})
        with one_gpu(tmp_path / f"{rank}.sqlite", session=session, gpu=rank) as gpu:
            for start in gpu.rounds(200, 4 * MS, 2 * MS):
                if osrt:
                    gpu.export.osrt(gpu.main, start + 2 * MS + 20 * US, start + 4 * MS - 20 * US, "poll")
    found = triaged(tmp_path / "0.sqlite", tmp_path / "1.sqlite", rules=("idle_gaps",))
    assert "unexplained" not in found.account and "poll" in found.account
    told(finding(found, "idle-gaps"), advises=("-t osrt",))


def test_a_kernel_during_which_pages_move_waits_for_them(tmp_path):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        gpu.in_a_row([MS] * 150 + [20 * MS] + [MS] * 50)
        gpu.export.memcpy(gpu.process, 0, 7, 155 * MS, 160 * MS, size=MS, correlation_id=0, **MIGRATION)
    found = finding(triaged(tmp_path / "a.sqlite", rules=("kernel_outliers",)), "kernel-outliers")
    told(found, "Pages of unified memory move", advises=("Prefetch the pages",), never=("another process",))


@pytest.mark.parametrize(("call", "starting", "passed", "advises"), [
    (5 * US, 0, ("9.95 ms", "0 ns"), "only 10 % of the time of late launches"),
    (45 * US, 0, ("9.95 ms", "0 ns"), "A launch costs the CPU"),
    (5 * US, 30 * US, ("3.98 ms", "5.97 ms"), "most of this time to start kernels"),
])  # fmt: skip
def test_waiting_for_launches_is_due_to_calls_or_to_starts_only_if_these_take_the_time(
    tmp_path, call, starting, passed, advises
):
    """200 gaps of 50 µs, at the end of which a launch takes 5 or 45 µs, and a kernel 0 or 30 µs to start."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for start in range(MS, 41 * MS, 200 * US):
            correlation = gpu.call("cudaLaunchKernel_v7000", start - starting - call, start - starting)
            gpu.export.kernel(gpu.process, 0, 7, start, start + 150 * US, name="work()", correlation_id=correlation)
    found = finding(triaged(tmp_path / "a.sqlite", rules=("launch_overhead",)), "launch-overhead")
    words = "{} pass until the launching calls return (late launches), {} until the kernels start (stalls)"
    told(found, words.format(*passed), advises=(advises,))
    assert found.gain is not None and found.gain.recoverable == 199 * 50 * US


def test_collectives_other_than_the_first_two_are_not_passed_over(tmp_path):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        names = ["AllReduce"] * 4 + ["AllGather"] * 3 + ["Broadcast"] * 2 + ["Reduce"]
        for start, name in zip(gpu.rounds(10, 5 * MS, 2 * MS), names, strict=True):
            gpu.kernel(start + 2 * MS, start + 4 * MS, launched=start, name=nccl_kernel(name).name)
    found = triaged(tmp_path / "a.sqlite", rules=("exposed_communication",))
    told(found.findings[0], "4 AllReduce, 3 AllGather and others")


def test_waits_for_events_that_nothing_recorded_are_unresolved_and_no_stalls(tmp_path):
    """30 rounds of 3 ms of compute and 2 ms of NCCL on another stream; each stream waits for an event of the other."""
    with ExportWriter(tmp_path / "a.sqlite", "3.25.0") as export:
        export.gpu(0)
        program = Program(export, 4_700)
        for start in range(10 * MS, 160 * MS, 5 * MS):
            called = start - 2 * MS
            program.kernel((called, called + 5 * US), (start, start + 3 * MS))
            program.wait(called + 8 * US, 1, 20)
            program.nccl((called + 10 * US, called + 15 * US), (start + 3 * MS, start + 5 * MS))
            program.wait(called + 18 * US, 2, 13)
        program.kernel((158 * MS, 158 * MS + US), (160 * MS, 161 * MS))
    found = triaged(tmp_path / "a.sqlite", rules=("exposed_communication",))
    assert "blocked most by NCCL (0 to " in found.summary and "stalls" not in found.summary
    told(finding(found, "exposed-communication"), "may block compute for up to", never=("No kernel can",))
