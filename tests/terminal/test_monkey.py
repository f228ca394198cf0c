"""Random keys, words and sizes: no exception, no frozen screen, no growth of memory, nothing left behind."""

import os
import sys
from pathlib import Path

import campaign
import pytest
from harness import Terminal
from monkey import WATCHED, Monkey
from support import SHARED, real_exports
from synthetic import training_job

SECONDS = campaign.cases(5)
GROWTH = 300 << 20
"""Bytes of growth allowed in the second half: late screens, DuckDB's memory, a trace; less than a leak of an hour."""

LOG = SHARED / "nccl-logs/nccl-tests-allreduce-2gpu.log"


# All exports only in a longer campaign: opening them takes longer than the monkey plays.
FEW = ("alcf-allgather-rank0", "graph-events-2025.5", "no-gpu-work-2025.6", "schema2021-no-metadata")
REAL = [path for path in real_exports() if path.stem in FEW or campaign.FACTOR > 1]


def exports_and_log(directory: Path) -> list[Path]:
    return [*REAL, Path("--nccl-log"), LOG] if LOG.exists() else []


def demo(directory: Path) -> list[Path]:
    return training_job(directory, ranks=4, steps=4)


def log_alone(directory: Path) -> list[Path]:
    return [LOG] if LOG.exists() else []


def two_jobs(directory: Path) -> list[Path]:
    mine = training_job(directory / "a", ranks=2, steps=3)
    return [Path("diff"), Path("--screen"), *mine, Path("--"), *demo(directory / "b")]


@pytest.mark.campaign
@pytest.mark.parametrize("job", [exports_and_log, demo, log_alone, two_jobs])
def test_a_monkey_breaks_nothing(job, tmp_path):
    (tmp_path / "job").mkdir()
    home = tmp_path / "home"
    home.mkdir()
    words = job(tmp_path / "job")
    if not words:
        pytest.skip("the real exports are not on this machine")
    errors = tmp_path / "errors"
    env = {
        "NSYSTUI_ERRORS": str(errors), "NSYSTUI_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(home),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22",  # no mouse
    }  # fmt: skip
    with Terminal([sys.executable, str(WATCHED), *map(str, words)], env, cwd=home, ready="? help") as terminal:
        terminal.settle()
        monkey = Monkey(terminal, errors, campaign.SEED)
        monkey.play(SECONDS)
        megabytes = [size >> 20 for size in monkey.memory[:: len(monkey.memory) // 20 + 1]]
        print(f"{len(monkey.pressed)} keys, memory {megabytes} MB")
        half = len(monkey.memory) // 2
        assert max(monkey.memory[half:]) - max(monkey.memory[: half + 1]) < GROWTH
        terminal.press("q")
        assert terminal.wait_exit() == 0
        with pytest.raises(ProcessLookupError):  # the group is empty: no process is left
            os.killpg(terminal.pid, 0)
    written = {path.suffix for path in home.iterdir()}
    assert written <= {".csv", ".json", ".md", ".parquet", ".txt", ".gz", ".prv", ".pcf", ".row"}
