"""Memory allocated through CUDA, against a ledger over the rows of the export."""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import campaign
import pytest
from support import edit, native, session_over
from synthetic import ExportWriter
from synthetic.writing.host import Frame, Pool
from synthetic.writing.target import Process

from nsystui.base.selection import Selection, Window
from nsystui.questions.job.job import OpenJob
from nsystui.questions.memory.gpu_allocations import allocation_table
from nsystui.questions.memory.gpu_memory import device_peaks, memory_over_time, memory_table, pool_table

DEVICE, PINNED = 2, 1


class Ledger:
    """Bytes in use after each event of one kind of memory of a device, from the native rows of a process."""

    def __init__(self, path: Path, device: int, kind: int) -> None:
        self.live: dict[int, int] = {}
        self.curve: list[tuple[int, int]] = []
        self.made: list[tuple[int, int]] = []
        self.freed: list[int] = []
        place = f"deviceId = {device} AND memKind = {kind}"
        for time, address, size, is_free in native(
            path,
            "SELECT start, address, bytes, memoryOperationType FROM CUDA_GPU_MEMORY_USAGE_EVENTS "
            f"WHERE {place} ORDER BY start, rowid",
        ):
            if not is_free:
                self.live[address] = size
                self.made.append((time, size))
            elif self.live.pop(address, None) is not None:
                self.freed.append(time)
            else:
                continue
            self.curve.append((time, sum(self.live.values())))

    def at(self, time: int) -> int:
        """Return the bytes in use just before a time."""
        return next((used for when, used in reversed(self.curve) if when < time), 0)

    def peak(self, window: Window) -> int:
        return max([self.at(window.start), *[used for when, used in self.curve if window.start <= when < window.end]])


def random_export(path: Path, seed: int) -> Path:
    """Write a process that allocates and frees at random on two devices; some frees are of unrecorded memory."""
    draw = random.Random(seed)
    with ExportWriter(path) as export:
        process = export.process(70)
        export.thread(process, 70, "python")
        for device in (0, 1):
            export.gpu(device)
            export.kernel(process, device, 7, 1_000, 90_000, name="k(int)", correlation_id=None, context=device + 1)
        live: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number in range(200):
            place = draw.choice([(0, DEVICE), (1, DEVICE), (0, PINNED)])
            time = 10 * draw.randrange(500) if number < 20 else 400 * number
            mine = live.setdefault(place, [])
            if mine and draw.random() < 0.45 and number >= 20:
                address, size = mine.pop(draw.randrange(len(mine)))
                where = {"address": address, "memory": place[1], "context": place[0] + 1}
                export.gpu_memory(process, place[0], time, size, is_free=True, **where)
                if draw.random() < 0.5:  # reuses the address
                    mine.append((address, draw.randrange(1, 1 << 30)))
                    address, size = mine[-1]
                    export.gpu_memory(process, place[0], time, size, address=address, memory=place[1])
            else:
                mine.append((0x7F00_0000_0000 + 4096 * number, draw.randrange(1, 1 << 30)))
                export.gpu_memory(process, place[0], time, mine[-1][1], address=mine[-1][0], memory=place[1])
        export.gpu_memory(process, 0, 50_000, 123, address=0x1000, is_free=True)
    return path


def windows(seed: int) -> Iterator[Window]:
    """Yield random windows, and a window that begins and ends with an event."""
    draw = random.Random(seed)
    for _ in range(4):
        start, end = sorted(draw.sample(range(90_000), 2))
        yield Window(start, end)
    yield Window(400 * draw.randrange(20, 80), 400 * draw.randrange(120, 190))


@pytest.fixture(scope="module")
def random_jobs(tmp_path_factory) -> Iterator[list[tuple[Path, OpenJob]]]:
    """Yield the jobs of `random_export` for some seeds; tests must not add to them."""
    place = tmp_path_factory.mktemp("random")
    paths = [random_export(place / f"{seed}.sqlite", seed) for seed in range(4)]
    jobs = [OpenJob(session_over(path)) for path in paths]
    yield list(zip(paths, jobs, strict=True))
    for job in jobs:
        job.close()


