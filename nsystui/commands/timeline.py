"""``nsystui timeline``: the lanes of the job as text, or as a table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nsystui.base import terminal
from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared

if TYPE_CHECKING:
    from nsystui.base.selection import Window
    from nsystui.questions.timeline.lanes import Timeline
    from nsystui.questions.timeline.picture import LanePicture

DESCRIPTION = """The timeline as text: a lane for each GPU of each rank, with --all-lanes also for each stream and
NVTX thread. In each column stands what took most of it: K compute (kernels but NCCL's), N NCCL, M memory operations,
G whole CUDA graphs; a small letter where it was busy for less than half of the time, nothing where it was idle, ·
where nothing was recorded. Names stand where an event is wide enough. With --format (or -o, --sort, --top) it is a
table, one row for each lane and column."""
EXAMPLES = """  nsystui timeline rank*.sqlite
  nsystui timeline rank0.sqlite --all-lanes --time 1.2s:1.21s --width 160
  nsystui timeline rank*.sqlite --time 1s:2s --width 1000 --format csv -o lanes.csv"""

_LABEL, _VALUE, _LEAST = 20, 8, 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    shared.add_selection(parser)
    shared.add_format(parser)
    parser.add_argument("--all-lanes", action="store_true", help="a lane for each stream and NVTX thread, too")
    parser.add_argument(
        "--width", type=int, metavar="N", help="width of the drawing, or columns of the table (default: the terminal's)"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.width is not None and not 1 <= arguments.width <= 1_000_000:
        raise UsageError(f"--width {arguments.width}: from 1 to 1000000")
    job = shared.open_job(arguments, times=True)
    try:
        from nsystui.questions.timeline.lanes import Timeline

        selection = shared.selection_of(arguments, job)
        timeline = Timeline.of(job, selection)
        is_table = arguments.format or arguments.sort or arguments.top is not None or shared.to_file(arguments)
        width = arguments.width or terminal.text_width(120)
        count = max(width - _LABEL - _VALUE, _LEAST) if not is_table else width
        pictures = _pictures(timeline, job.extent(selection), count, arguments.all_lanes)
        if is_table or not pictures:
            from nsystui.questions.timeline.picture import timeline_table

            return shared.deliver(arguments, timeline_table(pictures, timeline.busy.notes))
        _draw(pictures)
        for note in timeline.busy.notes:
            shared.complain(f"note: {note}")
        return 0
    finally:
        job.close()


def _pictures(timeline: Timeline, window: Window, count: int, streams: bool) -> list[LanePicture]:
    from nsystui.questions.timeline.picture import lane_pictures

    opened = frozenset(item.task for item in timeline.tasks) if streams else frozenset()
    lanes, _ = timeline.lanes(opened)
    return lane_pictures(timeline, lanes, window, count)


def _draw(pictures: list[LanePicture]) -> None:
    from nsystui.base.columns import Unit
    from nsystui.base.text import fit, safe_text
    from nsystui.base.units import format_value
    from nsystui.output.stdout import print_lines
    from nsystui.questions.timeline.picture import LEGEND, lane_label, lane_text

    window = pictures[0].columns.window
    start, length = format_value(Unit.TIME, window.start), format_value(Unit.DURATION, window.end - window.start)
    column = format_value(Unit.DURATION, (window.end - window.start) / len(pictures[0].columns.busy))
    lines = [f"{start} + {length}, a column is {column}; {LEGEND}"]
    for picture in pictures:
        busy = "–" if picture.busy is None else format_value(Unit.PERCENT, 100 * picture.busy)
        label = fit(safe_text(lane_label(picture.lane).strip()), _LABEL - 1)
        lines.append(f"{label} {lane_text(picture).text}{busy.rjust(_VALUE)}")
    print_lines(lines)
