"""``nsystui diff``: two jobs, or two ranks, groups of ranks or spans of time of a job, side by side."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nsystui.base.answer import TableAnswer, key_named
from nsystui.base.errors import UsageError
from nsystui.base.selection import parse_numbers
from nsystui.base.terminal import reading_width
from nsystui.commands import arguments as shared
from nsystui.commands.request import Request, Selecting
from nsystui.questions.queries.question import Titled, chosen_tables

if TYPE_CHECKING:
    from nsystui.questions.compare import ComparisonOptions, Side
    from nsystui.questions.job.job import OpenJob

DESCRIPTION = """What changed from A to B: a summary, then kernels by name and by family, NVTX ranges, NCCL, memory
operations, API calls and steps, largest difference first. A and B are two jobs, or two ranks, groups of ranks or spans
of time of one job.

  B - A          the difference of the summed times, in two parts:
  more calls     what more or fewer operations cost, at the mean duration of both sides
  longer calls   what longer or shorter operations cost, at the mean count of both sides
  of change %    the size of a row's difference, as a share of that of all rows
  new, gone      only in B, only in A; not marked where one side recorded nothing of the kind

Where the sides have different numbers of ranks, times and counts are per rank, and say so. NVTX ranges overlap, and so
do their differences; names that differ only in numbers share a row (--no-fold)."""
EXAMPLES = """  nsystui diff before/ -- after/
  nsystui diff before/ -- after/ --format table
  nsystui diff old.sqlite -- new.sqlite --tables kernels --names short --top 20
  nsystui diff rank*.sqlite --ranks-a 0-3 --ranks-b 4-7
  nsystui diff rank0.sqlite --time-a 1.2s:1.5s --time-b 4.2s:4.5s --format json"""

_TABLES = ("summary", "kernels", "families", "nvtx", "nccl", "memory", "api", "steps")
_DEFAULT_ROWS = 10
"""Rows of each table except the summary, if several tables are printed for people."""


def prepared(words: Sequence[str]) -> list[str]:
    """Replace the ``--`` between the jobs by an option, because options may also follow the files of B."""
    prepared_words = list(words)
    if "--" in prepared_words:
        prepared_words[prepared_words.index("--")] = "--against"
    return prepared_words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.commands.open import add_screen

    shared.add_files(parser)
    parser.add_argument(
        "--against",
        nargs="+",
        metavar="FILE",
        help="the files of B; `A… -- B…` is the same as `A… --against B…`, and two files alone are A and B",
    )
    sides = parser.add_argument_group("sides")
    for side in "ab":
        name = side.upper()
        sides.add_argument(f"--ranks-{side}", metavar="LIST", help=f"the ranks of {name}, such as 0,4-7")
        sides.add_argument(f"--time-{side}", metavar="A:B", help=f"the window of {name}, in the time of its own job")
    group = parser.add_argument_group("table")
    group.add_argument("--tables", metavar="LIST", help=f"which, separated by commas: {', '.join(_TABLES)}")
    group.add_argument(
        "--names",
        choices=("full", "short", "mangled"),
        help="which kernel names (default: smart ones in a text, full ones in files)",
    )
    group.add_argument("--no-fold", action="store_true", help="numbered NVTX names (layer 0, layer 1 …) one by one")
    shared.add_steps(group)
    shared.add_selection(parser)
    shared.add_format(parser)
    screen = parser.add_argument_group("screen")
    screen.add_argument(
        "--screen",
        action="store_true",
        help="show the tables on a screen (usual at a terminal without --format, --output, --tables, --top, --sort)",
    )
    add_screen(screen)


def run(request: Request) -> int:
    sides = (request.args[name] for name in ("against", "ranks_a", "ranks_b", "time_a", "time_b"))
    if len(request.opening.files) == 2 and not any(sides):
        opening = replace(request.opening, files=request.opening.files[:1])
        request = replace(request, opening=opening, args={**request.args, "against": request.opening.files[1:]})
    from nsystui.questions.compare import ComparisonOptions
    from nsystui.questions.kernels.summary import Names

    _check_sides(request)
    args = request.args
    names = chosen_tables(args["tables"], _TABLES, _TABLES)
    options = ComparisonOptions(Names(args["names"] or "full"), not args["no_fold"], args["step_range"])
    if args["screen"] or _is_for_screen(request):
        return _open_screen(request, options if args["names"] else replace(options, names=Names.SMART))
    request.output.check()
    from nsystui.commands.progress import ProgressLine

    line = ProgressLine()
    with closing(shared.open_job(_side_request(request, "a"), line=line)) as job:
        if not args["against"]:
            return _answer(request, names, sides_of(request, (job,)), options)
        with closing(shared.open_job(_side_request(request, "b"), line=line)) as other:
            return _answer(request, names, sides_of(request, (job, other)), options)


def _is_for_screen(request: Request) -> bool:
    from nsystui.commands.open import checked_terminal

    output = request.output
    text_flags = (output.format, output.target, request.args["tables"], output.top, output.sort)
    if any(value is not None for value in text_flags) or sys.stdout is None or not sys.stdout.isatty():
        return False
    with suppress(UsageError):
        checked_terminal("diff")
        return True
    return False


def _check_sides(request: Request) -> None:
    sides = (request.args["ranks_a"], request.args["ranks_b"], request.args["time_a"], request.args["time_b"])
    if not request.args["against"] and not any(sides):
        raise UsageError(
            "name two jobs, `nsystui diff A… -- B…`, or two parts of one: --ranks-a 0-3 --ranks-b 4-7, or --time-a and "
            "--time-b"
        )
    for text in filter(None, sides[:2]):
        parse_numbers(text, "ranks")


def _side_request(request: Request, side: str) -> Request:
    """Return the request that opens a side's job; ``--ranks`` may assign ranks to both jobs' files."""
    from nsystui.base.resources import SMALLEST_MEMORY

    args = request.args
    files = args["against"] if side == "b" and args["against"] else request.opening.files
    window = request.selecting.time or args["time_a"] or args["time_b"]
    memory = max(request.limits.memory // 2, SMALLEST_MEMORY) if args["against"] else request.opening.memory_limit
    return replace(
        request,
        opening=replace(request.opening, files=files, memory_limit=memory),
        selecting=replace(request.selecting, time=window),
    )


def sides_of(request: Request, jobs: Sequence[OpenJob]) -> tuple[Side, Side]:
    """Return A and B, which are in one job or in two. Raises UsageError for ranks that do not exist."""
    from nsystui.questions.compare.side import Side, job_labels
    from nsystui.ui.pictures.selection import describe

    titles = job_labels(jobs, [request.opening.files, request.args["against"] or ()]) if len(jobs) > 1 else ("", "")
    sides = []
    for side, job, title in zip("ab", (jobs[0], jobs[-1]), titles, strict=True):
        side_flags = {name: request.args[f"{name}_{side}"] for name in ("ranks", "time")}
        selecting = replace(request.selecting, **{name: flag for name, flag in side_flags.items() if flag})
        selection = shared.selection_of(selecting, job)
        selected = "" if title and selection.is_everything else describe(selection, job.ranks)
        sides.append(Side(job, selection, " · ".join(filter(None, (title, selected)))))
    return sides[0], sides[1]


def _answer(request: Request, names: Sequence[str], sides: tuple[Side, Side], options: ComparisonOptions) -> int:
    from nsystui.questions.compare import TABLES

    with sides[0].job.session.waiting("diff"):
        answers = {name: TABLES[name].make(*sides, options) for name in names}
    sorted_tables = {name: answer for name, answer in answers.items() if name != "summary"}
    shared.check_sort(request.output.sort, {name: answer.columns for name, answer in sorted_tables.items()})
    unsorted = replace(request, output=replace(request.output, sort=None, top=None))
    verdict = _print_verdict(request, answers.get("summary"))
    tables = list(_tables(request, answers, sides, verdict))
    if len(names) == 1 and (request.output.is_file or not _is_text(request) or not len(tables[0].answer)):
        return shared.deliver(unsorted, tables[0].answer)
    shared.deliver_tables(unsorted, tables)
    return 0


def _print_verdict(request: Request, summary: TableAnswer | None) -> str:
    """Print the verdict before a text's tables and return it; other formats have it as a note."""
    from nsystui.output.files import print_lines
    from nsystui.questions.compare import ComparisonSummary

    if not isinstance(summary, ComparisonSummary) or not _is_text(request) or request.output.is_file:
        return ""
    if summary.headline:
        print_lines([*textwrap.wrap(summary.headline, 79), ""])
    return summary.headline


