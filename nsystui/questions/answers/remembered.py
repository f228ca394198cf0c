"""Answers that are given again without opening anything: the same question of the same unchanged files.

They are kept in the cache as plain values; a remembered answer is the answer that was given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nsystui.base.answer import Answer, Column, TableAnswer, Unit, Wrapped, iter_rows
from nsystui.base.errors import ExportError
from nsystui.base.selection import Selection
from nsystui.exports.opening import ExportFile, check, look
from nsystui.store.cache import Cache
from nsystui.store.damage import damage_line, known_damage
from nsystui.store.results import Results, version_of

if TYPE_CHECKING:
    from nsystui.base.kernel_families import Rules
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.job.opening import JobSource

MOST_ROWS = 20_000
"""Answers of more rows are not worth remembering: reading them is no faster than asking again."""


@dataclass(frozen=True)
class Remembered:
    """The answers to questions about files."""

    results: Results
    files: tuple[ExportFile, ...]
    damage: tuple[str, ...] = ()
    """One line for each file that is known to be damaged."""
    families: Rules = ()
    """The user's own rules for families of kernels, which answers depend on."""

    @classmethod
    def of_files(cls, cache: Cache, files: Sequence[ExportFile], families: Rules = ()) -> Remembered:
        """The remembered answers about exports."""
        # Its name and its state, and in which columns it was read. The path, as notes name files.
        states = [f"{file.path.name}|{cache.path_of(file).name}" for file in files]
        damage = [damage_line(file.path, known_damage(cache.results_of(file))) for file in files]
        return cls(cache.results_of_several(states), tuple(files), tuple(filter(None, damage)), families)

    @classmethod
    def of_source(cls, source: JobSource) -> Remembered | None:
        """Return the remembered answers about the files of a source; ``None`` if opening them has something to say."""
        from nsystui.exports.convert import made_before
        from nsystui.exports.discover import FACTS, discover, is_packed_report, stale_note

        if source.cache_directory is None:
            return None
        cache = Cache(source.cache_directory, source.cap)
        try:
            paths = discover(source.files)
            if any(map(stale_note, paths)):
                return None
            files = [
                look(path / FACTS)[1] if is_packed_report(path) else check(made_before(path, cache.conversions))
                for path in paths
            ]
            return cls.of_files(cache, files, source.families) if cache.is_ours else None
        except (ExportError, OSError):
            return None

    def recall(self, *question: str) -> tuple[str, TableAnswer] | None:
        """The answer to ``question`` that was given before, with its text, or the title of its table."""
        found = self.results.load(
            self._key(question), version_of(), lambda found: (str(found["text"]), from_json(found["answer"]))
        )
        if found is None:
            return None
        text, answer = found
        return text, replace(answer, notes=(*answer.notes, *self.damage))

    def keep(self, job: OpenJob, answer: Answer, text: str, *question: str) -> None:
        """Keeps an answer that is in memory and not too long, if it is one about all of the files."""
        held = answer
        while isinstance(held, Wrapped):
            held = held.whole
        is_small = isinstance(held, TableAnswer) and len(answer) <= MOST_ROWS
        # A note on rows that were left out comes from reading them, and one on several runs from opening.
        is_whole = job.shares_clock and not any(
            report.damaged or any(report.packed.left_out.values()) for report in job.session.reports
        )
        # Answers are of the exports as they were when the session read them.
        is_same = all(file.is_unchanged for file in self.files)
        if is_small and is_whole and is_same and len(job.session.reports) == len(self.results.reports):
            self.results.save(self._key(question), {"text": text, "answer": to_json(answer)}, version_of())

    def _key(self, question: Sequence[str]) -> str:
        return json.dumps([*question, *self.families])


def remember_first_questions(job: OpenJob, cache: Cache) -> None:
    """Answers what every look at a job begins with: the kernel summary, for the commands that will ask it again.

    Of large jobs the summary of API calls and the index of the event list as well, which take a second or two there.
    Raises ExportError and OSError where one of the files cannot be read any more.
    """
    from nsystui.questions.events.listing import EventList
    from nsystui.questions.kernels.activities import API, work_summary
    from nsystui.questions.kernels.summary import Names, kernel_summary
    from nsystui.questions.queries.registry import question_named
    from nsystui.questions.ranks.overview import task_table
    from nsystui.questions.stats import report_of

    session = job.session
    known = Remembered.of_files(
        cache, [session.exports[one.index] for one in session.reports if one.index in session.exports], job.families
    )
    text = "cuda_gpu_kern_sum"
    if known.recall("stats", text) is None and job.session.reports:
        report, options = report_of(text)
        answer = report.ask(job, Selection(), options)
        if len(answer):
            known.keep(job, answer, report.help, "stats", text)
            summary = kernel_summary(job.session, Selection(), Names.SMART, families=job.families)
            kernels = question_named("kernels")
            known.keep(job, summary, "", *kernels.key(kernels.default_values()))
    # The Overview asks for it now: what follows comes after it, for side by side they would take the memory of both.
    task_table(job.session, Selection(), job.ranks, job.busy(Selection()))
    work_summary(job.session, Selection(), API)
    EventList.build(job.session, Selection(), job.ranks)


def to_json(answer: Answer) -> dict[str, Any]:
    """``answer`` with all of its rows."""
    return {
        "name": answer.name,
        "columns": [vars(column) | {"unit": column.unit.value} for column in answer.columns],
        "rows": list(iter_rows(answer)),
        "total": answer.total,
        "notes": list(answer.notes),
    }


def from_json(values: Any) -> TableAnswer:
    """The inverse of ``to_json``; raises KeyError, TypeError or ValueError for what it did not write."""
    columns = tuple(
        Column(**{**found, "unit": Unit(found["unit"]), "stack": tuple(map(tuple, found["stack"]))})
        for found in values["columns"]
    )
    rows = [tuple(row) for row in values["rows"]]
    if any(len(row) != len(columns) for row in rows):
        raise ValueError("a row has more or fewer values than there are columns")
    return TableAnswer(values["name"], columns, rows, values["total"], tuple(values["notes"]))
