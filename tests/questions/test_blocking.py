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
from naive_blocking import Naive
from support import edit, job_of, shared
from synthetic import ExportWriter
from synthetic.demo import TrainingJob
from synthetic.gpu_program import BLOCKING, CUSTOM, DEFAULT, NCCL, NON_BLOCKING, Dice, Program
from synthetic.writing.writer import DRIVER_CALL, EVENT_SYNC, NO_STREAM, STREAM_SYNC

from nsystui.base.selection import Selection, Task, Window
from nsystui.cli import main
from nsystui.questions.blocking.budget import iterations
from nsystui.questions.blocking.parts import PARTS, Iterations, blocked_in, blocking
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.time_window import report_at
from nsystui.store.cache import Cache
from nsystui.store.database import Limits
from nsystui.store.session import Session

MS = 1_000_000
Parts = Mapping[str, int]


def parts_of(one: Iterations, place: int = 0) -> dict[str, int]:
    """Return the parts of an iteration that are not 0."""
    return {name: time for name, time in zip(PARTS, one.parts[place].tolist(), strict=True) if time}


def possible_of(one: Iterations, place: int = 0) -> dict[str, int]:
    """Return how much of the unresolved time of an iteration may belong to each part."""
    return {name: time for name, time in zip(PARTS, one.possible[place].tolist(), strict=True) if time}


