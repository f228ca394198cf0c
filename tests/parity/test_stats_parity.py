"""What ``stats`` prints against what NVIDIA's own ``nsys stats`` printed for the same files, byte for byte."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from nsystui.analysis.reports import REPORTS, report_of
from nsystui.analysis.selection import Selection
from nsystui.output.formats import write
from nsystui.store.session import Session

SHARED = Path(__file__).parents[3] / "shared/data"
REFERENCE = SHARED / "nsys-stats"
SUFFIXES = {"_base": ":base", "_mangled": ":mangled", "": ""}


def pairs() -> list[tuple[str, str]]:
    """(export, report) for every reference table of a report that we have."""
    found = []
    for name in REPORTS:
        for suffix, option in SUFFIXES.items():
            for table in sorted(REFERENCE.glob(f"*/{name}{suffix}.csv")):
                found.append((table.parent.name, name + option))
    return found


@pytest.fixture(scope="module")
def sessions():
    opened: dict[str, Session] = {}

    def session_of(export: str) -> Session:
        if export not in opened:
            opened[export] = Session()
            opened[export].add(SHARED / "exports" / f"{export}.sqlite")
        return opened[export]

    yield session_of
    for session in opened.values():
        session.close()


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="NVIDIA's reference tables are not on this machine")
@pytest.mark.parametrize(("export", "report"), pairs() or [("", "")])
def test_stats_prints_what_nsys_prints(sessions, export, report):
    asked, names = report_of(report)
    printed = io.StringIO()
    write(asked.ask(sessions(export), Selection(), names), "csv", printed)
    expected = (REFERENCE / export / f"{report.replace(':', '_')}.csv").read_text(encoding="utf-8")
    assert printed.getvalue() == expected