def _tables(request: Request, answers: dict[str, TableAnswer], sides: tuple[Side, Side], lead: str) -> Iterator[Titled]:
    """Sort and cut the tables, each note only once; a text omits tables without rows."""
    from nsystui.output.formats import fitting
    from nsystui.questions.compare import TABLES
    from nsystui.questions.compare.side import with_smart_names

    is_text = _is_text(request)
    width = None if request.output.is_file else reading_width()
    sides_text = f": A is {sides[0].label}, B is {sides[1].label}"
    shown_notes = {lead}
    for name, complete in answers.items():
        answer = _arranged(request, name, complete, is_text, len(answers) > 1)
        notes = tuple(note for note in complete.notes if note not in shown_notes)
        shown_notes |= set(notes)
        if is_text and not len(answer) and len(answers) > 1:
            shared.say_notes(*notes)
            continue
        if is_text and name == "kernels" and not request.args["names"]:
            answer = with_smart_names(answer, *sides)
        if is_text and width is not None:
            answer = fitting(answer, width)
        title, sides_text = TABLES[name].title + sides_text, ""
        title += f" ({len(answer):,} of {len(complete):,}: --top N for more)" if len(answer) < len(complete) else ""
        yield Titled(name, title, replace(answer, notes=notes))


def _is_text(request: Request) -> bool:
    output = request.output
    return str(output.target).endswith(".txt") if output.is_file else output.format in (None, "table")


def _arranged(request: Request, name: str, answer: TableAnswer, is_text: bool, is_one_of_several: bool) -> TableAnswer:
    from nsystui.questions.compare import worded

    if name == "summary":
        return worded(answer) if is_text else answer
    if request.output.sort and (key := key_named(answer.columns, request.output.sort)):
        answer = answer.sorted_by(key, descending=True)
    default_rows = _DEFAULT_ROWS if is_text and is_one_of_several and not request.output.is_file else None
    top = request.output.top if request.output.top is not None else default_rows
    return answer if top is None else replace(answer, rows=answer.rows[:top])


def _open_screen(request: Request, options: ComparisonOptions) -> int:
    from nsystui.commands.open import checked_terminal, look_of, run_app, source_of

    environ = checked_terminal("diff, without --screen,")
    from nsystui.ui.diff_app import DiffApp

    file_lists = [request.opening.files, *([request.args["against"]] if request.args["against"] else [])]
    opening = replace(request, selecting=Selecting(ranks=request.selecting.numbering))
    sources = [source_of(opening, tuple(files)) for files in file_lists]
    app = DiffApp(sources, lambda jobs: sides_of(request, jobs), options, look_of(request.screen, environ))
    return run_app(request.screen, environ, app)
