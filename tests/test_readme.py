"""The README says what is so: its config example, its list of variables, its command lines and its key table."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from nsystui.cli import COMMANDS, LOG_COMMANDS, command_parser
from nsystui.commands.configuration import keys, read_config
from nsystui.exports.metadata import ENVIRONMENT_WHITELIST
from nsystui.ui import keys as ui_keys
from nsystui.ui import words

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """What stands below a heading, up to the next one."""
    return README.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_config_example_is_one_and_has_every_key(tmp_path):
    (text,) = re.findall(r"<!-- config -->\n```toml\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "config.toml"
    path.write_text(text)
    config = read_config(path, {"SCRATCH": "/scratch"})
    assert config.cache_dir == "/scratch/nsystui-cache"
    assert [key for key in keys() if not re.search(rf"^(\[{key}\]|{key} =)", text, re.MULTILINE)] == []


def test_it_names_every_variable_that_is_read_of_the_captured_environment():
    named = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", section("Privacy")))
    assert named == ENVIRONMENT_WHITELIST


def test_the_key_table_is_that_of_the_program():
    table = README.partition("<!-- keys -->\n")[2].partition("\n<!-- end of keys -->")[0]
    assert table == ui_keys.markdown_table(), "python tests/update_readme.py"


def test_the_table_of_words_is_that_of_the_program():
    table = README.partition("<!-- words -->\n")[2].partition("\n<!-- end of words -->")[0]
    assert table == words.markdown_table(ui_keys.PLACES), "python tests/update_readme.py"


def command_lines() -> list[str]:
    """The lines of its code blocks that begin with the program's name, and have words to parse."""
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("nsystui ") and "--print" not in line]


@pytest.mark.parametrize("line", command_lines())
def test_its_command_lines_are_parsed(line):
    line = re.split(r" \|\|? | && | > ", line)[0]
    words = shlex.split(line, comments=True)[1:]
    every = {*COMMANDS, *LOG_COMMANDS}
    command = words.pop(0) if words[0] in every else "open"
    if command == "diff":
        words = [word for word in words if word != "--"]
    if command == "recipe" and words[0] == "diff":
        return
    command_parser(command).parse_args(words)
