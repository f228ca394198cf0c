"""From a canonical table to the screen that shows its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsystui.ui.overview_lines import SHOWN_BY

if TYPE_CHECKING:
    from textual.app import App

_TABLES_OF_WORK = {"memory_ops": "memory", "api_calls": "api", "os_calls": "os", "mpi_calls": "mpi"}
"""What the Kernels screen calls the tables that it shows beside the kernels."""


async def show_table(app: App[Any], table: str) -> None:
    """Switches to the screen that shows ``table`` (one of ``SHOWN_BY``)."""
    mode = SHOWN_BY[table][1]
    await app.switch_mode(mode)
    if mode == "kernels":
        from nsystui.ui.screens.kernels import KernelsScreen

        screen = app.screen
        if isinstance(screen, KernelsScreen):
            screen.what = _TABLES_OF_WORK.get(table, "kernels")
            screen.job_changed()
