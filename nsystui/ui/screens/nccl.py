"""3 NCCL: kernels and calls by collective and message size, communicator, stream, rank or step."""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from nsystui.base.answer import FILES_ONLY, Answer, Record, TableAnswer, Unit
from nsystui.base.drawing import Drawing as Shapes
from nsystui.base.selection import Selection
from nsystui.base.text import fit
from nsystui.base.units import format_value
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.bandwidth import LinkRate, link_rate
from nsystui.questions.nccl.grouping import COLUMNS, NcclProperty
from nsystui.questions.nccl.listing import nccl_listing
from nsystui.questions.nccl.sizes import SizeBin, bandwidth_by_size, bandwidth_curve, size_histogram
from nsystui.questions.nccl.summary import CALL, KERNEL, What, nccl_summary
from nsystui.questions.queries.distributions import curve_places
from nsystui.questions.queries.question import View, question_named
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.ui.screens.kernels import EventRowsScreen, event_key
from nsystui.ui.screens.nccl_log import log_note
from nsystui.ui.screens.table import TableScreen
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.plots import framed, histogram_lines, label_width


def histogram(bars: Sequence[SizeBin], width: int) -> list[str]:
    """Return calls and bytes by message size, side by side in ``width`` cells; empty if no size is known."""
    sized = [bar for bar in bars if bar.label is not None]
    if not any(bar.calls for bar in sized):
        return []
    half = (width - len(_GAP)) // 2
    labels = [bar.label or "" for bar in sized]
    sizes = [bar.bytes or 0 for bar in sized]
    words = [format_value(Unit.BYTES, size) for size in sizes]
    unknown = sum(bar.calls for bar in bars if bar.label is None)
    calls = "calls by message size" + (f" ({unknown:,} of unknown size)" if unknown else "")
    left = [calls, *histogram_lines(labels, [bar.calls for bar in sized], half)]
    right = ["bytes by message size", *histogram_lines(labels, sizes, half, words)]
    return [fit(first, half) + _GAP + second for first, second in zip(left, right, strict=True)]


_GAP = "  │  "
_DETAILS_WIDTH = 52  # next to the drawing on a wide terminal


class NcclCallsScreen(EventRowsScreen):
    """The kernels or calls of a row; ``c`` opens the partner of an event."""

    BACKGROUND = False
    MODE_KEY = "3"

    def __init__(self, what: What, row: Mapping[NcclProperty, Any]) -> None:
        words = [str(row[NcclProperty.COLLECTIVE] or "unknown")]
        for group, value in row.items():
            if group in (NcclProperty.SIZE, NcclProperty.POW2, NcclProperty.BYTES):
                size = format_value(Unit.BYTES, value) if isinstance(value, int) else value
                words.append(size or "of unknown size")
            elif group is not NcclProperty.COLLECTIVE:
                words.append(f"{group.value} {'unknown' if value is None else value}")
        super().__init__(" ".join([*words, f"{what}s"]))  # AllReduce 64KiB–1MiB kernels, AllReduce stream 7 kernels
        self.what = what
        self.row = row

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        return nccl_listing(job, selection, job.pairing_by(self.row), self.row, self.what)

    def counted(self) -> str:
        return f"{self.what}s"

    def row_category(self, values: Record) -> str | None:
        return "nccl" if self.what == KERNEL else "api"

    def action_partner(self) -> None:
        values = self.values()
        if not values:
            return
        if values["partner_row"] is None:
            self.say(str(values["reason"] or "it has no partner"))
            return
        report, kind, row, start = (values[f"partner_{name}"] for name in ("report", "kind", "row", "start"))
        self.go_to_event(event_key(report, EventKind(kind), row, start))


_SIZE_WORDS = {NcclProperty.BYTES: "exact size", NcclProperty.POW2: "power of two", NcclProperty.SIZE: "bucket"}
_MIN_HEIGHT, _HEIGHT_SHARE = 11, 0.4
"""The minimum lines of the drawing, and its share of a tall screen."""

_TALL, _MIN_CURVES, _MAX_CURVES = 30, 9, 24
"""The minimum terminal height for the summary's bandwidth curves, and their minimum and maximum lines."""


_Curve = tuple[Sequence[float], Sequence[float]]
"""Sizes (bytes) and median bus bandwidths (bytes/s) of a collective."""
_TITLE = "median bus bandwidth {}against message size"


