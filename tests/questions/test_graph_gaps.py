"""Gaps inside replays of CUDA graphs are no fault of the host, and perhaps the profiler's (docs/numbers.md#gaps).

Times are µs where a function writes them.
"""

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import campaign
import numpy as np
import pytest
from support import records, session_over
from synthetic import ExportWriter
from synthetic.writing.target import CaptureSession
from triaging import finding, ids, told, triaged

from nsystui.base.selection import Selection, Task
from nsystui.questions.compare.verdict import _PARTS
from nsystui.questions.host.gaps import before_launch, gaps_list, gaps_table
from nsystui.questions.host.time_budget import PARTS, budget_with_causes, device_budgets, in_sum
from nsystui.questions.job.job import OpenJob
from nsystui.questions.report.drawings import BUDGET_PARTS
from nsystui.questions.timeline.streams import stream_table
from nsystui.questions.triage.finding import Severity

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


@pytest.mark.campaign
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
    told(graph_gaps, "1,980 gaps", "had launched the graphs before", advises=["--cuda-graph-trace=graph"])
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


@pytest.mark.campaign
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
