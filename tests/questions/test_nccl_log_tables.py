"""The tables of a debug log, from synthetic and real lines: exact numbers, and missing numbers stay missing."""

import io
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support import SHARED
from synthetic.nccl_log import call, init, step

from nsystui.base.errors import ExportError, UsageError
from nsystui.exports.nccl_log.lines import LogReader
from nsystui.questions.nccl.communicators import call_sequences
from nsystui.questions.nccl_log.summary import IterationSpan, LogSummary, StepCut, notes, steps_of
from nsystui.questions.nccl_log.tables import TABLES

LOG = SHARED / "nccl-logs/nccl-tests-allreduce-2gpu.log"
GB = 1024**3
UNKNOWN = dict.fromkeys(("min_bytes", "avg_bytes", "max_bytes", "total_bytes"))


USED_AGAIN = (init(name="0x1"), call(), init().replace("Init", "Destroy"), init(name="0x2"), call(), call())
"""A pointer that means another communicator after it was destroyed."""


def stream(texts: tuple[str, ...]) -> Callable[[int], bytes]:
    return io.BytesIO("".join(text + "\n" for text in texts).encode()).read


def summary_of(*texts: str, steps: str | None = None) -> LogSummary:
    summary, reader = LogSummary(), LogReader()
    lines = reader.read(stream(texts))
    summary.add(lines if steps is None else StepCut(steps_of(steps)).of(lines))
    summary.lines = reader.lines
    return summary


def rows(name: str, summary: LogSummary) -> list[dict[str, Any]]:
    return TABLES[name].make(summary).records()


def cells(name: str, summary: LogSummary, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in rows(name, summary)]


def says(summary: LogSummary, text: str) -> bool:
    return any(text in note for note in notes(summary))


class TestCalls:
    def test_buckets_begin_at_their_lower_edge_and_tell_the_spread(self):
        sizes = [2**16 - 1, 2**16, 2**20 - 1, 2**20, 2**24 - 1, 2**24, 8 * GB]
        summary = summary_of(*(call(count=size, datatype=0) for size in sizes), call(count=1, datatype=0, pid=2))
        assert cells("sizes", summary, "bucket", "calls", "least_per_gpu", "most_per_gpu") == [
            ("<64KiB", 2, 1, 1), ("64KiB–1MiB", 2, 0, 2), ("1MiB–16MiB", 2, 0, 2), (">16MiB", 2, 0, 2),
        ]  # fmt: skip

    def test_a_datatype_of_unknown_size_is_a_call_and_no_bytes(self):
        summary = summary_of(call(datatype=12), call(datatype=12))
        (row,) = rows("ops", summary)
        assert row["calls"] == 2 and row | UNKNOWN == row
        assert cells("sizes", summary, "bucket", "calls", "total_bytes") == [("unknown", 2, None)]
        assert cells("calls", summary, "datatype") == [("datatype 12",)]
        assert says(summary, "2 calls of a datatype whose size is not known")

    def test_calls_of_count_0_and_of_lost_processes_are_calls(self):
        summary = summary_of(call(count=0), call(count=1))
        assert cells("ops", summary, "calls", "min_bytes") == [(2, 0)]
        assert says(summary, "1 call with count 0")
        summary = summary_of(call(), "904:5 [0] " + call().partition("] ")[2])
        assert cells("ops", summary, "calls", "calls_per_gpu") == [(2, 1.0)]
        assert cells("gpus", summary, "host") == [("n1",), (None,)]
        assert says(summary, "1 call without host and process")


class TestRanks:
    LINES = (
        init(1, rank=0), init(2, rank=1, device=1), init(1, "0xc2", rank=0, ranks=8, name="0xaa"),
        call(pid=1, op_count=1), call(pid=1, op_count=10), call(pid=2, op_count=9),
    )  # fmt: skip

    def test_one_process_with_two_gpus_is_two_gpus_whatever_stands_before_its_calls(self):
        begins = init(comm="0xc1", rank=0, device=0), init(comm="0xc2", rank=1, device=1)
        summary = summary_of(*begins, call(comm="0xc1", device=1), call(comm="0xc2", device=1))
        assert cells("gpus", summary, "rank", "device", "calls") == [(0, 0, 1), (1, 1, 1)]

    def test_the_rank_of_a_gpu_is_rccls_or_that_in_its_largest_communicator(self):
        summary = summary_of(
            init(1, "0xc1", rank=0, ranks=2), init(1, "0xc2", rank=5, ranks=8, name="0xaa"), call(),
            call(comm="0xc2", ranks=8), call(pid=2) + " task 0 globalrank 3",
        )  # fmt: skip
        assert cells("gpus", summary, "rank", "pid", "calls") == [(3, 2, 1), (5, 1, 2)]

    def test_what_no_line_names_is_one_row_for_each_size_and_a_note(self):
        summary = summary_of(call(pid=1), call(pid=2), call(pid=3, ranks=8))
        found = cells("communicators", summary, "communicator", "ranks", "in_log", "calls")
        assert found == [("2 without a name", 2, None, 2), ("1 without a name", 8, None, 1)]
        assert says(summary, "NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING")

    def test_calls_that_were_not_recorded_at_all_are_not_0(self):
        assert cells("communicators", summary_of(init()), "calls", "total_bytes") == [(None, None)]

    def test_a_pointer_used_again_counts_for_the_communicator_of_its_time(self):
        assert cells("communicators", summary_of(*USED_AGAIN), "communicator", "calls") == [("0x1", 1), ("0x2", 2)]


