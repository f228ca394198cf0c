"""A plugin of pytest (``-p line_recorder``) that records which lines of nsystui each test executes, and its CPU time.

``tests/mutants.py`` starts it. Lines that a shared fixture executes are the fixture's, not the first test's.
"""

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

PART = Path(os.environ["RECORDED_LINES"]) / f"part-{os.getpid()}"

# Before anything of the program is imported.
recorder = coverage.Coverage(data_file=str(PART), config_file=False, source=["nsystui"])
recorder.set_option("run:relative_files", True)
recorder.start()

contexts = [""]
tests: dict[str, tuple[float, list[str]]] = {}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def context_of(fixture: Any) -> str:
    return f"fixture {fixture.argname} of {fixture.baseid}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    before = cpu_seconds()
    contexts[:] = [item.nodeid]
    recorder.switch_context(item.nodeid)
    fixtures = [fixture for several in item._fixtureinfo.name2fixturedefs.values() for fixture in several]
    own = [fixture for fixture in fixtures if fixture.baseid and fixture.scope != "function"]  # not plugins' lines
    shared = sorted(map(context_of, own))
    tests[item.nodeid] = 0.0, shared
    done = yield
    if item.nodeid in tests:
        tests[item.nodeid] = round(cpu_seconds() - before, 3), shared
    return done


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[Any]:
    if fixturedef.scope == "function":
        return (yield)
    contexts.append(context_of(fixturedef))
    recorder.switch_context(contexts[-1])
    try:
        return (yield)
    finally:
        contexts.pop()
        recorder.switch_context(contexts[-1])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Leave out a test that fails without a mutant."""
    if report.failed:
        tests.pop(report.nodeid, None)


def pytest_sessionfinish() -> None:
    recorder.stop()
    recorder.save()
    PART.with_suffix(".json").write_text(json.dumps(tests))