@pytest.fixture
def job_with(opened, tmp_path) -> Callable[..., OpenJob]:
    """Return a function that opens the job of one process, which another function fills."""

    def make(fill: Callable[[ExportWriter, Process], object], schema: str = "3.25.0") -> OpenJob:
        path = tmp_path / f"{schema}.sqlite"
        with ExportWriter(path, schema) as export:
            process = export.process(70)
            export.kernel(process, 0, 7, 1, 9_000, name="k(int)", correlation_id=None)
            fill(export, process)
        return OpenJob(opened(path))

    return make


def test_processes_share_the_memory_of_their_gpu(opened, tmp_path):
    """Three processes have 10, 20 and 40 MiB in turn on GPU 0, 0 and 1: GPU 0 has at most 30 MiB in use."""
    with ExportWriter(tmp_path / "x.sqlite") as export:
        for gpu in (0, 1):
            export.gpu(gpu)
        for number, gpu in enumerate((0, 0, 1)):
            process = export.process(70 + number)
            export.cuda_device(process, 0, gpu)
            export.thread(process, 70 + number, "python")
            export.kernel(process, 0, 7, 1_000, 90_000, name="k(int)", correlation_id=None)
            size = 10 * 2**number << 20
            export.gpu_memory(process, 0, 1_000 * (1 + number), size, address=4096)
            export.gpu_memory(process, 0, 50_000 + number, size, address=4096, is_free=True)
    peaks = device_peaks(OpenJob(opened(tmp_path / "x.sqlite")), Selection())
    assert [(one.peak >> 20, one.time, len(one.places)) for one in peaks] == [(40, 3_000, 1), (30, 2_000, 2)]
    assert [sorted(size >> 20 for size in one.sizes) for one in peaks] == [[40], [10, 20]]


