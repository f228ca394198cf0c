"""Figures of the real exports that were computed outside of this program (docs/contributing.md#reference-data).

|K|, |C|, |M|, |A| and their overlaps are in ``tests/questions/test_utilisation.py``, the steps in ``test_steps.py``,
the tables of ``nsys stats`` as a whole in ``test_stats_parity.py``.
"""

import pytest
import sqlalchemy as sa
from support import native, shared

from nsystui.questions.algebra.intervals import merge, union
from nsystui.store import tables

DDP, H100 = "ddp-a100-rank0of4", "h100-2rank-moe-before"

DURATIONS = {
    DDP: 1837074135, H100: 119443348968, "cuda-graphs": 7862748874, "alcf-allgather-rank0": 265059871,
    "alcf-allgather-rank4": 138899278,
}  # fmt: skip


@pytest.mark.parametrize("name", DURATIONS)
def test_durations(job_of, name):
    (report,) = job_of(name).session.reports
    assert report.metadata.duration == DURATIONS[name]


def test_kernels_and_copies_of_ddp_are_busy_in_11747_islands_and_no_gap_is_half_a_second(job_of):
    """nsys's rule ``gpu_gaps`` lists gaps of half a second and more: none here."""
    parts = []
    kernels, copies = tables.kernels.c, tables.memory_ops.c
    of_copies = sa.select(copies.start, copies.end).where(copies.is_memset == 0)
    for query in (sa.select(kernels.start, kernels.end), of_copies):
        for batch in job_of(DDP).session.array_batches(query):
            parts.append(union(batch["start"], batch["end"]))
    busy = merge(*parts)
    assert (len(busy), busy.length) == (11747, 1757029453)
    assert (busy.starts[1:] - busy.ends[:-1]).max() < 500_000_000


def test_launches_are_found_by_process_and_correlation_id(job_of):
    """By the id alone there would be 4280 of the 4010 kernels."""
    session, (path,) = job_of(H100).session, shared(H100)
    ids = "SELECT correlationId, globalTid & ~0xFFFFFF AS process FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    kernels = "SELECT correlationId, globalPid AS process FROM CUPTI_ACTIVITY_KIND_KERNEL"
    assert native(path, f"SELECT count(*) FROM ({kernels}) k JOIN ({ids}) r USING (correlationId)") == [(4280,)]
    shared_ids = f"SELECT correlationId FROM ({kernels}) GROUP BY 1 HAVING count(DISTINCT process) > 1"
    assert native(path, f"SELECT count(*) FROM ({shared_ids})") == [(78,)]
    same = (tables.kernels.c[key] == tables.api_calls.c[key] for key in ("report", "process", "correlation_id"))
    found = sa.select(sa.func.count()).select_from(tables.kernels).join(tables.api_calls, sa.and_(*same))
    assert int(session.scalar(found)) == 3986
    assert session.count(tables.kernels) == 4010


def test_backtraces_double_no_call(job_of):
    session = job_of("mpi-cuda-saxpy-schema2.9").session
    assert (session.count(tables.kernels), session.count(tables.api_backtraces)) == (5, 38)
