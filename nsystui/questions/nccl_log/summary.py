"""The sums of a debug log, or of some training iterations in it, added up while it is read.

Memory grows with the number of different message sizes, GPUs and communicators, not with the log.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nsystui.base.errors import UsageError
from nsystui.base.text import counted, whole_number
from nsystui.exports.nccl_log.files import Reported, TrainingStep
from nsystui.exports.nccl_log.inspector import InspectedCall, InspectedKind, InspectedRank
from nsystui.exports.nccl_log.lines import (
    Call,
    CommunicatorLine,
    Damage,
    Line,
    LogProcess,
    Signature,
    TuningLine,
    Unread,
    datatype_size,
)
from nsystui.exports.nccl_log.topology import TopologyLine
from nsystui.questions.nccl.communicators import CommunicatorRank, Communicators
from nsystui.questions.nccl.names import bucket_of
from nsystui.questions.nccl_log.topology import Topology

_PENDING_LIMIT = 50_000
_ITERATION_LIMIT = 100_000
_ALWAYS = (CommunicatorLine, TopologyLine)


@dataclass(frozen=True)
class IterationSpan:
    """The iterations from ``first`` to ``last``, both included; ``None`` is an open end."""

    first: int | None = None
    last: int | None = None

    def __contains__(self, iteration: int) -> bool:
        return (self.first is None or self.first <= iteration) and (self.last is None or iteration <= self.last)

    def __str__(self) -> str:
        return f"{'' if self.first is None else self.first}:{'' if self.last is None else self.last}"


def steps_of(text: str) -> IterationSpan:
    """Parse ``45:50``, ``45:``, ``:50`` or ``45``. Raises UsageError."""
    first, colon, last = (word.strip() for word in text.partition(":"))
    low, high = whole_number(first), whole_number(last)
    if not (first or last) or (first and low is None) or (last and high is None):
        raise UsageError(f"steps {text!r}: write A:B, such as 45:50 (both included), A: or :B")
    if not colon:
        high = low
    if low is not None and high is not None and high < low:
        raise UsageError(f"steps {text!r}: {low}:{high} goes backwards")
    return IterationSpan(low, high)


class StepCut:
    """A filter for the lines of some iterations, log by log.

    The lines from iteration N's training line to the next training line count as N's, as in ``1-separate-steps.awk``.
    NeMo writes the line when the iteration is over, so these are the calls of the next iteration. Communicators and
    their topology always pass, because they precede the training.

    ``heard``: the iterations of the training lines; ``chosen``: how many of them passed; ``outside``: the number of
    calls left out.
    """

    def __init__(self, steps: IterationSpan) -> None:
        self._steps = steps
        self.heard = MeanAndEnds()
        self.chosen = self.outside = 0

    def of(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the lines of one log that pass."""
        is_inside = False
        for line in lines:
            if type(line) is TrainingStep:
                is_inside = line.iteration in self._steps
                self.heard.add(line.iteration)
                self.chosen += is_inside
            if is_inside or type(line) in _ALWAYS:
                yield line
            elif type(line) in (Call, InspectedCall):
                self.outside += 1


class CallKind(NamedTuple):
    """Calls of one op with one count of elements and one data type (NCCL's number)."""

    op: str
    elements: int
    datatype: int

    @property
    def size(self) -> int | None:
        """The message size in bytes; ``None`` if the data type is unknown."""
        element = datatype_size(self.datatype)
        return None if element is None else self.elements * element


LogGpu = tuple[LogProcess, int | None]
"""A process, and the CUDA ordinal of a device in it."""


@dataclass
class MemberCalls:
    """The calls of one rank of a communicator by op and bucket of message size, and their known bytes."""

    by_bucket: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    calls: int = 0
    bytes: int = 0
    last_op_count: int = -1


@dataclass
class MeanAndEnds:
    """The mean, minimum and maximum of added values; ``None`` without values."""

    number: int = 0
    total: float = 0.0
    minimum: float | None = None
    maximum: float | None = None

    def add(self, value: float | None) -> None:
        """Add a value; a missing value does not count as 0."""
        if value is not None:
            self.number += 1
            self.total += value
            self.minimum = value if self.minimum is None else min(self.minimum, value)
            self.maximum = value if self.maximum is None else max(self.maximum, value)

    @property
    def mean(self) -> float | None:
        return self.total / self.number if self.number else None


@dataclass
class InspectedCalls:
    """Calls as NCCL Inspector measured them: times (ns) and bus bandwidths (bytes/s)."""

    number: int = 0
    time: MeanAndEnds = field(default_factory=MeanAndEnds)
    busbw: MeanAndEnds = field(default_factory=MeanAndEnds)

    def add(self, call: InspectedCall) -> None:
        self.number += 1
        self.time.add(call.time)
        self.busbw.add(call.busbw)


@dataclass
class _Pending:
    """Equal lines that are not added up yet: calls of one signature, or a choice of the tuner."""

    content: Signature | TuningLine
    number: int = 0
    last_op_count: int = -1


