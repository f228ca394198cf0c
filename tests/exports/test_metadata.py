"""The metadata of an export in every version of the schema, and the application's output: never with a secret."""

import json
from contextlib import closing
from dataclasses import astuple
from datetime import UTC, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import campaign
import pytest
from support import edit, native, session_over
from synthetic import (
    ExportWriter,
    all_tables_export,
    cpu_only_export,
    empty_export,
    hostile_names_export,
    old_schema_export,
)
from synthetic.demo import PLANTED_SECRET, SCHEMAS, CaptureSession, TrainingJob
from synthetic.demo import CaptureSession as Capture

from nsystui.exports.canonical import TABLES
from nsystui.exports.job_output import read_job_output, time_of
from nsystui.exports.metadata import ENVIRONMENT_WHITELIST, Metadata, open_export
from nsystui.exports.opening import check
from nsystui.store import tables
from nsystui.store.cache import Cache
from nsystui.store.session import Session


class TestEverySchema:
    @pytest.mark.parametrize("schema", campaign.first(1, [*SCHEMAS][::-1]))
    def test_what_is_there_arrives_and_the_version_is_said_where_the_export_says_it(self, tmp_path, session, schema):
        report = session.add(old_schema_export(tmp_path / "old.sqlite", schema))
        rows = {"kernels": 40, "api_calls": 40, "api_backtraces": 40, "nvtx_ranges": 4}
        assert {name: report.packed.counts[name] for name in rows} == rows
        assert (report.packed.first_event, report.packed.last_event) == (950_000, 4_950_000)
        says = SCHEMAS[schema].has_export_metadata
        assert report.metadata.schema_version == (SCHEMAS[schema].number if says else "")
        assert report.metadata.nsys_version == (SCHEMAS[schema].product if says else "")

    @pytest.mark.parametrize("make", campaign.first(1, [empty_export, all_tables_export]))
    def test_without_events_it_opens_and_is_empty(self, tmp_path, session, make):
        for schema in SCHEMAS:
            report = session.add(make(tmp_path / f"{schema}.sqlite", schema))
            assert not [table.name for table in TABLES if report.count(table)], schema
            assert (report.packed.first_event, report.packed.last_event) == (None, None), schema


@pytest.mark.campaign
class TestMissingParts:
    """Any table may be absent: each is removed once, with a neighbour."""

    @pytest.fixture(scope="class")
    def full(self, tmp_path_factory):
        return TrainingJob(ranks=2, steps=1, layers=1).write(tmp_path_factory.mktemp("full"))[1]

    @pytest.mark.parametrize("apart", campaign.first(1, [5, 7]))
    def test_any_table(self, full, tmp_path, apart):
        """All tables except the table that every export has, and tables that the metadata does not read."""
        names = [name for (name,) in native(full, "SELECT name FROM sqlite_master WHERE type = 'table'")]
        names = [name for name in names if name != "StringIds" and not name.startswith("ENUM_")]
        path = tmp_path / "rank1.sqlite"
        for group in (names[start::apart] for start in range(apart)):
            path.write_bytes(full.read_bytes())
            edit(path, *[f'DROP TABLE "{name}"' for name in group])
            with closing(Session()) as session:
                assert session.add(path).path == path, group

    OPTIONAL = {
        "CUPTI_ACTIVITY_KIND_KERNEL": ("mangledName", "graphNodeId", "localMemoryPerThread", "demangledName"),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("callchainId", "returnValue", "eventClass"),
        "CUPTI_ACTIVITY_KIND_MEMCPY": ("srcKind", "dstKind", "copyKind", "srcDeviceId", "graphNodeId"),
        "NVTX_EVENTS": ("jsonText", "binaryData", "color", "category", "rangeId", "endGlobalTid", "domainId"),
        "TARGET_INFO_GPU": ("uuid", "chipName", "smCount", "totalMemory", "cuDevice", "busLocation", "name"),
        "TARGET_INFO_SESSION_START_TIME": ("systemClockNs", "utcEpochNs"),
        "PROCESSES": ("name",),
        "DIAGNOSTIC_EVENT": ("text", "globalPid"),
    }

    def test_any_optional_column(self, full, tmp_path, session):
        for number in range(2):
            path = tmp_path / f"rank{number}.sqlite"
            path.write_bytes(full.read_bytes())
            for table, columns in list(self.OPTIONAL.items())[number::2]:
                present = {row[1] for row in native(path, f"PRAGMA table_info({table})")}
                edit(path, *[f"ALTER TABLE {table} DROP COLUMN {column}" for column in columns if column in present])
            assert session.add(path).packed.counts["kernels"] > 0, list(self.OPTIONAL)[number::2]

    def test_values_of_other_types_than_nvidias(self, full, tmp_path, session):
        path = tmp_path / "rank1.sqlite"
        path.write_bytes(full.read_bytes())
        edit(
            path,
            "UPDATE TARGET_INFO_GPU SET name = x'ff00', uuid = NULL, smCount = 'many', totalMemory = NULL",
            "UPDATE TARGET_INFO_CUDA_DEVICE SET gpuId = NULL",
            "UPDATE ANALYSIS_DETAILS SET duration = 'long'",
            "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = 'noon'",
            "UPDATE TARGET_INFO_SYSTEM_ENV SET value = x'ff' WHERE name = 'Hostname'",
            "UPDATE META_DATA_CAPTURE SET value = NULL WHERE name LIKE '%COMMAND'",
            "CREATE TABLE MPI_RANKS (globalTid INTEGER, rank INTEGER)",
            "INSERT INTO MPI_RANKS VALUES (NULL, 1), (281474976710656, NULL), ('x', 'y')",
        )
        cache = Cache(tmp_path / "cache")
        caching = Session(cache=cache)
        facts = caching.add(path).metadata
        caching.close()
        assert (facts.duration, facts.session_start_utc, facts.mpi_ranks) == (None, None, {})
        assert [gpu.sm_count for gpu in facts.gpus] == [None]
        assert cache.find(check(path)).report.metadata == facts


