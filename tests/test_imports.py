"""Imports between rooms, read from the sources, and the modules that each entry point loads in a fresh Python."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from files_run import numbers_of_files
from jobs import running

import nsystui
from nsystui.cli import main
from nsystui.commands import commands
from nsystui.exports import canonical

ROOT = Path(nsystui.__file__).parent
HEAVY = ("pandas", "numpy", "sqlalchemy", "duckdb", "duckdb_engine", "adbc_driver_manager", "pyarrow")
SCREENS = ("textual", "rich")

ROOMS = {
    "base": set(), "exports": {"base"}, "store": {"base", "exports"},
    "questions": {"base", "exports", "store"}, "output": {"base", "questions"},
    "commands": {"base", "exports", "store", "questions", "output", "ui"},
    "ui": {"base", "exports", "store", "questions", "output"},
}  # fmt: skip
"""The rooms that each room may use in addition to itself: only rooms above it."""


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> tuple[tuple[str, int], ...]:
    """Return the full names of the modules that a file imports, also inside functions and for type checking."""
    package = ["nsystui", *path.relative_to(ROOT).with_suffix("").parts][:-1]
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [(name.name, node.lineno) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            found += [(f"{base}.{name.name}", node.lineno) for name in node.names]
    return tuple(found)


def rooms_of(name: str) -> str:
    """Return the room of a module, ``store`` for ``nsystui.store.cache``; empty for modules of other packages."""
    first, _, rest = name.partition(".")
    return rest.partition(".")[0] if first == "nsystui" else ""


def test_no_arrow_points_back_and_only_the_screens_know_textual():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for room, others in ROOMS.items()
        for path in modules(room)
        for name, line in imported(path)
        if rooms_of(name) not in {"", room, "__version__", *others}
        or (name.partition(".")[0] == "textual" and room != "ui")
    ]
    assert wrong == []


def own_imports() -> dict[str, set[str]]:
    """Return every module of nsystui with its imports, also inside functions and for type checking."""
    paths = {".".join(("nsystui", *path.relative_to(ROOT).with_suffix("").parts)): path for path in ROOT.rglob("*.py")}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    found = {}
    for name, path in paths.items():
        wanted = {full if full in paths else full.rpartition(".")[0] for full, _ in imported(path)}
        found[name] = wanted & paths.keys() - {name}
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other, directly or not, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_modules_import_each_other_in_a_circle():
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})) == {"b", "c"}
    assert circle(own_imports()) == []


@pytest.mark.campaign
def test_the_rooms_of_questions_import_each_other_in_no_circle():
    """Types may be imported from above: a job has the results of questions, and a question is asked of a job."""
    graph: dict[str, set[str]] = {}
    for path in sorted((ROOT / "questions").rglob("*.py")):
        room, *inside = path.relative_to(ROOT / "questions").parts
        assert inside or room == "__init__.py", f"{path} stands in no room"
        for_types = {
            name
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for one in node.body
            if isinstance(one, ast.ImportFrom)
            for name in (f"{one.module}.{alias.name}" for alias in one.names)
        }
        wanted = {name for name, _ in imported(path) if name not in for_types}
        others = {name.split(".")[2] for name in wanted if name.startswith("nsystui.questions.")}
        graph.setdefault(room, set()).update(others - {room})
    assert circle(graph) == []


def test_the_name_of_a_public_type_is_used_once():
    """A reader knows the type or alias by its name, and a search finds only its uses."""
    where: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in parsed(path).body:
            names = [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]  # aliases
            for name in [node.name] if isinstance(node, ast.ClassDef) else names:
                if name[0].isupper() and not name.isupper():
                    where.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_every_canonical_table_that_is_asked_for_exists():
    """``nsystui.store.tables`` creates its attributes, so mypy accepts any name as a table."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}"
        for path in sorted(ROOT.rglob("*.py"))
        if "nsystui.store.tables" in dict(imported(path))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tables"
        if node.attr not in {"METADATA", "of", *canonical.BY_NAME}
    ]
    assert wrong == []


