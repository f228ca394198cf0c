"""The kernel summary (``nsys stats -r cuda_gpu_kern_sum``) and the instances of a kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nsystui.base.answer import (
    DEVICE,
    DURATION,
    FAMILY,
    NAME,
    PRECISION,
    PROCESS_ID,
    RANK,
    REPORT_ID,
    ROW_ID,
    START,
    STEP,
    STREAM,
    Column,
    Row,
    TableAnswer,
    Unit,
    Value,
    for_files,
)
from nsystui.base.errors import UsageError, meant, members_of
from nsystui.base.kernel_families import FAMILIES, PRECISIONS, Rules, family_of, precision_of
from nsystui.base.kernel_names import smart_names
from nsystui.base.selection import Selection
from nsystui.base.text import counted
from nsystui.base.types import Condition, Expression, Labelled, Query, grouped
from nsystui.exports.metadata import Multiprocessor
from nsystui.questions.queries import statistics
from nsystui.questions.queries.communication import full_names
from nsystui.questions.queries.conditions import duration, given, job_start, of_reports, where
from nsystui.questions.queries.data_notes import conditional_notes, missing_notes, unrecorded_notes
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.queries.statistics import ValueRows
from nsystui.questions.queries.tasks import ROLE, RankedTask, rank_of, role_of, used_devices
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.queries.paged import PagedAnswer


class Names(Enum):
    """Forms of kernel names: smart (see `nsystui.base.kernel_names`), demangled, function name only, mangled."""

    SMART = "smart"
    FULL = "full"
    SHORT = "short"
    MANGLED = "mangled"


class GroupBy(Enum):
    """Groupings in addition to the name. Family, precision, graph and range replace the name."""

    RANK = "rank"
    ROLE = "role"
    DEVICE = "device"
    STREAM = "stream"
    STEP = "step"
    SHAPE = "shape"  # grid and block
    FAMILY = "family"
    PRECISION = "precision"
    GRAPH = "graph"  # launched by a CUDA graph, or by a call
    RANGE = "range"  # innermost NVTX range of the capture or launch


_OF_NAMES = (GroupBy.FAMILY, GroupBy.PRECISION)
_BY_LAUNCH = (GroupBy.STEP, GroupBy.RANGE)
LAUNCHES = REPLAYED, EAGER = ("replayed", "eager")
"""Launches by a CUDA graph that was traced by node, or by a call."""


def group_by_of(text: str) -> tuple[GroupBy, ...]:
    """Parse ``rank,stream``. Raises UsageError for a word that is no group."""
    return members_of(text, GroupBy, "group")


def kind_of_kernels(text: str) -> str:
    """Return the family, precision or launch called ``text`` in any case. Raises UsageError for an unknown name."""
    words = (*FAMILIES, *PRECISIONS, *LAUNCHES)
    kind = next((word for word in words if word.lower() == text.lower()), None)
    if kind is None:
        raise UsageError(f"--only {text}: {meant(text, words, 'there are ' + ', '.join(words))}")
    return kind


_GROUP_COLUMNS = {
    GroupBy.RANK: (RANK,),
    GroupBy.ROLE: (ROLE,),
    GroupBy.DEVICE: (Column("device", header="Device", label="device", unit=Unit.DEVICE),),
    GroupBy.STREAM: (Column("stream", header="Strm", label="stream", unit=Unit.STREAM),),
    GroupBy.STEP: (STEP,),
    GroupBy.SHAPE: (Column("grid", header="GridXYZ", label="grid"), Column("block", header="BlockXYZ", label="block")),
    GroupBy.FAMILY: (FAMILY,),
    GroupBy.PRECISION: (PRECISION,),
    GroupBy.GRAPH: (
        Column("graph", header="CUDA Graph", label="CUDA graph"),
        Column("graph_id", header="Graph", label="graph", unit=Unit.NUMBER),
    ),
    GroupBy.RANGE: (
        Column("origin", header="Captured or Launched", label="in the range", importance=1),
        Column("range", header="NVTX Range", label="NVTX range"),
    ),
}


def name_of(table: sa.FromClause, names: Names) -> Expression:
    """Return the column for ``names``: the full name if the mangled name is missing, as in nsys.

    For smart names, which SQL cannot compute, it is also the full name: see `smart_kernel_names`.
    """
    if names is Names.SHORT:
        return table.c.short_name
    if names is Names.MANGLED:
        return sa.func.coalesce(table.c.mangled_name, table.c.name)
    return table.c.name


def kernel_summary(
    session: Session,
    selection: Selection,
    names: Names = Names.FULL,
    group_by: Sequence[GroupBy] = (),
    ranks: Sequence[RankedTask] = (),
    families: Rules = (),
    only: str = "",
    summarise: Callable[[Session, ValueRows, Sequence[Column]], Sequence[Row]] = statistics.summary_rows,
) -> TableAnswer:
    """Summarise kernels by name (and group): share of kernel time, statistics of durations, ns.

    Ranks and roles need ``ranks``. ``families`` are the user's rules; ``only`` is a family, a precision or one of
    `LAUNCHES`. Without grouping, columns, order and values equal ``cuda_gpu_kern_sum``; smart names add two columns.
    """
    table, name = tables.kernels, name_of(tables.kernels, names)
    has_names = not any(group in (*_OF_NAMES, GroupBy.GRAPH, GroupBy.RANGE) for group in group_by)
    needs_kinds = only not in ("", *LAUNCHES) or any(group in _OF_NAMES for group in group_by)
    kinds = _kinds(session, families) if needs_kinds else None
    keys, group_columns = _grouping(session, group_by, ranks, kinds)
    keys += [name.label("name")] * has_names
    columns = (*statistics.duration_columns("Instances"), *group_columns, *[NAME] * has_names)

    def ask() -> Sequence[Row]:
        conditions = [*where(table, selection, name), *_are_only(table, kinds, only)]
        rows_of = table if kinds is None else table.join(kinds, sa.func.coalesce(table.c.name, "") == kinds.c.name)
        return summarise(session, ValueRows(rows_of, duration(table), keys, conditions), columns)

    stored = Names.FULL if names is Names.SMART else names
    rows = ask() if group_by or only else of_all_reports(session, selection, table, f"kernels {stored.value}", ask)
    total = None  # unknown for groups: outside the selection, only names are counted
    if not group_by:
        is_complete = selection.is_everything and not only
        total = len(rows) if is_complete else statistics.number_of_values(session, name)
    answer = TableAnswer("kernels", columns, rows, total, kernel_notes(session))
    if GroupBy.GRAPH in group_by:
        return _with_count_shares(answer)
    if names is Names.SMART and has_names:
        return _with_smart_names(answer, session, selection, families)
    return answer


def _kinds(session: Session, families: Rules) -> sa.Subquery:
    full = full_names(session)
    groups = [family_of(kernel, families) for kernel in full]
    return given({"name": full, "family": groups, "precision": list(map(precision_of, full))}).subquery("kinds")


def _are_only(table: sa.FromClause, kinds: sa.Subquery | None, only: str) -> list[Condition]:
    if only in LAUNCHES:
        return [_launch_of(table) == only]
    return [sa.or_(kinds.c.family == only, kinds.c.precision == only)] if only and kinds is not None else []


def _launch_of(table: sa.FromClause) -> sa.ColumnElement[str]:
    return sa.case((table.c.graph_node_id.is_not(None), REPLAYED), else_=EAGER)


def _graph_of(table: sa.FromClause) -> Expression:
    """Return the number of a kernel's graph, which is unique only in its process."""
    return sa.func.coalesce(table.c.graph_id, sa.func.nullif(table.c.graph_node_id.op(">>")(_GRAPH_BITS), 0))


