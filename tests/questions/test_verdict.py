"""The verdict of a comparison: faster or slower by time, whatever the shares say."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from support import session_over, shared
from synthetic.illnesses import one_gpu
from synthetic.writing.writer import PAGEABLE, PINNED

from nsystui.base.selection import Selection
from nsystui.questions.compare import Side, summary
from nsystui.questions.compare.tables import families
from nsystui.questions.compare.tables import kernels as kernel_table
from nsystui.questions.compare.verdict import ComparedBy, Verdict
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names
from nsystui.questions.triage.baseline import Against, ChangeKind, against
from nsystui.questions.triage.finding import Severity

pytestmark = pytest.mark.campaign

MS = 1_000_000


def side(path: Path, label: str = "") -> Side:
    return Side(OpenJob(session_over(path)), Selection(), label)


def judged(a: Path, b: Path) -> tuple[Verdict, list[str]]:
    first, second = side(a), side(b)
    with closing(first.job), closing(second.job):
        found = summary(first, second)
    assert found.verdict is not None
    return found.verdict, list(found.notes)


def triaged_against(a: Path, b: Path) -> Against:
    first, second = side(a), side(b)
    with closing(first.job), closing(second.job):
        return against(second, first)


def kernels(
    path: Path, count: int, every: int, busy: int, name: str = "work(float*)", memory: int | None = None
) -> Path:
    """Write kernels of ``busy`` ms every ``every`` ms; with ``memory``, a copy of 1 ms from it before each."""
    with one_gpu(path) as gpu:
        for start in range(MS, (1 + count * every) * MS, every * MS):
            if memory is not None:
                gpu.copy("cudaMemcpyAsync_v3020", start - MS + 5_000, start, source=memory)
            gpu.kernel(start, start + busy * MS, launched=start - 10_000, name=name)
    return path


def steps(path: Path, times: Sequence[int], setup: int = 1) -> Path:
    """Write a short kernel, and from ``setup`` on steps of these durations, ms, which begin with a kernel of 10 ms."""
    with one_gpu(path) as gpu:
        start = setup * MS
        gpu.kernel(10_000, MS // 2, launched=1_000, name="setup(float*)")
        for number, time in enumerate(times):
            gpu.export.nvtx_range(gpu.main, start, start + time * MS - 1_000, f"step {number}")
            gpu.kernel(start + 10_000, start + 10 * MS, launched=start + 1_000)
            start += time * MS
    return path


def test_the_same_work_in_a_longer_run_is_slower_although_the_gpu_is_idle_for_less(tmp_path):
    """The GPU is idle for 50 % of 200 ms in A, for 10 % of 2 s in B."""
    a = kernels(tmp_path / "a.sqlite", 10, 20, 10)
    b = kernels(tmp_path / "b.sqlite", 10, 200, 180)
    found, _ = judged(a, b)
    assert (found.basis, found.is_slower) == (ComparedBy.JOB, True)
    assert "10.4 × slower" in found.words and "compute +1.7 s" in found.words
    back, _ = judged(b, a)
    assert back.is_faster and "10.4 × faster" in back.words and "compute -1.7 s" in back.words


def test_steps_are_judged_by_their_mean_and_not_their_median(tmp_path):
    """B's loader has two workers: every other step is fast, which lowers the median and hardly the sum."""
    found, _ = judged(steps(tmp_path / "a.sqlite", [150] * 21), steps(tmp_path / "b.sqlite", [20, 400] * 10 + [20]))
    assert found.basis is ComparedBy.STEP
    assert found.is_slower
    # The last step ends with its last kernel, after 10 ms.
    assert found.a.unit == pytest.approx((20 * 150 + 10) / 21 * MS, rel=1e-3)
    assert found.b.unit == pytest.approx((10 * 420 + 10) / 21 * MS, rel=1e-3)


def test_steps_that_hold_little_of_a_job_do_not_decide_and_are_told(tmp_path):
    """Steps take 58 ms instead of 50, and the time before them 1 s instead of 3."""
    a, b = steps(tmp_path / "a.sqlite", [50] * 10, setup=3_000), steps(tmp_path / "b.sqlite", [58] * 10, setup=1_000)
    found, notes = judged(a, b)
    assert (found.basis, found.is_faster, found.is_no_worse) == (ComparedBy.JOB, True, False)
    assert found.words.startswith("2.2 × faster: the job takes 1.")
    assert "; but a step takes 53" in found.words
    assert notes[0].startswith(f"B is {found.words}")


