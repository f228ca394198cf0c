"""Several tables from one command: one after the other on stdout, or a file for each."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nsystui.base.answer import Answer
from nsystui.commands import arguments as shared
from nsystui.output.formats import to_json
from nsystui.output.stdout import print_lines


@dataclass(frozen=True)
class Block:
    """One table. ``title`` is for people, ``labels`` for programs, ``suffix`` for the name of its file.

    With ``needs_title`` the columns alone do not tell the table from the others.
    """

    title: str
    labels: dict[str, str | int]
    suffix: str
    answer: Answer
    needs_title: bool = False


def deliver_blocks(arguments: argparse.Namespace, blocks: Iterable[Block]) -> None:
    """Prints or writes every block as it comes.

    To a file ``out.csv`` each goes under a name of its own, ``out_SUFFIX.csv``. JSON is one array of objects, each with
    the labels of a block and its ``rows``. Raises what `arguments.deliver` raises.
    """
    if shared.to_file(arguments):
        _to_files(arguments, blocks)
    elif arguments.format == "json":
        _as_json(arguments, blocks)
    else:
        _one_by_one(arguments, blocks)


def _one_by_one(arguments: argparse.Namespace, blocks: Iterable[Block]) -> None:
    for number, block in enumerate(blocks):
        if number:
            print()
        if block.needs_title or arguments.format in (None, "table", "md"):
            print_lines([f"## {block.title}", ""] if arguments.format == "md" else [f"# {block.title}"])
        shared.deliver(arguments, block.answer)


def _to_files(arguments: argparse.Namespace, blocks: Iterable[Block]) -> None:
    target = Path(arguments.output)
    for block in blocks:
        named = target.with_name(f"{target.stem}_{block.suffix}{target.suffix}")
        shared.deliver(argparse.Namespace(**{**vars(arguments), "output": str(named)}), block.answer)


def _as_json(arguments: argparse.Namespace, blocks: Iterable[Block]) -> None:
    print("[", end="")
    number = 0
    for number, block in enumerate(blocks, 1):
        labels = to_json(block.labels).removesuffix("}")
        print(f'{"," if number > 1 else ""}\n{labels}, "rows": ', end="")
        shared.deliver(arguments, block.answer)
        print("}", end="")
    print("\n]" if number else "]")


def peek(blocks: Iterator[Block]) -> tuple[list[Block], Iterator[Block]]:
    """The first two blocks, and all of them: whether there are several is known without making the rest."""
    first = [block for _, block in zip(range(2), blocks, strict=False)]

    def everything() -> Iterator[Block]:
        yield from first
        yield from blocks

    return first, everything()
