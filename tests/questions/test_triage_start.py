"""Findings about start-up and tail, compilers, and data that go to the GPU and back."""

from __future__ import annotations

from contextlib import closing

import pytest
from support import shared
from synthetic import ExportWriter
from synthetic.illnesses import OneGpu
from triaging import finding, job_of, triaged

from nsystui.base.selection import Selection
from nsystui.exports.writing.host import Frame
from nsystui.exports.writing.writer import DEVICE, PINNED
from nsystui.questions.compare import Side
from nsystui.questions.triage.baseline import against
from nsystui.questions.triage.finding import Severity

MS = 1_000_000


def late(path, *, recorded=True, before=900, after=0):
    """100 ms of kernels after ``before`` ms, 700 of them in ``poll`` if ``recorded``; ``after`` ms in ``cudaFree``."""
    with ExportWriter(path, "3.25.0") as export:
        gpu = OneGpu(export)
        gpu.call("cudaFree_v3020", 0, 10_000)
        if recorded:
            export.osrt(gpu.main, MS, 701 * MS, "poll")
        for number in range(100):
            start = (before + number) * MS
            gpu.kernel(start, start + MS, launched=start - 10_000)
        if after:
            gpu.call("cudaFree_v3020", (before + 100) * MS, (before + 100 + after) * MS)
    return path


def test_a_long_start_is_a_remark_with_what_the_cpu_did(tmp_path):
    one = finding(triaged(late(tmp_path / "a.sqlite")), "start-up")
    assert one.severity is Severity.INFO
    assert one.cost == pytest.approx(900 * MS, rel=1e-3)
    assert "700 ms in OS runtime calls (poll)" in one.sentence


def test_a_start_of_which_nothing_is_recorded_says_what_to_record(tmp_path):
    one = finding(triaged(late(tmp_path / "a.sqlite", recorded=False)), "start-up")
    assert "in which nothing is recorded of the CPU" in one.sentence
    assert "-t osrt" in one.advice.text and "--sample" in one.advice.text


def test_a_long_end_is_told_likewise(tmp_path):
    one = finding(triaged(late(tmp_path / "a.sqlite", before=10, recorded=False, after=300)), "tail")
    assert one.cost == pytest.approx(300 * MS, rel=1e-3)
    assert "300 ms in calls that allocate or free memory (cudaFree)" in one.sentence


def test_a_short_start_is_not_told(tmp_path):
    found = triaged(late(tmp_path / "a.sqlite", before=10, recorded=False))
    assert not {"start-up", "tail"} & {one.id for one in found.findings}


def test_a_gpu_that_waits_while_another_one_of_its_process_works_is_told_of(tmp_path):
    """GPU 1 begins after 900 ms, of which GPU 0 works for 600 ms, and the CPU waits for it."""
    with ExportWriter(tmp_path / "a.sqlite", "3.25.0") as export:
        gpu = OneGpu(export)
        export.gpu(1)
        export.cuda_context(gpu.process, 1, 2)
        export.cuda_device(gpu.process, 1, 1)
        gpu.call("cudaFree_v3020", 0, 10_000)
        gpu.kernel(100 * MS, 700 * MS, launched=99 * MS)
        gpu.call("cudaDeviceSynchronize_v3020", 100 * MS, 700 * MS)
        correlation = gpu.call("cudaLaunchKernel_v7000", 899 * MS, 899 * MS + 2_000)
        export.kernel(gpu.process, 1, 7, 900 * MS, 1000 * MS, name="work(float*)", correlation_id=correlation)
    one = finding(triaged(tmp_path / "a.sqlite", settings=("start_up_percent=1",)), "start-up")
    # GPU 0 is idle for 100 ms before its work: 600 of 1000 ms.
    assert one.cost == pytest.approx(500 * MS, rel=1e-3)
    assert "for 60 % of that while another GPU of the process works" in one.sentence


def test_a_longer_start_is_told_with_what_it_was_below_the_threshold(tmp_path):
    short, long = late(tmp_path / "short.sqlite", before=15, recorded=False), late(tmp_path / "long.sqlite")
    with closing(job_of(long)) as job, closing(job_of(short)) as baseline:
        found = against(Side(job, Selection(), "long"), Side(baseline, Selection(), "short"))
    (one,) = [one for one in found.changes if one.finding.id == "start-up"]
    assert one.before is not None
    assert one.before.cost == pytest.approx(15 * MS, rel=1e-3)


def test_what_is_paid_once_stands_behind_what_can_be_mended():
    (path,) = shared("jacobi-staged-copies")
    ids = [one.id for one in triaged(path).findings if not one.under]
    assert ids.index("staged-peer-copies") < 3
    assert ids.index("start-up") > ids.index("staged-peer-copies")


def test_the_start_of_a_real_run_with_nothing_recorded():
    """25.08 s, of which kernel and copies take 0.49 s, and ``cudaMallocHost`` 7.73 s; nothing else is recorded."""
    (path,) = shared("gemm-pinned")
    one = finding(triaged(path), "start-up")
    assert "16.84 s in which nothing is recorded of the CPU" in one.sentence
    assert "7.718 s in calls that allocate or free memory (cudaMallocHost)" in one.sentence


