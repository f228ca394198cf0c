"""Fixtures for all tests: a small demo job, real exports if present, and a cache that is not the user's."""

import atexit
import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import campaign
import idle  # noqa: F401 - pilots wait until the program rests
import pytest
from hypothesis import HealthCheck, settings
from support import session_over, shared
from synthetic import two_process_export
from synthetic.demo import TrainingJob

from nsystui.base import resources
from nsystui.exports.leaf_pages import LeafPages
from nsystui.exports.opening import ArrowReader
from nsystui.questions import catalogue
from nsystui.questions.queries.question import Question, question_named, questions, views
from nsystui.store import dialect
from nsystui.store.session import Session

SMALL_JOB = TrainingJob(ranks=4, steps=3, layers=2)


# A collection of garbage over all modules and thousands of tests takes 0.2 s: run it rarely, and never during imports.
gc.set_threshold(700, 10, 100)
gc.disable()

# A background job ignores SIGINT, and programs that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The time of an example depends on the load of the machine. NSYSTUI_CAMPAIGN chooses other examples.
settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=campaign.cases(30),
    derandomize=campaign.SEED == 1, database=None,
)  # fmt: skip
settings.load_profile("unhurried")


@atexit.register
def _end_quietly() -> None:
    """Discard stderr at exit: DuckDB's binding reports there all objects that Python has not freed."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)


def pytest_configure(config: pytest.Config) -> None:
    """Collect garbage once at the end, where pytest collects five times, a second each, for Pythons that need it."""
    with suppress(ImportError):  # older versions of pytest do not collect
        from _pytest.unraisableexception import gc_collect_iterations_key

        config.stash[gc_collect_iterations_key] = 1


@pytest.hookimpl(optionalhook=True)  # unknown without xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one worker more than there are CPUs, if there is memory for them: tests of screens wait half of the time.

    More workers would cost more than they save: each imports the tests, and opens the shared jobs.
    """
    allowed = resources.memory()
    workers = resources.cpus() + 1
    return workers if allowed is None else max(min(workers, allowed // _WORKER_MEMORY), 1)


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, because they stay."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print how to repeat the order of this run, if it was random."""
    seed = getattr(config.option, "randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"order: --randomly-seed={seed}")


# Peak memory of a worker, with the programs that its tests start.
_WORKER_MEMORY = 1 << 30

_PR_CAPBSET_DROP = 24
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory) -> Path:
    """Return a directory that all processes of a run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def written_once(run_directory, tmp_path_factory) -> Callable[..., list[Path]]:
    """Return a function that writes a job once in a run, by name; tests must not change it."""

    def job(name: str, write: Callable[[Path], object]) -> list[Path]:
        directory = run_directory / name
        if not directory.exists():
            mine = tmp_path_factory.mktemp(name)
            write(mine)
            with suppress(OSError):  # another process was faster
                mine.rename(directory)
        return sorted(directory.glob("*.sqlite"))

    return job


@pytest.fixture(autouse=True, scope="session")
def cache_directory(run_directory) -> Iterator[Path]:
    """Yield the cache of the commands, one for the whole run and never the user's."""
    directory = run_directory / "cache"
    directory.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NSYSTUI_CACHE_DIR", str(directory))
        patch.setenv("XDG_CONFIG_HOME", str(directory / "no-config"))
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            patch.delenv(name, raising=False)
        # Tests run in parallel: more threads in one test would only cost more CPU time in total.
        patch.setattr(resources, "usual_threads", lambda: 1)
        # Tests wait for background threads, which would take minutes at a low priority.
        patch.setattr(resources, "NICE", -20)
        # In a process with all tests, glibc takes a millisecond to return unused memory.
        patch.setattr(resources.give_back, "__code__", (lambda: None).__code__)
        # All questions are asked in one process, and a query takes as long to compile as DuckDB takes to answer it.
        patch.setattr(dialect, "_MAX_COMPILED", 500)
        yield directory


@pytest.fixture(scope="session")
def demo_job(written_once) -> list[Path]:
    """Return the exports of ``SMALL_JOB``, four ranks on two hosts, three steps; tests must not change them."""
    return written_once("demo", SMALL_JOB.write)


@pytest.fixture(scope="session")
def demo_session(demo_job) -> Iterator[Session]:
    """Yield the demo job in a session in memory, to which tests must not add reports."""
    session = session_over(*demo_job)
    yield session
    session.close()


@pytest.fixture(scope="session")
def original(tmp_path_factory) -> Path:
    """Return an export of two processes with 100 kernels each, which tests must not change."""
    return two_process_export(tmp_path_factory.mktemp("original") / "rank0.sqlite")


@pytest.fixture(scope="session")
def shared_export() -> Callable[[str], Path]:
    """Return the path of a real export by its name; skip the test if it is missing."""
    return lambda name: shared(name)[0]


@pytest.fixture(scope="module")
def dask_scheduler() -> Iterator[str]:
    """Yield the address of a Dask cluster of two processes, which gives up a task after the death of two workers."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'nsystui[dask]'")
    import dask

    quiet = {
        "distributed.scheduler.allowed-failures": 1,
        # Monitoring in an idle cluster takes a tenth of a CPU for each process.
        "distributed.scheduler.work-stealing": False, "distributed.scheduler.active-memory-manager.start": False,
        "distributed.worker.profile.enabled": False, "distributed.worker.memory.monitor-interval": "1h",
        "distributed.admin.system-monitor.interval": "1h", "distributed.admin.tick.interval": "1h",
        "distributed.admin.tick.cycle": "1h",
    }  # fmt: skip
    with (
        dask.config.set(quiet),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
    ):
        yield cluster.scheduler_address


@pytest.fixture
def opened() -> Iterator[Callable[..., Session]]:
    """Yield a function that opens exports in a session, which is closed after the test."""
    sessions: list[Session] = []

    def open_all(*paths: Path) -> Session:
        sessions.append(session_over(*paths))
        return sessions[-1]

    yield open_all
    for session in sessions:
        session.close()


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """Return the list that gets the readers' queries of SQLite; rows that are decoded from pages count as a query."""
    queries: list[str] = []
    stream, rows = ArrowReader.stream, LeafPages.rows

    def spied(reader: ArrowReader, query: str) -> object:
        queries.append(query)
        return stream(reader, query)

    def decoded(pages: LeafPages, first: int, last: int, columns: Mapping[str, str]) -> object:
        names = ", ".join(f'{sql} AS "{name}"' for name, sql in {"row_id": "rowid", **columns}.items())
        queries.append(f'SELECT {names} FROM "{pages.table}" WHERE rowid BETWEEN')
        return rows(pages, first, last, columns)

    monkeypatch.setattr(ArrowReader, "stream", spied)
    monkeypatch.setattr(LeafPages, "rows", decoded)
    return queries


@pytest.fixture
def session() -> Iterator[Session]:
    """Yield an empty session without a cache."""
    opened = Session()
    yield opened
    opened.close()


@pytest.fixture
def unprivileged() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs Python under file permissions: root first gives up the right to ignore them."""

    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            preexec_fn=_give_up_rights if os.getuid() == 0 else None, **options,
        )  # fmt: skip
        if done.returncode == 77:
            pytest.skip("this process is root and may not give up the right to pass permissions")
        return done

    return run


def _give_up_rights() -> None:
    for right in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
        if ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, right, 0, 0, 0):
            os._exit(77)


DUMMY_QUESTION = '''
"""A question about nothing."""

from nsystui.questions.queries.question import Option, Question, ShownRows, View


def ask(job, selection, options):
    from nsystui.base.answer import TableAnswer
    from nsystui.base.answer import Column, Unit

    ranks = Column("ranks", header="Ranks", label="ranks", unit=Unit.NUMBER)
    columns = (ranks, Column("word", header="Word", label="word"))
    return TableAnswer("dummy", columns, [(len(job.ranks), options["word"])], 1, ())


QUESTIONS = (
    Question(
        "dummy",
        "how many ranks there are, and a word",
        ask,
        description="A question of a test.",
        examples="  nsystui dummy rank0.sqlite",
        options=(Option("word", "the word", choices=("one", "two"), default="one"),),
    ),
    Question(
        "shown",
        "the same on a screen",
        ask,
        options=(Option("word", "the word", choices=("one", "two"), default="one"),),
        rows=ShownRows(home="ranks", title="first words"),
        views=(View("first"), View("second", "second words", "words", {"word": "two"}, ("word", True))),
    ),
)
'''


@pytest.fixture
def dummy_question(tmp_path, monkeypatch) -> Iterator[Question]:
    """Yield the question of a new file in a folder that the catalogue searches."""
    (tmp_path / "catalogue").mkdir()
    (tmp_path / "catalogue/dummy.py").write_text(DUMMY_QUESTION)
    monkeypatch.setattr(catalogue, "__path__", [*catalogue.__path__, str(tmp_path / "catalogue")])
    kept = questions, views, question_named
    for function in kept:
        function.cache_clear()
    yield question_named("dummy")
    for function in kept:
        function.cache_clear()
    sys.modules.pop("nsystui.questions.catalogue.dummy", None)
