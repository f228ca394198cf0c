"""Who is which rank: from the first source that gives every task a number of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import synthetic
from synthetic import ExportWriter

from nsystui.base.errors import UsageError
from nsystui.base.selection import Task
from nsystui.exports.demo import NcclPayloads
from nsystui.exports.demo import Session as Capture
from nsystui.exports.demo.nccl import CUDA_DEVICE, RANK, RANKS, encode_payload
from nsystui.exports.metadata import RANK_VARIABLES
from nsystui.questions.job import Job
from nsystui.questions.tasks import RankedTask, ranked_tasks
from nsystui.store.session import Session

COMMUNICATORS = dict[str, tuple[int, int]]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Opens exports, each with one process that ran a kernel, as told."""
    opened: list[Session] = []

    def make(*reports: Mapping[str, Any]) -> Job:
        session = Session()
        opened.append(session)
        for number, told in enumerate(reports):
            folder = tmp_path / f"{len(opened)}-{number}"
            folder.mkdir()
            path = folder / f"{told.get('name', 'report')}.sqlite"
            capture = Capture(environment=told.get("environment", {}), include_json=True)
            with ExportWriter(path, session=capture) as export:
                export.gpu(0)
                for process_number in range(told.get("processes", 1)):
                    process = export.process(told.get("pid", 5_000) + process_number, "/usr/bin/python3.11")
                    main = export.thread(process, process.pid, "main")
                    device = told.get("devices", (0,) * 9)[process_number]
                    export.kernel(process, device, 7, 1, 2, name="k", correlation_id=None)
                    if "mpi" in told:
                        export.mpi_rank(main, told["mpi"])
                    if "nccl" in told:
                        export.nvtx_domain(main, 0, 1, "NCCL")
                    for moment, (rank, ranks) in enumerate(told.get("nccl", ())):
                        values = {RANK: rank, RANKS: ranks, CUDA_DEVICE: 0}
                        payload = encode_payload("ncclCommInitRank", NcclPayloads.BEFORE_2_25, values, domain_id=1)
                        export.nvtx_range(
                            main, moment, moment + 1, "ncclCommInitRank", domain_id=1, registered=True, payload=payload
                        )
            session.add(path)
        return Job(session)

    yield make
    for session in opened:
        session.close()


def numbers(job: Job) -> tuple[list[int], str]:
    """The rank of each report in their order, and where it is from."""
    by_report = sorted(job.ranks, key=lambda item: item.task)
    (source,) = {item.source for item in job.ranks}
    return [item.rank for item in by_report], source


def environments(*values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"environment": value} for value in values]


class TestSources:
    EVERYTHING = [
        {"mpi": 8, "nccl": [(6, 8)], "environment": {"RANK": "4"}, "name": "x_rank2"},
        {"mpi": 7, "nccl": [(5, 8)], "environment": {"RANK": "3"}, "name": "x_rank1"},
    ]

    @pytest.mark.parametrize(
        ("without", "expected"),
        [
            ((), ([8, 7], "MPI")),
            (("mpi",), ([6, 5], "NCCL communicator")),
            (("mpi", "nccl"), ([4, 3], "captured environment")),
            (("mpi", "nccl", "environment"), ([2, 1], "file name")),
            (("mpi", "nccl", "environment", "name"), ([0, 1], "order of files and devices")),
        ],
    )
    def test_the_first_that_there_is_decides(self, job, without, expected):
        told = [{key: value for key, value in report.items() if key not in without} for report in self.EVERYTHING]
        assert numbers(job(*told)) == expected

    @pytest.mark.parametrize("key", ["mpi", "nccl", "environment", "name"])
    def test_one_that_gives_two_tasks_one_number_is_rejected(self, job, key):
        order = ["mpi", "nccl", "environment", "name"]
        told = [
            {name: value for name, value in report.items() if name in order[order.index(key) :]}
            for report in self.EVERYTHING
        ]
        told[0][key] = told[1][key]
        found, source = numbers(job(*told))
        following = {
            "mpi": ([6, 5], "NCCL communicator"),
            "nccl": ([4, 3], "captured environment"),
            "environment": ([2, 1], "file name"),
            "name": ([0, 1], "order of files and devices"),
        }
        assert (found, source) == following[key]

    @pytest.mark.parametrize("key", ["mpi", "nccl", "environment"])
    def test_one_that_leaves_a_task_without_number_is_rejected(self, job, key):
        told = [{"name": "a_rank1"}, {"name": "a_rank0", key: self.EVERYTHING[0][key]}]
        assert numbers(job(*told)) == ([1, 0], "file name")

    def test_ranks_need_not_be_all_of_the_job(self, job):
        assert numbers(job({"mpi": 4}, {"mpi": 0})) == ([4, 0], "MPI")


