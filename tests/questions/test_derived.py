"""Facts of single reports: computed once, in runs that fit into memory, each kept before the next begins."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from synthetic.demo import TrainingJob

from nsystui.questions.queries import derived
from nsystui.questions.queries.derived import of_each_report
from nsystui.store import tables
from nsystui.store.cache import Cache
from nsystui.store.session import Computation, Session

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Iterator[Session]:
    """Yield five reports, no two of which fit into memory together. Each test computes facts under a different name."""
    directory = tmp_path_factory.mktemp("five")
    with pytest.MonkeyPatch.context() as patch, closing(Session(cache=Cache(directory / "cache"))) as session:
        patch.setattr(derived, "_MOST_ROWS", 1)
        for path in TrainingJob(ranks=5, steps=1, layers=1, gpu_metrics=False).write(directory):
            session.add(path)
        yield session


def indices(part, reports):
    return {report.index: {"index": np.array([report.index])} for report in reports}


def test_a_run_is_given_a_session_of_its_reports(session):
    seen = []

    def compute(part, reports):
        seen.append(([report.index for report in reports], [report.index for report in part.reports]))
        return indices(part, reports)

    of_each_report(session, session.reports, "runs", compute, table=tables.kernels)
    assert seen == [([number], [number]) for number in range(5)]


def test_what_was_computed_before_an_interruption_is_kept(session):
    def compute(part, reports):
        if reports[0].index == 3:
            raise KeyboardInterrupt
        return indices(part, reports)

    with pytest.raises(KeyboardInterrupt):
        of_each_report(session, session.reports, "kept", compute, table=tables.kernels)
    asked = []
    found = of_each_report(
        session, session.reports, "kept", lambda part, reports: asked.extend(reports) or indices(part, reports),
        table=tables.kernels,
    )  # fmt: skip
    assert [report.index for report in asked] == [3, 4]
    assert {index: int(arrays["index"][0]) for index, arrays in found.items()} == {index: index for index in range(5)}


def test_it_is_told_how_far_the_runs_are_and_when_they_are_over(session, monkeypatch):
    told: list[Computation | None] = []
    monkeypatch.setattr(session, "tell", told.append)
    of_each_report(session, session.reports, "told", indices, table=tables.kernels, activity="tests")
    assert [str(one) for one in told[:-1]] == [f"tests: {done} of 5 reports" for done in range(5)]
    assert told[-1] is None
    told.clear()
    of_each_report(session, session.reports, "told", indices, table=tables.kernels, activity="tests")
    assert told == []
