"""Findings about start-up and tail, compilers, data that go to the GPU and back, NCCL and MPI."""

from __future__ import annotations

from contextlib import closing

import campaign
import pytest
from support import session_over
from synthetic import illnesses
from synthetic.demo.model import nccl_kernel
from synthetic.illnesses import one_gpu
from synthetic.writing.host import Frame
from synthetic.writing.target import CaptureSession as DemoSession
from synthetic.writing.writer import DEVICE, PINNED
from triaging import finding, job_of, told, triaged

from nsystui.base.selection import Selection
from nsystui.questions.compare import Side
from nsystui.questions.host.mpi_exchanges import exchanges
from nsystui.questions.triage.baseline import against
from nsystui.questions.triage.finding import Severity

MS = 1_000_000


def late(path, *, recorded=True, before=900, after=0):
    """100 ms of kernels after ``before`` ms, 700 of them in ``poll`` if ``recorded``; ``after`` ms in ``cudaFree``."""
    with one_gpu(path) as gpu:
        gpu.call("cudaFree_v3020", 0, 10_000)
        if recorded:
            gpu.export.osrt(gpu.main, MS, 701 * MS, "poll")
        for start in range(before * MS, (before + 100) * MS, MS):
            gpu.kernel(start, start + MS, launched=start - 10_000)
        if after:
            gpu.call("cudaFree_v3020", (before + 100) * MS, (before + 100 + after) * MS)
    return path


@pytest.mark.parametrize(
    ("name", "written", "cost", "says", "advises"),
    campaign.first(
        2,
        [
            ("start-up", {}, 900, "700 ms in OS runtime calls (poll)", ()),
            ("start-up", {"recorded": False}, 900, "without any record of the CPU", ("-t osrt", "--sample")),
            (
                "tail",
                {"before": 10, "recorded": False, "after": 300},
                300,
                "300 ms in calls that allocate or free memory (cudaFree)",
                (),
            ),
        ],
    ),
)
def test_a_long_start_or_end_is_a_remark_with_what_the_cpu_did(tmp_path, name, written, cost, says, advises):
    (one,) = triaged(late(tmp_path / "a.sqlite", **written), rules=("start_and_end",)).findings
    assert (one.id, one.severity, one.cost) == (name, Severity.INFO, pytest.approx(cost * MS, rel=1e-3))
    told(one, says, advises=advises)


@pytest.mark.campaign
def test_a_short_start_is_not_told(tmp_path):
    path = late(tmp_path / "a.sqlite", before=10, recorded=False)
    assert triaged(path, rules=("start_and_end",)).findings == ()


