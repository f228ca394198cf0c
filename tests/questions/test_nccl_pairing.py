"""NCCL calls and kernels find each other: by the rules of docs/nccl.md#pairing, on small programs and real exports.

The programs of ``Programs`` are the processes of one export.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from filling import Steps
from hypothesis import given
from hypothesis import strategies as st
from nccl_jobs import Program, names_of, pairing_of, rows, written
from pandas.testing import assert_frame_equal
from support import shared
from synthetic.demo import NcclPayloads, TrainingJob
from synthetic.nccl_program import REDUCE, A, B, NcclProcess

from nsystui.questions.nccl.names import PairingState, Reason
from nsystui.questions.nccl.pairing import NcclPairing, joined, pairing_line
from nsystui.questions.nccl.units import NONE, Role, find_units, outer_calls
from nsystui.questions.queries import derived

PAIRED, ESTIMATED, UNPAIRED = PairingState.PAIRED, PairingState.ESTIMATED, PairingState.UNPAIRED

Expected = dict[str, list[tuple[Any, ...]]]
EXCHANGE = (("ncclSend", 1), ("ncclRecv", 1)) * 2
OUTSIDE = UNPAIRED, Reason.OUTSIDE


def line_of(pairing: NcclPairing) -> str:
    return pairing_line(pairing.kernels, pairing.calls)


do = Steps()
START, END = do.call("ncclGroupStart"), ("ncclGroupEnd",)
MIXED = ("ncclAllReduce", 4), ("ncclAllGather", 16)
TWO_STREAMS = do.reduce(1, comm=A, stream=21).reduce(2, comm=B, stream=20)
ELSEWHERE = do.reduce(8, launches=0).reduce(16, launches=0)
NAMES = [
    "ncclAllReduceRingLLKernel_sum_f32(ncclWorkElem)",  # NCCL 2.7
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",  # to 2.18
    "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevComm *, unsigned long, ncclWork *)",
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymDevArgs)",  # 2.27
    "ncclSymkDevKernel_AllReduce_LLMC_sum_bf16(ncclSymkDevWorkArgs)",
    "ncclDevKernel_Generic(ncclDevComm *)",
]
PROGRAMS: dict[str, tuple[Any, Expected]] = {
    # Groups
    "a call outside of groups has the kernel it launches": (
        do.reduce(4096), {"kernels collective message_size communicator state": [(REDUCE, 4096, "0xa0", PAIRED)]},
    ),
    "a group launches when it ends": (
        do.group(("ncclSend", 100), ("ncclRecv", 50)),
        {"kernels collective message_size partners state": [("SendRecv", 150, 2, PAIRED)],
         "calls name state partners": [("ncclGroupStart", None, 1), ("ncclSend", PAIRED, 1), ("ncclRecv", PAIRED, 1),
                                       ("ncclGroupEnd", None, 1)]},
    ),
    "only the outermost end of nested groups launches": (
        START.call("ncclGroupStart").reduce(1, launches=0).call(*END).reduce(2, launches=0)
        .call(*END, launches=1, kernel=REDUCE).reduce(4),
        {"kernels message_size partners state": [(3, 2, PAIRED), (4, 1, PAIRED)]},
    ),
    "a group without communication pairs nothing": (
        START.call("ncclCommInitRankConfig", comm=0xD0, ranks=4).call(*END, launches=1, kernel=REDUCE).reduce(8),
        {"kernels collective message_size reason": [(REDUCE, None, Reason.OUTSIDE), (REDUCE, 8, None)]}),
    "a group that began before the capture ends nothing": (
        do.call(*END, launches=1, kernel=REDUCE).group(("ncclAllReduce", 8), kernel=REDUCE),
        {"kernels message_size reason": [(None, Reason.OUTSIDE), (8, None)]}),
    "a group that goes on after the capture is open": (
        START.reduce(8, launches=0), {"calls state reason": [(None, None), (UNPAIRED, Reason.GROUP_IS_OPEN)]},
    ),
    "a call that never returned ends with the next": (
        do.reduce(8, open_end=True).reduce(16).reduce(32, open_end=True),
        {"kernels message_size state": [(size, PAIRED) for size in (8, 16, 32)],
         "calls end": [(None,), (1_018_000,), (None,)]},
    ),
    "a call without a kernel is unpaired": (
        do.reduce(8, launches=0), {"calls state reason partner": [(UNPAIRED, Reason.NO_KERNEL, -1)]},
    ),
    # Several calls and kernels in one launch
    "as many kernels as unlike calls are paired by order": (
        do.group(("ncclAllReduce", 8), ("ncclAllReduce", 16), launches=2, kernel=REDUCE),
        {"kernels message_size partners state": [(8, 1, ESTIMATED), (16, 1, ESTIMATED)]}),
    "calls that are alike need no order": (
        do.group(("ncclAllReduce", 8), ("ncclAllReduce", 8), launches=2, kernel=REDUCE),
        {"kernels message_size partners state": [(8, 1, PAIRED)] * 2}),
    "kernels that share a call divide its bytes": (
        do.reduce(11, launches=3),
        {"kernels message_size state": [(size, ESTIMATED) for size in (4, 4, 3)],
         "calls partners state": [(3, ESTIMATED)]},
    ),
    # A works on stream 21, B on stream 20; in the group the kernel of B is launched first.
    "communicators are told apart by their streams": (
        TWO_STREAMS.group(("ncclAllReduce", 4, A), ("ncclAllReduce", 8, B), ("ncclAllReduce", 16, B), launches=2),
        {"kernels stream communicator message_size state": [
            (21, "0xa0", 1, PAIRED), (20, "0xb0", 2, PAIRED), (20, "0xb0", 24, PAIRED), (21, "0xa0", 4, PAIRED)]},
    ),
    "a communicator without a kernel in a group": (
        TWO_STREAMS.group(("ncclAllReduce", 4, A), ("ncclAllReduce", 8, B), launches=1, stream=20),
        {"kernels message_size state": [(1, PAIRED), (2, PAIRED), (8, PAIRED)],
         "calls message_size reason": [(1, None), (2, None), (None, None), (4, Reason.NO_KERNEL), (8, None),
                                       (None, None)]},
    ),
    "communicators on one stream are an estimate": (
        do.group(("ncclAllReduce", 4, A), ("ncclAllReduce", 8, A), ("ncclAllReduce", 16, B), launches=2),
        {"kernels communicator message_size partners state": [(None, 14, 3, ESTIMATED)] * 2}),
    "a mixture in one kernel": (
        do.group(*MIXED, kernel="ncclDevKernel_Generic(ncclDevComm *)"),
        {"kernels collective message_size state": [("Group(2)", 20, PAIRED)]}),
    "one unknown size makes the sum unknown": (
        START.call("ncclAllReduce", size=4).call("ncclAllReduce").call(*END, launches=1, kernel=REDUCE),
        {"kernels collective message_size": [(REDUCE, None)]}),
    # Launches elsewhere
    "kernels of a CUDA graph": (do.reduce(8).graph_kernel(), {"kernels reason": [(None,), (Reason.IN_GRAPH,)]}),
    "across threads no kernel may be missing": (ELSEWHERE._elsewhere(REDUCE), {"kernels state reason": [OUTSIDE]}),
    "across threads no kernel may be too many": (
        ELSEWHERE._elsewhere(REDUCE)._elsewhere(REDUCE)._elsewhere(REDUCE), {"kernels state reason": [OUTSIDE] * 3},
    ),
    "across threads no kernel may be of another collective": (
        ELSEWHERE._elsewhere(REDUCE)._elsewhere("AllGather"), {"kernels state reason": [OUTSIDE] * 2},
    ),
    # With a communicator that does not block, the call returns, and NCCL's thread launches.
    "launches from a thread of NCCL are paired by order": (
        do.reduce(8, launches=0)._elsewhere(REDUCE).reduce(16, launches=0)._elsewhere(REDUCE),
        {"kernels message_size state": [(8, ESTIMATED), (16, ESTIMATED)]}),
    "a launch before its call contradicts": (
        do._elsewhere(REDUCE).reduce(8, launches=0), {"kernels reason": [(Reason.OUTSIDE,)]},
    ),
    "ranks of several communicators": (
        do.call("ncclCommInitRankConfig", comm=0xE1, ranks=8).call("ncclCommInitRankConfig", comm=0xE2, ranks=2)
        .reduce(1, comm=0xE2).reduce(1, comm=0xE1).reduce(1, comm=0xE3),
        {"kernels ranks": [(2,), (8,), (None,)]},
    ),
}  # fmt: skip


class Programs(NcclProcess):
    """Each method writes a program, and returns the expected result: the rows of some columns."""

    def _elsewhere(self, kernel: str) -> None:
        """Write a kernel that another thread launches."""
        self.now += 10_000
        self.launch(self.now, self.helper, 20, kernel)
        self.now += 10_000

    def threads_do_not_mix(self):
        self.call("ncclGroupStart")
        self.reduce(8, thread=self.helper)
        self.call("ncclAllGather", size=1)
        self.call("ncclGroupEnd", launches=1, kernel="AllGather")
        return {"kernels collective message_size state": [(REDUCE, 8, PAIRED), ("AllGather", 1, PAIRED)]}

    def a_mixture_with_a_kernel_for_each_collective(self):
        self.group(*MIXED, ("ncclAllReduce", 8), launches=0)
        window = self.now - 10_000
        self.launch(window + 1_000, self.main, 20, "AllGather")
        self.launch(window + 3_000, self.main, 20, REDUCE)
        found = [("AllGather", 16, 1, ESTIMATED), (REDUCE, 12, 2, ESTIMATED)]
        return {"kernels collective message_size partners state": found}

    # PyTorch's labels

    def pytorch_says_what_sends_and_receives_are(self):
        labels = {
            "nccl:all_to_all, op_id = 991144": "AlltoAll", "nccl:gather": "Gather", "nccl:scatter": "Scatter",
            "nccl:send 0->1": "SendRecv", "nccl:coalesced": "SendRecv", "all_to_all": "SendRecv",
        }  # fmt: skip
        for label in labels:
            start = self.now - 1_000
            self.group(*EXCHANGE)
            self.label(label, start)
        return {"kernels collective message_size": [(collective, 4) for collective in labels.values()]}

    def a_lone_send_of_a_gather(self):
        self.call("ncclSend", size=7, launches=1)
        self.label("nccl:gather", self.now - 10_001)
        self.call("ncclSend", size=7, launches=1)
        return {"kernels collective": [("Gather",), ("Send",)]}

    def the_tightest_label_counts(self):
        start = self.now
        self.call("ncclCommInitRankConfig", comm=0xD1, ranks=2)
        self.group(*EXCHANGE)
        self.label("nccl:scatter", start + 9_000)
        self.label("nccl:coalesced", start + 9_500)
        self.call("ncclCommInitRankConfig", comm=0xD1, ranks=2)
        self.label("nccl:all_to_all", start)
        return {"kernels collective": [("Scatter",)]}

    def a_label_of_another_thread_or_around_a_part_or_another_collective_says_nothing(self):
        start = self.now
        self.group(*EXCHANGE)
        self.label("nccl:all_to_all", start - 1_000, self.helper)
        self.label("nccl:all_to_all", start + 5_000)
        start = self.now - 1
        self.reduce(7)
        self.label("nccl:all_to_all", start)
        return {"kernels collective": [("SendRecv",), (REDUCE,)]}

    # Launches elsewhere

    def a_kernel_launched_outside_of_nccl(self):
        self.reduce(8)
        self.launch(self.now + 50_000, self.main, 20, "AllGather")
        found = [(REDUCE, PAIRED, None, 1), ("AllGather", UNPAIRED, Reason.OUTSIDE, 0)]
        return {"kernels collective state reason partners": found}

    def kernels_without_a_launch(self):
        self.launch(900_000, self.main, 20, REDUCE, with_call=False)
        self.reduce(8)
        self.launch(self.now, self.main, 20, "Generic", with_call=False)
        found = [(REDUCE, Reason.BEFORE_CAPTURE), (REDUCE, None), (None, Reason.NO_LAUNCH)]
        return {"kernels collective reason": found}

    def kernels_of_every_age_are_paired_and_named_by_their_calls(self):
        for name in NAMES:
            self.group(("ncclAllReduce", 512), kernel=name)
        return {"kernels collective message_size state": [(REDUCE, 512, PAIRED)] * len(NAMES)}

    def a_collective_of_the_copy_engines_has_no_kernel(self):
        """NCCL 2.28 and later may move data by copies alone: a call and a copy without a kernel."""
        call = self.now
        self.call("ncclAllGather", size=4096)
        self.export.api(self.main, call + 1_000, call + 2_000, "cudaMemcpyBatchAsync", 70)
        self.export.memcpy(self.process, 0, 20, call + 9_000, call + 12_000, size=4096, kind="DtoD", correlation_id=70)
        self.reduce(8)
        return {
            "calls collective message_size reason": [("AllGather", 4096, Reason.NO_KERNEL), (REDUCE, 8, None)],
            "kernels collective message_size": [(REDUCE, 8)],
        }

    def an_instrumented_range_inside_the_range_of_the_same_call(self):
        """One call has two ranges: NCCL's range without a payload, and a range in it with the size."""
        text = "ncclAllReduce(): commHash 0xa0, stream 0x1, data_size 512, type_size 4, red_op 0, pid 7"
        for _ in range(2):
            self.export.nvtx_range(self.main, self.now + 500, self.now + 7_000, text)
            self.call("ncclAllReduce", launches=1, kernel=REDUCE)
        return {
            "calls name message_size size_source state": [("ncclAllReduce", 512, "instrumented", PAIRED)] * 2,
            "kernels message_size communicator partners": [(512, "0xa0", 1)] * 2,
        }


