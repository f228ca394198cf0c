"""Each illness that the demo writer can make is found at its cost."""

from __future__ import annotations

import shlex
import sqlite3
from dataclasses import replace

import pytest
from support import edit
from synthetic import illnesses
from triaging import finding, ids, triaged

from nsystui.base.kernel_families import COPY, ELEMENTWISE, family_of
from nsystui.cli import command_parser
from nsystui.exports.demo import TrainingJob
from nsystui.exports.writing.target import H100, GpuModel
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
    "gil-held": (illnesses.gil_held, "blocked_host"),
    "blocking-reads": (illnesses.file_reads, "blocked_host"),
    "precision": (illnesses.slow_precision, "precision"),
    "layout-changes": (illnesses.layout_changes, "layout_changes"),
    "unfused-kernels": (illnesses.unfused, "unfused_kernels"),
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


@pytest.mark.parametrize("name", ["gil-held", "blocking-reads"])
def test_waiting_beside_kernels_costs_nothing(tmp_path, name):
    write, rule = ILL[name]
    assert not triaged(*write(tmp_path / "healthy.sqlite", while_busy=True).paths, rules=(rule,)).findings


def test_a_gil_that_is_held_says_by_whom(tmp_path):
    found = triaged(*illnesses.gil_held(tmp_path / "ill.sqlite").paths, rules=("blocked_host", "idle_gaps"))
    assert "100 % of it thread helper" in finding(found, "gil-held").sentence
    assert finding(found, "idle-gaps").under == "gil-held"


def test_reads_say_who_calls_them_and_of_which_files(tmp_path):
    ill = illnesses.file_reads(tmp_path / "ill.sqlite")
    found = finding(triaged(*ill.paths, rules=("blocked_host",)), "blocking-reads")
    assert "67 % of it called by load_image; 33 % of it by threads that it waits for" in found.sentence
    assert "40 files in /data" in found.sentence
    edit(*ill.paths, "DROP TABLE OSRT_FILE_ACCESS_EVENTS", "DROP TABLE OSRT_FILE_ACCESS_DESCRIPTORS")
    found = finding(triaged(*ill.paths, rules=("blocked_host",)), "blocking-reads")
    assert found.cost == ill.cost and "--osrt-file-access=true" in found.advice.text


def test_what_blocked_hosts_lack_is_said_of_python_alone(tmp_path):
    ill = illnesses.synchronous_memsets(tmp_path / "ill.sqlite")
    why = {one.rule: one.why for one in triaged(*ill.paths, rules=("blocked_host",)).not_checked}
    assert "python-gil" in why["gil-held"] and "-t osrt" in why["blocking-reads"]
    edit(*ill.paths, "UPDATE PROCESSES SET name = 'solver'")
    assert {one.rule for one in triaged(*ill.paths, rules=("blocked_host",)).not_checked} == {"blocking-reads"}


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


class TestPrecision:
    RULES = ("precision",)

    def test_it_says_how_much_of_which_work_and_that_it_is_a_limit(self, tmp_path):
        one = finding(triaged(*illnesses.slow_precision(tmp_path / "tf32.sqlite").paths, rules=self.RULES), "precision")
        assert one.sentence == (
            "of the kernel time 80 % is TF32 convolution; no FP16 or BF16 kernel does such work; "
            "a faster precision could save 100 ms on each GPU at most"
        )
        assert "2 times that of TF32" in one.advice.reason

    @pytest.mark.parametrize(
        ("precision", "model"),
        [
            ("bf16bf16_bf16f32_f32", H100),
            ("f64f64_f64f64_f64", H100),
            ("tf32f32_tf32f32_f32", GpuModel("Tesla V100-SXM2-16GB", "GV100")),  # cannot be: it has no TF32
        ],
    )
    def test_what_is_fast_or_has_to_be_exact_is_left_alone(self, tmp_path, precision, model):
        ill = illnesses.slow_precision(tmp_path / "fast.sqlite", precision, model)
        assert triaged(*ill.paths, rules=self.RULES).findings == ()

    @pytest.mark.parametrize(
        ("name", "chip", "factor"),
        [  # the dense peaks of NVIDIA's data sheets, TFLOPS: FP16 or BF16 (GeForce: FP32 accumulation), FP32
            ("Tesla V100-SXM2-16GB", "GV100", 125 / 15.7),
            ("NVIDIA A100-SXM4-40GB", "", 312 / 19.5),
            ("NVIDIA A40", "GA102", 149.7 / 37.4),
            ("NVIDIA L40", "AD102", 181 / 90.5),
            ("NVIDIA L40S", "AD102", 362 / 91.6),
            ("NVIDIA GeForce RTX 4090", "AD102", 165.2 / 82.6),
            ("NVIDIA H20", "GH100", 148 / 44),
            ("NVIDIA H100 80GB HBM3", "GH100", 989 / 67),
        ],
    )
    def test_fp32_costs_what_the_gpu_could_do(self, tmp_path, name, chip, factor):
        ill = illnesses.slow_precision(tmp_path / "fp32.sqlite", "f32f32_f32f32_f32", GpuModel(name, chip))
        assert finding(triaged(*ill.paths, rules=self.RULES), "precision").cost == pytest.approx(
            200 * MS * (1 - 1 / factor), rel=0.01
        )

    def test_a_gpu_that_is_not_known_is_not_judged(self, tmp_path):
        ill = illnesses.slow_precision(tmp_path / "old.sqlite", "f32f32_f32f32_f32", GpuModel("Tesla K80", "GK210"))
        found = triaged(*ill.paths, rules=self.RULES)
        assert (found.findings, [one.rule for one in found.not_checked]) == ((), ["precision"])


