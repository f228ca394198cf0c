"""The config file, limits and cache. Flags override the environment, which overrides the file.

Only a command that runs looks for the file, and TOML is imported only if the file exists.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.base.errors import UsageError, meant
from nsystui.base.files import text_of
from nsystui.base.text import whole_number

if TYPE_CHECKING:
    from nsystui.base.kernel_families import Rules
    from nsystui.base.resources import Limits
    from nsystui.store.cache import Cache


CLOCKS = ("collectives", "utc", "own")
THEMES = ("dark", "light")
# tomllib takes quadratic time for long lines; Python can print integers with this many digits.
_MAX_BYTES, _MAX_LINE = 1 << 16, 2_000


@dataclass(frozen=True)
class Config:
    """The contents of the config file; ``path`` is empty if no file was read.

    ``options`` contains defaults by their names in a parsed command line. ``jobs`` and sizes (bytes) are separate,
    because environment variables rank between flag and file; so are ``families``, which have no option.
    """

    path: str = ""
    cache_dir: str = ""
    cache_limit: int | None = None
    jobs: int | None = None
    memory_limit: int | None = None
    families: Rules = ()
    options: Mapping[str, Any] = field(default_factory=dict)


NO_CONFIG = Config()


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and ``--no-config``."""
    group = parser.add_argument_group("config file").add_mutually_exclusive_group()
    group.add_argument(
        "--config",
        dest="config_file",
        metavar="FILE",
        help="defaults for options, instead of $XDG_CONFIG_HOME/nsystui/config.toml",
    )
    group.add_argument("--no-config", action="store_true", help="read no config file")


def default_path(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the user's config file, or ``None`` for a user without a home."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # the XDG specification ignores relative paths
        home = os.path.expanduser("~")
        if home == "~":
            return None
        base = os.path.join(home, ".config")
    return Path(base, "nsystui", "config.toml")


def remembered(environ: Mapping[str, str], is_refused: bool) -> Mapping[str, str]:
    """Return the ``theme`` that was chosen on a screen, if any, unless ``--no-config`` refuses it."""
    with suppress(OSError, UnicodeDecodeError):
        theme = text_of(Path(default_path(environ) or os.devnull).with_name("theme"), 64)
        return {"theme": theme} if theme in THEMES and not is_refused else {}
    return {}


def remember_theme(theme: str, environ: Mapping[str, str] = os.environ) -> None:
    """Save a theme next to the config file for later sessions; empty to forget it. Raises OSError and OutputError."""
    from nsystui.output.files import save_text

    config = default_path(environ)
    if config is None:
        raise OSError("there is no home directory to keep it in")
    config.parent.mkdir(parents=True, exist_ok=True)
    save_text(theme, config.with_name("theme"), overwrite=True)


def config_for(named: str | None, environ: Mapping[str, str]) -> Config:
    """Read the file of ``--config``, or else the user's. Raises UsageError as `read_config` does."""
    path = Path(named) if named else default_path(environ)
    if path is None or not (named or os.path.lexists(path)):
        return NO_CONFIG
    return read_config(path, environ)


def read_config(path: Path, environ: Mapping[str, str]) -> Config:
    """Read a config file. Raises UsageError with the file, the key and the allowed values."""
    import tomllib

    try:
        text = text_of(path, _MAX_BYTES)
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > _MAX_LINE:
                raise UsageError(f"{path}:{number}: a line of more than {_MAX_LINE:,} characters; shorten it")
        entries = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error} (--no-config starts without a config file)") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}, so it is not TOML") from None
    except RecursionError:
        raise UsageError(f"{path}: its lists are nested too deep for a config file") from None
    except ValueError as error:  # TOMLDecodeError, or a number of more digits than Python reads
        raise UsageError(f'{path}: not TOML: {error}; a line is KEY = VALUE, such as memory-limit = "1G"') from None
    return _config(path, environ, entries)


