"""The pictures in ``screenshots/`` show the screens as last accepted, and the README shows them."""

import json
import re

from support import real_export

from screenshots import HERE, MADE_FROM, REAL, TARGET, expected

AGAIN = "a screen has changed and its picture has not: python tests/screenshots.py"


def test_every_picture_was_made_since_its_screen_changed():
    has_real = all(real_export(name).exists() for name in REAL)
    made = json.loads(MADE_FROM.read_text(encoding="utf-8"))
    assert [name for name, snapshot in expected(has_real).items() if made.get(name) != snapshot] == [], AGAIN


def test_every_picture_is_there_and_no_other():
    names = {f"{name}.{kind}" for name in expected(with_real=True) for kind in ("svg", "png")}
    assert {path.name for path in TARGET.iterdir()} == {*names, MADE_FROM.name}


def test_the_pictures_of_the_readme_are_there():
    shown = re.findall(r"\]\((screenshots/[^)]+)\)", (HERE / "README.md").read_text(encoding="utf-8"))
    assert shown
    assert [name for name in shown if not (HERE / name).is_file()] == []
