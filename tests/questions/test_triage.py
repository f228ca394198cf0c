"""The triage: each illness is found at its cost, and a healthy job has none."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import real_exports, shared
from synthetic import ExportWriter, empty_export, illnesses, whole_graph_export
from synthetic.illnesses import OneGpu
from triaging import finding, ids, triaged

from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Window
from nsystui.cli import command_parser
from nsystui.exports.demo import Session as DemoSession
from nsystui.exports.demo import TrainingJob
from nsystui.questions.algebra.interval_blocks import blocks_of
from nsystui.questions.algebra.intervals import merge, union
from nsystui.questions.alignment import ClockMode
from nsystui.questions.catalogue import views_of
from nsystui.questions.host.causes import ALLOCATING, COPYING, LAUNCHING, OTHER_CALLS, SYNCHRONISING, kind_of
from nsystui.questions.job import Job
from nsystui.questions.question import SCREENS
from nsystui.questions.triage import run as runner
from nsystui.questions.triage.case import at_least, below
from nsystui.questions.triage.finding import DIAGNOSTICS, Door, NotChecked, Severity
from nsystui.questions.triage.rules import RULES, Thresholds
from nsystui.questions.triage.run import Triage, triage, triage_table
from nsystui.store.session import Session

MS = 1_000_000
STEPS, STALL, SLOW = 12, 150, 1.25


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> Triage:
    job = TrainingJob(steps=STEPS, layers=12, straggler=None, stall_ms=0)
    return triaged(*job.write(tmp_path_factory.mktemp("healthy")))


@pytest.fixture(scope="module")
def slow_rank(tmp_path_factory) -> Triage:
    job = TrainingJob(steps=STEPS, layers=12, straggler=2, straggler_factor=SLOW, stall_ms=0)
    return triaged(*job.write(tmp_path_factory.mktemp("slow")))


@pytest.fixture(scope="module")
def stalled(tmp_path_factory) -> Triage:
    job = TrainingJob(steps=STEPS, layers=12, straggler=None, stall_ms=STALL)
    return triaged(*job.write(tmp_path_factory.mktemp("stalled")))


class TestHealthy:
    def test_nothing_is_found(self, healthy):
        assert ids(healthy) == set()
        assert healthy.is_healthy

    def test_every_rule_judged_it(self, healthy):
        # It has no MPI, no unified memory and no times of the GIL.
        assert {one.rule for one in healthy.not_checked} == {"mpi-waits", "unified-memory", "gil-held"}


class TestStraggler:
    def test_it_costs_what_the_job_lost(self, healthy, slow_rank):
        found = finding(slow_rank, "straggler")
        assert found.ranks == (2,)
        assert found.cost == pytest.approx(slow_rank.time - healthy.time, rel=0.1)

    def test_its_kernels_tell_that_the_gpu_is_slow(self, slow_rank):
        assert "as many as elsewhere, take 25 % longer" in finding(slow_rank, "straggler").sentence

    def test_no_work_is_said_to_differ(self, slow_rank):
        assert "different-work" not in ids(slow_rank)


def test_the_selected_ranks_may_wait_for_one_that_is_not(tmp_path):
    job = TrainingJob(steps=6, layers=6, straggler=2, straggler_factor=SLOW, stall_ms=0)
    session = Session()
    for path in job.write(tmp_path):
        session.add(path)
    whole = Job(session)
    whole.align(ClockMode.COLLECTIVES)
    everyone = triage(whole, rules=("stragglers",))
    two = triage(whole, Selection(tasks=whole.tasks_of_ranks(frozenset({0, 1}))), rules=("stragglers",))
    whole.close()
    assert finding(two, "straggler").ranks == (2,)
    assert finding(two, "straggler").cost == pytest.approx(finding(everyone, "straggler").cost, rel=0.1)


class TestStall:
    def test_the_gap_costs_the_stall(self, stalled):
        found = finding(stalled, "idle-gaps")
        # Data loading leaves the GPU idle for some 2 ms in every step besides.
        assert found.cost == pytest.approx((STALL + 1.8 * STEPS) * MS, rel=0.1)

    def test_the_cpu_is_said_to_allocate_while_it_loads_data(self, stalled):
        sentence = finding(stalled, "idle-gaps").sentence
        assert ALLOCATING in sentence
        assert "cudaMalloc" in sentence
        assert "`data loading`" in sentence

    def test_the_step_is_slow_by_the_stall(self, stalled):
        found = finding(stalled, "slow-steps")
        assert found.cost == pytest.approx(STALL * MS, rel=0.1)
        assert f"(number {STEPS // 2 - 1})" in found.sentence or f"(number {STEPS // 2})" in found.sentence

    def test_nothing_else_is_found(self, stalled):
        assert ids(stalled) == {"idle-gaps", "slow-steps"}


def test_kernels_that_end_before_the_next_is_launched_are_launch_overhead(tmp_path):
    path = tmp_path / "tiny.sqlite"
    with ExportWriter(path, "3.25.0") as export:
        program = OneGpu(export)
        for number in range(2_000):
            start = MS + 20_000 * number
            program.kernel(start, start + 5_000, launched=start - 6_000)
    found = triaged(path)
    assert finding(found, "launch-overhead").cost == 1_999 * 15_000
    assert "idle-gaps" not in ids(found)
    # All of it is low: the same idle time, seen by the stretch.
    assert finding(found, "low-utilisation").cost == pytest.approx(1_999 * 15_000, rel=0.01)


def test_gaps_that_the_cpu_did_not_make_are_no_launch_overhead(tmp_path):
    path = tmp_path / "queued.sqlite"
    with ExportWriter(path, "3.25.0") as export:
        program = OneGpu(export)
        for number in range(200):
            start = 10 * MS + 20_000 * number
            program.kernel(start, start + 5_000, launched=MS + 3_000 * number)
    assert "launch-overhead" not in ids(triaged(path))


def test_a_gpu_that_runs_dry_in_synchronisations_costs_what_follows(tmp_path):
    path = tmp_path / "sync.sqlite"
    with ExportWriter(path, "3.25.0") as export:
        program = OneGpu(export)
        for number in range(200):
            start = MS + MS * number
            program.kernel(start, start + 800_000, launched=start - 10_000)
            program.call("cudaStreamSynchronize_v3020", start + 10_000, start + 810_000)
    found = triaged(path)
    assert finding(found, "synchronising-calls").cost == 199 * 200_000
    late = [one for one in found.findings if one.id == "launch-overhead"]
    assert [one.under for one in late] == ["synchronising-calls"]


@pytest.mark.parametrize(
    ("call", "name"), [("cudaMemcpy_v3020", "synchronous-copies"), ("cudaMemcpyAsync_v3020", "pageable-copies")]
)
def test_copies_cost_the_time_that_no_kernel_hides(tmp_path, call, name):
    path = tmp_path / "copies.sqlite"
    with ExportWriter(path, "3.25.0") as export:
        program = OneGpu(export)
        for number in range(50):
            start = MS + 4 * MS * number
            program.kernel(start, start + 3 * MS, launched=start - 10_000)
            program.copy(call, start + 2 * MS + 500_000, start + 4 * MS - 100_000)
    found = triaged(path)
    assert finding(found, name).cost == 50 * 900_000
    assert finding(found, "exposed-memory").cost == 50 * 900_000
    assert len({"synchronous-copies", "pageable-copies"} & ids(found)) == 1


def test_exposed_communication_and_what_dominates_are_named(tmp_path):
    found = triaged(*illnesses.exposed_communication(tmp_path / "exposed.sqlite").paths)
    sentence = finding(found, "exposed-communication").sentence
    assert "50 % of all NCCL time is exposed, most of it in AllReduce" in sentence
    assert finding(found, "dominant-kernel").cost == 150 * MS


def test_a_rank_with_more_kernels_has_other_work(tmp_path):
    paths = []
    for rank, kernels in enumerate((100, 100, 100, 140)):
        paths.append(tmp_path / f"rank{rank}.sqlite")
        with ExportWriter(paths[-1], "3.25.0", session=DemoSession(environment={"RANK": str(rank)})) as export:
            program = OneGpu(export)
            for number in range(kernels):
                program.kernel(MS + number * MS, 2 * MS + number * MS - 1_000, launched=900_000 + 2_000 * number)
    found = triaged(*paths)
    assert finding(found, "different-work").ranks == (3,)
    assert finding(found, "different-work").cost == pytest.approx(30 * MS, rel=0.1)


@pytest.mark.parametrize("factor", [1.0, SLOW])
def test_waiting_is_no_part_of_what_a_small_message_costs(tmp_path, factor):
    """The demo's gradient norm is the one message below 64 KiB; its transfer takes 18 µs, which nothing hides."""
    job = TrainingJob(steps=STEPS, layers=4, straggler=2, straggler_factor=factor, stall_ms=0)
    found = triaged(*job.write(tmp_path), settings=("small_message_percent=0",), rules=("small_messages",))
    assert finding(found, "small-messages").cost == pytest.approx(STEPS * 18_000, rel=0.1)


