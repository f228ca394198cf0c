"""The triage: each illness is found at its cost, and a healthy job has no finding."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import campaign
import pytest
from support import open_job
from synthetic import rare_illnesses
from synthetic.demo import TrainingJob
from synthetic.illnesses import one_gpu
from synthetic.writing.writer import PAGEABLE, PINNED
from triaging import finding, ids, judged, told, triaged

from nsystui.base.selection import Selection, Window
from nsystui.cli import command_parser
from nsystui.questions.algebra.intervals import EMPTY, intersect
from nsystui.questions.host.causes import ALLOCATING, COPYING, LAUNCHING, OTHER_CALLS, PROFILER, SYNCHRONISING, kind_of
from nsystui.questions.host.gaps import gaps_list, gaps_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.question import SCREENS, views_of
from nsystui.questions.triage.case import Case
from nsystui.questions.triage.finding import DIAGNOSTICS, Door, NotChecked, Severity
from nsystui.questions.triage.rules import rules as all_rules
from nsystui.questions.triage.run import Triage, triage
from nsystui.questions.triage.thresholds import Thresholds

MS = 1_000_000
STEPS, STALL, SLOW = 12, 150, 1.25
STALLED = {"ranks": 1, "stall_ms": STALL}


@dataclass(frozen=True)
class Judged:
    """An open job of four ranks (one rank if it is only stalled), and its triage."""

    job: OpenJob
    found: Triage


@pytest.fixture(scope="module")
def judged_job(tmp_path_factory) -> Iterator[Callable[..., Judged]]:
    """Yield a function that triages a healthy job with the given differences, once for all tests of this module."""
    made: dict[tuple[object, ...], Judged] = {}

    def judged_job(rules: Sequence[str] | None = None, **changes: Any) -> Judged:
        key = (*(rules or ()), *sorted(changes.items()))
        if key not in made:
            healthy = TrainingJob(steps=STEPS, layers=12, straggler=None, straggler_factor=SLOW, stall_ms=0)
            job = open_job(*replace(healthy, **changes).write(tmp_path_factory.mktemp("job")))
            made[key] = Judged(job, judged(job, rules=rules))
        return made[key]

    yield judged_job
    for one in made.values():
        one.job.close()


@pytest.fixture(scope="module")
def healthy(judged_job) -> Judged:
    return judged_job()


@pytest.fixture(scope="module")
def slow_rank(judged_job) -> Judged:
    return judged_job(straggler=2)


@pytest.mark.campaign
def test_nothing_is_found_in_a_healthy_job_and_every_rule_judged_it(healthy):
    assert ids(healthy.found) == set()
    assert healthy.found.health == "No issues found outside of start-up"
    assert "memory-full" not in {one.id for one in healthy.found.findings}
    # The job has no MPI, no unified memory and no times of the GIL.
    assert {one.rule for one in healthy.found.not_checked} == {"mpi-waits", "unified-memory", "gil-held"}


@pytest.mark.campaign
def test_a_straggler_costs_what_the_job_lost(healthy, slow_rank):
    found = finding(slow_rank.found, "straggler")
    assert found.ranks == (2,)
    # The other three of four GPUs lose that time, the slow GPU does not.
    assert found.cost == pytest.approx((slow_rank.found.time - healthy.found.time) * 3 / 4, rel=0.1)
    assert found.cost <= slow_rank.found.budget.exposed_nccl / 4
    told(found, "as many kernels as the others, but they take 25 % longer")
    assert "different-work" not in ids(slow_rank.found)


@pytest.mark.campaign
def test_the_selected_ranks_may_wait_for_one_that_is_not(slow_rank):
    job = slow_rank.job
    two = triage(job, Selection(tasks=job.tasks_of_ranks(frozenset({0, 1}))), names=("stragglers",))
    assert finding(two, "straggler").ranks == (2,)
    # Both selected ranks wait, and three of all four GPUs.
    assert finding(two, "straggler").cost == pytest.approx(finding(slow_rank.found, "straggler").cost * 4 / 3, rel=0.1)


def test_rules_without_a_cost_do_not_fail_where_any_cost_counts(healthy):
    """They would describe the longest of no gaps, or the compiler that took most of no time."""
    rules = ("input_pipeline", "blocked_host", "idle_gaps", "jit_compilation")
    found = judged(healthy.job, [f"{name}_percent=0" for name in ("input", "gil", "read", "gap", "jit")], rules)
    assert not [rule for rule in found.not_checked if rule.failed]


@pytest.mark.campaign
def test_waiting_is_no_part_of_what_a_small_message_costs(healthy, slow_rank):
    """Only the demo's gradient norm is below 64 KiB; its transfer takes 18 µs, which nothing hides."""
    for one in (healthy, slow_rank):
        found = judged(one.job, ("small_message_percent=0",), ("small_messages",))
        assert finding(found, "small-messages").cost == pytest.approx(STEPS * 18_000, rel=0.1)


