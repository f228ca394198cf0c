"""Text for the terminal's clipboard."""

import base64
import re

from hypothesis import given
from hypothesis import strategies as st
from small_answers import COLUMNS, FEW, Many, Rows

from nsystui.output.clipboard import osc52, row_for_clipboard, text_for_clipboard

PLAIN = re.compile(r"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07")


def decoded(sequence: str | None) -> str:
    assert sequence is not None
    match = PLAIN.fullmatch(sequence)
    assert match is not None
    return base64.b64decode(match[1]).decode()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_sequence_holds_the_text(text: str) -> None:
    assert decoded(osc52(text)) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_tmux_passes_it_on(text: str) -> None:
    wrapped = osc52(text, tmux=True)
    assert wrapped is not None
    inner = wrapped.removeprefix("\x1bPtmux;").removesuffix("\x1b\\")
    assert decoded(inner.replace("\x1b\x1b", "\x1b")) == text


def test_screen_passes_it_on_in_pieces() -> None:
    text = "kernel " * 500
    wrapped = osc52(text, screen=True)
    assert wrapped is not None
    pieces = re.findall(r"\x1bP(.*?)\x1b\\", wrapped, re.DOTALL)
    assert wrapped == "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)
    assert decoded("".join(pieces)) == text
    assert all(len(piece) < 256 - 4 for piece in pieces)


def test_too_much_is_refused_by_bytes() -> None:
    assert osc52("x" * 74_000) is not None
    assert osc52("x" * 74_001) is None
    assert osc52("é" * 5, limit=9) is None
    assert osc52("\udcff") is not None


def test_a_row_is_tab_separated_plain_values() -> None:
    assert row_for_clipboard(COLUMNS, FEW.rows[0]) == (
        "14.6\t292789300\t472\t620316.3\tncclKernel_AllReduce(ncclDevComm *, unsigned long)"
    )


def test_a_pasted_row_stays_one_row_and_does_nothing() -> None:
    row = (None, 1, 1, None, "a\tb\nrm -rf ~\r\n\x1b[201~")
    assert row_for_clipboard(COLUMNS, row) == "\t1\t1\t\ta␉b␊rm -rf ~␍␊␛[201~"


def test_a_table_has_its_headings() -> None:
    text = text_for_clipboard(Rows(FEW.rows[:1]))
    assert text is not None
    assert text.splitlines()[0] == "Time (%)\tTotal Time (ns)\tInstances\tAvg (ns)\tName"
    assert text.count("\n") == 2


def test_a_table_that_is_too_large_is_given_up_early() -> None:
    answer = Many(length=10_000_000)
    assert text_for_clipboard(answer) is None
    assert len(answer.asked) == 1
    small = text_for_clipboard(Many(length=100))
    assert small is not None
    assert text_for_clipboard(Many(length=100), limit=len(small)) == small
    assert text_for_clipboard(Many(length=100), limit=len(small) - 1) is None
