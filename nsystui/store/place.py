"""Where the cache belongs on this system, and how large it may grow; all that is known of it before it is used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nsystui.store import trimming

DEFAULT_CAP = 20 << 30


@dataclass(frozen=True)
class CachePlace:
    """A directory for packed reports and what else is kept of exports, of at most about ``cap`` bytes."""

    directory: Path
    cap: int = DEFAULT_CAP

    @property
    def conversions(self) -> Path:
        """Where exports lie that were converted from reports."""
        return self.directory / trimming.CONVERTED


def default_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """``$NSYSTUI_CACHE_DIR``, else the user's cache directory of this system."""
    import platformdirs

    chosen = environ.get("NSYSTUI_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("nsystui"))