def facts_of(directory: Path, schema: str = "3.25.0", **capture: Any) -> Metadata:
    """Return the metadata of an export without events and with the given capture."""
    with ExportWriter(directory / "x.sqlite", schema, session=Capture(**capture)):
        pass
    return open_export(directory / "x.sqlite").metadata


def streams_export(path: Path, schema: str) -> Path:
    """Write two processes with a default stream; one also has a stream of each kind, and of an unknown kind."""
    with ExportWriter(path, schema) as export:
        for pid in (5001, 5000):
            export.cuda_context(export.process(pid), context=2)
        rows = [(stream, 0, 1, 5000, 2, 0, flag) for stream, flag in ((20, 3), (21, 1), (22, 2), (23, 0))]
        export.rows("TARGET_INFO_CUDA_STREAM").extend(rows)
    return path


class TestFacts:
    def test_the_demo_job_is_described(self, demo_job):
        facts = open_export(demo_job[3]).metadata
        assert (facts.host, facts.driver_version, facts.cuda_version) == ("gpu-a02", "580.95.05", "13.0")
        assert (facts.command, facts.graph_trace_mode) == ("python", "Graph")
        assert facts.json_included and not facts.blobs_included
        assert [gpu.name for gpu in facts.gpus] == ["NVIDIA H100 80GB HBM3"] * 2
        assert [(device.device, device.gpu) for device in facts.cuda_devices] == [(0, 1)]
        assert (facts.environment["RANK"], facts.environment["SLURM_LOCALID"]) == ("3", "1")
        starts = [open_export(path).metadata.session_start_utc for path in demo_job]
        assert len(set(starts)) == 4 and max(starts) - min(starts) < 30_000_000

    @pytest.mark.parametrize("schema", ["2.9.1", "3.7.2", "3.25.0"])
    def test_default_streams_and_those_that_wait_for_them_are_told_by_process_and_context(self, tmp_path, schema):
        path = streams_export(tmp_path / "a.sqlite", schema)
        found = {astuple(stream) for stream in open_export(path).metadata.blocking_streams}
        assert found == {(5000, 2, 7, True), (5000, 2, 20, True), (5000, 2, 21, False), (5001, 2, 7, True)}
        edit(path, "UPDATE TARGET_INFO_CUDA_STREAM SET flag = 'many' WHERE flag = 1")
        assert (5000, 2, 21, False) not in {astuple(one) for one in open_export(path).metadata.blocking_streams}

    def test_mpi_ranks_are_told_by_process_and_one_with_two_has_none(self, tmp_path):
        path = cpu_only_export(tmp_path / "cpu.sqlite")
        ((process, rank),) = open_export(path).metadata.mpi_ranks.items()
        assert (process & 0xFFFFFF, process >> 24 & 0xFFFFFF, rank) == (0, 6_000, 3)
        edit(path, "INSERT INTO MPI_RANKS SELECT globalTid + 1, rank + 1 FROM MPI_RANKS")
        assert open_export(path).metadata.mpi_ranks == {}

    def test_the_mode_of_graph_tracing_under_both_its_names(self, tmp_path):
        for schema, mode in product(("3.16.1", "3.25.0"), ("Graph", "Node")):
            assert facts_of(tmp_path, schema, graph_mode=mode).graph_trace_mode == mode, (schema, mode)

    def test_versions_are_worded(self, tmp_path):
        for raw, shown in (("12020", "12.2"), ("13000", "13.0"), ("11080", "11.8"), ("n/a", "n/a")):
            assert facts_of(tmp_path, cuda_driver_version=raw).cuda_version == shown, raw
        drivers = {"5154807": "515.48.07", "57013320": "570.133.20", "535.154.05": "535.154.05", "12": "12", "": ""}
        for raw, shown in drivers.items():
            assert facts_of(tmp_path, driver_version=raw).driver_version == shown, raw

    def test_metadata_survives_json(self, demo_job, tmp_path):
        streams = streams_export(tmp_path / "streams.sqlite", "3.25.0")
        assert open_export(streams).metadata.blocking_streams
        written = cpu_only_export(tmp_path / "cpu.sqlite"), hostile_names_export(tmp_path / "h.sqlite"), streams
        for path in (*demo_job, *written):
            facts = open_export(path).metadata
            assert Metadata.from_json(json.loads(json.dumps(facts.to_json()))) == facts


