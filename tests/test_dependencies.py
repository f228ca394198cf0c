"""The lower bounds of the dependencies, which ``.ci/run`` installs from ``lowest.txt``, and the upper bounds.

``python tests/test_dependencies.py --update`` writes ``lowest.txt`` from the bounds in ``pyproject.toml``.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOWEST = Path(__file__).parent / "lowest.txt"
CHECKED_ELSEWHERE = ("dev", "screenshots")
"""The extras that no user installs and no test imports."""


def requirements() -> Iterator[tuple[str, str]]:
    """Yield each dependency, also of the extras, as its name and its bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [
        *project["dependencies"],
        *(line for name in extras.keys() - set(CHECKED_ELSEWHERE) for line in extras[name]),
    ]
    for line in lines:
        name, bounds = re.fullmatch(r"([\w-]+)(?:\[[\w,-]+\])?(.*)", line).groups()
        if name != project["name"]:
            yield name, bounds


def lowest() -> str:
    """Return the constraints of the oldest set that the bounds allow, one dependency a line."""
    pins = sorted(f"{name}=={re.search(r'>=([0-9.]+)', bounds)[1]}" for name, bounds in requirements())
    return "# The oldest set that pyproject.toml allows: python tests/test_dependencies.py --update\n" + "".join(
        f"{pin}\n" for pin in pins
    )


def test_the_lowest_set_is_that_of_the_bounds():
    assert LOWEST.read_text(encoding="utf-8") == lowest(), "python tests/test_dependencies.py --update"


def test_a_library_whose_private_modules_are_used_is_bound_to_one_minor_version():
    private: set[str] = set()
    for path in (ROOT / "nsystui").rglob("*.py"):
        private |= set(re.findall(r"^ *(?:from|import) (\w+)[.\w]*\._[a-z]", path.read_text(encoding="utf-8"), re.M))
    assert "textual" in private
    bounds = dict(requirements())
    for library in private & bounds.keys():
        first, last = re.fullmatch(r">=(\d+\.\d+)[.\d]*,<(\d+\.\d+)", bounds[library]).groups()
        major, minor = first.split(".")
        assert last == f"{major}.{int(minor) + 1}", f"{library} may be {last}, which may have no such module"


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python tests/test_dependencies.py --update")
    LOWEST.write_text(lowest(), encoding="utf-8")
