"""Whether a directory is the user's alone to write: what others can write to is neither believed nor added to."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def why_not_ours(directory: Path) -> str:
    """Why what lies in a directory may be somebody else's work; empty where it may not, or where there is none.

    Root's counts as the user's, since root may do anything anywhere; a group's is what the user made it.
    """
    try:
        status = os.stat(directory)
    except OSError:
        return ""
    if not hasattr(os, "getuid"):  # Windows has neither owners nor modes of this kind
        return ""
    if status.st_uid not in (os.getuid(), 0):
        return f"it belongs to another user, number {status.st_uid}"
    if status.st_mode & stat.S_IWOTH:
        return "every user can write to it; chmod o-w makes it yours"
    return ""
