"""One table of keys: bindings, key lines and help agree."""

import importlib
import pkgutil
import re

import pytest
from textual.actions import parse
from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import Keys

from nsystui import ui
from nsystui.commands.help import topics
from nsystui.questions.queries.question import SCREENS
from nsystui.ui import keys
from nsystui.ui.keys import WORDS
from nsystui.ui.screens import screen_of
from nsystui.ui.screens.dialogs import help_lines, last_line


@pytest.mark.parametrize("mode", [*SCREENS, "nccl_log", "diff"])
def test_every_key_of_a_screen_has_an_action_and_help_there(mode):
    screen = screen_of(mode)
    text = "\n".join(help_lines(screen.PLACES))
    for key in keys.keys_of(screen.PLACES):
        name = key.action.partition("(")[0]
        assert not name or hasattr(screen, f"action_{name}"), f"{key.shown} in {mode}: no action_{name}"
        assert key.help in text
    topics_named = re.findall(r"nsystui help ([a-z-]+)", last_line(screen.PLACES))
    assert len(topics_named) == 2 and topics_named[-1] == "keys" and set(topics_named) <= set(topics())


def test_every_binding_is_a_key_of_a_keyboard_and_its_action_is_written_whole():
    found = [(one.keys, one.action) for one in keys.KEYS]
    for module in pkgutil.walk_packages(ui.__path__, f"{ui.__name__}."):
        for owner in vars(importlib.import_module(module.name)).values():
            if isinstance(owner, type) and issubclass(owner, DOMNode) and owner.__module__.startswith(ui.__name__):
                for binding in Binding.make_bindings(owner.__dict__.get("BINDINGS", ())):
                    found.append((binding.key, binding.action))
    characters = {
        next(Binding.make_bindings([Binding(one, "")])).key: one for one in map(chr, range(33, 127)) if one != ","
    }
    characters |= {one: one for one in characters.values()}
    for spelled, action in found:
        for key in spelled.split(","):
            base = re.sub("^(ctrl|shift|alt)[+]", "", key)
            assert base in characters or base in {one.value for one in Keys}, key
        assert re.fullmatch(r"(app[.]|screen[.])?[a-z_]+([(].*[)])?|", action), action
        assert parse(action) if action else True
    for one in keys.KEYS:
        assert characters.get(one.keys.partition(",")[0], "") in one.shown, one


@pytest.mark.parametrize(("shown", "actions"), [
    ("m", {"mark"}),
    ("M", {"metrics", "pick"}),
    ("#", {"fold"}),
    ("/", {"filter", "search"}),
    ("t", {"take_window"}),
    ("n N", {"match"}),
    ("c", {"partner"}),
    ("a A", {"pick"}),
])  # fmt: skip
def test_a_key_means_the_same_on_every_screen(shown, actions):
    assert {key.action.partition("(")[0] for key in keys.KEYS if key.shown == shown and key.help} == actions
    labels = {key.label for key in keys.KEYS if key.shown == "/"}
    assert labels == {"filter", "search"}, "the key line says which of the two"


def test_every_place_of_a_key_is_known():
    assert {key.place_name for key in keys.KEYS} <= keys.PLACES.keys()
    assert {place for word in WORDS for place in word.places} <= set(keys.PLACES)


def test_help_has_one_definition_of_each_word_on_the_screen():
    assert len({word.name for word in WORDS}) == len(WORDS)
    for mode, words in (("overview", ("busy", "idle")), ("nvtx", ("self",)), ("ranks", ("late", "wait caused"))):
        text = "\n".join(help_lines(screen_of(mode).PLACES))
        assert [word for word in words if f"\n  {word}: " not in text] == []