class Cases(Program):
    """Programs, each of which returns the parts of its GPU's time, ns. The first kernel runs from 20 to 100."""

    def first(self, **how: Any) -> None:
        self.kernel((0, 10), (20, 100), **how)

    def a_late_launch_starves_the_gpu_and_what_follows_it_is_a_stall(self) -> Parts:
        self.first()
        self.kernel((90, 140), (150, 200))
        return {"compute": 80 + 50, "starved": 40, "stalled": 10}

    def a_kernel_that_begins_before_its_call_returns_leaves_nothing_to_stall(self) -> Parts:
        self.first()
        self.kernel((120, 190), (150, 200))
        return {"compute": 80 + 50, "starved": 50}

    def a_kernel_that_is_launched_ahead_is_only_stalled(self) -> Parts:
        self.first()
        self.kernel((11, 13), (103, 200))
        return {"compute": 80 + 97, "stalled": 3}

    def a_copy_before_in_the_stream_blocks(self) -> Parts:
        self.first()
        self.copy((11, 12), (101, 160))
        self.kernel((13, 15), (165, 200))
        return {"compute": 80 + 35, "to_device": 60, "stalled": 5}

    def before_a_launch_returns_nothing_blocks(self) -> Parts:
        self.first()
        self.copy((11, 12), (101, 160))
        self.kernel((110, 120), (165, 200))
        return {"compute": 80 + 35, "starved": 20, "to_device": 40, "stalled": 5}

    def a_copy_in_another_stream_only_overlaps(self) -> Parts:
        self.first()
        self.copy((11, 12), (100, 160), stream=14)
        self.kernel((105, 110), (130, 200))
        return {"compute": 80 + 70, "starved": 10, "stalled": 20}

    def a_copy_before_all_compute_blocks(self) -> Parts:
        self.copy((0, 10), (20, 60))
        self.kernel((11, 12), (70, 100))
        return {"compute": 30, "to_device": 40, "stalled": 10}

    def copies_block_by_their_direction(self) -> Parts:
        self.first()
        now = 100
        for place, (kind, time) in enumerate((("DtoH", 10), ("DtoD", 20), ("PtoP", 30), ("HtoA", 40))):
            self.copy((11 + 2 * place, 12 + 2 * place), (now, now + time), kind=kind)
            self.kernel((12 + 2 * place, 13 + 2 * place), (now + time, now + time + 5))
            now += time + 5
        return {"compute": 80 + 4 * 5, "to_host": 10, "on_device": 20, "other_copies": 30 + 40}

    def a_memset_blocks(self) -> Parts:
        self.first()
        self.memset((11, 12), (101, 104))
        self.kernel((13, 15), (106, 200))
        return {"compute": 80 + 94, "memsets": 4, "stalled": 2}

    def a_function_on_the_cpu_blocks_its_stream_and_the_end(self) -> Parts:
        self.first()
        self.host_function((11, 12), (101, 160))
        self.kernel((13, 15), (165, 180))
        self.host_function((16, 17), (181, 190))
        self.memset((18, 19), (191, 200))
        return {"compute": 80 + 15, "host_functions": 60 + 9, "memsets": 9, "stalled": 5, "tail": 2}

    def pages_that_move_before_a_launched_kernel_block_it(self) -> Parts:
        self.first()
        for place, (kind, stream, number) in enumerate((("UvmDtoH", 0, 0), ("UvmHtoD", 13, None), ("UvmDtoD", 99, 0))):
            self.migrate((110 + 20 * place, 120 + 20 * place), kind, stream, number)
        self.kernel((11, 12), (165, 200))
        return {"compute": 80 + 35, "migrations": 60, "stalled": 5}

    def pages_that_move_during_a_kernel_or_before_a_launch_block_nothing(self) -> Parts:
        self.first()
        for start in (30, 60, 95):
            self.migrate((start, start + 5), stream=13)
        self.kernel((11, 12), (104, 120))
        self.migrate((130, 140))
        self.kernel((145, 150), (160, 200))
        return {"compute": 80 + 16 + 40, "starved": 30, "stalled": 4 + 10}

    def nccl_blocks_who_waits_for_its_event(self) -> Parts:
        self.first()
        self.record(11, 1, 13)
        self.wait(12, 1, 20)
        self.nccl((13, 14), (102, 180))
        self.record(15, 2, 20)
        self.wait(16, 2, 13)
        self.kernel((17, 18), (185, 200))
        return {"compute": 80 + 15, "nccl": 80, "stalled": 5}

    def nccl_that_nobody_waits_for_only_overlaps(self) -> Parts:
        self.first()
        self.record(11, 1, 13)
        self.wait(12, 1, 20)
        self.nccl((13, 14), (102, 180))
        self.kernel((17, 18), (185, 200))
        return {"compute": 80 + 15, "stalled": 85}

    def kernels_that_communicate_without_nccl_block_and_are_no_compute(self) -> Parts:
        self.first()
        self.kernel((11, 12), (101, 150), name=CUSTOM)
        self.kernel((13, 14), (155, 200))
        return {"compute": 80 + 45, "communication": 50, "stalled": 5}

    def of_several_producers_the_last_to_end_blocks(self) -> Parts:
        self.first()
        self.copy((11, 12), (100, 130))
        self.nccl((12, 13), (95, 160))
        self.record(14, 2, 20)
        self.wait(15, 2, 13)
        self.kernel((17, 18), (165, 200))
        return {"compute": 80 + 35, "nccl": 60, "stalled": 5}

    def a_wait_that_follows_the_launch_does_not_hold_the_kernel(self) -> Parts:
        self.first()
        self.nccl((12, 13), (95, 160))
        self.record(14, 2, 20)
        self.kernel((17, 18), (165, 200))
        self.wait(19, 2, 13)
        self.kernel((20, 21), (205, 210))
        return {"compute": 80 + 35 + 5, "stalled": 65 + 5}

    def a_wait_holds_the_next_operation_of_its_stream_and_that_the_one_after_it(self) -> Parts:
        self.first()
        self.nccl((12, 13), (95, 160))
        self.record(14, 2, 20)
        self.wait(15, 2, 13)
        self.memset((16, 17), (162, 164))
        self.kernel((17, 18), (170, 200))
        return {"compute": 80 + 30, "memsets": 64, "stalled": 6}

    def an_event_covers_only_what_was_launched_before_its_record(self) -> Parts:
        self.first()
        self.nccl((12, 13), (95, 110))
        self.record(14, 2, 20)
        self.nccl((15, 16), (111, 150))
        self.wait(16, 2, 13)
        self.kernel((17, 18), (165, 200))
        return {"compute": 80 + 35, "nccl": 10, "stalled": 55}

    def several_waits_before_one_kernel_all_hold_it(self) -> Parts:
        self.first()
        self.nccl((11, 12), (95, 110))
        self.record(13, 2, 20)
        self.copy((14, 15), (95, 150), stream=14)
        self.record(15, 3, 14)
        self.wait(16, 3, 13)
        self.wait(17, 2, 13)
        self.kernel((18, 19), (155, 200))
        return {"compute": 80 + 45, "to_device": 50, "stalled": 5}

    def a_handle_that_is_recorded_again_means_the_last_record_before_each_wait(self) -> Parts:
        self.first()
        self.copy((11, 12), (90, 120), stream=14)
        self.record(13, 5, 14)
        self.wait(14, 5, 13)
        self.kernel((15, 16), (125, 150))
        self.memset((17, 18), (90, 160), stream=15)
        self.record(19, 5, 15)
        self.wait(20, 5, 13)
        self.kernel((21, 22), (165, 200))
        return {"compute": 80 + 25 + 35, "to_device": 20, "memsets": 10, "stalled": 5 + 5}

    def a_record_after_the_wait_is_not_waited_for(self) -> Parts:
        self.first()
        self.copy((11, 12), (90, 120), stream=14)
        self.wait(14, 5, 13)
        self.record(15, 5, 14)
        self.kernel((16, 17), (125, 150))
        return {"compute": 80 + 25, "stalled": 25}

    def an_event_that_was_never_recorded_blocks_nobody(self) -> Parts:
        self.first()
        self.copy((11, 12), (90, 120), stream=14)
        self.record(13, 6, 14)
        self.wait(14, 5, 13)
        self.kernel((16, 17), (125, 150))
        return {"compute": 80 + 25, "stalled": 25}

    def of_two_events_with_one_handle_the_number_of_the_record_decides(self) -> Parts:
        self.first()
        self.copy((11, 12), (90, 120), stream=14)
        self.record(13, 5, 14, sync=71)
        self.memset((14, 15), (90, 140), stream=15)
        self.record(16, 5, 15, sync=72)
        self.wait(17, 5, 13, sync=71)
        self.kernel((18, 19), (150, 200))
        return {"compute": 80 + 50, "to_device": 20, "stalled": 30}

    def a_number_of_a_record_counts_whatever_the_handles(self) -> Parts:
        self.first()
        self.copy((11, 12), (90, 120), stream=14)
        self.record(13, 5, 14, sync=71)
        self.wait(17, 6, 13, sync=71)
        self.kernel((18, 19), (150, 200))
        return {"compute": 80 + 50, "to_device": 20, "stalled": 30}

    def a_number_that_no_record_has_is_of_a_record_before_the_capture(self) -> Parts:
        self.first()
        self.copy((11, 12), (90, 120), stream=14)
        self.record(13, 5, 14, sync=71)
        self.wait(17, 5, 13, sync=70)
        self.kernel((18, 19), (150, 200))
        return {"compute": 80 + 50, "stalled": 50}

    def without_numbers_of_records_handles_count(self) -> Parts:
        self.first()
        self.copy((11, 12), (90, 120), stream=14)
        self.record(13, 5, 14)
        self.wait(17, 5, 13, sync=70)
        self.kernel((18, 19), (150, 200))
        return {"compute": 80 + 50, "to_device": 20, "stalled": 30}

    def calls_of_the_driver_and_of_other_threads_wait_and_record_too(self) -> Parts:
        self.first()
        self.copy((11, 12), (90, 120), stream=14)
        self.record(13, 5, 14, thread=self.helper)
        self.wait(17, 5, 13, name="cuStreamWaitEvent", event_class=DRIVER_CALL)
        self.kernel((18, 19), (150, 200))
        return {"compute": 80 + 50, "to_device": 20, "stalled": 30}

    def types_of_synchronisation_may_be_numbered_otherwise(self) -> Parts:
        self.first()
        self.copy((11, 12), (90, 120), stream=14)
        self.record(13, 5, 14)
        self.wait(17, 5, 13, kind=STREAM_SYNC)
        self.kernel((18, 19), (150, 160))
        self.memset((20, 21), (90, 180), stream=15)
        self.record(22, 5, 15)
        self.wait(23, 5, 13, kind=0)
        self.kernel((24, 25), (190, 200))
        return {"compute": 80 + 10 + 10, "to_device": 20, "memsets": 20, "stalled": 30 + 10}

    def who_synchronises_with_an_event_is_the_host(self) -> Parts:
        self.first()
        self.copy((11, 12), (90, 120), stream=14)
        self.record(13, 5, 14)
        self.wait(14, 5, 13, name="cudaEventSynchronize_v3020")
        self.wait(15, 5, NO_STREAM, name="cudaEventSynchronize_v3020", kind=EVENT_SYNC)
        self.wait(16, 5, 13, name="cudaStreamSynchronize_v3020", kind=STREAM_SYNC)
        self.kernel((18, 19), (150, 200))
        return {"compute": 80 + 50, "stalled": 50}

    def the_legacy_default_stream_holds_a_blocking_stream(self) -> Parts:
        self.stream(7, DEFAULT)
        self.stream(13, BLOCKING)
        self.first()
        self.copy((11, 12), (100, 120), stream=7)
        self.kernel((13, 14), (130, 200))
        return {"compute": 80 + 70, "to_device": 20, "stalled": 10}

    def a_blocking_stream_holds_the_legacy_default_stream(self) -> Parts:
        self.stream(7, DEFAULT)
        self.stream(13, BLOCKING)
        self.first(stream=7)
        self.copy((11, 12), (100, 120))
        self.kernel((13, 14), (130, 200), stream=7)
        return {"compute": 80 + 70, "to_device": 20, "stalled": 10}

    def the_legacy_default_stream_does_not_hold_a_non_blocking_stream(self) -> Parts:
        self.stream(7, DEFAULT)
        self.stream(13, NON_BLOCKING)
        self.first()
        self.copy((11, 12), (90, 120), stream=7)
        self.kernel((13, 14), (130, 200))
        return {"compute": 80 + 70, "stalled": 30}

    def two_blocking_streams_do_not_hold_each_other(self) -> Parts:
        self.stream(7, DEFAULT)
        self.stream(13, BLOCKING)
        self.stream(14, BLOCKING)
        self.first()
        self.copy((11, 12), (90, 120), stream=14)
        self.kernel((13, 14), (130, 200))
        return {"compute": 80 + 70, "stalled": 30}

    def a_context_knows_its_default_stream(self) -> Parts:
        """A stream from before the capture has no row among the streams."""
        self.export.cuda_context(self.process)
        self.stream(13, BLOCKING)
        self.first()
        self.copy((11, 12), (100, 120), stream=7)
        self.kernel((13, 14), (130, 200))
        return {"compute": 80 + 70, "to_device": 20, "stalled": 10}

    def the_default_stream_of_another_context_holds_nothing(self) -> Parts:
        self.stream(7, DEFAULT)
        self.stream(33, BLOCKING, context=2)
        self.first(stream=33, context=2)
        self.copy((11, 12), (90, 120), stream=7)
        self.kernel((13, 14), (130, 200), stream=33, context=2)
        return {"compute": 80 + 70, "stalled": 30}

    def of_a_graph_that_is_traced_node_by_node_only_the_first_node_is_explained(self) -> Parts:
        self.first()
        self.copy((11, 12), (100, 105))
        self.nodes((102, 110), (120, 130), (133, 140), (147, 150))
        self.kernel((111, 112), (160, 200))
        return {"compute": 80 + 20 + 40, "starved": 10, "stalled": 10 + 10, "in_graph": 3 + 7}

    def a_graph_whose_first_node_communicates_may_block_its_compute(self) -> Parts:
        self.first()
        number = self.call("cudaGraphLaunch_v10000", (11, 12))
        how = {"correlation_id": number, "graph_node_id": 4}
        self.export.kernel(self.process, 0, 13, 101, 150, name=NCCL, **how)
        self.export.kernel(self.process, 0, 13, 155, 200, name="gemm()", **{**how, "graph_node_id": 5})
        return {"compute": 80 + 45, "unresolved": 50, "in_graph": 5}

    def a_graph_that_is_traced_whole_is_compute(self) -> Parts:
        self.first()
        self.copy((11, 12), (100, 105))
        self.graph((102, 103), (120, 160))
        self.kernel((111, 112), (165, 200))
        return {"compute": 80 + 40 + 35, "starved": 3, "to_device": 2, "stalled": 15 + 5}

    def a_kernel_without_a_launch_is_unresolved(self) -> Parts:
        self.first()
        self.copy((11, 12), (100, 105))
        self.kernel(None, (120, 160))
        self.kernel(None, (165, 180), correlation_id=None)
        self.kernel((13, 14), (190, 200))
        return {"compute": 80 + 40 + 15 + 10, "unresolved": 20 + 5, "stalled": 10}

    def what_was_launched_before_the_capture_blocks_all_the_same(self) -> Parts:
        self.first()
        self.nccl(None, (95, 140), stream=13)
        self.kernel((13, 14), (150, 200))
        return {"compute": 80 + 50, "nccl": 40, "stalled": 10}

    def after_the_last_compute_what_still_runs_blocks_the_end_and_the_rest_is_tail(self) -> Parts:
        self.first()
        self.copy((11, 12), (105, 120), kind="DtoH")
        self.nccl((13, 14), (110, 150))
        return {"compute": 80, "to_host": 5, "nccl": 40, "tail": 5}

    def without_compute_all_that_runs_blocks(self) -> Parts:
        self.copy((11, 12), (105, 120), kind="DtoH")
        self.nccl((13, 14), (130, 150))
        return {"to_host": 15, "nccl": 20, "tail": 10}

    def compute_in_any_stream_hides_everything(self) -> Parts:
        self.first()
        self.kernel((11, 12), (50, 130), stream=14)
        self.copy((11, 12), (100, 140))
        self.kernel((13, 14), (142, 200))
        return {"compute": 110 + 58, "to_device": 10, "stalled": 2}

    def a_producer_that_outlasts_the_start_of_its_kernel_is_cut(self) -> Parts:
        self.first()
        self.copy((11, 12), (101, 160))
        self.kernel((13, 15), (155, 200))
        return {"compute": 80 + 45, "to_device": 55}


