"""Blocking time of GPUs: programs with parts known to the ns, and a naive computation of random programs."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import campaign
import numpy as np
import pytest
from filling import Steps
from naive_blocking import Naive
from support import edit, job_of, shared
from synthetic import ExportWriter
from synthetic.demo import TrainingJob
from synthetic.gpu_program import BLOCKING, CUSTOM, DEFAULT, NCCL, NON_BLOCKING, Dice, Program, Span
from synthetic.writing.writer import DRIVER_CALL, EVENT_SYNC, NO_STREAM, STREAM_SYNC

import nsystui
from nsystui.base.resources import Limits
from nsystui.base.selection import Selection, Task, Window
from nsystui.cli import main
from nsystui.questions.blocking.budget import iterations
from nsystui.questions.blocking.parts import PARTS, Iterations, blocked_in, blocking
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries import process_rows
from nsystui.questions.queries.time_window import report_at
from nsystui.store.cache import Cache
from nsystui.store.session import Session

MS = 1_000_000
Parts = Mapping[str, int]


def parts_of(one: Iterations, place: int = 0) -> dict[str, int]:
    """Return the parts of an iteration that are not 0."""
    return {name: time for name, time in zip(PARTS, one.parts[place].tolist(), strict=True) if time}


def possible_of(one: Iterations, place: int = 0) -> dict[str, int]:
    """Return how much of the unresolved time of an iteration may belong to each part."""
    return {name: time for name, time in zip(PARTS, one.possible[place].tolist(), strict=True) if time}


class Case(Program):
    """The calls of a case that are more than a step."""

    def context(self) -> None:
        self.export.cuda_context(self.process)

    def record_elsewhere(self, *place: int) -> None:
        self.record(*place, thread=self.helper)

    def mixed_nodes(self, called: Span, *spans: Span) -> None:
        """Write a graph whose first node communicates."""
        number = self.call("cudaGraphLaunch_v10000", called)
        for node, (span, name) in enumerate(zip(spans, (NCCL, "gemm()"), strict=True), 4):
            self.export.kernel(self.process, 0, 13, *span, name=name, correlation_id=number, graph_node_id=node)


do = Steps()
first = do.kernel((0, 10), (20, 100))
CASES: dict[str, tuple[Any, Parts]] = {
    "a late launch starves the GPU and what follows it is a stall":
        (first.kernel((90, 140), (150, 200)), {"compute": 80 + 50, "starved": 40, "stalled": 10}),
    "a kernel that begins before its call returns leaves nothing to stall":
        (first.kernel((120, 190), (150, 200)), {"compute": 80 + 50, "starved": 50}),
    "a kernel that is launched ahead is only stalled":
        (first.kernel((11, 13), (103, 200)), {"compute": 80 + 97, "stalled": 3}),
    "a copy before in the stream blocks":
        (first.copy((11, 12), (101, 160)).kernel((13, 15), (165, 200)),
         {"compute": 80 + 35, "to_device": 60, "stalled": 5}),
    "before a launch returns nothing blocks":
        (first.copy((11, 12), (101, 160)).kernel((110, 120), (165, 200)),
         {"compute": 80 + 35, "starved": 20, "to_device": 40, "stalled": 5}),
    "a copy in another stream only overlaps":
        (first.copy((11, 12), (100, 160), stream=14).kernel((105, 110), (130, 200)),
         {"compute": 80 + 70, "starved": 10, "stalled": 20}),
    "a copy before all compute blocks":
        (do.copy((0, 10), (20, 60)).kernel((11, 12), (70, 100)), {"compute": 30, "to_device": 40, "stalled": 10}),
    "copies block by their direction":
        (first.copy((11, 12), (100, 110), kind="DtoH").kernel((12, 13), (110, 115))
         .copy((13, 14), (115, 135), kind="DtoD").kernel((14, 15), (135, 140))
         .copy((15, 16), (140, 170), kind="PtoP").kernel((16, 17), (170, 175))
         .copy((17, 18), (175, 215), kind="HtoA").kernel((18, 19), (215, 220)),
         {"compute": 80 + 4 * 5, "to_host": 10, "on_device": 20, "other_copies": 30 + 40}),
    "a memset blocks":
        (first.memset((11, 12), (101, 104)).kernel((13, 15), (106, 200)),
         {"compute": 80 + 94, "memsets": 4, "stalled": 2}),
    "a function on the CPU blocks its stream and the end":
        (first.host_function((11, 12), (101, 160)).kernel((13, 15), (165, 180)).host_function((16, 17), (181, 190))
         .memset((18, 19), (191, 200)),
         {"compute": 80 + 15, "host_functions": 60 + 9, "memsets": 9, "stalled": 5, "tail": 2}),
    "pages that move before a launched kernel block it":
        (first.migrate((110, 120), "UvmDtoH").migrate((130, 140), stream=13, number=None)
         .migrate((150, 160), "UvmDtoD", 99).kernel((11, 12), (165, 200)),
         {"compute": 80 + 35, "migrations": 60, "stalled": 5}),
    "pages that move after a copy block only from its end":
        (first.migrate((102, 104)).copy((11, 12), (102, 120)).migrate((121, 130)).kernel((13, 15), (132, 200)),
         {"compute": 80 + 68, "to_device": 20, "migrations": 10, "stalled": 2}),
    "pages that move before a copy ends are hidden by it":
        (first.copy((11, 12), (102, 120)).migrate((105, 119)).kernel((13, 15), (122, 200)),
         {"compute": 80 + 78, "to_device": 20, "stalled": 2}),
    "pages that move during a kernel or before a launch block nothing":
        (first.migrate((30, 35), stream=13).migrate((60, 65), stream=13).migrate((95, 100), stream=13)
         .kernel((11, 12), (104, 120)).migrate((130, 140)).kernel((145, 150), (160, 200)),
         {"compute": 80 + 16 + 40, "starved": 30, "stalled": 4 + 10}),
    "NCCL blocks who waits for its event":
        (first.record(11, 1, 13).wait(12, 1, 20).nccl((13, 14), (102, 180)).record(15, 2, 20).wait(16, 2, 13)
         .kernel((17, 18), (185, 200)), {"compute": 80 + 15, "nccl": 80, "stalled": 5}),
    "NCCL that nobody waits for only overlaps":
        (first.record(11, 1, 13).wait(12, 1, 20).nccl((13, 14), (102, 180)).kernel((17, 18), (185, 200)),
         {"compute": 80 + 15, "stalled": 85}),
    "kernels that communicate without NCCL block and are no compute":
        (first.kernel((11, 12), (101, 150), name=CUSTOM).kernel((13, 14), (155, 200)),
         {"compute": 80 + 45, "communication": 50, "stalled": 5}),
    "of several producers the last to end blocks":
        (first.copy((11, 12), (100, 130)).nccl((12, 13), (95, 160)).record(14, 2, 20).wait(15, 2, 13)
         .kernel((17, 18), (165, 200)), {"compute": 80 + 35, "nccl": 60, "stalled": 5}),
    "a wait that follows the launch does not hold the kernel":
        (first.nccl((12, 13), (95, 160)).record(14, 2, 20).kernel((17, 18), (165, 200)).wait(19, 2, 13)
         .kernel((20, 21), (205, 210)), {"compute": 80 + 35 + 5, "stalled": 65 + 5}),
    "a wait holds the next operation of its stream and that the one after it":
        (first.nccl((12, 13), (95, 160)).record(14, 2, 20).wait(15, 2, 13).memset((16, 17), (162, 164))
         .kernel((17, 18), (170, 200)), {"compute": 80 + 30, "memsets": 64, "stalled": 6}),
    "an event covers only what was launched before its record":
        (first.nccl((12, 13), (95, 110)).record(14, 2, 20).nccl((15, 16), (111, 150)).wait(16, 2, 13)
         .kernel((17, 18), (165, 200)), {"compute": 80 + 35, "nccl": 10, "stalled": 55}),
    "several waits before one kernel all hold it":
        (first.nccl((11, 12), (95, 110)).record(13, 2, 20).copy((14, 15), (95, 150), stream=14).record(15, 3, 14)
         .wait(16, 3, 13).wait(17, 2, 13).kernel((18, 19), (155, 200)),
         {"compute": 80 + 45, "to_device": 50, "stalled": 5}),
    "a handle that is recorded again means the last record before each wait":
        (first.copy((11, 12), (90, 120), stream=14).record(13, 5, 14).wait(14, 5, 13).kernel((15, 16), (125, 150))
         .memset((17, 18), (90, 160), stream=15).record(19, 5, 15).wait(20, 5, 13).kernel((21, 22), (165, 200)),
         {"compute": 80 + 25 + 35, "to_device": 20, "memsets": 10, "stalled": 5 + 5}),
    "a record after the wait is not waited for":
        (first.copy((11, 12), (90, 120), stream=14).wait(14, 5, 13).record(15, 5, 14).kernel((16, 17), (125, 150)),
         {"compute": 80 + 25, "stalled": 25}),
    "an event that was never recorded blocks nobody":
        (first.copy((11, 12), (90, 120), stream=14).record(13, 6, 14).wait(14, 5, 13).kernel((16, 17), (125, 150)),
         {"compute": 80 + 25, "stalled": 25}),
    "of two events with one handle the number of the record decides":
        (first.copy((11, 12), (90, 120), stream=14).record(13, 5, 14, sync=71).memset((14, 15), (90, 140), stream=15)
         .record(16, 5, 15, sync=72).wait(17, 5, 13, sync=71).kernel((18, 19), (150, 200)),
         {"compute": 80 + 50, "to_device": 20, "stalled": 30}),
    "a number of a record counts whatever the handles":
        (first.copy((11, 12), (90, 120), stream=14).record(13, 5, 14, sync=71).wait(17, 6, 13, sync=71)
         .kernel((18, 19), (150, 200)), {"compute": 80 + 50, "to_device": 20, "stalled": 30}),
    "a number that no record has is of a record before the capture":
        (first.copy((11, 12), (90, 120), stream=14).record(13, 5, 14, sync=71).wait(17, 5, 13, sync=70)
         .kernel((18, 19), (150, 200)), {"compute": 80 + 50, "stalled": 50}),
    "without numbers of records handles count":
        (first.copy((11, 12), (90, 120), stream=14).record(13, 5, 14).wait(17, 5, 13, sync=70)
         .kernel((18, 19), (150, 200)), {"compute": 80 + 50, "to_device": 20, "stalled": 30}),
    "calls of the driver and of other threads wait and record too":
        (first.copy((11, 12), (90, 120), stream=14).record_elsewhere(13, 5, 14)
         .wait(17, 5, 13, name="cuStreamWaitEvent", event_class=DRIVER_CALL)
         .kernel((18, 19), (150, 200)), {"compute": 80 + 50, "to_device": 20, "stalled": 30}),
    "types of synchronisation may be numbered otherwise":
        (first.copy((11, 12), (90, 120), stream=14).record(13, 5, 14).wait(17, 5, 13, kind=STREAM_SYNC)
         .kernel((18, 19), (150, 160)).memset((20, 21), (90, 180), stream=15).record(22, 5, 15)
         .wait(23, 5, 13, kind=0).kernel((24, 25), (190, 200)),
         {"compute": 80 + 10 + 10, "to_device": 20, "memsets": 20, "stalled": 30 + 10}),
    "who synchronises with an event is the host":
        (first.copy((11, 12), (90, 120), stream=14).record(13, 5, 14)
         .wait(14, 5, 13, name="cudaEventSynchronize_v3020")
         .wait(15, 5, NO_STREAM, name="cudaEventSynchronize_v3020", kind=EVENT_SYNC)
         .wait(16, 5, 13, name="cudaStreamSynchronize_v3020", kind=STREAM_SYNC).kernel((18, 19), (150, 200)),
         {"compute": 80 + 50, "stalled": 50}),
    "the legacy default stream holds a blocking stream":
        (do.stream(7, DEFAULT).stream(13, BLOCKING).kernel((0, 10), (20, 100)).copy((11, 12), (100, 120), stream=7)
         .kernel((13, 14), (130, 200)), {"compute": 80 + 70, "to_device": 20, "stalled": 10}),
    "a blocking stream holds the legacy default stream":
        (do.stream(7, DEFAULT).stream(13, BLOCKING).kernel((0, 10), (20, 100), stream=7).copy((11, 12), (100, 120))
         .kernel((13, 14), (130, 200), stream=7), {"compute": 80 + 70, "to_device": 20, "stalled": 10}),
    "the legacy default stream does not hold a non-blocking stream":
        (do.stream(7, DEFAULT).stream(13, NON_BLOCKING).kernel((0, 10), (20, 100)).copy((11, 12), (90, 120), stream=7)
         .kernel((13, 14), (130, 200)), {"compute": 80 + 70, "stalled": 30}),
    "two blocking streams do not hold each other":
        (do.stream(7, DEFAULT).stream(13, BLOCKING).stream(14, BLOCKING).kernel((0, 10), (20, 100))
         .copy((11, 12), (90, 120), stream=14).kernel((13, 14), (130, 200)), {"compute": 80 + 70, "stalled": 30}),
    # A stream from before the capture has no row among the streams.
    "a context knows its default stream":
        (do.context().stream(13, BLOCKING).kernel((0, 10), (20, 100)).copy((11, 12), (100, 120), stream=7)
         .kernel((13, 14), (130, 200)), {"compute": 80 + 70, "to_device": 20, "stalled": 10}),
    "the default stream of another context holds nothing":
        (do.stream(7, DEFAULT).stream(33, BLOCKING, context=2).kernel((0, 10), (20, 100), stream=33, context=2)
         .copy((11, 12), (90, 120), stream=7).kernel((13, 14), (130, 200), stream=33, context=2),
         {"compute": 80 + 70, "stalled": 30}),
    "of a graph that is traced node by node only the first node is explained":
        (first.copy((11, 12), (100, 105)).nodes((102, 110), (120, 130), (133, 140), (147, 150))
         .kernel((111, 112), (160, 200)),
         {"compute": 80 + 20 + 40, "starved": 10, "stalled": 10 + 10, "in_graph": 3 + 7}),
    "a graph whose first node communicates may block its compute":
        (first.mixed_nodes((11, 12), (101, 150), (155, 200)), {"compute": 80 + 45, "unresolved": 50, "in_graph": 5}),
    "a graph that is traced whole is compute":
        (first.copy((11, 12), (100, 105)).graph((102, 103), (120, 160)).kernel((111, 112), (165, 200)),
         {"compute": 80 + 40 + 35, "starved": 3, "to_device": 2, "stalled": 15 + 5}),
    "a kernel without a launch is unresolved":
        (first.copy((11, 12), (100, 105)).kernel(None, (120, 160)).kernel(None, (165, 180), correlation_id=None)
         .kernel((13, 14), (190, 200)), {"compute": 80 + 40 + 15 + 10, "unresolved": 20 + 5, "stalled": 10}),
    "what was launched before the capture blocks all the same":
        (first.nccl(None, (95, 140), stream=13).kernel((13, 14), (150, 200)),
         {"compute": 80 + 50, "nccl": 40, "stalled": 10}),
    "after the last compute what still runs blocks the end and the rest is tail":
        (first.copy((11, 12), (105, 120), kind="DtoH").nccl((13, 14), (110, 150)),
         {"compute": 80, "to_host": 5, "nccl": 40, "tail": 5}),
    "without compute all that runs blocks":
        (do.copy((11, 12), (105, 120), kind="DtoH").nccl((13, 14), (130, 150)),
         {"to_host": 15, "nccl": 20, "tail": 10}),
    "compute in any stream hides everything":
        (first.kernel((11, 12), (50, 130), stream=14).copy((11, 12), (100, 140)).kernel((13, 14), (142, 200)),
         {"compute": 110 + 58, "to_device": 10, "stalled": 2}),
    "a producer that outlasts the start of its kernel is cut":
        (first.copy((11, 12), (101, 160)).kernel((13, 15), (155, 200)), {"compute": 80 + 45, "to_device": 55}),
}  # fmt: skip
"""Programs, and the parts of the time of their GPU, ns."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> Iterator[tuple[OpenJob, Mapping[str, tuple[int, Parts]]]]:
    """Open an export in which each case is a process, with the same handles, correlation ids and streams."""
    path, expected = tmp_path_factory.mktemp("blocking") / "cases.sqlite", {}
    with ExportWriter(path) as export:
        for number, (name, (steps, parts)) in enumerate(CASES.items()):
            expected[name] = steps.write(Case(export, 1000 + 10 * number)).process.global_id, parts
    with job_of(path) as job:
        yield job, expected