@pytest.mark.campaign
def test_a_gpu_that_waits_while_another_one_of_its_process_works_is_told_of(tmp_path):
    """GPU 1 begins after 900 ms, of which GPU 0 works for 600 ms, and the CPU waits for it."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        gpu.export.gpu(1)
        gpu.export.cuda_context(gpu.process, 1, 2)
        gpu.export.cuda_device(gpu.process, 1, 1)
        gpu.call("cudaFree_v3020", 0, 10_000)
        gpu.kernel(100 * MS, 700 * MS, launched=99 * MS)
        gpu.call("cudaDeviceSynchronize_v3020", 100 * MS, 700 * MS)
        correlation = gpu.call("cudaLaunchKernel_v7000", 899 * MS, 899 * MS + 2_000)
        gpu.export.kernel(gpu.process, 1, 7, 900 * MS, 1000 * MS, name="work(float*)", correlation_id=correlation)
    found = triaged(tmp_path / "a.sqlite", settings=("start_up_percent=1",), rules=("start_and_end",))
    one = finding(found, "start-up")
    # GPU 0 is idle for 100 ms before its work: 600 of 1000 ms.
    assert one.cost == pytest.approx(500 * MS, rel=1e-3)
    told(one, "For 60 % of that time another GPU of the process works.")


@pytest.mark.campaign
def test_a_longer_start_is_told_with_what_it_was_below_the_threshold(tmp_path):
    short, long = late(tmp_path / "short.sqlite", before=15, recorded=False), late(tmp_path / "long.sqlite")
    with closing(job_of(long)) as job, closing(job_of(short)) as baseline:
        found = against(Side(job, Selection(), "long"), Side(baseline, Selection(), "short"))
    (one,) = [one for one in found.changes if one.finding.id == "start-up"]
    assert one.before is not None
    assert one.before.cost == pytest.approx(15 * MS, rel=1e-3)


COMPILING = ("jit_compilation", "idle_gaps", "start_and_end")


def compiling(path, library, function="f", *, beside_kernels=False, process=None, gaps=10):
    """Ten times 20 ms in which the launching thread runs a function of a library, while the GPU is idle or not.

    In the last ``gaps`` of ten: before those the GPU does nothing.
    """
    with one_gpu(path) as gpu:
        thread = gpu.main
        gpu.call("cudaFree_v3020", 0, 10_000)
        if process is not None:
            thread = gpu.export.thread(gpu.export.process(9_000, process), 9_000, process)
        for number in range(10):
            start = (1 + 40 * number) * MS
            if number >= 10 - gaps:
                gpu.kernel(start, start + 20 * MS, launched=start - 5_000)
            if beside_kernels:
                gpu.kernel(start + 20 * MS, start + 40 * MS, launched=start + 20 * MS - 5_000)
            stack = [Frame("main", "/x/app"), Frame(function, library)]
            gpu.export.on_cpu(thread, start + 20 * MS, start + 39 * MS, stack)
        gpu.kernel(401 * MS, 402 * MS, launched=400 * MS)
    return path


@pytest.mark.parametrize(
    ("library", "function", "process", "name", "advice"),
    campaign.first(
        1,
        [
            ("/opt/libLLVM-17.so", "f", None, "(LLVM ", "cache"),
            ("/usr/lib/libnvidia-ptxjitcompiler.so.1", "f", None, "(PTX ", "architecture"),
            ("/opt/libtriton.so", "f", None, "(Triton ", "TRITON_CACHE_DIR"),
            ("/opt/libnvrtc.so.12", "nvrtcCompileProgram", None, "(NVRTC ", "cache"),
            ("/opt/cuda/bin/ptxas", "f", "ptxas", "", ""),
        ],
    ),
)
def test_compilers_in_gaps_are_their_cause(tmp_path, library, function, process, name, advice):
    found = triaged(compiling(tmp_path / "a.sqlite", library, function, process=process), rules=COMPILING)
    one = finding(found, "jit-compilation")
    assert one.severity is Severity.WARNING
    assert one.cost == pytest.approx(190 * MS, rel=0.05)
    told(one, name, advises=(advice,))
    if process is None:
        assert finding(found, "idle-gaps").under == "jit-compilation"
        assert "compilation" in found.summary


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "compiler"),
    campaign.first(
        1,
        [
            ("Nvrtc::CompileProgram", "NVRTC"),
            ("inductor", "Inductor"),
            ("triton_poi_fused_add_0", ""),
            ("inductor::accumulate_grad_", ""),
            ("Call CompiledFxGraph inductor", ""),
        ],
    ),
)
def test_compilers_are_known_by_their_nvtx_ranges_and_not_by_those_of_what_they_compiled(tmp_path, name, compiler):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for start in gpu.rounds(10, 40 * MS, 20 * MS):
            gpu.export.nvtx_range(gpu.main, start + 20 * MS, start + 39 * MS, name)
    found = triaged(tmp_path / "a.sqlite", rules=("jit_compilation",))
    if compiler:
        one = finding(found, "jit-compilation")
        assert one.cost == pytest.approx(10 * 19 * MS, rel=1e-3)
        told(one, f"({compiler} ", "10 NVTX ranges", never=("samples",))
    else:
        assert [one.rule for one in found.not_checked] == ["jit-compilation"] and not found.findings


@pytest.mark.campaign
def test_what_compiles_at_the_start_alone_is_a_remark(tmp_path):
    found = triaged(compiling(tmp_path / "a.sqlite", "/opt/libLLVM-17.so", gaps=0), rules=COMPILING)
    assert finding(found, "jit-compilation").severity is Severity.INFO


@pytest.mark.campaign
def test_gaps_are_folded_by_their_times_and_not_by_their_cost(tmp_path):
    """Compilers run for 400 ms at the start; the gaps later, 380 ms, are of ``poll``."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        gpu.call("cudaFree_v3020", 0, 10_000)
        gpu.export.on_cpu(gpu.main, MS, 401 * MS, [Frame("main", "/x/app"), Frame("f", "/opt/libLLVM-17.so")])
        for start in range(410 * MS, 1210 * MS, 40 * MS):
            gpu.kernel(start, start + 20 * MS, launched=start - 5_000)
            gpu.export.osrt(gpu.main, start + 20 * MS, start + 39 * MS, "poll")
    found = triaged(tmp_path / "a.sqlite", rules=COMPILING)
    assert finding(found, "jit-compilation").cost == pytest.approx(400 * MS, rel=0.05)
    assert (finding(found, "idle-gaps").under, finding(found, "start-up").under) == ("", "jit-compilation")


