"""The pictures of the program: which screen, on which exports, after which keys. Snapshots and screenshots use them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nsystui.ui.app import NsystuiApp

WIDE, NARROW = (120, 36), (80, 24)


@dataclass(frozen=True)
class Scene:
    """``keys`` are pressed one by one, each after the screen has come to rest."""

    name: str
    keys: tuple[str, ...]


SCENES = (
    Scene("overview", ()),
    Scene("finding", ("down", "enter")),
    Scene("gap", ("down", "enter", "enter")),
    Scene("kernels", ("2",)),
    Scene("instances", ("2", "enter")),
    Scene("nccl", ("3",)),
    Scene("nccl-calls", ("3", "enter")),
    Scene("nccl-sizes", ("3", "v", "v", "down", "d")),
    Scene("gpu", ("4",)),
    Scene("efficiency", ("4", "v", "v", "v")),
    Scene("nvtx", ("5", "down", "right", "down", "right")),
    Scene("events", ("6", "pagedown", "pagedown")),
    Scene("ranks", ("7",)),
    Scene("host", ("8",)),
    Scene("host-calls", ("8", "v", "v")),
    Scene("host-gaps", ("8", "v", "v", "v")),
    Scene("rank-map", ("4", "v", "b", "b", "b")),
    Scene("diff", ("7", "x", "down", "down", "x")),
    Scene("timeline", ("L", *["plus"] * 4, "right_square_bracket")),
    Scene("help", ("6", "question_mark")),
)


async def settle(app: NsystuiApp, pilot: object, seconds: float = 60.0) -> None:
    """Waits until nothing is loaded, asked or drawn any more."""
    deadline = asyncio.get_running_loop().time() + seconds
    quiet = 0
    while quiet < 4:
        await pilot.pause(0.02)  # type: ignore[attr-defined]
        awaited = not getattr(app.screen, "is_settled", True)  # dialogs ask nothing
        findings = getattr(app.screen, "findings", None)
        # A worker is at its end before what it has found is shown.
        awaited |= findings is not None and findings.status.startswith("checking")
        busy = awaited or app.loading_now or any(not worker.is_finished for worker in app.workers)
        quiet = 0 if busy else quiet + 1
        assert asyncio.get_running_loop().time() < deadline, "the screen did not come to rest"


async def play(app: NsystuiApp, pilot: object, keys: Sequence[str]) -> None:
    """Presses keys as a patient user does."""
    await settle(app, pilot)
    for key in keys:
        await pilot.press(key)  # type: ignore[attr-defined]
        await settle(app, pilot)


def cache_in(directory: Path) -> Path:
    """A cache of one's own."""
    return directory / "cache"
