"""Kernels that CUDA graphs replay belong to the NVTX range in which they were captured (docs/exports.md#cuda-graphs).

Each program captures two layers, ``layer_0`` and ``layer_1``, with a node each: 1 and 2. Node N of a copy is N + 100.
Each of its replays takes 10 ns in the first layer, 20 ns in the second.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from campaign import first
from support import records, session_over
from synthetic import ExportWriter
from synthetic.writing.target import Thread

from nsystui.base.selection import Selection, Window
from nsystui.questions.blocking.operations import operations_of_steps
from nsystui.questions.blocking.path import path_table
from nsystui.questions.capture.launch_account import with_lost_work
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey, event_row
from nsystui.questions.host.naming import kernels_in_ranges
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import GroupBy, kernel_summary
from nsystui.questions.nccl.grouping import NcclProperty
from nsystui.questions.nvtx.around import range_around
from nsystui.questions.nvtx.listing import kernels_of, nvtx_names, nvtx_tree_table
from nsystui.questions.nvtx.paths import Folding
from nsystui.questions.queries.captures import capture_notes
from nsystui.questions.timeline.streams import stream_table
from nsystui.ui.pictures.details import event_details

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


def written_late(export: ExportWriter, thread: Thread, launches: int = 2, *, is_copied: bool = True) -> None:
    """All nodes are written after the end of the capture, as some versions of nsys do."""
    export.api(thread, 101, 102, "cudaStreamBeginCapture_v10000", None)
    for start in [150, 250, 260][:launches]:
        export.api(thread, start, start + 5, "cudaLaunchKernel_v7000", None)
        export.api(thread, start + 1, start + 3, "cuLaunchKernel", None)
    export.api(thread, 301, 302, "cudaStreamEndCapture_v10000", None)
    for node in (1, 2):
        export.graph_node(thread, 303, 303, "Graph Node Creation", node)
        if is_copied:
            export.graph_node(thread, 400, 400, "Graph Node Creation", node + 100, node)


def nested_and_late(export: ExportWriter, thread: Thread, *, is_after_both: bool = False) -> None:
    """The second layer is captured inside the capture of the first; nsys writes nodes after each, or after both."""
    for time, call in ((101, "Begin"), (201, "Begin"), (260, "End"), (301, "End")):
        export.api(thread, time, time + 1, f"cudaStream{call}Capture_v10000", None)
    for node, start, end in ((1, 150, 303), (2, 250, 303 if is_after_both else 262)):
        export.api(thread, start, start + 5, "cudaLaunchKernel_v7000", None)
        export.graph_node(thread, end, end, "Graph Node Creation", node)
        export.graph_node(thread, 400, 400, "Graph Node Creation", node + 100, node)


def nested_and_late_after_both(export: ExportWriter, thread: Thread) -> None:
    nested_and_late(export, thread, is_after_both=True)


def conditional_and_late(export: ExportWriter, thread: Thread) -> None:
    """The second layer is the body of a conditional node, which nsys writes in time."""
    export.api(thread, 192, 193, "cudaGraphConditionalHandleCreate_v12030", None)
    export.api(thread, 195, 199, "cudaGraphAddNode_v12030", None)
    export.graph_node(thread, 197, 197, "Graph Node Creation", 3)
    nested_and_late(export, thread)


def written_late_with_a_node_less(export: ExportWriter, thread: Thread) -> None:
    written_late(export, thread, launches=3)


def nested(export: ExportWriter, thread: Thread) -> None:
    """The graph is the child of a child; the last graph is instantiated twice."""
    for start, child in ((320, 10), (340, 20)):
        export.api(thread, start, start + 9, "cudaGraphAddChildGraphNode_v10000", None)
        for node, original in ((child, None), (child + 1, child - 9), (child + 2, child - 8)):
            export.graph_node(thread, start + 5, start + 5, "Graph Node Creation", node)
            if original is not None:
                export.graph_node(thread, start + 5, start + 5, "Graph Node Clone", node, original)
    for copy, original in ((200, 20), (201, 21), (202, 22), (100, 20), (101, 21), (102, 22)):
        export.graph_node(thread, 400, 400, "Graph Node Creation", copy, original)


def children(export: ExportWriter, thread: Thread) -> None:
    made_in_the_ranges(export, thread)
    nested(export, thread)


def children_written_late(export: ExportWriter, thread: Thread) -> None:
    """Nodes are also written in a call that adds a node after the capture."""
    written_late(export, thread, is_copied=False)
    export.api(thread, 312, 318, "cudaGraphAddKernelNode_v10000", None)
    export.graph_node(thread, 315, 315, "Graph Node Creation", 3)
    nested(export, thread)


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


def instantiated_from_unknown(export: ExportWriter, thread: Thread, call: str = "cudaGraphInstantiate_v12000") -> None:
    """A copy of the first node is written without its original, in the call that makes it."""
    export.api(thread, 260, 270, call, None)
    export.graph_node(thread, 250, 250, "Graph Node Creation", 2)
    export.graph_node(thread, 265, 265, "Graph Node Creation", 101)
    export.graph_node(thread, 265, 265, "Graph Node Creation", 102, 2)


def children_of_unknown(export: ExportWriter, thread: Thread, call: str = "cudaGraphAddChildGraphNode_v10000") -> None:
    """A copy of the first node is written without its original, in the call that puts it into another graph."""
    made_in_the_ranges(export, thread)
    export.api(thread, 302, 308, call, None)
    for node, original in ((10, None), (51, None), (52, 2)):
        export.graph_node(thread, 305, 305, "Graph Node Creation", node, original)
    for node in (1, 2):
        export.graph_node(thread, 400, 400, "Graph Node Creation", node + 100, node + 50)


def clones_of_unknown(export: ExportWriter, thread: Thread) -> None:
    children_of_unknown(export, thread, "cuGraphClone")


def launched_into_a_capture(export: ExportWriter, thread: Thread) -> None:
    children_of_unknown(export, thread, "cudaGraphLaunch_v10000")


def updated(export: ExportWriter, thread: Thread, result: int = 0, copied_at: int = 400) -> None:
    """A second capture replaces the work of the copies, and nsys writes no row about it."""
    made_in_the_ranges(export, thread)
    for node in (1, 2):
        export.graph_node(thread, copied_at, copied_at, "Graph Node Creation", node + 100, node)
        export.graph_node(thread, 410 + node, 410 + node, "Graph Node Creation", node + 2)
    export.api(thread, 420, 430, "cudaGraphExecUpdate_v10020", None, return_value=result)


def updated_without_success(export: ExportWriter, thread: Thread) -> None:
    updated(export, thread, result=910)


def updated_with_new_nodes(export: ExportWriter, thread: Thread) -> None:
    updated(export, thread, copied_at=425)


def updated_from_unknown(export: ExportWriter, thread: Thread) -> None:
    instantiated_from_unknown(export, thread, "cudaGraphExecUpdate_v10020")


def unrecorded(export: ExportWriter, thread: Thread) -> None:
    """Old versions of nsys write no nodes."""


def written(
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
def opened(tmp_path: Path) -> Iterator[Callable[..., OpenJob]]:
    jobs: list[OpenJob] = []

    def open_job(nodes: Nodes, **how: object) -> OpenJob:
        jobs.append(OpenJob(session_over(written(tmp_path / "server.sqlite", nodes, **how))))  # type: ignore[arg-type]
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


@pytest.mark.parametrize("nodes", first(2, [
    copied_twice, nested_and_late, copied, written_late, children, children_written_late, nested_and_late_after_both,
    updated_without_success, updated_with_new_nodes, conditional_and_late,
]))  # fmt: skip
def test_replayed_kernels_belong_to_the_range_of_their_capture(opened: Callable[..., OpenJob], nodes: Nodes) -> None:
    job = opened(nodes)
    assert times_by_range(job) == CAPTURED
    rows = tree(job)
    assert rows["capture"]["replayed"] == FIRST + SECOND
    assert rows["capture › layer_0"]["replayed"] == FIRST
    assert rows["capture › layer_1"]["replayed"] == SECOND
    assert rows["execute"]["replayed"] is None
    ranges = job.nvtx_ranges(Selection())
    work = {
        ranges.names[name]: kernels_of(ranges, index).page(0, 9) for index, name in enumerate(ranges.values("name"))
    }
    assert [row[1] for row in work["layer_0"]] == [10] * REPLAYS and len(work["capture"]) == 2 * REPLAYS
    assert len(work["execute"]) == 2
    names = {row["name"]: row["replayed"] for row in records(nvtx_names(job, Selection(), Folding.ALL))}
    assert names == {"capture": FIRST + SECOND, "layer_0": FIRST, "layer_1": SECOND, "execute": None}
    # What launched the kernels is still shown.
    assert rows["execute"]["gpu_total"] == 40 * REPLAYS
    assert not any("CUDA graph operation" in note for note in job.nvtx_ranges(Selection()).notes)


def test_nodes_of_old_exports_are_among_the_graph_events(opened: Callable[..., OpenJob]) -> None:
    assert times_by_range(opened(copied, version="3.7.2")) == CAPTURED


def test_a_graph_made_before_the_recording_has_no_recorded_capture(tmp_path: Path) -> None:
    with ExportWriter(tmp_path / "before.sqlite") as export:
        thread = export.thread(export.process(1, "python"), 1, "python")
        export.nvtx_range(thread, 500, 600, "step")
        export.graph_node(thread, -200, -200, "Graph Node Creation", 1)
        export.api(thread, 510, 515, "cudaGraphLaunch_v10000", 1)
        export.kernel(thread.process, 0, 7, 520, 530, name="k()", correlation_id=1, graph_node_id=1)
    with closing(session_over(tmp_path / "before.sqlite")) as session:
        assert "1 of 1 CUDA graph operation has no recorded capture" in " ".join(capture_notes(session))


def test_equal_node_numbers_of_two_processes_are_told_apart(opened: Callable[..., OpenJob]) -> None:
    job = opened(copied, pids=(100, 200))
    second = {(f"{name} of 200", origin): time for (name, origin), time in CAPTURED.items()}
    assert times_by_range(job) == CAPTURED | second


@pytest.mark.parametrize(
    ("nodes", "count", "reason"),
    first(3, [
        (written_late_with_a_node_less, 2 * REPLAYS, "are not attributed: the capture is ambiguous"),
        (before_the_capture, REPLAYS, "have no recorded capture: record with"),
        (of_two_originals, REPLAYS, "are not attributed: the capture is ambiguous"),
        (updated, 2 * REPLAYS, "are not attributed: the capture is ambiguous"),
        (in_a_loop, REPLAYS, "are not attributed: the capture is ambiguous"),
        (instantiated_from_unknown, REPLAYS, "have no recorded capture: record with"),
        (updated_from_unknown, REPLAYS, "have no recorded capture: record with"),
        (children_of_unknown, REPLAYS, "have no recorded capture: record with"),
        (clones_of_unknown, REPLAYS, "have no recorded capture: record with"),
        (launched_into_a_capture, REPLAYS, "have no recorded capture: record with"),
        (unrecorded, 2 * REPLAYS, "have no recorded capture: record with"),
    ]),
)  # fmt: skip
def test_a_kernel_of_an_unknown_capture_stays_in_the_range_of_its_launch(
    opened: Callable[..., OpenJob], nodes: Nodes, count: int, reason: str
) -> None:
    job = opened(nodes)
    lost = FIRST if count == REPLAYS else FIRST + SECOND
    known = {("layer_1", "captured"): SECOND} if count == REPLAYS else {}
    assert times_by_range(job) == known | {("execute", "launched"): lost}
    assert tree(job).get("capture › layer_0", {}).get("replayed") is None
    notes = kernels_in_ranges(job, Selection(), group_by=(GroupBy.RANGE,)).notes
    assert any(f"{count} of {2 * REPLAYS} CUDA graph operations {reason}" in note for note in notes)


def test_a_graph_made_long_before_the_session_does_not_extend_it(opened: Callable[..., OpenJob]) -> None:
    def long_before(export: ExportWriter, thread: Thread) -> None:
        copied(export, thread)
        export.graph_node(thread, -20_000_000_000, -20_000_000_000, "Graph Node Creation", 9)

    job = opened(long_before)
    assert times_by_range(job) == CAPTURED
    assert job.extent(Selection()).start >= 0


def test_the_path_and_the_operations_of_steps_name_the_range_of_the_capture(opened: Callable[..., OpenJob]) -> None:
    job = opened(copied)
    rows = records(path_table(job, Selection(window=Window(1000, 1140)), by="range"))
    times = {row["range"]: row["time"] for row in rows if row["kind"] == "compute"}
    assert times == {"captured in layer_0": 10, "captured in layer_1": 20}
    operations = {row["name"]: row for row in records(operations_of_steps(job, Selection(), "execute"))}
    assert operations["layer_*"]["replayed"] == 30
    assert operations["execute"]["gpu"] == 40 and operations["execute"]["replayed"] is None


def test_an_event_leads_to_the_range_of_its_capture(opened: Callable[..., OpenJob]) -> None:
    job = opened(copied)
    key = EventKey(0, EventKind.KERNEL, 1, 1100)
    around = range_around(job.session, key, job.ranks)
    assert around.key is not None and around.key.start == 110 and "captured in this range" in around.reason
    row = event_row(job.session, key, job.ranks)
    assert row is not None
    assert event_details(job, row)[2] == ["captured in NVTX capture › layer_0", "NVTX execute"]


def test_kernels_of_steps_are_in_the_range_of_their_capture(opened: Callable[..., OpenJob]) -> None:
    job = opened(copied)
    rows = records(kernels_in_ranges(job, Selection(), job.steps("execute"), group_by=(GroupBy.STEP, GroupBy.RANGE)))
    times = {(row["step"], row["range"], row["origin"]): row["total"] for row in rows}
    steps = {step for step, *_ in times}
    assert len(steps) == REPLAYS and None not in steps
    assert times == {(step, f"layer_{n}", "captured"): 10 * (n + 1) for step in steps for n in (0, 1)}
    shares = [sum(row["share"] for row in rows if row["step"] == step) for step in steps]
    assert shares == pytest.approx([100.0] * REPLAYS)


@pytest.mark.campaign
@pytest.mark.parametrize(("nodes", "first"), [(copied, "layer_*"), (of_two_originals, "execute")])
def test_collectives_that_a_graph_replays_are_in_the_range_of_their_capture(
    opened: Callable[..., OpenJob], nodes: Nodes, first: str
) -> None:
    kernels = opened(nodes, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL").pairing_by((NcclProperty.RANGE,)).kernels
    assert set(kernels["range"][kernels["end"] - kernels["start"] == 10]) == {first}
    assert set(kernels["range"][kernels["end"] - kernels["start"] == 20]) == {"layer_*"}


@pytest.mark.campaign
@pytest.mark.parametrize(("nodes", "purpose"), [(copied, "layer_*"), (unrecorded, "execute")])
def test_the_purpose_of_a_stream_is_the_range_of_its_captures(
    opened: Callable[..., OpenJob], nodes: Nodes, purpose: str
) -> None:
    assert stream_table(opened(nodes), Selection()).cells("purpose") == [purpose]


@pytest.mark.parametrize("pids", [(100,), (100, 200)])
def test_kernels_by_graph_have_the_number_of_the_graph_and_its_rank(opened: Callable[..., OpenJob], pids) -> None:
    job = opened(copied, pids=pids)
    answer = kernel_summary(job.session, Selection(), group_by=(GroupBy.GRAPH,), ranks=job.ranks)
    rows = {(row["graph"], row["graph_id"], row.get("rank"), row["count"]) for row in records(answer)}
    ranks = {None} if len(pids) == 1 else {0, 1}
    assert rows == {("replayed", 7, rank, 2 * REPLAYS) for rank in ranks}


def test_counts_of_graphs_with_conditional_nodes_are_lower_bounds(opened: Callable[..., OpenJob]) -> None:
    job, unconditional = opened(conditional_and_late), opened(nested_and_late)
    for notes in (
        kernels_in_ranges(job, Selection(), group_by=(GroupBy.RANGE,)).notes,
        kernel_summary(job.session, Selection()).notes,
        with_lost_work(job, Selection(), stream_table(job, Selection())).notes,
    ):
        assert ["lower bounds" in note for note in notes if "conditional" in note] == [True]
    assert not any("conditional" in note for note in unconditional.nvtx_ranges(Selection()).notes)


def test_of_graphs_that_were_traced_whole_a_note_says_what_to_record(tmp_path: Path) -> None:
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
