"""Every form of line of NCCL and RCCL, after every prefix, and damaged lines."""

import io
from collections import Counter
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsystui.exports.nccl_log.files import NcclTestsResult, Reported, TrainingStep
from nsystui.exports.nccl_log.lines import (
    BLOCK,
    LONGEST_LINE,
    Call,
    CommunicatorLine,
    CommunicatorState,
    Damage,
    Line,
    LogProcess,
    LogReader,
    Signature,
    TuningLine,
    Unread,
    Writer,
    blocks,
)
from nsystui.questions.nccl_log.summary import LogSummary
from nsystui.questions.nccl_log.tables import TABLES

LOGS = Path(__file__).parents[3] / "shared/data/nccl-logs"

TEXT = (
    "NCCL INFO AllReduce: opCount 1a sendbuff 0x7f10 recvbuff 0x7f20 count 1000 datatype 7 op 0 root 0 "
    "comm 0x55aa [nranks=8] stream 0x55bb"
)
LINE = f"n1:100:101 [3] {TEXT}"
WRITER = Writer(LogProcess("n1", 100), 3)
SIGNATURE = Signature(WRITER, "AllReduce", 1000, 7, reduction=0, root=0, communicator=0x55AA, ranks=8)
CALL = Call(SIGNATURE, 0x1A)


def read(*texts: str | bytes) -> list[Line]:
    data = b"".join((text.encode() if isinstance(text, str) else text) + b"\n" for text in texts)
    return list(LogReader().read(io.BytesIO(data).read))


def calls(lines: Iterable[Line]) -> list[Call]:
    return [line for line in lines if isinstance(line, Call)]


def test_a_call_says_all_of_its_arguments():
    assert read(LINE) == [CALL]
    assert SIGNATURE.size == 4000
    hexadecimal = read(*(LINE.replace("1a", count) for count in ("9", "a", "139d")))
    assert [call.op_count for call in calls(hexadecimal)] == [9, 10, 0x139D]
    peer = LINE.replace("AllReduce", "Send").replace("recvbuff 0x7f20", "recvbuff (nil)").replace("root 0", "root 6")
    (call,) = calls(read(peer))
    assert (call.signature.op, call.signature.root) == ("Send", 6)
    (call,) = calls(read(LINE + " [repeated 3x across cluster]"))  # Ray has folded lines
    assert call.signature.is_folded


PREFIXES = ["1: ", "12: ", "(RayTrainWorker pid=615, ip=10.72.7.6) ", "\x1b[36m(RayTrainWorker pid=615)\x1b[0m "]
PREFIXES += ["[2026-03-12 13:57:49] ", "[13:57:49.123]", "[1,0]<stdout>:", '{"log":"']
PREFIXES += ["     8388608       2097152     float     sum      ", "Loading:  45%|####5     | 45/99 [01:02<01:10]\r"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_stands_before_the_host_does_not_matter(prefix):
    assert read(prefix + LINE) == [CALL]


def test_rccl_writes_a_time_before_nccl_info_and_more_words():
    texts = [
        LINE.replace("] NCCL", "] 1558545003174220 NCCL"),
        LINE.replace("0x7f20 count", "0x7f20 acc (nil) count"),
        LINE + " task 0 globalrank 5",
    ]
    found = [call.signature for call in calls(read(*texts))]
    assert [signature.writer for signature in found] == [WRITER] * 3
    assert [signature.count for signature in found] == [1000] * 3
    assert [signature.global_rank for signature in found] == [None, None, 5]


def test_datatypes_have_their_sizes_and_an_unknown_one_none():
    found = calls(read(*(LINE.replace("datatype 7", f"datatype {number}") for number in range(13))))
    sizes = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, None)
    assert [call.signature.size for call in found] == [size and size * 1000 for size in sizes]
    (call,) = calls(read(LINE.replace("count 1000", "count 2251799813685249")))
    assert call.signature.size == 9007199254740996  # above 53 bits


def test_a_call_that_is_cut_counts_with_what_is_whole_or_is_unread():
    for end in ("count 10", "datatype", "datatype 7", "count 1000 datatype 7 o"):
        assert read(LINE[: LINE.index(end) + len(end)]) == [Unread(Damage.CUT_SHORT)], end
    (call,) = calls(read(LINE[: LINE.index("0x55aa") + 4]))  # half of the pointer
    assert (call.signature.size, call.signature.communicator, call.signature.ranks) == (4000, None, None)
    (call,) = calls(read(LINE[: LINE.index("[nranks=8")] + "[nranks=1"))
    assert (call.signature.communicator, call.signature.ranks) == (0x55AA, None)
    # The beginning is missing: the operation is not guessed.
    assert read(TEXT.removeprefix("NCCL INFO ")) == [Unread(Damage.HEADLESS)]
    assert read("Reduce: opCount" + TEXT.partition("opCount")[2]) == [Unread(Damage.HEADLESS)]


