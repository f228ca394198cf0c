"""Two sides compared: differences that add up, sides of different sizes, missing data, and CPU samples."""

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import open_job, records, shared
from synthetic import ExportWriter, nccl_without_nvtx_export, training_job
from synthetic.writing.host import Frame
from test_host import training

from nsystui.base.answer import NAME, TableAnswer
from nsystui.base.selection import Selection, Window
from nsystui.questions.compare import TABLES, ComparisonOptions, summary
from nsystui.questions.compare.pairs import Compared, Measured, compared
from nsystui.questions.compare.side import Basis, Side
from nsystui.questions.compare.tables import kernels, memory, nccl, nvtx
from nsystui.questions.host.calltree import call_tree_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import MEMORY, work_summary
from nsystui.questions.kernels.summary import Names, kernel_summary
from nsystui.questions.nvtx.listing import nvtx_summary
from nsystui.questions.nvtx.paths import Folding
from nsystui.questions.ranks.steps import step_times


def by(answer: Any, key: str = "name") -> dict[Any, dict[str, Any]]:
    return {str(row[key]).strip(): row for row in records(answer)}


def total(answer: Any, key: str) -> float:
    return sum(row[key] or 0 for row in records(answer))


def side(job: OpenJob, *ranks: int, label: str = "", window: Window | None = None) -> Side:
    return Side(job, Selection(window, job.tasks_of_ranks(frozenset(ranks)) if ranks else None), label)


@pytest.fixture(scope="module")
def demo(demo_session) -> OpenJob:
    return OpenJob(demo_session)


@pytest.fixture(scope="module")
def faster(tmp_path_factory) -> Iterator[OpenJob]:
    """Yield the demo job without its straggler."""
    with closing(open_job(*training_job(tmp_path_factory.mktemp("faster"), 4, 3, layers=2, straggler=None))) as job:
        yield job


@pytest.fixture(scope="module")
def forth(demo, faster) -> dict[str, TableAnswer]:
    """Return each table that compares the demo job with the faster job."""
    return {name: TABLES[name].make(side(demo), side(faster), ComparisonOptions()) for name in TABLES}


def measured(count: int, total: int) -> Measured:
    return Measured({"count": count, "total": total})


counts = st.integers(0, 50)
things = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(lambda count, each: measured(count, count * each), counts, st.integers(0, 10**9)),
)
_NAMED = (NAME,)


def table_of(a: dict[str, Measured], b: dict[str, Measured], basis: Basis) -> Compared:
    sides = {(name,): one for name, one in a.items()}, {(name,): one for name, one in b.items()}
    return compared("test", _NAMED, sides, basis)


@pytest.mark.campaign
@given(things, things, st.integers(1, 5), st.integers(1, 5))
def test_swapped_sides_turn_every_sign_and_nothing_else_and_nothing_differs_from_itself(a, b, ranks, others):
    for row in records(table_of(a, a, Basis(2, 2))):
        assert row["difference"] == row["by_count"] == row["by_duration"] == row["share"] == 0
    forth, back = by(table_of(a, b, Basis(ranks, others))), by(table_of(b, a, Basis(others, ranks)))
    assert forth.keys() == back.keys()
    turned = {"new": "gone", "gone": "new", "both": "both"}
    for name, row in forth.items():
        other = back[name]
        for key in ("difference", "by_count", "by_duration"):
            assert row[key] == pytest.approx(-other[key], abs=1e-3)
        assert row["share"] == pytest.approx(other["share"])
        assert (row["total_a"], row["count_b"]) == (other["total_b"], other["count_a"])
        if row["count_a"] or row["count_b"]:
            assert turned[row["status"]] == other["status"]


@pytest.mark.campaign
@given(things, things, st.integers(1, 5), st.integers(1, 5))
def test_the_two_parts_of_a_difference_are_all_of_it(a, b, ranks, others):
    found = records(table_of(a, b, Basis(ranks, others)))
    for row in found:
        assert row["by_count"] + row["by_duration"] == pytest.approx(row["difference"], abs=1)
    changes = [abs(row["difference"]) for row in found]
    assert changes == sorted(changes, reverse=True)
    assert sum(row["share"] for row in found) == pytest.approx(100.0 if any(changes) else 0.0)


def test_a_side_that_recorded_nothing_is_missing_and_makes_nothing_new():
    (row,) = records(table_of({"x": measured(2, 10)}, {}, Basis(1, 0)))
    assert (row["total_a"], row["count_a"]) == (10, 2)
    missing = ("total_b", "count_b", "difference", "ratio", "share", "by_count", "status")
    assert {row[key] for key in missing} == {None}
    (row,) = records(table_of({"x": measured(2, 10)}, {}, Basis(1, 1)))
    assert (row["total_b"], row["difference"], row["status"]) == (0, -10, "gone")


