"""Says at the end of a run how many of NVIDIA's tables ours were equal to."""

from __future__ import annotations

from typing import Any

PREFIX = "tests/parity/test_stats_parity.py::test_stats_prints_what_nsys_prints["


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = {
        outcome: sum(report.nodeid.startswith(PREFIX) for report in terminalreporter.stats.get(outcome, ()))
        for outcome in ("passed", "xfailed", "failed")
    }
    total = sum(counts.values())
    if total:
        written_down = f", {counts['xfailed']} differ for a reason written down" if counts["xfailed"] else ""
        terminalreporter.write_line(f"nsys stats: {counts['passed']} of {total} tables are equal{written_down}")