def test_a_job_that_takes_longer_is_said_so_although_its_steps_are_faster(tmp_path):
    a, b = steps(tmp_path / "a.sqlite", [40] * 10, setup=1), steps(tmp_path / "b.sqlite", [36] * 10, setup=200)
    found = triaged_against(a, b)
    assert found.verdict is not None and (found.verdict.basis, found.verdict.is_faster) == (ComparedBy.STEP, True)
    assert "; but the job takes" in found.words
    assert "Nothing got worse" not in found.headline


def launches(path: Path, grid: int, each: int, name: str = "add(int, float*, float*)") -> Path:
    """Write 20 launches of ``each`` ms with this number of blocks."""
    with one_gpu(path) as gpu:
        for start in range(MS, MS + 20 * each * MS, each * MS):
            correlation = gpu.call("cudaLaunchKernel_v7000", start - 10_000, start - 8_000)
            gpu.export.kernel(
                gpu.process, 0, 7, start, start + each * MS, name=name, correlation_id=correlation, grid=(grid, 1, 1)
            )
    return path


def test_kernels_with_195_313_times_the_threads_do_other_work_and_are_not_slower(tmp_path):
    a, b = launches(tmp_path / "a.sqlite", 1, 10), launches(tmp_path / "b.sqlite", 195_313, 77)
    for pair, many in (((a, b), "195,313 × the threads"), ((b, a), "1/195,313 of the threads")):
        found = triaged_against(*pair)
        assert found.verdict is not None and not (found.verdict.is_slower or found.verdict.is_faster)
        assert found.words.startswith(f"Not comparable in time, a launch of add has {many}: the job takes ")
        assert "Nothing got worse" not in found.headline and not found.has(Severity.WARNING)
    alike, _ = judged(a, launches(tmp_path / "c.sqlite", 8, 77))
    assert alike.is_slower