def test_sorting_by_a_difference_looks_at_its_size():
    answer = table_of({"x": measured(1, 10), "y": measured(1, 1)}, {"z": measured(1, 5)}, Basis(1, 1))
    assert [row["name"] for row in records(answer.sorted_by("difference", True))] == ["x", "z", "y"]
    assert [row["name"] for row in records(answer.sorted_by("difference", False))] == ["y", "z", "x"]
    assert [row["name"] for row in records(answer.sorted_by("total_b", True))] == ["z", "x", "y"]


@pytest.mark.campaign
def test_totals_are_those_of_the_single_summaries(demo, faster):
    a, b = side(demo, 0, 1), side(faster, 2, 3)
    for answer, summary_of in (
        (kernels(a, b), lambda one: kernel_summary(one.job.session, one.selection)),
        (memory(a, b), lambda one: work_summary(one.job.session, one.selection, MEMORY)),
    ):
        for one, letter in ((a, "a"), (b, "b")):
            expected = summary_of(one)
            assert total(answer, f"total_{letter}") == total(expected, "total")
            assert total(answer, f"count_{letter}") == total(expected, "count")
    for one, key in ((a, "sum_a"), (b, "sum_b")):
        every = nvtx_summary(one.job.session, one.selection, fold=Folding.STEPS)
        before = by(every)["NCCL:ncclCommInitRankConfig"]["total"]
        assert total(nvtx(a, b), key) == total(every, "total") - before
    single = by(kernel_summary(a.job.session, a.selection, Names.SHORT))
    for name, row in by(kernels(a, b, Names.SHORT)).items():
        assert row["median_a"] == single[name]["median"]


@pytest.mark.campaign
def test_nvtx_ranges_are_compared_per_step_of_jobs_of_different_lengths(demo, tmp_path):
    with closing(open_job(*training_job(tmp_path, 2, 5, layers=1, straggler=None))) as other:
        answer = nvtx(side(demo), side(other), fold_numbers=False)
    found = {name.removeprefix("training:"): row for name, row in by(answer).items()}
    (note,) = [note for note in answer.notes if "per step" in note]
    assert "(A has 12, B has 10); ranges that begin before or after all steps are left out: 8 of " in note
    assert "CPU Total A per Step (ns)" in {column.header for column in answer.columns}
    assert "NCCL:ncclCommInitRankConfig" not in found
    optimizer, layer, gone = (found[name] for name in ("optimizer", "layer_0", "layer_1"))
    assert optimizer["count_a"] == optimizer["count_b"] == 1
    assert optimizer["total_a"] == optimizer["sum_a"] / 12 and optimizer["total_b"] == optimizer["sum_b"] / 10
    assert layer["ratio"] == pytest.approx(1, abs=0.05) and layer["status"] == "both"
    assert (gone["status"], gone["total_b"], gone["difference"]) == ("gone", 0, -gone["total_a"])
    faster_step = nvtx(side(demo), side(other)).records()
    (change,) = [row["difference"] for row in faster_step if str(row["name"]).endswith("step *")]
    assert change < 0


def served(path: Path, requests: int, ranges: dict[str, int]) -> Path:
    """Write a server that handles requests with the same kernels, each in NVTX ``ranges`` of these durations, µs."""
    with ExportWriter(path) as export:
        process = export.process(5000, "server")
        thread = export.thread(process, 5000, "server")
        ids, start = count(1), 0
        for _ in range(requests):
            for name in (*(f"part{part}(int)" for part in range(30)), "sample(int)"):
                number, start = next(ids), start + 20_000
                export.api(thread, start, start + 500, "cudaLaunchKernel_v7000", number)
                export.kernel(process, 0, 7, start + 5_000, start + 15_000, name=name, correlation_id=number)
            number, start = next(ids), start + 20_000
            export.api(thread, start, start + 500, "cudaMemcpyAsync_v3020", number)
            export.memcpy(process, 0, 7, start + 5_000, start + 6_000, kind="DtoH", size=4096, correlation_id=number)
            for name, us in ranges.items():
                export.nvtx_range(thread, start + 1_000, start + 1_000 * (us + 1), name)
                start += 1_000 * (us + 1)
            start += 100_000
    return path


