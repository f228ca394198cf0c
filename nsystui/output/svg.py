"""Drawings as SVG for a page, or as files that are readable on dark and light backgrounds.

All are `WIDTH` units wide; the container scales them. The profiled program's names are made safe and escaped.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate, groupby
from pathlib import Path

from nsystui.base.drawing import COLOURS, Bars, Curves, Drawing, DrawnLane, DrawnLanes, Part, Series
from nsystui.base.text import safe_text, shorten, width_of
from nsystui.base.units import format_value

WIDTH = 960
_CHARACTER = 6.6  # average width
_WIDE_CHARACTER = 7.4  # for text that is cut to fit
PAPER = ("#16181d", "#ffffff")
INK = ("#e6e8ec", "#1c1f24")
"""Colours of the dark and the light theme."""
_IDLE = 30
"""Opacity of idle areas, %: low, because they show the absence of work."""
FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif'
_SHAPES = Path(__file__).with_name("svg.css").read_text(encoding="utf-8").replace("\n", "").replace("FONT", FONT)
"""Rules for the shapes and texts of drawings, without colours."""


def svg(drawing: Drawing, *, alone: bool = True) -> str:
    """Return a drawing: a file if ``alone``, else an element for a page that has `style` and shows the title."""
    top = 26 if alone else 0
    if isinstance(drawing, Bars):
        body, height = _bars(drawing, top)
    elif isinstance(drawing, DrawnLanes):
        body, height = _lanes(drawing, top)
    else:
        body, height = _curves(drawing, top)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" class="drawing" role="img"'
    label = f' aria-label="{_text(drawing.title)}">'
    lines = [head + label]
    if alone:
        lines = [head + f' width="{WIDTH}" height="{height}"' + label]
        lines += [f"<title>{_text(drawing.title)}</title>", f"<style>{style()}</style>"]
        lines += [f'<rect class="paper" width="{WIDTH}" height="{height}"/>']
        lines += [f'<text class="title" x="8" y="18">{_text(drawing.title)}</text>']
    return "\n".join([*lines, *body, "</svg>"]) + "\n"


def style() -> str:
    """Return the style sheet of drawings for dark and light screens; prints are light."""
    light, dark = (_theme_rules(number) for number in (1, 0))
    return f"{_SHAPES}{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def _theme_rules(theme: int) -> str:
    ink, paper = INK[theme], PAPER[theme]
    rules = [
        f".drawing text,.drawing .ink{{fill:{ink}}}.drawing .paper{{fill:{paper}}}.drawing text.on{{fill:{paper}}}",
        f".drawing .grid,.drawing .frame,.drawing .unseen,.drawing .level{{stroke:{ink}}}",
        f".drawing .mark{{fill:{paper}}}",
    ]
    for name, colour in COLOURS.items():
        paint = (colour.dark, colour.light)[theme]
        if isinstance(paint, int):
            share = _IDLE if name == "idle" else paint
            rules.append(f".drawing .{name}{{fill:{ink};fill-opacity:{share / 100:g}}}")
        else:
            rules.append(f".drawing .{name}{{fill:{paint};fill-opacity:.88}}.drawing .line-{name}{{stroke:{paint}}}")
    return "".join(rules)


class _PlotArea:
    """Left edge and width of the plot, between labels and words."""

    def __init__(self, labels: Iterable[str], words: Iterable[str]) -> None:
        label_width, words_width = (
            max((width_of(safe_text(text)) * _WIDE_CHARACTER for text in texts), default=0.0)
            for texts in (labels, words)
        )
        self.left = round(min(max(label_width, 40.0), 250.0)) + 14
        self.width = WIDTH - self.left - round(min(max(words_width, 30.0), 110.0)) - 14

    def label(self, y: float, text: str) -> str:
        return _words("right", self.left - 8, y, _cut(text, self.left - 8))


def _text(text: str) -> str:
    return escape(safe_text(text))


def _words(kind: str, x: float, y: float, text: str) -> str:
    classes = f' class="{kind}"' if kind else ""
    return f'<text{classes} x="{_number(x)}" y="{_number(y)}">{_text(text)}</text>'


def _number(value: float) -> str:
    return f"{round(value, 1):g}"


def _cut(text: str, width: float) -> str:
    return shorten(safe_text(text), max(int(width / _WIDE_CHARACTER), 1))


def _legend(parts: Sequence[Part], left: int, y: int) -> tuple[list[str], int]:
    if len(parts) < 2:
        return [], 0
    body, x, line = [], float(left), 0
    for part in parts:
        length = 18 + width_of(part.name) * _CHARACTER + 16
        if x + length > WIDTH and x > left:
            x, line = float(left), line + 1
        base = y + 12 + 18 * line
        square = f'x="{_number(x)}" y="{base - 9}" width="11" height="11" rx="2"'
        body.append(f'<rect {square} {_fill(part)}/><rect {square} class="frame" fill="none"/>')
        body.append(_words("", x + 16, base, part.name))
        x += length
    return body, 18 * (line + 1) + 6


def _fill(part: Part) -> str:
    return f'class="{part.category}"' + (f' opacity="{part.strength:g}"' if part.strength < 1 else "")


# -- stacked bars -----------------------------------------------------------------------------------------------------


def _bars(drawing: Bars, top: int) -> tuple[list[str], int]:
    area = _PlotArea((bar.label for bar in drawing.bars), (bar.words for bar in drawing.bars))
    body, legend_height = _legend(drawing.parts, area.left, top)
    thick, step = (26, 32) if len(drawing.bars) <= 16 else (13, 16)
    y = top + legend_height
    for bar in drawing.bars:
        base = y + thick / 2 + 4
        body.append(area.label(base, bar.label))
        x = float(area.left)
        for part, value in zip(drawing.parts, bar.values, strict=True):
            width = area.width * value / drawing.whole if drawing.whole else 0.0
            if width <= 0:
                continue
            words = format_value(drawing.unit, value)
            shape = f'x="{_number(x)}" y="{y}" width="{_number(max(width, 0.3))}" height="{thick}"'
            title = _text(f"{bar.label}: {part.name} {words}")
            body.append(f"<rect {shape} {_fill(part)}><title>{title}</title></rect>")
            if width > width_of(words) * _CHARACTER + 6 and thick > 20:
                body.append(_words("middle" if part.category == "idle" else "middle on", x + width / 2, base, words))
            x += width
        body.append(f'<path class="frame" fill="none" d="M{area.left} {y}H{_number(x)}v{thick}H{area.left}z"/>')
        body.append(_words("right", WIDTH - 4, base, bar.words))
        y += step
    return body, y + 2


# -- lanes over time --------------------------------------------------------------------------------------------------


_SIZES = ((8, (34, 6)), (26, (22, 4)), (70, (11, 3)), (math.inf, (5, 1)))
"""Maximum number of lanes, and the thickness of lanes and gaps for it."""


def _lanes(drawing: DrawnLanes, top: int) -> tuple[list[str], int]:
    area = _PlotArea((lane.label for lane in drawing.lanes), (lane.words for lane in drawing.lanes))
    body, legend_height = _legend(drawing.parts, area.left, top)
    count = len(drawing.lanes)
    thick, gap = next(size for limit, size in _SIZES if count <= limit)
    label_step = 1 if thick + gap >= 13 else math.ceil(13 / (thick + gap))
    begin = y = top + legend_height
    grid = _time_ticks(drawing.start, drawing.end, area.width)
    if drawing.numbers:  # label some columns, at their middle
        numbers, step = drawing.numbers, math.ceil(len(drawing.numbers) / 12)
        indices = range(0, len(numbers), step)
        grid = [(area.width * (index + 0.5) / len(numbers), str(numbers[index])) for index in indices]

    for number, lane in enumerate(drawing.lanes):
        if number % label_step == 0:
            base = y + thick / 2 + 4
            body.append(area.label(base, lane.label))
            body.append(_words("right", WIDTH - 4, base, lane.words))
        body += _lane(lane, drawing.parts, area, y, thick)
        y += thick + gap
    end = y - gap
    body += [f'<path class="grid" d="M{_number(area.left + x)} {begin}V{end}"/>' for x, _ in grid]
    body.append(f'<path class="frame" d="M{area.left} {end + 2}h{area.width}"/>')
    for x, words in grid:
        alignment = "" if x < 20 else "middle" if x < area.width - 20 else "right"
        body.append(_words(alignment, area.left + x, end + 17, words))
    if drawing.more:
        body.append(_words("", area.left, end + 35, f"{drawing.more:,} more are not drawn"))
        end += 18
    return body, end + 24


def _lane(lane: DrawnLane, parts: Sequence[Part], area: _PlotArea, y: int, thick: int) -> Iterator[str]:
    sums = list(zip(*(accumulate(column_values) for column_values in zip(*lane.values, strict=True)), strict=True))
    count = len(lane.values[0]) if lane.values else 1
    step = area.width / max(count, 1)
    yield f"<g><title>{_text(' '.join(filter(None, (lane.label, lane.words))))}</title>"
    yield f'<rect class="idle" opacity=".25" x="{area.left}" y="{y}" width="{area.width}" height="{thick}"/>'
    below: Sequence[float] = (0.0,) * count
    for part, tops in zip(parts, sums, strict=True):
        path = _steps(below, tops, area.left, y, thick, step)
        below = tops
        if path:
            yield f'<path {_fill(part)} d="{path}"/>'
    column = 0
    for is_unseen, run in groupby(sums[-1] if sums else (), key=math.isnan):
        x, width = area.left + column * step, step * (length := sum(1 for _ in run))
        column += length
        if is_unseen:
            yield f'<rect class="paper" x="{_number(x)}" y="{y}" width="{_number(width)}" height="{thick}"/>'
            yield f'<path class="unseen" d="M{_number(x)} {y + thick - 1}h{_number(width)}"/>'
    for name in lane.names:
        room = (name.last - name.first + 1) * step - 4
        if room > 3 * _CHARACTER and thick > 20:
            yield _words("small on", area.left + name.first * step + 2, y + thick - 4, _cut(name.text, room * 1.15))
    yield "</g>"


def _steps(below: Sequence[float], tops: Sequence[float], left: int, y: int, thick: int, width: float) -> str:
    """Return the outline of columns from ``below`` to ``tops`` (0 to 1), joining columns of one height."""
    path, column, bottom = [], 0, y + thick
    for (low, high), run in groupby(zip(_levels_of(below, thick), _levels_of(tops, thick), strict=True)):
        length = sum(1 for _ in run)
        if high > low:
            start, end = _number(left + column * width), _number(left + (column + length) * width)
            path.append(f"M{start} {_number(bottom - low)}V{_number(bottom - high)}H{end}V{_number(bottom - low)}")
        column += length
    return "".join(path)


def _levels_of(values: Sequence[float], thick: int) -> list[float]:
    """Return heights rounded to half units; values above 0 get at least half a unit."""
    shares = [0.0 if math.isnan(value) else max(min(value, 1.0), 0.5 / thick if value > 0 else 0.0) for value in values]
    return [round(2 * thick * share) / 2 for share in shares]


def _time_ticks(start: int, end: int, width: int) -> list[tuple[float, str]]:
    length = end - start
    if length <= 0:
        return []
    step = int(_round_step(max(length / 5, 1.0)))
    decimals = min(9, max(0, 9 - (len(str(step)) - len(str(step).rstrip("0")))))
    first = -(-start // step) * step
    return [(width * (time - start) / length, f"{time / 1e9:,.{decimals}f} s") for time in range(first, end + 1, step)]


def _round_step(minimum: float) -> float:
    """Return 1, 2 or 5 times a power of ten: ``minimum`` or slightly more."""
    power = 10.0 ** math.floor(math.log10(minimum)) if minimum > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= minimum or factor == 10)


# -- curves -----------------------------------------------------------------------------------------------------------

_MARKS = (
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "m-3.2-3.2h6.4v6.4h-6.4z",
    "m0-4.2l4 7.4h-8z",
    "m0-4.6l4.6 4.6l-4.6 4.6l-4.6-4.6z",
    "m0 4.2l4-7.4h-8z",
)
_HEIGHT = 300
_Point = tuple[float, float]


def _curves(drawing: Curves, top: int) -> tuple[list[str], int]:
    """Draw curves with different marks and a legend, because all may have one category's colour."""
    left, bottom, plot = 92, top + _HEIGHT - 34, WIDTH - 92 - 16
    points = [point for curve in drawing.series for point in curve.points if point[0] > 0]
    body, ceiling = _curve_legend(drawing, left, top)
    if not points:
        return body, bottom
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    low, high = (low / 2, high * 2) if low == high else (low, high)
    largest = max([y for _, y in points] + ([drawing.level[1]] if drawing.level else [])) or 1.0

    def position(point: _Point) -> _Point:
        share = math.log(point[0] / low) / math.log(high / low)
        return left + plot * (0.02 + 0.96 * share), bottom - (bottom - ceiling) * 0.95 * point[1] / largest

    step = _round_step(largest / 4)
    for number in range(int(largest / step) + 1):
        level = position((low, number * step))[1]
        body.append(f'<path class="grid" d="M{left} {_number(level)}h{plot}"/>')
        body.append(_words("right", left - 8, level + 4, format_value(drawing.y, number * step)))
    body.append(f'<path class="frame" d="M{left} {bottom}h{plot}"/>')
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    powers = range(first, last + 1, max(1, math.ceil((last - first + 1) / 8)))  # at most eight
    for size in [*map(math.exp2, powers)] or [low, high]:
        tick_x = position((size, 0))[0]
        body.append(f'<path class="frame" d="M{_number(tick_x)} {bottom}v4"/>')
        body.append(_words("middle", tick_x, bottom + 18, format_value(drawing.x, size)))
    if drawing.level is not None:
        level = position((low, drawing.level[1]))[1]
        body.append(f'<path class="level" d="M{left} {_number(level)}h{plot}"/>')
        body.append(_words("right", left + plot - 4, level - 5, drawing.level[0]))
    for number, curve in enumerate(drawing.series):
        body += _curve(number, curve, drawing, position)
    return body, bottom + 28