class LogSummary:
    """The sums of one or more logs.

    ``lines`` (read) and ``results`` (of nccl-tests) are from the reader. ``kinds``: calls by `CallKind`. ``members``:
    the calls of each rank of each communicator. ``tuning``: the number of each choice of the tuner. ``topology``: how
    NCCL connected the ranks. ``unread``: the number of unread pieces of calls by reason. ``training_lines``: their
    iterations, with ``step_time`` (seconds) and ``tflops`` if present.
    ``iterations``: each with the number of its lines, by epoch and number. ``folded``: calls with one line for several.
    ``inspected``: NCCL Inspector's calls by the communicator's ranks and nodes, and kind; they are not among ``kinds``,
    because the debug log of the same job has them, too. ``inspected_ends``: the number after each rank's last record of
    an op, and how many records it has.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.results: Sequence[Reported] = ()
        self.communicators = Communicators()
        self.topology = Topology()
        self.kinds: Counter[CallKind] = Counter()
        self.members: dict[CommunicatorRank, MemberCalls] = {}
        self.tuning: Counter[TuningLine] = Counter()
        self.unread: Counter[Damage] = Counter()
        self.communicator_lines = self.folded = 0
        self.training_lines, self.step_time, self.tflops = MeanAndEnds(), MeanAndEnds(), MeanAndEnds()
        self.iterations: dict[tuple[int | None, int], tuple[TrainingStep, int]] = {}
        self.iterations_left_out = 0
        self.inspected: dict[tuple[int | None, int | None, InspectedKind], InspectedCalls] = {}
        self.inspected_ends: dict[tuple[InspectedRank, str], tuple[int, int]] = {}
        self._pending: dict[int, _Pending] = {}

    def add(self, lines: Iterable[Line]) -> None:
        """Add the lines of a log. Raises what ``lines`` raises, after adding the lines before."""
        try:
            for line in lines:
                # By identity: the reader repeats the same objects, and comparing values costs more than all else.
                if type(line) is Call:
                    signature = line.signature
                    pending = self._pending.get(id(signature)) or self._new_pending(signature)
                    pending.number += 1
                    if line.op_count > pending.last_op_count:
                        pending.last_op_count = line.op_count
                elif type(line) is TuningLine:
                    (self._pending.get(id(line)) or self._new_pending(line)).number += 1
                elif type(line) is InspectedCall:
                    key = line.rank.ranks, line.rank.nodes, line.kind
                    self.inspected.setdefault(key, InspectedCalls()).add(line)
                    if line.number is not None:
                        end, number = self.inspected_ends.get((line.rank, line.kind.op), (0, 0))
                        self.inspected_ends[line.rank, line.kind.op] = max(end, line.number + 1), number + 1
                else:
                    self._add_other(line)
        finally:
            self._settle()

    @property
    def calls(self) -> int:
        """The number of calls."""
        return self.kinds.total()

    @property
    def inspected_calls(self) -> int:
        """The number of NCCL Inspector's calls."""
        return sum(calls.number for calls in self.inspected.values())

    def gpus(self) -> dict[LogGpu, Counter[tuple[str, str | None]]]:
        """Return the calls of each GPU by op and bucket, without calls of an unknown process."""
        calls_by_gpu: dict[LogGpu, Counter[tuple[str, str | None]]] = {}
        for member, member_calls in self.members.items():
            if member.process is not None:
                calls_by_gpu.setdefault((member.process, member.device), Counter()).update(member_calls.by_bucket)
        return calls_by_gpu

    def _new_pending(self, content: Signature | TuningLine) -> _Pending:
        if len(self._pending) >= _PENDING_LIMIT:
            self._settle()
        pending = self._pending[id(content)] = _Pending(content)
        return pending

    def _add_other(self, line: Line) -> None:
        if isinstance(line, CommunicatorLine):
            # The pointer may now mean another communicator than in the pending calls.
            self._settle()
            self.topology.hear_member(line, self.communicators.hear(line))
            self.communicator_lines += 1
        elif isinstance(line, TopologyLine):
            self.topology.hear(line)
        elif isinstance(line, TrainingStep):
            self.training_lines.add(line.iteration)
            self.step_time.add(line.step_time)
            self.tflops.add(line.tflops)
            self._add_iteration(line)
        elif isinstance(line, Unread):
            self.unread[line.damage] += line.number

    def _add_iteration(self, line: TrainingStep) -> None:
        """Add a line of an iteration, which may have several (progress bars, ranks, timers): first values count."""
        key = line.epoch, line.iteration
        if key not in self.iterations and len(self.iterations) >= _ITERATION_LIMIT:
            self.iterations_left_out += 1
            return
        previous, number = self.iterations.get(key, (line, 0))
        merged = TrainingStep(
            *key,
            previous.step_time if previous.step_time is not None else line.step_time,
            previous.tflops if previous.tflops is not None else line.tflops,
            previous.loss if previous.loss is not None else line.loss,
        )
        self.iterations[key] = merged, number + 1

    def _settle(self) -> None:
        for pending in self._pending.values():
            if isinstance(pending.content, TuningLine):
                self.tuning[pending.content] += pending.number
            else:
                self._add_calls(pending.content, pending.number, pending.last_op_count)
        self._pending.clear()

    def _add_calls(self, signature: Signature, number: int, last_op_count: int) -> None:
        self.kinds[CallKind(signature.op, signature.count, signature.datatype)] += number
        self.folded += number if signature.is_folded else 0
        member_calls = self.members.setdefault(self.communicators.member_of(signature, number), MemberCalls())
        member_calls.by_bucket[signature.op, bucket_of(signature.size)] += number
        member_calls.calls += number
        member_calls.bytes += number * (signature.size or 0)
        member_calls.last_op_count = max(member_calls.last_op_count, last_op_count)


