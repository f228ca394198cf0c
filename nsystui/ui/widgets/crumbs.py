"""The lines around every screen: where I am (top), what is selected (second), which keys act here (bottom).

Each is one line of plain text, drawn only when it says something new. Nothing here blinks, ticks or animates; words
that a running operation changes all the time are shown at most twice a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from nsystui.base.text import safe_text, shorten, width_of
from nsystui.ui.ascii import key_name

CRUMB = " › "
GAP = "   "
"""Between what stands left and what stands right on a line, at least."""

BETWEEN = "  "
"""Between the phrases of a status."""

SHORTEST_CUT = 8
"""Cells below which a second piece of text is left out rather than cut to something unreadable."""

UPDATE_INTERVAL = 0.5
"""Seconds between two updates of words that progress changes."""

Part = tuple[str, str]
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
        self._left: tuple[Part, ...] = ()
        self._right: tuple[Part, ...] = ()

    def show_parts(self, left: Iterable[Part], right: Iterable[Part] = ()) -> None:
        """Draw these parts; nothing happens if they stand there already."""
        new = (tuple(left), tuple(right))
        if new != (self._left, self._right):
            self._left, self._right = new
            self.refresh(Region(0, 0, self.size.width, 1))

    def parts_for(self, width: int) -> tuple[Sequence[Part], Sequence[Part]]:
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
        return Strip(Segment.simplify(segments), width)


def _fewer_phrases(text: str, room: int) -> str:
    """``loading 0 of 1  ▓░░░ 10 %  344,062 rows`` with as many of its phrases as there is room for; the bar stays."""
    phrases = text.split(BETWEEN)
    for some in (phrases, phrases[:-1], phrases[1:2]):
        if some and width_of(BETWEEN.join(some)) <= room:
            return BETWEEN.join(some)
    return text


def _cut(parts: Sequence[Part], room: int) -> list[Part]:
    """``parts`` in at most ``room`` cells; the one that does not fit is cut in its middle, later ones leave."""
    kept: list[Part] = []
    for text, name in parts:
        if width_of(text) > room and kept and room < SHORTEST_CUT:
            break
        text = shorten(text, room)
        kept.append((text, name))
        room -= width_of(text)
    return kept


class TitleLine(TextLine):
    """Line 1: where I am and on what; at the right the screens by their keys, or a count.

    Args:
        modes: Key and name of each screen, ``(("1", "Overview"), ("2", "Kernels"))``.
        active: Key of the screen this line is on; its name stays longest when the line gets narrow.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"title-line--here", "title-line--active", "title-line--mode"}

    DEFAULT_CSS = """
    TitleLine > .title-line--here { text-style: bold; }
    TitleLine > .title-line--active { text-style: bold underline; }
    TitleLine > .title-line--mode { color: $foreground 70%; }
    """

    def __init__(
        self,
        modes: Sequence[tuple[str, str]] = (),
        active: str = "",
        *,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._modes = tuple(modes)
        self._active = active

    def update(self, *crumbs: str, about: str = "", right: str = "") -> None:
        """``crumbs`` lead here (``"2 Kernels", "nvjet_hsh_128x256"``), ``about`` is what is looked at.

        ``right`` stands in the place of the screens' names: ``"9,600 of 9,600 instances"``.
        """
        left: list[Part] = [(CRUMB.join(safe_text(crumb) for crumb in crumbs), "title-line--here")]
        if about:
            left += [("  ", ""), (safe_text(about), "")]
        self.show_parts(left, [(safe_text(right), "")] if right else [])

    def parts_for(self, width: int) -> tuple[Sequence[Part], Sequence[Part]]:
        if self._right or not self._modes:
            return self._left, self._right
        room = width - len(GAP) - sum(width_of(text) for text, _ in self._left)
        numbered = [mode for mode in self._modes if mode[0].isdigit()]
        # Every name; those with numbers; only the active one; nothing.
        for shown, names in ((self._modes, True), (numbered, True), (self._modes, False)):
            modes = self._mode_parts(shown, names)
            if sum(width_of(text) for text, _ in modes) <= room:
                return self._left, modes
        return self._left, ()

    def _mode_parts(self, shown: Iterable[tuple[str, str]], all_names: bool) -> list[Part]:
        parts: list[Part] = []
        for key, name in shown:
            active = key == self._active
            if parts:
                parts.append((" ", "title-line--mode"))
            text = f"{key} {name}" if all_names or active else key
            parts.append((text, "title-line--active" if active else "title-line--mode"))
        return parts


class StatusText(TextLine):
    """What a running operation says of itself: at most two updates a second, however often it reports."""

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

    def parts_for(self, width: int) -> tuple[Sequence[Part], Sequence[Part]]:
        room = width - sum(width_of(text) for text, _ in self._left) - len(GAP)
        return self._left, [(_fewer_phrases(text, room), name) for text, name in self._right]


class SelectionLine(StatusText):
    """Line 2: what is selected; at the right what is going on. Empty when everything is selected and nothing runs."""

    def update(self, selection: str) -> None:
        """Show ``selection``, such as ``ranks 0-63 · 6.0–7.0 s``."""
        self._text = safe_text(selection)
        self._show()


class KeyLine(TextLine):
    """The last line: the keys that act here, as many as fit whole. ``?`` always fits: it explains the others."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-line--key", "key-line--label", "key-line--notice"}

    DEFAULT_CSS = """
    KeyLine { dock: bottom; }
    KeyLine > .key-line--key { text-style: bold; }
    KeyLine > .key-line--label { color: $foreground 75%; }
    KeyLine > .key-line--notice { text-style: bold; color: $text-warning; }
    KeyLine:ansi > .key-line--notice { color: $foreground; }
    """

    ALWAYS = "?"

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

    def parts_for(self, width: int) -> tuple[Sequence[Part], Sequence[Part]]:
        if self._left:
            return self._left, ()
        keys = [(key_name(key, self.app), label) for key, label in self._keys]
        sizes = [width_of(key) + 1 + width_of(label) for key, label in keys]
        room = width - sum(size + 2 for size, (key, _) in zip(sizes, keys, strict=True) if key == self.ALWAYS)
        parts: list[Part] = []
        full = False
        for size, (key, label) in zip(sizes, keys, strict=True):
            if key != self.ALWAYS:
                full = full or size > room  # nothing less useful squeezes in after one that did not fit
                if full:
                    continue
                room -= size + 2
            gap = [("  ", "key-line--label")] if parts else []
            parts += [*gap, (key, "key-line--key"), (" " + label, "key-line--label")]
        return parts, ()
