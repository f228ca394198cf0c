"""Write the exports that ``nsystui demo`` unpacks, always the same bytes: ``python tests/update_demo.py``."""

import io
import lzma
import sqlite3
import tarfile
import tempfile
from contextlib import closing, redirect_stdout
from pathlib import Path

from synthetic.demo import ServingJob, TrainingJob

from nsystui.cli import main as nsystui

DATA = Path(__file__).parents[1] / "nsystui/demo"
JOBS: dict[str, ServingJob | TrainingJob] = {
    "server": ServingJob(steps=100, layers=14, start_up=0.25, captured=True),
    "training": TrainingJob(layers=5, start_up=0.3),
}
"""The jobs by the names of their files, smaller than the writers' defaults, so that all compress to 900 KB."""


def unpack(name: str, directory: Path) -> list[Path]:
    """Write the exports of a job as ``nsystui demo`` does."""
    words = ["demo", "--write-only", "--directory", str(directory), *(["--server"] if name == "server" else [])]
    with redirect_stdout(io.StringIO()) as out:
        nsystui(words)
    return list(map(Path, out.getvalue().splitlines()))


def main() -> None:
    for name, job in JOBS.items():
        with (
            tempfile.TemporaryDirectory(prefix="nsystui-demo-") as directory,
            # One stream, because the ranks are alike, with a window of 8 MiB for all ranks.
            tarfile.open(DATA / f"{name}.tar.xz", "w:xz", preset=6 | lzma.PRESET_EXTREME) as packed,
        ):
            for path in job.write(directory):
                with closing(sqlite3.connect(path)) as connection:
                    connection.execute("VACUUM")  # pages in the order of the tables compress better
                member = tarfile.TarInfo(path.name)  # dated 1970, without an owner
                member.size = path.stat().st_size
                with open(path, "rb") as file:
                    packed.addfile(member, file)


if __name__ == "__main__":
    main()
