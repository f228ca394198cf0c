"""Exports for tests and benchmarks alone: illnesses, odd shapes, every table, millions of rows."""

# ruff: noqa: F401, F403

from __future__ import annotations

from pathlib import Path
from typing import Any

from synthetic.demo import TrainingJob

from .benchmark import benchmark_export
from .shapes import *
from .simulation import SWITCH_GUID, simulation_export
from .variants import *
from .writer import ExportWriter


def training_job(directory: str | Path, ranks: int = 4, steps: int = 12, **job: Any) -> list[Path]:
    """Write a demo job and return its reports, ``rank0.sqlite`` first; ``job``: other properties of `TrainingJob`."""
    return TrainingJob(ranks, steps, **job).write(directory)