_GRAPH_BITS = 32
"""A node's number has its graph's number above these bits."""
_COUNT_SHARE = Column("count_share", header="Instances (%)", label="count %", unit=Unit.PERCENT, decimals=1)


def _with_count_shares(answer: TableAnswer) -> TableAnswer:
    counts = [int(count or 0) for count in answer.cells("count")]
    steps = answer.cells("step") if STEP in answer.columns else [None] * len(counts)
    totals: Counter[Value] = Counter()
    for step, count in zip(steps, counts, strict=True):
        totals[step] += count
    shares = (100.0 * count / totals[step] for step, count in zip(steps, counts, strict=True))
    rows = [(*row, share) for row, share in zip(answer.rows, shares, strict=True)]
    return replace(answer, columns=(*answer.columns, _COUNT_SHARE), rows=rows)


SMART_NAME = Column("smart", header="Smart Name", label="name")


def _with_smart_names(answer: TableAnswer, session: Session, selection: Selection, families: Rules) -> TableAnswer:
    """Add family, precision and smart name; the full name remains in files only."""
    full = [str(name or "") for name in answer.cells("name")]
    smart = smart_names(full) if selection.is_everything else smart_kernel_names(session)
    columns = (
        *for_files(answer.columns, {NAME.key}),
        FAMILY.with_importance(3),
        PRECISION.with_importance(6),
        SMART_NAME,
    )
    rows = [
        (*row, family_of(name, families), precision_of(name), smart.get(name, name))
        for row, name in zip(answer.rows, full, strict=True)
    ]
    return replace(answer, columns=columns, rows=rows)


