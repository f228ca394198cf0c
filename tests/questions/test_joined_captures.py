"""Captures of one process are one rank, and no time between them is idle; other starts of a process are not."""

from pathlib import Path
from typing import Any

import pytest
from campaign import first
from synthetic import ExportWriter
from synthetic.demo import CaptureSession
from triaging import finding, judged

from nsystui.base.selection import Selection
from nsystui.questions.answers.remembered import Remembered, remember_first_questions
from nsystui.questions.gpu.utilisation import utilisation_table
from nsystui.questions.host.gaps import gaps_table
from nsystui.questions.host.time_budget import budget_with_causes
from nsystui.questions.job.job import OpenJob
from nsystui.questions.job.opening import JobSource, Listener, Opener
from nsystui.questions.kernels.summary import GroupBy, kernel_summary
from nsystui.questions.nvtx.listing import nvtx_tree_table
from nsystui.questions.queries.reports import reports_table
from nsystui.questions.ranks.overview import job_facts
from nsystui.questions.ranks.steps import step_times
from nsystui.questions.ranks.table import rank_table

MS = 1_000_000
SECOND = 1000 * MS
STEP, WORK = 10 * MS, 8 * MS
STEPS = 4


def capture(
    path: Path, at: int, *, pid: int = 7, gpu: int = 0, session: str = "", host: str = "pod", **how: Any
) -> None:
    """Write a capture of `STEPS` steps that begins ``at`` ns after the first, with a hole of ``how["hole"]`` ns."""
    path.parent.mkdir(exist_ok=True)
    facts = CaptureSession(host, 1_780_000_000 * SECOND + at, settings={"PROFILING_SESSION_UUID": session})
    with ExportWriter(path, session=facts) as out:
        process = out.process(pid, how.get("program", "python"))
        thread = out.thread(process, pid, "python")
        out.gpu(gpu)
        out.cuda_device(process, 0, gpu)
        hole = how.get("hole", 0)
        for number in range(2 * STEPS if hole else STEPS):
            start = (number + 1) * STEP + (hole if number >= STEPS else 0)
            out.api(thread, start, start + 5_000, "cudaLaunchKernel_v7000", number)
            out.nvtx_range(thread, start, start + STEP - MS, f"step {number}")
            out.kernel(process, 0, 7, start + MS, start + MS + WORK, name="gemm()", correlation_id=number)
        if hole:
            end = (STEPS + 1) * STEP
            out.api(thread, end, end + 1000, "cudaProfilerStop_v4000", 99)
            out.api(thread, end + hole - MS, end + hole - MS + 1000, "cudaProfilerStart_v4000", 100)


@pytest.fixture
def opened(tmp_path):
    jobs = []

    def open_job(*names: str, whole: bool = True, **how: Any) -> OpenJob:
        opener = Opener(JobSource(tuple(str(tmp_path / name) for name in names), tmp_path / "cache", **how), Listener())
        job, exports = opener.start()
        assert not opener.add(job, exports, whole)
        opener.align(job)
        jobs.append(job)
        return job

    yield open_job
    for job in jobs:
        job.close()


def shares(job: OpenJob) -> list[float]:
    """Return the busy share of each GPU, %."""
    busy = job.busy(Selection())
    return [round(value, 3) for value in utilisation_table(busy, job.extent()).cells("busy_percent")]


@pytest.mark.campaign
@pytest.mark.parametrize("whole", [True, False])
def test_captures_of_a_process_are_one_rank_in_any_order(opened, tmp_path, whole):
    for number in (1, 2, 10):
        capture(tmp_path / f"report.{number}.sqlite", number * 5 * SECOND, session=f"u{number}")
    alone = opened("report.1.sqlite")
    job = opened("report.10.sqlite", "report.1.sqlite", "report.2.sqlite", whole=whole)
    assert [(item.rank, item.pid, item.report_name) for item in job.ranks] == [(0, 7, "report")]
    assert shares(job) == shares(alone)
    facts = job_facts(job.session, job.ranks)
    assert (facts.ranks, facts.captures, facts.gpus) == (1, 3, 1) and facts.duration < SECOND
    (row,) = kernel_summary(job.session, Selection()).rows
    assert 3 * STEPS in row
    assert reports_table(job.session, job.ranks).cells("report") == ["report.1", "report.2", "report.10"]
    note = "pauses between captures of a process do not count (report: 44.92 s between 3 captures)"
    assert note in job.busy(Selection()).notes


