"""All keys in one table, the source of bindings, key lines, help and ``docs/keys.md`` (``tests/update_docs.py``).

A place is a screen or a family of screens; a key means the same wherever it acts.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from nsystui.questions.queries.question import SCREENS


@dataclass(frozen=True)
class KeyBinding:
    """Keys with one effect. ``keys`` are Textual's names, ``shown`` is the name on the screen.

    The key line omits keys without a ``label``. The help omits keys without ``help``: the second key of a pair, or a
    key that disables a general key.
    """

    keys: str
    shown: str
    action: str
    label: str
    help: str
    place_name: str


PLACES = {
    "everywhere": "Everywhere", "table": "In tables", "overview": "1 Overview", "finding": "1 Overview, a finding",
    "diff": "Comparison", "diff alone": "Comparison of two jobs", "kernels": "2 Kernels",
    "kernel names": "2 Kernels, kernels", "rows opened": "A row opened: its launches or calls",
    "launches": "2 Kernels, one row opened", "nccl": "3 NCCL", "nccl sizes": "3 NCCL by size", "nccl log": "NCCL log",
    "nccl log alone": "NCCL log without exports", "gpu": "4 GPU", "efficiency": "4 GPU, efficiency",
    "gpu memory": "4 GPU, memory", "nvtx": "5 NVTX", "nvtx names": "5 NVTX by name", "events": "6 Events",
    "ranks": "7 Ranks", "rank map": "4 GPU, the map of ranks", "host": "8 Host", "call tree": "8 Host, the call tree",
    "steps": "9 Steps", "timeline": "L Timeline", "recipe": "A recipe, from the palette",
    "recipe map": "A recipe's map",
}  # fmt: skip
"""The places in the order of the help, with their titles."""

TOPICS = {
    **dict.fromkeys(("overview", "finding"), "triage"),
    **dict.fromkeys(("kernels", "kernel names", "rows opened", "launches", "gpu", "efficiency"), "numbers"),
    **dict.fromkeys(("gpu memory", "nvtx", "nvtx names", "host", "call tree"), "numbers"),
    **dict.fromkeys(("nccl", "nccl sizes", "nccl log"), "nccl"),
    **dict.fromkeys(("ranks", "rank map"), "ranks"),
    **dict.fromkeys(("recipe", "recipe map"), "recipes"),
    "diff": "compare",
    "steps": "path",
}
"""The topic of the documentation that explains a place; the default is ``screens``."""

_KEYS: Mapping[str, tuple[tuple[str, str, str, str, str], ...]] = {
    "overview": (
        ("enter", "⏎", "", "open", "a finding's page; a rank's kernels; a kernel's launches"),
        ("tab", "tab", "other_table", "table", "the next table, which e then exports"),
        ("W", "W", "behind('diagnostics')", "capture log", "what nsys recorded of its capture, such as lost events"),
        ("S", "S", "leave_startup_out", "skip start-up", "leave start-up out: select the steady state"),
        ("i", "i", "behind('contents')", "what was recorded", "what the exports hold, and what to record for the rest"),
        ("exclamation_mark", "!", "check", "", "check the rules; a huge job is checked only on request"),
        ("p", "p", "printed", "program output", "the program's output, next to the steps"),
        ("F", "F", "behind('files')", "files", "every file: how much of it is read, or why it is left out"),
        ("x", "x", "compare", "compare", "compare two ranks: x on each; elsewhere the straggler"),
    ),
    "finding": (
        ("enter", "⏎", "show_finding", "show", "go to the screen that shows this finding, at its time"),
        ("right_square_bracket", "[ ]", "next_finding(1)", "next", "previous and next finding"),
        ("left_square_bracket", "[", "next_finding(-1)", "", ""),
    ),
    "diff": (
        ("enter", "⏎", "", "open", "from the summary to a table; this name on its own screen, in A or in B"),
        ("x", "x", "swap", "swap", "swap A and B"),
        ("tab", "tab", "choose('view', 1)", "", ""),
        ("shift+tab", "shift+tab", "choose('view', -1)", "", ""),
        ("number_sign", "#", "fold", "unfold numbers", "numbered names (layer 0, layer 1 …): steps folded, none, all"),
        ("slash", "/", "filter", "filter", "rows with these words: text, !text, /regex/; empty for all"),
        ("escape", "esc", "back", "back", "undo the last step: the filter, then the comparison"),
        # The selection here is A and B.
        *((key, key, "selection", "", "") for key in "trDTU"),
        ("f", "f", "filter", "", ""),
    ),
    "kernels": (
        ("enter", "⏎", "", "open", "the launches of this kernel, the calls of this name; then the event"),
        ("M", "M", "metrics('kernel')", "", "GPU metrics; the mean of each over these kernels"),
    ),
    "kernel names": (("u", "u", "ncu", "ncu", "the ncu command that profiles this kernel, shown and copied"),),
    "rows opened": (
        ("enter", "⏎", "", "event", "the event"),
        ("c", "c", "partner", "partner", "from an API call to its GPU work, from GPU work to its API call"),
    ),
    "launches": (("u", "u", "ncu", "ncu", "the ncu command that profiles this launch, shown and copied"),),
    "nccl": (
        ("enter", "⏎", "", "calls", "the single kernels or calls of this row; then the event"),
        ("M", "M", "metrics('collective')", "", "GPU metrics; the mean of each over these collectives"),
    ),
    "nccl sizes": (("enter", "⏎", "", "kernels", "the single kernels of this size; then the event"),),
    "nccl log": (
        ("enter", "⏎", "", "open", "the calls of this op; the ranks of this communicator or host"),
        ("tab", "tab", "choose('by', 1)", "", ""),
        ("shift+tab", "shift+tab", "choose('by', -1)", "", ""),
        ("slash", "/", "filter", "filter", "rows with these words: text, !text, /regex/; empty for all"),
        ("escape", "esc", "back", "back", "undo the last step; stops the reading"),
        ("R", "R", "resume", "", "read the log again after a stop, or when it has grown"),
        # The selection concerns exports: a log has no times, and its ranks are not the ranks of the exports.
        *((key, key, "selection", "", "") for key in "trDTU"),
        ("f", "f", "filter", "", ""),
    ),
    "nccl log alone": (*((key, key, "", "", "") for key in "123456789L"),),
    "gpu": (
        ("plus,equals_sign", "+", "zoom(1)", "zoom in", "zoom in around the cursor"),
        ("minus", "-", "zoom(-1)", "out", "zoom out"),
        ("left_square_bracket", "[ ]", "pan(-1)", "pan", "move the view by half of its width"),
        ("right_square_bracket", "]", "pan(1)", "", ""),
        ("m", "m", "mark", "mark", "mark where a span begins, then where it ends; again to take the mark away"),
        ("enter", "⏎", "", "select", "select the marked span (or the cursor's column) for every screen"),
        ("M", "M", "pick('Metrics')", "metrics", "which GPU metrics have lanes, or the network"),
        ("o", "o", "only_rank", "only this", "select the rank of this lane for every screen"),
        ("t", "t", "take_window", "", "the same as ⏎, as in tables: select this time"),
        ("0", "0", "whole", "reset zoom", "reset the zoom: all of the selection is in view"),
        ("left,right", "← →", "", "", "move along time, as h and l do; < and > (or shift) by ten columns"),
    ),
    "efficiency": (
        ("enter", "⏎", "", "open", "the screen that explains this factor; this rank and its GPU"),
        ("O", "O", "useful", "useful", "what counts as useful: kernels that do not communicate (pop), or all (talp)"),
    ),
    "gpu memory": (("enter", "⏎", "", "at peak", "the allocations that were in use at the peak of this row"),),
    "nvtx": (
        ("right,l", "→", "expand", "", "open a range; l too"),
        ("left,h", "←", "collapse", "", "close a range, or go to the one around it; h too"),
        ("enter", "⏎", "", "open", "open and close; on a single range with nothing inside, its event"),
        ("c", "c", "partner", "GPU work", "from a range to the GPU work launched or captured in it"),
        ("number_sign", "#", "fold", "by module", "layers apart; then modules of all layers; then each name"),
        ("n", "n N", "match(1)", "", "next and previous match of the filter"),
        ("N", "N", "match(-1)", "", ""),
        ("w", "w", "nvtx_range", "", ""),
        ("M", "M", "metrics('range')", "", "GPU metrics; the mean of each over these ranges"),
    ),
    "call tree": (
        ("right,l", "→", "expand", "", "open a function; l too"),
        ("left,h", "←", "collapse", "", "close a function, or go to the one above it; h too"),
        ("enter", "⏎", "", "open", "open and close"),
        ("P", "P", "callers", "callers", "the parents: who calls this function, wherever it is called"),
    ),
    "host": (
        ("enter", "⏎", "", "open", "a thread's functions, a function's callers; a cause's gaps, then the timeline"),
    ),
    "nvtx names": (
        ("enter", "⏎", "", "open", "the single ranges of this name; then the event"),
        ("M", "M", "metrics('range')", "", "GPU metrics; the mean of each over these ranges"),
    ),
    "events": (
        ("c", "c", "partner", "partner", "from an API call to its GPU work, from GPU work to its API call"),
        ("left_square_bracket", "[ ]", "same_kind(-1)", "same kind", "previous and next event of the same kind"),
        ("right_square_bracket", "]", "same_kind(1)", "", ""),
        ("slash", "/", "search", "search", "search for a name"),
        ("n", "n N", "match(1)", "", "next and previous match of the search"),
        ("N", "N", "match(-1)", "", ""),
        ("colon", ":", "go_to", "go to", "go to a time, such as 1.25s"),
        ("K", "K", "kinds", "kinds", "which kinds of events are listed"),
        ("u", "u", "ncu", "ncu", "the ncu command that profiles this kernel launch, shown and copied"),
        ("E", "E", "trace", "trace", "write a trace of the selection: .json.gz (Perfetto), .prv (Paraver)"),
    ),
    "ranks": (
        ("enter", "⏎", "", "open", "select this rank or moment, and show it"),
        ("x", "x", "compare", "compare", "compare two ranks: x on each; elsewhere the straggler"),
        ("C", "C", "clock", "clock", "the common clock: refined by collectives, UTC alone, none"),
    ),
    "steps": (
        ("enter", "⏎", "", "open", "select this step for every screen; the event of a piece of the path"),
        ("O", "O", "anchor", "steps by", "how steps are found: as by default, or by another anchor that finds some"),
        ("M", "M", "metrics('step')", "", "GPU metrics; the mean of each over these steps"),
    ),
    "rank map": (
        ("enter", "⏎", "", "open", "a line for each rank of this line; on the line of one rank: select this time"),
        ("t", "t", "take_window", "time", "select the time (or step) of this column for every screen"),
    ),
    "timeline": (
        ("right_square_bracket", "[ ]", "event(1)", "event", "previous and next event on the lane"),
        ("left_square_bracket", "[", "event(-1)", "", ""),
        ("plus,equals_sign,z", "+ -", "zoom(1)", "zoom", "zoom in and out around the cursor; z and Z"),
        ("minus,Z", "-", "zoom(-1)", "", ""),
        ("slash", "/", "search", "search", "search events of all ranks by name: text, !text, /regex/; empty for none"),
        ("space", "space", "open_rank", "streams", "show or hide the streams and threads of a rank"),
        ("I", "I", "path", "path", "the critical path of the step under the cursor, on a lane; again to take it away"),
        ("tab", "tab", "next_rank(1)", "rank", "close this rank, and open the next; shift+tab the previous one"),
        ("shift+tab", "shift+tab", "next_rank(-1)", "", ""),
        ("enter", "⏎", "open_event", "event", "the event; on a CPU lane the call tree; on a closed rank its streams"),
        ("n", "n N", "match(1)", "match", "next and previous match, on any lane; on a CPU lane, on that lane"),
        ("N", "N", "match(-1)", "", ""),
        ("c", "c", "partner", "partner", "from GPU work to the call that launched it, and back"),
        ("m", "m", "mark", "mark", "mark this time, to measure from; again to take the mark away"),
        ("t", "t", "take_window", "time", "select the time in view, or from the mark to the cursor"),
        ("less_than_sign,ctrl+left", "< >", "pan(-1)", "pan", "move the view by half of its width; ctrl+← →"),
        ("greater_than_sign,ctrl+right", ">", "pan(1)", "", ""),
        ("0", "0", "whole", "reset zoom", "reset the zoom: all of the selection is in view"),
        ("colon", ":", "go_to", "go to", "go to a time, such as 1.25s"),
        ("o", "o", "only_rank", "only this", "select the rank of this lane for every screen"),
        ("u", "u", "ncu", "ncu", "the ncu command that profiles the kernel under the cursor, shown and copied"),
        ("E", "E", "trace", "trace", "write a trace of the selection: .json.gz (Perfetto), .prv (Paraver)"),
        ("left,h", "← →", "move(-1)", "", "move the cursor along time; h and l too, with shift by ten columns"),
        ("right,l", "→", "move(1)", "", ""),
        ("shift+left", "shift+←", "move(-10)", "", ""),
        ("shift+right", "shift+→", "move(10)", "", ""),
        ("home,g", "home", "move(-1000000)", "", ""),
        ("end,G", "end", "move(1000000)", "", ""),
        ("up,k", "↑ ↓", "lane(-1)", "", "the lane above or below; k and j too, PgUp and PgDn by a page"),
        ("down,j", "↓", "lane(1)", "", ""),
        ("pageup,ctrl+b", "pgup", "page(-1)", "", ""),
        ("pagedown,ctrl+f", "pgdn", "page(1)", "", ""),
    ),
    "recipe": (("enter", "⏎", "", "open", "the launches, calls or ranges of this name"),),
    "recipe map": (
        ("t", "t", "take_window", "time", "select the time of this column for every screen; ⏎ too"),
        ("left,right", "← →", "", "", "move along time, as h and l do; < and > by ten columns"),
    ),
    "table": (
        ("slash", "/", "filter", "filter", "filter by name: text, !text, /regex/; empty for all"),
        ("t", "t", "take_window", "this time", "select the time of this row"),
        ("s", "s", "sort", "sort", "sort by the column whose marked letter follows; the same again reverses, s: next"),
        ("up,down", "↑ ↓", "", "", "move, as k and j do; PgUp and PgDn by a page, g and G to the ends"),
    ),
    "everywhere": (
        ("v", "v V", "pick('view')", "", "the views of this tab, to choose one; V: the previous view"),
        ("V", "V", "choose('view', -1)", "", ""),
        ("b", "b B", "pick('by')", "", "the groupings of the rows, to choose one; B: the previous grouping"),
        ("B", "B", "choose('by', -1)", "", ""),
        ("a", "a A", "pick('as')", "", "how rows are shown: smart or full names; all ranks, or their mean"),
        ("A", "A", "choose('as', -1)", "", ""),
        ("f", "f", "filter", "", "filter by name, on every screen"),
        ("r", "r", "ranks", "ranks", "select ranks, such as 0,4-7; empty for all"),
        ("D", "D", "devices", "", "select devices by CUDA number; empty for all"),
        ("T", "T", "window", "", "type a time to select, such as 1.2s:1.5s; empty for all"),
        ("U", "U", "clear", "", "clear the selection: all ranks, devices, names and times"),
        ("e", "e", "export", "export", "write what is shown to a file: .csv .json .md .parquet .txt, drawings as .svg"),
        ("y", "y", "copy_row", "", "copy the row to the terminal's clipboard (OSC 52)"),
        ("escape", "esc", "back", "back", "undo the last step: a jump or a selection; stops loading"),
        ("R", "R", "resume", "", "resume loading"),
        ("1", "1", "mode('overview')", "", "Overview; each of these keys again: the tab's first view"),
        ("2", "2", "mode('kernels')", "", "Kernels"),
        ("3", "3", "mode('nccl')", "", "NCCL"),
        ("4", "4", "mode('gpu')", "", "GPU utilisation"),
        ("5", "5", "mode('nvtx')", "", "NVTX tree"),
        ("6", "6", "mode('events')", "", "Events"),
        ("7", "7", "mode('ranks')", "", "Ranks"),
        ("8", "8", "mode('host')", "", "Host"),
        ("9", "9", "mode('steps')", "", "Steps"),
        ("L", "L", "timeline", "", "Timeline"),
        ("w", "w", "nvtx_range", "", "innermost range; from an event, the deepest NVTX range around it"),
        ("ctrl+p", "ctrl+p", "palette", "all commands", "commands, views, recipes, kernels and findings by name"),
        ("question_mark", "?", "help", "help", "the keys of this place"),
        ("ctrl+z", "ctrl+z", "", "", "suspend the program until fg"),
        ("q,ctrl+c,ctrl+q", "q", "quit", "quit", "quit"),
    ),
}
"""The fields of each place's keys; a single place's keys are first, for narrow key lines."""
KEYS = tuple(KeyBinding(*fields, place_name) for place_name, rows in _KEYS.items() for fields in rows)

# Maximum number of waiting keys and mouse events; further events are dropped.
TYPED_AHEAD = 512

MOVES = frozenset("hjklgG") | {"up", "down", "left", "right", "pageup", "pagedown", "home", "end"}
"""Keys that move the cursor."""
ON_ROWS = MOVES | frozenset("tcwueEmnNosxy") | {"enter", "space"}
"""Keys that act on rows or the cursor, and wait for an answer."""
SEARCHES = frozenset({"n", "N", "left_square_bracket", "right_square_bracket"})
"""Keys that search, and wait for the search before."""

_TAB_KEYS = "123456789L"
_SHORT = ("Ovw", "Krn", "NCCL", "GPU", "NVTX", "Evt", "Rnk", "Hst", "Stp", "Time")

TABS = tuple(zip(_TAB_KEYS, SCREENS.values(), _SHORT, strict=True))
"""The key, title, and short title (for narrow terminals) of each tab."""

MODE_OF = dict(zip(_TAB_KEYS, SCREENS, strict=True))
"""The mode of the application behind a key."""


def with_key(screen: str) -> str:
    """Return a screen's key and title, such as ``4 GPU``, by its title."""
    return next(f"{key} {title}" for key, title, _ in TABS if title == screen)


