"""CUDA graphs: gaps inside replays are no fault of the host, and kernels belong to the NVTX range of their capture.

See docs/numbers.md#gaps and docs/exports.md#cuda-graphs. Times are µs where a function of the first half writes them.
Each program of the second half captures two layers, ``layer_0`` and ``layer_1``, with a node each: 1 and 2. Node N of
a copy is N + 100. Each of its replays takes 10 ns in the first layer, 20 ns in the second.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import campaign
import numpy as np
import pytest
from support import records, session_over
from synthetic import ExportWriter
from synthetic.writing.target import CaptureSession, Thread
from triaging import finding, ids, told, triaged

from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.blocking.operations import operations_of_steps
from nsystui.questions.blocking.path import path_table
from nsystui.questions.compare.verdict import _PARTS
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey, event_row
from nsystui.questions.host.gaps import before_launch, gaps_list, gaps_table
from nsystui.questions.host.naming import kernels_in_ranges
from nsystui.questions.host.time_budget import PARTS, budget_with_causes, device_budgets, in_sum
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import GroupBy, kernel_summary
from nsystui.questions.nccl.grouping import NcclProperty
from nsystui.questions.nvtx.around import range_around
from nsystui.questions.nvtx.captures import capture_notes
from nsystui.questions.nvtx.listing import nvtx_tree_table
from nsystui.questions.report.drawings import BUDGET_PARTS
from nsystui.questions.timeline.streams import stream_table
from nsystui.questions.triage.finding import Severity
from nsystui.ui.pictures.details import event_details

EVERYTHING = Selection()
US = 1_000


class Work(NamedTuple):
    """An operation, ns. ``launch``: of a graph, if ``is_node``."""

    start: int
    end: int
    launch: int
    is_node: bool = True
    stream: int = 7
    device: int = 0
    is_copy: bool = False


def written(
    path: Path, work: Sequence[Work], calls: Sequence[tuple[int, int, int]] = (), pid: int = 5000, gpus: int = 1
) -> Path:
    """Write operations, and calls (launch, start, end) of the launches."""
    with ExportWriter(path, session=CaptureSession(duration=max(item.end for item in work) + 1)) as export:
        process = export.process(pid, "python")
        thread = export.thread(process, pid, "python")
        for device in range(gpus):
            export.gpu(device)
            export.cuda_device(process, device, device)
        nodes = {launch for _, _, launch, is_node, *_ in work if is_node}
        for launch, start, end in calls:
            name = "cudaGraphLaunch_v10000" if launch in nodes else "cudaLaunchKernel_v7000"
            export.api(thread, start, end, name, launch)
        for number, item in enumerate(work):
            node = {"graph_node_id": (5 << 32) + number} if item.is_node else {}
            place, times = (process, item.device, item.stream), (item.start, item.end)
            if item.is_copy:
                export.memcpy(*place, *times, size=64, kind="DtoD", correlation_id=item.launch)
            else:
                export.kernel(*place, *times, name="decode", correlation_id=item.launch, **node)
    return path


def replays(
    count: int = 20, nodes: int = 50, gap: int = 2, between: int = 100, length: int = 6
) -> tuple[list[Work], list[tuple[int, int, int]]]:
    """Return replays of a graph, ``between`` µs apart, and their calls, 40 µs before each replay."""
    work, calls, start = [], [], 1000
    for launch in range(1, count + 1):
        calls.append((launch, (start - 60) * US, (start - 40) * US))
        for _ in range(nodes):
            work.append(Work(start * US, (start + length) * US, launch))
            start += length + gap
        start += between - gap
    return work, calls


def answers(path: Path, ask):
    with closing(OpenJob(session_over(path))) as job:
        return ask(job)


def by_kind(path: Path, selection: Selection = EVERYTHING) -> dict[str, int]:
    """Return the idle time of `gaps` by cause."""
    times: dict[str, int] = {}
    for row in answers(path, lambda job: records(gaps_table(job, selection))):
        times[row["cause"]] = times.get(row["cause"], 0) + row["time"]
    return times


@pytest.mark.parametrize("seed", campaign.first(2, range(12)))
def test_gaps_end_with_an_operation_of_a_launch_that_had_begun(tmp_path, seed):
    rng = random.Random(seed)
    work = [
        Work(at, at + rng.randrange(1, 30), rng.randrange(1, 5), rng.random() < 0.8, rng.choice((7, 8)))
        for at in (rng.randrange(100, 1500) for _ in range(40))
    ]
    work = [item if item.is_node else item._replace(launch=100 + number) for number, item in enumerate(work)]
    busy = {ns for item in work for ns in range(item.start, item.end)}
    begun: dict[int, int] = {}
    for item in sorted(work):
        begun.setdefault(item.launch, item.start)
    expected = set()
    for item in work:
        if item.is_node and begun[item.launch] < item.start and item.start - 1 not in busy:
            ns = item.start - 1
            while ns not in busy:
                expected.add(ns)
                ns -= 1
    path = written(tmp_path / "a.sqlite", work)
    (found,) = answers(path, lambda job: device_budgets(job, EVERYTHING))
    assert found.budget.in_graphs == len(expected) > 0
    assert sum(getattr(found.budget, part) for part in PARTS) == found.budget.time
    assert by_kind(path)["inside a CUDA graph"] == len(expected)


def test_short_gaps_in_a_graph_are_perhaps_the_profilers_and_gaps_between_graphs_the_hosts(tmp_path):
    path = written(tmp_path / "a.sqlite", *replays())
    inside, between = 20 * 49 * 2 * US, 19 * 100 * US
    budget = answers(path, lambda job: in_sum(device_budgets(job, EVERYTHING)))
    assert (budget.in_graphs, budget.short_gaps, budget.long_gaps) == (inside, between, 0)
    kinds = by_kind(path)
    assert kinds.pop("inside a CUDA graph") == inside
    assert sum(kinds.values()) == between + budget.startup + budget.tail
    assert kinds["launching"] > 0
    notes = answers(path, lambda job: budget_with_causes(job, EVERYTHING).notes)
    assert any("in graphs by cause: perhaps node tracing" in note for note in notes)


def test_triage_names_the_capture_that_shows_it_and_counts_each_graph_as_one_launch(tmp_path):
    found = triaged(written(tmp_path / "a.sqlite", *replays(nodes=100)))
    graph_gaps = finding(found, "graph-gaps")
    assert graph_gaps.severity is Severity.INFO
    assert graph_gaps.cost == 20 * 99 * 2 * US
    told(graph_gaps, "1,980 gaps", "causes none of them", advises=["--cuda-graph-trace=graph"])
    late = finding(found, "launch-overhead")
    assert late.cost == pytest.approx(19 * 100 * US, abs=1)
    told(late, "19 of 20 launches", "100 % of the kernels", never=["Replay the work as a CUDA graph"])
    assert "unexplained" not in found.account
    assert "in graphs" in found.account
    assert "gaps in CUDA graphs, perhaps node tracing" in found.losses


def test_a_long_wait_inside_a_graph_is_neither_the_hosts_nor_the_profilers(tmp_path):
    work, calls = replays(count=5, nodes=4, gap=3_000, between=10)
    path = written(tmp_path / "a.sqlite", work, calls)
    assert by_kind(path)["inside a CUDA graph"] == 5 * 3 * 3_000 * US
    (row, *_) = answers(path, lambda job: records(gaps_list(job, EVERYTHING)))
    assert (row["part"], row["cause"], row["what"]) == ("in graph", "inside a CUDA graph", None)
    found = triaged(path)
    graph_gaps = finding(found, "graph-gaps")
    assert graph_gaps.severity is Severity.WARNING
    told(graph_gaps, "too long for the tracing of nodes", advises=["host nodes", "--cuda-graph-trace=graph"])
    assert ids(found).isdisjoint({"idle-gaps", "launch-overhead", "low-utilisation", "synchronising-calls"})
    task, start = Task(0, next(iter_tasks(path)).process), work[1].start
    words = answers(path, lambda job: before_launch(job, task, 0, start))
    assert words == "the GPU was idle for 3 ms before: 100 % inside a CUDA graph"


def iter_tasks(path: Path):
    return iter(answers(path, lambda job: [rank.task for rank in job.ranks]))


def test_another_gpu_of_the_process_keeps_its_causes(tmp_path):
    work, calls = replays(count=3, nodes=4, gap=500)
    eager = [Work(item.start, item.end, 1000 + number, False, device=1) for number, item in enumerate(work)]
    calls += [(item.launch, item.start - 20 * US, item.start - 10 * US) for item in eager]
    path = written(tmp_path / "a.sqlite", [*work, *eager], calls, gpus=2)
    on_graphs, other = (
        {part: row[part] for part in ("in_graphs", "short_gaps")}
        for row in answers(path, lambda job: records(budget_with_causes(job, EVERYTHING)))
    )
    assert on_graphs["in_graphs"] == 3 * 3 * 500 * US
    assert other == {"in_graphs": 0, "short_gaps": on_graphs["in_graphs"] + on_graphs["short_gaps"]}
    assert by_kind(path)["inside a CUDA graph"] == 3 * 3 * 500 * US


def test_processes_that_share_a_gpu_have_equal_ids_of_different_launches(tmp_path):
    first, second = [Work(1000, 1100, 1), Work(1200, 1300, 1)], [Work(1500, 1600, 2), Work(1900, 2000, 1)]
    paths = [written(tmp_path / f"{pid}.sqlite", work, pid=pid) for pid, work in ((1, first), (2, second))]
    with closing(OpenJob(session_over(*paths))) as job:
        (budget,) = device_budgets(job, EVERYTHING)
        assert budget.budget.in_graphs == 1200 - 1100


@pytest.mark.parametrize("launch", [0, None])
def test_graphs_of_an_unknown_launch_have_no_gaps_inside(tmp_path, launch):
    path = written(tmp_path / "a.sqlite", [Work(1000, 1100, launch), Work(1200, 1300, launch)])
    assert answers(path, lambda job: in_sum(device_budgets(job, EVERYTHING))).in_graphs == 0


def test_a_selected_stream_pauses_inside_a_graph_from_its_last_operation(tmp_path):
    """On stream 8, the time before the graph's launch is not inside the graph."""
    work = [Work(100, 200, 1, False, 8), Work(1000, 1100, 2, True, 7), Work(1300, 1400, 2, True, 8)]
    path = written(tmp_path / "a.sqlite", work)
    for streams, time in ((None, 200), (frozenset({8}), 200), (frozenset({7}), 0)):
        selection = Selection(streams=streams)
        assert answers(path, lambda job, chosen=selection: in_sum(device_budgets(job, chosen))).in_graphs == time
        assert by_kind(path, selection).get("inside a CUDA graph", 0) == time


