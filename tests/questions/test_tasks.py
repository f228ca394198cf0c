"""The numbers of ranks: from the first source that gives every task a different number, or from the user."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from synthetic import ExportWriter, rank_export

from nsystui.base.errors import UsageError
from nsystui.base.selection import Task
from nsystui.exports.metadata import RANK_VARIABLES
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.numbering import numbering
from nsystui.questions.queries.tasks import RankedTask, ranked_tasks
from nsystui.store.session import Session

BY_ORDER = "order of files and devices"
BY_NAME = "file name"
BY_ENVIRONMENT = "captured environment"
BY_NCCL = "NCCL communicator"


@pytest.fixture
def job(tmp_path) -> Iterator[Callable[..., OpenJob]]:
    """Yield a function that opens exports, each with a process that ran a kernel."""
    opened: list[Session] = []

    def make(*reports: Mapping[str, Any]) -> OpenJob:
        opened.append(Session())
        for number, told in enumerate(reports):
            folder = tmp_path / f"{len(opened)}-{number}"
            folder.mkdir()
            path = folder / f"{told.get('name', 'report')}.sqlite"
            rank_export(path, told)
            opened[-1].add(path, whole=False)
        return OpenJob(opened[-1])

    yield make
    for session in opened:
        session.close()


def numbers(job: OpenJob) -> tuple[list[int], str]:
    """Return the rank of each report in their order, and its source."""
    (source,) = {item.source for item in job.ranks}
    return [item.rank for item in sorted(job.ranks, key=lambda item: item.task)], source


def environments(*values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"environment": value} for value in values]


@pytest.mark.campaign
class TestSources:
    TOLD = [
        {"mpi": 8, "nccl": [(6, 8)], "environment": {"RANK": "4"}, "name": "x_rank2"},
        {"mpi": 7, "nccl": [(5, 8)], "environment": {"RANK": "3"}, "name": "x_rank1"},
    ]
    ORDER = ["mpi", "nccl", "environment", "name"]
    FOUND = [([8, 7], "MPI"), ([6, 5], BY_NCCL), ([4, 3], BY_ENVIRONMENT), ([2, 1], BY_NAME), ([0, 1], BY_ORDER)]

    def test_the_first_that_gives_every_task_a_number_of_its_own_decides(self, job):
        for place, expected in enumerate(self.FOUND):
            told = [{key: report[key] for key in self.ORDER[place:]} for report in self.TOLD]
            assert numbers(job(*told)) == expected
            if place < len(self.ORDER):
                told[0][self.ORDER[place]] = told[1][self.ORDER[place]]
                assert numbers(job(*told)) == self.FOUND[place + 1], f"equal numbers of {self.ORDER[place]}"

    def test_one_that_leaves_a_task_without_number_is_rejected(self, job):
        for key in ("mpi", "nccl", "environment"):
            told = [{"name": "a_rank1"}, {"name": "a_rank0", key: self.TOLD[0][key]}]
            assert numbers(job(*told)) == ([1, 0], BY_NAME), key

    def test_ranks_need_not_be_all_of_the_job_and_are_in_order(self, job):
        assert numbers(job({"mpi": 4}, {"mpi": 0})) == ([4, 0], "MPI")
        assert [item.rank for item in job({"mpi": 5}, {"mpi": 1}, {"mpi": 3}).ranks] == [1, 3, 5]


class TestNccl:
    @pytest.mark.campaign
    def test_the_largest_communicator_is_the_job(self, job):
        groups = [{"nccl": [(0, 2), (3, 8), (1, 4)]}, {"nccl": [(1, 2), (2, 8), (1, 4)]}]
        assert numbers(job(*groups)) == ([3, 2], BY_NCCL)

    @pytest.mark.campaign
    def test_calls_that_do_not_tell_are_passed_over(self, job):
        assert numbers(job({"nccl": [], "name": "r_1"}, {"nccl": [], "name": "r_0"})) == ([1, 0], BY_NAME)

    def test_the_demo_is_numbered_by_it(self, demo_session):
        found = [(item.rank, item.report_name, item.local_rank, item.host) for item in ranked_tasks(demo_session)]
        assert found == [(rank, f"rank{rank}", rank % 2, f"gpu-a0{rank // 2 + 1}") for rank in range(4)]
        assert {item.source for item in ranked_tasks(demo_session)} == {BY_NCCL}


class TestEnvironment:
    @pytest.mark.campaign
    def test_every_launcher_is_known(self, job):
        for variable in RANK_VARIABLES:
            assert numbers(job(*environments({variable: "12"}, {variable: "3"}))) == ([12, 3], BY_ENVIRONMENT), variable

    @pytest.mark.campaign
    def test_a_rank_that_is_the_same_everywhere_is_passed_over(self, job):
        """A batch shell's rank of zero, and another launcher's rank."""
        assert numbers(job(*environments({"SLURM_PROCID": "0"}, {"SLURM_PROCID": "0"}))) == ([0, 1], BY_ORDER)
        for same, other in (("SLURM_PROCID", "PMI_RANK"), ("PALS_RANKID", "SLURM_PROCID")):
            told = environments({same: "0", other: "1"}, {same: "0", other: "0"})
            assert numbers(job(*told)) == ([1, 0], BY_ENVIRONMENT), same

    @pytest.mark.campaign
    def test_a_value_that_is_no_number_is_none(self, job):
        for value in ("", "zero", "-1", "1.5", "0x1", "²", "1 2", "9" * 5_000):
            assert numbers(job(*environments({"RANK": value}, {"RANK": "0"}))) == ([0, 1], BY_ORDER), value

    def test_a_lonely_report_keeps_its_rank(self, job):
        assert numbers(job({"environment": {"RANK": "37"}})) == ([37], BY_ENVIRONMENT)

    def test_the_environment_of_a_launcher_numbers_none_of_its_processes(self, job):
        opened = job({"environment": {"RANK": "3", "LOCAL_RANK": "3"}, "processes": 2, "devices": (1, 0)})
        assert numbers(opened) == ([1, 0], BY_ORDER)
        assert {item.local_rank for item in opened.ranks} == {None}


class TestFileNames:
    USUAL = {
        ("report_llama_job4242_rank10_on_gpu-a01", "report_llama_job4242_rank9_on_gpu-a02"): [10, 9],
        ("rank-1", "rank-0"): [1, 0], ("Rank1", "Rank0"): [1, 0],
        ("profile_77_node0_rank3", "profile_77_node1_rank2"): [3, 2], ("run_N0_3", "run_N1_12"): [3, 12],
        ("out_2", "out_11"): [2, 11], ("job7_rank1_of_8", "job7_rank0_of_8"): [1, 0],
    }  # fmt: skip
    TELL_NOTHING = [
        ("before", "after"), ("rank0", "rank0"), ("rank0", "other"), ("v1", "v2"),
        ("report_20260101", "report_20260102"), ("x_" + "9" * 30, "x_" + "8" * 30),
    ]  # fmt: skip

    @pytest.mark.campaign
    def test_the_usual_patterns_tell_ranks_and_other_names_do_not(self, job):
        expected = {names: (ranks, BY_NAME) for names, ranks in self.USUAL.items()}
        expected |= dict.fromkeys(self.TELL_NOTHING, ([0, 1], BY_ORDER))
        assert {names: numbers(job(*[{"name": name} for name in names])) for names in expected} == expected


class TestTasks:
    @pytest.mark.campaign
    def test_a_report_may_hold_several(self, job, tmp_path, session):
        opened = job({"processes": 3, "devices": (2, 0, 1)}, {"processes": 2, "devices": (0, 1), "pid": 100})
        assert numbers(opened) == ([2, 0, 1, 3, 4], BY_ORDER)
        session.add(synthetic.two_process_export(tmp_path / "two.sqlite"))
        found = ranked_tasks(session)
        assert [(item.rank, item.pid, item.devices) for item in found] == [(0, 5_000, (0,)), (1, 5_001, (1,))]
        assert "torchrun" not in {item.process_name for item in found}

    def test_processes_of_one_number_on_two_hosts_are_two_and_an_empty_report_does_not_disturb(self, job, tmp_path):
        opened = job({"environment": {"RANK": "1"}}, {"environment": {"RANK": "0"}})
        assert len({item.task.process for item in opened.ranks}) == 1
        assert [item.task.report for item in opened.ranks] == [1, 0]
        opened.session.add(synthetic.empty_export(tmp_path / "empty.sqlite"))
        assert numbers(opened) == ([1, 0], BY_ENVIRONMENT)

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

    def test_names_and_gpus(self, job):
        (only,) = job({}).ranks
        assert (only.process_name, only.gpu) == ("python3.11", "NVIDIA H100 80GB HBM3")
        for second, text in (("H100", "2× H100"), ("A100", "H100 + A100")):
            assert RankedTask(Task(0, 1), 0, "", None, "", 1, "", "", (0, 1), ("H100", second)).gpu == text

    def test_the_reports_are_asked_once_in_a_session(self, job, monkeypatch):
        session = job({"nccl": [(3, 8)]}, {"nccl": [(5, 8)]}).session
        first = ranked_tasks(session)
        assert [task.rank for task in first] == [3, 5]
        monkeypatch.setattr(Session, "rows", lambda *words: pytest.fail("asked again"))
        assert ranked_tasks(session) == first


class TestJob:
    def test_tasks_of_ranks(self, demo_session):
        job = OpenJob(demo_session)
        assert {task.report for task in job.tasks_of_ranks(frozenset({1, 3}))} == {1, 3}
        with pytest.raises(UsageError, match="rank 7 is not open: the ranks are 0 to 3"):
            job.tasks_of_ranks(frozenset({1, 7, 9}))

    def test_in_a_job_without_tasks_no_rank_is_open(self, session, tmp_path):
        session.add(synthetic.empty_export(tmp_path / "empty.sqlite"))
        assert ranked_tasks(session) == ()
        with pytest.raises(UsageError, match="the ranks are none"):
            OpenJob(session).tasks_of_ranks(frozenset({0}))

    @pytest.mark.campaign
    def test_what_was_computed_is_kept_until_a_report_joins(self, session, tmp_path):
        session.add(synthetic.two_process_export(tmp_path / "two.sqlite"))
        job = OpenJob(session)
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


class TestNumbersOfTheUser:
    @pytest.mark.parametrize("text", ["", "3", "0,4-7", "oops"])
    def test_numbers_alone_choose_ranks_and_name_none(self, text):
        assert numbering(text) is None

    @pytest.mark.parametrize(("text", "names", "found"), [
        (r"n\d+_r(\d+)", ["job_n0_r12", "job_n1_r3"], [12, 3]),
        ("a.sqlite=7, results/b=2", ["b", "a"], [2, 7]),  # with or without path and ending
    ])  # fmt: skip
    def test_a_pattern_has_the_number_in_a_group_and_a_list_names_files(self, text, names, found):
        assert numbering(text).numbers(names) == found

    @given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20, unique=True))
    def test_every_list_comes_back(self, ranks):
        names = [f"file{place}" for place in range(len(ranks))]
        text = ",".join(f"{name}={rank}" for name, rank in zip(names, ranks, strict=True))
        assert numbering(text).numbers(names) == ranks

    @pytest.mark.parametrize("text", ["(", "(a)(b)", "a=", "=3", "a=b", "a=1,b"])
    def test_what_is_neither_is_told(self, text):
        with pytest.raises(UsageError, match="--ranks"):
            numbering(text)

    @pytest.mark.parametrize(("text", "names", "words"), [
        (r"rank(\d+)", ["rank1", "b"], "no rank number in the name b"),
        (r"(\d)", ["rank1", "b"], "no rank number"),
        ("a=1", ["a", "b"], "b is not in the list"),
        (r"_(\d)", ["x_1", "y_1"], "x_1 and y_1 are both rank 1"),
    ])  # fmt: skip
    def test_files_without_a_number_of_their_own_are_named(self, text, names, words):
        with pytest.raises(UsageError, match=words):
            numbering(text).numbers(names)

    def test_it_overrides_what_the_exports_say(self, demo_session):
        job = OpenJob(demo_session, numbering=numbering(",".join(f"rank{rank}={10 - rank}" for rank in range(4))))
        found = [(item.rank, item.report_name) for item in job.ranks]
        assert found == [(7, "rank3"), (8, "rank2"), (9, "rank1"), (10, "rank0")]
        assert {item.source for item in job.ranks} == {"--ranks"}

    def test_a_report_of_several_ranks_cannot_be_numbered_by_its_name(self, tmp_path, session):
        session.add(synthetic.two_process_export(tmp_path / "rank3.sqlite"))
        with pytest.raises(UsageError, match="holds 2 ranks"):
            assert OpenJob(session, numbering=numbering(r"rank(\d+)")).ranks