class TestSecrets:
    PLANTED = {
        "AWS_SECRET_ACCESS_KEY": PLANTED_SECRET, "SSH_KEY": f"ssh-rsa {PLANTED_SECRET}", "RANK_TOKEN": PLANTED_SECRET,
        "MY_RANK": PLANTED_SECRET, "rank": PLANTED_SECRET, "RANK ": PLANTED_SECRET, "EMPTY": "", "RANK": "5",
    }  # fmt: skip

    def test_only_variables_of_the_whitelist_are_read(self, tmp_path):
        command = ("python", "train.py", f"--token={PLANTED_SECRET}")
        facts = facts_of(tmp_path, environment=self.PLANTED, command=command)
        assert facts.environment == {"RANK": "5"}
        assert PLANTED_SECRET not in repr(facts)

    def test_the_whitelist_names_ranks_nodes_and_sizes_only(self):
        assert not [name for name in ENVIRONMENT_WHITELIST if "KEY" in name or "SECRET" in name or "TOKEN" in name]
        assert ENVIRONMENT_WHITELIST.isdisjoint({"PATH", "HOME", "HOSTNAME", "USER"})

    @pytest.mark.campaign
    def test_nothing_that_is_kept_holds_the_secret(self, demo_job, tmp_path):
        assert all(PLANTED_SECRET.encode() in path.read_bytes() for path in demo_job), "the demo has lost its secret"
        cache = tmp_path / "cache"
        session = session_over(*demo_job, cache=Cache(cache))
        everything = [value for table in tables.METADATA.tables.values() for value in session.rows(table.select())]
        session.close()
        assert PLANTED_SECRET not in repr(everything)
        kept = [path for path in cache.rglob("*") if path.is_file()]
        assert {path.suffix for path in kept} == {".json", ".parquet"}
        assert not [path for path in kept if PLANTED_SECRET.encode() in path.read_bytes()]


START = 1_780_000_000_000_000_000
"""2026-05-28 20:26:40 UTC."""


def written(path: Path, text: str, stream: str = "stdout") -> Path:
    with ExportWriter(path, session=CaptureSession(utc_epoch_ns=START)) as export:
        export.output(export.process(7), text, stream)
    return path


def shown(path: Path, text: str) -> list[str]:
    return [line.text for line in read_job_output(written(path, text)).lines]


def test_lines_that_look_like_variables_are_left_out(tmp_path):
    variables = [
        "AWS_SECRET_ACCESS_KEY=abc", "SLURM_JOB_ID=4242", "  EMPTY=", "http_proxy=http://user:hunter2@proxy",
        "export FOO=bar", 'declare -x FOO="bar"', "setenv FOO bar", "+ FOO=bar", "3: PATH=/usr/bin",
        "[rank0]: PATH=/usr/bin", "gpu-a01: MY_SECRET=7", "2026-01-01 10:00:00 INFO HF_TOKEN=abc",
        "environ({'HOME': '/root', 'X': 'y'})", '{"WANDB_API_KEY": "abc"}',
        "BASH_FUNC_module%%=() {  eval hunter2; }",
    ]  # fmt: skip
    for line in variables:
        output = read_job_output(written(tmp_path / "x.sqlite", f"before\n{line}\nafter\n"))
        texts = [one.text for one in output.lines]
        assert texts[0] == "before" and set(texts) <= {"before", "after"} and output.left_out == 1, line


def test_other_lines_stay_as_they_are(tmp_path):
    lines = [
        "step=5 loss=0.321 lr=1e-4",
        "loss=0.3",
        "Epoch 1: loss=0.3, acc=0.5",
        "epoch 3/10 [####----] 33%",
        "Namespace(lr=0.1, batch_size=32)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>) 12 us",
        "NCCL INFO NCCL_DEBUG set by environment to INFO.",
        "tokens/s: 12345  num_tokens: 4096",
        "2026-06-01 12:00:00,123 INFO step 3 loss 1.2",
        "loading /scratch/data/imagenet/train/n01440764/n01440764_10026.JPEG",
    ]
    assert shown(tmp_path / "x.sqlite", "".join(f"{line}\n" for line in lines)) == lines
    assert shown(tmp_path / "x.sqlite", f" 1%\r 50%\r100%|####|\r\n{'x' * 5_000}\n") == [
        "100%|####|",
        "x" * 1_000 + "…",
    ]


