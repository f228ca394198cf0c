"""The lines of the frame around every screen: title, selection, choices, keys and status, each cut to its width."""

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
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from nsystui.base.text import CRUMB_GAP, safe_text, shorten, width_of
from nsystui.ui.ascii import key_name
from nsystui.ui.keys import textual_key

Value = TypeVar("Value")

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

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._left: tuple[StyledText, ...] = ()
        self._right: tuple[StyledText, ...] = ()
        self._drawn = Strip([])

    def show_parts(self, left: Iterable[StyledText], right: Iterable[StyledText] = ()) -> None:
        """Draw these parts, from the first cell that changes; nothing happens if they stand there already."""
        new = (tuple(left), tuple(right))
        if new != (self._left, self._right):
            self._left, self._right = new
            width, same = self.size.width, 0
            if width and self._drawn.cell_length == width:
                lines = (self._drawn, self.render_line(0))
                cells = ([(char, segment.style) for segment in line for char in segment.text] for line in lines)
                alike = takewhile(lambda pair: pair[0] == pair[1], zip(*cells, strict=False))
                same = sum(width_of(char) for (char, _), _ in alike)
            self.refresh(Region(same, 0, width - same, 1))

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        """Left and right parts for a line of ``width`` cells."""
        return self._left, self._right

    def render_line(self, y: int) -> Strip:
        """Draw the left parts, then the right ones; of too much the right is cut first."""
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


def _part_at(parts: Iterable[str], x: int) -> int | None:
    """The number of the part that covers the cell ``x``; ``None`` where there is none."""
    edges = accumulate(map(width_of, parts))
    return next((number for number, edge in enumerate(edges) if 0 <= x < edge), None)


def _fewer_phrases(text: str, room: int) -> str:
    """``loading 0 of 1  ▓░░░ 10 %  344,062 rows`` with as many of its phrases as there is room for.

    The bar stays, or at least its share: ``loading 10 %``.
    """
    phrases = text.split(BETWEEN)
    _, _, share = phrases[1].partition(" ") if len(phrases) > 1 else ("", "", "")
    shortest = [f"{text.split()[0]} {share}"] if share else []
    for some in (phrases, phrases[:-1], phrases[1:2], shortest):
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

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._text = ""
        self._status = ""
        self._shown_at = -UPDATE_INTERVAL
        self._later: Timer | None = None

    @property
    def status(self) -> str:
        """The newest status, shown already or about to be."""
        return self._status

    def set_status(self, status: str, at_once: bool = False) -> None:
        """Show ``status`` at the right, now or when the half second is over; the end, or an empty one, at once."""
        self._status = safe_text(status)
        wait = self._shown_at + UPDATE_INTERVAL - time.monotonic()
        if at_once or not status or wait <= 0 or not self.is_attached:
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
        """The text, and as much of the status as there is room for."""
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

    def __init__(self, tabs: Sequence[tuple[str, str, str]], active: str, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
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
        texts = [text for text, _ in self.parts_for(self.size.width)[0]]
        number = _part_at(texts, event.x)
        text = texts[number] if number is not None else ""
        if text[:1] in {tab[0] for tab in self._tabs} and text[1:2] in ("", " "):
            self.app.simulate_key(text[:1])


class SelectionLine(TextLine):
    """Line 2: the selection, and at the right how many rows there are of it; a click takes a crumb of it away."""

    @dataclass
    class CrumbClicked(Message):
        """The place of the crumb."""

        place: int

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
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
        """Tell which crumb was clicked."""
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
    """

    ALWAYS = ("ctrl+p", "?")

    def __init__(self, keys: Sequence[tuple[str, str]], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._keys = tuple(keys)
        self._silence: Timer | None = None

    def update(self, keys: Iterable[tuple[str, str]]) -> None:
        """Show these keys and what they do, most useful first: ``[("⏎", "open"), ("/", "find"), ("?", "help")]``."""
        keys = tuple(keys)
        if keys != self._keys:
            self._keys = keys
            self.refresh()

    def say(self, text: str, seconds: float = 6.0) -> None:
        """Show a sentence in place of the keys for a while: why a key can't act here, or what it just did.

        Without any words the keys are shown again.
        """
        if self._silence is not None:
            self._silence.stop()
        self.show_parts([(safe_text(text), "key-line--notice")] if text else [])
        self._silence = self.set_timer(seconds, lambda: self.show_parts([]))

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        """The notice, or the keys that fit whole."""
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
        number = _part_at((text for text, _ in parts), event.x)
        if number is not None:
            text, name = parts[number]
            shown = text if name == "key-line--key" else parts[number - 1][0] if number else ""
            self.app.simulate_key(textual_key(shown))


class Choice(NamedTuple):
    """One thing that is chosen on a screen: ``view  [kernels] memory``. Its label begins with the key that changes it.

    ``choose`` is called with the place of another option.
    """

    label: str
    options: tuple[str, ...]
    chosen: int
    choose: Callable[[int], object]

    @classmethod
    def among(cls, label: str, words: Mapping[Value, str], chosen: Value, choose: Callable[[Value], object]) -> Choice:
        """Offer values by the words for them; ``choose`` is called with another value."""
        values = list(words)
        return cls(label, tuple(words.values()), values.index(chosen), lambda place: choose(values[place]))


class ChoiceLine(TextLine):
    """Line 3: the way down to this screen, its views, how rows are grouped and shown; each with the current one.

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

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._path = ""
        self._choices: tuple[Choice, ...] = ()

    def show_choices(self, path: Sequence[str], choices: Sequence[Choice]) -> None:
        """Shows the way here, ``("sgemm", "launches")``, and what can be chosen; without either the line is gone."""
        self._path = CRUMB.join(map(safe_text, path))
        self._choices = tuple(choices)
        self.display = bool(self._path or self._choices)
        self.show_parts([(self._path, ""), *((f"{one.label} {one.options} {one.chosen}", "") for one in self._choices)])

    def parts_for(self, width: int) -> tuple[Sequence[StyledText], Sequence[StyledText]]:
        """The path and the choices, with fewer options where room is short."""
        return [(text, style) for text, style, _, _ in self._laid_out(width)], ()

    def _laid_out(self, width: int) -> list[tuple[str, str, int, int]]:
        """Text and style of each part, with the choice and the option that it stands for (-1: none)."""
        shown = [  # from the chosen option on, as the key goes through them
            [(choice.chosen + step) % len(choice.options) for step in range(len(choice.options))]
            for choice in self._choices
        ]
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
        """Choose the option that was clicked."""
        parts = self._laid_out(self.size.width)
        at = _part_at((text for text, *_ in parts), event.x)
        _, _, choice, option = parts[at] if at is not None else ("", "", -1, -1)
        if option >= 0:
            self._choices[choice].choose(option)


def _width(parts: Sequence[tuple[str, str, int, int]]) -> int:
    return sum(width_of(part[0]) for part in parts)


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells, without its end where it does not fit: names begin with what tells most."""
    if width_of(text) <= width:
        return text
    kept = text[: max(width - 1, 0)]
    while width_of(kept) > width - 1 and kept:
        kept = kept[:-1]
    return kept + "…" if width > 0 else ""
