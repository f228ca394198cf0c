"""The documentation is right: its citations, examples, lists and tables agree with the program."""

import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import update_docs
from support import nsys_tables

from nsystui.cli import command_parser
from nsystui.commands import commands, topic_of
from nsystui.commands.configuration import keys, read_config
from nsystui.commands.help import topics
from nsystui.exports.metadata import ENVIRONMENT_WHITELIST
from nsystui.questions.queries.question import questions
from nsystui.questions.stats import all_reports
from nsystui.questions.triage.thresholds import meanings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "nsystui/docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
CODE = [path for room in ("nsystui", "tests") for path in sorted((ROOT / room).rglob("*.py"))]
EVERY = set(commands())


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def words_of(path: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(path), flags=re.DOTALL | re.MULTILINE)


def between(path: Path, name: str) -> str:
    """Return the text between the marks ``<!-- name -->`` and ``<!-- end of name -->`` of a page."""
    return text_of(path).partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0]


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.+)$", words_of(path), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


def resolves(page: Path, anchor: str) -> bool:
    return page.is_file() and (not anchor or anchor in anchors(page))


@pytest.mark.campaign
def test_every_citation_of_a_document_resolves_and_none_is_of_one_that_is_not_here():
    cited = re.compile(r"\bdocs/([\w-]+)\.md(?:#([\w-]+))?")
    found = [(path, *pair) for path in (*CODE, *PAGES) for pair in cited.findall(text_of(path))]
    assert len(found) > 90
    assert [one for one in found if not resolves(DOCS / f"{one[1]}.md", one[2])] == []
    assert [path for path in CODE if chr(0xA7) in text_of(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_resolves(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", words_of(page)):
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        assert "://" in target or (resolves(place, anchor) if place.suffix == ".md" else place.exists()), target


def test_every_topic_that_is_named_exists():
    named = {
        word
        for path in [*CODE, *PAGES]
        if path.name not in ("test_help_command.py", "test_shell.py")
        for word in re.findall(r"nsystui help ([a-z-]+)", text_of(path))
    }
    assert named - {*topics(), *EVERY} == set()
    assert {topic_of(command) for command in EVERY} <= {"", *topics()}


def test_the_readme_names_every_topic_and_is_short():
    text = text_of(README)
    assert [topic for topic in topics() if f"](nsystui/docs/{topic}.md)" not in text] == []
    assert len(text.splitlines()) <= 220


def test_the_keys_and_the_table_of_words_are_those_of_the_program():
    assert text_of(DOCS / "keys.md") == update_docs.keys_page(), "python tests/update_docs.py"
    assert between(DOCS / "glossary.md", "words").strip() == update_docs.table_of_words(), "python tests/update_docs.py"


def test_completions_are_the_columns_and_members_of_the_questions():
    assert text_of(update_docs.COMPLETIONS) == update_docs.completions(), "python tests/update_docs.py"


def test_the_reports_that_were_compared_with_nsys_are_those_it_names():
    tables = nsys_tables()
    if not tables:
        pytest.skip("NVIDIA's reference tables are not on this machine")
    compared = Counter(table.stem for table in tables)
    rows = between(DOCS / "numbers.md", "compared").splitlines()
    told = {name: int(row.split("|")[2]) for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    options = re.findall(r"(\d+) with `:([a-z-]+)`", "\n".join(rows))
    assert {**told, **{f"cuda_gpu_kern_sum_{option}": int(count) for count, option in options}} == compared
    text = text_of(DOCS / "numbers.md")
    exports = {table.parent for table in tables}
    assert f"{len(tables)} of {len(tables)} tables are equal" in text
    promise = f"byte for byte where the two were compared: [{len(told)} reports, {len(exports)} exports](#nsys-stats)"
    assert promise in " ".join(text.split())
    assert f"Tests compare {len(told)} reports with what nsys\n2023.4.4 printed for {len(exports)} real exports" in text
    never = re.findall(r"`([a-z_]+)`", text.partition("No table of nsys was at hand for")[2].partition(":")[0])
    assert {report.name for report in all_reports() if report.name not in told} == set(never)


def test_every_threshold_of_the_triage_is_explained():
    text = text_of(DOCS / "triage.md")
    assert [name for name, *_ in meanings() if f"`{name}`" not in text] == []


def test_every_finding_of_the_triage_is_explained():
    """Names of rules and of views, to which findings lead, are not findings."""
    rules = sorted((ROOT / "nsystui/questions/triage/rules").glob("*.py"))
    named = {name for path in rules for name in re.findall(r'"([a-z]+(?:-[a-z]+)+)"', text_of(path))}
    assert len(named) > 30
    told = text_of(DOCS / "triage.md")
    doors = {view.name for question in questions() for view in question.views}
    others = {path.stem.replace("_", "-") for path in rules} | doors
    assert named - others - set(re.findall("`([a-z-]+)`", told)) == set()


def test_the_config_example_is_one_and_has_every_key(tmp_path):
    (text,) = re.findall(r"<!-- config -->\n```toml\n(.*?)```", text_of(DOCS / "configuration.md"), re.DOTALL)
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert read_config(path, {"SCRATCH": "/scratch"}).cache_dir == "/scratch/nsystui-cache"
    assert [key for key in keys() if not re.search(rf"^(\[{key}\]|{key} =)", text, re.MULTILINE)] == []


def test_it_names_every_variable_that_is_read_of_the_captured_environment():
    section = text_of(DOCS / "privacy.md").partition("## Environment\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([A-Z][A-Z0-9_]+)`", section)) == ENVIRONMENT_WHITELIST


def test_every_knob_of_the_tests_is_explained():
    """A variable that a test reads and the program does not."""
    read = re.compile(r"environ(?:\.get\(|\[)\"(NSYSTUI_\w+)\"")
    knobs = {name for path in CODE if path.is_relative_to(ROOT / "tests") for name in read.findall(text_of(path))}
    told = text_of(DOCS / "contributing.md")
    inner = {"NSYSTUI_ERRORS", "NSYSTUI_CACHE_DIR"}  # tests set these for child processes
    assert "NSYSTUI_CAMPAIGN" in knobs
    assert [name for name in sorted(knobs - inner) if f"`{name}`" not in told] == []


def command_lines() -> list[str]:
    """Return the lines of code blocks that begin with the program's name, except options that only print."""
    blocks = [block for page in PAGES for block in re.findall(r"^```(?:sh)?\n(.*?)^```", text_of(page), re.M | re.S)]
    lines = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return sorted({line for line in lines if line.startswith("nsystui ") and "--print" not in line})


@pytest.mark.parametrize("line", command_lines())
def test_the_command_lines_are_parsed(line):
    line = re.split(r" \|\|? | && | > ", line)[0]
    words = shlex.split(line, comments=True)[1:]
    command = words.pop(0) if words[0] in EVERY else "open"
    if command == "diff":
        words = [word for word in words if word != "--"]
    if (command == "recipe" and words[0] == "diff") or "--list-reports" in words:
        return
    command_parser(command).parse_args(words)
