"""NCCL's calls paired with the kernels that they launched, and so the bytes that each kernel moved.

NVTX records the calls and their sizes, CUPTI the kernels. A kernel belongs to the calls whose launch window contains
its launch (docs/nccl.md#pairing): the call itself, or the ``ncclGroupEnd`` of its group. Pairing covers whole reports,
because a launch may be before the selected time window.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.kernel_families import BACKENDS, COPIES_BACKEND, NCCL_BACKEND, OTHER_BACKEND
from nsystui.base.text import counted
from nsystui.base.types import DataSeries, Expression, Flags, Ints, Query
from nsystui.questions.nccl.matching import INSPECTED_KEYS, SHARED_KEYS, Found, find, place_in_group
from nsystui.questions.nccl.names import PairingState, Reason, collective_of_api, operation_of_kernel
from nsystui.questions.nccl.units import (
    MAKES_COMMUNICATOR,
    NONE,
    Lines,
    Role,
    by_name,
    first_of_each,
    roles_of,
    whole,
    without_inner_calls,
)
from nsystui.questions.nccl.verdict import Together
from nsystui.questions.queries.communication import communicates, communicating, is_peer_copy, rows_of_nccl_copies
from nsystui.questions.queries.conditions import is_launched_by, job_end, job_start, of_reports
from nsystui.questions.queries.derived import in_runs
from nsystui.questions.queries.tasks import RankedTask, rank_of
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

    from nsystui.questions.nccl.from_log import LogSizes

    Frames = tuple[pd.DataFrame, pd.DataFrame]


_CALL_FACTS = ("message_size", "communicator", "ranks", "peer", "root", "reduction", "datatype", "size_source")


def calls_query(ranks: Sequence[RankedTask], reports: Collection[int]) -> Query:
    """Select every NCCL API call, by (report, thread, start); ``rank`` is the job's, ``end`` may be missing."""
    table = tables.nccl_calls
    columns = table.c
    return (
        sa.select(
            *(columns[key] for key in ("report", "process", "row", "thread", "name", *_CALL_FACTS)),
            job_start(table).label("start"),
            job_end(table).label("end"),
            rank_of(table, ranks).label("rank"),
        )
        .where(of_reports(columns.report, reports))
        .order_by(columns.report, columns.thread, columns.start, columns.row)
    )


def kernels_query(ranks: Sequence[RankedTask], reports: Collection[int], others: Collection[str]) -> Query:
    """Select every kernel of NCCL or with a name in ``others``, with its launch; by report and start of the launch.

    Without a recorded launch, the kernel's start counts. The launch is the API call of the same (report, process,
    correlation id) (docs/exports.md#launches); if an export has several, the kernel has a row for each, the earliest
    first.
    """
    table, calls = tables.kernels, tables.api_calls
    columns = table.c
    return (
        sa.select(
            *(columns[key] for key in ("report", "process", "row")),
            job_start(table).label("start"),
            job_end(table).label("end"),
            *(columns[key] for key in ("device", "context", "stream")),
            columns.short_name.label("name"),
            columns.correlation_id,
            columns.graph_node_id,
            _backend(columns.name, others).label("backend"),
            rank_of(table, ranks).label("rank"),
            calls.c.thread,
            job_start(calls).label("launch_start"),
            job_end(calls).label("launch_end"),
            sa.cast(None, sa.BigInteger).label("copied"),
        )
        .select_from(table.outerjoin(calls, is_launched_by(table, calls)))
        .where(communicates(others), of_reports(columns.report, reports))
        .order_by(columns.report, sa.func.coalesce(calls.c.start, columns.start), columns.row)
    )


