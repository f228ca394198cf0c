"""Which commands may give an answer again that is remembered, and of which files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nsystui.base.errors import ExportError
from nsystui.commands.configuration import config_of
from nsystui.commands.limits import default_cache

if TYPE_CHECKING:
    from nsystui.questions.remembered import Remembered

_SELECTING = ("time", "ranks", "devices", "streams", "filter", "filter_time", "filter_nvtx", "by_rank", "instances")


def remembered(arguments: argparse.Namespace) -> Remembered | None:
    """What is remembered of the files of a command; ``None`` where a flag narrows the question or forbids it.

    Neither is it asked for files that cannot be opened: why they cannot is told by opening them.
    """
    if arguments.no_cache or arguments.convert or any(getattr(arguments, name, None) for name in _SELECTING):
        return None
    from nsystui.exports.discover import discover
    from nsystui.questions.remembered import Remembered

    try:
        cache = default_cache(config_of(arguments))
        return Remembered.of_files(cache, discover(arguments.files)) if cache.is_ours else None
    except (ExportError, OSError):
        return None
