"""The job scripts of docs/cluster.md work, run by bash with replacements of the cluster's own programs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import packed_facts
from synthetic import training_job

PAGE = (Path(__file__).parents[1] / "nsystui/docs/cluster.md").read_text(encoding="utf-8")
RANKS = 2
# The replacement of each program. A report of nsys is the export that it would become.
PROGRAMS = {
    "nsystui": '"$PYTHON" -m nsystui "$@"',
    "python": "true",
    "torchrun": "true",
    "srun": 'for SLURM_PROCID in {0..1}; do export SLURM_PROCID; "$@" & done; for one in `jobs -p`; do wait $one; done',
    "mpiexec": '[ "$1" = -n ]; for PMI_RANK in {0..1}; do export PMI_RANK; "${@:3}"; done',
    "nsys": """
        did=$1 to= force=; shift
        while [[ $1 = -* ]]; do
            case $1 in -o) to=$2; shift;; -t) [ "$did" = profile ] || [ "$2" = sqlite ]; shift;;
                --force-overwrite=true) force=1;; --*=*);; esac
            shift
        done
        if [ "$did" = profile ]; then
            [[ $to =~ ^(.*)%q\\{(.*)\\}$ ]]; rank=${!BASH_REMATCH[2]}
            "$@"; set -- "$DEMO/rank$rank.sqlite"; to=${BASH_REMATCH[1]}$rank.nsys-rep
        fi
        to=${to:-${1%.nsys-rep}.sqlite}
        [ "$force" ] || [ ! -e "$to" ]
        cp "$1" "$to"
        """,
}


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    """Return the directory of the programs, with the exports in ``demo``."""
    directory = tmp_path_factory.mktemp("cluster")
    training_job(directory / "demo", ranks=RANKS, steps=3)
    for name, lines in PROGRAMS.items():
        program = directory / name
        program.write_text(f"#!/bin/bash\nset -eu\n{lines}\n", encoding="utf-8")
        program.chmod(0o755)
    return directory


def script(word: str) -> str:
    """Return the page's code block that contains ``word``."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (found,) = [block for block in blocks if word in block]
    return str(found)


def run(text: str, job: Path, directory: Path, **environ: str) -> None:
    ours = {"PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[1]), "PATH": f"{job}:/usr/bin:/bin"}
    places = {"DEMO": str(job / "demo"), "NSYSTUI_CACHE_DIR": str(directory / "cache")}
    found = {**os.environ, **ours, **places, **environ}
    words = ["bash", "-eu", "-o", "pipefail", "-c", text]
    done = subprocess.run(words, env=found, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.campaign
def test_slurm(job, tmp_path):
    for _ in range(2):  # a requeued job has the same id
        run(script("#SBATCH"), job, tmp_path, SCRATCH=str(tmp_path), SLURM_JOB_ID="4711")
    out, _ = tmp_path.glob("run-4711-*")
    assert packed_facts(out / "packed").keys() == {0, 1}
    assert f" on {RANKS} GPUs." in (out / "triage.md").read_text(encoding="utf-8")


@pytest.mark.campaign
def test_pbs(job, tmp_path):
    run(script("#PBS"), job, tmp_path, PBS_O_WORKDIR=str(tmp_path), PBS_JOBID="12.pbs")
    (out,) = tmp_path.glob("run-12.pbs-*")
    assert sorted(path.name for path in out.glob("*.sqlite")) == ["rank0.sqlite", "rank1.sqlite"]
    assert f" on {RANKS} GPUs." in (out / "triage.md").read_text(encoding="utf-8")


def test_kubernetes(job, tmp_path):
    (tmp_path / "job").mkdir()
    for pod in (*range(RANKS), 0):  # a pod is restarted
        run(script("torchrun").replace("/runs", str(tmp_path)), job, tmp_path, RANK=str(pod))
    assert sorted(path.name for path in (tmp_path / "job").glob("*.sqlite")) == ["node0.sqlite", "node1.sqlite"]
