"""Commands that give an answer again without opening anything: the same question of the same unchanged files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsystui import __version__
from nsystui.errors import ExportError

if TYPE_CHECKING:
    from nsystui.analysis.answer import Answer
    from nsystui.analysis.job import Job
    from nsystui.analysis.rows_answer import RowsAnswer
    from nsystui.store.answers import Answers

_SELECTING = ("time", "ranks", "devices", "streams", "filter", "filter_time", "filter_nvtx", "by_rank", "instances")


@dataclass(frozen=True)
class Remembered:
    """The answers to questions about ``files``, each known by its place and state."""

    answers: Answers
    files: Sequence[str]

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Remembered | None:
        """What is remembered of the files of a command; ``None`` where a flag narrows the question or forbids it.

        Neither is it asked for files that cannot be opened: why they cannot is told by opening them.
        """
        if arguments.no_cache or arguments.convert or any(getattr(arguments, name, None) for name in _SELECTING):
            return None
        from nsystui.exports import opening
        from nsystui.exports.discover import discover
        from nsystui.store.answers import Answers
        from nsystui.store.cache import Cache
        from nsystui.store.place import default_directory

        directory = default_directory()
        cache = Cache(directory)
        try:
            files = []
            for path in discover(arguments.files):
                opening.check(path)
                # Its name and its state, and in which columns it was read. The path, as notes name files.
                files.append(f"{path.name}|{cache.place_of(path).name}")
        except (ExportError, OSError):
            return None
        return cls(Answers(directory / "answers"), files)

    def recall(self, *question: str) -> tuple[str, RowsAnswer] | None:
        """What was kept as the answer to ``question``, with its title."""
        from nsystui.analysis.remembered import from_json

        kept = self.answers.load(self._key(question))
        try:
            return None if kept is None else (str(kept["title"]), from_json(kept["answer"]))
        except (KeyError, TypeError, ValueError):
            return None

    def keep(self, job: Job, answer: Answer, title: str, *question: str) -> None:
        """Keeps an answer that is in memory and not too long, if it is one about all of the files."""
        from nsystui.analysis.answer import FrameAnswer
        from nsystui.analysis.remembered import MOST_ROWS, to_json
        from nsystui.analysis.rows_answer import RowsAnswer

        is_small = isinstance(answer, RowsAnswer | FrameAnswer) and len(answer) <= MOST_ROWS
        if is_small and len(job.session.reports) == len(self.files):
            self.answers.save(self._key(question), {"title": title, "answer": to_json(answer)})

    def _key(self, question: Sequence[str]) -> str:
        from nsystui.analysis.remembered import VERSION

        return json.dumps([__version__, VERSION, question, self.files])
