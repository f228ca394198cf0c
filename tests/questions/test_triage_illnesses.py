"""Each illness is found at its cost and described in the right words; healthy parts are left alone."""

import shlex
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from campaign import first, some
from support import edit
from synthetic import illnesses as ill
from synthetic import rare_illnesses as rare
from synthetic.illnesses import Ill
from synthetic.writing.host import INTERRUPTIBLE
from synthetic.writing.target import GpuModel
from synthetic.writing.writer import PINNED
from triaging import finding, ids, told, triaged

from nsystui.base.kernel_families import COPY, ELEMENTWISE, family_of
from nsystui.base.resources import Limits
from nsystui.cli import command_parser
from nsystui.questions.triage.finding import Severity
from nsystui.questions.triage.rules.input_pipeline import period_of

MS = 1_000_000
Write = Callable[[Path], Ill]


COPIES = ("memory_copies", "staged_copies", "step_traffic")
LAUNCHES = ("launch_overhead", "launch_bound")
RULES = {
    "slow-pace": ("kernel_pace",), "gil-held": ("blocked_host",), "blocking-reads": ("blocked_host",),
    "staged-peer-copies": COPIES, "pageable-copies": COPIES, "launch-bound": LAUNCHES, "slow-place": ("slow_places",),
    "first-launches": ("first_use",), "synchronous-memsets": ("memory_copies",), "straggler": ("stragglers",),
    "synchronous-copies": COPIES, "warm-up": ("step_times",), "drift": ("step_times",),
}  # fmt: skip
"""The rules that judge; by default the job with the finding's name."""
ILL: list[tuple[str, Write, str]] = [
    ("mpi-waits", ill.mpi_waits, ""),
    ("mpi-waits", partial(ill.mpi_waits, schema="3.0.0"), "most time in MPI_Allreduce"),  # its calls are NVTX ranges
    ("unified-memory", partial(ill.unified_memory_faults, later=4_500_000), "Kernels run for 50 % of this time"),
    ("slow-pace", ill.throttled, "to 1,650 MHz"), ("slow-pace", partial(ill.throttled, clock=False), ""),
    ("exposed-communication", ill.exposed_communication, ""),
    ("exposed-communication", partial(rare.reducing, calls=8), "8 AllReduce a step"), ("gil-held", ill.gil_held, ""),
    ("blocking-reads", ill.file_reads, ""), ("layout-changes", ill.layout_changes, "one layout: NHWC"),
    ("layout-changes", partial(ill.layout_changes, name="loop_transpose_fusion_3"), "transposed tensor"),
    ("input-pipeline", ill.starved, "num_workers"), ("input-pipeline", partial(ill.starved, pin_ms=17), "pin"),
    ("staged-peer-copies", ill.staged_copies, ""), ("launch-bound", ill.launch_bound, ""),
    ("launch-bound", partial(ill.launch_bound, ahead=5_000), " 0 % waiting for launches"),
    ("preempted", ill.preempted, ""),
    ("preempted", partial(ill.preempted, others=False), "No recorded thread had the CPU"),
    # The time after a cudaFree counts up to the next kernel, if the whole gap is short.
    ("allocator-churn", ill.allocator_churn, ""),
    ("allocator-churn", partial(ill.allocator_churn, drains_ns=MS), "2.0 per step"),
    ("allocator-churn", partial(ill.allocator_churn, steps=False), ""), ("slow-place", ill.slow_numa_node, ""),
    ("unfused-kernels", ill.unfused, ""), ("first-launches", ill.first_use, "EAGER"),
    ("precision", ill.slow_precision, ""), ("profiler-overhead", ill.profiler_at_work, ""),
    ("kernel-outliers", ill.kernel_outliers, ""),
    # Means, of all launches or of parts, are larger than the smaller outliers.
    ("kernel-outliers", ill.masked_outliers, "14 launches"), ("synchronous-memsets", ill.synchronous_memsets, ""),
    ("step-traffic", ill.step_traffic, "pinned already"), ("pageable-copies", ill.pageable_copies, "at 10.0 GB/s"),
    ("launch-overhead", rare.waiting_for_launches, ""), ("synchronising-calls", rare.synchronising_calls, ""),
    ("synchronous-copies", rare.synchronous_copies, ""), ("exposed-memory", rare.synchronous_copies, ""),
    ("different-work", rare.different_work, ""), ("straggler", ill.pipeline_stages, "Among the 2 ranks of part B"),
    ("warm-up", rare.warming_up, ""), ("drift", rare.drifting, ""), ("round-trips", rare.round_trips, "on the GPU"),
]  # fmt: skip


