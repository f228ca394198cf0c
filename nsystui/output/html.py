"""A report as a self-contained HTML page: no requests, and only the script ``report.js``.

It follows the dark or light theme, prints, sorts tables by click or Enter, and unfolds details. Numbers look as in the
commands' tables. All foreign text is made safe and escaped.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import compress
from pathlib import Path

from nsystui.base.answer import FILES_ONLY, Column, Unit, Value
from nsystui.base.drawing import COLOURS, Drawing
from nsystui.base.text import safe_text
from nsystui.base.units import Wording, format_value, wordings
from nsystui.output.findings import CODE
from nsystui.output.formats import fitting
from nsystui.output.svg import FONT, INK, PAPER, style, svg
from nsystui.questions.report.report import JobPage, ReportTable, Section, Told

_CELLS = 132
"""Characters per table line: less important columns are hidden, as on a screen."""


def page(report: JobPage) -> str:
    """Return the HTML of a report."""
    sections = [("findings", "Findings"), *((section.key, section.title) for section in report.sections)]
    links = "".join(f'<li><a href="#{key}">{_text(title)}</a></li>' for key, title in sections)
    parts = [
        *_head(report),
        *_findings(report),
        *(line for section in report.sections for line in _section(section)),
        f"<footer>nsystui {_text(report.version)}, from exports of NVIDIA Nsight Systems. This page loads nothing "
        "from the network: it can be kept and sent as it is.</footer>",
    ]
    body = "\n".join(parts)
    script = "\n" + Path(__file__).with_name("report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    policy += f"; script-src 'sha256-{digest}'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{_text(report.title)} · nsystui report</title>
<style>{_style()}{style()}</style>
</head>
<body>
<a class="skip" href="#main">to the report</a>
<nav aria-label="contents"><ul>{links}</ul></nav>
<main id="main">
{body}
</main>
<script>{script}</script>
</body>
</html>
"""


def _text(text: str) -> str:
    return escape(safe_text(text))


def _sentence(text: str) -> str:
    parts = CODE.split(safe_text(text))
    return "".join(
        f"<code>{escape(part[1:-1])}</code>" if number % 2 else escape(part) for number, part in enumerate(parts)
    )


def _head(report: JobPage) -> Iterator[str]:
    first, *remaining = report.verdict or ("",)
    yield f"<header><h1>{_text(report.title)}</h1>"
    yield f'<ul class="facts">{"".join(f"<li>{_text(fact)}</li>" for fact in report.facts)}</ul>'
    yield f'<p class="verdict">{_sentence(first)}</p>'
    yield from (f'<p class="alert"><b>Warning</b> {_sentence(line)}</p>' for line in report.warnings)
    if report.budget is not None:
        yield _drawing(report.budget, has_title=False)
    yield from (f'<p class="account">{_sentence(line)}</p>' for line in remaining)
    yield "</header>"


def _findings(report: JobPage) -> Iterator[str]:
    yield f'<section id="findings"><h2>Findings <small>{_text(report.headline)}</small></h2>'
    for finding in report.findings:
        yield from _finding(finding)
    yield from (f'<p class="note">{_sentence(line)}</p>' for line in report.remarks)
    if report.not_checked:
        lines = "".join(f"<li>{_sentence(line)}</li>" for line in report.not_checked)
        yield f"<details><summary>Not checked</summary><ul>{lines}</ul></details>"
    yield "</section>"


def _finding(finding: Told) -> Iterator[str]:
    classes = " ".join(filter(None, ("finding", finding.severity, "under" * bool(finding.under), finding.kind)))
    kind = f'<b class="kind">{_text(finding.kind)}</b> ' if finding.kind else ""
    cost = ""
    if finding.cost:
        share = ""
        if finding.percent is not None:
            share = f" <b>{_text(format_value(Unit.PERCENT, finding.percent))}</b>"
            share += f'<i class="meter"><i style="width:{_percent(finding.percent)}"></i></i>'
        cost = f'<span class="cost">{_text(finding.cost)}{share}</span>'
    was = f'<span class="was">was {_text(finding.was)}</span>' if finding.was else ""
    under = f'<span class="was">caused by {_text(finding.under)}</span>' if finding.under else ""
    badge = f'<span class="badge">{_text(finding.severity)}</span>'
    yield f'<article class="{classes}"><h3>{kind}{badge} {_text(finding.id)}{cost}{was}{under}</h3>'
    yield f"<p>{_sentence(finding.sentence)}</p>"
    if not finding.is_brief:
        if finding.gain:
            yield f"<p><b>To win</b> {_sentence(finding.gain)}</p>"
        yield f"<p><b>How to fix</b> {_sentence(finding.advice)}</p><p><b>Why</b> {_sentence(finding.reason)}</p>"
        details = [f"<code>{_text(finding.command)}</code>"]
        if finding.ranks:
            details.append(f"{'rank' if finding.ranks.isdecimal() else 'ranks'} {_text(finding.ranks)}")
        details += [f"<code>{_text(finding.window)}</code>"] if finding.window not in finding.command else []
        yield f'<p class="note"><b>See</b> {" · ".join(details)}</p>'
        if finding.measured or finding.evidence is not None:
            yield "<details><summary>Evidence</summary>"
            if finding.measured:
                yield f'<p class="note">Measured as: {_sentence(finding.measured)}</p>'
            if finding.evidence is not None:
                yield from _notes(finding.evidence.answer.notes)
                yield from _table(finding.evidence, has_title=False)
            yield "</details>"
    yield "</article>"


