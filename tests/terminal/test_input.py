"""Whatever the keyboard, a paste or the environment sends: the program continues, answers, and can be ended."""

import re
import shlex
import signal
import sys
from collections import Counter

import campaign
import pytest
from harness import WITHOUT_FINDINGS, Terminal, assert_ends_well, modes_left

NO_UTF8 = {
    "latin-1": b"\xe9", "0xff": b"\xff", "half of two": b"\xc3(", "surrogate": b"\xed\xa0\x80",
    "much": bytes(range(0x80, 0x100)) * 20, "paste": b"\x1b[200~caf\xe9\xff\x1b[201~",
    "no code point": b"\x1b[99999999u", "no text": b"\x1b[99999999;1;99999999u",
}  # fmt: skip


@pytest.mark.campaign
def test_keys_that_are_no_utf8_do_not_end_it_and_a_prompt_shows_them_as_replacement_characters(running):
    with running() as terminal:
        for typed in NO_UTF8.values():
            terminal.send(typed)
            for key, title in (("2", "│2 Krn│"), ("1", "│1 Ovw│")):

                def is_shown(key=key, title=title) -> bool:
                    terminal.press(key)  # again: the first key may count as the end of an unfinished sequence
                    terminal.listen(0.2)
                    return title in terminal.text

                terminal.wait_until(is_shown, title)
        terminal.press("2")
        terminal.wait_for(" names")
        terminal.press("/")
        terminal.wait_for("\nfind")
        terminal.send(b"caf\xe9 \xc3(")
        terminal.wait_for("caf\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}(")
        terminal.press("ctrl+c")
        assert terminal.wait_exit() == 0


KEYS = {
    "a paste": b"2026-01-01 ste 12 loss 0.1234 ms/ste 93.1\r" * 2500,
    "one key": b"j" * 20_000,
    "an arrow": b"\x1b[B" * 20_000,
    "a paste without an end": b"\xe9\x1b[200~" * 10_000,
}


@pytest.mark.campaign
def test_any_number_of_keys_at_once_is_answered(running):
    with running() as terminal:
        for keys in KEYS.values():
            terminal.send(keys)
            terminal.send(b"\x1b[201~")
        terminal.press("ctrl+c")
        assert terminal.wait_exit() == 0
        assert modes_left(terminal.received) == set()


@pytest.mark.campaign
@pytest.mark.parametrize("name", KEYS)
def test_any_number_of_keys_at_once_does_not_keep_it_from_obeying(running, name):
    with running() as terminal:
        terminal.send(KEYS[name])
        terminal.kill(signal.SIGTERM)
        assert terminal.wait_exit() == 143
        assert modes_left(terminal.received) == set()


@pytest.mark.campaign
@pytest.mark.parametrize(("columns", "lines"), [("99999", "0"), ("many", "-1")])
def test_it_is_as_large_as_its_terminal_whatever_the_environment_says(running, columns, lines):
    with running(COLUMNS=columns, LINES=lines) as terminal:
        assert "? help" in terminal.screen[-1]
        assert_ends_well(terminal)


@pytest.mark.campaign
def test_a_terminal_that_claims_to_be_huge_is_drawn_on_in_part(running):
    with running(columns=5_000) as terminal:
        assert_ends_well(terminal)