CASES = [name for name in vars(Cases) if not name.startswith("_") and name != "first"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OpenJob, Mapping[str, tuple[int, Parts]]]]:
    """Open an export in which each case is a process, with the same handles, correlation ids and streams."""
    path = tmp_path_factory.mktemp("blocking") / "cases.sqlite"
    with ExportWriter(path) as export:
        programs = {name: Cases(export, 1000 + 10 * number) for number, name in enumerate(CASES)}
        expected = {name: (program.process.global_id, getattr(program, name)()) for name, program in programs.items()}
    with job_of(path) as job:
        yield job, expected


@pytest.mark.campaign
@pytest.mark.parametrize("name", CASES)
def test(name: str, cases: tuple[OpenJob, Mapping[str, tuple[int, Parts]]]):
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
    """Write random programs, side by side in one export."""
    with ExportWriter(path) as export:
        for seed in seeds:
            Dice(export, 1000 + 10 * seed, seed)
    return path


@pytest.fixture(scope="module")
def by_chance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs(tmp_path_factory.mktemp("blocking") / "chance.sqlite", SEEDS)


@pytest.mark.campaign
def test_programs_by_chance_are_told_as_naively(by_chance: Path):
    with job_of(by_chance) as job:
        found = blocking(job)
        assert len({task for task, _ in found.whole}) == len(SEEDS) < len(found.whole)
        assert expect(job, Naive(by_chance)) > 3 * len(SEEDS)
        every = np.sum([one.parts[0] for one in found.whole.values()], axis=0)
        assert {part for part, time in zip(PARTS, every.tolist(), strict=True) if not time} == {"migrations"}