@pytest.mark.parametrize(("line", "secret"), [
    ("using hf_abcdefghijklmnopqrst", "hf_abcdefghijklmnopqrst"),
    ("key AKIAIOSFODNN7EXAMPLE ok", "AKIAIOSFODNN7EXAMPLE"),
    ("Authorization: Bearer abc.def-123456", "abc.def-123456"),
    ("password: hunter2", "hunter2"),
    ("the api_key is hunter2", "hunter2"),
    ("clone https://user:hunter2@github.com/x", "user:hunter2"),
    ("jwt eyJhbGciOi.eyJzdWIiOi.SflKxwRJ", "eyJhbGciOi.eyJzdWIiOi.SflKxwRJ"),
    ("wandb 3f2a9c1d5e7b8a9c0d1e2f3a4b5c6d7e8f9a0b1c", "3f2a9c1d5e7b8a9c0d1e2f3a4b5c6d7e8f9a0b1c"),
    ("get https://s3/x?X-Amz-Signature=abc123&y=1", "abc123"),
    ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 me", "AAAAC3NzaC1lZDI1NTE5"),
    ("secret wJalrXUtnFEMI/K7MDENG/bPxRfiCY0123456789AbCd", "wJalrXUtnFEMI/K7MDENG/bPxRfiCY0123456789AbCd"),
])  # fmt: skip
def test_tokens_are_hidden_and_the_line_stays(tmp_path, line, secret):
    [text] = shown(tmp_path / "x.sqlite", f"{line}\n")
    assert secret not in text and "[hidden]" in text


def test_values_of_several_lines_are_left_out_between_variables(tmp_path):
    dump = "A_B=1\nBASH_FUNC_ml%%=() {  eval x;\n  hunter2\n}\nC_D=2\nthen\n-----BEGIN RSA PRIVATE KEY-----\nhunter3\n"
    dump += "-----END RSA PRIVATE KEY-----\nend\n"
    assert shown(tmp_path / "x.sqlite", dump) == ["then", "end"]


def test_streams_keep_their_lines_and_numbers(tmp_path):
    path = tmp_path / "x.sqlite"
    with ExportWriter(path) as export:
        one, other = export.process(7), export.process(8)
        export.output(one, "a\n\nFOO=bar\n")
        export.output(other, "b\n", "stderr")
        export.output(one, "c\n")
    lines = read_job_output(path).lines
    assert [(line.process, line.stream, line.number, line.text) for line in lines] == [
        (one.global_id, "stdout", 1, "a"), (one.global_id, "stdout", 4, "c"), (other.global_id, "stderr", 1, "b")
    ]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), [
    ("2026-05-28 20:26:41,250 step", (START + 1_250_000_000, True)),
    ("[2026-05-28T20:26:41Z] step", (START + 1_000_000_000, False)),
    ("I 2026/05/28 22:26:41.5+02:00 step", (START + 1_500_000_000, True)),
    ("2026-13-28 20:26:41 no such month", (None, False)),
    ("20:26:41 which day", (None, False)),
    (f"{'x' * 80} 2026-05-28 20:26:41", (None, False)),
])  # fmt: skip
def test_line_has_the_time_that_it_begins_with(line, expected):
    assert time_of(line, UTC) == expected
    assert time_of("2026-05-28 22:26:41", timezone(timedelta(hours=2))) == (START + 1_000_000_000, False)
    assert time_of("2026-05-28 22:26:41", None) == (None, False)


def test_times_are_those_of_the_zone_of_the_machine(tmp_path):
    path = written(tmp_path / "x.sqlite", "2026-05-29 01:56:41.5 step\n")
    edit(path, "UPDATE TARGET_INFO_SESSION_START_TIME SET localTime = '2026-05-29T01:56:40'")
    [line] = read_job_output(path).lines
    assert (line.time, line.is_exact) == (START + 1_500_000_000, True)


@pytest.mark.campaign
def test_hostile_lines_take_no_time_and_an_export_without_output_has_none(tmp_path):
    for piece in ("+", "a:", "token", "A=", "[", "x" * 40, "A1b2", "'A':", "-----BEGIN PRIVATE KEY-----"):
        shown(tmp_path / "x.sqlite", "\n".join([piece * 3_000] * 50))
    assert read_job_output(empty_export(tmp_path / "empty.sqlite")).lines == ()
