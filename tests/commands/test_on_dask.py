"""``--dask``: the answers of a cluster's workers equal local answers, byte for byte."""

import csv
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import campaign
import pytest
from synthetic.demo import TrainingJob

from nsystui.base.errors import NsystuiError
from nsystui.base.resources import Limits
from nsystui.cli import main
from nsystui.exports.discover import packed_reports
from nsystui.questions.job import on_dask
from nsystui.questions.job.on_dask import DaskWorkers, ReportPlace, compute_there
from nsystui.questions.queries import question as catalogue
from nsystui.questions.queries.derived import in_runs
from nsystui.store.session import Session

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'nsystui[dask]'")


@pytest.fixture(scope="module")
def packed_once(demo_job, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("packed") / "job"
    assert main(["pack", *map(str, demo_job), "-o", str(directory)]) == 0
    return directory


@pytest.fixture
def packed(packed_once) -> Path:
    """Return the packed demo job without results, so that the workers compute them."""
    for kept in packed_once.rglob("result*.bin"):
        kept.unlink()
    return packed_once


@pytest.fixture
def asked_of_workers(monkeypatch) -> set[int]:
    """Return the numbers of the reports for which workers computed something."""
    seen: set[int] = set()
    each = DaskWorkers.each

    def noted(self: DaskWorkers, work: Any, tell: Any) -> Iterator[Any]:
        seen.update(report.index for run, _ in work for report in run)
        return each(self, work, tell)

    monkeypatch.setattr(DaskWorkers, "each", noted)
    return seen


EACH_MECHANISM = (
    "kernels --by rank,stream --names short", "overview --time 100ms:300ms", "nccl --by collective,rank",
    "gpu --over-time --bins 7", "triage --format json", "stats -r cuda_gpu_sum",
)  # fmt: skip
"""Groups, windows, collectives, spans of time, rules, and reports of nsys."""
OF_REPORTS = (
    *("kernels", "kernels --by family,rank", "kernels --filter !nccl --time 100ms:300ms --ranks 0,2"),
    *("memory", "memory --sizes", "streams", "overhead", "api --filter Launch", "osrt", "overview"),
    *("nccl", "efficiency --tables all"),
    *("ranks", "ranks --collectives", "ranks --kinds", "ranks --time 100ms:300ms --ranks 0,2"),
    *("budget", "budget --time 100ms:300ms", "gaps", "gaps --by range"),
    *("steps", "steps --every --step-range ^step", "gpu", "gpu --streams 7", "metrics"),
    *("nvtx", "nvtx --summary", "nvtx --by rank --streams 7"),
    *("stats -r cuda_api_gpu_sum", "stats -r cuda_api_sum", "stats -r cuda_gpu_kern_gb_sum"),
    *("stats -r cuda_gpu_kern_sum:base", "stats -r cuda_gpu_mem_size_sum", "stats -r cuda_gpu_mem_time_sum"),
    *("stats -r cuda_kern_exec_sum", "stats -r nvtx_pushpop_sum", "stats -r nvtx_startend_sum"),
    *("stats -r nvtx_sum", "stats -r osrt_sum"),
)
"""The other questions that a cluster computes, except questions without rows in the demo job."""
NOTHING_FOR = {"mpi", "libraries", "mpi_event_sum", "openacc_sum", "openmp_sum"}


@pytest.mark.campaign
@pytest.mark.parametrize("words", [*EACH_MECHANISM, *campaign.some(8, OF_REPORTS)])
def test_the_answer_is_the_same(run, dask_scheduler, packed, demo_job, asked_of_workers, words):
    name, *flags = words.split()
    flags += [] if "--format" in flags else ["--format", "csv"]
    on_cluster = run(name, "--dask", dask_scheduler, packed, *flags)
    here = run(name, *demo_job, *flags)
    assert on_cluster.status == 0
    assert on_cluster.out.replace("packed job", "NCCL communicator") == here.out
    assert on_cluster.err.replace("packed job", "NCCL communicator") == here.err
    assert asked_of_workers


@pytest.mark.campaign
def test_what_ncu_measured_stands_beside_the_kernels_of_workers(run, dask_scheduler, packed, tmp_path):
    name = run("kernels", packed, "--format", "json").json[0]["name"]
    path = tmp_path / "report.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            [["Kernel Name", "gpu__time_duration.sum"], ["", "us"], [name, "12.5"], ["other", "1"]]
        )
    words = ["--ncu", path, "--format", "csv"]
    on_cluster, here = run("kernels", "--dask", dask_scheduler, packed, *words), run("kernels", packed, *words)
    assert vars(on_cluster) == vars(here) and "12500.0" in here.out and "other, which" in here.err