def smart_kernel_names(session: Session) -> Mapping[str, str]:
    """Return the session's smart names, which are unique, by full name."""
    return smart_names(full_names(session))


def is_named(session: Session, table: sa.FromClause, name: str) -> Condition:
    """Return the condition for the kernel of a smart or full name, or for all kernels of a short name."""
    smart = smart_kernel_names(session)
    full = next((full for full, text in smart.items() if text == name), name)
    return table.c.name == full if full in smart else table.c.short_name == name


def kernel_names(session: Session, limit: int) -> list[str]:
    """Return the full names of at most ``limit`` kernels, most launches first."""
    name = name_of(tables.kernels, Names.FULL).label("name")
    query = sa.select(name).where(name.is_not(None)).group_by(name).order_by(sa.func.count().desc(), name).limit(limit)
    return [str(row[0]) for row in session.rows(query)]


def _grouping(
    session: Session, group_by: Sequence[GroupBy], ranks: Sequence[RankedTask], kinds: sa.Subquery | None
) -> tuple[list[Labelled], list[Column]]:
    """Return the keys of the groups, and their columns; graphs of several processes also have a rank."""
    table = tables.kernels
    keys = [key for group in group_by if group not in _BY_LAUNCH for key in _group_keys(group, table, ranks, kinds)]
    columns = [column for group in group_by for column in _GROUP_COLUMNS[group]]
    of_graphs = sa.select(table.c.report, table.c.process).where(_graph_of(table).is_not(None)).distinct()
    if GroupBy.GRAPH in group_by and GroupBy.RANK not in group_by and len(session.rows(of_graphs)) > 1:
        keys.append(sa.case((_graph_of(table).is_not(None), rank_of(table, ranks))).label("rank"))
        columns.append(RANK)
    return keys, columns


def _group_keys(
    group: GroupBy, table: sa.Table, ranks: Sequence[RankedTask], kinds: sa.Subquery | None
) -> list[Labelled]:
    if group is GroupBy.RANK:
        return [rank_of(table, ranks).label("rank")]
    if group is GroupBy.ROLE:
        return [role_of(table, ranks).label("role")]
    if group is GroupBy.SHAPE:
        return [grid_of(table).label("grid"), block_of(table).label("block")]
    if group is GroupBy.GRAPH:
        return [_launch_of(table).label("graph"), _graph_of(table).label("graph_id")]
    source: sa.FromClause = kinds if group in _OF_NAMES and kinds is not None else table
    return [source.c[group.value].label(group.value)]


def grid_of(table: sa.FromClause) -> Expression:
    """Return the grid size as nsys writes it: three numbers, padded to four characters."""
    return sa.func.printf("%4d %4d %4d", table.c.grid_x, table.c.grid_y, table.c.grid_z, type_=sa.Text)


def block_of(table: sa.FromClause) -> Expression:
    """Return the block size as nsys writes it."""
    return sa.func.printf("%4d %4d %4d", table.c.block_x, table.c.block_y, table.c.block_z, type_=sa.Text)


