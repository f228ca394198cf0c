"""A trace of the PyTorch profiler gives the answers of an export of nsys, as far as it has the data."""

import gzip
import json
import shutil
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from synthetic import training_job
from synthetic.demo.kineto import ENDING, write_trace

from nsystui.exports.discover import discover, form_of

BASE = 1_775_078_550_000_000_000
FIRST = 88_511_388_202_765
"""The time of the first event after the base, ns."""


@pytest.fixture(scope="module")
def exports(written_once) -> list[Path]:
    return written_once("kineto", lambda directory: training_job(directory, ranks=2, steps=3, layers=2))


@pytest.fixture(scope="module")
def traces(exports, tmp_path_factory) -> list[Path]:
    place = tmp_path_factory.mktemp("traces")
    paths = [place / f"{export.stem}{ENDING}" for export in exports]
    for export, trace in zip(exports, paths, strict=True):
        write_trace(export, trace)
    return paths


def microseconds(time: int) -> Any:
    """Return µs as a JSON number with more digits than a float has."""
    return f"@{time // 1000}.{time % 1000:03d}@"


def event(category: str, name: str, start: int, end: int, pid: int = 4711, tid: int = 4711, **arguments: Any) -> dict:
    times = {"ts": microseconds(start), "dur": microseconds(end - start)}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": arguments}


def on_gpu(category: str, name: str, start: int, end: int, correlation: int, **arguments: Any) -> dict:
    known = {"device": 0, "context": 1, "stream": 7, "correlation": correlation}
    return event(category, name, start, end, 0, 7, **{**known, **arguments})


def kernel(name: str, start: int, end: int, correlation: int, **arguments: Any) -> dict:
    shape = {"grid": [2, 3, 4], "block": [128, 1, 1], "registers per thread": 40, "shared memory": 4096}
    return on_gpu("kernel", name, start, end, correlation, **{**shape, **arguments})


def call(name: str, start: int, end: int, correlation: int) -> dict:
    return event("cuda_runtime", name, start, end, cbid=211, correlation=correlation)


def small_job() -> list[dict]:
    return [
        event("user_annotation", "ProfilerStep#3", FIRST, FIRST + 90_000),
        event("cpu_op", "aten::mm", FIRST + 1_001, FIRST + 9_001, **{"External id": 12}),
        call("cudaLaunchKernel", FIRST + 2_001, FIRST + 6_001, 11),
        kernel("void (anonymous namespace)::gemm<float>(int)", FIRST + 9_007, FIRST + 30_011, 11),
        call("cudaMemcpyAsync", FIRST + 31_001, FIRST + 33_001, 12),
        on_gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", FIRST + 34_001, FIRST + 36_001, 12, bytes=4096),
    ]


def write(path: Path, events: list[Any], before: dict | None = None, after: dict | None = None) -> Path:
    facts = {"schemaVersion": 1, "baseTimeNanoseconds": BASE} if before is None else before
    text = json.dumps({**facts, "traceEvents": events, **(after or {})}, indent=1)
    text = text.replace('"@', "").replace('@"', "")
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def trace(tmp_path) -> Path:
    return write(tmp_path / "job.pt.trace.json", small_job())


@pytest.fixture
def contents(run, tmp_path):
    """Return a function that counts the rows of each table for a trace of some events."""

    def contents(events: list[Any]) -> dict[str, str]:
        found = run("info", write(tmp_path / "job.json", events), "--show", "contents", "--format", "csv").table
        return {row["Table"]: row["Rows"] for row in found}

    return contents


@pytest.mark.campaign
@pytest.mark.parametrize("command", ["kernels", "memory", "api", "gpu", "steps"])
def test_a_trace_answers_as_the_export_of_the_same_job(table, exports, traces, command):
    # PyTorch has its own names for steps, CUDA ordinals of GPUs, and only events of its process.
    without = {"Anchor", "GPU", "Recorded (ns)"}
    of_export, of_traces = (
        [{key: value.partition("_v")[0] for key, value in row.items() if key not in without} for row in found]
        for found in (table(command, *exports), table(command, *traces))
    )
    assert of_traces == of_export != []


@pytest.mark.campaign
def test_collectives_have_their_sizes_and_bandwidth(table, exports, traces):
    wanted = ("Collective", "Message Size", "Count", "Total Bytes", "Total Time (ns)", "AlgBW (B/s)", "BusBW (B/s)")
    of_export, of_traces = (
        sorted(
            tuple(row[key] for key in wanted)
            for row in table("nccl", *files, "--by", "collective,size")
            if row["What"] == "kernel" and row["Collective"] != "SendRecv"
        )
        for files in (exports, traces)
    )
    assert of_export == of_traces and len(of_export) > 4


