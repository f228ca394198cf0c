"""Notes on exports without rows: the request to nsys, its message, and the fix."""

import sqlite3

import pytest
from campaign import first
from synthetic import ExportWriter
from synthetic.demo import CaptureSession
from triaging import finding, told, triaged

from nsystui.base.selection import Selection
from nsystui.exports import canonical
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.summary import nccl_summary
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.recording import recording_advice
from nsystui.questions.queries.tasks import ranked_tasks

WARNING = 2
ALL = ("OSRuntime", "NvtxEvents", "Cuda")
FORK = "--trace-fork-before-exec=true"
SPAWN = "VLLM_WORKER_MULTIPROC_METHOD=spawn"
RAW = "CuptiUseRawGpuTimestamps=false"


def launching(out, pid, calls=5, name="python3", returned=0):
    """Write a process that launches kernels of which none is recorded."""
    thread = out.thread(out.process(pid, name), pid, name)
    for number in range(calls):
        out.api(
            thread, 1_000 * number, 1_000 * number + 500, "cudaLaunchKernel_v7000", number + 1, return_value=returned
        )


def working(out, pid):
    """Write a process with a kernel of which the launch was recorded."""
    process = out.process(pid, "python3")
    out.api(out.thread(process, pid, "python3"), 0, 500, "cudaLaunchKernel_v7000", 1)
    out.kernel(process, 0, 7, 1_000, 50_000, name="saxpy(float *)", correlation_id=1)


def ranges(name):
    def write(out):
        out.nvtx_range(out.thread(out.process(7, "python3"), 7, "python3"), 0, 50, name)

    return write


@pytest.fixture
def advice_on(tmp_path, opened):
    def of(write, table=canonical.KERNELS, **session):
        with ExportWriter(tmp_path / "one.sqlite", session=CaptureSession(**{"event_types": ALL, **session})) as out:
            write(out)
        job = opened(out.path)
        return recording_advice(job, job.reports, table)

    return of


def silent(*messages, severity=WARNING, name="python3"):
    def write(out):
        out.osrt(out.thread(out.process(7, name), 7, name), 0, 50, "poll")
        for message in messages:
            out.diagnostic(60, message, severity=severity)

    return write


def test_what_was_not_asked_for_is_to_be_recorded(advice_on):
    assert advice_on(silent(), event_types=("OSRuntime",)) == "record with `nsys profile -t cuda`"


@pytest.mark.campaign
@pytest.mark.parametrize(("message", "fix"), [
    ("Installed CUDA driver version (13.2) is not supported by this build of Nsight Systems.", "as new as the driver"),
    ("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: no right to trace", "NVreg_RestrictProfilingToAdminUsers=0"),
    ("Time conversion from GPU UUID 1 is not supported from CTA", RAW),
    ("CUDA profiling is not supported with MPS: CUPTI_ERROR_NOT_COMPATIBLE", "without MPS"),
    ("CUPTI is not supported on this device", FORK),
    ("The capture range was never opened", "capture range opens"),
    ("CUDA tracing: the process was terminated", "let the program end by itself"),
    ("No CUDA events collected. Does the process use CUDA?", FORK),
    ("CUDA profiling might have not been started correctly.", FORK),
])  # fmt: skip
def test_a_message_of_nsys_is_quoted_with_its_fix(advice_on, message, fix):
    text = advice_on(silent("No OpenGL events collected.", message))
    assert f'"{message}"' in text and fix in text and "record with" not in text


@pytest.mark.parametrize(
    "message",
    ["CPU sampling: no permission to call perf_event_open", "GPU Metrics [0]: NVPA_STATUS_INSUFFICIENT_PRIVILEGE"],
)
def test_a_message_about_something_else_is_not_quoted(advice_on, message):
    assert "nsys:" not in advice_on(silent(message))


def test_information_of_nsys_is_no_cause(advice_on):
    assert "nsys:" not in advice_on(silent("CUDA injection initialized, CUPTI error", severity=1))


