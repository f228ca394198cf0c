"""``nsystui ncu`` for a job of several ranks: options for ncu, a report for each rank, and the script for some ranks.

``sh`` runs the scripts, with a replacement of ncu that logs its arguments.
"""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from synthetic import ExportWriter
from synthetic.writing.target import CaptureSession

from nsystui.questions.capture.recording import launcher_of


@pytest.fixture
def start(tmp_path):
    """Return a function that runs a script as one rank; the output is the arguments of ncu or the program."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("ncu", "my app"):
        program = programs / name
        program.write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(name)} \"$@\"\n")
        program.chmod(0o755)
    script = tmp_path / "a folder" / "ncu-ranks.sh"
    script.parent.mkdir()

    def start(text: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        script.write_text(text)
        path = f"{programs}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", str(script), *words],
            env={"PATH": path, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return start


def test_the_wrapper_profiles_the_chosen_ranks_and_runs_the_others_as_always(run, demo_job, start):
    done = run("ncu", *demo_job, "--ranks", "1,3", "--wrapper", "--set", "full")
    assert done.status == 0 and done.out.startswith("#!/bin/sh\n")
    for rank, is_profiled in (("0", False), ("1", True), ("2", False), ("3", True), ("13", False)):
        ran = start(done.out, "my app", "a file.txt", "$HOME", "", SLURM_PROCID=rank)
        assert ran.returncode == 0, ran.stderr
        called = ran.stdout.split("\n")
        assert called[-5:] == ["my app", "a file.txt", "$HOME", "", ""]
        assert (called[0] == "ncu") == is_profiled
        if is_profiled:
            assert called[called.index("-o") + 1] == "report.%q{SLURM_PROCID}.%i"
            assert called[called.index("--set") + 1] == "full"


def test_a_wrapper_without_a_rank_stops_and_says_which_launcher_sets_it(run, demo_job, start):
    ran = start(run("ncu", *demo_job, "--wrapper").out, "my app")
    assert ran.returncode != 0 and ran.stdout == ""
    assert "SLURM_PROCID" in ran.stderr and "srun" in ran.stderr


@pytest.fixture
def hostile(tmp_path) -> Path:
    """Return a rank of an Open MPI job whose kernel, host and program have characters special to a shell."""
    path = tmp_path / "rank.sqlite"
    name = 'void it\'s<"$(touch HACKED)">`touch HACKED`(int)\n touch HACKED; é *'
    with ExportWriter(path, session=CaptureSession(environment={"OMPI_COMM_WORLD_RANK": "5"})) as writer:
        writer.gpu(0)
        process = writer.process(5_000, "/opt/my app\n touch HACKED")
        writer.kernel(process, 0, 7, 1_000, 2_000, name=name, short=name, mangled=None, correlation_id=1)
    return path


def test_a_hostile_name_stays_one_word_of_the_script(run, hostile, start, tmp_path):
    done = run("ncu", hostile, "--wrapper", "--launcher", "openmpi", "--section", "it's `touch HACKED`")
    assert done.status == 0, done.err
    rank = done.out.partition(") exec ncu")[0].split()[-1]
    ran = start(done.out, "my app", OMPI_COMM_WORLD_RANK=rank)
    assert ran.returncode == 0, ran.stderr
    called = ran.stdout.splitlines()
    assert called[0] == "ncu" and called[-1] == "my app"
    assert called[called.index("--section") + 1] == "it's `touch HACKED`"
    assert any(word.startswith("regex:^") and "$(touch HACKED)" in word.replace("\\", "") for word in called)
    assert not list(tmp_path.rglob("HACKED")) and not Path("HACKED").exists()


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