def test_a_rank_may_have_captures_that_another_lacks(opened, tmp_path):
    names = [
        "n0/report.1.sqlite",
        "n0/report.2.sqlite",
        "n0/report.3.sqlite",
        "n1/report.1.sqlite",
        "n1/report.3.sqlite",
    ]
    for name in names:
        rank, number = int(name[1]), int(name[10])
        capture(tmp_path / name, number * 5 * SECOND, pid=7 + rank, gpu=rank)
    job = opened(*names)
    assert [(item.rank, item.pid, item.report_name) for item in job.ranks] == [(0, 7, "n0/report"), (1, 8, "n1/report")]


def test_remembered_answers_are_of_all_captures(opened, tmp_path):
    for number in (1, 2):
        capture(tmp_path / f"report.{number}.sqlite", number * 5 * SECOND)
    job = opened("report.1.sqlite", "report.2.sqlite")
    remember_first_questions(job, job.session.cache)
    counts = {}
    for names in (("report.1.sqlite",), ("report.1.sqlite", "report.2.sqlite")):
        files = tuple(str(tmp_path / name) for name in names)
        recalled = Remembered.of_source(JobSource(files, tmp_path / "cache")).recall("stats", "cuda_gpu_kern_sum")
        counts[len(names)] = recalled and recalled[1].cells("count")
    assert counts == {1: None, 2: [2 * STEPS]}


def test_steps_are_counted_through_and_end_with_their_capture(opened, tmp_path):
    for number in (1, 2):
        capture(tmp_path / f"report.{number}.sqlite", number * 5 * SECOND)
    (times,) = step_times(opened("report.1.sqlite", "report.2.sqlite").steps()).values()
    assert times.numbers.tolist() == list(range(2 * STEPS))
    assert times.duration.max() <= STEP


@pytest.mark.campaign
@pytest.mark.parametrize("files", first(1, [
    {"rank0.1": {}, "rank0.2": {"at": 5}, "rank1.1": {"pid": 8, "gpu": 1}, "rank1.2": {"pid": 8, "gpu": 1, "at": 5}},
    {"rank0.1": {}, "rank0.2": {"at": 5}, "rank0.3": {"at": 9}, "rank1.2": {"pid": 8, "gpu": 1, "at": 5}},
    {"a": {"session": "s"}, "b": {"session": "s", "at": 5}, "c": {"session": "t", "pid": 8, "gpu": 1}},
]))  # fmt: skip
def test_each_of_several_ranks_has_its_captures(opened, tmp_path, files):
    for name, how in files.items():
        given = {key: how[key] for key in how.keys() - {"at"}}
        capture(tmp_path / f"{name}.sqlite", how.get("at", 0) * SECOND, **given)
    job = opened(".")
    assert [item.rank for item in job.ranks] == [0, 1] and len({item.pid for item in job.ranks}) == 2
    assert job.shares_clock


@pytest.mark.campaign
@pytest.mark.parametrize("files", first(4, [
    {"pod.1": {}, "pod.2": {"at": 5, "host": "other"}},
    {"pod.1": {}, "pod.2": {"at": 5, "pid": 8}},
    {"pod.1": {}, "pod.2": {"at": 0.02}},
    {"run1": {"session": "s"}, "run2": {"session": "t", "at": 5}},
    {"pod.1": {}, "pod.2": {"at": 5, "gpu": 1}},
    {"pod.2": {}, "pod.1": {"at": 5}},
    {"first/report": {"session": "s"}, "second/report": {"session": "t", "at": 5}},
]))  # fmt: skip
def test_other_processes_and_other_starts_are_ranks_of_their_own(opened, tmp_path, files):
    for name, how in files.items():
        given = {key: how[key] for key in how.keys() - {"at"}}
        capture(tmp_path / f"{name}.sqlite", int(how.get("at", 0) * SECOND), **given)
    job = opened(*(f"{name}.sqlite" for name in files))
    assert len(job.ranks) == len(job.session.reports) == 2


