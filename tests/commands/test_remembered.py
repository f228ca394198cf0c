"""Remembered answers: repeated without opening any file, until the files change."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from jobs import running
from support import edit
from synthetic import two_process_export

import nsystui.commands.arguments as shared
from nsystui.base.selection import Selection
from nsystui.questions.collectives.alignment import ClockMode
from nsystui.questions.events import index as event_index
from nsystui.questions.events.listing import EventList
from nsystui.questions.job.job import OpenJob
from nsystui.questions.job.opening import Opener
from nsystui.questions.kernels.activities import API, work_summary
from nsystui.questions.queries import derived, statistics
from nsystui.store import cache as cache_module
from nsystui.store.cache import Cache, default_directory
from nsystui.store.session import Session

SUM = ("stats", "-r", "cuda_gpu_kern_sum", "--format", "csv")
HEAVY = {"duckdb", "numpy", "pandas", "sqlalchemy", "textual", "adbc_driver_manager", "pyarrow"}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def export(tmp_path) -> Path:
    return two_process_export(tmp_path / "rank0.sqlite")


@pytest.fixture
def opened(monkeypatch) -> list[object]:
    """Return a list that gets a word each time a command opens its files."""
    times: list[object] = []
    open_job = shared.open_job
    monkeypatch.setattr(shared, "open_job", lambda *a, **b: times.append("opened") or open_job(*a, **b))
    return times


class TestGivenAgain:
    @pytest.mark.campaign
    def test_of_a_packed_job_until_it_is_packed_again(self, run, demo_job, opened, tmp_path):
        packed = tmp_path / "packed"
        run("pack", *demo_job, "-o", packed)
        for words in (("nccl",), ("triage",)):
            opened.clear()
            assert run(*words, packed) == run(*words, packed)
            assert opened == ["opened"], words
        run("pack", *demo_job, "-o", packed, "--force")
        run("nccl", packed)
        assert opened == ["opened"] * 2

    @pytest.mark.campaign
    def test_a_report_of_a_triage_from_its_lines(self, run, demo_job, opened, tmp_path):
        run("triage", demo_job[0])
        saved = [tmp_path / "first.md", tmp_path / "again.md"]
        run("triage", demo_job[0], "-o", saved[0])
        run("triage", demo_job[0], "-o", saved[1], "--no-cache")
        assert saved[0].read_text() == saved[1].read_text()
        assert opened == ["opened"] * 2

    @pytest.mark.campaign
    def test_a_threshold_is_part_of_the_question(self, run, demo_job, opened):
        run("triage", demo_job[0])
        run("triage", demo_job[0], "--set", "gap_ms=500")
        assert opened == ["opened"] * 2

    @pytest.mark.campaign
    def test_sorted_and_cut_as_the_first_time(self, run, export, opened):
        for key in ("share", "min", "name", "stddev"):
            words = ("kernels", "--sort", key, "--top", "2", "--format", "csv", export)
            assert run(*words).out == run(*words).out == run(*words, "--no-cache").out, key
        assert opened == ["opened"] * 5  # the other commands sort the remembered answer of the first

    def test_in_another_format_and_unit(self, run, export, opened, tmp_path):
        run(*SUM, export)
        words = ("stats", "-r", "cuda_gpu_kern_sum", "--timeunit", "us", export)
        assert run(*words, "-o", tmp_path / "out.json").status == 0
        assert opened == ["opened"]
        run(*words, "--no-cache", "-o", tmp_path / "again.json")
        assert (tmp_path / "out.json").read_text() == (tmp_path / "again.json").read_text()

    @pytest.mark.campaign
    def test_a_report_that_is_not_known_yet_is_asked_for(self, run, export, opened):
        run(*SUM, export)
        words = ("stats", "-r", "cuda_gpu_kern_sum,cuda_api_sum", "--format", "csv", export)
        assert run(*words).out == run(*words).out == run(*words, "--no-cache").out
        assert opened == ["opened"] * 3

    def test_a_wrong_column_is_told_as_ever(self, refused, export):
        assert refused("kernels", export, "--sort", "nothing") == refused("kernels", export, "--sort", "nothing")

    def test_several_files_are_one_question(self, run, tmp_path, opened):
        files = [two_process_export(tmp_path / f"{name}.sqlite") for name in "ab"]
        assert run(*SUM, *files).out == run(*SUM, *reversed(files)).out
        assert run(*SUM, files[0]).out != run(*SUM, *files).out
        assert opened == ["opened"] * 2

    @pytest.mark.campaign
    def test_nothing_heavy_is_loaded(self, run, export):
        code = (
            "import sys; from nsystui.cli import main; words = sys.argv[1:]\n"
            "main(words[:-1] + ['--sort', 'max', words[-1]]); main(words)\n"
            "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
        )
        for words in (SUM, ("kernels",), ("nccl",)):
            known = run(*words, export)
            done = subprocess.run(
                [sys.executable, "-c", code, *words, str(export)], capture_output=True, text=True, check=True
            )
            assert done.stdout.endswith(known.out)
            assert HEAVY.isdisjoint(done.stderr.split()), words


class TestAskedAnew:
    def test_after_the_file_has_changed(self, run, export, opened):
        before = run(*SUM, export).out
        edit(export, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid > 50")
        os.utime(export, ns=(1, 1))
        assert run(*SUM, export).out != before
        assert opened == ["opened"] * 2

    def test_by_another_version_and_under_another_name(self, run, export, opened, tmp_path, monkeypatch):
        (tmp_path / "other.sqlite").symlink_to(export)
        run(*SUM, export)
        run(*SUM, tmp_path / "other.sqlite")
        assert opened == ["opened"] * 2
        monkeypatch.setattr(cache_module, "version_of_reading", lambda: "another")
        run(*SUM, export)
        assert opened == ["opened"] * 3

    @pytest.mark.campaign
    def test_with_a_selection_or_without_the_cache(self, run, export, opened, directory):
        narrowed = "--time 0:1s,--ranks 0,--devices 0,--streams 7,--filter e,--filter-time 0/1s,--by-rank,--no-cache"
        for flags in (("--clock", "utc"), *map(str.split, narrowed.split(",")), ("-r", "cuda_gpu_trace")):
            opened.clear()
            for _ in range(2):
                run(*(SUM if flags[0] != "-r" else ("stats",)), *flags, export)
            assert opened == ["opened"] * 2, flags
            assert not (directory / "answers").exists(), flags

    @pytest.mark.campaign
    def test_drawings_and_lists_of_single_events(self, run, demo_job, opened, tmp_path):
        lists = (("kernels", "--instances", "ncclDevKernel"), ("nccl", "--kernels=AllReduce"), ("gaps", "--list"))
        for words in (*lists, ("timeline",), ("steps", "-o", tmp_path / "steps.svg", "--force")):
            opened.clear()
            assert run(*words, demo_job[0]) == run(*words, demo_job[0])
            assert opened == ["opened"] * 2, words

    def test_when_the_file_is_no_longer_whole(self, run, refused, export):
        run(*SUM, export)
        status = export.stat()
        with export.open("r+b") as file:
            file.write(b"not SQLite any more")
        os.utime(export, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert "not a SQLite file" in refused(*SUM, export)

    def test_while_a_file_is_missing_the_others_are_answered_but_not_remembered(self, run, export, opened, tmp_path):
        for _ in range(2):
            done = run(*SUM, export, tmp_path / "missing.sqlite")
            assert done.out
            assert "no such file" in done.err
        assert opened == ["opened"] * 2

    @pytest.mark.campaign
    def test_of_memories_that_are_damaged_or_of_another_form(self, run, export, opened, directory):
        before = run(*SUM, export).out
        (file,) = (directory / "answers").iterdir()
        of_another_form = file.read_bytes().replace(b'"columns"', b'"pillars"')
        for content in (b"", b"{", b"[]", b'{"question": 1, "value": 2}', b"\xff\xfe", of_another_form):
            file.write_bytes(content)
            opened.clear()
            assert run(*SUM, export).out == before, content
            assert opened == ["opened"], content


class TestRememberedByTheScreens:
    @staticmethod
    async def see(files: Sequence[Path]) -> None:
        """Open the screens until everything about the job is shown."""
        async with running(files, default_directory()):
            pass

    @pytest.mark.campaign
    def test_the_kernel_summary_is_there_without_opening(self, run, demo_job, opened):
        asyncio.run(self.see(demo_job))
        opened.clear()
        for words in (SUM, ("kernels", "--format", "csv")):
            told = run(*words, *demo_job)
            assert opened == [], words
            assert told.out == run(*words, "--no-cache", *demo_job).out != ""
            opened.clear()

    @pytest.mark.campaign
    def test_the_event_list_and_api_summary_compute_nothing_then(self, demo_job, directory, monkeypatch):
        monkeypatch.setattr(derived, "_MANY_ROWS", 1)
        asyncio.run(self.see(demo_job))

        def compute(*arguments: object) -> object:
            raise AssertionError("computed again")

        monkeypatch.setattr(event_index, "_of_kind", compute)
        monkeypatch.setattr(statistics, "summary_rows", compute)
        with closing(Session(cache=Cache(default_directory()))) as session:
            for path in demo_job:
                session.add(path)
            job = OpenJob(session)
            job.align(ClockMode.COLLECTIVES)
            assert len(EventList.build(session, Selection(), job.ranks))
            assert len(work_summary(session, Selection(), API))

    def test_nothing_is_kept_of_a_loading_that_was_stopped(self, demo_job, directory, monkeypatch):
        add_one = Opener.add_one

        def add_and_stop(opener, *words):
            add_one(opener, *words)
            opener.stop()

        monkeypatch.setattr(Opener, "add_one", add_and_stop)
        asyncio.run(self.see(demo_job))
        assert any(directory.iterdir())
        assert not (directory / "answers").exists()
