"""NCCL kernels and calls: by collective, size, communicator and so on, or singly."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from nsystui.base.errors import UsageError
from nsystui.questions.queries.question import Option, Question, ShownRows, Values, View, steps_in

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.drawing import Drawing as Shapes
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.nccl.grouping import NcclProperty


class _Options(NamedTuple):
    """Options; ``shared``: see `_shared_properties`."""

    values: Values
    group_by: tuple[NcclProperty, ...]
    shared: dict[NcclProperty, Any]


def _read(values: Values) -> _Options:
    from nsystui.questions.nccl.grouping import by_of

    if not values["durations"] and values["message"] is not None:
        raise UsageError("--message goes with --durations")
    if values["message"] is not None:
        from nsystui.base.units import parse_size

        values = {**values, "message": parse_size(values["message"])}
    return _Options(values, by_of(values["by"]), _shared_properties(values))


def _shared_properties(values: Values) -> dict[NcclProperty, Any]:
    """Return the properties that the single rows share. Raises UsageError for an unknown or misplaced bucket."""
    from nsystui.questions.nccl.grouping import NcclProperty
    from nsystui.questions.nccl.listing import COMMUNICATION
    from nsystui.questions.nccl.names import BUCKETS

    shared: dict[NcclProperty, Any] = {}
    if values["calls"] is not None:
        shared[NcclProperty.COLLECTIVE] = values["calls"] or COMMUNICATION
    elif values["kernels"]:
        shared[NcclProperty.COLLECTIVE] = values["kernels"]
    if values["bucket"] is None:
        return shared
    if values["calls"] is None and values["kernels"] is None:
        raise UsageError("--bucket chooses single rows: add --calls or --kernels")
    # A hyphen is accepted instead of a dash.
    bucket_by_word: dict[str, str | None] = {bucket.replace("–", "-"): bucket for bucket in BUCKETS}
    bucket_by_word["unknown"] = None
    word = values["bucket"].replace("–", "-")
    if word not in bucket_by_word:
        raise UsageError(f"bucket {values['bucket']!r}: the buckets are {', '.join(bucket_by_word)}")
    return {**shared, NcclProperty.SIZE: bucket_by_word[word]}


def _ask(job: OpenJob, selection: Selection, options: _Options) -> Answer:
    from nsystui.questions.nccl.grouping import NcclProperty
    from nsystui.questions.nccl.listing import nccl_listing
    from nsystui.questions.nccl.sizes import bandwidth_by_size, durations_of_size
    from nsystui.questions.nccl.summary import CALL, KERNEL, nccl_summary
    from nsystui.questions.ranks.partings import noted

    values, group_by, shared = options
    if values["nccl_log"]:
        from nsystui.exports.nccl_log.files import named
        from nsystui.questions.nccl.from_log import read_log

        job.nccl_log = read_log(named(values["nccl_log"]), job.ranks)
    pairing = job.pairing_by(group_by, values["step_range"])
    if values["sizes"]:
        size = {"bucket": NcclProperty.SIZE, "pow2": NcclProperty.POW2, "exact": NcclProperty.BYTES}[values["sizes"]]
        return bandwidth_by_size(job, selection, pairing, size)
    if values["durations"]:
        return durations_of_size(job, selection, pairing, values["durations"], values["message"])
    if values["calls"] is not None:
        return nccl_listing(job, selection, pairing, shared, CALL)
    if values["kernels"] is not None:
        return nccl_listing(job, selection, pairing, shared, KERNEL)
    return noted(job, nccl_summary(job, selection, pairing, group_by), values["step_range"])


def _draw(job: OpenJob, selection: Selection, options: _Options) -> Shapes | None:
    """Draw the histogram of ``--durations``, else bandwidth over message size."""
    from nsystui.base.answer import TableAnswer
    from nsystui.questions.report.drawings import bandwidth_curves, duration_bars

    values = options.values
    if values["durations"]:
        return duration_bars(_ask(job, selection, options))
    if values["calls"] is not None or values["kernels"] is not None:
        raise UsageError("single calls and kernels have no drawing here: `nsystui timeline` draws them")
    sizes = _ask(job, selection, options._replace(values={**values, "sizes": "exact"}))
    return bandwidth_curves(job, selection, sizes) if isinstance(sizes, TableAnswer) else None


def _no_file(text: str) -> str:
    """Return the word after an option such as ``--calls``. Raises UsageError if it is a file meant for the command."""
    if os.path.lexists(text) or text.endswith(".sqlite"):
        raise UsageError(f"{text!r} is a file: write the files first, then the option")
    return text


QUESTIONS = (
    Question(
        "nccl",
        "NCCL kernels and calls by collective and message size",
        _ask,
        description="""NCCL kernels and API calls by collective and message size, with bandwidth and exposed time.
