"""The README says what is so: its config example, its list of variables, its command lines and its key table."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from support import SHARED

from nsystui.analysis.stats import NAMES
from nsystui.cli import COMMANDS, LOG_COMMANDS, command_parser
from nsystui.cli import main as main_program
from nsystui.commands.configuration import keys, read_config
from nsystui.exports.demo import ExportWriter
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


def test_the_event_types_of_paraver_are_those_it_names(tmp_path):
    with ExportWriter(tmp_path / "ranges.sqlite") as export:
        main = export.thread(export.process(5_000, "app"), 5_000, "app")
        export.nvtx_domain(main, 0, 3, "data")
        export.nvtx_range(main, 1_000, 2_000, "default")
        export.nvtx_range(main, 3_000, 4_000, "other", domain_id=3)
        export.mpi_other(main, 5_000, 6_000, "MPI_Init")
    command = ["export", "--paraver", str(tmp_path / "job.prv"), str(tmp_path / "ranges.sqlite")]
    assert main_program(command) == 0
    types = set(re.findall(r"^0    ([0-9]+) ", (tmp_path / "job.pcf").read_text(encoding="utf-8"), re.MULTILINE))
    assert types == {"9003", "9600", "9300"}
    said = " ".join(section("Other tools").split())
    assert "default domain are 9003 (there 9600) and of further domains 9600, 9601" in said
    assert "MPI calls are 9300 (there 50000001 to 50000005)" in said


def test_the_reports_that_were_compared_with_nsys_are_those_it_names():
    tables = sorted((SHARED / "nsys-stats").glob("*/*.csv"))
    if not tables:
        pytest.skip("NVIDIA's reference tables are not on this machine")
    compared = Counter(table.stem for table in tables)
    rows = README.partition("<!-- compared -->")[2].partition("<!-- end of compared -->")[0].splitlines()
    said = {name: int(row.split("|")[2]) for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    options = {
        f"cuda_gpu_kern_sum_{option}": int(count)
        for count, option in re.findall(r"(\d+) with `:([a-z-]+)`", "\n".join(rows))
    }
    assert {**said, **options} == compared
    assert f" {len(tables)} tables are equal" in README
    never = {name for name in NAMES if name not in said}
    assert never == set(
        re.findall(r"`([a-z_]+)`", README.partition("No table of nsys was at hand for")[2].partition(":")[0])
    )


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
