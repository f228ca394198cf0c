"""NVIDIA's nsys, replaced here by a shell script, converts reports, and never next to the report."""

import os
import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from synthetic import two_process_export

from nsystui.base.errors import ExportError
from nsystui.exports.convert import convert as converted
from nsystui.exports.discover import form_of
from nsystui.exports.forms.nsys import REPORT
from nsystui.exports.metadata import open_export
from nsystui.exports.opening import MADE_FROM


@pytest.fixture(scope="module")
def made_by_nsys(tmp_path_factory) -> Path:
    return two_process_export(tmp_path_factory.mktemp("nsys") / "made.sqlite")


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch, made_by_nsys):
    """Return a function that puts a script nsys on the PATH; it logs its words, then runs some commands."""
    log = tmp_path / "log"
    log.touch()
    (tmp_path / "bin").mkdir()

    def install(*body: str) -> Path:
        program(
            tmp_path / "bin/nsys",
            f"printf 'CALL\\n' >> {shlex.quote(str(log))}",
            f"""for word in "$@"; do printf '%s\\n' "$word" >> {shlex.quote(str(log))}; done""",
            'while [ $# -gt 1 ]; do [ "$1" = -o ] && output=$2; case $1 in --include*) included=1;; esac; shift; done',
            "report=$1",
            f"made={shlex.quote(str(made_by_nsys))}",
            "; ".join(body),
        )
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        return log

    return install


