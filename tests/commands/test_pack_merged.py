"""``nsystui pack`` merges small groups of ranks: however it ends, every rank stays readable, once."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import campaign
import duckdb
import pytest
import sqlalchemy as sa
from disks import fill, small_disk
from support import packed_facts, report_in
from test_pack_command import start

from nsystui.base.errors import ExportError
from nsystui.base.files import partial_name
from nsystui.cli import main
from nsystui.exports import discover
from nsystui.store import tables
from nsystui.store.packed_job import JobWriter
from nsystui.store.session import Session

pytestmark = pytest.mark.campaign


def kernels(job: Path) -> dict[int, int]:
    """Return the kernels of each rank in the dataset, as other programs read it."""
    return dict(duckdb.sql(f"SELECT rank, count(*) FROM '{job}/kernels/*.parquet' GROUP BY rank").fetchall())


def counted(job: Path) -> dict[int, int]:
    return {rank: facts["counts"]["kernels"] for rank, facts in packed_facts(job).items()}


def groups(job: Path) -> list[int]:
    """Return the number of reports in each group, smallest first."""
    return sorted(
        len(list(reports)) for _, reports in itertools.groupby(discover.packed_reports(job), lambda p: p.parent)
    )


def pack(*words: str | Path) -> None:
    assert main(["pack", *map(str, words)]) == 0


@pytest.fixture(scope="module")
def two_groups(demo_job, tmp_path_factory) -> Path:
    """Return a job of ranks 0 and 1 in groups of their own, as a process that was killed before it merged leaves it."""
    job = tmp_path_factory.mktemp("two") / "job"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobWriter, "merge", lambda self, staging: None)
        for export in demo_job[:2]:
            pack(export, "-o", job)
    assert groups(job) == [1, 1]
    return job


@pytest.fixture
def job(two_groups, tmp_path) -> Path:
    return Path(shutil.copytree(two_groups, tmp_path / "job"))


def test_ranks_packed_alone_become_one_group_with_the_same_answers(run, demo_job, job):
    run("triage", job)  # its results are kept
    saved = {path.name for path in job.glob("reports/*/rank=0/*")}
    before = packed_facts(job)
    done = run("pack", *demo_job[:2], "-o", job)
    assert (done.status, done.out, groups(job)) == (0, "", [2])
    assert packed_facts(job) == before and {path.name for path in job.glob("reports/*/rank=0/*")} == saved != set()
    assert kernels(job) == counted(job) and len(list(job.glob("kernels/*"))) == 1 and not list(job.glob(".*"))
    for question in ("overview", "nccl", "nvtx", "ranks"):
        assert run(question, job, "--format", "csv").out == run(question, *demo_job[:2], "--format", "csv").out


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_packed_again_replaces_its_rows(run, demo_job, job, tmp_path, rank):
    run("pack", *demo_job[:2], "-o", job)
    export = Path(shutil.copy(demo_job[rank + 2], tmp_path / "again.sqlite"))
    pack(export, "-o", job, "--force", "--ranks", f"again={rank}")
    assert packed_facts(job)[rank]["name"] == "again" and kernels(job) == counted(job)
    assert len(list(job.glob("kernels/*"))) == len(groups(job))


def test_a_merge_does_not_bring_back_what_was_replaced_meanwhile(demo_job, job, monkeypatch):
    """The rank is packed again between the reading and the publishing of the merge."""
    publish = JobWriter._publish

    def replaced_before(self, *words):
        monkeypatch.setattr(JobWriter, "_publish", publish)
        with subprocess.Popen(
            [sys.executable, "-m", "nsystui", "pack", demo_job[2], "-o", job, "--force", "--ranks", "rank2=0"]
        ) as other:
            assert other.wait() == 0
        publish(self, *words)

    monkeypatch.setattr(JobWriter, "_publish", replaced_before)
    pack(*demo_job[:2], "-o", job)
    assert (
        packed_facts(job)[0]["name"] == "rank2" and kernels(job) == counted(job) and packed_facts(job).keys() == {0, 1}
    )


STEPS = ("rename", "unlink", "mkdir", "write_text", "write_bytes")


@pytest.mark.parametrize("is_after", [False, True])
def test_a_merge_killed_at_any_step_loses_nothing_and_the_next_one_completes_it(demo_job, job, tmp_path, is_after):
    """End the process at its n-th change of a file, for several n."""
    program = f"""
import itertools, os, shutil, sys
from pathlib import Path
steps, last = itertools.count(), int(sys.argv[1])
def counting(change):
    def changed(*words, **options):
        is_last = next(steps) == last
        if is_last and not {is_after}: os._exit(9)
        result = change(*words, **options)
        if is_last: os._exit(9)
        return result
    return changed