class TestNccl:
    def test_the_largest_communicator_is_the_job(self, job):
        groups = [{"nccl": [(0, 2), (3, 8), (1, 4)]}, {"nccl": [(1, 2), (2, 8), (1, 4)]}]
        assert numbers(job(*groups)) == ([3, 2], "NCCL communicator")

    def test_calls_that_do_not_tell_are_passed_over(self, job):
        assert numbers(job({"nccl": [], "name": "r_1"}, {"nccl": [], "name": "r_0"})) == ([1, 0], "file name")

    def test_the_demo_is_numbered_by_it(self, demo_session):
        found = ranked_tasks(demo_session)
        assert [item.rank for item in found] == [0, 1, 2, 3]
        assert {item.source for item in found} == {"NCCL communicator"}
        assert [item.report_name for item in found] == ["rank0", "rank1", "rank2", "rank3"]


class TestEnvironment:
    @pytest.mark.parametrize("variable", RANK_VARIABLES)
    def test_every_launcher_is_known(self, job, variable):
        assert numbers(job(*environments({variable: "12"}, {variable: "3"}))) == ([12, 3], "captured environment")

    def test_a_batch_shells_rank_of_zero_everywhere_is_no_rank(self, job):
        told = environments({"SLURM_PROCID": "0", "PMI_RANK": "1"}, {"SLURM_PROCID": "0", "PMI_RANK": "0"})
        assert numbers(job(*told)) == ([1, 0], "captured environment")
        alone = environments({"SLURM_PROCID": "0"}, {"SLURM_PROCID": "0"})
        assert numbers(job(*alone)) == ([0, 1], "order of files and devices")

    def test_a_rank_of_another_launcher_that_is_the_same_everywhere_is_passed_over(self, job):
        told = environments({"PALS_RANKID": "0", "SLURM_PROCID": "1"}, {"PALS_RANKID": "0", "SLURM_PROCID": "0"})
        assert numbers(job(*told)) == ([1, 0], "captured environment")

    @pytest.mark.parametrize("value", ["", "zero", "-1", "1.5", "0x1", "²", "1 2", "9" * 5_000])
    def test_a_value_that_is_no_number_is_none(self, job, value):
        assert numbers(job(*environments({"RANK": value}, {"RANK": "0"}))) == ([0, 1], "order of files and devices")

    def test_a_lonely_report_keeps_its_rank(self, job):
        assert numbers(job({"environment": {"RANK": "37"}})) == ([37], "captured environment")

    def test_local_ranks_and_hosts_are_told(self, demo_session):
        found = ranked_tasks(demo_session)
        assert [item.local_rank for item in found] == [0, 1, 0, 1]
        assert [item.host for item in found] == ["gpu-a01", "gpu-a01", "gpu-a02", "gpu-a02"]

    def test_the_environment_of_a_launcher_numbers_none_of_its_processes(self, job):
        opened = job({"environment": {"RANK": "3", "LOCAL_RANK": "3"}, "processes": 2, "devices": (1, 0)})
        assert numbers(opened) == ([1, 0], "order of files and devices")
        assert {item.local_rank for item in opened.ranks} == {None}


class TestFileNames:
    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            (("report_llama_job4242_rank10_on_gpu-a01", "report_llama_job4242_rank9_on_gpu-a02"), [10, 9]),
            (("rank-1", "rank-0"), [1, 0]),
            (("Rank1", "Rank0"), [1, 0]),
            (("profile_77_node0_rank3", "profile_77_node1_rank2"), [3, 2]),
            (("run_N0_3", "run_N1_12"), [3, 12]),
            (("out_2", "out_11"), [2, 11]),
            (("job7_rank1_of_8", "job7_rank0_of_8"), [1, 0]),
        ],
    )
    def test_the_usual_patterns(self, job, names, expected):
        assert numbers(job(*[{"name": name} for name in names])) == (expected, "file name")

    @pytest.mark.parametrize(
        "names",
        [
            ("before", "after"),
            ("rank0", "rank0"),
            ("rank0", "other"),
            ("v1", "v2"),
            ("report_20260101", "report_20260102"),
            ("x_" + "9" * 30, "x_" + "8" * 30),
        ],
    )
    def test_names_that_do_not_tell(self, job, names):
        assert numbers(job(*[{"name": name} for name in names])) == ([0, 1], "order of files and devices")


