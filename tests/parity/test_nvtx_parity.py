"""Nesting and projection of the NVTX tree against the output of NVIDIA's ``nsys stats`` for the same files."""

import csv
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from support import LARGE, SAME_KIND, nsys_tables

from nsystui.base.selection import Selection
from nsystui.questions.nvtx.chains import PUSH_POP
from nsystui.questions.nvtx.listing import kernels_of
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.nvtx.tree import NvtxTree

REPORTS = ("nvtx_gpu_proj_sum", "nvtx_gpu_proj_trace", "nvtx_pushpop_trace")
TABLES = {(path.parent.name, path.stem): path for path in nsys_tables() if path.stem in REPORTS}

pytestmark = pytest.mark.skipif(not TABLES, reason="NVIDIA's reference tables are not on this machine")


def table(export: str, report: str) -> list[dict[str, str]]:
    with TABLES[export, report].open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("export", [
    pytest.param(export, marks=[pytest.mark.campaign] * (export in LARGE + SAME_KIND))
    for export in sorted({export for export, _ in TABLES}) or [""]
])  # fmt: skip
def test_ranges_are_those_that_nsys_printed(job_of, export):
    job = job_of(export)
    ranges = NvtxRanges.load(job.session, Selection(), job.ranks)
    checks: dict[str, Callable[[NvtxRanges, str], None]] = {
        "nvtx_gpu_proj_sum": check_projected_totals,
        "nvtx_gpu_proj_trace": check_projected_ranges,
        "nvtx_pushpop_trace": check_levels_and_self_times,
    }
    for report, check in checks.items():
        if (export, report) in TABLES:
            check(ranges, export)
    check_work(job, ranges)
    for fold in ("all", "none"):
        tree = NvtxTree.build(ranges, fold=fold)
        nodes = [tree.node(number) for number in range(tree.maker.paths.groups, len(tree))]
        assert sum(node.count for node in nodes) == len(ranges)
        assert sum(node.total for node in nodes) == ranges.values("length").sum()
        assert sum(node.self_total or 0 for node in nodes) == ranges.values("self_time")[is_push_pop(ranges)].sum()
        assert sum(node.gpu_total or 0 for node in nodes) == ranges.values("gpu_length").sum()


def is_push_pop(ranges):
    return ranges.values("flags") & PUSH_POP > 0


def check_projected_totals(ranges, export):
    launching = np.flatnonzero(ranges.values("op_count") > 0).tolist()
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, name in zip(launching, ranges.full_names(launching), strict=True):
        groups[name, "PushPop" if is_push_pop(ranges)[index] else "StartEnd"].append(index)
    found = {}
    for key, indices in groups.items():
        projected = ranges.values("gpu_length")[indices]
        length = ranges.values("length")[indices].sum()
        whole = (projected.sum(), projected.min(), projected.max(), length, len(indices))
        means = f"{np.median(projected):.1f}", f"{ranges.values('level')[indices].mean():.1f}"
        found[key] = [*map(str, whole), str(ranges.values("op_count")[indices].sum()), *means]
    columns = ("Total Proj Time (ns)", "Proj Min (ns)", "Proj Max (ns)", "Total Range Time (ns)", "Range Instances")
    columns += ("Total GPU Ops", "Proj Med (ns)", "Avg Range Lvl")
    told = table(export, "nvtx_gpu_proj_sum")
    assert found == {(row["Range"], row["Style"]): [row[column] for column in columns] for row in told}


def check_projected_ranges(ranges, export):
    launching = np.flatnonzero(ranges.values("op_count") > 0)
    parents = ["" if parent < 0 else str(ranges.values("row")[parent]) for parent in ranges.values("parent")[launching]]
    figures = map(ranges.values, ("row", "gpu_start", "gpu_length", "op_count", "level"))
    found = zip(*(map(str, figure[launching]) for figure in figures), parents, strict=True)
    columns = ("RangeId", "Projected Start (ns)", "Projected Duration (ns)", "NumGPUOps", "Lvl", "ParentId")
    # nsys 2023.4 prints a nameless row for the operations that no range launched.
    told = [tuple(row[column] for column in columns) for row in table(export, "nvtx_gpu_proj_trace") if row["RangeId"]]
    assert sorted(found) == sorted(told)


def check_levels_and_self_times(ranges, export):
    columns = [*map(ranges.values, ("row", "length", "self_time", "level"))]
    found = sorted(zip(*(column.tolist() for column in columns), strict=True))
    columns = ("RangeId", "Duration (ns)", "DurNonChild (ns)", "Lvl")
    assert found == sorted(tuple(int(row[one]) for one in columns) for row in table(export, "nvtx_pushpop_trace"))


def check_work(job, ranges):
    """Check that the projection of the ranges with most GPU work spans this work."""
    longest = np.argsort(-ranges.values("gpu_length"), kind="stable")[:3]
    for index in longest[ranges.values("op_count")[longest] > 0].tolist():
        work = kernels_of(ranges, index, job.ranks)
        rows = work.page(0, len(work))
        correlated = [column.key for column in work.columns].index("correlation_id")
        assert len({row[correlated] for row in rows}) == ranges.values("op_count")[index]
        assert rows[0][0] == ranges.values("gpu_start")[index]
        assert max(row[0] + row[1] for row in rows) == ranges.values("gpu_end")[index]
        assert sum(row[1] for row in rows) == ranges.values("op_time")[index]
