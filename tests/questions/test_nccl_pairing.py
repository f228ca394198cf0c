"""NCCL calls and kernels find each other: by the rules of docs/nccl.md#pairing, on small exports and on real ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_program import A, B, Program, pairing_of, rows
from synthetic import (
    PAYLOAD_BYTES,
    ExportWriter,
    empty_export,
    instrumented_nccl_export,
    nccl_without_nvtx_export,
    payload_export,
    training_job,
)

from nsystui.exports.demo import NcclPayloads, TrainingJob
from nsystui.questions.nccl.names import Reason, State
from nsystui.questions.nccl.pairing import NcclPairing, PairingQuality
from nsystui.questions.nccl.units import NONE, Role, find_units, outer_calls

SHARED = Path(__file__).parents[3] / "shared/data/exports"


def quality_of(pairing: NcclPairing) -> PairingQuality:
    return PairingQuality.of(pairing.kernels, pairing.calls)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    yield Program(tmp_path / "program.sqlite")


class TestUnits:
    def test_a_call_outside_of_groups_has_the_kernel_it_launches(self, program: Program) -> None:
        program.call("ncclAllReduce", size=4096, launches=1)
        pairing = program.pairing()
        assert rows(pairing.kernels, "collective", "message_size", "communicator", "state") == [
            ("AllReduce", 4096, "0xa0", State.PAIRED)
        ]
        assert rows(pairing.calls_of(0), "name", "message_size") == [("ncclAllReduce", 4096)]
        assert rows(pairing.kernels_of(0), "row") == [(1,)]

    def test_a_group_launches_when_it_ends(self, program: Program) -> None:
        program.group(("ncclSend", 100), ("ncclRecv", 50))
        pairing = program.pairing()
        assert rows(pairing.kernels, "collective", "message_size", "partners", "state") == [
            ("SendRecv", 150, 2, State.PAIRED)
        ]
        assert rows(pairing.calls, "name", "state", "partners", "partner") == [
            ("ncclGroupStart", None, 1, 0),
            ("ncclSend", State.PAIRED, 1, 0),
            ("ncclRecv", State.PAIRED, 1, 0),
            ("ncclGroupEnd", None, 1, 0),
        ]
        assert rows(pairing.calls_of(0), "name") == [("ncclSend",), ("ncclRecv",)]
        assert rows(pairing.kernels_of(3), "row") == [(1,)]

    def test_only_the_outermost_end_of_nested_groups_launches(self, program: Program) -> None:
        program.call("ncclGroupStart")
        program.call("ncclGroupStart")
        program.call("ncclAllReduce", size=1)
        program.call("ncclGroupEnd")
        program.call("ncclAllReduce", size=2)
        program.call("ncclGroupEnd", launches=1, kernel="AllReduce")
        program.call("ncclAllReduce", size=4, launches=1, kernel="AllReduce")
        pairing = program.pairing()
        assert rows(pairing.kernels, "message_size", "partners", "state") == [
            (3, 2, State.PAIRED),
            (4, 1, State.PAIRED),
        ]

    def test_threads_do_not_mix(self, program: Program) -> None:
        other = program.thread(5001)
        program.call("ncclGroupStart")
        program.call("ncclAllReduce", size=8, thread=other, launches=1, kernel="AllReduce")
        program.call("ncclAllGather", size=1)
        program.call("ncclGroupEnd", launches=1, kernel="AllGather")
        pairing = program.pairing()
        assert rows(pairing.kernels, "collective", "message_size", "state") == [
            ("AllReduce", 8, State.PAIRED),
            ("AllGather", 1, State.PAIRED),
        ]

    def test_a_group_without_communication_pairs_nothing(self, program: Program) -> None:
        program.call("ncclGroupStart")
        program.call("ncclCommInitRankConfig", ranks=4)
        program.call("ncclGroupEnd", launches=1, kernel="AllReduce")
        program.call("ncclAllReduce", size=8, launches=1, kernel="AllReduce")
        pairing = program.pairing()
        assert rows(pairing.kernels, "collective", "message_size", "reason") == [
            ("AllReduce", None, Reason.OUTSIDE),
            ("AllReduce", 8, None),
        ]

    def test_a_group_that_began_before_the_capture_ends_nothing(self, program: Program) -> None:
        program.call("ncclGroupEnd", launches=1, kernel="AllReduce")
        program.group(("ncclAllReduce", 8), kernel="AllReduce")
        pairing = program.pairing()
        assert rows(pairing.kernels, "message_size", "reason") == [(None, Reason.OUTSIDE), (8, None)]

    def test_a_group_that_goes_on_after_the_capture(self, program: Program) -> None:
        program.call("ncclGroupStart")
        program.call("ncclAllReduce", size=8)
        pairing = program.pairing()
        assert rows(pairing.calls, "state", "reason") == [(None, None), (State.UNPAIRED, Reason.GROUP_IS_OPEN)]

    def test_a_call_that_never_returned_ends_with_the_next(self, program: Program) -> None:
        program.call("ncclAllReduce", size=8, launches=1, open_end=True)
        program.call("ncclAllReduce", size=16, launches=1)
        program.call("ncclAllReduce", size=32, launches=1, open_end=True)
        pairing = program.pairing()
        assert rows(pairing.kernels, "message_size", "state") == [(size, State.PAIRED) for size in (8, 16, 32)]
        assert rows(pairing.calls, "end") == [(None,), (1_018_000,), (None,)]

    def test_a_call_without_a_kernel(self, program: Program) -> None:
        program.call("ncclAllReduce", size=8)
        pairing = program.pairing()
        assert rows(pairing.calls, "state", "reason", "partner") == [(State.UNPAIRED, Reason.NO_KERNEL, -1)]
        assert not len(pairing.kernels_of(0))


class TestDivision:
    def test_as_many_kernels_as_unlike_calls_are_paired_by_order(self, program: Program) -> None:
        program.group(("ncclAllReduce", 8), ("ncclAllReduce", 16), launches=2, kernel="AllReduce")
        pairing = program.pairing()
        assert rows(pairing.kernels, "message_size", "partners", "state") == [
            (8, 1, State.ESTIMATED),
            (16, 1, State.ESTIMATED),
        ]

    def test_calls_that_are_alike_need_no_order(self, program: Program) -> None:
        program.group(("ncclAllReduce", 8), ("ncclAllReduce", 8), launches=2, kernel="AllReduce")
        pairing = program.pairing()
        assert rows(pairing.kernels, "message_size", "partners", "state") == [(8, 1, State.PAIRED)] * 2

    def test_kernels_that_share_a_call_divide_its_bytes(self, program: Program) -> None:
        program.call("ncclAllReduce", size=11, launches=3, kernel="AllReduce")
        pairing = program.pairing()
        assert rows(pairing.kernels, "message_size", "state") == [(size, State.ESTIMATED) for size in (4, 4, 3)]
        assert rows(pairing.calls, "partners", "state") == [(3, State.ESTIMATED)]

    def test_communicators_are_told_apart_by_their_streams(self, program: Program) -> None:
        """A works on stream 21, B on stream 20; in the group the kernel of B is launched first."""
        program.call("ncclAllReduce", size=1, comm=A, launches=1, stream=21, kernel="AllReduce")
        program.call("ncclAllReduce", size=2, comm=B, launches=1, stream=20, kernel="AllReduce")
        program.group(("ncclAllReduce", 4, A), ("ncclAllReduce", 8, B), ("ncclAllReduce", 16, B), launches=2)
        pairing = program.pairing()
        assert rows(pairing.kernels, "stream", "communicator", "message_size", "state") == [
            (21, "0xa0", 1, State.PAIRED),
            (20, "0xb0", 2, State.PAIRED),
            (20, "0xb0", 24, State.PAIRED),
            (21, "0xa0", 4, State.PAIRED),
        ]

    def test_a_communicator_without_a_kernel_in_a_group(self, program: Program) -> None:
        program.call("ncclAllReduce", size=1, comm=A, launches=1, stream=21)
        program.call("ncclAllReduce", size=2, comm=B, launches=1, stream=20)
        program.group(("ncclAllReduce", 4, A), ("ncclAllReduce", 8, B), launches=1, stream=20)
        pairing = program.pairing()
        assert rows(pairing.kernels, "message_size", "state")[2] == (8, State.PAIRED)
        assert rows(pairing.calls, "message_size", "reason")[3] == (4, Reason.NO_KERNEL)

    def test_communicators_on_one_stream_are_an_estimate(self, program: Program) -> None:
        program.group(("ncclAllReduce", 4, A), ("ncclAllReduce", 8, A), ("ncclAllReduce", 16, B), launches=2)
        pairing = program.pairing()
        assert (
            rows(pairing.kernels, "communicator", "message_size", "partners", "state")
            == [(None, 14, 3, State.ESTIMATED)] * 2
        )

    def test_a_mixture_with_a_kernel_for_each_collective(self, program: Program) -> None:
        calls = (("ncclAllReduce", 4), ("ncclAllGather", 16), ("ncclAllReduce", 8))
        program.group(*calls, launches=0)
        window = program.now - 10_000
        program.launch(window + 1_000, program.main, 20, "AllGather")
        program.launch(window + 3_000, program.main, 20, "AllReduce")
        pairing = program.pairing()
        assert rows(pairing.kernels, "collective", "message_size", "partners", "state") == [
            ("AllGather", 16, 1, State.ESTIMATED),
            ("AllReduce", 12, 2, State.ESTIMATED),
        ]

    def test_a_mixture_in_one_kernel(self, program: Program) -> None:
        program.group(("ncclAllReduce", 4), ("ncclAllGather", 16), kernel="ncclDevKernel_Generic(ncclDevComm *)")
        pairing = program.pairing()
        assert rows(pairing.kernels, "collective", "message_size", "state") == [("Group(2)", 20, State.PAIRED)]

    def test_one_unknown_size_makes_the_sum_unknown(self, program: Program) -> None:
        program.call("ncclGroupStart")
        program.call("ncclAllReduce", size=4)
        program.call("ncclAllReduce")
        program.call("ncclGroupEnd", launches=1, kernel="AllReduce")
        assert rows(program.pairing().kernels, "collective", "message_size") == [("AllReduce", None)]


class TestLabels:
    EXCHANGE = (("ncclSend", 1), ("ncclRecv", 1), ("ncclSend", 1), ("ncclRecv", 1))

    @pytest.mark.parametrize(
        ("label", "collective"),
        [
            ("nccl:all_to_all, op_id = 991144", "AlltoAll"),
            ("nccl:gather", "Gather"),
            ("nccl:scatter", "Scatter"),
            ("nccl:send 0->1", "SendRecv"),
            ("nccl:coalesced", "SendRecv"),
            ("all_to_all", "SendRecv"),
        ],
    )
    def test_pytorch_says_what_sends_and_receives_are(self, program: Program, label: str, collective: str) -> None:
        start = program.now - 1_000
        program.group(*self.EXCHANGE)
        program.label(label, start)
        assert rows(program.pairing().kernels, "collective", "message_size") == [(collective, 4)]

    def test_a_lone_send_of_a_gather(self, program: Program) -> None:
        program.call("ncclSend", size=7, launches=1)
        program.label("nccl:gather", program.now - 10_001)
        program.call("ncclSend", size=7, launches=1)
        assert rows(program.pairing().kernels, "collective") == [("Gather",), ("Send",)]

    def test_the_tightest_label_counts(self, program: Program) -> None:
        start = program.now
        program.call("ncclCommInitRankConfig", ranks=2)
        program.group(*self.EXCHANGE)
        program.label("nccl:scatter", start + 9_000)
        program.label("nccl:coalesced", start + 9_500)
        program.call("ncclCommInitRankConfig", ranks=2)
        program.label("nccl:all_to_all", start)
        assert rows(program.pairing().kernels, "collective") == [("Scatter",)]

    def test_a_label_of_another_thread_or_around_a_part_says_nothing(self, program: Program) -> None:
        start = program.now
        program.group(*self.EXCHANGE)
        program.label("nccl:all_to_all", start - 1_000, program.thread(5001))
        program.label("nccl:all_to_all", start + 5_000)
        assert rows(program.pairing().kernels, "collective") == [("SendRecv",)]

    def test_other_collectives_keep_their_name(self, program: Program) -> None:
        start = program.now - 1
        program.call("ncclAllReduce", size=7, launches=1)
        program.label("nccl:all_to_all", start)
        assert rows(program.pairing().kernels, "collective") == [("AllReduce",)]


class TestLaunches:
    def test_a_kernel_launched_outside_of_nccl(self, program: Program) -> None:
        program.call("ncclAllReduce", size=8, launches=1, kernel="AllReduce")
        program.launch(program.now + 50_000, program.main, 20, "AllGather")
        pairing = program.pairing()
        assert rows(pairing.kernels, "collective", "state", "reason") == [
            ("AllReduce", State.PAIRED, None),
            ("AllGather", State.UNPAIRED, Reason.OUTSIDE),
        ]
        assert not len(pairing.calls_of(1))

    def test_kernels_without_a_launch(self, program: Program) -> None:
        program.launch(900_000, program.main, 20, "AllReduce", with_call=False)
        program.call("ncclAllReduce", size=8, launches=1, kernel="AllReduce")
        program.launch(program.now, program.main, 20, "Generic", with_call=False)
        pairing = program.pairing()
        assert rows(pairing.kernels, "collective", "reason") == [
            ("AllReduce", Reason.BEFORE_CAPTURE),
            ("AllReduce", None),
            (None, Reason.NO_LAUNCH),
        ]
        assert quality_of(pairing).line == (
            "paired 1 of 3 NCCL kernels with their calls · 1 kernel: launched before the capture"
            " · 1 kernel: launch not recorded"
        )

    def test_kernels_of_a_cuda_graph(self, program: Program) -> None:
        program.call("ncclAllReduce", size=8, launches=1, kernel="AllReduce")
        program.export.api(program.main, program.now, program.now + 1_000, "cudaGraphLaunch_v10000", 99)
        program.export.kernel(
            program.process, 0, 20, program.now + 5_000, program.now + 9_000, name="ncclDevKernel_AllReduce(int)",
            correlation_id=99, graph_node_id=7,
        )  # fmt: skip
        assert rows(program.pairing().kernels, "reason") == [(None,), (Reason.IN_GRAPH,)]

    def test_launches_from_a_thread_of_nccl_are_paired_by_order(self, program: Program) -> None:
        """A communicator that does not block: the call returns, NCCL's own thread launches."""
        helper = program.thread(5009)
        for size in (8, 16):
            program.call("ncclAllReduce", size=size)
            program.launch(program.now + 1_000, helper, 20, "AllReduce")
            program.now += 10_000
        assert rows(program.pairing().kernels, "message_size", "state") == [
            (8, State.ESTIMATED),
            (16, State.ESTIMATED),
        ]

    @pytest.mark.parametrize("kernels", [["AllReduce"], ["AllReduce"] * 3, ["AllReduce", "AllGather"]])
    def test_across_threads_nothing_may_contradict(self, program: Program, kernels: list[str]) -> None:
        helper = program.thread(5009)
        program.call("ncclAllReduce", size=8)
        program.call("ncclAllReduce", size=16)
        for kernel in kernels:
            program.now += 10_000
            program.launch(program.now, helper, 20, kernel)
        assert rows(program.pairing().kernels, "state", "reason") == [(State.UNPAIRED, Reason.OUTSIDE)] * len(kernels)

    def test_a_launch_before_its_call_contradicts(self, program: Program) -> None:
        program.launch(500_000, program.thread(5009), 20, "AllReduce")
        program.call("ncclAllReduce", size=8)
        assert rows(program.pairing().kernels, "reason") == [(Reason.OUTSIDE,)]

    @pytest.mark.parametrize(
        "kernel",
        [
            "ncclAllReduceRingLLKernel_sum_f32(ncclWorkElem)",  # NCCL 2.7
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",  # to 2.18
            "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevComm *, unsigned long, ncclWork *)",
            "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymDevArgs)",  # 2.27
            "ncclSymkDevKernel_AllReduce_LLMC_sum_bf16(ncclSymkDevWorkArgs)",
            "ncclDevKernel_Generic(ncclDevComm *)",
        ],
    )
    def test_kernels_of_every_age_are_paired_and_named_by_their_calls(self, program: Program, kernel: str) -> None:
        program.group(("ncclAllReduce", 512), kernel=kernel)
        assert rows(program.pairing().kernels, "collective", "message_size", "state") == [
            ("AllReduce", 512, State.PAIRED)
        ]

    def test_a_collective_of_the_copy_engines_has_no_kernel(self, program: Program) -> None:
        """NCCL 2.28 and later may move data by copies alone: the call is there, a copy, and no kernel."""
        call = program.now
        program.call("ncclAllGather", size=4096)
        program.export.api(program.main, call + 1_000, call + 2_000, "cudaMemcpyBatchAsync", 70)
        program.export.memcpy(
            program.process, 0, 20, call + 9_000, call + 12_000, size=4096, kind="DtoD", correlation_id=70
        )
        program.call("ncclAllReduce", size=8, launches=1, kernel="AllReduce")
        pairing = program.pairing()
        assert rows(pairing.calls, "collective", "message_size", "reason") == [
            ("AllGather", 4096, Reason.NO_KERNEL),
            ("AllReduce", 8, None),
        ]
        assert rows(pairing.kernels, "collective", "message_size") == [("AllReduce", 8)]

    def test_equal_correlation_ids_of_two_processes(self, tmp_path: Path) -> None:
        """Correlation ids count anew in each process."""
        with ExportWriter(tmp_path / "two.sqlite") as export:
            for number, start in ((0, 1_000_000), (1, 3_000_000)):
                process = export.process(5000 + number, "python")
                main = export.thread(process, 5000 + number, "python")
                export.nvtx_domain(main, 0, 1, "NCCL")
                name = ("ncclAllReduce", "ncclAllGather")[number]
                export.nvtx_range(main, start, start + 9_000, name, domain_id=1)
                export.api(main, start + 1_000, start + 2_000, "cudaLaunchKernelExC_v11060", 1)
                kernel = "ncclDevKernel_Generic(int)"
                export.kernel(process, number, 7, start + 50_000, start + 60_000, name=kernel, correlation_id=1)
        pairing = pairing_of(export.path)
        assert rows(pairing.kernels, "device", "collective", "state") == [
            (0, "AllReduce", State.PAIRED),
            (1, "AllGather", State.PAIRED),
        ]