def test_every_question_that_a_cluster_computes_is_compared():
    asked = {words.removeprefix("stats -r ").split()[0].partition(":")[0] for words in EACH_MECHANISM + OF_REPORTS}
    assert {one.name for one in catalogue.questions() if ("reports" in one.reads)} == (asked - {"triage"}) | NOTHING_FOR


@pytest.mark.campaign
@pytest.mark.parametrize("words", ["mpi", "stats -r openacc_sum"])
def test_what_was_not_recorded_is_missing_there_too(run, dask_scheduler, packed, words):
    name, *flags = words.split()
    on_cluster, here = run(name, "--dask", dask_scheduler, packed, *flags), run(name, packed, *flags)
    assert (on_cluster.status, on_cluster.err) == (here.status, here.err) == (3, here.err)


@pytest.mark.campaign
def test_reports_of_several_per_task_and_medians_of_different_values(run, dask_scheduler, tmp_path, monkeypatch):
    """Ranks differ in speed, so that no single task has the values around a median."""
    exports = TrainingJob(ranks=5, steps=3, layers=2, gpu_metrics=False).write(tmp_path)
    packed = tmp_path / "packed"
    assert run("pack", *exports, "-o", packed).status == 0
    monkeypatch.setattr(on_dask, "_TASKS_PER_THREAD", 1)
    for words in (["kernels", "--format", "csv"], ["stats", "-r", "cuda_api_sum", "--format", "csv"]):
        on_cluster = run(words[0], "--dask", dask_scheduler, packed, *words[1:])
        assert (on_cluster.status, on_cluster.out) == (0, run(words[0], *exports, *words[1:]).out)


@pytest.mark.campaign
@pytest.mark.parametrize("words", ["gaps --list", "kernels --instances x", "nccl --calls", "stats -r cuda_gpu_trace"])
def test_what_a_cluster_has_no_part_in_is_refused_in_a_line(refused, packed, words):
    name, *flags = words.split()
    assert "leave --dask out" in refused(name, packed, *flags, "--dask", "tcp://127.0.0.1:9", lines=1)


def test_a_question_that_offers_a_cluster_takes_it_and_another_does_not_know_it(run, demo_job):
    """A command that accepts ``--dask`` then opens its files, which are not packed."""
    for one in catalogue.of_family(""):
        is_offered = "--dask" in run(one.name, "--help").out
        done = run(one.name, demo_job[0], "--dask", "tcp://127.0.0.1:9")
        assert is_offered == ("reports" in one.reads), one.name
        assert ("--dask needs a packed job" if is_offered else "unrecognized arguments: --dask") in done.err, one.name


@pytest.mark.campaign
def test_a_scheduler_file_and_a_file_to_write(run, dask_scheduler, packed, tmp_path):
    (tmp_path / "scheduler.json").write_text(json.dumps({"address": dask_scheduler}))
    assert run("ranks", "--dask", tmp_path / "scheduler.json", packed, "-o", tmp_path / "ranks.json").status == 0
    assert [row["rank"] for row in json.loads((tmp_path / "ranks.json").read_text())] == [0, 1, 2, 3]


