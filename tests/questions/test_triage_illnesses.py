"""Each illness that the demo writer can make is found at its cost."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from synthetic import illnesses
from triaging import finding, ids, triaged

from nsystui.cli import command_parser
from nsystui.exports.demo import TrainingJob
from nsystui.questions.triage.finding import Severity

MS = 1_000_000

ILL = {
    "synchronous-memsets": (illnesses.synchronous_memsets, "memory_copies"),
    "step-traffic": (illnesses.step_traffic, "step_traffic"),
    "profiler-overhead": (illnesses.profiler_at_work, "profiler_overhead"),
    "mpi-waits": (illnesses.mpi_waits, "mpi_waits"),
    "unified-memory": (illnesses.unified_memory_faults, "unified_memory"),
    "slow-pace": (illnesses.throttled, "kernel_pace"),
    "kernel-outliers": (illnesses.kernel_outliers, "kernel_outliers"),
    "exposed-communication": (illnesses.exposed_communication, "exposed_communication"),
}


@pytest.mark.parametrize("name", ILL)
def test_it_is_found_at_its_cost(tmp_path, name):
    write, rule = ILL[name]
    ill = write(tmp_path / "ill.sqlite")
    one = finding(triaged(*ill.paths, rules=(rule,)), name)
    assert one.cost == ill.cost
    assert one.severity is Severity.WARNING
    assert one.evidence is not None and len(one.evidence)
    command, *flags = shlex.split(one.door.command)
    command_parser(command).parse_args(["file.sqlite", *flags])


def test_idle_time_that_the_profiler_made_is_told_once(tmp_path):
    """Of 2 ms idle in every 20 the profiler works in the first: only the second is a gap of the program."""
    ill = illnesses.profiler_at_work(tmp_path / "ill.sqlite")
    found = triaged(*ill.paths, rules=("idle_gaps", "profiler_overhead"), settings=("gap_percent=0",))
    assert finding(found, "profiler-overhead").cost == ill.cost
    assert finding(found, "idle-gaps").cost == 19 * MS


@pytest.mark.parametrize("schemas", [("3.0.0", "3.0.0"), ("3.25.0", "3.0.0")])
def test_mpi_calls_that_are_nvtx_ranges_are_waited_in_too(tmp_path, schemas):
    """Also where the other rank's export has the tables of MPI."""
    ills = [illnesses.mpi_waits(tmp_path / schema, schema) for schema in schemas]
    found = triaged(*(ill.paths[rank] for rank, ill in enumerate(ills)), rules=("mpi_waits",))
    assert finding(found, "mpi-waits").cost == ills[0].cost
    assert "most time in MPI_Allreduce" in finding(found, "mpi-waits").sentence


class TestSlowPace:
    def test_the_clock_is_the_reason_where_it_was_sampled(self, tmp_path):
        ill = illnesses.throttled(tmp_path / "clock.sqlite")
        one = finding(triaged(*ill.paths, rules=("kernel_pace",)), "slow-pace")
        assert "20 % longer than in the first" in one.sentence
        assert "to 1,650 MHz" in one.sentence
        assert "throttles" in one.advice.reason

    def test_without_it_only_the_kernels_tell(self, tmp_path):
        ill = illnesses.throttled(tmp_path / "alone.sqlite", clock=False)
        one = finding(triaged(*ill.paths, rules=("kernel_pace",)), "slow-pace")
        assert one.cost == ill.cost
        assert "MHz" not in one.sentence


