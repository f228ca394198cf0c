"""The tables of who called: communicators, their ranks, and GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import HOST, PID, RANK, Column, Unit
from nsystui.questions.nccl_log.communicators import Member
from nsystui.questions.nccl_log.summary import Gpu, MemberCalls, Summary

_COMMUNICATOR = Column("communicator", header="Communicator", label="communicator")
_SIZE = Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=2)
_GPU = (
    HOST,
    PID.with_importance(1),
    Column("device", header="CUDA Device", label="device", unit=Unit.NUMBER),
)
_CALLS = Column("calls", header="Calls", label="calls", unit=Unit.COUNT)
_TOTAL = Column("total_bytes", header="Total Bytes", label="total", unit=Unit.BYTES)
_NONE = MemberCalls()
_UNKNOWN = (None,) * 4


def communicators_table(summary: Summary) -> TableAnswer:
    """Every communicator: how many ranks it has, which of them the log knows, and how their calls spread.

    Ranks that called less than others are where a job hangs, or whose lines are missing. What no line gives a name that
    all ranks share is in one row for each size.
    """
    columns = (
        _COMMUNICATOR,
        _SIZE,
        Column("in_log", header="Ranks in Log", label="in the log"),
        _CALLS,
        Column("least_per_rank", header="Least per Rank", label="least", unit=Unit.COUNT),
        Column("most_per_rank", header="Most per Rank", label="most", unit=Unit.COUNT),
        _TOTAL,
    )
    rows: list[Row] = []
    for (name, ranks), members in _by_communicator(summary).items():
        made = [summary.members.get(member, _NONE) for member in members]
        calls = [each.calls for each in made]
        # Where no calls were recorded at all, none of a communicator is not 0.
        numbers = (sum(calls), min(calls), max(calls), sum(each.bytes for each in made)) if summary.calls else _UNKNOWN
        known = _spans(member.rank for member in members)
        rows.append((name or f"{len(members)} without a name", ranks, known, *numbers))
    return TableAnswer("nccl-log-communicators", columns, rows, len(rows))


def ranks_table(summary: Summary) -> TableAnswer:
    """Every rank of every communicator with its GPU, its calls and its last opCount (hexadecimal, as in the log)."""
    columns = (
        _COMMUNICATOR,
        RANK,
        _SIZE,
        *_GPU,
        _CALLS,
        Column("last_op_count", header="Last opCount", label="last opCount"),
        _TOTAL,
    )
    rows: list[Row] = []
    for members in _by_communicator(summary).values():
        for member in sorted(members, key=lambda member: (member.rank is None, member.rank or 0)):
            made = summary.members.get(member, _NONE)
            last = f"{made.last_op_count:x}" if made.last_op_count >= 0 else None
            who = (member.communicator, member.rank, member.ranks, *_gpu(member))
            rows.append((*who, made.calls, last, made.bytes) if summary.calls else (*who, None, None, None))
    return TableAnswer("nccl-log-ranks", columns, rows, len(rows))


def gpus_table(summary: Summary) -> TableAnswer:
    """The calls of each GPU over all communicators; calls whose line lost its process are in one row without a GPU.

    The rank is RCCL's global one, else that in the largest communicator of the GPU.
    """
    columns = (
        RANK,
        *_GPU,
        Column("communicators", header="Communicators", label="communicators", unit=Unit.COUNT),
        _CALLS,
        _TOTAL,
    )
    found: dict[Gpu | None, list[Member]] = {}
    for member in summary.members:
        key = None if member.process is None else (member.process, member.device)
        found.setdefault(key, []).append(member)
    rows: list[Row] = []
    for members in found.values():
        made = [summary.members[member] for member in members]
        named = len({member.communicator for member in members} - {None})
        totals = sum(each.calls for each in made), sum(each.bytes for each in made)
        rows.append((_job_rank(members), *_gpu(members[0]), named, *totals))
    rows.sort(key=lambda row: [(cell is None, cell or 0) for cell in (row[0], row[2], row[3])])
    return TableAnswer("nccl-log-gpus", columns, rows, len(rows))


def _job_rank(members: Sequence[Member]) -> int | None:
    told = next((member.global_rank for member in members if member.global_rank is not None), None)
    if told is not None:
        return told
    largest = max(members, key=lambda member: member.ranks or 0)
    return largest.rank


def _gpu(member: Member) -> tuple[str | None, int | None, int | None]:
    if member.process is None:
        return None, None, None
    return member.process.host, member.process.pid, member.device


def _by_communicator(summary: Summary) -> dict[tuple[str | None, int | None], list[Member]]:
    """The ranks of each communicator by its name and size, first ones first; under no name, what ranks do not share."""
    found: dict[tuple[str | None, int | None], list[Member]] = {}
    for member in summary.communicators.members:
        found.setdefault((member.communicator if member.is_shared else None, member.ranks), []).append(member)
    return dict(sorted(found.items(), key=lambda item: item[0][0] is None))


def _spans(numbers: Iterable[int | None]) -> str | None:
    """``0-3,6`` of {0, 1, 2, 3, 6}; ``None`` where no rank is known."""
    known = sorted({number for number in numbers if number is not None})
    spans: list[list[int]] = []
    for number in known:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in spans) or None
