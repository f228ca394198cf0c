"""Opening files as one job: the events of a listener, the order of added reports, and refused files."""

import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from synthetic import ExportWriter
from synthetic.demo import CaptureSession

from nsystui.base.errors import ExportError, UsageError
from nsystui.questions.answers.remembered import Remembered
from nsystui.questions.job.opening import Export, JobSource, Listener, Opener
from nsystui.store import tables


class Heard(Listener):
    def __init__(self) -> None:
        self.files, self.ready_paths, self.failures, self.rows, self.warnings = 0, [], {}, {}, []

    def started(self, files):
        self.files = files

    def advanced(self, path, progress):
        self.rows[path] = progress.rows

    def ready(self, path, report):
        self.ready_paths.append(path)

    def failed(self, path, error):
        self.failures[path] = str(error)

    def warned(self, text):
        self.warnings.append(text)


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def start():
    """Yield a function that begins to open files; the jobs are closed after the test."""
    jobs = []

    def begin(files, listener, **how):
        opener = Opener(JobSource(tuple(map(str, files)), **how), listener)
        job, exports = opener.start()
        jobs.append(job)
        return opener, job, exports

    yield begin
    for job in jobs:
        job.close()


@pytest.mark.campaign
def test_every_file_is_added_and_heard_of_in_the_order_of_the_command_line(demo_job, heard, start):
    opener, job, exports = start(reversed(demo_job), heard)
    assert [export.number for export in exports] == list(range(len(demo_job)))
    assert opener.add(job, exports) == []
    assert heard.files == len(demo_job)
    assert set(heard.ready_paths) == set(heard.rows) == set(demo_job)
    assert [report.path for report in job.session.reports] == [export.path for export in exports]
    opener.align(job)
    assert job.alignment is not None


@pytest.mark.campaign
def test_a_file_that_fails_is_told_and_the_others_are_opened(demo_job, tmp_path, heard, start):
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"SQLite format 3\0" + bytes(200))
    opener, job, exports = start([broken, demo_job[0]], heard)
    (failure,) = opener.add(job, exports)
    assert isinstance(failure, ExportError) and heard.failures == {broken: str(failure)}
    assert heard.ready_paths == [demo_job[0]]


def test_what_a_listener_raises_ends_the_opening(tmp_path, start):
    class Strict(Listener):
        def failed(self, path, error):
            raise error

    broken = tmp_path / "broken.sqlite"
    broken.touch()
    opener, job, exports = start([broken], Strict())
    with pytest.raises(ExportError):
        opener.add(job, exports)
    assert opener.is_stopped


def test_after_a_stop_nothing_is_read(demo_job, heard, start):
    opener, job, exports = start(demo_job, heard)
    opener.stop()
    assert opener.look_at(job, exports[0]) is None
    assert opener.add(job, exports) == []
    assert not heard.ready_paths and not heard.failures and not job.session.reports


def test_a_look_says_what_a_file_is_before_its_rows_are_read(demo_job, heard, start):
    opener, job, exports = start(demo_job[:1], heard)
    found = opener.look_at(job, exports[0])
    assert found is not None and found.opened is not None and found.opened.path == demo_job[0]
    assert not job.session.reports
    assert opener.look_at(job, Export(1, Path("none.sqlite"))) is None
    assert list(heard.failures) == [Path("none.sqlite")]


def test_ranks_that_make_no_sense_are_refused_before_anything_is_opened(demo_job, heard, start):
    with pytest.raises(UsageError):
        start(demo_job, heard, ranks="rank((\\d+)")


def test_an_export_older_than_the_report_beside_it_is_told_each_time(start, heard, tmp_path):
    with ExportWriter(tmp_path / "run.sqlite") as out:
        out.process(1)
    with ExportWriter(tmp_path / "other.sqlite") as out:
        out.process(1)
    for name, age in (("run", 61), ("other", 59)):
        (tmp_path / f"{name}.nsys-rep").touch()
        moment = (tmp_path / f"{name}.nsys-rep").stat().st_mtime - age
        os.utime(tmp_path / f"{name}.sqlite", (moment, moment))
    for _ in range(2):
        opener, job, exports = start([out.path, tmp_path / "run.sqlite"], heard, cache_directory=tmp_path / "cache")
        opener.add(job, exports)
        (warning,) = heard.warnings
        assert "run.sqlite is 61 s older than run.nsys-rep" in warning and "export it again" in warning
        heard.warnings.clear()
        assert Remembered.of_source(opener.source) is None


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("identities", "rows", "count", "ranks"), [
    (("u1", "u1"), (1, 1), 1, "00"), (("u1", "u2"), (1, 1), 2, "00"), (("", ""), (1, 1), 2, "00"),
    (("u1", "u1"), (1, 2), 2, "00"), (("u1", "u1"), (1, 1), 2, "01"),
])  # fmt: skip
def test_two_exports_of_one_recording_count_once(start, heard, tmp_path, identities, rows, count, ranks, whole):
    for name, identity, number, rank in zip("ab", identities, rows, ranks, strict=True):
        settings = {"PROFILING_SESSION_UUID": identity}
        session = CaptureSession(settings=settings, environment={"RANK": rank}, duration=1_000)
        with ExportWriter(tmp_path / f"{name}.sqlite", session=session) as out:
            process = out.process(1)
            for kernel in range(number):
                out.kernel(process, 0, 7, kernel, kernel + 1, name="k()", correlation_id=kernel)
            if name == "b":
                out.nvtx_range(out.thread(process, 1, "python"), 0, 1, "only in one export")
    opener, job, exports = start([tmp_path], heard)
    opener.add(job, exports, whole)
    opener.align(job)
    assert [report.name for report in job.session.reports] == ["a", "b"][:count]
    assert len(job.ranks) == count and job.session.rows(sa.select(sa.func.count()).select_from(tables.kernels)) == [
        (sum(rows[:count]),)
    ]
    assert heard.warnings == ["a and b are exports of one recording: only the first counts"][: 2 - count]
