"""The command palette: everything by a part of its name: commands, views, findings, questions, kernels, NVTX ranges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.widgets import Input, LoadingIndicator

from nsystui.base.text import safe_text
from nsystui.questions.queries.question import COMPARISON, PALETTE, Question
from nsystui.questions.queries.registry import questions
from nsystui.ui import keys
from nsystui.ui.screens import views_on
from nsystui.ui.widgets.repainting import ThrottledScreen

if TYPE_CHECKING:
    from nsystui.ui.screens.base import JobScreen

MOST_NAMES = 2_000
"""Names of kernels, and of NVTX ranges, that are offered: the most frequent."""


class Offer(NamedTuple):
    """A line of the palette and what it does."""

    words: str
    choose: Callable[[], object]


def words_of(question: Question) -> str:
    """``recipe: gpu_gaps – when a GPU was idle for long``"""
    family = f"{question.family}: " if question.family else ""
    return f"{family}{question.name} – {question.help}"


def offered_questions() -> list[Question]:
    """The questions that the palette offers, in its order."""
    return [question for question in questions() if question.home in (PALETTE, COMPARISON)]


def _has_job(screen: JobScreen) -> bool:
    """Whether there are screens of one job: a comparison of two jobs has none of its own."""
    return "diff alone" not in screen.places()


def commands(screen: JobScreen) -> Iterable[Offer]:
    """What the keys of a screen do."""
    for key in keys.keys_of(screen.places()):
        if key.help and key.action not in ("", "palette"):
            yield Offer(f"{key.help} – {key.shown}", partial(screen.app.simulate_key, key.keys.partition(",")[0]))


def views(screen: JobScreen) -> Iterable[Offer]:
    """The views of all tabs."""
    app = screen.explorer
    for key, title, _ in keys.TABS:
        mode = keys.MODE_OF[key]
        if mode in app.MODES:
            for view in views_on(mode):
                yield Offer(f"{title}: {view.label} – view", partial(app.call_later, app.go, mode, None, view.name))


def findings(screen: JobScreen) -> Iterable[Offer]:
    """The findings that the overview shows."""
    from nsystui.ui.screens.findings import FindingScreen

    found = screen.explorer.triage
    if found is None:
        return
    for number, one in enumerate(found.findings):
        yield Offer(
            f"{one.id}: {one.sentence} – finding", partial(_open, screen, partial(FindingScreen, found, number))
        )


def names(screen: JobScreen) -> Sequence[Offer]:
    """The kernels and NVTX ranges of the job by their names; a query, so for a thread."""
    from nsystui.questions.kernels.summary import Names, kernel_names
    from nsystui.questions.nvtx.listing import range_names
    from nsystui.ui.screens.kernels import KernelInstancesScreen, RangeInstancesScreen

    job = screen.job
    if job is None or not _has_job(screen):
        return ()
    kernels = [
        Offer(f"{name} – kernel", partial(_open, screen, partial(KernelInstancesScreen, name, Names.FULL)))
        for name in kernel_names(job.session, MOST_NAMES)
    ]
    ranges = [
        Offer(f"{name} – NVTX range", partial(_open, screen, partial(RangeInstancesScreen, name)))
        for name in range_names(job.session, MOST_NAMES)
    ]
    return kernels + ranges


def _open(screen: JobScreen, make: Callable[[], JobScreen]) -> None:
    screen.lay_over(make())


class EverythingProvider(Provider):
    """Commands, views, findings and questions are offered at once; names of kernels and ranges when a part is typed."""

    _names: Sequence[Offer] = ()
    _is_named = False

    @property
    def _job_screen(self) -> JobScreen:
        return self.screen  # type: ignore[return-value]

    def _offers(self) -> Iterable[Offer]:
        screen = self._job_screen
        if not _has_job(screen):
            yield from commands(screen)
            return
        yield from findings(screen)
        yield from views(screen)
        yield from commands(screen)
        for question in offered_questions():
            yield Offer(words_of(question), partial(screen.open_question, question))

    async def discover(self) -> Hits:
        """Offer everything but names before anything is typed."""
        for offer in self._offers():
            words = safe_text(offer.words)
            yield DiscoveryHit(Content(words), offer.choose, words)

    async def search(self, query: str) -> Hits:
        """Offer what has the typed part, names included."""
        matcher = self.matcher(query)
        if not self._is_named:
            self._is_named = True
            self._names = await asyncio.to_thread(names, self._job_screen)
        part = query.lower()
        named = [offer for offer in self._names if part in offer.words.lower()]
        for offer in (*self._offers(), *named):
            words = safe_text(offer.words)
            score = matcher.match(words)
            if score > 0:
                yield Hit(score, matcher.highlight(words), offer.choose, words)


class Palette(CommandPalette, ThrottledScreen[None]):
    """Textual's palette without blinking, spinners and icons."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+p", "escape", "close", show=False)]

    DEFAULT_CSS = """
    Palette > Vertical { margin-top: 1; }
    Palette SearchIcon, Palette LoadingIndicator, Palette LoadingIndicator.--visible {
        display: none;
    }
    """

    def __init__(self) -> None:
        super().__init__(
            providers=[EverythingProvider], placeholder="a command, view, finding, recipe, kernel or NVTX range"
        )

    def on_mount(self) -> None:
        """Stop what blinks."""
        self.query_one(Input).cursor_blink = False
        self.query_one(LoadingIndicator).auto_refresh = None  # hidden, it would wake the program 16 times a second

    def _action_command_list(self, action: str) -> None:
        # Textual's list falls over a page while it has no lines: before it is drawn, on a tiny terminal.
        if action.startswith("page_") and not self.query_one(CommandList).scrollable_content_region.height:
            return
        super()._action_command_list(action)
