"""The kernel summary by NVTX range: the range of a kernel's capture if a CUDA graph replays it, else of its launch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nsystui.base.answer import TableAnswer
from nsystui.base.selection import Selection
from nsystui.base.types import Ints
from nsystui.questions.host.naming import ThreadRanges
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import kernel_summary
from nsystui.questions.steps.kernels_in_steps import rows_by_number


def kernels_in_ranges(job: OpenJob, selection: Selection, **options: Any) -> TableAnswer:
    """Summarise kernels like `kernel_summary`, by NVTX range and other keys; ``options`` are its further arguments."""
    ranges = ThreadRanges.load(job)

    def number_of(*kernels: Ints) -> Ints:
        labels, is_captured = ranges.of_operations(*kernels)
        return 2 * labels + is_captured

    def cells_of(numbers: Ints) -> dict[str, list[str]]:
        origins = ["captured" if number else "launched" for number in (numbers & 1).tolist()]
        return {"origin": origins, "range": [ranges.names[number] for number in (numbers >> 1).tolist()]}

    rows = partial(rows_by_number, number_of, cells_of, np.zeros_like)
    answer = kernel_summary(job.session, selection, **options, summarise=rows)
    return replace(answer, notes=(*answer.notes, *ranges.ranges.notes))
