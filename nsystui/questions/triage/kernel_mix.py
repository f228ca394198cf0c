"""The time of kernels by name, family and precision, and the frameworks of a job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import sqlalchemy as sa

from nsystui.base.answer import NAME, Column, Unit
from nsystui.base.kernel_families import family_of, precision_of
from nsystui.questions.kernels.summary import FAMILY, PRECISION
from nsystui.questions.nvtx.loading import LABEL
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.triage.case import Case, once
from nsystui.store import tables

COLUMNS = (
    Column("time", header="Total Time (ns)", label="total", unit=Unit.DURATION),
    Column("launches", header="Instances", label="count", unit=Unit.COUNT), FAMILY, PRECISION, NAME,
)  # fmt: skip
"""The columns of a table of `NameWork`."""
PYTORCH, JAX, DALI = "PyTorch", "JAX", "DALI"
_FRAMEWORKS = {
    PYTORCH: r"\b(?:at|c10|aten|autograd)::|[Tt]orch|at_cuda_detail|multi_tensor_apply_kernel|\w_elementwise_kernel<"
    r"|^triton_(?:poi|red|per|tem|for)_",
    JAX: r"\bxla::|xla_extension|jaxlib|^jax|^XlaModule|^TSL:|^(?:loop|input)_\w*fusion|^wrapped_",
    DALI: r"\bdali::|libdali|^DALI\b",
}
"""Patterns of names that only a framework's kernels, NVTX ranges and libraries have."""


class NameWork(NamedTuple):
    """The launches of a kernel by full name; ``time``: their total duration over all GPUs, ns."""

    time: int
    launches: int
    family: str
    precision: str | None
    name: str


@once
def kernel_mix(case: Case) -> list[NameWork]:
    """Return all selected kernels, most time first."""
    table = tables.kernels
    name = sa.func.coalesce(table.c.name, "").label("name")
    time = sa.cast(sa.func.sum(duration(table)), sa.BigInteger).label("time")
    query = (
        sa.select(name, time, sa.func.count())
        .where(*where(table, case.scope), table.c.end.is_not(None))
        .group_by(name)
        .order_by(time.desc(), name)
    )
    session, rules = case.job.session, case.job.families
    rows = of_all_reports(session, case.scope, table, "kernel-mix", lambda: session.rows(query))
    return [NameWork(int(time), count, family_of(name, rules), precision_of(name), name) for name, time, count in rows]


@once
def frameworks(case: Case) -> frozenset[str]:
    """Return the known frameworks of the job; empty for a CUDA C++ program or without evidence."""
    session, used = case.job.session, set()
    for framework, pattern in _FRAMEWORKS.items():
        is_used = any(re.search(pattern, kernel.name) for kernel in kernel_mix(case))
        for table, text in ((tables.nvtx_ranges, LABEL), (tables.stack_names, tables.stack_names.c.name)):
            if not is_used and session.count(table):
                matches = sa.func.regexp_matches(text, pattern, type_=sa.Boolean)
                is_used = bool(session.rows(sa.select(sa.literal(1)).select_from(table).where(matches).limit(1)))
        if is_used:
            used.add(framework)
    return frozenset(used)


def by_framework(case: Case, usual: str, **words: str) -> str:
    """Return the first of ``words``, by lower-case framework, whose framework the job uses, else ``usual``."""
    return next((text for key, text in words.items() if key in {name.lower() for name in frameworks(case)}), usual)


def shares(works: Iterable[NameWork], key: Callable[[NameWork], str]) -> list[tuple[str, float]]:
    """Return the time of each group in % of all, largest first."""
    times = Counter[str]()
    for work in works:
        times[key(work)] += work.time
    total = times.total()
    return [(word, 100.0 * time / total) for word, time in times.most_common()] if total else []
