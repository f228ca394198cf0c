"""``nsystui pack`` of many exports: each rank is usable when it is done, and a second run continues the first."""

import itertools
import random
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import campaign
import pytest
from support import edit, fingerprint, packed_facts, report_in
from synthetic import rank_export

from nsystui.base.errors import UsageError
from nsystui.commands import pack
from nsystui.commands.progress import ProgressLine
from nsystui.exports.discover import FACTS
from nsystui.questions.answers import packing
from nsystui.questions.answers.packing import RanksAhead, all_numbered, report_ranks
from nsystui.questions.job.job import OpenJob
from nsystui.store.session import Session

pytestmark = pytest.mark.campaign

ONE_BY_ONE = "import sys; from nsystui.commands import pack; pack._MAX_BYTES = 0; from nsystui.cli import main; "
PROGRAM = [sys.executable, "-c", ONE_BY_ONE + "sys.exit(main(sys.argv[1:]))", "pack", "--jobs", "1"]


@pytest.fixture
def one_by_one(monkeypatch):
    monkeypatch.setattr(pack, "_MAX_BYTES", 0)


@pytest.fixture
def interrupted_at(monkeypatch):
    """Return a function that interrupts a run at the export of this number, after it was read."""

    def at(place: int) -> None:
        numbers = itertools.count(1)
        whole = packing.compute_first_answers

        def compute(job: OpenJob) -> None:
            if next(numbers) == place:
                raise KeyboardInterrupt
            whole(job)

        monkeypatch.setattr(packing, "compute_first_answers", compute)

    return at


def ranks_in(job: Path) -> set[int]:
    return {*packed_facts(job)}


def identities(job: Path) -> dict[int, str]:
    """Return the identity of each rank's pack, which is new whenever the rank is packed again."""
    return {rank: facts["identity"] for rank, facts in packed_facts(job).items()}


def test_an_interrupted_run_leaves_whole_ranks_and_the_next_one_packs_the_others(
    run, tmp_path, demo_job, one_by_one, interrupted_at, monkeypatch
):
    job, exports = tmp_path / "job", demo_job[:3]
    interrupted_at(3)
    texts = []
    monkeypatch.setattr(ProgressLine, "show", lambda self, describe, done=0: texts.append(self.head + describe()))
    ended = run("pack", *exports, "-o", job)
    assert (ended.status, ended.err) == (130, "nsystui: interrupted: packed 2 of 3 ranks; the same command continues\n")
    assert [line.split("  ")[0] for line in ended.out.splitlines()] == ["rank 0", "rank 1"]
    assert ranks_in(job) == {0, 1} and not list(job.glob(".*"))
    for done in range(3):
        assert any(text.startswith(f"packed {done} of 3 ranks  reading file") for text in texts)
    assert run("ranks", job, "--format", "csv").out == run("ranks", *exports[:2], "--format", "csv").out
    before = identities(job)
    resumed = run("pack", *exports, "-o", job)
    assert (resumed.status, resumed.err) == (0, "nsystui: note: 2 of 3 were packed before\n")
    assert resumed.out.startswith("rank 2  rank2") and resumed.out.count("\n") == 1
    assert identities(job).items() > before.items()
    assert run("ranks", job, "--format", "csv").out == run("ranks", *exports, "--format", "csv").out
    after = fingerprint(job)
    again = run("pack", *exports, "-o", job)
    assert (again.status, again.out, again.err) == (0, "", "nsystui: note: 3 of 3 were packed before\n")
    assert fingerprint(job) == after


