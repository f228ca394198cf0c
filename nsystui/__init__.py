"""nsystui: a terminal explorer for NVIDIA Nsight Systems exports. For notebooks and scripts: see `nsystui.api`."""

from __future__ import annotations

from nsystui.base.version import __version__

TYPE_CHECKING = False  # importing it from typing takes time in which an interrupt prints a traceback
if TYPE_CHECKING:
    from typing import Any

    from nsystui.api import Job, NsystuiError, UsageError, catalogue, diff, open  # noqa: A004

__all__ = ["Job", "NsystuiError", "UsageError", "__version__", "catalogue", "diff", "open"]


def __getattr__(name: str) -> Any:
    """Loads the interface for Python when it is first used: `nsystui --version` needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nsystui import api

    return getattr(api, name)