def test_a_graph_is_queued_once_in_each_stream(tmp_path):
    work, calls = replays(count=4, nodes=30)
    work += [Work(item.start, item.end, item.launch, stream=8) for item in work[3:30]]
    work += [Work(900 * US, 910 * US, 50, False)]
    calls = [*calls, (50, 880 * US, 890 * US)]
    path = written(tmp_path / "a.sqlite", work, calls)
    on_7, on_8 = answers(path, lambda job: records(stream_table(job, EVERYTHING)))
    assert (on_7["count"], on_7["launched"], on_7["queued"]) == (121, 100.0, 1)
    assert on_7["delay"] == np.median([20 * US, *[60 * US] * 4])
    assert (on_8["count"], on_8["launched"], on_8["queued"], on_8["delay"]) == (27, 100.0, 1, (60 + 3 * 8) * US)


def test_every_part_of_a_budget_has_a_drawing_and_a_verdict():
    assert len(BUDGET_PARTS) == len(PARTS)
    assert sorted(part for parts in _PARTS.values() for part in parts) == sorted(PARTS)


REPLAYS = 3
FIRST, SECOND = 10 * REPLAYS, 20 * REPLAYS
"""The time of the replays of each layer, ns."""
Nodes = Callable[[ExportWriter, Thread], None]


