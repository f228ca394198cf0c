"""NCCL's payloads of both generations, by real schema tables and NCCL's headers; damaged payloads."""

import json
import sqlite3
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shared

from nsystui.exports.nccl_calls import NcclCall, PayloadSchemas, decode_blob, decode_json, interpret, parse_instrumented

STATIC = 1 << 24
UINT64, INT, SIZE, REDOP = 18, 5, 22, STATIC + 16
COMM, BYTES, OP = "NCCL communicator ID", "Message size [bytes]", "Reduction operation"
HASH = 0xCAFE_BABE_DEAD_BEEF
NOTHING = NcclCall(None, None, None, None, None, None, None, None, None)
Row = dict[str, object]
NO_SCHEMAS = PayloadSchemas.from_rows([], [])


def schema_row(call: int, size: int | None, domain: int = 1, kind: int = 1, align: int | None = None) -> Row:
    return {"domainId": domain, "schemaId": STATIC + call, "type": kind, "payloadSize": size, "alignTo": align}


def entry_row(
    call: int, idx: int, kind: int, name: str, offset: int | None, domain: int = 1, flags: int | None = None
) -> Row:
    place = {"domainId": domain, "schemaId": STATIC + call, "idx": idx}
    return {**place, "flags": flags, "type": kind, "name": name, "offset": offset}


# As in NVIDIA's export of NCCL 2.27 (schema 3.25.0), NULLs included.
SCHEMAS = PayloadSchemas.from_rows(
    [schema_row(7, 24), schema_row(9, 24), schema_row(11, 24), schema_row(9, 24)],
    [
        *(entry_row(call, 0, UINT64, COMM, None) for call in (7, 9, 11)),
        *(entry_row(call, 1, SIZE, BYTES, 8) for call in (7, 9)),
        entry_row(7, 2, REDOP, OP, 16),
        *(entry_row(9, 2, INT, "Peer rank", 16) for _ in range(2)),
        *(entry_row(11, *field) for field in ((1, INT, "No. of ranks", 8), (2, INT, "Rank", 12))),
        entry_row(11, 3, INT, "CUDA device", 16),
    ],
)


def blob(call: int, payload: bytes, domain: int = 1) -> bytes:
    return struct.pack("<QQQQ", domain, STATIC + call, len(payload), 32) + payload


def test_values_are_read_by_label_through_the_schema_tables():
    labels = decode_blob(SCHEMAS, 1, blob(9, struct.pack("<QQi4x", HASH, 1 << 20, 3)))
    assert labels == {COMM: HASH, BYTES: 1 << 20, "Peer rank": 3}
    assert interpret(labels) == NcclCall(1 << 20, "0xcafebabedeadbeef", 3, None, None, None, None, None, "payload")

    reduce_scatter = interpret(decode_blob(SCHEMAS, 1, blob(7, struct.pack("<QQi4x", 1, 64, 4))) or {})
    assert (reduce_scatter.message_size, reduce_scatter.communicator, reduce_scatter.reduction) == (64, "0x1", "Avg")

    init = interpret(decode_blob(SCHEMAS, 1, blob(11, struct.pack("<Qiii4x", HASH, 8, 5, 1))) or {})
    assert (init.ranks, init.rank, init.cuda_device, init.message_size) == (8, 5, 1, None)


def test_the_domain_of_the_header_helps_and_rows_may_lack_columns():
    payload = blob(9, struct.pack("<QQi4x", 1, 2, 3), domain=1)
    assert decode_blob(SCHEMAS, 77, payload) == {COMM: 1, BYTES: 2, "Peer rank": 3}
    entries = [entry_row(4, 1, SIZE, BYTES, 8), entry_row(4, 0, UINT64, COMM, None)]
    schema, *rows = ({k: v for k, v in row.items() if v is not None} for row in (schema_row(4, 16), *entries))
    del schema["type"]
    schemas = PayloadSchemas.from_rows([schema], rows)
    assert decode_blob(schemas, 1, blob(4, struct.pack("<QQ", 5, 6))) == {COMM: 5, BYTES: 6}


