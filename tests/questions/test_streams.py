"""The streams of a GPU: kinds, queued launches and ranges, against counts over the rows of the export."""

from collections import Counter, defaultdict
from contextlib import closing

import campaign
import numpy as np
import pytest
import synthetic
from support import native, session_over, shared

from nsystui.base.selection import Selection, Window
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.time_window import edges_of
from nsystui.questions.timeline.streams import queues_over_time, stream_table

EVERYTHING = Selection()
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"


LIMIT = 40


def _events(path) -> tuple[dict[int, list[tuple[int, int, int]]], dict[int, list[int]]]:
    """Return for each stream the changes of the number of waiting launches, in order, and the delays."""
    events, delays = defaultdict(list), defaultdict(list)
    for table in ("KERNEL", "MEMCPY", "MEMSET"):
        rows = native(
            path,
            f"SELECT g.streamId, min(r.start), g.start FROM {_ACTIVITY}{table} g "
            f"JOIN {_ACTIVITY}RUNTIME r ON r.correlationId = g.correlationId "
            "AND r.globalTid / 16777216 = g.globalPid / 16777216 GROUP BY g.rowid",
        )
        for stream, called, start in rows:
            events[stream] += [(called, 1, 1), (max(start, called), 0, -1)]
            delays[stream].append(max(start - called, 0))
    return events, delays


def _queues(path) -> dict[int, tuple[int, float, list[int], int]]:
    """Return for each stream the maximum and mean of queued launches, the delays, and the time at the limit."""
    (events, delays), found = _events(path), {}
    for stream, own in events.items():
        waiting = most = full = last = 0
        for moment, _, change in sorted(own):
            full += (moment - last) * (waiting >= LIMIT)
            waiting, last = waiting + change, moment
            most = max(most, waiting)
        found[stream] = most, sum(delays[stream]) / (max(own)[0] - min(own)[0]), delays[stream], full
    return found


@pytest.mark.parametrize("name", campaign.first(1, ["h100-2rank-moe-before", "ddp-a100-rank0of4"]))
def test_queues_are_those_of_a_walk_over_launches_and_starts(name, monkeypatch):
    monkeypatch.setattr("nsystui.questions.timeline.streams.QUEUE_LIMIT", LIMIT)
    (path,) = shared(name)
    with closing(OpenJob(session_over(path))) as job:
        found = {row["stream"]: row for row in stream_table(job, EVERYTHING).records()}
    expected = _queues(path)
    assert set(found) == set(expected)
    assert any(full for *_, full in expected.values())
    for stream, (most, mean, delays, full) in expected.items():
        row = found[stream]
        assert row["queued"] == most
        assert row["queued_mean"] == pytest.approx(mean, abs=0.006)
        assert row["delay"] == np.median(delays)
        assert row["at_limit"] == full
        assert row["launched"] == pytest.approx(100 * len(delays) / row["count"])


@pytest.mark.parametrize("window", campaign.first(1, [Selection(), Selection(window=Window(400_000_000, 900_000_000))]))
def test_queues_over_time_are_those_of_a_walk_that_stops_at_each_edge(window):
    (path,) = shared("ddp-a100-rank0of4")
    with closing(OpenJob(session_over(path))) as job:
        rows = queues_over_time(job, window, 7).records()
        edges = edges_of(job.extent(window), 7)
        offset = job.session.reports[0].clock_offset
    events, _ = _events(path)
    assert {row["stream"] for row in rows} == set(events)
    for stream, own in events.items():
        found = [row for row in rows if row["stream"] == stream]
        assert [row["start"] for row in found] == edges[:-1]
        for row, first, last in zip(found, edges, edges[1:], strict=False):
            waiting = area = 0
            most, moment = None, first
            for at, _, change in [*sorted(own), (2**62, 0, 0)]:
                at += offset
                if at > first and most is None:
                    most = waiting
                if first < at:
                    area += waiting * (min(at, last) - moment)
                    moment = min(at, last)
                if at >= last:
                    break
                waiting += change
                if most is not None:
                    most = max(most, waiting)
            assert row["queued"] == most
            assert row["queued_mean"] == pytest.approx(area / (last - first), abs=0.006)


@pytest.mark.campaign
def test_a_stream_is_what_takes_most_of_its_time_and_belongs_to_the_range_around_all_launches():
    (path,) = shared("ddp-a100-rank0of4")
    with closing(OpenJob(session_over(path))) as job:
        found = {row["stream"]: row for row in stream_table(job, EVERYTHING).records()}
    assert Counter(row["kind"] for row in found.values()) == {"compute": 2, "copies": 1, "communication": 1}
    (copies,) = [row for row in found.values() if row["kind"] == "copies"]
    assert "[DALI]" in copies["purpose"]
    ((time,),) = native(path, f'SELECT sum("end" - start) FROM {_ACTIVITY}MEMCPY WHERE streamId = {copies["stream"]}')
    assert copies["copies"] == time


@pytest.mark.campaign
def test_communication_on_a_stream_that_computes_is_told():
    (path,) = shared("h100-2rank-moe-before")
    with closing(OpenJob(session_over(path))) as job:
        answer = stream_table(job, EVERYTHING)
    (note,) = answer.notes
    assert note.startswith("communication on streams that also compute: 17.17 ms on stream 7 of rank 0")


def test_streams_of_two_contexts_are_two_although_they_have_one_number(tmp_path):
    path, times = tmp_path / "contexts.sqlite", {1: 500, 9: 700}
    with synthetic.ExportWriter(path) as writer:
        process = writer.process(100)
        thread = writer.thread(process, 100, "main")
        for number in range(20):
            for context, time in times.items():
                start, call = 1000 * (number + 1) + context, 2 * number + context
                writer.api(thread, start - 200, start - 100, "cudaLaunchKernel", call)
                writer.kernel(
                    process, 0, 7, start, start + time, name=f"of_{context}", correlation_id=call, context=context
                )
    with closing(OpenJob(session_over(path))) as job:
        table, over_time = stream_table(job, EVERYTHING).records(), queues_over_time(job, EVERYTHING, 2).records()
    assert [(row["stream"], row["context"], row["count"], row["compute"]) for row in table] == [
        (7, context, 20, 20 * time) for context, time in times.items()
    ]
    assert [row["context"] for row in over_time] == [1, 1, 9, 9]