def made_in_the_ranges(export: ExportWriter, thread: Thread) -> None:
    for node, time in ((1, 150), (2, 250)):
        export.graph_node(thread, time, time, "Graph Node Creation", node)


def copied(export: ExportWriter, thread: Thread) -> None:
    made_in_the_ranges(export, thread)
    for node in (1, 2):
        export.graph_node(thread, 400, 400, "Graph Node Creation", node + 100, node)


def copied_twice(export: ExportWriter, thread: Thread) -> None:
    """The graph is instantiated from a clone, and nsys first writes each copy without its original."""
    made_in_the_ranges(export, thread)
    for node in (1, 2):
        for original, copy in ((node, node + 50), (node + 50, node + 100)):
            export.graph_node(thread, 400, 400, "Graph Node Creation", copy)
            export.graph_node(thread, 400, 400, "Graph Node Clone", copy, original)


def written_late(export: ExportWriter, thread: Thread, launches: int = 2) -> None:
    """All nodes are written after the end of the capture, as some versions of nsys do."""
    export.api(thread, 101, 102, "cudaStreamBeginCapture_v10000", None)
    for start in [150, 250, 260][:launches]:
        export.api(thread, start, start + 5, "cudaLaunchKernel_v7000", None)
        export.api(thread, start + 1, start + 3, "cuLaunchKernel", None)
    export.api(thread, 301, 302, "cudaStreamEndCapture_v10000", None)
    for node in (1, 2):
        export.graph_node(thread, 303, 303, "Graph Node Creation", node)
        export.graph_node(thread, 400, 400, "Graph Node Creation", node + 100, node)


