"""Message sizes and bandwidths: bins of calls and bytes, formulas of nccl-tests by hand, exposed time, rates of links.

Unknown sizes give no bandwidth. Kernels of ``Programs``, the processes of one export, last 5 µs.
"""

import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_jobs import Program, names_of, values, written
from support import open_job
from synthetic import PAYLOAD_BYTES, ExportWriter, payload_export, training_job
from synthetic.demo import NcclPayloads
from synthetic.nccl_program import REDUCE, NcclProcess
from test_nccl_pairing import do

from nsystui.base.answer import TableAnswer, Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import union
from nsystui.questions.gpu.device_time import BusyParts, Device, DeviceIntervals
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.bandwidth import exposed_times, link_rate, rate, sizes_moved
from nsystui.questions.nccl.grouping import NcclProperty
from nsystui.questions.nccl.sizes import bandwidth_by_size, durations_of_size, size_histogram
from nsystui.questions.nccl.summary import KERNEL, nccl_summary
from nsystui.questions.queries.tasks import RankedTask

EVERYTHING = Selection()


@pytest.fixture(scope="module")
def payload(tmp_path_factory) -> Iterator[OpenJob]:
    job = open_job(payload_export(tmp_path_factory.mktemp("payload") / "payload.sqlite"))
    yield job
    job.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Iterator[OpenJob]:
    """Yield the same job without sizes."""
    job = open_job(payload_export(tmp_path_factory.mktemp("plain") / "plain.sqlite", json=False))
    yield job
    job.close()


@pytest.mark.campaign
class TestHistogram:
    def test_calls_and_bytes_of_each_bucket(self, payload):
        sizes = PAYLOAD_BYTES
        assert size_histogram(payload.pairing(), EVERYTHING) == [
            ("<64KiB", 1, sizes["ncclAllGather"]),
            ("64KiB–1MiB", 3, sizes["ncclReduceScatter"] + 2 * sizes["ncclSend"]),
            ("1MiB–16MiB", 2, sizes["ncclAllReduce"] + sizes["ncclBroadcast"]),
            (">16MiB", 1, sizes["ncclReduce"]),
        ]
        early = EVERYTHING.with_window(Window(0, 10_500_000))
        assert [size.calls for size in size_histogram(payload.pairing(), early)] == [0, 0, 1, 0]

    def test_unknown_sizes_are_counted_apart(self, plain):
        told = size_histogram(plain.pairing(), EVERYTHING)
        assert told[-1] == (None, 7, None)
        assert [one.calls for one in told[:-1]] == [0] * 4


DURATIONS = {("AllReduce", 1024): [1_000, 3_000, 5_000, 47_000], ("AllReduce", 4096): [7_000], ("Broadcast", 1024): [9]}


@pytest.fixture(scope="module")
def timed(tmp_path_factory) -> Iterator[OpenJob]:
    """Yield two ranks in a communicator, kernels of ``DURATIONS``, and a kernel of unknown size."""
    program = Program(tmp_path_factory.mktemp("timed") / "timed.sqlite")
    program.call("ncclCommInitRankConfig", ranks=2)
    for (collective, size), durations in DURATIONS.items():
        for duration in durations:
            kernel(program, collective, duration, size=size)
    kernel(program, "AllReduce", 5_000)
    job = program.job()
    yield job
    job.close()


def kernel(program: Program, collective: str, duration: int, **told: int) -> None:
    start, correlation = program.now, next(program.correlation)
    program.call(f"nccl{collective}", **told)
    export: ExportWriter = program.export
    export.api(program.main, start + 1_000, start + 2_000, "cudaLaunchKernelExC_v11060", correlation)
    begin, name = start + 10_000, f"ncclDevKernel_{collective}(int)"
    export.kernel(program.process, 0, 20, begin, begin + duration, name=name, correlation_id=correlation)
    program.now += duration