@pytest.mark.parametrize(
    ("library", "function", "beside_kernels"),
    [("/opt/libLLVM-17.so", "f", True), ("/opt/libtritonserver.so", "infer", False)],
)
def test_what_compiles_beside_kernels_and_other_code_cost_nothing(tmp_path, library, function, beside_kernels):
    path = compiling(tmp_path / "a.sqlite", library, function, beside_kernels=beside_kernels)
    assert triaged(path, rules=("jit_compilation",)).findings == ()


def trips(path, up, down):
    """Twenty iterations of a kernel of 10 ms, before it copies of so many MiB to the GPU, after it back; 1 ms each."""
    with one_gpu(path) as gpu:
        now = MS
        for _ in range(20):
            for size in up:
                gpu.copy("cudaMemcpyAsync_v3020", now, now + MS, PINNED, size << 20)
                now += MS
            gpu.kernel(now, now + 10 * MS, launched=now - 5_000)
            now += 10 * MS
            for size in down:
                correlation = gpu.call("cudaMemcpyAsync_v3020", now - 5_000, now - 1_000)
                gpu.export.memcpy(
                    gpu.process, 0, 7, now, now + MS, size=size << 20, kind="DtoH",
                    correlation_id=correlation, source=DEVICE, destination=PINNED,
                )  # fmt: skip
                now += MS
    return path


def test_data_that_go_up_and_down_in_each_iteration_are_round_trips(tmp_path):
    one = finding(triaged(trips(tmp_path / "a.sqlite", (4, 8), (4,)), rules=("round_trips",)), "round-trips")
    assert one.cost == 40 * MS
    told(one, "80 MiB each way. The largest group is 20 copies of 4 MiB up and 20 down.", advises=("on the GPU",))


def test_inputs_and_results_of_other_sizes_are_none(tmp_path):
    assert triaged(trips(tmp_path / "a.sqlite", (8,), (2,)), rules=("round_trips",)).findings == ()


def reduced(path, calls, hidden=True, before=0):
    """12 steps with 10 ms of compute, and so many AllReduce that take 5 ms together, beside it or after it.

    Before all steps there are ``before`` AllReduce.
    """
    name, length = nccl_kernel("AllReduce").name, 5 * MS // calls
    with one_gpu(path) as gpu:
        for call in range(before):
            gpu.kernel(call * 5_000, call * 5_000 + 1_000, launched=call * 5_000, name=name)
        for number, start in enumerate(gpu.rounds(12, 16 * MS, 10 * MS)):
            gpu.export.nvtx_range(gpu.main, start - 20_000, start + 15 * MS, f"step {number}")
            for call in range(calls):
                begin = start + (4 if hidden else 10) * MS + call * length
                gpu.kernel(begin, begin + length, launched=start - 5_000, name=name)
    return path


@pytest.mark.campaign
def test_hidden_communication_is_a_remark_with_calls_per_step(tmp_path):
    found = triaged(reduced(tmp_path / "a.sqlite", calls=8))
    one = finding(found, "communication")
    assert (one.severity, one.cost) == (Severity.INFO, 0)
    told(one, "Compute hides 100 % of NCCL time. NCCL runs 60 ms per GPU", "8 AllReduce a step")
    assert found.summary.endswith("Compute hides 100 % of NCCL time.")


@pytest.mark.campaign
def test_calls_of_a_step_are_those_that_are_launched_in_steps_as_in_comparisons(tmp_path):
    path = reduced(tmp_path / "a.sqlite", calls=8, before=60)
    told(finding(triaged(path, rules=("exposed_communication",)), "communication"), ": 8 AllReduce a step")


