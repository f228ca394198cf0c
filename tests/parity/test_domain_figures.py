"""Figures of the real exports that were computed outside of this program (docs/contributing.md#reference-data).

|K|, |C|, |M|, |A| and their overlaps are in ``tests/questions/test_utilisation.py``, the steps in ``test_steps.py``,
the tables of ``nsys stats`` as a whole in ``test_stats_parity.py``.
"""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support import native, shared

from nsystui.questions.algebra.intervals import Intervals, merge, union
from nsystui.store import tables
from nsystui.store.session import Session

DDP, H100 = "ddp-a100-rank0of4", "h100-2rank-moe-before"

DURATIONS = {
    DDP: 1837074135, H100: 119443348968, "cuda-graphs": 7862748874, "alcf-allgather-rank0": 265059871,
    "alcf-allgather-rank4": 138899278,
}  # fmt: skip


@pytest.fixture(scope="module")
def ddp(job_of) -> Session:
    return job_of(DDP).session


@pytest.mark.parametrize("name", DURATIONS)
def test_durations(job_of, name: str) -> None:
    (report,) = job_of(name).session.reports
    assert report.metadata.duration == DURATIONS[name]


@pytest.fixture(scope="module")
def busy(ddp: Session) -> Intervals:
    """Kernels and copies of the only device of DDP, merged."""
    parts = []
    kernels, copies = tables.kernels.c, tables.memory_ops.c
    for query in (
        sa.select(kernels.start, kernels.end),
        sa.select(copies.start, copies.end).where(copies.is_memset == 0),
    ):
        for batch in ddp.array_batches(query):
            parts.append(union(batch["start"], batch["end"]))
    return merge(*parts)


def test_kernels_and_copies_of_ddp_are_busy_in_11747_islands_and_no_gap_is_half_a_second(busy: Intervals) -> None:
    """The rule ``gpu_gaps`` of nsys lists gaps of half a second and more: it has no rows."""
    assert (len(busy), busy.length) == (11747, 1757029453)
    assert (busy.starts[1:] - busy.ends[:-1]).max() < 500_000_000


def test_the_kernels_of_ddp_by_the_call_that_launched_them(ddp: Session) -> None:
    calls = tables.api_calls.c
    query = (
        sa.select(calls.versioned_name, calls.is_driver, sa.func.count())
        .select_from(tables.kernels)
        .join(tables.api_calls, sa.and_(*_same_launch()))
        .group_by(calls.versioned_name, calls.is_driver)
    )
    assert ddp.count(tables.kernels) == 22564
    assert {(name, bool(driver)): number for name, driver, number in ddp.rows(query)} == {
        ("cudaLaunchKernel_v7000", False): 20971,
        ("cudaLaunchKernelExC_v11060", False): 1475,
        ("cuLaunchKernel", True): 118,
    }


def _same_launch() -> list[sa.ColumnElement[bool]]:
    return [tables.kernels.c[key] == tables.api_calls.c[key] for key in ("report", "process", "correlation_id")]


def test_launches_are_found_by_process_and_correlation_id(job_of) -> None:
    """By the id alone there would be 4280 of the 4010 kernels."""
    session, (path,) = job_of(H100).session, shared(H100)
    ids = "SELECT correlationId, globalTid & ~0xFFFFFF AS process FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    kernels = "SELECT correlationId, globalPid AS process FROM CUPTI_ACTIVITY_KIND_KERNEL"
    assert native(path, f"SELECT count(*) FROM ({kernels}) k JOIN ({ids}) r USING (correlationId)") == [(4280,)]
    shared_ids = f"SELECT correlationId FROM ({kernels}) GROUP BY 1 HAVING count(DISTINCT process) > 1"
    assert native(path, f"SELECT count(*) FROM ({shared_ids})") == [(78,)]
    found = sa.select(sa.func.count()).select_from(tables.kernels).join(tables.api_calls, sa.and_(*_same_launch()))
    assert int(session.scalar(found)) == 3986
    assert session.count(tables.kernels) == 4010


def test_backtraces_double_no_call(job_of) -> None:
    session = job_of("mpi-cuda-saxpy-schema2.9").session
    assert (session.count(tables.kernels), session.count(tables.api_backtraces)) == (5, 38)


def test_the_longest_copy_to_pageable_memory_of_ddp(ddp: Session) -> None:
    """The first row of the rule ``cuda_memcpy_async``."""
    columns = tables.memory_ops.c
    row = sa.select(columns.start, columns.end - columns.start, columns.source_memory, columns.target_memory).where(
        columns.start == 292612539
    )
    assert [tuple(found) for found in ddp.rows(row)] == [(292612539, 2687, "Device", "Pageable")]