@pytest.mark.campaign  # tests/answers has the findings of each
@pytest.mark.parametrize(("name", "write", "words"), some(len(ILL), ILL))
def test_it_is_found_at_its_cost(tmp_path, name, write, words):
    written = write(tmp_path / "ill.sqlite")
    found = finding(triaged(*written.paths, rules=RULES.get(name, (name.replace("-", "_"),))), name)
    assert found.cost == written.cost
    assert words in f"{found.sentence} {found.advice}"
    assert found.evidence is not None and len(found.evidence)
    command, *flags = shlex.split(found.door.command)
    command_parser(command).parse_args(["file.sqlite", *flags])


HEALTHY: dict[str, tuple[Write, str] | tuple[Write, str, str]] = {
    "the GIL is held beside kernels": (partial(ill.gil_held, while_busy=True), "blocked_host"),
    "code between steps prepares no input": (partial(ill.starved, pin_ms=0, waits=False), "input_pipeline"),
    "a thread waits": (partial(ill.preempted, state=INTERRUPTIBLE), "preempted"),
    # The longest launches take more than three times the median, but others deviate as much.
    "a kernel always varies": (ill.varying_kernel, "kernel_outliers"),
    "a long kernel has the template of a short one": (ill.two_templates, "kernel_outliers"),
    "kernels run beside a compiler": (partial(rare.compiling, busy=((50, 130), (130, 170))), "jit_compilation"),
    "a library with a part of its name compiles":
        (partial(rare.compiling, library="/opt/libtritonserver.so", function="infer"), "jit_compilation"),
}  # fmt: skip
HEALTHY_TOO: dict[str, tuple[Write, str] | tuple[Write, str, str]] = {
    "BF16": (partial(ill.slow_precision, precision="bf16bf16_bf16f32_f32"), "precision"),
    "copies within a GPU": (partial(ill.staged_copies, kind="DtoD"), "staged_copies"),
    "pointwise kernels lie apart": (partial(ill.unfused, gap=20_000), "unfused_kernels"),
    "two first steps allocate": (partial(ill.allocator_churn, calls=2), "allocator_churn", "churn_percent=0"),
    "a loop launches one pointwise kernel": (partial(ill.unfused, kinds=1), "unfused_kernels"),
    "files are read beside kernels": (partial(ill.file_reads, while_busy=True), "blocked_host"),
    "direct copies between GPUs": (partial(ill.staged_copies, kind="PtoP"), "staged_copies"),
    "pinned memory": (partial(ill.pageable_copies, source=PINNED), "memory_copies"),
    # A first call does not create the context if the same call always takes as long.
    "nothing is paid for the first": (partial(ill.first_use, loads=False, pins=False, usual=90 * MS), "first_use"),
    # These jobs have another problem.
    "longer kernels, launched before": (partial(ill.launch_bound, ahead=50_000, slower=10), "launch_bound"),
    "longer kernels, launched in time": (partial(ill.launch_bound, ahead=50_000, slower=10), "launch_overhead"),
    "six first steps allocate": (partial(ill.allocator_churn, calls=6), "allocator_churn", "churn_percent=0"),
    "much free memory": (partial(ill.full_memory, gib=60), "device_memory"),
    "gaps that the CPU did not make": (rare.short_gaps, "launch_overhead"),
    "inputs and results of other sizes": (partial(rare.round_trips, up=(8,), down=(2,)), "round_trips"),
    "tensor cores work": (partial(ill.resting_tensor_cores, tensor=30), "tensor_activity"),
    "FP64 has to be exact": (partial(ill.slow_precision, precision="f64f64_f64f64_f64"), "precision"),
    "a V100 has no TF32": (partial(ill.slow_precision, model=GpuModel("Tesla V100-SXM2-16GB", "GV100")), "precision"),
    "copies that change no layout": (partial(ill.layout_changes, name="void CatArrayBatchedCopy<float>(float *)"),
        "layout_changes"),
    "kernels are fused": (partial(ill.unfused,
        name="void multi_tensor_apply_kernel<TensorListMetadata<{}>, AdamFunctor<float>>(int)"), "unfused_kernels"),
    "kernels are not pointwise": (partial(ill.unfused, name="void reduce_kernel<512, {}, ReduceOp<float>>(T3)"),
        "unfused_kernels"),
    "no kernel is pointwise": (ill.layout_changes, "unfused_kernels", "unfused_percent=0"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*HEALTHY, *(pytest.param(name, marks=pytest.mark.campaign) for name in HEALTHY_TOO)])
