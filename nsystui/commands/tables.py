"""Several tables from one command: one after the other on stdout, or a file for each."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared
from nsystui.output.formats import to_json
from nsystui.output.stdout import print_lines
from nsystui.questions.question import Titled


def check_sort(key: str | None, columns: Mapping[str, Sequence[str]], tables: Sequence[str] | None = None) -> None:
    """Raises UsageError where one of the tables lacks the column to sort by; ``columns`` has those of every table."""
    lacking = [name for name in tables or columns if key is not None and key not in columns[name]]
    if lacking:
        having = ",".join(name for name, keys in columns.items() if key in keys)
        advice = f"choose with --tables {having}" if having else f"the columns are {', '.join(columns[lacking[0]])}"
        raise UsageError(f"--sort {key}: not a column of {', '.join(lacking)}; {advice}")


def deliver_several(arguments: argparse.Namespace, tables: Sequence[Titled]) -> int:
    """Delivers the tables of an answer and returns the exit status: 3 where none has rows."""
    if len(tables) == 1:
        return shared.deliver(arguments, tables[0].answer)
    check_sort(arguments.sort, {table.name: [column.key for column in table.answer.columns] for table in tables})
    deliver_tables(arguments, tables)
    return 0 if any(len(table.answer) for table in tables) else 3


def deliver_tables(arguments: argparse.Namespace, tables: Iterable[Titled]) -> None:
    """Prints or writes every table as it comes.

    To a file ``out.csv`` each goes under a name of its own, ``out_NAME.csv``. JSON is one array of objects, each with
    the labels of a table and its ``rows``. Raises what `arguments.deliver` raises.
    """
    if shared.to_file(arguments):
        _to_files(arguments, tables)
    elif arguments.format == "json":
        _as_json(arguments, tables)
    else:
        _one_by_one(arguments, tables)


def _one_by_one(arguments: argparse.Namespace, tables: Iterable[Titled]) -> None:
    for number, table in enumerate(tables):
        if number:
            print()
        if table.needs_title or arguments.format in (None, "table", "md"):
            print_lines([f"## {table.title}", ""] if arguments.format == "md" else [f"# {table.title}"])
        shared.deliver(arguments, table.answer)


def _to_files(arguments: argparse.Namespace, tables: Iterable[Titled]) -> None:
    target = Path(arguments.output)
    for table in tables:
        named = target.with_name(f"{target.stem}_{table.name}{target.suffix}")
        shared.deliver(argparse.Namespace(**{**vars(arguments), "output": str(named)}), table.answer)


def _as_json(arguments: argparse.Namespace, tables: Iterable[Titled]) -> None:
    print("[", end="")
    number = 0
    for number, table in enumerate(tables, 1):
        labels = to_json(dict(table.labels) or {"table": table.name}).removesuffix("}")
        print(f'{"," if number > 1 else ""}\n{labels}, "rows": ', end="")
        shared.deliver(arguments, table.answer)
        print("}", end="")
    print("\n]" if number else "]")


def peek(tables: Iterator[Titled]) -> tuple[list[Titled], Iterator[Titled]]:
    """The first two tables, and all of them: whether there are several is known without making the rest."""
    first = [table for _, table in zip(range(2), tables, strict=False)]

    def everything() -> Iterator[Titled]:
        yield from first
        yield from tables

    return first, everything()
