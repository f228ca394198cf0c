"""Installations of the program into new virtual environments, only on request, because they take minutes.

``NSYSTUI_INSTALL_TESTS=1 python -m pytest -n 0 tests/test_installation.py`` tries every Python from 3.11 on
that is found, with the oldest dependencies that ``pyproject.toml`` allows and with the newest, and an offline
install. No ``PATH`` has a compiler.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("sh", "env", "git", "uname")
"""Programs that any shell has, without a compiler."""

LOWEST = ROOT / "tests/lowest.txt"

A_SCREEN = """
import asyncio, sys
import idle
from nsystui.ui.app import NsystuiApp
from nsystui.questions.job.opening import JobSource

async def main():
    app = NsystuiApp(JobSource(tuple(sys.argv[1:])))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("2", "7", "1")
        print(app.export_screenshot())

asyncio.run(main())
"""

pytestmark = pytest.mark.skipif(
    not os.environ.get("NSYSTUI_INSTALL_TESTS"),
    reason="installs into new environments for minutes: set NSYSTUI_INSTALL_TESTS=1",
)


def pythons() -> list[str]:
    """Return a Python for each minor version from 3.11 on: on the PATH, and in pyenv's directory."""
    places = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted((Path.home() / ".pyenv/versions").glob("*/bin"))
    found: dict[int, str] = {}
    for place in places:
        for path in sorted(place.glob("python3.*")):
            match = re.fullmatch(r"python3\.(\d+)", path.name)
            if match and int(match[1]) >= 11 and int(match[1]) not in found and (real := real_python(path)):
                found[int(match[1])] = real
    return [found[minor] for minor in sorted(found)] or [sys.executable]


def real_python(python: Path) -> str:
    """Return its path if it can make virtual environments; some of pyenv's commands only choose a version, or none."""
    asked = [python, "-c", "import ensurepip, sys, venv; print(sys._base_executable)"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


PYTHONS = pythons() if os.environ.get("NSYSTUI_INSTALL_TESTS") else [sys.executable]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return a fresh clone of the committed files."""
    directory = tmp_path_factory.mktemp("stranger") / "nsystui"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(directory)], check=True)
    return directory


@pytest.fixture
def environ(tmp_path):
    """Return an environment without a compiler, with new directories."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in filter(None, map(shutil.which, TOOLS)):
        (tools / Path(tool).name).symlink_to(tool)
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "LANG", "LC_", "SSL_"))}
    for name in ("HOME", "TMPDIR"):
        (tmp_path / name).mkdir()
    own = {"PATH": str(tools), "HOME": str(tmp_path / "HOME"), "TMPDIR": str(tmp_path / "TMPDIR")}
    pip_config = Path.home() / ".config/pip/pip.conf"
    return {**kept, **({"PIP_CONFIG_FILE": str(pip_config)} if pip_config.exists() else {}), **own}


def told(words, environ, **options) -> str:
    """Return the output of a program; if it fails, fail with its messages."""
    done = subprocess.run([str(word) for word in words], env=environ, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def new_environment(python: str, directory: Path, environ) -> Path:
    told([python, "-m", "venv", directory], environ)
    return directory / "bin"


def try_it(binaries: Path, directory: Path, environ) -> None:
    """Run a command of each kind, and three screens."""
    assert shutil.which("cc", path=environ["PATH"]) is None
    assert "usage: nsystui" in told([binaries / "nsystui", "--help"], environ)
    assert "# Numbers" in told([binaries / "nsystui", "help", "numbers"], environ)
    words = ["demo", "--write-only", "--directory", directory / "job"]
    exports = told([binaries / "nsystui", *words], environ).split()
    assert len(told([binaries / "nsystui", "kernels", *exports, "--format", "csv"], environ).splitlines()) > 2
    assert "rank" in told([binaries / "nsystui", "triage", *exports], environ)
    told([binaries / "nsystui", "nvtx", exports[0], "-o", directory / "nvtx.parquet"], environ)
    told([binaries / "nsystui", "pack", *exports, "-o", directory / "packed"], environ)
    assert "rank" in told([binaries / "nsystui", "info", directory / "packed"], environ)
    picture = told([binaries / "python", "-c", A_SCREEN, *exports], {**environ, "PYTHONPATH": str(ROOT / "tests")})
    assert "Overview" in picture
    assert "GPU" in picture


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("versions", ["newest", "oldest"])
def test_it_installs_and_works(python, versions, clone, tmp_path, environ):
    binaries = new_environment(python, tmp_path / "venv", environ)
    exactly = ["-c", LOWEST] if versions == "oldest" else []
    told([binaries / "pip", "install", "--quiet", "--only-binary", ":all:", clone, *exactly], environ)
    print(told([binaries / "pip", "list", "--format=freeze"], environ))
    try_it(binaries, tmp_path, environ)


@pytest.mark.parametrize("python", PYTHONS[:1])
def test_it_installs_offline_from_a_wheelhouse(python, clone, tmp_path, environ):
    online = new_environment(python, tmp_path / "online", environ)
    told([online / "pip", "wheel", "--quiet", clone, "-w", tmp_path / "wheelhouse"], environ)
    offline = {name: value for name, value in environ.items() if not name.startswith("PIP_")}
    offline |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
    binaries = new_environment(python, tmp_path / "offline", offline)
    told([binaries / "pip", "install", "--quiet", "--find-links", tmp_path / "wheelhouse", "nsystui"], offline)
    try_it(binaries, tmp_path, offline)


def test_the_two_commands_of_the_readme_work(clone, tmp_path, environ):
    """The first command is unchanged, except that it writes the demo instead of opening it, without a terminal."""
    readme = (clone / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in readme.splitlines() if line.endswith(".venv/bin/nsystui demo")]
    (Path(environ["PATH"]) / "python3").symlink_to(PYTHONS[0])
    told(["sh", "-euc", f"{line} --write-only --directory {tmp_path / 'job'}"], environ, cwd=clone)
    assert len(list((tmp_path / "job").glob("rank*.sqlite"))) == 4


@pytest.mark.parametrize(("remote", "page"), [
    ("git@host.example:someone/tool.git", "https://host.example/someone/tool"),
    ("https://me@host.example/group/tool", "https://host.example/group/tool"),
    ("/a/directory", ""),
])  # fmt: skip
def test_a_wheel_has_the_addresses_of_its_repository(remote, page, clone, tmp_path, environ):
    told(["git", "-C", clone, "remote", "set-url", "origin", remote], environ)
    binaries = new_environment(PYTHONS[0], tmp_path / "venv", environ)
    told([binaries / "pip", "wheel", "--quiet", "--no-deps", clone, "-w", tmp_path], environ)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        metadata = wheel.read("nsystui-0.1.0.dist-info/METADATA").decode()
    assert f"]({page}/raw/main/screenshots/".replace("](/raw/main/", "](") in metadata
    assert (f"Project-URL: Repository, {page}\n" in metadata) == bool(page) == ("\nProject-URL: " in metadata)
