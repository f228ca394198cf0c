"""The lines in which training frameworks report an iteration: NeMo, Megatron-LM, PyTorch Lightning, DeepSpeed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

STEP_WORDS = (
    b"Training epoch",
    b"elapsed time per iteration",
    b"Epoch ",
    b"iter time (s)",
    b"global_step=",
    b", skipped=",
)
"""A line that reports an iteration has one of these."""

# Epoch and iteration, as NeMo, Lightning's progress bar, Megatron-LM and DeepSpeed (three lines) print them.
_STEP = re.compile(
    rb"Training epoch\s+(\d{1,18}),\s*iteration\s+(\d{1,18})/"
    rb"|\bEpoch (\d{1,18}):[^|\r\n]{0,40}\|[^|\r\n]{0,400}\| *(\d{1,18})/[\d?]{1,18} \["
    rb"|()\biteration {1,20}(\d{1,18})/ {0,20}\d{1,18} \|(?=.{0,200}elapsed time per iteration)"
    rb"|()\bsteps: (\d{1,18}) (?=loss: \S{1,30} iter time \(s\): )"
    rb"|()\bepoch=\d{1,18}/micro_step=\d{1,18}/global_step=(\d{1,18}),"
    rb"|()\bstep=(\d{1,18}), skipped=\d"
)
_NUMBER = rb"\s*[:=]?\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)(?![\w.])"
_SECONDS = re.compile(rb"(?:train_step_timing in s|iter time \(s\))" + _NUMBER)
_MILLISECONDS = re.compile(rb"elapsed time per iteration \(ms\)" + _NUMBER)
_TFLOPS = re.compile(rb"(?:TFLOPS_per_GPU|TFLOP/s/GPU\)|TFLOPs)" + _NUMBER)
_LOSS = re.compile(rb"(?<![\w])(?:lm loss|reduced_train_loss|train_loss(?:_step)?|loss)" + _NUMBER)


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One iteration as its line reports it.

    ``step_time`` in seconds, ``tflops`` in 10¹² FLOP/s for one GPU. ``None`` is what the line does not print.
    """

    epoch: int | None
    iteration: int
    step_time: float | None = None
    tflops: float | None = None
    loss: float | None = None


def steps_in(line: bytes) -> list[TrainingStep]:
    """The iterations that a line reports: one, or several where their line ends were lost.

    The rates of progress bars (``2.20it/s``) are means since the start, and so no step times.
    """
    found = list(_STEP.finditer(line))
    ends = [*(step.start() for step in found), len(line)][1:]
    return [_step(line, step, end) for step, end in zip(found, ends, strict=True)]


def _step(line: bytes, step: re.Match[bytes], end: int) -> TrainingStep:
    epoch, iteration = [group for group in step.groups() if group is not None]

    def value(pattern: re.Pattern[bytes]) -> float | None:
        return _number(pattern.search(line, step.end(), end))

    seconds, milliseconds = value(_SECONDS), value(_MILLISECONDS)
    if seconds is None and milliseconds is not None:
        seconds = milliseconds / 1000.0
    return TrainingStep(int(epoch) if epoch else None, int(iteration), seconds, value(_TFLOPS), value(_LOSS))


def _number(found: re.Match[bytes] | None) -> float | None:
    if found is None:
        return None
    try:
        number = float(found[1])
    except ValueError:  # dots and digits, but no number
        return None
    return number if isfinite(number) else None