class TestForms:
    @pytest.mark.parametrize("layout", list(NcclPayloads))
    @pytest.mark.parametrize("binary", [False, True])
    def test_both_forms_and_layouts_of_the_payload(self, tmp_path: Path, layout: NcclPayloads, binary: bool) -> None:
        path = payload_export(tmp_path / "payload.sqlite", json=not binary, binary=binary, layout=layout)
        pairing = pairing_of(path)
        sizes = PAYLOAD_BYTES
        assert rows(pairing.kernels, "collective", "message_size", "ranks", "root", "reduction", "state") == [
            ("AllReduce", sizes["ncclAllReduce"], 4, None, "Avg", State.PAIRED),
            ("AllGather", sizes["ncclAllGather"], 4, None, None, State.PAIRED),
            ("ReduceScatter", sizes["ncclReduceScatter"], 4, None, "Sum", State.PAIRED),
            ("Broadcast", sizes["ncclBroadcast"], 4, 0, None, State.PAIRED),
            ("Reduce", sizes["ncclReduce"], 4, 0, "Sum", State.PAIRED),
            ("SendRecv", 2 * sizes["ncclSend"], 4, None, None, State.PAIRED),
        ]
        communicator = "0xfedcba9876543210" if layout is NcclPayloads.SINCE_2_25 else None
        assert set(rows(pairing.kernels, "communicator")) == {(communicator,)}

    def test_no_payload(self, tmp_path: Path) -> None:
        pairing = pairing_of(payload_export(tmp_path / "plain.sqlite", json=False))
        assert [collective for (collective,) in rows(pairing.kernels, "collective")][-1] == "SendRecv"
        assert set(rows(pairing.kernels, "message_size", "communicator", "ranks", "state")) == {
            (None, None, None, State.PAIRED)
        }

    def test_instrumented_calls(self, tmp_path: Path) -> None:
        pairing = pairing_of(instrumented_nccl_export(tmp_path / "instrumented.sqlite"))
        told = rows(pairing.kernels, "collective", "message_size", "communicator", "state")
        assert (
            told
            == [("AllReduce", 65_536, "0xfedcba9876543210", State.PAIRED)] * 8
            + [("AllGather", 2_097_152, "0xfedcba9876543210", State.PAIRED)] * 4
        )

    def test_an_instrumented_range_inside_the_range_of_the_same_call(self, program: Program) -> None:
        """One call, two ranges: NCCL's own without a payload, and one in it that tells the size."""
        text = "ncclAllReduce(): commHash 0xa0, stream 0x1, data_size 512, type_size 4, red_op 0, pid 7"
        for _ in range(2):
            program.export.nvtx_range(program.main, program.now + 500, program.now + 7_000, text)
            program.call("ncclAllReduce", launches=1, kernel="AllReduce")
        pairing = program.pairing()
        assert (
            rows(pairing.calls, "name", "message_size", "size_source", "state")
            == [("ncclAllReduce", 512, "instrumented", State.PAIRED)] * 2
        )
        assert rows(pairing.kernels, "message_size", "communicator", "partners") == [(512, "0xa0", 1)] * 2

    def test_without_the_row_that_names_the_domain(self, tmp_path: Path) -> None:
        program = Program(tmp_path / "nameless.sqlite", domain=False)
        program.group(("ncclSend", 100), ("ncclRecv", 50))
        assert rows(program.pairing().kernels, "collective", "message_size", "state") == [
            ("SendRecv", 150, State.PAIRED)
        ]

    def test_without_nvtx_the_kernels_say_what_they_are(self, tmp_path: Path) -> None:
        pairing = pairing_of(nccl_without_nvtx_export(tmp_path / "silent.sqlite"))
        told = rows(pairing.kernels, "collective", "message_size", "state", "reason")
        assert told == [
            (collective, None, State.UNPAIRED, Reason.NO_CALLS)
            for collective in ["AllReduce"] * 6 + ["AllGather"] * 3 + ["SendRecv"]
        ]
        assert quality_of(pairing).line == ""

    def test_nothing_to_pair(self, tmp_path: Path) -> None:
        for pairing in (pairing_of(), pairing_of(empty_export(tmp_path / "empty.sqlite"))):
            assert len(pairing.kernels) == len(pairing.calls) == 0
            assert quality_of(pairing).line == ""

    def test_ranks_of_an_old_nccl_are_trusted_only_if_nothing_else_can_be_meant(self, tmp_path: Path) -> None:
        for name, before in (("first", False), ("later", True)):
            program = Program(tmp_path / f"{name}.sqlite", NcclPayloads.BEFORE_2_25)
            if before:
                program.call("ncclAllReduce", size=1, launches=1)
            program.call("ncclCommInitRankConfig", ranks=8)
            program.call("ncclAllReduce", size=1, launches=1)
            assert rows(program.pairing().kernels, "ranks")[-1] == (None if before else 8,)

    def test_ranks_of_several_communicators(self, program: Program) -> None:
        program.call("ncclCommInitRankConfig", comm=A, ranks=8)
        program.call("ncclCommInitRankConfig", comm=B, ranks=2)
        program.call("ncclAllReduce", size=1, comm=B, launches=1)
        program.call("ncclAllReduce", size=1, comm=A, launches=1)
        program.call("ncclAllReduce", size=1, comm=0xC0, launches=1)
        assert rows(program.pairing().kernels, "ranks") == [(2,), (8,), (None,)]

    def test_a_whole_job(self, tmp_path: Path) -> None:
        job = TrainingJob(ranks=2, steps=2, layers=2)
        pairing = pairing_of(*training_job(tmp_path, ranks=2, steps=2, layers=2))
        quality = quality_of(pairing)
        assert quality.kernels[State.PAIRED] == 2 * 2 * len(job.step_collectives)
        assert not quality.kernel_reasons and not quality.call_reasons
        for report in (0, 1):
            own = pairing.kernels[pairing.kernels["report"] == report]
            assert set(own["rank"]) == {report}
            told = [(kind, 2 * size if kind == "SendRecv" else size) for kind, size in job.step_collectives * 2]
            assert rows(own, "collective", "message_size") == told


