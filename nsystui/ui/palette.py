"""The command palette: commands, views, groupings and questions by title, then kernels, NVTX ranges and findings."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.widgets import Input, LoadingIndicator

from nsystui.base.text import safe_text
from nsystui.questions.queries.question import COMPARISON, PALETTE, Question, View, questions
from nsystui.ui import keys
from nsystui.ui.screens import screen_of, views_on
from nsystui.ui.widgets.repainting import ThrottledScreen

if TYPE_CHECKING:
    from nsystui.ui.app import NsystuiApp
    from nsystui.ui.screens.base import JobScreen
    from nsystui.ui.widgets.frame import Choice

MAX_NAMES = 2_000
"""Maximum number of kernel names, and of NVTX range names: the most frequent."""


SYNONYMS = {
    "help": "keys shortcuts", "theme": "colours colors dark light page background",
    "export": "save write file csv svg", "copy_row": "copy row clipboard",
    "quit": "exit close", "back": "undo", "filter": "filter find search names", "search": "find",
    "match": "next match", "window": "time range select", "take_window": "select time", "ranks": "select ranks",
    "devices": "select devices gpus", "sort": "order", "compare": "compare two ranks diff",
    "behind('diagnostics')": "warnings errors diagnostics lost events", "ncu": "nsight compute profile kernel",
    "trace": "perfetto paraver chrome", "zoom(1)": "zoom in", "zoom(-1)": "zoom out",
    "diff": "compare two jobs before after baseline groups of ranks", "memory": "copies memcpy memset transfers",
    "api": "cuda runtime driver calls", "sizes": "message size bandwidth busbw", "map": "heat map heatmap",
    "metrics": "hardware counters sm dram occupancy tensor", "network": "infiniband nic efa traffic",
    "GPU memory": "peak memory allocations cudaMalloc oom leak", "efficiency": "pop talp",
    "functions": "hotspots cpu samples profile", "call tree": "flame graph stacks cpu samples", "threads": "cpu",
    "gaps": "idle why", **dict.fromkeys(("steps", "steps by rank"), "iterations step time"),
    "budget": "iterations what blocked launch-starved starved stalled",
    "path": "critical path iterations what blocked", "kernels by step": "iterations",
    "collectives": "allreduce waiting late", "timeline": "gantt trace lanes",
}  # fmt: skip
"""Search words by the action of a key, or by the name of a view or question."""


class Offer(NamedTuple):
    """A line of the palette and its action, with short ``titles`` and further search words."""

    words: str
    choose: Callable[[], object]
    titles: tuple[str, ...] = ()
    synonyms: str = ""

    def score(self, typed: str) -> float:
        """Return 5 for a title, 4 for beginnings of title words, 3 with synonyms, 2 for parts of the line, or 0."""
        titles, parts = [title.lower() for title in self.titles], typed.lower().split()
        words = re.findall(r"[^\s_:]+|\S+", " ".join(titles))
        if " ".join(parts) in titles:
            return 5
        for score, more_words in ((4, ()), (3, self.synonyms.lower().split())):
            if all(any(word.startswith(part) for word in (*words, *more_words)) for part in parts):
                return score
        return 2 if all(part in self.words.lower() for part in parts) else 0


def words_of(question: Question) -> str:
    """Return the line of a question, such as ``recipe: gpu_gaps – when a GPU was idle for long``."""
    family = f"{question.family}: " if question.family else ""
    name = question.rows.title if question.rows.home == COMPARISON else f"{family}{question.name}"
    return f"{name} – {question.help}"


def _key_offers(places: Sequence[str], press: Callable[[str], object], where: str = "") -> Iterable[Offer]:
    for key in keys.keys_of(places):
        if key.help and key.action not in ("", "palette"):
            title = "" if not key.label or key.label in key.help else f"{key.label}: "
            synonyms = SYNONYMS.get(key.action) or SYNONYMS.get(key.action.partition("(")[0], "")
            choose = partial(press, key.keys.partition(",")[0])
            titles, synonyms = ((), f"{key.label} {synonyms}") if where else ((key.label,), synonyms)
            yield Offer(f"{title}{key.help} – {key.shown}{where}", choose, titles, synonyms)


def commands(screen: JobScreen) -> Iterable[Offer]:
    """Yield the actions of a screen's keys, its choices except views, and the themes."""
    yield from _key_offers(screen.places(), screen.app.simulate_key)
    for choice in screen.choices():
        for index, option in enumerate(choice.options if choice.label != "view" else ()):
            words = f"{choice.label}: {option}"
            yield Offer(f"{words} – choice", partial(choice.choose, index), (option, words), "group names")
    app = screen.explorer
    if not app.no_color:
        for page, light in (("a light page", True), ("a dark page", False), ("the terminal's own page", None)):
            yield Offer(f"theme: {page}", partial(app.choose_theme, light), ("theme", page), SYNONYMS["theme"])


def views(screen: JobScreen) -> Iterable[Offer]:
    """Yield the views of all tabs."""
    app = screen.explorer
    for title, mode, view in _views(app):
        go = partial(app.call_later, app.go, mode, None, view.name)
        words = f"{title}: {view.label}"
        yield Offer(f"{words} – view", go, (view.label, words), SYNONYMS.get(view.name, ""))


def _views(app: NsystuiApp) -> Iterable[tuple[str, str, View]]:
    tabs = [(title, keys.MODE_OF[key]) for key, title, _ in keys.TABS]
    return ((title, mode, view) for title, mode in tabs if mode in app.MODES for view in views_on(mode))


