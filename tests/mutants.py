"""Measure whether the tests notice mistakes: make 100 mutants in executed lines, and run the tests of each line.

mutmut and cosmic-ray run all tests, or all of a file, for each mutant of a module. Here a mutant is drawn from the
whole program and meets only the tests that execute its line, so that 100 mutants take minutes.
"""

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
MAP = ROOT / ".pytest_cache/mutants"

PYTEST = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "-q", "--tb=no", "-rfE"]

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
KEYED = ("cast", ".once", ".in_background")
"""Functions whose first argument is a type or an internal key."""
SKIPPED = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Place:
    """A node that can be changed, by its number in ``ast.walk``."""

    file: str
    number: int
    line: int
    end: int
    in_function: bool
    names: frozenset[str]
    """The names that the surrounding statement at the top of a module or class defines."""


def is_mutable(node: ast.AST, in_function: bool) -> bool:
    """Return whether ``changed`` can change the node; skipped statements outside of functions are too obvious."""
    match node:
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not() | ast.USub()):
            return True
        case ast.BinOp(op=sign):
            return type(sign) in SIGNS
        case ast.Constant(value=value):
            return isinstance(value, (bool, int, float)) or (isinstance(value, str) and bool(value.strip()))
        case ast.Return(value=value):
            return not (value is None or (isinstance(value, ast.Constant) and value.value is None))
        case ast.AnnAssign(value=None):
            return False
    return in_function and isinstance(node, SKIPPED)


def changed(node: ast.AST, chance: random.Random) -> ast.AST:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            which = chance.randrange(len(ops))
            other = chance.choice(COMPARISONS[type(ops[which])])()
            return ast.Compare(left, [*ops[:which], other, *ops[which + 1 :]], others)
        case ast.BoolOp(op=word, values=values):
            return ast.BoolOp(ast.Or() if isinstance(word, ast.And) else ast.And(), values)
        case ast.UnaryOp(operand=operand):
            return operand
        case ast.BinOp(left=left, op=sign, right=right):
            return ast.BinOp(left, SIGNS[type(sign)](), right)
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=str(value)):
            return ast.Constant(value + "x")
        case ast.Constant(value=int(value) | float(value)):
            return ast.Constant(value + 1)
        case ast.Return():
            return ast.Return(ast.Constant(None))
    return ast.Pass()


def places(file: str, tree: ast.Module) -> Iterator[Place]:
    """Yield every mutable node, except docstrings, imports, annotations and messages for programmers."""
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}

    def below(node: ast.AST, in_function: bool, names: frozenset[str]) -> Iterator[Place]:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef(name="__repr__"):
                return
            case ast.Expr(value=ast.Constant()) | ast.Call(func=ast.Name(id="TypeVar" | "dataclass" | "NewType")):
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assign(targets=[ast.Name(id="__all__")]):
                return
            case ast.ClassDef(name=name) if not in_function:
                names = frozenset({name})
            case ast.Assign() | ast.AnnAssign() if not in_function:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        if is_mutable(node, in_function):
            yield Place(file, numbers[id(node)], node.lineno, node.end_lineno, in_function, names)
        for field_name, value in ast.iter_fields(node):
            if field_name in ("annotation", "returns", "format_spec"):
                continue
            inside = in_function or (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and field_name == "body"
            )
            children = value if isinstance(value, list) else [value]
            if isinstance(node, ast.Call) and field_name == "args" and ast.unparse(node.func).endswith(KEYED):
                children = children[1:]
            for child in children:
                if isinstance(child, ast.AST):
                    yield from below(child, inside, names)

    yield from below(tree, False, frozenset())


