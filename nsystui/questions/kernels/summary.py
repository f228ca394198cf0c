"""The kernel summary (``nsys stats -r cuda_gpu_kern_sum``) and the single instances of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nsystui.base.answer import (
    DEVICE,
    DURATION,
    FILES_ONLY,
    NAME,
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
)
from nsystui.base.errors import UsageError, meant
from nsystui.base.kernel_families import FAMILIES, PRECISIONS, Rules, family_of, precision_of
from nsystui.base.kernel_names import smart_names
from nsystui.base.selection import Selection
from nsystui.questions.kernels.occupancy import theoretical_occupancy
from nsystui.questions.queries import statistics
from nsystui.questions.queries.conditions import duration, given, job_start, where
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.derived import of_all_reports, of_each_report
from nsystui.questions.queries.paged import PagedAnswer
from nsystui.questions.queries.tasks import RankedTask, rank_of
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_array, json_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays


class Names(Enum):
    """The name of a kernel that is shown: a smart one (see `nsystui.base.kernel_names`), the demangled one with its
    arguments, the bare one, or the compiler's."""

    SMART = "smart"
    FULL = "full"
    SHORT = "short"
    MANGLED = "mangled"


class GroupBy(Enum):
    """A further grouping of the rows of the summary. Family and precision are in place of names, which tell them."""

    RANK = "rank"
    DEVICE = "device"
    STREAM = "stream"
    STEP = "step"
    SHAPE = "shape"  # grid and block
    FAMILY = "family"
    PRECISION = "precision"


_OF_NAMES = (GroupBy.FAMILY, GroupBy.PRECISION)


def group_by_of(text: str) -> tuple[GroupBy, ...]:
    """``rank,stream`` as groups; raises UsageError for a word that is none."""
    known = {group.value: group for group in GroupBy}
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise UsageError(f"group {word!r}: the groups are {', '.join(known)}")
    return tuple(dict.fromkeys(known[word] for word in words))


FAMILY = Column("family", header="Family", label="family")
PRECISION = Column("precision", header="Precision", label="precision")


def family_or_precision(text: str) -> str:
    """A word that ``only`` takes; raises UsageError for any other."""
    known = {word.lower(): word for word in (*FAMILIES, *PRECISIONS)}
    if text.lower() not in known:
        raise UsageError(
            f"--only {text}: {meant(text, list(known.values()), 'there are ' + ', '.join(known.values()))}"
        )
    return known[text.lower()]


_GROUP_COLUMNS = {
    GroupBy.RANK: (RANK,),
    GroupBy.DEVICE: (Column("device", header="Device", label="device", unit=Unit.NUMBER),),
    GroupBy.STREAM: (Column("stream", header="Strm", label="stream", unit=Unit.NUMBER),),
    GroupBy.STEP: (STEP,),
    GroupBy.SHAPE: (Column("grid", header="GridXYZ", label="grid"), Column("block", header="BlockXYZ", label="block")),
    GroupBy.FAMILY: (FAMILY,),
    GroupBy.PRECISION: (PRECISION,),
}


