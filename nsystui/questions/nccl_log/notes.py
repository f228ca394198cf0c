"""The sentences that belong to the numbers of a debug log: what they leave out, and how to record it."""

from __future__ import annotations

from collections.abc import Iterator

from nsystui.exports.nccl_log.lines import Damage, datatype_size
from nsystui.questions.nccl_log.steps import StepCut
from nsystui.questions.nccl_log.summary import Summary

_RECORD = "record with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING"


def notes(summary: Summary, cut: StepCut | None = None) -> tuple[str, ...]:
    """What the tables of a log have to say of themselves; ``cut`` is what chose its lines, if they were chosen."""
    return tuple(_notes(summary, cut))


def _notes(summary: Summary, cut: StepCut | None) -> Iterator[str]:
    unread = [f"{summary.unread[damage]:,} {damage.value}" for damage in Damage if summary.unread[damage]]
    why = f" ({', '.join(unread)})" if unread else ""
    found = f"{_many(summary.calls, 'call')} in {_many(summary.lines, 'line')}"
    yield f"{found}; {summary.unread.total():,} more could not be read{why}"
    if cut is not None:
        yield (
            f"--steps chose {_many(cut.chosen, 'training line')}, {_many(cut.outside, 'call')} left out: the calls "
            "after the line of an iteration count as its own"
        )
    if not summary.calls:
        yield f"no calls: {_RECORD}"
        return
    yield (
        f"message sizes are those of one rank's call, from {_many(len(summary.gpus()), 'GPU')}; for AllGather, "
        "ReduceScatter, AlltoAll, Gather and Scatter that is one rank's share of the whole"
    )
    yield from _missing(summary)


def _missing(summary: Summary) -> Iterator[str]:
    homeless = sum(made.calls for member, made in summary.members.items() if member.process is None)
    if homeless:
        yield f"{_many(homeless, 'call')} lost the host and process before it: counted, but for no GPU"
    unnamed = sum(made.calls for member, made in summary.members.items() if member.communicator is None)
    if unnamed:
        yield f"{_many(unnamed, 'call')} lost the communicator: counted, but for none"
    pointers = sum(not member.is_shared and member.communicator is not None for member in summary.members)
    if pointers:
        yield (
            f"no line says which ranks share the communicators of {_many(pointers, 'pointer')} of single processes: "
            f"{_RECORD}"
        )
    empty = sum(number for kind, number in summary.kinds.items() if kind.elements == 0)
    if empty:
        yield f"{_many(empty, 'call')} with count 0: counted as 0 bytes, while the awk scripts leave them out"
    strange = sum(number for kind, number in summary.kinds.items() if datatype_size(kind.datatype) is None)
    if strange:
        yield f"{_many(strange, 'call')} of a datatype whose size is not known: counted, but for no bytes"
    if summary.folded:
        yield f"{_many(summary.folded, 'line')} of several calls each, as Ray folded them: record with RAY_DEDUP_LOGS=0"


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def nothing(summary: Summary, cut: StepCut | None = None) -> str:
    """Why there is no table at all, and what to do, for a log without anything in it."""
    if cut is not None and cut.first is not None:
        return f"none of the iterations is in these logs: they have {cut.first} to {cut.last}"
    if cut is not None:
        return "no training lines in these logs to cut them by (`Training epoch 0, iteration 45/99`): leave --steps out"
    if summary.unread:
        return f"none of the {summary.unread.total():,} calls in {summary.lines:,} lines could be read: is it cut up?"
    return f"no calls of NCCL in {summary.lines:,} lines: {_RECORD}"
