"""Cells that show shares by colour: stacks of categories, half rows and shades. Plain functions, no screen.

A cell is a glyph, the category in front and the one behind it; each may be empty. A shade of a category is its name
with a level, ``nccl:3``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nsystui.base.drawing import SHADES
from nsystui.ui.widgets.plots import BLOCKS, NO_DATA, NOTHING

Stack = tuple[tuple[str, Sequence[float]], ...]
"""Categories and their shares of each bin (0..1, together at most 1; NaN: no data), the lowest first."""

Cell = tuple[str, str, str]

SHADE_LEVELS = 7
"""How many shades of a colour are told apart."""

_EMPTY: Cell = (NOTHING, "", "")
_UNSEEN: Cell = (NO_DATA, "idle", "")
_NOT_SEEN = NO_DATA
_UNITS = len(BLOCKS)
_BLOCK_SHADES = " ░▒▓█"


def _columns(bins: int, width: int) -> list[int]:
    """Which bin each column shows; of none there is nothing to show."""
    return [column * bins // width for column in range(width)] if bins else []


def stack_cells(stack: Stack, width: int, height: int, is_plain: bool = False) -> list[list[Cell]]:
    """``height`` rows of ``width`` cells, the top one first; ``is_plain``: shading tells the categories."""
    rows: list[list[Cell]] = [[] for _ in range(height)]
    for place in _columns(len(stack[0][1]), width):
        shares = [(name, bins[place]) for name, bins in stack]
        if any(math.isnan(share) for _, share in shares):
            column = [*[_EMPTY] * (height - 1), _UNSEEN]
        else:
            column = _stacked(shares, height, is_plain)
        for row, cell in zip(rows, column, strict=True):
            row.append(cell)
    return rows


def bar_stack(bars: Sequence[Mapping[str, float]], width: int) -> Stack:
    """Bars side by side in ``width`` bins as shares of the longest, each of categories; wide bars have gaps."""
    longest, gap = max((sum(bar.values()) for bar in bars), default=0) or 1, int(width // max(1, len(bars)) > 2)
    stack: dict[str, list[float]] = {}
    for number, bar in enumerate(bars):
        first, end = (place * width // len(bars) for place in (number, number + 1))
        for category, value in bar.items():
            stack.setdefault(category, [0.0] * width)[first : end - gap] = [value / longest] * (end - gap - first)
    return tuple(stack.items())


def _stacked(shares: Sequence[tuple[str, float]], height: int, is_plain: bool) -> list[Cell]:
    """A column of a stack, the top cell first."""
    bounds, total = [0], 0.0
    for _, share in shares:
        total = min(total + max(share, 0.0), 1.0)
        bounds.append(math.floor(total * height * _UNITS + 0.5))
    if total > 0 and not bounds[-1]:  # a little work must not look like none
        largest = max(range(len(shares)), key=lambda number: shares[number][1])
        bounds = [0] * (largest + 1) + [1] * (len(shares) - largest)
    cells = []
    for row in reversed(range(height)):
        low, high = row * _UNITS, (row + 1) * _UNITS
        units = [
            (name, min(end, high) - max(start, low))
            for (name, _), start, end in zip(shares, bounds, bounds[1:], strict=False)
            if min(end, high) > max(start, low)
        ]
        cells.append(_plain_cell(units) if is_plain else _cell(units))
    return cells


def _cell(units: Sequence[tuple[str, int]]) -> Cell:
    """Eighths of a cell by category, the lowest first, as one glyph: of more than two colours the largest two."""
    filled = sum(count for _, count in units)
    if not filled:
        return _EMPTY
    idle = _UNITS - filled
    lowest = sorted(range(len(units)), key=lambda number: -units[number][1])
    if len(units) == 1 or idle >= units[lowest[1]][1]:
        return BLOCKS[filled - 1], units[lowest[0]][0], ""
    below, above = sorted(lowest[:2])
    (front, count), (behind, rest) = units[below], units[above]
    return BLOCKS[max(0, round(_UNITS * count / (count + rest)) - 1)], front, behind


def _plain_cell(units: Sequence[tuple[str, int]]) -> Cell:
    filled = sum(count for _, count in units)
    if 2 * filled < _UNITS:
        return (BLOCKS[0], "", "") if filled else _EMPTY
    return SHADES.get(max(units, key=lambda unit: unit[1])[0], "█"), "", ""


def dominant(stack: Stack, width: int) -> list[str]:
    """The category that takes most of each column, empty where nothing ran for longer than any of them.

    A dot where there is no data.
    """
    found = []
    for place in _columns(len(stack[0][1]), width):
        shares = [(bins[place], name) for name, bins in stack]
        if any(math.isnan(share) for share, _ in shares):
            found.append(_NOT_SEEN)
            continue
        share, name = max(shares)
        found.append(name if share > 0 and share >= 1.0 - sum(share for share, _ in shares) else "")
    return found


def shades(bins: Sequence[float], width: int, category: str) -> list[str]:
    """The shade of each column, empty for 0, a dot where there is no data."""
    found = []
    for place in _columns(len(bins), width):
        share = bins[place]
        if math.isnan(share):
            found.append(_NOT_SEEN)
        else:
            found.append(f"{category}:{_level(share, SHADE_LEVELS)}" if share > 0 else "")
    return found


def shade_blocks(bins: Sequence[float], width: int) -> str:
    """The columns as blocks from light to full: for few colours and none."""
    return "".join(
        NO_DATA if math.isnan(bins[place]) else _BLOCK_SHADES[_level(bins[place], len(_BLOCK_SHADES) - 1)]
        for place in _columns(len(bins), width)
    )


def _level(share: float, levels: int) -> int:
    """0 for nothing, else from 1 to ``levels``."""
    return min(levels, max(1, math.ceil(share * levels))) if share > 0 else 0


def half_cells(upper: Sequence[str], lower: Sequence[str]) -> list[Cell]:
    """Two lanes in one row."""
    return [_half(above, below) for above, below in zip(upper, lower, strict=True)]


def _half(above: str, below: str) -> Cell:
    if above == below == _NOT_SEEN:
        return _UNSEEN
    above, below = ("" if fill == _NOT_SEEN else fill for fill in (above, below))
    if above == below:
        return ("█", above, "") if above else _EMPTY
    if not above:
        return "▄", below, ""
    return "▀", above, below
