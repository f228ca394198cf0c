"""Commands for Nsight Compute: numbers of launches and names that are accepted; reports for several ranks."""

import re
import shlex
from collections.abc import Iterator
from contextlib import closing

import campaign
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import session_over
from synthetic import ExportWriter, node_graph_export
from synthetic.writing.target import CaptureSession

from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.questions.capture.recording import launcher_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names
from nsystui.questions.trace.ncu import NameBase, NcuCommand, cautions, ncu_commands, of_name, one_launch, pattern_of
from nsystui.store import tables
from nsystui.store.session import Session


def test_a_hostile_name_stays_one_word_of_the_command(run, tmp_path):
    """A rank of an Open MPI job, whose kernel and program have characters special to a shell."""
    path = tmp_path / "rank.sqlite"
    name = 'void it\'s<"$(touch HACKED)">`touch HACKED`(int)\n touch HACKED; é *'
    with ExportWriter(path, session=CaptureSession(environment={"OMPI_COMM_WORLD_RANK": "5"})) as writer:
        writer.gpu(0)
        process = writer.process(5_000, "/opt/my app\n touch HACKED")
        writer.kernel(process, 0, 7, 1_000, 2_000, name=name, short=name, mangled=None, correlation_id=1)
    done = run("ncu", path, "--set", "full", "--section", "it's `touch HACKED`")
    assert done.status == 0, done.err
    words = shlex.split(done.out.splitlines()[1])
    assert words[0] == "ncu" and words[-1] == "..." and len(words) == 15
    assert words[words.index("-o") + 1] == "report.%q{OMPI_COMM_WORLD_RANK}.%i"
    assert words[words.index("--set") + 1] == "full"
    assert words[words.index("--section") + 1] == "it's `touch HACKED`"
    assert any(word.startswith("regex:^") and "$(touch HACKED)" in word.replace("\\", "") for word in words)


@pytest.mark.parametrize(("ranks", "launcher"), [
    ([(3, {"RANK": "3", "SLURM_PROCID": "3"})], "slurm"),  # a script under srun exports RANK
    ([(3, {"RANK": "3", "SLURM_PROCID": "0"})], "torchrun"),  # torchrun in a batch script
    ([(0, {"RANK": "0", "SLURM_PROCID": "0"})], "torchrun"),
    ([(0, {"PMI_RANK": "0"}), (1, {"PMI_RANK": "1"})], "mpich"),
    ([(0, {"PMI_RANK": "0"}), (1, {})], None),
    ([(0, {"FLUX_TASK_RANK": "1"})], None),
    ([], None),
])  # fmt: skip
def test_the_launcher_is_the_one_whose_variable_held_every_rank(ranks, launcher):
    assert launcher_of(ranks) == launcher


# (name, short name, mangled name, start on the GPU, start of the call, stream), times in µs.
LAUNCHES = (
    ("void gemm<(int)4>(float *)", "gemm", "_Z4gemmILi4EEvPf", 100, 10, 7),
    ("void gemm<(int)8>(float *)", "gemm", "_Z4gemmILi8EEvPf", 200, 20, 7),
    ("void gemm<(int)4>(float *)", "gemm", "_Z4gemmILi4EEvPf", 150, 50, 13),  # launched last, begins before the next
    ("void gemm<(int)4>(float *)", "gemm", "_Z4gemmILi4EEvPf", 300, 40, 7),
    ("axpy(float *)", "axpy", "_Z4axpyPf", 400, 60, 7),
    ("axpy(float *)", "axpy", "_Z4axpyPf", 500, None, 7),
)


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Iterator[OpenJob]:
    with ExportWriter(tmp_path_factory.mktemp("ncu") / "launches.sqlite") as writer:
        writer.gpu(0)
        process = writer.process(5_000, "/opt/app")
        main = writer.thread(process, 5_000, "app")
        writer.cuda_context(process)
        for number, (name, short, mangled, start, call, stream) in enumerate(LAUNCHES, 1):
            if call is not None:
                writer.api(main, call * 1000, call * 1000 + 500, "cudaLaunchKernel_v7000", number)
            place, names = (0, stream, start * 1000, (start + 20) * 1000), {"short": short, "mangled": mangled}
            writer.kernel(process, *place, name=name, correlation_id=number, **names)
    job = OpenJob(session_over(writer.path))
    yield job
    job.close()


def row_of(job: OpenJob, start: int) -> tuple[int, int]:
    kernels = tables.kernels
    ((report, row),) = job.session.rows(
        kernels.select().with_only_columns(kernels.c.report, kernels.c.row).where(kernels.c.start == start * 1000)
    )
    return report, row


