"""``nsystui info``: identity and contents of exports, and messages of nsys about its capture."""

from __future__ import annotations

import argparse
import os
import platform
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.answer import Unit
from nsystui.base.errors import ExportError, NsystuiError, UsageError
from nsystui.base.selection import Selection
from nsystui.base.terminal import original_environ
from nsystui.base.units import format_value
from nsystui.base.version import __version__
from nsystui.commands import arguments as shared
from nsystui.commands.configuration import Config, default_path
from nsystui.commands.request import Request
from nsystui.commands.tables import deliver_tables
from nsystui.output.files import print_lines
from nsystui.questions.queries.question import Titled

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.questions.job.job import OpenJob
    from nsystui.store.cache import Cache


TITLES = {
    "reports": "Exports",
    "contents": "What they hold",
    "launches": "Launches and their kernels",
    "diagnostics": "What nsys said of its own capture",
    "job-output": "What the application printed",
}
TABLES = ("reports", "contents", "launches", "diagnostics")

DESCRIPTION = """What the exports are: a row for each with nsys and schema version, host, GPUs, duration, ranks and what
their numbers come from; their contents, and what to record for missing data; which kernel launches have no kernel; what
nsys said of its own capture. All four tables are printed as text or Markdown; one of them (--show, else `reports`) as
CSV or JSON, to a file, sorted or cut. Captured environments are never shown. With --job-output it shows what the
application printed, line by line, with time and step where a line begins with a time; it never shows tokens or lines
that look like environment variables.
With --diagnostics it describes the program instead, for a bug report: versions, terminal, cache, limits, config file,
and the tables of the exports with their rows; no hosts, no kernel names, and no paths except the names of FILE."""
EXAMPLES = """  nsystui info rank*.sqlite
  nsystui info results/ --show contents
  nsystui info rank0.sqlite --format json
  nsystui info rank0.sqlite --job-output
  nsystui info --diagnostics rank0.sqlite"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser, nargs="*")
    parser.add_argument(
        "--diagnostics", action="store_true", help="what to paste into a bug report; FILE may be left out"
    )
    group = parser.add_argument_group("table")
    group.add_argument("--job-output", action="store_true", help="what the application printed")
    group.add_argument("--show", choices=TABLES, help="only this table")
    shared.add_format(parser)


def run(request: Request) -> int:
    args = request.args
    if args["diagnostics"]:
        _print_diagnostics(request)
        return 0
    if not request.opening.files:
        raise UsageError("name an export, such as `nsystui info rank0.sqlite`, or ask for --diagnostics")
    request.check()
    with shared.opened(request) as (job, _):
        with job.session.waiting("info"):
            tables = [Titled(name, TITLES[name], table_of(job, name)) for name in _table_names(request)]
        if len(tables) > 1:
            deliver_tables(request, tables)
            return 0
        status = shared.deliver(request, tables[0].answer)
        # A capture without messages lacks nothing.
        return status if args["show"] or args["job_output"] else 0


def _print_diagnostics(request: Request) -> None:
    """Print facts for a bug report; an invalid limit becomes a line, because the bug may be there."""
    from nsystui.base import resources

    config, environ = request.config, original_environ()
    lines = [*program_lines(), *terminal_lines(environ)]
    try:
        limits, memory = request.limits, resources.memory()
        available = "unknown" if memory is None else _size_words(memory)
        threads = f"{limits.threads} threads of {resources.cpus()} CPUs"
        lines.append(f"limits: {threads}, {_size_words(limits.memory)} of {available} memory")
        lines += cache_lines(request.cache, config, os.environ)
    except UsageError as error:
        lines.append(f"limits: {error}")
    lines += config_lines(config, request.args["no_config"], os.environ)
    print_lines([*lines, *export_lines(request.opening.files)])


def _table_names(request: Request) -> tuple[str, ...]:
    args, output = request.args, request.output
    if args["job_output"] and args["show"]:
        raise UsageError("--job-output cannot be combined with --show")
    if args["job_output"] or args["show"]:
        return (args["show"] or "job-output",)
    is_single = output.format in ("csv", "json") or output.target or output.sort or output.top is not None
    return TABLES[:1] if is_single else TABLES


def table_of(job: OpenJob, name: str) -> Answer:
    """Return one of `TABLES`, or ``job-output``."""
    from nsystui.questions.capture.job_output import output_table
    from nsystui.questions.capture.launch_account import account_table
    from nsystui.questions.queries.reports import contents_table, diagnostics_table, reports_table

    tables: dict[str, Callable[[], Answer]] = {
        "reports": lambda: reports_table(job.session, job.ranks),
        "contents": lambda: contents_table(job.session),
        "launches": lambda: account_table(job),
        "diagnostics": lambda: diagnostics_table(job.session, Selection()),
        "job-output": lambda: output_table(job),
    }
    return tables[name]()


PACKAGES = (
    *("textual", "rich", "sqlalchemy", "pandas", "numpy", "duckdb", "adbc-driver-sqlite", "adbc-driver-manager"),
    *("platformdirs", "ijson", "argcomplete", "distributed", "pyarrow"),
)
SHOWN_VARIABLES = ("TERM", "COLORTERM", "TERM_PROGRAM", "LANG", "LC_ALL", "LC_CTYPE", "COLUMNS", "LINES")
SHOWN_AS_SET = ("NO_COLOR", "NSYSTUI_CACHE_DIR", "NSYSTUI_CACHE_LIMIT", "NSYSTUI_JOBS", "NSYSTUI_MEMORY_LIMIT")
"""Variables that are shown as set, without their values."""


def program_lines() -> Iterator[str]:
    """Yield the versions of the program, its packages and the system."""
    libc = " ".join(platform.libc_ver()).strip()
    yield f"nsystui: {__version__}"
    yield f"python: {platform.python_version()} ({platform.python_implementation()})"
    yield f"platform: {' '.join(filter(None, (platform.system(), platform.release(), platform.machine(), libc)))}"
    yield f"packages: {', '.join(f'{name} {_version_of(name)}' for name in PACKAGES)}"


def _version_of(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def terminal_lines(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the environment, type and size of the terminal, and its streams."""
    shown_variables = [f"{name}={environ[name]}" for name in SHOWN_VARIABLES if name in environ]
    shown_variables += [f"{name} set" for name in SHOWN_AS_SET if environ.get(name)]
    ssh = any(environ.get(name) for name in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"))
    yield f"environment: {', '.join(shown_variables) or 'no variable that is shown here'}"
    yield f"terminal: {_size()}, tmux {_yes('TMUX' in environ)}, screen {_yes('STY' in environ)}, ssh {_yes(ssh)}"
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    words = [f"{name} {_stream_kind(stream)}" for name, stream in streams.items()]
    yield f"streams: {', '.join(words)}"


def _size() -> str:
    for descriptor in (2, 1, 0):
        try:
            size = os.get_terminal_size(descriptor)
        except OSError:
            continue
        return f"{size.columns}x{size.lines}"
    return "none"


def _stream_kind(stream: object) -> str:
    if stream is None:
        return "closed"
    is_terminal = getattr(stream, "isatty", lambda: False)()
    return f"{'terminal' if is_terminal else 'no terminal'} ({getattr(stream, 'encoding', None)})"


def _yes(is_true: bool) -> str:
    return "yes" if is_true else "no"


def cache_lines(cache: Cache, config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the setting that chose the directory of the cache, and its state."""
    origin = "the user's cache directory"
    if environ.get("NSYSTUI_CACHE_DIR"):
        origin = "NSYSTUI_CACHE_DIR"
    elif config.cache_dir:
        origin = "cache-dir of the config file"
    yield f"cache: {origin}; {', '.join(_state(cache))}"


def _state(cache: Cache) -> Iterator[str]:
    from nsystui.store.cache import size_of

    try:
        status = cache.directory.stat()
    except FileNotFoundError:
        yield "not there yet"
    except OSError as error:
        yield f"cannot be accessed: {error.strerror}"
    else:
        yield f"mode {stat.S_IMODE(status.st_mode):04o}{'' if status.st_uid == os.getuid() else ', of another user'}"
        if stat.S_IMODE(status.st_mode) & stat.S_IWOTH:
            yield "every user can write to it, so it is not used"
        yield "writable" if os.access(cache.directory, os.W_OK | os.X_OK) else "not writable"
        yield f"{_size_words(size_of(cache.directory))} in it"
    yield f"limit {_size_words(cache.cap)}"
    yield f"file system {file_system(cache.directory) or 'unknown'}"


def file_system(directory: Path | str, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Return the type of a directory's file system, if known; the directory need not exist."""
    path = os.path.realpath(directory)
    mount, mount_type = "", None
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        if len(point) >= len(mount) and (path + "/").startswith(point.rstrip("/") + "/"):
            mount, mount_type = point, after.split()[0]
    return mount_type


def config_lines(config: Config, is_refused: bool, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the config file that was read, and its keys."""
    if not config.path:
        yield f"config: {'not read (--no-config)' if is_refused else 'no file'}"
        return
    is_default = str(default_path(environ)) == config.path
    name = "nsystui/config.toml in the user's config directory" if is_default else Path(config.path).name
    fields = [field for field in ("cache_dir", "cache_limit", "jobs", "memory_limit") if getattr(config, field)]
    names = [field.replace("_", "-") for field in fields]
    names += ["triage" if field == "set" else field.replace("_", "-") for field in config.options]
    yield f"config: {name}, which sets {', '.join(names) or 'nothing'}"


def export_lines(files: Sequence[str]) -> Iterator[str]:
    """Yield each export's schema and its tables' rows, or why it cannot be opened."""
    from nsystui.exports.discover import discover, name_of
    from nsystui.store.opened import look_at
    from nsystui.store.packed_job import JobReport

    try:
        paths = discover(files) if files else []
    except NsystuiError as error:
        yield f"exports: {error}"
        return
    for path in paths:
        name = name_of(path)
        try:
            kind, opened = _size_words(path.stat().st_size), look_at(path)
        except (ExportError, OSError) as error:
            yield f"export {name}: {error.cause if isinstance(error, ExportError) else error.strerror}"
            continue
        counts = opened.native.last_rowid if not isinstance(opened, JobReport) else opened.files.report.counts
        kind = "packed" if isinstance(opened, JobReport) else kind
        nsys, schema = opened.metadata.nsys_version or "unknown", opened.metadata.schema_version or "unknown"
        yield f"export {name}: {kind}, nsys {nsys}, schema {schema}"
        yield from (f"  {table}: {rows:,}" for table, rows in sorted(counts.items()) if not table.startswith("ENUM_"))


def _size_words(size: int) -> str:
    return format_value(Unit.BYTES, size)
