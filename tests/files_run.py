"""Print how many files of nsystui run for an answer: ``python tests/files_run.py``.

A file runs if one of its functions or class bodies is executed; imports alone do not count. The answers are about a
small export: the kernel summary from nothing and remembered, and a triage from nothing.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from synthetic import benchmark_export

PROGRAM = Path(__file__).resolve().parents[1] / "nsystui"
KERNELS = 100_000
RUN = """
import sys, threading
files = set()

def profile(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        files.add(frame.f_code.co_filename)

threading.setprofile(profile)
sys.setprofile(profile)
from nsystui.__main__ import main
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
print(*sorted(files), sep="\\n", file=sys.stderr)
"""


def files_run(words: list[str], cache: Path) -> list[str]:
    """Return the files that run for a command, relative to nsystui/."""
    environ = {**os.environ, "NSYSTUI_CACHE_DIR": str(cache)}
    run = subprocess.run([sys.executable, "-c", RUN, *words], env=environ, capture_output=True, text=True, check=True)
    paths = (Path(line) for line in run.stderr.splitlines() if line.startswith(str(PROGRAM)))
    return [str(path.relative_to(PROGRAM)) for path in paths]


def numbers_of_files(folder: Path) -> dict[str, int]:
    """Return how many files run for each answer, which are computed in ``folder``."""
    export = str(benchmark_export(folder / "rank0.sqlite", KERNELS, seed=1))
    answers = {"kernels": ("kernels", "a"), "kernels, remembered": ("kernels", "a"), "triage": ("triage", "b")}
    return {name: len(files_run([command, export], folder / cache)) for name, (command, cache) in answers.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for answer, number in numbers_of_files(Path(directory)).items():
            print(f"{answer}: {number}")