def _config(path: Path, environ: Mapping[str, str], entries: Mapping[str, Any]) -> Config:
    options: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for key, value in entries.items():
        try:
            if key not in _KEYS:
                raise UsageError(_unknown(key, _KEYS))
            read, option = _KEYS[key]
            parsed = read(key, value)
            if key == "cache-dir":
                parsed = _expanded(key, parsed, environ)
        except UsageError as error:
            raise UsageError(f"{path}: {str(error).removeprefix('--set ')}") from None
        if option:
            options[option] = parsed
        else:
            fields[key.replace("-", "_")] = parsed
    return Config(path=str(path), options=options, **fields)


def _of_type(kind: type, example: str, key: str, value: object) -> Any:
    if isinstance(value, str) and "\0" in value:
        raise UsageError(f"{key} has a NUL byte, which no name may have")
    if type(value) is not kind:
        raise UsageError(f"{key} is {_worded(value)}; write {key} = {example}")
    return value


def _expanded(key: str, text: str, environ: Mapping[str, str]) -> str:
    """Return the name of a directory, with its variables and home replaced."""
    if unset := [name for name in re.findall(r"\$\{?(\w+)", text) if name not in environ]:
        raise UsageError(f"{key} names ${unset[0]}, which is not set")
    return os.path.expanduser(re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m: environ[m[1] or m[2]], text))


def _size(key: str, value: object) -> int:
    text = str(value) if type(value) is int else _of_type(str, '"1G"', key, value)
    return (memory_size if key == "memory-limit" else size)(text, f"{key} = ")


def _jobs(key: str, value: object) -> int:
    return jobs_number(str(_of_type(int, "4", key, value)), f"{key} = ")


def _one_of(words: Sequence[str], key: str, value: object) -> str:
    if value not in words:
        names = ", ".join(f'"{word}"' for word in words)
        raise UsageError(f"{key} is {_worded(value)}; it may be {names}")
    return str(value)


def _pattern(key: str, value: object) -> str:
    text = str(_of_type(str, "'^iteration (\\d+)'", key, value))
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"{key} is not a regular expression: {error}") from None
    return text