def kernel_notes(session: Session) -> tuple[str, ...]:
    """Return notes on exports without kernels, and on CUDA graphs without traced kernels."""
    notes = missing_notes(session, tables.kernels)
    if not session.count(tables.kernels):  # otherwise all calls would be read
        notes += tuple(unrecorded_notes(session, only=["kernels"]))
    if graphs := session.count(tables.graph_launches):
        why = "their kernels were not traced one by one (record with --cuda-graph-trace=node)"
        notes += (f"{counted(graphs, 'whole CUDA graph launch', 'are')} not in this table: {why}",)
    return (*notes, *conditional_notes(session))


INSTANCE_COLUMNS = (
    START, DURATION,
    Column("launch_delay", header="Launch Delay (ns)", label="delay", unit=Unit.DURATION, importance=1),
    RANK.with_importance(1), DEVICE.with_importance(2), STREAM.with_importance(2),
    Column("grid", header="GridXYZ", label="grid", importance=3),
    Column("block", header="BlockXYZ", label="block", importance=3),
    Column("registers", header="Reg/Trd", label="regs", unit=Unit.NUMBER, importance=4),
    Column("shared_memory", header="Shared Memory (B)", label="smem", unit=Unit.BYTES, importance=4),
    Column("occupancy", header="Theoretical Occupancy (%)", label="occupancy", unit=Unit.PERCENT, decimals=1,
        importance=4), Column("correlation_id", header="CorrId", label="corr", unit=Unit.NUMBER, importance=5),
    REPORT_ID, PROCESS_ID, ROW_ID,
)  # fmt: skip


def kernel_instances(
    session: Session, selection: Selection, name: str, names: Names = Names.FULL, ranks: Sequence[RankedTask] = ()
) -> PagedAnswer:
    """List the launches of one kernel, by page; start in job time, ns.

    The launch delay is from the start of the API call, if recorded, to the kernel's; 0 if CUPTI's clocks make it
    negative by less than a microsecond (docs/exports.md#launches).
    """
    from nsystui.questions.queries.paged import PagedAnswer

    kernels = tables.kernels
    of_name = is_named(session, kernels, name) if names is Names.SMART else name_of(kernels, names) == name
    grid, block = (
        sa.func.concat_ws("·", *(kernels.c[f"{shape}_{axis}"] for axis in "xyz")) for shape in ("grid", "block")
    )
    query = sa.select(
        job_start(kernels).label("start"),
        duration(kernels).label("duration"),
        rank_of(kernels, ranks).label("rank"),
        kernels.c.device,
        kernels.c.stream,
        grid.label("grid"),
        block.label("block"),
        kernels.c.registers_per_thread.label("registers"),
        (kernels.c.static_shared_memory + kernels.c.dynamic_shared_memory).label("shared_memory"),
        theoretical_occupancy(session).label("occupancy"),
        kernels.c.correlation_id,
        kernels.c.report,
        kernels.c.process,
        kernels.c.row,
    ).where(*where(kernels, selection.with_name(None)), of_name)
    everything = None if selection.with_name(None).is_everything else sa.select(kernels.c.row).where(of_name)
    answer = PagedAnswer.of(session, "kernel-instances", INSTANCE_COLUMNS, query, everything)
    return replace(answer.with_time_index(kernels), late=_LaunchDelay())


class _LaunchDelay:
    """The column of launch delays, ns, looked up for a page unless rows are sorted by it; see `kernel_instances`."""

    key = "launch_delay"

    def joined(self, query: Query) -> Query:
        rows = query.cte("instances")
        calls = first_calls(tables.api_calls.c.correlation_id.in_(sa.select(rows.c.correlation_id)))
        is_same = [rows.c[key] == calls.c[key] for key in _LAUNCH]
        delay = sa.func.greatest(rows.c.start - calls.c.start, 0)
        late = sa.case((calls.c.start.is_(None), sa.null()), else_=delay).label(self.key)
        return sa.select(*rows.c, late).select_from(rows.outerjoin(calls, sa.and_(*is_same)))

    def of_rows(self, session: Session, rows: Sequence[Mapping[str, Value]]) -> Sequence[Value]:
        ids = sorted({row["correlation_id"] for row in rows if isinstance(row["correlation_id"], int)})
        if not ids:
            return [None] * len(rows)
        column = tables.api_calls.c.correlation_id
        # With bounds, unlike with a list, Parquet files are read only in part.
        calls = first_calls(sa.and_(column.between(ids[0], ids[-1]), column.in_(ids)))
        starts = {tuple(identity): start for *identity, start in session.rows(sa.select(calls))}
        call_starts = [starts.get(tuple(row[key] for key in _LAUNCH)) for row in rows]
        delays = zip((int(row["start"] or 0) for row in rows), call_starts, strict=True)
        return [None if call is None else max(start - call, 0) for start, call in delays]