LOST = {
    "every record": "DELETE FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    "some records": "DELETE FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT WHERE correlationId % 3 = 0",
    "every wait": "DELETE FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "some waits": "DELETE FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION WHERE correlationId % 2 = 0",
    "every call": "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME",
}


@pytest.mark.campaign
@pytest.mark.parametrize("lost", LOST)
def test_what_is_lost_of_waits_widens_the_bounds_around_what_is_right(by_chance: Path, tmp_path: Path, lost: str):
    path = tmp_path / "lost.sqlite"
    path.write_bytes(by_chance.read_bytes())
    edit(path, LOST[lost])
    with job_of(by_chance) as job, job_of(path) as other:
        assert expect(other, Naive(path)) > len(SEEDS)
        right, found = (blocking(one).whole for one in (job, other))
        wider = sum(bool(found[key].possible.sum() > one.possible.sum()) for key, one in right.items())
        assert wider > 10


@pytest.mark.campaign
@pytest.mark.parametrize("at_once", [20, 90])
def test_it_does_not_matter_how_much_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int):
    path = programs(tmp_path / "chance.sqlite", range(10))
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
def test_a_window_is_one_iteration(tmp_path: Path):
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
    assert seen == {*PARTS} - {"migrations"}


def test_the_first_node_of_a_graph_that_ended_before_the_window_is_the_first_all_the_same(tmp_path: Path):
    with ExportWriter(tmp_path / "a.sqlite") as export:
        program = Program(export, 4711)
        program.kernel((0, 10), (20, 100))
        program.nodes((102, 110), (120, 130), (133, 140), (147, 150))
    with job_of(tmp_path / "a.sqlite") as job:
        (one,) = blocked_in(job, Window(131, 145)).values()
        assert parts_of(one) == {"compute": 7, "in_graph": 2 + 5}