def test_what_is_there_of_another_export_or_otherwise_is_not_taken_for_packed(run, refused, tmp_path, demo_job):
    job, export = tmp_path / "job", tmp_path / "rank0.sqlite"
    shutil.copy(demo_job[0], export)
    assert run("pack", export, "-o", job).status == 0
    assert "rank 0 already (of rank0)" in refused("pack", export, "-o", job, "--job-output")
    assert run("pack", export, "-o", job, "--job-output", "--force").status == 0
    assert "1 of 1 were packed before" in run("pack", export, "-o", job, "--job-output").err
    edit(export, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 2")
    assert "rank 0 already (of rank0)" in refused("pack", export, "-o", job)
    report_in(job, 0).with_name(FACTS).unlink()
    assert run("pack", export, "-o", job).out.startswith("rank 0 ")


@pytest.mark.parametrize("force", [True, False])
def test_an_interrupt_while_a_report_is_put_into_the_job_leaves_the_old_or_the_new_one(
    run, tmp_path, demo_job, monkeypatch, force
):
    """Just before and just after the last step."""
    job = tmp_path / "job"
    rename = Path.rename
    if force:
        assert run("pack", demo_job[0], "-o", job).status == 0
    for is_after in (False, True):
        before = identities(job)

        def interrupted(self: Path, target: Path, is_after: bool = is_after) -> Path:
            is_last = Path(target).parent.name == "reports"
            if is_last and not is_after:
                raise KeyboardInterrupt
            moved = rename(self, target)
            if is_last:
                raise KeyboardInterrupt
            return moved

        monkeypatch.setattr(Path, "rename", interrupted)
        ended = run("pack", demo_job[0], "-o", job, *["--force"] * force)
        monkeypatch.setattr(Path, "rename", rename)
        assert ended.status == 130 and f"packed {int(force or is_after)} of 1 rank" in ended.err
        assert (identities(job) == before) is not is_after
        if force or is_after:
            assert run("kernels", job, "--format", "csv").out == run("kernels", demo_job[0], "--format", "csv").out


def written(directory: Path, told: list[dict[str, Any]]) -> list[Path]:
    """Write exports of one process each, with the captured variables of its rank."""
    directory.mkdir(parents=True)
    paths = [directory / f"{number}{one.get('name', 'of')}.sqlite" for number, one in enumerate(told)]
    for path, one in zip(paths, told, strict=True):
        rank_export(path, one | ({"nccl": [(one["nccl"], 8)]} if "nccl" in one else {}))
    return paths


SAME = {"SLURM_PROCID": "0"}
TOLD = {
    "MPI": [{"mpi": 5, "nccl": 0}, {"mpi": 3, "nccl": 0}],
    "NCCL communicator": [{"nccl": 5, "name": "_rank5"}, {"nccl": 3, "name": "_rank3"}],
    "captured environment": [{"environment": {"RANK": "5"} | SAME}, {"environment": {"RANK": "3"} | SAME}],
    "file name": [{"name": "_rank5", "environment": SAME}, {"name": "_rank3", "environment": SAME}],
    "--ranks": [{"name": "x5", "nccl": 1}, {"name": "x3", "nccl": 0}],
}


@pytest.mark.parametrize("source", campaign.some(3 * len(TOLD), TOLD))
def test_a_rank_is_there_before_the_next_export_is_read(run, tmp_path, one_by_one, interrupted_at, source):
    exports = written(tmp_path / "in", TOLD[source])
    flags = ["--ranks", r"x(\d)"] * (source == "--ranks")
    interrupted_at(2)
    assert run("pack", *exports, "-o", tmp_path / "job", *flags).status == 130
    assert ranks_in(tmp_path / "job") == {5}
    resumed = run("pack", *exports, "-o", tmp_path / "job", *flags)
    assert resumed.status == 0 and resumed.out.startswith("rank 3 ") and resumed.out.endswith(f"({source})\n")


def test_ranks_in_groups_do_not_number_the_job(run, tmp_path, one_by_one):
    """The largest communicator is only a group, so its rank does not count: file names decide, as with all exports."""
    exports = written(tmp_path / "in", [{"nccl": number % 2, "name": f"_rank{number}"} for number in (3, 2, 1, 0)])
    done = run("pack", *exports, "-o", tmp_path / "job")
    assert done.status == 0 and ranks_in(tmp_path / "job") == {0, 1, 2, 3}
    assert {line.rpartition("  ")[2] for line in done.out.splitlines()} == {"(file name)"}
    rank_export(tmp_path / "in/4_rank9.sqlite", {"nccl": [(7, 8)]})
    assert "4 of 5 were packed before" in run("pack", tmp_path / "in", "-o", tmp_path / "job").err
    assert ranks_in(tmp_path / "job") == {0, 1, 2, 3, 9}


def test_two_of_one_rank_are_refused_with_both_names(run, tmp_path):
    exports = written(tmp_path / "in", [{"nccl": 1}, {"nccl": 1}])
    first, second = (run("pack", export, "-o", tmp_path / "job") for export in exports)
    assert first.status == 0 and second.status == 2 and "1of is rank 1 (NCCL communicator)" in second.err
    assert ranks_in(tmp_path / "job") == {1}


@pytest.mark.parametrize("numbers", campaign.first(1, [[3, None, 0], [None, 1, 0], [1, 1]]))
def test_ranks_that_not_all_exports_record_are_those_of_the_overview(run, tmp_path, one_by_one, numbers):
    exports = written(tmp_path / "in", [{} if number is None else {"nccl": number} for number in numbers])
    assert run("pack", *exports, "-o", tmp_path / "job").status == 0
    packed, together = (run("overview", *paths, "--format", "csv").out for paths in ([tmp_path / "job"], exports))
    assert packed == together and ranks_in(tmp_path / "job") == {*range(len(numbers))}


def test_ranks_that_are_certain_early_are_those_of_all_exports_together(tmp_path):
    chance = random.Random(11)
    for case in range(campaign.cases(20)):
        told = []
        for number in range(chance.randint(2, 4)):
            ways: dict[str, Any] = {
                "mpi": number,
                "nccl": chance.choice((number, number, number % 2, 3 - number)),
                "environment": {"RANK": str(chance.choice((number, 0)))},
                "name": f"_rank{chance.choice((number, number, 1))}",
            }
            likely = chance.choice((0.3, 0.7, 1))
            told.append({key: value for key, value in ways.items() if chance.random() < likely})
        exports = dict(enumerate(written(tmp_path / str(case), told)))
        with closing(Session()) as session:
            for number, path in exports.items():
                session.add(path, index=number, whole=False)
            together, _ = report_ranks(OpenJob(session))
        try:
            all_numbered(together)
        except UsageError:
            continue
        expected = {one.report.index: one.ranks for one in together}
        ahead = RanksAhead.of(exports)
        for number, path in exports.items():
            with closing(Session()) as session:
                session.add(path, index=number, whole=False)
                for one in ahead.ranks(OpenJob(session))[0]:
                    assert one.ranks == expected[number], (told, number)


@pytest.mark.parametrize("how", campaign.some(10, [signal.SIGTERM, signal.SIGINT, signal.SIGKILL]))
def test_however_a_run_is_ended_the_next_one_completes_it(run, tmp_path, demo_job, how):
    for lines in (1, 3):
        job = tmp_path / f"{lines}"
        words = [*PROGRAM, *map(str, demo_job), "-o", str(job)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ended:
            assert ended.stdout is not None and ended.stderr is not None
            for _ in range(lines):
                ended.stdout.readline()
            ended.send_signal(how)
            said = ended.stderr.read()
        there = len(ranks_in(job))
        assert there >= lines
        if how == signal.SIGKILL:
            assert ended.returncode == -how
        else:
            text = f"nsystui: interrupted: packed {there} of 4 ranks; the same command continues\n"
            assert (ended.returncode, said) == (128 + how, text) and not list(job.glob(".*"))
        resumed = run("pack", *demo_job, "-o", job)
        assert (resumed.status, resumed.out.count("\n")) == (0, 4 - there) and not list(job.glob(".*"))
        assert run("overview", job, "--format", "csv").out == run("overview", *demo_job, "--format", "csv").out


def test_a_reader_that_has_seen_enough_does_not_end_it(tmp_path, demo_job):
    words = [*PROGRAM, *map(str, demo_job), "-o", str(tmp_path / "job")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 0 and len(ranks_in(tmp_path / "job")) == 4
