"""A terminal explorer for NVIDIA Nsight Systems exports. Notebooks and scripts use `nsystui.api`."""

from __future__ import annotations

from nsystui.base.version import __version__

TYPE_CHECKING = False  # during an import from typing, an interrupt would print a traceback
if TYPE_CHECKING:
    from typing import Any

    from nsystui.api import Job, NsystuiError, Svg, UsageError, catalogue, diff, open  # noqa: A004

__all__ = ["Job", "NsystuiError", "Svg", "UsageError", "__version__", "catalogue", "diff", "open"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Load the Python interface on first use: `nsystui --version` does not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nsystui import api

    return getattr(api, name)