def two_gpus(program: Program) -> dict[int, Parts]:
    """GPU 1 waits for a copy and for a kernel of GPU 0."""
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
    return {
        0: {"compute": 80 + 50, "other_copies": 30},
        1: {"compute": 80 + 15 + 16, "other_copies": 30, "stalled": 5 + 34},
    }


@pytest.mark.campaign
def test_a_gpu_waits_for_another_of_its_process(tmp_path: Path):
    with ExportWriter(tmp_path / "a.sqlite") as export:
        program = Program(export, 4711)
        expected = two_gpus(program)
    with job_of(tmp_path / "a.sqlite") as job:
        found = blocking(job).whole
        assert {device: parts_of(one) for (_, device), one in found.items()} == expected
        assert expect(job, Naive(tmp_path / "a.sqlite")) == 2


@pytest.mark.campaign
def test_processes_that_share_a_gpu_have_budgets_of_their_own(tmp_path: Path):
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
def test_steps_end_where_the_next_begins_and_the_last_with_its_work(tmp_path: Path):
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


def test_a_selection_chooses_steps_by_their_begin_and_gpus_and_ranks(tmp_path: Path):
    with job_of(stepping(tmp_path / "a.sqlite")) as job:
        (one,) = iterations(job, Selection(window=Window(1_050, 1_201)))
        assert one.numbers is not None and one.numbers.tolist() == [1, 2]
        assert iterations(job, Selection(devices=frozenset({1}))) == []
        assert iterations(job, Selection(window=Window(1_001, 1_094))) == []


