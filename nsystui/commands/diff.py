"""``nsystui diff``: two jobs side by side, or two ranks, groups of ranks or spans of time of one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from nsystui.base.errors import UsageError
from nsystui.base.selection import parse_numbers
from nsystui.commands import arguments as shared
from nsystui.questions.queries.numbering import numbering
from nsystui.questions.queries.question import Titled, chosen_tables

if TYPE_CHECKING:
    from nsystui.base.answer import TableAnswer
    from nsystui.questions.compare import ComparisonOptions, Side
    from nsystui.questions.job.job import OpenJob

DESCRIPTION = """What changed from A to B: a summary, then kernels by name and by family, NVTX ranges, NCCL, memory
operations, functions by CPU samples and steps, largest difference first; with --tables calltree the call tree of the
samples. A and B are two jobs, or two ranks, groups of ranks or spans of time of one job.

  B - A          the difference of the summed times, in two parts:
  from count     what more or fewer of them cost, at the mean duration of both sides
  from duration  what longer or shorter ones cost, at the mean of both counts
  of change %    the size of a row's difference by that of all rows
  new, gone      only in B, only in A; where one side recorded none of it, neither

Where the sides have different numbers of ranks, times and counts are per rank, and say so. NVTX ranges overlap, and so
do their differences; names that differ in numbers only are one (--no-fold)."""
EXAMPLES = """  nsystui diff before/ -- after/
  nsystui diff before/ -- after/ --format table
  nsystui diff old.sqlite -- new.sqlite --tables kernels --names short --top 20
  nsystui diff rank*.sqlite --ranks-a 0-3 --ranks-b 4-7
  nsystui diff rank0.sqlite --time-a 1.2s:1.5s --time-b 4.2s:4.5s --format json"""

_TABLES = ("summary", "kernels", "families", "nvtx", "nccl", "memory", "functions", "calltree", "steps")
_USUAL = tuple(name for name in _TABLES if name != "calltree")
_USUAL_ROWS = 10
"""Of each table but the summary, where several are printed for people to read."""


def prepared(words: Sequence[str]) -> list[str]:
    """The command line with the ``--`` between the jobs as an option: options may follow the files of B as well."""
    found = list(words)
    if "--" in found:
        found[found.index("--")] = "--against"
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.commands.open import add_screen

    shared.add_files(parser)
    parser.add_argument(
        "--against", nargs="+", metavar="FILE", help="the files of B; `A… -- B…` is the same as `A… --against B…`"
    )
    sides = parser.add_argument_group("sides")
    for side in "ab":
        name = side.upper()
        sides.add_argument(f"--ranks-{side}", metavar="LIST", help=f"the ranks of {name}, such as 0,4-7")
        sides.add_argument(f"--time-{side}", metavar="A:B", help=f"the window of {name}, in the time of its own job")
    group = parser.add_argument_group("table")
    group.add_argument(
        "--tables", metavar="LIST", help=f"which, separated by commas: {', '.join(_TABLES)} (all but calltree)"
    )
    group.add_argument(
        "--names",
        choices=("full", "short", "mangled"),
        help="which kernel names (default: smart ones in a text, full ones in files)",
    )
    group.add_argument("--no-fold", action="store_true", help="numbered NVTX names (layer 0, layer 1 …) one by one")
    shared.add_step_range(group)
    shared.add_selection(parser)
    shared.add_format(parser)
    screen = parser.add_argument_group("screen")
    screen.add_argument(
        "--screen",
        action="store_true",
        help="show the tables on a screen (usual at a terminal without --format, --output, --tables, --top, --sort)",
    )
    add_screen(screen)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.questions.compare import ComparisonOptions
    from nsystui.questions.kernels.summary import Names

    _check_sides(arguments)
    names = chosen_tables(arguments.tables, _TABLES, _USUAL)
    options = ComparisonOptions(Names(arguments.names or "full"), not arguments.no_fold, arguments.step_range)
    if arguments.screen or _is_for_screen(arguments):
        return _open_screen(arguments, options if arguments.names else replace(options, names=Names.SMART))
    shared.check_output(arguments)
    with closing(shared.open_job(_opened(arguments, "a"))) as job:
        if not arguments.against:
            return _answer(arguments, names, sides_of(arguments, (job,)), options)
        with closing(shared.open_job(_opened(arguments, "b"))) as other:
            return _answer(arguments, names, sides_of(arguments, (job, other)), options)


def _is_for_screen(arguments: argparse.Namespace) -> bool:
    """Whether the tables go to a terminal, and nothing is asked of them that only text has."""
    from nsystui.base import terminal

    asked = (arguments.format, arguments.output, arguments.tables, arguments.top, arguments.sort)
    if any(value is not None for value in asked) or sys.stdout is None or not sys.stdout.isatty():
        return False
    is_typed_on = sys.stdin is not None and sys.stdin.isatty()
    is_drawn_on = sys.__stderr__ is not None and sys.__stderr__.isatty()
    return not terminal.check(terminal.original_environ(), is_typed_on, is_drawn_on, "diff")


def _check_sides(arguments: argparse.Namespace) -> None:
    """Raises UsageError where the two sides are the same."""
    own = (arguments.ranks_a, arguments.ranks_b, arguments.time_a, arguments.time_b)
    if not arguments.against and not any(own):
        raise UsageError(
            "name two jobs, `nsystui diff A… -- B…`, or two parts of one: --ranks-a 0-3 --ranks-b 4-7, or --time-a and "
            "--time-b"
        )
    for text in filter(None, own[:2]):
        parse_numbers(text, "ranks")


def _opened(arguments: argparse.Namespace, side: str) -> argparse.Namespace:
    """The flags that the job of a side is opened with; ``--ranks`` may say who is which rank in both."""
    given = vars(arguments)
    files = arguments.against if side == "b" and arguments.against else arguments.files
    times = (arguments.time, arguments.time_a, arguments.time_b)
    return argparse.Namespace(**{**given, "files": files, "time": next(filter(None, times), None)})


def _of_side(arguments: argparse.Namespace, side: str) -> argparse.Namespace:
    """The flags of the selection as one side has them."""
    given = vars(arguments)
    return argparse.Namespace(
        **{**given, **{name: given[f"{name}_{side}"] or given[name] for name in ("ranks", "time")}}
    )


def sides_of(arguments: argparse.Namespace, jobs: Sequence[OpenJob]) -> tuple[Side, Side]:
    """A and B in one job, or one in each of two. Raises UsageError for ranks that are not there."""
    from nsystui.questions.compare.side import Side, job_labels
    from nsystui.ui.pictures.selection import describe

    titles = job_labels(jobs, [arguments.files, arguments.against or ()]) if len(jobs) > 1 else ("", "")
    made = []
    for side, job, title in zip("ab", (jobs[0], jobs[-1]), titles, strict=True):
        selection = shared.selection_of(_of_side(arguments, side), job)
        narrowed = "" if title and selection.is_everything else describe(selection, job.ranks)
        made.append(Side(job, selection, " · ".join(filter(None, (title, narrowed)))))
    return made[0], made[1]


def _answer(
    arguments: argparse.Namespace, names: Sequence[str], sides: tuple[Side, Side], options: ComparisonOptions
) -> int:
    from nsystui.commands.tables import check_sort, deliver_tables
    from nsystui.questions.compare import TABLES

    answers = {name: TABLES[name].make(*sides, options) for name in names}
    sorted_tables = {name: answer for name, answer in answers.items() if name != "summary"}
    check_sort(arguments.sort, {name: one.columns for name, one in sorted_tables.items()})
    unsorted = argparse.Namespace(**{**vars(arguments), "sort": None, "top": None})
    told = _told(arguments, answers.get("summary"))
    tables = list(_tables(arguments, answers, sides, told))
    if len(names) == 1 and (shared.to_file(arguments) or not _is_text(arguments) or not len(tables[0].answer)):
        return shared.deliver(unsorted, tables[0].answer)
    deliver_tables(unsorted, tables)
    return 0


def _told(arguments: argparse.Namespace, summary: TableAnswer | None) -> str:
    """Prints the verdict before the tables, where people read them, and returns it: else it is a note."""
    import textwrap

    from nsystui.output.files import print_lines
    from nsystui.questions.compare import ComparisonSummary

    if not isinstance(summary, ComparisonSummary) or not _is_text(arguments) or shared.to_file(arguments):
        return ""
    if summary.headline:
        print_lines([*textwrap.wrap(summary.headline, 79), ""])
    return summary.headline


def _tables(
    arguments: argparse.Namespace, answers: dict[str, TableAnswer], sides: tuple[Side, Side], told: str
) -> Iterator[Titled]:
    """The tables, sorted and cut, each note with the first that it belongs to; a text omits tables without rows."""
    from nsystui.base.terminal import reading_width
    from nsystui.output.formats import fitting
    from nsystui.questions.compare import TABLES
    from nsystui.questions.compare.side import with_smart_names

    is_text = _is_text(arguments)
    width = None if shared.to_file(arguments) else reading_width()
    sides_told = f": A is {sides[0].label}, B is {sides[1].label}"
    earlier = {told}
    for name, whole in answers.items():
        answer = _arranged(arguments, name, whole, is_text, len(answers) > 1)
        notes = tuple(note for note in whole.notes if note not in earlier)
        earlier |= set(notes)
        if is_text and not len(answer) and len(answers) > 1:
            for text in notes:
                shared.complain(f"note: {text}")
            continue
        if is_text and name == "kernels" and not arguments.names:
            answer = with_smart_names(answer, *sides)
        if is_text and width is not None:
            answer = fitting(answer, width)
        title, sides_told = TABLES[name].title + sides_told, ""
        title += f" ({len(answer):,} of {len(whole):,}: --top N for more)" if len(answer) < len(whole) else ""
        yield Titled(name, title, replace(answer, notes=notes))


def _is_text(arguments: argparse.Namespace) -> bool:
    return (
        (arguments.output or "").endswith(".txt")
        if shared.to_file(arguments)
        else arguments.format
        in (
            None,
            "table",
        )
    )


def _arranged(
    arguments: argparse.Namespace, name: str, answer: TableAnswer, is_text: bool, is_one_of_several: bool
) -> TableAnswer:
    from nsystui.base.answer import key_named
    from nsystui.questions.compare import worded

    if name == "summary":
        return worded(answer) if is_text else answer
    if arguments.sort and (key := key_named(answer.columns, arguments.sort)):
        answer = answer.sorted_by(key, descending=True)
    usual = _USUAL_ROWS if is_text and is_one_of_several and not shared.to_file(arguments) else None
    top = arguments.top if arguments.top is not None else usual
    return answer if top is None else replace(answer, rows=answer.rows[:top])


def _open_screen(arguments: argparse.Namespace, options: ComparisonOptions) -> int:
    from nsystui.commands.open import NamedFiles, checked_terminal, look_of, run_app, source_of

    environ = checked_terminal("diff, without --screen,")
    from nsystui.ui.app import DiffApp

    named = [arguments.files, *([arguments.against] if arguments.against else [])]
    who = arguments.ranks if numbering(arguments.ranks or "") is not None else None
    opening = argparse.Namespace(**{**vars(arguments), "ranks": who})
    sources = [source_of(opening, NamedFiles(tuple(files))) for files in named]
    app = DiffApp(sources, lambda jobs: sides_of(arguments, jobs), options, look_of(arguments, environ))
    return run_app(arguments, environ, app)
