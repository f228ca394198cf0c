"""Programs of one process, written call by call: kernels, copies, graphs, events and waits, by hand or by chance."""

import random
from collections import defaultdict
from itertools import count
from typing import Any

from .writer import ExportWriter
from .writing.target import Thread
from .writing.writer import DRIVER_CALL, EVENT_SYNC, NO_EVENT, NO_STREAM, STREAM_SYNC, STREAM_WAIT_EVENT

BLOCKING, NON_BLOCKING, DEFAULT = 1, 2, 3
"""Values of ``flag`` of a stream."""
Span = tuple[int, int]
GEMM, NCCL, CUSTOM = (
    "void gemm<float>(float *)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm *)",
    "void vllm::cross_device_reduce_1stage<half, 2>(RankData *)",
)


class Program:
    """A process of an export, with its calls in order of time. A span is (begin, end), ns."""

    def __init__(self, export: ExportWriter, pid: int) -> None:
        self.export, self.pid = export, pid
        self.process = export.process(pid)
        self.main, self.helper = export.thread(self.process, pid, "python"), export.thread(self.process, pid + 1, "aux")
        self.ids = count(1)

    def stream(self, stream: int, flag: int, context: int = 1) -> None:
        self.export.rows("TARGET_INFO_CUDA_STREAM").append((stream, 0, 1, self.pid, context, 0, flag))

    def call(self, name: str, span: Span, thread: Thread | None = None, **how: Any) -> int:
        """Write a call of the CUDA API; returns its correlation id."""
        number = next(self.ids)
        self.export.api(thread or self.main, *span, name, number, **how)
        return number

    def kernel(
        self, called: Span | None, span: Span, stream: int = 13, name: str = GEMM, device: int = 0, **how: Any
    ) -> None:
        """Write a kernel and the call that launched it; without ``called`` the call has no row."""
        number = next(self.ids) if called is None else self.call("cudaLaunchKernel_v7000", called)
        place = {"name": name, "correlation_id": number, "context": device + 1} | how
        self.export.kernel(self.process, device, stream, *span, **place)

    def nccl(self, called: Span | None, span: Span, stream: int = 20, **how: Any) -> None:
        self.kernel(called, span, stream, NCCL, **how)

    def copy(self, called: Span, span: Span, stream: int = 13, kind: str = "HtoD", device: int = 0) -> None:
        number = self.call("cudaMemcpyAsync_v3020", called)
        place = {"correlation_id": number, "context": device + 1}
        self.export.memcpy(self.process, device, stream, *span, size=64, kind=kind, **place)

    def migrate(self, span: Span, kind: str = "UvmHtoD", stream: int = 0, number: int | None = 0, **how: Any) -> None:
        """Write a migration of unified memory: it has no call, and its stream is not its own."""
        self.export.memcpy(self.process, 0, stream, *span, size=64, kind=kind, correlation_id=number, **how)

    def memset(self, called: Span, span: Span, stream: int = 13, device: int = 0) -> None:
        number = self.call("cudaMemsetAsync_v3020", called)
        place = {"correlation_id": number, "context": device + 1}
        self.export.memset(self.process, device, stream, *span, size=64, **place)

    def nodes(self, called: Span, *spans: Span, stream: int = 13, name: str = GEMM, device: int = 0) -> None:
        """Write a CUDA graph that is traced node by node."""
        number = self.call("cudaGraphLaunch_v10000", called)
        for node, span in enumerate(spans):
            place = {"correlation_id": number, "context": device + 1, "graph_node_id": 100 + node, "graph_id": 1}
            self.export.kernel(self.process, device, stream, *span, name=name, **place)

    def graph(self, called: Span, span: Span, stream: int = 13, device: int = 0) -> None:
        """Write a CUDA graph that is traced as a whole."""
        number = self.call("cudaGraphLaunch_v10000", called)
        place = {"graph_id": 1, "graph_exec_id": 2, "correlation_id": number, "context": device + 1}
        self.export.graph_launch(self.process, device, stream, *span, **place)

    def host_function(
        self, called: Span, span: Span, stream: int = 13, device: int = 0, node: int | None = None
    ) -> None:
        """Write a function on the CPU for which a stream waits, or with ``node`` a graph's host node."""
        number = self.call("cudaLaunchHostFunc_v10000" if node is None else "cudaGraphLaunch_v10000", called)
        row = (*span, device, device + 1, 0, stream, number, self.process.global_id, node, node and 1)
        self.export.rows("CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH").append(row)

    def record(
        self, at: int, event: int, stream: int, sync: int = 0, device: int = 0, thread: Thread | None = None
    ) -> None:
        number = self.call("cudaEventRecord_v3020", (at, at + 1), thread)
        row = (0, device, device + 1, 0, stream, number, self.process.global_id, event, sync)
        self.export.rows("CUPTI_ACTIVITY_KIND_CUDA_EVENT").append(row)

    def wait(
        self, at: int, event: int, stream: int, sync: int = 0, device: int = 0,
        name: str = "cudaStreamWaitEvent_v3020", kind: int = STREAM_WAIT_EVENT, **how: Any,
    ) -> None:  # fmt: skip
        """Write a row of synchronisation; `name` is the call's, `kind` the row's type."""
        number = self.call(name, (at, at + 1), **how)
        row = (at, at + 1, device, device + 1, 0, stream, number, self.process.global_id, None, kind, event, sync)
        self.export.rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION").append(row)

    def step(self, number: int, span: Span) -> None:
        self.export.nvtx_range(self.main, *span, f"step {number}")