def numbered_steps(path: Path, times: list[int]) -> Path:
    """Steps of so many ms, each one kernel as long as it."""
    with ExportWriter(path, "3.25.0") as export:
        program = OneGpu(export)
        start = MS
        for number, time in enumerate(times):
            export.nvtx_range(program.main, start, start + time * MS - 1_000, f"step {number}")
            program.kernel(start + 10_000, start + time * MS - 10_000, launched=start + 1_000)
            start += time * MS
    return path


def test_the_first_steps_are_warm_up_and_no_slow_steps(tmp_path):
    found = triaged(numbered_steps(tmp_path / "warm.sqlite", [60, 40, *[10] * 15]))
    assert finding(found, "warm-up").cost == pytest.approx(80 * MS, rel=0.1)
    assert ids(found) == set()


def test_steps_that_become_slower_drift(tmp_path):
    found = triaged(numbered_steps(tmp_path / "drift.sqlite", [20, 20, *range(20, 32)]))
    # The median of the first third is 21.5 ms.
    lost = sum(max(time - 21.5, 0) for time in range(20, 32)) * MS
    assert finding(found, "drift").cost == pytest.approx(lost, rel=0.1)
    assert ids(found) == {"drift"}


def test_one_slow_step_is_no_drift(tmp_path):
    found = triaged(numbered_steps(tmp_path / "one.sqlite", [*[20] * 13, 60]))
    assert ids(found) == {"slow-steps"}
    assert finding(found, "slow-steps").cost == pytest.approx(40 * MS, rel=0.1)