def exchanging(path: Path, calls: int, count: int = 8, source: int = PAGEABLE) -> Path:
    """Write steps of 20 ms, each with a copy, a kernel and some NCCL kernels, after 100 kernels."""
    with one_gpu(path) as gpu:
        for number in range(100):
            gpu.kernel((10 + number) * 1_000, (10 + number) * 1_000 + 500, launched=number * 1_000 + 100)
        for number in range(count):
            start = MS + number * 20 * MS
            gpu.export.nvtx_range(gpu.main, start, start + 20 * MS - 1_000, f"step {number}")
            gpu.copy("cudaMemcpyAsync_v3020", start + 20_000, start + MS, source=source)
            gpu.kernel(start + MS, start + 10 * MS, launched=start + 30_000)
            for call in range(calls):
                begin = start + (10 + call) * MS
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                gpu.kernel(begin, begin + MS // 2, launched=start + (40 + call) * 1_000, name=name)
    return path


def test_the_first_sentence_names_the_counts_that_changed_most(tmp_path):
    """Counts are per step, whatever the number of steps and of other launches is."""
    a = exchanging(tmp_path / "a.sqlite", 8)
    found = triaged_against(a, exchanging(tmp_path / "b.sqlite", 5, count=10, source=PINNED))
    told = found.words.split("; ")[-1]
    assert told == (
        "pageable share of the bytes copied 100.0 % → 0.0 %, NCCL kernels of a step 8 → 5, kernels of a step 9 → 6."
    )
    found = triaged_against(a, a)
    assert "→" not in found.words


def test_without_steps_the_sums_are_named(tmp_path):
    a = kernels(tmp_path / "a.sqlite", 10, 20, 10, memory=PINNED)
    _, notes = judged(a, kernels(tmp_path / "b.sqlite", 20, 20, 10))
    assert notes[0].endswith("; copies and memsets 10 → 0, kernels launched 10 → 20.")


def test_captures_of_one_length_are_judged_by_the_work_in_them(tmp_path):
    """B runs the same kernel half as often in the same time."""
    found, _ = judged(kernels(tmp_path / "a.sqlite", 40, 20, 10), kernels(tmp_path / "b.sqlite", 20, 40, 10))
    assert (found.basis, found.is_slower) == (ComparedBy.WORK, True)
    assert found.b.unit / found.a.unit == pytest.approx(2, rel=0.05)


def test_other_kernels_are_other_work_and_count_among_what_changed_most(tmp_path):
    a = kernels(tmp_path / "a.sqlite", 10, 20, 10)
    found, notes = judged(a, kernels(tmp_path / "b.sqlite", 20, 5, 2, name="fused(float*)"))
    assert (found.basis, found.is_faster) == (ComparedBy.JOB, True)
    (changed,) = [note for note in notes if note.startswith("kernels that changed most")]
    assert "work -100 ms (gone)" in changed and "fused +40 ms (new)" in changed


def test_a_family_of_other_kernels_changed_by_what_its_total_did(tmp_path):
    """B has 4 launches of 10 ms instead of 10, and 200 of 10 µs: a mean of all would add 1,048 ms to longer calls."""
    paths = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    large, small = (f"void at::native::vectorized_elementwise_kernel<4, {one}>(int)" for one in ("Mul", "Add"))
    for path, count, more in zip(paths, (10, 4), (0, 200), strict=True):
        with one_gpu(path) as gpu:
            for start in range(MS, MS + 20 * MS * count, 20 * MS):
                gpu.kernel(start, start + 10 * MS, launched=start - 10_000, name=large)
            for start in range(500 * MS, 500 * MS + more * 20_000, 20_000):
                gpu.kernel(start, start + 10_000, launched=start - 10_000, name=small)
    a, b = map(side, paths)
    with closing(a.job), closing(b.job):
        found = summary(a, b)
        rows = {str(table): table.records()[0] for table in (families(a, b), kernel_table(a, b, Names.SHORT))}.values()
    (note,) = [note for note in found.notes if note.startswith("kernel families that changed most")]
    assert note.endswith(": elementwise -58 ms from 100 ms")
    for row in rows:
        assert (row["difference"], row["by_count"], row["by_duration"]) == (-58 * MS, -58 * MS, 0)
    parts = {str(row["what"]).strip(): row["difference"] for row in found.records()}
    assert parts["more calls"] == -60 * MS
    assert (parts["new and gone kernels"], parts["longer calls"]) == (2 * MS, 0)
    assert not any("in duration" in one for one in found.notes)


def test_a_slower_job_fails_on_warnings_without_any_finding(tmp_path):
    found = triaged_against(kernels(tmp_path / "a.sqlite", 20, 20, 19), kernels(tmp_path / "b.sqlite", 20, 200, 199))
    assert not any(one.kind.is_worse and one.finding.severity is not Severity.INFO for one in found.listed)
    assert found.has(Severity.WARNING) and not found.has(Severity.ERROR)


def test_a_faster_job_passes_although_a_gap_has_a_larger_share_of_it(tmp_path):
    found = triaged_against(kernels(tmp_path / "a.sqlite", 20, 200, 190), kernels(tmp_path / "b.sqlite", 20, 20, 10))
    assert found.verdict is not None and found.verdict.is_faster
    assert {one.finding.id: one.kind for one in found.listed}["idle-gaps"] is not ChangeKind.WORSE
    assert not found.has(Severity.WARNING)


PAIRS = {
    ("gemm-pageable", "gemm-pinned"): 25.08 / 2.627,
    ("ai-training-before", "ai-training-after"): 18.13 / 15.31,
    ("h100-2rank-moe-before", "h100-2rank-moe-after"): 1.13,
}
"""Ratios of time, B to A: of the job; of the job, whose steps cover 37 % of it; for 60 kernels instead of 68."""


@pytest.mark.parametrize("names", PAIRS)
def test_the_verdicts_on_real_pairs_have_the_right_sign_from_either_side(names):
    a, b = shared(*names)
    for pair, ratio in (((a, b), PAIRS[names]), ((b, a), 1 / PAIRS[names])):
        found, _ = judged(*pair)
        assert found.b.unit / found.a.unit == pytest.approx(ratio, rel=0.01)
        assert (found.is_slower, found.is_faster) == (ratio > 1, ratio < 1)
