"""``nsystui efficiency``: where GPU and host time went, as parts that add up and as factors that multiply."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared
from nsystui.commands.configuration import config_of

if TYPE_CHECKING:
    from nsystui.commands.blocks import Block
    from nsystui.questions.efficiency.device import Useful
    from nsystui.questions.efficiency.factors import Scalability, Sized
    from nsystui.questions.efficiency.mfu import MfuRequest
    from nsystui.questions.job import Job

TABLES = {
    "breakdown": "Breakdown: parts of each GPU's time, which add up to 100 %",
    "device": "Device efficiency",
    "host": "Host efficiency",
    "processes": "Host time of each process",
    "mfu": "Model FLOPs utilisation",
}
"""Every table with its title; ``processes`` only if asked for, ``mfu`` with --flops-per-step."""
_USUAL = ("breakdown", "device", "host", "mfu")

DESCRIPTION = """How well the GPUs and hosts were used, in the words of POP and TALP.

  breakdown   compute only, NCCL only, memory only, their overlaps, graphs and idle: parts that add up to 100 %
  device      parallel efficiency = load balance × communication × orchestration
  host        host parallel efficiency = MPI parallel × device offload; of MPI what was traced
  processes   the host time of each process (only if asked for)
  mfu         with --flops-per-step: model FLOPs utilisation

