"""Jumps between a call and its GPU work, in both directions, or the reason why they are not possible."""

import re
from typing import Any

import campaign
import pytest
import synthetic
from support import edit, native, shared
from synthetic import ExportWriter, demo
from synthetic.gpu_program import Program

from nsystui.base.selection import Selection
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EVENT_COLUMNS, EventList, Launch, Partners, facts, key_of, launch, partners
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.tasks import ranked_tasks
from nsystui.store.session import Session
from nsystui.ui.pictures.details import event_details

KEYS = [column.key for column in EVENT_COLUMNS]


def lines_of(session, row) -> list[str]:
    return [fact for paragraph in event_details(OpenJob(session), row) for fact in paragraph]


def waited(session: Session, row: tuple[Any, ...]) -> list[str]:
    """Return the details of an event about a wait."""
    return [fact for fact in lines_of(session, row) if fact.startswith("waited")]


def listed(session: Session, *kinds: EventKind) -> list[tuple[Any, ...]]:
    events = EventList.build(session, Selection(), ranked_tasks(session), kinds)
    return list(events.page(0, len(events)))


def of(row: tuple[Any, ...], key: str) -> Any:
    return row[KEYS.index(key)]


def partners_of(session: Session, row: tuple[Any, ...]) -> Partners:
    return partners(session, key_of(row), ranked_tasks(session))


@pytest.mark.campaign
def test_in_processes_and_reports_with_the_same_ids_each_finds_its_own(tmp_path, session):
    for name in ("a", "b"):
        session.add(synthetic.two_process_export(tmp_path / f"{name}.sqlite"))
    for kind, other in ((EventKind.KERNEL, EventKind.API), (EventKind.API, EventKind.KERNEL)):
        rows = listed(session, kind)
        assert len(rows) == 400
        for row in rows[::61]:
            (partner,) = partners_of(session, row).rows
            assert of(partner, "kind") == other.value
            for key in ("report", "process", "correlation_id"):
                assert of(partner, key) == of(row, key)
            assert partners_of(session, partner).rows == (row,)
    lines = lines_of(session, listed(session, EventKind.KERNEL)[0])
    assert any("20 µs" in line and "10 µs" in line for line in lines), "how long it took to start"


def test_a_graph_launch_traced_by_node_has_all_its_nodes(tmp_path, session):
    session.add(synthetic.node_graph_export(tmp_path / "node.sqlite"))
    calls = {of(row, "name"): row for row in listed(session, EventKind.API)}
    found = partners_of(session, calls["cudaGraphLaunch_v10000"])
    assert len(found.rows) == 10
    assert [of(row, "start") for row in found.rows] == sorted(of(row, "start") for row in found.rows)
    for node in found.rows[::4]:
        assert partners_of(session, node).rows == (calls["cudaGraphLaunch_v10000"],)
    assert "launched 10 operations" in lines_of(session, calls["cudaGraphLaunch_v10000"])


def test_a_graph_launch_traced_whole_has_its_graph(tmp_path, session):
    session.add(synthetic.whole_graph_export(tmp_path / "whole.sqlite"))
    graphs = listed(session, EventKind.GRAPH)
    for graph in (graphs[0], graphs[4], graphs[-1]):
        (call,) = partners_of(session, graph).rows
        assert of(call, "name") == "cudaGraphLaunch_v10000"
        assert partners_of(session, call).rows == (graph,)