def test_offsets_that_are_not_given_are_those_of_c():
    kinds = [(13, "short"), (UINT64, "long"), (1, "char"), (INT, "int"), (20, "double"), (19, "float"), (21, "wide")]
    entries = [entry_row(90, idx, kind, name, None) for idx, (kind, name) in enumerate(kinds)]
    schemas = PayloadSchemas.from_rows([schema_row(90, None)], entries)
    payload = struct.pack("@hQbidf", -2, 7, -1, 9, 0.5, 0.25)  # as C aligns it
    payload += bytes(-len(payload) % 16) + bytes(16)  # the long double, which is not read
    assert decode_blob(schemas, 1, blob(90, payload)) == {
        "short": -2, "long": 7, "char": -1, "int": 9, "double": 0.5, "float": 0.25,
    }  # fmt: skip


def test_a_packed_struct_is_read_as_packed_and_what_is_not_one_value_is_left_out():
    entries = [entry_row(90, 0, 1, "char", None), entry_row(90, 1, UINT64, "long", None)]
    schemas = PayloadSchemas.from_rows([schema_row(90, 9, align=1)], entries)
    assert decode_blob(schemas, 1, blob(90, struct.pack("<bQ", 1, 2))) == {"char": 1, "long": 2}
    entries = [
        entry_row(90, 0, INT, "array", None, flags=1 << 4),
        entry_row(90, 1, INT, "somewhere behind it", None),
        entry_row(90, 2, INT, "known place", 20),
        entry_row(90, 3, 75, "text", 24),
    ]
    schemas = PayloadSchemas.from_rows([schema_row(90, 28)], entries)
    assert decode_blob(schemas, 1, blob(90, struct.pack("<7i", 1, 2, 3, 4, 5, 6, 7))) == {"known place": 6}


@pytest.mark.parametrize(("call", "layout", "values", "expected"), [
    # NCCL 2.16.2 to 2.24
    (4, "<Q", (1024,), {"message_size": 1024}),
    (5, "<Qi4x", (1024, 2), {"message_size": 1024, "reduction": "Max"}),
    (7, "<Qi4x", (1024, 9), {"message_size": 1024, "reduction": "User"}),
    (6, "<Qi4x", (1024, 3), {"message_size": 1024, "root": 3}),
    (8, "<Qii", (1024, 3, 1), {"message_size": 1024, "root": 3, "reduction": "Prod"}),
    (9, "<Qi4x", (1024, 7), {"message_size": 1024, "peer": 7}),
    (10, "<Qi4x", (1024, 7), {"message_size": 1024, "peer": 7}),
    (0, "<iii", (2, 8, 1), {"rank": 2, "ranks": 8, "cuda_device": 1}),
    (1, "<i", (4,), {"ranks": 4}),
    # NCCL 2.25.1 and later
    (4, "<QQ", (HASH, 1024), {"communicator": f"0x{HASH:x}", "message_size": 1024}),
    (16, "<QQ", (HASH, 1024), {"communicator": f"0x{HASH:x}", "message_size": 1024}),
    (5, "<QQi4x", (HASH, 1024, 0), {"communicator": f"0x{HASH:x}", "message_size": 1024, "reduction": "Sum"}),
    (17, "<QQi4x", (HASH, 1024, 1), {"communicator": f"0x{HASH:x}", "message_size": 1024, "root": 1}),
    (8, "<QQii", (1, 2, 3, 3), {"communicator": "0x1", "message_size": 2, "root": 3, "reduction": "Min"}),
    (10, "<QQi4x", (1, 2, 3), {"communicator": "0x1", "message_size": 2, "peer": 3}),
    (12, "<Qiii4x", (1, 8, 2, 0), {"communicator": "0x1", "ranks": 8, "rank": 2, "cuda_device": 0}),
    (13, "<QQiiiii4x", (1, 9, 4, 2, 0, 7, 7), {"communicator": "0x1", "ranks": 4, "rank": 2, "cuda_device": 0}),
    (15, "<Qiiii", (1, 4, 2, 0, 1), {"communicator": "0x1", "ranks": 4, "rank": 2, "cuda_device": 0}),
    (14, "<Q", (1,), {"communicator": "0x1"}),
    (1, "<Qi4x", (1, 4), {"communicator": "0x1", "ranks": 4}),
])  # fmt: skip
def test_without_schema_tables_nccls_own_structs_are_known(call, layout, values, expected):
    labels = decode_blob(NO_SCHEMAS, 1, blob(call, struct.pack(layout, *values)))
    assert labels is not None
    assert interpret(labels) == NcclCall(**{**vars(NOTHING), "source": "payload", **expected})


