"""NCCL programs of ``synthetic``, opened as jobs, and values of answers about them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support import open_job, session_over
from synthetic.nccl_program import NcclProcess, NcclProgram

from nsystui.base.answer import TableAnswer
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.queries.tasks import ranked_tasks


class Program(NcclProgram):
    """A program whose export is closed when it is asked about."""

    def pairing(self) -> NcclPairing:
        self.export.close()
        return pairing_of(self.export.path)

    def job(self) -> OpenJob:
        self.export.close()
        return open_job(self.export.path)


def pairing_of(*paths: Path) -> NcclPairing:
    session = session_over(*paths)
    try:
        return NcclPairing.load(session, ranked_tasks(session))
    finally:
        session.close()


def rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Return some columns as tuples, missing values as None."""
    plain = [frame[column].astype(object).where(frame[column].notna(), None) for column in columns]
    return list(zip(*plain, strict=True))


def values(answer: TableAnswer, *keys: str) -> list[tuple[Any, ...]]:
    """Return some columns of an answer, row by row."""
    return list(zip(*(answer.cells(key) for key in keys), strict=True))


def names_of(programs: type[NcclProcess]) -> list[str]:
    """Return the names of a class's programs, in order."""
    return [name for name in vars(programs) if not name.startswith("_")]


def written(programs: type[NcclProcess], path: Path) -> tuple[Program, Mapping[str, tuple[NcclProcess, Any]]]:
    """Yield an export of all ``programs``, still open, and the result of each program's method by its name."""
    first = Program(path)
    processes = {name: programs(first, number) for number, name in enumerate(names_of(programs))}
    return first, {name: (process, getattr(process, name)()) for name, process in processes.items()}