@pytest.mark.campaign
class TestReasons:
    def test_a_launch_before_the_capture(self, tmp_path, session):
        session.add(synthetic.delayed_capture_export(tmp_path / "late.sqlite"))
        found = [partners_of(session, row) for row in listed(session, EventKind.KERNEL)[:7]]
        assert [len(item.rows) for item in found] == [0] * 4 + [1] * 3
        assert {item.reason for item in found[:4]} == {
            "its API call was not recorded (it came before the capture, or API calls were not traced)"
        }
        assert {item.reason for item in found[4:]} == {""}

    def test_work_without_a_correlation_id_or_a_process(self, tmp_path, session):
        session.add(synthetic.unified_memory_export(tmp_path / "um.sqlite"))
        path = synthetic.two_process_export(tmp_path / "two.sqlite")
        edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL")
        session.add(path)
        migrations = listed(session, EventKind.MEMORY)
        assert len(migrations) == 11
        for row in (*migrations[::4], next(row for row in listed(session, EventKind.KERNEL) if of(row, "report") == 1)):
            assert partners_of(session, row).reason == "this row has no correlation id"

    def test_events_that_have_no_other_side(self, demo_session, tmp_path, session):
        session.add(synthetic.cpu_only_export(tmp_path / "cpu.sqlite"))
        for kind in (EventKind.NVTX, EventKind.MARK, EventKind.OS, EventKind.MPI):
            source = session if kind is EventKind.MPI else demo_session
            found = partners_of(source, listed(source, kind)[0])
            assert found.rows == () and found.reason, kind
        row = next(row for row in listed(demo_session, EventKind.API) if of(row, "name") == "cudaMalloc")
        assert partners_of(demo_session, row) == Partners((), "this call launched no GPU work")


def test_the_delay_of_a_launch_is_from_the_call_and_the_queueing_from_its_end():
    cases = [(100, 150, 50, 30), (100, 120, 20, 0), (100, 110, 10, None), (100, 100, 0, None), (100, 99, 0, None)]
    for start, work, delay, queueing in [*cases, (-50, -10, 40, 20)]:
        call, kernel = ({"start": start, "duration": 20}, {"start": work, "duration": 1})
        found = launch(*(tuple(values.get(key) for key in KEYS) for values in (call, kernel)))
        assert found == Launch(delay, queueing), (start, work)


class TestFacts:
    @pytest.mark.campaign
    def test_every_kind_has_facts_and_lines(self, demo_session, tmp_path, session):
        session.add(synthetic.cpu_only_export(tmp_path / "cpu.sqlite"))
        session.add(synthetic.whole_graph_export(tmp_path / "whole.sqlite"))
        session.add(synthetic.simulation_export(tmp_path / "simulation.sqlite"))
        with ExportWriter(tmp_path / "ucx.sqlite") as export:
            thread = export.thread(export.process(5_000), 5_000, "main")
            export.ucx(thread, 1_000, 2_000, "ucp_worker_progress")
            export.cuda_overhead(thread, 3_000, 4_000, 7)
            Program(export, 6_000).host_function((5_000, 5_100), (6_000, 7_000))
        session.add(tmp_path / "ucx.sqlite")
        for kind in EventKind:
            source = demo_session if listed(demo_session, kind) else session
            row = listed(source, kind)[0]
            found = facts(source, key_of(row))
            assert found and not [word for word, value, _ in found if value is None], kind
            lines = lines_of(source, row)
            assert str(of(row, "name")) in lines[0]
            assert all(isinstance(line, str) for line in lines), kind

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


def waits_export(path, schema: str, *, numbered: bool = False, shift: int = 0):
    """Write event 5, recorded on stream 13 at 10 µs and on stream 14 at 30 µs, and waits for it.

    A stream waits at 20 µs, the host at 40 µs, also for the unrecorded event 6. A query, and a wait for a stream, have
    an event, too. `shift` changes the types of synchronisation: only the names of the calls decide.
    """
    with ExportWriter(path, schema) as export:
        export.gpu(0)
        process = export.process(4711)
        main = export.thread(process, 4711, "train")
        for start, stream, correlation in [(10_000, 13, 1), (30_000, 14, 2)]:
            export.api(main, start, start + 1_000, "cudaEventRecord_v3020", correlation)
            export.cuda_event(process, 0, stream, correlation_id=correlation, event_id=5)
        for start, name, kind, event, correlation in [
            (20_000, "cudaStreamWaitEvent_v3020", 2, 5, 3), (40_000, "cudaEventSynchronize_v3020", 1, 5, 4),
            (50_000, "cudaEventSynchronize_v3020", 1, 6, 5), (60_000, "cudaStreamSynchronize_v3020", 3, 5, 6),
            (70_000, "cudaEventQuery_v3020", 1, 5, 7),
        ]:  # fmt: skip
            span, ids = (start, start + 5_000), {"correlation_id": correlation, "event_id": event}
            export.api(main, *span, name, correlation)
            export.sync(process, 0, 15 if kind == 2 else 0xFFFFFFFF, *span, sync_type=kind + shift, **ids)
    if numbered:
        record, sync = "CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
        for table, correlation, number in [(record, 1, 71), (record, 2, 72), (sync, 4, 71)]:
            edit(path, f"UPDATE {table} SET eventSyncId = {number} WHERE correlationId = {correlation}")
    return path