for _name, (_steps, _expected) in PROGRAMS.items():
    setattr(Programs, _name, _steps.returning(_expected))


@pytest.fixture(scope="module")
def paired(tmp_path_factory) -> dict[str, tuple[Any, Any, Expected]]:
    """Return the kernels and the calls of each program, and its expected rows."""
    export, programs = written(Programs, tmp_path_factory.mktemp("programs") / "programs.sqlite")
    pairing = export.pairing()
    found = {}
    for name, (process, told) in programs.items():
        both = (pairing.kernels, pairing.calls)
        found[name] = (*(one[one["process"] == process.process.global_id] for one in both), told)
    return found


@pytest.mark.parametrize("name", names_of(Programs))
def test_pairing_of_a_program(paired, name):
    kernels, calls, expected = paired[name]
    for words, wanted in expected.items():
        which, *keys = words.split()
        assert rows(kernels if which == "kernels" else calls, *keys) == wanted


@pytest.mark.campaign
def test_kernels_and_calls_lead_to_each_other_by_their_index(tmp_path):
    program = Program(tmp_path / "program.sqlite")
    program.call("ncclAllReduce", size=1)
    program.group(("ncclSend", 100), ("ncclRecv", 50))
    program.launch(program.now + 50_000, program.main, 20, "AllGather")
    pairing = program.pairing()
    assert rows(pairing.calls, "partner") == [(-1,), *[(0,)] * 4]
    partners = pairing.calls[pairing.calls["operation"] == pairing.kernels["operation"][0]].dropna(subset="collective")
    assert rows(partners, "name", "message_size") == [("ncclSend", 100), ("ncclRecv", 50)]
    assert pairing.calls["operation"][0] not in set(pairing.kernels["operation"])
    assert pairing.kernels["operation"][1] < 0
    assert line_of(pairing).startswith("paired 1 of 2 NCCL kernels with their calls · 1 kernel: ")