def test_only_the_exports_know_nvidias_tables():
    """No screen, command or question names a native table, except the sample before packing."""
    names = ("CUPTI_ACTIVITY_KIND", "NVTX_EVENTS", "OSRT_API", "TARGET_INFO_", "META_DATA_", "StringIds")
    allowed = {Path("questions/capture/sample.py"), Path("ui/pictures/overview_lines.py")}
    others = [path for room in ("questions", "output", "commands", "ui") for path in modules(room)]
    telling = [path for path in others if any(name in path.read_text(encoding="utf-8") for name in names)]
    assert [path for path in telling if path.relative_to(ROOT) not in allowed] == []


def loaded_after(*steps: str) -> list[set[str]]:
    """Return the modules that a fresh Python has loaded after each step."""
    report = "print('LOADED', *sys.modules, file=sys.stderr)"
    words = [sys.executable, "-c", "\n".join(["import sys", *(f"{step}\n{report}" for step in steps)])]
    done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return [set(line.split()[1:]) for line in done.stderr.splitlines() if line.startswith("LOADED ")]


def run(*words: object) -> str:
    return f"try: main({[str(word) for word in words]!r})\nexcept SystemExit: pass"


MAIN = "from nsystui.cli import main"


def test_help_version_the_demo_and_the_writing_of_answers_load_nothing_heavy(tmp_path):
    words = ["demo", "--write-only", "--directory", tmp_path]
    steps = [
        "import nsystui.base.text, nsystui.base.units, nsystui.base.terminal",
        MAIN,
        *(run(*line.split()) for line in ("--help", "--version", "kernels --help", "open --help", "kernals")),
        "import nsystui.output.files, nsystui.output.files, nsystui.output.formats",
        run(*words),
    ]
    for step, loaded in zip(steps, loaded_after(*steps), strict=True):
        heavy = {*HEAVY, *SCREENS} if "demo" in step else {*HEAVY, *SCREENS, "platformdirs", "tomllib"}
        assert loaded.isdisjoint(heavy), step
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rank{rank}.sqlite" for rank in range(4)]


def test_a_file_that_is_not_there_is_missed_before_anything_heavy_is_loaded(tmp_path):
    lines = ("kernels", "kernels --by rank", "nccl --calls", "stats -r cuda_gpu_kern_sum", "triage", "info", "ncu")
    steps = [MAIN, *(run(*line.split(), tmp_path / "none.sqlite") for line in lines)]
    for step, loaded in zip(steps, loaded_after(*steps), strict=True):
        assert loaded.isdisjoint({*HEAVY, *SCREENS}), step


def test_the_version_is_printed_by_a_few_of_the_programs_modules_and_help_by_the_catalogue_too():
    """An import of 20 ms takes three times as long as the start of Python."""
    slow = {"dataclasses", "decimal", "inspect", "json", "nsystui.base.answer", "nsystui.output.files"}
    _, version, help_text = loaded_after(MAIN, run("--version"), run("--help"))
    assert version.isdisjoint({*slow, "nsystui.questions.queries.question"})
    assert help_text.isdisjoint(slow)


@pytest.mark.campaign
def test_the_first_screen_is_there_before_anything_heavy_is():
    (loaded,) = loaded_after("import nsystui.ui.app, nsystui.ui.screens.overview")
    assert "textual" in loaded
    assert loaded.isdisjoint(HEAVY)
    assert loaded.isdisjoint(
        {"markdown_it", "pygments", "tree_sitter"}
    )  # Textual imports them for widgets that are not used


@pytest.mark.campaign
async def test_what_is_kept_of_a_known_job_is_found_before_anything_heavy_is(demo_job, tmp_path):
    async with running(demo_job, tmp_path):
        pass
    screen = "import nsystui.ui.app, nsystui.ui.screens.overview"
    source = f"JobSource({tuple(map(str, demo_job))!r}, Path({str(tmp_path)!r}))"
    find = "from pathlib import Path; from nsystui.questions.job.opening import JobSource"
    kept = f"{find}; assert nsystui.ui.app.kept_overview({source}).kernels"
    assert loaded_after(screen, kept)[-1].isdisjoint(HEAVY)


