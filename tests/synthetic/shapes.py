"""Small exports of special shape: CUDA graphs, several processes, and the forms of NCCL."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Final

from synthetic.demo import nccl
from synthetic.demo.job import WORLD_STREAM
from synthetic.demo.model import LAYER_FORWARD, nccl_kernel
from synthetic.writing.target import DEFAULT_STREAM, CaptureSession

from .variants import launch_kernels, one_process, start_gpu_process
from .writer import ExportWriter


def two_process_export(path: str | Path, schema: str = "3.25.0") -> Path:
    """Write two ranks in one report, as torchrun inside nsys gives: processes 5000 (device 0) and 5001 (device 1).

    Each launches 100 kernels; the first has correlation ids 1–100, the second 23–122, so 78 ids are shared. Both have
    device context ``device + 1``. There is no rank in the environment.
    """
    session = CaptureSession(
        command=("torchrun", "--nproc_per_node=2", "train.py"), environment={"NCCL_VERSION": "2.25.1-1"}
    )
    with ExportWriter(path, schema, session=session) as export:
        export.gpu(0)
        export.gpu(1)
        export.process(4_990, "torchrun")
        for device in range(2):
            process, main = start_gpu_process(export, 5_000 + device, device=device)
            launch_kernels(export, process, main, 100, device=device, first_correlation=1 + 22 * device)
    return Path(path)


def whole_graph_export(path: str | Path, schema: str = "3.16.1") -> Path:
    """Write CUDA graphs traced as a whole: 10 launches of 80 ms, 1 ms apart, and 30 kernels of 50 µs before the first.

    Graph n starts at 100 ms + n · 81 ms, has correlation id 101 + n, graphId 4 and graphExecId 5; its
    ``cudaGraphLaunch_v10000`` call lasts 100 µs and starts at 90 ms + n · 150 µs: the CPU is far ahead.
    """
    with one_process(path, schema) as (export, process, main):
        launch_kernels(export, process, main, 30)
        for number in range(10):
            call = 90_000_000 + 150_000 * number
            start = 100_000_000 + 81_000_000 * number
            export.api(main, call, call + 100_000, "cudaGraphLaunch_v10000", 101 + number)
            export.graph_launch(
                process, 0, DEFAULT_STREAM, start, start + 80_000_000,
                graph_id=4, graph_exec_id=5, correlation_id=101 + number,
            )  # fmt: skip
    return Path(path)


def node_graph_export(path: str | Path, schema: str = "3.25.0") -> Path:
    """Write CUDA graphs traced by node: 10 graph nodes captured, 5 launches, 50 kernels of 50 µs, 10 a launch.

    The kernels of launch n all have correlation id 100 + n of its ``cudaGraphLaunch_v10000`` call and graphNodeId 1 …
    10 (<< 32); the launch lies in the NVTX range ``replay n``, the capture in the range ``capture``. No kernel lies
    outside a graph.
    """
    with one_process(path, schema, session=CaptureSession(graph_mode="Node")) as (export, process, main):
        export.nvtx_range(main, 1_000_000, 1_900_000, "capture")
        for node, spec in enumerate(LAYER_FORWARD, start=1):
            moment = 1_000_000 + 80_000 * node
            export.api(main, moment, moment + 20_000, spec.launch[0], node, event_class=spec.launch[1])
            export.graph_node(main, moment + 5_000, moment + 5_000, "CUDA Graph Node Creation", node << 32)
        for launch in range(5):
            call = 5_000_000 + 2_000_000 * launch
            export.nvtx_range(main, call - 10_000, call + 60_000, f"replay {launch}")
            export.api(main, call, call + 50_000, "cudaGraphLaunch_v10000", 100 + launch)
            for node, spec in enumerate(LAYER_FORWARD, start=1):
                start = call + 60_000 * node
                export.kernel(
                    process, 0, DEFAULT_STREAM, start, start + 50_000, name=spec.name, correlation_id=100 + launch,
                    graph_node_id=node << 32, graph_id=2,
                )  # fmt: skip
    return Path(path)


PAYLOAD_BYTES: Final = {
    "ncclAllReduce": 4 * 1024**2, "ncclAllGather": 65_535, "ncclReduceScatter": 65_536, "ncclBroadcast": 1024**2,
    "ncclReduce": 16 * 1024**2, "ncclSend": 1_048_575, "ncclRecv": 1_048_575,
}  # fmt: skip
"""Message size of each call in `payload_export`: sizes at the edges of the size buckets."""
PAYLOAD_COMMUNICATOR: Final = 0xFEDC_BA98_7654_3210


def payload_export(
    path: str | Path, *, json: bool = True, binary: bool = False,
    layout: nccl.NcclPayloads = nccl.NcclPayloads.SINCE_2_25, schema: str = "3.25.0",
) -> Path:  # fmt: skip
    """Write rank 1 of 4: each function of `PAYLOAD_BYTES` is called once, ungrouped except the group of Send and Recv.

    The first is ncclCommInitRankConfig (rank 1, 4 ranks, CUDA device 0), then the calls from 10 ms on, 1 ms apart: 6
    NCCL kernels of 500 µs on stream 28. Root is 0, peer is 2, the reduction of AllReduce is Avg, of the others Sum.
    Payloads have the requested forms; with neither, as nsys exports by default, all are NULL. Raises `ValueError`
    if `binary` is asked of a schema before 3.16.
    """
    session = CaptureSession(include_json=json, include_blobs=binary)
    with one_process(path, schema, session=session) as (export, process, main):
        export.cuda_stream(process, WORLD_STREAM)
        export.nvtx_domain(main, 500_000, 1, nccl.NCCL_DOMAIN)
        functions = ("ncclCommInitRankConfig", *PAYLOAD_BYTES)
        export.payload_schemas(1, [nccl.payload_schema(function, layout) for function in functions])
        export.payload_enum(1, layout.reduction_enum, nccl.REDUCTION, nccl.REDUCTIONS)
        correlations = count(1)

        def call(function: str, start: int, end: int, **values: int) -> None:
            usual = {nccl.COMMUNICATOR: PAYLOAD_COMMUNICATOR, nccl.PEER: 2, nccl.ROOT: 0}
            told = {**usual, nccl.REDUCTION: nccl.REDUCTIONS["Sum"], **values}
            payload = nccl.encode_payload(function, layout, told, domain_id=1)
            export.nvtx_range(main, start, end, function, domain_id=1, registered=True, payload=payload)

        def launch(operation: str, start: int) -> None:
            spec, correlation = nccl_kernel(operation), next(correlations)
            export.api(main, start, start + 8_000, spec.launch[0], correlation)
            begin, end = start + 20_000, start + 520_000
            export.kernel(process, 0, WORLD_STREAM, begin, end, name=spec.name, correlation_id=correlation)

        call("ncclCommInitRankConfig", 1_000_000, 9_000_000, **{nccl.RANK: 1, nccl.RANKS: 4, nccl.CUDA_DEVICE: 0})
        start = 10_000_000
        for function, size in PAYLOAD_BYTES.items():
            if function in ("ncclSend", "ncclRecv"):
                continue
            reduction = nccl.REDUCTIONS["Avg" if function == "ncclAllReduce" else "Sum"]
            call(function, start, start + 30_000, **{nccl.MESSAGE_SIZE: size, nccl.REDUCTION: reduction})
            launch(function.removeprefix("nccl"), start + 10_000)
            start += 1_000_000
        export.nvtx_range(main, start, start + 1_000, "ncclGroupStart", domain_id=1, registered=True)
        call("ncclSend", start + 2_000, start + 4_000, **{nccl.MESSAGE_SIZE: PAYLOAD_BYTES["ncclSend"]})
        call("ncclRecv", start + 5_000, start + 7_000, **{nccl.MESSAGE_SIZE: PAYLOAD_BYTES["ncclRecv"]})
        export.nvtx_range(main, start + 8_000, start + 30_000, "ncclGroupEnd", domain_id=1, registered=True)
        launch("SendRecv", start + 12_000)
    return Path(path)


def instrumented_nccl_export(path: str | Path, schema: str = "3.7.2") -> Path:
    """Write calls of an instrumented NCCL, with sizes in their texts, in the default domain: 8 AllReduce, 4 AllGather.

    ``data_size`` (65,536 for AllReduce, 2,097,152 for AllGather) is in bytes already, ``type_size`` is 4. Each call
    lasts 40 µs, contains its launch, and its kernel lasts 300 µs; calls are 1 ms apart from 1 ms on.
    """
    with one_process(path, schema) as (export, process, main):
        for number in range(12):
            start = 1_000_000 * (number + 1)
            operation, size, tail = "AllReduce", 65_536, ", red_op 0"
            if number >= 8:
                operation, size, tail = "AllGather", 2_097_152, ""
            text = (
                f"nccl{operation}(): commHash 0xfedcba9876543210, stream 0x55d0c0ffee00, data_size {size}, "
                f"type_size 4{tail}, pid {process.pid}"
            )
            export.nvtx_range(main, start, start + 40_000, text)
            export.api(main, start + 10_000, start + 18_000, "cudaLaunchKernelExC_v11060", number + 1)
            export.kernel(
                process, 0, WORLD_STREAM, start + 30_000, start + 330_000, name=nccl_kernel(operation).name,
                correlation_id=number + 1,
            )  # fmt: skip
    return Path(path)


def nccl_without_nvtx_export(path: str | Path, schema: str = "3.25.0") -> Path:
    """Write NCCL without NVTX (``NCCL_NVTX_DISABLE=1``): 6 AllReduce, 3 AllGather, 1 SendRecv, and 20 other kernels.

    The NCCL kernels take 300 µs and start 1 ms apart from 10 ms on, on stream 28, with launch calls 10 µs earlier.
    There is no NVTX_EVENTS table.
    """
    with one_process(path, schema) as (export, process, main):
        launch_kernels(export, process, main, 20)
        for number, operation in enumerate(["AllReduce"] * 6 + ["AllGather"] * 3 + ["SendRecv"]):
            start = 1_000_000 * (number + 10)
            export.api(main, start - 20_000, start - 10_000, "cudaLaunchKernelExC_v11060", 101 + number)
            export.kernel(
                process, 0, WORLD_STREAM, start, start + 300_000, name=nccl_kernel(operation).name,
                correlation_id=101 + number,
            )  # fmt: skip
    return Path(path)


def crowded_export(
    path: str | Path, kernels: int, *, processes: int = 1, gpus: int = 1, streams: int = 1, names: int = 1
) -> Path:
    """Write kernels of 50 µs, 1 µs apart, each launched in a range: kernel n is on GPU n modulo ``gpus``, and so on.

    Processes are 5000, 5001, …, streams 100, 101, …, kernels ``work_0()``, ``work_1()``, …, ranges ``range 0`` ….
    """
    with ExportWriter(path, "3.25.0") as export:
        for gpu in range(gpus):
            export.gpu(gpu)
        threads = [start_gpu_process(export, 5_000 + number) for number in range(processes)]
        for number in range(kernels):
            process, main = threads[number % processes]
            start, correlation = 1_000_000 + 1_000 * number, number + 1
            export.nvtx_range(main, start - 10, start + 510, f"range {number % names}")
            export.api(main, start, start + 500, "cudaLaunchKernel_v7000", correlation)
            export.kernel(
                process, number % gpus, 100 + number % streams, start + 600, start + 50_600,
                name=f"work_{number % names}()", correlation_id=correlation,
            )  # fmt: skip
    return Path(path)
