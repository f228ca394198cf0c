"""Views of a Paraver trace (``.cfg``): timelines and histograms of what is in it.

Written as BSC's reader (paraver-kernel) takes them, version 3.4: displaying windows, each a function of the records of
a row, and analyzers, which are histograms of a window.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsystui.base.text import safe_text
from nsystui.output.paraver import STATE_OF
from nsystui.output.paraver_types import NCCL_TYPES, STATES, EventTypes
from nsystui.questions.events.kinds import EventKind

VIEWS = ("states", "nvtx", "nccl", "metrics", "durations", "useful")
"""The views; the file of one is ``job.states.cfg``."""

_RULE = "#" * 80
_LEVELS = ("cpu", "appl", "task", "thread", "node", "system", "workload")
_FILTERS = (
    "from_obj, All",
    "to_obj, All",
    "tag_msg, All",
    "size_msg, All",
    "bw_msg, All",
    "evt_type, =",
    "evt_value, All",
)
_COMPOSED = (*(f"compose_{level}" for level in _LEVELS), "topcompose1", "topcompose2")
_MOST = f"{sys.float_info.max:.12f}"

Window = tuple[str, str, Sequence[str]]
"""A window: its name, its function of the records of a thread, and the lines that say of which records."""


def view_texts(types: EventTypes) -> dict[str, str]:
    """The text of each view (`files.VIEWS`) that has something to show."""
    kinds = {kind for kind, *_ in types.events}
    states = sorted({state for kind, state in STATE_OF.items() if kind in kinds})
    nvtx = {number for (kind, *_), (number, _) in types.events.items() if kind == EventKind.NVTX.value}
    values = {
        "nvtx": sorted(nvtx.difference(NCCL_TYPES)),
        "nccl": [number for number in NCCL_TYPES if number in types.labels],
        "metrics": sorted(types.metrics.values()),
    }
    found = {
        name: _file([_value(types.labels[number], number) for number in numbers])
        for name, numbers in values.items()
        if numbers
    }
    if states:
        timeline: Window = ("Timeline by state", "State As Is", ())
        found["states"] = _file([timeline])
        found["useful"] = _file([timeline], [("Useful time: time in each state", "Time", max(STATES) + 1)])
        found["durations"] = _file(
            [_duration(state) for state in states],
            [(f"Durations: {STATES[state][0]}", "# Bursts", None) for state in states],
        )
    return found


def _value(label: str, number: int) -> Window:
    """The value that a type of event has at each time."""
    name = safe_text(label).replace('"', "'") or "(no name)"
    lines = (f"window_filter_module evt_type 1 {number}", f'window_filter_module evt_type_label 1 "{name}"')
    return name, "Last Evt Val", lines


def _duration(state: int) -> Window:
    """How long each record of a state lasts."""
    function = "State Record Dur."
    return (
        f"Duration: {STATES[state][0]}",
        function,
        (f"window_semantic_module thread {function} {{ 1, {{ 1 {state}.000000000000 }} }}",),
    )


def _file(windows: Sequence[Window], histograms: Sequence[tuple[str, str, int | None]] = ()) -> str:
    """The file: its windows, of which histograms hide theirs, and of several without one the first is open.

    A histogram is of the window of its place: its name, its statistic, and how many columns of width 1 it has, or
    ``None`` where Paraver chooses them.
    """
    parts = [f"#ParaverCFG\nConfigFile.Version: 3.4\nConfigFile.NumWindows: {len(windows)}\n\n"]
    for number, window in enumerate(windows, 1):
        parts.append(_window_text(number, window, is_open=number == 1 and not histograms))
    for number, (name, statistic, columns) in enumerate(histograms, 1):
        parts.append(_histogram_text(number, name, statistic, columns))
    return "".join(parts)


def _window_text(number: int, window: Window, is_open: bool) -> str:
    name, function, lines = window
    functions = dict.fromkeys(_LEVELS, "Adding") | {"cpu": "Active Thd", "thread": function}
    selected = [f"{level}, {chosen}" for level, chosen in functions.items()] + list(_FILTERS)
    return f"""
{_RULE}
< NEW DISPLAYING WINDOW {name} >
{_RULE}
window_name {name}
window_type single
window_id {number}
window_position_x 100
window_position_y 100
window_width 600
window_height 150
window_comm_lines_enabled false
window_flags_enabled false
window_noncolor_mode true
window_color_mode {"window_in_code_mode" if function != "State Record Dur." else "window_in_null_gradient_mode"}
window_logical_filtered true
window_physical_filtered false
window_comm_fromto true
window_comm_tagsize true
window_comm_typeval true
window_units Microseconds
window_maximum_y 100.0
window_minimum_y 0.0
window_compute_y_max true
window_level thread
window_scale_relative 1.000000000000
window_end_time_relative 1.000000000000
window_object appl {{ 1, {{ All }} }}
window_begin_time_relative 0.000000000000
window_open {"true" if is_open else "false"}
window_drawmode draw_maximum
window_drawmode_rows draw_maximum
window_pixel_size 1
window_labels_to_draw 1
window_selected_functions {_braced(selected)}
window_compose_functions {_braced([f"{level}, As Is" for level in _COMPOSED])}
""" + "".join(f"{line}\n" for line in lines)


def _braced(items: Sequence[str]) -> str:
    return f"{{ {len(items)}, {{ {', '.join(f'{{{item}}}' for item in items)} }} }}"


def _histogram_text(window: int, name: str, statistic: str, columns: int | None) -> str:
    return f"""
< NEW ANALYZER2D >
Analyzer2D.Name: {name}
Analyzer2D.X: 150
Analyzer2D.Y: 150
Analyzer2D.Width: 600
Analyzer2D.Height: 300
Analyzer2D.ControlWindow: {window}
Analyzer2D.DataWindow: {window}
Analyzer2D.Accumulator: Semantic
Analyzer2D.Statistic: {statistic}
Analyzer2D.CalculateAll: True
Analyzer2D.HideCols: False
Analyzer2D.HorizVert: Horizontal
Analyzer2D.Color: True
Analyzer2D.SemanticColor: False
Analyzer2D.Zoom: Enabled
Analyzer2D.SortCols: False
Analyzer2D.SortCriteria: Average
Analyzer2D.Parameters: 4 -{_MOST} {_MOST} -{_MOST} {_MOST}
Analyzer2D.AnalysisLimits: Alltrace
Analyzer2D.ComputeYScale: {"True" if columns is None else "False"}
Analyzer2D.Minimum: 0.000000000000
Analyzer2D.Maximum: {columns or 1}.000000000000
Analyzer2D.Delta: 1.000000000000
Analyzer2D.ComputeGradient: True
Analyzer2D.MinimumGradient: 0.000000000000
Analyzer2D.MaximumGradient: 1.000000000000
Analyzer2D.PixelSize: 1
Analyzer2D.ColorMode: window_in_null_gradient_mode
Analyzer2D.ShowOnlyTotals: False
Analyzer2D.ShortHeaderLabels: False
"""