def copies_query(ranks: Sequence[RankedTask], given_copies: Query) -> Query:
    """Select one row for all copies of a window on a GPU, in the columns of `kernels_query`; ``row`` is negative.

    ``copied``: the bytes that went to each other GPU, without the flags by which NCCL synchronises; missing if the
    export does not name the GPUs.
    """
    table, calls, copies = tables.memory_ops, tables.api_calls, given_copies.subquery("copies")
    captured = tables.nccl_calls
    columns, first = table.c, sa.func.min
    is_data = sa.and_(is_peer_copy(), columns.bytes > _FLAG_BYTES)
    sent = sa.func.sum(columns.bytes).filter(is_data, columns.target_device.is_not(None))
    targets = sa.func.count(columns.target_device.distinct()).filter(is_data)
    keys = (columns.report, columns.process)
    return (
        sa.select(
            *keys,
            (-first(columns.row)).label("row"),
            first(job_start(table)).label("start"),
            sa.func.max(job_end(table)).label("end"),
            columns.device,
            first(columns.context).label("context"),
            first(columns.stream).label("stream"),
            sa.func.coalesce(first(captured.c.name), sa.func.max(columns.operation)).label("name"),
            first(columns.correlation_id).label("correlation_id"),
            first(columns.graph_node_id).label("graph_node_id"),
            sa.literal(COPIES_BACKEND).label("backend"),
            first(rank_of(table, ranks)).label("rank"),
            first(calls.c.thread).label("thread"),
            first(job_start(calls)).label("launch_start"),
            sa.func.max(job_end(calls)).label("launch_end"),
            sa.cast(sent / sa.func.nullif(targets, 0), sa.BigInteger).label("copied"),
        )
        .select_from(table.join(copies, sa.and_(copies.c.report == columns.report, copies.c.row == columns.row)))
        .join(calls, is_launched_by(table, calls))
        .outerjoin(captured, sa.and_(captured.c.report == columns.report, captured.c.row == copies.c.call))
        .group_by(*keys, columns.device, copies.c.window)
    )


_FLAG_BYTES = 4


def _backend(name: Expression, others: Collection[str]) -> Expression:
    """Return the library of a kernel: one of `BACKENDS`, or ``other`` if only the user's families know it."""
    if not others:
        return sa.literal(NCCL_BACKEND)
    cases = [(sa.func.regexp_matches(name, pattern, "i", type_=sa.Boolean), word) for word, pattern in BACKENDS[1:]]
    return sa.case((tables.kernels.c.is_nccl == 1, NCCL_BACKEND), *cases, else_=OTHER_BACKEND)


def labels_query(reports: Collection[int]) -> Query:
    """Select PyTorch's labels around NCCL calls, without their varying parts: ``nccl:all_to_all``.

    They are ranges of the default domain (docs/nccl.md#pairing).
    """
    table = tables.nvtx_ranges
    columns = table.c
    return sa.select(
        columns.report,
        columns.thread,
        job_start(table).label("start"),
        job_end(table).label("end"),
        sa.func.regexp_extract(columns.name, "^nccl:[a-z_]+").label("name"),
    ).where(
        sa.func.starts_with(columns.name, "nccl:"),
        sa.func.coalesce(columns.domain, "") == "",
        columns.end.is_not(None),
        columns.end_thread.is_(None),
        of_reports(columns.report, reports),
    )


def first_correlations_query(reports: Collection[int]) -> Query:
    """Select the first correlation id of each process's API calls; ids ascend while a process runs."""
    columns = tables.api_calls.c
    first = sa.func.min(columns.correlation_id).label("first_correlation_id")
    query = sa.select(columns.report, columns.process, first).where(of_reports(columns.report, reports))
    return query.group_by(columns.report, columns.process)


_TASK = ["report", "process"]
_FEW_VALUES = ("name", "collective", "communicator", "reduction", "datatype", "state", "reason", "size_source")


