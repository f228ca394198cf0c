"""CPU samples of two sides, against differences computed straight from the rows of the exports."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import campaign
import pytest
from support import native, open_job, records, shared
from synthetic.writing.host import Frame
from test_comparison import by, side
from test_host import launched, training

from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.questions.compare.host import call_tree, functions
from nsystui.questions.compare.side import Side
from nsystui.questions.host.calltree import call_tree_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.steps.task_steps import TaskSteps

MS = 1_000_000
MAIN, LOAD, TRAIN, CODEC = (Frame(name, "/opt/app/main") for name in ("main", "load", "train", "decode"))


def written(path: Path, work: dict[tuple[Frame, ...], int], period: int = MS, steps=0, install: str = "/opt") -> Path:
    """Write a thread that runs each stack for some time, sampled every ``period``, with ``steps`` ranges over all."""
    with training(path) as (export, thread, _):
        now, process = 100 * MS, thread.process
        for stack, length in work.items():
            own = [Frame(one.function, one.module.replace("/opt", install)) for one in stack]
            export.on_cpu(thread, now, now + length * MS, own, period=period)
            now += (length + 1) * MS
        export.kernel(process, 0, 7, now, now + 10, name="k()", correlation_id=1000)
        length = (now - 100 * MS) // max(steps, 1)
        for number in range(steps):
            start = 100 * MS + number * length
            export.nvtx_range(thread, start, start + length - 1, f"step {number}")
            export.api(thread, start + 10, start + 20, "cudaLaunchKernel_v7000", number + 1)
            export.kernel(process, 0, 7, start + 30, start + 40, name="k()", correlation_id=number + 1)
    return path


BEFORE = {(MAIN,): 4, (LOAD, MAIN): 40, (CODEC, LOAD, MAIN): 20, (TRAIN, MAIN): 36}
AFTER = {(MAIN,): 4, (LOAD, MAIN): 10, (TRAIN, MAIN): 60, (CODEC, TRAIN, MAIN): 6}


@pytest.fixture(scope="module")
def before(tmp_path_factory) -> Iterator[OpenJob]:
    with closing(open_job(written(tmp_path_factory.mktemp("before") / "a.sqlite", BEFORE))) as job:
        yield job


@pytest.mark.parametrize(("period", "install"), campaign.first(1, [(2 * MS, "/home/me/env"), (MS, "/opt")]))
def test_functions_and_nodes_differ_by_the_running_time_of_their_samples(before, tmp_path, period, install):
    part = Selection(None, None, name=NameFilter("train"))
    with closing(open_job(written(tmp_path / "b.sqlite", AFTER, period, install=install))) as after:
        found = by(functions(side(before), side(after)))
        tree = records(call_tree(side(before), side(after)))
        (top, below) = records(call_tree(Side(before, part, ""), Side(after, part, "")))
    differences = {name: (row["difference"] / MS, row["total_difference"] / MS) for name, row in found.items()}
    assert differences == {"load": (-30, -50), "train": (+24, +30), "decode": (-14, -14), "main": (0, -20)}
    assert (found["load"]["own_a_percent"], found["load"]["own_b_percent"]) == (40, 12.5)
    assert all(row["status"] == "both" and row["module"] == "main" for row in found.values())
    assert [(row["name"], row["difference"] / MS, row["own_difference"] / MS, row["status"]) for row in tree] == [
        ("main", -20, 0, "both"), ("  load", -50, -30, "both"), ("  decode", -20, -20, "gone"),
        ("  train", +30, +24, "both"), ("  decode", +6, +6, "new"),
    ]  # fmt: skip
    assert [row["hot"] for row in tree] == ["◂", "◂", "", "", ""]
    assert (top["name"].strip(), top["level"], top["difference"]) == ("train", 0, 30 * MS)
    assert (below["name"].strip(), below["level"]) == ("decode", 1)


@pytest.mark.campaign
def test_a_tree_of_two_reports_may_be_deeper_in_one(tmp_path):
    paths = written(tmp_path / "a.sqlite", {(MAIN,): 2}), written(tmp_path / "b.sqlite", BEFORE)
    with closing(open_job(*paths)) as job:
        found = call_tree_table(job, Selection(), least=0).records()
    calls = [(row["call"].strip(), row["total"]) for row in found]
    assert calls == [("main", 102), ("load", 60), ("decode", 20), ("train", 36)]


@pytest.mark.campaign
def test_times_are_per_step_where_both_sides_have_steps(tmp_path):
    twice = {stack: 2 * length for stack, length in BEFORE.items()}
    # Samples before the first step are in no step.
    short = written(tmp_path / "a.sqlite", BEFORE, steps=4)
    long = written(tmp_path / "b.sqlite", twice, steps=8)
    # The same job over two windows: steps that are whole in each.
    middle = Window(100 * MS, 100 * MS + 53 * MS)
    with closing(open_job(short)) as a, closing(open_job(long)) as b:
        answer = functions(side(a), side(b))
        halves = functions(side(a, window=middle), side(a))
    found = by(answer)
    assert found["train"]["own_a"] == pytest.approx(9 * MS, rel=0.05)
    assert found["train"]["difference"] == pytest.approx(0, abs=0.5 * MS)
    assert any("times are per step (A has 4, B has 8" in note for note in answer.notes)
    header = next(column.header for column in answer.columns if column.key == "difference")
    assert header == "Self Difference per Step (ns)"
    assert any("A has 2, B has 4" in note for note in halves.notes)


def test_a_side_without_samples_is_missing_not_zero(before, tmp_path):
    with training(tmp_path / "none.sqlite") as (export, thread, _):
        launched(export, thread, (0, 1, 1, 2))
    with closing(open_job(tmp_path / "none.sqlite")) as without:
        for table in (functions, call_tree):
            answer = table(side(before), side(without))
            assert len(answer) and any("B: no CPU samples" in note for note in answer.notes)
            for row in records(answer):
                missing = {row[key] for key in ("difference", "own_b", "own_b_percent", "status")}
                assert missing == {None} and row["total_a"] > 0
            assert not len(table(side(without), side(without)))


@pytest.mark.campaign
def test_two_ranks_of_one_job_are_sides_too(tmp_path):
    paths = written(tmp_path / "rank0.sqlite", BEFORE), written(tmp_path / "rank1.sqlite", AFTER)
    with closing(open_job(*paths)) as job:
        ranks = [item.rank for item in job.ranks]
        found = by(functions(side(job, ranks[0]), side(job, ranks[1])))
    assert found["load"]["difference"] == -30 * MS and found["decode"]["difference"] == -14 * MS


@pytest.mark.campaign
def test_samples_of_a_real_before_and_after_differ_as_their_rows_do():
    paths = shared("ai-training-before", "ai-training-after")
    jobs = [open_job(path) for path in paths]
    naive = [Naive(path, *job.steps().of_task.values()) for path, job in zip(paths, jobs, strict=True)]
    found = {
        (row["full_name"], row["module"], row["mode"]): row
        for row in records(functions(*map(side, jobs)))
        if row["own_samples_a"] or row["own_samples_b"]
    }
    assert set(found) == set(naive[0].own) | set(naive[1].own)
    for key, row in found.items():
        times = [one.own[key] * one.weight for one in naive]
        assert (row["own_a"], row["own_b"]) == pytest.approx(times, abs=1)
        assert row["difference"] == pytest.approx(times[1] - times[0], abs=1)
    assert sum(row["own_a_percent"] for row in found.values()) == pytest.approx(100)
    ways: dict[int, tuple[Key, ...]] = {0: ()}
    for row in records(call_tree(*map(side, jobs))):
        way = ways[row["node"]] = (*ways[row["parent"]], (row["full_name"], row["module"], row["mode"]))
        assert [row["total_samples_a"], row["total_samples_b"]] == [one.below[way] for one in naive]
        assert row["difference"] == pytest.approx(naive[1].below[way] * naive[1].weight - row["total_a"], abs=1)
    assert len(ways) > 100
    for job in jobs:
        job.close()


Key = tuple[str, str, str]


class Naive:
    """The samples of an export from its first step to its last, by function and by path from the root."""

    def __init__(self, path: Path, steps: TaskSteps) -> None:
        names = dict(native(path, "SELECT id, value FROM StringIds"))
        first, last = int(steps.starts.min()), int(steps.ends.max())
        query = "SELECT id, symbol, module, kernelMode FROM SAMPLING_CALLCHAINS JOIN COMPOSITE_EVENTS USING (id)"
        chains: dict[int, list[Key]] = {}
        in_time = f"WHERE start >= {first} AND start < {last} ORDER BY id, stackDepth"
        for chain, symbol, module, kernel in native(path, f"{query} {in_time}"):
            text, library, frames = names[symbol], names[module].rpartition("/")[2], chains.setdefault(chain, [])
            is_folded = not text or text.startswith("0x")
            if is_folded:
                text = library if library.startswith("[") else f"[{library}]"
            key = text, library, "kernel" if kernel else ""
            if not (is_folded and frames[-1:] == [key]):
                frames.append(key)
        self.own = Counter(frames[0] for frames in chains.values())
        self.below = Counter(
            tuple(frames[:-place:-1]) for frames in chains.values() for place in range(2, len(frames) + 2)
        )
        threads = {thread for (thread,) in native(path, "SELECT DISTINCT globalTid FROM COMPOSITE_EVENTS")}
        ran, came = 0, {}
        switches = "SELECT globalTid, start, isSchedIn FROM SCHED_EVENTS ORDER BY start, rowid"
        for thread, start, is_in in native(path, switches):
            since = came.pop(thread, None)
            if thread in threads and since is not None:
                ran += max(min(start, last) - max(since, first), 0)
            if is_in:
                came[thread] = start
        self.weight = ran / self.own.total() / len(steps)