def test_a_capture_without_gpu_work_is_one_of_its_process(opened, tmp_path):
    capture(tmp_path / "report.1.sqlite", 0)
    with ExportWriter(tmp_path / "report.2.sqlite", session=CaptureSession("pod", 1_780_000_005 * SECOND)) as out:
        out.nvtx_range(out.thread(out.process(7, "python"), 7, "python"), MS, 2 * MS, "evaluation")
    capture(tmp_path / "report.3.sqlite", 10 * SECOND)
    job = opened("report.1.sqlite", "report.2.sqlite", "report.3.sqlite")
    assert [(item.rank, item.report_name) for item in job.ranks] == [(0, "report")]
    (times,) = step_times(job.steps()).values()
    assert times.numbers.tolist() == list(range(2 * STEPS))


def test_time_between_captures_is_no_idle_time(opened, tmp_path):
    for number in (1, 2, 3):
        capture(tmp_path / f"report.{number}.sqlite", number * 5 * SECOND)
    capture(tmp_path / "hole.sqlite", 0, hole=5 * SECOND)
    for names in (["report.1.sqlite", "report.2.sqlite", "report.3.sqlite"], ["hole.sqlite"]):
        job = opened(*names)
        (budget,) = (dict(zip([item.key for item in answer.columns], row, strict=True))
                     for answer in [budget_with_causes(job, Selection())] for row in answer.rows)  # fmt: skip
        idle = sum(budget[part] for part in ("startup", "long_gaps", "short_gaps", "tail"))
        assert idle < 50 * MS and budget["unrecorded"] == 0
        assert idle == sum(gaps_table(job, Selection()).cells("time"))
        (times,) = step_times(job.steps()).values()
        assert times.duration.max() < 2 * STEP
        assert any("pauses between captures" in note for note in job.busy(Selection()).notes)


