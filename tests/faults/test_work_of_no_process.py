"""GPU work of an unrecorded process is GPU work in every answer."""

import program
import pytest
from support import edit
from synthetic import demo

pytestmark = pytest.mark.campaign

JOB = demo.TrainingJob(ranks=2, steps=2, layers=1)
WORK = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


@pytest.fixture(scope="module", params=["null", "column"])
def exports(request, tmp_path_factory):
    """Return an export, and the same without the processes of its GPU work: NULL, or no such column."""
    place = tmp_path_factory.mktemp(request.param)
    right, wrong = (JOB.write(place / name)[0] for name in ("right", "wrong"))
    for table in WORK:
        edit(wrong, f"ALTER TABLE {table} DROP COLUMN globalPid")
        if request.param == "null":
            edit(wrong, f"ALTER TABLE {table} ADD COLUMN globalPid INTEGER")
    return right, wrong


ASKED = (("kernels",), ("memory",), ("gpu",), ("gpu", "--over-time"), ("stats", "-r", "cuda_gpu_kern_sum,cuda_gpu_sum"))


@pytest.mark.parametrize("more", [("--no-cache",), ()], ids=["no-cache", "cache"])
def test_gpu_work_is_the_same_with_and_without_its_process(exports, more):
    for words in ASKED:
        right, wrong = ([{**row, "Process": ""} for row in program.rows(*words, path, *more)] for path in exports)
        assert right and wrong == right, words


def test_the_overview_and_the_ranks_have_it(exports):
    for words in (("overview",), ("ranks",), ("efficiency", "--tables", "device")):
        right, wrong = (program.rows(*words, path)[0] for path in exports)
        same = {name for name in right if name in ("Rank", "Kernels", "Memory Ops", "GPUs", "Compute (%)", "NCCL (%)")}
        assert {name: wrong[name] for name in same} == {name: right[name] for name in same}


def test_triage_and_nccl_do_not_say_that_there_is_none(exports):
    _, wrong = exports
    for words in (("triage",), ("nccl",), ("timeline",), ("efficiency",), ("events",)):
        ran = program.answered(*words, wrong)
        assert ran.status == 0 and "no GPU work" not in (ran.out + ran.err).lower()


def test_some_without_a_process_change_no_rank(tmp_path):
    paths = JOB.write(tmp_path / "job")
    before = {row["Rank"]: row for row in program.rows("ranks", *paths)}
    edit(paths[1], f"UPDATE {WORK[0]} SET globalPid = NULL WHERE rowid % 7 = 0")
    after = {row["Rank"]: row for row in program.rows("ranks", *paths)}
    assert set(before) < set(after) and len(after) == 3
    assert after["0"]["Report"] == before["0"]["Report"] and after["1"]["Report"] == before["1"]["Report"]