def test_a_second_line_that_begins_inside_of_the_first_is_read_and_the_first_is_told():
    other = LINE.replace("AllReduce", "Broadcast")
    assert [call.signature.op for call in calls(read("n2:5:5 [0] NCCL INFO " + other))] == ["Broadcast"]
    torn = read(LINE[: LINE.index(" count")] + other)
    assert [call.signature.op for call in calls(torn)] == ["Broadcast"]
    assert Unread(Damage.CUT_SHORT) in torn
    assert [call.signature.op for call in calls(read(LINE + other))] == ["AllReduce", "Broadcast"]


def test_the_process_of_a_call_is_known_by_its_host_and_id():
    (lost,) = calls(read(f"904:64904 [0] {TEXT}"))
    assert lost.signature.writer is None
    # Output may be glued to the host, and letters torn off.
    found = calls(read(LINE, f"-1{LINE}", f"40.2{LINE}", LINE[1:]))
    assert {call.signature.writer for call in found} == {WRITER}
    assert calls(read(LINE, "-1" + LINE.replace(":100:", ":200:")))[1].signature.writer != WRITER


OF_RANK = "comm 0xc1 rank 2 nranks 4 cudaDev 1"


@pytest.mark.parametrize(("text", "words"), [
    (f"{OF_RANK} busId b000 - Init COMPLETE", {}),
    (f"{OF_RANK} busId b000 commId 0xfe - Init COMPLETE", {"unique_id": 0xFE}),
    (f"ncclCommInitRank {OF_RANK} nvmlDev 1 busId b000 commId 0xfe localSize 152 used 1024 bytes on core 12 "
     "- Init COMPLETE",
     {"unique_id": 0xFE}),
    (f"[Rank 2] ncclCommInitRankConfig {OF_RANK} nvmlDev 1 busId b000 commId 0xfe - Init START",
     {"unique_id": 0xFE, "state": CommunicatorState.STARTED}),
    (f"ncclCommSplit {OF_RANK} nvmlDev 1 busId b000 parent 0xc0 splitCount 3 color -7 key 2 - Init COMPLETE",
     {"parent": 0xC0, "split_count": 3, "color": -7}),
    (f"{OF_RANK} busId b000 - Destroy COMPLETE", {"state": CommunicatorState.DESTROYED}),
    (f"{OF_RANK} busId b000 - Abort COMPLETE", {"state": CommunicatorState.ABORTED}),
])  # fmt: skip
def test_communicators_are_read_by_the_names_of_the_words(text, words):
    expected = {"state": CommunicatorState.COMPLETE, "pointer": 0xC1, "rank": 2, "ranks": 4, "device": 1, **words}
    assert read(f"n1:100:101 [1] NCCL INFO {text}") == [CommunicatorLine(Writer(LogProcess("n1", 100), 1), **expected)]


@pytest.mark.parametrize("text", [
    "comm 0xc1 rank 2 cudaDev 1 - Init COMPLETE",  # no size
    "comm 0xc1 rank 2 nran",
    "comm 0xc1 rank 2 nn1:5:5 [0] NCCL INFO comm - Init COMPLETE",
    "Init timings - ncclCommInitRankConfig: rank 1 nranks 2 total 0.67",
    "AllReduce: 4 Bytes -> Algo RING proto SIM",  # a choice of the tuner
    "NET/IB : Made virtual device",
])  # fmt: skip
def test_what_is_not_whole_or_something_else_is_none(text):
    assert read(f"n1:100:101 [1] NCCL INFO {text}", "n1:1:1 NCCL CALL ncclGroupEnd()", "", "loss") == []


@pytest.mark.parametrize(("text", "expected"), [
    ("4194304 Bytes -> Algo 1 proto 2 time 2860.208008", (None, 4194304, "RING", "SIMPLE")),
    ("AllGather: 64 Bytes -> Algo 0 proto 0 time 6.2", ("AllGather", 64, "TREE", "LL")),
    ("AllReduce: 4 Bytes -> Algo NVLS_TREE proto LL128 channel{Lo..Hi}={0..23}",
     ("AllReduce", 4, "NVLS_TREE", "LL128", 24)),
    ("AllReduce [Symmetric]: 8 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512 nWorks 1",
     ("AllReduce", 8, "AllReduce_AGxLL_R", None, 4)),
    ("AllGather [Copy Engine]: 8 Bytes -> cudaMemcpy", ("AllGather", 8, "cudaMemcpy")),
])  # fmt: skip
def test_choices_of_the_tuner_are_read_in_the_form_of_every_version(text, expected):
    assert read(f"n1:1:1 [0] NCCL INFO {text}") == [TuningLine(*expected)]


