"""The GIL in the causes of idle time and in the times of threads, from the ranges that nsys writes of it."""

from contextlib import closing
from pathlib import Path

import pytest
from support import edit, native
from synthetic.writing.host import Stack
from synthetic.writing.target import CaptureSession as DemoSession
from synthetic.writing.target import Thread
from test_host import COPY, LEAF, MAIN, MS, WORK, job_of, launched, training

from nsystui.base.selection import Selection, Window
from nsystui.questions.host import causes
from nsystui.questions.host.calltree import call_tree_table
from nsystui.questions.host.functions import functions_table
from nsystui.questions.host.gaps import causes_in, gaps_list, gaps_table
from nsystui.questions.host.threads import threads_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.data_notes import left_out_note
from nsystui.store.session import Session

WINDOW = Selection(Window(0, 12 * MS))


def gil_export(path: Path, schema: str = "3.13.2") -> Path:
    """Write a GPU that is idle from 2 to 10 ms; its thread waits for the GIL from 3 to 7, another has it until 6."""
    with training(path, schema) as (export, main, loader):
        export.gil(main, held=[(0, 3 * MS), (7 * MS, 12 * MS)], waited=[(3 * MS, 7 * MS)])
        export.gil(loader, held=[(3 * MS, 6 * MS)])
        export.nvtx_range(main, 1 * MS, 12 * MS, "step 0")
        export.on_cpu(loader, 2 * MS, 6 * MS, [LEAF, WORK, MAIN], cpu=1)
        export.osrt(main, 3 * MS, 7 * MS, "pthread_cond_timedwait", stack=[COPY, MAIN])
        launched(export, main, (0, 0.5, 0, 2), (10, 10.5, 10, 12))
    return path


@pytest.mark.campaign
@pytest.mark.parametrize("schema", ["2.9.1", "3.25.0", "3.7.2"])
def test_idle_time_in_which_the_thread_waits_for_the_gil_says_who_had_it(tmp_path, schema):
    with job_of(gil_export(tmp_path / "a.sqlite", schema)) as job:
        answer, (row,) = gaps_table(job, WINDOW), gaps_list(job, WINDOW).records()
        (task,) = [one.task for one in job.ranks]
        words = causes_in(job, task, 0, 2 * MS, 10 * MS)
    found = {(row["cause"], row["what"], row["thread"]): row["time"] for row in answer.records()}
    assert found[causes.GIL, "Grid::leaf", "loader 4800"] == 3 * MS
    assert found[causes.GIL, None, None] == 1 * MS
    assert sum(found.values()) == 8 * MS
    assert (row["cause"], row["range"]) == (causes.GIL, "step 0")
    assert "38 % waiting for the GIL (held by loader 4800 in Grid::leaf)" in words


@pytest.mark.campaign
def test_threads_hold_the_gil_and_wait_for_it_where_that_is_recorded(tmp_path):
    path = gil_export(tmp_path / "a.sqlite")
    edit(path, "DELETE FROM NVTX_EVENTS WHERE eventType = 75")  # the row that names its domain
    with job_of(path) as job:
        found = {row["thread"]: (row["gil_held"], row["gil_waited"]) for row in threads_table(job, WINDOW).records()}
        cut = threads_table(job, Selection(Window(2 * MS, 4 * MS))).records()
        assert (causes.GIL, 3 * MS) in [(row["cause"], row["time"]) for row in gaps_table(job, WINDOW).records()]
    assert found == {"train (main)": (8 * MS, 4 * MS), "loader": (3 * MS, 0)}
    assert {row["thread"]: (row["gil_held"], row["gil_waited"]) for row in cut}["train (main)"] == (1 * MS, 1 * MS)
    edit(path, "DELETE FROM NVTX_EVENTS WHERE domainId = 77")
    with job_of(path) as job:
        assert not {"gil_held", "gil_waited"} & {column.key for column in threads_table(job, WINDOW).columns}


