"""The program's share of a machine: memory, threads and their priority."""

import os
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import accumulate, product
from pathlib import Path
from unittest.mock import Mock

import campaign
import duckdb
import pytest
import sqlalchemy as sa
from support import session_over
from synthetic import benchmark_export

from nsystui.base import resources
from nsystui.base.errors import ExportError, UsageError
from nsystui.base.files import PARTIAL
from nsystui.base.resources import NICE, SMALLEST_MEMORY, Limits
from nsystui.base.units import parse_size, size_words
from nsystui.store import tables
from nsystui.store.cache import Cache, Partial
from nsystui.store.on_demand import OnDemand
from nsystui.store.packing import Packer, Progress
from nsystui.store.report import PackedReport
from nsystui.store.session import Session

MB = 1 << 20
NAMES = sa.select(tables.kernels.c.name)


@pytest.fixture(scope="module")
def larger_export(tmp_path_factory) -> Path:
    return benchmark_export(tmp_path_factory.mktemp("export") / "larger.sqlite", kernels=20_000)


@pytest.fixture
def on_packing(monkeypatch) -> Callable[[Callable[[Packer], object]], None]:
    """Return a function that has another function called with each packer before it runs."""
    run = Packer.run
    return lambda call: monkeypatch.setattr(Packer, "run", lambda packer: (call(packer), run(packer))[1])


class TestSizes:
    def test_are_read_as_people_write_them(self):
        sizes = {
            "512M": 512 * MB, "1.5G": 1536 * MB, "2GiB": 2048 * MB, "2 gib": 2048 * MB, "2 gb": 2_000_000_000,
            "160 kB": 160_000, ".5g": 512 * MB, "1T": 1 << 40, "64k": 65_536, "1048576": MB, "0": 0, "100B": 100,
        }  # fmt: skip
        assert {text: parse_size(text) for text in sizes} == sizes

    @pytest.mark.parametrize("text", ["", "M", "lots", "-1G", "1,5G", "1.5.2G", "1e9", "512 M B", "2P", "½G", "nan"])
    def test_nonsense_is_a_usage_error(self, text):
        with pytest.raises(UsageError, match="is not a size"):
            parse_size(text)

    def test_what_is_advised_can_be_typed(self):
        for size in (160 * MB, 2048 * MB, 1, 5 * MB + 1):
            assert size <= parse_size(size_words(size)) < size + MB


class TestShares:
    def test_what_is_packed_at_once_fits_into_its_share_and_with_memory_enough_the_threads_decide(self):
        for threads, memory in product((1, 2, 4, 32), (SMALLEST_MEMORY, 400 * MB, 800 * MB, 4096 * MB)):
            limits = Limits(threads, memory)
            at_most = max(limits.packs * limits.workers, limits.chunks) * 80 * MB
            assert at_most <= limits.packing.database, limits
            assert 1 <= limits.workers <= limits.chunks <= threads, limits
            assert 1 <= limits.packs <= threads, limits
        for threads in (1, 2):
            limits = Limits(threads)
            assert (limits.packs, limits.chunks) == (threads, threads)

    @pytest.mark.campaign
    def test_the_session_has_the_rest_while_something_is_packed_and_all_of_it_otherwise(
        self, export, cache, on_packing
    ):
        seen: list[tuple[int, int]] = []
        on_packing(lambda packer: seen.append((memory_of(packer.connection), memory_of(session.database))))
        limits = Limits(memory=480 * MB)
        with closing(Session(cache, limits)) as session:
            before = memory_of(session.database)
            session.add(export)
            after = memory_of(session.database)
        assert before == after == limits.database == 300 * MB
        assert seen == [(140 * MB, 160 * MB)]

    @pytest.mark.campaign
    def test_where_the_session_cannot_spare_the_memory_packing_takes_place_in_its_own(
        self, export, cache, on_packing, monkeypatch
    ):
        monkeypatch.setattr(Cache, "spill", lambda cache: None)
        seen: list[int] = []
        with closing(Session(cache, Limits(memory=320 * MB))) as session:
            session.database.execute("CREATE TABLE large AS SELECT hash(range) AS x FROM range(15000000)")
            on_packing(lambda packer: seen.append(memory_of(packer.connection)))
            session.add(export)
            assert len(session.rows(NAMES)) == 200
            assert seen == [memory_of(session.database)] == [160 * MB]

    @pytest.mark.campaign
    @pytest.mark.parametrize(("limits", "most"), [(Limits(1), 1), (Limits(2), 2), (Limits(4, SMALLEST_MEMORY), 1)])
    def test_no_more_exports_are_packed_at_once_than_there_are_threads_and_memory_for(
        self, tmp_path, original, cache, monkeypatch, limits, most
    ):
        """Four exports, added by four threads."""
        run, changes = Packer.run, []  # appending to a list is atomic among threads

        def counted(packer: Packer) -> PackedReport:
            changes.append(1)
            try:
                return run(packer)
            finally:
                changes.append(-1)

        monkeypatch.setattr(Packer, "run", counted)
        paths = [shutil.copyfile(original, tmp_path / f"rank{number}.sqlite") for number in range(4)]
        with closing(Session(cache, limits)) as session, ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda item: session.add(item[1], index=item[0]), enumerate(paths)))
            assert len(session.rows(NAMES)) == 800
        assert max(accumulate(changes)) <= most


