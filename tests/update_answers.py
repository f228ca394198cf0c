"""Record the answers in ``tests/answers`` anew: ``python tests/update_answers.py [SUBJECT…]``.

A new answer is right only if you can say why it differs from the old answer: read the diff before you commit it.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from recorded import ANSWERS, ask, blocks_of, lines_of, write_inputs, write_jobs


def update(subjects: list[str], directory: Path) -> None:
    """Ask the commands of the subjects (default: all) and write their outcomes into the files of the commands."""
    write_inputs(directory)
    for path in sorted(ANSWERS.glob("*.txt")):
        if subjects and path.stem not in subjects:
            continue
        shutil.rmtree(directory / ".cache/answers", ignore_errors=True)  # as the test does
        head, *blocks = blocks_of(path.read_text(encoding="utf-8"))
        lines = head
        for block in blocks:
            command = block[0][2:]
            write_jobs(command.split(), directory)
            lines += lines_of(command, ask(command)) + [line for line in block if line.startswith("#") or not line]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        os.environ |= {"NSYSTUI_CACHE_DIR": f"{place}/.cache", "XDG_CONFIG_HOME": f"{place}/.config", "COLUMNS": "100"}
        os.environ.pop("NO_COLOR", None)
        os.chdir(place)
        update(sys.argv[1:], place)
