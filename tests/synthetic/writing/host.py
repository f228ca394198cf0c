"""The host's side of an export: scheduling of threads, CPU samples, call stacks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple
from zlib import crc32

from synthetic.writing.target import Process, TargetInfo, Thread

RUNNING: Final = 1
INTERRUPTIBLE: Final = 2
UNINTERRUPTIBLE: Final = 3
"""Ids of ``ENUM_SAMPLING_THREAD_STATE``: a thread that leaves its CPU as running was preempted."""

_UNWIND_TABLE: Final = 2
_DEVICE_MEMORY: Final = 2


class Frame(NamedTuple):
    """One function of a call stack, as nsys resolved it: unresolved names are addresses."""

    function: str
    module: str
    is_kernel: bool = False
    is_unresolved: bool = False

    @property
    def address(self) -> int:
        """An instruction pointer, the same in every stack."""
        return _address(self.function, self.module)


@cache
def _address(function: str, module: str) -> int:
    return 0x7F00_0000_0000 + crc32(module.encode()) % 4096 * 0x100_0000 + crc32(function.encode()) % 0x100_0000


Stack = Sequence[Frame]
"""A call stack, the innermost function first."""


class HostEvents(TargetInfo):
    """The part of the writer for scheduling, samples, call stacks and GPU memory. Times are ns since the start."""

    _samples = 0
    _stacks = 0

    def switch(self, thread: Thread, time: int, cpu: int, *, is_in: bool, state: int | None = None) -> None:
        """Write that the thread gets a CPU, or leaves it in `state`."""
        self.rows("SCHED_EVENTS").append((time, cpu, int(is_in), thread.global_id, state, None))

    def sample(
        self, thread: Thread, time: int, stack: Stack, *, cpu: int = 0, state: int = RUNNING, cycles: int = 1
    ) -> int:
        """Write a CPU sample with its call stack; `cycles` 0 is a stack taken for another reason. Returns its id."""
        self._samples += 1
        self.rows("COMPOSITE_EVENTS").append((self._samples, time, cpu, state, thread.global_id, cycles))
        self.rows("SAMPLING_CALLCHAINS").extend(
            (self._samples, *values, _UNWIND_TABLE, depth, None) for depth, values in enumerate(self._frames(stack))
        )
        return self._samples

    def on_cpu(
        self,
        thread: Thread,
        start: int,
        end: int,
        stack: Stack = (),
        *,
        cpu: int = 0,
        period: int = 1_000_000,
        state: int = INTERRUPTIBLE,
    ) -> int:
        """Run the thread from `start` to `end`; it then leaves the CPU in `state`.

        With a `stack` it is sampled in the middle of each whole `period`; returns the number of samples.
        """
        self.switch(thread, start, cpu, is_in=True)
        self.switch(thread, end, cpu, is_in=False, state=state)
        count = (end - start) // period if stack else 0
        for number in range(count):
            self.sample(thread, start + number * period + period // 2, stack, cpu=cpu)
        return count

    def os_stack(self, stack: Stack) -> int:
        """Write the call stack of an OS runtime call; return its ``callchainId``."""
        self._stacks += 1
        self.rows("OSRT_CALLCHAINS").extend(
            (self._stacks, *values, None, depth) for depth, values in enumerate(self._frames(stack))
        )
        return self._stacks

    def cuda_stack(self, stack: Stack) -> int:
        """Write the call stack of a CUDA call; return its ``callchainId``."""
        self._stacks += 1
        self.rows("CUDA_CALLCHAINS").extend(
            (self._stacks, symbol, module, unresolved, address, depth)
            for depth, (symbol, module, _, _, unresolved, _, address) in enumerate(self._frames(stack))
        )
        return self._stacks

    def _frames(self, stack: Stack) -> list[tuple[int, int, int | None, None, int | None, None, int]]:
        """Return the columns from ``symbol`` to ``originalIP``; nsys writes NULL for false."""
        return [
            (
                self.intern(frame.function), self.intern(frame.module), frame.is_kernel or None, None,
                frame.is_unresolved or None, None, frame.address,
            )
            for frame in stack
        ]  # fmt: skip

    def gpu_memory(
        self,
        process: Process,
        device: int,
        time: int,
        size: int,
        *,
        address: int,
        is_free: bool = False,
        memory: int = _DEVICE_MEMORY,
        correlation_id: int | None = None,
        context: int | None = 1,
        name: str | None = None,
    ) -> None:
        """Write an allocation of `size` bytes in memory of kind `memory`, or with `is_free` its end."""
        self.rows("CUDA_GPU_MEMORY_USAGE_EVENTS").append(
            (
                time, process.global_id, device, context, address, 0, size, memory, int(is_free), name, correlation_id,
                *(None,) * 6,
            )
        )  # fmt: skip
