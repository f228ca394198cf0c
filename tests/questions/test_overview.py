"""The facts of a job, its tasks, its contents, and nsys's messages about the capture."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import campaign
import pytest
import synthetic
from support import edit, native, native_count, shared
from synthetic import ExportWriter
from synthetic.demo import CaptureSession as Capture
from synthetic.demo import Process

from nsystui.base.answer import TableAnswer, iter_rows
from nsystui.base.selection import Selection, Task, Window
from nsystui.exports.metadata import open_export
from nsystui.questions.capture.sample import sampled_kernels
from nsystui.questions.gpu.utilisation import BusyIntervals
from nsystui.questions.queries.reports import diagnostics_table
from nsystui.questions.queries.tasks import ranked_tasks
from nsystui.questions.ranks.overview import JobFacts, job_facts, task_table, title_of
from nsystui.store.session import Session

START = 1_780_000_000_000_000_000
HOUR = 3600 * 10**9

EVERYTHING = Selection()
Opener = Callable[..., Session]


def tasks_of(session: Session, selection: Selection = EVERYTHING) -> TableAnswer:
    ranks = ranked_tasks(session)
    return task_table(session, selection, ranks, BusyIntervals.load(session, selection, ranks))


def facts_of(session: Session) -> JobFacts:
    return job_facts(session, ranked_tasks(session))


def gpu_process(export: ExportWriter, pid: int, *spans: tuple[int, int]) -> Process:
    process = export.process(pid, "/usr/bin/python3")
    for number, (start, end) in enumerate(spans, 1):
        export.kernel(process, 0, 7, start, end, name="saxpy(float *)", correlation_id=number)
    return process


def test_no_report_is_no_job(opened):
    facts = job_facts(opened(), ())
    assert (facts.title, facts.reports, facts.ranks, facts.gpus, facts.rank_source) == ("", 0, 0, 0, "")
    assert facts.duration is facts.start_spread is None
    assert facts.clocks_aligned


def test_the_title_is_what_the_names_have_in_common():
    titles = {
        ("only_rank3",): "only_rank3", ("llm_rank0", "llm_rank1"): "llm",
        ("report-4242-rank10", "report-4242-rank11"): "report-4242", ("gpt2_N0_0", "gpt2_N1_8"): "gpt2",
        ("gpt2_N0_0", "gpt2_N0_1"): "gpt2", ("train", "train-later"): "train", ("rank0", "rank1"): "folder",
        ("before", "after"): "folder",
    }  # fmt: skip
    for names, title in titles.items():
        reports = [SimpleNamespace(name=name, folder=Path("/jobs/folder")) for name in names]
        assert title_of(reports) == title, names  # type: ignore[arg-type]
    nodes = [SimpleNamespace(name=f"n{number}/report", folder=Path(f"/jobs/llama/n{number}")) for number in range(3)]
    assert title_of(nodes) == "llama"  # type: ignore[arg-type]


def test_runs_an_hour_apart_share_no_clock(opened, tmp_path):
    paths = [tmp_path / "before.sqlite", tmp_path / "after.sqlite"]
    for number, path in enumerate(paths):
        capture = Capture(utc_epoch_ns=START + number * HOUR, duration=1000 * (number + 1))
        with ExportWriter(path, session=capture) as export:
            gpu_process(export, 1, (100 + 500 * number, 200 + 500 * number))
    session = opened(*paths)
    facts = facts_of(session)
    # The duration is the longest report's, not the hour between them.
    assert (facts.clocks_aligned, facts.start_spread, facts.duration) == (False, HOUR, 2000)
    assert tasks_of(session).cells("busy_percent") == [100, 100]
    assert tasks_of(session).notes == ("these reports share no clock: each is measured over its own events",)
    assert tasks_of(session, Selection(Window(100, 300))).cells("busy_percent") == [50, 0]


@pytest.mark.parametrize(
    ("schema", "machine", "gpus"), campaign.first(1, [("3.7.2", 2, 2), ("3.25.0", 2, 1), ("3.7.2", 1, 1)])
)
def test_a_shared_gpu_counts_once_where_the_export_tells(opened, tmp_path, schema, machine, gpus):
    with ExportWriter(tmp_path / "shared.sqlite", schema) as export:
        for number in range(machine):
            export.gpu(number)
        for pid in (10, 20):
            export.cuda_device(gpu_process(export, pid, (0, 10)), cuda_id=0, gpu_id=0)
    session = opened(export.path)
    assert facts_of(session).gpus == gpus
    is_assumed = any("differs under CUDA_VISIBLE_DEVICES" in note for note in tasks_of(session).notes)
    assert is_assumed == (schema == "3.7.2" and machine > 1)


def test_the_window_and_the_tasks_of_the_selection_apply(opened, tmp_path):
    with ExportWriter(tmp_path / "run.sqlite") as export:
        gpu_process(export, 10, (0, 30), (50, 60))
        second = gpu_process(export, 20, (0, 100))
    session, window = opened(export.path), Selection(Window(20, 40))
    narrowed = tasks_of(session, window)
    assert (narrowed.cells("kernels"), narrowed.cells("busy_percent")) == ([1, 1], [50, 100])
    named = tasks_of(session, window.with_name("absent"))
    assert named.records() == narrowed.records(), "what a GPU did does not depend on names"
    chosen = tasks_of(session, Selection(tasks=frozenset({Task(0, second.global_id)})))
    assert (chosen.cells("pid"), chosen.total) == ([20], 2)


def test_a_task_without_a_gpu_has_no_gpu_numbers(opened, tmp_path):
    with ExportWriter(tmp_path / "job_rank0.sqlite") as cpu:
        cpu.osrt(cpu.thread(cpu.process(1), 1, "main"), 0, 50, "poll")
    with ExportWriter(tmp_path / "job_rank1.sqlite") as gpu:
        gpu_process(gpu, 2, (0, 50))
    table = tasks_of(opened(cpu.path, gpu.path))
    first, second = table.records()
    shares = [key for key in first if key.endswith("_percent")]
    missing = [key for key, value in first.items() if value is None]
    assert missing == ["gpu", *shares, "kernels", "graphs", "memory_ops", "api_calls", "model"]
    assert second["kernels"] == 1
    assert second["gpu"] is None, "the export does not say which GPU it was"
    assert table.notes == ("no GPU work in job_rank0: record with `nsys profile -t cuda`",)
    assert table.sorted_by("busy_percent", descending=True).cells("rank") == [1, 0]


def test_diagnostics_follow_the_tasks_and_the_name_filter(demo_session):
    first = ranked_tasks(demo_session)[0].task
    table = diagnostics_table(demo_session, Selection(tasks=frozenset({first})).with_name("started"))
    assert ([row[:3] for row in table.rows], table.total) == ([("Info", 1, "rank0")], 3)
    assert table.notes[0].startswith("events may be missing"), "what is filtered out of sight is still true"


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "gpu", "model"), [
    ("event-ids-unified-memory-2025.5", 1, "NVIDIA GeForce RTX 3090"),  # device 0 of the process
    ("jetson-orin", 0, "Orin"),
    ("mig-slice", 0, "NVIDIA A30 MIG 2g.12gb"),
])  # fmt: skip
def test_the_gpu_of_a_real_export(opened, name, gpu, model):
    (row,) = tasks_of(opened(*shared(name))).records()
    assert (row["gpu"], row["model"]) == (str(gpu), model)


def test_a_real_export_in_which_cuda_was_traced_and_nothing_ran(opened):
    session = opened(*shared("no-gpu-work-2025.6"))
    (row,) = tasks_of(session).records()
    assert (row["busy_percent"], row["kernels"], row["api_calls"]) == (None, None, None)
    table = diagnostics_table(session, Selection())
    assert sum(table.cells("count")) == native_count(*shared("no-gpu-work-2025.6"), "DIAGNOSTIC_EVENT") == 25


def names_of(path: Path) -> set[str]:
    query = "SELECT DISTINCT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
    return {name for (name,) in native(path, query)}


def first_sample(*paths):
    return sampled_kernels([open_export(path) for path in paths])


def test_a_small_export_is_sampled_whole(tmp_path):
    path = synthetic.two_process_export(tmp_path / "two.sqlite")
    answer = first_sample(path)
    rows = list(iter_rows(answer))
    assert {row[-1] for row in rows} == names_of(path)
    assert sum(row[0] for row in rows) == pytest.approx(100)
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), reverse=True)
    assert answer.notes[0].startswith("sample: 192 of 200 kernels (96 %)")
    edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start")
    assert {row[0] for row in iter_rows(first_sample(path))} == {0.0}  # zero durations have no share


@pytest.mark.campaign
def test_no_row_counts_twice_and_the_share_of_rows_is_true(tmp_path):
    for kernels in (1, 2, 63, 64, 65, 100, 5_000):
        answer = first_sample(synthetic.benchmark_export(tmp_path / f"{kernels}.sqlite", kernels=kernels, names=7))
        sampled = sum(row[1] for row in iter_rows(answer))
        assert 0 < sampled <= min(kernels, 64 * 64), kernels
        assert sampled >= min(kernels, 64 * 64) * 0.5, kernels
        assert f"sample: {sampled:,} of {kernels:,} kernels" in answer.notes[0]


def test_it_is_taken_from_every_part_of_the_file(tmp_path):
    path = synthetic.benchmark_export(tmp_path / "b.sqlite", kernels=6_400, names=5)
    edit(path, "UPDATE StringIds SET value = 'late' WHERE id = (SELECT max(id) FROM StringIds)")
    edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = (SELECT max(id) FROM StringIds) WHERE rowid > 4800")
    late = {row[-1]: row[1] for row in iter_rows(first_sample(path))}["late"]
    assert late == pytest.approx(64 * 64 / 4, rel=0.1)


def test_without_kernels_there_is_none(tmp_path):
    assert sampled_kernels([]) is None
    assert first_sample(synthetic.cpu_only_export(tmp_path / "cpu.sqlite")) is None
    assert first_sample(synthetic.all_tables_export(tmp_path / "all.sqlite")) is None


def test_an_export_that_fails_meanwhile_is_left_out(tmp_path):
    good, gone, broken = (
        synthetic.two_process_export(tmp_path / f"{name}.sqlite") for name in ("good", "gone", "broken")
    )
    opened = [open_export(path) for path in (gone, broken, good)]
    gone.unlink()
    (root,) = native(broken, "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'")[0]
    with broken.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    assert {row[-1] for row in iter_rows(sampled_kernels(opened))} == names_of(good)


def test_hostile_and_missing_names_are_rows_like_others(tmp_path):
    path = synthetic.hostile_names_export(tmp_path / "h.sqlite")
    edit(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = -1 WHERE rowid = 1")
    answer = first_sample(path)
    assert {row[-1] for row in iter_rows(answer)} == set(synthetic.HOSTILE_NAMES[1:])
    assert sum(row[1] for row in iter_rows(answer)) == native_count(path, "CUPTI_ACTIVITY_KIND_KERNEL")
