"""The verdict of a comparison: faster or slower by time, whatever the shares say."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from support import session_over, shared
from synthetic.illnesses import one_gpu

from nsystui.base.selection import Selection
from nsystui.exports.writing.writer import PAGEABLE, PINNED
from nsystui.questions.compare import Side, summary
from nsystui.questions.compare.verdict import By, Verdict
from nsystui.questions.job import Job
from nsystui.questions.triage.baseline import Against, Kind, against
from nsystui.questions.triage.finding import Severity

MS = 1_000_000


def side(path: Path, label: str = "") -> Side:
    return Side(Job(session_over(path)), Selection(), label)


def judged(a: Path, b: Path) -> tuple[Verdict, list[str]]:
    """The verdict on B, and the summary's notes."""
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
    """Kernels of so many ms, one ``every`` so many; with ``memory`` a copy of 1 ms from it before each."""
    with one_gpu(path) as gpu:
        for start in range(MS, (1 + count * every) * MS, every * MS):
            if memory is not None:
                gpu.copy("cudaMemcpyAsync_v3020", start - MS + 5_000, start, source=memory)
            gpu.kernel(start, start + busy * MS, launched=start - 10_000, name=name)
    return path


def steps(path: Path, times: Sequence[int], setup: int = 1) -> Path:
    """A kernel of 1 ms, and from ``setup`` on steps of so many ms, each with a kernel of 10 ms at its start."""
    with one_gpu(path) as gpu:
        start = setup * MS
        gpu.kernel(10_000, MS // 2, launched=1_000, name="setup(float*)")
        for number, time in enumerate(times):
            gpu.export.nvtx_range(gpu.main, start, start + time * MS - 1_000, f"step {number}")
            gpu.kernel(start + 10_000, start + 10 * MS, launched=start + 1_000)
            start += time * MS
    return path


@pytest.mark.campaign
def test_the_same_work_in_a_longer_run_is_slower_although_the_gpu_is_idle_for_less(tmp_path):
    """The GPU is idle for 50 % of 200 ms in A, for 10 % of 2 s in B."""
    a = kernels(tmp_path / "a.sqlite", 10, 20, 10)
    b = kernels(tmp_path / "b.sqlite", 10, 200, 180)
    found, _ = judged(a, b)
    assert (found.basis, found.is_slower) == (By.JOB, True)
    assert "× slower" in found.words and "compute +1.7 s" in found.words
    back, _ = judged(b, a)
    assert back.is_faster and "× faster" in back.words and "compute -1.7 s" in back.words


def test_steps_are_judged_by_their_mean_and_not_their_median(tmp_path):
    """B's loader has two workers: every other step is fast, the median the fast one, the sum hardly less."""
    a = steps(tmp_path / "a.sqlite", [150] * 21)
    found, _ = judged(a, steps(tmp_path / "b.sqlite", [20, 400] * 10 + [20]))
    assert found.basis is By.STEP
    assert found.is_slower
    # The last step ends with its last kernel, of which the demo's step has 10 ms.
    assert found.a.unit == pytest.approx((20 * 150 + 10) / 21 * MS, rel=1e-3)
    assert found.b.unit == pytest.approx((10 * 420 + 10) / 21 * MS, rel=1e-3)


def test_a_job_that_takes_longer_is_said_so_although_its_steps_are_faster(tmp_path):
    a, b = steps(tmp_path / "a.sqlite", [40] * 10), steps(tmp_path / "b.sqlite", [20] * 10, setup=5_000)
    found, notes = judged(a, b)
    assert found.is_faster
    assert "but the job takes 5." in found.words and "start-up +" in found.words
    assert notes[0] == f"B is {found.words}"


@pytest.mark.campaign
def test_captures_of_one_length_are_judged_by_the_work_in_them(tmp_path):
    """B runs the same kernel half as often in the same time."""
    found, _ = judged(kernels(tmp_path / "a.sqlite", 40, 20, 10), kernels(tmp_path / "b.sqlite", 20, 40, 10))
    assert (found.basis, found.is_slower) == (By.WORK, True)
    assert found.b.unit / found.a.unit == pytest.approx(2, rel=0.05)


@pytest.mark.campaign
def test_other_kernels_are_other_work_and_count_among_what_changed_most(tmp_path):
    a = kernels(tmp_path / "a.sqlite", 10, 20, 10)
    found, notes = judged(a, kernels(tmp_path / "b.sqlite", 20, 5, 2, name="fused(float*)"))
    assert (found.basis, found.is_faster) == (By.JOB, True)
    (changed,) = [note for note in notes if note.startswith("kernels that changed most")]
    assert "work -100 ms (gone)" in changed and "fused +40 ms (new)" in changed


def test_pageable_and_pinned_memory_are_a_fact(tmp_path):
    a = side(kernels(tmp_path / "a.sqlite", 5, 20, 10, memory=PAGEABLE))
    b = side(kernels(tmp_path / "b.sqlite", 5, 20, 10, memory=PINNED))
    with closing(a.job), closing(b.job):
        facts = {str(row["what"]).strip(): (row["a"], row["b"]) for row in summary(a, b).records()}
    assert facts["pageable, of bytes copied"] == (100.0, 0.0)


def test_a_slower_job_fails_on_warnings_without_any_finding(tmp_path):
    a = kernels(tmp_path / "a.sqlite", 20, 20, 19)
    found = triaged_against(a, kernels(tmp_path / "b.sqlite", 20, 200, 199))
    assert not any(one.kind.is_worse and one.finding.severity is not Severity.INFO for one in found.told)
    assert found.has(Severity.WARNING) and not found.has(Severity.ERROR)


def test_a_faster_job_passes_although_a_gap_has_a_larger_share_of_it(tmp_path):
    a = kernels(tmp_path / "a.sqlite", 20, 200, 190)
    found = triaged_against(a, kernels(tmp_path / "b.sqlite", 20, 20, 10))
    assert found.verdict is not None and found.verdict.is_faster
    assert {one.finding.id: one.kind for one in found.told}["idle-gaps"] is not Kind.WORSE
    assert not found.has(Severity.WARNING)


PAIRS = {
    ("gemm-pageable", "gemm-pinned"): 25.08 / 2.627,
    ("ai-training-before", "ai-training-after"): 115.1 / 151.4,
    ("h100-2rank-moe-before", "h100-2rank-moe-after"): 1.13,
}
"""How many times as long the second takes: the job; the mean of 59 steps (8.93 s, 6.79 s); for 60 kernels, not 68."""


@pytest.mark.parametrize(
    "names", [pytest.param(pair, marks=() if "gemm-pinned" in pair else pytest.mark.campaign) for pair in PAIRS]
)
def test_the_verdicts_on_real_pairs_have_the_right_sign_from_either_side(names):
    a, b = shared(*names)
    for pair, ratio in (((a, b), PAIRS[names]), ((b, a), 1 / PAIRS[names])):
        found, _ = judged(*pair)
        assert found.b.unit / found.a.unit == pytest.approx(ratio, rel=0.01)
        assert (found.is_slower, found.is_faster) == (ratio > 1, ratio < 1)
