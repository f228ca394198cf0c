"""``nsystui pack``: a packed job opens without its exports, with the same answers."""

import os
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest
from disks import fill, half_written, small_disk
from support import edit, fingerprint, native_count, packed_facts, report_in, shared
from synthetic.demo import PLANTED_SECRET

from nsystui.cli import main
from nsystui.exports import canonical, discover
from nsystui.questions.job.opening import JobSource
from nsystui.store import packed_job
from nsystui.store.packed_job import form_version
from nsystui.store.session import Session
from nsystui.ui import loading
from nsystui.ui.loading import Loading, LoadingListener


@pytest.fixture(scope="module")
def packed(demo_job, tmp_path_factory) -> Path:
    """Return the demo job, packed in two groups of which the second has rank 1; tests must not change it."""
    directory = tmp_path_factory.mktemp("packed") / "job"
    for exports in (demo_job[:1] + demo_job[2:], demo_job[1:2]):
        assert main(["pack", *map(str, exports), "-o", str(directory)]) == 0
    return directory


def start(*words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nsystui", "pack", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def copied(packed: Path, target: Path) -> Path:
    return Path(shutil.copytree(packed, target / "job"))


@pytest.mark.campaign
class TestAnswers:
    """A packed job gives the answers of its exports; test_answers asks every question of both."""

    def test_of_many_ranks_metadata_are_not_kept_and_answers_are_the_same(self, run, packed, monkeypatch):
        questions = (("kernels", "--no-cache"), ("events", "--top", "9"), ("gaps", "--by", "rank", "--no-cache"))
        before = [run(name, packed, *options, "--format", "csv").out for name, *options in questions]
        monkeypatch.setattr("nsystui.store.session._MANY", 1)
        assert [run(name, packed, *options, "--format", "csv").out for name, *options in questions] == before

    def test_where_the_job_can_only_be_read(self, run, tmp_path, packed, demo_job, unprivileged):
        job = copied(packed, tmp_path)
        for kept in job.rglob("result*.bin"):
            kept.unlink()
        places = [job, *job.rglob("*")]
        for place in places:
            place.chmod(0o555 if place.is_dir() else 0o444)
        before = fingerprint(job)
        try:
            done = unprivileged("-m", "nsystui", "ranks", str(job), "--format", "csv")
        finally:
            for place in places:
                place.chmod(0o755)
        assert done.stdout.replace("\r\n", "\n") == run("ranks", *demo_job, "--format", "csv").out.replace("\r\n", "\n")
        assert fingerprint(job) == before

    def test_ranks_are_those_of_the_pack_unless_the_user_says_otherwise(self, run, tmp_path, demo_job):
        run("pack", *demo_job[:2], "-o", tmp_path / "job", "--ranks", "rank0=7,rank1=3")
        assert packed_facts(tmp_path / "job").keys() == {3, 7}
        rows = run("info", tmp_path / "job", "--show", "reports", "--format", "csv").table
        assert [(row["Report"], row["Ranks"], row["Ranks From"]) for row in rows] == [
            ("rank1", "3", "packed job"),
            ("rank0", "7", "packed job"),
        ]
        rows = run("ranks", tmp_path / "job", "--ranks", r"rank(\d+)", "--format", "json").json
        assert [(row["rank"], row["report"]) for row in rows] == [(0, "rank0"), (1, "rank1")]

    def test_exports_and_packed_reports_make_one_job(self, run, demo_job, packed):
        mixed = run("overview", report_in(packed, 0), *demo_job[1:], "--format", "csv")
        assert mixed.out == run("overview", *demo_job, "--format", "csv").out


class TestThePackedJob:
    def test_an_output_is_compared_once_with_each_of_its_files(self, packed):
        files = [*discover.files_of([str(packed)])]
        assert len(files) == len(set(files)) and set(packed.rglob("*")) <= set(files)

    @pytest.mark.campaign
    def test_nothing_is_beside_the_exports_or_left_in_the_job(self, run, tmp_path, demo_job, packed):
        export = Path(shutil.copy(demo_job[0], tmp_path / "in.sqlite"))
        before = fingerprint(tmp_path)
        run("pack", export, "-o", tmp_path / "job")
        shutil.rmtree(tmp_path / "job")
        assert fingerprint(tmp_path) == before
        assert not [name for name in os.listdir(packed) if name.startswith(".")]
        assert not half_written(packed)

    @pytest.mark.campaign
    def test_neither_secrets_nor_places_of_the_machine_are_in_it(self, packed, demo_job):
        for file in packed.rglob("*"):
            if file.is_file():
                assert PLANTED_SECRET.encode() not in file.read_bytes(), file
                if file.name == "reports.jsonl":
                    assert str(demo_job[0].parent) not in file.read_text()
        assert {facts["metadata"]["command"] for facts in packed_facts(packed).values()} == {"python"}

    @pytest.mark.campaign
    def test_the_tables_are_datasets_with_a_rank_in_few_files(self, packed, demo_job):
        for table, native in (("kernels", "CUPTI_ACTIVITY_KIND_KERNEL"), ("api_calls", "CUPTI_ACTIVITY_KIND_RUNTIME")):
            found = duckdb.sql(
                f"SELECT rank, count(*) FROM read_parquet('{packed}/{table}/*.parquet') GROUP BY ALL ORDER BY ALL"
            ).fetchall()
            assert found == [(rank, native_count(path, native)) for rank, path in enumerate(demo_job)]
            assert len(list(packed.glob(f"{table}/*"))) == 2

    @pytest.mark.campaign
    def test_so_can_those_of_real_exports(self, tmp_path, run):
        exports = shared("alcf-allgather-rank0", "gpu-metrics", "ddp-a100-rank0of4", "schema2021-no-metadata")
        names = ",".join(f"{path.stem}={number}" for number, path in enumerate(exports))
        assert run("pack", *exports, "-o", tmp_path / "job", "--ranks", names).status == 0
        self.test_every_table_can_be_read_by_pyarrow_and_dask(tmp_path / "job")

    @pytest.mark.campaign
    def test_every_table_can_be_read_by_pyarrow_and_dask(self, packed):
        dataset = pytest.importorskip("pyarrow.dataset", reason="pyarrow is not installed")
        frames = pytest.importorskip("dask.dataframe", reason="dask[dataframe] is not installed")
        facts = packed_facts(packed).values()
        tables = sorted(place.name for place in packed.iterdir() if place.name != "reports")
        assert "kernels" in tables
        for table in tables:
            rows = sum(one["counts"].get(table, 0) for one in facts)
            read = dataset.dataset(packed / table, partitioning="hive").to_table()
            assert (read.num_rows, "rank" in read.column_names) == (rows, True), table
            frame = frames.read_parquet(str(packed / table)).compute()
            assert (len(frame), "rank" in frame.columns) == (rows, True), table
            assert sum(map(int, frame.isna().sum())) == sum(column.null_count for column in read.columns), table

    def test_the_screens_read_the_facts_of_each_report_once(self, packed, monkeypatch):
        read, ready = [], []
        read_report = packed_job.read_report
        monkeypatch.setattr(packed_job, "read_report", lambda path: (read.append(path), read_report(path))[1])
        listener = LoadingListener()
        listener.ready = lambda path, report: ready.append(report.path)
        Loading(JobSource((str(packed),)), listener).start()
        assert sorted(read) == sorted(ready) == sorted(discover.packed_reports(packed))
        assert [discover.rank_of(path) for path in discover.discover([str(packed)])] == [0, 1, 2, 3]

    def test_opening_waits_while_the_first_question_is_asked(self, packed, monkeypatch):
        ready, held = [], threading.Event()

        class Turn(threading.Event):
            def wait(self, timeout=None):
                if not self.is_set():
                    held.set()
                return super().wait(3600)

        class Listener(LoadingListener):
            def ready(self, path, report):
                ready.append(path)
                if len(ready) == 1:
                    whole.hold(True)  # as a screen does when it asks

        monkeypatch.setattr(loading, "threading", SimpleNamespace(Event=Turn, Thread=threading.Thread))
        monkeypatch.setattr(loading, "_FIRST_REPORTS", 2)
        whole = Loading(JobSource((str(packed),)), Listener())
        opening = threading.Thread(target=whole.start, daemon=True)
        opening.start()
        held.wait()
        assert len(ready) == 2
        whole.hold(False)
        opening.join()
        assert len(ready) == len(discover.packed_reports(packed)) > 2

    def test_other_columns_are_another_version(self, monkeypatch):
        before = form_version()
        monkeypatch.setattr(canonical, "fingerprint", lambda: "other columns")
        assert form_version() != before


@pytest.mark.campaign
class TestSeveralWriters:
    def test_two_ranks_at_once(self, run, tmp_path, demo_job):
        job = tmp_path / "job"
        running = [start(path, "-o", job) for path in demo_job[:2]]
        said = [process.communicate()[0] for process in running]
        assert [process.returncode for process in running] == [0, 0]
        assert [words.split("  ")[0] for words in said] == ["rank 0", "rank 1"]
        assert run("ranks", job, "--format", "csv").out == run("ranks", *demo_job[:2], "--format", "csv").out
        assert not [name for name in os.listdir(job) if name.startswith(".")]


class TestRefusals:
    """A file that cannot be packed is reported in one line, and changes nothing."""

    @pytest.mark.campaign
    def test_a_rank_that_is_there_is_only_replaced_by_force(self, run, refused, tmp_path, demo_job):
        job = tmp_path / "job"
        run("pack", demo_job[0], "-o", job)
        before = fingerprint(job)
        export = Path(shutil.copy(demo_job[0], tmp_path / "other.sqlite"))
        edit(export, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 2")
        said = refused("pack", export, "-o", job)
        assert "rank 0 already" in said and "--force" in said
        assert fingerprint(job) == before
        assert run("pack", export, "-o", job, "--force").status == 0
        assert run("kernels", job, "--format", "csv").out == run("kernels", export, "--format", "csv").out
        rows = duckdb.sql(f"SELECT count(*) FROM '{job}/kernels/*.parquet'").fetchall()
        assert rows == [(native_count(export, "CUPTI_ACTIVITY_KIND_KERNEL"),)]

    @pytest.mark.campaign
    def test_reports_of_which_nothing_tells_the_rank(self, refused, tmp_path):
        exports = [Path(shutil.copy(path, tmp_path)) for path in shared("cuda-graphs", "gpu-metrics")]
        said = refused("pack", *exports, "-o", tmp_path / "job")
        assert "the rank numbers of cuda-graphs and gpu-metrics are unknown" in said

    @pytest.mark.campaign
    def test_what_can_be_packed_is_and_the_status_tells_of_the_rest(self, run, tmp_path, demo_job):
        (tmp_path / "rank9.sqlite").write_bytes(b"SQLite format 3\0" + bytes(84))
        done = run("pack", demo_job[0], tmp_path / "rank9.sqlite", "-o", tmp_path / "job")
        assert done.status == 2 and "rank9.sqlite" in done.err
        assert packed_facts(tmp_path / "job").keys() == {0}

    @pytest.mark.parametrize("words", [("-o", "{}/in"), ("-o", "{}/in/rank0.sqlite"), ("-o", "{}/job", "--ranks", "0")])
    def test_flags_that_make_no_sense(self, refused, tmp_path, demo_job, words):
        (tmp_path / "in").mkdir()
        export = shutil.copy(demo_job[0], tmp_path / "in")
        before = fingerprint(tmp_path)
        refused("pack", export, *[word.format(tmp_path) for word in words], lines=1)
        assert fingerprint(tmp_path) == before

    def test_a_packed_job_is_not_packed_again(self, refused, tmp_path, packed):
        assert "is packed already" in refused("pack", packed, "-o", tmp_path / "job")

    def test_a_full_disk(self, refused, tmp_path, demo_job):
        with small_disk(tmp_path) as disk:
            fill(disk)
            assert "cannot be written" in refused("pack", demo_job[0], "-o", disk / "job", lines=1)
            assert not [path for path in (disk / "job").rglob("*") if path.is_file()]


class TestDamage:
    """An incomplete report is left out with the reason; other reports open."""

    @pytest.mark.parametrize(("damage", "reason"), [
        (lambda facts, kernels: facts.unlink(), "not a whole packed report"),
        (lambda facts, kernels: facts.write_text("{"), "damaged"),
        (lambda facts, kernels: facts.write_text(f'{{"version": "{form_version()}"}}'), "damaged"),
        (lambda facts, kernels: facts.write_text('{"version": 0}'), "another version"),
        (lambda facts, kernels: os.truncate(facts, facts.stat().st_size - 9), "damaged"),
        (lambda facts, kernels: kernels.unlink(), "damaged: kernels/0"),
        (lambda facts, kernels: os.truncate(kernels, 100), "has 100 of"),
    ])  # fmt: skip
    def test_it_is_left_out(self, run, tmp_path, packed, damage, reason):
        job = copied(packed, tmp_path)
        group = report_in(job, 1).parent
        damage(group / discover.FACTS, job / f"kernels/{group.name}.parquet")
        done = run("overview", job, "--format", "csv")
        assert done.status == 4
        assert [row["Rank"] for row in done.table] == ["0", "2", "3"]
        (line,) = [line for line in done.err.splitlines() if reason in line]
        assert str(group) in line and "pack its export" in line

    def test_a_job_of_an_earlier_form_is_refused(self, refused, tmp_path):
        report = tmp_path / "reports/rank=0"
        report.mkdir(parents=True)
        (report / "report.json").write_text('{"version": "0"}')
        assert f"{report}: packed by another version of nsystui (pack its export again)" in refused("ranks", tmp_path)


@pytest.mark.campaign
def test_two_jobs_do_not_share_what_is_remembered_of_one(run, tmp_path, packed, demo_job):
    other = copied(packed, tmp_path)

    def remembered_as(place: Path) -> tuple[str, ...]:
        with closing(Session()) as session:
            session.add(report_in(place, 0))
            return session.results(session.reports[0]).reports

    assert remembered_as(packed) == remembered_as(other) != ("",)
    run("pack", demo_job[0], "-o", tmp_path / "again")
    assert remembered_as(tmp_path / "again") != remembered_as(packed)


@pytest.mark.campaign
def test_an_export_that_is_deleted_once_it_is_packed_does_not_end_the_packing(run, tmp_path, demo_job, monkeypatch):
    from nsystui.store.packed_job import JobWriter

    export = Path(shutil.copy(demo_job[0], tmp_path))
    add = JobWriter.add

    def add_and_delete(*words):
        for added in add(*words):
            export.unlink()
            yield added

    monkeypatch.setattr(JobWriter, "add", add_and_delete)
    done = run("pack", export, "-o", tmp_path / "job")
    assert done.status == 0 and "of the export" not in done.out
    assert run("kernels", tmp_path / "job").status == 0