def compiling(path, library, function="f", *, beside_kernels=False, process=None, gaps=10):
    """Ten times 20 ms in which the launching thread runs a function of a library, while the GPU is idle or not.

    In the last ``gaps`` of ten: before those the GPU does nothing.
    """
    with ExportWriter(path, "3.25.0") as export:
        gpu = OneGpu(export)
        thread = gpu.main
        gpu.call("cudaFree_v3020", 0, 10_000)
        if process is not None:
            thread = export.thread(export.process(9_000, process), 9_000, process)
        for number in range(10):
            start = (1 + 40 * number) * MS
            if number >= 10 - gaps:
                gpu.kernel(start, start + 20 * MS, launched=start - 5_000)
            if beside_kernels:
                gpu.kernel(start + 20 * MS, start + 40 * MS, launched=start + 20 * MS - 5_000)
            export.on_cpu(thread, start + 20 * MS, start + 39 * MS, [Frame("main", "/x/app"), Frame(function, library)])
        gpu.kernel(401 * MS, 402 * MS, launched=400 * MS)
    return path


@pytest.mark.parametrize(
    ("library", "function", "name", "advice"),
    [
        ("/usr/lib/libnvidia-ptxjitcompiler.so.1", "f", "PTX", "architecture"),
        ("/opt/libLLVM-17.so", "f", "LLVM", "cache"),
        ("/opt/libtriton.so", "f", "Triton", "TRITON_CACHE_DIR"),
        ("/opt/libnvrtc.so.12", "nvrtcCompileProgram", "NVRTC", "cache"),
    ],
)
def test_compilers_in_gaps_are_their_cause(tmp_path, library, function, name, advice):
    found = triaged(compiling(tmp_path / "a.sqlite", library, function))
    one = finding(found, "jit-compilation")
    assert one.cost == pytest.approx(190 * MS, rel=0.05)
    assert f"({name} " in one.sentence and advice in one.advice.text
    assert finding(found, "idle-gaps").under == "jit-compilation"
    assert "compilation" in found.summary


def test_a_compiler_that_is_a_process_of_its_own_counts(tmp_path):
    found = triaged(compiling(tmp_path / "a.sqlite", "/opt/cuda/bin/ptxas", process="ptxas"))
    assert finding(found, "jit-compilation").cost == pytest.approx(190 * MS, rel=0.05)


def test_what_compiles_at_the_start_alone_is_a_remark(tmp_path):
    found = triaged(compiling(tmp_path / "a.sqlite", "/opt/libLLVM-17.so", gaps=0))
    assert finding(found, "jit-compilation").severity is Severity.INFO
    assert finding(triaged(compiling(tmp_path / "b.sqlite", "/opt/libLLVM-17.so")), "jit-compilation").severity is (
        Severity.WARNING
    )


def test_gaps_are_folded_by_their_times_and_not_by_their_cost(tmp_path):
    """Compilers run for 400 ms at the start; the gaps later, 380 ms, are of ``poll``."""
    path = tmp_path / "a.sqlite"
    with ExportWriter(path, "3.25.0") as export:
        gpu = OneGpu(export)
        gpu.call("cudaFree_v3020", 0, 10_000)
        export.on_cpu(gpu.main, MS, 401 * MS, [Frame("main", "/x/app"), Frame("f", "/opt/libLLVM-17.so")])
        for number in range(20):
            start = (410 + 40 * number) * MS
            gpu.kernel(start, start + 20 * MS, launched=start - 5_000)
            export.osrt(gpu.main, start + 20 * MS, start + 39 * MS, "poll")
    found = triaged(path)
    assert finding(found, "jit-compilation").cost == pytest.approx(400 * MS, rel=0.05)
    assert finding(found, "idle-gaps").under == ""
    assert finding(found, "start-up").under == "jit-compilation"


def test_what_compiles_beside_kernels_costs_nothing(tmp_path):
    found = triaged(compiling(tmp_path / "a.sqlite", "/opt/libLLVM-17.so", beside_kernels=True))
    assert "jit-compilation" not in {one.id for one in found.findings}


def test_other_code_compiles_nothing(tmp_path):
    found = triaged(compiling(tmp_path / "a.sqlite", "/opt/libtritonserver.so", "infer"))
    assert "jit-compilation" not in {one.id for one in found.findings}


def trips(path, up=(4,), down=(4,)):
    """Twenty iterations of a kernel of 10 ms, before it copies of so many MiB to the GPU, after it back; 1 ms each."""
    with ExportWriter(path, "3.25.0") as export:
        gpu, now = OneGpu(export), MS
        for _ in range(20):
            for size in up:
                gpu.copy("cudaMemcpyAsync_v3020", now, now + MS, PINNED, size << 20)
                now += MS
            gpu.kernel(now, now + 10 * MS, launched=now - 5_000)
            now += 10 * MS
            for size in down:
                correlation = gpu.call("cudaMemcpyAsync_v3020", now - 5_000, now - 1_000)
                export.memcpy(
                    gpu.process, 0, 7, now, now + MS, size=size << 20, kind="DtoH",
                    correlation_id=correlation, source=DEVICE, destination=PINNED,
                )  # fmt: skip
                now += MS
    return path


def test_data_that_go_up_and_down_in_each_iteration_are_round_trips(tmp_path):
    one = finding(triaged(trips(tmp_path / "a.sqlite", up=(4, 8), down=(4,))), "round-trips")
    assert one.cost == 40 * MS
    assert "80 MiB each way (20 copies of 4 MiB up and 20 down)" in one.sentence
    assert "keep on the GPU" in one.advice.text


def test_inputs_and_results_of_other_sizes_are_none(tmp_path):
    found = triaged(trips(tmp_path / "a.sqlite", up=(8,), down=(2,)))
    assert "round-trips" not in {one.id for one in found.findings}