class TestTasks:
    def test_a_report_may_hold_several(self, job):
        opened = job({"processes": 3, "devices": (2, 0, 1)}, {"processes": 2, "devices": (0, 1), "pid": 100})
        assert numbers(opened) == ([2, 0, 1, 3, 4], "order of files and devices")

    def test_two_processes_of_the_demo(self, tmp_path, session):
        session.add(synthetic.two_process_export(tmp_path / "two.sqlite"))
        found = ranked_tasks(session)
        assert [(item.rank, item.pid, item.devices) for item in found] == [(0, 5_000, (0,)), (1, 5_001, (1,))]
        assert "torchrun" not in {item.process_name for item in found}

    def test_processes_of_one_number_on_two_hosts_are_two(self, job):
        opened = job({"environment": {"RANK": "1"}}, {"environment": {"RANK": "0"}})
        assert len({item.task.process for item in opened.ranks}) == 1
        assert [item.task.report for item in opened.ranks] == [1, 0]

    def test_without_gpu_work_those_that_called_mpi_or_had_ranges(self, tmp_path, session):
        session.add(synthetic.cpu_only_export(tmp_path / "cpu.sqlite"))
        (only,) = ranked_tasks(session)
        assert (only.rank, only.source, only.pid, only.devices, only.gpu) == (3, "MPI", 6_000, (), "")

    def test_without_anything_but_os_runtime_the_busiest(self, tmp_path, session):
        with ExportWriter(tmp_path / "os.sqlite") as export:
            for pid, calls in ((10, 1), (20, 5), (30, 2)):
                main = export.thread(export.process(pid), pid, "main")
                for number in range(calls):
                    export.osrt(main, number, number + 1, "read")
        session.add(tmp_path / "os.sqlite")
        assert [item.pid for item in ranked_tasks(session)] == [20]

    def test_an_empty_report_has_none(self, tmp_path, session):
        session.add(synthetic.empty_export(tmp_path / "empty.sqlite"))
        assert ranked_tasks(session) == ()

    def test_an_empty_report_beside_others_does_not_disturb(self, job, tmp_path):
        opened = job({"environment": {"RANK": "1"}}, {"environment": {"RANK": "0"}})
        opened.session.add(synthetic.empty_export(tmp_path / "empty.sqlite"))
        assert numbers(opened) == ([1, 0], "captured environment")

    def test_names_and_gpus(self, job, tmp_path, session):
        (only,) = job({}).ranks
        assert only.process_name == "python3.11"
        assert only.gpu == "NVIDIA H100 80GB HBM3"
        place = Task(0, 1)
        several = RankedTask(place, 0, "", None, "", 1, "", "", (0, 1), ("H100", "H100"))
        assert several.gpu == "2× H100"
        mixed = RankedTask(place, 0, "", None, "", 1, "", "", (0, 1), ("H100", "A100"))
        assert mixed.gpu == "H100 + A100"

    def test_ranks_are_by_number(self, job):
        opened = job(*environments({"RANK": "5"}, {"RANK": "1"}, {"RANK": "3"}))
        assert [item.rank for item in opened.ranks] == [1, 3, 5]


class TestJob:
    def test_tasks_of_ranks(self, demo_session):
        job = Job(demo_session)
        assert {task.report for task in job.tasks_of_ranks(frozenset({1, 3}))} == {1, 3}
        with pytest.raises(UsageError, match="rank 7 is not open: the ranks are 0 to 3"):
            job.tasks_of_ranks(frozenset({1, 7, 9}))

    def test_in_a_job_without_tasks_no_rank_is_open(self, tmp_path):
        with closing(Session()) as session:
            session.add(synthetic.empty_export(tmp_path / "empty.sqlite"))
            with pytest.raises(UsageError, match="the ranks are none"):
                Job(session).tasks_of_ranks(frozenset({0}))

    def test_what_was_computed_is_kept_until_a_report_joins(self, tmp_path):
        with closing(Session()) as session:
            session.add(synthetic.two_process_export(tmp_path / "two.sqlite"))
            job = Job(session)
            made: list[int] = []

            def make() -> list[int]:
                made.append(len(session.reports))
                return made

            assert job.once("key", make) is job.once("key", make)
            assert made == [1]
            session.add(synthetic.whole_graph_export(tmp_path / "whole.sqlite"))
            job.once("key", make)
            assert made == [1, 2]
            for number in range(50):
                job.once(("other", number), list)
            job.once("key", make)
            assert made == [1, 2, 2]


def test_the_reports_are_asked_once_in_a_session(job, monkeypatch):
    session = job({"nccl": [(3, 8)]}, {"nccl": [(5, 8)]}).session
    first = ranked_tasks(session)
    assert [task.rank for task in first] == [3, 5]
    monkeypatch.setattr(Session, "rows", lambda *words: pytest.fail("asked again"))
    assert ranked_tasks(session) == first