class TestBySize:
    def by_size(
        self, job: OpenJob, by: NcclProperty = NcclProperty.BYTES, selection: Selection = EVERYTHING
    ) -> TableAnswer:
        return bandwidth_by_size(job, selection, job.pairing(), by)

    @pytest.mark.campaign
    def test_spread_of_the_durations_of_each_size(self, timed):
        keys = ("collective", "message_size", "count", "min", "p5", "median", "p95", "max", "cv")
        first = DURATIONS["AllReduce", 1024]
        cv = 100 * statistics.stdev(first) / statistics.mean(first)
        spread = (4, 1_000, pytest.approx(1_300), 4_000, pytest.approx(40_700), 47_000, pytest.approx(cv))
        assert values(self.by_size(timed), *keys) == [
            ("AllReduce", 1024, *spread),
            ("AllReduce", 4096, 1, 7_000, 7_000, 7_000, 7_000, 7_000, 0),
            ("Broadcast", 1024, 1, 9, 9, 9, 9, 9, 0),
        ]

    def test_bandwidth_of_each_size_is_the_median_of_its_kernels(self, timed):
        told = values(self.by_size(timed), "algbw", "busbw", "bytes", "total", "ranks")
        middle = (1024 / 3e-6 + 1024 / 5e-6) / 2
        assert told[0] == (pytest.approx(middle), pytest.approx(middle), 4096, 56_000, 2)
        assert told[2] == (pytest.approx(1024 / 9e-9), pytest.approx(1024 / 9e-9), 1024, 9, 2)

    def test_by_buckets_and_powers_of_two(self, timed):
        buckets = values(self.by_size(timed, NcclProperty.SIZE), "collective", "bucket", "count")
        assert buckets == [("AllReduce", "<64KiB", 5), ("Broadcast", "<64KiB", 1)]
        powers = values(self.by_size(timed, NcclProperty.POW2), "collective", "size_from", "count")
        assert powers == [("AllReduce", 1024, 4), ("AllReduce", 4096, 1), ("Broadcast", 1024, 1)]

    def test_selected_kernels_only_and_without_sizes_a_reason(self, timed, plain):
        answer = self.by_size(timed, selection=EVERYTHING.with_name("broadcast"))
        assert (values(answer, "collective"), answer.total) == ([("Broadcast",)], 3)
        answer = self.by_size(plain)
        assert (len(answer), answer.total) == (0, 0)
        assert answer.notes[0].startswith("no message sizes: ")


class TestDurationsOfOneSize:
    @pytest.fixture(scope="class")
    def job(self, demo_session) -> OpenJob:
        return OpenJob(demo_session)

    def naive(self, job: OpenJob, collective: str, size: int) -> dict[int, list[int]]:
        kernels = job.pairing().kernels
        found: dict[int, list[int]] = {}
        for row in kernels.itertuples():
            if row.collective == collective and row.message_size == size:
                found.setdefault(int(row.rank), []).append(int(row.end - row.start))
        return found

    def test_every_rank_and_all_have_the_same_spans(self, job):
        size = 4 << 20
        answer = durations_of_size(job, EVERYTHING, job.pairing(), "AllReduce", size)
        expected = self.naive(job, "AllReduce", size)
        values = [one for own in expected.values() for one in own]
        rows = [dict(zip([one.key for one in answer.columns], row, strict=True)) for row in answer.rows]
        edges = [(one["from"], one["to"]) for one in rows if one["rank"] is None]
        assert edges[0][0] <= min(values) and edges[-1][1] >= max(values)
        assert all(after[0] == before[1] for before, after in pairwise(edges))
        for rank, own in ((None, values), *expected.items()):
            mine = [one for one in rows if one["rank"] == rank]
            assert [(one["from"], one["to"]) for one in mine] == edges
            for place, one in enumerate(mine):
                last = place == len(mine) - 1
                inside = [value for value in own if one["from"] <= value and (value < one["to"] or last)]
                assert one["count"] == len(inside)
                assert one["percent"] == pytest.approx(100 * len(inside) / len(own))

    def test_without_a_size_it_is_the_one_that_took_longest(self, job):
        answer = durations_of_size(job, EVERYTHING, job.pairing(), "AllReduce", None)
        kernels = job.pairing().kernels
        own = kernels[kernels["collective"] == "AllReduce"]
        longest = max(
            set(own["message_size"]), key=lambda one: (own["end"] - own["start"])[own["message_size"] == one].sum()
        )
        assert any(format_value(Unit.BYTES, int(longest)) in note for note in answer.notes)
        assert sum(row[3] for row in answer.rows if row[0] is None) == (own["message_size"] == longest).sum()

    @pytest.mark.campaign
    def test_where_no_size_is_known_it_is_of_all_kernels(self, tmp_path):
        program = Program(tmp_path / "program.sqlite")
        for duration in (1_000, 3_000):
            kernel(program, "AllReduce", duration)
        job = program.job()
        answer = durations_of_size(job, EVERYTHING, job.pairing(), "AllReduce", None)
        job.close()
        assert sum(row[3] for row in answer.rows if row[0] is None) == 2
        assert "AllReduce of unknown message size" in answer.notes[0]

    def test_a_size_that_nothing_has_is_said_with_those_that_there_are(self, job):
        with pytest.raises(UsageError, match=r"no AllReduce kernel of 5 B.*there are .*4 MiB"):
            durations_of_size(job, EVERYTHING, job.pairing(), "AllReduce", 5)


