"""Helpers for tests of triage: the triage of exports, and checks of its findings."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from support import open_job

from nsystui.questions.collectives.alignment import ClockMode
from nsystui.questions.job.job import OpenJob
from nsystui.questions.triage.finding import Finding, Severity
from nsystui.questions.triage.run import Triage, triage
from nsystui.questions.triage.thresholds import Thresholds


def triaged(*paths: Path, settings: Sequence[str] = (), rules: Sequence[str] | None = None) -> Triage:
    with closing(open_job(*paths)) as job:
        return judged(job, settings, rules)


def judged(job: OpenJob, settings: Sequence[str] = (), rules: Sequence[str] | None = None) -> Triage:
    if len(job.session.reports) > 1:
        job.align(ClockMode.COLLECTIVES)
    return triage(job, thresholds=Thresholds().changed(settings), names=rules)


def finding(found: Triage, name: str) -> Finding:
    (one,) = [one for one in found.findings if one.id == name]
    return one


def told(one: Finding, *says: str, advises: Sequence[str] = (), never: Sequence[str] = ()) -> None:
    """Check the words of the sentence and of the advice, and that neither has words of ``never``."""
    advice = f"{one.advice.text}; {one.advice.reason}"
    assert [words for words in says if words not in one.sentence] == [], one.sentence
    assert [words for words in advises if words not in advice] == [], advice
    assert [words for words in never if words in f"{one.sentence}; {advice}"] == []


def ids(found: Triage) -> set[str]:
    """Return the findings that are worse than a remark."""
    return {one.id for one in found.findings if one.severity is not Severity.INFO}