@pytest.mark.campaign
def test_ranks_come_from_the_process_group_on_one_clock(table, exports, traces, tmp_path):
    renamed = [Path(shutil.copy(trace, tmp_path / f"{name}{ENDING}")) for name, trace in zip("ba", traces, strict=True)]
    wanted = ("Rank", "Kernels", "Busy (%)", "NCCL (%)", "Idle (%)", "Late", "Collectives")
    of_export, of_traces = (
        [[row[key] for key in wanted] for row in table("ranks", *files)] for files in (exports, renamed)
    )
    assert of_traces == of_export


@pytest.mark.campaign
def test_traces_and_exports_make_one_job(table, exports, traces):
    assert table("kernels", exports[0], *traces[1:], "--by", "rank") == table("kernels", *exports, "--by", "rank")


def kernels_of(trace: Path) -> list[dict[str, Any]]:
    with gzip.open(trace, "rt") as file:
        return [one for one in json.load(file, parse_float=Decimal)["traceEvents"] if one.get("cat") == "kernel"]


def test_the_durations_of_kernels_are_those_in_the_file(table, traces):
    total: dict[str, int] = defaultdict(int)
    for one in kernels_of(traces[0]):
        total[one["name"]] += int(one["dur"] * 1000)
    found = table("stats", "-r", "cuda_gpu_kern_sum", traces[0])
    assert {row["Name"]: int(row["Total Time (ns)"]) for row in found} == total


def length(intervals: list[tuple[int, int]]) -> int:
    """Return the length of the union of intervals."""
    total, done = 0, 0
    for start, end in sorted(intervals):
        total += max(end - max(start, done), 0)
        done = max(done, end)
    return total


def test_compute_and_overlap_are_as_htas_formulas_have_them(table, traces):
    """HTA: compute = |U(compute)|; overlap = |U(communication) ∩ U(compute)| / |U(communication)|."""
    of_kind: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for one in kernels_of(traces[0]):
        start = int(one["ts"] * 1000)
        of_kind[one["name"].startswith("nccl")].append((start, start + int(one["dur"] * 1000)))
    compute, communication = length(of_kind[False]), length(of_kind[True])
    overlap = compute + communication - length(of_kind[True] + of_kind[False])
    (row,) = table("gpu", traces[0])
    assert (int(row["Compute (ns)"]), int(row["NCCL (ns)"])) == (compute, communication)
    assert int(row["NCCL over Compute (ns)"]) == overlap > 0


@pytest.mark.campaign
def test_times_are_exact_to_the_nanosecond(table, tmp_path):
    """Without a base time, as before PyTorch 2.3: a float cannot hold 16 digits before the point and 3 after it."""
    events = small_job()
    for one in events:
        one["ts"] = microseconds(int(Decimal(one["ts"].strip("@")) * 1000) + BASE)
    plain = write(tmp_path / "old.json", events, before={"deviceProperties": []})
    row = table("stats", "-r", "cuda_gpu_trace:base", plain)[0]
    assert (row["Start (ns)"], row["Duration (ns)"]) == ("9007", "21004")
    (report,) = table("info", plain, "--show", "reports")
    assert report["Started (UTC)"] == "2026-04-02 21:57:41"


@pytest.mark.campaign
def test_facts_may_stand_before_or_after_the_events(table, tmp_path):
    told = {"distributedInfo": {"backend": "nccl", "rank": 5, "world_size": 8}, "baseTimeNanoseconds": BASE}
    gpu = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 132, "totalGlobalMem": 80 << 30}]}
    for name, before, after in (("before", {**told, **gpu}, {}), ("after", {"schemaVersion": 1}, {**gpu, **told})):
        path = write(tmp_path / f"{name}.pt.trace.json.gz", small_job(), before, after)
        (row,) = table("info", path, "--show", "reports")
        found = [row[key] for key in ("Ranks", "GPUs", "Started (UTC)", "nsys")]
        assert found == ["5", "NVIDIA H100", "2026-04-02 21:57:41", "PyTorch profiler trace"], name