@pytest.mark.campaign
@pytest.mark.parametrize("name", CASES)
def test(name, cases):
    job, expected = cases
    process, parts = expected[name]
    assert parts_of(blocking(job).whole[Task(0, process), 0]) == parts


def expect(job: OpenJob, naive: Naive, name: str = "") -> int:
    """Compare all iterations and all time of every GPU with the naive computation; return how many."""
    found, number = blocking(job), 0
    for kept in (found.whole, found.iterations):
        for (task, device), one in kept.items():
            gpu, offset = naive.gpu(task.process, device), report_at(job.session, task.report).clock_offset
            if kept is found.whole:
                assert (one.starts[0] - offset, one.ends[0] - offset) == gpu.span
            for part, times in one.when.items():
                covered = times.covered(one.starts, one.ends)
                is_whole = part == "nccl" or len(times) < 100
                assert (covered == one.part(part) if is_whole else covered <= one.part(part)).all(), (name, part)
            for place, (low, high) in enumerate(zip(one.starts - offset, one.ends - offset, strict=True)):
                where = (name, task.process >> 24 & 0xFFFFFF, device, int(low), int(high))
                assert parts_of(one, place) == gpu.parts(low, high), where
                assert possible_of(one, place) == gpu.possible(low, high), where
                assert one.busy[place] == gpu.busy(low, high), where
                assert one.parts[place].sum() == one.time[place] == high - low, where
                assert one.part("compute")[place] <= one.busy[place] <= one.time[place], where
                number += 1
    return number