# Most commands need no arguments.
HEADLESS = {
    "triage": "", "overview": "", "kernels": "--by rank", "nccl": "", "gpu": "", "metrics": "--by kernel", "ranks": "",
    "steps": "", "efficiency": "--flops-per-step 1e13", "nvtx": "", "events": "--top 5", "memory": "", "gpu-memory": "",
    "diff": "--ranks-a 0 --ranks-b 0", "api": "", "osrt": "", "mpi": "", "libraries": "", "budget": "", "info": "",
    "stats": "-r cuda_gpu_kern_sum", "recipe": "nccl_gpu_time_util_map", "network": "--by collective", "timeline": "",
    "pack": "-o DIRECTORY", "report": "-o DIRECTORY.html", "ncu": "", "export": "--trace -", "threads": "",
    "functions": "", "calltree": "", "gaps": "", "path": "", "streams": "", "overhead": "",
}  # fmt: skip


def test_every_command_that_answers_from_exports_without_a_screen_is_tried():
    assert HEADLESS.keys() == commands().keys() - {"open", "demo", "help", "nccl-log", "record", "schema"}


@pytest.mark.campaign
def test_no_headless_command_loads_the_screens(demo_job, tmp_path):
    asked = [(command, *words.replace("DIRECTORY", str(tmp_path)).split()) for command, words in HEADLESS.items()]
    every = loaded_after(MAIN, *(run(*words, demo_job[0]) for words in asked))
    assert "duckdb" in every[-1]
    (of_pandas,) = loaded_after("import pandas")  # imports pyarrow if it is installed
    for command, loaded in zip(HEADLESS, every[1:], strict=True):
        assert (loaded - of_pandas).isdisjoint({"textual", "pyarrow"}), command


_QUERIES = {"numpy", "sqlalchemy", "duckdb"}
LOADS = {
    **{name: {"numpy"} for name in ("overview", "gpu")},
    **{name: {"numpy", "sqlalchemy"} for name in ("ranks", "steps")},
    **dict.fromkeys(("kernels --by rank", "api", "stats -r cuda_api_sum", "events --top 5"), _QUERIES),
    **dict.fromkeys(("timeline", "efficiency", "budget", "gaps", "info", "nvtx"), _QUERIES),
    **{name: {*_QUERIES, "pandas"} for name in ("nccl", "triage")},
}
"""The packages that each command may load to answer about a packed rank: SQLAlchemy and DuckDB for a query, pandas for

Commands that may load less run first, so that a single Python can run all and detect each that loads too much.
"""


SOME = ("overview", "ranks", "kernels --by rank", "nccl")


@pytest.mark.parametrize("commands", [SOME, pytest.param(tuple(LOADS), marks=pytest.mark.campaign)], ids=len)
def test_a_command_loads_only_what_it_uses(demo_job, tmp_path, commands):
    main(["pack", str(demo_job[0]), "-o", str(tmp_path / "job")])
    every = loaded_after(MAIN, *(run(*command.split(), tmp_path / "job") for command in commands))
    for command, loaded in zip(commands, every[1:], strict=True):
        # pandas imports pyarrow if it is installed
        assert loaded & {*HEAVY, "textual"} - {"pyarrow"} <= LOADS[command], command
        assert not [name for name in loaded if name.startswith("sqlalchemy.dialects.")], command
    assert "pandas" in every[-1]


def test_an_answer_runs_few_files(tmp_path):
    """A reader who follows an answer opens these files: a lower number may replace a limit, never a higher one."""
    numbers = numbers_of_files(tmp_path)
    assert numbers["kernels, remembered"] <= 25 and numbers["kernels"] <= 60 and numbers["triage"] <= 120, numbers
