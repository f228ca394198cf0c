"""NCCL Inspector's JSON lines of every format, damaged and mixed with other lines."""

import io
import json
from typing import Any

import pytest

from nsystui.exports.nccl_log.files import FileKind, kind_of
from nsystui.exports.nccl_log.inspector import InspectedCall, InspectedKind, InspectedRank
from nsystui.exports.nccl_log.lines import Call, Damage, Line, LogReader, Unread

HEADER = {"id": "0x9e7a479f95a66c", "rank": 31, "n_ranks": 32, "nnodes": 4}
PERF = {
    "coll": "ReduceScatter", "coll_sn": 129, "coll_msg_size_bytes": 65536, "coll_exec_time_us": 110,
    "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 19.065018, "coll_busbw_gbs": 18.469236,
}  # fmt: skip
RANK = InspectedRank("n1", 468528, "0x9e7a479f95a66c", 31, 32, 4)
KIND = InspectedKind("ReduceScatter", 65536, None, None, "kernel_gpu")
CALL = InspectedCall(RANK, KIND, 129, 110_000, 18.469236e9)
DAMAGED = Unread(Damage.RECORD, 1)


def metadata(version: str) -> dict[str, Any]:
    return {"inspector_output_format_version": version, "dump_timestamp_us": 1, "hostname": "n1", "pid": 468528}


def record(version: str = "v4.0", header: Any = HEADER, **more: Any) -> str:
    return json.dumps({"header": header, "metadata": metadata(version), "coll_perf": PERF | more})


def body(**more: Any) -> str:
    return json.dumps({"coll_perf": PERF | more})


def dump(version: str = "v4.3", coll: int = 1, p2p: int = 0, **more: int) -> str:
    stats = {"coll_records": coll, "coll_dropped_total": 3, "p2p_records": p2p, "p2p_dropped_total": 4, **more}
    return json.dumps({"header": HEADER, "metadata": metadata(version), "dump_stats": stats})


def read(*lines: str) -> list[Line]:
    return list(LogReader().read(io.BytesIO("\n".join(lines).encode()).read))


def test_each_format_gives_the_call():
    assert read(record()) == [CALL]
    assert read(dump(), body()) == [CALL]
    assert read(dump("v4.2"), record("v4.2")) == [CALL]
    (call,) = read(record("v4.1", coll_algo="RING", coll_proto="LL128"))
    assert call.kind[2:4] == ("RING", "LL128")
    assert read(record(event_trace_ts={"coll_start_ts": 5})) == [CALL._replace(begun=5_000)]
    # Other writers put blanks between, or other keys first.
    assert read(json.dumps(dict(reversed(json.loads(record()).items())), separators=(" , ", " : "))) == [CALL]


def test_sends_have_no_number_and_proxies_count_as_records_of_their_dump():
    p2p = {"p2p": "Send", "p2p_sn": 5, "p2p_msg_size_bytes": 8, "p2p_exec_time_us": 2, "p2p_busbw_gbs": 1}
    lines = (json.dumps({"proxy_trace": {"p": 1}}), json.dumps({"p2p_perf": p2p}))
    (call,) = read(dump(coll=0, p2p=1, proxy_records=1), *lines)
    assert call == InspectedCall(RANK, InspectedKind("Send", 8, None, None, None), None, 2000, 1e9)


@pytest.mark.parametrize(("values", "expected"), [
    ({"coll_algo": "unknown", "coll_proto": "", "coll_timing_source": "unknown"}, KIND._replace(source=None)),
    ({"coll_msg_size_bytes": 2**64 - 65536}, KIND._replace(size=None)),  # a data type that the plugin lacks
    ({"coll_msg_size_bytes": -1}, KIND._replace(size=None)),
    ({"coll_msg_size_bytes": None, "coll_exec_time_us": "x", "coll_sn": True}, KIND._replace(size=None)),
    ({"coll_busbw_gbs": float("inf"), "coll_exec_time_us": 0}, KIND),
])  # fmt: skip
def test_what_was_not_measured_is_unknown(values, expected):
    (call,) = read(record(**values))
    assert call.kind == expected
    if expected.size is None or "coll_busbw_gbs" in values:
        assert call.busbw is None


@pytest.mark.parametrize(("lines", "calls", "damaged"), [
    ((record(), record()[:-9]), 1, 1),  # the process was killed while it wrote
    ((record(), record()[:20]), 1, 1),
    ((dump(coll=3), body(), body()[:30]), 1, 2),  # the third record is missing
    ((dump(coll=2), body(), dump(), body()), 2, 1),
    ((body(), record()), 1, 1),  # without a dump
    ((dump(), body(), body()), 1, 1),  # one more than the dump counts
    ((dump(coll=2)[:-5], body(), body()), 0, 3),  # never the rank of another dump
    ((dump("v4.2", coll=2), record("v4.2")), 1, 0),  # older formats need no count
    ((record(header=[]), record(header={"id": 7}), record(header={"id": "xyz"})), 0, 3),
    ((record(coll=None), f"[{record()}]", record().replace("468528", '"1"')), 0, 3),
    ((record().replace("110", "1" * 5000), record().replace("{", "[" * 5000, 1)), 0, 2),
    ((dump(coll=10**15),), 0, 10**15),
])  # fmt: skip
def test_damage_is_counted_and_nothing_is_guessed(lines, calls, damaged):
    found = read(*lines)
    assert sum(isinstance(line, InspectedCall) for line in found) == calls
    assert sum(line.number for line in found if isinstance(line, Unread)) == damaged


def test_a_dump_of_another_file_is_over():
    reader = LogReader()
    assert list(reader.read(io.BytesIO(dump(coll=2).encode()).read)) == [Unread(Damage.RECORD, 2)]
    assert list(reader.read(io.BytesIO(body().encode()).read)) == [DAMAGED]


def test_lines_of_a_debug_log_in_the_same_stream_are_read():
    text = (
        "n1:1:1 [0] NCCL INFO AllReduce: opCount 1 sendbuff 0x1 recvbuff 0x2 count 4 datatype 7 op 0 root 0 comm 0x5 x"
    )
    found = read(text, '{"step": 1}', record(), text, "", "other words")
    assert [type(line) for line in found if not isinstance(line, Unread)].count(Call) == 2
    assert CALL in found and DAMAGED not in found


def test_a_file_is_known_by_its_content(tmp_path):
    path = tmp_path / "n1-pid1.jsonl"
    path.write_text(dump() + "\n" + body())
    assert kind_of(str(path)) is FileKind.LOG
    path.write_text('{"traceEvents": []}')
    assert kind_of(str(path)) is None