def _curve_legend(drawing: Curves, left: int, top: int) -> tuple[list[str], int]:
    """Draw the legend of curves, and return its end."""
    body, x, y = [], float(left), top + 12
    for number, curve in enumerate(drawing.series):
        length = 20 + width_of(curve.name) * _CHARACTER + 18
        if x + length > WIDTH and x > left:
            x, y = float(left), y + 18
        body += [_mark(number, curve.category, x + 6, y - 4), _words("", x + 16, y, curve.name)]
        x += length
    return body, y + 16


def _curve(number: int, curve: Series, drawing: Curves, position: Callable[[_Point], _Point]) -> Iterator[str]:
    """Draw a curve with its marks."""
    positions = [(position(point), point) for point in curve.points if point[0] > 0]
    if len(positions) > 1:
        path = " ".join(f"{_number(mark_x)} {_number(mark_y)}" for (mark_x, mark_y), _ in positions)
        yield f'<path class="curve line-{curve.category}" d="M{path}"/>'
    for (mark_x, mark_y), (size, rate) in positions:
        words = f"{curve.name}, {format_value(drawing.x, size)}: {format_value(drawing.y, rate)}"
        yield _mark(number, curve.category, mark_x, mark_y, words)


def _mark(number: int, category: str, x: float, y: float, words: str = "") -> str:
    """Return the mark of a curve: shapes in turn, alternately empty, so that overlapping marks are visible."""
    is_filled = number % 2 == 0
    shape = f'd="M{_number(x)} {_number(y)}{_MARKS[number % len(_MARKS)]}"'
    kind = f"{category} line-{category}" if is_filled else f"mark line-{category}"
    return f'<path class="{kind}" {shape}>{f"<title>{_text(words)}</title>" if words else ""}</path>'
