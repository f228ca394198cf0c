"""Repaints of changed cells: the screen that Textual paints, with fewer bytes; Textual's repaint if necessary."""

from types import SimpleNamespace

import pyte
from rich.console import Console
from rich.segment import Segment
from textual._compositor import ChopsUpdate
from textual.screen import Screen
from textual.strip import Strip

from nsystui.ui.widgets import repainting
from nsystui.ui.widgets.repainting import ChangedCells, paint_sparingly

WIDTH, HEIGHT = 20, 3


def update(kind: type[ChopsUpdate]) -> str:
    """Return the bytes for the end of the first line, and for the last line across two widgets."""
    lines = [["kernels 0123456789AB"], ["nothing changed here"], ["left half ", "right half"]]
    chops = [{10 * place: Strip([Segment(text)]) for place, text in enumerate(line)} for line in lines]
    ends = [[WIDTH] if len(line) == 1 else [10, WIDTH] for line in lines]
    return kind(chops, [(0, 18, 20), (2, 4, 15)], ends).render_segments(Console(force_terminal=True, width=WIDTH))


def screen_after(written: str) -> list[str]:
    """Return the lines of a terminal with old text after these bytes."""
    terminal = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.Stream(terminal)
    stream.feed("\x1b[1;1Hkernels 0123456789..\x1b[2;1Hnothing changed here\x1b[3;1Hleft .... ..... half")
    stream.feed(written)
    return list(terminal.display)


def test_changed_cells_alone_give_the_screen_of_textual_with_fewer_bytes():
    sparing, usual = update(ChangedCells), update(ChopsUpdate)
    assert screen_after(sparing) == screen_after(usual)
    assert screen_after(sparing)[0] == "kernels 0123456789AB"
    assert len(sparing) < len(usual)


def test_textuals_own_way_stays_where_the_sparing_one_fails(monkeypatch):
    monkeypatch.setattr(repainting, "Control", object())
    assert update(ChangedCells) == update(ChopsUpdate)


def test_an_unknown_compositor_is_left_alone():
    other = SimpleNamespace(_compositor=object())
    assert not paint_sparingly(other) and type(other._compositor) is object
    assert not paint_sparingly(SimpleNamespace())


def test_the_installed_textual_is_painted_sparingly():
    assert paint_sparingly(Screen())
