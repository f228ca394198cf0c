"""Functions on the CPU that a stream waits for: ``cudaLaunchHostFunc``, and host nodes of graphs."""

from pathlib import Path

import pytest
from support import edit, job_of, records
from synthetic import ExportWriter
from synthetic.gpu_program import Program
from synthetic.writing.writer import NO_EVENT, STREAM_SYNC
from triaging import finding, told, triaged

from nsystui.base.selection import Selection
from nsystui.questions.blocking.path import path_table
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventList, key_of, partners
from nsystui.questions.host.gaps import gaps_table
from nsystui.questions.timeline.lanes import LaneIdentity, Timeline

MS = 1_000_000


def program(path: Path, node: int | None = None, synchronises: bool = True) -> Path:
    """Write 20 steps of 5 ms: a kernel of 2 ms and a host function of 3 ms, for which the thread waits, if it does."""
    with ExportWriter(path) as export:
        job = Program(export, 5000)
        export.gpu(0)
        export.cuda_device(job.process, 0, 0)
        for number in range(20):
            start = number * 5 * MS
            job.kernel((start, start + 2_000), (start + 10_000, start + 2 * MS))
            job.host_function((start + 3_000, start + 5_000), (start + 2 * MS, start + 5 * MS - 10_000), node=node)
            if synchronises:
                span = (start + 6_000, start + 5 * MS - 5_000)
                call = job.call("cudaStreamSynchronize_v3020", span)
                row = (*span, 0, 1, 0, 13, call, job.process.global_id, None, STREAM_SYNC, NO_EVENT, 0)
                export.rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION").append(row)
        job.kernel((100 * MS, 100 * MS + 2_000), (100 * MS + 10_000, 102 * MS))
    return path


@pytest.mark.parametrize("node", [None, 7])
def test_a_host_function_is_an_event_that_leads_to_its_call_and_no_gpu_work(tmp_path: Path, node: int | None):
    with job_of(program(tmp_path / "a.sqlite", node)) as job:
        events = EventList.build(job.session, Selection(), job.ranks, (EventKind.HOST_FUNCTION,))
        assert [(row["name"], row["stream"]) for row in records(events)] == [("host function", 13)] * 20
        launch = partners(job.session, key_of(events.page(0, 1)[0]), job.ranks).rows[0]
        assert launch[2] == ("cudaLaunchHostFunc_v10000" if node is None else "cudaGraphLaunch_v10000")
        (gpu,) = job.gpus(Selection())
        assert gpu.parts.kernels.length == 20 * (2 * MS - 10_000) + 2 * MS - 10_000
        assert sum(part.length for part in gpu.parts.disjoint) == gpu.parts.kernels.length


@pytest.mark.parametrize("synchronises", [True, False])
def test_a_host_function_of_which_no_run_was_recorded_may_be_the_cause_of_gaps(tmp_path: Path, synchronises: bool):
    path = program(tmp_path / "a.sqlite", synchronises=synchronises)
    edit(path, "DROP TABLE CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH")
    note = "20 functions on the CPU that streams wait for (cudaLaunchHostFunc) ran at unknown times: idle time may be"
    told(finding(triaged(path), "idle-gaps"), note, advises=["nsys 2026 or later"], never=["Synchronise less"])
    with job_of(path) as job:
        assert any(words.startswith(note) for words in gaps_table(job, Selection()).notes)


def test_its_lane_is_its_stream_and_does_not_make_the_stream_busy(tmp_path: Path):
    with job_of(program(tmp_path / "a.sqlite")) as job:
        timeline, (rank,) = Timeline.of(job, Selection()), job.ranks
        lane = LaneIdentity(rank.task, rank.rank, 0, 13)
        assert lane in timeline.lanes(frozenset({rank.task}))[0]
        work = timeline.work(lane)
        assert dict(work.parts)["cpu"].length == 20 * (3 * MS - 10_000)
        assert work.length == dict(work.parts)["compute"].length


@pytest.mark.campaign
@pytest.mark.parametrize(("synchronises", "cause"), [(True, "in a host function on a stream"), (False, "in no CUDA")])
def test_it_is_the_cause_of_idle_time_while_the_thread_waits_for_the_gpu(tmp_path: Path, synchronises, cause):
    path = program(tmp_path / "a.sqlite", synchronises=synchronises)
    with job_of(path) as job:
        first = records(gaps_table(job, Selection()))[0]
        assert first["cause"].startswith(cause)
        if synchronises:
            assert first["time"] == 20 * (3 * MS - 10_000)
    if synchronises:
        told(
            finding(triaged(path), "idle-gaps"),
            "gap time a host function ran on a stream",
            advises=("thread of its own",),
        )


def test_it_is_the_cause_of_a_gap_inside_a_graph(tmp_path: Path):
    with ExportWriter(tmp_path / "a.sqlite") as export:
        job = Program(export, 5000)
        job.nodes((0, 10_000), (20_000, 100_000), (500_000, 600_000))
        job.host_function((3_000, 5_000), (102_000, 498_000), node=7)
    triage = triaged(tmp_path / "a.sqlite")
    assert "in graphs 66.7 % (blocked by host functions 66.0 %, unexplained 0.7 %)" in triage.account
    assert "gaps in CUDA graphs, blocked by host functions" in triage.losses
    told(finding(triage, "graph-gaps"), "396 µs is blocked by host functions", advises=["out of the graphs"])
    with job_of(tmp_path / "a.sqlite") as job:
        rows = records(gaps_table(job, Selection()))
    inside = {row["what"]: row["time"] for row in rows if row["cause"] == "inside a CUDA graph"}
    assert inside == {"host function": 396_000, None: 4_000}


def test_it_is_on_the_critical_path_and_opens_its_event(tmp_path: Path):
    with job_of(program(tmp_path / "a.sqlite")) as job:
        row = next(row for row in records(path_table(job, Selection())) if row["kind"] == "host function")
        assert (row["time"], row["event"]) == (20 * (3 * MS - 10_000), "hostfunc")