@pytest.mark.campaign
def test_workers_of_another_version_or_without_the_program(refused, dask_scheduler, packed, monkeypatch):
    monkeypatch.setattr(on_dask, "__version__", "0.0.9")
    assert "here is 0.0.9" in refused("ranks", "--dask", dask_scheduler, packed, lines=1)
    monkeypatch.setattr(on_dask, "VERSION", "nsystui_elsewhere:__version__")
    assert "has no nsystui" in refused("ranks", "--dask", dask_scheduler, packed, lines=1)


def test_a_job_that_the_worker_does_not_see(tmp_path):
    told = compute_there([ReportPlace(0, str(tmp_path / "reports/rank=0"), 0)], Limits(), lambda session, reports: 1)
    assert told.result is None
    assert "it must have the packed job" in told.failure


def test_exports_are_refused_before_anything_is_asked(refused, demo_job):
    assert "nsystui pack" in refused("kernels", "--dask", "tcp://127.0.0.1:9", demo_job[0], lines=1)


@pytest.mark.parametrize("where", campaign.first(1, ["tcp://127.0.0.1:9", "nowhere", "{}/empty.json"]))
def test_no_scheduler(refused, packed, tmp_path, monkeypatch, where):
    monkeypatch.setattr(on_dask, "_CONNECT_TIMEOUT", 0.5)
    (tmp_path / "empty.json").write_text("{}")
    refused("overview", "--dask", where.format(tmp_path), packed, lines=1)


@pytest.mark.campaign
def test_a_cluster_without_workers(run, packed, monkeypatch):
    monkeypatch.setattr(on_dask, "_WORKER_TIMEOUT", 0.5)
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
        done = run("ranks", "--dask", cluster.scheduler_address, packed)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "no worker connected" in done.err


@pytest.fixture
def session(packed, dask_scheduler) -> Iterator[Session]:
    with closing(Session()) as session:
        for report in sorted(packed_reports(packed)):
            session.add(report)
        session.workers = DaskWorkers.connect(dask_scheduler, session.limits)
        yield session


def dying(is_due: Callable[[list[int]], bool]) -> Callable[[Session, list[Any]], list[int]]:
    """Return a task that computes the numbers of its reports, or ends its process."""

    def compute(session: Session, reports: list[Any]) -> list[int]:
        numbers = [report.index for report in reports]
        if is_due(numbers):
            os._exit(1)
        return numbers

    return compute


@pytest.mark.campaign
def test_the_task_of_a_worker_that_dies_is_done_by_another(session, tmp_path):
    marker = tmp_path / "died"

    def first_time(marker: Path, numbers: list[int]) -> bool:
        if 2 in numbers and not marker.exists():
            marker.touch()
            return True
        return False

    found = list(in_runs(session, session.reports, dying(partial(first_time, marker))))
    assert marker.exists()
    assert [number for numbers in found for number in numbers] == [0, 1, 2, 3]


@pytest.mark.campaign
def test_a_report_that_no_worker_survives_is_named(session, monkeypatch):
    monkeypatch.setattr(on_dask, "_TASKS_PER_THREAD", 1)  # two reports in a task
    with pytest.raises(NsystuiError) as told:
        list(in_runs(session, session.reports, dying(lambda numbers: 2 in numbers)))
    assert f"{session.reports[2].name} cannot be computed: 2 workers died" in str(told.value)
    assert session.reports[3].name not in str(told.value)


@pytest.mark.campaign
def test_a_report_that_is_damaged_is_left_out_as_it_is_here(run, dask_scheduler, packed_once, tmp_path):
    shutil.copytree(packed_once, tmp_path / "job")
    (file,) = (tmp_path / "job/kernels").glob("000001-*.parquet")
    file.write_bytes(b"PAR1" + bytes(file.stat().st_size - 8) + b"PAR1")
    on_cluster = run("kernels", "--dask", dask_scheduler, tmp_path / "job")
    assert vars(on_cluster) == vars(run("kernels", tmp_path / "job"))
    assert "rank=0" in on_cluster.err