class TestSteps:
    LINES = (
        *(init(), call("Broadcast")), *(step(44, 9, 1000), call(count=44)), *(step(45, 6.08, 1249), call(count=45)),
        *(step(46, 6.1, 1251), call(count=46)), *(step(47, 7), call(count=47)),
    )  # fmt: skip

    def test_the_calls_after_the_line_of_an_iteration_are_its_own(self):
        for text, counts in {"45:46": [45, 46], "46": [46], ":45": [44, 45], "46:": [46, 47], "90:99": []}.items():
            summary = summary_of(*self.LINES, steps=text)
            assert sorted(row["count"] for row in rows("calls", summary)) == counts, text
            # Communicators from before the training are known.
            assert cells("communicators", summary, "communicator") == [("0xfe",)], text

    def test_step_time_and_tflops_are_means_of_what_the_lines_tell(self):
        (row,) = rows("steps", summary_of(*self.LINES, steps="45:47"))
        assert (row["lines"], row["first"], row["last"]) == (3, 45, 47)
        assert row["avg_step"] == pytest.approx((6.08 + 6.1 + 7) / 3 * 1e9)
        assert (row["avg_tflops"], row["min_tflops"], row["max_tflops"]) == (1250, 1249, 1251)  # 47 has no port
        assert rows("steps", summary_of(call())) == []

    def test_more_iterations_than_a_table_holds_are_told(self, monkeypatch):
        monkeypatch.setattr("nsystui.questions.nccl_log.summary._ITERATION_LIMIT", 3)
        summary = summary_of(*(step(number) for number in range(10)))
        assert len(rows("iterations", summary)) == 3
        assert says(summary, "has the first 3; 7 lines of later iterations are left out")

    def test_each_log_is_cut_by_its_own_lines(self):
        cut, summary = StepCut(IterationSpan(45, 45)), LogSummary()
        for texts in ((step(45), call(count=1)), (call(count=2),)):
            summary.add(cut.of(LogReader().read(stream(texts))))
        assert [kind.elements for kind in summary.kinds] == [1]
        assert (cut.heard.number, cut.chosen, cut.outside) == (1, 1, 1)

    @pytest.mark.parametrize("text", ["", ":", "a:b", "5:3", "1:2:3", "-1:4", "٣:٤"])
    def test_what_is_no_span_of_iterations_is_refused(self, text):
        with pytest.raises(UsageError):
            steps_of(text)


class TestMemory:
    def test_the_state_grows_with_what_differs_and_not_with_the_log(self):
        def states(times: int) -> list[int]:
            summary = summary_of(*(call(op_count=n, pid=n % 4) for n in range(times)), *(["torn opCount"] * times))
            return [len(summary.kinds), len(summary.members), len(summary._pending), len(summary.communicators.members)]

        assert states(100) == states(5000) == [1, 4, 0, 4]

    def test_what_waits_to_be_added_up_is_bounded(self, monkeypatch):
        monkeypatch.setattr("nsystui.questions.nccl_log.summary._PENDING_LIMIT", 5)
        assert set(summary_of(*[call(count=n) for n in range(100)] * 2).kinds.values()) == {2}

    def test_a_log_that_breaks_off_counts_up_to_there(self):
        def broken():
            yield from LogReader().read(stream((call(), call())))
            raise ExportError("x.gz", "the .gz ends early")

        summary = LogSummary()
        with pytest.raises(ExportError):
            summary.add(broken())
        assert summary.calls == 2


