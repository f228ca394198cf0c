"""Cells that show shares by colour: stacks of categories, half rows and shades. Plain functions, no screen.

A cell is a glyph, its category and the category behind it; each may be empty. A shade of a category is its name with a
level, ``nccl:3``.
"""

import math
from collections.abc import Mapping, Sequence

from nsystui.base.drawing import SHADES
from nsystui.ui.widgets.plots import BLOCKS, NO_DATA, NOTHING

Stack = tuple[tuple[str, Sequence[float]], ...]
"""Categories and their shares of each bin (0..1, together at most 1; NaN: no data), lowest first."""

Cell = tuple[str, str, str]

SHADE_LEVELS = 7
"""The number of shades of a colour."""

_EMPTY: Cell = (NOTHING, "", "")
_NO_DATA_CELL: Cell = (NO_DATA, "idle", "")
_UNITS = len(BLOCKS)
_BLOCK_SHADES = " ░▒▓█"


def _columns(bins: int, width: int) -> list[int]:
    return [column * bins // width for column in range(width)] if bins else []


def stack_cells(stack: Stack, width: int, height: int, is_plain: bool = False) -> list[list[Cell]]:
    """Return ``height`` rows of ``width`` cells, top first; ``is_plain``: categories differ by shading."""
    rows: list[list[Cell]] = [[] for _ in range(height)]
    for index in _columns(len(stack[0][1]), width):
        shares = [(name, bins[index]) for name, bins in stack]
        if any(math.isnan(share) for _, share in shares):
            column = [*[_EMPTY] * (height - 1), _NO_DATA_CELL]
        else:
            column = _stacked(shares, height, is_plain)
        for row, cell in zip(rows, column, strict=True):
            row.append(cell)
    return rows


def bar_stack(bars: Sequence[Mapping[str, float]], width: int) -> Stack:
    """Return bars of categories side by side in ``width`` bins, as shares of the longest; wide bars have gaps."""
    longest, gap = max((sum(bar.values()) for bar in bars), default=0) or 1, int(width // max(1, len(bars)) > 2)
    stack: dict[str, list[float]] = {}
    for index, bar in enumerate(bars):
        first, end = (edge * width // len(bars) for edge in (index, index + 1))
        for category, value in bar.items():
            stack.setdefault(category, [0.0] * width)[first : end - gap] = [value / longest] * (end - gap - first)
    return tuple(stack.items())


def _stacked(shares: Sequence[tuple[str, float]], height: int, is_plain: bool) -> list[Cell]:
    """Return a column, top cell first."""
    bounds, total = [0], 0.0
    for _, share in shares:
        total = min(total + max(share, 0.0), 1.0)
        bounds.append(math.floor(total * height * _UNITS + 0.5))
    if total > 0 and not bounds[-1]:  # a little work must not look like none
        largest = max(range(len(shares)), key=lambda index: shares[index][1])
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
    """Draw a cell from eighths by category, lowest first; it shows the two largest categories."""
    filled = sum(count for _, count in units)
    if not filled:
        return _EMPTY
    idle = _UNITS - filled
    by_size = sorted(range(len(units)), key=lambda index: -units[index][1])
    if len(units) == 1 or idle >= units[by_size[1]][1]:
        return BLOCKS[filled - 1], units[by_size[0]][0], ""
    below, above = sorted(by_size[:2])
    (front, count), (behind, behind_count) = units[below], units[above]
    return BLOCKS[max(0, round(_UNITS * count / (count + behind_count)) - 1)], front, behind


def _plain_cell(units: Sequence[tuple[str, int]]) -> Cell:
    filled = sum(count for _, count in units)
    if 2 * filled < _UNITS:
        return (BLOCKS[0], "", "") if filled else _EMPTY
    return SHADES.get(max(units, key=lambda unit: unit[1])[0], "█"), "", ""


def dominant(stack: Stack, width: int) -> list[str]:
    """Return the category with the largest share of each column: empty if idle for longer, a dot without data."""
    categories = []
    for index in _columns(len(stack[0][1]), width):
        shares = [(bins[index], name) for name, bins in stack]
        if any(math.isnan(share) for share, _ in shares):
            categories.append(NO_DATA)
            continue
        share, name = max(shares)
        categories.append(name if share > 0 and share >= 1.0 - sum(share for share, _ in shares) else "")
    return categories


def shades(bins: Sequence[float], width: int, category: str) -> list[str]:
    """Return the shade of each column: empty for 0, a dot without data."""
    fills = []
    for index in _columns(len(bins), width):
        share = bins[index]
        if math.isnan(share):
            fills.append(NO_DATA)
        else:
            fills.append(f"{category}:{_level(share, SHADE_LEVELS)}" if share > 0 else "")
    return fills


def shade_blocks(bins: Sequence[float], width: int) -> str:
    """Return the columns as blocks from light to full, for terminals with few colours or none."""
    return "".join(
        NO_DATA if math.isnan(bins[index]) else _BLOCK_SHADES[_level(bins[index], len(_BLOCK_SHADES) - 1)]
        for index in _columns(len(bins), width)
    )


def _level(share: float, levels: int) -> int:
    return min(levels, max(1, math.ceil(share * levels))) if share > 0 else 0


def half_cells(upper: Sequence[str], lower: Sequence[str]) -> list[Cell]:
    """Return the cells of two lanes in one row."""
    return [_half(above, below) for above, below in zip(upper, lower, strict=True)]


def _half(above: str, below: str) -> Cell:
    if above == below == NO_DATA:
        return _NO_DATA_CELL
    above, below = ("" if fill == NO_DATA else fill for fill in (above, below))
    if above == below:
        return ("█", above, "") if above else _EMPTY
    if not above:
        return "▄", below, ""
    return "▀", above, below