@pytest.mark.campaign
def test_an_option_that_was_used_is_not_advised(advice_on):
    text = advice_on(
        silent(),
        settings={"TRACE_AFTER_FORK_BEFORE_EXEC": "true"},
        environment={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    )
    assert FORK not in text and "spawn" not in text
    assert FORK in advice_on(silent(), settings={"TRACE_AFTER_FORK_BEFORE_EXEC": "false"})
    assert "VLLM" not in advice_on(silent())
    assert f"({SPAWN})" in advice_on(silent(name="VLLM::Worker_TP0"))
    for name in ("execute_model", "vllm.v1.engine"):
        assert ("VLLM" in advice_on(ranges(name))) is name.startswith("vllm")
    assert SPAWN in advice_on(silent(), settings={"PROCESS_0:ARGUMENT_1": "vllm.entrypoints.api"})
    used = {
        "COLLECT_GPU_MEMORY_USAGE": canonical.GPU_MEMORY,
        "COLLECT_UVM_CPU_PAGE_FAULTS": canonical.CPU_PAGE_FAULTS,
        "COLLECT_UVM_GPU_PAGE_FAULTS": canonical.GPU_PAGE_FAULTS,
    }
    for setting, table in used.items():
        assert "record with" not in advice_on(silent(), table, settings={f"PROCESS_0:{setting}": "true"})
        assert advice_on(silent(), table, settings={f"PROCESS_0:{setting}": "false"}) == table.record


@pytest.mark.campaign
@pytest.mark.parametrize("included", first(1, [{"include_json": True}, {"include_blobs": True}, {}]))
def test_an_export_that_includes_payloads_is_not_advised_to_be_written_again(tmp_path, opened, included):
    with ExportWriter(tmp_path / "one.sqlite", session=CaptureSession(**included)) as out:
        working(out, 7)
        process = out.process(7)
        main = out.thread(process, 7, "main")
        out.nvtx_domain(main, 1, 2, "NCCL")
        out.nvtx_range(main, 10, 900, "ncclAllReduce", domain_id=2)
        out.api(main, 100, 500, "cudaLaunchKernel_v7000", 2)
        out.kernel(process, 0, 7, 60_000, 90_000, name="ncclDevKernel_AllReduce", correlation_id=2)
    advice = finding(triaged(out.path), "no-message-sizes").advice.text
    assert ("nsys export" in advice) == (not included) and "--nccl-log" in advice and "2.16.2" in advice
    job = OpenJob(opened(out.path))
    notes = nccl_summary(job, Selection(), job.pairing()).notes
    assert advice.removeprefix("To see bandwidth: ").rstrip(".") in notes[0]


@pytest.mark.parametrize(("kernel", "fix"), [
    ("5.15.167.4-microsoft-standard-WSL2", f"under WSL put {RAW}"),
    ("4.4.0", f"under gVisor put {RAW}"),
    (None, f"under WSL or gVisor put {RAW}"),
    ("5.15.0-160-generic", ""),
])  # fmt: skip
def test_launches_without_work_need_another_fix_than_forked_workers(advice_on, kernel, fix):
    text = advice_on(lambda out: launching(out, 100), kernel=kernel)
    assert FORK not in text and "let the program end by itself" in text and "NVreg" in text
    assert (fix in text) if fix else RAW not in text


def test_a_worker_without_calls_may_be_forked(advice_on):
    def write(out):
        launching(out, 100)
        out.process(200, "worker")

    assert FORK in advice_on(write)


def test_workers_are_no_cause_of_missing_ranges_where_cuda_calls_were_recorded(advice_on):
    def write(out):
        working(out, 7)
        out.process(1, "systemd")

    text = advice_on(write, canonical.NVTX_RANGES)
    assert "opens NVTX ranges" in text and FORK not in text and "spawn" not in text
    assert FORK in advice_on(silent(), canonical.NVTX_RANGES)


def test_a_capture_range_is_named_where_one_was_asked_for(advice_on):
    assert "capture range" in advice_on(silent(), settings={"START_TRIGGER": "CudaProfilerStart"})


@pytest.mark.campaign
@pytest.mark.parametrize(("table", "settings", "message", "fix"), [
    (canonical.NVTX_RANGES, {}, "No NVTX events collected. Does the process use NVTX?", "opens NVTX ranges"),
    (canonical.NCCL_CALLS, {}, "No NVTX events collected. Does the process use NVTX?", "opens NVTX ranges"),
    (canonical.SCHED_EVENTS, {"LINUX_PERF_OPTIONS:COLLECT_CPU_CTXSW_TRACE": "true"},
     "Scheduling information is absent.", "perf_event_paranoid"),
    (canonical.HOST_SAMPLES, {"LINUX_PERF_OPTIONS:COLLECT_IP_BACKTRACE_SAMPLES": "true"},
     "Unable to collect CPU kernel IP/backtrace samples. perf event paranoid level is 2.", "perf_event_paranoid"),
    (canonical.GPU_METRICS, {"GPU_METRICS_OPTIONS:SAMPLING_FREQUENCY": "10000"}, "GPU metrics: already in use", "DCGM"),
])  # fmt: skip
def test_other_traces_are_told_likewise(advice_on, table, settings, message, fix):
    text = advice_on(silent(message), table, settings=settings)
    assert f'"{message}"' in text and fix in text and "record with" not in text
    if settings:
        assert advice_on(silent(message), table) == table.record


def test_os_runtime_calls_that_were_traced_are_not_to_be_recorded(advice_on):
    def write(out):
        launching(out, 100)
        out.diagnostic(0, "No OS runtime libraries events collected.", severity=WARNING)

    text = advice_on(write, canonical.OS_CALLS)
    assert '"No OS runtime libraries events collected."' in text and "--osrt-threshold" in text


def test_a_kind_of_work_that_the_job_does_not_have_needs_no_fix(tmp_path, opened):
    with ExportWriter(tmp_path / "one.sqlite") as out:
        working(out, 2)
    (note,) = missing_notes(opened(out.path), canonical.GRAPH_LAUNCHES)
    assert note.endswith("CUDA was traced, but no GPU activity of this kind was recorded")


def test_triage_names_processes_that_launched_work_of_which_nothing_was_recorded(tmp_path):
    with ExportWriter(tmp_path / "one.sqlite") as out:
        working(out, 100)
        launching(out, 200, 50, "VLLM::Worker_TP1")
        launching(out, 300, 50, "VLLM::Worker_TP2")
        launching(out, 400, 50, "probe", returned=1)
        out.process(500, "bash")
    whom = "2 processes with CUDA calls: VLLM::Worker_TP1 (200), VLLM::Worker_TP2 (300)"
    lost = "the GPU work of some processes was not recorded"
    told(finding(triaged(out.path), "no-gpu-work"), whom, "100 CUDA calls", advises=[lost], never=["probe", "bash"])


def test_a_process_without_recorded_work_keeps_its_rank(tmp_path, opened):
    with ExportWriter(tmp_path / "one.sqlite") as out:
        working(out, 100)
        launching(out, 200)
        working(out, 300)
        launching(out, 400, returned=1)
    assert {item.rank: item.pid for item in ranked_tasks(opened(out.path))} == {0: 100, 1: 200, 2: 300}


def test_a_context_without_launches_is_no_rank(tmp_path, opened):
    with ExportWriter(tmp_path / "one.sqlite") as out:
        for pid in (100, 300):
            working(out, pid)
            out.cuda_context(out.process(pid))
        out.cuda_context(out.process(200))
    assert [item.pid for item in ranked_tasks(opened(out.path))] == [100, 300]


def test_a_helper_without_recorded_work_changes_no_numbers_of_files(tmp_path, opened):
    for rank in (3, 5):
        with ExportWriter(tmp_path / f"rank{rank}.sqlite") as out:
            launching(out, 50)
            working(out, 100)
    ranks = {item.rank: item.pid for item in ranked_tasks(opened(*sorted(tmp_path.glob("*.sqlite"))))}
    assert ranks == {3: 100, 5: 100, 6: 50, 7: 50}


def test_each_rank_without_gpu_work_gets_the_advice_that_fits(tmp_path):
    for rank, (write, traced) in enumerate([(working, ALL), (launching, ALL), (silent(), ("NvtxEvents",))]):
        session = CaptureSession(event_types=traced, environment={"RANK": str(rank)})
        with ExportWriter(tmp_path / f"rank{rank}.sqlite", session=session) as out:
            write(out, *[100] * (rank < 2))
    lost, record = "CUDA was traced, but no GPU activity was recorded", "record with `nsys profile -t cuda`"
    told(finding(triaged(*sorted(tmp_path.glob("*.sqlite"))), "no-gpu-work"), "ranks 1, 2", advises=[lost, record])


def test_processes_are_not_judged_if_gpu_work_has_no_process(tmp_path):
    with ExportWriter(tmp_path / "one.sqlite") as out:
        working(out, 100)
        launching(out, 200)
    with sqlite3.connect(out.path) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL")
    assert "no-gpu-work" not in {one.id for one in triaged(out.path).findings}


def test_processes_are_not_judged_if_kernels_have_impossible_times(tmp_path):
    with ExportWriter(tmp_path / "one.sqlite") as out:
        working(out, 100)
        launching(out, 200)
        out.kernel(out.process(200), 0, 7, 9_000, 8_000, name="saxpy(float *)", correlation_id=1)
    assert "no-gpu-work" not in {one.id for one in triaged(out.path).findings}