def test_it_is_left_alone_where(tmp_path, name):
    write, rule, *settings = (HEALTHY | HEALTHY_TOO)[name]
    found = triaged(*write(tmp_path / "healthy.sqlite").paths, rules=(rule,), settings=settings)
    assert found.findings == ()
    assert rule == "blocked_host" or found.not_checked == ()


@pytest.mark.campaign
def test_a_score_of_nothing_finds_outliers_of_a_kernel_that_always_varies(tmp_path):
    paths = ill.varying_kernel(tmp_path / "varying.sqlite").paths
    assert ids(triaged(*paths, settings=("outlier_score=0",), rules=("kernel_outliers",))) == {"kernel-outliers"}


@pytest.mark.campaign
@pytest.mark.parametrize(("write", "name", "namespace", "usual", "words"), [
    (ill.starved, "input-pipeline", "dali::", "num_workers", "Give DALI more threads"),
    (ill.layout_changes, "layout-changes", "at::native::", "NHWC", "channels_last"),
    (ill.allocator_churn, "allocator-churn", "at::native::", "cudaMallocAsync", "PYTORCH_CUDA_ALLOC_CONF"),
])  # fmt: skip
def test_advice_names_what_the_framework_has_that_the_kernels_are_of(tmp_path, write, name, namespace, usual, words):
    (path,) = write(tmp_path / "ill.sqlite").paths
    rules = (name.replace("-", "_"),)
    before = finding(triaged(path, rules=rules), name).advice.text
    edit(path, f"UPDATE StringIds SET value = '{namespace}' || value WHERE value LIKE '%float%' OR value LIKE 'sm80%'")
    after = finding(triaged(path, rules=rules), name).advice.text
    assert usual in before and words not in before
    assert words in after and usual not in after


@pytest.mark.campaign
@pytest.mark.parametrize(("last", "words"), [(MS, []), (70 * MS, ["Kernel advance<Zone<35>> takes 67 %"])])
def test_one_kernel_is_one_by_its_full_name_with_its_template(tmp_path, last, words):
    with ill.one_gpu(tmp_path / "templates.sqlite") as gpu:
        for number in range(36):
            start = MS + number * MS
            end = start + (last if number == 35 else MS)
            gpu.kernel(start, end, start - 10_000, f"void advance<Zone<(int){number}>>(double *)")
    found = triaged(tmp_path / "templates.sqlite", rules=("dominant_kernel",))
    assert [one.sentence.partition(" of the kernel time")[0] for one in found.findings] == words


@pytest.mark.campaign
def test_reads_without_their_files_advise_to_record_them(tmp_path):
    written = ill.file_reads(tmp_path / "ill.sqlite")
    edit(*written.paths, "DROP TABLE OSRT_FILE_ACCESS_EVENTS", "DROP TABLE OSRT_FILE_ACCESS_DESCRIPTORS")
    found = finding(triaged(*written.paths, rules=("blocked_host",)), "blocking-reads")
    assert found.cost == written.cost and "--osrt-file-access=true" in found.advice.text


@pytest.mark.campaign
def test_what_blocked_hosts_lack_is_said_of_python_alone(tmp_path):
    paths = ill.synchronous_memsets(tmp_path / "ill.sqlite").paths
    why = {one.rule: one.why for one in triaged(*paths, rules=("blocked_host",)).not_checked}
    assert "python-gil" in why["gil-held"] and "-t osrt" in why["blocking-reads"]
    edit(*paths, "UPDATE PROCESSES SET name = 'solver'")
    assert {one.rule for one in triaged(*paths, rules=("blocked_host",)).not_checked} == {"blocking-reads"}


def test_idle_time_that_the_profiler_made_is_told_once(tmp_path):
    """The profiler works in the first of 2 idle ms in every 20: only the second is a gap of the program."""
    written = ill.profiler_at_work(tmp_path / "ill.sqlite")
    found = triaged(*written.paths, rules=("idle_gaps", "profiler_overhead"), settings=("gap_percent=0",))
    assert finding(found, "profiler-overhead").cost == written.cost
    assert finding(found, "idle-gaps").cost == 19 * MS