class TestSequences:
    def test_the_calls_of_each_rank_are_in_their_order(self):
        begins = init(1, rank=0), init(2, rank=1)
        first = call(pid=1, op_count=1), call("AllGather", pid=1, op_count=2), call(pid=1, op_count=3)
        second = call(pid=2, op_count=1), call(pid=2, op_count=2, comm="0xc9")
        found = call_sequences(LogReader().read(stream((*begins, first[0], second[0], *first[1:], second[1]))))
        members = [(each.member.communicator, each.member.rank, len(each)) for each in found]
        assert members == [("0xfe", 0, 3), ("0xfe", 1, 1), ("pointer 0xc9", None, 1)]
        ops = [found[0].signatures[kind].op for kind in found[0].kinds]
        assert (ops, [*found[0].op_counts]) == (["AllReduce", "AllGather", "AllReduce"], [1, 2, 3])
        assert len(found[0].signatures) == 2  # 12 bytes a call: the arguments are there once

    def test_a_pointer_used_again_begins_another_sequence(self):
        found = call_sequences(LogReader().read(stream(USED_AGAIN)))
        assert [(each.member.communicator, len(each)) for each in found] == [("0x1", 1), ("0x2", 2)]


# The facts in the lines of the initialisation: rings, trees, transports


def said(rank: int, text: str, tid: int | None = None) -> str:
    """Return a line of a rank: two ranks a host, a process each."""
    return f"n{rank // 2}:{100 + rank}:{tid or 200 + rank} [0] NCCL INFO {text}"


def began(rank: int, ranks: int, *texts: str, name: str = "0xfe", comm: str = "0xc0", start: bool = True) -> list[str]:
    """Return the lines of a rank from START (which NCCL prints since 2.22) to COMPLETE."""
    words = f"ncclCommInitRank comm {comm} rank {rank} nranks {ranks} cudaDev 0 commId {name} - Init"
    between = [said(rank, text) for text in texts]
    return [*([said(rank, f"{words} START")] if start else []), *between, said(rank, f"{words} COMPLETE")]


def initialised(*order: int, texts: tuple[str, ...] = (), channels: int = 2, start: bool = True) -> list[str]:
    """Return the lines of all ranks of a communicator whose rings have this order, and ``texts`` of each rank."""
    lines: list[str] = []
    for place, rank in enumerate(order):
        around = f"{order[place - 1]} -> {rank} -> {order[(place + 1) % len(order)]}"
        rings = [f"Ring {channel:02} : {around}" for channel in range(channels)]
        lines += began(rank, len(order), *rings, *texts, start=start)
    return lines


def problems(*texts: str) -> list[str]:
    return [row["problem"] for row in rows("problems", summary_of(*texts))]


class TestRings:
    RING = ("ring", "channels", "host_changes", "needed")

    @pytest.mark.parametrize("start", [True, False])
    def test_neighbours_make_a_ring_that_is_drawn_by_host(self, start):
        summary = summary_of(*initialised(0, 1, 2, 3, start=start))
        assert cells("rings", summary, *self.RING) == [("n0: 0-1 → n1: 2-3 → n0", "0-1", 2, 2)]
        assert cells("rings", summary, "communicator", "ranks") == [("0xfe", 4)]
        assert cells("rings", summary_of(*initialised(0, 1, start=start)), *self.RING) == [("n0: 0-1", "0-1", 0, 0)]

    def test_what_is_not_known_of_a_ring_is_not_drawn(self):
        order = began(
            0, 4, "Channel 00/02 :    0   3   2   1"
        )  # rank 0 prints the ring; hosts of other ranks are unknown
        assert cells("rings", summary_of(*order), *self.RING) == [("n0: 0 → ?: 3-1 → n0", "0", None, None)]
        some = [line for line in initialised(0, 1, 2, 3, 4, 5) if ":100:" in line]
        assert cells("rings", summary_of(*some), "ring", "host_changes") == [(None, None)]

    def test_a_ring_that_changes_hosts_more_often_than_it_must_is_a_problem(self):
        (row,) = rows("problems", summary_of(*initialised(0, 2, 1, 3)))
        assert (row["communicator"], row["problem"]) == ("0xfe", "a ring changes hosts too often")
        assert "channels 0-1: 4 changes of host, 2 are needed" in row["evidence"]
        assert problems(*initialised(0, 1, 2, 3)) == []
        # Hosts that NVLink joins may alternate.
        assert problems(*initialised(0, 2, 1, 3, texts=("Channel 00/0 : 0[0] -> 2[0] via P2P/MNNVL",))) == []


