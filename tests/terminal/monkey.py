"""A random user: keys, words and sizes for the program in a terminal, and checks of the program meanwhile."""

import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness import KEYS, PATIENCE, Terminal
from textual.keys import key_to_character

from nsystui.ui.keys import KEYS as ACTIONS

WATCHED = Path(__file__).with_name("watched.py")

QUITS = ("q", "ctrl+c", "ctrl+q")
MOVES = ("up", "down", "left", "right", "pageup", "pagedown", "home", "end", "tab", "shift+tab", "enter")
SCREENS = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "L", "ctrl+p")
PROMPTS = ("/", "f", "r", "D", "T", "g", "e", "E", "ctrl+p")
WORDS = (
    *("0", "0,1", "1-3", "9", "1s:2s", "0.5:", ":1ms", "nccl", "!nccl", "/gemm|nvjet/", "/[/", "x", "-1", "10%", "é…"),
    *("0 -- 1", "trace", "sum", "rank0.csv", "t.json", "t.md", "t.prv", "t.json.gz", "none.xyz", ""),
)
SIZES = ((80, 24), (120, 36), (60, 15), (40, 10), (200, 60), (100, 12), (30, 50), (5, 2))
USABLE = (80, 24)
HELP = "╭────────────────"
"""Words in the help's frame."""


def action_keys() -> list[str]:
    """Return every key of the program, as names of the harness, without keys that quit."""
    found = []
    for key in ACTIONS:
        for name in key.keys.split(","):
            character = name if name in KEYS or len(name) == 1 else key_to_character(name)
            if character and (character in KEYS or len(character) == 1) and character not in QUITS:
                found.append(character)
    return found


@dataclass
class Monkey:
    """Random keys for ``terminal``, which runs `watched.py`; ``errors`` is its file, ``seed`` repeats the keys."""

    terminal: Terminal
    errors: Path
    seed: int
    pressed: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._keys = action_keys()

    def play(self, seconds: float) -> None:
        """Press bursts of keys for this time, and `check` after each burst."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for _ in range(self._random.randint(1, 25)):
                self._act()
            self.check()

    def _act(self) -> None:
        chance = self._random.random()
        if chance < 0.40:
            self._press(self._random.choice(self._keys))
        elif chance < 0.65:
            self._press(*[self._random.choice(MOVES)] * self._random.choice((1, 1, 1, 2, 10)))
        elif chance < 0.78:
            self._press(self._random.choice(SCREENS))
        elif chance < 0.88:
            # Type into a prompt if the key opens one, else press further keys.
            self._press(self._random.choice(PROMPTS))
            self._rest(0.1)
            self._press(*(letter for letter in self._random.choice(WORDS) if letter not in QUITS))
            self._press(self._random.choice(("enter", "enter", "escape")))
        elif chance < 0.95:
            self._press("escape")
            self._rest(0.15)
        else:
            self._resize(*self._random.choice(SIZES))
        self._rest(self._random.choice((0.0, 0.0, 0.02, 0.2)))

    def _press(self, *keys: str) -> None:
        self.pressed += keys
        self.terminal.press(*keys)
        self._rest(0.0)

    def _resize(self, columns: int, lines: int) -> None:
        self.pressed.append(f"{columns}x{lines}")
        self.terminal.resize(columns, lines)

    def _rest(self, seconds: float) -> None:
        self.terminal.listen(max(seconds, 0.005))

    def check(self) -> None:
        """Check that the program reported no error, and that ``?`` and Esc show and hide the help on any screen."""
        self._resize(*USABLE)
        self._until(True, "escape", "?")
        self._until(False, "escape")
        told = self.errors.read_text() if self.errors.exists() else ""
        assert not told, f"{told}\n{self._story()}"
        self.memory.append(resident(self.terminal.pid))

    def _until(self, helped: bool, *keys: str) -> None:
        """Press ``keys`` until the help is open or closed: a prompt may open by itself and take the first keys."""
        deadline = time.monotonic() + self.patience
        while (HELP in self.terminal.text) is not helped:
            for key in keys:
                self._press(key)
                self._rest(0.15)
            patience = time.monotonic() + 3.0
            while (HELP in self.terminal.text) is not helped and time.monotonic() < patience:
                self.terminal.listen(0.05)
                assert self.terminal.exit_code is None, f"ended with {self.terminal.exit_code}\n{self._story()}"
            assert time.monotonic() < deadline, f"no answer for {self.patience} s\n{self._story()}"

    def _story(self) -> str:
        return f"seed {self.seed}, last keys {' '.join(self.pressed[-150:])}\n{self.terminal.text}"


def resident(pid: int) -> int:
    """Return the memory of a process, bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
