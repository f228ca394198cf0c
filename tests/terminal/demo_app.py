"""A small program for the tests: a table of ten million rows that exist only when asked for, or sixteen lanes.

``python demo_app.py [table|background|chart] [ansi]`` shows it; ``ansi`` keeps to the terminal's own colours.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from dataclasses import dataclass

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.message import Message

from nsystui.base.answer import Record, Row
from nsystui.base.columns import DEVICE, DURATION, NAME, RANK, START, Column, Unit
from nsystui.base.errors import UsageError
from nsystui.ui.widgets.charts import Lane, StripChart
from nsystui.ui.widgets.lines import KeyLine, SelectionLine, TitleLine, progress_bar
from nsystui.ui.widgets.prompt import LinePrompt
from nsystui.ui.widgets.repainting import ThrottledScreen
from nsystui.ui.widgets.window_table import WindowTable

KERNELS = (
    ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "compute"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)", "compute"),
    ("[CUDA memcpy Device-to-Device]", "memory"),
    ("std::string f[abi:cxx11](int) <[/foo]>\x1b]0;title\x07", "graph"),
)

COLUMNS = (
    START,
    DURATION,
    Column("queue", header="Queue (ns)", label="queue", unit=Unit.DURATION, importance=1),
    RANK.with_importance(2),
    DEVICE.with_importance(4),
    Column("stream", header="Stream", label="strm", unit=Unit.NUMBER, importance=5),
    Column("share", header="Share (%)", label="share", unit=Unit.PERCENT, importance=3),
    NAME,
)


@dataclass(frozen=True)
class SyntheticAnswer:
    """``rows`` kernels computed from their number; ``delay`` seconds for a page, as a slow disk would take."""

    rows: int = 10_000_000
    delay: float = 0.0
    descending: bool = False
    name: str = "synthetic"
    columns: tuple[Column, ...] = COLUMNS
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int | None:
        return self.rows

    def __len__(self) -> int:
        return self.rows

    def page(self, offset: int, limit: int) -> list[Row]:
        time.sleep(self.delay)
        numbers = range(offset, min(offset + limit, self.rows))
        return [self._row(self.rows - 1 - number if self.descending else number) for number in numbers]

    def sorted_by(self, key: str, descending: bool) -> SyntheticAnswer:
        return SyntheticAnswer(self.rows, self.delay, descending)

    def _row(self, number: int) -> Row:
        duration = 10 ** (number % 7) * 731 // 100 + number % 999
        queue = None if number % 11 == 0 else 18_000 + number % 5_000
        share = duration / 1e6 % 100
        return (number * 41_237, duration, queue, number % 64, number % 8, 7, share, KERNELS[number % len(KERNELS)][0])


def category(values: Record) -> str | None:
    return dict(KERNELS).get(str(values["name"]))


def lanes(count: int, width: int) -> list[Lane]:
    """Waves, each a little later than the one above, with a gap in which nothing was recorded."""
    kinds = ("compute", "nccl", "memory", "graph", None)
    result = []
    for number in range(count):
        bins = [0.5 + 0.5 * math.sin(column / 5 - number / 2) for column in range(width)]
        gap = width // 2 + number
        bins[gap : gap + 3] = [math.nan] * 3
        mean = sum(value for value in bins if value == value) / width
        result.append(Lane(f"rank {number}", bins, f"{mean * 100:.0f} %", kinds[number % len(kinds)]))
    return result


class SizedChart(StripChart):
    """A chart that has as many bins as columns."""

    def __init__(self, lane_count: int) -> None:
        super().__init__()
        self.wanted = lane_count

    def on_resize(self) -> None:
        self.call_later(self.fill)

    def fill(self) -> None:
        self.set_lanes(lanes(self.wanted, self.chart_width), 6_000_000_000, 7_000_000_000)


class DemoApp(App[None]):
    """``s`` sorts by the next column, ``/`` asks for a word, ``w`` works for a while, ``q`` quits."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [
        Binding("s", "sort"),
        Binding("slash", "find"),
        Binding("w", "work"),
        Binding("q", "quit"),
    ]
    TABS = (
        ("1", "Overview", "Ovw"),
        ("2", "Kernels", "Krn"),
        ("3", "NCCL", "NCCL"),
        ("4", "GPU", "GPU"),
        ("5", "NVTX", "NVTX"),
        ("6", "Events", "Evt"),
        ("7", "Ranks", "Rnk"),
    )
    KEYS = (
        ("⏎", "event"),
        ("c", "API call"),
        ("/", "find"),
        ("s S", "sort"),
        ("t", "time window"),
        ("e", "export"),
        ("y", "copy"),
        ("?", "help"),
        ("esc", "back"),
        ("q", "quit"),
    )

    def __init__(self, show: str = "table", *options: str, rows: int = 10_000_000, lane_count: int = 16) -> None:
        super().__init__(ansi_color="ansi" in options or None)
        self.show = show
        self.rows = rows
        self.lane_count = lane_count
        self.animation_level = "none"
        if "ansi" in options:
            self.theme = "ansi-dark"
        self.heard: list[Message] = []

    def get_default_screen(self) -> ThrottledScreen[None]:
        return ThrottledScreen(id="_default")

    def compose(self) -> ComposeResult:
        yield TitleLine(self.TABS, "2")
        yield SelectionLine()
        if self.show == "chart":
            yield SizedChart(self.lane_count)
        else:
            slow = self.show == "background"
            answer = SyntheticAnswer(self.rows, 0.05 if slow else 0.0)
            yield WindowTable(answer, row_style=category, background=slow, empty_text="Nothing here.")
        yield LinePrompt()
        yield KeyLine(self.KEYS)

    def on_mount(self) -> None:
        self.query_one(TitleLine).update("llama-70b")
        self.query_one(SelectionLine).update("ranks 0-63 · 6.0–7.0 s")

    def action_sort(self) -> None:
        self.query_one(WindowTable).sort_next_column()

    def action_find(self) -> None:
        def parse(text: str) -> str:
            if not text:
                raise UsageError("Type a word to find.")
            return text

        key_line = self.query_one(KeyLine)
        self.query_one(LinePrompt).ask("/", "", parse, lambda text: key_line.say(f"filter: {text}"))

    async def action_work(self) -> None:
        """Report progress far more often than anyone can read."""

        async def report() -> None:
            for percent in range(101):
                self.query_one(TitleLine).set_status("loading " + progress_bar(percent / 100))
                await asyncio.sleep(0.02)
            self.query_one(TitleLine).set_status("")

        self.run_worker(report())

    def on_window_table_sort_requested(self, message: WindowTable.SortRequested) -> None:
        answer = message.table.answer
        assert answer is not None
        message.table.set_answer(answer.sorted_by(message.key, message.descending))
        message.table.mark_sorted(message.key, message.descending)


if __name__ == "__main__":
    DemoApp(*sys.argv[1:]).run(mouse=False)