def mutated(text: str, place: Place, chance: random.Random) -> tuple[str, str, str] | None:
    """Return the changed file, and its changed part before and after; None where Python cannot write that part."""
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    node = list(ast.walk(tree))[place.number]
    new = changed(node, chance)
    parent = parents[node]
    for name, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, name, new)
        elif isinstance(value, list) and node in value:
            value[value.index(node)] = new
    # Python 3.11 has no positions for parts of an f-string: the whole string is written anew.
    strings, above = [], node
    while above in parents:
        above = parents[above]
        strings += [above] if isinstance(above, ast.JoinedStr) else []
    whole = strings[-1] if strings else node
    try:
        after = ast.unparse(ast.fix_missing_locations(strings[-1] if strings else new))
    except ValueError:  # a quote in a quote
        return None
    if not isinstance(new, ast.stmt | ast.Constant | ast.Name) and not strings:
        after = f"({after})"
    lines = text.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: whole.lineno - 1])) + whole.col_offset
    end = sum(map(len, lines[: whole.end_lineno - 1])) + whole.end_col_offset
    raw = text.encode()
    return (raw[:start] + after.encode() + raw[end:]).decode(), raw[start:end].decode(), after


class Lines:
    """Which test executes which line, and the CPU seconds of each test, as the last run of all tests measured it."""

    def __init__(self) -> None:
        tests = json.loads((MAP / "tests.json").read_text())
        self.costs: dict[str, float] = {test: cost for test, (cost, _) in tests.items()}
        self.users: dict[str, list[str]] = defaultdict(list)  # tests by shared fixture, whose lines count as theirs
        for test, (_, fixtures) in tests.items():
            for fixture in fixtures:
                self.users[fixture].append(test)
        self.data = CoverageData(str(MAP / "lines"))
        self.data.read()
        self.tests_by_line = cache(self._tests_by_line)

    def files(self) -> list[str]:
        return sorted(self.data.measured_files())

    def _tests_by_line(self, file: str) -> dict[int, set[str]]:
        tests: dict[int, set[str]] = defaultdict(set)
        for line, contexts in self.data.contexts_by_lineno(file).items():
            for context in contexts:
                tests[line].update([context] if context in self.costs else self.users[context])
        return tests

    def of(self, place: Place, limit: float) -> list[str]:
        """Return the tests of a place, the cheapest first, within a limit of CPU seconds."""
        if place.in_function:
            lines = self.tests_by_line(place.file)
            return self.spread(
                set().union(*(lines[line] for line in range(place.line, place.end + 1))), limit, place.file
            )
        word = re.compile(rf"\b({'|'.join(place.names)})\b" if place.names else r"(?!)")
        named: set[str] = set()
        for file in self.files():
            text = (ROOT / file).read_text()
            if word.search(text):
                inside, lines = function_lines(file), self.tests_by_line(file)
                for number, line in enumerate(text.splitlines(), 1):
                    if number in inside and word.search(line):
                        named |= lines[number]
        lines = self.tests_by_line(place.file)
        module = set().union(*(lines[line] for line in function_lines(place.file)))
        if not named and not module:
            stem = Path(place.file).stem
            importing = re.compile(rf"^ *from nsystui[\w.]*(\.{stem} import| import .*\b{stem}\b)", re.MULTILINE)
            for file in self.files():
                if importing.search((ROOT / file).read_text()):
                    module |= set().union(*(self.tests_by_line(file)[line] for line in function_lines(file)))
        first = self.spread(named, limit / 2, place.file)
        return first + [test for test in self.spread(module, limit / 2, place.file) if test not in first]

    def spread(self, tests: Iterable[str], limit: float, file: str) -> list[str]:
        """Return the cheapest test of each file, then its second …, and the tests that execute most lines of ``file``.

        Each half takes half of the limit, and one test at least.
        """
        by_cost = sorted(tests, key=lambda test: (self.costs[test], test))
        seen: Counter[str] = Counter()
        turns = {}
        for test in by_cost:
            turns[test] = seen[test.partition("::")[0]]
            seen[test.partition("::")[0]] += 1
        lines = Counter(test for several in self.tests_by_line(file).values() for test in several)
        chosen: set[str] = set()
        for order in (sorted(by_cost, key=turns.__getitem__), sorted(by_cost, key=lambda test: -lines[test])):
            left = limit / 2
            for number, test in enumerate(order):
                left -= 0 if test in chosen else self.costs[test]
                if left > 0 or number == 0:
                    chosen.add(test)
        return [test for test in by_cost if test in chosen]


