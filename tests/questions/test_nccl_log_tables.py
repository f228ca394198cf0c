"""The tables of a debug log, from made lines: exact numbers, and missing ones that stay missing."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from nsystui.base.errors import ExportError, UsageError
from nsystui.exports.nccl_log.lines import LogReader
from nsystui.questions.nccl_log.communicators import call_sequences
from nsystui.questions.nccl_log.steps import StepCut, Steps, steps_of
from nsystui.questions.nccl_log.summary import Summary, notes
from nsystui.questions.nccl_log.tables import TABLES

GB = 1024**3


def call(op="AllReduce", count=10, datatype=7, pid=1, comm="0xc1", op_count=1, ranks=2, device=0) -> str:
    return (
        f"n1:{pid}:{pid} [{device}] NCCL INFO {op}: opCount {op_count:x} sendbuff 0x1 recvbuff 0x2 count {count} "
        f"datatype {datatype} op 0 root 0 comm {comm} [nranks={ranks}] stream 0x3"
    )


def init(pid=1, comm="0xc1", rank=0, ranks=2, name="0xfe", device=0) -> str:
    words = f"comm {comm} rank {rank} nranks {ranks} cudaDev {device} busId b000 commId {name}"
    return f"n1:{pid}:{pid} [0] NCCL INFO {words} - Init COMPLETE"


def step(number: int, timing: float | None = None, tflops: float | None = None) -> str:
    text = f"Training epoch 0, iteration {number}/99 | lr: 1e-5"
    text += "" if timing is None else f" | train_step_timing in s: {timing}"
    return text + ("" if tflops is None else f" | TFLOPS_per_GPU: {tflops}")


def stream(texts: tuple[str, ...]) -> Callable[[int], bytes]:
    return io.BytesIO("".join(text + "\n" for text in texts).encode()).read


def summary_of(*texts: str, steps: str | None = None) -> Summary:
    summary, reader = Summary(), LogReader()
    lines = reader.read(stream(texts))
    summary.add(lines if steps is None else StepCut(steps_of(steps)).of(lines))
    summary.lines = reader.lines
    return summary


def rows(name: str, summary: Summary) -> list[dict[str, Any]]:
    answer = TABLES[name].make(summary)
    return [dict(zip([column.key for column in answer.columns], row, strict=True)) for row in answer.rows]


def columns(keys: tuple[str, ...], found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in found]


class TestCalls:
    def test_ops_have_exact_sizes_and_calls_per_gpu(self):
        summary = summary_of(
            call(count=2**31 + 1), call(count=1), call(pid=2, count=3), call("AllGather", datatype=0, pid=2)
        )
        first, second = rows("ops", summary)
        total = 4 * (2**31 + 1 + 1 + 3)
        assert first == {
            "op": "AllReduce",
            "calls": 3,
            "calls_per_gpu": 1.5,
            "min_bytes": 4,
            "avg_bytes": total / 3,
            "max_bytes": 2**33 + 4,
            "total_bytes": total,
        }
        assert (second["op"], second["calls"], second["calls_per_gpu"], second["total_bytes"]) == (
            "AllGather",
            1,
            0.5,
            10,
        )

    def test_buckets_begin_at_their_lower_edge_and_tell_the_spread(self):
        sizes = [2**16 - 1, 2**16, 2**20 - 1, 2**20, 2**24 - 1, 2**24, 8 * GB]
        summary = summary_of(*(call(count=size, datatype=0) for size in sizes), call(count=1, datatype=0, pid=2))
        found = [
            (row["bucket"], row["calls"], row["least_per_gpu"], row["most_per_gpu"]) for row in rows("sizes", summary)
        ]
        assert found == [("<64KiB", 2, 1, 1), ("64KiB–1MiB", 2, 0, 2), ("1MiB–16MiB", 2, 0, 2), (">16MiB", 2, 0, 2)]

    def test_kinds_of_calls_are_counted_by_op_count_and_datatype(self):
        summary = summary_of(call(), call(), call(datatype=9), call(count=20), call("Send"))
        keys = ("calls", "op", "count", "datatype", "bytes")
        assert columns(keys, rows("calls", summary)) == [
            (1, "AllReduce", 20, "fp32", 80),
            (2, "AllReduce", 10, "fp32", 40),
            (1, "AllReduce", 10, "bf16", 20),
            (1, "Send", 10, "fp32", 40),
        ]

    def test_a_datatype_of_unknown_size_is_a_call_and_no_bytes(self):
        summary = summary_of(call(datatype=12), call(datatype=12))
        assert rows("ops", summary)[0]["calls"] == 2
        assert {rows("ops", summary)[0][key] for key in ("min_bytes", "avg_bytes", "max_bytes", "total_bytes")} == {
            None
        }
        assert [(row["bucket"], row["calls"], row["total_bytes"]) for row in rows("sizes", summary)] == [
            ("unknown", 2, None)
        ]
        assert rows("calls", summary)[0]["datatype"] == "datatype 12"
        assert any("2 calls of a datatype whose size is not known" in note for note in notes(summary))

    def test_calls_of_count_0_are_calls(self):
        summary = summary_of(call(count=0), call(count=1))
        assert (rows("ops", summary)[0]["calls"], rows("ops", summary)[0]["min_bytes"]) == (2, 0)
        assert any("1 call with count 0" in note for note in notes(summary))

    def test_a_call_whose_process_is_lost_counts_but_for_no_gpu(self):
        summary = summary_of(call(), "904:5 [0] " + call().partition("] ")[2])
        assert (rows("ops", summary)[0]["calls"], rows("ops", summary)[0]["calls_per_gpu"]) == (2, 1.0)
        assert [row["host"] for row in rows("gpus", summary)] == ["n1", None]
        assert any("1 call lost the host and process" in note for note in notes(summary))


class TestRanks:
    LINES = (
        init(1, rank=0),
        init(2, rank=1, device=1),
        init(1, "0xc2", rank=0, ranks=8, name="0xaa"),
        call(pid=1, op_count=1),
        call(pid=1, op_count=10),
        call(pid=2, op_count=9),
    )

    def test_communicators_tell_which_ranks_called_how_often(self):
        named, unused = rows("communicators", summary_of(*self.LINES))
        assert named == {
            "communicator": "0xfe",
            "ranks": 2,
            "in_log": "0-1",
            "calls": 3,
            "least_per_rank": 1,
            "most_per_rank": 2,
            "total_bytes": 120,
        }
        assert (unused["communicator"], unused["ranks"], unused["in_log"], unused["calls"]) == ("0xaa", 8, "0", 0)

    def test_ranks_tell_their_gpu_and_last_op_count_as_the_log_writes_it(self):
        keys = ("rank", "pid", "device", "last_op_count")
        assert columns(keys, rows("ranks", summary_of(*self.LINES))) == [
            (0, 1, 0, "a"),
            (1, 2, 1, "9"),
            (0, 1, 0, None),
        ]

    def test_one_process_with_two_gpus_is_two_gpus_whatever_stands_before_its_calls(self):
        summary = summary_of(
            init(comm="0xc1", rank=0, device=0),
            init(comm="0xc2", rank=1, device=1),
            call(comm="0xc1", device=1),
            call(comm="0xc2", device=1),
        )
        assert [(row["rank"], row["device"], row["calls"]) for row in rows("gpus", summary)] == [(0, 0, 1), (1, 1, 1)]

    def test_the_rank_of_a_gpu_is_rccls_or_that_in_its_largest_communicator(self):
        summary = summary_of(
            init(1, "0xc1", rank=0, ranks=2),
            init(1, "0xc2", rank=5, ranks=8, name="0xaa"),
            call(),
            call(comm="0xc2", ranks=8),
            call(pid=2) + " task 0 globalrank 3",
        )
        assert [(row["rank"], row["pid"], row["calls"]) for row in rows("gpus", summary)] == [(3, 2, 1), (5, 1, 2)]

    def test_what_no_line_names_is_one_row_for_each_size_and_a_note(self):
        summary = summary_of(call(pid=1), call(pid=2), call(pid=3, ranks=8))
        keys = ("communicator", "ranks", "in_log", "calls")
        assert columns(keys, rows("communicators", summary)) == [
            ("2 without a name", 2, None, 2),
            ("1 without a name", 8, None, 1),
        ]
        assert any("NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING" in note for note in notes(summary))

    def test_calls_that_were_not_recorded_at_all_are_not_0(self):
        (row,) = rows("communicators", summary_of(init()))
        assert (row["calls"], row["total_bytes"]) == (None, None)

    def test_a_pointer_used_again_counts_for_the_communicator_of_its_time(self):
        end = init().replace("Init", "Destroy")
        summary = summary_of(init(name="0x1"), call(), end, init(name="0x2"), call(), call())
        assert [(row["communicator"], row["calls"]) for row in rows("communicators", summary)] == [
            ("0x1", 1),
            ("0x2", 2),
        ]


class TestSteps:
    LINES = (
        init(),
        call("Broadcast"),
        step(44, 9, 1000),
        call(count=44),
        step(45, 6.08, 1249),
        call(count=45),
        step(46, 6.1, 1251),
        call(count=46),
        step(47, 7),
        call(count=47),
    )

    @pytest.mark.parametrize(
        ("text", "kept"), [("45:46", [45, 46]), ("46", [46]), (":45", [44, 45]), ("46:", [46, 47]), ("90:99", [])]
    )
    def test_the_calls_after_the_line_of_an_iteration_are_its_own(self, text, kept):
        assert sorted(row["count"] for row in rows("calls", summary_of(*self.LINES, steps=text))) == kept

    def test_communicators_from_before_the_training_are_known(self):
        assert rows("communicators", summary_of(*self.LINES, steps="45:46"))[0]["communicator"] == "0xfe"

    def test_step_time_and_tflops_are_means_of_what_the_lines_tell(self):
        (row,) = rows("steps", summary_of(*self.LINES, steps="45:47"))
        assert (row["lines"], row["first"], row["last"]) == (3, 45, 47)
        assert row["avg_step"] == pytest.approx((6.08 + 6.1 + 7) / 3 * 1e9)
        assert (row["avg_tflops"], row["min_tflops"], row["max_tflops"]) == (1250, 1249, 1251)  # 47 tells none

    def test_iterations_are_there_one_by_one_and_each_once(self):
        lines = (
            "[Rank 0] step=10, skipped=0, lr=[0.001]",
            "steps: 10 loss: 2.5 iter time (s): 0.500 samples/sec: 16.0",
            "steps: 20 loss: 2.25 iter time (s): 0.250 samples/sec: 32.0",
        )
        keys = ("epoch", "iteration", "step_time", "tflops", "loss", "lines")
        assert columns(keys, rows("iterations", summary_of(*lines))) == [
            (None, 10, 0.5e9, None, 2.5, 2),
            (None, 20, 0.25e9, None, 2.25, 1),
        ]

    def test_more_iterations_than_a_table_holds_are_told(self, monkeypatch):
        monkeypatch.setattr("nsystui.questions.nccl_log.summary._MOST_ITERATIONS", 3)
        summary = summary_of(*(step(number) for number in range(10)))
        assert len(rows("iterations", summary)) == 3
        assert any("has the first 3: 7 lines of others left out" in note for note in notes(summary))

    def test_without_training_lines_there_is_no_step_time(self):
        assert rows("steps", summary_of(call())) == []

    def test_each_log_is_cut_by_its_own_lines(self):
        cut, summary = StepCut(Steps(45, 45)), Summary()
        for texts in ((step(45), call(count=1)), (call(count=2),)):
            summary.add(cut.of(LogReader().read(stream(texts))))
        assert [kind.elements for kind in summary.kinds] == [1]
        assert (cut.heard, cut.chosen, cut.outside) == (1, 1, 1)

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
        monkeypatch.setattr("nsystui.questions.nccl_log.summary._MOST_PENDING", 5)
        summary = summary_of(*(call(count=n) for n in range(100)), *(call(count=n) for n in range(100)))
        assert set(summary.kinds.values()) == {2}

    def test_a_log_that_breaks_off_counts_up_to_there(self):
        def broken():
            yield from LogReader().read(stream((call(), call())))
            raise ExportError("x.gz", "the .gz ends early")

        summary = Summary()
        with pytest.raises(ExportError):
            summary.add(broken())
        assert summary.calls == 2


class TestSequences:
    def test_the_calls_of_each_rank_are_in_their_order(self):
        texts = (
            init(1, rank=0),
            init(2, rank=1),
            call(pid=1, op_count=1),
            call(pid=2, op_count=1),
            call("AllGather", pid=1, op_count=2),
            call(pid=1, op_count=3),
            call(pid=2, op_count=2, comm="0xc9"),
        )
        found = call_sequences(LogReader().read(stream(texts)))
        assert [(each.member.communicator, each.member.rank, len(each)) for each in found] == [
            ("0xfe", 0, 3),
            ("0xfe", 1, 1),
            ("pointer 0xc9", None, 1),
        ]
        assert [(one.signature.op, one.op_count) for one in found[0].calls()] == [
            ("AllReduce", 1),
            ("AllGather", 2),
            ("AllReduce", 3),
        ]
        assert len(found[0].signatures) == 2  # 12 bytes a call: the arguments are there once

    def test_a_pointer_used_again_begins_another_sequence(self):
        end = init().replace("Init", "Destroy")
        texts = (init(name="0x1"), call(), end, init(name="0x2"), call(), call())
        found = call_sequences(LogReader().read(stream(texts)))
        assert [(each.member.communicator, len(each)) for each in found] == [("0x1", 1), ("0x2", 2)]

    def test_arrays_can_be_looked_at_as_numpys(self):
        np = pytest.importorskip("numpy")
        (found,) = call_sequences(LogReader().read(stream(tuple(call(op_count=n) for n in range(5)))))
        assert np.frombuffer(found.op_counts, np.uint64).tolist() == [0, 1, 2, 3, 4]
        assert np.frombuffer(found.kinds, np.uint32).tolist() == [0] * 5
