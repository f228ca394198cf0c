"""Where the cache belongs on this system."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def default_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """``$NSYSTUI_CACHE_DIR``, else the user's cache directory of this system."""
    import platformdirs

    chosen = environ.get("NSYSTUI_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("nsystui"))