def memory_of(connection) -> int:
    ((text,),) = connection.cursor().sql("SELECT current_setting('memory_limit')").fetchall()
    return parse_size(text)


@pytest.mark.campaign
def test_what_a_query_has_no_memory_for_goes_through_files_of_the_cache_and_none_stays(export, cache):
    numbers = sa.func.range(1_000_000).table_valued("range").c.range
    text = sa.func.concat(sa.func.repeat("x", 100), numbers)
    rows = sa.select(sa.func.hash(numbers).label("hash"), text.label("text")).distinct().subquery()
    query = sa.select(sa.func.count()).select_from(rows)
    with closing(Session(cache, Limits(memory=120 * MB))) as session:
        session.add(export)
        assert session.scalar(query) == 1_000_000
    assert not [path for path in cache.directory.iterdir() if path.name.startswith(PARTIAL)]
    with closing(Session(None, Limits(memory=120 * MB))) as session:
        session.add(export)
        with pytest.raises(ExportError, match="do not fit into the memory"):
            session.scalar(query)


class TestTooLittleMemory:
    """The error names the file, the limit and the next step; no half-written file stays."""

    FEW = Limits(memory=40 * MB)

    def expect(self, path: Path, action: Callable[[], object]) -> ExportError:
        with pytest.raises(ExportError, match="do not fit into the memory that DuckDB may take, 25MiB") as error:
            action()
        assert error.value.path == str(path)
        assert "--memory-limit 80MiB" in error.value.advice
        return error.value

    @pytest.mark.parametrize("is_kept", campaign.first(1, [False, True]))
    def test_for_packing(self, larger_export, cache, is_kept):
        with closing(Session(cache if is_kept else None, self.FEW, pytest.fail)) as session:
            error = self.expect(larger_export, lambda: session.add(larger_export))
            assert session.database.sql("SELECT * FROM duckdb_tables()").fetchall() == []
        assert ("--no-cache" in error.advice) == (not is_kept)
        assert list(cache.directory.glob("*")) == []

    @pytest.mark.parametrize("is_kept", [True, False])
    def test_for_single_columns(self, cache, larger_export, is_kept):
        columns = [column for column in tables.kernels.c if column.name not in ("report", "clock_offset")]
        with closing(Session(cache if is_kept else None, Limits(memory=10 * MB), pytest.fail)) as session:
            session.add(larger_export, whole=False)
            with pytest.raises(ExportError, match="may take, 7MiB") as error:
                session.rows(sa.select(*columns))
        assert error.value.path == str(larger_export)
        assert list(cache.directory.glob("*")) == []

    def test_for_writing_them(self, cache, export, monkeypatch):
        error = duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate")
        monkeypatch.setattr(Partial, "write", Mock(side_effect=error))
        with closing(Session(cache, warn=pytest.fail)) as session:
            session.add(export, whole=False)
            with pytest.raises(ExportError, match="memory") as error:
                session.rows(NAMES)
        assert error.value.path == str(export)
        assert list(cache.directory.iterdir()) == []

    @pytest.mark.campaign
    def test_for_a_query(self, larger_export, cache, monkeypatch):
        monkeypatch.setattr(Cache, "spill", lambda cache: None)
        with closing(Session(cache)) as session:
            session.add(larger_export)
        one, other = tables.kernels.alias("one"), tables.kernels.alias("other")
        pairs = sa.select(one.c.start, other.c.end).where(one.c.start < other.c.end).order_by(other.c.end - one.c.start)
        with closing(Session(cache, self.FEW)) as session:
            session.add(larger_export)
            for ask in (session.rows, session.frame, session.arrays, lambda query: list(session.batches(query, 10))):
                self.expect(larger_export, lambda ask=ask: ask(pairs))

    @pytest.mark.campaign
    def test_several_files_are_counted(self, tmp_path, original, cache):
        paths = [shutil.copyfile(original, tmp_path / f"rank{number}.sqlite") for number in range(3)]
        with closing(session_over(*paths, cache=cache)) as session:
            session.database.execute("SET memory_limit = '1MB'")
            one, other = tables.kernels.alias("one"), tables.kernels.alias("other")
            with pytest.raises(ExportError) as error:
                session.rows(sa.select(one.c.name).where(one.c.start < other.c.end).order_by(one.c.name))
        assert error.value.path == f"{paths[0]} and 2 more"

    def test_what_else_goes_wrong_is_not_blamed_on_memory(self, export):
        with closing(Session()) as session:
            session.add(export)
            with pytest.raises(Exception, match="x1") as error:
                session.arrays(sa.select(sa.cast(sa.literal("x1"), sa.Integer) + tables.kernels.c.start))
        assert not isinstance(error.value, ExportError)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
