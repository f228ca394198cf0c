"""The directory of the cache: where it belongs, how large it may grow, what lies in it and what goes first.

Everything that the program saves there counts: packs, single columns, the results of single reports and of several, and
exports that were converted from reports. What is not the program's is neither counted nor removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nsystui.exports.own_files import PARTIAL, drop_abandoned, is_abandoned, remove

DEFAULT_CAP = 20 << 30


@dataclass(frozen=True)
class CachePlace:
    """A directory for packed reports and what else is kept of exports, of at most about ``cap`` bytes."""

    directory: Path
    cap: int = DEFAULT_CAP

    @property
    def conversions(self) -> Path:
        """Where exports lie that were converted from reports."""
        return self.directory / CONVERTED


def default_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """``$NSYSTUI_CACHE_DIR``, else the user's cache directory of this system."""
    import platformdirs

    chosen = environ.get("NSYSTUI_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("nsystui"))


ANSWERS = "answers"
"""The folder of the results of several reports together: a file for each."""
CONVERTED = "exports"
"""The folder of the converted exports: a directory for each."""
FACTS = "report.json"
"""The file in which a pack, or a set of single columns, says what it is; its time is that of the last use."""
RESULTS = ".results"
"""How the name ends of the directory of a report's results; its own time is that of the last use."""
_PACK_NAME = re.compile(r"[A-Za-z0-9-]*-[0-9a-f]{24}(\.[a-z_]+-[0-9a-f]{12}|\.results|\.kept)?")
_CONVERTED_NAME = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, order=True)
class Item:
    """One thing in the cache: when it was used last (s since the epoch), its bytes, whether it may go at all."""

    used: float
    size: int
    place: Path
    may_go: bool = True


def trim(directory: Path, cap: int, keep: Collection[Path] = ()) -> int:
    """Removes what was used longest ago until the cache is under ``cap`` bytes; how many bytes more it may then hold.

    What is in ``keep``, or belongs to a pack that is (its single columns and results), stays, even over the cap. Never
    raises: another process may be at it.
    """
    items = sorted(_items(directory))
    total = sum(item.size for item in items)
    for item in items:
        if total <= cap:
            break
        if item.may_go and not {item.place, _pack_of(item.place)}.intersection(keep):
            remove(item.place)
            total -= item.size
    return cap - total


def size_of(place: Path) -> int:
    """The bytes of the files in a directory."""
    size = 0
    for file in _in(place):
        with suppress(OSError):
            size += file.stat().st_size
    return size


def drop_left(directory: Path) -> None:
    """Removes what processes that were killed left half-written in the cache. Never raises.

    Only ``nsys export`` writes elsewhere than into the cache directory itself.
    """
    for place in (directory, *_in(directory / CONVERTED)):
        drop_abandoned(place)


def _items(directory: Path) -> Iterator[Item]:
    for place in _in(directory):
        with suppress(OSError):
            if place.name.startswith(PARTIAL):
                yield Item(place.stat().st_mtime, size_of(place), place, may_go=False)
            elif (place / FACTS).exists():
                yield Item((place / FACTS).stat().st_mtime, size_of(place), place)
            # Results, or what was left by a removal that was interrupted.
            elif _PACK_NAME.fullmatch(place.name) and place.is_dir():
                yield Item(place.stat().st_mtime, size_of(place), place)
    for file in _in(directory / ANSWERS):
        with suppress(OSError):
            status = file.stat()
            yield Item(status.st_mtime, status.st_size, file)
    for place in _in(directory / CONVERTED):
        with suppress(OSError):
            if _CONVERTED_NAME.fullmatch(place.name):
                yield Item(place.stat().st_mtime, size_of(place), place, may_go=not _is_being_made(place))


def _in(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _pack_of(place: Path) -> Path:
    """Where the pack is that single columns and results belong to; a pack's own place is that of the pack."""
    return place.with_name(place.name.partition(".")[0] or place.name)


def _is_being_made(place: Path) -> bool:
    return any(not is_abandoned(file) for file in place.glob(f"{PARTIAL}*"))
