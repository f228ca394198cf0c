"""Remembered answers: the same question about the same unchanged files is answered without opening them.

The cache stores plain values; a remembered answer equals the original.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nsystui.base.answer import Adapted, Answer, Column, TableAnswer, Unit, iter_rows
from nsystui.base.errors import ExportError
from nsystui.base.files import why_not_ours
from nsystui.exports.opening import ExportFile, check, damage_line, look
from nsystui.store.cache import Cache
from nsystui.store.remember import Results, known_damage, version_of

if TYPE_CHECKING:
    from nsystui.base.kernel_families import Rules
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.job.opening import JobSource

MAX_ROWS = 20_000
"""The maximum rows: reading longer answers is not faster than computing them."""


@dataclass(frozen=True)
class Remembered:
    """The remembered answers to questions about files."""

    results: Results
    files: tuple[ExportFile, ...]
    damage: tuple[str, ...] = ()
    """A line for each file known to be damaged."""
    families: Rules = ()
    """The user's rules for kernel families, which affect answers."""
    of_each: tuple[Results, ...] = ()
    """The results of each file."""

    @classmethod
    def of_files(
        cls, cache: Cache, files: Sequence[ExportFile], families: Rules = (), names: Sequence[str] = ()
    ) -> Remembered:
        """Return the remembered answers about exports; ``names`` distinguishes reports in one file."""
        # The file's name is in notes; its path in the cache depends on its state and columns.
        names = names or [file.path.name for file in files]
        states = [f"{name}|{cache.path_of(file).name}" for name, file in zip(names, files, strict=True)]
        of_each = tuple(cache.results_of(file) for file in files)
        damage = [damage_line(file.path, known_damage(results)) for file, results in zip(files, of_each, strict=True)]
        return cls(cache.results_of_several(states), tuple(files), tuple(filter(None, damage)), families, of_each)

    @classmethod
    def of_source(cls, source: JobSource) -> Remembered | None:
        """Return the remembered answers about a source's files; ``None`` if opening them may print notes."""
        from nsystui.exports.discover import FACTS, discover, is_packed_report, made_before, stale_note

        if source.cache_directory is None:
            return None
        cache = Cache(source.cache_directory, source.cap)
        try:
            paths = discover(source.files)
            if any(map(stale_note, paths)):
                return None
            files = [
                look(path.with_name(FACTS))[1]
                if is_packed_report(path)
                else check(made_before(path, cache.conversions))
                for path in paths
            ]
            pairs = zip(paths, files, strict=True)
            names = [path.name if is_packed_report(path) else file.path.name for path, file in pairs]
            return cls.of_files(cache, files, source.families, names) if not why_not_ours(cache.directory) else None
        except (ExportError, OSError):
            return None

    def recall(self, *question: str) -> tuple[str, TableAnswer] | None:
        """Return the remembered text (or title of the table) and answer of ``question``, if any."""
        recalled = self.results.load(
            self._key(question), version_of(), lambda values: (str(values["text"]), from_json(values["answer"]))
        )
        if recalled is None:
            return None
        text, answer = recalled
        return text, replace(answer, notes=(*answer.notes, *self.damage))

    def keep(self, job: OpenJob, answer: Answer, text: str, *question: str) -> None:
        """Save an answer if it is in memory, not too long, and about all files."""
        unwrapped = answer
        while isinstance(unwrapped, Adapted):
            unwrapped = unwrapped.whole
        is_small = isinstance(unwrapped, TableAnswer) and len(answer) <= MAX_ROWS
        # Notes on omitted rows and moved clocks require reading the files; on several runs and drifts, opening them.
        is_whole = job.shares_clock and not any(
            report.damaged or report.clock_rate or report.metadata.gpu_clocks or any(report.packed.left_out.values())
            for report in job.session.reports
        )
        # The session may have read the files before they changed.
        is_same = all(file.is_unchanged for file in self.files)
        count = sum(len(report.sources) for report in job.session.reports)
        if is_small and is_whole and is_same and count == len(self.results.reports):
            self.results.save(self._key(question), {"text": text, "answer": to_json(answer)}, version_of())

    def _key(self, question: Sequence[str]) -> str:
        # The kernel summary notes missing kernels as soon as launches are counted.
        has_note = question[0] == "kernels" and any(results.has("launch-accounts") for results in self.of_each)
        return json.dumps([*question, *self.families, *["noted"] * has_note])


def remember_first_questions(job: OpenJob, cache: Cache) -> None:
    """Remember the kernel summary for later commands, and compute other first answers about a job.

    The summary of API calls and the index of the event list take a second or two for large jobs. Raises ExportError or
    OSError if a file can no longer be read.
    """
    from nsystui.base.selection import Selection
    from nsystui.questions.events.listing import EventList
    from nsystui.questions.kernels.activities import API, work_summary
    from nsystui.questions.queries.question import question_named
    from nsystui.questions.ranks.overview import task_table
    from nsystui.questions.stats import report_of

    session = job.session
    sources = [source.index for report in session.reports for source in report.sources]
    files = [session.exports[index] for index in sources if index in session.exports]
    remembered = Remembered.of_files(cache, files, job.families)
    # The Overview also computes this: waiting for it avoids the memory of two computations.
    task_table(job.session, Selection(), job.ranks, job.busy(Selection()))
    text = "cuda_gpu_kern_sum"
    if remembered.recall("stats", text) is None and job.session.reports:
        report, options = report_of(text)
        answer = report.ask(job, Selection(), options)
        if len(answer):
            remembered.keep(job, answer, report.help, "stats", text)
            kernels = question_named("kernels")
            summary = kernels.ask(job, Selection(), kernels.defaults())
            remembered.keep(job, summary, "", *kernels.key(kernels.default_values()))
    work_summary(job.session, Selection(), API)
    EventList.build(job.session, Selection(), job.ranks)


def to_json(answer: Answer) -> dict[str, Any]:
    """Return ``answer`` with all rows as JSON values."""
    return {
        "name": answer.name,
        "columns": [vars(column) | {"unit": column.unit.value} for column in answer.columns],
        "rows": list(iter_rows(answer)),
        "total": answer.total,
        "notes": list(answer.notes),
    }


def from_json(values: Any) -> TableAnswer:
    """Invert `to_json`. Raises KeyError, TypeError or ValueError for other values."""
    columns = tuple(
        Column(**{**fields, "unit": Unit(fields["unit"]), "stack": tuple(map(tuple, fields["stack"]))})
        for fields in values["columns"]
    )
    rows = [tuple(row) for row in values["rows"]]
    if any(len(row) != len(columns) for row in rows):
        raise ValueError("a row has more or fewer values than there are columns")
    return TableAnswer(values["name"], columns, rows, values["total"], tuple(values["notes"]))