@pytest.mark.campaign
def test_a_slow_host_costs_what_the_job_lost(healthy, judged_job):
    found = judged_job(("slow_places",), slow_host=1).found
    one = finding(found, "slow-place")
    told(one, "All GPUs of host gpu-a02")
    assert (one.ranks, one.cost) == ((2, 3), pytest.approx(found.time - healthy.found.time, rel=0.1))


@pytest.mark.campaign
def test_small_messages_cost_their_latency(judged_job):
    """4 bytes always take 18 µs."""
    found = judged_job(("small_messages",), ranks=2, steps=3, layers=2, small_messages=150).found
    assert finding(found, "small-messages").cost == pytest.approx(3 * 151 * 18_000, rel=0.1)


@pytest.mark.campaign
def test_work_that_is_uneven_by_turns_is_imbalance(judged_job):
    """Three of four ranks wait for the rank with more work."""
    found = judged_job(("stragglers",), steps=8, layers=2, uneven_ms=20, gpu_metrics=False).found
    assert "straggler" not in ids(found)
    one = finding(found, "imbalance")
    assert one.cost == pytest.approx(8 * 20 * MS * 3 / 4, rel=0.1)
    told(one, "compute equally long", never=("data loading", "padding", "noise"))


@pytest.mark.campaign
def test_a_stall_is_a_gap_and_a_slow_step_and_nothing_else(judged_job):
    stalled = judged_job(**STALLED).found
    assert ids(stalled) == {"idle-gaps", "slow-steps"}
    gap, step = finding(stalled, "idle-gaps"), finding(stalled, "slow-steps")
    # Data loading also leaves the GPU idle for some 2 ms in every step.
    assert gap.cost == pytest.approx((STALL + 1.8 * STEPS) * MS, rel=0.1)
    told(gap, ALLOCATING, "cudaMalloc", "`data loading`")
    assert step.cost == pytest.approx(STALL * MS, rel=0.1)
    assert f"(number {STEPS // 2 - 1})" in step.sentence or f"(number {STEPS // 2})" in step.sentence


def test_gpus_without_steps_lose_nothing_by_slow_steps(tmp_path):
    with one_gpu(tmp_path / "rank0.sqlite") as gpu:
        gpu.steps([20 * MS] * 13 + [60 * MS], idle=10_000)
    with one_gpu(tmp_path / "rank1.sqlite", gpu=1) as gpu:
        gpu.steps([20 * MS] * 2, idle=10_000)
    found = triaged(tmp_path / "rank0.sqlite", tmp_path / "rank1.sqlite")
    assert finding(found, "slow-steps").cost == pytest.approx(40 * MS / 2, rel=0.1)


@pytest.mark.campaign
def test_one_slow_step_is_no_drift_and_slow_as_the_thresholds_say_whatever_rule_fails(tmp_path, monkeypatch):
    def broken(case: object) -> list[NotChecked]:
        raise RuntimeError("no luck")

    with one_gpu(tmp_path / "one.sqlite") as gpu:
        gpu.steps([20 * MS] * 13 + [60 * MS], idle=10_000)
    with closing(open_job(tmp_path / "one.sqlite")) as job:
        found = judged(job)
        assert ids(found) == {"slow-steps"}
        assert finding(found, "slow-steps").cost == pytest.approx(40 * MS, rel=0.1)
        for setting in ("slow_step=4", "slow_step_percent=50"):
            assert ids(judged(job, (setting,))) == set(), setting
        monkeypatch.setitem(all_rules(), "capture", replace(all_rules()["capture"], judge=broken))
        found = judged(job)
    assert ids(found) == {"slow-steps"}
    (failed,) = [one for one in found.not_checked if one.failed]
    assert "lost-events" in failed.rule
    assert "no luck" in failed.why


def slivers(path: Path) -> Path:
    """Write gaps of 10 ms between kernels of 10 ms; nsys works twice for 0.1 ms in the first, in all of the second."""
    with one_gpu(path) as gpu:
        first, second, *_ = (start + 10 * MS for start in gpu.rounds(4, 20 * MS, 10 * MS))
        for start, end in ((first + 3 * MS, 100_000), (first + 6 * MS, 100_000), (second, 10 * MS)):
            gpu.export.profiler_overhead(gpu.main, start, start + end, "CUPTI Buffer flush")
    return path


