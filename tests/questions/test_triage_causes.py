"""Rules that name a cause, each against an export with a known dose of it, and against real ones."""

from __future__ import annotations

import numpy as np
import pytest
from support import shared
from synthetic import illnesses
from triaging import finding, ids, triaged

from nsystui.exports.writing.host import INTERRUPTIBLE
from nsystui.exports.writing.writer import PINNED
from nsystui.questions.triage.finding import Severity
from nsystui.questions.triage.rules.input_pipeline import period_of

MS = 1_000_000


class TestInputPipeline:
    RULE = ("input_pipeline",)

    def test_gaps_between_steps_that_end_with_a_copy_are_the_loaders(self, tmp_path):
        ill = illnesses.starved(tmp_path / "ill.sqlite")
        one = finding(triaged(*ill.paths, rules=self.RULE), "input-pipeline")
        assert one.cost == ill.cost
        assert "the thread that launches waits" in one.sentence and "pin_memory thread (python 5900" in one.sentence
        assert "runs for 20 % of their time" in one.sentence
        assert "repeat every 3 steps, as with 3 workers" in one.sentence
        assert "num_workers" in one.advice.text

    def test_a_busy_pinning_thread_is_the_cause(self, tmp_path):
        ill = illnesses.starved(tmp_path / "ill.sqlite", pin_ms=17)
        one = finding(triaged(*ill.paths, rules=self.RULE), "input-pipeline")
        assert "pin" in one.advice.text and "num_workers" not in one.advice.text

    def test_code_between_steps_that_prepares_no_input_is_left_alone(self, tmp_path):
        ill = illnesses.starved(tmp_path / "healthy.sqlite", pin_ms=0, waits=False)
        assert triaged(*ill.paths, rules=self.RULE).findings == ()

    def test_the_real_one_is_named(self):
        one = finding(triaged(*shared("dataloader-bound-a100"), rules=self.RULE), "input-pipeline")
        assert one.percent == pytest.approx(82.4, abs=0.1)
        for word in ("data loader", "pin_memory thread", "7,888", "every 2 steps, as with 2 workers"):
            assert word in one.sentence

    def test_a_range_of_the_data_loader_is_enough(self):
        assert (
            "1 worker process ran"
            in finding(triaged(*shared("ai-training-before"), rules=self.RULE), "input-pipeline").sentence
        )

    def test_it_says_nothing_of_a_job_that_is_fed(self):
        assert ids(triaged(*shared("ddp-a100-rank0of4"), rules=self.RULE)) == set()


class TestCopies:
    RULES = ("memory_copies", "staged_copies", "step_traffic")

    def test_copies_between_gpus_over_the_host(self, tmp_path):
        ill = illnesses.staged_copies(tmp_path / "ill.sqlite")
        found = triaged(*ill.paths, rules=self.RULES)
        one = finding(found, "staged-peer-copies")
        assert one.cost == ill.cost
        assert one.severity is Severity.WARNING
        assert "go over the host: 30 that are named" in one.sentence
        assert "peer access" in one.advice.text

    def test_copies_within_a_gpu_and_direct_ones_are_left_alone(self, tmp_path):
        for kind in ("DtoD", "PtoP"):
            ill = illnesses.staged_copies(tmp_path / f"{kind}.sqlite", kind)
            assert triaged(*ill.paths, rules=("staged_copies",)).findings == ()

    def test_cheap_copies_from_pageable_memory_are_a_remark(self, tmp_path):
        ill = illnesses.pageable_copies(tmp_path / "ill.sqlite")
        one = finding(triaged(*ill.paths, rules=self.RULES), "pageable-copies")
        assert (one.cost, one.severity) == (ill.cost, Severity.INFO)
        assert "at 10.0 GB/s" in one.sentence
        assert "cudaMemcpyAsync blocks the CPU for 200 µs in them, at most 4 µs" in one.sentence

    def test_pinned_ones_are_none(self, tmp_path):
        ill = illnesses.pageable_copies(tmp_path / "healthy.sqlite", PINNED)
        assert triaged(*ill.paths, rules=("memory_copies",)).findings == ()

    def test_traffic_from_pinned_memory_need_not_be_pinned(self, tmp_path):
        ill = illnesses.step_traffic(tmp_path / "ill.sqlite")
        one = finding(triaged(*ill.paths, rules=self.RULES), "step-traffic")
        assert "pinned already" in one.advice.text
        assert "pinned memory" in one.sentence

    def test_the_real_ones(self):
        staged = finding(triaged(*shared("jacobi-staged-copies"), rules=self.RULES), "staged-peer-copies")
        assert "8,008 that are named" in staged.sentence and "GPU 0, 7" in staged.sentence
        pageable = finding(triaged(*shared("gemm-pageable"), rules=self.RULES), "synchronous-copies")
        assert "device-to-host, pageable memory: 4 GiB at 2.0 GB/s" in pageable.sentence
        assert "the GPU's link, PCIe 4 at best, gives about 26 GB/s" in pageable.sentence
        assert pageable.advice.text.startswith("pin the host memory")
        remark = finding(triaged(*shared("ai-training-after"), rules=self.RULES), "pageable-copies")
        assert "at 9.9 GB/s; the GPU's link" in remark.sentence
        assert "cudaMemcpyAsync blocks the CPU for 41.19 ms in them" in remark.sentence
        pinned = finding(triaged(*shared("dataloader-bound-a100"), rules=self.RULES), "step-traffic")
        assert "pinned already" in str(pinned.advice)


