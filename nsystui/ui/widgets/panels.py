"""Lines of text: styled parts, notes, a panel at the side, details below."""

import re
import textwrap
from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from nsystui.base.text import fit, safe_text, shorten, width_of
from nsystui.ui.page import CategoryWidget

TextPart = tuple[str, str]
"""Text and its style: a category (``"nccl"``), ``"bold"``, ``"dim"``, or empty.

A block may show one category before another: ``"compute/nccl"``.
"""

PartLine = list[TextPart]

Details = list[list[str]]
"""Paragraphs of facts about a row; the first is its name alone."""

_TEXT_STYLES = {"bold", "dim"}
_MAX_FLAT = 8  # lines: in taller panes, each fact has a line
_SWATCH = re.compile(r"\W+(?=\w)")
"""Marks before the words of a category, which have its colour even if the words do not."""


def wrapped(parts: Sequence[TextPart], width: int, indent: TextPart = ("", "")) -> list[PartLine]:
    """Wrap ``parts``, two blanks apart, into lines of ``width`` cells.

    The first line begins with ``indent``, further lines with as many blanks.
    """
    margin = width_of(indent[0])
    lines: list[PartLine] = []
    room = -1
    for text, style in parts:
        if room < 2 + width_of(text):
            lines.append([(" " * margin, "") if lines else indent])
            room = width - margin
        else:
            lines[-1].append(("  ", ""))
            room -= 2
        lines[-1].append((text, style))
        room -= width_of(text)
    return lines


class PartLines(CategoryWidget):
    """Lines of parts, cut at the right edge; as high as its lines, unless its CSS sets a height."""

    ALLOW_SELECT = False

    COMPONENT_CLASSES: ClassVar[set[str]] = {"part-lines--bold", "part-lines--dim"}

    _lines: tuple[tuple[TextPart, ...], ...] = ()

    @property
    def texts(self) -> list[str]:
        """The lines as plain text."""
        return ["".join(text for text, _ in line) for line in self._lines]

    def show_lines(self, lines: Sequence[Sequence[TextPart]]) -> None:
        """Show these lines, perhaps from files; draw only changed lines."""
        before = self._lines
        self._lines = tuple(tuple((safe_text(text), style) for text, style in line) for line in lines)
        if len(before) != len(self._lines):
            self.refresh(layout=True)
            return
        for y, (old, new) in enumerate(zip(before, self._lines, strict=True)):
            if old != new:
                self.refresh(Region(0, y, self.size.width, 1))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        line = self._lines[y] if y < len(self._lines) else ()
        segments, room = [], width
        for text, style in line:
            text = shorten(text, room)
            swatch = _SWATCH.match(text) if style and style not in _TEXT_STYLES else None
            for piece in (text[: swatch.end()], text[swatch.end() :]) if swatch else (text,):
                segments.append(Segment(piece, self._style_of(style, piece)))
            room -= width_of(text)
            if room <= 0:
                break
        segments.append(Segment(" " * room, self.rich_style))
        return Strip(Segment.simplify(segment for segment in segments if segment.text), width)

    def _style_of(self, style: str, text: str) -> Style:
        """Return a style: bars and swatches are fills, coloured on every terminal."""
        if not style:
            return self.rich_style
        if "/" in style:
            return self.fill_style(style)
        if style in _TEXT_STYLES:
            return self.get_component_rich_style(f"part-lines--{style}")
        is_words = any(character.isalnum() for character in text)
        return self.words_style(style) if is_words else self.fill_style(style)


class NoteLines(Widget):
    """Wrapped notes on at most four lines, unless a screen allows more; empty without notes."""

    ALLOW_SELECT = False

    max_lines: reactive[int] = reactive(4, layout=True)
    _notes: reactive[tuple[str, ...]] = reactive((), layout=True)

    def show_notes(self, notes: Sequence[str]) -> None:
        """Show these sentences, each from a new line on."""
        self._notes = tuple(map(safe_text, notes))

    def _lines(self, width: int) -> list[str]:
        lines = [line for note in self._notes for line in textwrap.wrap(note, max(width, 20))]
        if len(lines) > self.max_lines:
            lines = [*lines[: self.max_lines - 1], fit(f"{lines[self.max_lines - 1]} …", width)]
        return lines

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(width))

    def render_line(self, y: int) -> Strip:
        lines = self._lines(self.size.width)
        text = fit(lines[y] if y < len(lines) else "", self.size.width)
        return Strip([Segment(text, self.rich_style)], self.size.width)


_BLOCKS = re.compile("([█▉▊▋▌▍▎▏▁▂▃▄▅▆▇●○■□▲△◆◇]+)")


class SidePanel(PartLines):
    """A drawing next to or below a table."""

    def show_drawing(self, lines: Sequence[str], category: str) -> None:
        """Show lines, with the colour of ``category`` for their bars and marks."""
        pieces = (enumerate(_BLOCKS.split(line)) for line in lines)
        self.show_lines([[(text, category if index % 2 else "") for index, text in line] for line in pieces])


class DetailPane(PartLines):
    """The details of the cursor's row and its doors, arranged for the pane's size."""

    _details: Sequence[Sequence[str]] = ()
    _doors = ""

    def show(self, details: Sequence[Sequence[str]], doors: str = "") -> None:
        """Show paragraphs of facts, with the name first."""
        self._details, self._doors = [facts for facts in details if any(facts)], doors
        self._lay_out()

    def _lay_out(self) -> None:
        width, height = self.size
        border = "│ " if height > _MAX_FLAT else "  "
        lines = self._arranged(width - len(border), height)
        lines += [""] * (height - len(lines))
        self.show_lines([[(fit(border + line, self.size.width), "" if y else "bold")] for y, line in enumerate(lines)])

    def _arranged(self, width: int, height: int) -> list[str]:
        """Return the lines; if there are many, facts have a line each."""
        if width < 1 or not self._details:
            return []
        if height <= _MAX_FLAT:
            doors = [self._doors] if self._doors and height > 2 else []
            return [*fill(self._details, width, max(height - len(doors), 1)), *doors]
        lines: list[str] = []
        for paragraph in [*self._details, [self._doors]]:
            lines += [line for fact in paragraph for line in textwrap.wrap(safe_text(fact), max(width, 8))]
            lines.append("")
        return lines

    on_resize = _lay_out


def fill(details: Sequence[Sequence[str]], width: int, room: int) -> list[str]:
    """Arrange paragraphs in ``room`` lines: a line each, and more for long paragraphs if there is room."""
    paragraphs = list(details)
    if len(paragraphs) > room:
        unjoined = max(room - 1, 1)
        paragraphs = [*paragraphs[:unjoined], [fact for paragraph in paragraphs[unjoined:] for fact in paragraph]]
    lines: list[str] = []
    for remaining, facts in zip(range(len(paragraphs) - 1, -1, -1), paragraphs, strict=True):
        lines += _fill_paragraph(facts, max(width, 8), max(room - len(lines) - remaining, 1))
    return lines


def _fill_paragraph(facts: Sequence[str], width: int, max_lines: int) -> list[str]:
    """Keep facts unbroken if they fit; the last of ``max_lines`` holds all remaining facts."""
    lines: list[str] = []
    for piece in (piece for fact in facts for piece in textwrap.wrap(safe_text(fact), width)):
        if lines and width_of(lines[-1]) + 2 + width_of(piece) <= width:
            lines[-1] += "  " + piece
        else:
            lines.append(piece)
    separator = "  " if len(facts) > 1 else " "
    return lines if len(lines) <= max_lines else [*lines[: max_lines - 1], separator.join(lines[max_lines - 1 :])]
