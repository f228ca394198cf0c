"""``nsystui info --diagnostics``: enough for a bug report, and nothing private."""

import shutil

import nsystui
from nsystui.commands import info
from nsystui.commands.configuration import Config
from nsystui.store.cache import Cache


def test_it_tells_of_program_terminal_cache_limits_and_config(run):
    done = run("info", "--diagnostics")
    assert (done.status, done.err) == (0, "")
    told = dict(line.split(": ", 1) for line in done.out.splitlines())
    assert told["nsystui"] == nsystui.__version__
    assert {"python", "platform", "packages", "environment", "terminal", "streams", "limits", "cache"} <= told.keys()
    assert "textual 8." in told["packages"] and "duckdb " in told["packages"]
    assert told["config"] == "no file"
    assert told["cache"].startswith("NSYSTUI_CACHE_DIR; ")


def test_it_counts_the_rows_of_each_table_of_an_export(run, demo_job):
    lines = run("info", "--diagnostics", demo_job[0]).out.splitlines()
    (export,) = [line for line in lines if line.startswith("export ")]
    assert export.startswith("export rank0: ")
    assert ", nsys 2026.2.1" in export and ", schema 3.25.0" in export
    assert any(line.startswith("  CUPTI_ACTIVITY_KIND_KERNEL: ") for line in lines)


def test_it_tells_why_a_file_cannot_be_opened_and_goes_on(run, demo_job, tmp_path):
    (tmp_path / "broken.sqlite").write_bytes(b"nothing of that kind")
    done = run("info", "--diagnostics", tmp_path / "broken.sqlite", demo_job[0])
    assert done.status == 0
    assert "export broken: not a SQLite file" in done.out and "export rank0: " in done.out


def test_nothing_private_is_in_it(run, demo_job, tmp_path, monkeypatch):
    """Path, user, host, kernel and variables, except the listed variables."""
    config = tmp_path / "secret-place" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'cache-dir = "{tmp_path}/secret-cache"\njobs = 1\n')
    shutil.copy(demo_job[0], config.parent / "run.sqlite")
    monkeypatch.setenv("SECRET_TOKEN", "sesame")
    monkeypatch.setenv("NSYSTUI_MEMORY_LIMIT", "1G")
    monkeypatch.setenv("USER", "ali-baba")
    out = run("info", "--diagnostics", "--config", config, config.parent / "run.sqlite").out
    assert "config: config.toml, which sets cache-dir, jobs" in out and "limits: 1 threads of" in out
    assert "export run: " in out
    for private in (str(tmp_path), "secret", "sesame", "ali-baba", "gpu-a01", "ncclDevKernel", "gemm", "SLURM"):
        assert private not in out


def test_a_variable_that_makes_no_sense_is_told_as_a_line(run, monkeypatch):
    monkeypatch.setenv("NSYSTUI_JOBS", "many")
    done = run("info", "--diagnostics")
    assert (done.status, done.err) == (0, "")
    assert "limits: NSYSTUI_JOBS=many: give a number of threads" in done.out


def test_the_file_system_of_a_directory_is_that_of_the_closest_mount(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "22 21 0:40 / /home rw shared:1 - nfs4 server:/home rw\n"
        "23 21 0:41 / /homestead rw - tmpfs tmpfs rw\n"
        "24 21 0:42 / /my\\040scratch rw - lustre server:/scratch rw\n"
    )
    kinds = {"/home/me/x": "nfs4", "/home": "nfs4", "/homestead/y": "tmpfs", "/my scratch/z": "lustre", "/opt": "ext4"}
    for place, kind in kinds.items():
        assert info.file_system(place, mounts) == kind
    assert info.file_system("/home", tmp_path / "none") is None


def test_a_cache_that_is_not_there_yet_is_told(tmp_path):
    (line,) = info.cache_lines(Cache(tmp_path / "none", 5 << 30), Config(), {})
    assert line.startswith("cache: the user's cache directory; not there yet, limit 5 GiB, file system ")