def written_late_with_a_node_less(export: ExportWriter, thread: Thread) -> None:
    written_late(export, thread, launches=3)


def of_two_originals(export: ExportWriter, thread: Thread) -> None:
    copied(export, thread)
    export.graph_node(thread, 401, 401, "Graph Node Creation", 101, 2)


def in_a_loop(export: ExportWriter, thread: Thread) -> None:
    copied(export, thread)
    export.graph_node(thread, 401, 401, "Graph Node Creation", 1, 101)


def before_the_capture(export: ExportWriter, thread: Thread) -> None:
    """The first graph was captured before nsys began to record: only its copy is known."""
    export.graph_node(thread, 250, 250, "Graph Node Creation", 2)
    for node in (1, 2):
        export.graph_node(thread, 400, 400, "Graph Node Creation", node + 100, node)


def instantiated_from_unknown(export: ExportWriter, thread: Thread) -> None:
    """A copy of the first node is written without its original, in the call that makes it."""
    export.api(thread, 260, 270, "cudaGraphInstantiate_v12000", None)
    export.graph_node(thread, 250, 250, "Graph Node Creation", 2)
    export.graph_node(thread, 265, 265, "Graph Node Creation", 101)
    export.graph_node(thread, 265, 265, "Graph Node Creation", 102, 2)


def unrecorded(export: ExportWriter, thread: Thread) -> None:
    """Old versions of nsys write no nodes."""


def replaying(
    path: Path, nodes: Nodes, *, pids: tuple[int, ...] = (100,), version: str = "3.25.0", name: str = "kernel"
) -> Path:
    """A program that replays a graph in ``execute``; of several processes, each captures a layer more than the last."""
    with ExportWriter(path, version) as export:
        for number, pid in enumerate(pids):
            process = export.process(pid)
            thread = export.thread(process, pid, "python")
            for start, end, label in ((100, 310, "capture"), (110, 199, "layer_0"), (200, 300, "layer_1")):
                export.nvtx_range(thread, start, end, label if not number else f"{label} of {pid}")
            nodes(export, thread)
            for replay in range(REPLAYS):
                start, correlation = 1000 + 1000 * replay, 10 + replay
                export.nvtx_range(thread, start, start + 50, "execute")
                export.api(thread, start + 10, start + 40, "cudaGraphLaunch_v10000", correlation)
                for node, begin, end in ((101, 100, 110), (102, 120, 140)):
                    span = (start + begin, start + end)
                    numbers = {"correlation_id": correlation, "graph_node_id": node, "graph_id": 7}
                    export.kernel(process, 0, 13, *span, name=f"{name}_{node}", **numbers)
    return path