SEEDS = range(200)


def programs(path: Path, seeds: range) -> Path:
    with ExportWriter(path) as export:
        for seed in seeds:
            Dice(export, 1000 + 10 * seed, seed)
    return path


@pytest.fixture(scope="module")
def by_chance(tmp_path_factory) -> Path:
    return programs(tmp_path_factory.mktemp("blocking") / "chance.sqlite", SEEDS)


@pytest.mark.campaign
def test_programs_by_chance_are_told_as_naively(by_chance):
    with job_of(by_chance) as job:
        found = blocking(job)
        assert len({task for task, _ in found.whole}) == len(SEEDS) < len(found.whole)
        assert expect(job, Naive(by_chance)) > 3 * len(SEEDS)
        assert np.sum([one.parts[0] for one in found.whole.values()], axis=0).all()


LOST = {
    "every record": "DELETE FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    "some records": "DELETE FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT WHERE correlationId % 3 = 0",
    "every wait": "DELETE FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "some waits": "DELETE FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION WHERE correlationId % 2 = 0",
    "every call": "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME",
}


@pytest.mark.campaign
@pytest.mark.parametrize("lost", LOST)
def test_what_is_lost_of_waits_widens_the_bounds_around_what_is_right(by_chance, tmp_path, lost):
    path = tmp_path / "lost.sqlite"
    path.write_bytes(by_chance.read_bytes())
    edit(path, LOST[lost])
    with job_of(by_chance) as job, job_of(path) as other:
        assert expect(other, Naive(path)) > len(SEEDS)
        right, found = (blocking(one).whole for one in (job, other))
        assert sum(bool(found[key].possible.sum() > one.possible.sum()) for key, one in right.items()) > 5