def _groupings(app: NsystuiApp) -> Iterable[Offer]:
    async def group(mode: str, view: str, number: int) -> None:
        if shown := await app.go(mode, None, view):
            shown.call_later(shown.take_option, _grouping(shown), number)  # later, because it may be new

    for title, mode, view in _views(app):
        other = screen_of(view.screen)  # never shown
        other.take_view(view.name)
        for number, option in enumerate(by.options if (by := _grouping(other)) else ()):
            go = partial(app.call_later, group, mode, view.name, number)
            yield Offer(f"{title}: {view.label} by {option} – grouping", go, (f"{view.label} by {option}", title))


def _grouping(screen: JobScreen) -> Choice | None:
    return next((choice for choice in screen.choices() if choice.label == "by"), None)


def commands_elsewhere(screen: JobScreen) -> Iterable[Offer]:
    """Yield the actions of the keys of the other tabs."""
    app = screen.explorer

    async def press(mode: str, key: str) -> None:
        if await app.go(mode):
            app.simulate_key(key)

    for tab, title, _ in keys.TABS:
        mode = keys.MODE_OF[tab]
        if mode not in screen.places():
            yield from _key_offers((mode,), partial(app.call_later, press, mode), f" on {title}")


def findings(screen: JobScreen) -> Iterable[Offer]:
    """Yield the findings that the overview shows."""
    from nsystui.ui.screens.findings import FindingScreen

    triage = screen.explorer.triage
    if triage is None:
        return
    for number, finding in enumerate(triage.findings):
        show = partial(_open, screen, partial(FindingScreen, triage, number))
        yield Offer(f"{finding.id}: {finding.sentence} – finding", show)


def groupings_and_names(screen: JobScreen) -> tuple[Sequence[Offer], Sequence[Offer]]:
    """Return the groupings of all views, and the kernels and NVTX ranges by name. Runs queries: call it in a thread."""
    from nsystui.questions.kernels.summary import Names, kernel_names
    from nsystui.questions.nvtx.listing import range_names
    from nsystui.ui.screens.kernels import KernelInstancesScreen, RangeInstancesScreen

    job = screen.job
    if job is None or "diff alone" in screen.places():
        return (), ()
    kernels, ranges = kernel_names(job.session, MAX_NAMES), range_names(job.session, MAX_NAMES)
    smart, kernel_screen = job.smart_names(), partial(KernelInstancesScreen, names=Names.FULL)
    show = partial(_open, screen)
    names = [
        Offer(f"{smart.get(name, name)} – kernel", partial(show, partial(kernel_screen, name)), (), name)
        for name in kernels
    ]
    names += [Offer(f"{name} – NVTX range", partial(show, partial(RangeInstancesScreen, name))) for name in ranges]
    return tuple(_groupings(screen.explorer)), names


def _open(screen: JobScreen, make: Callable[[], JobScreen]) -> None:
    screen.lay_over(make())


def offers(screen: JobScreen) -> Iterable[Offer]:
    """Yield the views, commands, also of other tabs, and questions that a screen offers."""
    if "diff alone" in screen.places():  # a comparison, not a single job
        yield from commands(screen)
        return
    yield from (*views(screen), *commands(screen), *commands_elsewhere(screen))
    for question in questions():
        if question.rows.home in (PALETTE, COMPARISON):
            titles, synonyms = (question.name, question.rows.title, question.family), SYNONYMS.get(question.name, "")
            yield Offer(words_of(question), partial(screen.open_question, question), titles, synonyms)


class EverythingProvider(Provider):
    """Offers views, commands, questions and findings at once, kernels and ranges once part of a name is typed."""

    _listing: asyncio.Future[tuple[Sequence[Offer], Sequence[Offer]]] | None = None

    @property
    def _job_screen(self) -> JobScreen:
        return self.screen  # type: ignore[return-value]

    async def discover(self) -> Hits:
        """Offer everything except names before anything is typed."""
        for offer in (*offers(self._job_screen), *findings(self._job_screen)):
            words = safe_text(offer.words)
            yield DiscoveryHit(Content(words), offer.choose, words)

    async def search(self, query: str) -> Hits:
        """Offer commands, views and questions by title, then by words; then names, then findings."""
        matcher, typed = self.matcher(query), query.lower()

        def hit(offer: Offer, score: float) -> Hit:
            words = safe_text(offer.words)
            return Hit(score, matcher.highlight(words), offer.choose, words)

        for offer in offers(self._job_screen):
            if score := offer.score(query):
                yield hit(offer, score)
        if self._listing is None:
            self._listing = asyncio.ensure_future(asyncio.to_thread(groupings_and_names, self._job_screen))
        groups, named = await asyncio.shield(self._listing)  # the next key ends this search, not the listing
        for offer in groups:
            if score := offer.score(query):
                yield hit(offer, score - 2.5)
        for score, offer in [(1.0, item) for item in named] + [(0.5, item) for item in findings(self._job_screen)]:
            if typed in f"{offer.words}\n{offer.synonyms}".lower():
                yield hit(offer, score)


class Palette(CommandPalette, ThrottledScreen[None]):
    """Textual's palette without blinking, spinner and icon."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+p", "escape", "close", show=False)]

    def __init__(self) -> None:
        super().__init__(
            providers=[EverythingProvider],
            placeholder="a command, view, grouping, recipe, kernel, NVTX range or finding",
        )

    def on_mount(self) -> None:
        """Stop the cursor's blinking and the spinner."""
        self.query_one(Input).cursor_blink = False
        self.query_one(LoadingIndicator).auto_refresh = None  # even hidden, it would wake the program 16 times a second

    def _action_command_list(self, action: str) -> None:
        # Textual's list fails on page keys while its height is 0: before it is drawn, or on a tiny terminal.
        if not action.startswith("page_") or self.query_one(CommandList).scrollable_content_region.height:
            super()._action_command_list(action)


OPENED = {"palette": Palette}