@pytest.mark.campaign
def test_without_the_row_that_names_the_domain(tmp_path):
    program = Program(tmp_path / "nameless.sqlite", domain=False)
    program.group(("ncclSend", 100), ("ncclRecv", 50))
    assert rows(program.pairing().kernels, "collective", "message_size", "state") == [("SendRecv", 150, PAIRED)]


@pytest.mark.campaign
def test_ranks_of_an_old_nccl_are_trusted_only_if_nothing_else_can_be_meant(tmp_path):
    for name, before in (("first", False), ("later", True)):
        program = Program(tmp_path / f"{name}.sqlite", NcclPayloads.BEFORE_2_25)
        if before:
            program.call("ncclAllReduce", size=1, launches=1)
        program.call("ncclCommInitRankConfig", ranks=8)
        program.call("ncclAllReduce", size=1, launches=1)
        assert rows(program.pairing().kernels, "ranks")[-1] == (None if before else 8,), name


class TestGolden:
    """Counts measured in real exports (docs/nccl.md#pairing)."""

    @pytest.mark.campaign
    def test_ddp_pairs_every_all_reduce(self):
        pairing = pairing_of(*shared("ddp-a100-rank0of4"))
        assert rows(pairing.calls.dropna(subset="state"), "state") == [(PAIRED,)] * 472
        assert set(rows(pairing.kernels, "collective", "partners", "message_size")) == {("AllReduce", 1, None)}
        assert line_of(pairing) == "paired 472 of 472 NCCL kernels with their calls"

    def test_mixture_of_experts_is_all_to_all(self):
        pairing = pairing_of(*shared("h100-2rank-moe-before"))
        is_paired = pairing.kernels["state"] == PAIRED
        found = rows(pairing.kernels[is_paired], "collective", "partners", "rank", "device")
        assert len(found) == 64 and set(found) == {("AlltoAll", 4, 0, 0), ("AlltoAll", 4, 1, 1)}
        before = rows(pairing.kernels[~is_paired], "collective", "state", "reason")
        assert before == [("SendRecv", UNPAIRED, Reason.BEFORE_CAPTURE)] * 2
        # The kernels of the last two groups run after the capture.
        assert line_of(pairing).endswith(f" · 8 calls: {Reason.NO_KERNEL.value}")