@pytest.mark.campaign
@pytest.mark.parametrize("at_once", [20, 90])
@pytest.mark.parametrize("lost", ["nothing", *LOST])
def test_it_does_not_matter_how_much_is_read_at_once(tmp_path, monkeypatch, at_once, lost):
    path = programs(tmp_path / "chance.sqlite", range(10))
    edit(path, LOST.get(lost, "SELECT 0"))
    with job_of(path) as job:
        whole = blocking(job)
    monkeypatch.setattr(Limits, "rows_at_once", lambda limits, size: at_once)
    with job_of(path) as job:
        sliced = blocking(job)
        expect(job, Naive(path))
    for one, other in ((whole.whole, sliced.whole), (whole.iterations, sliced.iterations)):
        assert one.keys() == other.keys()
        for key, its in one.items():
            for name in ("starts", "ends", "parts", "busy", "possible"):
                assert np.array_equal(getattr(its, name), getattr(other[key], name)), (key, name)
            for part, times in its.when.items():
                assert times == other[key].when[part], (key, part)


@pytest.mark.campaign
def test_a_window_is_one_iteration(tmp_path):
    path = programs(tmp_path / "chance.sqlite", range(40))
    naive, seen = Naive(path), set()
    with job_of(path) as job:
        low = int(np.median([one.starts[0] for one in blocking(job).whole.values()]))
        for window in (Window(low, low + 1), Window(low + 100, low + 900), Window(low + 7, low + 5000)):
            for (task, device), one in blocked_in(job, window).items():
                gpu, where = naive.gpu(task.process, device), (window, task.process >> 24 & 0xFFFFFF, device)
                assert parts_of(one) == gpu.parts(window.start, window.end), where
                assert possible_of(one) == gpu.possible(window.start, window.end), where
                assert one.busy[0] == gpu.busy(window.start, window.end), where
                seen |= parts_of(one).keys()
    assert seen == {*PARTS}