def _section(key: str, value: object, line: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{key} is {_worded(value)}; write [{key}] and below it lines such as {line}")
    return value


def _families(key: str, value: object) -> Rules:
    from nsystui.base.kernel_families import FAMILIES

    rules = []
    for pattern, family in _section(key, value, "'my_attention' = \"attention\"").items():
        if family not in FAMILIES:
            allowed = ", ".join(f'"{name}"' for name in FAMILIES)
            raise UsageError(f"{pattern} is {_worded(family)}; the families are {allowed}")
        rules.append((family, _pattern(pattern, pattern)))
    return tuple(rules)


def _thresholds(key: str, value: object) -> list[str]:
    """Return settings as for ``--set``; the command line's follow, and override them."""
    from nsystui.questions.triage.thresholds import Thresholds, meanings

    names = [name for name, *_ in meanings()]
    settings = []
    for name, number in _section(key, value, "gap_ms = 5").items():
        if name not in names:
            raise UsageError(_unknown(name, names, f"[{key}] has no"))
        if type(number) not in (int, float):
            raise UsageError(f"{name} is {_worded(number)}; write {name} = 5")
        settings.append(f"{name}={number}")
        Thresholds().changed(settings[-1:])  # raises UsageError
    return settings


_KEYS: Mapping[str, tuple[Callable[[str, Any], Any], str]] = {
    "cache-dir": (partial(_of_type, str, '"$SCRATCH/nsystui-cache"'), ""),
    "cache-limit": (_size, ""),
    "jobs": (_jobs, ""),
    "memory-limit": (_size, ""),
    "clock": (partial(_one_of, CLOCKS), "clock"),
    "step-range": (_pattern, "step_range"),
    "theme": (partial(_one_of, THEMES), "theme"),
    **{key: (partial(_of_type, bool, "true, or false"), key) for key in ("ascii", "color", "mouse")},
    "families": (_families, ""),
    "triage": (_thresholds, "set"),
}
"""The reader of each key, and the option whose default it sets (empty for `Config`'s own fields)."""


def keys() -> tuple[str, ...]:
    """Return every key that a file may have."""
    return tuple(_KEYS)


def _unknown(key: str, names: Iterable[str], problem: str = "there is no") -> str:
    return f"{problem} key {key!r}: {meant(key, names, 'there are ' + ', '.join(names))}"


def _worded(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return f'the text "{value}"' if isinstance(value, str) else f"{value}"


_MAX_JOBS = 256


def add_limits(group: argparse._ArgumentGroup) -> None:
    """Add ``--jobs`` and ``--memory-limit``."""
    group.add_argument(
        "--jobs",
        type=lambda text: jobs_number(text, "--jobs "),
        metavar="N",
        help="CPU threads to use, and exports read at once (default: 2 at most)",
    )
    group.add_argument(
        "--memory-limit",
        type=lambda text: memory_size(text, "--memory-limit "),
        metavar="SIZE",
        help="memory of the whole program, such as 512M or 1.5G (base 1024); what needs more is computed in slices"
        " (default: 1G, or half of the available memory)",
    )


def limits_for(jobs: int | None, memory: int | None, config: Config, environ: Mapping[str, str] = os.environ) -> Limits:
    """Return the limits of the flags, else the variables, else the config file, else the machine. Raises UsageError."""
    from nsystui.base import resources
    from nsystui.base.resources import SMALLEST_MEMORY, Limits

    if jobs is None and environ.get("NSYSTUI_JOBS"):
        jobs = jobs_number(environ["NSYSTUI_JOBS"], "NSYSTUI_JOBS=")
    if memory is None and environ.get("NSYSTUI_MEMORY_LIMIT"):
        memory = memory_size(environ["NSYSTUI_MEMORY_LIMIT"], "NSYSTUI_MEMORY_LIMIT=")
    memory = memory or config.memory_limit
    if not memory:
        memory, available = Limits().memory, resources.memory()
        if available is not None:  # half of it, because other programs need memory, too
            memory = max(min(memory, available // 2), SMALLEST_MEMORY)
    return Limits(jobs or config.jobs or resources.usual_threads(), memory)


def default_cache(config: Config = NO_CONFIG, environ: Mapping[str, str] = os.environ) -> Cache:
    """Return the cache of the variables, else the config file, else the system. Raises UsageError."""
    from nsystui.store.cache import DEFAULT_CAP, Cache, default_directory

    limit = environ.get("NSYSTUI_CACHE_LIMIT")
    is_configured = config.cache_dir and not environ.get("NSYSTUI_CACHE_DIR")
    directory = Path(config.cache_dir) if is_configured else default_directory(environ)
    default_limit = DEFAULT_CAP if config.cache_limit is None else config.cache_limit
    return Cache(directory, size(limit, "NSYSTUI_CACHE_LIMIT=") if limit else default_limit)


def drop_left_in_cache(config: Config) -> None:
    """Remove killed programs' incomplete files from the cache, if it is the user's own."""
    from nsystui.base.files import why_not_ours
    from nsystui.store.cache import drop_left

    with suppress(UsageError):  # a command that uses the cache reports it
        directory = default_cache(config).directory
        if not why_not_ours(directory):
            drop_left(directory)


def jobs_number(text: str, name: str) -> int:
    """Return a number of threads. Raises UsageError with ``name`` before the value."""
    number = whole_number(text.strip(), _MAX_JOBS)
    if not number:
        raise UsageError(f"{name}{text}: give a number of threads, 1 to {_MAX_JOBS}")
    return number


def memory_size(text: str, name: str) -> int:
    """Return a size in bytes that is enough to read an export. Raises UsageError."""
    from nsystui.base.resources import SMALLEST_MEMORY
    from nsystui.base.units import size_words

    memory = size(text, name)
    if memory < SMALLEST_MEMORY:
        raise UsageError(
            f"{name}{text}: too little to read an export with, the minimum is {size_words(SMALLEST_MEMORY)}"
        )
    return memory


def size(text: str, name: str) -> int:
    """Return a size in bytes. Raises UsageError."""
    from nsystui.base.units import parse_size

    try:
        return parse_size(text)
    except UsageError as error:
        raise UsageError(f"{name}{text}: {error}") from None
