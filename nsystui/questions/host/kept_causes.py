"""A cache of the causes of a job's idle time."""

from __future__ import annotations

import hashlib
from dataclasses import astuple
from functools import partial
from typing import Any

import numpy as np

from nsystui.questions.host.attribution import attribute
from nsystui.questions.host.causes import Cause
from nsystui.questions.host.idle_spans import Attribution, IdleSpans
from nsystui.questions.host.naming import workers_by_rank
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.chains import narrow
from nsystui.questions.queries.time_window import report_at
from nsystui.store.results import as_arrays, json_array, json_of, version_of

_COLUMNS = ("launcher", "span", "cause", "range", "time")


def attribute_once(job: OpenJob, spans: IdleSpans, with_ranges: bool) -> Attribution:
    """Find the causes like `attribute`, computed once for the same spans.

    They are saved with the results of the first report that has idle time.
    """
    if not len(spans):
        return attribute(job, spans, with_ranges)
    session = job.session
    workers = workers_by_rank(job, {task for task, _ in spans.gpus})
    # Names of NVTX ranges are folded over all reports, including reports without idle time.
    reports = [session.results(report).reports for report in session.reports]
    digest = hashlib.sha256(repr((with_ranges, spans.gpus, sorted(workers.items()), reports)).encode())
    for values in (narrow(spans.gpu), spans.starts, spans.ends):
        digest.update(np.ascontiguousarray(values).data)
    question, version = f"causes-{digest.hexdigest()[:16]}", version_of()
    results = session.results(report_at(session, min(task.report for task, _ in spans.gpus)))
    result = results.load(question, version, partial(_read, spans))
    if result is None:
        result = attribute(job, spans, with_ranges)
        texts = [list(map(astuple, result.causes)), result.ranges, result.launchers]
        results.save(question, {**{key: getattr(result, key) for key in _COLUMNS}, "words": json_array(texts)}, version)
    return result


def _read(spans: IdleSpans, stored: Any) -> Attribution:
    arrays = as_arrays(stored)
    causes, ranges, launchers = json_of(arrays["words"])
    return Attribution(
        spans=spans,
        launchers=tuple(thread and (thread[0], thread[1]) for thread in launchers),
        causes=tuple(Cause(*cause) for cause in causes),
        ranges=tuple(ranges),
        **{key: arrays[key] for key in _COLUMNS},
    )