@cache
def function_lines(file: str) -> set[int]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    found = (node for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, functions))
    bodies = (node.body if isinstance(node.body, list) else [node.body] for node in found)
    return {line for body in bodies for line in range(body[0].lineno, body[-1].end_lineno + 1)}


class Copy:
    """A copy of the program and its tests, in which mutants are made; the checkout is never changed."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "main"
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, stdout=-1, check=True)
        for name in listed.stdout.decode().splitlines():
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        if (ROOT.parent / "shared").exists():
            (directory / "shared").symlink_to((ROOT.parent / "shared").resolve())
        subprocess.run([sys.executable, "-m", "compileall", "-q", "nsystui", "tests"], cwd=self.root, check=False)

    def run(self, tests: list[str], *options: str, bound: float | None = None, **environment: str) -> tuple[int, str]:
        """Run the tests. Return pytest's exit code and its output, -1 if it hung."""
        paths = os.pathsep.join(map(str, (self.root, self.root / "tests")))
        # Changed code has no bytecode of its own, so that it is never used for the next mutant.
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"} | environment
        arguments = self.root.parent / "arguments"  # names of tests may be too long for a command line
        arguments.write_text("\n".join(tests), encoding="utf-8")
        with tempfile.TemporaryFile() as output:
            program = subprocess.Popen(
                [*PYTEST, f"--basetemp={self.root.parent / 'tmp'}", *options, f"@{arguments}"],
                cwd=self.root, env=environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = program.wait(bound)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                if program.poll() is None:
                    os.killpg(program.pid, signal.SIGKILL)
                    program.wait()
            output.seek(0)
            return code, output.read().decode(errors="replace")


def measured(copy: Copy) -> Lines:
    """Return which tests execute which line, after a run of the tests if they or the program changed since the last."""
    texts = hashlib.sha256()
    files = [*(ROOT / "nsystui").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "tests").rglob("*.txt")]
    for path in sorted(files):
        texts.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    measured_of = MAP / "sha256"
    if measured_of.exists() and measured_of.read_text() == texts.hexdigest():
        return Lines()
    print("measuring which lines each test executes", flush=True)
    shutil.rmtree(MAP, ignore_errors=True)
    MAP.mkdir(parents=True)
    code, output = copy.run(["tests"], "-p", "line_recorder", "-n", "2", "--dist", "worksteal", RECORDED_LINES=str(MAP))
    if code not in (0, 1):
        sys.exit(output)
    print(output.strip().rpartition("\n")[2], flush=True)
    data, found = CoverageData(str(MAP / "lines")), {}
    for part in sorted(MAP.glob("part-*")):
        if part.suffix == ".json":
            found |= json.loads(part.read_text())
        else:
            other = CoverageData(str(part))
            other.read()
            data.update(other)
        part.unlink()
    (MAP / "tests.json").write_text(json.dumps(found))
    data.close()
    measured_of.write_text(texts.hexdigest())
    return Lines()


@dataclass
class Outcome:
    place: Place
    before: str
    after: str
    tests: int
    noticed_by: str
    """The test that failed, or another reason for the end of the run; empty if no test noticed."""

    def __str__(self) -> str:
        before, after = (re.sub(r"\s+", " ", text)[:90] for text in (self.before, self.after))
        return f"{self.place.file}:{self.place.line}: {before}  →  {after}  ({self.tests} tests)"