def _percent(value: Value) -> str:
    return f"{min(max(float(value or 0), 0.0), 100.0):.1f}%"


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{section.key}"><h2>{_text(section.title)}</h2>'
    for drawing in section.drawings:
        yield _drawing(drawing)
    for table in section.tables:
        yield from _table(table, has_title=len(section.tables) > 1 or bool(section.drawings))
    yield from _notes(section.lines)
    if section.method and (section.tables or section.drawings):
        yield "<details><summary>How these numbers are counted</summary>"
        for name, text in section.method:
            lines = "\n".join(map(_text, text.splitlines()))
            yield f'<p class="note"><code>{_text(name)}</code></p><div class="method">{lines}</div>'
        yield "</details>"
    yield "</section>"


def _notes(lines: Iterable[str]) -> Iterator[str]:
    if items := "".join(f"<li>{_sentence(line)}</li>" for line in lines):
        yield f'<ul class="notes">{items}</ul>'


def _drawing(drawing: Drawing, has_title: bool = True) -> str:
    caption = f"<figcaption>{_text(drawing.title)}</figcaption>" if has_title else ""
    return f"<figure>{caption}{_scrolled(drawing.title)}{svg(drawing, alone=False)}</div></figure>"


def _scrolled(title: str) -> str:
    """Return the opening tag of an element that scrolls if too wide, also by keyboard."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{_text(title)}">'


# -- tables -----------------------------------------------------------------------------------------------------------


def _table(table: ReportTable, has_title: bool = True) -> Iterator[str]:
    answer = table.answer
    values: Sequence[Sequence[Value]] = list(zip(*answer.rows, strict=True)) or [()] * len(answer.columns)
    filled = tuple(column for column, cells in zip(answer.columns, values, strict=True) if set(cells) != {None})
    visible = [item for item in fitting(answer.with_columns(filled), _CELLS).columns if item.importance < FILES_ONLY]
    shown = [column.key in {item.key for item in visible} for column in answer.columns]
    columns = list(compress(map(_Cells, answer.columns, wordings(answer.columns, answer.rows), values), shown))
    is_measured = visible[0].unit in (Unit.PERCENT, Unit.DURATION)
    leads = [(column.label == "name", is_measured and column.unit is Unit.TEXT) for column in visible]
    columns.insert(0, columns.pop(leads.index(max(leads))))  # a phone keeps the first column in sight
    caption = f"<caption>{_text(table.title)}</caption>" if has_title else ""
    heads = "".join(column.head for column in columns)
    yield f"{_scrolled(table.title)}<table>{caption}<thead><tr>{heads}</tr></thead><tbody>"
    for row in zip(*(column.cells() for column in columns), strict=True):
        yield f"<tr>{''.join(row)}</tr>"
    yield "</tbody></table></div>"
    if table.count:
        more = f"; all of them: <code>{_text(table.command)}</code>" if table.command else ""
        yield f'<p class="note">{table.count}{more}</p>'


class _Cells:
    """The cells of a column in one unit, with the texts of a text table."""

    def __init__(self, column: Column, wording: Wording, values: Sequence[Value]) -> None:
        self._column, self._values, self._wording = column, values, wording
        texts = [value for value in values if isinstance(value, str)]
        # Padded numbers with units are aligned like numbers.
        is_worded = any(text.strip() != text for text in texts) and all(map(_WORDED.fullmatch, texts))
        self._kind = "" if column.unit is Unit.TEXT and not is_worded else ' class="n"'
        self.head = f'<th scope="col"{self._kind}><button>{_text(self._wording.heading(column.label))}</button></th>'

    def cells(self) -> Iterator[str]:
        for value in self._values:
            text = _text(self._wording.cell(value))
            is_share = self._column.has_bar and self._column.unit is Unit.PERCENT and isinstance(value, int | float)
            bar = f' style="--w:{_percent(value)}"' if is_share else ""
            yield f"<td{self._kind}{bar}>{text}</td>"


_WORDED = re.compile(r"\s*(?:[-+<]?[0-9][0-9,. ]*(?: ?[^\s0-9]+)?|–)\s*")


# -- the style --------------------------------------------------------------------------------------------------------


_GREYS = (
    {"soft": "#9aa1ad", "line": "#2c3038", "card": "#1d2027", "accent": "#62a8ff"},
    {"soft": "#5b6470", "line": "#dfe3e8", "card": "#f6f7f9", "accent": "#0b4a99"},
)
"""The page's own colours: dark, light."""


def _style() -> str:
    """Return the style sheet: the colours of both themes as variables, then ``report.css``."""
    dark, light = map(_theme, (0, 1))
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8").replace("FONT", FONT)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{css.rstrip()}"


def _theme(theme: int) -> str:
    """Return a theme's CSS variables: 0 is dark, 1 is light."""
    marks = {name: (COLOURS[name].dark, COLOURS[name].light)[theme] for name in ("error", "warning", "better", "worse")}
    colours = {"ink": INK[theme], "paper": PAPER[theme], **_GREYS[theme], **marks}
    return ";".join(f"--{name}:{colour}" for name, colour in colours.items())