# 4 ranks, a message of 80,000 bytes in 5,000 ns: algorithm bandwidth, then bus bandwidth.
FORMULAS = [
    ("ncclAllReduce", 16.0, 24.0),  # 80,000 / 5,000; · 2 · 3/4
    # 4 · 80,000 / 5,000; · 3/4
    *((f"nccl{name}", 64.0, 48.0) for name in ("AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter")),
    *((f"nccl{name}", 16.0, 16.0) for name in ("Broadcast", "Reduce", "Send", "Recv")),
]
FOUR, TWO, UNKNOWN = 0xD4, 0xD2, 0xD0
NOTHING, SAME = (None, None), [(16.0, 16.0)]


class Programs(NcclProcess):
    """Each method writes a program, and returns algorithm and bus bandwidth of its kernel rows, GB/s, by collective.

    A first element that is a grouping selects rows by that grouping.
    """

    def _every_call(self, **told: Any) -> None:
        for number, (call, _, _) in enumerate(FORMULAS):
            self.call(call, launches=1, stream=20 + number, **told)

    def every_formula(self):
        self.call("ncclCommInitRankConfig", comm=FOUR, ranks=4)
        self._every_call(comm=FOUR, size=80_000)
        return NcclProperty.STREAM, *[found for _, *found in FORMULAS]

    def what_needs_the_number_of_ranks_is_missing_without_it(self):
        self._every_call(comm=UNKNOWN, size=80_000)
        without = [(16.0 if size == 16.0 else None, 16.0 if size == bus else None) for _, size, bus in FORMULAS]
        return NcclProperty.STREAM, *without

    def without_a_size_there_is_none(self):
        self.call("ncclCommInitRankConfig", comm=FOUR, ranks=4)
        self._every_call()
        return NcclProperty.STREAM, *[NOTHING] * len(FORMULAS)

    a_way_counts_as_in_the_sendrecv_of_nccl_tests = do.group(("ncclSend", 80_000), ("ncclRecv", 80_000)).returning(SAME)
    the_larger_direction_counts = do.group(("ncclSend", 10_000), ("ncclRecv", 30_000), ("ncclRecv", 50_000)).returning(
        SAME
    )
    communicators_of_a_row_have_their_own_ranks = (
        do.reduce(80_000, comm=FOUR).reduce(80_000, comm=TWO).returning([(16.0, 20.0)])
    )
    collectives_of_a_row_have_their_own_factors = (
        do.reduce(80_000, comm=FOUR)
        .call("ncclAllGather", comm=FOUR, size=80_000, launches=1)
        .returning((NcclProperty.RANK, (40.0, 36.0)))
    )
    a_kernel_of_several_calls_has_the_bytes_of_all = do.group(
        ("ncclAllReduce", 30_000, TWO), ("ncclAllReduce", 50_000, TWO), kernel=REDUCE
    ).returning(SAME)
    a_kernel_that_mixes_collectives_has_none = do.group(
        ("ncclAllReduce", 30_000, TWO), ("ncclAllGather", 50_000, TWO), kernel="ncclDevKernel_Generic(int)"
    ).returning([NOTHING])
    a_kernel_of_a_graph_has_none = do.reduce(8, comm=TWO, launches=0).graph_kernel().returning([NOTHING])

    def an_all_to_all_of_sends_has_the_bytes_of_all_ranks_already(self):
        """Two ranks exchange 40,000 bytes each, half of it with themselves."""
        start = self.now - 1_000
        self.group(*(("ncclSend", 40_000, TWO), ("ncclRecv", 40_000, TWO)) * 2)
        self.label("nccl:all_to_all, op_id = 7", start)
        return [(16.0, 8.0)]

    def a_gather_of_receives_sends_no_own_share(self):
        start = self.now - 1_000
        self.group(("ncclRecv", 40_000, FOUR), ("ncclRecv", 40_000, FOUR))
        self.label("nccl:gather", start)
        return [(16.0, 16.0)]

    def a_row_has_the_bytes_of_all_by_the_time_of_all(self):
        """All bytes by all time: 16 and 48 GB/s in equal times make 32, and calls without a size do not count."""
        self.call("ncclCommInitRankConfig", comm=TWO, ranks=2)
        self.reduce(80_000, comm=TWO)
        self.reduce(240_000, comm=TWO)
        self.call("ncclAllReduce", launches=1)
        return [(32.0, 32.0)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Iterator[Callable[[str], tuple[pd.DataFrame, Any]]]:
    """Yield a function that returns the kernel rows of a program, and its expected bandwidths."""
    export, written_ = written(Programs, tmp_path_factory.mktemp("programs") / "programs.sqlite")
    job = export.job()

    def ask(name: str) -> tuple[pd.DataFrame, Any]:
        process, expected = written_[name]
        by = expected[0] if isinstance(expected[0], NcclProperty) else NcclProperty.COLLECTIVE
        only = Selection(tasks=frozenset({Task(0, process.process.global_id)}))
        frame = nccl_summary(job, only, job.pairing(), (by,)).frame()
        kernels = frame[frame["what"] == KERNEL]
        return kernels.sort_values("stream") if by is NcclProperty.STREAM else kernels, expected[
            by is not NcclProperty.COLLECTIVE :
        ]

    yield ask
    job.close()


@pytest.mark.campaign
@pytest.mark.parametrize("name", names_of(Programs))
def test_bandwidths_of_a_program(programs, name):
    frame, expected = programs(name)
    found = zip(frame["algbw"].tolist(), frame["busbw"].tolist(), strict=True)
    told = [tuple(None if np.isnan(value) else value / 1e9 for value in row) for row in found]
    assert told == [pytest.approx(tuple(row)) if None not in row else tuple(row) for row in expected]


@pytest.mark.campaign
def test_an_old_nccl_gives_the_same_without_communicators(tmp_path):
    job = open_job(*training_job(tmp_path, ranks=2, steps=1, layers=2, payload_layout=NcclPayloads.BEFORE_2_25))
    frame = nccl_summary(job, Selection(), job.pairing()).frame()
    told = frame[frame["what"] == KERNEL]
    assert told["communicator"].isna().all()
    # Two communicators were made before the first collective: the number of ranks of each is unknown.
    assert told.set_index("collective")["busbw"].dropna().index.tolist() == ["SendRecv"]
    job.close()


def test_a_rate_over_no_time_is_missing():
    told = rate(np.array([8.0, 8.0, np.nan]), np.array([4.0, 0.0, 4.0]))
    assert told[0] == 2e9 and np.isnan(told[1:]).all()


def test_damaged_ranks_and_no_kernels():
    row = {"collective": ["AllReduce"], "ranks": [0], "message_size": [8], "one_way": [None]}
    kernels = pd.DataFrame(row, dtype=object).astype(dict.fromkeys(("ranks", "message_size", "one_way"), "Int64"))
    size, bus = sizes_moved(kernels)
    assert size.tolist() == [8.0] and np.isnan(bus).all()
    assert [len(part) for part in sizes_moved(kernels.iloc[:0])] == [0, 0]


def by_hand_without_wait(job: Any) -> dict[tuple[str, int], float]:
    """Return Σ(S · f) / Σ(shortest kernel of an operation) by collective and size, with kernels in order of start."""
    kernels = job.pairing().kernels.dropna(subset=["message_size", "ranks", "communicator"])
    found: dict[tuple[str, int], list[float]] = {}
    for _, own in kernels.groupby("communicator"):
        of_ranks = [one.sort_values("start") for _, one in own.groupby(["report", "process", "device"])]
        if len(of_ranks) != int(own["ranks"].iloc[0]) or len({len(one) for one in of_ranks}) != 1:
            continue
        for operation in zip(*(one.itertuples() for one in of_ranks), strict=True):
            transfer = min(kernel.end - kernel.start for kernel in operation)
            for kernel in operation:
                n, name = int(kernel.ranks), kernel.collective
                factor = 2 * (n - 1) / n if name == "AllReduce" else n * (n - 1) / n
                sums = found.setdefault((name, int(kernel.message_size)), [0.0, 0.0])
                sums[0] += kernel.message_size * factor
                sums[1] += transfer
    return {key: 1e9 * size / time for key, (size, time) in found.items()}


@pytest.mark.campaign
def test_bandwidth_without_waiting_is_that_of_the_last_rank_to_arrive_where_all_ranks_are_open(tmp_path):
    paths = training_job(tmp_path, ranks=3, steps=2, layers=1)
    job = open_job(*paths)
    answer = nccl_summary(job, Selection(), job.pairing(), (NcclProperty.COLLECTIVE, NcclProperty.BYTES), KERNEL)
    frame = answer.frame().dropna(subset=["busbw_without_wait"])
    found = {(row.collective, int(row.message_size)): row.busbw_without_wait for row in frame.itertuples()}
    assert found and found == pytest.approx({key: by_hand_without_wait(job)[key] for key in found})
    assert (frame["busbw_without_wait"] >= frame["busbw"]).all()
    job.close()
    job = open_job(*paths[:2])
    frame = nccl_summary(job, Selection(), job.pairing(), (NcclProperty.COLLECTIVE,), KERNEL).frame()
    assert frame["busbw"].notna().any() and frame["busbw_without_wait"].isna().all()
    job.close()


class TestExposedTime:
    SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)

    @staticmethod
    def device_of(process: int, spans: list[tuple[int, int]]) -> DeviceIntervals:
        """Return device 0 of a process, busy with kernels of these starts and durations."""
        task = RankedTask(Task(0, process), process, "test", None, "", process, "", "", (0,), ())
        starts, lengths = np.array(spans, np.int64).reshape(-1, 2).T
        parts = BusyParts.of(kernels=union(starts, starts + lengths))
        return DeviceIntervals(Device(task, 0, None, None), Window(0, 100), parts)

    @pytest.mark.campaign
    @given(st.lists(SPANS, min_size=2, max_size=2), st.lists(st.tuples(*[st.integers(0, n) for n in (60, 20, 1)])))
    def test_it_is_what_remains_of_a_set_of_nanoseconds(self, compute, nccl):
        columns = {
            "process": [process for _, _, process in nccl],
            "start": [start for start, _, _ in nccl],
            "end": [start + length for start, length, _ in nccl],
        }
        kernels = pd.DataFrame({"report": 0, "device": 0, **columns}).astype("int64")
        devices = [self.device_of(process, spans) for process, spans in enumerate(compute)]
        busy = [{ns for start, length in spans for ns in range(start, start + length)} for spans in compute]
        expected = [len(set(range(start, start + length)) - busy[process]) for start, length, process in nccl]
        assert exposed_times(kernels, devices).tolist() == expected

    def test_a_device_without_other_work_exposes_everything(self):
        kernels = pd.DataFrame({"report": [0], "device": [1], "process": [0], "start": [3], "end": [9]})
        assert exposed_times(kernels, [self.device_of(0, [(0, 50)])]).tolist() == [6]

    @pytest.mark.campaign
    def test_a_row_sums_its_kernels_of_one_device_and_leaves_the_union_to_the_gpu_screen(self, tmp_path):
        """Two NCCL kernels side by side for 5 µs, 3 µs of them during a kernel, and an NCCL kernel alone."""
        program = Program(tmp_path / "program.sqlite")
        start = program.now
        program.call("ncclAllReduce", size=8)
        for stream in (20, 21):
            program.launch(start + 1_000, program.main, stream, "AllReduce")
        program.compute(start + 21_000, start + 24_000)
        program.compute(start + 21_000, start + 26_000, device=1)
        program.call("ncclAllGather", size=8, launches=1, kernel="AllGather")
        job = program.job()
        frame = nccl_summary(job, Selection(), job.pairing(), (NcclProperty.COLLECTIVE,)).frame()
        told = frame[frame["what"] == KERNEL].set_index("collective")
        assert told["exposed"].to_dict() == {"AllReduce": 4_000, "AllGather": 5_000}
        assert told["overlapped"].to_dict() == pytest.approx({"AllReduce": 60.0, "AllGather": 0.0})
        assert job.busy(Selection()).devices[0].parts.exposed_nccl.length == 7_000 < told["exposed"].sum()
        calls = frame[frame["what"] != KERNEL]
        assert len(calls) and calls[["exposed", "overlapped", "algbw", "busbw"]].isna().all(axis=None)
        # Compute on streams outside of the selection hides kernels, too.
        chosen = nccl_summary(job, Selection(streams=frozenset({20})), job.pairing(), (NcclProperty.STREAM,))
        assert chosen.frame()["exposed"].dropna().tolist() == [2_000 + 5_000]
        job.close()

    @pytest.mark.campaign
    @pytest.mark.parametrize("name", ["ddp-a100-rank0of4", "h100-2rank-moe-before"])
    def test_real_jobs_without_concurrent_nccl_kernels_agree_with_the_union(self, shared_export, name):
        job = open_job(shared_export(name))
        exposed = sum(device.parts.exposed_nccl.length for device in job.busy(Selection()).devices)
        assert int(job.pairing().kernels["exposed"].sum()) == exposed
        job.close()