100 % is one window for all ranks: --time, or the time in which every selected report was recording events. That may be
less than the time of the other tables, from the job's first event to its last; the first note says both."""
EXAMPLES = """  nsystui efficiency rank*.sqlite
  nsystui efficiency rank*.sqlite --time 1.2s:1.5s --tables device --format json
  nsystui efficiency rank*.sqlite --useful talp
  nsystui efficiency rank*.sqlite --flops-per-step 6.2e15
  nsystui efficiency 64/rank*.sqlite --baseline 8/rank*.sqlite --scaling strong"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    group = parser.add_argument_group("efficiency")
    group.add_argument("--tables", metavar="LIST", help=f"which tables, separated by commas: {', '.join(TABLES)}, all")
    group.add_argument(
        "--useful",
        choices=("pop", "talp"),
        default="pop",
        help="what of a GPU's time is useful: kernels but NCCL's (pop, the default), or every kernel (talp)",
    )
    mfu = parser.add_argument_group("model FLOPs utilisation")
    mfu.add_argument(
        "--flops-per-step", type=float, metavar="N", help="FLOPs of the model in a step of the whole job, such as 6e15"
    )
    mfu.add_argument(
        "--peak-tflops", type=float, metavar="N", help="peak of one GPU (default: dense BF16, by the GPU's name)"
    )
    mfu.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs that share a step (default: those here, or the job's size)"
    )
    shared.add_step_range(mfu)
    scaling = parser.add_argument_group("scalability")
    scaling.add_argument("--baseline", nargs="+", metavar="FILE", help="exports of a job of another size, after FILE")
    scaling.add_argument(
        "--scaling", choices=("strong", "weak"), help="both jobs did the same (strong, the default), or each GPU did"
    )
    scaling.add_argument("--baseline-time", metavar="A:B", help="the window of the baseline's time")
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.questions.efficiency.device import Useful

    request, useful = _request(arguments), Useful(arguments.useful)
    names = _names(arguments, request)
    _check_baseline(arguments)
    shared.check_output(arguments)
    baseline = _baseline(arguments, useful) if arguments.baseline else None
    job = shared.open_job(arguments, times=True)
    try:
        return _deliver(arguments, list(_blocks(arguments, job, names, useful, request, baseline)))
    finally:
        job.close()


def _request(arguments: argparse.Namespace) -> MfuRequest | None:
    """What the flags say of MFU; raises UsageError for what makes no sense."""
    from nsystui.questions.efficiency.mfu import MfuRequest

    for flag in ("flops_per_step", "peak_tflops", "gpus"):
        value = getattr(arguments, flag)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"--{flag.replace('_', '-')} {value:g}: it must be more than 0")
    if arguments.flops_per_step is not None:
        return MfuRequest(arguments.flops_per_step, arguments.peak_tflops, arguments.gpus, arguments.step_range)
    for flag in ("peak_tflops", "gpus"):
        if getattr(arguments, flag) is not None:
            raise UsageError(f"--{flag.replace('_', '-')} goes with --flops-per-step")
    is_flag = arguments.step_range not in (None, config_of(arguments).options.get("step_range"))
    if is_flag and not arguments.baseline:
        raise UsageError("--step-range goes with --flops-per-step or --baseline")
    return None


def _names(arguments: argparse.Namespace, request: MfuRequest | None) -> list[str]:
    """The tables that are asked for, in the order of ``TABLES``. Raises UsageError."""
    text = arguments.tables
    asked = set(_USUAL) if text is None else {name.strip() for name in text.split(",") if name.strip()}
    if not asked or asked - {*TABLES, "all"}:
        raise UsageError(f"--tables {text!r}: the tables are {', '.join(TABLES)}, all")
    if request is None and "mfu" in asked and text is not None:
        raise UsageError("--tables mfu needs --flops-per-step: exports say nothing of a model's arithmetic")
    return [name for name in TABLES if (name in asked or "all" in asked) and (name != "mfu" or request is not None)]


def _check_baseline(arguments: argparse.Namespace) -> None:
    for flag in ("scaling", "baseline_time"):
        if getattr(arguments, flag) is not None and not arguments.baseline:
            raise UsageError(f"--{flag.replace('_', '-')} goes with --baseline")


def _baseline(arguments: argparse.Namespace, useful: Useful) -> Sized:
    """The device efficiency of the other job, over its own window."""
    from nsystui.base.selection import Selection, parse_window
    from nsystui.questions.efficiency.factors import Sized
    from nsystui.questions.efficiency.result import efficiency, steps_in

    # The selection is of the other job.
    flags = {**vars(arguments), "files": arguments.baseline, "ranks": None, "time": None}
    job = shared.open_job(argparse.Namespace(**flags), times=True)
    try:
        text = arguments.baseline_time
        found = efficiency(job, Selection(parse_window(text, job.extent()) if text else None), useful)
        return Sized(found.device, steps_in(job, found, arguments.step_range))
    finally:
        job.close()


def _blocks(
    arguments: argparse.Namespace,
    job: Job,
    names: Sequence[str],
    useful: Useful,
    request: MfuRequest | None,
    baseline: Sized | None,
) -> Iterator[Block]:
    """The tables in order, each note with the first that it belongs to."""
    from dataclasses import replace

    from nsystui.commands.blocks import Block
    from nsystui.questions.efficiency import tables
    from nsystui.questions.efficiency.factors import Scaling, Sized, scalability
    from nsystui.questions.efficiency.result import efficiency, mfu_of, steps_in

    selection = shared.selection_of(arguments, job)
    found = efficiency(job, selection, useful)
    scaled: Scalability | None = None
    if baseline is not None:
        own = Sized(found.device, steps_in(job, found, arguments.step_range))
        scaled = scalability(own, baseline, Scaling(arguments.scaling or "strong"))
    said: set[str] = set()
    for name in names:
        if name == "breakdown":
            answer = tables.breakdown_table(found)
        elif name == "device":
            answer = tables.device_table(found, scaled)
        elif name == "host":
            answer = tables.host_table(found)
        elif name == "processes":
            answer = tables.process_table(found)
        else:
            assert request is not None
            answer = tables.mfu_table(mfu_of(job, selection, found, request))
        new = tuple(note for note in answer.notes if note not in said)
        said.update(new)
        title = f"{TABLES[name]} = {found.span}" if name == "breakdown" else TABLES[name]
        yield Block(title, {"table": name}, name, replace(answer, notes=new))


def _deliver(arguments: argparse.Namespace, blocks: Sequence[Block]) -> int:
    """Prints or writes the blocks; 3 where none has rows."""
    from nsystui.commands.blocks import deliver_blocks

    _check_sort(arguments, blocks)
    if len(blocks) == 1:
        return shared.deliver(arguments, blocks[0].answer)
    deliver_blocks(arguments, blocks)
    return 0 if any(len(block.answer) for block in blocks) else 3


def _check_sort(arguments: argparse.Namespace, blocks: Sequence[Block]) -> None:
    """Raises UsageError where a table lacks the column to sort by, before the first is printed."""
    key = arguments.sort
    having = [block.suffix for block in blocks if any(column.key == key for column in block.answer.columns)]
    if key is not None and 0 < len(having) < len(blocks):
        raise UsageError(f"--sort {key}: not a column of every table; choose with --tables {','.join(having)}")