def assemble(
    calls: pd.DataFrame, kernels: pd.DataFrame, labels: pd.DataFrame, first_ids: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the ``kernels`` and ``calls`` of an `NcclPairing` from the rows of the queries above."""
    kernels = _compact(kernels.drop_duplicates(["report", "row"]).reset_index(drop=True))
    calls, lines = without_inner_calls(_compact(calls), Lines.of(calls, kernels))
    calls = calls.assign(ranks=_ranks(calls))
    matches = find(calls, kernels, labels, lines)
    calls, matches = _with_copied_sizes(calls, kernels, matches)
    return _kernels(kernels, calls, first_ids, matches), _calls(calls, matches)


def _with_copied_sizes(calls: pd.DataFrame, kernels: pd.DataFrame, matches: Found) -> tuple[pd.DataFrame, Found]:
    """Fill in sizes that no payload has, from the bytes that a call copied to each other GPU."""
    import pandas as pd

    operations, of_call = matches.operations, matches.matching.of_call
    first = np.append(first_of_each(matches.matching.of_kernel, len(operations)), NONE)
    copied = pd.Series(np.append(whole(kernels["copied"]), NONE)[first[:-1]], operations.index, "Int64")
    copied = copied.where((copied >= 0) & (operations["calls"] == 1) & operations["message_size"].isna())
    if not copied.notna().any():
        return calls, matches
    of_calls = copied.reindex(np.where(of_call >= 0, of_call, NONE)).set_axis(calls.index)
    sizes = calls["message_size"].astype("Int64").fillna(of_calls)
    sources = calls["size_source"].astype(object).where(of_calls.isna(), "copies")
    operations = operations.assign(message_size=operations["message_size"].fillna(copied))
    return calls.assign(message_size=sizes, size_source=sources), replace(matches, operations=operations)


def _ranks(calls: pd.DataFrame) -> DataSeries:
    """Return the number of ranks in each call's communicator; missing if no call of this capture records it.

    A communicator's id is the same on all its ranks. NCCL before 2.25 records no id; then a process that made a single
    communicator, before its first communication, can have used no other.
    """
    ranks = calls["ranks"].astype("Int64")
    ranks = ranks.fillna(ranks.groupby(calls["communicator"], observed=True).transform("max"))

    is_communication = roles_of(calls["name"]) == Role.COMMUNICATION
    starts = calls["start"].astype("Int64")
    first_communication = starts.where(is_communication).groupby([calls[key] for key in _TASK]).transform("min")
    creations = calls[calls["name"].str.match(MAKES_COMMUNICATOR)]
    creations = creations[~creations.duplicated(_TASK, keep=False)]
    only_creations = creations[(starts < first_communication)[creations.index].fillna(False).astype(bool)]
    recorded = calls[_TASK].merge(only_creations[[*_TASK, "ranks"]], on=_TASK, how="left")["ranks"].astype("Int64")
    return ranks.fillna(recorded.where(is_communication & calls["communicator"].isna()))


def _kernels(kernels: pd.DataFrame, calls: pd.DataFrame, first_ids: pd.DataFrame, matches: Found) -> pd.DataFrame:
    operation = matches.matching.of_kernel
    operations = matches.operations.reindex(operation).reset_index(drop=True)
    name_collectives = by_name(kernels["name"], operation_of_kernel)
    copied = kernels["copied"].astype("Int64").where(kernels["graph_node_id"].notna() & name_collectives.astype(bool))
    frame = kernels.assign(
        collective=operations["collective"].astype(object).where(operation >= 0, name_collectives),
        message_size=_shares(operations["message_size"], operation).where(operation >= 0, copied),
        one_way=_shares(operations["one_way"], operation),
        **{key: operations[key] for key in (*SHARED_KEYS, *INSPECTED_KEYS) if key in operations},
        state=_states(operation >= 0, matches, operation),
        reason=_kernel_reasons(kernels, calls, first_ids, operation),
        operation=operation,
        partners=np.append(matches.operations["calls"].to_numpy(np.int64), 0)[operation],
        partner=np.append(matches.operations["first_call"].to_numpy(np.int64), NONE)[operation],
    )
    unused = ["context", "correlation_id", "launch_end", "copied"]
    return _compact(frame.drop(columns=unused).rename(columns={"thread": "launch_thread"}))


def _shares(size: DataSeries, operation: Ints) -> DataSeries:
    """Return the bytes of each kernel: an even share of its operation's bytes."""
    kernels = np.append(np.bincount(operation[operation >= 0]), 1)[operation]
    return size // kernels + (size % kernels > place_in_group(operation)).astype("Int64")


def _states(is_paired: Flags, matches: Found, operation: Ints) -> Any:
    """Return the pairing state of each row, whose ``operation`` may be ``NONE``."""
    is_estimated = np.append(matches.matching.is_estimated, False)[operation]
    paired = np.where(is_estimated, PairingState.ESTIMATED.value, PairingState.PAIRED.value)
    return np.where(is_paired, paired, PairingState.UNPAIRED.value).astype(object)


def _kernel_reasons(kernels: pd.DataFrame, calls: pd.DataFrame, first_ids: pd.DataFrame, operation: Ints) -> Any:
    """Return the first reason that holds for each unpaired kernel, and ``None`` for paired kernels."""
    communicating_tasks = calls.loc[roles_of(calls["name"]) == Role.COMMUNICATION, _TASK].drop_duplicates()
    has_calls = kernels[_TASK].merge(communicating_tasks, on=_TASK, how="left", indicator=True)["_merge"] == "both"
    first_id = kernels[_TASK].merge(first_ids, on=_TASK, how="left")["first_correlation_id"]
    has_launch = kernels["launch_start"].notna()
    choices = (
        (operation >= 0, None),
        (~has_calls, Reason.NO_CALLS),
        (kernels["graph_node_id"].notna(), Reason.IN_GRAPH),
        (~has_launch & (kernels["correlation_id"] < first_id), Reason.BEFORE_CAPTURE),
        (~has_launch, Reason.NO_LAUNCH),
    )
    return _first_that_holds(choices, Reason.OUTSIDE, len(kernels))


def _calls(calls: pd.DataFrame, matches: Found) -> pd.DataFrame:
    is_communication = roles_of(calls["name"]) == Role.COMMUNICATION
    units, of_call, of_kernel = matches.units, matches.matching.of_call, matches.matching.of_kernel
    # A management call of a group belongs to the first operation that the group launched.
    of_unit = np.append(of_kernel, NONE)[first_of_each(matches.unit_of_kernel, len(units.window))]
    operation = np.where(of_call >= 0, of_call, np.append(of_unit, NONE)[units.of_call])
    count = len(matches.matching.is_estimated)
    kernels = np.append(np.bincount(of_kernel[of_kernel >= 0], minlength=count), 0)[operation]
    window = np.append(units.window, NONE)[units.of_call]
    choices = ((~is_communication | (kernels > 0), None), (window == NONE, Reason.GROUP_IS_OPEN))
    states = _states(kernels > 0, matches, operation)
    frame = calls.assign(
        collective=by_name(calls["name"], collective_of_api),
        state=np.where(is_communication, states, None),
        reason=_first_that_holds(choices, Reason.NO_KERNEL, len(calls)),
        operation=operation,
        partners=kernels,
        partner=np.append(first_of_each(of_kernel, count), NONE)[operation],
    )
    return _compact(frame)


def _first_that_holds(choices: tuple[tuple[Any, Reason | None], ...], otherwise: Reason, count: int) -> Any:
    """Return the word of the first condition that holds, for ``count`` rows; missing conditions do not hold."""
    words = np.full(count, otherwise.value, object)
    for condition, word in reversed(choices):
        holds = np.asarray(condition.fillna(False) if hasattr(condition, "fillna") else condition, bool)
        words[holds] = None if word is None else word.value
    return words


def _compact(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype({key: "category" for key in _FEW_VALUES if key in frame.columns})


def joined(parts: Sequence[Frames]) -> Frames:
    """Join the ``kernels`` and ``calls`` of all parts, in order; renumber operations and partners.

    A communicator's number of ranks, if one report records it, fills the gaps of all reports.
    """
    if len(parts) == 1:
        return parts[0]
    kernel_parts, call_parts = [], []
    operations = first_kernel = first_call = 0
    for kernels, calls in parts:
        kernel_parts.append(_moved(kernels, operations, first_call))
        call_parts.append(_moved(calls, operations, first_kernel))
        operations += 1 + max((int(frame["operation"].max()) for frame in (kernels, calls) if len(frame)), default=-1)
        first_kernel += len(kernels)
        first_call += len(calls)
    kernels, calls = _below_each_other(kernel_parts), _below_each_other(call_parts)
    ranks_by_communicator = calls.groupby("communicator", observed=True)["ranks"].max()
    return tuple(frame.assign(ranks=_filled(frame, ranks_by_communicator)) for frame in (kernels, calls))


def _moved(frame: pd.DataFrame, operations: int, partners: int) -> pd.DataFrame:
    """Shift a frame's numbers past earlier parts, which have these numbers of operations and of partner rows."""
    numbers = {"operation": operations, "partner": partners}
    return frame.assign(
        **{key: np.where(frame[key] >= 0, frame[key] + shift, frame[key]) for key, shift in numbers.items()}
    )


def _below_each_other(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Join frames and store each text once: pandas does not if the frames' texts differ."""
    import pandas as pd
    from pandas.api.types import union_categoricals

    texts = [key for key in frames[0].columns if isinstance(frames[0][key].dtype, pd.CategoricalDtype)]
    numbers = pd.concat([frame.drop(columns=texts) for frame in frames], ignore_index=True)
    coded: dict[str, Any] = {key: union_categoricals([frame[key] for frame in frames]) for key in texts}
    return numbers.assign(**coded)[list(frames[0].columns)]


def _filled(frame: pd.DataFrame, ranks_by_communicator: DataSeries) -> DataSeries:
    ranks = frame["ranks"].astype("Int64")
    recorded = ranks_by_communicator.reindex(frame["communicator"].astype(object)).astype("Int64").set_axis(frame.index)
    return ranks.fillna(recorded)


@dataclass(frozen=True, eq=False)
class NcclPairing:
    """Every kernel that communicates, every call's copies (`nccl_copies`) and every NCCL call, with their partners.

    ``kernels`` and ``calls`` are pandas frames with the index 0, 1, …; times are job time in ns.

    Both: ``report``, ``process``, ``row`` (identity: of ``kernels`` and of ``nvtx_ranges``), ``rank``, ``start``,
    ``end`` (missing in a call that never returned), ``name``, ``collective``, ``message_size`` (bytes),
    ``communicator``, ``ranks`` (in it), ``peer``, ``root``, ``reduction``, ``datatype`` (the width of an element),
    ``state``, ``reason`` (if unpaired), ``operation`` (a number that its kernels and calls share, or -1), ``partners``
    (the number of its rows in the other frame) and ``partner`` (the index of the first, or -1).

    ``kernels``: also ``backend`` (of `BACKENDS`; only NCCL's have calls), ``device``, ``stream``, and ``launch_start``
    and ``launch_thread`` (missing if the launch was not recorded). A call's copies are a row with ``COPIES_BACKEND``,
    from the first start to the last end; their ``row`` is the negative row of the first in `memory_ops`. ``collective``
    is from its calls and PyTorch's label, or, if unpaired, from its name. ``message_size`` is the sum over its calls,
    for sends and receives both ways; ``one_way``, only for these, is the larger direction. Kernels that share calls get
    even shares, and are estimated.

    ``calls``: also ``thread`` and ``size_source`` (``payload``, ``instrumented``, ``copies`` or ``log``). Management
    calls have no ``collective`` and ``state``; in a group, they have its operation and partner. Ranges inside another
    call (of an instrumented NCCL) are left out.
    """

    kernels: pd.DataFrame
    calls: pd.DataFrame
    notes: tuple[str, ...] = ()  # remarks on added columns (the sizes of a debug log)
    together: Together = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        session: Session,
        ranks: Sequence[RankedTask] = (),
        log: LogSizes | None = None,
        reports: Collection[int] | None = None,
    ) -> NcclPairing:
        """Pair the calls and kernels of all open reports, or of ``reports``; ``ranks`` gives each row its rank.

        ``log`` adds the sizes of calls that the exports lack, and of kernels without calls.
        """
        selected_reports = [report for report in session.reports if reports is None or report.index in reports]
        if log is None:
            # In runs: DuckDB would join the kernels of all reports with the calls of all reports.
            compute = partial(_assembled, ranks)
            parts = list(
                in_runs(session, selected_reports, compute, tables.api_calls, "pairs of NCCL calls and kernels")
            )
            return cls(*joined(parts or [compute(session, [])]))
        from nsystui.questions.nccl.from_log import kernels_with_log_sizes, log_notes, with_log_sizes

        calls, *other_frames = _recorded(session, ranks, selected_reports)
        paired = assemble(calls, *other_frames)
        starts = ((report, report.metadata.session_start_utc) for report in selected_reports)
        utc = {report.index: start - report.clock_offset for report, start in starts if start is not None}
        calls, reasons = with_log_sizes(calls, paired, log, utc)
        kernels, calls = assemble(calls, *other_frames)
        kernels, kernel_reasons = kernels_with_log_sizes(kernels, log)
        return cls(kernels, calls, log_notes(kernels, calls, log, [*reasons, *kernel_reasons]))


def _assembled(ranks: Sequence[RankedTask], session: Session, reports: list[Report]) -> Frames:
    return assemble(*_recorded(session, ranks, reports))


def _recorded(session: Session, ranks: Sequence[RankedTask], reports: Sequence[Report]) -> tuple[pd.DataFrame, ...]:
    import pandas as pd

    indices = [report.index for report in reports]
    part = session.part(indices)
    kernels = part.frame(kernels_query(ranks, indices, communicating(part)))
    given_copies = rows_of_nccl_copies(part)
    if given_copies is not None:
        kernels = pd.concat([kernels, part.frame(copies_query(ranks, given_copies))], ignore_index=True)
        launched = kernels["launch_start"].fillna(kernels["start"])
        kernels = kernels.iloc[np.lexsort((whole(launched), whole(kernels["report"])))]
    first_ids = first_correlations_query(indices)
    if kernels["launch_start"].notna().all():
        first_ids = first_ids.limit(0)  # not used, and it would read every API call
    calls, labels = (part.frame(query) for query in (calls_query(ranks, indices), labels_query(indices)))
    return calls, kernels, labels, part.frame(first_ids)


def pairing_line(kernels: pd.DataFrame, calls: pd.DataFrame) -> str:
    """Return the line under a table: ``paired 64 of 66 NCCL kernels with their calls · 2 kernels: launched before …``.

    Kernels of other backends do not count. The line is empty if there are no kernels or no communication calls.
    """
    kernels = kernels[kernels["backend"] == NCCL_BACKEND]
    count = len(kernels)
    if not count or not calls["state"].notna().any():
        return ""
    unpaired, estimated = (
        int((kernels["state"] == state.value).sum()) for state in (PairingState.UNPAIRED, PairingState.ESTIMATED)
    )
    whose = "its call" if count == 1 else "their calls"
    parts = [f"paired {counted(count - unpaired, 'NCCL kernel', among=count)} with {whose}"]
    if estimated:
        parts[0] += f" ({estimated:,} estimated)"
    for word, frame in (("kernel", kernels), ("call", calls)):
        counts = frame["reason"].value_counts()
        reasons = [(int(counts.get(reason.value, 0)), reason.value) for reason in Reason]
        by_count = sorted(reasons, key=lambda item: -item[0])
        parts += [f"{counted(number, word)}: {reason}" for number, reason in by_count if number]
    return " · ".join(parts)