_LAUNCH = ("report", "process", "correlation_id")


def first_calls(condition: Condition, *columns: Expression) -> sa.Subquery:
    """Select the API calls for which ``condition`` holds, with ``columns``; start in job time.

    Each (report, process, correlation id) has one row, with the earliest start: a join never duplicates a kernel.
    """
    calls = tables.api_calls.c
    identity = [calls[key] for key in _LAUNCH]
    start = sa.func.min(calls.start + calls.clock_offset).label("start")
    more = [sa.func.arg_min(column, calls.start, type_=column.type).label(column.key) for column in columns]
    return sa.select(*identity, *more, start).where(condition).group_by(*identity).subquery()


def durations(session: Session, selection: Selection, name: str, names: Names = Names.FULL) -> Any:
    """Read the durations of one kernel as a numpy array, ns."""
    table = tables.kernels
    conditions = [*where(table, selection.with_name(None)), name_of(table, names) == name]
    return session.arrays(sa.select(duration(table).label("duration")).where(*conditions))["duration"]


# Theoretical occupancy: the share of a multiprocessor's warps that a kernel can use (docs/numbers.md#launches).
_WARP = 32
_REGISTER_UNIT = 256
"""Registers are allocated to warps in multiples of this number, to `_WARP_GROUP` warps at once."""
_WARP_GROUP = 4


def theoretical_occupancy(session: Session) -> Expression:
    """Return the theoretical occupancy of rows of ``kernels``, percent of a multiprocessor's warps.

    Missing if registers, block or GPU limits are not recorded, or a report's GPUs differ.
    """
    gpus = {(report.index, gpu.gpu): gpu.multiprocessor for report in session.reports for gpu in report.metadata.gpus}
    limits_by_report: dict[int, set[Multiprocessor | None]] = {}
    for used in used_devices(session):
        limits = None if used.gpu is None else gpus.get((used.task.report, used.gpu))
        limits_by_report.setdefault(used.task.report, set()).add(limits)
    reports = grouped(
        (first, report) for report, (first, *more) in limits_by_report.items() if first is not None and not more
    )
    whens = [(of_reports(tables.kernels.c.report, indices), _percent(limits)) for limits, indices in reports.items()]
    return sa.case(*whens, else_=sa.null()) if whens else sa.cast(sa.null(), sa.Double)


def _percent(limits: Multiprocessor) -> Expression:
    """Return the occupancy by NVIDIA's calculator, with as much of the cache as possible for shared memory."""
    columns = tables.kernels.c
    warps = _units(columns.block_x * columns.block_y * columns.block_z, _WARP)
    registers = _units(columns.registers_per_thread * _WARP, _REGISTER_UNIT) * _REGISTER_UNIT
    reserved, unit = (1024, 128) if limits.compute_major >= 8 else (0, 256)
    shared = _units(columns.static_shared_memory + columns.dynamic_shared_memory + reserved, unit) * unit
    by_registers = _fit(_fit(limits.registers, registers), sa.literal(_WARP_GROUP)) * _WARP_GROUP
    blocks = sa.func.least(
        limits.blocks, _fit(limits.warps, warps), _fit(by_registers, warps), _fit(limits.shared_memory, shared)
    )
    is_known = sa.and_(warps > 0, registers > 0, shared.is_not(None), blocks > 0)
    return sa.case((is_known, 100.0 * blocks * warps / limits.warps), else_=sa.null())


def _units(value: Expression, unit: int) -> sa.ColumnElement[int]:
    return _fit(value + (unit - 1), sa.literal(unit))


def _fit(total: int | Expression, part: Expression) -> sa.ColumnElement[int]:
    return sa.func.divide(total, sa.func.nullif(part, 0), type_=sa.BigInteger)