class TestOutliers:
    def test_a_kernel_of_two_kinds_of_work_has_none(self, tmp_path):
        ill = illnesses.kernel_outliers(tmp_path / "ill.sqlite")
        one = finding(triaged(*ill.paths, settings=("outlier=1.5",), rules=("kernel_outliers",)), "kernel-outliers")
        assert one.cost == ill.cost
        assert "4 kernels" in one.sentence

    def test_huge_ones_do_not_mask_the_others(self, tmp_path):
        """Means, of the whole or of its parts, are larger than the smaller outliers."""
        ill = illnesses.masked_outliers(tmp_path / "ill.sqlite")
        one = finding(triaged(*ill.paths, rules=("kernel_outliers",)), "kernel-outliers")
        assert "14 kernels" in one.sentence
        assert one.cost == ill.cost

    def test_a_kernel_that_always_varies_has_none(self, tmp_path):
        """Its longest launches take more than three times the median, and are no further off than the others."""
        path = illnesses.varying_kernel(tmp_path / "varying.sqlite")
        assert triaged(path, rules=("kernel_outliers",)).findings == ()
        assert ids(triaged(path, settings=("outlier_score=0",), rules=("kernel_outliers",))) == {"kernel-outliers"}


class TestSlowPlaces:
    def test_the_place_is_named(self, tmp_path):
        ill = illnesses.slow_numa_node(tmp_path)
        one = finding(triaged(*ill.paths, rules=("slow_places",)), "slow-place")
        assert "NUMA node 1 of 2 hosts" in one.sentence
        assert "25 % longer" in one.sentence
        assert one.ranks == (2, 3, 6, 7)
        assert one.cost == ill.cost

    def test_without_numa_nodes_it_is_a_pci_address(self, tmp_path):
        ill = illnesses.slow_numa_node(tmp_path, "3.25.0")
        found = [one for one in triaged(*ill.paths, rules=("slow_places",)).findings if one.id == "slow-place"]
        assert [one.ranks for one in found] == [(2, 6), (3, 7)]
        assert all("PCI 0000:" in one.sentence for one in found)
        assert {one.cost for one in found} == {ill.cost}


def test_a_slow_host_costs_what_the_job_lost(tmp_path):
    job = TrainingJob(steps=6, layers=8, straggler=None, straggler_factor=1.25, stall_ms=0, gpu_metrics=False)
    healthy = triaged(*job.write(tmp_path / "healthy"), rules=())
    found = triaged(*replace(job, slow_host=1).write(tmp_path / "ill"), rules=("slow_places",))
    one = finding(found, "slow-place")
    assert "all GPUs of host gpu-a02" in one.sentence
    assert one.ranks == (2, 3)
    assert one.cost == pytest.approx(found.time - healthy.time, rel=0.1)


def test_small_messages_cost_their_latency(tmp_path):
    """4 bytes take 18 µs, whatever else."""
    job = TrainingJob(steps=6, layers=2, straggler=None, stall_ms=0, small_messages=150, gpu_metrics=False)
    found = triaged(*job.write(tmp_path), rules=("small_messages",))
    assert finding(found, "small-messages").cost == pytest.approx(6 * 151 * 18_000, rel=0.1)


def test_work_that_is_uneven_by_turns_is_imbalance(tmp_path):
    """Of four ranks three wait for the one that has more to do."""
    job = TrainingJob(steps=8, layers=2, straggler=None, stall_ms=0, uneven_ms=20, gpu_metrics=False)
    found = triaged(*job.write(tmp_path), rules=("stragglers",))
    assert "straggler" not in ids(found)
    one = finding(found, "imbalance")
    assert one.cost == pytest.approx(8 * 20 * MS * 3 / 4, rel=0.1)
    assert "compute for as long" in one.sentence
    assert not any(guess in f"{one.sentence} {one.advice}" for guess in ("data loading", "padding", "noise"))


class TestTensorActivity:
    def test_it_is_told_as_it_was_sampled(self, tmp_path):
        ill = illnesses.resting_tensor_cores(tmp_path / "resting.sqlite")
        one = finding(triaged(*ill.paths, rules=("tensor_activity",)), "tensor-activity")
        assert one.sentence == "tensor cores are active 2.0 % of the time, while SMs are active 80 %"

    def test_where_they_work_nothing_is_told(self, tmp_path):
        ill = illnesses.resting_tensor_cores(tmp_path / "working.sqlite", tensor=30)
        assert triaged(*ill.paths, rules=("tensor_activity",)).findings == ()
