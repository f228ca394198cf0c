"""An amount of bytes is binary and has a binary name in all output; `nsystui stats` has nsys's MB.

test_answers checks the tables of every question.
"""

import re
from pathlib import Path

from recorded import decimal_names

from nsystui.cli import command_parser
from nsystui.commands import commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "nsystui/docs").glob("*.md"))]


def test_neither_help_nor_documentation_has_an_amount_with_a_decimal_name(run):
    for command in commands():
        assert decimal_names(command_parser(command).format_help()) == [], command
    for page in PAGES:
        assert decimal_names(page.read_text(encoding="utf-8")) == [], page
    assert decimal_names(run("info", "--diagnostics").out) == []


def test_the_program_has_no_such_name_in_its_texts_but_in_the_columns_of_nsys():
    package = ROOT / "nsystui"
    found = {}
    for path in sorted(package.rglob("*.py")):
        texts = re.findall(
            r'"[^"\n]*"', re.sub(r'""".*?"""|#.*', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        )
        if lines := decimal_names("\n".join(texts)):
            found[path.relative_to(package).as_posix()] = lines
    assert [path for path in found if not path.startswith("questions/stats/")] == []
