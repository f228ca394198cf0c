"""A report as a self-contained HTML page: no requests, and only the script below.

It follows the dark or light theme, prints, sorts tables by click or Enter, and unfolds details. Numbers look as in the
commands' tables. All foreign text is made safe and escaped.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import compress

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

_SCRIPT = """
const number = text => { const digits = text.replace(/[^0-9.eE+-]/g, ''); return digits ? parseFloat(digits) : NaN; };
for (const button of document.querySelectorAll('th button')) button.addEventListener('click', () => {
  const head = button.closest('th'), table = head.closest('table'), body = table.tBodies[0];
  const place = head.cellIndex, isNumber = head.classList.contains('n');
  const before = head.getAttribute('aria-sort');
  const down = before ? before === 'ascending' : isNumber;
  for (const other of table.querySelectorAll('th')) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const rows = [...body.rows].map(row => [row.cells[place].textContent, row]);
  rows.sort(([a], [b]) => {
    if (!isNumber) return (down ? -1 : 1) * a.localeCompare(b, 'en', {numeric: true});
    const x = number(a), y = number(b);
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
    return down ? y - x : x - y;
  });
  body.append(...rows.map(([, row]) => row));
});
let closed = [];
addEventListener('beforeprint', () => {
  closed = [...document.querySelectorAll('details:not([open])')];
  for (const one of closed) one.open = true;
});
addEventListener('afterprint', () => { for (const one of closed) one.open = false; });
"""


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
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
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
<style>{_STYLE}{style()}</style>
</head>
<body>
<a class="skip" href="#main">to the report</a>
<nav aria-label="contents"><ul>{links}</ul></nav>
<main id="main">
{body}
</main>
<script>{_SCRIPT}</script>
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


def _theme(theme: int) -> str:
    """Return a theme's CSS variables: 0 is dark, 1 is light."""
    ink, paper = INK[theme], PAPER[theme]
    soft, line, card = (("#9aa1ad", "#2c3038", "#1d2027"), ("#5b6470", "#dfe3e8", "#f6f7f9"))[theme]
    accent = ("#62a8ff", "#0b4a99")[theme]
    severities = [
        f"--{name}:{(colour.dark, colour.light)[theme]}"
        for name, colour in COLOURS.items()
        if name in ("error", "warning", "better", "worse")
    ]
    return ";".join(
        [f"--ink:{ink};--paper:{paper};--soft:{soft};--line:{line};--card:{card};--accent:{accent}", *severities]
    )