@pytest.mark.campaign
def test_kernels_have_their_launch_and_shape(table, trace):
    (row,) = [one for one in table("stats", "-r", "cuda_gpu_trace:base", trace) if "gemm" in one["Name"]]
    shape = [row[key] for key in ("GrdX", "GrdY", "GrdZ", "BlkX", "Reg/Trd", "Strm", "CorrId")]
    assert shape == ["2", "3", "4", "128", "40", "7", "11"]
    (launch,) = table("stats", "-r", "cuda_kern_exec_sum", trace)
    assert (launch["API Name"], launch["AAvg (ns)"]) == ("cudaLaunchKernel", "4000.0")


@pytest.mark.campaign
def test_synchronisations_have_their_kind_and_stream(table, tmp_path):
    # nsys writes 4294967295 for a wait that is not for one stream.
    kinds = {
        "Stream Wait Event": ({"wait_on_cuda_event_id": 7}, ("Stream wait sync", "7")),
        "Event Sync": ({"stream": -1}, ("Event sync", "")),
        "Context Sync": ({"stream": -1}, ("Context sync", "")),
        "Stream Sync": ({}, ("Stream sync", "7")),
    }
    events = small_job()
    for number, (name, (said, _)) in enumerate(kinds.items()):
        start = FIRST + 10 + 20 * number
        events.append(on_gpu("cuda_sync", name, start, start + 10, 20 + number, **said))
    found = table("events", write(tmp_path / "job.json", events), "--kinds", "sync")
    assert [(row["Name"], row["Strm"]) for row in found] == [expected for _, expected in kinds.values()]


def test_operators_and_python_are_ranges_of_their_own_domains(table, tmp_path):
    events = [
        *small_job(),
        event("python_function", "train.py(12): forward", FIRST + 500, FIRST + 9_500),
        event("gpu_user_annotation", "ProfilerStep#3", FIRST + 9_000, FIRST + 40_000, 0, 7),
    ]
    found = {row["Range"] for row in table("stats", "-r", "nvtx_sum", write(tmp_path / "job.json", events))}
    assert found == {"ProfilerStep#3", "PyTorch operators:aten::mm", "Python:train.py(12): forward"}


COLLECTIVES = {
    "allreduce": ("AllReduce", 2048), "_allgather_base": ("AllGather", 2048),
    "all_gather_into_tensor_coalesced": ("AllGather", 2048), "_reduce_scatter_base": ("ReduceScatter", 8192),
    "all_to_all": ("AlltoAll", 512), "broadcast": ("Broadcast", 2048),
}  # fmt: skip


@pytest.mark.campaign
def test_the_message_size_is_that_of_nccls_own_call(table, tmp_path):
    events = []
    for number, spelled in enumerate(COLLECTIVES):
        start = FIRST + 100_000 * number
        said = {
            "Collective name": spelled, "dtype": "BFloat16", "In msg nelems": 1024, "Out msg nelems": 4096,
            "Group size": 4, "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]", "Rank": 1,
        }  # fmt: skip
        events += [
            event("cpu_op", "record_param_comms", start, start + 9_000, **said),
            call("cudaLaunchKernelExC", start + 1_000, start + 5_000, number + 3),
            kernel(f"ncclDevKernel_Generic{number}(args)", start + 9_000, start + 20_000, number + 3),
        ]
    calls = table("nccl", write(tmp_path / "job.json", events), "--calls", "--sort", "start")[::-1]
    found = [(row["Name"], row["Message Size (B)"], row["Datatype"]) for row in calls]
    assert found == [(f"nccl{name}", str(size), "bf16") for name, size in COLLECTIVES.values()]


def test_what_is_no_collective_makes_no_call(contents):
    said = {"Collective name": "wait", "dtype": "Float", "In msg nelems": 0, "Out msg nelems": 0, "Group size": 4}
    found = contents([*small_job(), event("cpu_op", "record_param_comms", FIRST, FIRST + 10, **said)])
    assert found["nccl_calls"] == "0"


