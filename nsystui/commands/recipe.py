"""``nsystui recipe``: the multi-report recipes of Nsight Systems by their names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsystui.base import terminal
from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared
from nsystui.questions.recipes.catalog import RANKS_DIFFER, RECIPES, Recipe, recipe_named

if TYPE_CHECKING:
    from nsystui.base.selection import Selection
    from nsystui.questions.job import Job
    from nsystui.questions.recipes.asking import Options

DESCRIPTION = """Recipes of `nsys recipe` by their names, over all ranks of a job. `nsystui recipe` alone lists them,
`nsystui recipe NAME --help` says what one computes, what it takes, and which mistakes of NVIDIA's it does not make.
Statistics over ranks are exact: of all rows of all ranks. Maps are drawn as text, and are tables with --format (or -o,
--sort, --top)."""
EXAMPLES = """  nsystui recipe cuda_gpu_kern_sum rank*.sqlite
  nsystui recipe cuda_gpu_kern_sum rank*.sqlite --by-rank --format csv -o kernels.csv
  nsystui recipe nvtx_pace rank*.sqlite --name 'step *' --sort max --top 5
  nsystui recipe nccl_gpu_time_util_map rank*.sqlite
  nsystui recipe cuda_gpu_time_util_map rank*.sqlite --bins 30 --format csv
  nsystui recipe gpu_gaps rank*.sqlite --gap 5
  nsystui recipe diff before/ -- after/"""

_TABLES = {"by-rank": "each rank by itself, with a column for it"}
_LIST, _ABOUT = "--list-recipes", "--about"
_HELP = ("-h", "--help")
# Modules of which the answers have moments of several reports in them, for which clocks are made one.
_WITHOUT_TIMES = frozenset({"sums", "histogram", "overlap"})
# Modules that ask about nearly everything that an export holds: reading all of it at once is less work.
_WHOLE = frozenset({"pace", "overlap"})
_LEAST_BINS, _MOST_BINS = 1, 1_000_000


def prepared(words: Sequence[str]) -> list[str]:
    """The command line; without a word it lists the recipes, and the help of a recipe is that recipe's."""
    if not words:
        return [_LIST]
    if any(word in _HELP for word in words):
        names = [recipe.name for recipe in RECIPES]
        named = next((word for word in words if word in names), None)
        return [_ABOUT, named] if named else list(words)
    return list(words)


def delegated(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """`diff` is a command of its own."""
    if words and words[0] == "diff" and not any(word in _HELP for word in words):
        return "diff", list(words[1:])
    return None


class _Print(argparse.Action):
    """Prints all recipes, or what there is to know of one, and ends as ``--help`` does: no file is needed."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, values: object, __: object = None) -> None:
        from nsystui.output.stdout import print_lines

        print_lines(_about(recipe_named(values)) if isinstance(values, str) else _listing())
        parser.exit()


def _listing() -> list[str]:
    width = max(len(recipe.name) for recipe in RECIPES)
    return [f"{recipe.name:{width}}  {recipe.what}" for recipe in RECIPES]


def _about(recipe: Recipe) -> list[str]:
    """What a recipe answers, needs and takes, and where NVIDIA's differs."""
    import textwrap

    from nsystui.exports.canonical import BY_NAME

    def wrapped(text: str) -> list[str]:
        return textwrap.wrap(text, 78, initial_indent="  ", subsequent_indent="    ")

    usage = f"usage: nsystui recipe {recipe.name} FILE… [OPTIONS]"
    if not recipe.module:
        usage = f"usage: nsystui recipe {recipe.name} A… -- B… [OPTIONS]; `nsystui diff --help` has the options"
    lines = [usage, "", *textwrap.wrap(f"{recipe.what[0].upper()}{recipe.what[1:]}.", 78), ""]
    if recipe.takes:
        lines += ["options of its own (the others: nsystui recipe --help):"]
        lines += [f"  --{name}" for name in sorted(recipe.takes)] + [""]
    if recipe.needs:
        lines.append("needs:")
        for group in recipe.needs:
            tables = [BY_NAME[name] for name in group]
            record = " or ".join(dict.fromkeys(table.record for table in tables))
            lines += wrapped(f"{' or '.join(table.what for table in tables)}: {record}")
        lines.append("")
    lines.append("unlike NVIDIA's recipe:")
    for text in (*recipe.differs, RANKS_DIFFER):
        lines += wrapped(text)
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="NAME", help="the recipe; `nsystui recipe` lists them")
    parser.add_argument(_LIST, action=_Print, nargs=0, help=argparse.SUPPRESS)
    parser.add_argument(_ABOUT, action=_Print, help=argparse.SUPPRESS)
    shared.add_files(parser)
    shared.add_tables(parser, _TABLES)
    group = parser.add_argument_group("recipe", "which of these a recipe takes says its own help")
    group.add_argument(
        "--name",
        metavar="TEXT",
        help="the kernel or NVTX range that is looked at: a whole name, of kernels full, short or mangled, of ranges "
        "with or without the domain, and * for numbers, as in 'step *' "
        "(default: the kernel with most time, the training steps; of kern_hist all)",
    )
    group.add_argument("--names", choices=("full", "short", "mangled"), help="which kernel names (full)")
    group.add_argument("--bins", type=int, metavar="N", help="spans of a map (30; of a drawing its width)")
    group.add_argument("--gap", type=float, metavar="MS", help="gaps longer than this (500)")
    group.add_argument("--threshold", type=float, metavar="PERCENT", help="utilisation below this (50)")
    group.add_argument("--chunks", type=int, metavar="N", help="parts of a GPU's time (30)")
    group.add_argument("--width", type=int, metavar="N", help="width of a drawing (the terminal's)")
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    recipe = recipe_named(arguments.recipe)
    _check_options(arguments, recipe)
    shared.check_output(arguments)
    has_times = recipe.module not in _WITHOUT_TIMES
    is_whole = recipe.module in _WHOLE or recipe.name.startswith("nccl_gpu_proj")
    job = shared.open_job(arguments, whole=is_whole, times=has_times)
    try:
        from nsystui.questions.recipes.asking import ask

        selection, options = shared.selection_of(arguments, job), _options(arguments)
        if recipe.is_map and _is_drawn(arguments):
            return _draw(arguments, recipe, job, selection, options)
        return shared.deliver(arguments, ask(recipe, job, selection, options))
    finally:
        job.close()