def test_training_lines_are_read_wherever_they_stand():
    timing = "train_step_timing in s: 6.08 | TFLOPS_per_GPU: 1.249e+03 |"
    step = f"Training epoch 1, iteration 45/99 | lr: 6.8e-06 | {timing}"
    first, second = TrainingStep(1, 45, 6.08, 1249.0), TrainingStep(1, 46)
    assert read(f"0: {step} consumed_samples: 5") == [first]
    # No line end between them, and a call after them.
    assert read(f"{step}Training epoch 1, iteration 46/99 | {LINE}") == [first, second, CALL]
    unread = "Training epoch 0, iteration 3/9 | train_step_timing in s: nan | TFLOPS_per_GPU: 1.2.3"
    assert read(unread) == [TrainingStep(0, 3)]


@pytest.mark.parametrize(("line", "step"), [
    (  # NeMo 2
        "Training epoch 0, iteration 7/99 | global_step: 7 | reduced_train_loss: 11.03 | "
        "train_step_timing in s: 6.08 | TFLOPS_per_GPU: 1.249e+03",
        TrainingStep(0, 7, 6.08, 1249.0, 11.03),
    ),
    (  # Megatron-LM
        " [2026-01-02 03:04:05] iteration      142/  250000 | consumed samples:       145408 | elapsed time per "
        "iteration (ms): 1250.5 | throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate: 1.065E-05 | "
        "global batch size:  1024 | lm loss: 2.466446E+00 | loss scale: 1.0 | grad norm: 0.687 |",
        TrainingStep(None, 142, 1.2505, 412.3, 2.466446),
    ),
    (  # The same without the throughput
        " iteration        3/      10 | elapsed time per iteration (ms): 20.0 | loss scale: 1.0 |",
        TrainingStep(None, 3, 0.02),
    ),
    (  # Lightning: its rate is a mean since the start, not a step time
        "Epoch 2:  12%|█▏        | 12/100 [00:05<00:40,  2.20it/s, v_num=0, train_loss=1.230]",
        TrainingStep(2, 12, loss=1.23),
    ),
    (  # NeMo 1, in Lightning's progress bar
        "Epoch 0: :   1%|          | 12/1000 [00:05<10:40, v_num=, reduced_train_loss=10.90, global_step=11.00, "
        "train_step_timing in s=0.613]",
        TrainingStep(0, 12, 0.613, loss=10.9),
    ),
    (  # DeepSpeed: the pipeline engine, and other engines
        "steps: 10 loss: 2.3000 iter time (s): 0.500 samples/sec: 16.000",
        TrainingStep(None, 10, 0.5, loss=2.3),
    ),
    ("[Rank 0] step=10, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]", TrainingStep(None, 10)),
    ("[Rank 0] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=7.5, CurrSamplesPerSec=7.6, ",
     TrainingStep(None, 10)),
])  # fmt: skip
def test_iterations_of_the_training_frameworks_are_read(line, step):
    assert read(line) == [step]
    assert read(f"3: {line}\r{LINE}") == [step, CALL]


def test_other_lines_are_no_iterations():
    bar = "Validation DataLoader 0:  12%|█▏  | 12/100 [00:05<00:40,  2.20it/s]"
    others = ("Epoch 3 begins", bar, "epoch 1 step=, skipped=0", "iteration 5 of 10, elapsed time per iteration")
    for line in (*others, "steps: many loss: 1 iter time (s): 2"):
        assert read(line) == [], line


def test_lines_are_counted_as_wc_counts_them_and_a_last_one_without_an_end():
    for data, lines in ((b"", 0), (b"a\n", 1), (b"a\nb", 2), (b"a\r\nb\r\n\n", 3)):
        reader = LogReader()
        assert list(reader.read(io.BytesIO(data).read)) == []
        assert reader.lines == lines


