"""JSON nested thousands of levels deep is an error of one line wherever a file of it is read."""

from __future__ import annotations

import campaign
import pytest

from nsystui.cli import main
from nsystui.exports.discover import FACTS

DEEP = "[" * 5_000 + "]" * 5_000


@pytest.mark.parametrize(
    "words",
    campaign.first(1, [["info", "job/reports/rank=0"], ["kernels", "job/reports/rank=0", "--dask", "scheduler.json"]]),
)
def test_a_file_beside_reports_is_told_to_be_none(monkeypatch, tmp_path, capsys, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job/reports/rank=0").mkdir(parents=True)
    for file in (tmp_path / "job/reports/rank=0" / FACTS, tmp_path / "scheduler.json"):
        file.write_text(DEEP)
    assert main(words) == 2
    said = capsys.readouterr().err.splitlines()[0]
    assert (
        said.startswith(f"nsystui: job/reports/rank=0: damaged: {FACTS} is not")
        or "not a file that a Dask scheduler" in said
    )
