"""The one line in which a user types something: a filter, a time, a file's name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from rich.highlighter import Highlighter
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Input, Static
from textual.widgets.input import Selection

from nsystui.base.errors import NsystuiError, UsageError
from nsystui.base.text import safe_text

Result = TypeVar("Result")


def one_of(*words: str) -> Callable[[str], str]:
    """Parses the answer to a choice: one of ``words``, or its beginning; else raises UsageError."""

    def chosen(text: str) -> str:
        typed = text.strip().lower()
        found = next((word for word in words if typed and word.startswith(typed)), None)
        if found is None:
            raise UsageError(" or ".join(words))
        return found

    return chosen


class _Shown(Highlighter):
    """How a text is drawn that stays as it is: a filter may be a name with an escape sequence in it."""

    def highlight(self, text: Text) -> None:
        text.plain = safe_text(text.plain)


class LinePrompt(Widget):
    """A line to type in, over the key line; hidden until ``ask``. One for each screen is enough.

    It lies on a layer of its own and always has its place there, so that opening it moves nothing and repaints one
    line. Enter submits, unless ``parse`` says what is wrong with the text, and Esc cancels; either closes it and gives
    the focus back.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", show=False)]

    LAYER = "prompt"

    DEFAULT_CSS = """
    LinePrompt { layer: prompt; dock: bottom; height: auto; visibility: hidden; background: $background; }
    LinePrompt.-open { visibility: visible; }
    LinePrompt > .line-prompt--message { display: none; height: auto; color: $text-error; }
    LinePrompt.-failed > .line-prompt--message { display: block; }
    LinePrompt.-understood > .line-prompt--message { display: block; color: $foreground; }
    LinePrompt > Horizontal { height: 1; }
    LinePrompt .line-prompt--label { width: auto; text-style: bold; }
    LinePrompt Input { width: 1fr; height: 1; border: none; padding: 0; background: $background; }
    LinePrompt Input:focus { background: $background; border: none; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._parse: Callable[[str], Any] | None = None
        self._then: Callable[[Any], object] | None = None
        self._understood: Callable[[Any], str] | None = None
        self._focus_before: Widget | None = None
        self._message = Static(markup=False, classes="line-prompt--message")
        self._label = Static(markup=False, classes="line-prompt--label")
        self._input = Input(compact=True, select_on_focus=False, highlighter=_Shown())
        self._input.cursor_blink = False  # a blinking cursor sends 2 KB a second

    def compose(self) -> ComposeResult:
        """Compose the line for words above the label and the input."""
        yield self._message
        with Horizontal():
            yield self._label
            yield self._input

    def on_mount(self) -> None:
        """Give the screen the layer that the prompt lies on."""
        if self.LAYER not in self.screen.layers:
            self.screen.styles.layers = " ".join((*self.screen.layers, self.LAYER))

    @property
    def is_open(self) -> bool:
        """Whether the user is typing."""
        return self.has_class("-open")

    @property
    def value(self) -> str:
        """The text as it stands."""
        return self._input.value

    @value.setter
    def value(self, text: str) -> None:
        """The text as it stands."""
        self._input.value = text

    def ask(
        self,
        label: str,
        value: str,
        parse: Callable[[str], Result],
        then: Callable[[Result], object],
        understood: Callable[[Result], str] | None = None,
        replaced: bool = False,
    ) -> None:
        """Asks for a text.

        Args:
            label: What stands before the text: ``"find"``, ``"go to time"``, ``"export to"``.
            value: The text to begin with; the cursor stands at its end.
            parse: Called with the text on Enter. The prompt stays open and shows the reason if it raises NsystuiError.
            then: Called with the result of ``parse`` when the prompt is closed.
            understood: What the text means, in words, which stand above it while it is typed.
            replaced: Whether the text to begin with is selected, so that what is typed replaces it.
        """
        if not self.is_open:
            self._focus_before = self.screen.focused
        self._parse, self._then, self._understood = parse, then, understood
        self._label.update(safe_text(label) + " ")
        with self.prevent(Input.Changed):
            self._input.value = value
        self._input.selection = Selection(0 if replaced else len(value), len(value))
        self.remove_class("-failed", "-understood")
        self.add_class("-open")
        self._show_understood(value)
        self.screen.set_focus(self._input)

    def close(self) -> None:
        """Hide the prompt and give the focus back to who had it."""
        if self.is_open:
            self.remove_class("-open", "-failed", "-understood")
            if self._focus_before is not None and self._focus_before.is_attached:
                self.screen.set_focus(self._focus_before)  # its own focus() would repaint all of it
            self._focus_before = None

    def fail(self, message: str) -> None:
        """Shows the error in the text, on a line above it, until the text changes."""
        self._message.update(safe_text(message))
        self.remove_class("-understood")
        self.add_class("-failed")

    def action_cancel(self) -> None:
        """Close without an answer."""
        self.close()

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        event.stop()
        if self._parse is None or self._then is None:
            return
        try:
            result = self._parse(event.value)
        except NsystuiError as error:
            self.fail(str(error))
            return
        self.close()
        self.screen.call_later(self._then, result)

    @on(Input.Changed)
    def _change(self, event: Input.Changed) -> None:
        event.stop()
        self.remove_class("-failed")
        self._show_understood(event.value)

    def _show_understood(self, text: str) -> None:
        """Says what the text means, once it means something."""
        words = ""
        if self._understood is not None and self._parse is not None and text.strip():
            with contextlib.suppress(NsystuiError):
                words = self._understood(self._parse(text))
        self.set_class(bool(words), "-understood")
        if words:
            self._message.update(safe_text(words))
