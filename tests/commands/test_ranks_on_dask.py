"""``nsystui ranks --dask``: the table of ranks made by a cluster of two workers is the table made here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsystui.cli import main
from nsystui.questions.ranks import on_dask
from nsystui.store.database import Limits

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'nsystui[dask]'")


@pytest.fixture(scope="module")
def packed(demo_job: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo job, with nothing computed ahead for two of its ranks: that is left to the workers."""
    directory = tmp_path_factory.mktemp("packed") / "job"
    assert main(["pack", *map(str, demo_job), "-o", str(directory)]) == 0
    for rank in (1, 2):
        for kept in directory.glob(f"reports/rank={rank}/result=*"):
            kept.unlink()
    return directory


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a cluster of two processes, which gives up a task when its first worker dies."""
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
    ):
        yield cluster.scheduler_address


@pytest.mark.parametrize("flags", [[], ["--collectives"], ["--kinds"], ["--time", "100ms:300ms", "--ranks", "0,2"]])
def test_the_table_is_the_same(run, scheduler, packed, demo_job, flags):
    on_cluster = run("ranks", "--dask", scheduler, packed, *flags, "--format", "csv")
    here = run("ranks", *demo_job, *flags, "--format", "csv")
    assert on_cluster.status == 0
    assert on_cluster.out == here.out
    assert on_cluster.err == here.err.replace("NCCL communicator", "packed job")


def test_the_workers_compute_what_the_table_is_made_of(scheduler, packed, opened):
    session = opened(*sorted(packed.glob("reports/*")))
    on_dask.compute_on_dask(session, scheduler, only_collectives=False)
    for report in session.reports:
        assert {question for question, _ in session.held(report)} >= {
            "busy",
            "collectives",
            "counts",
            "nccl-streams",
            "steps",
        }


def test_a_scheduler_file_and_a_file_to_write(run, scheduler, packed, tmp_path):
    (tmp_path / "scheduler.json").write_text(json.dumps({"address": scheduler}))
    done = run("ranks", "--dask", tmp_path / "scheduler.json", packed, "-o", tmp_path / "ranks.json")
    assert done.status == 0
    assert [row["rank"] for row in json.loads((tmp_path / "ranks.json").read_text())] == [0, 1, 2, 3]


def test_workers_of_another_version_or_without_the_program(run, scheduler, packed, monkeypatch):
    monkeypatch.setattr(on_dask, "__version__", "0.0.9")
    done = run("ranks", "--dask", scheduler, packed)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "here is 0.0.9" in done.err
    monkeypatch.setattr(on_dask, "VERSION", "nsystui_elsewhere:__version__")
    done = run("ranks", "--dask", scheduler, packed)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "has no nsystui" in done.err


def test_a_job_that_the_worker_does_not_see(tmp_path):
    told = on_dask.report_arrays(str(tmp_path / "reports/rank=0"), Limits(), False)
    assert isinstance(told, str)
    assert "must see the packed job" in told


def test_exports_are_refused_before_anything_is_asked(run, demo_job):
    done = run("ranks", "--dask", "tcp://127.0.0.1:9", demo_job[0])
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "nsystui pack" in done.err


@pytest.mark.parametrize("where", ["tcp://127.0.0.1:9", "nowhere", "{}/empty.json"])
def test_no_scheduler(run, packed, tmp_path, monkeypatch, where):
    monkeypatch.setattr(on_dask, "_CONNECTING", 0.5)
    (tmp_path / "empty.json").write_text("{}")
    done = run("ranks", "--dask", where.format(tmp_path), packed)
    assert (done.status, done.err.count("\n")) == (2, 1)


def test_a_cluster_without_workers(run, packed, monkeypatch):
    monkeypatch.setattr(on_dask, "_FIRST_WORKER", 0.5)
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
        done = run("ranks", "--dask", cluster.scheduler_address, packed)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "no worker came" in done.err


def test_a_worker_that_dies(run, scheduler, packed, monkeypatch):
    monkeypatch.setattr(on_dask, "report_arrays", lambda *_: os._exit(1))
    done = run("ranks", "--dask", scheduler, packed)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "the cluster failed" in done.err
