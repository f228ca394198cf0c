"""``nsystui overview``, ``gpu`` and ``info``: the tables of the screens, without a screen."""

import subprocess
import sys

import pytest
from synthetic.demo import PLANTED_SECRET


@pytest.mark.campaign
def test_no_command_imports_textual(demo_job):
    code = (
        "import sys; from nsystui.cli import main\n"
        f"status = sum(main([command, {str(demo_job[0])!r}]) for command in ('overview', 'gpu', 'info'))\n"
        "assert 'textual' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_info_never_shows_the_environment(run, demo_job):
    for show in ("reports", "contents", "diagnostics"):
        done = run("info", *demo_job, "--show", show, "--format", "json")
        assert PLANTED_SECRET not in done.out + done.err, show
        assert "OMPI_" not in done.out and "SLURM_" not in done.out, show
