"""What two jobs are called beside each other."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nsystui.questions.job import Job
from nsystui.questions.overview import job_facts


def job_labels(jobs: Sequence[Job], files: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The title that the overview has for each job; where these are alike, where its ``files`` are."""
    titles = [job_facts(job.session, job.ranks).title for job in jobs]
    if len(set(titles)) == len(titles) and all(titles):
        return tuple(titles)
    return tuple(_place(own) for own in files)


def _place(files: Sequence[str]) -> str:
    """The only name, or the folder of several."""
    if len(files) == 1:
        return files[0]
    return os.path.commonpath([os.path.abspath(name) for name in files]) if files else ""