@pytest.mark.campaign
def test_allocations_of_pytorch_are_gpu_memory(contents):
    def memory(time: int, size: int, kind: int = 1) -> dict:
        said = {"Device Type": kind, "Device Id": 0, "Bytes": size, "Addr": 140_000_000, "Total Allocated": 1}
        place = {"pid": 4711, "tid": 4711, "ts": microseconds(time)}
        return {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", **place, "args": said}

    events = [memory(FIRST + 10, 1 << 20), memory(FIRST + 30, -(1 << 20)), memory(FIRST + 20, 64, 0)]
    assert contents([*small_job(), *events])["gpu_memory"] == "2"


@pytest.mark.campaign
def test_events_long_before_the_first_ones_are_kept(table, tmp_path):
    late = [event("cpu_op", "aten::add", FIRST + number, FIRST + number + 1) for number in range(20_001)]
    early = kernel("early", FIRST - 20_000_000_000, FIRST - 19_999_999_000, 1)
    (row,) = table("kernels", write(tmp_path / "job.json", [*late, early]))
    assert (row["Name"], row["Total Time (ns)"]) == ("early", "1000")


def test_numbers_may_be_text(table, tmp_path):
    text = json.dumps({"schemaVersion": 1, "traceEvents": small_job()}).replace("@", "")
    path = tmp_path / "job.json"
    path.write_text(text.replace('"correlation": 11', '"correlation": "11"'))
    (launch,) = table("stats", "-r", "cuda_kern_exec_sum", path)
    assert "gemm" in launch["Kernel Name"]


def test_a_thread_number_too_large_for_an_export_stays_one_thread(table, tmp_path):
    large = [event("cpu_op", "aten::mm", FIRST + n, FIRST + n + 1, tid=140_000_000_000_000) for n in (1, 5)]
    found = table("stats", "-r", "nvtx_pushpop_trace", write(tmp_path / "job.json", [*small_job(), *large]))
    assert len({row["TID"] for row in found if row["Name"].endswith("aten::mm")}) == 2


@pytest.mark.campaign
def test_the_name_tells_the_host_where_it_tells_the_process(table, tmp_path):
    for name, host in (("gpu-a01_4711.1754980773706849449", "gpu-a01"), ("run_12.7", "")):
        (row,) = table("info", write(tmp_path / f"{name}.pt.trace.json", small_job()), "--show", "reports")
        assert row["Host"] == host


def test_a_trace_of_the_cpu_alone_says_how_to_trace_the_gpu(run, tmp_path):
    said = run("kernels", write(tmp_path / "job.json", small_job()[:2])).err
    assert "no GPU kernels in this export: trace with ProfilerActivity.CUDA among the activities" in said


def test_a_trace_has_no_schema_of_nsys_and_was_not_exported_with_json(records, trace):
    (row,) = records("info", trace)
    assert [row[key] for key in ("nsys", "schema", "json", "blobs")] == ["PyTorch profiler trace", None, None, None]


def test_unknown_and_incomplete_events_are_counted(run, tmp_path):
    incomplete = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": {}}
    strange = [
        *(event("mtia_runtime", "runFunction", FIRST, FIRST + 1) for _ in range(2)),
        {**incomplete, "name": "no times"},
        {**incomplete, "name": "no duration", "ts": 1},
        {**incomplete, "name": "no GPU", "pid": "GPU", "ts": 1, "dur": 1},
        "no event",
    ]
    done = run("info", write(tmp_path / "job.json", [*small_job(), *strange]), "--show", "diagnostics")
    for what in (
        "of the category mtia_runtime (2)",
        "without times (2)",
        "of the category kernel without a device (1)",
    ):
        assert f"left out of the PyTorch profiler trace: events {what}" in done.out


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_a_cut_trace_is_one_line_and_leaves_nothing(refused, trace, tmp_path, monkeypatch, ending):
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    whole = gzip.compress(trace.read_bytes()) if ending == ".json.gz" else trace.read_bytes()
    path = tmp_path / f"cut{ending}"
    path.write_bytes(whole[: len(whole) // 2])
    said = refused("kernels", path)
    assert all(words in said for words in (str(path), "cut short", "copy it again"))
    assert not list((tmp_path / "cache").rglob("*.sqlite"))


@pytest.mark.parametrize(("content", "cause"), [
    (b'{"traceEvents": [{"ph": "X", "ts": }]}', "JSON is damaged"),
    (b'{"traceEvents": [{"ph": "X", "name": "\xff\xfe"}]}', "damaged"),
    (b'{"traceEvents": {"ph": "X"}}', "its traceEvents are missing or hold no event"),
    (b'{"schemaVersion": 1, "deviceProperties": []}', "its traceEvents are missing or hold no event"),
    (b'{"displayTimeUnit":"ns","traceEvents":[{"ph":"X","cat":"x","ts":1,"dur":1}]}', "without events of"),
    (b' [{"ph": "X", "ts": 1}]', "JSON without traceEvents: no trace of the PyTorch profiler"),
    (gzip.compress(b'{"some": "JSON"}', mtime=0), "JSON without traceEvents: no trace of the PyTorch profiler"),
    (b"[section]", "not a SQLite file"),
])  # fmt: skip
def test_what_is_no_trace_is_one_line(refused, tmp_path, content, cause):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    said = refused("kernels", path)
    assert str(path) in said and cause in said
    assert path.read_bytes() == content


def test_a_directory_means_its_traces_and_no_other_json(trace):
    (trace.parent / "config.json").write_text('{"model": "demo"}')
    assert discover([str(trace.parent)]) == [trace]


def test_the_name_of_the_trace_is_that_of_the_report(tmp_path):
    for ending in (".pt.trace.json", ".pt.trace.json.gz", ".json", ".json.gz"):
        path = write(tmp_path / f"rank3{ending}", small_job())
        form = form_of(path)
        assert form is not None and form.name_of(path) == "rank3", ending


@pytest.mark.campaign
@pytest.mark.parametrize("words", [("triage",), ("efficiency",), ("nccl",), ("triage", "--format", "json")])
def test_advice_to_record_with_nsys_says_that_this_profiler_has_none(run, traces, words):
    done = run(*words, *traces)
    said = " ".join((done.out + done.err).split())
    assert "a PyTorch profiler trace does not contain it; record with `nsys" in said or words == ("nccl",)
    assert said.count("record with `nsys") == said.count(
        "a PyTorch profiler trace does not contain it; record with `nsys"
    )
    assert "nsys 2024.4 and later" not in said


@pytest.mark.parametrize("argument", ["name", "Process Group Ranks", "Input Dims"])
@pytest.mark.parametrize("levels", [1_100, 100_000])
def test_values_nested_too_deep_are_one_line(run, tmp_path, argument, levels):
    arguments = {"Collective name": "allreduce", "dtype": "Float", **({argument: "deep"} if argument != "name" else {})}
    one = event("cpu_op", "record_param_comms", FIRST, FIRST + 9, **arguments)
    one["name"] = "deep" if argument == "name" else one["name"]
    path = write(tmp_path / "job.json", [*small_job(), one])
    path.write_text(path.read_text().replace('"deep"', "[" * levels + "]" * levels))
    done = run("kernels", path)
    assert done.status == 2
    assert f"{path}: a trace of the PyTorch profiler, but its JSON is nested more than" in done.err
    assert "Traceback" not in done.err and "RecursionError" not in done.err


def test_brackets_and_escapes_in_names_are_no_levels(table, tmp_path):
    """Chunks of the file end anywhere, also after the backslash of an escape."""
    events = small_job() + [event("cpu_op", '[{"\\' * n, FIRST, FIRST + 9) for n in range(0, 900, 9)]
    (row,) = table("kernels", write(tmp_path / "job.json", events))
    assert row["Instances"] == "1"


@pytest.mark.campaign
@pytest.mark.parametrize("words", [("nccl",), ("recipe", "nccl_sum")])
def test_a_trace_without_nccl_is_told_what_to_trace_with_pytorch(run, trace, words):
    said = run(*words, trace).err
    assert "trace a job with NCCL, with ProfilerActivity.CPU among the activities" in said
    assert "nsys profile" not in said and "-t cuda,nvtx" not in said


WINDOW = "percentages are of the whole PyTorch profiler trace, not only of its steps"


@pytest.mark.parametrize(
    "words", ["overview", *(pytest.param(one, marks=pytest.mark.campaign) for one in ("gpu --over-time", "efficiency"))]
)
def test_idle_time_and_utilisation_say_the_window_of_a_trace_in_one_sentence(run, trace, exports, words):
    assert run(*words.split(), trace).err.count(WINDOW) == 1
    assert WINDOW not in run(*words.split(), exports[0]).err


@pytest.mark.campaign
def test_work_outside_of_steps_is_said(run, tmp_path):
    """Three steps of 20 µs of work each, and kernels of 15 µs before and after them."""
    events = []
    for number in range(5):
        start = FIRST + 100_000 * number
        is_step = 0 < number < 4
        events += [event("user_annotation", f"ProfilerStep#{number}", start, start + 90_000)] if is_step else []
        events += [call("cudaLaunchKernel", start + 10, start + 20, number + 1)]
        events += [kernel("gemm", start + 30, start + 30 + (20_000 if is_step else 15_000), number + 1)]
    path = write(tmp_path / "job.json", events)
    said = "30 µs of GPU work, 33.3 % of all, was launched outside of steps"
    assert said in run("steps", path).err
    assert said in run("ranks", path).err
    assert "outside of steps" not in run("steps", write(tmp_path / "inside.json", events[2:-2])).err
