"""The causes of all idle time of a job, kept: a table that needs them again finds them."""

from __future__ import annotations

import hashlib
from dataclasses import astuple
from functools import partial
from typing import Any

import numpy as np

from nsystui.questions.host.attribution import Attribution, attribute
from nsystui.questions.host.causes import Cause
from nsystui.questions.host.idle_spans import IdleSpans
from nsystui.questions.host.naming import workers_by_rank
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.chains import narrow
from nsystui.questions.queries.time_window import report_at
from nsystui.store.results import as_arrays, json_array, json_of, version_of

_COLUMNS = ("launcher", "span", "cause", "range", "time")


def attribute_once(job: OpenJob, spans: IdleSpans, with_ranges: bool) -> Attribution:
    """Find the causes of each span as `attribute` does; those of the same spans are computed once.

    They are kept with the results of the first report that has idle time.
    """
    if not len(spans):
        return attribute(job, spans, with_ranges)
    session = job.session
    workers = workers_by_rank(job, {task for task, _ in spans.gpus})
    # Names of NVTX ranges are folded over all reports, not only over those with idle time.
    reports = [session.results(one).reports for one in session.reports]
    digest = hashlib.sha256(repr((with_ranges, spans.gpus, sorted(workers.items()), reports)).encode())
    for values in (narrow(spans.gpu), spans.starts, spans.ends):
        digest.update(np.ascontiguousarray(values).data)
    question, version = f"causes-{digest.hexdigest()[:16]}", version_of()
    results = session.results(report_at(session, min(task.report for task, _ in spans.gpus)))
    found = results.load(question, version, partial(_read, spans))
    if found is None:
        found = attribute(job, spans, with_ranges)
        words = [list(map(astuple, found.causes)), found.ranges, found.launchers]
        results.save(question, {**{key: getattr(found, key) for key in _COLUMNS}, "words": json_array(words)}, version)
    return found


def _read(spans: IdleSpans, kept: Any) -> Attribution:
    """What was kept of the spans. Raises an error where it is something else."""
    arrays = as_arrays(kept)
    causes, ranges, launchers = json_of(arrays["words"])
    return Attribution(
        spans=spans,
        launchers=tuple(one and (one[0], one[1]) for one in launchers),
        causes=tuple(Cause(*one) for one in causes),
        ranges=tuple(ranges),
        **{key: arrays[key] for key in _COLUMNS},
    )