_RECORD = "record with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING"


def notes(summary: LogSummary, cut: StepCut | None = None) -> Iterator[str]:
    """Yield the notes of a log's tables; ``cut`` filters its lines."""
    unread = [f"{summary.unread[damage]:,} {damage.value}" for damage in Damage if summary.unread[damage]]
    reasons = f" ({', '.join(unread)})" if unread else ""
    calls_and_lines = f"{counted(summary.calls + summary.inspected_calls, 'call')} in {counted(summary.lines, 'line')}"
    yield f"{calls_and_lines}; {summary.unread.total():,} more could not be read{reasons}"
    if cut is not None:
        yield (
            f"--steps chose {counted(cut.chosen, 'training line')}, {counted(cut.outside, 'call')} left out; the calls "
            f"after the line of an iteration belong to it"
        )
    if summary.iterations_left_out:
        left_out = counted(summary.iterations_left_out, "line")
        yield f"the table of iterations has the first {_ITERATION_LIMIT:,}; {left_out} of later iterations are left out"
    if summary.topology.left_out:
        yield f"the topology is too large: {counted(summary.topology.left_out, 'part')} left out"
    if absent := sum(max(end - number, 0) for end, number in summary.inspected_ends.values()):
        yield (
            f"NCCL Inspector has no record of {counted(absent, 'collective')}: messages below "
            "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES, calls without GPU time, or records dropped from full rings"
        )
    if not summary.calls:
        if not summary.inspected:
            yield f"no calls: {_RECORD}"
        return
    yield (
        f"message sizes are of one rank's call, read from {counted(len(summary.gpus()), 'GPU')}; for AllGather, "
        "ReduceScatter, AlltoAll, Gather and Scatter that is one rank's share of the whole"
    )
    yield from _missing(summary)


def _missing(summary: LogSummary) -> Iterator[str]:
    without_process = sum(calls.calls for member, calls in summary.members.items() if member.process is None)
    if without_process:
        yield f"{counted(without_process, 'call')} without host and process: counted in the totals, but not per GPU"
    unnamed = sum(calls.calls for member, calls in summary.members.items() if member.communicator is None)
    if unnamed:
        yield f"{counted(unnamed, 'call')} without a communicator: counted in the totals, but not per communicator"
    pointers = sum(not member.is_shared and member.communicator is not None for member in summary.members)
    if pointers:
        yield (
            f"no line names the ranks of the communicators of {counted(pointers, 'pointer')} of single processes: "
            f"{_RECORD}"
        )
    empty = sum(number for kind, number in summary.kinds.items() if kind.elements == 0)
    if empty:
        yield f"{counted(empty, 'call')} with count 0: counted as 0 bytes, while the awk scripts leave them out"
    unsized = sum(number for kind, number in summary.kinds.items() if datatype_size(kind.datatype) is None)
    if unsized:
        yield f"{counted(unsized, 'call')} of a datatype whose size is not known: counted without their bytes"
    if summary.folded:
        folded = counted(summary.folded, "line")
        yield f"{folded} of several calls each, as Ray folded them: record with RAY_DEDUP_LOGS=0"


def nothing(summary: LogSummary, cut: StepCut | None = None) -> str:
    """Return why a log without calls has no tables, and what to do."""
    if cut is not None and cut.heard.number:
        return f"none of the iterations is in these logs: they have {cut.heard.minimum} to {cut.heard.maximum}"
    if cut is not None:
        lines = "such as NeMo's `Training epoch 0, iteration 45/99`"
        return f"these logs have no training lines ({lines}) to cut them by: leave --steps out"
    size = counted(summary.lines, "line")
    if summary.unread:
        hint = " (a record of NCCL Inspector is one line)" if summary.unread[Damage.RECORD] else ""
        cause = f"are lines cut?{hint}"
        return f"none of {counted(summary.unread.total(), 'call')} in {size} could be read: {cause}"
    return f"no calls of NCCL in {size}: {_RECORD}, or with NCCL Inspector"
