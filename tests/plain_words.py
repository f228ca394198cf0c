"""Habits that make sentences hard to read, and names that say nothing (docs/contributing.md#words).

``python tests/plain_words.py [PATH…]`` lists sentences of docstrings, comments and documents that have a habit, with a
cure. A habit shows where to look: a sentence without a habit may be hard to read, too.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]

HABITS = {
    "begin with the subject": r"^Of\b",
    "repeat the noun": r"\b(that|those|these) (of|that|which|whose|with)\b|\bones\b|\b(one|that) of each\b|"
    r"\b(the|this|that|each|every|any|another) one\b(?!-)|\bof which any\b",
    "is not a, has no": r"\b(is|are|was|be|has|have|had) none\b",
    "name the thing": r"\bwhat (it|they|is|are|was|has|have|the|a|its|their|no|nobody)\b",
    "shows, reports, identifies": r"\b(told|tells?|(is|are) said|says? so)\b",
    "if or when": r"\bwhere (there|it|they|one|none|nothing|nobody)\b",
    "give the number": r"\bso (many|few|long|much|large|far)\b",
    "because": r", for (it|they|the|an?|its|their|this|that|there|what|nobody|no)\b",
    "is, follows, moves": r"\b(stands?|stood|comes?|goes)\b",
    "instead of": r"\bin place of\b",
    "also, next to": r"\bbesides?\b",
    "except": r"\bbut (for|what|those|its|the|an?)\b",
    "differs from": r"\bothers? than\b",
    "at most, finally": r"\bat the most\b|\bin the end\b",
}
"""A cure for each habit, and the pattern of the habit."""
VAGUE_NAMES = ("one", "found", "own", "place")
_TOKEN = re.compile(
    r"""#[^\n]*|\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[^\s#"']+""",
    re.DOTALL,
)
"""A comment, a string, or other code, for Python's tokenizer takes a hundred times as long."""
_END = re.compile(r"(?<=[.;:])\s+")
_END_IN_DOCUMENT = re.compile(r"(?<=[.;:|])\s+")


def sentences(text: str, nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and text of each sentence: of a module in docstrings and comments, of a document without ``nodes``."""
    if not nodes:
        yield from ((1, sentence) for sentence in _END_IN_DOCUMENT.split(" ".join(text.split())))
        return
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for paragraph in re.split(r"\n\s*\n", node.value.value.strip()):
                yield from ((node.lineno, sentence) for sentence in _END.split(" ".join(paragraph.split())))
    for is_comment, group in groupby(_TOKEN.finditer(text), lambda token: token[0][0] == "#"):
        if is_comment:
            comments = list(group)
            joined = " ".join(comment[0].lstrip("# ") for comment in comments)
            line = 1 + text.count("\n", 0, comments[0].start())
            yield from ((line, sentence) for sentence in _END.split(joined))


def measured(path: Path, text: str, nodes: Sequence[ast.AST]) -> tuple[Counter[str], list[str]]:
    """Return the words, hard sentences and vague names of a module or document, and a line for each hard sentence.

    A document has no ``nodes``.
    """
    sizes: Counter[str] = Counter()
    for node in nodes:
        is_bound = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        name = node.id if is_bound else node.arg if isinstance(node, ast.arg) else ""
        sizes[name] += name in VAGUE_NAMES
    lines = []
    for line, sentence in sentences(text, nodes):
        sizes.update(sentences=1, words=len(sentence.split()))
        if cures := [cure for cure, habit in HABITS.items() if re.search(habit, sentence)]:
            sizes["hard"] += 1
            lines.append(f"{path}:{line}: {sentence[:200]}  [{'; '.join(cures)}]")
    return +sizes, lines


def main() -> None:
    """List the hard sentences of files and directories, by default of the program, its documents and the tests."""
    arguments = [Path(path) for path in sys.argv[1:]] or [ROOT / "nsystui", ROOT / "tests"]
    paths = [file for path in arguments for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    total: Counter[str] = Counter()
    for path in (path for path in paths if path.suffix in (".py", ".md")):
        text = path.read_text(encoding="utf-8")
        sizes, lines = measured(path, text, list(ast.walk(ast.parse(text))) if path.suffix == ".py" else [])
        total += sizes
        print(*lines, sep="\n", end="\n" * bool(lines))
    print(", ".join(f"{number} {name}" for name, number in total.items()))


if __name__ == "__main__":
    main()