class TestLayoutChanges:
    def test_other_copies_are_left_alone(self, tmp_path):
        ill = illnesses.layout_changes(tmp_path / "copies.sqlite", "void CatArrayBatchedCopy<float>(float *)")
        assert triaged(*ill.paths, rules=("layout_changes",)).findings == ()

    def test_the_advice_fits(self, tmp_path):
        of_channels = illnesses.layout_changes(tmp_path / "channels.sqlite")
        transposes = illnesses.layout_changes(tmp_path / "transposes.sqlite", "loop_transpose_fusion_3")
        one, other = (
            finding(triaged(*ill.paths, rules=("layout_changes",)), "layout-changes")
            for ill in (of_channels, transposes)
        )
        assert "channels_last" in one.advice.text
        assert "transposed tensor" in other.advice.text


class TestUnfusedKernels:
    RULES = ("unfused_kernels",)

    def test_it_says_how_many_and_where(self, tmp_path):
        one = finding(triaged(*illnesses.unfused(tmp_path / "ill.sqlite").paths, rules=self.RULES), "unfused-kernels")
        assert one.sentence.startswith(
            "400 launches of pointwise kernels (8 a step) come back to back, in 50 runs, "
            "most of the longest in NVTX range `optimizer`: "
        )
        assert "fused or foreach optimizer" in one.advice.text

    @pytest.mark.parametrize(
        ("name", "gap"),
        [
            ("void vectorized_elementwise_kernel<4, Functor{}>(int)", 20_000),
            ("void multi_tensor_apply_kernel<TensorListMetadata<{}>, AdamFunctor<float>>(int)", 2_000),
            ("void reduce_kernel<512, {}, ReduceOp<float>>(T3)", 2_000),
        ],
    )
    def test_what_is_apart_or_fused_or_not_pointwise_is_left_alone(self, tmp_path, name, gap):
        ill = illnesses.unfused(tmp_path / "well.sqlite", name, gap)
        assert triaged(*ill.paths, rules=self.RULES).findings == ()

    def test_without_pointwise_kernels_there_is_nothing_whatever_the_threshold(self, tmp_path):
        ill = illnesses.layout_changes(tmp_path / "none.sqlite")
        assert triaged(*ill.paths, rules=self.RULES, settings=("unfused_percent=0",)) == triaged(
            *ill.paths, rules=self.RULES
        )

    def test_the_limit_is_that_of_a_sweep_over_a_real_export(self, shared_export):
        path = shared_export("ddp-a100-rank0of4")
        one = finding(triaged(path, rules=self.RULES), "unfused-kernels")
        query = """SELECT streamId, start, "end", value, gridX || ' ' || gridY || ' ' || gridZ
            FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName ORDER BY 1, 2"""
        saved, kernels, run = 0, 0, []
        last = (None, 0, 0, "", "")
        rows = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True).execute(query).fetchall()
        for row in [*rows, last]:
            is_pointwise = "multi_tensor" not in row[3] and (
                family_of(row[3]) == ELEMENTWISE or (family_of(row[3]) == COPY and "copy_kernel" in row[3])
            )
            if run and not (is_pointwise and row[0] == run[-1][0] and row[1] - run[-1][2] < 10_000):
                if len(run) > 1:
                    kept: dict[str, int] = {}
                    for _, start, end, _, grid in run:
                        kept[grid] = max(kept.get(grid, 0), end - start)
                    saved += max(run[-1][2] - run[0][1] - sum(kept.values()), 0)
                    kernels += len(run)
                run = []
            run += [row] if is_pointwise else []
        assert one.cost == saved
        assert one.sentence.startswith(f"{kernels:,} launches")
