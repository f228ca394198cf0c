"""The real exports, each opened once, and at the end of a run the number of tables that equal NVIDIA's."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import session_over, shared

from nsystui.questions.job.job import OpenJob

PREFIX = "tests/parity/test_stats_parity.py::test_stats_prints_what_nsys_prints["


@pytest.fixture(scope="session")
def job_of() -> Iterator[Callable[[str], OpenJob]]:
    """Yield a function that opens the job of a real export by its name; tests must not add to it."""
    opened: dict[str, OpenJob] = {}

    def open_once(export: str) -> OpenJob:
        if export not in opened:
            opened[export] = OpenJob(session_over(*shared(export)))
        return opened[export]

    yield open_once
    for job in opened.values():
        job.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    passed, failed = (
        sum(report.nodeid.startswith(PREFIX) for report in terminalreporter.stats.get(outcome, ()))
        for outcome in ("passed", "failed")
    )
    if passed + failed:
        terminalreporter.write_line(f"nsys stats: {passed} of {passed + failed} tables are equal")