def one(commands: list[NcuCommand]) -> NcuCommand:
    (command,) = commands
    return command


def option(command: NcuCommand, name: str) -> str:
    words = shlex.split(command.command)
    return words[words.index(name) + 1]


@pytest.mark.parametrize(
    ("start", "skip", "launches"), campaign.first(4, [(300, 1, 3), (150, 2, 3), (200, 0, 1), (400, 0, 2), (100, 0, 3)])
)
def test_a_launch_is_counted_in_the_order_of_the_calls_of_its_process(job, start, skip, launches):
    command = one(ncu_commands(job, Selection(), one_launch(*row_of(job, start))))
    if launches == 1:  # the only launch of that name: nothing to skip
        assert (command.skip, command.count, command.launches) == (None, None, 1)
        assert "--launch-skip" not in command.command
    else:
        assert (option(command, "--launch-skip"), option(command, "--launch-count")) == (str(skip), "1")
        assert command.launches == launches
        assert f"launch {skip + 1} of {launches}" in command.what


def test_a_launch_without_a_call_counts_by_its_start_and_that_is_said(job):
    command = one(ncu_commands(job, Selection(), one_launch(*row_of(job, 500))))
    assert command.skip == 1
    assert any("1 launch has no API call" in caution for caution in command.cautions)


def test_a_template_with_several_instances_goes_by_its_mangled_name(job):
    command = one(ncu_commands(job, Selection(), one_launch(*row_of(job, 100))))
    assert option(command, "--kernel-name-base") == "mangled"
    assert option(command, "-k") == "regex:^_Z4gemmILi4EEvPf$"
    axpy = one(ncu_commands(job, Selection(name=NameFilter("axpy"))))
    assert (option(axpy, "--kernel-name-base"), option(axpy, "-k")) == ("function", "regex:^axpy$")
    assert axpy.command.endswith(" app ...")  # the program, never its arguments


def test_the_kernel_table_asks_for_all_launches_of_a_name(job):
    command = one(of_name(job, Selection(), "gemm", Names.SHORT))
    assert (command.count, command.launches, command.base) == (None, 4, NameBase.FUNCTION)
    full = one(of_name(job, Selection(), "void gemm<(int)4>(float *)", Names.FULL))
    assert (full.launches, full.base) == (3, NameBase.MANGLED)


def test_a_window_gives_the_place_of_what_is_in_it(job):
    found = ncu_commands(job, Selection(window=Window(140_000, 330_000), name=NameFilter("gemm")))
    assert {(one.kernel[10:16], one.skip, one.count, one.selected) for one in found} == {
        ("(int)4", 1, 2, 2),
        ("(int)8", None, None, 1),
    }


def test_kernels_of_graphs_say_what_ncu_does(tmp_path):
    with closing(Session()) as session:
        session.add(node_graph_export(tmp_path / "graph.sqlite"))
        commands = [one for one in ncu_commands(OpenJob(session), Selection()) if one.in_graph]
    assert commands
    assert all(option(one, "--graph-profiling") == "node" for one in commands)
    assert any("CUDA graphs" in caution for caution in cautions(commands))


@pytest.mark.campaign
def test_ranks_and_nccl_are_warned_of(demo_session):
    commands = ncu_commands(OpenJob(demo_session), Selection(name=NameFilter("AllReduce")))
    assert {one.rank for one in commands} == {0, 1, 2, 3}
    said = " ".join(cautions(commands))
    assert "that rank's application only" in said and "may hang" in said


# Python reads this part of ECMAScript's syntax in the same way.


@given(st.text(max_size=30), st.sampled_from(NameBase))
def test_a_pattern_matches_its_name_alone_and_survives_the_shell(name, base):
    pattern = pattern_of(name, base)
    assert re.search(pattern, name) or "\n" in name
    assert not re.search(pattern, f"{name}x")
    assert shlex.split(shlex.join(["-k", f"regex:{pattern}"])) == ["-k", f"regex:{pattern}"]
    assert pattern.isprintable()


@pytest.mark.parametrize(
    "other",
    ["void f<4, true, 3>(char *)", "void f<(int)4, (bool)1, (unsigned long)3>(char *)", "void f<4,true,3>(char*)"],
)
def test_a_demangled_name_matches_however_it_is_demangled(other):
    pattern = pattern_of("void f<(int)4, (bool)1, (unsigned long)3>(char *)", NameBase.DEMANGLED)
    assert re.search(pattern, other)
    assert not re.search(pattern, "void f<5, true, 3>(char *)")
