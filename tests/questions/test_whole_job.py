"""Summaries of whole jobs are computed once for each set of exports, facts of single reports in runs that fit."""

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest
from support import job_of
from synthetic import two_process_export
from synthetic.demo import TrainingJob

from nsystui.base.answer import Answer, iter_rows
from nsystui.base.selection import NameFilter, Selection
from nsystui.questions.collectives.alignment import ClockMode
from nsystui.questions.host import host_work
from nsystui.questions.kernels.activities import API, work_summary
from nsystui.questions.kernels.summary import GroupBy, Names, kernel_summary
from nsystui.questions.queries import derived
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.triage.run import triage, triage_table
from nsystui.store import tables
from nsystui.store.cache import Cache
from nsystui.store.session import Computation, Session

EVERYTHING = Selection()


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Return the list that gets DuckDB's queries."""
    monkeypatch.setattr(derived, "_MANY_ROWS", 1)
    queries: list[str] = []
    batches = Session.batches

    def counted(session: Session, query: object, size: int) -> object:
        queries.append(str(query))
        return batches(session, query, size)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "batches", counted)
    return queries


@pytest.fixture
def ask(tmp_path) -> Callable[..., object]:
    export = two_process_export(tmp_path / "rank0.sqlite")
    two_process_export(tmp_path / "rank1.sqlite")

    def answered(question: Callable[[Session], Answer], *names: str) -> tuple[list[object], int | None]:
        with closing(Session(cache=Cache(tmp_path / "cache"))) as session:
            for name in names or ("rank0",):
                session.add(export.with_name(f"{name}.sqlite"))
            answer = question(session)
            return list(iter_rows(answer)), answer.total

    return answered


@pytest.mark.campaign
def test_questions_about_everything_are_asked_once_of_each_job(ask, asked):
    questions = [
        lambda session: kernel_summary(session, EVERYTHING),
        lambda session: kernel_summary(session, EVERYTHING, Names.SHORT),
        lambda session: kernel_summary(session, EVERYTHING, group_by=(GroupBy.DEVICE,)),
        lambda session: kernel_summary(session, Selection(name=NameFilter("saxpy"))),
        lambda session: work_summary(session, EVERYTHING, API),
    ]
    found = [ask(question) for question in questions]
    assert found[0][0] and found[1][0] and found[-1][0]
    assert len(asked) == len(questions)
    both, other = ask(questions[0], "rank0", "rank1"), ask(questions[0], "rank1")
    assert len(asked) == 7
    assert both[0] != found[0][0] and other[0]
    for place in (0, 1, 4):
        assert ask(questions[place]) == found[place]
    assert len(asked) == 7, "the answers about everything are kept"
    assert [ask(question) for question in questions] == found


@pytest.mark.campaign
def test_a_triage_finds_what_another_has_kept_whatever_the_clocks(demo_job, asked, tmp_path, monkeypatch):
    def answer(cache: Cache | None, is_aligned: bool) -> Answer:
        with job_of(*demo_job, cache=cache) as job:
            if is_aligned:
                job.align(ClockMode.COLLECTIVES)
            return triage_table(triage(job))

    expected = answer(None, is_aligned=True)
    answer(Cache(tmp_path / "cache"), is_aligned=False)
    assert answer(Cache(tmp_path / "cache"), is_aligned=True) == expected
    monkeypatch.setattr(host_work, "attribute", lambda *_, **__: pytest.fail("computed again"))
    assert answer(Cache(tmp_path / "cache"), is_aligned=True) == expected


def test_an_export_that_changed_is_asked_again(ask, asked, tmp_path):
    ask(lambda session: work_summary(session, EVERYTHING, API))
    two_process_export(tmp_path / "rank0.sqlite")
    ask(lambda session: work_summary(session, EVERYTHING, API))
    assert len(asked) == 2


@pytest.mark.campaign
def test_few_rows_are_not_kept(ask, asked, tmp_path, monkeypatch):
    monkeypatch.undo()
    ask(lambda session: work_summary(session, EVERYTHING, API))
    assert not (tmp_path / "cache" / "answers").exists()


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