class TestGolden:
    """Counts measured in real exports (docs/nccl.md#pairing)."""

    @pytest.fixture
    def shared(self) -> Path:
        if not SHARED.is_dir():
            pytest.skip("the real exports are not on this machine (../shared/data/exports)")
        return SHARED

    def test_ddp_pairs_every_all_reduce(self, shared: Path) -> None:
        pairing = pairing_of(shared / "ddp-a100-rank0of4.sqlite")
        assert quality_of(pairing).kernels == {State.PAIRED: 472, State.ESTIMATED: 0, State.UNPAIRED: 0}
        assert quality_of(pairing).calls == {State.PAIRED: 472, State.ESTIMATED: 0, State.UNPAIRED: 0}
        assert set(rows(pairing.kernels, "collective", "partners", "message_size")) == {("AllReduce", 1, None)}
        assert quality_of(pairing).line == "paired 472 of 472 NCCL kernels with their calls"

    def test_mixture_of_experts_is_all_to_all(self, shared: Path) -> None:
        pairing = pairing_of(shared / "h100-2rank-moe-before.sqlite")
        paired = pairing.kernels[pairing.kernels["state"] == State.PAIRED]
        assert len(paired) == 64
        assert set(rows(paired, "collective", "partners")) == {("AlltoAll", 4)}
        unpaired = pairing.kernels[pairing.kernels["state"] == State.UNPAIRED]
        assert rows(unpaired, "collective", "reason") == [("SendRecv", Reason.BEFORE_CAPTURE)] * 2
        # The kernels of the last two groups run after the capture.
        assert quality_of(pairing).call_reasons == ((Reason.NO_KERNEL.value, 8),)
        assert sorted(set(rows(paired, "rank", "device"))) == [(0, 0), (1, 1)]

    def test_ungrouped_all_gather(self, shared: Path) -> None:
        pairing = pairing_of(*(shared / f"alcf-allgather-rank{rank}.sqlite" for rank in (0, 4)))
        assert rows(pairing.kernels, "rank", "collective", "state") == [
            (0, "AllGather", State.PAIRED),
            (4, "AllGather", State.PAIRED),
        ]


def units_by_a_loop(roles: list[Role]) -> tuple[list[int], list[int]]:
    """The units of one thread, call by call, as docs/nccl.md#pairing says it."""
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


@given(st.lists(ROLES, max_size=4))
def test_units_are_those_of_a_loop_over_the_calls_of_each_thread(threads: list[list[Role]]) -> None:
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


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.sampled_from(list(Role))), max_size=10))
def test_outer_calls_are_those_around(drawn: list[tuple[int, int, Role]]) -> None:
    ranges = sorted((start, start + length, role) for start, length, role in drawn)
    starts, ends, roles = (np.array([item[part] for item in ranges], np.int64) for part in range(3))
    is_inside = [
        any(
            other < place and start < other_end and end <= other_end and other_role is not Role.OTHER
            for other, (_, other_end, other_role) in enumerate(ranges)
        )
        for place, (start, end, _) in enumerate(ranges)
    ]
    outer = outer_calls(starts, ends, roles)
    assert (outer >= 0).tolist() == is_inside
    assert all(ends[around] >= ends[place] for place, around in enumerate(outer.tolist()) if around >= 0)
