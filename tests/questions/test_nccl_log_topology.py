"""What a debug log tells about rings, trees, transports and initialisation, from made lines and from a real log."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nsystui.exports.nccl_log.lines import LogReader
from nsystui.questions.nccl_log.steps import StepCut, steps_of
from nsystui.questions.nccl_log.summary import Summary, notes
from nsystui.questions.nccl_log.tables import TABLES

LOG = Path(__file__).parents[3] / "shared/data/nccl-logs/nccl-tests-allreduce-2gpu.log"

INFO = "{host}:{pid}:{tid} [0] NCCL INFO {text}"


def said(rank: int, text: str, host: str | None = None, tid: int | None = None) -> str:
    """A line of a rank: two ranks a host, a process each."""
    return INFO.format(host=host or f"n{rank // 2}", pid=100 + rank, tid=tid or 200 + rank, text=text)


def init(rank: int, ranks: int, state: str = "COMPLETE", name: str = "0xfe", comm: str = "0xc0") -> str:
    return said(rank, f"ncclCommInitRank comm {comm} rank {rank} nranks {ranks} cudaDev 0 commId {name} - Init {state}")


def initialised(order: tuple[int, ...], *texts: str, channels: int = 2, has_start: bool = True) -> list[str]:
    """The lines of all ranks of a communicator whose rings have this order, and ``texts`` of each."""
    ranks, lines = len(order), []
    for place, rank in enumerate(order):
        around = f"{order[place - 1]} -> {rank} -> {order[(place + 1) % ranks]}"
        own = [said(rank, f"Ring {channel:02} : {around}") for channel in range(channels)]
        lines += [init(rank, ranks, "START")] if has_start else []
        lines += [*own, *(said(rank, text) for text in texts), init(rank, ranks)]
    return lines


def summary_of(*texts: str) -> Summary:
    summary, reader = Summary(), LogReader()
    summary.add(reader.read(io.BytesIO("".join(text + "\n" for text in texts).encode()).read))
    summary.lines = reader.lines
    return summary


def rows(name: str, summary: Summary) -> list[dict[str, Any]]:
    answer = TABLES[name].make(summary)
    return [dict(zip([column.key for column in answer.columns], row, strict=True)) for row in answer.rows]


def problems(*texts: str) -> list[str]:
    return [row["problem"] for row in rows("problems", summary_of(*texts))]


class TestRings:
    @pytest.mark.parametrize("has_start", [True, False])  # NCCL prints Init START since 2.22
    def test_neighbours_make_a_ring_that_is_drawn_by_host(self, has_start):
        (row,) = rows("rings", summary_of(*initialised((0, 1, 2, 3), has_start=has_start)))
        assert (row["communicator"], row["channels"], row["ranks"]) == ("0xfe", "0-1", 4)
        assert (row["host_changes"], row["needed"]) == (2, 2)
        assert row["ring"] == "n0: 0-1 → n1: 2-3 → n0"

    def test_the_order_that_rank_0_prints_is_enough_and_unknown_hosts_stay_unknown(self):
        lines = [init(0, 4, "START"), said(0, "Channel 00/02 :    0   3   2   1"), init(0, 4)]
        (row,) = rows("rings", summary_of(*lines))
        assert (row["ring"], row["channels"]) == ("n0: 0 → ?: 3-1 → n0", "0")
        assert (row["host_changes"], row["needed"]) == (None, None)

    def test_a_ring_of_which_ranks_are_missing_is_not_drawn(self):
        lines = [line for line in initialised((0, 1, 2, 3, 4, 5)) if ":100:" in line]
        (row,) = rows("rings", summary_of(*lines))
        assert (row["ring"], row["host_changes"]) == (None, None)

    def test_a_ring_that_changes_hosts_more_often_than_it_must_is_a_problem(self):
        summary = summary_of(*initialised((0, 2, 1, 3)))
        (row,) = rows("problems", summary)
        assert (row["communicator"], row["problem"]) == ("0xfe", "a ring changes hosts too often")
        assert "channels 0-1: 4 changes of host, 2 are needed" in row["evidence"]
        assert problems(*initialised((0, 1, 2, 3))) == []

    def test_hosts_that_nvlink_joins_may_alternate(self):
        link = "Channel 00/0 : 0[0] -> 2[0] via P2P/MNNVL"
        assert problems(*initialised((0, 2, 1, 3), link)) == []

    def test_a_ring_of_one_host_needs_no_change(self):
        (row,) = rows("rings", summary_of(*initialised((0, 1))))
        assert (row["host_changes"], row["needed"], row["ring"]) == (0, 0, "n0: 0-1")


class TestTrees:
    def test_a_rank_stands_below_its_parent_with_the_transport_between_them(self):
        lines = []
        for rank, tree in enumerate(("1/2/-1->0->-1", "-1/-1/-1->1->0", "3/-1/-1->2->0", "-1/-1/-1->3->2")):
            own = [said(rank, f"Trees [0] {tree} [1] {tree}")]
            own += [said(0, "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/1/GDRDMA")] if rank == 0 else []
            lines += [init(rank, 4, "START"), *own, init(rank, 4)]
        found = rows("trees", summary_of(*lines))
        assert [row["tree"] for row in found] == ["0", "└ 1", "└ 2", "  └ 3"]
        assert [row["host"] for row in found] == ["n0", "n0", "n1", "n1"]
        assert [row["via"] for row in found] == [None, None, "NET/IB/1 GDR", None]
        assert {row["channels"] for row in found} == {"0-1"}

    @pytest.mark.parametrize(
        "tree", ["1/-1/-1->0->-1", "-1->0->1/-1/-1", "1/-1/-1->0->-1|-1->0->1/-1/-1", "-1->0->1/-1/-1|1->0->-1"]
    )
    def test_every_version_s_order_of_words_is_understood(self, tree):
        found = rows("trees", summary_of(init(0, 2, "START"), said(0, f"Trees [0] {tree}"), init(0, 2)))
        assert [(row["rank"], row["depth"]) for row in found] == [(0, 0), (1, 1)]

    def test_a_circle_that_a_damaged_log_makes_does_not_hang(self):
        lines = [init(0, 2, "START"), said(0, "Trees [0] 1/-1/-1->0->1"), init(0, 2)]
        assert rows("trees", summary_of(*lines)) == []


class TestTransports:
    NET = "Channel 0{channel}/0 : {ends} [{way}] via NET/IB/{channel}{gdr}"

    def test_both_ends_of_a_connection_are_one(self):
        send = [self.NET.format(channel=c, ends="1[1] -> 2[0]", way="send", gdr="/GDRDMA") for c in (0, 1)]
        receive = [text.replace("send", "receive") for text in send]
        lines = initialised((0, 1, 2, 3))
        lines += [said(1, text, tid=900) for text in send] + [said(2, text, tid=901) for text in receive]
        found = rows("transports", summary_of(*lines))
        assert [(row["transport"], row["way"], row["device"], row["gdr"], row["connections"]) for row in found] == [
            ("NET", "IB", 0, "on", 1),
            ("NET", "IB", 1, "on", 1),
        ]
        assert {row["communicator"] for row in found} == {"0xfe"}
        assert [row["between_hosts"] for row in found] == [1, 1]

    @pytest.mark.parametrize(
        ("text", "transport"),
        [
            ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", ("P2P", "direct pointer/read", None, None)),
            ("Channel 00 : 0[1b000] -> 1[1c000] via P2P/IPC", ("P2P", "IPC", None, None)),
            ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/5[4]", ("P2P", "indirect", None, None)),
            ("Ring 00 : 0[0] -> 1[1] via direct shared memory", ("SHM", "direct", None, None)),
            ("Channel 07 : 0[6] -> 1[7] via SHM/direct/direct", ("SHM", "direct/direct", None, None)),
            ("Ring 00 : 0 -> 1 [send] via NET/Socket/0", ("NET", "Socket", 0, "off")),
            ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/AWS Libfabric/2/GDRDMA(PCI)/Shared",
             ("NET", "AWS Libfabric", 2, "on")),
            ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/3(4)/GDRDMA", ("NET", "IB", 3, "on")),
        ],
    )  # fmt: skip
    def test_the_words_of_every_version_are_read(self, text, transport):
        (row,) = rows("transports", summary_of(init(0, 2, "START"), said(0, text), init(0, 2)))
        assert (row["transport"], row["way"], row["device"], row["gdr"]) == transport

    @pytest.mark.parametrize("end", range(1, 70))
    def test_a_torn_connection_is_none(self, end):
        text = said(0, "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/3/GDRDMA")
        lines = [init(0, 2, "START"), text[:end] + said(1, "RAS thread started"), init(0, 2)]
        assert rows("transports", summary_of(*lines)) == []

    def test_a_later_connection_is_of_the_only_communicator_that_can_have_it(self):
        later = said(0, "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", tid=900)
        one, other = initialised((0, 1)), [init(0, 2, "START", "0xaa", "0xc1"), init(0, 2, name="0xaa", comm="0xc1")]
        assert [row["communicator"] for row in rows("transports", summary_of(*one, later))] == ["0xfe"]
        assert [row["communicator"] for row in rows("transports", summary_of(*one, *other, later))] == [None]

    def test_tcp_is_a_problem_and_so_is_gdr_that_is_off_with_its_reason(self):
        tcp = "Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0"
        assert problems(*initialised((0, 1, 2, 3)), said(1, tcp, tid=9)) == ["it runs over TCP"]
        why = said(1, "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")
        off = said(1, tcp.replace("Socket", "IB"), tid=9)
        (row,) = rows("problems", summary_of(*initialised((0, 1, 2, 3)), why, off))
        assert row["problem"] == "GPU Direct RDMA is off"
        assert row["evidence"] == "1 of 1 network connections go through host memory; mlx5_0: disabled"
        assert problems(*initialised((0, 1, 2, 3)), why, said(1, tcp.replace("Socket", "IB") + "/GDRDMA", tid=9)) == []


class TestOthers:
    COUNTS = "{} coll channels, 0 collnet channels, 8 nvls channels, 32 p2p channels, 2 p2p channels per peer"

    def test_ranks_that_differ_in_their_channels_are_a_problem(self):
        lines = []
        for rank, number in enumerate((16, 16, 8)):
            lines += [init(rank, 3, "START"), said(rank, self.COUNTS.format(number)), init(rank, 3)]
        found = rows("channels", summary_of(*lines))
        assert [(row["of_ranks"], row["collective"], row["nvls"]) for row in found] == [("0-1", 16, 8), ("2", 8, 8)]
        assert problems(*lines) == ["the ranks differ in their channels"]

    def test_channels_of_collnet_and_nvls_are_missing_where_nccl_does_not_tell_them(self):
        old = "12 coll channels, 16 p2p channels, 2 p2p channels per peer"
        (row,) = rows("channels", summary_of(init(0, 1, "START"), said(0, old), init(0, 1)))
        keys = ("collective", "collnet", "nvls", "p2p", "per_peer")
        assert [row[key] for key in keys] == [12, None, None, 16, 2]

    def test_a_rank_that_tells_less_is_no_difference(self):
        lines = [init(0, 2, "START"), said(0, self.COUNTS.format(4)), init(0, 2)]
        lines += [init(1, 2, "START"), said(1, "Ring 00 : 0 -> 1 -> 0"), init(1, 2)]
        assert problems(*lines) == []

    def test_phases_of_the_initialisation_name_the_slowest_rank(self):
        times = "Init timings - ncclCommInitRank: rank {} nranks 2 total {} (kernels 0.10, bootstrap {})"
        spent = [said(0, times.format(0, "0.50", "0.40")), said(1, times.format(1, "1.50", "0.2"))]
        lines = [*initialised((0, 1)), *spent]
        found = {row["phase"]: row for row in rows("init", summary_of(*lines))}
        assert list(found) == ["total", "kernels", "bootstrap"]
        assert (found["total"]["avg"], found["total"]["max"], found["total"]["slowest"]) == (1e9, 1.5e9, 1)
        assert (found["bootstrap"]["min"], found["bootstrap"]["slowest"]) == (0.2e9, 0)

    def test_versions_and_environment_are_counted_by_process_and_mixed_versions_are_a_problem(self):
        lines = [said(rank, "NCCL version 2.27.7+cuda13.0") for rank in (0, 1, 2)]
        lines += [said(0, "NCCL_IB_HCA set by environment to mlx5_0.")]
        found = rows("settings", summary_of(*lines))
        assert [(row["name"], row["value"], row["processes"], row["hosts"]) for row in found] == [
            ("NCCL version", "2.27.7+cuda13.0", 3, 2),
            ("NCCL_IB_HCA", "mlx5_0", 1, 1),
        ]
        assert problems(*lines) == []
        assert problems(*lines, "1: NCCL version 2.19.3+cuda12.3") == ["several versions of NCCL"]

    def test_network_devices_have_their_speed_in_bytes(self):
        lines = [
            said(0, "NET/IB: [0] mlx5_0:uverbs0:1/RoCE provider=Mlx5 speed=100000 context=0x7f pciPath=/sys ar=0"),
            said(0, "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB [RO]; OOB eno1:192.168.0.3<0>"),
        ]
        found = rows("nics", summary_of(*lines))
        assert [(row["host"], row["device"], row["name"], row["link"], row["speed"]) for row in found] == [
            ("n0", 0, "mlx5_0", "RoCE", 12_500_000_000),
            ("n0", 1, "mlx5_1", "IB", None),
        ]

    @pytest.mark.parametrize(
        ("text", "gdr"),
        [
            ("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", "enabled"),
            ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "disabled"),
            ("NET/IB : GPU Direct RDMA Disabled for GPU 2[2] / HCA 0 (distance 3 >= 2)",
             "disabled for some GPUs (distance 3 >= 2)"),
        ],
    )  # fmt: skip
    def test_why_gpu_direct_rdma_is_off_is_read(self, text, gdr):
        (row,) = rows("nics", summary_of(said(0, text)))
        assert row["gdr"] == gdr
        both = summary_of(said(0, "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"), said(0, text))
        assert [row["gdr"] for row in rows("nics", both)] == [gdr]

    def test_the_topology_stays_where_steps_are_chosen(self):
        data = "\n".join([*initialised((0, 1)), "Training epoch 0, iteration 5/9 | x"]).encode()
        summary = Summary()
        summary.add(StepCut(steps_of("5")).of(LogReader().read(io.BytesIO(data).read)))
        assert len(rows("rings", summary)) == 1

    def test_more_parts_than_jobs_have_are_left_out_and_told(self, monkeypatch):
        monkeypatch.setattr("nsystui.questions.nccl_log.topology._MOST_PARTS", 10)
        summary = summary_of(*initialised((0, 1), channels=30))
        assert summary.topology.left_out > 40
        assert any("the topology is not whole" in note for note in notes(summary))


@pytest.mark.skipif(not LOG.exists(), reason="the real log of nccl-tests is not on this machine")
class TestRealLog:
    @pytest.fixture(scope="class")
    def summary(self) -> Summary:
        summary, reader = Summary(), LogReader()
        with LOG.open("rb") as log:
            summary.add(reader.read(log.read))
        summary.results = reader.reported
        return summary

    def test_its_rings_and_trees(self, summary):
        (ring,) = rows("rings", summary)
        assert (ring["communicator"], ring["channels"], ring["ring"]) == ("0x54fe282d32a87d85", "0-23", "mew0: 0-1")
        trees = rows("trees", summary)
        assert [(row["channels"], row["tree"], row["via"]) for row in trees] == [
            ("0-5,12-17", "0", None),
            ("0-5,12-17", "└ 1", "P2P/direct pointer/read"),
            ("6-11,18-23", "1", None),
            ("6-11,18-23", "└ 0", "P2P/direct pointer/read"),
        ]

    def test_its_connections_are_as_many_as_its_lines(self, summary):
        lines = Counter(
            re.findall(rb"Channel (\d\d)/0 : (\d)\[\d\] -> (\d)\[\d\] via P2P/direct pointer", LOG.read_bytes())
        )
        (row,) = rows("transports", summary)
        assert (row["connections"], row["channels"], row["pairs"]) == (len(lines), "0-23", 2)

    def test_its_channels_times_and_devices(self, summary):
        (row,) = rows("channels", summary)
        assert [row[key] for key in ("of_ranks", "collective", "collnet", "nvls", "p2p", "rings", "trees")] == [
            "0-1", 24, 24, 0, 32, 24, 24,
        ]  # fmt: skip
        total, kernels, *_ = rows("init", summary)
        assert (total["phase"], kernels["phase"]) == ("total", "kernels")
        assert (total["max"], kernels["max"]) == (pytest.approx(0.67e9), pytest.approx(0.57e9))
        assert [row["gdr"] for row in rows("nics", summary)] == ["disabled"] * 3
        assert rows("problems", summary) == []  # no connection uses its network

    def test_its_results_are_those_that_it_prints(self, summary):
        found = rows("results", summary)
        rates = [row[key] for row in found for key in ("out_busbw", "in_busbw")]
        assert sum(rates) / len(rates) == pytest.approx(178.078e9, rel=1e-4)
        assert (found[0]["bytes"], found[0]["out_wrong"]) == (8388608, 0)
        assert (found[0]["out_algbw"], found[0]["out_time"]) == (pytest.approx(100.66e9), pytest.approx(83_330))
