"""Text that shows amounts: blocks over time, a time axis, a histogram, a plot. Plain functions, no screen."""

import math
from collections.abc import Callable, Iterator, Sequence

from nsystui.base.text import fit, safe_text, width_of

BLOCKS = "▁▂▃▄▅▆▇█"
NOTHING = " "
"""Exactly 0: idle time must not look like a little work."""

NO_DATA = "·"
"""Nothing recorded, which is not 0."""

BAR = "▇"
TRACE = "▁"
"""The bar of a positive value that is less than half a cell."""

TICK = "│"

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


def blocks(bins: Sequence[float], width: int) -> str:
    """Return ``bins`` (0..1 each, NaN: no data) as ``width`` blocks.

    With more bins than blocks, each block shows its largest bin, so that peaks stay visible; with fewer, blocks repeat.
    """
    if len(bins) == 0:
        return " " * width
    return "".join(_block(_largest(bins, column, width)) for column in range(width))


def _largest(bins: Sequence[float], column: int, width: int) -> float:
    first = column * len(bins) // width
    covered = bins[first : max(first + 1, (column + 1) * len(bins) // width)]
    return max([value for value in covered if not math.isnan(value)], default=math.nan)


def _block(value: float) -> str:
    if math.isnan(value):
        return NO_DATA
    return BLOCKS[min(len(BLOCKS) - 1, int(_share(value, 1.0) * len(BLOCKS)))] if value > 0 else NOTHING


def _steps(min_step: float) -> Iterator[int]:
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= min_step:
                yield factor * power
        power *= 10


def _tick_label(time: int, step: int, largest: int) -> str:
    """Return ``time`` with the decimals of ``step``, in the unit for the axis's ``largest`` time."""
    size, unit = next((size, unit) for size, unit in _UNITS if largest >= size or size == 1)
    whole, rest = divmod(abs(time), size)
    digits = f"{rest:0{len(str(size)) - 1}d}" if size > 1 else ""
    decimals = max(0, len(str(size)) - len(str(step)))  # steps have one significant digit
    digits = digits[:decimals]
    groups = " ".join(digits[index : index + 3] for index in range(0, len(digits), 3))
    return f"{'-' if time < 0 else ''}{whole:,}{'.' if groups else ''}{groups} {unit}"


def time_axis(lo: int, hi: int, width: int) -> str:
    """Return tick marks with their times below a chart of ``width`` columns from ``lo`` to ``hi`` ns.

    Each ``│`` is in the column of its time; ticks are 1, 2 or 5 times a power of ten apart.
    """
    if hi <= lo or width <= 0:
        return " " * max(0, width)
    largest = max(abs(lo), abs(hi))
    for step in _steps((hi - lo) / width):
        ticks = range(-(-lo // step) * step, hi, step)
        labels = [_tick_label(tick, step, largest) for tick in ticks]
        room = step * width / (hi - lo)
        if len(ticks) <= 1 or max(map(len, labels)) + 3 <= room:
            break
    line = [" "] * width
    for tick, label in zip(ticks, labels, strict=True):
        column = (tick - lo) * width // (hi - lo)
        text = TICK + label if column + 1 + len(label) <= width else TICK
        line[column : column + len(text)] = text
    return "".join(line)


_EIGHTHS = " ▏▎▍▌▋▊▉"


def _share(value: float, full: float) -> float:
    """Return ``value`` as a share of ``full``, 0 to 1; 0 unless both are positive numbers."""
    return min(value / full, 1.0) if value > 0 and 0 < full < math.inf else 0.0


def bar(value: object, full: float, width: int) -> str:
    """Return ``value`` as a bar in ``width`` cells, all filled at ``full``, or blanks."""
    share = _share(value, full) if isinstance(value, int | float) else 0.0
    if not share:
        return " " * width
    eighths = max(1, round(share * width * 8))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).ljust(width)[:width]


def stacked_bar(parts: Sequence[tuple[str, float]], full: float, width: int) -> list[tuple[str, str]]:
    """Return the values of categories end to end in ``width`` cells, all filled at ``full``; empty cells are idle.

    Returns runs of cells with their category; ``compute/nccl``: compute ends in a cell that NCCL fills.
    """
    edges, total = [0], 0.0
    for _, value in parts:
        total += value if value > 0 else 0.0
        edges.append(round(_share(total, full) * width * 8))
    if total > 0:
        edges[-1] = max(edges[-1], 1)
    runs: list[tuple[str, str]] = []
    for cell in range(0, width * 8, 8):
        spans = zip(parts, edges, edges[1:], strict=False)
        shares = [(name, min(end, cell + 8) - max(start, cell)) for (name, _), start, end in spans]
        used = [(name, eighths) for name, eighths in shares if eighths > 0]
        filled = sum(eighths for _, eighths in used)
        if not filled:
            glyph, category = "░", "idle"
        elif filled < 8 or len(used) == 1:
            glyph, category = _EIGHTHS[filled % 8] if filled < 8 else "█", max(used, key=lambda item: item[1])[0]
        else:
            glyph, category = _EIGHTHS[used[0][1]], f"{used[0][0]}/{max(used[1:], key=lambda item: item[1])[0]}"
        if runs and runs[-1][1] == category:
            runs[-1] = (runs[-1][0] + glyph, category)
        else:
            runs.append((glyph, category))
    return runs


def tick_line(ticks: Sequence[tuple[int, str]], width: int) -> str:
    """Return labels after tick marks in their columns, without labels that would touch the next tick."""
    line = [" "] * width
    for (column, label), end in zip(ticks, [column for column, _ in ticks[1:]] + [width + 1], strict=True):
        if not 0 <= column < width:
            continue
        text = TICK + label if column + 1 + len(label) < end else TICK
        line[column : column + len(text)] = text
    return "".join(line)[:width]


def step_axis(numbers: Sequence[int], width: int) -> str:
    """Return the numbers of the steps below their columns, as many as fit."""
    line = ""
    for index, number in enumerate(numbers):
        cell = index * width // len(numbers)
        label = f"│{number}"
        if cell >= len(line) + (1 if line else 0) and cell + len(label) <= width:
            line = line.ljust(cell) + label
    return line.ljust(width)


def histogram_lines(
    labels: Sequence[str], counts: Sequence[int], width: int, words: Sequence[str] | None = None
) -> list[str]:
    """Return a line of ``width`` cells for each bucket: label, bar, count. The largest bar fills its room.

    ``words`` replace counts that have a unit. Bars of fewer than four cells are left out; then labels are cut.
    """
    labels = [safe_text(label) for label in labels]
    numbers = [f"{count:,}" for count in counts] if words is None else list(words)
    label_width = max(map(width_of, labels), default=0)
    number_width = max(map(len, numbers), default=0)
    bar_width = width - label_width - number_width - 2
    if bar_width < 4:
        bar_width = 0
        label_width = max(0, width - number_width - 1)
    largest = max(counts, default=0)
    lines = []
    for label, number, count in zip(labels, numbers, counts, strict=True):
        line = fit(label, label_width, "right") + " "
        if bar_width:
            cells = BAR * math.floor(count / largest * bar_width + 0.5) or TRACE if count > 0 else ""
            line += fit(cells, bar_width) + " "
        lines.append(fit(line + number.rjust(number_width), max(0, width)))
    return lines


_Words = Callable[[float], str]
Ends = tuple[float, float]


def label_width(y_words: _Words, ends: Ends) -> int:
    """Return the cells of the y axis and its labels."""
    return max(width_of(y_words(end)) for end in ends) + 2


def framed(rows: Sequence[str], ends: tuple[Ends, Ends], width: int, words: tuple[_Words, _Words]) -> list[str]:
    """Return the rows of a plot with the ends of its axes; ``ends`` and ``words`` are x, then y."""
    labels = label_width(words[1], ends[1])
    lines = []
    for index, marks in enumerate(rows):
        end_value = {0: ends[1][1], len(rows) - 1: ends[1][0]}.get(index)
        label = words[1](end_value) if end_value is not None else ""
        lines.append(fit(fit(label, labels - 2, "right") + " │" + marks, width))
    left, right = (words[0](end) for end in ends[0])
    room = max(width - labels - width_of(left), 0)
    return [*lines, fit(" " * labels + left + fit(right, room, "right"), width)]
