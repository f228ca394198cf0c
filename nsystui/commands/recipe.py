"""``nsystui recipe``: the multi-report recipes of Nsight Systems by their names."""

import argparse
import textwrap
from collections.abc import Sequence

from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared
from nsystui.commands import question as runner
from nsystui.commands.request import Request
from nsystui.questions.catalogue.nsys_recipes import FAMILY, RANKS_DIFFER
from nsystui.questions.queries.question import COMPARISON, Option
from nsystui.questions.recipes import all_recipes, recipe_named

DESCRIPTION = """Recipes of `nsys recipe` by their names, over all ranks of a job. `nsystui recipe` alone lists them,
`nsystui recipe NAME --help` says what one computes, what it takes, and which mistakes of NVIDIA's it does not make.
Statistics over ranks are exact: of all rows of all ranks. Maps are drawn as text, and are tables with --format (or -o,
--sort, --top)."""
EXAMPLES = """  nsystui recipe cuda_gpu_kern_sum rank*.sqlite
  nsystui recipe cuda_gpu_kern_sum rank*.sqlite --by-rank --format csv -o kernels.csv
  nsystui recipe nvtx_pace rank*.sqlite --name 'step *' --sort max_ns --top 5
  nsystui recipe nccl_gpu_time_util_map rank*.sqlite
  nsystui recipe cuda_gpu_time_util_map rank*.sqlite --bins 30 --format csv
  nsystui recipe gpu_gaps rank*.sqlite --gap 5
  nsystui recipe diff before/ -- after/"""

_LIST, _ABOUT = "--list-recipes", "--about"
_HELP = ("-h", "--help")


def prepared(words: Sequence[str]) -> list[str]:
    """Return the command line; without words it lists the recipes, and a recipe's help describes that recipe."""
    if not words:
        return [_LIST]
    if any(word in _HELP for word in words):
        names = [recipe.name for recipe in all_recipes()]
        named = next((word for word in words if word in names), None)
        return [_ABOUT, named] if named else list(words)
    return list(words)


def delegated(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the command line of `diff`, which is a separate command."""
    if words and words[0] == "diff" and not any(word in _HELP for word in words):
        return "diff", list(words[1:])
    return None


def _listing(_: object) -> list[str]:
    width = max(len(recipe.name) for recipe in all_recipes())
    return [f"{recipe.name:{width}}  {recipe.help}" for recipe in all_recipes()]


def _about(name: str) -> list[str]:
    """Return a recipe's answer, needs and options, and how NVIDIA's recipe differs."""
    from nsystui.exports.canonical import BY_NAME

    recipe = recipe_named(name)

    def wrapped(text: str) -> list[str]:
        return textwrap.wrap(text, 78, initial_indent="  ", subsequent_indent="    ")

    usage = f"usage: nsystui recipe {recipe.name} FILE… [OPTIONS]"
    if recipe.rows.home == COMPARISON:
        usage = f"usage: nsystui recipe {recipe.name} A… -- B… [OPTIONS]; `nsystui diff --help` has the options"
    lines = [usage, "", *textwrap.wrap(f"{recipe.help[0].upper()}{recipe.help[1:]}.", 78), ""]
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


def _options() -> list[Option]:
    return list(dict.fromkeys(option for recipe in all_recipes() for option in recipe.options))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="NAME", help="the recipe; `nsystui recipe` lists them")
    parser.add_argument(_LIST, action=shared.Print, nargs=0, const=_listing, help=argparse.SUPPRESS)
    parser.add_argument(_ABOUT, action=shared.Print, const=_about, help=argparse.SUPPRESS)
    shared.add_files(parser)
    runner.add_options(parser, _options(), {FAMILY: "`nsystui recipe NAME --help` lists the options of a recipe"})
    shared.add_selection(parser)
    shared.add_format(parser, has_drawing=True)


def run(request: Request) -> int:
    recipe = recipe_named(request.args["recipe"])
    for option in _options():
        if option.is_given(request.args) and option.flag not in recipe.takes:
            accepted = ", ".join(f"--{flag}" for flag in sorted(recipe.takes)) or "no option of its own"
            raise UsageError(f"{recipe.name} does not take --{option.flag}: it takes {accepted}")
    return runner.run(recipe, request)