def program(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


WORKS = 'cp "$made" "$output"'


@pytest.fixture
def report(tmp_path) -> Path:
    place = tmp_path / "results"
    place.mkdir()
    path = place / "job 7_rank3.nsys-rep"
    path.write_bytes(b"QUADD1\0" + bytes(100))
    return path


def convert(report: Path, directory: Path) -> Path:
    return converted(report, REPORT, directory)


def calls(log: Path) -> list[list[str]]:
    return [call.splitlines() for call in log.read_text().split("CALL\n")[1:]]


def test_an_export_is_made_below_the_directory_under_the_name_of_the_report(tmp_path, report, fake_nsys):
    log = fake_nsys(WORKS)
    export = convert(report, tmp_path / "exports")
    assert export.name == "job 7_rank3.sqlite"
    assert tmp_path / "exports" in export.parents
    assert open_export(export).metadata.nsys_version
    assert os.listdir(report.parent) == [report.name]
    assert sorted(os.listdir(export.parent)) == [MADE_FROM, export.name]
    ((*words, last),) = calls(log)
    assert words[:3] == ["export", "-t", "sqlite"]
    assert {"--include-json=true", "--include-blobs=true"} <= set(words)
    assert last == str(report)


def test_an_export_made_before_is_used_until_it_or_the_report_changes(tmp_path, report, made_by_nsys, fake_nsys):
    log = fake_nsys(WORKS)
    export = convert(report, tmp_path / "exports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        assert convert(report, tmp_path / "exports") == export
    for left in (0, 50, 5_000):
        os.truncate(export, left)
        assert convert(report, tmp_path / "exports").read_bytes() == made_by_nsys.read_bytes(), left
    assert len(calls(log)) == 4
    report.write_bytes(report.read_bytes() + b"more")
    assert convert(report, tmp_path / "exports") != export
    assert len(calls(log)) == 5


def test_an_export_that_another_program_made_meanwhile_is_used_and_not_replaced(tmp_path, report, fake_nsys):
    fake_nsys(WORKS, "sleep 0.$(($$ % 4))")
    with ThreadPoolExecutor(4) as programs:
        conversions = [programs.submit(convert, report, tmp_path / "cache") for _ in range(4)]
        assert len({conversion.result().stat().st_ino for conversion in conversions}) == 1


def test_reports_of_one_name_do_not_meet(tmp_path, fake_nsys):
    fake_nsys(WORKS)
    reports = [tmp_path / folder / "rank0.nsys-rep" for folder in ("before", "after")]
    for path in reports:
        path.parent.mkdir()
        path.write_bytes(b"QUADD1\0")
    first, second = (convert(path, tmp_path / "exports") for path in reports)
    assert first != second and first.name == second.name == "rank0.sqlite"


def test_an_old_nsys_is_asked_again_without_the_newer_options(tmp_path, report, fake_nsys):
    log = fake_nsys('[ -n "$included" ] && { echo "unrecognised option --include-json" >&2; exit 1; }', WORKS)
    assert convert(report, tmp_path / "exports").exists()
    first, second = calls(log)
    assert "--include-json=true" in first
    assert [word for word in first if not word.startswith("--include")] == second


def test_a_failure_says_what_nsys_said_last_and_leaves_nothing(tmp_path, report, fake_nsys):
    fake_nsys('echo half > "$output"; echo "Generating…" ; echo "first line" >&2; echo "Report is corrupt" >&2; exit 1')
    with pytest.raises(ExportError, match="nsys export failed: Report is corrupt") as error:
        convert(report, tmp_path / "exports")
    assert error.value.path == str(report)
    assert error.value.advice
    assert [path for path in (tmp_path / "exports").rglob("*") if path.is_file()] == []


def test_every_way_to_fail_is_one_error(tmp_path, report, fake_nsys):
    said = {
        "exit 3": "no message", "echo only on stdout; exit 1": "only on stdout", "exit 0": "no message",
        r"printf 'not \351 utf-8\n' >&2; exit 1": "not � utf-8", "kill -9 $$": "no message",
    }  # fmt: skip
    for body, message in said.items():
        fake_nsys(body)
        with pytest.raises(ExportError, match=f"nsys export failed: {message}"):
            convert(report, tmp_path / "exports")
    (tmp_path / "bin/nsys").write_bytes(b"\x7fELF not really")
    with pytest.raises(ExportError, match="cannot be exported: Exec format error"):
        convert(report, tmp_path / "exports")


INSTEAD_OF_AN_EXPORT = {
    'mkfifo "$output"': "no regular file",
    'mkdir "$output"; echo half > "$output/part"': "no regular file",
    'ln -s "$made" "$output"': "no regular file",
    'ln -s nowhere "$output"': "no regular file",
    'mkfifo "$output"; exit 1': "no regular file",
    'mkfifo "$output"; cat "$made" > "$output"': "no regular file",
    'mkdir "$output"; sleep 600': "it made no regular file",
    "echo Done": "Done; it made no regular file",
    'echo text > "$output"': "cannot be opened",
    ': > "$output"': "cannot be opened",
    'head -c 3000000 /dev/zero | tr "\\0" x; yes | head -c 3000000 >&2; exit 1': "nsys export failed: y",
    'sleep 600 & echo gone; exit 1': "gone",
    "yes": "nsys export failed: y",
}  # fmt: skip


@pytest.mark.parametrize("body", INSTEAD_OF_AN_EXPORT)
def test_what_nsys_makes_instead_of_an_export_is_reported_and_removed(tmp_path, report, fake_nsys, body):
    fake_nsys(body)
    with pytest.raises(ExportError, match=INSTEAD_OF_AN_EXPORT[body]):
        convert(report, tmp_path / "exports")
    assert os.listdir(tmp_path / "exports") == []


def living(group: int) -> list[str]:
    """Return the state and the parent of each living process of a group."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, its_group, *_ = file.read_text().rpartition(")")[2].split()
            found += [f"{state} {parent}"] if int(its_group) == group and state not in "ZX" else []
    return found


HANGS = ["sleep 600", "sleep 600 & wait", 'echo half > "$output"; exec sleep 600']


@pytest.mark.parametrize("body", HANGS)
def test_a_hanging_nsys_ends_when_the_user_stops_it(tmp_path, report, fake_nsys, body):
    calls = iter(range(3))
    fake_nsys(f"echo $$ > {tmp_path / 'process'}", body)

    def stop(part: float) -> None:
        if next(calls, None) is None and (tmp_path / "process").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted(report, REPORT, tmp_path / "exports", stop)
    while living(int((tmp_path / "process").read_text())):  # a killed process ends a moment later
        time.sleep(0.01)
    assert os.listdir(tmp_path / "exports") == []


def test_the_keys_of_the_user_are_not_for_nsys(tmp_path, report, fake_nsys):
    reading, writing = os.pipe()
    os.write(writing, b"q")
    os.close(writing)
    with os.fdopen(reading) as keys:
        kept = os.dup(0)
        os.dup2(keys.fileno(), 0)
        try:
            fake_nsys(f"cat > {shlex.quote(str(tmp_path / 'eaten'))}", WORKS)
            convert(report, tmp_path / "exports")
        finally:
            os.dup2(kept, 0)
            os.close(kept)
    assert (tmp_path / "eaten").read_text() == ""


def test_without_nsys_the_error_says_what_to_do(tmp_path, report, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExportError, match="nsys is not on the PATH") as error:
        convert(report, tmp_path / "exports")
    assert "nsys export -t sqlite" in error.value.advice


def test_a_missing_report_or_a_place_that_cannot_be_written_is_an_error(tmp_path, report, fake_nsys):
    fake_nsys(WORKS)
    with pytest.raises(ExportError, match="No such file") as error:
        convert(tmp_path / "gone.nsys-rep", tmp_path / "exports")
    assert error.value.advice
    (tmp_path / "in the way").write_text("a file")
    with pytest.raises(ExportError, match="cannot be exported") as error:
        convert(report, tmp_path / "in the way")
    assert "NSYSTUI_CACHE_DIR" in error.value.advice


def test_odd_names_of_reports(tmp_path, fake_nsys, monkeypatch):
    log = fake_nsys(WORKS)
    monkeypatch.chdir(tmp_path)
    for name in ("-rf.nsys-rep", "it's a; $HOME.nsys-rep", "x" * 240 + ".nsys-rep", "größe.nsys-rep"):
        (tmp_path / name).write_bytes(b"QUADD1\0")
        assert convert(Path(name), tmp_path / "exports").exists(), name
        assert calls(log)[-1][-1] == str(tmp_path / name)


def test_reports_are_told_by_their_names():
    names = ("a.nsys-rep", "a.qdrep", "a.qdstrm", "a.sqlite", "a.nsys-rep.sqlite", "nsys-rep")
    assert [name for name in names if form_of(Path(name)) is REPORT] == ["a.nsys-rep", "a.qdrep"]
