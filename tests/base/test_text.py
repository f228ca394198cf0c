"""Text made safe and made to fit."""

import shlex
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from nsystui.base.text import GLYPHS, ascii_glyphs, cut_apart, fit, safe_text, shell_word, shorten, width_of

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too
FILLERS = "\u115f\u1160\u2800\u3164\uffa0"
HOSTILE = st.text(st.sampled_from("aé漢\x1b\x07\x9b\x9d\n\t\r\x00\x7f\u202e\u2066\u200f\u200b\u200d\ufeff\u2028\ud800"))


@given(st.one_of(ANY_TEXT, HOSTILE))
@example("\x1b]0;owned\x07")
def test_nothing_that_a_terminal_obeys_survives(text):
    for ascii_only in (False, True):
        safe = safe_text(text, ascii=ascii_only)
        assert safe.isprintable()
        assert safe_text(safe, ascii=ascii_only) == safe
        assert len(safe) == len(text)
        safe.encode("utf-8")


@given(st.text(st.characters(categories=["L", "N", "P", "S"], exclude_characters=FILLERS)))
@example("c\u0323\u0302 ไก่ שָׁ֔ 한")
def test_printable_text_stays_as_it_is(text):
    assert safe_text(text) == text


@pytest.mark.parametrize(("text", "shown", "shown_ascii"), [
    ("std::string f[abi:cxx11](int)", "std::string f[abi:cxx11](int)", "std::string f[abi:cxx11](int)"),
    ("\x1b]0;owned\x07", "␛]0;owned␇", "?]0;owned?"),
    ("a\tb\nc\x7f", "a␉b␊c␡", "a?b?c?"),
    ("\x9b31m", "·31m", "?31m"),
    ("abc\u202edef", "abc·def", "abc?def"),
    ("zero\u200bwidth", "zero·width", "zero?width"),
    ("\udcff", "·", "?"),
    ("a\u2028b\u2029c\x85", "a·b·c·", "a?b?c?"),
    ("\x1b_Ga=T;AAAA\x1b\\", "␛_Ga=T;AAAA␛\\", "?_Ga=T;AAAA?\\"),
    ("\U0010eeee \ue0b0 \u0378", "· · ·", "? ? ?"),
    ("a\u00a0b\u3000c", "a·b·c", "a?b?c"),
    ("a\u3164\u2800\ufe0f\u034fb", "a····b", "a????b"),
    ("e" + "\u0301" * 6 + "f", "e" + "\u0301" * 4 + "··f", "e" + "\u0301" * 4 + "??f"),
    ("漢 é", "漢 é", "漢 é"),
])  # fmt: skip
def test_substitutes(text, shown, shown_ascii):
    assert safe_text(text) == shown
    assert safe_text(text, ascii=True) == shown_ascii


@given(st.one_of(ANY_TEXT, HOSTILE))
@example("it's")
@example("\x1b[201~\nrm -rf ~ 'x' \\ \udcff")
def test_a_word_for_a_shell_is_one_printable_line_that_means_the_text(text):
    word = shell_word(text)
    assert safe_text(word) == word
    if word.startswith("$'"):
        assert word.isascii()
        assert len(shlex.split(word)) == 1
    else:
        assert shlex.split(word) == [text]


def test_bash_reads_a_quoted_word_back():
    text = "a\x1b]0;t\x07 'b' \\x41 \"c\" $(id) !! \u200b\n\udcff"
    try:
        done = subprocess.run(["bash", "-c", f"printf %s {shell_word(text)}"], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("there is no bash on this machine")
    assert done.stdout == text.encode("utf-8", "surrogateescape")


@given(st.text().map(safe_text))
@pytest.mark.campaign
def test_width_is_what_rich_says(text):
    assert width_of(text) == cell_len(text)


def test_shorten_cuts_at_the_end():
    kernel = "ncclDevKernel_AllReduce_Sum_bf16"
    assert [shorten(kernel, width) for width in (40, 20)] == [kernel, "ncclDevKernel_AllRe…"]
    assert [shorten("abcdef", width) for width in (2, 1, 0, -3)] == ["a…", "…", "", ""]
    assert (shorten("漢字漢字漢字", 7), shorten("", 0)) == ("漢字漢…", "")


@given(ANY_TEXT.map(safe_text), st.integers(0, 30))
@example("a\u0301" * 9 + "👩\ufe0f🇩🇪🇫🇷", 6)
def test_fit_is_exact_for_every_script(text, width):
    assert width_of(shorten(text, width)) <= width
    for align in ("left", "right"):
        assert width_of(fit(text, width, align)) == width
    assert (fit("ab", 5), fit("ab", 5, "right")) == ("ab   ", "   ab")


@given(ANY_TEXT)
def test_ascii_glyphs_leaves_ascii(text):
    assert ascii_glyphs(text).isascii()


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Mn", "Zs"]), max_size=1).map(safe_text))
def test_ascii_glyphs_keeps_the_cells_of_each_character(text):
    assert len(ascii_glyphs(text)) == width_of(text)


def test_every_glyph_of_the_interface_has_one_printable_stand_in():
    glyphs = "▁▂▃▄▅▆▇█░▒▓─━│┃┌┐└┘├┤┬┴┼╭╮╰╯╸╺▏▔▸▾▼▶●○…–µ·×→←⏎↑↓"
    assert all(ord(glyph) in GLYPHS for glyph in glyphs)
    assert all(len(char) == 1 and char.isascii() and char.isprintable() for char in GLYPHS.values())
    assert ascii_glyphs("12 µs ▸ naïve 漢 ▁▄█") == "12 us > naive ?? .=#"


def test_texts_that_would_look_alike_are_cut_within_what_they_share():
    texts = [f"a_long_name_of_a_kernel_that_begins_alike_everywhere_{number}" for number in range(12)]
    cut = cut_apart([*texts, "short"], 24)
    assert len(set(cut.values())) == 13
    assert cut["short"] == "short"
    assert all(width_of(shown) <= 24 and shown.startswith("a_long") for shown in map(cut.__getitem__, texts))
