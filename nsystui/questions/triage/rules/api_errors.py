"""CUDA API calls that returned an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from nsystui.base.answer import COUNT, NAME, RANK, Column, TableAnswer, Unit
from nsystui.base.selection import Window
from nsystui.questions.queries.conditions import job_start, where
from nsystui.questions.queries.tasks import rank_of
from nsystui.questions.triage.case import Case, number_of
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_HARMLESS = (0, 600, 704)
"""Success, "not ready" (how a query says that work goes on) and "peer access is already enabled"."""
_NAMES = {
    1: "invalid value",
    2: "out of memory",
    214: "uncorrectable ECC error",
    217: "no peer access between two devices",
    700: "illegal address",
    702: "launch timeout",
    710: "assert on the device",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "launch failure",
    801: "not supported",
}
_STICKY = frozenset({214, 700, 702, 710, 714, 715, 716, 717, 718, 719})
"""After these a process cannot use its GPU any more (cudaError_t in driver_types.h; the same numbers in CUresult)."""
_OUT_OF_MEMORY, _NO_PEER_ACCESS = 2, 217
_COLUMNS = (
    RANK,
    NAME,
    Column("code", header="Code", label="code", unit=Unit.NUMBER),
    Column("meaning", header="Meaning", label="meaning"),
    COUNT,
    Column("first", header="First (ns)", label="first", unit=Unit.TIME),
)


class _Row(NamedTuple):
    rank: int | None
    name: str
    code: int
    meaning: str | None
    calls: int
    first: int


def check(case: Case) -> Sequence[Finding | NotChecked]:
    table = tables.api_calls
    session = case.job.session
    if not session.count(table):
        return [NotChecked("api-errors", "needs CUDA API calls: record with `nsys profile -t cuda`")]
    query = (
        sa.select(
            rank_of(table, case.ranks).label("rank"),
            table.c.name,
            table.c.return_value,
            sa.func.count().label("count"),
            sa.func.min(job_start(table)).label("first"),
        )
        .where(*where(table, case.chosen), table.c.return_value.not_in(_HARMLESS))
        .group_by("rank", table.c.name, table.c.return_value)
    )
    found = session.rows(query)
    rows = [_Row(rank, name, code, _NAMES.get(code), count, first) for rank, name, code, count, first in found]
    if not rows:
        return []
    rows.sort(key=lambda row: (row.code not in _STICKY, row.first, str(row)))
    severity, advice = _judged({row.code for row in rows})
    worst = rows[0]
    total = sum(row.calls for row in rows)
    meaning = f" ({worst.meaning})" if worst.meaning else ""
    sentence = f"{number_of(total, 'CUDA call')} returned an error; {worst.name} returned {worst.code}{meaning}"
    ranks = tuple(sorted({row.rank for row in rows if row.rank is not None}))
    window = Window(worst.first, worst.first + 1)
    evidence = TableAnswer("api-errors", _COLUMNS, rows, len(rows))
    door = Door("api")
    return [Finding("api-errors", severity, sentence, advice, door, evidence=evidence, window=window, ranks=ranks)]


def _judged(codes: set[int]) -> tuple[Severity, Advice]:
    if codes & _STICKY:
        return Severity.ERROR, Advice(
            "run the program under compute-sanitizer",
            "after such an error nothing that the GPU computed can be trusted",
        )
    if _OUT_OF_MEMORY in codes:
        return Severity.WARNING, Advice(
            "use less memory (batch size, fragmentation), or look whether the program frees and tries again",
            "an allocator that runs full and retries frees its cache, which synchronises the whole GPU",
        )
    if _NO_PEER_ACCESS in codes:
        return Severity.WARNING, Advice(
            "see which GPUs reach each other (`nvidia-smi topo -p2p r`), and let those exchange data",
            "without peer access copies between these GPUs are staged through the host",
        )
    return Severity.INFO, Advice(
        "see whether the program expects it", "libraries probe for features with calls that may fail"
    )