def test_the_first_node_of_a_graph_that_ended_before_the_window_is_the_first_all_the_same(tmp_path):
    with ExportWriter(tmp_path / "a.sqlite") as export:
        program = Program(export, 4711)
        program.kernel((0, 10), (20, 100))
        program.nodes((102, 110), (120, 130), (133, 140), (147, 150))
    with job_of(tmp_path / "a.sqlite") as job:
        (one,) = blocked_in(job, Window(131, 145)).values()
        assert parts_of(one) == {"compute": 7, "in_graph": 2 + 5}


@pytest.mark.campaign
def test_a_gpu_waits_for_another_of_its_process(tmp_path):
    """GPU 1 waits for a copy and for a kernel of GPU 0."""
    with ExportWriter(tmp_path / "a.sqlite") as export:
        program = Program(export, 4711)
        program.kernel((0, 10), (20, 100))
        program.kernel((0, 11), (20, 100), stream=33, device=1)
        program.copy((12, 13), (101, 130), kind="PtoP")
        program.record(14, 5, 13, sync=1)
        program.wait(15, 5, 33, sync=1, device=1)
        program.kernel((16, 17), (135, 150), stream=33, device=1)
        program.kernel((18, 19), (130, 180))
        program.record(20, 5, 13, sync=2)
        program.wait(21, 5, 33, sync=2, device=1)
        program.kernel((22, 23), (184, 200), stream=33, device=1)
    with job_of(tmp_path / "a.sqlite") as job:
        assert {device: parts_of(one) for (_, device), one in blocking(job).whole.items()} == {
            0: {"compute": 80 + 50, "other_copies": 30},
            1: {"compute": 80 + 15 + 16, "other_copies": 30, "stalled": 5 + 34},
        }
        assert expect(job, Naive(tmp_path / "a.sqlite")) == 2