_STYLE = f"""
:root{{{_theme(1)}}}
@media screen and (prefers-color-scheme:dark){{:root{{{_theme(0)}}}}}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%}}
body{{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 {FONT};
display:grid;grid-template-columns:minmax(0,1fr);justify-content:center}}
main{{padding:24px 20px 60px;max-width:1040px;width:100%;margin:0 auto}}
nav{{padding:12px 20px 0}}
nav ul{{list-style:none;margin:0;padding:0;display:flex;flex-wrap:wrap;gap:2px 14px;font-size:13px}}
a{{color:var(--accent)}}nav a{{color:var(--soft);text-decoration:none}}nav a:hover,nav a:focus{{color:var(--accent)}}
.skip{{position:absolute;left:-999px}}.skip:focus{{left:8px;top:8px;background:var(--paper);padding:4px 8px}}
:focus-visible{{outline:2px solid var(--accent);outline-offset:2px;border-radius:3px}}
h1{{font-size:26px;line-height:1.2;margin:0 0 6px;overflow-wrap:anywhere;unicode-bidi:isolate}}
h2{{font-size:19px;margin:44px 0 10px;padding-bottom:6px;border-bottom:1px solid var(--line);scroll-margin-top:10px}}
h2 small{{font-weight:400;font-size:13px;color:var(--soft);margin-left:8px}}
h3{{font-size:15px;margin:0 0 4px;display:flex;flex-wrap:wrap;gap:4px 10px;align-items:baseline}}
p{{margin:0 0 6px;overflow-wrap:anywhere}}
.facts{{list-style:none;margin:0 0 20px;padding:0;display:flex;flex-wrap:wrap;gap:4px 6px;font-size:13px}}
.facts li{{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1px 9px}}
.verdict{{font-size:19px;line-height:1.4;font-weight:600;margin-bottom:14px}}
.alert{{border-left:4px solid var(--warning);padding:2px 10px;background:var(--card)}}
.account,.note,.notes,.method{{font-size:13px;color:var(--soft)}}
.account{{margin-top:6px}}.notes{{margin:8px 0;padding-left:18px}}
.method{{white-space:pre-wrap;font-family:ui-monospace,"Liberation Mono",Menlo,monospace;font-size:12px;
line-height:1.45}}
code{{font:12.5px ui-monospace,"Liberation Mono",Menlo,monospace;background:var(--card);border-radius:4px;padding:0 4px;
overflow-wrap:anywhere;unicode-bidi:isolate;color:var(--ink)}}
.finding{{border:1px solid var(--line);border-left:4px solid var(--soft);border-radius:6px;padding:10px 14px;
margin:0 0 10px;background:var(--card)}}
.finding code{{background:var(--paper)}}
.finding.error{{border-left-color:var(--error)}}.finding.warning{{border-left-color:var(--warning)}}
.finding.under{{margin-left:24px}}
.badge{{font-size:11px;letter-spacing:.04em;text-transform:uppercase;font-weight:600;color:var(--soft);align-self:center}}
.error .badge{{color:var(--error)}}.warning .badge{{color:var(--warning)}}
.kind{{font-size:12px;text-transform:uppercase;letter-spacing:.04em}}
.new .kind,.finding.worse .kind{{color:var(--worse)}}.finding.better .kind,.gone .kind{{color:var(--better)}}
.cost{{margin-left:auto;font-weight:400;font-variant-numeric:tabular-nums;white-space:nowrap}}
.was{{font-weight:400;font-size:13px;color:var(--soft)}}
.meter{{display:inline-block;width:90px;height:8px;margin-left:8px;border-radius:4px;background:var(--line);overflow:hidden}}
.meter i{{display:block;height:100%;background:var(--soft)}}
.error .meter i{{background:var(--error)}}.warning .meter i{{background:var(--warning)}}
details{{margin:6px 0}}summary{{cursor:pointer;font-size:13px;color:var(--accent)}}
figure{{margin:12px 0 16px}}figcaption,caption{{text-align:left;font-size:13px;font-weight:600;padding:4px 0 6px}}
.wide{{overflow-x:auto}}
.wide svg{{display:block;width:100%;min-width:800px;height:auto}}
table{{border-collapse:collapse;font-size:12.5px;line-height:1.4;margin:8px 0 4px;font-variant-numeric:tabular-nums}}
th,td{{padding:3px 10px 3px 0;text-align:left;vertical-align:top;unicode-bidi:isolate}}
td{{border-top:1px solid var(--line);overflow-wrap:anywhere;min-width:5ch;white-space:pre-wrap}}
td:not(.n){{max-width:60ch;min-width:9ch}}
th.n,td.n{{text-align:right;white-space:pre;padding-right:12px}}
td.n[style]{{background:linear-gradient(90deg,color-mix(in srgb,var(--accent) 22%,transparent) var(--w),transparent 0)}}
th{{vertical-align:bottom;font-weight:600;white-space:nowrap}}
th button{{all:unset;cursor:pointer;color:var(--soft)}}th button:hover{{color:var(--accent)}}
th button:focus-visible{{outline:2px solid var(--accent);outline-offset:2px}}
th[aria-sort] button{{color:var(--ink)}}
th[aria-sort=descending] button::after{{content:" \\25BE"}}th[aria-sort=ascending] button::after{{content:" \\25B4"}}
tbody tr:hover td{{background-color:var(--card)}}
footer{{margin-top:48px;font-size:12px;color:var(--soft)}}
@media(min-width:1240px){{
body{{grid-template-columns:190px minmax(0,1040px);gap:0 20px}}
nav{{position:sticky;top:0;align-self:start;padding:30px 0 0 20px}}nav ul{{display:block}}nav li{{margin:0 0 7px}}
main{{margin:0}}}}
@media screen and (max-width:720px){{td:not(.n){{min-width:14ch}}
th:first-child,td:first-child{{position:sticky;left:0;background:var(--paper);max-width:45vw}}
.finding th:first-child,.finding td:first-child{{background:var(--card)}}
.finding.under{{margin-left:10px}}main{{padding:16px 12px 40px}}}}
@media print{{
@page{{margin:10mm}}body{{display:block;font-size:8pt;line-height:1.25}}main{{max-width:none;padding:0}}
nav,.skip,article summary,details:has(.method){{display:none}}
*{{-webkit-print-color-adjust:exact;print-color-adjust:exact}}h1{{font-size:18pt}}h2,.verdict{{font-size:12pt}}
h2{{margin:8pt 0 3pt;padding-bottom:2pt}}h3{{font-size:9.5pt}}p,.notes,figure{{margin:2pt 0}}
.finding{{padding:5pt 8pt;margin:0 0 5pt}}figcaption,caption{{font-size:7.5pt;padding:2pt 0}}
.account,.note,.notes,.facts,.was,h2 small{{font-size:7pt}}code{{font-size:inherit}}.wide{{overflow:visible}}
.wide svg{{min-width:0}}table{{font-size:6.5pt;line-height:1.15;margin:2pt 0}}td:not(.n){{min-width:4ch}}
th,th.n{{white-space:normal}}th,td,th.n,td.n{{padding:.3pt 5pt .3pt 0}}tr,figure{{break-inside:avoid}}
thead{{display:table-header-group}}h2,h3,caption,thead{{break-after:avoid}}tbody tr:nth-child(2){{break-before:avoid}}
details::details-content{{content-visibility:visible;block-size:auto}}}}
""".strip()
