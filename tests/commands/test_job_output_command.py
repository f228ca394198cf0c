"""``info --job-output`` and ``pack --job-output``: next to the steps, and never with secrets."""

import pytest
from synthetic.demo import PLANTED_SECRET


@pytest.mark.campaign
def test_packed_job_has_the_output_only_where_it_was_asked_for(run, demo_job, tmp_path):
    without, having = tmp_path / "without", tmp_path / "with"
    assert run("pack", demo_job[0], "-o", without).status == 0
    assert run("pack", demo_job[0], "-o", having, "--job-output").status == 0
    for directory, is_there in ((without, False), (having, True)):
        content = b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
        assert (b"INFO training demo-1b" in content) is is_there
        assert PLANTED_SECRET.encode() not in content
    direct = run("info", demo_job[0], "--job-output", "--format", "csv")
    packed = run("info", having, "--job-output", "--format", "csv")
    assert (packed.out, packed.err) == (direct.out, direct.err)
    lacking = run("info", without, "--job-output")
    assert "the output of the application is not in" in lacking.err and "pack with --job-output" in lacking.err


@pytest.mark.campaign
def test_output_is_not_in_the_cache(run, demo_job, tmp_path, monkeypatch):
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path))
    run("info", *demo_job, "--job-output")
    run("kernels", *demo_job)
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept and b"INFO training demo-1b" not in b"".join(kept)
