"""The lines around every screen, cut to its width: title, selection, choices, keys and status."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import ClassVar, NamedTuple, TypeVar

from rich.segment import Segment
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from nsystui.base.text import CRUMB_GAP, safe_text, shorten, width_of
from nsystui.ui.keys import textual_key
from nsystui.ui.page import key_name

_Value = TypeVar("_Value")

CRUMB = " › "
GAP = "   "
"""Least space between the left and right parts of a line."""

BETWEEN = "  "
"""Space between the phrases of a status."""

SHORTEST_CUT = 8
"""In fewer cells, a second text would be unreadable, and is left out."""

UPDATE_INTERVAL = 0.5
"""Seconds between two updates of a progress text."""

StyledText = tuple[str, str]
"""Text and its style: ``bold``, ``underlined``, ``dim``, ``warning``, or empty for the line's own."""


def progress_bar(fraction: float, width: int = 10) -> str:
    """Return ``▓▓▓▓▓▓▓░░░ 71 %`` for 0.71; the bar itself takes ``width`` cells."""
    fraction = min(1.0, max(0.0, fraction))
    full = int(fraction * width)  # rounded down, so that a full bar means done
    return f"{'▓' * full}{'░' * (width - full)} {int(fraction * 100)} %"


class TextLine(Widget):
    """One line with text at its left and right. Base of the lines below."""

    ALLOW_SELECT = False

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"text-line--{style}" for style in ("bold", "underlined", "dim", "warning")
    }

    _left: tuple[StyledText, ...] = ()
    _right: tuple[StyledText, ...] = ()
    _drawn = Strip([])

    def show_parts(self, left: Iterable[StyledText], right: Iterable[StyledText] = ()) -> None:
        """Show these parts; draw only from the first changed cell on, if any."""
        new = (tuple(left), tuple(right))
        if new != (self._left, self._right):
            self._left, self._right = new
            width, same_width = self.size.width, 0
            if width and self._drawn.cell_length == width:
                lines = (self._drawn, self.render_line(0))
                cells = ([(char, segment.style) for segment in line for char in segment.text] for line in lines)
                same_cells = takewhile(lambda pair: pair[0] == pair[1], zip(*cells, strict=False))
                same_width = sum(width_of(char) for (char, _), _ in same_cells)
            self.refresh(Region(same_width, 0, width - same_width, 1))

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        """Return the left and right parts for a line of ``width`` cells."""
        return self._left, self._right

    def render_line(self, y: int) -> Strip:
        """Draw the left and right parts; the right parts are cut first."""
        width = self.size.width
        left, right = self.parts_for(width)
        right_width = sum(width_of(text) for text, _ in right)
        left_width = sum(width_of(text) for text, _ in left)
        if right and left_width + len(GAP) + right_width > width:  # the left parts matter more
            right_room = max(0, width - min(left_width, width * 2 // 3) - len(GAP))
            right = _cut_parts(right, right_room)
            right_width = sum(width_of(text) for text, _ in right)
        left = _cut_parts(left, width - right_width - (len(GAP) if right_width else 0))
        filler = width - right_width - sum(width_of(text) for text, _ in left)
        segments = [
            Segment(text, self.get_component_rich_style(f"text-line--{style}") if style else self.rich_style)
            for text, style in (*left, (" " * filler, ""), *right)
            if text
        ]
        self._drawn = Strip(Segment.simplify(segments), width)
        return self._drawn


def _part_at(parts: Iterable[str], x: int) -> int | None:
    return next((index for index, edge in enumerate(accumulate(map(width_of, parts))) if 0 <= x < edge), None)


def _fit_phrases(text: str, room: int) -> str:
    """Keep the phrases of ``loading 0 of 1  ▓░░░ 10 %  344,062 rows`` that fit ``room`` cells.

    The bar stays, or at least its share: ``loading 10 %``.
    """
    phrases = text.split(BETWEEN)
    _, _, share = phrases[1].partition(" ") if len(phrases) > 1 else ("", "", "")
    shortest = [f"{text.split()[0]} {share}"] if share else []
    for candidate in (phrases, phrases[:-1], phrases[1:2], shortest):
        if candidate and width_of(BETWEEN.join(candidate)) <= room:
            return BETWEEN.join(candidate)
    return text


def _cut_parts(parts: Sequence[StyledText], room: int) -> list[StyledText]:
    """Shorten the first part that is too long for ``room`` cells, and omit later parts."""
    shortened: list[StyledText] = []
    for text, name in parts:
        if width_of(text) > room and shortened and room < SHORTEST_CUT:
            break
        text = shorten(text, room)
        shortened.append((text, name))
        room -= width_of(text)
    return shortened


class TitleLine(TextLine):
    """Line 1: the job, a tab for each screen with the current tab marked, and the progress of loading at the right.

    ``tabs``: key, name and short name of each screen, ``(("1", "Overview", "Ovw"), …)``; ``active``: its screen's key.
    """

    PROGRAM = "nsystui"
    status = ""
    """The newest status, perhaps not shown yet."""
    _text = ""
    _shown_at = -UPDATE_INTERVAL
    _status_timer: Timer | None = None

    def __init__(self, tabs: Sequence[tuple[str, str, str]], active: str, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._tabs = tuple(tabs)
        self._active = active

    def update(self, name: str = "") -> None:
        self._text = safe_text(name)
        self._show()

    def set_status(self, status: str, at_once: bool = False) -> None:
        """Show ``status`` at the right, at most twice a second, except ``at_once`` and empty texts."""
        self.status = safe_text(status)
        wait = self._shown_at + UPDATE_INTERVAL - time.monotonic()
        if at_once or not status or wait <= 0 or not self.is_attached:
            self._show()
        elif self._status_timer is None:  # a running timer will show the newest status
            self._status_timer = self.set_timer(wait, self._show)

    def _show(self) -> None:
        if self._status_timer is not None:
            self._status_timer.stop()
            self._status_timer = None
        self._shown_at = time.monotonic()
        right = [(self.status, "dim")] if self.status else []
        self.show_parts([(self._text, "")] if self._text else [], right)

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        """Return all tabs, the progress with its bar, and the job's name if there is room."""
        tabs: list[StyledText] = []
        extras_width = len(self.PROGRAM) + len(BETWEEN) + sum(len(GAP) + width_of(text) for text, _ in self._right)
        for name_index, extra_width in ((1, extras_width), (2, 0), (0, 0)):  # long names, short names, keys only
            tabs = self._tab_parts(name_index)
            if sum(width_of(text) for text, _ in tabs) + extra_width <= width:
                break
        room = width - sum(width_of(text) for text, _ in tabs)
        room_right = room - len(GAP)
        right = [(shorten(_fit_phrases(text, room_right), room_right), name) for text, name in self._right]
        right = right if room_right >= SHORTEST_CUT else []
        room -= sum(width_of(text) + len(GAP) for text, _ in right)
        left: list[StyledText] = []
        if room >= len(self.PROGRAM) + len(BETWEEN):
            left.append((self.PROGRAM, ""))
            room -= len(self.PROGRAM) + len(BETWEEN)
            if self._text and room >= min(width_of(self._text), SHORTEST_CUT) + len(BETWEEN):
                left.append((BETWEEN + shorten(self._text, room - len(BETWEEN)), "dim"))
            left.append((BETWEEN, ""))
        return [*left, *tabs], right

    def _tab_parts(self, name_index: int) -> list[StyledText]:
        parts: list[StyledText] = []
        previous = False
        for tab in self._tabs:
            active = tab[0] == self._active
            text = f"{tab[0]} {tab[name_index]}" if name_index else tab[0]
            if parts or active:
                parts.append(("│" if active or previous else " ", "bold" if active or previous else ""))
            parts.append((text, "bold" if active else "dim"))
            previous = active
        return [*parts, ("│", "bold")] if previous else parts

    def on_click(self, event: events.Click) -> None:
        """Press the key of the tab."""
        texts = [text for text, _ in self.parts_for(self.size.width)[0]]
        index = _part_at(texts, event.x)
        text = texts[index] if index is not None else ""
        if text[:1] in {tab[0] for tab in self._tabs} and text[1:2] in ("", " "):
            self.app.simulate_key(text[:1])


class SelectionLine(TextLine):
    """Line 2: the selection, and its number of rows at the right; a click on a crumb removes it."""

    @dataclass
    class CrumbClicked(Message):
        """A click on a crumb, with its index."""

        index: int

    _selection = _count = ""

    def update(self, selection: str) -> None:
        """Show ``selection``, such as ``ranks 0-63 · 6.0–7.0 s``."""
        self._selection = safe_text(selection)
        self._show()

    def show_count(self, count: str) -> None:
        """Show ``9,600 of 9,600 instances`` at the right."""
        self._count = safe_text(count)
        self._show()

    def _show(self) -> None:
        self.show_parts(*([(text, "")] if text else [] for text in (self._selection, self._count)))

    def on_click(self, event: events.Click) -> None:
        parts = [part for crumb in self._selection.split(CRUMB_GAP) for part in (crumb, CRUMB_GAP)]
        if (index := _part_at(parts[:-1], event.x)) is not None:
            self.post_message(self.CrumbClicked((index + 1) // 2))


class KeyLine(TextLine):
    """The last line: the active keys that fit uncut, always with ``ALWAYS``, which lead to all other keys."""

    ALWAYS = ("ctrl+p", "?")

    _keys: reactive[tuple[tuple[str, str], ...]] = reactive(())

    def __init__(self, keys: Sequence[tuple[str, str]], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._keys = tuple(keys)
        self._notice_timer: Timer | None = None

    def update(self, keys: Iterable[tuple[str, str]]) -> None:
        """Show these keys and their actions, most useful first: ``[("⏎", "open"), ("/", "find"), ("?", "help")]``."""
        self._keys = tuple(keys)

    def say(self, text: str, seconds: float = 6.0) -> None:
        """Show a sentence instead of the keys for a while, or the keys again if ``text`` is empty."""
        if self._notice_timer is not None:
            self._notice_timer.stop()
        self.show_parts([(safe_text(text), "warning")] if text else [])
        self._notice_timer = self.set_timer(seconds, lambda: self.show_parts([]))

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        if self._left:
            return self._left, ()
        keys = [(key_name(key, self.app), label) for key, label in self._keys]
        sizes = [width_of(key) + 1 + width_of(label) for key, label in keys]
        room = width - sum(size + 2 for size, (key, _) in zip(sizes, keys, strict=True) if key in self.ALWAYS)
        parts: list[StyledText] = []
        is_full = False
        for size, (key, label) in zip(sizes, keys, strict=True):
            if key not in self.ALWAYS:
                is_full = is_full or size > room  # a less useful key must not follow in its place
                if is_full:
                    continue
                room -= size + 2
            gap = [("  ", "dim")] if parts else []
            parts += [*gap, (key, "bold"), (" " + label, "dim")]
        return parts, ()

    def on_click(self, event: events.Click) -> None:
        parts, _ = self.parts_for(self.size.width)
        if (index := _part_at((text for text, _ in parts), event.x)) is not None:
            text, style = parts[index]
            key = text if style == "bold" else parts[index - 1][0] if index else ""
            self.app.simulate_key(textual_key(key))


class Choice(NamedTuple):
    """A choice on a screen: ``view  [kernels] memory``. Its label begins with the key that changes it.

    ``choose`` is called with the index of another option when it is chosen.
    """

    label: str
    options: tuple[str, ...]
    chosen: int
    choose: Callable[[int], object]

    @classmethod
    def among(
        cls, label: str, words: Mapping[_Value, str], chosen: _Value, choose: Callable[[_Value], object]
    ) -> Choice:
        """Offer values, each by its words; ``choose`` is called with another value."""
        values = list(words)
        return cls(label, tuple(words.values()), values.index(chosen), lambda index: choose(values[index]))


class ChoiceLine(TextLine):
    """Line 3: the path, the views, and how rows are grouped and shown.

    If not all options fit, the last choice is shortened first, beginning with the option that its key reaches last.
    """

    _path = ""
    _choices: tuple[Choice, ...] = ()

    def show_choices(self, path: Sequence[str], choices: Sequence[Choice]) -> None:
        """Show the path, ``("sgemm", "launches")``, and the choices; without either the line is hidden."""
        self._path = CRUMB.join(map(safe_text, path))
        self._choices = tuple(choices)
        self.display = bool(self._path or self._choices)
        self.show_parts([(self._path, ""), *((f"{c.label} {c.options} {c.chosen}", "") for c in self._choices)])

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        return [(text, style) for text, style, _, _ in self._fitted_parts(width)], ()

    def _fitted_parts(self, width: int) -> list[tuple[str, str, int, int]]:
        shown = [  # from the chosen option on, in the order of the key
            [(choice.chosen + step) % len(choice.options) for step in range(len(choice.options))]
            for choice in self._choices
        ]
        parts = self._choice_parts(shown)
        for options in reversed(shown):
            while _width(parts) > width and len(options) > 1:
                options.pop()
                parts = self._choice_parts(shown)
        if self._path and _width(parts) > width:
            room = max(SHORTEST_CUT, width - _width(parts) + width_of(self._path))
            parts[0] = (shorten(self._path, room), *parts[0][1:])
        return parts

    def _choice_parts(self, shown: Sequence[Sequence[int]]) -> list[tuple[str, str, int, int]]:
        parts = [(self._path, "bold", -1, -1)] if self._path else []
        for choice_index, choice in enumerate(self._choices):
            if parts:
                parts.append(("    ", "dim", -1, -1))
            parts.append((choice.label[0], "underlined", choice_index, -1))
            parts.append((f"{choice.label[1:]} ", "dim", choice_index, -1))
            for option_index, option in enumerate(choice.options):
                text = safe_text(option)
                if option_index == choice.chosen:
                    parts.append((f"[{text}]", "bold", choice_index, option_index))
                elif option_index in shown[choice_index]:
                    parts.append((f" {text} ", "dim", choice_index, option_index))
            if len(shown[choice_index]) < len(choice.options):
                parts.append((" …", "dim", choice_index, -1))
        return parts

    def on_click(self, event: events.Click) -> None:
        parts = self._fitted_parts(self.size.width)
        index = _part_at((text for text, *_ in parts), event.x)
        _, _, choice, option = parts[index] if index is not None else ("", "", -1, -1)
        if option >= 0:
            self._choices[choice].choose(option)


def _width(parts: Sequence[tuple[str, str, int, int]]) -> int:
    return sum(width_of(part[0]) for part in parts)
