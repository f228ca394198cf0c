"""The program as installed on a cluster: read-only files, and no bytecode."""

import os
import shutil
from pathlib import Path

import pytest

import nsystui

NO_FILE_MAY_GROW = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from nsystui.cli import main
sys.exit(main(sys.argv[1:]))
"""


# The first command only reads columns, the second packs and keeps results.
@pytest.mark.campaign
@pytest.mark.parametrize(("command", "disk"), [("kernels", "full"), ("overview", "full"), ("overview", "writable")])
def test_it_works_where_its_partial_files_cannot_be_written(tmp_path, demo_job, unprivileged, command, disk):
    site = tmp_path / "site"
    shutil.copytree(Path(nsystui.__file__).parent, site / "nsystui", ignore=shutil.ignore_patterns("__pycache__"))
    for place in [*site.rglob("*"), site]:
        place.chmod(0o555 if place.is_dir() else 0o444)
    environment = {**os.environ, "PYTHONPATH": str(site), "NSYSTUI_CACHE_DIR": str(tmp_path / "cache")}
    try:
        words = ["-m", "nsystui"] if disk == "writable" else ["-c", NO_FILE_MAY_GROW]
        done = unprivileged(*words, command, str(demo_job[0]), "--format", "csv", env=environment)
    finally:
        for place in [site, *site.rglob("*")]:
            place.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 1
    assert ("cannot be written" in done.stderr) == (disk == "full")
    assert not list(site.rglob("__pycache__"))
