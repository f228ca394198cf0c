"""Logs torn, cut or glued by concurrent writers and full disks: no crash, and no invented call.

Writers tear lines so: one is interrupted, another writes its own line (which may be torn too), then the first
continues. So the rest of a torn line always begins after a line end, and what follows a torn beginning is the
beginning of another line.
"""

import io
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsystui.exports.nccl_log.lines import Call, LogReader, Unread
from nsystui.questions.nccl_log.summary import LogSummary
from nsystui.questions.nccl_log.tables import TABLES

PREFIXES = ("", "1: ", "(Worker pid=6, ip=10.7.7.6) ", "[2026-03-12 13:57:49] ", "  40.2  1.7  ", "-1")
OTHERS = (
    "n1:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
    "n1:7:7 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId b000 commId 0xfe - Init COMPLETE",
    "n1:7:7 [0] NCCL INFO AllReduce: 4194304 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}",
    "n1:7:7 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1",
    "n1:7:7 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1",
    "n1:7:7 [0] NCCL INFO Channel 00/02 : 0 1",
    "n1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB [RO]; OOB eno1:10.0.0.3<0>",
    "n1:7:7 [0] NCCL INFO Init timings - ncclCommInitRank: rank 0 nranks 2 total 0.67 (kernels 0.57, rest 0.10)",
    "steps: 10 loss: 2.3000 iter time (s): 0.500 samples/sec: 16.000",
    "Training epoch 0, iteration 45/99 | train_step_timing in s: 6.08 | TFLOPS_per_GPU: 1.249e+03",
    "     8388608       2097152     float     sum      -1",
)

calls = st.builds(
    "{}n{}:{}:7 [{}] NCCL INFO {}: opCount {:x} sendbuff 0x7f{:x} recvbuff {} count {} datatype {} op 0 root {} "
    "comm 0x55aa{:x} [nranks={}] stream 0x55bb{}".format,
    st.sampled_from(PREFIXES),
    st.integers(0, 12),
    st.integers(1, 99999),
    st.integers(0, 7),
    st.sampled_from(("AllReduce", "Reduce", "ReduceScatter", "Gather", "AllGather", "Send", "Broadcast")),
    st.integers(0, 2**20),
    st.integers(0, 2**20),
    st.sampled_from(("0x7f20", "(nil)", "0x7f20 acc (nil)")),
    st.integers(0, 2**40),
    st.integers(0, 12),
    st.integers(0, 15),
    st.integers(0, 2**16),
    st.integers(2, 128),
    st.sampled_from(("", " task 0 globalrank 5")),
)
lines = calls | st.sampled_from(OTHERS)


@st.composite
def torn(draw: st.DrawFn, depth: int = 0) -> tuple[list[str], str]:
    """Draw whole lines, and text that concurrent writers made of them."""
    line = draw(lines)
    if depth == 3 or draw(st.booleans()):
        return [line], draw(st.sampled_from((line + "\n", line + "\r\n")))
    place = draw(st.integers(0, len(line)))
    inner, text = draw(torn(depth + 1))
    return [line, *inner], line[:place] + text + line[place:] + "\n"


@st.composite
def cut(draw: st.DrawFn) -> tuple[list[str], str]:
    """Draw a line without its beginning or its end."""
    line = draw(lines)
    first = draw(st.integers(0, len(line)))
    return [line], draw(st.sampled_from((line[first:], line[:first]))) + "\n"


@st.composite
def glued(draw: st.DrawFn) -> tuple[list[str], str]:
    """Draw whole lines without the line ends between them."""
    found = draw(st.lists(lines, min_size=2, max_size=3))
    return found, "".join(found) + "\n"


def said(call: Call) -> tuple[str, int, int, int]:
    return call.signature.op, call.op_count, call.signature.count, call.signature.datatype


def read(data: bytes) -> list[object]:
    return list(LogReader().read(io.BytesIO(data).read))


def made(whole: list[str]) -> Counter[tuple[str, int, int, int]]:
    """Return the calls in the lines, each read alone."""
    return Counter(said(line) for text in whole for line in read(text.encode()) if isinstance(line, Call))


@pytest.mark.campaign
@settings(max_examples=250, deadline=None)
@given(st.lists(torn() | cut() | glued(), max_size=6))
def test_damage_never_makes_a_call(pieces):
    whole = [line for lines_of_piece, _ in pieces for line in lines_of_piece]
    found = read("".join(text for _, text in pieces).encode())
    assert Counter(said(line) for line in found if isinstance(line, Call)) <= made(whole)


@settings(max_examples=150, deadline=None)
@given(st.lists(calls, min_size=1, max_size=4), st.integers(0, 400))
def test_a_call_is_read_or_told_as_unread_wherever_the_log_ends(whole, missing):
    text = "\n".join(whole)
    kept = text[: max(len(text) - missing, 0)]
    found = read(kept.encode())
    assert sum(isinstance(line, Call | Unread) for line in found) == kept.count("opCount")
    assert Counter(said(line) for line in found if isinstance(line, Call)) <= made(whole)


@settings(max_examples=150, deadline=None)
@given(st.lists(calls, min_size=1, max_size=5))
def test_undamaged_calls_are_all_read(whole):
    found = read("\n".join(whole).encode())
    assert len([line for line in found if isinstance(line, Call)]) == len(found) == len(whole)


@pytest.mark.campaign
@settings(max_examples=150, deadline=None)
@given(st.lists(torn() | cut() | glued(), max_size=8), st.binary(max_size=40))
def test_every_table_is_made_of_a_damaged_log(pieces, noise):
    data = noise.join(text.encode() for _, text in pieces)
    summary = LogSummary()
    summary.add(LogReader().read(io.BytesIO(data).read))
    for table in TABLES.values():
        assert table.make(summary).total >= 0


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.lists(st.sampled_from(OTHERS), max_size=2), st.binary(max_size=300))
def test_bytes_of_any_kind_are_read_without_a_call(before, others, after):
    found = read(before + "".join(others).encode() + after)
    assert not [line for line in found if isinstance(line, Call)]
