"""One table of keys: bindings, key lines and help agree."""

from __future__ import annotations

import re

import pytest

from nsystui.commands.help import topics
from nsystui.ui import keys
from nsystui.ui.keys import WORDS
from nsystui.ui.screens import MODES, screen_of
from nsystui.ui.screens.dialogs import help_lines, last_line


@pytest.mark.parametrize("mode", MODES)
def test_every_key_of_a_screen_has_an_action_there(mode):
    screen = screen_of(mode)
    for key in keys.keys_of(screen.PLACES):
        if key.action:
            name = key.action.partition("(")[0]
            assert hasattr(screen, f"action_{name}"), f"{key.shown} in {mode}: no action_{name}"


@pytest.mark.parametrize("mode", MODES)
def test_help_names_every_key_of_the_screen(mode):
    text = "\n".join(help_lines(screen_of(mode).PLACES))
    for key in keys.keys_of(screen_of(mode).PLACES):
        assert key.help in text


@pytest.mark.parametrize("mode", MODES)
def test_the_help_of_a_screen_names_the_topics_that_explain_it(mode):
    named = re.findall(r"nsystui help ([a-z-]+)", last_line(screen_of(mode).PLACES))
    assert len(named) == 2
    assert named[-1] == "keys"
    assert set(named) <= set(topics())


def test_every_place_of_a_key_is_known():
    assert {key.place for key in keys.KEYS} <= keys.PLACES.keys()


def test_help_has_the_definitions_of_the_words_on_the_screen():
    for mode, words in (("overview", ("busy", "idle")), ("nvtx", ("self",)), ("ranks", ("late", "wait caused"))):
        text = "\n".join(help_lines(screen_of(mode).PLACES))
        assert [word for word in words if f"\n  {word}: " not in text] == []


def test_a_word_has_one_definition_and_known_places():
    assert len({word.name for word in WORDS}) == len(WORDS)
    assert {place for word in WORDS for place in word.places} <= set(keys.PLACES)
