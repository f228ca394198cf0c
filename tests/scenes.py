"""The pictures of the program: a screen after some keys, on some exports. Snapshots and screenshots use them."""

from dataclasses import dataclass
from pathlib import Path

WIDE, NARROW = (120, 36), (80, 24)


@dataclass(frozen=True)
class Scene:
    """``keys`` are pressed one by one, each when the program rests."""

    name: str
    keys: tuple[str, ...]


SCENES = (
    Scene("overview", ()), Scene("finding", ("enter",)), Scene("gap", ("enter", "enter")),
    Scene("kernels", ("2",)), Scene("instances", ("2", "enter")), Scene("nccl", ("3",)),
    Scene("nccl-calls", ("3", "enter")), Scene("nccl-sizes", ("3", "v", "s", "down")), Scene("gpu", ("4",)),
    Scene("efficiency", ("4", "v", "e")), Scene("nvtx", ("5", "down", "right", "down", "right")),
    Scene("events", ("6", "pagedown", "pagedown")), Scene("ranks", ("7",)), Scene("steps", ("9",)),
    Scene("path", ("9", "v", "p")), Scene("host", ("8",)),
    Scene("host-calls", ("8", "v", "c")), Scene("host-gaps", ("8", "v", "g")),
    Scene("rank-map", ("4", "v", "m", "b", "r")), Scene("diff", ("7", "x", "down", "down", "x")),
    Scene("timeline", ("L", *["plus"] * 4, "right_square_bracket")), Scene("help", ("6", "question_mark")),
)  # fmt: skip


def cache_in(directory: Path) -> Path:
    return directory / "cache"