class TestTrees:
    def test_a_rank_stands_below_its_parent_with_the_transport_between_them(self):
        trees = ("1/2/-1->0->-1", "-1/-1/-1->1->0", "3/-1/-1->2->0", "-1/-1/-1->3->2")
        lines = [line for rank, tree in enumerate(trees) for line in began(rank, 4, f"Trees [0] {tree} [1] {tree}")]
        lines.insert(1, said(0, "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/1/GDRDMA"))
        assert cells("trees", summary_of(*lines), "tree", "host", "via", "channels") == [
            ("0", "n0", None, "0-1"), ("└ 1", "n0", None, "0-1"), ("└ 2", "n1", "NET/IB/1 GDR", "0-1"),
            ("  └ 3", "n1", None, "0-1"),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "tree", ["1/-1/-1->0->-1", "-1->0->1/-1/-1", "1/-1/-1->0->-1|-1->0->1/-1/-1", "-1->0->1/-1/-1|1->0->-1"]
    )
    def test_the_order_of_words_of_every_version_is_understood(self, tree):
        assert cells("trees", summary_of(*began(0, 2, f"Trees [0] {tree}")), "rank", "depth") == [(0, 0), (1, 1)]

    def test_a_circle_that_a_damaged_log_makes_does_not_hang(self):
        assert rows("trees", summary_of(*began(0, 2, "Trees [0] 1/-1/-1->0->1"))) == []


class TestTransports:
    KEYS = ("transport", "way", "device", "gdr")
    NET = "Channel 00/0 : 1[1] -> 2[0] [send] via NET/"

    def test_both_ends_of_a_connection_are_one(self):
        lines = initialised(0, 1, 2, 3)
        for channel in (0, 1):
            text = f"Channel 0{channel}/0 : 1[1] -> 2[0] [send] via NET/IB/{channel}/GDRDMA"
            lines += [said(1, text, tid=900), said(2, text.replace("send", "receive"), tid=901)]
        found = cells("transports", summary_of(*lines), *self.KEYS, "connections", "communicator", "between_hosts")
        assert found == [("NET", "IB", channel, "on", 1, "0xfe", 1) for channel in (0, 1)]

    @pytest.mark.parametrize(("text", "transport"), [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", ("P2P", "direct pointer/read", None, None)),
        ("Channel 00 : 0[1b000] -> 1[1c000] via P2P/IPC", ("P2P", "IPC", None, None)),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/5[4]", ("P2P", "indirect", None, None)),
        ("Ring 00 : 0[0] -> 1[1] via direct shared memory", ("SHM", "direct", None, None)),
        ("Channel 07 : 0[6] -> 1[7] via SHM/direct/direct", ("SHM", "direct/direct", None, None)),
        ("Ring 00 : 0 -> 1 [send] via NET/Socket/0", ("NET", "Socket", 0, "off")),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/AWS Libfabric/2/GDRDMA(PCI)/Shared",
         ("NET", "AWS Libfabric", 2, "on")),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/3(4)/GDRDMA", ("NET", "IB", 3, "on")),
    ])  # fmt: skip
    def test_the_words_of_every_version_are_read(self, text, transport):
        assert cells("transports", summary_of(*began(0, 2, text)), *self.KEYS) == [transport]

    def test_a_torn_connection_is_none(self):
        first, last = began(0, 2)
        whole = said(0, "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/3/GDRDMA")
        for end in range(1, 70):
            torn = whole[:end] + said(1, "RAS thread started")
            assert rows("transports", summary_of(first, torn, last)) == [], torn

    def test_a_later_connection_is_of_the_only_communicator_that_can_have_it(self):
        later = said(0, "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", tid=900)
        one, other = initialised(0, 1), began(0, 2, name="0xaa", comm="0xc1")
        assert cells("transports", summary_of(*one, later), "communicator") == [("0xfe",)]
        assert cells("transports", summary_of(*one, *other, later), "communicator") == [(None,)]

    def test_tcp_is_a_problem_and_so_is_gdr_that_is_off_with_its_reason(self):
        lines = initialised(0, 1, 2, 3)
        assert problems(*lines, said(1, f"{self.NET}Socket/0", tid=9)) == ["it runs over TCP"]
        why = said(1, "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")
        off = said(1, f"{self.NET}IB/0", tid=9)
        text = "1 of 1 network connection goes through host memory; mlx5_0: disabled"
        found = cells("problems", summary_of(*lines, why, off), "problem", "evidence")
        assert found == [("GPU Direct RDMA is off", text)]
        assert problems(*lines, why, f"{off}/GDRDMA") == []


