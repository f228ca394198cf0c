"""Lines of NCCL's debug log, without line ends."""


def call(op="AllReduce", count=10, datatype=7, pid=1, comm="0xc1", op_count=1, ranks=2, device=0, host="n1") -> str:
    """Return the line of a call."""
    return (
        f"{host}:{pid}:{pid} [{device}] NCCL INFO {op}: opCount {op_count:x} sendbuff 0x1 recvbuff 0x2 count {count} "
        f"datatype {datatype} op 0 root 0 comm {comm} [nranks={ranks}] stream 0x3"
    )


def init(pid=1, comm="0xc1", rank=0, ranks=2, name="0xfe", device=0, host="n1") -> str:
    """Return the line of a communicator that is initialised."""
    words = f"comm {comm} rank {rank} nranks {ranks} cudaDev {device} busId b000 commId {name}"
    return f"{host}:{pid}:{pid} [0] NCCL INFO {words} - Init COMPLETE"


def step(number: int, timing: float | None = None, tflops: float | None = None) -> str:
    """Return a training's line about an iteration; ``timing``: seconds."""
    text = f"Training epoch 0, iteration {number}/99 | lr: 1e-5"
    text += "" if timing is None else f" | train_step_timing in s: {timing}"
    return text + ("" if tflops is None else f" | TFLOPS_per_GPU: {tflops}")
