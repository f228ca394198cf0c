"""NCCL operations on the GPU by collective: each from the start of its first kernel to the end of its last."""

from __future__ import annotations

import numpy as np

from nsystui.base.answer import TableAnswer
from nsystui.base.columns import Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.job import Job
from nsystui.questions.nccl.grouping import By, selected, values_of
from nsystui.questions.nccl.summary import nccl_notes
from nsystui.questions.nccl.units import whole
from nsystui.questions.stats.nvtx_kernels import measured, quartiles

COLUMNS = (
    Column("name", header="Collective", label="collective"),
    Column("total", header="Total Proj Time (ns)", label="GPU total", unit=Unit.DURATION),
    Column("call_total", header="Total Call Time (ns)", label="CPU total", unit=Unit.DURATION, importance=2),
    Column("count", header="Operations", label="operations", unit=Unit.COUNT, importance=1),
    Column("avg", header="Proj Avg (ns)", label="GPU avg", unit=Unit.DURATION, decimals=1, importance=3),
    Column("median", header="Proj Med (ns)", label="GPU median", unit=Unit.DURATION, decimals=1, importance=2),
    Column("min", header="Proj Min (ns)", label="GPU min", unit=Unit.DURATION, importance=5),
    Column("max", header="Proj Max (ns)", label="GPU max", unit=Unit.DURATION, importance=4),
    Column("stddev", header="Proj StdDev (ns)", label="GPU stddev", unit=Unit.DURATION, decimals=1, importance=6),
    Column("op_count", header="Total GPU Ops", label="GPU ops", unit=Unit.COUNT, importance=2),
)
_ONLY_KERNELS = "of kernels: copies that NCCL makes without one are not in it"


def nccl_projected(job: Job, selection: Selection) -> TableAnswer:
    """One row for each collective: statistics of its operations from first to last kernel, longest total first.

    An operation is what one call launched, or the alike calls of a group; a kernel without calls is one of its own.
    ``call_total`` is the CPU time of the calls of these operations, those that manage their groups among them; missing
    where none has calls. The frame has ``q1`` and ``q3`` besides.
    """
    import pandas as pd

    pairing = job.pairing()
    kernels = selected(pairing.kernels, selection)
    kernels = kernels[kernels["end"].notna()]
    operation = whole(kernels["operation"])
    alone = operation.max(initial=-1) + 1 + np.arange(len(kernels))
    frame = pd.DataFrame(
        {
            "operation": np.where(operation >= 0, operation, alone),
            "name": values_of(kernels, By.COLLECTIVE).fillna("unknown").to_numpy(object),
            "start": whole(kernels["start"]),
            "end": whole(kernels["end"]),
        }
    )
    found = frame.groupby("operation").agg(
        name=("name", "first"), start=("start", "min"), end=("end", "max"), op_count=("start", "size")
    )
    calls = pairing.calls
    spent = (calls["end"] - calls["start"]).astype("float64").groupby(whole(calls["operation"])).sum()
    found["call_total"] = spent.reindex(found.index)
    code, names = pd.factorize(found["name"])
    group, span = code.astype(np.int64), (found["end"] - found["start"]).to_numpy(np.int64)
    table = measured(group, span).join(quartiles(group, span))
    sums = found.groupby(group)[["op_count", "call_total"]].sum(min_count=1)
    table["op_count"], table["call_total"] = sums["op_count"], sums["call_total"].round().astype("Int64")
    table["name"] = pd.Series(
        np.asarray(names, object)[table.index.to_numpy(np.int64)], index=table.index, dtype=object
    )
    table = table.sort_values(["total", "name"], ascending=[False, True], kind="stable").reset_index(drop=True)
    notes = (*nccl_notes(job.session, selection, job.ranks, pairing), *((_ONLY_KERNELS,) if len(table) else ()))
    return TableAnswer.of_frame(
        "nccl-gpu-proj-sum", COLUMNS, table, len(table) if selection.is_everything else None, notes
    )