class TestOthers:
    COUNTS = "{} coll channels, 0 collnet channels, 8 nvls channels, 32 p2p channels, 2 p2p channels per peer"

    def test_ranks_that_differ_in_their_channels_are_a_problem(self):
        lines = [line for rank, n in enumerate((16, 16, 8)) for line in began(rank, 3, self.COUNTS.format(n))]
        assert cells("channels", summary_of(*lines), "of_ranks", "collective", "nvls") == [("0-1", 16, 8), ("2", 8, 8)]
        assert problems(*lines) == ["the ranks differ in their channels"]
        # A line with fewer facts does not differ.
        assert problems(*began(0, 2, self.COUNTS.format(4)), *began(1, 2, "Ring 00 : 0 -> 1 -> 0")) == []

    def test_channels_of_collnet_and_nvls_are_missing_where_nccl_does_not_tell_them(self):
        summary = summary_of(*began(0, 1, "12 coll channels, 16 p2p channels, 2 p2p channels per peer"))
        keys = ("collective", "collnet", "nvls", "p2p", "per_peer")
        assert cells("channels", summary, *keys) == [(12, None, None, 16, 2)]

    def test_network_devices_have_their_speed_in_bytes(self):
        lines = [
            said(0, "NET/IB: [0] mlx5_0:uverbs0:1/RoCE provider=Mlx5 speed=100000 context=0x7f pciPath=/sys ar=0"),
            said(0, "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB [RO]; OOB eno1:192.168.0.3<0>"),
        ]
        found = cells("nics", summary_of(*lines), "host", "device", "name", "link", "speed")
        assert found == [("n0", 0, "mlx5_0", "RoCE", 12_500_000_000), ("n0", 1, "mlx5_1", "IB", None)]

    def test_why_gpu_direct_rdma_is_off_is_read(self):
        some = "Disabled for GPU 2[2] / HCA 0 (distance 3 >= 2)"
        told = {"Enabled for HCA 0 'mlx5_0'": "enabled", "Disabled for HCA 0 'mlx5_0'": "disabled"}
        for text, gdr in (told | {some: "disabled for some GPUs (distance 3 >= 2)"}).items():
            enabled, line = (said(0, f"NET/IB : GPU Direct RDMA {words}") for words in (next(iter(told)), text))
            for lines in ([line], [enabled, line]):
                assert cells("nics", summary_of(*lines), "gdr") == [(gdr,)], text

    def test_the_topology_stays_where_steps_are_chosen(self):
        lines = [*initialised(0, 1), "Training epoch 0, iteration 5/9 | x"]
        assert len(rows("rings", summary_of(*lines, steps="5"))) == 1

    def test_more_parts_than_jobs_have_are_left_out_and_told(self, monkeypatch):
        monkeypatch.setattr("nsystui.questions.nccl_log.topology._PART_LIMIT", 10)
        summary = summary_of(*initialised(0, 1, channels=30))
        assert summary.topology.left_out > 40
        assert says(summary, "the topology is too large")


@pytest.mark.skipif(not LOG.exists(), reason="the real log of nccl-tests is not on this machine")
def test_a_real_log():
    summary, reader = LogSummary(), LogReader()
    with LOG.open("rb") as log:
        summary.add(reader.read(log.read))
    summary.results = reader.reported

    assert cells("rings", summary, "communicator", "channels", "ring") == [("0x54fe282d32a87d85", "0-23", "mew0: 0-1")]
    assert cells("trees", summary, "channels", "tree", "via") == [
        ("0-5,12-17", "0", None), ("0-5,12-17", "└ 1", "P2P/direct pointer/read"), ("6-11,18-23", "1", None),
        ("6-11,18-23", "└ 0", "P2P/direct pointer/read"),
    ]  # fmt: skip
    lines = Counter(
        re.findall(rb"Channel (\d\d)/0 : (\d)\[\d\] -> (\d)\[\d\] via P2P/direct pointer", LOG.read_bytes())
    )
    assert cells("transports", summary, "connections", "channels", "pairs") == [(len(lines), "0-23", 2)]

    keys = ("of_ranks", "collective", "collnet", "nvls", "p2p", "rings", "trees")
    assert cells("channels", summary, *keys) == [("0-1", 24, 24, 0, 32, 24, 24)]
    found = cells("init", summary, "phase", "max")[:2]
    assert found == [("total", pytest.approx(0.67e9)), ("kernels", pytest.approx(0.57e9))]
    assert cells("nics", summary, "gdr") == [("disabled",)] * 3
    assert rows("problems", summary) == []  # no connection uses its network

    results = rows("results", summary)
    rates = [row[key] for row in results for key in ("out_busbw", "in_busbw")]
    assert sum(rates) / len(rates) == pytest.approx(178.078e9, rel=1e-4)
    assert (results[0]["bytes"], results[0]["out_wrong"]) == (8388608, 0)
    assert (results[0]["out_algbw"], results[0]["out_time"]) == (pytest.approx(100.66e9), pytest.approx(83_330))