def rank(number: int, host: str, *models: str) -> RankedTask:
    return RankedTask(Task(number, 1), number, "", None, host, 1, "", "", tuple(range(len(models))), models)


@pytest.mark.parametrize(("model", "rate"), [
    ("NVIDIA H100 80GB HBM3", 450e9), ("NVIDIA H200", 450e9), ("NVIDIA A100-SXM4-40GB", 300e9),
    ("Tesla V100-SXM2-16GB", 150e9), ("NVIDIA B200", 900e9), ("NVIDIA GB200", 900e9),
])  # fmt: skip
def test_the_rate_of_one_direction_follows_from_the_model(model, rate):
    found = link_rate([rank(0, "a", model, model), rank(1, "a", model)])
    assert found is not None and found.rate == rate


@pytest.mark.parametrize(
    "model",
    ["NVIDIA A100 80GB PCIe", "NVIDIA H100 NVL", "Tesla V100-PCIE-16GB", "Tesla T4", "",
     "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "GRID A100-10C"],
)  # fmt: skip
def test_no_rate_is_made_up_for_other_cards(model):
    assert link_rate([rank(0, "a", model)]) is None


def test_between_hosts_and_of_mixed_models_no_rate_is_told():
    h100, a100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"
    assert link_rate([rank(0, "a", h100), rank(1, "b", h100)]) is None
    assert link_rate([rank(0, "a", h100), rank(1, "a", a100)]) is None
    assert link_rate([]) is None
