"""The one line in which a user types something: a filter, a time, a file's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.highlighter import Highlighter
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from nsystui.base.text import safe_text

Check = Callable[[str], str | None]
"""Says what is wrong with a text, in a sentence for the user, or ``None`` when it will do."""


class _Shown(Highlighter):
    """How a text is drawn that stays as it is: a filter may be a name with an escape sequence in it."""

    def highlight(self, text: Text) -> None:
        text.plain = safe_text(text.plain)


class LinePrompt(Widget):
    """A line to type in, over the key line; hidden until ``open``. One for each screen is enough.

    It lies on a layer of its own and always has its place there, so that opening it moves nothing and repaints one
    line. Enter submits, if ``check`` has nothing to say against it, and Esc cancels; either closes it and gives the
    focus back.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", show=False)]

    LAYER = "prompt"

    DEFAULT_CSS = """
    LinePrompt { layer: prompt; dock: bottom; height: auto; visibility: hidden; background: $background; }
    LinePrompt.-open { visibility: visible; }
    LinePrompt > .line-prompt--message { display: none; height: auto; color: $text-error; }
    LinePrompt:ansi > .line-prompt--message { color: ansi_red; }
    LinePrompt.-failed > .line-prompt--message { display: block; }
    LinePrompt > Horizontal { height: 1; }
    LinePrompt .line-prompt--label { width: auto; text-style: bold; }
    LinePrompt Input { width: 1fr; height: 1; border: none; padding: 0; background: $background; }
    LinePrompt Input:focus { background: $background; border: none; }
    """

    @dataclass
    class Submitted(Message):
        """Enter, and the text was good."""

        prompt: LinePrompt
        purpose: str
        value: str

        @property
        def control(self) -> LinePrompt:
            return self.prompt

    @dataclass
    class Changed(Message):
        """The text changed while the prompt is open."""

        prompt: LinePrompt
        purpose: str
        value: str

        @property
        def control(self) -> LinePrompt:
            return self.prompt

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, LinePrompt.Changed)

    @dataclass
    class Cancelled(Message):
        """Esc."""

        prompt: LinePrompt
        purpose: str

        @property
        def control(self) -> LinePrompt:
            return self.prompt

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._purpose = ""
        self._check: Check | None = None
        self._focus_before: Widget | None = None
        self._message = Static(markup=False, classes="line-prompt--message")
        self._label = Static(markup=False, classes="line-prompt--label")
        self._input = Input(compact=True, select_on_focus=False, highlighter=_Shown())
        self._input.cursor_blink = False  # a blinking cursor sends 2 KB a second

    def compose(self) -> ComposeResult:
        yield self._message
        with Horizontal():
            yield self._label
            yield self._input

    def on_mount(self) -> None:
        if self.LAYER not in self.screen.layers:
            self.screen.styles.layers = " ".join((*self.screen.layers, self.LAYER))

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    @property
    def purpose(self) -> str:
        """What the open prompt is for, as given to ``open``."""
        return self._purpose

    @property
    def value(self) -> str:
        """The text as it stands."""
        return self._input.value

    def open(self, purpose: str, label: str, value: str = "", check: Check | None = None) -> None:
        """Ask for a text.

        Args:
            purpose: Comes back with the messages: ``"filter"``, ``"time"``, ``"export"``.
            label: What stands before the text: ``"/"``, ``"go to"``, ``"export to"``.
            value: The text to begin with; the cursor stands at its end.
            check: Called with the text on Enter; what it returns is shown and the prompt stays open.
        """
        if not self.is_open:
            self._focus_before = self.screen.focused
        self._purpose, self._check = purpose, check
        self._label.update(safe_text(label) + " ")
        with self.prevent(Input.Changed):
            self._input.value = value
        self._input.cursor_position = len(value)
        self.remove_class("-failed")
        self.add_class("-open")
        self.screen.set_focus(self._input)

    def close(self) -> None:
        """Hide the prompt and give the focus back to who had it."""
        if self.is_open:
            self.remove_class("-open", "-failed")
            if self._focus_before is not None and self._focus_before.is_attached:
                self.screen.set_focus(self._focus_before)  # its own focus() would repaint all of it
            self._focus_before = None

    def fail(self, message: str) -> None:
        """Show what is wrong with the text, on a line above it, until it changes."""
        self._message.update(safe_text(message))
        self.add_class("-failed")

    def action_cancel(self) -> None:
        self.close()
        self.post_message(self.Cancelled(self, self._purpose))

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        event.stop()
        problem = self._check(event.value) if self._check is not None else None
        if problem:
            self.fail(problem)
            return
        self.close()
        self.post_message(self.Submitted(self, self._purpose, event.value))

    @on(Input.Changed)
    def _change(self, event: Input.Changed) -> None:
        event.stop()
        self.remove_class("-failed")
        if self.is_open:
            self.post_message(self.Changed(self, self._purpose, event.value))