WAITS = [
    "waited for event 5, recorded on stream 13 10 µs before",
    "waited for event 5, recorded on stream 14 10 µs before",
    "waited for event 6; this export has no earlier record of that event",
]


@pytest.mark.parametrize("schema", campaign.first(1, ["2.9.1", "3.7.2", "3.25.0"]))
def test_a_wait_says_for_which_event_and_where_that_was_recorded(tmp_path, session, schema):
    session.add(waits_export(tmp_path / "a.sqlite", schema, shift=schema == "2.9.1"))
    for kind in (EventKind.SYNC, EventKind.API):
        assert [fact for row in listed(session, kind) for fact in waited(session, row)] == WAITS, kind


def test_without_cuda_events_a_wait_says_what_to_record(tmp_path, session):
    path = waits_export(tmp_path / "a.sqlite", "3.25.0")
    edit(path, "DROP TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT")
    session.add(path)
    assert any("--cuda-event-trace=true" in fact for fact in lines_of(session, listed(session, EventKind.SYNC)[0]))


def test_the_number_that_a_wait_shares_with_a_record_comes_before_the_last_record(tmp_path, session):
    session.add(waits_export(tmp_path / "a.sqlite", "3.25.0", numbered=True))
    (row,) = [row for row in listed(session, EventKind.SYNC) if of(row, "correlation_id") == 4]
    assert waited(session, row) == ["waited for event 5, recorded on stream 13 30 µs before"]


def test_waits_of_a_real_export_are_for_the_record_with_their_number(opened):
    (path,) = shared("event-ids-unified-memory-2025.5")
    joined = native(
        path,
        "SELECT s.start, e.eventId, e.streamId, s.start - r.start FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION s "
        "JOIN CUPTI_ACTIVITY_KIND_CUDA_EVENT e USING (eventSyncId) "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = e.correlationId WHERE syncType = 1",
    )
    assert [row[0] for row in joined] == [550945717, 551165251]
    session = opened(path)
    rows = {of(row, "start"): row for row in listed(session, EventKind.SYNC)}
    for start, event, stream, passed in joined:
        said = f"waited for event {event}, recorded on stream {stream} {passed / 1000:.4g} µs before"
        assert waited(session, rows[start]) == [said]


def test_migrations_of_unified_memory_have_no_call(opened):
    session = opened(*shared("event-ids-unified-memory-2025.5"))
    moves = [row for row in listed(session, EventKind.MEMORY) if "Unified" in of(row, "name")]
    assert len(moves) == 27 + 26
    assert [partners_of(session, row).rows for row in moves[::26]] == [()] * 3


@pytest.mark.campaign
def test_waits_of_a_real_export_are_for_the_last_record_before_them(opened):
    (path,) = shared("ddp-a100-rank0of4")
    session = opened(path)
    records = native(
        path,
        "SELECT e.eventId, e.contextId, e.streamId, r.start FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT e "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId) ORDER BY r.start",
    )
    waits = native(
        path,
        "SELECT s.start, s.eventId, s.contextId, n.value FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION s "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId) JOIN StringIds n ON n.id = r.nameId ORDER BY s.start",
    )
    is_wait = re.compile("cuda(EventSynchronize|StreamWaitEvent)")
    others = [start for start, _, _, name in waits if not is_wait.match(name)]
    waits = [wait[:3] for wait in waits if is_wait.match(wait[3])]
    rows = {of(row, "start"): row for row in listed(session, EventKind.SYNC)}
    assert (len(waits), len(others)) == (185 + 2124, 118 + 1)
    assert not [fact for start in others[::30] for fact in waited(session, rows[start])]
    for start, event, context in waits[::200]:
        own = [one for one in records if one[:2] == (event, context) and one[3] <= start]
        (fact,) = waited(session, rows[start])
        assert fact.startswith(f"waited for event {event}, recorded on stream {own[-1][2]} " if own else "waited for")
        assert bool(own) == ("recorded on stream" in fact)