@pytest.fixture
def opened(tmp_path) -> Iterator[Callable[..., OpenJob]]:
    jobs: list[OpenJob] = []

    def open_job(nodes: Nodes, **how: object) -> OpenJob:
        jobs.append(OpenJob(session_over(replaying(tmp_path / "server.sqlite", nodes, **how))))  # type: ignore[arg-type]
        return jobs[-1]

    yield open_job
    for job in jobs:
        job.close()


def times_by_range(job: OpenJob) -> dict[tuple[str, str], int]:
    answer = kernels_in_ranges(job, Selection(), group_by=(GroupBy.RANGE,))
    return {(row["range"], row["origin"]): row["total"] for row in records(answer)}


def tree(job: OpenJob, fold: str = "none") -> dict[str, dict[str, object]]:
    return {row["path"]: row for row in records(nvtx_tree_table(job.nvtx_tree(Selection(), "all", fold)))}


CAPTURED = {("layer_0", "captured"): FIRST, ("layer_1", "captured"): SECOND}


@pytest.mark.parametrize("nodes", [copied, copied_twice, written_late])
def test_replayed_kernels_belong_to_the_range_of_their_capture(opened, nodes):
    job = opened(nodes)
    assert times_by_range(job) == CAPTURED
    rows = tree(job)
    assert rows["capture"]["replayed"] == FIRST + SECOND
    assert rows["capture › layer_0"]["replayed"] == FIRST
    assert rows["capture › layer_1"]["replayed"] == SECOND
    assert rows["execute"]["replayed"] is None
    # What launched the kernels is still shown.
    assert rows["execute"]["gpu_total"] == 40 * REPLAYS
    assert not any("CUDA graph" in note for note in job.nvtx_ranges(Selection()).notes)


def test_nodes_of_old_exports_are_among_the_graph_events(opened):
    assert times_by_range(opened(copied, version="3.7.2")) == CAPTURED


def test_a_graph_made_before_the_recording_has_no_recorded_capture(tmp_path):
    with ExportWriter(tmp_path / "before.sqlite") as export:
        thread = export.thread(export.process(1, "python"), 1, "python")
        export.nvtx_range(thread, 500, 600, "step")
        export.graph_node(thread, -200, -200, "Graph Node Creation", 1)
        export.api(thread, 510, 515, "cudaGraphLaunch_v10000", 1)
        export.kernel(thread.process, 0, 7, 520, 530, name="k()", correlation_id=1, graph_node_id=1)
    with closing(session_over(tmp_path / "before.sqlite")) as session:
        assert "1 of 1 operations of CUDA graphs have no recorded capture" in " ".join(capture_notes(session))


def test_equal_node_numbers_of_two_processes_are_told_apart(opened):
    job = opened(copied, pids=(100, 200))
    second = {(f"{name} of 200", origin): time for (name, origin), time in CAPTURED.items()}
    assert times_by_range(job) == CAPTURED | second


@pytest.mark.parametrize(("nodes", "count", "reason"), [
    (written_late_with_a_node_less, 2 * REPLAYS, "are not attributed: their capture is ambiguous"),
    (of_two_originals, REPLAYS, "are not attributed: their capture is ambiguous"),
    (in_a_loop, REPLAYS, "are not attributed: their capture is ambiguous"),
    (before_the_capture, REPLAYS, "have no recorded capture: record with"),
    (instantiated_from_unknown, REPLAYS, "have no recorded capture: record with"),
    (unrecorded, 2 * REPLAYS, "have no recorded capture: record with"),
])  # fmt: skip
def test_a_kernel_of_an_unknown_capture_stays_in_the_range_of_its_launch(opened, nodes, count, reason):
    job = opened(nodes)
    lost = FIRST if count == REPLAYS else FIRST + SECOND
    known = {("layer_1", "captured"): SECOND} if count == REPLAYS else {}
    assert times_by_range(job) == known | {("execute", "launched"): lost}
    assert tree(job).get("capture › layer_0", {}).get("replayed") is None
    notes = kernels_in_ranges(job, Selection(), group_by=(GroupBy.RANGE,)).notes
    assert any(f"{count} of {2 * REPLAYS} operations of CUDA graphs {reason}" in note for note in notes)