def units_by_a_loop(roles: list[Role]) -> tuple[list[int], list[int]]:
    """Return the units of a thread, call by call, by docs/nccl.md#pairing."""
    of_call, window, depth = [], [], 0
    for place, role in enumerate(roles):
        if depth == 0 and role in (Role.COMMUNICATION, Role.GROUP_START):
            window.append(place if role is Role.COMMUNICATION else NONE)
            of_call.append(len(window) - 1)
        else:
            of_call.append(len(window) - 1 if depth else NONE)
        if role is Role.GROUP_START:
            depth += 1
        elif role in (Role.GROUP_END, Role.GROUP_SIMULATE_END) and depth:
            depth -= 1
            if depth == 0 and role is Role.GROUP_END:
                window[-1] = place
    return of_call, window


ROLES = st.lists(st.sampled_from(list(Role)), max_size=14)


@pytest.mark.campaign
@given(st.lists(ROLES, max_size=4))
def test_units_are_those_of_a_loop_over_the_calls_of_each_thread(threads):
    of_call: list[int] = []
    window: list[int] = []
    for roles in threads:
        units, windows = units_by_a_loop(roles)
        before = len(of_call)
        of_call += [unit + len(window) if unit >= 0 else NONE for unit in units]
        window += [place + before if place >= 0 else NONE for place in windows]
    lanes = np.repeat(np.arange(len(threads)), [len(roles) for roles in threads]).astype(np.int64)
    found = find_units(lanes, np.array([role for roles in threads for role in roles], np.int64))
    assert found.of_call.tolist() == of_call
    assert found.window.tolist() == window