def textual_key(shown: str) -> str:
    """Return Textual's first name for a key line's name."""
    return next((key.keys.partition(",")[0] for key in KEYS if key.shown == shown), shown)


def shown_key(name: str) -> str:
    """Return the key line's name for Textual's; for a pair such as ``[ ]``, only the first key."""
    shown = [key.shown for key in KEYS if key.keys.split(",")[0] == name]
    return min(shown, key=len, default=name).split()[0]


def keys_of(places: Iterable[str]) -> list[KeyBinding]:
    """Return the keys of ``places``, most specific first; a key counts only for its most specific place."""
    selected: list[KeyBinding] = []
    taken: set[str] = set()
    for name in places:
        selected += [key for key in KEYS if key.place_name == name and not taken.issuperset(key.keys.split(","))]
        taken |= {spelling for key in selected for spelling in key.keys.split(",")}
    return selected


def bindings(*places: str) -> list[BindingType]:
    """Return Textual bindings for ``places``, most specific first; a key without an action has no binding."""
    return [
        Binding(key.keys, key.action, key.label or key.help, show=False, priority="ctrl+" in key.keys)
        for key in keys_of(places)
        if key.action
    ]


def key_line(*places: str) -> list[tuple[str, str]]:
    """Return the keys of a screen's bottom line, with their labels."""
    return [(key.shown, key.label) for key in keys_of(places) if key.label]