class TestFirstUse:
    RULE = ("first_use",)

    def test_the_context_the_pinned_memory_and_the_first_launches_are_told_apart(self, tmp_path):
        ill = illnesses.first_use(tmp_path / "ill.sqlite")
        found = triaged(*ill.paths, rules=self.RULE)
        context = finding(found, "context-creation")
        assert (context.cost, context.severity) == (100 * MS - 10_000, Severity.INFO)
        assert "the first cudaMalloc takes 100 ms" in context.sentence
        assert finding(found, "host-allocation").cost == 40 * MS
        launches = finding(found, "first-launches")
        assert launches.cost == ill.cost
        assert "5 of 5 first launches" in launches.sentence
        assert "EAGER" in launches.advice.text and "graph" not in str(launches.advice)

    def test_gaps_of_first_launches_stand_under_these_and_are_no_case_for_a_graph(self, tmp_path):
        (path,) = illnesses.first_use(tmp_path / "ill.sqlite").paths
        found = triaged(path, settings=("gap_percent=1", "first_launch_percent=1"), rules=("first_use", "idle_gaps"))
        gaps = finding(found, "idle-gaps")
        assert gaps.under == "first-launches"
        assert "launching thread was launching" in gaps.sentence
        assert "EAGER" in gaps.advice.text and "graph" not in str(gaps.advice)

    def test_nothing_is_said_where_nothing_is_paid(self, tmp_path):
        """Nor is a first call the context's where the same call always takes as long."""
        ill = illnesses.first_use(tmp_path / "healthy.sqlite", loads=False, pins=False, usual=90 * MS)
        assert triaged(*ill.paths, rules=self.RULE).findings == ()

    def test_the_real_ones(self):
        context = finding(triaged(*shared("vadd-launch-bound"), rules=self.RULE), "context-creation")
        assert "the first cudaMalloc takes 106.9 ms, 97 % of the time in CUDA calls" in context.sentence
        pinned = triaged(*shared("gemm-pinned"), rules=self.RULE)
        assert "cudaMallocHost 7.73 s" in finding(pinned, "host-allocation").sentence
        assert "context-creation" not in {one.id for one in pinned.findings}


class TestLaunchBound:
    RULES = ("launch_overhead", "launch_bound")

    def test_a_loop_in_a_long_job_is_found(self, tmp_path):
        ill = illnesses.launch_bound(tmp_path / "ill.sqlite")
        found = triaged(*ill.paths, rules=self.RULES)
        one = finding(found, "launch-bound")
        assert one.cost == ill.cost
        assert one.severity is Severity.WARNING
        assert "60 % of that time" in one.sentence and "in NVTX range `main_loop`" in one.sentence
        share = 100 * ill.cost / found.time
        assert f"gaps under 1 ms {share:.1f} % (launch-bound stretches {share:.1f} %)" in found.account
        assert ids(triaged(*ill.paths, rules=self.RULES, settings=("launch_percent=1",))) == {"launch-overhead"}

    def test_tiny_kernels_that_were_launched_in_time_cost_the_gpu_their_start(self, tmp_path):
        ill = illnesses.launch_bound(tmp_path / "ill.sqlite", ahead=5_000)
        one = finding(triaged(*ill.paths, rules=self.RULES), "launch-bound")
        assert one.cost == ill.cost
        assert "for 0 % because the next was launched late" in one.sentence

    def test_gaps_between_longer_kernels_that_were_launched_before_are_left_alone(self, tmp_path):
        """Something else is the matter there."""
        ill = illnesses.launch_bound(tmp_path / "healthy.sqlite", ahead=50_000, slower=10)
        assert triaged(*ill.paths, rules=self.RULES).findings == ()

    def test_the_real_one(self):
        one = finding(triaged(*shared("vadd-launch-bound"), rules=self.RULES), "launch-bound")
        assert "in NVTX range `Profile_Loop`" in one.sentence
        assert one.severity is Severity.WARNING


