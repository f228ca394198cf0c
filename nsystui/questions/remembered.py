"""Answers that are given again without opening anything: the same question of the same unchanged files.

They are kept in the cache as plain values; a remembered answer is the answer that was given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui import __version__
from nsystui.base.answer import Answer, TableAnswer, iter_rows
from nsystui.base.columns import Column, Unit
from nsystui.base.selection import Selection
from nsystui.exports import opening
from nsystui.store.answers import Answers
from nsystui.store.cache import Cache
from nsystui.store.damage import damage_line, known_damage

if TYPE_CHECKING:
    from nsystui.questions.job import Job

MOST_ROWS = 20_000
"""Answers of more rows are not worth remembering: reading them is no faster than asking again."""
VERSION = 1
"""Raised whenever the same question gets another answer from the same files."""


@dataclass(frozen=True)
class Remembered:
    """The answers to questions about ``files``, each known by its place and state."""

    answers: Answers
    files: Sequence[str]
    damage: tuple[str, ...] = ()
    """What is known of damage in the files."""

    @classmethod
    def of_files(cls, cache: Cache, paths: Iterable[Path]) -> Remembered:
        """What is remembered of exports. Raises ExportError and OSError for one that cannot be opened."""
        files, damage = [], []
        for path in paths:
            opening.check(path)
            # Its name and its state, and in which columns it was read. The path, as notes name files.
            files.append(f"{path.name}|{cache.place_of(path).name}")
            damage.append(damage_line(path, known_damage(cache.kept_of(path))))
        return cls(Answers(cache.directory / "answers"), files, tuple(filter(None, damage)))

    def recall(self, *question: str) -> tuple[str, TableAnswer] | None:
        """What was kept as the answer to ``question``, with its title."""
        kept = self.answers.load(self._key(question))
        if kept is None:
            return None
        answer = from_json(kept["answer"])
        return str(kept["title"]), replace(answer, notes=(*answer.notes, *self.damage))

    def keep(self, job: Job, answer: Answer, title: str, *question: str) -> None:
        """Keeps an answer that is in memory and not too long, if it is one about all of the files."""
        is_small = isinstance(answer, TableAnswer) and len(answer) <= MOST_ROWS
        # Which rows were left out is told by whoever reads them.
        is_whole = not any(any(report.packed.left_out.values()) for report in job.session.reports)
        if is_small and is_whole and len(job.session.reports) == len(self.files):
            self.answers.save(self._key(question), {"title": title, "answer": to_json(answer)})

    def _key(self, question: Sequence[str]) -> str:
        return json.dumps([__version__, VERSION, question, self.files])


def remember_first_questions(job: Job, cache: Cache, paths: Iterable[Path]) -> None:
    """Answers what every look at a job begins with: the kernel summary, for the commands that will ask it again.

    Of large jobs the summary of API calls and the index of the event list as well, which take a second or two there.
    Raises ExportError and OSError where one of the files is not there any more.
    """
    from nsystui.questions.events import EventList
    from nsystui.questions.kernels import Names
    from nsystui.questions.stats import report_of
    from nsystui.questions.work import API, work_summary

    known = Remembered.of_files(cache, paths)
    text = "cuda_gpu_kern_sum"
    if known.recall("stats", text) is None and job.session.reports:
        report, options = report_of(text)
        answer = report.ask(job, Selection(), options)
        if len(answer):
            known.keep(job, answer, report.help, "stats", text)
            known.keep(job, answer, "", "kernels", Names.FULL.value, "")
    # The Overview asks for it now: what follows comes after it, for side by side they would take the memory of both.
    job.busy(Selection())
    work_summary(job.session, Selection(), API)
    EventList.build(job.session, Selection(), job.ranks)


def to_json(answer: Answer) -> dict[str, Any]:
    """``answer`` with all of its rows."""
    return {
        "name": answer.name,
        "columns": [
            [column.key, column.header, column.label, column.unit.value, column.decimals, column.importance]
            for column in answer.columns
        ],
        "rows": list(iter_rows(answer)),
        "total": answer.total,
        "notes": list(answer.notes),
    }


def from_json(values: Any) -> TableAnswer:
    """The inverse of ``to_json``; raises KeyError, TypeError or ValueError for what it did not write."""
    columns = tuple(
        Column(key, header=header, label=label, unit=Unit(unit), decimals=decimals, importance=importance)
        for key, header, label, unit, decimals, importance in values["columns"]
    )
    rows = [tuple(row) for row in values["rows"]]
    if any(len(row) != len(columns) for row in rows):
        raise ValueError("a row has more or fewer values than there are columns")
    return TableAnswer(values["name"], columns, rows, values["total"], tuple(values["notes"]))
