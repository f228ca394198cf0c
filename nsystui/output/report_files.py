"""Reports saved as an HTML page, or as Markdown with drawings as SVG files in a folder next to it."""

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
from nsystui.output.findings import plain, points
from nsystui.output.formats import markdown_text, write
from nsystui.output.html import page
from nsystui.output.svg import svg
from nsystui.questions.report.report import JobPage, ReportTable, Section, Told

ENDINGS = (".html", ".htm", ".md")


def check_target(path: str, overwrite: bool) -> None:
    """Raise an error, before the work begins, if the ending has no format or the name is taken."""
    if not path.lower().endswith(ENDINGS):
        raise UsageError(f"{path}: a report ends in .html (one page) or .md (Markdown with SVG files next to it)")
    if not overwrite:
        refuse_existing(path)
        if path.lower().endswith(".md"):
            refuse_existing(_folder(Path(os.path.expanduser(path))))


def save_report(report: JobPage, path: str, overwrite: bool = False) -> tuple[Path, ...]:
    """Save the report; return its files, the main file first.

    Raises the errors of `files.save`; then no new file remains.
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
            raise OutputError(f"cannot create directory {safe_text(str(folder))}: {reason}") from error
        save_together({**drawings, target: markdown(report, folder.name)}, overwrite)
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise
    return (target, *drawings)


def _folder(target: Path) -> Path:
    return target.with_name(f"{target.stem}.files")


def _file_of(section: Section, number: int) -> str:
    return f"{section.key}{f'-{number + 1}' if number else ''}.svg"


def markdown(report: JobPage, folder: str) -> str:
    """Return the report as Markdown, linked to drawings in ``folder``; tables have plain values (ns, bytes)."""
    first, *remaining = report.verdict or ("",)
    parts = [f"# {markdown_text(report.title)}\n", f"{' · '.join(map(plain, report.facts))}\n", f"**{plain(first)}**\n"]
    parts += [f"**Warning**: {plain(warning)}\n" for warning in report.warnings]
    if report.budget is not None:
        parts.append(_image(report.budget, folder, "summary.svg"))
    parts += [f"{plain(line)}\n" for line in remaining]
    parts += [f"## Findings\n\n{plain(report.headline)}\n"]
    for finding in report.findings:
        parts += _finding(finding)
    parts += [f"{plain(line)}\n" for line in report.remarks]
    if report.not_checked:
        parts += ["### Not checked\n", _list(report.not_checked)]
    for section in report.sections:
        parts.append(f"## {markdown_text(section.title)}\n")
        parts += [_image(drawing, folder, _file_of(section, number)) for number, drawing in enumerate(section.drawings)]
        for table in section.tables:
            parts += _table(table)
        parts += [_list(section.lines)] if section.lines else []
    return "\n".join(parts)


def _image(drawing: Drawing, folder: str, name: str) -> str:
    return f"![{markdown_text(drawing.title)}](<{folder}/{name}>)\n"


def _list(lines: Iterable[str]) -> str:
    return "".join(f"* {plain(line)}\n" for line in lines)


def _finding(finding: Told) -> Iterator[str]:
    share = "" if finding.percent is None else f" ({format_value(Unit.PERCENT, finding.percent)})"
    words = [finding.kind, finding.severity, f"{finding.id}{f': {finding.cost}{share}' if finding.cost else ''}"]
    was = f", was {finding.was}" if finding.was else ""
    yield f"### {markdown_text(' '.join(filter(None, words)) + was)}\n"
    yield f"{plain(finding.sentence)}\n"
    if finding.is_brief:
        return
    facts = (finding.measured, finding.window, finding.ranks, finding.command)
    lines = points(finding.under, finding.gain, finding.advice, finding.reason, *facts)
    yield "".join(f"{line}\n" for line in lines)
    if finding.evidence is not None:
        yield from _table(finding.evidence, has_title=False)


def _table(table: ReportTable, has_title: bool = True) -> Iterator[str]:
    if has_title:
        yield f"### {markdown_text(table.title)}\n"
    text = io.StringIO()
    write(table.answer, "md", text)
    yield text.getvalue()
    if table.count:
        yield plain(f"{table.count}; all of them: {table.command}" if table.command else table.count) + "\n"