class TestTable:
    def test_peaks_and_counts_are_those_of_the_ledger_in_every_window(self, random_jobs):
        for seed, (path, job) in enumerate(random_jobs):
            for window in windows(seed):
                rows = memory_table(job, Selection(window)).records()
                assert {(row["device"], row["memory"]) for row in rows} == {(0, "Device"), (0, "Pinned"), (1, "Device")}
                for row in rows:
                    kind = DEVICE if row["memory"] == "Device" else PINNED
                    ledger = Ledger(path, row["device"], kind)
                    made = [size for time, size in ledger.made if window.start <= time < window.end]
                    freed = [time for time in ledger.freed if window.start <= time < window.end]
                    assert row["peak"] == ledger.peak(window), (seed, window)
                    assert row["at_end"] == ledger.at(window.end), (seed, window)
                    counts = (row["allocations"], row["allocated"], row["frees"])
                    assert counts == (len(made), sum(made), len(freed)), (seed, window)
                    assert row["largest"] == max(made, default=None)
                    assert window.start <= row["peak_time"] < window.end
                    assert max(ledger.at(row["peak_time"]), ledger.at(row["peak_time"] + 1)) == row["peak"] or made

    def test_a_free_at_the_end_of_a_window_is_none_of_its(self, job_with):
        job = job_with(
            lambda export, process: [
                export.gpu_memory(process, 0, time, 64, address=64, is_free=time == 20) for time in (10, 20)
            ]
        )
        found = {end: memory_table(job, Selection(Window(5, end))).records()[0] for end in (20, 21)}
        assert [(row["frees"], row["at_end"], row["peak"]) for row in found.values()] == [(0, 64, 64), (1, 0, 64)]

    def test_demo_says_what_its_native_rows_say(self, demo_job, demo_session):
        rows = memory_table(OpenJob(demo_session), Selection()).records()
        assert [row["rank"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
        for row, path in zip(rows[::2], demo_job, strict=True):
            assert (row["memory"], row["peak"]) == ("Device", max(used for _, used in Ledger(path, 0, DEVICE).curve))
            assert (row["allocations"], row["frees"], row["never_freed"]) == (9, 0, 9)
            [(whole,)] = native(path, "SELECT DISTINCT totalMemory FROM TARGET_INFO_GPU")
            assert row["peak_percent"] == pytest.approx(100 * row["peak"] / whole)
            [(spent,)] = native(
                path,
                "SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId "
                "WHERE value LIKE 'cudaMalloc%'",
            )
            assert row["call_time"] == spent
        steps = Ledger(demo_job[0], 0, PINNED)
        for row in rows[1::2]:
            assert (row["memory"], row["peak"], row["peak_percent"]) == ("Pinned", 512 * 1024, None)
            assert (row["allocations"], row["frees"]) == (len(steps.made), len(steps.made) - 1)
            assert (row["never_freed"], row["call_time"]) == (1, None)

    def test_frees_of_older_memory_and_damaged_rows_are_left_out_and_said(self, opened, tmp_path, random_jobs):
        whole = memory_table(random_jobs[2][1], Selection())
        assert "1 frees of 123 bytes are left out: the memory was allocated before the recording" in whole.notes
        path = random_export(tmp_path / "x.sqlite", 2)
        values = "(5, 1, 0, 1, {0}, 0, {1}, 2, {2})"
        rows = ", ".join(values.format(*one) for one in ((0, 9, 0), (64, -9, 0), (64, 9, 7)))
        names = "start, globalPid, deviceId, contextId, address, pc, bytes, memKind, memoryOperationType"
        edit(path, f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS ({names}) VALUES {rows}")
        answer = memory_table(OpenJob(opened(path)), Selection())
        assert answer.records() == whole.records()
        assert any(note.startswith("3 events are left out because they have no address") for note in answer.notes)

    def test_allocation_at_a_used_address_ends_the_one_before(self, job_with):
        def fill(export: ExportWriter, process: Process) -> None:
            for time, size in ((10, 100), (20, 40)):
                export.gpu_memory(process, 0, time, size, address=64)

        answer = memory_table(job_with(fill), Selection())
        [row] = answer.records()
        assert (row["peak"], row["at_end"], row["never_freed"], row["never_freed_bytes"]) == (100, 40, 1, 40)
        assert answer.notes == ("the free of 1 allocations was not recorded: they end when their address is reused",)

    @pytest.mark.campaign
    def test_processes_with_the_same_addresses_stay_apart(self, job_with):
        def fill(export: ExportWriter, process: Process) -> None:
            other = export.process(71)
            export.kernel(other, 0, 7, 1, 900, name="k(int)", correlation_id=None)
            export.gpu_memory(process, 0, 70, 7_000, address=64)
            export.gpu_memory(other, 0, 71, 7_100, address=64)

        job = job_with(fill)
        rows = memory_table(job, Selection()).records()
        assert [(row["rank"], row["peak"]) for row in rows] == [(0, 7_000), (1, 7_100)]
        only = Selection(tasks=frozenset({job.ranks[1].task}))
        assert [row["rank"] for row in memory_table(job, only).records()] == [1]


class TestOverTime:
    @pytest.mark.campaign
    def test_every_span_has_its_peak_and_its_end(self, random_jobs):
        for seed, (path, job) in enumerate(random_jobs):
            ledger = Ledger(path, 1, DEVICE)
            for window in windows(seed + 10):
                rows = [row for row in memory_over_time(job, Selection(window), 7).records() if row["device"] == 1]
                edges = [window.start + number * (window.end - window.start) // 7 for number in range(8)]
                assert [row["start"] for row in rows] == edges[:-1]
                expected = [(ledger.peak(Window(a, max(a, b))), ledger.at(b)) for a, b in pairwise(edges)]
                assert [(row["peak"], row["at_end"]) for row in rows] == expected, (seed, window)


class TestAllocations:
    @pytest.mark.campaign
    def test_those_at_the_peak_add_up_to_it_and_those_never_freed_are_those_of_the_table(self, random_jobs):
        for seed, (_, job) in enumerate(random_jobs[:3]):
            for window in windows(seed):
                rows = allocation_table(job, Selection(window), "at-peak").records()
                for one in memory_table(job, Selection(window)).records():
                    place = (one["device"], one["memory"])
                    mine = [row["bytes"] for row in rows if (row["device"], row["memory"]) == place]
                    assert sum(mine) == one["peak"], (seed, window)
        _, job = random_jobs[3]
        rows = allocation_table(job, Selection(), "never-freed").records()
        table = memory_table(job, Selection()).records()
        assert sum(row["bytes"] for row in rows) == sum(row["never_freed_bytes"] for row in table)
        assert len(rows) == sum(row["never_freed"] for row in table) > 0

    def test_ranges_around_a_call_are_those_of_its_thread(self, job_with):
        def fill(export: ExportWriter, process: Process) -> None:
            main, other = (export.thread(process, 70 + number, "python") for number in (0, 1))
            for start, end, text in ((0, 5_000, "outer"), (100, 200, "over"), (300, 4_000, "inner")):
                export.nvtx_range(main, start, end, text)
            export.nvtx_range(other, 0, 9_000, "other thread")
            for number, time in enumerate((250, 400, 6_000), 1):
                export.api(main, time, time + 50, "cudaMalloc_v3020", number)
                export.gpu_memory(process, 0, time + 40, number, address=64 * number, correlation_id=number)

        rows = allocation_table(job_with(fill), Selection()).records()
        assert [(row["bytes"], row["nvtx"]) for row in rows] == [(3, None), (2, "outer › inner"), (1, "outer")]
        assert {(row["call"], row["duration"], row["tid"]) for row in rows} == {("cudaMalloc", 50, 70)}

    @pytest.mark.parametrize("event_class", campaign.first(1, [0, 67]))
    def test_the_stack_of_its_call_begins_where_cuda_is_called(self, job_with, event_class):
        """The stack is that call's, or its second row's with --cudabacktrace; there is no range."""
        cuda = [Frame("0x7f", "/x/libcuda.so.525", is_unresolved=True), Frame("cudaMalloc", "/x/libcudart.so.12")]
        stack = [*cuda, Frame("Pool::grow(int)", "/x/app"), Frame("main", "/x/app")]

        def fill(export: ExportWriter, process: Process) -> None:
            main = export.thread(process, 70, "python")
            for number, own in enumerate((stack, cuda, ()), 1):
                time = 1_000 * number
                if event_class:
                    export.api(main, time, time + 60, "cudaMalloc_v3020", number)
                name = "cudaMalloc" if event_class else "cudaMalloc_v3020"
                export.api(main, time, time + 60, name, number, stack=own, event_class=event_class)
                export.gpu_memory(process, 0, time + 50, number, address=64 * number, correlation_id=number)

        answer = allocation_table(job_with(fill), Selection())
        assert not answer.notes
        rows = answer.records()
        assert [row["stack"] for row in rows] == [None, None, "Pool::grow ‹ main"]
        assert {(row["call"], row["nvtx"]) for row in rows} == {("cudaMalloc", None)}


class TestPools:
    def test_fragmentation_is_what_is_reserved_and_not_used_at_the_peak(self, job_with):
        def fill(export: ExportWriter, process: Process) -> None:
            export.memory_pool(process, 0, 5, Pool(4_096, 0, 0))
            for time, size, used in ((10, 1_000, 900), (20, 4_000, 1_000), (30, 4_000, 3_900)):
                export.gpu_memory(process, 0, time, 100, address=time, pool=Pool(4_096, size, used))
            export.gpu_memory(process, 0, 40, 100, address=10, is_free=True, pool=Pool(4_096, 4_000, 3_800))
            export.memory_pool(process, 0, 50, Pool(4_096, 3_800, 3_800), operation=3, keep=0)

        [row] = pool_table(job_with(fill), Selection()).records()
        assert (row["rank"], row["pool"], row["peak"], row["used"]) == (0, "0x1000", 4_000, 1_000)
        assert (row["unused_percent"], row["peak_time"], row["peak_used"]) == (75.0, 20, 3_900)
        assert (row["allocations"], row["frees"], row["trims"]) == (3, 1, 1)