def reading_export(path: Path, schema: str = "3.25.0", *, has_files: bool = True) -> Path:
    """Write a GPU that is idle from 2 to 20 ms.

    Its thread reads two files, for 3 and 2 ms, then waits while another thread reads for 4 ms.
    """
    with training(path, schema) as (export, main, loader):

        def read(thread: Thread, start: int, end: int, name: str, file: str, size: int, stack: Stack = ()):
            if has_files:
                export.file_access(thread, start, end, name, file, size, stack=stack)
            else:
                export.osrt(thread, start, end, name, stack=stack)

        read(main, 1 * MS, 5 * MS, "read", "/data/train/a.tar", 5_000_000, [COPY, WORK, MAIN])
        read(main, 5 * MS, 7 * MS, "read", "/data/train/b.tar", 3_000_000, [COPY, WORK, MAIN])
        export.osrt(main, 8 * MS, 20 * MS, "pthread_cond_wait")
        read(loader, 9 * MS, 13 * MS, "pread64", "/data/index", 4_096)
        export.osrt(loader, 14 * MS, 20 * MS, "read")
        launched(export, main, (0, 0.5, 0, 2), (20, 20.5, 20, 22))
    return path


@pytest.mark.campaign
def test_idle_time_in_reads_says_which_files_are_read(tmp_path):
    path = reading_export(tmp_path / "a.sqlite")
    with job_of(path) as job:
        answer = gaps_table(job, Selection(Window(0, 22 * MS)))
    found = {(row["cause"], row["what"], row["thread"]): (row["time"], row["file"]) for row in answer.records()}
    assert found == {
        (causes.IN_OS, "read", None): (5 * MS, "2 files in /data/train, 7.629 MiB"),
        (causes.WAITING, "pread64", "loader 4800"): (4 * MS, "/data/index, 4 KiB"),
        (causes.IN_OS, "pthread_cond_wait", None): (8 * MS, None),
        (causes.NOTHING, None, None): (1 * MS, None),
    }
    reads = "SELECT sum(min(endedAt, 20000000) - max(startedAt, 2000000)) FROM OSRT_FILE_ACCESS_EVENTS"
    assert [(sum(time for time, file in found.values() if file),)] == native(path, reads)
    # An unknown file has no name.
    edit(path, "DELETE FROM OSRT_FILE_ACCESS_DESCRIPTORS WHERE fileAccessId = 1")
    with job_of(path) as job:
        files = {row["what"]: row["file"] for row in gaps_table(job, Selection(Window(0, 22 * MS))).records()}
    assert files["read"] == "/data/train/b.tar, 2.861 MiB"


@pytest.mark.campaign
def test_without_file_accesses_there_is_no_column_for_them(tmp_path):
    with job_of(reading_export(tmp_path / "a.sqlite", "3.7.2", has_files=False)) as job:
        answer = gaps_table(job, Selection(Window(0, 22 * MS)))
    assert "file" not in {column.key for column in answer.columns}
    assert {row["what"]: row["time"] for row in answer.records()}["read"] == 5 * MS
    assert any("--osrt-file-access=true" in note for note in answer.notes)


FORWARD, STEP, FETCH = (
    ("forward", "/app/model.py", 40), ("train_step", "/app/train.py", 12), ("fetch", "/app/data.py", 7),
)  # fmt: skip