def _check_options(arguments: argparse.Namespace, recipe: Recipe) -> None:
    """Raises UsageError for an option that means nothing to the recipe, or a value that does not."""
    flags = ("name", "names", "bins", "gap", "threshold", "chunks", "width")
    given = {flag: getattr(arguments, flag) for flag in flags if getattr(arguments, flag) is not None}
    if arguments.table:
        given[arguments.table] = True
    takes = recipe.takes | ({"width"} if recipe.is_map else set())
    for flag in given:
        if flag not in takes:
            known = ", ".join(f"--{one}" for one in sorted(takes)) or "no option of its own"
            raise UsageError(f"{recipe.name} does not take --{flag}: it takes {known}")
    for flag in ("bins", "chunks", "width"):
        if flag in given and not _LEAST_BINS <= given[flag] <= _MOST_BINS:
            raise UsageError(f"--{flag} {given[flag]}: from {_LEAST_BINS} to {_MOST_BINS}")
    if not 0 <= given.get("gap", 0) < 1e12:
        raise UsageError(f"--gap {given['gap']:g}: milliseconds, not below 0")
    if not 0 <= given.get("threshold", 0) <= 100:
        raise UsageError(f"--threshold {given['threshold']:g}: percent, from 0 to 100")


def _options(arguments: argparse.Namespace) -> Options:
    from nsystui.questions.kernels import Names
    from nsystui.questions.recipes.asking import DEFAULTS, MILLISECOND, Options

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    return Options(
        arguments.table == "by-rank",
        arguments.name,
        Names(arguments.names or "full"),
        int(given(arguments.bins, DEFAULTS.bins)),
        DEFAULTS.gap if arguments.gap is None else round(arguments.gap * MILLISECOND),
        given(arguments.threshold, DEFAULTS.threshold),
        int(given(arguments.chunks, DEFAULTS.chunks)),
    )


def _is_drawn(arguments: argparse.Namespace) -> bool:
    is_table = arguments.format or arguments.sort or arguments.top is not None or shared.to_file(arguments)
    return not is_table


def _draw(arguments: argparse.Namespace, recipe: Recipe, job: Job, selection: Selection, options: Options) -> int:
    """The map as text; notes on stderr."""
    from dataclasses import replace

    from nsystui.commands.recipe_drawing import columns_of, lines_of
    from nsystui.output.stdout import print_lines
    from nsystui.questions.recipes.asking import draw

    width = arguments.width or terminal.text_width(120)
    if arguments.bins is None:
        options = replace(options, bins=columns_of(width))
    shown = draw(recipe, job, selection, options)
    print_lines(lines_of(shown, width))
    for note in shown.notes:
        shared.complain(f"note: {note}")
    return 0 if shown.lines or not shown.notes else 3
