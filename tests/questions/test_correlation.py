"""Between a call and its GPU work, both ways, and why there is no way where there is none."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import synthetic
from support import edit
from synthetic import ExportWriter

from nsystui.base.selection import Selection
from nsystui.exports import demo
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EVENT_COLUMNS, EventList, Launch, Partners, facts, key_of, launch, partners
from nsystui.questions.job import Job
from nsystui.questions.tasks import ranked_tasks
from nsystui.store.session import Session
from nsystui.ui.pictures.details import event_details

KEYS = [column.key for column in EVENT_COLUMNS]


def lines_of(session, row) -> list[str]:
    """The details of an event, fact by fact."""
    return [fact for paragraph in event_details(Job(session), row) for fact in paragraph]


def listed(session: Session, *kinds: EventKind) -> list[tuple[Any, ...]]:
    events = EventList.build(session, Selection(), ranked_tasks(session), kinds)
    return list(events.page(0, len(events)))


def of(row: tuple[Any, ...], key: str) -> Any:
    return row[KEYS.index(key)]


def partners_of(session: Session, row: tuple[Any, ...]) -> Partners:
    return partners(session, key_of(row), ranked_tasks(session))


def test_in_two_processes_with_shared_ids_each_finds_its_own(tmp_path, session):
    session.add(synthetic.two_process_export(tmp_path / "two.sqlite"))
    for kind, other in ((EventKind.KERNEL, EventKind.API), (EventKind.API, EventKind.KERNEL)):
        rows = listed(session, kind)
        assert len(rows) == 200
        for row in rows[::35]:
            (partner,) = partners_of(session, row).rows
            assert of(partner, "kind") == other.value
            assert of(partner, "process") == of(row, "process")
            assert of(partner, "correlation_id") == of(row, "correlation_id")
            (back,) = partners_of(session, partner).rows
            assert back == row


def test_reports_with_the_same_ids_do_not_meet(tmp_path):
    with closing(Session()) as session:
        for name in ("a", "b"):
            session.add(synthetic.two_process_export(tmp_path / f"{name}.sqlite"))
        for row in listed(session, EventKind.KERNEL)[::40]:
            (partner,) = partners_of(session, row).rows
            assert of(partner, "report") == of(row, "report")


def test_a_graph_launch_traced_by_node_has_all_its_nodes(tmp_path, session):
    session.add(synthetic.node_graph_export(tmp_path / "node.sqlite"))
    calls = {of(row, "name"): row for row in listed(session, EventKind.API)}
    found = partners_of(session, calls["cudaGraphLaunch_v10000"])
    assert len(found.rows) == 10
    assert [of(row, "start") for row in found.rows] == sorted(of(row, "start") for row in found.rows)
    for node in found.rows:
        (back,) = partners_of(session, node).rows
        assert back == calls["cudaGraphLaunch_v10000"]
    lines = lines_of(session, calls["cudaGraphLaunch_v10000"])
    assert "launched 10 operations" in lines


def test_a_graph_launch_traced_whole_has_its_graph(tmp_path, session):
    session.add(synthetic.whole_graph_export(tmp_path / "whole.sqlite"))
    for graph in listed(session, EventKind.GRAPH):
        (call,) = partners_of(session, graph).rows
        assert of(call, "name") == "cudaGraphLaunch_v10000"
        assert partners_of(session, call).rows == (graph,)


def test_a_call_and_its_second_row_of_cudabacktrace_are_one(tmp_path, session):
    session.add(synthetic.old_schema_export(tmp_path / "old.sqlite"))
    for row in listed(session, EventKind.KERNEL)[:5]:
        assert len(partners_of(session, row).rows) == 1


def test_memory_operations_and_synchronisations_have_their_calls(demo_session):
    for kind in (EventKind.MEMORY, EventKind.SYNC, EventKind.NCCL):
        for row in listed(demo_session, kind)[:6]:
            (call,) = partners_of(demo_session, row).rows
            assert of(call, "kind") == "api"
            assert of(call, "rank") == of(row, "rank")


class TestReasons:
    def test_a_launch_before_the_capture(self, tmp_path, session):
        session.add(synthetic.delayed_capture_export(tmp_path / "late.sqlite"))
        found = [partners_of(session, row) for row in listed(session, EventKind.KERNEL)]
        assert [len(item.rows) for item in found] == [0] * 4 + [1] * 16
        assert {item.reason for item in found[:4]} == {
            "its API call was not recorded (launched before the capture, or API rows were not traced)"
        }
        assert {item.reason for item in found[4:]} == {""}

    def test_a_call_that_launches_nothing(self, demo_session):
        row = next(row for row in listed(demo_session, EventKind.API) if of(row, "name") == "cudaMalloc")
        assert partners_of(demo_session, row) == Partners((), "this call launched no GPU work")

    def test_work_without_a_correlation_id(self, tmp_path, session):
        session.add(synthetic.unified_memory_export(tmp_path / "um.sqlite"))
        rows = listed(session, EventKind.MEMORY)
        assert len(rows) == 11
        assert {partners_of(session, row).reason for row in rows} == {"this row records no correlation id"}

    def test_work_without_a_process(self, tmp_path, session):
        path = synthetic.two_process_export(tmp_path / "two.sqlite")
        edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL")
        session.add(path)
        row = listed(session, EventKind.KERNEL)[0]
        assert partners_of(session, row).reason == "this row records no correlation id"

    @pytest.mark.parametrize("kind", [EventKind.NVTX, EventKind.MARK, EventKind.MPI, EventKind.OS])
    def test_events_that_have_no_other_side(self, demo_session, tmp_path, session, kind):
        session.add(synthetic.cpu_only_export(tmp_path / "cpu.sqlite"))
        row = listed(session if kind is EventKind.MPI else demo_session, kind)[0]
        found = partners_of(session if kind is EventKind.MPI else demo_session, row)
        assert found.rows == ()
        assert found.reason


class TestDelays:
    def row(self, **values: int) -> tuple[Any, ...]:
        return tuple(values.get(key) for key in KEYS)

    @pytest.mark.parametrize(
        ("call", "work", "expected"),
        [
            ((100, 20), 150, Launch(50, 30)),
            ((100, 20), 120, Launch(20, 0)),
            ((100, 20), 110, Launch(10, None)),
            ((100, 20), 100, Launch(0, None)),
            ((100, 20), 99, Launch(0, None)),
            ((-50, 20), -10, Launch(40, 20)),
        ],
    )
    def test_from_the_call_and_from_its_end(self, call, work, expected):
        start, duration = call
        assert launch(self.row(start=start, duration=duration), self.row(start=work, duration=1)) == expected

    def test_they_are_shown(self, tmp_path, session):
        session.add(synthetic.two_process_export(tmp_path / "two.sqlite"))
        lines = lines_of(session, listed(session, EventKind.KERNEL)[0])
        assert any("20 µs" in line and "10 µs" in line for line in lines), lines


class TestFacts:
    def test_every_kind_has_facts_and_lines(self, demo_session, tmp_path, session):
        session.add(synthetic.cpu_only_export(tmp_path / "cpu.sqlite"))
        session.add(synthetic.whole_graph_export(tmp_path / "whole.sqlite"))
        for kind in EventKind:
            source = session if kind in (EventKind.MPI, EventKind.GRAPH) else demo_session
            row = listed(source, kind)[0]
            found = facts(source, key_of(row))
            assert found, kind
            assert not [word for word, value, _ in found if value is None]
            lines = lines_of(source, row)
            assert str(of(row, "name")) in lines[0]
            assert all(isinstance(line, str) for line in lines)

    def test_names_of_threads_are_told(self, tmp_path, session):
        with ExportWriter(tmp_path / "t.sqlite") as export:
            process = export.process(5_000)
            export.api(export.thread(process, 5_001, "loader"), 1, 2, "cudaFree_v3020", 1)
            export.api(demo.Thread(process, 5_002, "", process.global_id | 5_002), 3, 4, "cudaFree_v3020", 2)
        session.add(tmp_path / "t.sqlite")
        named, nameless = listed(session, EventKind.API)
        assert ("thread name", "loader", "thread_name") in facts(session, key_of(named))
        assert "thread name" not in [word for word, *_ in facts(session, key_of(nameless))]

    def test_an_event_that_is_not_there_has_none(self, demo_session):
        key = key_of(listed(demo_session, EventKind.KERNEL)[0])
        assert facts(demo_session, type(key)(key.report, key.kind, 10**9, key.start)) == []

    def test_hostile_names_are_lines_like_others(self, tmp_path, session):
        session.add(synthetic.hostile_names_export(tmp_path / "h.sqlite"))
        rows = listed(session, EventKind.KERNEL, EventKind.NVTX, EventKind.API)
        for row in rows:
            assert lines_of(session, row)[0] == (of(row, "name") or "")

    def test_a_range_that_was_never_closed_has_lines(self, tmp_path, session):
        session.add(synthetic.open_ranges_export(tmp_path / "open.sqlite"))
        for row in listed(session, EventKind.NVTX, EventKind.MARK):
            assert lines_of(session, row)
