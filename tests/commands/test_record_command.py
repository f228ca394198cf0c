"""``nsystui record`` prints commands that a shell runs as meant, and runs none."""

import os
import shlex
import subprocess

import pytest


@pytest.fixture
def played(tmp_path):
    """Return a function that runs a script with replacements of nsys, srun and nsystui, and returns their calls."""
    log = tmp_path / "log"
    for name, then in (("nsys", ""), ("nsystui", ""), ("torchrun", ""), ("srun", 'exec "$@"'), ("train", "")):
        program = tmp_path / name
        body = f'printf "%s\\n" {name} "$@" END >> {shlex.quote(str(log))}\n' if name != "srun" else ""
        program.write_text(f"#!/bin/bash\n{body}{then}\n")
        program.chmod(0o755)

    def play(script: str, rank: int = 0) -> list[list[str]]:
        log.write_text("")
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_PROCID": str(rank)}
        subprocess.run(["bash", "-eu", "-c", script], cwd=tmp_path, env=environment, check=True, timeout=60)
        return [call.split("\n")[:-1] for call in log.read_text().split("END\n") if call]

    return play


def test_the_shell_runs_what_is_meant(run, played):
    done = run(
        "record", "--nsys-version", "2025.3", "--why-idle", "--nvtx-range", "step 20", "--", "train", "a b", "--lr=1"
    )
    assert done.status == 0
    profile, *_, triage = played(done.out)
    assert profile[:2] == ["nsys", "profile"]
    assert profile[profile.index("-t") + 1] == "cuda,nvtx,osrt"
    assert "--sample=process-tree" in profile and "--nvtx-capture=step 20" in profile
    assert profile[profile.index("-o") :] == ["-o", "run/rank%q{SLURM_PROCID}", "train", "a b", "--lr=1"]
    assert triage[:2] == ["nsystui", "triage"]


def test_ranks_that_are_not_recorded_run_the_program_alone(run, played):
    script = run("record", "--ranks", "0,2", "--", "train", "it's").out
    assert played(script, rank=2)[0][:2] == ["nsys", "profile"]
    assert played(script, rank=2)[0][-2:] == ["train", "it's"]
    assert played(script, rank=1)[0] == ["train", "it's"]


# The limits of --sampling-period depend on the machine, and these versions refuse --sampling-frequency.


def test_torchrun_starts_an_nsys_for_each_rank(run, played):
    script = run("record", "--launcher", "torchrun", "--ranks", "0", "--", "train", "a b").out
    line = next(line for line in script.splitlines() if "nsys profile" in line)
    assert line.startswith("torchrun --nproc-per-node=gpu --no-python bash -c")
    assert played(script, rank=0)[0] == [
        "torchrun",
        *shlex.split(script.splitlines()[1].rstrip(" \\"))[1:],
        "train",
        "a b",
    ]


@pytest.mark.parametrize(
    "words", [["--", "train", "a\nb"], ["-o", "run\t1", "--", "train"], ["--nvtx-range", "step\x1b[2J", "--", "train"]]
)
def test_words_that_cannot_be_printed_as_they_are_are_refused_in_a_line(run, words):
    done = run("record", *words)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert "cannot be printed" in done.err
