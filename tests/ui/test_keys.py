"""One table of keys: bindings, key lines and help agree."""

from __future__ import annotations

import re

import pytest

from nsystui.commands.help import topics
from nsystui.ui import keys
from nsystui.ui.screens import _CLASSES, screen_of
from nsystui.ui.screens.help import help_lines, last_line


@pytest.mark.parametrize("mode", list(_CLASSES))
def test_every_key_of_a_screen_has_an_action_there(mode):
    screen = screen_of(mode)
    for key in keys.keys_of(screen.PLACES):
        if key.action:
            name = key.action.partition("(")[0]
            assert hasattr(screen, f"action_{name}"), f"{key.shown} in {mode}: no action_{name}"


@pytest.mark.parametrize("mode", list(_CLASSES))
def test_help_names_every_key_of_the_screen(mode):
    text = "\n".join(help_lines(screen_of(mode).PLACES))
    for key in keys.keys_of(screen_of(mode).PLACES):
        assert key.help in text


@pytest.mark.parametrize("mode", list(_CLASSES))
def test_the_help_of_a_screen_names_the_topics_that_explain_it(mode):
    named = re.findall(r"nsystui help ([a-z-]+)", last_line(screen_of(mode).PLACES))
    assert len(named) == 2
    assert named[-1] == "keys"
    assert set(named) <= set(topics())


def test_every_place_of_a_key_is_known():
    assert {key.place for key in keys.KEYS} <= keys.PLACES.keys()