Kernels get the sizes of the calls that launched them.

  exposed   kernel time in which no compute kernel ran on the same GPU, summed over the kernels (two NCCL kernels at
            the same time both count here, once in `nsystui gpu`); overlap: the rest, in percent
  algbw     bytes / kernel time, which includes waiting for other ranks; the bytes are n times the size for AllGather,
            ReduceScatter, AlltoAll, Gather and Scatter; missing where the size or n is not known
  busbw     algbw × the factor of nccl-tests, such as 2(n-1)/n for AllReduce
  busbw, no waiting
            uses the kernel time of the last rank to arrive; known if all ranks of the communicator are open
  several   the rows in this sum differ

The size is that of one call: for AllGather and ReduceScatter the bytes of one rank, for AlltoAll those of one peer.
Buckets and powers of two have base 1024 and include their lower edge.""",
        examples="""  nsystui nccl rank*.sqlite
  nsystui nccl rank*.sqlite --by collective,bytes,communicator --format csv
  nsystui nccl rank0.sqlite --by step --step-range '^iteration (\\d+)'
  nsystui nccl rank*.sqlite --sizes --filter AllReduce
  nsystui nccl rank*.sqlite --durations AllReduce --message 48MiB
  nsystui nccl rank*.sqlite -o bandwidth.svg
  nsystui nccl rank*.sqlite --calls --format csv
  nsystui nccl rank*.sqlite --nccl-log nccl*.log
  nsystui nccl rank0.sqlite --kernels AllReduce --bucket '1MiB–16MiB' --sort duration_ns --top 10""",
        topic="nccl",
        order=40,
        options=(
            Option(
                "by",
                "group by any of collective, size (bucket), pow2 (power of two), bytes (exact size), communicator, "
                "stream, rank, step, range (NVTX), datatype, reduction, backend, separated by commas (default: "
                "collective,size); calls have no stream",
                metavar="LIST",
                default="collective,size",
                one_of="table",
            ),
            Option(
                "sizes",
                "kernels by collective and size: spread of the durations and bandwidth (default: by exact size)",
                choices=("bucket", "pow2", "exact"),
                kind=_no_file,
                without_value="exact",
                one_of="table",
            ),
            Option(
                "durations",
                "histogram of the durations of one collective's kernels at one size: of all ranks, and of each rank",
                metavar="COLLECTIVE",
                kind=_no_file,
                one_of="table",
            ),
            Option(
                "message",
                "with --durations: the message size, such as 48MiB (default: the size with the most time)",
                metavar="SIZE",
            ),
            Option(
                "calls",
                "a row for each call that communicates, with its kernel; or only those of a collective (or management "
                "call, such as ncclGroupEnd)",
                metavar="COLLECTIVE",
                kind=_no_file,
                without_value="",
                one_of="table",
                lists=True,
            ),
            Option(
                "kernels",
                "a row for each kernel, or only those of a collective",
                metavar="COLLECTIVE",
                kind=_no_file,
                without_value="",
                one_of="table",
                lists=True,
            ),
            Option(
                "bucket",
                "with --calls or --kernels: only one message size: <64KiB, 64KiB–1MiB, 1MiB–16MiB, >16MiB, unknown",
                metavar="SIZE",
            ),
            *steps_in("table"),
            Option(
                "nccl-log",
                "NCCL's debug logs or NCCL Inspector's records of the same job (plain, .gz or globs), after FILE: the "
                "message sizes and algorithms that the exports lack, if the numbers of calls agree",
                metavar="LOG",
                has_several=True,
            ),
        ),
        read=_read,
        drawing=_draw,
        reads=("whole", "reports"),
        rows=ShownRows("nccl", "nccl", "NCCL kernels and calls"),
        views=(View("nccl", tables=("nccl_calls",), label="kernels"),),
    ),
)