@pytest.mark.campaign
def test_mpi_calls_are_waited_in_where_only_one_of_the_exports_has_tables_of_them(tmp_path):
    ills = [ill.mpi_waits(tmp_path / schema, schema) for schema in ("3.25.0", "3.0.0")]
    found = triaged(*(one.paths[rank] for rank, one in enumerate(ills)), rules=("mpi_waits",))
    assert finding(found, "mpi-waits").cost == ills[0].cost
    told(finding(found, "mpi-waits"), "most time in MPI_Allreduce")


@pytest.mark.campaign
def test_slow_places_are_pci_addresses_where_no_numa_nodes_are_known(tmp_path):
    written = ill.slow_numa_node(tmp_path, "3.25.0")
    found = [one for one in triaged(*written.paths, rules=("slow_places",)).findings if one.id == "slow-place"]
    assert [one.ranks for one in found] == [(2, 6), (3, 7)]
    assert all("PCI 0000:" in one.sentence for one in found)
    assert {one.cost for one in found} == {written.cost}


# The dense peaks of NVIDIA's data sheets, TFLOPS: FP16 or BF16 (GeForce: FP32 accumulation), FP32.
@pytest.mark.parametrize(("name", "chip", "factor"), first(2, [
    ("NVIDIA H100 80GB HBM3", "GH100", 989 / 67), ("Tesla K80", "GK210", None),
    ("Tesla V100-SXM2-16GB", "GV100", 125 / 15.7), ("NVIDIA A100-SXM4-40GB", "", 312 / 19.5),
    ("NVIDIA A40", "GA102", 149.7 / 37.4), ("NVIDIA L40", "AD102", 181 / 90.5), ("NVIDIA L40S", "AD102", 362 / 91.6),
    ("NVIDIA GeForce RTX 4090", "AD102", 165.2 / 82.6), ("NVIDIA H20", "GH100", 148 / 44),
]))  # fmt: skip
def test_fp32_costs_what_the_gpu_could_do_if_it_is_known(tmp_path, name, chip, factor):
    written = ill.slow_precision(tmp_path / "fp32.sqlite", "f32f32_f32f32_f32", GpuModel(name, chip))
    found = triaged(*written.paths, rules=("precision",))
    if factor is None:
        assert (found.findings, [one.rule for one in found.not_checked]) == ((), ["precision"])
    else:
        assert finding(found, "precision").cost == pytest.approx(200 * MS * (1 - 1 / factor), rel=0.01)


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "advice"), [
    ("void scale_kernel{}(float *)", "Write one kernel"),
    ("loop_add_fusion_{}", "jax.jit"),
    ("void at::native::unrolled_elementwise_kernel<Functor{}>(int)", "torch.compile"),
])  # fmt: skip
def test_a_loop_of_two_kernels_is_fused_within_its_iterations_and_as_its_framework_can(tmp_path, name, advice):
    written = ill.unfused(tmp_path / "loop.sqlite", name, kinds=2)
    found = finding(triaged(*written.paths, rules=("unfused_kernels",)), "unfused-kernels")
    assert found.cost == written.cost
    told(found, "in 200 back-to-back chains of different kernels")
    assert [one for one in ("Write one kernel", "jax.jit", "torch.compile") if one in found.advice.text] == [advice]