def tried(place: Place, change: tuple[str, str, str], tests: list[str], copy: Copy, bound: float) -> Outcome:
    text, before, after = change
    path = copy.root / place.file
    path.write_text(text, encoding="utf-8")
    try:
        code, output = copy.run(tests, "-x", bound=bound)
    finally:
        shutil.copy2(ROOT / place.file, path)
    failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+::.*?)(?: - .*)?$", output, re.MULTILINE)
    noticed = failed[1] if failed else {0: "", -1: "it hung"}.get(code, f"pytest ended with {code}")
    return Outcome(place, before, after, len(tests), noticed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="which mutants (default %(default)s)")
    parser.add_argument("--count", type=int, default=100, help="how many (default %(default)s)")
    parser.add_argument("--room", nargs="+", default=[""], help="only in these, e.g. questions ui/screens cli.py")
    parser.add_argument(
        "--limit",
        type=float,
        default=20.0,
        help="CPU seconds of tests, five times as many for those that nothing notices",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants side by side")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory, ThreadPoolExecutor(options.jobs) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(options.jobs):
            copies.put(Copy(Path(directory) / str(number)))
        pristine = Copy(Path(directory) / "pristine")
        lines = measured(pristine)

        chance = random.Random(options.seed)
        found = []
        for file in lines.files():
            if any(file.startswith(f"nsystui/{room}") for room in options.room):
                executed = lines.tests_by_line(file)
                candidates = places(file, ast.parse((ROOT / file).read_text()))
                found += [place for place in candidates if executed.get(place.line) or not place.in_function]
        if not found:
            sys.exit("no executed lines in these rooms")
        chance.shuffle(found)
        print(f"{len(found)} places in executed lines; {options.count} mutants from seed {options.seed}", flush=True)

        def attempt(place: Place, change: tuple[str, str, str], tests: list[str]) -> Outcome:
            """Try the cheapest tests of the line, then also dearer tests: most mutants meet only cheap tests."""
            copy = copies.get()
            try:
                outcome = tried(place, change, tests, copy, 60 + 10 * sum(lines.costs[test] for test in tests))
                more = [test for test in lines.of(place, 5 * options.limit) if test not in tests]
                if more and not outcome.noticed_by:
                    outcome = tried(place, change, more, copy, 60 + 10 * sum(lines.costs[test] for test in more))
                return outcome
            finally:
                copies.put(copy)

        work = []
        for place in found:
            if len(work) < options.count:
                change = mutated((ROOT / place.file).read_text(), place, chance)
                tests = lines.of(place, options.limit)
                if change and tests:
                    work.append(pool.submit(attempt, place, change, tests))
        outcomes = []
        for number, one in enumerate(work, 1):
            outcomes.append(one.result())
            print(f"{number:4} {outcomes[-1].noticed_by or 'SURVIVED'}: {outcomes[-1]}", flush=True)

        # A test that fails without a mutant has noticed nothing.
        tests = sorted({outcome.noticed_by for outcome in outcomes if outcome.noticed_by.startswith("tests/")})
        for test in re.findall(r"^(?:FAILED|ERROR) (tests/\S+::.*?)(?: - .*)?$", pristine.run(tests)[1], re.MULTILINE):
            print(f"fails without a mutant: {test}")
            for outcome in outcomes:
                outcome.noticed_by = "" if outcome.noticed_by == test else outcome.noticed_by

    rooms = Counter(outcome.place.file.split("/")[1] for outcome in outcomes)
    noticed = Counter(outcome.place.file.split("/")[1] for outcome in outcomes if outcome.noticed_by)
    print("\nnot noticed:", *(outcome for outcome in outcomes if not outcome.noticed_by), sep="\n")
    print("\n" + ", ".join(f"{room} {noticed[room]} of {tried}" for room, tried in sorted(rooms.items())))
    print(f"noticed {noticed.total()} of {rooms.total()}: {noticed.total() / rooms.total():.0%}")


if __name__ == "__main__":
    main()