class Dice(Program):
    """A random program, whose GPUs follow CUDA's rules: streams in order, events, the legacy default stream."""

    def __init__(self, export: ExportWriter, pid: int, seed: int) -> None:
        super().__init__(export, pid)
        self.dice = dice = random.Random(seed)
        self.now = dice.randrange(1_000)
        self.ready: dict[tuple[int, int], int] = defaultdict(int)
        self.events: dict[int, tuple[int, int]] = {}
        self.taken: set[int] = set()
        self.syncs = count(1) if dice.random() < 0.5 else None
        self.shift = dice.choice((0, 0, 1))
        self.flags = {}
        for device in range(dice.choice((1, 2, 2))):
            for place, flag in enumerate(dice.sample((DEFAULT, BLOCKING, NON_BLOCKING, NON_BLOCKING, BLOCKING), 3)):
                self.flags[device, 7 + 6 * device + 20 * place] = flag
                self.stream(7 + 6 * device + 20 * place, flag, device + 1)
        steps = dice.choice((0, 3, 5))
        for number in range(steps):
            begin = self.now
            self._act(dice.randrange(4, 25))
            self.step(number, (begin, self.now))
            self.now += dice.choice((1, 50, 400))
        self._act(dice.randrange(1, 30) if not steps else dice.randrange(3))
        # Each GPU has some compute.
        self._launch(0, 7, "kernel")

    def _act(self, times: int) -> None:
        dice = self.dice
        for _ in range(times):
            device, stream = dice.choice(list(self.flags))
            what = dice.choices(_ACTIONS, _WEIGHTS)[0]
            self.now += dice.choice((1, 3, 3, 10, 10, 60, 300))
            if what == "record":
                self._launch(device, stream, dice.choice(("kernel", "nccl", "HtoD", "memset")))
                event = dice.randrange(3)
                self.events[event] = self.ready[device, stream], next(self.syncs) if self.syncs else 0
                thread = dice.choice((self.main, self.helper))
                self.record(self.now, event + 40, stream, self.events[event][1], device, thread)
            elif what == "wait":
                event = dice.randrange(4)
                ready, sync = self.events.get(event, (0, 0))
                self.ready[device, stream] = max(self.ready[device, stream], ready)
                how = {"name": "cuStreamWaitEvent", "event_class": DRIVER_CALL} if dice.random() < 0.3 else {}
                self.wait(self.now, event + 40, stream, sync, device, kind=STREAM_WAIT_EVENT + self.shift, **how)
                if dice.random() < 0.7:
                    self.now += 2
                    self._launch(device, stream, "kernel")
            elif what == "event sync":
                event = dice.randrange(3)
                self.now = max(self.now, self.events.get(event, (0, 0))[0])
                sync = self.events.get(event, (0, 0))[1]
                kind = EVENT_SYNC + self.shift
                self.wait(self.now, event + 40, NO_STREAM, sync, device, "cudaEventSynchronize_v3020", kind)
            elif what == "stream sync":
                self.now = max(self.now, self.ready[device, stream])
                kind = STREAM_SYNC + self.shift
                self.wait(self.now, NO_EVENT, stream, 0, device, "cudaStreamSynchronize_v3020", kind)
            else:
                self._launch(device, stream, what)

    def _launch(self, device: int, stream: int, what: str) -> None:
        dice = self.dice
        if what == "migrate":
            self.migrate(self._run(0, NO_STREAM, (self.now, self.now)))
            return
        called = (self.now, self.now + dice.choice((2, 5, 5, 40, 200)))
        spans = [self._run(device, stream, called) for _ in range(dice.randrange(2, 5) if what == "nodes" else 1)]
        (span, *_) = spans
        self.now = called[1]
        if what == "kernel":
            self.kernel(called, span, stream, device=device)
        elif what == "lost":
            self.kernel(None, span, stream, device=device)
        elif what == "nccl":
            self.nccl(called, span, stream, device=device)
        elif what == "custom":
            self.kernel(called, span, stream, CUSTOM, device)
        elif what == "memset":
            self.memset(called, span, stream, device)
        elif what == "nodes":
            self.nodes(called, *spans, stream=stream, name=dice.choice((GEMM, GEMM, NCCL)), device=device)
        elif what == "host":
            self.host_function(called, span, stream, device)
        elif what == "graph":
            self.graph(called, span, stream, device)
        else:
            self.copy(called, span, stream, what, device)

    def _run(self, device: int, stream: int, called: Span) -> Span:
        """Return the span of an operation: after all that it waits for, or sometimes a little too early."""
        dice, flag = self.dice, self.flags.get((device, stream))
        ready = [self.ready[device, stream], called[0] + dice.choice((1, 8, 30))]
        for (other, its), kind in self.flags.items():
            if other == device and {flag, kind} == {BLOCKING, DEFAULT}:
                ready.append(self.ready[other, its])
        start = max(ready) + dice.choice((0, 1, 4, 20))
        if dice.random() < 0.05:
            start = max(start - 3, called[0] + 1)
        while start in self.taken:
            start += 1
        self.taken.add(start)
        end = start + dice.choice((1, 10, 40, 150, 400))
        self.ready[device, stream] = max(end, self.ready[device, stream])
        return start, end


_ACTIONS = (
    "kernel", "nccl", "custom", "HtoD", "DtoH", "DtoD", "PtoP", "memset", "record", "wait",
    "event sync", "stream sync", "nodes", "graph", "lost", "host", "migrate",
)  # fmt: skip
_WEIGHTS = (10, 3, 1, 2, 1, 1, 1, 1, 6, 6, 0.5, 0.5, 1, 0.5, 0.5, 0.7, 2)