class TestStreaming:
    def test_a_line_is_whole_wherever_the_blocks_end(self):
        for size in (1, 7, 100, 4096):
            stream = io.BytesIO((LINE + "\n").encode() * 50)
            assert list(LogReader().read(lambda _, size=size, stream=stream: stream.read(size))) == [CALL] * 50

    def test_what_is_read_is_given_before_more_is_read(self):
        taken = []
        lines = LogReader().read(lambda size: taken.append(size) or (LINE + "\n").encode() * 100)
        for _ in range(150):
            next(lines)
        assert len(taken) == 2

    def test_the_same_call_is_the_same_value_again(self):
        found = calls(read(LINE, LINE.replace("1a", "1b").replace("0x7f10", "0x7f90")))
        assert found[0].signature is found[1].signature

    def test_a_file_without_line_ends_is_read_in_pieces(self):
        assert max(map(len, blocks(io.BytesIO(b"\0" * (3 * LONGEST_LINE)).read))) <= LONGEST_LINE + BLOCK

    def test_what_is_remembered_is_forgotten_in_time(self, monkeypatch):
        monkeypatch.setattr("nsystui.exports.nccl_log.lines._MAX_CACHED", 10)
        reader = LogReader()
        texts = (LINE.replace("n1", f"n{n}").replace("count 1000", f"count {n}") + "\n" for n in range(100))
        found = calls(reader.read(io.BytesIO("".join(texts).encode()).read))
        assert [call.signature.count for call in found] == list(range(100))
        assert len(reader._by_prefix) <= 10
        assert len(reader._by_writer) <= 10


@pytest.mark.skipif(not LOGS.is_dir(), reason="the real logs are not on this machine")
class TestRealLogs:
    """Compare each line with a plain split into words."""

    @staticmethod
    def plain(line: bytes) -> tuple[object, ...] | None:
        words = line.decode("utf-8", "replace").split()
        if "opCount" not in words or "NCCL" not in words or "datatype" not in words:
            return None

        def after(word: str) -> str:
            return words[len(words) - 1 - words[::-1].index(word) + 1]

        op = words[words.index("opCount") - 1].rstrip(":")
        ranks = next(int(word[8:-1]) for word in words if word.startswith("[nranks="))
        numbers = int(after("opCount"), 16), int(after("count")), int(after("datatype")), int(after("root"))
        return (op, *numbers, int(after("comm"), 16), ranks)

    @pytest.mark.parametrize("name", [path.name for path in sorted(LOGS.glob("*.log"))])
    def test_every_call_is_read_as_its_words_say(self, name):
        lines = (LOGS / name).read_bytes().split(b"\n")
        expected = [found for found in map(self.plain, lines) if found]
        with (LOGS / name).open("rb") as log:
            found = calls(LogReader().read(log.read))
        assert [
            (one.op, call.op_count, one.count, one.datatype, one.root, one.communicator, one.ranks)
            for call in found
            for one in [call.signature]
        ] == expected
        assert len(expected) == {"nccl-tests-allreduce-2gpu.log": 990, "mixed-prefixes-excerpt.log": 21}.get(name, 6)

    def test_the_mixed_lines_keep_their_writers(self):
        with (LOGS / "mixed-prefixes-excerpt.log").open("rb") as log:
            found = list(LogReader().read(log.read))
        writers = [call.signature.writer for call in calls(found)]
        assert None not in writers
        ray = "r24-02-22-23-29-0066-raycluster-lv52c-worker-l4-8-fqztx"
        # learnfair062, not the torn host before it
        told = {(ray, 615, 2), ("node-3", 278, 0), ("TARS", 829508, 1), ("learnfair062", 32629, 7)}
        assert {Writer(LogProcess(host, process), device) for host, process, device in told} <= {*writers}
        assert [line.damage for line in found if isinstance(line, Unread)] == [Damage.HEADLESS, Damage.CUT_SHORT]

    def test_glued_output_makes_no_other_host(self):
        with (LOGS / "nccl-tests-allreduce-2gpu.log").open("rb") as log:
            found = calls(LogReader().read(log.read))
        assert {call.signature.writer.process for call in found if call.signature.writer} == {LogProcess("mew0", 64904)}


LOG = Path(__file__).parents[3] / "shared/data/nccl-logs/nccl-tests-allreduce-2gpu.log"
HEADER = (
    b"#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw\n"
)
INFO = b"n01:64904:64904 [1] NCCL INFO AllReduce: opCount 0 count 2097152 datatype 7 op 0 root 0 comm 0x55 [nranks=2]\n"
SIZE = b"     8388608       2097152     float     sum      -1"
FIRST, SECOND = b"    83.33  100.66  100.66      0", b"    80.98  103.59  103.59    N/A"


def reported(*parts: bytes) -> list[Reported]:
    reader = LogReader()
    list(reader.read(BytesIO(b"".join(parts)).read))
    return reader.reported


