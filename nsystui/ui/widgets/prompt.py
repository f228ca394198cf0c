"""The line in which a user types a filter, a time or a file's name."""

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

from nsystui.base.errors import NsystuiError
from nsystui.base.text import safe_text

_Result = TypeVar("_Result")


class _SafeText(Highlighter):
    """Draws text safely, without changing it: a filter may be a name with an escape sequence."""

    def highlight(self, text: Text) -> None:
        text.plain = safe_text(text.plain)


class LinePrompt(Widget):
    """A line to type in, over the key line; hidden until ``ask``. A screen needs only one.

    It has its own layer and keeps its space: opening it moves nothing and repaints one line. Enter submits unless
    ``parse`` rejects the text, and Esc cancels; both close it and restore the focus.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", show=False)]

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._parse: Callable[[str], Any] | None = None
        self._then: Callable[[Any], object] | None = None
        self._understood: Callable[[Any], str] | None = None
        self._focus_before: Widget | None = None
        self._message = Static(markup=False, classes="line-prompt--message")
        self._label = Static(markup=False, classes="line-prompt--label")
        self.input = Input(compact=True, select_on_focus=False, highlighter=_SafeText())
        self.input.cursor_blink = False  # a blinking cursor sends 2 KB a second

    def compose(self) -> ComposeResult:
        yield self._message
        with Horizontal():
            yield self._label
            yield self.input

    @property
    def is_open(self) -> bool:
        """Whether the user is typing."""
        return self.has_class("-open")

    def ask(
        self,
        label: str,
        value: str,
        parse: Callable[[str], _Result],
        then: Callable[[_Result], object],
        understood: Callable[[_Result], str] | None = None,
        replaced: bool = False,
    ) -> None:
        """Ask for a text.

        Args:
            label: The words before the text: ``"find"``, ``"go to time"``, ``"export to"``.
            value: The initial text, with the cursor at its end.
            parse: Called with the text on Enter. If it raises NsystuiError, the prompt stays open and shows the reason.
            then: Called with the result of ``parse`` after the prompt is closed.
            understood: Returns the meaning of the text, shown above it during typing.
            replaced: Select the initial text, so that typing replaces it.
        """
        if not self.is_open:
            self._focus_before = self.screen.focused
        self._parse, self._then, self._understood = parse, then, understood
        self._label.update(safe_text(label) + " ")
        with self.prevent(Input.Changed):
            self.input.value = value
        self.input.selection = Selection(0 if replaced else len(value), len(value))
        self.remove_class("-failed", "-understood")
        self.add_class("-open")
        self._show_understood(value)
        self.screen.set_focus(self.input)

    def close(self) -> None:
        if self.is_open:
            self.remove_class("-open", "-failed", "-understood")
            if self._focus_before is not None and self._focus_before.is_attached:
                self.screen.set_focus(self._focus_before)  # the widget's focus() would repaint all of it
            self._focus_before = None

    action_cancel = close

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        event.stop()
        if self._parse is None or self._then is None:
            return
        try:
            result = self._parse(event.value)
        except NsystuiError as error:
            self._message.update(safe_text(str(error)))
            self.remove_class("-understood")
            self.add_class("-failed")
            return
        self.close()
        self.screen.call_later(self._then, result)

    @on(Input.Changed)
    def _change(self, event: Input.Changed) -> None:
        event.stop()
        self.remove_class("-failed")
        self._show_understood(event.value)

    def _show_understood(self, text: str) -> None:
        words = ""
        if self._understood is not None and self._parse is not None and text.strip():
            with contextlib.suppress(NsystuiError):
                words = self._understood(self._parse(text))
        self.set_class(bool(words), "-understood")
        if words:
            self._message.update(safe_text(words))
