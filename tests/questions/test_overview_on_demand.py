"""The overview and the events of exports that are not packed: the same, from few columns, which stay in the cache."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import campaign
import pytest
import synthetic
from support import edit, native
from synthetic import demo

from nsystui.base.selection import Selection
from nsystui.questions.gpu.utilisation import columns_read, utilisation_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.question import Expected, ask, question_named
from nsystui.questions.queries.time_window import event_span
from nsystui.questions.ranks.overview import TALLIED, job_facts, task_table
from nsystui.store.cache import Cache
from nsystui.store.packing import Packer
from nsystui.store.session import Session

KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


def _job(directory: Path) -> list[Path]:
    return demo.TrainingJob(ranks=3, steps=1, layers=1).write(directory)


def _one(make: Callable[[Path], Path], *statements: str) -> Callable[[Path], list[Path]]:
    """Return a function that writes an export named like the first of several ranks, after some changes in SQL."""

    def write(directory: Path) -> list[Path]:
        path = make(directory / "rank0.sqlite")
        edit(path, *statements)
        return [path]

    return write


def _two_runs(directory: Path) -> list[Path]:
    return [synthetic.two_process_export(directory / "a.sqlite"), synthetic.whole_graph_export(directory / "b.sqlite")]


def _only_os_calls(directory: Path) -> list[Path]:
    path = synthetic.cpu_only_export(directory / "rank0.sqlite")
    tables = {name for (name,) in native(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    events = {name for name in tables if "_EVENTS" in name or "CUPTI_ACTIVITY" in name}
    edit(path, *(f'DROP TABLE "{name}"' for name in sorted(events)))
    return [path]


SHAPES: dict[str, Callable[[Path], list[Path]]] = {
    "processes that take turns": _one(
        synthetic.two_process_export,
        f"UPDATE {RUNTIME} SET globalTid = (SELECT globalTid FROM {RUNTIME} b WHERE b.rowid = {RUNTIME}.rowid + 150)"
        " WHERE rowid % 3 = 0",
    ),
    "no table of kernels": _one(synthetic.two_process_export, f"DROP TABLE {KERNEL}"),
    "MPI": _one(synthetic.simulation_export), "every table": _one(synthetic.all_tables_export),
    "OS calls only": _only_os_calls, "no API calls": _one(synthetic.two_process_export, f"DELETE FROM {RUNTIME}"),
    "an old nsys": _one(synthetic.old_schema_export), "several runs": _two_runs, "a job": _job,
    "nodes of graphs": _one(synthetic.node_graph_export),
    "no kernels": _one(synthetic.two_process_export, f"DELETE FROM {KERNEL}"),
    "no table of API calls": _one(synthetic.two_process_export, f"DROP TABLE {RUNTIME}"),
    "payloads": _one(synthetic.payload_export), "instrumented names": _one(synthetic.instrumented_nccl_export),
    "no GPU": _one(synthetic.cpu_only_export), "nothing": _one(synthetic.empty_export),
    "ranges that stay open": _one(synthetic.open_ranges_export),
    "a late capture": _one(synthetic.delayed_capture_export),
}  # fmt: skip


OF_OVERVIEW = columns_read(of_streams=False), TALLIED


@contextmanager
def opened(
    paths: Sequence[Path],
    cache: Cache | None,
    whole: bool = False,
    expected: Expected = OF_OVERVIEW,
) -> Iterator[OpenJob]:
    session = Session(cache=cache, warn=pytest.fail)
    for path in paths:
        session.add(path, whole=whole)
    session.expect(*expected)
    job = OpenJob(session)
    yield job
    job.close()


def overview(job: OpenJob, selection: Selection = Selection()) -> object:  # noqa: B008
    busy = job.busy(selection)
    table = task_table(job.session, selection, job.ranks, busy)
    gpus = utilisation_table(busy, job.extent(selection))
    spans = [event_span(report) for report in job.session.reports]
    return job.ranks, job_facts(job.session, job.ranks), table.rows, table.notes, gpus.rows, spans


def asked(paths: Sequence[Path], cache: Cache | None, whole: bool = False) -> object:
    with opened(paths, cache, whole) as job:
        return overview(job)


@pytest.fixture
def cache(tmp_path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> list[Path]:
    return _job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def job(written, tmp_path) -> list[Path]:
    (tmp_path / "job").mkdir()
    return [Path(shutil.copy(path, tmp_path / "job")) for path in written[:2]]


def scans(read: Sequence[str], table: str) -> list[str]:
    queries = [query for query in read if "min(rowid)" not in query]
    return [query for query in queries if query.partition(" WHERE ")[0].endswith(f'FROM "{table}"')]


def columns_of(scan: str) -> list[str]:
    return sorted(part.rpartition(" AS ")[2] for part in scan.partition(" FROM ")[0].split(", "))


@pytest.mark.campaign
@pytest.mark.parametrize("shape", SHAPES)
def test_the_numbers_are_those_of_a_whole_pack(shape, tmp_path, cache):
    paths = SHAPES[shape](tmp_path)
    expected = asked(paths, None, whole=True)
    assert (asked(paths, None), asked(paths, cache)) == (expected, expected)
    # From kept columns without a pack, next to a pack.
    assert asked(paths, cache, whole=True) == expected


OUT_OF_ORDER = _one(
    synthetic.two_process_export,
    f'UPDATE {RUNTIME} SET start = 100 - 10 * (rowid % 7), "end" = 105 - 10 * (rowid % 7)',
    f'UPDATE {KERNEL} SET start = 100 - 10 * (rowid % 5), "end" = start WHERE rowid % 2',
    f'UPDATE {KERNEL} SET "end" = start - 1 WHERE rowid % 9 = 0',
)


def listed(paths: Sequence[Path], cache: Cache | None, kinds: str, whole: bool = False) -> object:
    question = question_named("events")
    values = {"kinds": kinds, "time": None}
    assert question.expected is not None
    with opened(paths, cache, whole, question.expected(values)) as job:
        answer = ask(question, job, Selection(), question.read(values))
        slowest = answer.sorted_by("duration", descending=True)
        return [(one.page(0, 1_000), len(one), one.total, one.notes) for one in (answer, slowest)]


@pytest.mark.parametrize("kinds", ["", "nccl,os,mark"])
@pytest.mark.parametrize("shape", campaign.first(1, ["out of order", *SHAPES]))
def test_the_events_are_those_of_a_whole_pack(shape, kinds, tmp_path, cache):
    paths = {**SHAPES, "out of order": OUT_OF_ORDER}[shape](tmp_path)
    expected = listed(paths, None, kinds, whole=True)
    assert (listed(paths, None, kinds), listed(paths, cache, kinds)) == (expected, expected)


class TestWhatIsRead:
    @pytest.fixture(autouse=True)
    def _nothing_is_packed(self, monkeypatch) -> None:
        monkeypatch.setattr(Packer, "run", lambda _: pytest.fail("packed"))

    @pytest.mark.campaign
    def test_few_columns_once(self, job, cache, read):
        asked(job[:1], cache)
        (kernels,) = scans(read, KERNEL)
        expected = ['"device"', '"end"', '"name_id"', '"process"', '"row_id"', '"short_id"', '"start"']
        assert columns_of(kernels) == expected
        extent, ids = map(columns_of, scans(read, RUNTIME))
        assert extent == ['"end"', '"event_class"', '"name_id"', '"row_id"', '"start"', '"thread"']
        # as a GPU idles for long, whether ids of calls are missing
        assert {*ids} == {*extent, '"correlation_id"'} - {'"name_id"'}

    def test_each_table_of_events_once(self, job, cache, read):
        listed(job[:1], cache, "kernel,nccl,nvtx")
        assert [len(scans(read, table)) for table in (KERNEL, RUNTIME)] == [1, 0]

    def test_who_is_which_rank_by_mpi_takes_no_nccl(self, tmp_path, cache, read):
        with opened([synthetic.simulation_export(tmp_path / "rank0.sqlite")], cache) as job:
            assert {item.source for item in job.ranks} == {"MPI"}
        assert not [query for query in read if "blob" in query]

    @pytest.mark.campaign
    def test_nothing_the_second_time_even_if_the_columns_are_gone(self, job, cache, read):
        expected = asked(job, cache)
        written = {place.name.partition(".")[2].partition("-")[0] for place in cache.directory.iterdir()}
        assert written == {"results", "kernels", "memory_ops", "processes", "nccl_calls", "api_calls"}
        results = {file.stem.split("=")[1] for file in cache.directory.glob("*.results/*")}
        assert results == {
            "busy", "counts", "holes", "kernel-names", "nccl-copies", "nccl-ranks", "processes", "tallies",
            "unrecorded-work-GraphLaunch-Launch-Memcpy-Memset", "whole",
        }  # fmt: skip
        for _ in range(2):
            read.clear()
            assert asked(job, cache) == expected
            assert read == []
            for place in cache.directory.iterdir():
                if not place.name.endswith(".results"):
                    shutil.rmtree(place)


@pytest.mark.campaign
class TestBesideAPack:
    def test_what_was_kept_without_a_pack_serves_with_one(self, job, cache, monkeypatch):
        expected = asked(job, cache)
        with opened(job, cache, whole=True):
            pass
        monkeypatch.setattr(Session, "_executed", lambda *_: pytest.fail("asked"))
        monkeypatch.setattr(Session, "rows", lambda *_: pytest.fail("asked"))
        assert asked(job, cache, whole=True) == expected