@pytest.mark.campaign
@pytest.mark.parametrize("at_once", [1 << 18, 3_000])
def test_the_limit_of_fusing_is_that_of_a_sweep_over_a_real_export(shared_export, monkeypatch, at_once):
    monkeypatch.setattr(Limits, "rows_at_once", lambda limits, size: at_once)
    path = shared_export("ddp-a100-rank0of4")
    one = finding(triaged(path, rules=("unfused_kernels",)), "unfused-kernels")
    query = """SELECT streamId, start, "end", value, gridX || ' ' || gridY || ' ' || gridZ
        FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName ORDER BY 1, 2"""
    saved, kernels, run = 0, 0, []
    last = (None, 0, 0, "", "")
    for row in [*sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True).execute(query).fetchall(), last]:
        is_pointwise = "multi_tensor" not in row[3] and (
            family_of(row[3]) == ELEMENTWISE or (family_of(row[3]) == COPY and "copy_kernel" in row[3])
        )
        if run and not (is_pointwise and row[0] == run[-1][0] and row[1] - run[-1][2] < 10_000):
            seen, iterations = Counter[tuple[str, str]](), defaultdict(list)
            for one_of_run in run:
                seen[one_of_run[3:]] += 1
                iterations[max(seen.values())].append(one_of_run)
            for part in iterations.values():
                spent = Counter[tuple[str, str]]()
                for _, start, end, *kernel in part:
                    spent[tuple(kernel)] += end - start
                kept = {grid: max(time for (_, own), time in spent.items() if own == grid) for _, grid in spent}
                saved += max(part[-1][2] - part[0][1] - sum(kept.values()), 0) if len(part) > 1 else 0
                kernels += len(part) if len(part) > 1 else 0
            run = []
        run += [row] if is_pointwise else []
    assert (one.cost, one.sentence.partition(" ")[0]) == (saved, f"{kernels:,}")


@pytest.mark.campaign
def test_the_context_and_the_pinned_memory_are_told_apart_from_first_launches(tmp_path):
    paths = ill.first_use(tmp_path / "ill.sqlite").paths
    found = triaged(*paths, rules=("first_use", "allocator_churn"), settings=("churn_calls=1",))
    context = finding(found, "context-creation")
    assert (context.cost, context.severity) == (100 * MS - 10_000, Severity.INFO)
    told(context, "The first cudaMalloc takes 100 ms")
    assert finding(found, "host-allocation").cost == 40 * MS
    assert "allocator-churn" not in ids(found)


@pytest.mark.campaign
def test_gaps_of_first_launches_stand_under_these_and_are_no_case_for_a_graph(tmp_path):
    paths = ill.first_use(tmp_path / "ill.sqlite").paths
    found = triaged(*paths, settings=("gap_percent=1", "first_launch_percent=1"), rules=("first_use", "idle_gaps"))
    gaps = finding(found, "idle-gaps")
    assert gaps.under == "first-launches"
    told(gaps, "launching thread was launching", advises=("EAGER",))
    assert "graph" not in str(gaps.advice)


@pytest.mark.campaign
def test_a_stretch_bound_by_launches_is_a_part_of_the_account_and_no_launch_overhead(tmp_path):
    written = ill.launch_bound(tmp_path / "ill.sqlite")
    found = triaged(*written.paths, rules=LAUNCHES)
    share = 100 * written.cost / found.time
    assert f"(launch-bound stretches {share:.1f} %" in found.account
    assert ids(triaged(*written.paths, rules=LAUNCHES, settings=("launch_percent=1",))) == {"launch-overhead"}


@pytest.mark.campaign
@pytest.mark.parametrize(("gib", "failures", "severity"), [
    (73, 0, Severity.INFO), (73, 3, Severity.WARNING), (78, 0, Severity.WARNING),
])  # fmt: skip
def test_the_share_of_the_devices_memory_decides_and_allocations_that_fail_make_it_worse(
    tmp_path, gib, failures, severity
):
    (one,) = triaged(*ill.full_memory(tmp_path / "a.sqlite", gib, failures).paths, rules=("device_memory",)).findings
    assert (one.id, one.severity) == ("memory-full", severity)
    share = f"{gib} GiB of 79.18 GiB ({100 * (gib << 30) / 85_014_413_312:.0f} %)"
    told(one, share, f"2 allocations, the largest {gib - 10} GiB")
    assert [row[3] for row in one.evidence.rows] == [(gib - 10) << 30, 10 << 30]


@pytest.mark.campaign
def test_without_the_events_memory_is_not_judged(tmp_path):
    found = triaged(*ill.synchronous_memsets(tmp_path / "none.sqlite").paths, rules=("device_memory",))
    assert found.findings == () and "--cuda-memory-usage=true" in found.not_checked[0].why


@pytest.mark.parametrize("lag", [2, 3, 4, 8])
def test_the_period_of_step_times(lag):
    noise = np.random.default_rng(lag)
    times = np.array([(100 if number % lag else 300) + noise.integers(0, 20) for number in range(80)])
    assert period_of(times) == lag
    assert period_of(noise.permutation(times)) is None
    assert period_of(np.sort(times)) is None
