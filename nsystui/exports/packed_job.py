"""Where a packed job has what: a directory of Parquet datasets, one for each canonical table, partitioned by rank.

``DIR/kernels/rank=3/….parquet`` are the kernels of rank 3, and ``DIR/reports/rank=3/report.json`` says what else is
known of its report and which files are its own. A report is there if that file is, which is put there last.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

REPORTS = "reports"
FACTS = "report.json"
_RANK = re.compile(r"rank=([0-9]+)")


def rank_directory(rank: int) -> str:
    """The name of a rank's directory in each of the datasets."""
    return f"rank={rank}"


def is_packed_report(path: Path) -> bool:
    """Whether ``path`` is the directory of a report in a packed job, whole or not."""
    return _RANK.fullmatch(path.name) is not None and os.path.isdir(path)


def packed_reports(directory: Path) -> list[Path]:
    """The directories of the reports of a packed job; none where ``directory`` is something else."""
    try:
        names = os.listdir(directory / REPORTS)
    except OSError:
        return []
    return [directory / REPORTS / name for name in names if _RANK.fullmatch(name)]


def job_of(report: Path) -> Path:
    """The packed job that the directory of a report is in."""
    return report.absolute().parents[1]


def name_of(path: Path) -> str:
    """How the report is called that ``path`` names: an export, or the directory of a packed one."""
    if is_packed_report(path):
        try:
            return str(json.loads((path / FACTS).read_text(encoding="utf-8"))["name"])
        except (OSError, ValueError, KeyError, TypeError):  # opening it says what is wrong
            return path.name
    return path.stem