class CollectivesScreen(TableScreen):
    """A table by collective, with a drawing below it; an empty drawing is hidden."""

    MODE_KEY = "3"
    HAS_PANEL = True
    ELASTIC = "collective"

    by: NcclProperty | None
    answered: What = KERNEL
    _curves: Mapping[str, _Curve] = {}
    _link: LinkRate | None = None
    _is_without_wait = False

    def parameters(self) -> tuple[Hashable, ...]:
        job = self.explorer.job
        return (*super().parameters(), job is not None and job.nccl_log is not None)

    drawn_lines: Callable[[int], list[str]]
    """Return the drawing in lines of this many cells."""

    def draw(self) -> None:
        lines = self.drawn_lines(self.size.width - (_DETAILS_WIDTH if self.has_class("-beside") else 0))
        self.panel.show_drawing(lines, "nccl")
        self.panel.set_class(not lines, "-empty")
        self.panel.styles.height = max(self.least_height, len(lines))

    @property
    def least_height(self) -> int:
        """The least lines of the drawing, which it keeps while it changes."""
        return 0

    def row_changed(self) -> None:
        self.draw()

    def on_resize(self) -> None:
        self.draw()
        self.job_changed()

    def bandwidths(self, name: str, width: int, max_lines: int) -> list[str]:
        """Return a chart of all collectives, each with its own mark; the collective ``name`` is in front."""
        names = [collective for collective in sorted(self._curves) if self._curves[collective][0]]
        if not names:
            return [_TITLE.format(""), "no bandwidth: the size of the communicator is not known"]
        marks = dict(zip(names, itertools.cycle(_MARKS), strict=False))
        names.sort(key=lambda collective: collective == name)
        link = self._link
        series = [self._curves[collective] for collective in names]
        ends = (0.0, max([*itertools.chain(*(rates for _, rates in series)), *([link.rate] if link else [])]))
        height = max_lines - 3
        columns = width - label_width(_rate_words, ends)
        curves = curve_places(series, columns, height, ends[1])
        if curves is None:
            return []
        rows = [[" "] * columns for _ in range(height)]
        for collective, cells in zip(names, curves[0], strict=True):
            for row, column in cells:
                # Drawn next to another collective's mark, not over it.
                free = [cell for cell in (column, column + 1, column - 1) if rows[row][cell : cell + 1] == [" "]]
                rows[row][free[0] if free else column] = marks[collective]
        wait_words = "without wait (if known) " if self._is_without_wait else ""
        legend = [f"{mark} {collective}" for collective, mark in marks.items()]
        if link is not None:
            legend.append(f"{_LINK} {link.link}, nominal {_rate_words(link.rate)} a GPU and direction")
            level = rows[max(0, height - 1 - int(link.rate / ends[1] * height))]
            level[:] = "".join(level).replace(" ", _LINK)
        words = (lambda size: format_value(Unit.BYTES, round(size)), _rate_words)
        chart = framed([*map("".join, rows)], (curves[1], ends), width, words)
        return [_TITLE.format(wait_words), "  ".join(legend), *chart]

    def row_category(self, values: Record) -> str | None:
        return "nccl" if self.answered == KERNEL else "api"

    def open_row(self) -> None:
        if values := self.values():
            groups = [NcclProperty.COLLECTIVE, *([self.by] if self.by is not None else [])]
            self.lay_over(NcclCallsScreen(self.answered, {group: values[COLUMNS[group].key] for group in groups}))

    def has_view(self, view: View) -> bool:
        """Return whether there is a log for its view."""
        return view.name != "log" or bool(self.explorer.source.logs)


class NcclSizesScreen(CollectivesScreen):
    """Kernels by collective and known size; in the drawing, the cursor's collective is in front."""

    PARAMETERS = ("by",)
    SCREEN = "nccl sizes"
    PLACES = ("nccl sizes", "table", "everywhere")

    by: NcclProperty = NcclProperty.BYTES

    def ask(self, job: OpenJob, selection: Selection) -> tuple[Answer, dict[str, _Curve], LinkRate | None]:
        pairing = job.pairing()
        answer = bandwidth_by_size(job, selection, pairing, self.by)
        exact = answer if self.by is NcclProperty.BYTES else bandwidth_by_size(job, selection, pairing)
        return answer, _curves_of(exact), link_rate(selected_ranks(job.ranks, selection))

    def show(self, result: Any, same_place: bool) -> None:
        answer, self._curves, self._link = result
        self._is_without_wait = _is_without_wait(answer)
        super().show(answer, same_place)
        self.draw()

    def empty_text(self, answer: Answer) -> str:
        return "no kernel here has a known message size\n" + super().empty_text(answer)

    @property
    def least_height(self) -> int:
        return max(_MIN_HEIGHT, int(self.size.height * _HEIGHT_SHARE))

    def drawn_lines(self, width: int) -> list[str]:
        name = str(self.values().get("collective"))
        return self.bandwidths(name, width, self.least_height) if name in self._curves else []

    def drawing_to_export(self) -> Callable[[], Shapes | None] | None:
        return self.drawing_of(question_named("nccl")) if self._curves else None

    def choices(self) -> tuple[Choice, ...]:
        return (*super().choices(), Choice.among("by", _SIZE_WORDS, self.by, lambda group: self.ask_with(by=group)))


