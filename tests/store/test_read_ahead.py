"""Pages ahead in an export are asked for in large pieces, each once."""

from __future__ import annotations

import os

import pytest

from nsystui.store import packing
from nsystui.store.packing import ReadAhead


@pytest.fixture
def asked(monkeypatch):
    spans: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, offset, length, advice: spans.append((offset, length)))
    monkeypatch.setattr(packing, "_AHEAD", 100)
    return spans


def test_no_part_is_asked_for_twice_and_nothing_beyond_the_end(tmp_path, asked):
    path = tmp_path / "export.sqlite"
    path.write_bytes(bytes(1_000))
    with ReadAhead(path) as ahead:
        for part in (0.1, 0.1, 0.05, 0.5, 1.0, 1.0):
            ahead.reach(part)
    assert asked == [(0, 200), (200, 400), (600, 400)]


def test_a_file_that_is_gone_is_somebody_elses_trouble(tmp_path, asked):
    with ReadAhead(tmp_path / "gone.sqlite") as ahead:
        ahead.reach(0.5)
    assert asked == []
