"""The lines of a screen: title, selection and keys; words in colours; notes below a table; a panel of plain lines."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from nsystui.base.text import CRUMB_GAP, fit, safe_text, shorten, width_of
from nsystui.ui.ascii import key_name
from nsystui.ui.keys import textual_key
from nsystui.ui.widgets.window import CategoryWidget, category_class, fill_class

CRUMB = " › "
GAP = "   "
"""Between what stands left and what stands right on a line, at least."""

BETWEEN = "  "
"""Between the phrases of a status."""

SHORTEST_CUT = 8
"""Cells below which a second piece of text is left out rather than cut to something unreadable."""

UPDATE_INTERVAL = 0.5
"""Seconds between two updates of words that progress changes."""

StyledText = tuple[str, str]
"""Text and the component class that styles it (empty: the line's own style)."""


def progress_bar(fraction: float, width: int = 10) -> str:
    """``▓▓▓▓▓▓▓░░░ 71 %`` for 0.71; the bar alone takes ``width`` cells."""
    fraction = min(1.0, max(0.0, fraction))
    full = int(fraction * width)  # rounded down, so that a full bar means done
    return f"{'▓' * full}{'░' * (width - full)} {int(fraction * 100)} %"


class TextLine(Widget):
    """One line of text with something at its left and something at its right. Base of the lines below."""

    ALLOW_SELECT = False

    DEFAULT_CSS = "TextLine { height: 1; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._left: tuple[StyledText, ...] = ()
        self._right: tuple[StyledText, ...] = ()
        self._drawn = Strip([])

    def show_parts(self, left: Iterable[StyledText], right: Iterable[StyledText] = ()) -> None:
        """Draw these parts, from the first cell that changes; nothing happens if they stand there already."""
        new = (tuple(left), tuple(right))
        if new != (self._left, self._right):
            self._left, self._right = new
            width = self.size.width
            same = _same_cells(self._drawn, self.render_line(0)) if width and self._drawn.cell_length == width else 0
            self.refresh(Region(same, 0, width - same, 1))

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        """Left and right parts for a line of ``width`` cells."""
        return self._left, self._right

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        left, right = self.parts_for(width) if y == 0 else ((), ())
        right_width = sum(width_of(text) for text, _ in right)
        left_width = sum(width_of(text) for text, _ in left)
        if right and left_width + len(GAP) + right_width > width:  # what is left says more: it may cut the right
            right_room = max(0, width - min(left_width, width * 2 // 3) - len(GAP))
            right = _cut(right, right_room)
            right_width = sum(width_of(text) for text, _ in right)
        left = _cut(left, width - right_width - (len(GAP) if right_width else 0))
        filler = width - right_width - sum(width_of(text) for text, _ in left)
        segments = [
            Segment(text, self.get_component_rich_style(name) if name else self.rich_style)
            for text, name in (*left, (" " * filler, ""), *right)
            if text
        ]
        strip = Strip(Segment.simplify(segments), width)
        if y == 0:
            self._drawn = strip
        return strip


def _same_cells(before: Strip, now: Strip) -> int:
    """The cells at the left that are alike in two lines."""
    same = 0
    cells = ([(char, segment.style) for segment in strip for char in segment.text] for strip in (before, now))
    for old, new in zip(*cells, strict=False):
        if old != new:
            break
        same += width_of(new[0])
    return same


def _fewer_phrases(text: str, room: int) -> str:
    """``loading 0 of 1  ▓░░░ 10 %  344,062 rows`` with as many of its phrases as there is room for; the bar stays."""
    phrases = text.split(BETWEEN)
    for some in (phrases, phrases[:-1], phrases[1:2]):
        if some and width_of(BETWEEN.join(some)) <= room:
            return BETWEEN.join(some)
    return text


def _cut(parts: Sequence[StyledText], room: int) -> list[StyledText]:
    """``parts`` in at most ``room`` cells; the one that does not fit is cut in its middle, later ones leave."""
    kept: list[StyledText] = []
    for text, name in parts:
        if width_of(text) > room and kept and room < SHORTEST_CUT:
            break
        text = shorten(text, room)
        kept.append((text, name))
        room -= width_of(text)
    return kept


class StatusText(TextLine):
    """Shows the status of a running operation: at most two updates a second, however often it reports."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"status-text--status"}

    DEFAULT_CSS = "StatusText > .status-text--status { color: $foreground 75%; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._text = ""
        self._status = ""
        self._shown_at = -UPDATE_INTERVAL
        self._later: Timer | None = None

    @property
    def status(self) -> str:
        """The newest status, shown already or about to be."""
        return self._status

    def set_status(self, status: str) -> None:
        """Show ``status`` at the right, now or when the half second is over; an empty one (the end) at once."""
        self._status = safe_text(status)
        wait = self._shown_at + UPDATE_INTERVAL - time.monotonic()
        if not status or wait <= 0 or not self.is_attached:
            self._show()
        elif self._later is None:  # else the timer will find the newest
            self._later = self.set_timer(wait, self._show)

    def _show(self) -> None:
        if self._later is not None:
            self._later.stop()
            self._later = None
        self._shown_at = time.monotonic()
        right = [(self._status, "status-text--status")] if self._status else []
        self.show_parts([(self._text, "")] if self._text else [], right)

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        room = width - sum(width_of(text) for text, _ in self._left) - len(GAP)
        return self._left, [(_fewer_phrases(text, room), name) for text, name in self._right]


class TitleLine(StatusText):
    """Line 1: the job, every screen by its key with the current one marked, and at the right how far the loading is.

    Args:
        tabs: Key, name and short name of each screen, ``(("1", "Overview", "Ovw"), ("2", "Kernels", "Krn"))``.
        active: Key of the screen this line is on.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"title-line--name", "title-line--active", "title-line--tab"}

    DEFAULT_CSS = """
    TitleLine > .title-line--name { color: $foreground 75%; }
    TitleLine > .title-line--active { text-style: bold; }
    TitleLine > .title-line--tab { color: $foreground 75%; }
    """

    PROGRAM = "nsystui"

    def __init__(
        self,
        tabs: Sequence[tuple[str, str, str]] = (),
        active: str = "",
        *,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._tabs = tuple(tabs)
        self._active = active

    def update(self, name: str = "") -> None:
        """Shows the name of the job."""
        self._text = safe_text(name)
        self._show()

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        """The tabs stay; the progress keeps its bar; the name of the job takes what is left."""
        tabs: list[StyledText] = []
        beside = len(self.PROGRAM) + len(BETWEEN) + sum(len(GAP) + width_of(text) for text, _ in self._right)
        for names, others in ((1, beside), (2, 0), (0, 0)):  # long names, short ones, keys alone
            tabs = self._tab_parts(names)
            if sum(width_of(text) for text, _ in tabs) + others <= width:
                break
        room = width - sum(width_of(text) for text, _ in tabs)
        room_right = room - len(GAP)
        right = [(cut(_fewer_phrases(text, room_right), room_right), name) for text, name in self._right]
        right = right if room_right >= SHORTEST_CUT else []
        room -= sum(width_of(text) + len(GAP) for text, _ in right)
        left: list[StyledText] = []
        if room >= len(self.PROGRAM) + len(BETWEEN):
            left.append((self.PROGRAM, ""))
            room -= len(self.PROGRAM) + len(BETWEEN)
            if self._text and room >= min(width_of(self._text), SHORTEST_CUT) + len(BETWEEN):
                left.append((BETWEEN + cut(self._text, room - len(BETWEEN)), "title-line--name"))
            left.append((BETWEEN, ""))
        return [*left, *tabs], right

    def _tab_parts(self, names: int) -> list[StyledText]:
        """``1 Overview│2 Kernels│3 NCCL``: between bars stands the current one."""
        parts: list[StyledText] = []
        before = False
        for tab in self._tabs:
            active = tab[0] == self._active
            text = f"{tab[0]} {tab[names]}" if names else tab[0]
            if parts or active:
                parts.append(("│" if active or before else " ", "title-line--active" if active or before else ""))
            parts.append((text, "title-line--active" if active else "title-line--tab"))
            before = active
        return [*parts, ("│", "title-line--active")] if before else parts

    def on_click(self, event: events.Click) -> None:
        """Presses the key of the tab."""
        left, _ = self.parts_for(self.size.width)
        text = _part_at(left, event.x)
        key = text[:1]
        if key in {tab[0] for tab in self._tabs} and text[1:2] in ("", " "):
            self.app.simulate_key(key)


class SelectionLine(TextLine):
    """Line 2: the selection, and at the right how many rows there are of it; a click takes a crumb of it away."""

    @dataclass
    class CrumbClicked(Message):
        """The place of the crumb."""

        place: int

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._selection = self._count = ""

    def update(self, selection: str) -> None:
        """Shows ``selection``, such as ``ranks 0-63 · 6.0–7.0 s``."""
        self._selection = safe_text(selection)
        self._show()

    def show_count(self, count: str) -> None:
        """Shows ``9,600 of 9,600 instances`` at the right."""
        self._count = safe_text(count)
        self._show()

    def _show(self) -> None:
        self.show_parts(*([(text, "")] if text else [] for text in (self._selection, self._count)))

    def on_click(self, event: events.Click) -> None:
        edge = 0
        for place, crumb in enumerate(self._selection.split(CRUMB_GAP)):
            edge += width_of(crumb)
            if event.x < edge:
                self.post_message(self.CrumbClicked(place))
                return
            edge += len(CRUMB_GAP)


class KeyLine(TextLine):
    """The last line: the keys that act here, as many as fit whole. Those that lead to all others always fit."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-line--key", "key-line--label", "key-line--notice"}

    DEFAULT_CSS = """
    KeyLine { dock: bottom; }
    KeyLine > .key-line--key { text-style: bold; }
    KeyLine > .key-line--label { color: $foreground 75%; }
    KeyLine > .key-line--notice { text-style: bold; color: $text-warning; }
    KeyLine:ansi > .key-line--notice { color: $foreground; }
    """

    ALWAYS = ("ctrl+p", "?")

    def __init__(
        self,
        keys: Sequence[tuple[str, str]] = (),
        *,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._keys = tuple(keys)
        self._silence: Timer | None = None

    def update(self, keys: Iterable[tuple[str, str]]) -> None:
        """Show these keys and what they do, most useful first: ``[("⏎", "open"), ("/", "find"), ("?", "help")]``."""
        keys = tuple(keys)
        if keys != self._keys:
            self._keys = keys
            self.refresh()

    def say(self, text: str, seconds: float = 6.0) -> None:
        """Show a sentence in place of the keys for a while: why a key can't act here, or what it just did."""
        if self._silence is not None:
            self._silence.stop()
        self.show_parts([(safe_text(text), "key-line--notice")])
        self._silence = self.set_timer(seconds, self.be_quiet)

    def be_quiet(self) -> None:
        """Show the keys again."""
        self.show_parts([])

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        if self._left:
            return self._left, ()
        keys = [(key_name(key, self.app), label) for key, label in self._keys]
        sizes = [width_of(key) + 1 + width_of(label) for key, label in keys]
        room = width - sum(size + 2 for size, (key, _) in zip(sizes, keys, strict=True) if key in self.ALWAYS)
        parts: list[StyledText] = []
        full = False
        for size, (key, label) in zip(sizes, keys, strict=True):
            if key not in self.ALWAYS:
                full = full or size > room  # nothing less useful squeezes in after one that did not fit
                if full:
                    continue
                room -= size + 2
            gap = [("  ", "key-line--label")] if parts else []
            parts += [*gap, (key, "key-line--key"), (" " + label, "key-line--label")]
        return parts, ()

    def on_click(self, event: events.Click) -> None:
        """Presses the key."""
        parts, _ = self.parts_for(self.size.width)
        x = 0
        for place, (text, name) in enumerate(parts):
            x += width_of(text)
            if event.x < x:
                shown = text if name == "key-line--key" else parts[place - 1][0] if place else ""
                self.app.simulate_key(textual_key(shown))
                return


class Choice(NamedTuple):
    """One thing that is chosen on a screen: ``view  [kernels] memory``. Its label begins with the key that changes it.

    ``choose`` is called with the place of another option.
    """

    label: str
    options: tuple[str, ...]
    chosen: int
    choose: Callable[[int], object]


class ChoiceLine(TextLine):
    """Line 3: the way down to this screen, its views, how rows are grouped and names; each with the current one.

    Where not all options fit, the last choice leaves out those that its key comes to last.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "choice-line--path",
        "choice-line--key",
        "choice-line--label",
        "choice-line--chosen",
        "choice-line--other",
    }

    DEFAULT_CSS = """
    ChoiceLine { display: none; }
    ChoiceLine > .choice-line--path { text-style: bold; }
    ChoiceLine > .choice-line--key { text-style: bold underline; }
    ChoiceLine > .choice-line--label { color: $foreground 75%; }
    ChoiceLine > .choice-line--chosen { text-style: bold; }
    ChoiceLine > .choice-line--other { color: $foreground 75%; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._path = ""
        self._choices: tuple[Choice, ...] = ()

    def show_choices(self, path: Sequence[str], choices: Sequence[Choice]) -> None:
        """Shows the way here, ``("sgemm", "launches")``, and what can be chosen; without either the line is gone."""
        self._path = CRUMB.join(map(safe_text, path))
        self._choices = tuple(choices)
        self.display = bool(self._path or self._choices)
        self.show_parts([(self._path, ""), *((f"{one.label} {one.options} {one.chosen}", "") for one in self._choices)])

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        return [(text, style) for text, style, _, _ in self._laid_out(width)], ()

    def _laid_out(self, width: int) -> list[tuple[str, str, int, int]]:
        """Text and style of each part, with the choice and the option that it stands for (-1: none)."""
        shown = [_in_order_of_the_key(choice) for choice in self._choices]
        parts = self._parts(shown)
        # The last choice gives up first, the views last.
        for options in reversed(shown):
            while _width(parts) > width and len(options) > 1:
                options.pop()
                parts = self._parts(shown)
        if self._path and _width(parts) > width:
            room = max(SHORTEST_CUT, width - _width(parts) + width_of(self._path))
            parts[0] = (cut(self._path, room), *parts[0][1:])
        return parts

    def _parts(self, shown: Sequence[Sequence[int]]) -> list[tuple[str, str, int, int]]:
        parts = [(self._path, "choice-line--path", -1, -1)] if self._path else []
        for place, choice in enumerate(self._choices):
            if parts:
                parts.append(("    ", "choice-line--label", -1, -1))
            parts.append((choice.label[0], "choice-line--key", place, -1))
            parts.append((f"{choice.label[1:]} ", "choice-line--label", place, -1))
            for number, option in enumerate(choice.options):
                text = safe_text(option)
                if number == choice.chosen:
                    parts.append((f"[{text}]", "choice-line--chosen", place, number))
                elif number in shown[place]:
                    parts.append((f" {text} ", "choice-line--other", place, number))
            if len(shown[place]) < len(choice.options):
                parts.append((" …", "choice-line--other", place, -1))
        return parts

    def on_click(self, event: events.Click) -> None:
        x = 0
        for text, _, place, number in self._laid_out(self.size.width):
            x += width_of(text)
            if event.x < x:
                if number >= 0:
                    self._choices[place].choose(number)
                return


def _in_order_of_the_key(choice: Choice) -> list[int]:
    """The options from the chosen one on, as the key goes through them."""
    count = len(choice.options)
    return [(choice.chosen + step) % count for step in range(count)]


def _width(parts: Sequence[tuple[str, str, int, int]]) -> int:
    return sum(width_of(part[0]) for part in parts)


def _part_at(parts: Sequence[StyledText], x: int) -> str:
    """The text of the part that covers the cell ``x``; empty where there is none."""
    for text, _ in parts:
        if x < width_of(text):
            return text if x >= 0 else ""
        x -= width_of(text)
    return ""


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells, without its end where it does not fit: names begin with what tells most."""
    if width_of(text) <= width:
        return text
    kept = text[: max(width - 1, 0)]
    while width_of(kept) > width - 1 and kept:
        kept = kept[:-1]
    return kept + "…" if width > 0 else ""


Part = tuple[str, str]
"""Words and what they are: a category (``"nccl"``), ``"bold"``, ``"dim"``, or nothing.

Blocks may be of one category before another: ``"compute/nccl"``.
"""

_OWN = {"bold", "dim"}


def wrapped(parts: Sequence[Part], width: int, indent: Part = ("", "")) -> list[list[Part]]:
    """``parts`` two blanks apart, on as many lines of ``width`` cells as they need, each beginning like ``indent``.

    The first line begins with ``indent``, the others with as many blanks.
    """
    margin = width_of(indent[0])
    lines: list[list[Part]] = []
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
    """Lines of parts, each cut at the right edge; as high as there are lines, unless its CSS says otherwise."""

    ALLOW_SELECT = False

    COMPONENT_CLASSES: ClassVar[set[str]] = {"part-lines--bold", "part-lines--dim"}

    DEFAULT_CSS = """
    PartLines { height: auto; }
    PartLines > .part-lines--bold { text-style: bold; color: $foreground; }
    PartLines > .part-lines--dim { color: $foreground 75%; }
    PartLines:ansi > .part-lines--dim { color: $foreground; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._lines: tuple[tuple[Part, ...], ...] = ()

    @property
    def texts(self) -> list[str]:
        """The lines as plain text."""
        return ["".join(text for text, _ in line) for line in self._lines]

    def show_lines(self, lines: Sequence[Sequence[Part]]) -> None:
        """Shows these lines; strings from files may be among them. Only lines that changed are drawn again."""
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
            segments.append(Segment(text, self._style_of(style, text)))
            room -= width_of(text)
            if room <= 0:
                break
        segments.append(Segment(" " * room, self.rich_style))
        return Strip(Segment.simplify(segment for segment in segments if segment.text), width)

    def _style_of(self, style: str, text: str) -> Style:
        """The style of a part: a bar or a swatch is a fill, which has its colour on every terminal."""
        if not style:
            return self.rich_style
        if "/" in style:
            before, behind = (self._style_of(part, text) for part in style.split("/"))
            return before + Style(bgcolor=behind.color)
        if style in _OWN:
            return self.get_component_rich_style(f"part-lines--{style}")
        is_words = any(character.isalnum() for character in text)
        return self.get_component_rich_style(category_class(style) if is_words else fill_class(style))


_MOST_LINES = 4


class NoteLines(Widget):
    """As many lines as the notes need, at most four unless a screen allows more; none where there is nothing to say."""

    ALLOW_SELECT = False

    DEFAULT_CSS = """
    NoteLines { height: auto; color: $foreground 75%; }
    NoteLines:ansi { color: $foreground; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._notes: tuple[str, ...] = ()
        self._most = _MOST_LINES

    def allow(self, lines: int) -> None:
        """How many lines there may be at most."""
        if lines != self._most:
            self._most = lines
            self.refresh(layout=True)

    def show_notes(self, notes: Sequence[str]) -> None:
        """Shows these sentences, each beginning on its own line."""
        safe = tuple(safe_text(note) for note in notes)
        if safe != self._notes:
            self._notes = safe
            self.refresh(layout=True)

    def _lines(self, width: int) -> list[str]:
        lines = [line for note in self._notes for line in textwrap.wrap(note, max(width, 20))]
        if len(lines) > self._most:
            lines = [*lines[: self._most - 1], fit(f"{lines[self._most - 1]} …", width)]
        return lines

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(width))

    def render_line(self, y: int) -> Strip:
        lines = self._lines(self.size.width)
        text = fit(lines[y] if y < len(lines) else "", self.size.width)
        return Strip([Segment(text, self.rich_style)], self.size.width)


class PlainLines(Widget):
    """Lines of text, cut at the right edge; only those that change are drawn again. Base of the panels below."""

    ALLOW_SELECT = False

    def __init__(self, *, border: str = "│ ", id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._border = border
        self._lines: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        return self._lines

    def show_lines(self, lines: Sequence[str]) -> None:
        """Shows these lines; strings from files may be among them."""
        before, self._lines = self._lines, tuple(safe_text(line) for line in lines)
        for y in range(max(len(before), len(self._lines))):
            if before[y : y + 1] != self._lines[y : y + 1]:
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        text = self._lines[y] if y < len(self._lines) else ""
        line = fit(self._border + text, self.size.width)
        return Strip([Segment(line, self.line_style(y))], self.size.width)

    def line_style(self, y: int) -> Style:
        return self.rich_style


_BLOCKS = re.compile("([█▉▊▋▌▍▎▏▁▂▃▄▅▆▇●○■□▲△◆◇]+)")


class SidePanel(CategoryWidget, PlainLines):
    """Lines beside or below a table; their bars and marks have the colour of ``category``."""

    DEFAULT_CSS = "SidePanel { height: 1fr; }"

    category: str | None = None

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        if self.category is None:
            return strip
        style, of_bars = self.line_style(y), self.get_component_rich_style(fill_class(self.category))
        pieces = enumerate(_BLOCKS.split(strip.text))
        return Strip(
            [Segment(text, of_bars if number % 2 else style) for number, text in pieces if text], self.size.width
        )


_FLAT = 8
"""A pane of fewer lines has a line for each paragraph, another one a line for each fact."""


class DetailPane(PlainLines):
    """The details of the row under the cursor, and where it goes from there; laid out for its own size."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"detail-pane--name"}

    DEFAULT_CSS = """
    DetailPane { height: 5; }
    DetailPane > .detail-pane--name { text-style: bold; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(border="", id=id)
        self._details: Sequence[Sequence[str]] = ()
        self._doors = ""

    def show(self, details: Sequence[Sequence[str]], doors: str = "") -> None:
        """Shows paragraphs of facts, the name first."""
        self._details, self._doors = [one for one in details if any(one)], doors
        self._lay_out()

    def on_resize(self) -> None:
        self._lay_out()

    def line_style(self, y: int) -> Style:
        return self.rich_style if y else self.get_component_rich_style("detail-pane--name")

    def _lay_out(self) -> None:
        width, height = self.size
        is_tall = height > _FLAT
        self._border = "│ " if is_tall else "  "
        width -= len(self._border)
        if width < 1 or not self._details:
            self.show_lines(())
            return
        self.show_lines(self._tall(width) if is_tall else self._flat(width, height))

    def _tall(self, width: int) -> list[str]:
        lines: list[str] = []
        for paragraph in [*self._details, [self._doors]]:
            lines += [line for fact in paragraph for line in textwrap.wrap(safe_text(fact), max(width, 8))]
            lines.append("")
        return lines

    def _flat(self, width: int, height: int) -> list[str]:
        doors = [self._doors] if self._doors and height > 2 else []
        return [*fill(self._details, width, max(height - len(doors), 1)), *doors]


def fill(details: Sequence[Sequence[str]], width: int, room: int) -> list[str]:
    """Paragraphs of facts in ``room`` lines: a line for each, and more for those that need them while there is room."""
    paragraphs = list(details)
    if len(paragraphs) > room:
        kept = max(room - 1, 1)
        paragraphs = [*paragraphs[:kept], [fact for one in paragraphs[kept:] for fact in one]]
    lines: list[str] = []
    for others, facts in zip(range(len(paragraphs) - 1, -1, -1), paragraphs, strict=True):
        lines += _filled(facts, max(width, 8), max(room - len(lines) - others, 1))
    return lines


def _filled(facts: Sequence[str], width: int, most: int) -> list[str]:
    """Facts side by side, none broken that fits ``width``; the last of ``most`` lines holds what is left."""
    lines: list[str] = []
    for piece in (piece for fact in facts for piece in textwrap.wrap(safe_text(fact), width)):
        if lines and width_of(lines[-1]) + 2 + width_of(piece) <= width:
            lines[-1] += "  " + piece
        else:
            lines.append(piece)
    between = "  " if len(facts) > 1 else " "
    return lines if len(lines) <= most else [*lines[: most - 1], between.join(lines[most - 1 :])]
