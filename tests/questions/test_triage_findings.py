"""Findings about start-up and tail, compilers, round trips of data, NCCL and MPI."""

from contextlib import closing

import pytest
from support import open_job
from synthetic import rare_illnesses
from synthetic.illnesses import one_gpu
from synthetic.writing.host import Frame
from synthetic.writing.target import CaptureSession as DemoSession
from triaging import finding, told, triaged

from nsystui.base.selection import Selection
from nsystui.questions.compare import Side
from nsystui.questions.triage.baseline import against
from nsystui.questions.triage.finding import Severity

pytestmark = pytest.mark.campaign

MS = 1_000_000


def late(path, *, recorded=True, before=900):
    """Write 100 ms of kernels from ``before`` ms on; ``poll`` takes 700 ms before them if ``recorded``."""
    with one_gpu(path) as gpu:
        gpu.call("cudaFree_v3020", 0, 10_000)
        if recorded:
            gpu.export.osrt(gpu.main, MS, 701 * MS, "poll")
        for start in range(before * MS, (before + 100) * MS, MS):
            gpu.kernel(start, start + MS, launched=start - 10_000)
    return path


def test_a_long_start_is_a_remark_with_what_the_cpu_did(tmp_path):
    (one,) = triaged(late(tmp_path / "a.sqlite"), rules=("start_and_end",)).findings
    assert (one.id, one.severity, one.cost) == ("start-up", Severity.INFO, pytest.approx(900 * MS, rel=1e-3))
    told(one, "700 ms in OS runtime calls (poll)")


def test_a_short_start_is_not_told(tmp_path):
    assert triaged(late(tmp_path / "a.sqlite", before=10, recorded=False), rules=("start_and_end",)).findings == ()


def test_a_gpu_that_waits_while_another_one_of_its_process_works_is_told_of(tmp_path):
    """GPU 1 begins after 900 ms; GPU 0 works for 600 ms of them, while the CPU waits."""
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


def test_a_longer_start_is_told_with_what_it_was_below_the_threshold(tmp_path):
    short, long = late(tmp_path / "short.sqlite", before=15, recorded=False), late(tmp_path / "long.sqlite")
    with closing(open_job(long)) as job, closing(open_job(short)) as baseline:
        found = against(Side(job, Selection(), "long"), Side(baseline, Selection(), "short"))
    (one,) = [one for one in found.changes if one.finding.id == "start-up"]
    assert one.before is not None
    assert one.before.cost == pytest.approx(15 * MS, rel=1e-3)


COMPILING = ("jit_compilation", "idle_gaps", "start_and_end")


@pytest.mark.parametrize(("library", "process", "name", "advice"), [
    ("/opt/libLLVM-17.so", "", "(LLVM ", "cache"),
    ("/usr/lib/libnvidia-ptxjitcompiler.so.1", "", "(PTX ", "architecture"),
    ("/opt/libtriton.so", "", "(Triton ", "TRITON_CACHE_DIR"),
    ("/opt/cuda/bin/ptxas", "ptxas", "", ""),
])  # fmt: skip
def test_compilers_in_gaps_are_their_cause(tmp_path, library, process, name, advice):
    ill = rare_illnesses.compiling(tmp_path / "a.sqlite", library, "f", process=process)
    found = triaged(*ill.paths, rules=COMPILING)
    one = finding(found, "jit-compilation")
    assert (one.severity, one.cost) == (Severity.WARNING, ill.cost)
    told(one, name, advises=(advice,))
    assert process or finding(found, "idle-gaps").under == "jit-compilation"


@pytest.mark.parametrize(("name", "compiler"), [
    ("Nvrtc::CompileProgram", "NVRTC"), ("inductor", "Inductor"), ("triton_poi_fused_add_0", ""),
    ("inductor::accumulate_grad_", ""), ("Call CompiledFxGraph inductor", ""),
])  # fmt: skip
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


def test_what_compiles_at_the_start_alone_is_a_remark(tmp_path):
    found = triaged(*rare_illnesses.compiling(tmp_path / "a.sqlite", busy=((130, 170),)).paths, rules=COMPILING)
    assert finding(found, "jit-compilation").severity is Severity.INFO


def test_gaps_are_folded_by_their_times_and_not_by_their_cost(tmp_path):
    """Compilers run for 400 ms at the start; ``poll`` causes the later gaps, 380 ms."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        gpu.call("cudaFree_v3020", 0, 10_000)
        gpu.export.on_cpu(gpu.main, MS, 401 * MS, [Frame("main", "/x/app"), Frame("f", "/opt/libLLVM-17.so")])
        for start in range(410 * MS, 1210 * MS, 40 * MS):
            gpu.kernel(start, start + 20 * MS, launched=start - 5_000)
            gpu.export.osrt(gpu.main, start + 20 * MS, start + 39 * MS, "poll")
    found = triaged(tmp_path / "a.sqlite", rules=COMPILING)
    assert finding(found, "jit-compilation").cost == pytest.approx(400 * MS, rel=0.05)
    assert (finding(found, "idle-gaps").under, finding(found, "start-up").under) == ("", "jit-compilation")


def test_every_leading_long_call_of_mpi_sets_a_connection_up_and_ranks_that_wait_alike_are_not_blamed(tmp_path):
    """Two ranks each call four peers, for 60 to 90 ms the first time and then for 0.2 ms, in turns or in a row."""
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
    # 60 + 70 + 80 + 90 ms; the mean of the ranks is 2 ms longer, each minus the usual time of the call.
    told(
        one,
        "Connection setup takes 301.2 ms of this in 8 first calls (MPI_Sendrecv 91 ms, usually 200 µs)",
        advises=("All ranks wait about equally long",),
        never=("longest", "shortest", "Look at what rank"),
    )
    assert one.severity is Severity.INFO