@pytest.mark.campaign
def test_processes_that_share_a_gpu_have_budgets_of_their_own(tmp_path):
    """Handles, numbers and streams are the same; the compute of one process does not hide waits of the other."""
    path = tmp_path / "a.sqlite"
    with ExportWriter(path) as export:
        one, other = Program(export, 4711), Program(export, 4712)
        for program, copied in ((one, 160), (other, 140)):
            program.kernel((0, 10), (20, 100))
            program.copy((12, 13), (101, copied), stream=14)
            program.record(14, 5, 14, sync=1)
            program.wait(15, 5, 13, sync=1)
            program.kernel((16, 17), (170, 200))
    with job_of(path) as job:
        found = blocking(job).whole
        for program, copied in ((one, 160), (other, 140)):
            assert parts_of(found[Task(0, program.process.global_id), 0]) == {
                "compute": 80 + 30, "to_device": copied - 100, "stalled": 170 - copied,
            }  # fmt: skip


def stepping(path: Path, *, steps: bool = True, late: int = 0) -> Path:
    """Write three steps of 100 ns on the GPU, from the first operation of a step to the first of the next step.

    Each begins with a copy of 20 ns that holds its first kernel of 40 ns; another is launched 10 ns late, or ``late``
    more.
    """
    with ExportWriter(path) as export:
        program = Program(export, 4711)
        for number in range(3):
            now = 1_000 + 100 * number
            program.copy((now - 20, now - 19), (now, now + 20), kind="HtoD")
            program.kernel((now - 18, now - 17), (now + 25, now + 65))
            program.kernel((now + 60, now + 75 + late), (now + 75 + late, now + 95))
            if steps:
                program.step(number, (now - 20, now + 79))
    return path


@pytest.mark.campaign
def test_steps_end_where_the_next_begins_and_the_last_with_its_work(tmp_path):
    with job_of(stepping(tmp_path / "a.sqlite")) as job:
        ((_, one),) = blocking(job).iterations.items()
        assert one.starts.tolist() == [980, 1_095, 1_195] and one.ends.tolist() == [1_095, 1_195, 1_295]
        step = {"compute": 60, "starved": 10, "to_device": 25, "stalled": 5}
        # The first step also waits for the launch of its first kernel, for 3 ns, and then for its copy.
        assert [parts_of(one, place) for place in range(3)] == [{**step, "starved": 13, "to_device": 37}, step, step]
        assert (one.time - one.busy).tolist() == [35, 20, 20]
        ((_, whole),) = blocking(job).whole.items()
        assert parts_of(whole) == {**{name: 3 * step[name] for name in step}, "to_device": 70}
        starts = [980, 1_065, 1_165, 1_265]
        starved = whole.when["starved"]
        assert starved.starts.tolist() == starts and (starved.ends - starts).tolist() == [3, 10, 10, 10]


def test_a_selection_chooses_steps_by_their_begin_and_gpus_and_ranks(tmp_path):
    with job_of(stepping(tmp_path / "a.sqlite")) as job:
        (one,) = iterations(job, Selection(window=Window(1_050, 1_201)))
        assert one.numbers is not None and one.numbers.tolist() == [1, 2]
        assert iterations(job, Selection(devices=frozenset({1}))) == []
        assert iterations(job, Selection(window=Window(1_001, 1_094))) == []


