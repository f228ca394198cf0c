"""The size of ``nsystui/``, and its hard sentences, against ``size_limits.toml``: limits only fall.

See docs/contributing.md#size and #words.

How each measure is counted:

* ``lines``: all lines of all Python files.
* ``code``: lines that are not blank, not a comment alone, not in a docstring (the first statement of a module, class or
  function) and not in an import.
* ``files``: Python files.
* ``any``: uses and imports of the name ``Any``.
* ``long_functions``: functions whose lines from ``def`` to the end, with docstring, are more than 40.
* ``branching_functions``: functions with more than 15 paths. A function has one path, and one more for each ``if``
  (also in an expression), ``for``, ``while``, ``except``, ``assert``, comprehension, and operand of ``and`` or ``or``
  after the first. A nested function's paths also count for the outer function.
* ``words``: words in docstrings and comments.
* ``hard``, ``hard_in_tests``, ``hard_in_docs``: sentences that ``python tests/plain_words.py`` lists in modules of
  ``nsystui/`` and ``tests/``, and in ``nsystui/docs``.
* ``one``, ``found``, ``own``, ``place``: variables and parameters of that name.

``python tests/test_size.py --lower`` sets each limit to the measure if the measure is below it.
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import plain_words
import pytest

PROGRAM = Path(__file__).parents[1] / "nsystui"
TESTS = Path(__file__).parent
LIMITS = TESTS / "size_limits.toml"
WORDS = {
    "lines": "lines", "code": "lines of code", "files": "files", "any": "uses of Any",
    "long_functions": "functions above 40 lines", "branching_functions": "functions with more than 15 paths",
    "words": "words in docstrings and comments", "hard": "hard sentences", "hard_in_tests": "hard sentences in tests/",
    "hard_in_docs": "hard sentences in docs/", **{name: f"variables `{name}`" for name in plain_words.VAGUE_NAMES},
}  # fmt: skip
ELSEWHERE = {"hard_in_tests": sorted(TESTS.rglob("*.py")), "hard_in_docs": sorted((PROGRAM / "docs").glob("*.md"))}
HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (*(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While), *(ast.ExceptHandler, ast.Assert, ast.comprehension))


def measured(source: str, nodes: Iterable[ast.AST]) -> Counter[str]:
    """Return the measures of one file, except of its words."""
    lines = source.splitlines()
    code = {number for number, line in enumerate(lines, 1) if line.strip() and not line.strip().startswith("#")}
    sizes = Counter(lines=len(lines), files=1)
    functions: list[tuple[int, int]] = []
    branches: list[int] = []
    for node in nodes:
        if isinstance(node, HAS_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            code.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        if isinstance(node, ast.Import | ast.ImportFrom):
            code.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
            sizes["any"] += sum(alias.name == "Any" for alias in node.names)
        elif isinstance(node, ast.Name):
            sizes["any"] += node.id == "Any"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.lineno, node.end_lineno or 0))
        elif isinstance(node, ast.BoolOp):
            branches += [node.lineno] * (len(node.values) - 1)
        elif isinstance(node, BRANCHES):
            branches.append(node.target.lineno if isinstance(node, ast.comprehension) else node.lineno)
    sizes["code"] = len(code)
    sizes["long_functions"] = sum(end - start >= 40 for start, end in functions)
    paths = (1 + sum(start <= line <= end for line in branches) for start, end in functions)
    sizes["branching_functions"] = sum(number > 15 for number in paths)
    return sizes


def measures() -> dict[str, int]:
    total: Counter[str] = Counter()
    for path in PROGRAM.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text)))
        total += measured(text, nodes) + plain_words.measured(path, text, nodes)[0]
    return {name: total[name] for name in WORDS if name not in ELSEWHERE}


def measures_elsewhere() -> dict[str, int]:
    """Return the hard sentences of the tests and documents."""
    hard = {}
    for name, paths in ELSEWHERE.items():
        texts = [(path, path.read_text(encoding="utf-8")) for path in paths]
        nodes = [list(ast.walk(ast.parse(text))) if path.suffix == ".py" else [] for path, text in texts]
        hard[name] = sum(plain_words.measured(*text, of)[0]["hard"] for text, of in zip(texts, nodes, strict=True))
    return hard


def limits() -> dict[str, int]:
    return tomllib.loads(LIMITS.read_text(encoding="utf-8"))


def lower() -> None:
    """Write the smaller of each limit and its measure."""
    sizes = measures() | measures_elsewhere()
    least = [f"{name} = {min(limit, sizes[name])}\n" for name, limit in limits().items()]
    LIMITS.write_text("# The most that nsystui/ may have: see test_size.py.\n" + "".join(least), encoding="utf-8")


@pytest.mark.parametrize(
    "measure", [measures, pytest.param(measures_elsewhere, marks=pytest.mark.campaign)], ids=["program", "elsewhere"]
)
def test_the_sizes_are_within_their_limits_and_these_are_as_low_as_was_reached(measure):
    sizes, most = measure(), limits()
    assert most.keys() == WORDS.keys()
    above = [
        f"{name}: nsystui/ has {size} {WORDS[name]}, the limit is {most[name]}: remove {size - most[name]} elsewhere. "
        "Only a change that adds a capability may raise a limit, with a line in CHANGELOG.md."
        for name, size in sizes.items()
        if size > most[name]
    ]
    assert not above, "\n".join(above)
    below = [name for name, size in sizes.items() if size < most[name]]
    assert not below, f"nsystui/ is smaller than its limits ({', '.join(below)}): python tests/test_size.py --lower"


if __name__ == "__main__":
    if sys.argv[1:] != ["--lower"]:
        sys.exit("usage: python tests/test_size.py --lower")
    lower()