def test_what_is_ambiguous_is_not_guessed():
    sizes = [entry_row(4, 0, SIZE, BYTES, None)]
    own = (
        ("another size", NO_SCHEMAS, blob(5, bytes(20))), ("an unknown call", NO_SCHEMAS, blob(99, bytes(16))),
        ("no id of NCCL's", NO_SCHEMAS, struct.pack("<QQQQ", 1, 5, 16, 32) + bytes(16)),
        ("two processes define one id differently",
         PayloadSchemas.from_rows([schema_row(4, 16)], [entry_row(4, 0, UINT64, COMM, None), *sizes]),
         blob(4, bytes(16))),
        (
            "two processes define two sizes",
            PayloadSchemas.from_rows([schema_row(4, 16), schema_row(4, 8)], sizes),
            blob(4, bytes(16)),
        ),
        ("a union", PayloadSchemas.from_rows([schema_row(4, 8, kind=3)], sizes), blob(4, bytes(8))),
    )  # fmt: skip
    for what, schemas, payload in own:
        assert decode_blob(schemas, 1, payload) is None, what


def test_cut_and_wrong_blobs_are_not_read():
    whole = blob(9, struct.pack("<QQi4x", HASH, 1 << 20, 3))
    for length in range(len(whole)):
        assert decode_blob(SCHEMAS, 1, whole[:length]) is None
    assert decode_blob(SCHEMAS, 1, whole + b"more") is not None
    assert decode_blob(SCHEMAS, 1, blob(9, bytes(16))) is None, "the schema says 24 bytes"
    assert decode_blob(SCHEMAS, 1, "text") is None  # type: ignore[arg-type]
    assert decode_blob(SCHEMAS, 1, None) is None  # type: ignore[arg-type]
    beyond = PayloadSchemas.from_rows([schema_row(4, 8)], [entry_row(4, 0, SIZE, BYTES, 4)])
    assert decode_blob(beyond, 1, blob(4, bytes(8))) is None, "the field ends behind the payload"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([COMM, BYTES, OP, "x"]), inner),
    max_leaves=8,
)
CELLS = st.none() | st.integers(-3, 100) | st.integers() | st.text(max_size=3) | st.binary(max_size=3) | st.floats()
COLUMNS = st.sampled_from([*schema_row(0, 0), *entry_row(0, 0, 0, "", 0)])
ROWS = st.lists(st.dictionaries(COLUMNS, CELLS), max_size=4)


@given(st.binary(max_size=80), st.sampled_from([SCHEMAS, NO_SCHEMAS]), st.integers())
def test_any_bytes_are_answered(data, schemas, domain):
    labels = decode_blob(schemas, domain, data)
    assert labels is None or interpret(labels).source in ("payload", None)


@given(st.integers(0, 25), st.binary(max_size=48), st.sampled_from([SCHEMAS, NO_SCHEMAS]))
def test_any_payload_behind_a_good_header_is_answered(call, payload, schemas):
    call_of_nccl = interpret(decode_blob(schemas, 1, blob(call, payload)) or {})
    assert call_of_nccl.message_size is None or 0 <= call_of_nccl.message_size < 1 << 63
    assert call_of_nccl.communicator is None or int(call_of_nccl.communicator, 16) < 1 << 64


@given(ROWS, ROWS, st.binary(max_size=60))
def test_any_schema_rows_are_answered(schema_rows, entry_rows, payload):
    schemas = PayloadSchemas.from_rows(schema_rows, entry_rows)
    for domain, schema in [*schemas.layouts, (1, STATIC)]:
        header = struct.pack("<QQQQ", domain % 2**64, schema % 2**64, len(payload), 32)
        interpret(decode_blob(schemas, domain, header + payload) or {})


@given(JSON_VALUES)
def test_any_json_is_answered(value):
    interpret(decode_json(json.dumps(value)))