@pytest.mark.campaign
def test_without_steps_the_window_is_the_iteration(tmp_path):
    with job_of(stepping(tmp_path / "a.sqlite", steps=False)) as job:
        (one,) = iterations(job, Selection())
        assert one.numbers is None and one.of.time.tolist() == [295]
        (one,) = iterations(job, Selection(window=Window(1_010, 1_070)))
        assert one.numbers is None and parts_of(one.of) == {
            "compute": 40, "to_device": 10, "stalled": 5, "starved": 5,
        }  # fmt: skip


@pytest.mark.campaign
def test_what_is_kept_of_a_report_alone_is_not_taken_for_a_job_with_other_steps(tmp_path):
    first, second = TrainingJob(ranks=2, steps=5, layers=2).write(tmp_path)
    edit(second, "DELETE FROM NVTX_EVENTS")  # now the optimizer's kernels define the steps of both

    def starts(cache: Cache | None, *paths: Path) -> list[list[int]]:
        session = Session(cache)
        with closing(OpenJob(session)) as job:
            for path in paths:
                session.add(path)
            return [one.starts.tolist() for one in blocking(job).iterations.values()]

    cache = Cache(tmp_path / "cache")
    (alone,) = starts(cache, first)
    together = starts(cache, first, second)
    assert together == starts(None, first, second) and together[0] != alone


@pytest.mark.campaign
@pytest.mark.parametrize("name", campaign.some(
    5,
    ["h100-2rank-moe-before", "jacobi-staged-copies", "cuda-graphs", "vadd-launch-bound",
     "schema2021-no-metadata", "mpi-cuda-saxpy-schema2.9", "ddp-a100-rank0of4",
     "dataloader-bound-a100", "ai-training-before", "event-ids-unified-memory-2025.5", "graph-events-2025.5",
     "jetson-orin", "unordered-rows-2025.6"],
))  # fmt: skip
def test_real_exports_are_told_as_naively(name):
    (path,) = shared(name)
    with job_of(path) as job:
        assert expect(job, Naive(path), name)


COPIES = ("to_device", "to_host", "on_device", "other_copies")
COUNTED = {
    ("ddp-a100-rank0of4", 0): (30.578, 28.146, 0.650, 0, 1.140, 0.287, 0.400),
    ("ddp-a100-nobroadcast-rank0of4", 0): (29.978, 28.394, 0.527, 0.124, 0.248, 0.256, 0.419),
    ("dataloader-bound-a100", 0): (200.720, 107.211, 91.876, 0, 0, 0.973, 0.568),
    ("h100-2rank-moe-before", 0): (299.849, 253.691, 20.703, 17.144, 3.258, 0.348, 4.486),
    ("h100-2rank-moe-before", 1): (298.662, 256.096, 28.191, 8.174, 2.955, 0.283, 2.719),
}
"""Figures of another program for real exports: medians over 59 steps or one window, in ms, of the iteration and of
compute, late launches, NCCL, copies, memsets and stalled."""


@pytest.mark.parametrize(("name", "device"), [
    pytest.param(name, device, marks=[pytest.mark.campaign] * (name != "ddp-a100-rank0of4"))
    for name, device in COUNTED
])  # fmt: skip
def test_real_exports_are_told_as_somebody_else_counted_them(name, device):
    (path,) = shared(name)
    with job_of(path) as job:
        found = blocking(job)
        (one,) = [
            found.iterations.get(key, whole)
            for key, whole in found.whole.items()
            if key[1] == device or len(found.whole) == 1
        ]
        assert len(one) == (1 if name.startswith("h100") else 59)
        copies = np.sum([one.part(part) for part in COPIES], axis=0)
        times = [one.time, one.part("compute"), one.part("starved"), one.part("nccl"), copies]
        times += [one.part("memsets"), one.part("stalled")]
        for time, expected in zip(times, COUNTED[name, device], strict=True):
            assert np.median(time) / MS == pytest.approx(expected, rel=0.01, abs=0.005)
        if name == "dataloader-bound-a100":
            assert one.part("starved").sum() / MS == pytest.approx(38_079, rel=0.01)


