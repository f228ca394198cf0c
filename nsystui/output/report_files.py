"""A report saved as one HTML page, or as Markdown with its drawings as SVG files in a folder beside it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from nsystui.base.answer import Unit
from nsystui.base.drawing import Drawing
from nsystui.base.errors import OutputError, UsageError
from nsystui.base.text import safe_text
from nsystui.base.units import format_value
from nsystui.output.files import refuse_existing, save_text, save_together
from nsystui.output.findings import plain
from nsystui.output.formats import markdown_text, write
from nsystui.output.html import page
from nsystui.output.svg import svg
from nsystui.questions.report.report import JobPage, ReportTable, Section, Told

ENDINGS = (".html", ".htm", ".md")


def check_target(path: str, overwrite: bool) -> None:
    """Raises for a name whose ending is of no format, or that is taken: before the work begins."""
    if not path.lower().endswith(ENDINGS):
        raise UsageError(f"{path}: a report ends in .html (one page) or .md (Markdown with SVG files next to it)")
    if not overwrite:
        refuse_existing(path)
        if path.lower().endswith(".md"):
            refuse_existing(_folder(Path(os.path.expanduser(path))))


def save_report(report: JobPage, path: str, overwrite: bool = False) -> tuple[Path, ...]:
    """Saves the report and returns its files, that of its name first.

    Raises what `files.save` raises; then there is none of them.
    """
    check_target(path, overwrite)
    target = Path(os.path.expanduser(path))
    if not path.lower().endswith(".md"):
        save_text(page(report), target, overwrite)
        return (target,)
    folder = _folder(target)
    drawings = {} if report.budget is None else {folder / "summary.svg": svg(report.budget)}
    for section in report.sections:
        for number, drawing in enumerate(section.drawings):
            drawings[folder / _file_of(section, number)] = svg(drawing)
    is_new = not os.path.exists(folder)
    try:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            reason = safe_text(error.strerror or str(error))
            raise OutputError(f"cannot make {safe_text(str(folder))}: {reason}") from error
        save_together({**drawings, target: markdown(report, folder.name)}, overwrite)
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise
    return (target, *drawings)


def _folder(target: Path) -> Path:
    """``report.files`` for ``report.md``."""
    return target.with_name(f"{target.stem}.files")


def _file_of(section: Section, number: int) -> str:
    return f"{section.key}{f'-{number + 1}' if number else ''}.svg"


def markdown(report: JobPage, folder: str) -> str:
    """The report as Markdown, with links to its drawings in ``folder``; tables have plain values (ns, bytes)."""
    first, *others = report.verdict or ("",)
    parts = [f"# {markdown_text(report.title)}\n", f"{' · '.join(map(plain, report.facts))}\n", f"**{plain(first)}**\n"]
    parts += [f"**Warning**: {plain(one)}\n" for one in report.warnings]
    if report.budget is not None:
        parts.append(_image(report.budget, folder, "summary.svg"))
    parts += [f"{plain(one)}\n" for one in others]
    parts += [f"## Findings\n\n{plain(report.headline)}\n"]
    for one in report.findings:
        parts += _finding(one)
    parts += [f"{plain(line)}\n" for line in report.remarks]
    if report.not_checked:
        parts += ["### Not checked\n", _list(report.not_checked)]
    for section in report.sections:
        parts.append(f"## {markdown_text(section.title)}\n")
        parts += [_image(one, folder, _file_of(section, number)) for number, one in enumerate(section.drawings)]
        for table in section.tables:
            parts += _table(table)
        parts += [_list(section.lines)] if section.lines else []
    return "\n".join(parts)


def _image(drawing: Drawing, folder: str, name: str) -> str:
    return f"![{markdown_text(drawing.title)}](<{folder}/{name}>)\n"


def _list(lines: Iterable[str]) -> str:
    return "".join(f"* {plain(line)}\n" for line in lines)


def _finding(one: Told) -> Iterator[str]:
    share = "" if one.percent is None else f" ({format_value(Unit.PERCENT, one.percent)})"
    words = [one.kind, one.severity, f"{one.id}{f': {one.cost}{share}' if one.cost else ''}"]
    was = f", was {one.was}" if one.was else ""
    yield f"### {markdown_text(' '.join(filter(None, words)) + was)}\n"
    yield f"{plain(one.sentence)}\n"
    if one.is_brief:
        return
    lines = [f"**Caused by**: {plain(one.under)}"] if one.under else []
    lines += [f"**To win**: {plain(one.gain)}"] if one.gain else []
    lines += [f"**How to fix**: {plain(one.advice)} {plain(one.reason)}"]
    lines += [f"**Measured as**: {plain(one.measured)}"] if one.measured else []
    lines += [f"**When**: `{one.window}`"] if one.window else []
    lines += [f"**{'Rank' if one.ranks.isdecimal() else 'Ranks'}**: {plain(one.ranks)}"] if one.ranks else []
    yield "".join(f"* {line}\n" for line in [*lines, f"**See**: {plain(f'`{one.command}`')}"])
    if one.evidence is not None:
        yield from _table(one.evidence, has_title=False)


def _table(table: ReportTable, has_title: bool = True) -> Iterator[str]:
    if has_title:
        yield f"### {markdown_text(table.title)}\n"
    text = io.StringIO()
    write(table.answer, "md", text)
    yield text.getvalue()
    if table.count:
        yield plain(f"{table.count}; all of them: {table.command}" if table.command else table.count) + "\n"
