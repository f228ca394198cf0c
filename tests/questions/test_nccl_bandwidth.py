"""Bandwidth by the formulas of nccl-tests, by hand, exposed time, and rates of links; unknown sizes give no bandwidth.

Kernels last 5 µs. The programs of ``Programs`` are the processes of one export.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_jobs import Program, names_of, written
from support import open_job
from synthetic import training_job
from synthetic.demo import NcclPayloads
from synthetic.nccl_program import REDUCE, NcclProcess
from test_nccl_pairing import do

from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.algebra.intervals import union
from nsystui.questions.gpu.device_time import BusyParts, Device, DeviceIntervals
from nsystui.questions.nccl.bandwidth import exposed_times, link_rate, rate, sizes_moved
from nsystui.questions.nccl.grouping import NcclProperty
from nsystui.questions.nccl.summary import KERNEL, nccl_summary
from nsystui.questions.queries.tasks import RankedTask

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
        frame = nccl_summary(job.session, only, job.ranks, job.pairing(), (by,)).frame()
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
    frame = nccl_summary(job.session, Selection(), job.ranks, job.pairing()).frame()
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
    answer = nccl_summary(
        job.session, Selection(), job.ranks, job.pairing(), (NcclProperty.COLLECTIVE, NcclProperty.BYTES), KERNEL
    )
    frame = answer.frame().dropna(subset=["busbw_without_wait"])
    found = {(row.collective, int(row.message_size)): row.busbw_without_wait for row in frame.itertuples()}
    assert found and found == pytest.approx({key: by_hand_without_wait(job)[key] for key in found})
    assert (frame["busbw_without_wait"] >= frame["busbw"]).all()
    job.close()
    job = open_job(*paths[:2])
    frame = nccl_summary(job.session, Selection(), job.ranks, job.pairing(), (NcclProperty.COLLECTIVE,), KERNEL).frame()
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
        frame = nccl_summary(job.session, Selection(), job.ranks, job.pairing(), (NcclProperty.COLLECTIVE,)).frame()
        told = frame[frame["what"] == KERNEL].set_index("collective")
        assert told["exposed"].to_dict() == {"AllReduce": 4_000, "AllGather": 5_000}
        assert told["overlapped"].to_dict() == pytest.approx({"AllReduce": 60.0, "AllGather": 0.0})
        assert job.busy(Selection()).devices[0].parts.exposed_nccl.length == 7_000 < told["exposed"].sum()
        calls = frame[frame["what"] != KERNEL]
        assert len(calls) and calls[["exposed", "overlapped", "algbw", "busbw"]].isna().all(axis=None)
        # Compute on streams outside of the selection hides kernels, too.
        chosen = nccl_summary(
            job.session, Selection(streams=frozenset({20})), job.ranks, job.pairing(), (NcclProperty.STREAM,)
        )
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


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", 450e9), ("NVIDIA H200", 450e9), ("NVIDIA A100-SXM4-40GB", 300e9),
        ("Tesla V100-SXM2-16GB", 150e9), ("NVIDIA B200", 900e9), ("NVIDIA GB200", 900e9),
    ],
)  # fmt: skip
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
