"""The tables of what else is in a debug log: NCCL's choices, the training's own times, and the lines themselves."""

from __future__ import annotations

from nsystui.base.answer import Column, Row, TableAnswer, Unit
from nsystui.exports.nccl_log.lines import Damage
from nsystui.questions.nccl_log.summary import Summary

_NS_PER_S = 1e9


def tuning_table(summary: Summary) -> TableAnswer:
    """Which algorithm and protocol NCCL chose, by op and bytes as the tuner counts them.

    For AllGather, ReduceScatter and AlltoAll these are the bytes of all ranks together.
    """
    columns = (
        Column("op", "Op", "op"),
        Column("bytes", "Tuner Bytes", "tuner bytes", Unit.BYTES),
        Column("algorithm", "Algorithm", "algorithm"),
        Column("protocol", "Protocol", "protocol"),
        Column("channels", "Channels", "channels", Unit.COUNT),
        Column("lines", "Lines", "lines", Unit.COUNT),
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
        Column("lines", "Training Lines", "lines", Unit.COUNT),
        Column("first", "First Iteration", "first", Unit.NUMBER),
        Column("last", "Last Iteration", "last", Unit.NUMBER),
        Column("avg_step", "Avg Step Time (ns)", "step avg", Unit.DURATION, 1),
        Column("min_step", "Min Step Time (ns)", "min", Unit.DURATION, 1),
        Column("max_step", "Max Step Time (ns)", "max", Unit.DURATION, 1),
        Column("avg_tflops", "Avg TFLOPS per GPU", "TFLOPS/GPU", Unit.COUNT, 6),
        Column("min_tflops", "Min TFLOPS per GPU", "min", Unit.COUNT, 6),
        Column("max_tflops", "Max TFLOPS per GPU", "max", Unit.COUNT, 6),
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
    columns = (Column("what", "What", "what"), Column("number", "Number", "number", Unit.COUNT))
    rows: list[Row] = [
        ("lines read", summary.lines),
        ("calls", summary.calls),
        ("lines of communicators (Init, Destroy, Abort)", summary.communicator_lines),
        ("lines of the tuner", summary.tuning.total()),
        ("lines of training iterations", summary.training_lines),
        *((f"unread calls, {damage.value}", summary.unread[damage]) for damage in Damage),
    ]
    return TableAnswer("nccl-log-lines", columns, rows, len(rows))
