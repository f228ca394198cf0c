"""A command's tables: in turn on stdout, or each in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nsystui.base.answer import Column, key_named
from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared
from nsystui.commands.request import Request
from nsystui.output.files import print_lines
from nsystui.output.formats import to_json
from nsystui.output.pipe import quiet_pipe
from nsystui.questions.queries.question import Titled


def check_sort(
    sort_key: str | None, columns: Mapping[str, Sequence[Column]], tables: Sequence[str] | None = None
) -> None:
    """Raise UsageError if a table lacks the column to sort by; ``columns`` contains the columns of all tables."""
    if sort_key is None:
        return
    sortable = [name for name, table_columns in columns.items() if key_named(table_columns, sort_key) is not None]
    if lacking := [name for name in tables or columns if name not in sortable]:
        names = ", ".join(column.file_key for column in columns[lacking[0]])
        advice = f"choose with --tables {','.join(sortable)}" if sortable else f"the columns are {names}"
        raise UsageError(f"--sort {sort_key}: not a column of {', '.join(lacking)}; {advice}")


def deliver_several(request: Request, tables: Sequence[Titled]) -> int:
    """Deliver the tables of an answer; return the exit status, 3 if no table has rows."""
    if len(tables) == 1:
        return shared.deliver(request, tables[0].answer)
    check_sort(request.output.sort, {table.name: table.answer.columns for table in tables})
    deliver_tables(request, tables)
    return 0 if any(len(table.answer) for table in tables) else 3


def deliver_tables(request: Request, tables: Iterable[Titled]) -> int:
    """Print or write the tables as they arrive, and return their number.

    For a file ``out.csv``, each table is in ``out_NAME.csv``. JSON is one array of objects, each with a table's labels
    and ``rows``. The notes of all tables follow the last. Raises the errors of `arguments.deliver`.
    """
    number = 0
    notes: list[str] = []
    is_json = request.output.format == "json" and not request.output.is_file
    for number, table in enumerate(tables, 1):
        if request.output.is_file:
            target = Path(str(request.output.target))
            path = target.with_name(f"{target.stem}_{table.name}{target.suffix}")
            shared.deliver(replace(request, output=replace(request.output, target=str(path))), table.answer, notes)
        elif is_json:
            labels = to_json(dict(table.labels) or {"table": table.name}).removesuffix("}")
            with quiet_pipe() as stream:
                stream.write(f'{"," if number > 1 else "["}\n{labels}, "rows": ')
            shared.deliver(request, table.answer, notes)
            with quiet_pipe() as stream:
                stream.write("}")
        else:
            if number > 1:
                print_lines([""])
            if table.needs_title or request.output.format in (None, "table", "md"):
                print_lines([f"## {table.title}", ""] if request.output.format == "md" else [f"# {table.title}"])
            shared.deliver(request, table.answer, notes)
    if is_json:
        print_lines(["", "]"] if number else ["[]"])
    shared.say_notes(*notes)
    return number