class TestPriority:
    @pytest.fixture(autouse=True)
    def as_for_users(self, monkeypatch):
        monkeypatch.setattr(resources, "NICE", NICE)

    def nice(self) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def test_packing_and_reading_on_demand_step_back_and_their_caller_does_not(self, export, both, monkeypatch):
        before, load, seen = self.nice(), OnDemand.load, []
        both().add(export, lambda _: seen.append(self.nice()))
        assert (set(seen), self.nice()) == ({max(before, NICE)}, before)
        seen.clear()
        monkeypatch.setattr(OnDemand, "load", lambda *words: (seen.append(self.nice()), load(*words)))
        with closing(Session()) as session:
            session.add(export, whole=False)
            assert len(session.rows(NAMES)) == 200
        assert (set(seen), self.nice()) == ({max(before, NICE)}, before)

    @pytest.mark.campaign
    def test_packing_into_the_cache_brings_no_threads_of_duckdbs(self, larger_export, cache):
        """They would have the priority of the user interface. Only DuckDB's idle thread for input exists."""
        ticks: dict[int, int] = {}

        def look(progress: Progress) -> None:
            ours = {thread.native_id for thread in threading.enumerate()}
            ticks.update({task: ticks_of(task) for task in tasks() - before - ours})

        def tasks() -> set[int]:
            return {int(name) for name in os.listdir("/proc/self/task")}

        def ticks_of(task: int) -> int:
            words = Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()
            return int(words[11]) + int(words[12])

        with closing(Session(cache, Limits(threads=4))) as session:
            session.database.execute("SELECT 1")  # starts the threads of queries
            before = tasks()
            session.add(larger_export, look)
        assert len(ticks) <= 1
        assert sum(ticks.values()) <= 1

    def test_a_lower_priority_than_that_stays(self, export):
        """In another thread, because a priority cannot be raised again."""
        seen: list[int] = []

        def lower() -> None:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE + 5)
            with closing(Session()) as session:
                session.add(export, lambda _: seen.append(self.nice()))

        thread = threading.Thread(target=lower)
        thread.start()
        thread.join()
        assert set(seen) == {NICE + 5}

    def test_where_it_cannot_be_lowered_nothing_happens(self, export, monkeypatch):
        monkeypatch.setattr(os, "setpriority", Mock(side_effect=PermissionError(1, "Operation not permitted")))
        with closing(Session()) as session:
            session.add(export)
            assert len(session.rows(NAMES)) == 200


class TestMachine:
    """Limits from Linux's files, here below a directory of the test."""

    def write(self, root: Path, files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return root

    MEMINFO = {"proc/meminfo": "MemTotal:  16000000 kB\nMemAvailable:    8000000 kB\nSwapFree: 5 kB"}
    V2 = "sys/fs/cgroup/user.slice/user-1000.slice"
    USER = {"proc/self/cgroup": "0::/user.slice/user-1000.slice"}
    V1 = "sys/fs/cgroup/memory/memory.limit_in_bytes"
    JOB = {
        "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/other\n1:name=systemd:/x",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "5000",
        "sys/fs/cgroup/memory/other/memory.limit_in_bytes": "1",
        V1: "9223372036854771712",
    }

    @pytest.mark.parametrize(("files", "expected"), [
        ({}, None),
        ({"proc/meminfo": ""}, None),
        ({"proc/meminfo": "MemTotal: 5 kB\nMemAvailable: unknown"}, None),
        (MEMINFO, 8_192_000_000),
        ({**USER, f"{V2}/memory.max": "max"}, None),
        ({**USER, f"{V2}/memory.max": "1000"}, 1000),
        ({**MEMINFO, **USER, f"{V2}/memory.high": "900"}, 900),
        ({**USER, "sys/fs/cgroup/user.slice/memory.max": "7"}, 7),
        ({"proc/self/cgroup": "0::/../../other", "sys/fs/cgroup/memory.max": "70"}, 70),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/unified/memory.max": "71"}, 71),
        ({**MEMINFO, **JOB}, 5000),
        ({"proc/self/cgroup": "4:memory:/docker/of-the-host", V1: "600"}, 600),
        ({"proc/self/cgroup": "nonsense\n\n::", **MEMINFO}, 8_192_000_000),
    ])  # fmt: skip
    def test_memory_is_what_is_available_and_allowed(self, tmp_path, files, expected):
        assert resources.memory(self.write(tmp_path, files)) == expected

    def test_cpus_are_those_of_the_affinity_within_the_quota(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
        assert resources.cpus(tmp_path) == 16
        for quota, expected in {"400000": 4, "150000": 1, "50000": 1, "max": 16, "9900000": 16}.items():
            files = {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": f"{quota} 100000"}
            assert resources.cpus(self.write(tmp_path / quota, files)) == expected, quota
        for kind, quota, expected in (("cpu,cpuacct", 300_000, 3), ("cpu", -1, 16)):
            place = f"sys/fs/cgroup/{kind}/a/cpu.cfs"
            files = {f"{place}_quota_us": str(quota), f"{place}_period_us": "100000"}
            files["proc/self/cgroup"] = f"2:{kind}:/a"
            assert resources.cpus(self.write(tmp_path / kind, files)) == expected, kind
