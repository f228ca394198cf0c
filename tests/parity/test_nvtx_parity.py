"""Nesting and projection of the NVTX tree against what NVIDIA's own ``nsys stats`` printed for the same files."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support import session_over

from nsystui.base.selection import Selection
from nsystui.questions.nvtx.listing import kernels_of
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.nvtx.tree import NvtxTree
from nsystui.questions.tasks import ranked_tasks
from nsystui.store.session import Session

SHARED = Path(__file__).parents[3] / "shared/data"
REFERENCE = SHARED / "nsys-stats"

pytestmark = pytest.mark.skipif(not REFERENCE.is_dir(), reason="NVIDIA's reference tables are not on this machine")


def exports_with(report: str) -> list[str]:
    return sorted(table.parent.name for table in REFERENCE.glob(f"*/{report}.csv")) or [""]


def table(export: str, report: str) -> list[dict[str, str]]:
    with (REFERENCE / export / f"{report}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def session_of() -> Iterator[Callable[[str], Session]]:
    opened: dict[str, Session] = {}

    def open_once(export: str) -> Session:
        if export not in opened:
            opened[export] = session_over(SHARED / "exports" / f"{export}.sqlite")
        return opened[export]

    yield open_once
    for session in opened.values():
        session.close()


@pytest.mark.parametrize("export", exports_with("nvtx_gpu_proj_sum"))
def test_projected_totals_are_those_of_nvtx_gpu_proj_sum(session_of, export):
    ranges = NvtxRanges.load(session_of(export), Selection())
    launching = np.flatnonzero(ranges.op_count > 0).tolist()
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, name in zip(launching, ranges.full_names(launching), strict=True):
        groups[name, "PushPop" if ranges.is_push_pop[index] else "StartEnd"].append(index)
    found = {key: _projection_row(ranges, np.array(indices)) for key, indices in groups.items()}
    expected = {
        (row["Range"], row["Style"]): (
            int(row["Total Proj Time (ns)"]),
            int(row["Total Range Time (ns)"]),
            int(row["Range Instances"]),
            row["Proj Med (ns)"],
            int(row["Proj Min (ns)"]),
            int(row["Proj Max (ns)"]),
            int(row["Total GPU Ops"]),
            row["Avg Range Lvl"],
        )
        for row in table(export, "nvtx_gpu_proj_sum")
    }
    assert found == expected


def _projection_row(ranges: NvtxRanges, indices: np.ndarray) -> tuple[object, ...]:
    projected = ranges.gpu_duration[indices]
    return (
        int(projected.sum()),
        int(ranges.duration[indices].sum()),
        len(indices),
        f"{np.median(projected):.1f}",
        int(projected.min()),
        int(projected.max()),
        int(ranges.op_count[indices].sum()),
        f"{ranges.level[indices].mean():.1f}",
    )


@pytest.mark.parametrize("export", exports_with("nvtx_gpu_proj_trace"))
def test_every_projected_range_is_that_of_nvtx_gpu_proj_trace(session_of, export):
    ranges = NvtxRanges.load(session_of(export), Selection())
    launching = np.flatnonzero(ranges.op_count > 0)
    found = {
        int(ranges.row[index]): (
            int(ranges.gpu_start[index]),
            int(ranges.gpu_duration[index]),
            int(ranges.op_count[index]),
            int(ranges.level[index]),
            "" if ranges.parent[index] < 0 else str(ranges.row[ranges.parent[index]]),
        )
        for index in launching.tolist()
    }
    expected = {
        int(row["RangeId"]): (
            int(row["Projected Start (ns)"]),
            int(row["Projected Duration (ns)"]),
            int(row["NumGPUOps"]),
            int(row["Lvl"]),
            row["ParentId"],
        )
        for row in table(export, "nvtx_gpu_proj_trace")
        if row["RangeId"]  # nsys 2023.4 prints a nameless row for the operations that no range launched
    }
    assert found == expected


@pytest.mark.parametrize("export", exports_with("nvtx_pushpop_trace"))
def test_levels_and_self_times_are_those_of_nvtx_pushpop_trace(session_of, export):
    ranges = NvtxRanges.load(session_of(export), Selection())
    columns = (ranges.row, ranges.duration, ranges.self_time, ranges.level)
    found = sorted(zip(*(column.tolist() for column in columns), strict=True))
    expected = sorted(
        (int(row["RangeId"]), int(row["Duration (ns)"]), int(row["DurNonChild (ns)"]), int(row["Lvl"]))
        for row in table(export, "nvtx_pushpop_trace")
    )
    assert found == expected


@pytest.mark.parametrize("export", exports_with("nvtx_gpu_proj_sum"))
def test_the_gpu_work_of_a_range_is_what_its_projection_spans(session_of, export):
    session = session_of(export)
    ranks = ranked_tasks(session)
    ranges = NvtxRanges.load(session, Selection(), ranks)
    longest = np.argsort(-ranges.gpu_duration, kind="stable")[:5]
    for index in longest[ranges.op_count[longest] > 0].tolist():
        work = kernels_of(ranges, index, ranks)
        rows = work.page(0, len(work))
        correlated = [column.key for column in work.columns].index("correlation_id")
        assert len({row[correlated] for row in rows}) == ranges.op_count[index]
        assert rows[0][0] == ranges.gpu_start[index]
        assert max(row[0] + row[1] for row in rows) == ranges.gpu_end[index]
        assert sum(row[1] for row in rows) == ranges.op_time[index]


@pytest.mark.parametrize("export", exports_with("nvtx_gpu_proj_sum"))
@pytest.mark.parametrize("fold_numbers", [True, False])
def test_the_tree_adds_up_to_its_ranges(session_of, export, fold_numbers):
    session = session_of(export)
    ranges = NvtxRanges.load(session, Selection(), ranked_tasks(session))
    tree = NvtxTree.build(ranges, fold_numbers=fold_numbers)
    nodes = [tree.node(number) for number in range(tree.maker.paths.groups, len(tree))]
    assert sum(node.count for node in nodes) == len(ranges)
    assert sum(node.total for node in nodes) == ranges.duration.sum()
    assert sum(node.self_total for node in nodes) == ranges.self_time.sum()
    assert sum(node.gpu_total or 0 for node in nodes) == ranges.gpu_duration.sum()
