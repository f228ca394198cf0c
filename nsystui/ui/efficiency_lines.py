"""The factors of an efficiency as a tree of lines: what each is, and where to look where it is low."""

from __future__ import annotations

from collections.abc import Sequence

from nsystui.base.columns import Unit
from nsystui.base.units import format_value
from nsystui.questions.efficiency.factors import Factor
from nsystui.ui.widgets.part_lines import Part

Line = list[Part]

_NAME_WIDTH = 27
_VALUE_WIDTH = 8
_WIDE = 110
"""From so many cells on there is room for the formula too."""
LOWEST = "◂ "
"""Stands before the words of the factor that lost most."""


def factor_lines(factors: Sequence[Factor], width: int) -> list[Line]:
    """A line for each factor under the one that it is a factor of; factors of what is not known are left out."""
    shown = [factor for number, factor in enumerate(factors) if not _is_beneath_unknown(factors, number)]
    lowest = _lowest(shown)
    return [_line(shown, number, factor in lowest, width) for number, factor in enumerate(shown)]


def _is_beneath_unknown(factors: Sequence[Factor], number: int) -> bool:
    """Whether the factor is one of a factor that is not known either."""
    depth = factors[number].depth
    above = next((one for one in reversed(factors[:number]) if one.depth < depth), None)
    return above is not None and above.value is None


def _lowest(factors: Sequence[Factor]) -> list[Factor]:
    """Of the factors of the whole the one that lost most, unless nothing was lost."""
    known = [(one.value, one) for one in factors if one.depth == 1 and one.value is not None]
    if len(known) < 2:
        return []
    value, worst = min(known, key=lambda pair: pair[0])
    return [worst] if value < 1 else []


def _line(factors: Sequence[Factor], number: int, is_lowest: bool, width: int) -> Line:
    factor = factors[number]
    value = None if factor.value is None else 100 * factor.value
    name = (_branch(factors, number) + factor.name).ljust(_NAME_WIDTH)
    if factor.value is None:
        words = f"unknown: {factor.record}"
    else:
        words = factor.low if round(100 * factor.value, 1) != 100 or not factor.depth else "nothing lost"
    style = "bold" if factor.depth == 0 or is_lowest else ""
    line: Line = [(name, style), (format_value(Unit.PERCENT, value).rjust(_VALUE_WIDTH), style), ("  ", "")]
    if is_lowest:
        line[-1] = (LOWEST, "bold")
    line.append((words, ""))
    if width >= _WIDE and factor.value is not None:
        line.append((f"  = {factor.formula}", "dim"))
    return line


def _branch(factors: Sequence[Factor], number: int) -> str:
    """The lines of the tree before a name."""
    depth = factors[number].depth
    if not depth:
        return ""
    return "".join(f"{'│' if _goes_on(factors, number, level) else ' '} " for level in range(1, depth)) + (
        "├ " if _goes_on(factors, number, depth) else "└ "
    )


def _goes_on(factors: Sequence[Factor], number: int, depth: int) -> bool:
    """Whether another factor of this depth follows in the same tree."""
    for one in factors[number + 1 :]:
        if one.depth <= depth:
            return one.depth == depth
    return False