def name_of(table: sa.FromClause, names: Names) -> sa.ColumnElement[Any]:
    """The chosen name; a kernel without a mangled name shows its full one, as in nsys.

    For smart names the full one as well: SQL does not know them, see `smart_kernel_names`.
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
    summarise: Callable[..., list[Row]] = statistics.summary_rows,
) -> TableAnswer:
    """One row for each kernel name (and each group): share of kernel time, statistics of duration in ns.

    ``ranks`` is needed for ``GroupBy.RANK``; ``families`` are the user's own rules; ``only`` is a family or a
    precision. Without grouping the columns, order and values are those of ``cuda_gpu_kern_sum``; smart names come with
    families and precisions. ``summarise`` makes the rows: for ``GroupBy.STEP`` see `kernels_in_steps`.
    """
    table = tables.kernels
    is_of_names = not any(group in _OF_NAMES for group in group_by)
    kinds = None if is_of_names and not only else _kinds(session, families)
    name = name_of(table, names)
    keys = [key for group in group_by if group is not GroupBy.STEP for key in _group_keys(group, table, ranks, kinds)]
    keys += [name.label("name")] if is_of_names else []
    columns = (
        *statistics.duration_columns("Instances"),
        *(column for group in group_by for column in _GROUP_COLUMNS[group]),
        *((NAME,) if is_of_names else ()),
    )

    def ask() -> list[Row]:
        conditions = where(table, selection, name)
        if kinds is not None and only:
            conditions.append(sa.or_(kinds.c.family == only, kinds.c.precision == only))
        rows_of = table if kinds is None else table.join(kinds, sa.func.coalesce(table.c.name, "") == kinds.c.name)
        return summarise(session, rows_of, duration(table), keys, conditions, columns)

    kept_as = Names.FULL if names is Names.SMART else names
    rows = ask() if group_by or only else of_all_reports(session, selection, table, f"kernels {kept_as.value}", ask)
    total = _names(session, selection, name, rows, group_by, only)
    found = TableAnswer("kernels", columns, rows, total, kernel_notes(session))
    is_smart = names is Names.SMART and is_of_names
    return _with_smart_names(found, session, selection, families) if is_smart else found


SMART_NAME = Column("smart", header="Smart Name", label="name")


def _with_smart_names(answer: TableAnswer, session: Session, selection: Selection, families: Rules) -> TableAnswer:
    """The summary with the family, precision and smart name of each kernel; the full name is for files."""
    full = [str(name or "") for name in answer.cells("name")]
    known = smart_names(full) if selection.is_everything else smart_kernel_names(session)
    columns = (
        *(replace(one, importance=FILES_ONLY) if one == NAME else one for one in answer.columns),
        FAMILY.with_importance(3),
        PRECISION.with_importance(6),
        SMART_NAME,
    )
    rows = [
        (*row, family_of(name, families), precision_of(name), known.get(name, name))
        for row, name in zip(answer.rows, full, strict=True)
    ]
    return TableAnswer(answer.name, columns, rows, answer.total, answer.notes)


def smart_kernel_names(session: Session) -> Mapping[str, str]:
    """The smart name of every kernel of the session by its full name; no two are alike."""
    return smart_names(_full_names(session))


def _kinds(session: Session, families: Rules) -> sa.Subquery:
    """The family and the precision of every kernel of the session, by its full name."""
    names = _full_names(session)
    families_of, precisions = [family_of(name, families) for name in names], list(map(precision_of, names))
    return given({"name": names, "family": families_of, "precision": precisions}).subquery("kinds")


def _full_names(session: Session) -> list[str]:
    """The full names of the kernels of the session; that of a kernel without a name is empty."""
    having = [one for one in session.reports if one.count(tables.kernels)]
    stored = of_each_report(session, having, "kernel-names", _names_of_each, by=tables.kernels)
    return list(dict.fromkeys(name for arrays in stored.values() for name in json_of(arrays["names"])))


def _names_of_each(session: Session, reports: list[Report]) -> dict[int, Arrays]:
    report, name = tables.kernels.c.report, sa.func.coalesce(tables.kernels.c.name, "")
    query = sa.select(report, name).distinct().where(report.in_([one.index for one in reports]))
    rows = session.rows(query)
    return {one.index: {"names": json_array([name for index, name in rows if index == one.index])} for one in reports}


def _names(
    session: Session,
    selection: Selection,
    name: sa.ColumnElement[Any],
    rows: Sequence[Row],
    group_by: Sequence[GroupBy],
    only: str,
) -> int | None:
    """The number of names without the selection; ``None`` with groups, where it has no meaning."""
    if group_by:
        return None
    if selection.is_everything and not only:
        return len(rows)
    return statistics.number_of_values(session, name)


def kernel_names(session: Session, most: int) -> list[str]:
    """The full names of kernels, those with most launches first, at most so many."""
    name = name_of(tables.kernels, Names.FULL).label("name")
    launches = sa.func.count()
    query = sa.select(name).where(name.is_not(None)).group_by(name).order_by(launches.desc(), name).limit(most)
    return [str(row[0]) for row in session.rows(query)]


def _group_keys(
    group: GroupBy, table: sa.Table, ranks: Sequence[RankedTask], kinds: sa.Subquery | None
) -> list[sa.Label[Any]]:
    columns = table.c
    if group in _OF_NAMES and kinds is not None:
        return [kinds.c[group.value].label(group.value)]
    if group is GroupBy.RANK:
        return [rank_of(table, ranks).label("rank")]
    if group is GroupBy.DEVICE:
        return [columns.device.label("device")]
    if group is GroupBy.STREAM:
        return [columns.stream.label("stream")]
    return [grid_of(table).label("grid"), block_of(table).label("block")]


def grid_of(table: sa.FromClause) -> sa.ColumnElement[Any]:
    """Grid size as nsys writes it: three numbers, each at least four wide."""
    return sa.func.printf("%4d %4d %4d", table.c.grid_x, table.c.grid_y, table.c.grid_z, type_=sa.Text)


def block_of(table: sa.FromClause) -> sa.ColumnElement[Any]:
    """Block size as nsys writes it."""
    return sa.func.printf("%4d %4d %4d", table.c.block_x, table.c.block_y, table.c.block_z, type_=sa.Text)


def kernel_notes(session: Session) -> tuple[str, ...]:
    """The notes of every table of kernels: exports without kernels, and work that was not traced kernel by kernel."""
    lacking = missing_note(session, tables.kernels)
    notes = [lacking] if lacking else []
    graphs = session.count(tables.graph_launches)
    if graphs:
        notes.append(
            f"{graphs:,} whole CUDA graph launches are not in this table: their kernels were not traced one by one "
            "(record with --cuda-graph-trace=node)"
        )
    return tuple(notes)


INSTANCE_COLUMNS = (
    START,
    DURATION,
    Column("launch_delay", header="Launch Delay (ns)", label="delay", unit=Unit.DURATION, importance=1),
    RANK.with_importance(1),
    DEVICE.with_importance(2),
    STREAM.with_importance(2),
    Column("grid", header="GridXYZ", label="grid", importance=3),
    Column("block", header="BlockXYZ", label="block", importance=3),
    Column("registers", header="Reg/Trd", label="regs", unit=Unit.NUMBER, importance=4),
    Column("shared_memory", header="Shared Memory (B)", label="smem", unit=Unit.BYTES, importance=4),
    Column(
        "occupancy",
        header="Theoretical Occupancy (%)",
        label="occupancy",
        unit=Unit.PERCENT,
        decimals=1,
        importance=4,
    ),
    Column("correlation_id", header="CorrId", label="corr", unit=Unit.NUMBER, importance=5),
    REPORT_ID,
    PROCESS_ID,
    ROW_ID,
)


def kernel_instances(
    session: Session,
    selection: Selection,
    name: str,
    names: Names = Names.FULL,
    ranks: Sequence[RankedTask] = (),
) -> PagedAnswer:
    """The launches of one kernel, a page at a time; start in job time.

    The launch delay is from the start of the API call to the start of the kernel, 0 where CUPTI's clocks make it
    negative by less than a microsecond (docs/exports.md#launches), missing where the call was not recorded.
    """
    kernels = tables.kernels
    if names is Names.SMART:  # a user may give the smart name, or the full one
        name = next((full for full, smart in smart_kernel_names(session).items() if smart == name), name)
    conditions = [*where(kernels, selection.with_name(None)), name_of(kernels, names) == name]
    query = sa.select(
        job_start(kernels).label("start"),
        duration(kernels).label("duration"),
        rank_of(kernels, ranks).label("rank"),
        kernels.c.device,
        kernels.c.stream,
        _product(kernels, "grid").label("grid"),
        _product(kernels, "block").label("block"),
        kernels.c.registers_per_thread.label("registers"),
        (kernels.c.static_shared_memory + kernels.c.dynamic_shared_memory).label("shared_memory"),
        theoretical_occupancy(session).label("occupancy"),
        kernels.c.correlation_id,
        kernels.c.report,
        kernels.c.process,
        kernels.c.row,
    ).where(*conditions)
    count = sa.select(sa.func.count()).select_from(kernels).where(*conditions)
    everything = sa.select(sa.func.count()).select_from(kernels).where(name_of(kernels, names) == name)
    if selection.with_name(None).is_everything:
        everything = count
    answer = PagedAnswer.of(
        session, "kernel-instances", INSTANCE_COLUMNS, query, count, everything, ("start", False), ("report", "row")
    )
    return answer.in_time(kernels).with_late(_LaunchDelay())


class _LaunchDelay:
    """The time from the start of a kernel's API call to that of the kernel, ns; missing where no call was recorded."""

    key = "launch_delay"

    def joined(self, query: sa.Select[Any]) -> sa.Select[Any]:
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
        # The bounds let Parquet skip what a list does not.
        calls = first_calls(sa.and_(column.between(ids[0], ids[-1]), column.in_(ids)))
        starts = {tuple(place): start for *place, start in session.rows(sa.select(calls))}
        found = (starts.get(tuple(row[key] for key in _LAUNCH)) for row in rows)
        return [
            None if start is None else max(int(row["start"] or 0) - start, 0)
            for row, start in zip(rows, found, strict=True)
        ]


_LAUNCH = ("report", "process", "correlation_id")


def first_calls(wanted: sa.ColumnElement[bool]) -> sa.Subquery:
    """The API calls that are ``wanted`` and launched something, start in job time.

    One row for a (report, process, correlation id), the first where the export has more, so that a join with it never
    doubles a kernel.
    """
    calls = tables.api_calls.c
    place = [calls[key] for key in _LAUNCH]
    start = sa.func.min(calls.start + calls.clock_offset).label("start")
    return sa.select(*place, start).where(wanted).group_by(*place).subquery()


def _product(table: sa.FromClause, what: str) -> sa.ColumnElement[Any]:
    """``132·1·1``"""
    return sa.func.concat_ws("·", table.c[f"{what}_x"], table.c[f"{what}_y"], table.c[f"{what}_z"])


def durations(session: Session, selection: Selection, name: str, names: Names = Names.FULL) -> Any:
    """The durations of one kernel as a numpy array, ns, for histograms and percentiles."""
    table = tables.kernels
    conditions = [*where(table, selection.with_name(None)), name_of(table, names) == name]
    return session.arrays(sa.select(duration(table).label("duration")).where(*conditions))["duration"]