def python_export(path: Path, schema: str = "3.25.0", *, native_samples: bool = False) -> Path:
    """Write a GPU that is idle from 2 to 12 ms while its thread runs, with samples of Python.

    6 are in ``fetch``, then 3 in ``forward``, one while the thread waits; ``native_samples`` adds other functions.
    """
    with training(path, schema, session=DemoSession(include_blobs=True)) as (export, main, _):
        if native_samples:
            export.on_cpu(main, 2 * MS, 12 * MS, [COPY, LEAF, MAIN], cpu=1)
        for number in range(9):
            stack = [FETCH, STEP] if number < 6 else [FORWARD, STEP]
            export.python_sample(main, (2 + number) * MS + MS // 2, stack)
        export.python_sample(main, 11 * MS + MS // 2, [STEP], state=2)
        launched(export, main, (0, 0.5, 0, 2), (12, 12.5, 12, 14))
    return path


PYTHON_WINDOW = Selection(Window(0, 14 * MS))


@pytest.mark.campaign
@pytest.mark.parametrize(("schema", "whole"), [("3.16.1", True), ("3.25.0", False), ("3.28.1", True)])
def test_python_frames_are_functions_like_any(tmp_path, schema, whole):
    session = Session()
    session.add(python_export(tmp_path / "a.sqlite", schema), whole=whole)
    with closing(OpenJob(session)) as job:
        table, tree = functions_table(job, Selection()), call_tree_table(job, Selection())
    counts = {row["function"]: (row["own"], row["total"], row["module"]) for row in table.records()}
    assert counts == {"fetch": (6, 6, "data.py"), "forward": (3, 3, "model.py"), "train_step": (0, 9, "train.py")}
    assert sum(row["own"] for row in tree.records()) == 9


@pytest.mark.campaign
def test_idle_time_names_the_python_function_that_runs_or_calls_that_of_the_cpu(tmp_path):
    with job_of(python_export(tmp_path / "alone.sqlite")) as job:
        alone = {(row["what"], row["caller"]): row["time"] for row in gaps_table(job, PYTHON_WINDOW).records()}
    assert alone["fetch (data.py)", None] == pytest.approx(6 * MS, abs=MS)
    assert sum(alone.values()) == 10 * MS and {caller for _, caller in alone} == {None}
    with job_of(python_export(tmp_path / "a.sqlite", native_samples=True)) as job:
        answer = gaps_table(job, PYTHON_WINDOW)
        names = {row["function"] for row in functions_table(job, Selection()).records()}
    found = {row["caller"]: row["time"] for row in answer.records() if row["what"] == "Grid::leaf"}
    assert found["fetch (data.py)"] == pytest.approx(6 * MS, abs=MS)
    assert found["forward (model.py)"] == pytest.approx(3 * MS, abs=MS)
    assert sum(answer.cells("time")) == 10 * MS
    assert names == {"memcpy", "Grid::leaf", "main"}


def test_a_payload_that_is_no_sample_of_python_is_none(tmp_path):
    path = python_export(tmp_path / "a.sqlite")
    edit(
        path,
        "UPDATE NVTX_EVENTS SET binaryData = substr(CAST(binaryData AS BLOB), 1, 90) WHERE start < 5000000",
        "UPDATE NVTX_EVENTS SET binaryData = substr(CAST(binaryData AS BLOB), 1, 10) WHERE start < 3000000",
        "UPDATE NVTX_EVENTS SET domainId = 99 WHERE start BETWEEN 5000000 AND 6000000 AND eventType = 34",
        "UPDATE NVTX_EVENTS SET domainId = 0 WHERE start BETWEEN 6000000 AND 7000000 AND eventType = 34",
    )
    with job_of(path) as job:
        found = {row["function"]: row["own"] for row in functions_table(job, Selection()).records()}
    assert found == {"fetch": 2, "forward": 3, "train_step": 0}


@pytest.mark.campaign
def test_lost_names_of_a_function_and_of_the_domain_are_told(tmp_path):
    path = python_export(tmp_path / "a.sqlite")
    ((number,),) = native(path, "SELECT id FROM StringIds WHERE value = 'fetch'")
    edit(
        path,
        f"DELETE FROM StringIds WHERE id = {number}",
        "UPDATE NVTX_EVENTS SET text = NULL, textId = 987654 WHERE eventType = 75",
    )
    with job_of(path) as job:
        found = {row["function"]: row["own"] for row in functions_table(job, Selection()).records()}
        note = left_out_note(job.session.reports)
    assert found == {f"[name {number} lost]": 6, "forward": 3, "train_step": 0}
    assert "lacks the names of" in note and "1 row of functions and modules" in note


@pytest.mark.campaign
def test_each_report_has_samples_of_python_where_it_has_none_of_the_cpu(tmp_path):
    paths = [python_export(tmp_path / f"{number}.sqlite", native_samples=number > 0) for number in (0, 1)]
    with job_of(*paths) as job:
        early = functions_table(job, Selection(Window(0, 3 * MS)))
        found = {row["function"]: row["own"] for row in functions_table(job, Selection()).records()}
    assert found == {"fetch": 6, "forward": 3, "train_step": 0, "memcpy": 10, "Grid::leaf": 0, "main": 0}
    assert sum(early.cells("own")) == 2
    assert any("Python samples are shown" in note for note in early.notes)