class TestPreempted:
    RULE = ("preempted",)

    def test_the_time_without_a_cpu_and_who_had_it(self, tmp_path):
        ill = illnesses.preempted(tmp_path / "ill.sqlite")
        found = triaged(*ill.paths, rules=(*self.RULE, "idle_gaps"))
        one = finding(found, "preempted")
        assert one.cost == ill.cost
        assert "for 100 % of it omp 5900 ran there" in one.sentence
        assert "3.0 threads of its report could run then, and they used 2 of the node's 96 CPUs" in one.sentence
        assert "OMP_NUM_THREADS" in one.advice.text
        gaps = finding(found, "idle-gaps")
        assert gaps.under == "preempted" and "not scheduled, 100 % of it while omp 5900 had its CPU" in gaps.sentence

    def test_a_cpu_that_no_recorded_thread_had(self, tmp_path):
        ill = illnesses.preempted(tmp_path / "ill.sqlite", others=False)
        one = finding(triaged(*ill.paths, rules=self.RULE), "preempted")
        assert one.cost == ill.cost
        assert "no thread that was recorded" in one.sentence and "--cpu-bind" in one.advice.text

    def test_a_thread_that_waits_is_not_preempted(self, tmp_path):
        ill = illnesses.preempted(tmp_path / "healthy.sqlite", state=INTERRUPTIBLE)
        found = triaged(*ill.paths, rules=self.RULE)
        assert (found.findings, found.not_checked) == ((), ())

    def test_an_export_that_does_not_say_why_threads_left_is_not_judged(self):
        found = triaged(*shared("dataloader-bound-a100"), rules=self.RULE)
        assert found.findings == ()
        assert "why threads left their CPUs" in found.not_checked[0].why


class TestAllocatorChurn:
    RULE = ("allocator_churn",)

    @pytest.mark.parametrize("drains_ns", [300_000, 1_000_000])
    def test_the_idle_time_in_and_behind_the_calls_of_each_step(self, tmp_path, drains_ns):
        """What follows a cudaFree counts up to the next kernel, if the whole gap is short."""
        ill = illnesses.allocator_churn(tmp_path / "ill.sqlite", drains_ns=drains_ns)
        one = finding(triaged(*ill.paths, rules=self.RULE), "allocator-churn")
        assert one.cost == ill.cost
        assert "2.0 calls in each step; cudaFree" in one.sentence
        assert "PYTORCH_CUDA_ALLOC_CONF" in one.advice.text

    def test_launches_that_come_late_behind_them_are_a_symptom(self, tmp_path):
        ill = illnesses.allocator_churn(tmp_path / "ill.sqlite")
        found = triaged(*ill.paths, rules=(*self.RULE, "launch_overhead"))
        assert finding(found, "launch-overhead").under == "allocator-churn"

    def test_without_steps_the_warm_up_ends_where_the_gpu_works(self, tmp_path):
        ill = illnesses.allocator_churn(tmp_path / "ill.sqlite", steps=False)
        one = finding(triaged(*ill.paths, rules=self.RULE), "allocator-churn")
        assert one.cost == ill.cost
        assert "in each step" not in one.sentence

    @pytest.mark.parametrize("calls", [2, 6])
    def test_allocations_of_the_first_steps_are_none(self, tmp_path, calls):
        ill = illnesses.allocator_churn(tmp_path / "healthy.sqlite", calls)
        assert triaged(*ill.paths, rules=self.RULE, settings=("churn_percent=0",)).findings == ()

    def test_pinned_host_memory_is_told_once(self, tmp_path):
        ill = illnesses.first_use(tmp_path / "pinned.sqlite")
        found = triaged(*ill.paths, rules=("first_use", *self.RULE), settings=("churn_calls=1",))
        assert "host-allocation" in ids(found) and "allocator-churn" not in ids(found)


class TestMemoryFull:
    RULE = ("device_memory",)

    @pytest.mark.parametrize(("gib", "severity"), [(78, Severity.WARNING), (73, Severity.INFO), (60, None)])
    def test_the_share_of_the_devices_memory_decides(self, tmp_path, gib, severity):
        ill = illnesses.full_memory(tmp_path / "full.sqlite", gib)
        found = triaged(*ill.paths, rules=self.RULE)
        assert [one.severity for one in found.findings] == ([] if severity is None else [severity])
        if severity is not None:
            one = finding(found, "memory-full")
            assert f"{gib} GiB of 79.18 GiB ({100 * (gib << 30) / 85_014_413_312:.0f} %)" in one.sentence
            assert f"2 allocations, the largest {gib - 10} GiB" in one.sentence
            assert [row[3] for row in one.evidence.rows] == [(gib - 10) << 30, 10 << 30]

    def test_allocations_that_fail_make_it_worse(self, tmp_path):
        ill = illnesses.full_memory(tmp_path / "full.sqlite", 73, failures=3)
        one = finding(triaged(*ill.paths, rules=self.RULE), "memory-full")
        assert one.severity is Severity.WARNING and one.sentence.endswith(
            "; 3 allocations got none, 1 of which was tried again with success after 2 calls that freed memory"
        )

    def test_without_the_events_it_is_not_judged(self, tmp_path):
        ill = illnesses.synchronous_memsets(tmp_path / "none.sqlite")
        found = triaged(*ill.paths, rules=self.RULE)
        assert found.findings == () and "--cuda-memory-usage=true" in found.not_checked[0].why


def test_the_demo_job_is_healthy_in_this(demo_job):
    assert triaged(*demo_job, rules=("preempted", "allocator_churn", "device_memory")).findings == ()


@pytest.mark.parametrize("lag", [2, 3, 4, 8])
def test_the_period_of_step_times(lag):
    noise = np.random.default_rng(lag)
    times = np.array([(100 if number % lag else 300) + noise.integers(0, 20) for number in range(80)])
    assert period_of(times) == lag
    assert period_of(noise.permutation(times)) is None
    assert period_of(np.sort(times)) is None