@pytest.mark.parametrize("between", [b"", INFO, INFO * 3])
def test_a_result_is_read_whole_or_in_parts(between):
    parts = (HEADER, SIZE, between, FIRST, between, SECOND, b"\n", INFO)
    out, inside = NcclTestsResult(83_330.0, 100.66e9, 100.66e9, 0), NcclTestsResult(80_980.0, 103.59e9, 103.59e9, None)
    ((size, *found),) = reported(*parts)
    assert size == 8388608
    assert [one[:3] for one in found] == [pytest.approx(out[:3]), pytest.approx(inside[:3])]
    assert [one.wrong for one in found] == [0, None]  # N/A: in place was not checked


def test_numbers_before_the_header_or_without_both_times_are_no_result():
    assert reported(SIZE, FIRST, SECOND, b"\n") == []
    assert reported(HEADER, SIZE, FIRST, b"\n", INFO) == []
    assert reported(HEADER, FIRST, SECOND, b"\n") == []


@pytest.mark.skipif(not LOG.exists(), reason="the real log of nccl-tests is not on this machine")
def test_a_real_log_has_a_result_of_each_size():
    with LOG.open("rb") as log:
        reader = LogReader()
        list(reader.read(log.read))
    found = reader.reported
    assert [one.size for one in found] == [1 << power for power in range(23, 34)]
    assert (found[0].size, found[0].out_of_place.time, found[0].in_place.time) == (8388608, 83_330.0, 80_980.0)
    assert (found[-2].out_of_place.time, found[-2].in_place.time) == (20_069_000.0, 20_054_000.0)
    # The log's average of the bus bandwidths, GB/s: for two ranks, size by time.
    rates = [one.size / place.time for one in found for place in (one.out_of_place, one.in_place)]
    assert sum(rates) / len(rates) == pytest.approx(178.078, rel=1e-3)


TORN_PREFIXES = ("", "1: ", "(Worker pid=6, ip=10.7.7.6) ", "[2026-03-12 13:57:49] ", "  40.2  1.7  ", "-1")
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

calls_in = st.builds(
    "{}n{}:{}:7 [{}] NCCL INFO {}: opCount {:x} sendbuff 0x7f{:x} recvbuff {} count {} datatype {} op 0 root {} "
    "comm 0x55aa{:x} [nranks={}] stream 0x55bb{}".format, st.sampled_from(TORN_PREFIXES), st.integers(0, 12),
    st.integers(1, 99999), st.integers(0, 7),
    st.sampled_from(("AllReduce", "Reduce", "ReduceScatter", "Gather", "AllGather", "Send", "Broadcast")),
    st.integers(0, 2**20), st.integers(0, 2**20), st.sampled_from(("0x7f20", "(nil)", "0x7f20 acc (nil)")),
    st.integers(0, 2**40), st.integers(0, 12), st.integers(0, 15), st.integers(0, 2**16), st.integers(2, 128),
    st.sampled_from(("", " task 0 globalrank 5")),
)  # fmt: skip
lines = calls_in | st.sampled_from(OTHERS)


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


def read_torn(data: bytes) -> list[object]:
    return list(LogReader().read(io.BytesIO(data).read))


def made(whole: list[str]) -> Counter[tuple[str, int, int, int]]:
    """Return the calls in the lines, each read alone."""
    return Counter(said(line) for text in whole for line in read_torn(text.encode()) if isinstance(line, Call))


@pytest.mark.campaign
@settings(max_examples=250, deadline=None)
@given(st.lists(torn() | cut() | glued(), max_size=6))
def test_damage_never_makes_a_call(pieces):
    whole = [line for lines_of_piece, _ in pieces for line in lines_of_piece]
    found = read_torn("".join(text for _, text in pieces).encode())
    assert Counter(said(line) for line in found if isinstance(line, Call)) <= made(whole)


@settings(max_examples=150, deadline=None)
@given(st.lists(calls_in, min_size=1, max_size=4), st.integers(0, 400))
def test_a_call_is_read_or_told_as_unread_wherever_the_log_ends(whole, missing):
    text = "\n".join(whole)
    kept = text[: max(len(text) - missing, 0)]
    found = read_torn(kept.encode())
    assert sum(isinstance(line, Call | Unread) for line in found) == kept.count("opCount")
    assert Counter(said(line) for line in found if isinstance(line, Call)) <= made(whole)


@settings(max_examples=150, deadline=None)
@given(st.lists(calls_in, min_size=1, max_size=5))
def test_undamaged_calls_are_all_read(whole):
    found = read_torn("\n".join(whole).encode())
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
    found = read_torn(before + "".join(others).encode() + after)
    assert not [line for line in found if isinstance(line, Call)]