def test_a_graph_made_long_before_the_session_does_not_extend_it(opened):
    def long_before(export: ExportWriter, thread: Thread) -> None:
        copied(export, thread)
        export.graph_node(thread, -20_000_000_000, -20_000_000_000, "Graph Node Creation", 9)

    job = opened(long_before)
    assert times_by_range(job) == CAPTURED
    assert job.extent(Selection()).start >= 0


def test_the_path_and_the_operations_of_steps_name_the_range_of_the_capture(opened):
    job = opened(copied)
    rows = records(path_table(job, Selection(window=Window(1000, 1140)), by="range"))
    times = {row["range"]: row["time"] for row in rows if row["kind"] == "compute"}
    assert times == {"captured in layer_0": 10, "captured in layer_1": 20}
    operations = {row["name"]: row for row in records(operations_of_steps(job, Selection(), "execute"))}
    assert operations["layer_*"]["replayed"] == 30
    assert operations["execute"]["gpu"] == 40 and operations["execute"]["replayed"] is None


def test_an_event_leads_to_the_range_of_its_capture(opened):
    job = opened(copied)
    key = EventKey(0, EventKind.KERNEL, 1, 1100)
    around = range_around(job.session, key, job.ranks)
    assert around.key is not None and around.key.start == 110 and "captured in this range" in around.reason
    row = event_row(job.session, key, job.ranks)
    assert row is not None
    context = event_details(job, row)[2]
    assert context == ["captured in NVTX capture › layer_0", "NVTX execute"]


def test_kernels_of_steps_are_in_the_range_of_their_capture(opened):
    job = opened(copied)
    groups = (GroupBy.STEP, GroupBy.RANGE)
    rows = records(kernels_in_ranges(job, Selection(), job.steps("execute"), group_by=groups))
    times = {(row["step"], row["range"], row["origin"]): row["total"] for row in rows}
    steps = {step for step, *_ in times}
    assert len(steps) == REPLAYS and None not in steps
    assert times == {(step, f"layer_{n}", "captured"): 10 * (n + 1) for step in steps for n in (0, 1)}
    shares = [sum(row["share"] for row in rows if row["step"] == step) for step in steps]
    assert shares == pytest.approx([100.0] * REPLAYS)


@pytest.mark.parametrize(("nodes", "first"), [(copied, "layer_*"), (of_two_originals, "execute")])
def test_collectives_that_a_graph_replays_are_in_the_range_of_their_capture(opened, nodes, first):
    job = opened(nodes, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    kernels = job.pairing_by((NcclProperty.RANGE,)).kernels
    assert set(kernels["range"][kernels["end"] - kernels["start"] == 10]) == {first}
    assert set(kernels["range"][kernels["end"] - kernels["start"] == 20]) == {"layer_*"}


@pytest.mark.parametrize(("nodes", "purpose"), [(copied, "layer_*"), (unrecorded, "execute")])
def test_the_purpose_of_a_stream_is_the_range_of_its_captures(opened, nodes, purpose):
    assert stream_table(opened(nodes), Selection()).cells("purpose") == [purpose]


def test_kernels_by_graph_have_the_number_of_the_graph(opened):
    answer = kernel_summary(opened(copied).session, Selection(), group_by=(GroupBy.GRAPH,))
    assert [(row["graph"], row["graph_id"], row["count"]) for row in records(answer)] == [("replayed", 7, 2 * REPLAYS)]


def test_of_graphs_that_were_traced_whole_a_note_says_what_to_record(tmp_path):
    path = tmp_path / "server.sqlite"
    with ExportWriter(path) as export:
        process = export.process(100)
        thread = export.thread(process, 100, "python")
        export.nvtx_range(thread, 0, 100, "execute")
        export.api(thread, 10, 20, "cudaGraphLaunch_v10000", 1)
        export.graph_launch(process, 0, 13, 30, 90, graph_id=1, graph_exec_id=2, correlation_id=1)
    job = OpenJob(session_over(path))
    notes = [note for note in job.nvtx_ranges(Selection()).notes if "captured" in note]
    assert len(notes) == 1 and "--cuda-graph-trace=node" in notes[0]
    job.close()
