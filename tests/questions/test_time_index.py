"""Pages found by time equal the pages of the whole list in order."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import campaign
import pytest
from support import session_over
from synthetic import ExportWriter
from synthetic.demo import CaptureSession as Capture

from nsystui.base.selection import Selection
from nsystui.questions.kernels.summary import Names, kernel_instances
from nsystui.questions.queries import paged, time_index
from nsystui.questions.queries.paged import PagedAnswer
from nsystui.questions.queries.tasks import ranked_tasks
from nsystui.questions.queries.time_index import TimeIndex
from nsystui.store import tables
from nsystui.store.session import Session

START = 1_780_000_000_000_000_000


def export(path: Path, offset: int, starts: list[int]) -> Path:
    """Write launches of a kernel at ``starts``; every third has no recorded call."""
    with ExportWriter(path, session=Capture(utc_epoch_ns=START + offset)) as out:
        process = out.process(4711)
        thread = out.thread(process, 4711, "main")
        for number, start in enumerate(starts, 1):
            if number % 3:
                out.api(thread, start - 40, start - 20, "cudaLaunchKernel_v7000", correlation_id=number)
            out.kernel(process, 0, 7, start, start + 5 + number % 4, name="saxpy(float *)", correlation_id=number)
    return path


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Yield two ranks on clocks 300 ns apart, with many kernels at the same time."""
    place, starts = tmp_path_factory.mktemp("ranks"), [100 + 10 * (number // 4) for number in range(60)]
    session = session_over(export(place / "a.sqlite", 0, starts), export(place / "b.sqlite", 300, starts[::2]))
    yield session
    session.close()


@pytest.fixture
def instances(session: Session, monkeypatch: pytest.MonkeyPatch) -> PagedAnswer:
    """Return the kernels of both ranks; an index of 20 bins, some of which begin with a row, finds their pages."""
    monkeypatch.setattr(time_index, "_BINS", 20)
    monkeypatch.setattr(paged, "_MANY", 1)
    return kernel_instances(session, Selection(), "saxpy(float *)", Names.FULL, ranked_tasks(session))


@pytest.mark.parametrize(
    ("key", "descending"),
    campaign.first(2, [("launch_delay", True), ("row", True), ("start", False), ("start", True), ("duration", True)]),
)
def test_pages_are_parts_of_the_whole(
    instances: PagedAnswer, monkeypatch: pytest.MonkeyPatch, key: str, descending: bool
) -> None:
    monkeypatch.setattr(paged, "_BLOCK", 16)
    monkeypatch.setattr(paged, "_LOOKED_UP", 5)
    ordered = instances.sorted_by(key, descending)
    whole = [row for batch in ordered.stream(1000) for row in batch]
    assert len(whole) == len(ordered) == 90
    for limit, offsets in {1: (0, 29, 44, 89), 7: (0, 1, 31, 44, 60, 83, 89, 93), 200: (0, 30)}.items():
        for offset in offsets:
            assert list(ordered.page(offset, limit)) == whole[offset : offset + limit], (offset, limit)


def test_a_page_reads_a_part_of_the_time_unless_there_are_rows_without_a_start(instances: PagedAnswer) -> None:
    index = TimeIndex.of_table(instances.session, tables.kernels, instances.query)
    assert index.rows == 90
    first, last = index.bins_of(40, 45)
    assert 0 < first < last < index.bins
    assert index.before[first] <= 40 < 45 <= index.before[last]
    narrowed, offset = instances._narrowed(40, 5)
    assert offset == 40 - index.before[first]
    assert 5 <= len(instances.session.rows(narrowed)) < 40
    assert replace(instances, length=91)._narrowed(40, 5) == (instances.query, 40)


def test_the_launch_delay_of_a_page_is_that_of_the_whole(instances: PagedAnswer) -> None:
    delays = {(row[-3], row[-1]): row[2] for row in instances.sorted_by("launch_delay", False).page(0, 90)}
    assert {(row[-3], row[-1]): row[2] for row in instances.page(0, 90)} == delays
    assert set(delays.values()) == {40, None}


def test_pages_beside_one_that_took_a_look_at_all_rows_need_no_other_look(
    instances: PagedAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged, "_BLOCK", 40)
    asked: list[object] = []
    rows = Session.rows
    monkeypatch.setattr(Session, "rows", lambda session, query: asked.append(query) or rows(session, query))
    ordered = instances.sorted_by("registers", True)
    first = [ordered.page(offset, 10) for offset in (0, 10, 30)]
    once = len(asked)
    assert [ordered.page(offset, 10) for offset in (0, 10, 30)] == first
    assert len(asked) == once
    ordered.page(40, 10)
    assert len(asked) == 2 * once
