"""What ``nsystui info --diagnostics`` prints: the program, the machine and the exports, to be pasted into a bug report.

No host, user, kernel or command is named, no path but the names of the files that were given, and of the environment
only what is listed here.
"""

from __future__ import annotations

import os
import platform
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from nsystui import __version__
from nsystui.base.columns import Unit
from nsystui.base.errors import ExportError, NsystuiError
from nsystui.base.units import format_value
from nsystui.commands.configuration import Config, default_path
from nsystui.store.cache import Cache
from nsystui.store.database import Limits

PACKAGES = (
    "textual",
    "rich",
    "sqlalchemy",
    "pandas",
    "numpy",
    "duckdb",
    "duckdb-engine",
    "adbc-driver-sqlite",
    "adbc-driver-manager",
    "platformdirs",
    "distributed",
    "pyarrow",
)
SHOWN_VARIABLES = ("TERM", "COLORTERM", "TERM_PROGRAM", "LANG", "LC_ALL", "LC_CTYPE", "COLUMNS", "LINES")
SHOWN_AS_SET = ("NO_COLOR", "NSYSTUI_CACHE_DIR", "NSYSTUI_CACHE_LIMIT", "NSYSTUI_JOBS", "NSYSTUI_MEMORY_LIMIT")
"""Of these it is only told that they are set."""


def program_lines() -> Iterator[str]:
    """What runs, and on what."""
    libc = " ".join(platform.libc_ver()).strip()
    yield f"nsystui: {__version__}"
    yield f"python: {platform.python_version()} ({platform.python_implementation()})"
    yield f"platform: {' '.join(filter(None, (platform.system(), platform.release(), platform.machine(), libc)))}"
    yield f"packages: {', '.join(f'{name} {_version_of(name)}' for name in PACKAGES)}"


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def terminal_lines(environ: Mapping[str, str]) -> Iterator[str]:
    """What is known of the terminal."""
    told = [f"{name}={environ[name]}" for name in SHOWN_VARIABLES if name in environ]
    told += [f"{name} set" for name in SHOWN_AS_SET if environ.get(name)]
    ssh = any(environ.get(name) for name in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"))
    yield f"environment: {', '.join(told) or 'nothing of what is shown here'}"
    yield f"terminal: {_size()}, tmux {_yes('TMUX' in environ)}, screen {_yes('STY' in environ)}, ssh {_yes(ssh)}"
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    words = [f"{name} {_kind(stream)}" for name, stream in streams.items()]
    yield f"streams: {', '.join(words)}"


def _size() -> str:
    for descriptor in (2, 1, 0):
        try:
            size = os.get_terminal_size(descriptor)
        except OSError:
            continue
        return f"{size.columns}x{size.lines}"
    return "none"


def _kind(stream: object) -> str:
    if stream is None:
        return "closed"
    is_terminal = getattr(stream, "isatty", lambda: False)()
    return f"{'terminal' if is_terminal else 'no terminal'} ({getattr(stream, 'encoding', None)})"


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def cache_lines(cache: Cache, config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """Whose directory the cache is, and in what state."""
    chosen = "the user's cache directory"
    if environ.get("NSYSTUI_CACHE_DIR"):
        chosen = "NSYSTUI_CACHE_DIR"
    elif config.cache_dir:
        chosen = "cache-dir of the config file"
    yield f"cache: {chosen}; {', '.join(_state(cache))}"


def _state(cache: Cache) -> Iterator[str]:
    from nsystui.store.cache_directory import size_of

    try:
        status = cache.directory.stat()
    except FileNotFoundError:
        yield "not there yet"
    except OSError as error:
        yield f"cannot be looked at: {error.strerror}"
    else:
        yield f"mode {stat.S_IMODE(status.st_mode):04o}{'' if status.st_uid == os.getuid() else ', of another user'}"
        if stat.S_IMODE(status.st_mode) & stat.S_IWOTH:
            yield "every user can write to it, so it is not used"
        yield "writable" if os.access(cache.directory, os.W_OK | os.X_OK) else "not writable"
        yield f"{_words(size_of(cache.directory))} in it"
    yield f"limit {_words(cache.cap)}"
    yield f"file system {file_system(cache.directory) or 'unknown'}"


def file_system(directory: Path | str, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The type of the file system that a directory lies in, or would; ``None`` where the system does not tell."""
    place = os.path.realpath(directory)
    best, kind = "", None
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        if len(point) >= len(best) and (place + "/").startswith(point.rstrip("/") + "/"):
            best, kind = point, after.split()[0]
    return kind


def limit_lines(limits: Limits) -> Iterator[str]:
    """What the program allows itself, of what there is."""
    from nsystui.store import machine

    memory = machine.memory()
    available = "unknown" if memory is None else _words(memory)
    threads = f"{limits.threads} threads of {machine.cpus()} CPUs"
    yield f"limits: {threads}, {_words(limits.memory)} of {available} memory"


def config_lines(config: Config, is_refused: bool, environ: Mapping[str, str]) -> Iterator[str]:
    """Which config file was read, and what it sets."""
    if not config.path:
        yield f"config: {'not read (--no-config)' if is_refused else 'no file'}"
        return
    usual = str(default_path(environ)) == config.path
    name = "nsystui/config.toml in the user's config directory" if usual else Path(config.path).name
    apart = [one for one in ("cache_dir", "cache_limit", "jobs", "memory_limit") if getattr(config, one)]
    names = [one.replace("_", "-") for one in apart]
    names += ["triage" if one == "set" else one.replace("_", "-") for one in config.options]
    yield f"config: {name}, which sets {', '.join(names) or 'nothing'}"


def export_lines(files: Sequence[str]) -> Iterator[str]:
    """Of each export its schema and the rows of its tables; of what cannot be opened why."""
    from nsystui.exports.discover import discover

    if not files:
        return
    try:
        paths = discover(files)
    except NsystuiError as error:
        yield f"exports: {error}"
        return
    for path in paths:
        yield from _of_export(path)


def _of_export(path: Path) -> Iterator[str]:
    from nsystui.exports.discover import name_of
    from nsystui.store.opened import look_at
    from nsystui.store.packed_job import JobReport

    name = name_of(path)
    try:
        size = path.stat().st_size
        opened = look_at(path)
    except ExportError as error:
        yield f"export {name}: {error.cause}"
        return
    except OSError as error:
        yield f"export {name}: {error.strerror}"
        return
    is_packed = isinstance(opened, JobReport)
    facts = opened.metadata
    counts = opened.files.report.counts if isinstance(opened, JobReport) else opened.native.last_rowid
    kind = "packed" if is_packed else _words(size)
    yield f"export {name}: {kind}, nsys {facts.nsys_version or 'unknown'}, schema {facts.schema_version or 'unknown'}"
    for table, rows in sorted(counts.items()):
        if not table.startswith("ENUM_"):
            yield f"  {table}: {rows:,}"


def _words(size: int) -> str:
    return format_value(Unit.BYTES, size)
