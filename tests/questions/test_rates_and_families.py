"""Rates of copies, families over time, the profiler's own work, API calls per step, against separate counts."""

from collections import defaultdict
from contextlib import closing
from statistics import median

import pytest
from support import native, session_over, shared

from nsystui.base.kernel_families import family_of
from nsystui.base.selection import Selection, Window
from nsystui.questions.compare.side import Side
from nsystui.questions.compare.tables import api
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import OVERHEAD, work_summary
from nsystui.questions.kernels.families import with_union_times
from nsystui.questions.kernels.summary import GroupBy, kernel_summary
from nsystui.questions.memory.host_copies import memory_rates

EVERYTHING = Selection()
DDP, FIXED = "ddp-a100-rank0of4", "ddp-a100-nobroadcast-rank0of4"
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"


def test_rates_are_those_of_the_single_copies():
    path = shared(DDP)[0]
    copies = native(path, f'SELECT "end" - start, bytes FROM {_ACTIVITY}MEMCPY WHERE copyKind = 1')
    (found,) = [row for row in memory_rates(session_over(path), EVERYTHING).records() if "Host-to-D" in row["name"]]
    rates = [1e9 * size / time for time, size in copies]
    assert (found["source"], found["target"], found["count"]) == ("Pinned", "Device", len(copies))
    assert found["median"] == pytest.approx(median(rates))
    assert (found["min"], found["max"]) == pytest.approx((min(rates), max(rates)))
    whole = 1e9 * sum(size for _, size in copies) / sum(time for time, _ in copies)
    assert found["rate"] == pytest.approx(whole)
    assert found["of_link"] == pytest.approx(100 * whole / 26e9)  # A100: PCIe 4, about 26 GB/s
    of_gpu = [row["of_link"] for row in memory_rates(session_over(path), EVERYTHING).records() if not row["source"]]
    assert of_gpu == [None]  # a memset uses no link


def _swept(spans: list[tuple[int, int, str]]) -> tuple[dict[str, int], dict[str, int]]:
    """Return by family how long any of its kernels ran, and how long no other family's did."""
    edges = sorted([(start, 1, of) for start, _, of in spans] + [(end, -1, of) for _, end, of in spans])
    running: dict[str, int] = defaultdict(int)
    any_of, alone = defaultdict(int), defaultdict(int)
    last = edges[0][0]
    for moment, change, of in edges:
        now = [family for family, count in running.items() if count]
        for family in now:
            any_of[family] += moment - last
        if len(now) == 1:
            alone[now[0]] += moment - last
        running[of] += change
        last = moment
    return any_of, alone


def test_copies_are_busy_while_any_of_them_runs_within_the_selected_time():
    path = shared(DDP)[0]
    spans = native(path, f'SELECT start, "end" FROM {_ACTIVITY}MEMCPY WHERE copyKind = 1')
    low, high = sorted(start for start, _ in spans)[10] + 1, max(end for _, end in spans) - 1
    session = session_over(path)
    offset = session.reports[0].clock_offset
    clipped = [(max(start, low), min(end, high), "") for start, end in spans if start < high and end > low]
    expected = 100 * _swept(clipped)[0][""] / (high - low)
    window = EVERYTHING.with_window(Window(low + offset, high + offset))
    (found,) = [row["busy"] for row in memory_rates(session, window).records() if "Host-to-D" in str(row["name"])]
    assert found == pytest.approx(expected) and 0 < expected < 100


def test_families_have_the_time_of_a_sweep_over_all_kernels(demo_session):
    spans = defaultdict(list)
    for (_, place), kernels in _kernels_of(demo_session).items():
        spans[place] += kernels
    any_of, alone = defaultdict(int), defaultdict(int)
    for of_gpu in spans.values():
        for sums, own in zip((any_of, alone), _swept(of_gpu), strict=True):
            for family, time in own.items():
                sums[family] += time
    answer = kernel_summary(demo_session, EVERYTHING, group_by=(GroupBy.FAMILY,))
    found = with_union_times(answer, demo_session, EVERYTHING, ()).records()
    assert {row["family"]: row["union"] for row in found} == any_of
    assert {row["family"]: row["alone"] for row in found if row["alone"]} == alone
    assert any(row["alone"] < row["union"] for row in found)


def _kernels_of(session):
    import sqlalchemy as sa

    from nsystui.store import tables

    columns = tables.kernels.c
    found = defaultdict(list)
    query = sa.select(columns.report, columns.process, columns.device, columns.start, columns.end, columns.name)
    for report, process, device, start, end, name in session.rows(query):
        found[report, (report, process, device)].append((start, end, family_of(name)))
    return found


def test_large_kernels_without_a_family_are_named():
    session = session_over(*shared("mig-slice"))
    answer = kernel_summary(session, EVERYTHING, group_by=(GroupBy.FAMILY,))
    note = with_union_times(answer, session, EVERYTHING, ()).notes[-1]
    assert note.startswith("without a family") and note.endswith(": nussinov_gpu (100.0 %)")


def test_the_work_of_the_profiler_is_told_by_activity():
    path = shared(DDP)[0]
    rows = native(
        path, 'SELECT s.value, sum("end" - start) FROM PROFILER_OVERHEAD JOIN StringIds s ON s.id = nameId GROUP BY 1'
    )
    found = work_summary(session_over(path), EVERYTHING, OVERHEAD).records()
    assert {row["name"]: row["total"] for row in found} == dict(rows)


def test_calls_are_compared_per_step_of_those_between_the_first_step_and_the_last():
    paths = [shared(name)[0] for name in (DDP, FIXED)]
    with closing(OpenJob(session_over(paths[0]))) as a, closing(OpenJob(session_over(paths[1]))) as b:
        found = {row["name"]: row for row in api(Side(a, EVERYTHING, "A"), Side(b, EVERYTHING, "B")).records()}
    for letter, path in zip("ab", paths, strict=True):
        steps = native(path, "SELECT start, \"end\" FROM NVTX_EVENTS WHERE text LIKE 'step %' ORDER BY start")
        low, high = steps[0][0], steps[-1][1]
        counts = dict(
            native(
                path,
                f"SELECT s.value, count(*) FROM {_ACTIVITY}RUNTIME JOIN StringIds s ON s.id = nameId "
                f'WHERE start < {high} AND "end" > {low} GROUP BY 1',
            )
        )
        name = "cudaMemcpyAsync_v3020"
        own = next(row for key, row in found.items() if key.startswith("cudaMemcpyAsync"))
        assert own[f"count_{letter}"] == pytest.approx(counts[name] / len(steps))