@pytest.mark.parametrize(("missing", "kinds", "busy"), [
    (0, "", 25.0),  # the process may sleep or compute
    (250, "", 25.0),  # few calls were lost, or were not traced
    (400, "", 50.0),  # ids of calls that were made are missing
    (400, "Stop Start", 50.0),  # a pause is no loss
])  # fmt: skip
def test_time_for_which_nsys_lost_all_events_of_a_process_is_unknown(opened, tmp_path, missing, kinds, busy):
    with ExportWriter(tmp_path / "a.sqlite") as out:
        thread = out.thread(process := out.process(1), 1, "python")
        for start in (*range(0, 200 * MS, MS), *range(600 * MS, 800 * MS, MS)):
            number = start // MS - (400 - missing) * (start >= 600 * MS)
            out.api(thread, start, start + 5_000, "cudaLaunchKernel_v7000", number)
            out.kernel(process, 0, 7, start + MS // 2, start + MS, name="gemm()", correlation_id=number)
        for number, word in zip((201, 598), kinds.split(), strict=False):
            out.api(thread, number * MS, number * MS + 1000, f"cudaProfiler{word}", number)
    job = opened("a.sqlite")
    assert shares(job) == [pytest.approx(busy, abs=0.5)]
    budget = budget_with_causes(job, Selection())
    is_unknown = missing == 400 and not kinds
    assert any("unknown" in note for note in budget.notes) is is_unknown
    assert (budget.cells("long_gaps")[0] < 4 * MS) is (missing == 400)
    assert not is_unknown or "400 ms" in finding(judged(job), "lost-events").sentence


def test_work_between_stop_and_start_shows_that_it_was_recorded(opened, tmp_path):
    with ExportWriter(tmp_path / "a.sqlite") as out:
        process = out.process(1)
        thread = out.thread(process, 1, "python")
        out.api(thread, 20 * MS, 20 * MS + 1, "cudaProfilerStop", 1)
        out.api(thread, 900 * MS, 900 * MS + 1, "cudaProfilerStart", 2)
        for number, start in enumerate((0, 500, 990)):
            out.kernel(process, 0, 7, start * MS, (start + 10) * MS, name="k()", correlation_id=10 + number)
    assert shares(opened("a.sqlite")) == [3.0]


@pytest.mark.campaign
@pytest.mark.parametrize(("names", "ranks", "roles"), [
    (["VLLM::Worker_TP3", "VLLM::Worker_TP0"], {"VLLM::Worker_TP3": 3, "VLLM::Worker_TP0": 0}, {"Worker"}),
    (["Worker_DP1_TP0", "Worker_DP0_TP1"], {"Worker_DP1_TP0": 2, "Worker_DP0_TP1": 1}, {"Worker"}),
    (["trainer-0", "trainer-1", "/opt/rollout_0"], {}, {"trainer", "rollout"}),
    (["EngineCore_0", "Worker_TP0"], {}, {"EngineCore", "Worker"}),
    (["python3.10"], {}, {"python"}),
    (["VLLM::Worker_DP0_TP1_EP1_DCP1", "VLLM::Worker_TP"], {}, {"Worker"}),
])  # fmt: skip
def test_roles_and_ranks_by_process_name(opened, tmp_path, names, ranks, roles):
    with ExportWriter(tmp_path / "a.sqlite") as out:
        for number, name in enumerate(names):
            out.kernel(out.process(number + 1, name), number, 7, 0, 10, name="k()", correlation_id=number)
    job = opened("a.sqlite")
    assert {item.role for item in job.ranks} == roles
    by_name = {item.process_name: item.rank for item in job.ranks}
    assert {name: by_name[name] for name in ranks} == ranks
    summary = kernel_summary(job.session, Selection(), group_by=(GroupBy.ROLE,), ranks=job.ranks)
    assert set(summary.cells("role")) == roles and sum(summary.cells("count")) == len(names)
    facts = job.rank_facts(Selection())
    for table in (budget_with_causes(job, Selection()), rank_table(job.session, Selection(), job.ranks, facts)):
        shown = set(table.cells("role")) if "role" in [item.key for item in table.columns] else None
        assert shown == (roles if len(roles) > 1 else None)


@pytest.mark.parametrize(("names", "rows"), [
    (["EngineCore_0", "Worker_TP0", "Worker_TP1"], {("Worker", "step"): 2, ("EngineCore", "step"): 1}),
    (["Worker_TP0", "Worker_TP1"], {("Worker", "step"): 2}),
    (["/opt/trainer-0"], {("trainer", "step"): 1}),
    (["", "Worker_TP0"], {(None, "step"): 1, ("Worker", "step"): 1}),
])  # fmt: skip
def test_ranges_by_role_also_of_processes_without_a_gpu(opened, tmp_path, names, rows):
    with ExportWriter(tmp_path / "a.sqlite") as out:
        for number, name in enumerate(names):
            process = out.process(number + 1, name)
            out.nvtx_range(out.thread(process, number + 1, "main"), 0, 10, "step")
            if not name.startswith("EngineCore"):
                out.kernel(process, number, 7, 0, 10, name="k()", correlation_id=number)
    table = nvtx_tree_table(opened("a.sqlite").nvtx_tree(Selection(), "role", "steps"))
    counts = zip(table.cells("role"), table.cells("path"), table.cells("count"), strict=True)
    assert {(role, path): count for role, path, count in counts} == rows


@pytest.mark.parametrize(("scope", "records", "programs"), [
    ("SystemWide", {"python": True, "desktop": False}, {"python"}),
    ("SystemWide", {"Worker_TP0": True, "Worker_TP1": False, "desktop": False}, {"Worker_TP0", "Worker_TP1"}),
    ("SystemWide", {"python": False, "desktop": False}, {"python", "desktop"}),
    ("ProcessTree", {"python": True, "desktop": False}, {"python", "desktop"}),
])  # fmt: skip
def test_processes_that_tracing_of_the_whole_system_adds_are_no_ranks(opened, tmp_path, scope, records, programs):
    """Only processes of the program have ranges; the CUDA work of others is traced, too."""
    facts = CaptureSession("pod", 0, settings={"CUDA_TRACE_SCOPE": scope})
    with ExportWriter(tmp_path / "a.sqlite", session=facts) as out:
        for number, (name, has_ranges) in enumerate(records.items()):
            process = out.process(number + 1, name)
            out.kernel(process, 0, 7, 0, 10, name="k()", correlation_id=number)
            if has_ranges:
                out.nvtx_range(out.thread(process, number + 1, "main"), 0, 10, "step")
    assert {item.process_name for item in opened("a.sqlite").ranks} == programs