for name in {STEPS}: setattr(Path, name, counting(getattr(Path, name)))
os.unlink, os.rmdir = counting(os.unlink), counting(os.rmdir)
from nsystui.store.packed_job import JobWriter
writer = JobWriter(Path(sys.argv[2]))
writer.check()
with writer.staging() as cache: writer.merge(cache.directory)
"""
    right = counted(job)
    for last in sorted(random.Random(4).sample(range(100), campaign.cases(5))):
        copy = Path(shutil.copytree(job, tmp_path / "copy"))
        ended = subprocess.run([sys.executable, "-c", program, str(last), str(copy)], check=False)
        assert ended.returncode in (0, 9) and counted(copy) == readable(copy) == right, last
        pack(*demo_job[:2], "-o", copy)
        assert counted(copy) == readable(copy) == kernels(copy) == right and not list(copy.glob(".*")), last
        shutil.rmtree(copy)


def readable(job: Path) -> dict[int, int]:
    """Return the kernels of each rank, counted in the files."""
    with closing(Session()) as session:
        reports = [session.add(path) for path in discover.packed_reports(job)]
        rows = session.rows(sa.select(tables.kernels.c.report, sa.func.count()).group_by(tables.kernels.c.report))
        ranks = {report.index: min(report.ranks.values()) for report in reports}
        return {ranks[report]: count for report, count in rows}


def test_processes_that_pack_and_merge_at_once(demo_job, tmp_path):
    job = tmp_path / "job"
    for process in [start(path, "-o", job) for path in demo_job]:
        assert process.communicate()[1] == "" and process.returncode == 0
    pack(*demo_job, "-o", job)
    assert kernels(job) == counted(job) == readable(job) and packed_facts(job).keys() == {0, 1, 2, 3}
    assert not list(job.glob(".*"))


def test_one_process_merges_unless_it_is_dead(demo_job, job):
    marker = job / ".merging" / partial_name()
    marker.parent.mkdir()
    marker.touch()
    pack(*demo_job[:2], "-o", job)
    assert groups(job) == [1, 1] and marker.exists()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    marker.rename(marker.with_name(marker.name.replace(f"-{os.getpid()}-", f"-{dead.pid}-")))
    pack(*demo_job[:2], "-o", job)
    assert groups(job) == [2] and not marker.parent.exists()


def test_a_full_disk_leaves_what_was(run, demo_job, job, tmp_path):
    with small_disk(tmp_path) as disk:
        copy = Path(shutil.copytree(job, disk / "job"))
        right = readable(copy)
        fill(disk)
        done = run("pack", *demo_job[:2], "-o", copy)
        assert done.status == 2 and "cannot be written" in done.err and done.err.count("\n") == 2
        assert readable(copy) == kernels(copy) == right and groups(copy) == [1, 1]


@pytest.mark.parametrize("way", ["cut", "changed"])
def test_a_damaged_group_is_not_merged(run, demo_job, job, way):
    (file,) = job.glob("kernels/000001-*")
    data = file.read_bytes()
    file.write_bytes(data[:100] if way == "cut" else data[:99] + bytes([data[99] ^ 1]) + data[100:])
    run("pack", *demo_job[1:3], "-o", job)
    assert file.exists() and packed_facts(job).keys() == {0, 1, 2}
    done = run("kernels", job, "--format", "csv")
    assert f"damaged: kernels/{file.name}" in done.err and "pack its export again" in done.err
    pack(demo_job[0], "-o", job, "--force")
    assert not file.exists() and readable(job) == kernels(job) == counted(job)


def test_a_session_whose_group_is_merged_says_to_start_again(demo_job, job):
    with closing(Session()) as session:
        for path in discover.packed_reports(job):
            session.add(path)
        old = report_in(job, 0)
        pack(*demo_job[:2], "-o", job)
        for read in (lambda: session.rows(sa.select(tables.kernels.c.end)), lambda: Session().add(old)):
            with pytest.raises(ExportError, match=r"merged with other ranks or replaced meanwhile .start again"):
                read()


def test_a_job_copied_without_times_and_empty_directories_is_whole(demo_job, job, tmp_path):
    pack(*demo_job[:2], "-o", job)
    copy = shutil.copytree(job, tmp_path / "copy", copy_function=shutil.copyfile)
    for directory in [path for path in copy.rglob("*") if path.is_dir()]:
        with suppress(OSError):
            directory.rmdir()
    assert readable(copy) == counted(job)


def test_a_terminated_merge_is_continued(demo_job, job):
    with subprocess.Popen(
        [sys.executable, "-m", "nsystui", "pack", *demo_job[:2], "-o", job], stderr=subprocess.DEVNULL
    ) as ended:
        ended.send_signal(signal.SIGTERM)
    pack(*demo_job[:2], "-o", job)
    assert groups(job) == [2] and readable(job) == counted(job)