@pytest.mark.parametrize(
    ("code", "severity"), [(700, Severity.ERROR), (2, Severity.WARNING), (801, Severity.INFO), (600, None), (704, None)]
)
def test_what_a_call_returned_decides_how_bad_it_is(tmp_path, code, severity):
    path = tmp_path / "errors.sqlite"
    with ExportWriter(path, "3.25.0") as export:
        program = OneGpu(export)
        program.kernel(MS, 200 * MS, launched=900_000)
        program.call("cudaEventQuery_v3020", 201 * MS, 202 * MS, return_value=code)
    found = [one.severity for one in triaged(path).findings if one.id == "api-errors"]
    assert found == ([severity] if severity else [])


def test_lost_events_are_an_error_and_a_doubt_is_not(tmp_path, healthy):
    path = tmp_path / "lost.sqlite"
    with ExportWriter(path, "3.25.0") as export:
        OneGpu(export).kernel(MS, 200 * MS, launched=900_000)
        export.diagnostic(5, "1234 CUDA events were dropped.", severity=2)
    assert finding(triaged(path), "lost-events").severity is Severity.ERROR
    assert finding(healthy, "lost-events").severity is Severity.INFO


def test_what_is_missing_is_not_checked_and_says_what_it_needs(tmp_path):
    found = triaged(empty_export(tmp_path / "empty.sqlite"))
    unchecked = {one.rule for one in found.not_checked}
    assert {"stragglers", "idle-gaps", "exposed-communication", "steps", "api-errors", "tensor-activity"} <= unchecked
    assert all(one.why.startswith("needs ") and not one.failed for one in found.not_checked)


def test_a_rule_that_fails_takes_no_other_with_it(tmp_path, monkeypatch):
    from nsystui.questions.triage.rules import capture

    def broken(case: object) -> list[NotChecked]:
        raise RuntimeError("no luck")

    monkeypatch.setattr(capture, "check", broken)
    found = triaged(numbered_steps(tmp_path / "one.sqlite", [*[20] * 13, 60]))
    (failed,) = [one for one in found.not_checked if one.failed]
    assert failed.rule == "capture"
    assert "no luck" in failed.why
    assert ids(found) == {"slow-steps"}


def test_thresholds_change_what_is_found(tmp_path):
    path = numbered_steps(tmp_path / "one.sqlite", [*[20] * 13, 60])
    assert ids(triaged(path, settings=("slow_step=4",))) == set()
    assert ids(triaged(path, settings=("slow_step_percent=50",))) == set()


@pytest.mark.parametrize("setting", ["nothing=1", "gap_ms", "gap_ms=x", "gap_ms=-1", "gap_ms=nan", "=3"])
def test_a_wrong_threshold_is_one_clear_line(setting):
    with pytest.raises(UsageError, match="--set"):
        Thresholds().changed([setting])