@dataclass(frozen=True)
class Word:
    """A heading or label, its definition, and the places (in `PLACES`) that use it."""

    name: str
    definition: str
    places: tuple[str, ...]


_UTILISATION = ("overview", "gpu", "ranks", "rank map", "timeline")
_RANKS = ("ranks", "finding")

WORDS: tuple[Word, ...] = (
    Word("%", "of the selected time, or if none is selected, of the job from its first event to its last, for every "
         "rank; Efficiency: of the time that every selected report recorded",
         ("overview", "gpu", "efficiency", "ranks", "diff")),
    Word("busy", "union of kernels, memory operations and whole CUDA graphs", _UTILISATION),
    Word("compute", "union of the kernels that do not communicate", (*_UTILISATION, "diff")),
    Word("NCCL", "union of the NCCL kernels", _UTILISATION),
    Word("exposed", "NCCL that no compute hides: of a GPU a union, of a collective the sum over its kernels",
         ("overview", "nccl", "gpu", "ranks", "rank map", "diff")),
    Word("memory", "union of copies and memsets", _UTILISATION),
    Word("idle", "the rest: nothing ran, or nothing was recorded", ("overview", "gpu", "ranks")),
    Word("kernels", "how many were launched, NCCL's among them", ("overview", "ranks")),
    Word("all kernels", "union of compute and NCCL", ("recipe map",)),
    Word("in use %", "share of busy time, from a GPU's first operation to its last", ("recipe",)),
    Word("alone", "compute, NCCL, memory operations or whole CUDA graphs while none of the others runs",
         ("efficiency",)),
    Word("compute and NCCL", "two of compute, NCCL and memory operations at the same time", ("efficiency",)),
    Word("busbw, no waiting", "bus bandwidth without waiting: bytes over the kernel time of the last rank to arrive; "
         "known where all ranks of the communicator are open", ("nccl",)),
    Word("family", "what a kernel does, by its name: GEMM, attention …; `nsystui help numbers`", ("kernels",)),
    Word("precision", "data type of a kernel's inputs, from its name; TF32 is FP32 on tensor cores", ("kernels",)),
    Word("time %", "share of the time of all kernels, of all memory operations or of all calls", ("kernels", "nccl")),
    Word("self", "time in which no nested range runs (DurNonChild); only push/pop ranges have it: start/end ranges may "
         "overlap anything and are listed outside of the tree", ("nvtx",)),
    Word("GPU total", "from first to last GPU operation launched in a range, summed over the ranges", ("nvtx",)),
    Word("part", "model part: ranks that run the same kernels; `nsystui help ranks`", ("ranks",)),
    Word("late", "how often a rank was the last at a collective", _RANKS),
    Word("late by", "its delay after the first rank when it is last (median)", ("ranks",)),
    Word("wait caused", "how long a typical other rank waited for it, summed, hidden by compute or not", _RANKS),
    Word("total wait", "the time that a rank waited at collectives for the last one, summed", ("ranks",)),
    Word("waiting", "by kind of collective: total wait, mean over the ranks; waiting of all: their sum", ("ranks",)),
    Word("exposed wait", "the part of waiting for a late rank that no compute hides, the mean over the other GPUs: "
         "what it costs them", ("finding",)),
    Word("blocked", "what the next compute kernel waited for while no compute ran: its launch (late launches), NCCL, a "
         "copy or a memset, or none of these (stalls); `nsystui help path`", ("overview",)),
    Word("could save", "the most that a step could gain: the cost, at most the time that blocked compute; `nsystui "
         "help path`", ("overview", "finding")),
    Word("path", "the critical path of a step: what its time went to, walked back from its end", ("timeline",)),
    Word("step", "from the begin of its range, or the end of earlier GPU work if later, to the next step",
         ("ranks", "steps", "diff")),
    Word("phase", "of a step of an inference server: prefill, decode or mixed, by its name or its kernels; `nsystui "
         "help ranks`", ("steps",)),
    Word("host-bound", "at least two of idle time, launch calls and exposed host preparation show it; `nsystui help "
         "path`", ("steps",)),
)  # fmt: skip


def word_lines(place_name: str, width: int = 72) -> Iterator[str]:
    """Yield the words of a place with their definitions, wrapped to ``width`` cells."""
    for word in WORDS:
        if place_name in word.places:
            yield from textwrap.wrap(f"{word.name}: {word.definition}", width, subsequent_indent="  ")
