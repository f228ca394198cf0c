"""The tables of what else is in a debug log: NCCL's choices, the training's own times, and the lines themselves."""

from __future__ import annotations

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import Column, Unit
from nsystui.exports.nccl_log.lines import Damage
from nsystui.questions.nccl_log.summary import Summary

_NS_PER_S = 1e9


def tuning_table(summary: Summary) -> TableAnswer:
    """Which algorithm and protocol NCCL chose, by op and bytes as the tuner counts them.

    For AllGather, ReduceScatter and AlltoAll these are the bytes of all ranks together.
    """
    columns = (
        Column("op", header="Op", label="op"),
        Column("bytes", header="Tuner Bytes", label="tuner bytes", unit=Unit.BYTES),
        Column("algorithm", header="Algorithm", label="algorithm"),
        Column("protocol", header="Protocol", label="protocol"),
        Column("channels", header="Channels", label="channels", unit=Unit.COUNT),
        Column("lines", header="Lines", label="lines", unit=Unit.COUNT),
    )
    rows: list[Row] = [
        (line.op, line.size, line.algorithm, line.protocol, line.channels, number)
        for line, number in summary.tuning.items()
    ]
    rows.sort(key=lambda row: (str(row[0] or ""), -int(row[1] or 0), -int(row[5] or 0)))
    return TableAnswer("nccl-log-tuning", columns, rows, len(rows))


def steps_table(summary: Summary) -> TableAnswer:
    """Step time and TFLOPS per GPU over the training's lines, as ``avg_step_timing_tflops.awk``.

    Each is the mean over the lines that tell it (the script leaves out lines without TFLOPS).
    """
    columns = (
        Column("lines", header="Training Lines", label="lines", unit=Unit.COUNT),
        Column("first", header="First Iteration", label="first", unit=Unit.NUMBER),
        Column("last", header="Last Iteration", label="last", unit=Unit.NUMBER),
        Column("avg_step", header="Avg Step Time (ns)", label="step avg", unit=Unit.DURATION, decimals=1),
        Column("min_step", header="Min Step Time (ns)", label="min", unit=Unit.DURATION, decimals=1),
        Column("max_step", header="Max Step Time (ns)", label="max", unit=Unit.DURATION, decimals=1),
        Column("avg_tflops", header="Avg TFLOPS per GPU", label="TFLOPS/GPU", unit=Unit.COUNT, decimals=6),
        Column("min_tflops", header="Min TFLOPS per GPU", label="min", unit=Unit.COUNT, decimals=6),
        Column("max_tflops", header="Max TFLOPS per GPU", label="max", unit=Unit.COUNT, decimals=6),
    )
    rows: list[Row] = []
    if summary.training_lines:
        seconds, tflops = summary.step_time, summary.tflops
        times = (None if each is None else each * _NS_PER_S for each in (seconds.mean, seconds.least, seconds.most))
        speeds = (tflops.mean, tflops.least, tflops.most)
        rows.append((summary.training_lines, summary.first_iteration, summary.last_iteration, *times, *speeds))
    return TableAnswer("nccl-log-steps", columns, rows, len(rows))


def lines_table(summary: Summary) -> TableAnswer:
    """What was found in the lines of the logs, and what could not be read."""
    columns = (
        Column("what", header="What", label="what"),
        Column("number", header="Number", label="number", unit=Unit.COUNT),
    )
    rows: list[Row] = [
        ("lines read", summary.lines),
        ("calls", summary.calls),
        ("lines of communicators (Init, Destroy, Abort)", summary.communicator_lines),
        ("lines of the tuner", summary.tuning.total()),
        ("lines of training iterations", summary.training_lines),
        *((f"unread calls, {damage.value}", summary.unread[damage]) for damage in Damage),
    ]
    return TableAnswer("nccl-log-lines", columns, rows, len(rows))