class TestCommands:
    """``nsystui budget --by step`` and ``nsystui steps --budget``."""

    @pytest.fixture
    def asked(self, capsys) -> Callable[..., tuple[list[dict[str, str]], str]]:
        """Return a function that runs a command and returns its rows and notes."""

        def ask(*words: str | Path, status: int = 0) -> tuple[list[dict[str, str]], str]:
            assert main([*map(str, words), "--format", "csv"]) == status
            written = capsys.readouterr()
            return list(csv.DictReader(io.StringIO(written.out))), written.err

        return ask

    def test_without_calls_of_the_api_all_gaps_are_unresolved(self, asked, tmp_path):
        path = stepping(tmp_path / "a.sqlite")
        edit(path, "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
        rows, notes = asked("budget", "--by", "step", path)
        totals = {row["Part"]: row["Total (ns)"] for row in rows}
        assert (totals["iteration"], totals["compute"], totals["unresolved"]) == ("295", "180", "115")
        most = {row["Part"]: round(float(row["At Most (%)"]) * 2.95) for row in rows if row["At Most (%)"]}
        copies = 20 + 25 + 25  # each copy, and the end of its step while it runs
        assert most == {"compute": 180, "late launches": 115, "stalled": 115, "unresolved": 115} | {
            "blocked by copies to the GPU": copies
        }
        assert {totals[part] for part in ("late launches", "stalled", "blocked by copies to the GPU")} == {"0"}
        assert "has one iteration: all of its time" in notes

    @pytest.mark.campaign
    def test_without_kernels_idle_time_is_unresolved_and_without_gpu_work_there_is_nothing(self, asked, tmp_path):
        path = stepping(tmp_path / "a.sqlite")
        edit(path, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        rows, _ = asked("budget", "--by", "step", path)
        assert {row["Part"]: row["Total (ns)"] for row in rows} == {
            "iteration": "240", "GPU busy": "60", "GPU idle": "0", "without compute": "240", "compute": "0",
            "blocked by copies to the GPU": "0", "tail": "0", "unresolved": "240",
        }  # fmt: skip
        edit(path, "DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY")
        for words in (("budget", "--by", "step"), ("steps", "--budget")):
            rows, notes = asked(*words, path, status=3)
            assert rows == [] and "no GPU work in this export" in notes
        path = stepping(tmp_path / "b.sqlite")
        for words in (("budget", "--by", "step"), ("steps", "--budget")):
            assert asked(*words, path, "--devices", "3")[0] == []


@pytest.fixture(scope="module")
def paths(written_once):
    job = TrainingJob(ranks=2, steps=4, layers=2, gpu_metrics=False, stall_ms=0)
    return written_once("two-ranks-blocked", job.write)


def opened(paths, cache) -> closing[OpenJob]:
    return job_of(*paths, cache=Cache(cache))


@pytest.mark.campaign
def test_a_file_that_is_known_already_is_not_computed_with_the_others(paths, tmp_path):
    with opened(paths[:1], tmp_path) as first:
        (own,) = blocking(first).whole.values()
    with opened(paths, tmp_path) as both:
        found = list(blocking(both).whole.values())
    assert [one.task.report for one in found] == [0, 1]
    assert found[0].parts.tolist() == own.parts.tolist()


@pytest.mark.campaign
def test_files_that_are_read_together_are_told_as_one_after_the_other(paths, tmp_path, monkeypatch):
    with opened(paths, tmp_path / "together") as job:
        together = {key: one.parts.tolist() for key, one in blocking(job).whole.items()}
        tasks = [task for task, _ in together]
        assert [rows.is_shared for rows in process_rows.ProcessRows.each(job.session, tasks)] == [True, True]
    monkeypatch.setattr(process_rows, "_TOGETHER", 0)
    with opened(paths, tmp_path / "apart") as job:
        assert [rows.is_shared for rows in process_rows.ProcessRows.each(job.session, tasks)] == [False, False]
        assert {key: one.parts.tolist() for key, one in blocking(job).whole.items()} == together


@pytest.mark.campaign
def test_a_window_is_that_of_job_time_in_each_file(paths, tmp_path):
    with opened(paths, tmp_path) as job:
        for (task, device), own in blocking(job).iterations.items():
            found = blocked_in(job, Window(int(own.starts[1]), int(own.ends[1])))[task, device]
            assert found.parts.tolist() == own.parts[1:2].tolist()


@pytest.mark.campaign
def test_what_blocked_a_job_is_known_when_that_of_one_report_is_kept(demo_job, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with nsystui.open(demo_job[0]) as one:
        first = len(one.ask("steps", budget=True))
    with nsystui.open(*demo_job) as job:
        assert len(job.ask("steps", budget=True)) == first * len(demo_job)