def test_moments_of_the_profiler_divide_no_gap_and_cost_the_program_nothing(tmp_path):
    with closing(open_job(slivers(tmp_path / "a.sqlite"))) as job:
        found = judged(job, rules=("idle_gaps", "profiler_overhead"))
        listed, summed = gaps_list(job, Selection()), gaps_table(job, Selection())
    gaps = finding(found, "idle-gaps")
    told(gaps, "(2 gaps on 1 GPU). The longest gap, on rank 0, takes 10 ms.", "For 100 % of the gap time the launching")
    assert gaps.cost == (2 * 10 * MS) - 200_000
    assert finding(found, "profiler-overhead").cost == 10 * MS + 200_000
    assert [row["duration"] for row in listed.records() if row["part"] == "gap"] == [10 * MS] * 3
    assert [row["gaps"] for row in summed.records() if row["cause"] == PROFILER] == [10 * MS + 200_000]


def test_a_kernel_that_is_launched_once_has_no_later_launch_to_be_longer_than(tmp_path):
    """Five kernels are launched in 4 ms each, then one of them again in 2 µs: only this kernel can be compared."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        now = MS
        for number in (0, 1, 2, 3, 4, 0):
            launch = 2_000 if now > 20 * MS else 4 * MS
            correlation = gpu.call("cudaLaunchKernel_v7000", now, now + launch)
            now += launch
            gpu.export.kernel(
                gpu.process, 0, 7, now, now + MS, name=f"work{number}(float*)", correlation_id=correlation
            )
            now += MS
    found = finding(triaged(tmp_path / "a.sqlite", rules=("first_use",)), "first-launches")
    told(found, "delays 1 of 1 first launch (work0: 4 ms instead of 2 µs)")
    assert [row["kernel"] for row in found.evidence.records()] == ["work0"]


@pytest.mark.parametrize(
    ("source", "stream", "is_told"), campaign.first(1, [(PINNED, 7, True), (PINNED, 16, False), (PAGEABLE, 7, False)])
)
def test_pinned_copies_on_the_stream_of_the_kernels_are_a_remark_below_the_threshold(tmp_path, source, stream, is_told):
    """50 copies of 1 ms between kernels of 49 ms: 2 % of the time."""
    ill = rare_illnesses.exposed_copies(tmp_path / "a.sqlite", source, stream, busy=49 * MS)
    found = triaged(*ill.paths, rules=("exposed_memory",))
    assert [one.id for one in found.findings] == ["exposed-memory"] * is_told
    for one in found.findings:
        assert (one.severity, one.cost) == (Severity.INFO, ill.cost)
        told(one, "50 host-to-device copies (pinned", "50 ms", advises=("on a separate stream", "prefetch"))


def test_every_view_has_a_command():
    for view in (DIAGNOSTICS, *(view.name for home in SCREENS for view in views_of(home))):
        name, *flags = shlex.split(Door(view).command)
        command_parser(name).parse_args(["file.sqlite", *flags])


def test_a_door_is_rendered_as_the_command_for_it():
    door = Door("memory", filter="Unified Memory", by="rank", sort="total", window=Window(5, 9))
    assert door.command == "memory --filter 'Unified Memory' --by rank --sort total --time 0.000005ms:0.000009ms"
    assert Door("steps across", sort="median").command == "steps --across --sort median"
    assert Door("kernels", report="cuda_kern_exec_sum").command == "stats -r cuda_kern_exec_sum"


def test_the_name_of_a_call_tells_what_it_is_for():
    kinds = {"cudaDeviceSynchronize": SYNCHRONISING, "cudaMemcpyAsync": COPYING, "cudaEventRecord": OTHER_CALLS}
    kinds |= dict.fromkeys(("cuLaunchKernelEx", "cudaGraphLaunch_v10000"), LAUNCHING)
    kinds |= dict.fromkeys(("cudaFree", "cudaMallocAsync"), ALLOCATING)
    assert {name: kind_of(name) for name in kinds} == kinds


@pytest.mark.campaign
@pytest.mark.parametrize("gap_ms", [0.001, 5, 10, 20])
def test_long_and_short_gaps_are_all_gaps(tmp_path, gap_ms):
    with closing(open_job(slivers(tmp_path / "a.sqlite"))) as job:
        case = Case(job, Selection(), replace(Thresholds(), gap_ms=gap_ms))
        (device,) = case.devices
        long, short, gaps = case.long_idle(device), case.short_gaps(device), case.gaps(device)
    assert long.length + short.length == gaps.length > 0
    assert intersect(long, short) == EMPTY
    assert short == EMPTY or short.lengths.max() < gap_ms * MS


def test_the_table_of_what_a_finding_could_say_wrongly_names_tests_that_there_are():
    here = Path(__file__).parent
    named = re.findall(r"`(test_\w+)`", (here / "RULES.md").read_text(encoding="utf-8"))
    there = "".join(path.read_text(encoding="utf-8") for path in here.glob("test_*.py"))
    assert len(named) > 30 and [name for name in named if f"def {name}(" not in there] == []