@pytest.mark.campaign
def test_without_steps_the_window_is_the_iteration(tmp_path: Path):
    with job_of(stepping(tmp_path / "a.sqlite", steps=False)) as job:
        (one,) = iterations(job, Selection())
        assert one.numbers is None and one.of.time.tolist() == [295]
        (one,) = iterations(job, Selection(window=Window(1_010, 1_070)))
        assert one.numbers is None and parts_of(one.of) == {
            "compute": 40, "to_device": 10, "stalled": 5, "starved": 5,
        }  # fmt: skip


@pytest.mark.campaign
def test_what_is_kept_of_a_report_alone_is_not_taken_for_a_job_with_other_steps(tmp_path: Path):
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
@pytest.mark.parametrize(
    "name",
    campaign.some(
        5,
        ["h100-2rank-moe-before", "jacobi-staged-copies", "cuda-graphs", "vadd-launch-bound",
         "schema2021-no-metadata", "mpi-cuda-saxpy-schema2.9", "ddp-a100-rank0of4",
         "dataloader-bound-a100", "ai-training-before", "event-ids-unified-memory-2025.5", "graph-events-2025.5",
         "jetson-orin", "unordered-rows-2025.6"],
    ),
)  # fmt: skip
def test_real_exports_are_told_as_naively(name: str):
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


@pytest.mark.parametrize(
    ("name", "device"),
    [
        pytest.param(name, device, marks=[pytest.mark.campaign] * (name != "ddp-a100-rank0of4"))
        for name, device in COUNTED
    ],
)
def test_real_exports_are_told_as_somebody_else_counted_them(name: str, device: int):
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
    def asked(self, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[list[dict[str, str]], str]]:
        """Return a function that runs a command and returns its rows and notes."""

        def ask(*words: str | Path, status: int = 0) -> tuple[list[dict[str, str]], str]:
            assert main([*map(str, words), "--format", "csv"]) == status
            written = capsys.readouterr()
            return list(csv.DictReader(io.StringIO(written.out))), written.err

        return ask

    def test_without_calls_of_the_api_all_gaps_are_unresolved(self, asked: Any, tmp_path: Path):
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
    def test_without_kernels_copies_block_and_without_gpu_work_there_is_nothing(self, asked: Any, tmp_path: Path):
        path = stepping(tmp_path / "a.sqlite")
        edit(path, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        rows, _ = asked("budget", "--by", "step", path)
        assert {row["Part"]: row["Total (ns)"] for row in rows} == {
            "iteration": "240", "GPU busy": "60", "GPU idle": "180", "without compute": "240", "tail": "180",
            "blocked by copies to the GPU": "60",
        }  # fmt: skip
        edit(path, "DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY")
        for words in (("budget", "--by", "step"), ("steps", "--budget")):
            rows, notes = asked(*words, path, status=3)
            assert rows == [] and "no GPU work in this export" in notes
        path = stepping(tmp_path / "b.sqlite")
        for words in (("budget", "--by", "step"), ("steps", "--budget")):
            assert asked(*words, path, "--devices", "3")[0] == []
