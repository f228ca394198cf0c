"""Steps are found among the numbered NVTX ranges, by what the GPU did for them, or where the user says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from support import session_over
from synthetic import ExportWriter, deep_nvtx_export, empty_export, training_job

from nsystui.base.errors import UsageError
from nsystui.base.selection import Task
from nsystui.cli import main
from nsystui.exports.demo import Thread
from nsystui.questions import steps
from nsystui.questions.job import Job
from nsystui.questions.nccl.bandwidth import in_steps
from nsystui.questions.steps import NO_STEP, Steps, TaskSteps
from nsystui.store.session import Session


class Run:
    """A process whose ranges and launches are written one by one; µs on the CPU."""

    def __init__(self, path: Path) -> None:
        self.export = ExportWriter(path)
        self.process = self.export.process(5000, "python")
        self.main = self.export.thread(self.process, 5000, "python")
        self.autograd = self.export.thread(self.process, 5001, "autograd")
        self.correlation = count(1)

    def range(self, name: str, start: int, end: int | None, thread: Thread | None = None) -> None:
        self.export.nvtx_range(thread or self.main, 1000 * start, None if end is None else 1000 * end, name)

    def launch(self, start: int, runs: int, length: int = 10, thread: Thread | None = None) -> None:
        """A kernel launched at ``start`` that runs from ``runs`` on for ``length``."""
        correlation = next(self.correlation)
        call = 1000 * start
        self.export.api(thread or self.main, call, call + 500, "cudaLaunchKernel_v7000", correlation)
        self.export.kernel(
            self.process, 0, 7, 1000 * runs, 1000 * (runs + length), name="gemm(int)", correlation_id=correlation
        )

    def steps(self, name: str | None = None) -> Steps:
        self.export.close()
        job = Job(Session(cache=None))
        try:
            job.session.add(self.export.path)
            return job.steps(name)
        finally:
            job.close()

    def only(self, name: str | None = None) -> TaskSteps:
        (found,) = self.steps(name).of_task.values()
        return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    yield Run(tmp_path / "run.sqlite")


class TestFinding:
    def test_numbered_ranges_that_hold_the_work_are_steps(self, run):
        for number in range(4):
            start = 100 * number
            run.range(f"step {number + 7}", start, start + 90)
            run.range(f"data copy in {number}", start + 1, start + 5)
            run.launch(start + 3, start + 10)
            run.launch(start + 20, start + 40)
        found = run.only()
        assert found.name == "step *"
        assert found.numbers.tolist() == [7, 8, 9, 10]
        assert found.starts.tolist() == [0, 100_000, 200_000, 300_000]
        assert found.ends.tolist() == [90_000, 190_000, 290_000, 390_000]

    def test_the_gpu_works_later_and_for_every_thread(self, run):
        """The backward pass is launched by another thread, and the GPU is behind by more than a step."""
        for number in range(3):
            start = 100 * number
            run.range(f"step {number}", start, start + 100)
            run.launch(start + 10, start + 200)
            run.launch(start + 50, start + 240, thread=run.autograd)
        found = run.only()
        assert found.gpu.op_count.tolist() == [2, 2, 2]
        assert found.gpu.start.tolist() == [200_000, 300_000, 400_000]
        assert found.gpu.end.tolist() == [250_000, 350_000, 450_000]
        assert found.gpu.op_time.tolist() == [20_000] * 3

    def test_calls_are_joined_with_their_operations_in_portions_of_any_size(self, run, monkeypatch):
        monkeypatch.setattr(steps, "_JOINED", 3)
        for step in range(5):
            run.range(f"step {step}", 100 * step, 100 * step + 90)
            for launch in range(2):
                run.launch(100 * step + launch, runs=100 * step + 20 * launch)
        assert run.only().gpu.op_count.tolist() == [2] * 5

    def test_names_on_another_thread_are_no_steps_of_this_one(self, run):
        for step in range(5):
            run.range(f"step {step}", 100 * step, 100 * step + 90)
            run.range("step 1", 100 * step, 100 * step + 95, run.autograd)  # always the same one: no series of steps
            run.launch(100 * step + 1, runs=100 * step + 20)
        found = run.only()
        assert (found.name, found.ends.tolist()) == ("step *", [1000 * (100 * step + 90) for step in range(5)])

    def test_a_step_without_gpu_work_has_no_span_there(self, run):
        for number in range(3):
            run.range(f"step {number}", 100 * number, 100 * number + 50)
        run.launch(10, 20)
        found = run.only()
        assert found.gpu.op_count.tolist() == [1, 0, 0]
        assert (found.gpu.start.tolist(), found.gpu.end.tolist()) == ([20_000, 0, 0], [30_000, 0, 0])

    def test_the_outermost_of_equal_words_counts(self, run):
        for number in range(3):
            start = 100 * number
            run.range(f"train_step {number}", start, start + 90)
            run.range(f"optimizer step {number}", start + 50, start + 90)
            run.launch(start + 10, start + 20)
            run.launch(start + 60, start + 70, length=12)
        assert run.only().name == "train_step *"

    @pytest.mark.parametrize(
        ("outer", "inner", "expected"),
        [
            ("epoch {}", "step {}", "step *"),
            ("chunk {}", "iteration {}", "iteration *"),
            ("iter {}", "ProfilerStep#{}", "ProfilerStep#*"),
            ("phase {}", "part {}", "phase *"),
        ],
    )
    def test_words_come_before_width(self, run, outer, inner, expected):
        for number in range(9):
            start = 100 * number
            run.range(inner.format(number), start + 10, start + 80)
            run.launch(start + 20, start + 30)
            if number % 3 == 0:
                run.range(outer.format(number // 3), start, start + 299)
        assert run.only().name == expected

    def test_numbers_that_begin_anew_give_places(self, run):
        for place in range(6):
            run.range(f"step {place % 3}", 100 * place, 100 * place + 90)
            run.launch(100 * place + 10, 100 * place + 20)
        assert run.only().numbers.tolist() == [0, 1, 2, 3, 4, 5]

    def test_of_several_numbers_the_one_that_counts_up(self, run):
        for place in range(3):
            run.range(f"epoch 4 step {place + 5} of 9", 100 * place, 100 * place + 90)
            run.launch(100 * place + 10, 100 * place + 20)
        assert run.only().numbers.tolist() == [5, 6, 7]

    def test_layers_are_no_steps(self, run):
        """They hold all work and are numbered, but their numbers come again and again."""
        for place in range(6):
            run.range(f"layer_{place % 3}", 100 * place, 100 * place + 90)
            run.launch(100 * place + 10, 100 * place + 20)
        assert not run.steps().of_task

    @pytest.mark.parametrize(
        "ranges",
        [
            [("step 0", 0, 90), ("step 1", 100, 190)],  # two are no series
            [("step 0", 0, 150), ("step 1", 100, 250), ("step 2", 200, 350)],  # they overlap
            [("step 0", 400, 500), ("step 1", 500, 600), ("step 2", 600, 700)],  # they hold none of the work
            [("step", 0, 90), ("step", 100, 190), ("step", 200, 290)],  # without numbers
            [("step 0", 0, 90), ("step 1", 100, 190), ("step 2", 200, None)],  # one was never closed
        ],
    )
    def test_what_is_no_series_of_steps(self, run, ranges):
        for name, start, end in ranges:
            run.range(name, start, end)
        for place in range(3):
            run.launch(100 * place + 10, 100 * place + 20)
        found = run.steps()
        assert not found.of_task
        assert found.notes == (
            "no steps: no numbered NVTX ranges such as `step 7` hold half of the GPU's work; "
            "--step-range REGEX says which ranges are steps",
        )

    def test_half_of_the_work_is_enough(self, run):
        for place in range(3):
            run.range(f"step {place}", 100 * place, 100 * place + 50)
            run.launch(100 * place + 10, 100 * place + 20)
            run.launch(100 * place + 60, 100 * place + 70)
        assert len(run.only()) == 3

    def test_without_gpu_work_the_words_alone_tell(self, run):
        for place in range(3):
            run.range(f"step {place}", 100 * place, 100 * place + 50)
            run.range(f"phase {place}", 100 * place, 100 * place + 60)
        assert run.only().name == "step *"


class TestNamed:
    def test_the_user_may_name_the_ranges(self, run):
        for place in range(2):
            run.range(f"Train {30 + place}", 100 * place, 100 * place + 90)
            run.range("Train inner", 100 * place + 10, 100 * place + 20)
        run.launch(300, 310)
        found = run.only("^Train")
        assert (found.name, found.numbers.tolist()) == ("^Train", [30, 31])
        assert found.ends.tolist() == [90_000, 190_000]

    @pytest.mark.parametrize(
        ("name", "numbers"),
        [(r"it \d+", [8, 9]), (r"rank 3 it (\d+)", [8, 9]), (r"loss (\d)", [2, 5]), ("/9", [8, 9]), ("(rank)", [0, 1])],
    )
    def test_numbers_are_those_that_ascend_or_those_of_a_group(self, run, name, numbers):
        for place, loss in ((8, 2), (9, 5)):
            run.range(f"rank 3 it {place}/9 loss {loss}", 100 * place, 100 * place + 90)
        assert run.only(name).numbers.tolist() == numbers

    def test_of_several_threads_the_one_that_holds_most(self, run):
        run.range("pass", 0, 50, run.autograd)
        run.range("pass", 100, 200, run.main)
        run.launch(120, 130)
        assert run.only("pass").starts.tolist() == [100_000]

    def test_a_name_that_no_range_has(self, run):
        run.range("step 0", 0, 90)
        run.launch(10, 20)
        assert run.steps("nothing").notes == ("no steps: no NVTX range is called `nothing`",)

    def test_a_wrong_regular_expression(self, run):
        with pytest.raises(UsageError):
            run.steps("(")


class TestPlaces:
    def test_a_time_belongs_to_the_step_around_it(self, run):
        for number, start in ((4, 0), (5, 100), (6, 100_000)):
            run.range(f"step {number}", start, start + 50)
            run.launch(start + 1, start + 10)
        steps = run.steps()
        ((task, found),) = steps.of_task.items()
        times = np.array([-1, 0, 49_999, 50_000, 100_000, 100_049_999, 100_050_000], np.int64)
        assert found.places_at(times).tolist() == [NO_STEP, 0, 0, NO_STEP, 1, 2, NO_STEP]
        reports, processes = np.full(7, task.report), np.full(7, task.process)
        assert steps.numbers_at(reports, processes, times).tolist() == [NO_STEP, 4, 4, NO_STEP, 5, 6, NO_STEP]
        assert set(steps.numbers_at(reports + 1, processes, times).tolist()) == {NO_STEP}


def job_of(paths: list[Path]) -> Job:
    return Job(session_over(*paths))


class TestJobs:
    def test_every_rank_of_a_job(self, tmp_path):
        """The kernels of collectives are launched by two threads, and every one lies in its step."""
        job = job_of(training_job(tmp_path, ranks=2, steps=4, layers=2))
        steps = job.steps()
        assert [(found.name, found.numbers.tolist()) for found in steps.of_task.values()] == [
            ("step *", [0, 1, 2, 3])
        ] * 2
        assert steps.notes == ("steps are the NVTX ranges `step *` (4 a rank): what was launched in one belongs to it",)
        pairing = in_steps(job.pairing(), steps)
        counts = pairing.kernels.groupby(["rank", "step"], observed=True).size()
        assert counts.nunique() == 1 and len(counts) == 8 and counts.sum() == len(pairing.kernels)
        assert pairing.calls["step"].isna().sum() == 4  # two communicators are made in each rank before the first step
        job.close()

    def test_ranks_without_steps_are_named(self, tmp_path):
        paths = training_job(tmp_path, ranks=2, steps=3, layers=1)
        other = Run(tmp_path / "rank7.sqlite")
        other.launch(10, 20)
        other.export.close()
        job = job_of([*paths, other.export.path])
        assert job.steps().notes[1].startswith("no steps of rank 7: no numbered NVTX ranges")
        job.close()

    def test_nothing_to_find(self, tmp_path):
        for paths in ([], [empty_export(tmp_path / "empty.sqlite")]):
            job = job_of(paths)
            assert not job.steps().of_task
            job.close()


class TestGolden:
    def test_ddp_has_59_steps_of_8_all_reduces(self, shared_export):
        job = job_of([shared_export("ddp-a100-rank0of4")])
        ((task, found),) = job.steps().of_task.items()
        assert isinstance(task, Task)
        assert found.name == "step *"
        assert found.numbers.tolist() == list(range(59))
        assert (found.starts[0], found.ends[0]) == (7_948_364, 35_096_540)
        assert (found.starts[58], found.ends[58]) == (1_785_094_512, 1_814_212_735)
        kernels = in_steps(job.pairing(), job.steps()).kernels
        assert kernels["step"].value_counts().tolist() == [8] * 59
        job.close()

    def test_a_capture_without_numbered_ranges_has_none(self, shared_export):
        job = job_of([shared_export("h100-2rank-moe-before")])
        assert not job.steps().of_task
        job.close()


def test_ranges_nested_in_each_other_are_work_by_their_number(tmp_path, monkeypatch):
    """However deep a chain is: each name is looked at a few times."""
    looks: list[int] = []
    monkeypatch.setattr(steps, "len", lambda what: looks.append(1) or len(what), raising=False)
    counted = []
    for depth in (100, 400):
        looks.clear()
        nested = Run(tmp_path / f"{depth}.sqlite")
        for level in range(depth):
            nested.range(f"level {level}", level, 2 * depth - level)
        nested.launch(depth, depth + 10)
        assert not nested.steps().of_task
        counted.append(len(looks))
    assert 0 < counted[1] <= 4 * counted[0] + 100


@pytest.mark.skipif("NSYSTUI_CAMPAIGN" not in os.environ, reason="set NSYSTUI_CAMPAIGN: 60,000 nested ranges")
@pytest.mark.parametrize("command", ["triage", "overview", "nvtx", "steps", "timeline"])
def test_a_chain_of_sixty_thousand_ranges_is_answered(tmp_path, command, capsys):
    path = deep_nvtx_export(tmp_path / "deep.sqlite", depth=60_000)
    assert main([command, "--no-cache", str(path)]) == (3 if command == "steps" else 0)
    assert "Traceback" not in capsys.readouterr().err