def _is_without_wait(answer: Answer) -> bool:
    return any(column.key == "busbw_without_wait" and column.importance < FILES_ONLY for column in answer.columns)


def _curves_of(exact: TableAnswer) -> dict[str, _Curve]:
    """Return the curves to draw; ``exact`` is `bandwidth_by_size` by exact size."""
    names = dict.fromkeys(map(str, filter(None, exact.cells("collective"))))
    return {name: bandwidth_curve(exact, name) for name in names}


_MARKS = "●○■□▲△◆◇"
_LINK = "┄"


_rate_words = partial(format_value, Unit.RATE)


_GROUPS: tuple[NcclProperty | None, ...] = (
    *(NcclProperty.SIZE, None, NcclProperty.COMMUNICATOR, NcclProperty.STREAM, NcclProperty.RANK),
    *(NcclProperty.STEP, NcclProperty.RANGE, NcclProperty.BACKEND),
)
"""The groupings in addition to the collective."""


class NcclScreen(CollectivesScreen):
    """The summaries of GPU kernels and of CPU calls; only of calls if there are no kernels."""

    PARAMETERS = ("what", "by")
    SCREEN = "nccl"
    PLACES = ("nccl", "table", "everywhere")

    what: What = KERNEL
    _bars: Sequence[SizeBin] = ()
    by: NcclProperty | None = NcclProperty.SIZE
    _has_kernels = True

    def parameters(self) -> tuple[Hashable, ...]:
        return (*super().parameters(), self.app.size.height >= _TALL)

    def ask(self, job: OpenJob, selection: Selection) -> Any:
        """Summarise the kernels or the calls; on a tall terminal, also compute bandwidths by size."""
        groups = (NcclProperty.COLLECTIVE,) if self.by is None else (NcclProperty.COLLECTIVE, self.by)
        pairing = job.pairing_by(groups)
        has_kernels = len(pairing.kernels) > 0
        what: What = self.what if has_kernels else CALL
        answer = nccl_summary(job, selection, pairing, groups, what)
        if not has_kernels and not answer.total:
            has_kernels, what = True, self.what  # no calls either: keep the requested view
        curves = None
        if self.app.size.height >= _TALL:
            sizes = bandwidth_by_size(job, selection, pairing)
            curves = (_curves_of(sizes), link_rate(selected_ranks(job.ranks, selection)), _is_without_wait(sizes))
        return has_kernels, what, answer, size_histogram(pairing, selection), curves

    def show(self, result: Any, same_place: bool) -> None:
        self._has_kernels, self.answered, answer, self._bars, curves = result
        self._curves, self._link, self._is_without_wait = curves or ({}, None, False)
        super().show(answer, same_place)
        self.draw()
        self.log_changed()

    def drawn_lines(self, width: int) -> list[str]:
        """Return the histogram of sizes, and above it the bandwidths if the table leaves room."""
        bars = histogram(self._bars, width)
        free = self.free_lines - len(bars)
        if free < _MIN_CURVES or not any(sizes for sizes, _ in self._curves.values()):
            return bars
        return [*self.bandwidths(str(self.values().get("collective")), width, min(free, _MAX_CURVES)), "", *bars]

    def log_changed(self) -> None:
        note, answer = log_note(self.explorer.nccl_log), self.table.answer
        self.notes.show_notes([*([note] if note else []), *(answer.notes if answer else ())])

    def counted(self) -> str:
        return "rows of kernels" if self.answered == KERNEL else "rows of CPU calls"

    def view_name(self) -> str:
        """Return the view of kernels if they exist and are requested, else calls."""
        return "nccl" if self._has_kernels and self.what == KERNEL else "nccl calls"

    def has_view(self, view: View) -> bool:
        return super().has_view(view) and (self._has_kernels or view.name != "nccl")

    def take_view(self, name: str, **options: str) -> None:
        self.ask_with(what=CALL if name == "nccl calls" else KERNEL, _sort=None)

    def choices(self) -> tuple[Choice, ...]:
        words = {group: group.value if group else "collective" for group in _GROUPS}
        return (*super().choices(), Choice.among("by", words, self.by, lambda group: self.ask_with(by=group)))