@pytest.mark.parametrize("setting", ["gap_sm=1", "gap-ms=1", "GAP_MS=1"])
def test_a_misspelt_threshold_is_told_with_the_one_that_was_meant(setting):
    with pytest.raises(UsageError, match=r"there is no threshold .*: did you mean gap_ms\?$"):
        Thresholds().changed([setting])


def test_findings_come_worst_first(stalled, slow_rank):
    for found in (stalled, slow_rank):
        # Of remarks those on what is paid once come last.
        warnings = [one for one in found.findings if one.severity is not Severity.INFO]
        order = [(one.severity.place, -(one.cost or 0)) for one in warnings]
        assert order == sorted(order)
        assert len(triage_table(found)) == len(found.findings) + len(found.not_checked)


@pytest.mark.parametrize("view", [DIAGNOSTICS, *(view.name for home in SCREENS for view in views_of(home))])
def test_every_view_has_a_command(view):
    name, *flags = shlex.split(Door(view).command)
    command_parser(name).parse_args(["file.sqlite", *flags])


def test_a_door_is_rendered_as_the_command_for_it():
    door = Door("memory", filter="Unified Memory", by="rank", sort="total", window=Window(5, 9))
    assert door.command == "memory --filter 'Unified Memory' --by rank --sort total --time 5:9"
    assert Door("steps across", sort="median").command == "steps --across --sort median"
    assert Door("kernels", report="cuda_kern_exec_sum").command == "stats -r cuda_kern_exec_sum"


def test_every_door_is_a_command_that_there_is(stalled, slow_rank):
    for one in (*stalled.findings, *slow_rank.findings):
        name, *flags = shlex.split(one.door.command)
        command_parser(name).parse_args(["file.sqlite", *flags])


@pytest.mark.parametrize("path", real_exports(), ids=lambda path: path.stem)
def test_no_rule_fails_on_a_real_export(path):
    found = triaged(path)
    assert [one for one in found.not_checked if one.failed] == []
    assert all(one.percent is None or 0 <= one.percent <= 100 for one in found.findings)


def test_the_late_rank_of_a_real_pair_is_told_among_those_that_are_open():
    found = finding(triaged(*shared("alcf-allgather-rank0", "alcf-allgather-rank4")), "straggler")
    assert found.ranks == (4,)
    # docs/ranks.md#waiting: by duration rank 4 arrived 166.885 ms later.
    assert found.cost == pytest.approx(166_885_000, abs=1_000)
    assert "2 open ranks of 8" in found.sentence


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaDeviceSynchronize", SYNCHRONISING),
        ("cuLaunchKernelEx", LAUNCHING),
        ("cudaGraphLaunch_v10000", LAUNCHING),
        ("cudaMemcpyAsync", COPYING),
        ("cudaFree", ALLOCATING),
        ("cudaMallocAsync", ALLOCATING),
        ("cudaEventRecord", OTHER_CALLS),
    ],
)
def test_the_name_of_a_call_tells_what_it_is_for(name, kind):
    assert kind_of(name) == kind


SPANS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), max_size=30)


@given(SPANS, st.integers(1, 60))
def test_long_and_short_gaps_are_all_gaps(spans, length):
    gaps = union([0, *(start for start, _ in spans)], [0, *(start + time for start, time in spans)])
    long, short = at_least(blocks_of(gaps), length), merge(*below(blocks_of(gaps), length))
    assert long.length + short.length == gaps.length
    assert all(long.ends - long.starts >= length)
    assert all(short.ends - short.starts < length)


def test_every_rule_has_a_module():
    import importlib.util

    assert all(importlib.util.find_spec(f"{runner.__package__}.rules.{name}") for name in RULES)


def test_the_families_of_kernels_are_told_with_their_shares(tmp_path):
    ill = illnesses.layout_changes(tmp_path / "mix.sqlite")
    assert triaged(*ill.paths, rules=()).kernels == "kernel time: convolution 80 %, copy/transpose 20 %"


def test_kernels_whose_names_tell_nothing_are_not_told_of(tmp_path):
    ill = illnesses.step_traffic(tmp_path / "own.sqlite")
    assert triaged(*ill.paths, rules=()).kernels == ""


def test_of_graphs_that_hide_most_kernels_no_families_are_told(tmp_path):
    assert triaged(whole_graph_export(tmp_path / "graphs.sqlite"), rules=()).kernels == ""