@given(st.text())
def test_any_text_is_answered(text):
    assert interpret(decode_json(text)).source in ("payload", None)
    for name in (text, "ncclSend(): " + text, "ncclSend(): commHash " + text, "ncclSend(): data_size " + text):
        call = parse_instrumented(name)
        assert call is None or call.source == "instrumented"


def test_json_is_searched_at_any_depth_the_outermost_value_first():
    flat = json.dumps({COMM: HASH, BYTES: 4096, OP: "Product"})
    assert interpret(decode_json(flat)) == NcclCall(
        4096, f"0x{HASH:x}", None, None, "Prod", None, None, None, "payload"
    )
    deep = json.dumps({"a": [{"payload": {BYTES: 1, "Peer rank": 2}}], BYTES: 4096})
    assert decode_json(deep) == {BYTES: 4096, "Peer rank": 2}
    assert decode_json('{"other": 1}') == decode_json("no json") == decode_json("[" * 100_000) == {}
    assert decode_json(None) == {}  # type: ignore[arg-type]
    assert decode_json('{"Bytes": true, "Rank": null}') == {}


def test_numbers_may_be_text_and_nonsense_is_dropped():
    assert interpret({COMM: f"{HASH:,}"}).communicator == "0xcafebabedeadbeef"
    assert interpret({BYTES: "1,048,576"}).message_size == 1 << 20
    assert interpret({COMM: HASH - (1 << 64)}).communicator == "0xcafebabedeadbeef", "SQLite's integers have a sign"
    assert interpret({COMM: "0xCAFE"}).communicator == "0xcafe"
    assert interpret({COMM: 0, BYTES: -1, "Root": -1, OP: -1}) == interpret({COMM: 1.5e19, BYTES: "many", OP: " "})
    assert interpret({BYTES: float("nan"), "Rank": 1 << 40, "Root": float("inf")}).rank is None
    assert interpret({BYTES: 4096.0}).message_size == 4096
    assert interpret({OP: "ncclMax"}).reduction == "Max"
    assert interpret({}) == interpret({"else": 1}) == NOTHING


def test_the_text_of_an_instrumented_nccl():
    text = "ncclAllReduce(): commHash 0x1a2bC, stream 0x5, data_size 4096, type_size 4, red_op 0, pid 7"
    assert parse_instrumented(text) == NcclCall(
        4096, "0x1a2bc", None, None, "Sum", None, None, None, "instrumented", "4-byte"
    )
    reduce = "ncclReduce(): commHash 0x1, stream 0x5, data_size 8, type_size 4, red_op 3, root 2, pid 7"
    assert parse_instrumented(reduce) == NcclCall(8, "0x1", None, 2, "Min", None, None, None, "instrumented", "4-byte")
    send = "ncclSend(): commHash 0x1, stream (nil), data_size 8, type_size 4, receiver_rank 3, pid 7"
    assert parse_instrumented(send) == parse_instrumented(send.replace("Send", "Recv").replace("receiver", "sender"))
    assert (parse_instrumented(send) or NOTHING).peer == 3
    for other in ("ncclAllReduce", "ncclAllReduce(): ", "nccl:all_reduce", "forward(): data_size 3", "", None):
        assert parse_instrumented(other) is None  # type: ignore[arg-type]


def test_the_schemas_of_a_real_export():
    """NVIDIA's rows; the export was made without blobs, so it has no values."""
    (export,) = shared("h100-2rank-moe-before")
    with sqlite3.connect(f"file:{export}?mode=ro&immutable=1", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        schemas = PayloadSchemas.from_rows(
            map(dict, connection.execute("SELECT * FROM NVTX_PAYLOAD_SCHEMAS")),
            map(dict, connection.execute("SELECT * FROM NVTX_PAYLOAD_SCHEMA_ENTRIES")),
        )
    assert len(schemas.layouts) == 8
    for call in (2, 4, 6, 7, 9, 10, 11, 14):
        payload = blob(call, bytes(range(1, {4: 16, 14: 8}.get(call, 24) + 1)))
        # The tables agree with NCCL's header.
        assert decode_blob(schemas, 1, payload) == decode_blob(NO_SCHEMAS, 1, payload) is not None
