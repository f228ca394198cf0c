"""Two processes on one GPU, whose time counts once; parts of a GPU, and GPUs that share one memory with the CPU."""

import random
from contextlib import closing
from pathlib import Path

import campaign
import pytest
from campaign import first
from support import edit, native, open_job, session_over
from synthetic import ExportWriter, illnesses
from synthetic.gpu_program import Program
from synthetic.illnesses import MS, one_gpu
from synthetic.rare_illnesses import exposed_copies, round_trips
from synthetic.writing.writer import DEVICE, MANAGED, PAGEABLE
from triaging import finding, judged, told, triaged

from nsystui.base.selection import Selection
from nsystui.questions.blocking.budget import budget_by_step, iterations, steps_side_by_side
from nsystui.questions.job.job import OpenJob
from nsystui.questions.memory.host_copies import link_of

US, STEPS, STEP = 1_000, 8, 100_000
Kernels = dict[int, list[tuple[int, int]]]


def two_processes(paths: tuple[Path, ...], seed: int) -> Kernels:
    """Kernels of two processes with steps of 100 ms, µs: the second has a third of the work, at any time.

    One export has both processes, or each process has an export of a rank.
    """
    dice, kernels = random.Random(seed), {0: [], 1: []}
    exports = [ExportWriter(path) for path in paths]
    for export in exports:
        export.__enter__()
        export.gpu(0)
    for rank, longest in ((0, 45_000), (1, 15_000)):
        export = exports[rank % len(exports)]
        program = Program(export, 4_700 + 100 * rank)
        export.cuda_device(program.process, 0, 0)
        for number in range(STEPS):
            begin = STEP * (number + 1)
            program.step(number, (begin * US, (begin + STEP - 1_000) * US))
            for start in (begin, begin + dice.randrange(46_000, 70_000)):
                span = (start + 100, start + 100 + dice.randrange(longest // 2, longest) // (2 if start > begin else 1))
                program.kernel((start * US, (start + 10) * US), (span[0] * US, span[1] * US))
                kernels[rank].append(span)
    for export in exports:
        export.__exit__(None, None, None)
    return kernels


def swept(kernels: Kernels, start: int, end: int) -> int:
    """The µs from ``start`` to ``end`` in which a kernel of any process runs."""
    spans = [span for of_rank in kernels.values() for span in of_rank]
    return sum(any(low <= moment < high for low, high in spans) for moment in range(start, end, 100)) * 100


@pytest.mark.parametrize(
    ("names", "seed"), campaign.first(1, [(("a",), 1), (("rank0", "rank1"), 2), (("a",), 3), (("a",), 4)])
)
class TestOneGpu:
    def test_the_budget_of_a_step_has_its_time_once(self, tmp_path, names, seed):
        paths = tuple(tmp_path / f"{name}.sqlite" for name in names)
        kernels = two_processes(paths, seed)
        with closing(open_job(*paths)) as job:
            (gpu,) = iterations(job, Selection())
            expected = [
                swept(kernels, start // US, end // US) for start, end in zip(gpu.of.starts, gpu.of.ends, strict=True)
            ]
            assert (gpu.of.part("compute") // US).tolist() == pytest.approx(expected, abs=400)
            assert gpu.of.busy.tolist() == gpu.of.part("compute").tolist()
            assert (gpu.of.parts.sum(axis=1) == gpu.of.time).all()
            rows = {row["part"]: row for row in budget_by_step(job, Selection()).records()}
            assert rows["iteration"]["count"] == STEPS
            assert rows["compute"]["total"] == gpu.of.part("compute").sum()

    @pytest.mark.campaign
    def test_findings_on_its_idle_time_could_save_all_of_it(self, tmp_path, names, seed):
        paths = tuple(tmp_path / f"{name}.sqlite" for name in names)
        kernels = two_processes(paths, seed)
        with closing(open_job(*paths)) as job:
            gaps = finding(judged(job, rules=("idle_gaps",)), "idle-gaps")
            (gpu,) = iterations(job, Selection())
            idle = sum(
                (end - start) // US - swept(kernels, start // US, end // US)
                for start, end in zip(gpu.of.starts, gpu.of.ends, strict=True)
            )
            assert gaps.gain.recoverable / US == pytest.approx(idle / STEPS, rel=0.02)

    @pytest.mark.campaign
    def test_late_launches_of_all_its_processes_count(self, tmp_path, names, seed):
        """All kernels are launched while the GPU idles, or while another runs: short gaps wait for launches."""
        paths = tuple(tmp_path / f"{name}.sqlite" for name in names)
        kernels = two_processes(paths, seed)
        with closing(open_job(*paths)) as job:
            late = finding(judged(job, settings=["gap_ms=60"], rules=("launch_overhead",)), "launch-overhead")
            assert f"of {sum(map(len, kernels.values()))} launches" in late.sentence
            spans = sorted(kernels[0] + kernels[1])
            ends = [max(end for _, end in spans[:count]) for count in range(1, len(spans))]
            gaps = [start - end for (start, _), end in zip(spans[1:], ends, strict=True)]
            assert late.cost / US == pytest.approx(sum(gap for gap in gaps if 100 <= gap < 60_000), abs=1)

    def test_each_rank_still_has_its_steps(self, tmp_path, names, seed):
        paths = tuple(tmp_path / f"{name}.sqlite" for name in names)
        two_processes(paths, seed)
        with closing(open_job(*paths)) as job:
            assert [len(steps_side_by_side(job, Selection(), rank)[0]) for rank in (0, 1, None)] == [STEPS] * 3
            second = Selection(tasks=frozenset({job.ranks[1].task}))
            assert any(note.endswith("work of the selected ranks only") for note in job.busy(second).notes)
            assert [gpu.rank for gpu in iterations(job, second)] == [1]


def test_start_up_and_warm_up_of_a_process_are_those_of_its_gpu(tmp_path):
    """The busier process has steps of 400, 300, and then 100 ms; the other has its context created, then 50 ms."""
    paths, busy = [tmp_path / f"rank{rank}.sqlite" for rank in (0, 1)], set()
    for rank, (path, begin, lengths, work) in enumerate(
        zip(paths, (0, 40), ([400, 300, *[100] * 10], [50] * 20), (40, 5), strict=True)
    ):
        with ExportWriter(path) as export:
            program = Program(export, 4_700 + 100 * rank)
            export.gpu(0)
            export.cuda_device(program.process, 0, 0)
            export.api(program.main, begin * MS, (begin + 30) * MS, "cudaMalloc_v3020", 9_000)
            begin += 50
            for number, length in enumerate(lengths):
                program.step(number, (begin * MS, (begin + length) * MS))
                start = begin + length - work
                program.kernel((begin * MS, begin * MS + US), (start * MS, (start + work) * MS))
                busy.update(range(start, start + work))
                begin += length
    found = triaged(*paths, settings=["warm_up_percent=1", "start_up_percent=1", "context_ms=1"])
    idle = sum(moment not in busy for moment in range(750))
    for name, cost in (("warm-up", 500 * MS), ("start-up", idle * MS), ("context-creation", 30 * MS)):
        assert finding(found, name).cost == pytest.approx(cost, rel=0.01)


def test_a_rank_without_steps_has_no_part_in_the_budget_of_a_step(tmp_path):
    with ExportWriter(tmp_path / "a.sqlite") as export:
        for rank in (0, 1):
            program = Program(export, 4_700 + 100 * rank)
            export.gpu(rank)
            export.cuda_device(program.process, 0, rank)
            for begin in range(10 * MS, 70 * MS, 10 * MS):
                if rank == 0:
                    program.step(begin // MS, (begin, begin + 9 * MS))
                program.kernel((begin, begin + US), (begin + 10 * US, begin + (5 + rank) * MS))
    with closing(open_job(tmp_path / "a.sqlite")) as job:
        budget = budget_by_step(job, Selection())
        assert set(budget.cells("count")) == {6} and budget.cells("most")[0] is None
        assert any("unknown for rank 1 (no steps)" in note for note in budget.notes)
        assert judged(job, rules=()).summary.startswith("Between first and last operation, GPUs compute 59 %")


def beside_another(path: Path) -> None:
    """Add a process that runs a copy of each kernel, later by 1 ns: equal work and, by its number, the first rank."""
    (columns,) = native(path, "SELECT group_concat(name) FROM pragma_table_info('CUPTI_ACTIVITY_KIND_KERNEL')")[0]
    changed = {"start": "start + 1", '"end"': '"end" + 1', "globalPid": "globalPid - (1 << 24)", "correlationId": "0"}
    names = [f'"{name}"' if name == "end" else name for name in columns.split(",")]
    copied = ", ".join(changed.get(name, name) for name in names)
    edit(
        path,
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({', '.join(names)}) SELECT {copied} FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "INSERT INTO PROCESSES (globalPid, pid, name) SELECT globalPid - (1 << 24), pid - 1, name FROM PROCESSES",
        "INSERT INTO TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid) SELECT 0, 0, pid - 1 FROM PROCESSES",
    )


@pytest.mark.parametrize(("make", "rule", "name"), first(2, [
    (illnesses.allocator_churn, "allocator_churn", "allocator-churn"),
    (illnesses.preempted, "preempted", "preempted"),
    (illnesses.gil_held, "blocked_host", "gil-held"),
    (illnesses.file_reads, "blocked_host", "blocking-reads"),
    (illnesses.first_use, "first_use", "first-launches"),
    (illnesses.starved, "input_pipeline", "input-pipeline"),
]))  # fmt: skip
def test_what_the_second_process_of_a_gpu_waits_for_is_found(make, rule, name, tmp_path):
    path = tmp_path / "a.sqlite"
    make(path)
    alone = finding(triaged(path, rules=(rule,)), name)
    beside_another(path)
    found = finding(triaged(path, rules=(rule,)), name)
    assert found.cost == pytest.approx(alone.cost, rel=0.01)
    assert found.ranks in ((1,), ()), found.ranks


INTEGRATED = ("Orin", "NVIDIA Tegra X2", "NVIDIA Thor", "NVIDIA GB10")


def named(path, name: str) -> None:
    edit(path, f"UPDATE TARGET_INFO_GPU SET name = '{name}'")


@pytest.mark.parametrize(("name", "gpus"), [("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 2), ("NVIDIA H100 80GB HBM3", 1)])
def test_slices_in_two_files_are_two_gpus_although_they_name_the_same_gpu(name, gpus, tmp_path):
    paths = [tmp_path / f"rank{rank}.sqlite" for rank in range(2)]
    for rank, path in enumerate(paths):
        with one_gpu(path) as gpu:
            for start in range(MS, 20 * MS, 2 * MS):
                gpu.kernel(start + rank * MS // 2, start + MS, launched=start - 10_000)
        named(path, name)
    with closing(OpenJob(session_over(*paths))) as job:
        assert len(job.gpus(Selection())) == gpus


@pytest.mark.campaign
@pytest.mark.parametrize("name", first(3, ["NVIDIA A30 MIG 2g.12gb", "NVIDIA GB200", *INTEGRATED]))
def test_no_pcie_link_is_made_up(name, tmp_path):
    (path,) = exposed_copies(tmp_path / "a.sqlite").paths
    with closing(session_over(path)) as session:
        assert link_of(session) is not None
    named(path, name)
    with closing(session_over(path)) as session:
        assert link_of(session) is None


@pytest.mark.campaign
@pytest.mark.parametrize("name", INTEGRATED)
@pytest.mark.parametrize(("ill", "rule"), [
    (exposed_copies, "exposed-memory"), (round_trips, "round-trips"), (illnesses.step_traffic, "step-traffic"),
])  # fmt: skip
def test_copies_within_one_memory_can_be_left_out(name, ill, rule, tmp_path):
    (path,) = ill(tmp_path / "a.sqlite").paths
    named(path, name)
    told(finding(triaged(path), rule), advises=["share one memory"], never=["Pin the host", "link"])


def test_steps_on_a_shared_gpu_are_judged_by_the_work_of_their_own_process(tmp_path):
    """20 steps of 10 ms, in step 12 of 70, because a busier process without steps computes 60 ms longer there.

    The process with steps copies 1 MB in each, and 1 MB migrates to it; the other process copies 9 MB.
    """
    with ExportWriter(tmp_path / "a.sqlite") as export:
        export.gpu(0)
        trainer, server = Program(export, 4_700), Program(export, 4_800)
        at = 10_000 * US
        for number in range(20):
            more = 60 * MS * (number == 12)
            trainer.step(number, (at - 20 * US, at + 9_970 * US + more))
            for program, start, end, size in (
                (trainer, at, at + 2 * MS, 1), (server, at + 6_610 * US + more, at + 6_650 * US + more, 9)
            ):  # fmt: skip
                call = program.call("cudaMemcpyAsync_v3020", (start - 10 * US, start - 5 * US))
                memories = {"source": PAGEABLE, "destination": DEVICE, "correlation_id": call}
                export.memcpy(program.process, 0, 13, start, end, size=size * MS, kind="HtoD", **memories)
            trainer.migrate((at + 2 * MS, at + 2_500 * US), source=MANAGED, destination=MANAGED, migration_cause=2)
            export.cpu_page_fault(trainer.process, at, 0x7F00_0000_0000)
            server.kernel((at + MS, at + MS + US), (at + 2_500 * US, at + 6_500 * US + more))
            trainer.kernel((at + US, at + 2 * US), (at + 6_700 * US + more, at + 9_700 * US + more))
            at += 10 * MS + more
    found = triaged(tmp_path / "a.sqlite", rules=("step_traffic", "unified_memory", "step_times"))
    told(finding(found, "step-traffic"), "Each step copies 976.6 KiB", "take 40 ms", "19.07 MiB at 0.5 GB/s")
    told(finding(found, "unified-memory"), "migrates 1.25 KiB", "20 CPU page faults")
    told(finding(found, "slow-steps"), "1 of 18 steps (number 12)", "For 60 ms of the lost time", advises=("MPS",))
    assert finding(found, "slow-steps").cost == pytest.approx(60 * MS, rel=0.01)