@pytest.mark.campaign
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.sampled_from(list(Role))), max_size=10))
def test_outer_calls_are_those_around(drawn):
    ranges = sorted((start, start + length, role) for start, length, role in drawn)
    starts, ends, roles = (np.array([item[part] for item in ranges], np.int64) for part in range(3))
    is_inside = [
        any(start < last and end <= last for _, last, role in ranges[:place] if role is not Role.OTHER)
        for place, (start, end, _) in enumerate(ranges)
    ]
    outer = outer_calls(starts, ends, roles)
    assert (outer >= 0).tolist() == is_inside
    assert all(ends[around] >= ends[place] for place, around in enumerate(outer.tolist()) if around >= 0)


def without_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with operations by their first row and categories as texts."""
    first = frame["operation"].map(frame.reset_index().groupby("operation")["index"].min())
    plain = frame.assign(operation=first.where(frame["operation"] >= 0, -1))
    return plain.astype({key: object for key in plain if isinstance(plain[key].dtype, pd.CategoricalDtype)})


@pytest.mark.campaign
@pytest.mark.parametrize("layout", NcclPayloads)
def test_reports_one_at_a_time_give_the_same(tmp_path, opened, monkeypatch, layout):
    job = TrainingJob(ranks=3, steps=2, layers=1, payload_layout=layout, gpu_metrics=False)
    session = opened(*job.write(tmp_path))
    whole = NcclPairing.load(session)
    monkeypatch.setattr(derived, "_MOST_ROWS", 1)
    apart = NcclPairing.load(session)
    assert len(whole.kernels) and len(whole.calls)
    for one, other in ((apart.kernels, whole.kernels), (apart.calls, whole.calls)):
        assert_frame_equal(without_numbers(one), without_numbers(other), check_dtype=False)


def test_what_one_report_tells_of_a_communicator_holds_for_the_others():
    def part(ranks: int | None) -> tuple[pd.DataFrame, pd.DataFrame]:
        numbers = {"operation": [0], "partner": [0], "ranks": pd.array([ranks], "Int64")}
        frame = pd.DataFrame({**numbers, "communicator": pd.Categorical(["0xa"])})
        return frame, frame.copy()

    kernels, calls = joined([part(None), part(8), part(None)])
    assert kernels["ranks"].tolist() == calls["ranks"].tolist() == [8, 8, 8]
    assert kernels["operation"].tolist() == kernels["partner"].tolist() == [0, 1, 2]