FAILING = """
import sys
from nsystui.cli import main
from nsystui.ui.app import NsystuiApp

def fail(*_):
    raise RuntimeError("of this test")

setattr(NsystuiApp, {where!r}, fail)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("where", campaign.first(1, ["_begin", "on_mount", "on_unmount"]))
def test_an_error_of_the_program_gives_the_terminal_back_and_says_where_its_details_are(
    job, environment, tmp_path, where
):
    words = shlex.join([sys.executable, "-c", FAILING.format(where=where), *job])
    with Terminal(["sh", "-c", f"stty -g; {words}; echo status $?; stty -g"], environment, columns=250) as terminal:
        if where == "on_unmount":
            terminal.wait_for("? help")
            terminal.press("q")
        terminal.wait_exit()
        before, after = re.findall(rb"(?:[0-9a-f]+:){20,}[0-9a-f]+", terminal.received)
        assert before == after
        assert modes_left(terminal.received) == set()
        said = terminal.received.rpartition(b"\x1b[?1049l")[2].decode()
        assert "status 70" in said
        assert "Traceback" not in said
        (line,) = [line for line in said.splitlines() if "nsystui:" in line]
        assert "of this test" in line
        (details,) = (tmp_path / "tmp").iterdir()
        assert str(details) in line
        assert details.stat().st_mode & 0o77 == 0
        assert "Traceback" in details.read_text()


@pytest.mark.campaign
def test_ctrl_z_gives_the_terminal_back_and_fg_draws_it_again(job, environment):
    with Terminal(["bash", "--norc", "-i"], environment) as terminal:
        terminal.wait_for("shell$")
        terminal.send(f"{shlex.join([*WITHOUT_FINDINGS, *job])}\n".encode())
        terminal.wait_for("? help")
        for screen, shown, prompt in (("2", " names", ""), ("2", " names", "/"), ("5", "by module", "")):
            terminal.press(screen)
            terminal.wait_for(shown)
            if prompt:
                terminal.press(prompt)
                terminal.wait_for("\nfind")
            terminal.press("ctrl+z")
            terminal.wait_for("Stopped")
            assert modes_left(terminal.received) <= {"?2004h"}
            terminal.send(b"stty -a | grep -o ' echo '; clear\n")
            terminal.wait_until(lambda: terminal.text.strip() == "shell$", "cleared screen")
            terminal.send(b"fg\n")
            terminal.wait_for("│2 Krn│" if screen == "2" else "│5 NVTX│")
            if prompt:
                terminal.press("escape")
                terminal.wait_for("? help")
        terminal.press("q")
        terminal.wait_for("shell$")
        assert modes_left(terminal.received) <= {"?2004h"}


def drawn_in_colour(terminal: Terminal) -> str:
    """Return letters and digits in one of the program's colours on the terminal's own background."""
    cells = (cell for line in range(24) for _, cell in sorted(terminal.cells[line].items()))
    return "".join(cell.data for cell in cells if cell.data.isalnum() and cell.fg != "default" and cell.bg == "default")


@pytest.mark.campaign
def test_text_has_the_terminals_own_colours_if_the_terminal_does_not_say_how_light_its_page_is(running):
    with running(COLORTERM="truecolor") as terminal:
        terminal.press("2", until=" names")
        terminal.settle()
        assert drawn_in_colour(terminal) == "" and "nccl" in terminal.text
        assert_ends_well(terminal)


@pytest.mark.campaign
@pytest.mark.parametrize(("told", "colour"), [("0;15", "000000"), ("15;default;0", "e0e0e0")], ids=["light", "dark"])
def test_text_suits_the_page_that_colorfgbg_names(running, told, colour):
    with running(COLORTERM="truecolor", COLORFGBG=told) as terminal:
        terminal.press("2", until=" names")
        terminal.settle()
        assert terminal.cells[1][0].fg == colour
        assert_ends_well(terminal)


def text_of(output: bytes) -> int:
    """Return the lightness of the last text's most frequent colour, 0 to 765, on the terminal's own background."""
    colours = Counter(re.findall(rb"38;2;(\d+);(\d+);(\d+)", output[-6000:]))
    return sum(map(int, colours.most_common(1)[0][0]))


@pytest.mark.campaign
@pytest.mark.parametrize(("answer", "is_light"), [
    ((b"\x1b]11;rgb:fafa/fa", b"fa/f0f0\x1b\\"), True),
    ((b"\x1b]11;rgb:ff/ff/ff\x07",), True),
    ((b"\x1b]11;rgb:1010/1010/1010\x07",), False),
], ids=["in two portions", "short", "dark"])  # fmt: skip
def test_the_text_suits_a_page_as_light_as_the_terminal_says(running, answer, is_light):
    with running(COLORTERM="truecolor") as terminal:
        assert b"\x1b]11;?\x07" in terminal.received
        for portion in answer:
            terminal.send(portion)
            terminal.listen(0.05)
        terminal.settle()
        terminal.press("2")
        terminal.wait_for(" names")
        terminal.wait_until(lambda: (text_of(terminal.received) < 383) is is_light, "text of that colour")
        assert_ends_well(terminal)


@pytest.mark.campaign
def test_a_theme_that_was_chosen_is_kept(running):
    with running("--theme", "dark") as terminal:
        assert b"\x1b]11;?" not in terminal.received
        assert_ends_well(terminal)
