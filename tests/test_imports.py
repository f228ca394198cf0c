"""The arrows of the design, and what each way into the program loads: read from the sources, and in a fresh Python."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nsystui
from nsystui.cli import main
from nsystui.commands import commands
from nsystui.exports import canonical

ROOT = Path(nsystui.__file__).parent
HEAVY = ("pandas", "numpy", "sqlalchemy", "duckdb", "duckdb_engine", "adbc_driver_manager", "pyarrow")
SCREENS = ("textual", "rich")

ROOMS = {
    "base": set(),
    "exports": {"base"},
    "store": {"base", "exports"},
    "questions": {"base", "exports", "store"},
    "output": {"base", "questions"},
    "commands": {"base", "exports", "store", "questions", "output", "ui"},
    "ui": {"base", "exports", "store", "questions", "output"},
}
"""The rooms that each room may use besides itself: never those after it."""


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """The modules that a file imports anywhere in it, also inside functions and for type checking, by full name."""
    package = ["nsystui", *path.relative_to(ROOT).with_suffix("").parts][:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            for name in node.names:
                yield f"{base}.{name.name}", node.lineno


def rooms_of(name: str) -> str:
    """``nsystui.store.cache`` lies in the room ``store``; empty for what is not ours."""
    first, _, rest = name.partition(".")
    return rest.partition(".")[0] if first == "nsystui" else ""


@pytest.mark.parametrize("room", ROOMS)
def test_no_arrow_points_back(room):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules(room)
        for name, line in imported(path)
        if rooms_of(name) not in {"", room, "__version__", *ROOMS[room]}
    ]
    assert wrong == []


KNOWN_CIRCLES = (
    {"nsystui.questions.nvtx.launches", "nsystui.questions.nvtx.ranges", "nsystui.questions.nvtx.report_ranges"},
)
"""Circles that are still to be opened. None may be added, and none may grow."""


def own_imports() -> dict[str, set[str]]:
    """Every module of ours with those that it imports, also inside functions and for type checking."""
    paths = {".".join(("nsystui", *path.relative_to(ROOT).with_suffix("").parts)): path for path in ROOT.rglob("*.py")}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    found = {}
    for name, path in paths.items():
        wanted = {full if full in paths else full.rpartition(".")[0] for full, _ in imported(path)}
        found[name] = wanted & paths.keys() - {name}
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules of which each imports every other one, in the end."""
    reached = {name: set(wanted) for name, wanted in graph.items()}
    while True:
        grown = {name: set().union(wanted, *(reached[one] for one in wanted)) for name, wanted in reached.items()}
        if grown == reached:
            break
        reached = grown
    found = [
        {name} | {one for one in wanted if name in reached[one]} for name, wanted in reached.items() if name in wanted
    ]
    return [circle for number, circle in enumerate(found) if circle not in found[:number]]


def test_no_modules_import_each_other_in_a_circle():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    wrong = [circle for circle in circles(own_imports()) if not any(circle <= known for known in KNOWN_CIRCLES)]
    assert wrong == []


def test_every_canonical_table_that_is_asked_for_exists():
    """``nsystui.store.tables`` makes its attributes, so mypy takes any name for a table."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}"
        for path in sorted(ROOT.rglob("*.py"))
        if "nsystui.store.tables" in dict(imported(path))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tables"
        if node.attr not in {"METADATA", "of", *canonical.BY_NAME}
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ["base", "exports", "store", "questions", "output", "commands"])
def test_only_the_screens_know_textual(room):
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules(room)
        for name, line in imported(path)
        if name.split(".")[0] == "textual"
    ]
    assert wrong == []


def test_only_the_exports_know_nvidias_tables():
    """No screen, command or question names a table of NVIDIA's, but for the first look before packing."""
    names = ("CUPTI_ACTIVITY_KIND", "NVTX_EVENTS", "OSRT_API", "TARGET_INFO_", "META_DATA_", "StringIds")
    allowed = {Path("questions/sample.py"), Path("ui/pictures/overview_lines.py")}
    wrong = []
    for room in ("questions", "output", "commands", "ui"):
        for path in modules(room):
            source = path.read_text(encoding="utf-8")
            if any(name in source for name in names) and path.relative_to(ROOT) not in allowed:
                wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []


def loaded_by(code: str, *words: str) -> tuple[set[str], str]:
    """The top-level modules that ``code`` has loaded in a Python of its own, and what it printed."""
    report = "\nimport sys; print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code + report, *words],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("LOADED ")]
    return set(line.split()[1:]), done.stdout


RUN = "import sys; from nsystui.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["kernels", "--help"], ["open", "--help"], ["kernals"]])
def test_help_and_version_load_nothing_heavy(words):
    loaded, _ = loaded_by(RUN, *words)
    assert loaded.isdisjoint({*HEAVY, *SCREENS, "platformdirs"})