@pytest.mark.campaign
def test_a_slower_operation_of_a_server_is_found_whatever_its_number_of_requests(tmp_path):
    """The steps are found by kernels; the ranges of the last request follow its last kernel, and do not count."""
    before = served(tmp_path / "a.sqlite", 12, {"schedule": 10, "detokenise": 20, "respond": 30})
    after = served(tmp_path / "b.sqlite", 30, {"schedule": 5, "grammar": 40, "respond": 90})
    with closing(open_job(before)) as a, closing(open_job(after)) as b:
        answer = nvtx(side(a), side(b))
    found = {name: (row["status"], row["difference"]) for name, row in by(answer).items()}
    assert found == {
        "respond": ("both", pytest.approx(60_000, abs=2_000)),
        "grammar": ("new", pytest.approx(40_000, abs=2_000)),
        "detokenise": ("gone", pytest.approx(-20_000, abs=2_000)),
        "schedule": ("both", pytest.approx(-5_000, abs=2_000)),
    }


@pytest.mark.campaign
def test_nvtx_ranges_of_ranks_without_whole_steps_are_not_per_step(demo):
    middle = step_times(demo.steps())[demo.ranks[0].task].window(1)
    answer = nvtx(side(demo, 0), side(demo, 0, window=Window(middle.start, (middle.start + middle.end) // 2)))
    assert any("not per step, because not all ranks of B have NVTX ranges and steps" in note for note in answer.notes)
    assert "CPU Total A (ns)" in {column.header for column in answer.columns}


@pytest.mark.campaign
def test_a_side_without_nvtx_is_missing_not_zero(demo, tmp_path):
    with closing(open_job(nccl_without_nvtx_export(tmp_path / "silent.sqlite"))) as other:
        answer = nvtx(side(demo), side(other))
        found = nccl(side(demo), side(other))
    assert {row["count_b"] for row in records(answer)} == {row["difference"] for row in records(answer)} == {None}
    assert any(note.startswith("B: no NVTX ranges") for note in answer.notes)
    assert "bucket" not in by(found, "collective")["AllReduce"]
    assert any("only one side has message sizes" in note for note in found.notes)


@pytest.mark.campaign
def test_nvtx_ranges_of_a_real_job_are_per_step():
    """Half of the DALI pipeline runs ahead, between steps; it is neither new nor gone."""
    paths = shared("ddp-a100-rank0of4", "ddp-a100-nobroadcast-rank0of4")
    with closing(open_job(paths[0])) as before, closing(open_job(paths[1])) as after:
        answer = nvtx(side(before), side(after))
        notes = summary(side(before), side(after)).notes
    found = by(answer)
    assert {row["status"] for row in found.values()} == {"both"}
    assert (found["step *"]["count_a"], found["step *"]["count_b"]) == (1, 1)
    assert found["step *"]["total_a"] == pytest.approx(29.89e6, abs=0.01e6)
    assert found["step *"]["difference"] == pytest.approx(-0.512e6, abs=0.001e6)
    assert found["optimizer"]["difference"] == pytest.approx(-0.819e6, abs=0.001e6)
    assert found["forward"]["status"] == "both" and found["forward"]["ratio"] == pytest.approx(1, abs=0.01)
    assert any(note.startswith("NVTX ranges that changed most per step: ") for note in notes)


MS = 1_000_000
MAIN, LOAD, TRAIN, CODEC = (Frame(name, "/opt/app/main") for name in ("main", "load", "train", "decode"))


def written(path: Path, work: dict[tuple[Frame, ...], int]) -> Path:
    """Write a thread that runs each stack for some time."""
    with training(path) as (export, thread, _):
        now = 100 * MS
        for stack, length in work.items():
            export.on_cpu(thread, now, now + length * MS, stack, period=MS)
            now += (length + 1) * MS
        export.kernel(thread.process, 0, 7, now, now + 10, name="k()", correlation_id=1000)
    return path


BEFORE = {(MAIN,): 4, (LOAD, MAIN): 40, (CODEC, LOAD, MAIN): 20, (TRAIN, MAIN): 36}


@pytest.mark.campaign
def test_a_tree_of_two_reports_may_be_deeper_in_one(tmp_path):
    paths = written(tmp_path / "a.sqlite", {(MAIN,): 2}), written(tmp_path / "b.sqlite", BEFORE)
    with closing(open_job(*paths)) as job:
        found = call_tree_table(job, Selection(), least=0).records()
    calls = [(row["call"].strip(), row["total"]) for row in found]
    assert calls == [("main", 102), ("load", 60), ("decode", 20), ("train", 36)]