@pytest.mark.parametrize(("calls", "advice"), [
    pytest.param(1, "smaller buckets", marks=pytest.mark.campaign),
    pytest.param(8, "overlap communication", marks=pytest.mark.campaign),
    pytest.param(250, "more data into one", marks=pytest.mark.campaign),
])  # fmt: skip
def test_the_advice_for_exposed_communication_knows_the_buckets(tmp_path, calls, advice):
    found = triaged(reduced(tmp_path / "a.sqlite", calls, hidden=False), rules=("exposed_communication",))
    one = finding(found, "exposed-communication")
    assert one.cost == pytest.approx(60 * MS, rel=0.01)
    told(one, f"{calls} AllReduce a step", advises=(advice,))


@pytest.mark.campaign
def test_the_first_calls_of_mpi_are_told_apart(tmp_path):
    ill = illnesses.mpi_waits(tmp_path / "ill", set_up=100 * MS)
    one = finding(triaged(*ill.paths, rules=("mpi_waits",)), "mpi-waits")
    assert one.cost == pytest.approx(ill.cost, rel=0.02)
    told(one, "of this in 2 first calls (MPI_Allreduce 10")


@pytest.mark.campaign
def test_every_leading_long_call_of_mpi_sets_a_connection_up_and_ranks_that_wait_alike_are_not_blamed(tmp_path):
    """Each of two ranks meets four peers, for 60 to 90 ms the first time and then for 0.2 ms, by turns or in a row."""
    paths = [tmp_path / f"rank{rank}.sqlite" for rank in range(2)]
    for rank, path in enumerate(paths):
        with one_gpu(path, session=DemoSession(environment={"RANK": str(rank)}), gpu=rank) as gpu:
            gpu.export.mpi_rank(gpu.main, rank)
            gpu.kernel(MS // 2, MS, launched=MS // 2 - 10_000)
            now = MS
            for turn in range(20):
                for peer in (2, 3) if turn < 10 else (4, 5):
                    length = (40 + 10 * peer + rank) * MS if turn in (0, 10) else MS // 5
                    gpu.export.mpi_p2p(gpu.main, now, now + length, "MPI_Sendrecv", peer=peer, size=8)
                    now += length
            gpu.kernel(now, now + MS, launched=now - 10_000)
    one = finding(triaged(*paths, rules=("mpi_waits",)), "mpi-waits")
    # 60 + 70 + 80 + 90 ms; the mean of the ranks is 2 ms longer, each less what the call usually takes.
    told(
        one,
        "Connection setup takes 301.2 ms of this in 8 first calls (MPI_Sendrecv 91 ms, usually 200 µs)",
        advises=("All ranks wait about equally long",),
        never=("longest", "shortest", "Look at what rank"),
    )
    assert one.severity is Severity.INFO


@pytest.mark.campaign
def test_the_pair_of_ranks_whose_exchange_is_slow_is_told_from_those_that_wait_for_it(tmp_path):
    """20 exchanges of 8 MiB a pair: 1.678 GB/s in 5 ms, 8.389 GB/s in 1 ms."""
    paths = illnesses.slow_pair(tmp_path).paths
    one = finding(triaged(*paths, rules=("mpi_waits",)), "mpi-waits")
    told(
        one,
        "Ranks 0 and 3 exchange messages of 8 MiB at 1.678 GB/s, the other pairs at 8.389 GB/s",
        advises=("peer access",),
    )
    rows = list(one.evidence.records())
    assert [(row["rank"], row["exchange"]) for row in rows[:2]] == [(0, 140 * MS), (3, 140 * MS)]
    assert {row["exchange"] for row in rows[2:]} == {60 * MS}
    # What a rank waits for another is no exchange.
    with closing(session_over(*paths)) as session:
        pairs = exchanges(session, Selection())
    assert [(one.count, one.time, one.bytes) for one in pairs if one.time != 20 * MS] == [(20, 100 * MS, 160 << 20)]
    assert len(pairs) == 6
    # By hand: ranks 1 and 2 meet right away in the third turn, and 0 and 3 are late for the first one of the next.
    assert sum(sum(one.waits) for one in pairs) == 19 * 2 * 4 * MS


@pytest.mark.campaign
def test_pairs_that_are_alike_are_not_told(tmp_path):
    paths = illnesses.slow_pair(tmp_path, times=1).paths
    told(finding(triaged(*paths, rules=("mpi_waits",)), "mpi-waits"), never=("exchange messages",))