def test_importing_the_command_line_loads_nothing_heavy():
    loaded, _ = loaded_by("import nsystui.cli, nsystui.base.text, nsystui.base.units, nsystui.base.terminal")
    assert loaded.isdisjoint({*HEAVY, *SCREENS})


def test_the_first_screen_is_there_before_anything_heavy_is():
    loaded, _ = loaded_by("import nsystui.ui.app, nsystui.ui.screens.overview")
    assert "textual" in loaded
    assert loaded.isdisjoint(HEAVY)
    assert loaded.isdisjoint({"markdown_it", "pygments", "tree_sitter"})  # Textual has them for widgets not used here


HEADLESS = {
    "triage": [],
    "overview": [],
    "kernels": ["--by", "rank"],
    "nccl": [],
    "gpu": [],
    "metrics": ["--by", "kernel"],
    "ranks": [],
    "steps": [],
    "efficiency": ["--flops-per-step", "1e13"],
    "nvtx": [],
    "events": ["--top", "5"],
    "diff": ["--ranks-a", "0", "--ranks-b", "0"],
    "memory": [],
    "gpu-memory": [],
    "api": [],
    "osrt": [],
    "mpi": [],
    "libraries": [],
    "stats": ["-r", "cuda_gpu_kern_sum"],
    "recipe": ["nccl_gpu_time_util_map"],
    "budget": [],
    "network": ["--by", "collective"],
    "timeline": [],
    "info": [],
    "pack": ["-o", "DIRECTORY"],
    "report": ["-o", "DIRECTORY.html"],
    "ncu": [],
    "export": ["--trace", "-"],
    "threads": [],
    "functions": [],
    "calltree": [],
    "gaps": [],
}


def test_every_command_that_answers_from_exports_without_a_screen_is_tried():
    assert HEADLESS.keys() == commands().keys() - {"open", "demo", "help", "nccl-log", "record", "schema"}


def test_no_headless_command_loads_the_screens(demo_job, tmp_path):
    """All in one Python, as each costs a start of a second."""
    asked = [[command, *words, str(demo_job[0])] for command, words in HEADLESS.items()]
    lines = [f"main({[word.replace('DIRECTORY', str(tmp_path)) for word in words]!r})" for words in asked]
    loaded, _ = loaded_by("import sys; from nsystui.cli import main\n" + "\n".join(lines))
    assert "duckdb" in loaded
    of_pandas, _ = loaded_by("import pandas")  # which takes pyarrow where there is one
    assert (loaded - of_pandas).isdisjoint({"textual", "pyarrow"})


_QUERIES = {"numpy", "sqlalchemy", "duckdb"}
LOADS = {
    "overview": {"numpy"},
    "gpu": {"numpy"},
    "ranks": {"numpy", "sqlalchemy"},
    "steps": {"numpy", "sqlalchemy"},
    "kernels --by rank": _QUERIES,
    "api": _QUERIES,
    "stats -r cuda_api_sum": _QUERIES,
    "events --top 5": _QUERIES,
    "timeline": _QUERIES,
    "efficiency": _QUERIES,
    "budget": _QUERIES,
    "gaps": _QUERIES,
    "info": _QUERIES,
    "nccl": {*_QUERIES, "pandas"},
    "triage": {*_QUERIES, "pandas"},
    "nvtx": {*_QUERIES, "pandas"},
}
"""The most that each command loads to answer of a packed rank: SQLAlchemy and DuckDB for a query, pandas for frames."""


@pytest.fixture(scope="module")
def packed_rank(demo_job, tmp_path_factory):
    place = tmp_path_factory.mktemp("packed") / "job"
    main(["pack", str(demo_job[0]), "-o", str(place)])
    return place


@pytest.mark.parametrize("command", LOADS)
def test_a_command_loads_only_what_it_uses(packed_rank, command):
    no_dialect = "\nassert not [name for name in sys.modules if name.startswith('sqlalchemy.dialects.')]"
    loaded, _ = loaded_by(RUN + no_dialect, *command.split(), str(packed_rank))
    assert loaded & {*HEAVY, "textual"} - {"pyarrow"} <= LOADS[command]  # pandas takes pyarrow where there is one


def test_writing_a_demo_loads_nothing_heavy(tmp_path):
    words = ["--write-only", "--ranks", "1", "--steps", "1", "--directory", str(tmp_path)]
    loaded, printed = loaded_by(RUN, "demo", *words)
    assert printed.splitlines() == [str(tmp_path / "rank0.sqlite")]
    assert loaded.isdisjoint({*HEAVY, *SCREENS})
