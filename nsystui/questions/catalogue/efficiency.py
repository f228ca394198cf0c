"""How well GPUs and hosts were used: parts that add up, and factors that multiply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nsystui.questions.queries.question import Option, Question, ShownRows, Titled, Values, chosen_tables, steps_in

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.selection import Selection
    from nsystui.questions.efficiency.mfu import MfuRequest
    from nsystui.questions.efficiency.result import Sized, Useful
    from nsystui.questions.job.job import OpenJob

TABLES = {
    "breakdown": "Breakdown: parts of each GPU's time, which add up to 100 %",
    "device": "Device efficiency",
    "host": "Host efficiency",
    "mfu": "Model FLOPs utilisation",
}
"""All tables with their titles; ``mfu`` with --flops-per-step."""
_MFU, _SCALING = "model FLOPs utilisation", "scalability"


class _Options(NamedTuple):
    """Options; ``baseline``: device efficiency of the job to compare with, over that job's window."""

    tables: list[str]
    useful: Useful
    mfu: MfuRequest | None
    step_range: str | None
    scaling: str
    baseline: Sized | None = None


def _read(values: Values) -> _Options:
    from nsystui.base.errors import UsageError
    from nsystui.questions.efficiency.result import Useful

    mfu = _mfu_request(values)
    tables = chosen_tables(values["tables"], tuple(TABLES), tuple(TABLES))
    if mfu is None and values["tables"] is not None and "mfu" in values["tables"].replace(" ", "").split(","):
        raise UsageError("--tables mfu needs --flops-per-step: exports do not contain the FLOPs of a model")
    for option in (_SCALING_OPTION, _BASELINE_TIME):
        if option.is_given(values) and not values["baseline"]:
            raise UsageError(f"--{option.flag} goes with --baseline")
    tables = [name for name in tables if name != "mfu" or mfu is not None]
    return _Options(tables, Useful(values["useful"]), mfu, values["step_range"], values["scaling"] or "strong")


def _mfu_request(values: Values) -> MfuRequest | None:
    import math

    from nsystui.base.errors import UsageError
    from nsystui.questions.efficiency.mfu import MfuRequest

    for option in (_FLOPS, _PEAK, _GPUS):
        value = values[option.name]
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"--{option.flag} {value:g}: it must be more than 0")
    if _FLOPS.is_given(values):
        return MfuRequest(*(values[key] for key in ("flops_per_step", "peak_tflops", "gpus", "step_range", "region")))
    for option in (_PEAK, _GPUS, _REGION):
        if option.is_given(values):
            raise UsageError(f"--{option.flag} goes with --flops-per-step")
    return None


def _compare(job: OpenJob, selection: Selection, options: _Options) -> _Options:
    from nsystui.questions.efficiency.result import Sized, efficiency, steps_in

    result = efficiency(job, selection, options.useful)
    return options._replace(baseline=Sized(result.device, steps_in(job, result, options.step_range)))


def _ask(job: OpenJob, selection: Selection, options: _Options) -> Answer:
    return _tables(job, selection, options)[0].answer


def _tables(job: OpenJob, selection: Selection, options: _Options) -> list[Titled]:
    """Return the tables in order, each note only once."""
    from dataclasses import replace

    from nsystui.questions.efficiency import tables
    from nsystui.questions.efficiency.mfu import mfu_of, mfu_of_region
    from nsystui.questions.efficiency.result import Scalability, Scaling, Sized, efficiency, steps_in

    result = efficiency(job, selection, options.useful)
    compute_mfu = mfu_of if options.mfu is None or options.mfu.region is None else mfu_of_region
    scaled = None
    if options.baseline is not None:
        size = Sized(result.device, steps_in(job, result, options.step_range))
        scaled = Scalability(Scaling(options.scaling), size, options.baseline)
    answers: dict[str, Any] = {
        "breakdown": lambda: tables.breakdown_table(result),
        "device": lambda: tables.device_table(result, scaled),
        "host": lambda: tables.host_table(result),
        "mfu": lambda: tables.mfu_table(compute_mfu(job, selection, result, options.mfu)),  # type: ignore[arg-type]
    }
    titles = {**TABLES, "breakdown": f"{TABLES['breakdown']} = {result.span}"}
    titled_tables: list[Titled] = []
    shown_notes: set[str] = set()
    for name in options.tables:
        answer = answers[name]()
        notes = tuple(note for note in answer.notes if note not in shown_notes)
        shown_notes.update(notes)
        titled_tables.append(Titled(name, titles[name], replace(answer, notes=notes)))
    return titled_tables


_FLOPS = Option(
    "flops-per-step", "FLOPs of the model in a step of the whole job, such as 6e15", metavar="N", kind=float, group=_MFU
)
_PEAK = Option(
    "peak-tflops", "peak of one GPU (default: dense BF16, by the GPU's name)", metavar="N", kind=float, group=_MFU
)
_GPUS = Option(
    "gpus", "GPUs that share a step (default: those here, or the job's size)", metavar="N", kind=int, group=_MFU
)
_REGION = Option(
    "region",
    "--flops-per-step count one NVTX range whose name contains TEXT, such as forward, on one GPU, or on --gpus",
    metavar="TEXT",
    group=_MFU,
)
_SCALING_OPTION = Option(
    "scaling",
    "strong: both jobs did the same work (default); weak: each GPU did the same",
    choices=("strong", "weak"),
    group=_SCALING,
)
_BASELINE_TIME = Option("baseline-time", "the window of the baseline, in its own time", metavar="A:B", group=_SCALING)

QUESTIONS = (
    Question(
        "efficiency",
        "where GPU and host time went, efficiencies, MFU",
        _ask,
        description="""How well the GPUs and hosts were used, in the words of POP and TALP.

  breakdown   compute only, NCCL only, memory only, their overlaps, graphs and idle: parts that add up to 100 %
  device      parallel efficiency = load balance × communication × orchestration
  host        host parallel efficiency = MPI parallel × device offload; of MPI what was traced
  mfu         with --flops-per-step: model FLOPs utilisation

100 % is one window for all ranks: --time, or the time in which every selected report was recording events. That may be
less than the time of the other tables, from the job's first event to its last; the first note says both.""",
        examples="""  nsystui efficiency rank*.sqlite
  nsystui efficiency rank*.sqlite --time 1.2s:1.5s --tables device --format json
  nsystui efficiency rank*.sqlite --useful talp
  nsystui efficiency rank*.sqlite --flops-per-step 6.2e15
  nsystui efficiency rank*.sqlite --flops-per-step 4.1e13 --region forward
  nsystui efficiency 64/rank*.sqlite --baseline 8/rank*.sqlite --scaling strong""",
        order=90,
        options=(
            Option(
                "tables",
                f"which tables, separated by commas: {', '.join(TABLES)}, all",
                metavar="LIST",
                group="efficiency",
            ),
            Option(
                "useful",
                "useful GPU time: kernels that do not communicate (pop, the default), or every kernel (talp)",
                choices=("pop", "talp"),
                default="pop",
                group="efficiency",
            ),
            *(_FLOPS, _PEAK, _GPUS, _REGION, *steps_in(_MFU)),
            Option(
                "baseline",
                "exports of a job of another size, after FILE",
                metavar="FILE",
                has_several=True,
                group=_SCALING,
            ),
            *(_SCALING_OPTION, _BASELINE_TIME),
        ),
        read=_read,
        tables=_tables,
        other=lambda values: (values["baseline"], values["baseline_time"]) if values["baseline"] else None,
        compare=_compare,
        reads=("whole", "times", "reports"),
        rows=ShownRows(home=""),
    ),
)
