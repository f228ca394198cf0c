"""What the lines of a debug log say, one frozen value for each line that says something."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nsystui.exports.nccl_log.datatypes import datatype_size


@dataclass(frozen=True, slots=True)
class Process:
    """Who wrote a line, from its ``host:pid:tid``."""

    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Writer:
    """A process and the device that its thread had set when it wrote, from ``host:pid:tid [device]``.

    The device is the CUDA ordinal inside of the process, 0 for every rank under ``CUDA_VISIBLE_DEVICES``. Where one
    thread drives several GPUs it may be another one than that of the call (measured with ``nccl-tests -g 2``).
    """

    process: Process
    device: int


@dataclass(frozen=True, slots=True)
class Signature:
    """What calls have in common that differ in opCount and buffers alone.

    A job makes few kinds of calls very often: they share one value. ``count`` is in elements, ``root`` is the peer of
    Send and Recv, ``communicator`` the pointer that means something in this process only, ``ranks`` its size,
    ``global_rank`` RCCL's. ``None`` is what the line does not say or lost. ``is_folded``: Ray left out lines like it.
    """

    writer: Writer | None
    op: str
    count: int
    datatype: int
    reduction: int | None = None
    root: int | None = None
    communicator: int | None = None
    ranks: int | None = None
    global_rank: int | None = None
    is_folded: bool = False

    @property
    def size(self) -> int | None:
        """The message size in bytes, exact: count × size of the data type, not multiplied by the ranks."""
        element = datatype_size(self.datatype)
        return None if element is None else self.count * element


@dataclass(frozen=True, slots=True)
class Call:
    """A collective or point-to-point call. NCCL counts them per communicator; calls of one group share a count."""

    signature: Signature
    op_count: int


class CommunicatorState(Enum):
    """What happened to a communicator."""

    STARTED = "Init START"
    COMPLETE = "Init COMPLETE"
    DESTROYED = "Destroy COMPLETE"
    ABORTED = "Abort COMPLETE"


@dataclass(frozen=True, slots=True)
class CommunicatorLine:
    """A communicator begins or ends in a process.

    ``pointer`` is what its calls name, ``device`` the CUDA ordinal of its GPU. ``unique_id`` is ``commId``, the same on
    all ranks (since NCCL 2.16; splits of 2.24 and later have none, but ``parent``, ``split_count`` and ``color``).
    """

    writer: Writer | None
    state: CommunicatorState
    pointer: int
    rank: int
    ranks: int
    device: int | None = None
    unique_id: int | None = None
    parent: int | None = None
    split_count: int | None = None
    color: int | None = None


@dataclass(frozen=True, slots=True)
class TuningLine:
    """What NCCL chose for an operation: the only place that tells the algorithm that really runs.

    ``size``: bytes as the tuner counts them, of all ranks together for AllGather, ReduceScatter and AlltoAll.
    ``op`` is ``None`` up to NCCL 2.22. ``algorithm`` is the kernel for symmetric memory and the copy for copy engines.
    """

    op: str | None
    size: int
    algorithm: str
    protocol: str | None = None
    channels: int | None = None


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """NeMo's line at the end of an iteration. ``step_time`` in seconds, ``tflops`` in 10¹² FLOP/s for one GPU."""

    epoch: int
    iteration: int
    step_time: float | None = None
    tflops: float | None = None


class Damage(Enum):
    """Why a call could not be read."""

    CUT_SHORT = "cut short before the datatype"
    HEADLESS = "without the beginning"


@dataclass(frozen=True, slots=True)
class Unread:
    """A piece of a line that counts an operation (``opCount``) and is no whole call: nothing is guessed of it."""

    damage: Damage


Line = Call | CommunicatorLine | TuningLine | TrainingStep | Unread
