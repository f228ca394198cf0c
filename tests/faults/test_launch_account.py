"""Accounts of launches: kernels and launches that a capture lacks, and GPU clocks that differ from the CPU's."""

import shutil
from dataclasses import replace
from itertools import product

import program
import pytest
from campaign import first
from support import edit, job_of, native, real_exports, records
from synthetic import ExportWriter, node_graph_export, whole_graph_export
from synthetic.illnesses import one_gpu
from triaging import finding, judged, told, triaged

from nsystui.base.selection import Selection
from nsystui.questions.blocking.budget import budget_by_step
from nsystui.questions.blocking.phase_table import budget_of_phases
from nsystui.questions.capture.launch_account import LaunchAccount, losses
from nsystui.questions.host.time_budget import budget_with_causes
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import MEMORY, work_summary
from nsystui.questions.ranks.overview import task_table
from nsystui.questions.triage.rules.capture import PARTIAL
from nsystui.store.cache import Cache
from nsystui.store.session import Session
from nsystui.ui.pictures.gpu import GpuPictureRequest, gpu_picture

US, MS = 1_000, 1_000_000
KERNELS, CALLS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
GPU_TABLES = (KERNELS, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


def launches(out, pid, number=200, lost=(), delay=20 * US, first=0):
    """Write a process that launches a kernel of 30 µs every 100 µs, apart from the kernels of ``lost`` launches."""
    process = out.process(pid, "python3")
    thread = out.thread(process, pid, "python3")
    for index in range(number):
        start, correlation_id = first + 100 * US * index, index + 1
        out.api(thread, start, start + 5 * US, "cudaLaunchKernel_v7000", correlation_id)
        if index not in lost:
            begin = start + delay
            out.kernel(process, 0, 7, begin, begin + 30 * US, name="saxpy(float *)", correlation_id=correlation_id)
    return thread


def partial(path):
    return [one for one in triaged(path).findings if one.id in PARTIAL]


def accounts(path):
    """Return the rows of ``nsystui info --show launches`` by heading."""
    return program.rows("info", path, "--show", "launches")


def written(tmp_path, *processes):
    with ExportWriter(tmp_path / "rank0.sqlite") as out:
        for pid, options in enumerate(processes, 100):
            launches(out, pid, **options)
    return out.path


@pytest.mark.campaign
def test_lost_kernels_are_counted_by_rank_and_make_busy_time_a_lower_bound(tmp_path):
    path = written(tmp_path, {}, {"lost": range(40, 104)})
    found = triaged(path)
    told(finding(found, "incomplete-capture"), "64 of 200 kernel launches have no kernel", "rank 1", never=["rank 0"])
    assert (
        found.findings[0].id == "incomplete-capture" and finding(found, "incomplete-capture").severity.value == "error"
    )
    assert "busy at least" in found.summary and "blocked most" not in found.summary and not found.account
    (why,) = {rule.why for rule in found.not_checked if "idle-gaps" in rule.rule or "start-up" in rule.rule}
    assert why == "needs idle time, which is unknown: incomplete-capture; --ranks 0 judges the others"
    for command in ("overview", "gpu", "ranks", "ranks --collectives", "budget", "gaps"):
        bound = "64 of 200 kernel launches have no kernel; GPU busy times are lower bounds, idle times upper bounds"
        whole, alone = (program.run(*command.split(), path, *words).err for words in ((), ("--ranks", "0")))
        assert bound in whole and "lower" not in alone


def test_the_kernel_summary_notes_missing_kernels_once_another_question_has_counted_calls(tmp_path):
    """The first answer reads no calls; the note is also in remembered answers."""
    path = written(tmp_path, {"lost": range(40, 104)})
    notes = [program.run(question, path).err for question in ("kernels", "kernels", "gpu", "kernels", "kernels")]
    assert ["64 of 200 kernel launches have no kernel" in note for note in notes] == [False, False, True, True, True]


@pytest.mark.parametrize(("lost", "gpus", "words"), first(2, [
    (range(0, 200, 2), 1, "100 of 200"), ((), 1, ""), (range(200), 1, "200 of 200 kernel"), (range(200), 2, ""),
]))  # fmt: skip
def test_the_idle_time_of_a_gpu_is_unknown_if_one_of_its_processes_lacks_work(tmp_path, lost, gpus, words):
    with ExportWriter(tmp_path / "a.sqlite") as out:
        for pid, missing, gpu in ((100, (), 0), (200, lost, gpus - 1)):
            out.gpu(gpu)
            out.cuda_device(launches(out, pid, lost=missing, first=50 * US * (pid == 200)).process, 0, gpu)
    found, known = triaged(out.path), not words
    assert ("at least" not in found.summary, bool(found.account), not partial(out.path)) == (known,) * 3
    assert "different-work" not in {one.id for one in found.findings}
    if words:
        told(finding(found, "incomplete-capture"), words, "rank 1")
        assert not any("judges the others" in rule.why for rule in found.not_checked)
        beside = program.run("triage", "--ranks", "0", out.path).out
        assert words in " ".join(beside.split()) and "at least" in beside and "blocked" not in beside
    rows = {row["Part"]: row for row in program.rows("budget", "--by", "step", out.path)}
    for part in ("GPU idle", "stalled", "late launches"):
        assert (float(rows[part]["Share (%)"]) > 0) is known, part
        assert known or float(rows[part]["At Most (%)"]) > 0
    factors = program.rows("efficiency", "--tables", "device", out.path)
    assert any(row["Efficiency (%)"] for row in factors) is known
    for command in ("overview", "gpu", "efficiency", "budget", "gaps", "path", "steps"):
        assert ("lower bounds" in program.run(command, out.path).err) is not known
    with job_of(out.path) as job:
        notes = gpu_picture(job, Selection(), GpuPictureRequest(None, 80, 20)).notes
        assert any("lower bounds" in note for note in notes) is not known


def test_work_outside_of_the_session_is_impossible_unless_the_clock_of_its_gpu_may_be_wrong(tmp_path):
    path = written(tmp_path, {})
    ((end,),) = native(path, "SELECT max(duration) FROM ANALYSIS_DETAILS")
    for number, start in ((7, -500 * MS), (8, end + 500 * MS)):
        edit(path, f'UPDATE {KERNELS} SET start = {start}, "end" = {start + MS} WHERE correlationId = {number}')
    assert "2 GPU kernels (2 with a time outside the session)" in program.run("kernels", path).err
    assert [one.id for one in partial(written(tmp_path, {"delay": -5 * MS}))] == ["clock-offset"]
    assert "left out" not in program.run("kernels", path).err


@pytest.mark.campaign
def test_a_process_with_copies_and_launches_but_no_kernel_lacks_its_kernels(tmp_path):
    path = written(tmp_path, {})
    with ExportWriter(tmp_path / "rank1.sqlite") as out:
        thread = launches(out, 200)
        out.api(thread, 50 * US, 55 * US, "cudaMemcpyAsync_v3020", 1000)
        out.memcpy(thread.process, 0, 7, 60 * US, 70 * US, size=64, kind="Host-to-Device", correlation_id=1000)
    edit(out.path, f"DROP TABLE {KERNELS}")
    found = triaged(path, out.path)
    told(finding(found, "incomplete-capture"), "200 of 200 kernel launches have no kernel", "rank 1", never=["rank 0"])
    alone = triaged(out.path)
    assert "at least" in alone.summary and "Largest loss" not in alone.summary and "hardly" not in alone.headline


def test_launches_that_rows_left_out_explain_are_not_told_as_captured_or_lost():
    account = LaunchAccount(10, 7, 0, 0, 0, 2, 0, None, None, unsure=3)
    assert losses([account]) == []
    words = "1 of 10 kernel launches has no kernel (captured into a graph or lost)"
    assert losses([replace(account, lost_kernels=1)]) == [words]


def test_kernels_without_a_launch_leave_busy_time_as_it_is(tmp_path):
    path = written(tmp_path, {})
    edit(path, f"DELETE FROM {CALLS} WHERE correlationId BETWEEN 50 AND 59")
    found = triaged(path)
    told(finding(found, "incomplete-capture"), "10 of 200 kernels have no launch", never=["lower bounds"])
    assert "at least" not in found.summary


def test_work_that_is_cut_off_at_the_edges_is_no_loss(tmp_path):
    path = written(tmp_path, {"delay": 950 * US})
    edit(path, f"DELETE FROM {KERNELS} WHERE correlationId > 191", f"DELETE FROM {CALLS} WHERE correlationId < 9")
    assert not partial(path)


@pytest.mark.campaign
@pytest.mark.parametrize(("change", "words"), first(2, [
    (f"DELETE FROM {KERNELS} WHERE correlationId > 120", "79 of 200 kernel launches have no kernel"),
    (f"DELETE FROM {CALLS} WHERE correlationId > 120", "80 of 200 kernels have no launch"),
    (f"DELETE FROM {KERNELS} WHERE correlationId <= 120", "120 of 200 kernel launches have no kernel"),
]))  # fmt: skip
def test_a_trace_that_ended_early_or_of_kernels_that_began_late_lacks_work(tmp_path, change, words):
    path = written(tmp_path, {})
    edit(path, change)
    told(finding(triaged(path), "incomplete-capture"), words)


def test_kernels_from_before_the_first_call_were_launched_before_the_capture(tmp_path):
    path = written(tmp_path, {})
    edit(path, f"DELETE FROM {CALLS} WHERE correlationId <= 120")
    assert not partial(path)
    assert [row["Cut Off"] for row in accounts(path)] == ["120"]


def graph_captures(path, begins, ends, begin_result=0):
    """Turn calls, by correlation id, into begins and ends of the capture of a graph."""
    names = {900001: "cudaStreamBeginCapture_v10000", 900002: "cudaStreamEndCapture_v10000"}
    edit(path, *(f"INSERT INTO StringIds (id, value) VALUES ({number}, '{name}')" for number, name in names.items()))
    for number, ids, result in ((900001, begins, begin_result), (900002, ends, 0)):
        changed = f"UPDATE {CALLS} SET nameId = {number}, returnValue = {result} WHERE correlationId ="
        edit(path, *(f"{changed} {call}" for call in ids))


@pytest.mark.parametrize(("failed", "begins", "ends"), [(range(41, 61), [61], [104]), ((), [41, 50], [70, 104])])
def test_launches_that_failed_or_were_captured_into_graphs_need_no_kernel(tmp_path, failed, begins, ends):
    path = written(tmp_path, {"lost": range(40, 104)})
    edit(path, *(f"UPDATE {CALLS} SET returnValue = 1 WHERE correlationId = {number}" for number in failed))
    graph_captures(path, begins, ends)
    assert not partial(path)


def test_after_a_capture_that_could_not_begin_launches_need_kernels(tmp_path):
    path = written(tmp_path, {"lost": range(40, 104)})
    graph_captures(path, [41], [], begin_result=900)
    told(finding(triaged(path), "incomplete-capture"), "63 of 199 kernel launches have no kernel")


GRAPH_CALLS = {
    "launches": "cudaGraphLaunch_v10000", "instantiates": "cudaGraphInstantiate_v12000",
    "ends": "cudaStreamEndCapture_v10000",
}  # fmt: skip


def replaying(path, **calls):
    """Turn calls, by correlation id, into calls of `GRAPH_CALLS`; a launched graph has eight kernels."""
    for number, (kind, ids) in enumerate(calls.items(), 900003):
        edit(path, f"INSERT INTO StringIds (id, value) VALUES ({number}, '{GRAPH_CALLS[kind]}')")
        edit(path, *(f"UPDATE {CALLS} SET nameId = {number} WHERE correlationId = {call}" for call in ids))
        kernels = f"{KERNELS} WHERE correlationId IN ({', '.join(map(str, ids))})"
        edit(path, *[f"INSERT INTO {KERNELS} SELECT * FROM {kernels} AND graphNodeId IS NULL"] * 3)
        edit(path, f"UPDATE {kernels.replace('WHERE', 'SET graphNodeId = 5 WHERE')}")
        if kind != "launches":
            edit(path, f"DELETE FROM {kernels}")


@pytest.mark.parametrize(("calls", "words"), first(2, [
    ({}, "is incomplete: 64 of 180 kernel launches have no kernel"),
    ({"instantiates": [150]}, "64 of 179 kernel launches have no kernel (captured into a graph or lost)"),
    ({"instantiates": [30]}, "is incomplete: 64 of 179 kernel launches have no kernel"),
    ({"ends": [61]}, "63 of 179 kernel launches have no kernel (20 of these captured into a graph or lost)"),
]))  # fmt: skip
def test_launches_without_a_kernel_beside_graphs_whose_capture_was_not_recorded_are_counted(tmp_path, calls, words):
    path = written(tmp_path, {"lost": range(40, 104)})
    replaying(path, launches=range(1, 21), **calls)
    found = triaged(path)
    told(finding(found, "incomplete-capture"), f"{words}. Busy times")
    assert "at least" in found.summary and not found.account
    assert words.removeprefix("is incomplete: ") in program.run("overview", path).err


def waiting(tmp_path, *, ends_after=-MS, wait_result=0, context=1):
    """Write 50 kernels of 1 ms, each with a wait for its stream; each kernel ends ``ends_after`` its wait, ns.

    ``context`` is the context of the waits; the kernels are in context 1.
    """
    with ExportWriter(tmp_path / "rank0.sqlite") as out:
        process = out.process(100, "python3")
        thread = out.thread(process, 100, "python3")
        for number in range(50):
            start = 10 * MS * number
            out.api(thread, start, start + 5 * US, "cudaLaunchKernel_v7000", 2 * number + 1)
            end = start + 3 * MS + ends_after
            out.kernel(process, 0, 7, end - MS, end, name="saxpy(float *)", correlation_id=2 * number + 1)
            wait = (start + 10 * US, start + 3 * MS)
            out.api(thread, *wait, "cudaStreamSynchronize_v3020", 2 * number + 2, return_value=wait_result)
            out.sync(process, 0, 7, *wait, correlation_id=2 * number + 2, context=context)
    return out.path


def test_kernels_that_end_after_a_call_that_waited_for_them_are_an_error(tmp_path):
    told(finding(triaged(waiting(tmp_path, ends_after=2 * MS)), "clock-offset"), "end 2 ms after a call that waited")


@pytest.mark.campaign
@pytest.mark.parametrize(
    "how", first(2, [{"wait_result": 700, "ends_after": 2 * MS}, {"context": 2, "ends_after": 2 * MS}, {}])
)
def test_waits_that_ended_in_time_or_failed_or_were_for_other_work_show_no_offset(tmp_path, how):
    assert not partial(waiting(tmp_path, **how))


def test_a_few_kernels_with_impossible_times_are_no_finding(tmp_path):
    path = written(tmp_path, {})
    edit(path, f'UPDATE {KERNELS} SET start = 0, "end" = 0 WHERE correlationId = 7')
    assert not partial(path), "a note counts them"
    edit(path, f"DELETE FROM {CALLS}")
    assert not partial(path)


@pytest.mark.campaign
@pytest.mark.parametrize(("table", "last"), first(1, product(GPU_TABLES[:2], (27, 200))))
def test_gpu_work_without_times_makes_busy_time_a_lower_bound(tmp_path, table, last):
    path = written(tmp_path, {})
    with ExportWriter(tmp_path / "rank1.sqlite") as out:
        thread = launches(out, 200)
        for index in range(200):
            start = 100 * US * index + 50 * US
            out.api(thread, start, start + 5 * US, "cudaMemcpyAsync_v3020", 1000 + index)
            out.memcpy(thread.process, 0, 7, start, start + US, size=64, kind="Host-to-Device",
                       correlation_id=1000 + index)  # fmt: skip
    ids = "correlationId % 1000"
    edit(out.path, f'UPDATE {table} SET start = 0, "end" = 0 WHERE {ids} BETWEEN 1 AND {last} OR {ids} = {last % 200}')
    found = triaged(path, out.path)
    told(finding(found, "incomplete-capture"), f"of 200 {'GPU kernels' if table == KERNELS else 'memory'}", "rank 1",
         "no possible time", never=["rank 0"])  # fmt: skip
    alone = triaged(out.path)
    assert alone.summary.startswith("The GPU is busy at least") and "hardly" not in alone.headline
    assert not {"short-window", "no-gpu-work", "idle-gaps"} & {one.id for one in alone.findings}
    assert not alone.account and not alone.blockers


@pytest.mark.parametrize("damage", first(1, ["DELETE FROM {}", 'UPDATE {} SET start = 0, "end" = 0']))
def test_a_capture_that_lacks_gpu_work_is_not_faster(tmp_path, damage):
    whole = written(tmp_path, {}).rename(tmp_path / "whole.sqlite")
    part = written(tmp_path, {})
    edit(part, f"{damage.format(KERNELS)} WHERE correlationId BETWEEN 7 AND 150")
    told = program.run("diff", whole, part)
    assert "B is not comparable in time, GPU work is missing in B" in " ".join(told.out.split())
    assert "faster" not in told.out and "about as fast" not in told.out


def test_gpu_work_of_which_no_time_was_collected_is_work(tmp_path):
    path = written(tmp_path, {})
    edit(path, f'UPDATE {KERNELS} SET start = 0, "end" = 0')
    found = triaged(path)
    told(finding(found, "incomplete-capture"), "200 of 200 GPU kernels have no possible time")
    assert "No GPU work was recorded" not in found.summary + "".join(one.sentence for one in found.findings)


def test_kernels_that_start_before_their_launch_are_an_error_on_their_rank_alone(tmp_path):
    path = written(tmp_path, {}, {"delay": -2_000 * US, "first": 10_000 * US})
    told(finding(triaged(path), "clock-offset"), "on rank 1, kernels start 2 ms before their launch")
    for question in ("gaps", "budget", "path"):
        notes = [program.run(question, path, "--ranks", rank).err for rank in "01"]
        assert ["causes of idle time cannot be known" in note for note in notes] == [False, True]


@pytest.mark.campaign
@pytest.mark.parametrize("path", real_exports(of_every_kind=True), ids=lambda path: path.stem)
def test_accounts_of_real_exports_agree_with_sqlite_and_lack_nothing(path):
    if not all(native(path, "SELECT 1 FROM sqlite_master WHERE name = ?", [table]) for table in (KERNELS, CALLS)):
        pytest.skip("no kernels or no calls")
    launches = "value LIKE '%Launch%' AND value NOT LIKE '%Graph%' AND value NOT LIKE '%HostFunc%'"
    # Old versions of nsys write two rows for a call.
    distinct = "DISTINCT (globalTid >> 24) || ' ' || correlationId"
    of_calls = f"SELECT count({distinct}) FROM {CALLS} JOIN StringIds ON id = nameId"
    with_kernels = f"globalTid >> 24 IN (SELECT globalPid >> 24 FROM {KERNELS})"
    ((number,),) = native(path, f"{of_calls} WHERE {launches} AND coalesce(returnValue, 0) = 0 AND {with_kernels}")
    rows = accounts(path)
    assert sum(int(row["Kernel Launches"]) for row in rows) == number
    assert {row[key] for row in rows for key in ("Launches without Kernel", "Kernels without Launch")} <= {"0"}
    assert not partial(path)


@pytest.fixture
def program_with_copies(tmp_path):
    """A program that in each of 50 rounds computes for 3 ms, copies for 1 ms and sets memory for 1 ms."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for start in gpu.rounds(50, 6 * MS, 3 * MS):
            gpu.copy("cudaMemcpyAsync_v3020", start + 3 * MS, start + 4 * MS)
            call, times = gpu.call("cudaMemsetAsync_v3020", start, start + US), (start + 4 * MS, start + 5 * MS)
            gpu.export.memset(gpu.process, 0, 7, *times, size=MS, correlation_id=call)
    return tmp_path / "a.sqlite"


@pytest.mark.parametrize("lost", first(1, [["MEMCPY", "MEMSET"], ["MEMCPY"], ["MEMSET"]]))
def test_memory_time_is_unknown_if_the_work_of_calls_that_copy_or_set_memory_was_not_recorded(
    tmp_path, program_with_copies, lost
):
    path, calls = program_with_copies, 50 * len(lost)
    with job_of(path) as job:
        assert budget_with_causes(job, Selection()).cells("memory") == [100 * MS]
        assert "memory unknown" not in judged(job, rules=()).account and not partial(path)
    edit(path, *(f"DROP TABLE CUPTI_ACTIVITY_KIND_{table}" for table in lost))
    for _ in range(2):  # the second session reads the stored results
        session = Session(cache=Cache(tmp_path / "cache"))
        session.add(path)
        job = OpenJob(session)
        overview = task_table(job.session, Selection(), job.ranks, job.busy(Selection()))
        (steps,) = records(budget_of_phases(job, Selection()))
        assert (overview.cells("memory_percent"), overview.cells("memory_ops")) == ([None], [100 - calls or None])
        assert budget_with_causes(job, Selection()).cells("memory") == [None]
        blocked = [steps[part] for part in ("to_device", "memsets", "host_functions", "nccl")]
        assert blocked == [*(None if table in lost else MS for table in ("MEMCPY", "MEMSET")), None, 0]
        found = judged(job, rules=())
        assert "memory unknown" in found.account and "busy at least" in found.summary
        for notes in (
            overview.notes,
            budget_by_step(job, Selection()).notes,
            work_summary(session, Selection(), MEMORY).notes,
        ):
            assert any(f"{calls} calls" in note and "memory is unknown" in note for note in notes)
        assert not [one for one in judged(job).findings if one.id in ("exposed-memory", "idle-gaps")]
        job.close()


@pytest.mark.parametrize(("export", "lost", "unknown"), first(1, [
    (whole_graph_export, "KERNEL", ("Compute (%)", "NCCL (%)", "Kernels", "Kernels in Flight", "kernels launched")),
    (whole_graph_export, "GRAPH_TRACE", ("Graph (%)", "Graph Launches", "Graphs (%)", "whole CUDA graphs")),
    (node_graph_export, "GRAPH_TRACE", ()),
]))  # fmt: skip
def test_times_and_counts_are_unknown_if_the_work_of_launches_was_not_recorded(tmp_path, export, lost, unknown):
    path = export(tmp_path / "a.sqlite")
    whole = shutil.copy(path, tmp_path / "b.sqlite")
    edit(path, f"DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_{lost}")
    asked = ("overview", "gpu", "gpu --over-time", "budget", "ranks", "efficiency --tables device")
    rows = [row for words in asked for row in program.rows(*words.split(), path)]
    compared = program.answered("diff", "--format", "csv", "--tables", "summary", whole, "--", path)
    rows.append({row["What"].strip(): row["B"] for row in program.rows_of(compared)})
    known = {heading for row in rows for heading, value in row.items() if value}
    assert known.isdisjoint(unknown) and {"Busy (%)", "Memory (%)", "Memory Ops", "GPU busy"} <= known
    assert ("Efficiency (%)" in known) is not bool(unknown)
    assert any(f"{verb} unknown" in program.run("gpu", path).err for verb in ("is", "are")) is bool(unknown)
    of_step = {row["Part"]: row["Total (ns)"] for row in program.rows("budget", "--by", "step", path)}
    assert (of_step.get("GPU idle", "0") == "0") is bool(unknown)
    found = triaged(path)
    assert ("at least" in found.summary) is bool(unknown) and not found.health


def test_copies_and_graphs_without_gpu_work_make_a_capture_incomplete(tmp_path, program_with_copies):
    edit(program_with_copies, f"DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE start BETWEEN {94 * MS} AND {190 * MS}")
    told(
        finding(triaged(program_with_copies), "incomplete-capture"), "17 of 100 graph launch, copy or memset calls have"
    )
    graphs = whole_graph_export(tmp_path / "b.sqlite")
    assert not partial(graphs)
    edit(graphs, "DELETE FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE WHERE rowid = 1")
    told(finding(triaged(graphs), "incomplete-capture"), "1 of ")


def test_copies_that_were_captured_into_a_graph_need_no_gpu_work(program_with_copies):
    graph_captures(program_with_copies, [1], [148])
    last = f"UPDATE {CALLS} SET returnValue = 1 WHERE correlationId = 150"
    edit(program_with_copies, "DELETE FROM CUPTI_ACTIVITY_KIND_MEMSET", last)
    with job_of(program_with_copies) as job:
        assert budget_with_causes(job, Selection()).cells("memory") == [50 * MS]
    assert not partial(program_with_copies)
