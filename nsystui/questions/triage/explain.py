"""The explanation of a finding: its row in docs/triage.md, and its thresholds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

from nsystui.base.errors import UsageError, meant
from nsystui.questions.triage.thresholds import Thresholds, meanings

_ROW = re.compile(r"^\| `([a-z-]+)` \| (.+?) \|(?: (.+?) \|)?$", re.MULTILINE)
_NAME = re.compile(r"`(\w+)`")
_COST = "time of one GPU, the mean over the GPUs of the job; with steps, from the first one on"


def explanation(name: str, thresholds: Thresholds) -> list[str]:
    """Return the lines that explain a finding. Raises UsageError for an unknown name."""
    rows = explained()
    if name not in rows:
        hint = meant(name, rows, f"write one of {', '.join(sorted(rows))}")
        raise UsageError(f"--explain {name}: there is no finding {name!r}: {hint}")
    return list(_lines(name, *rows[name], thresholds))


def explained() -> dict[str, tuple[str, str]]:
    """Return meaning and measurement of each finding, by name."""
    text = files("nsystui").joinpath("docs", "triage.md").read_text(encoding="utf-8")
    return {name: (meaning, words or "") for name, meaning, words in _ROW.findall(text)}


def _lines(name: str, meaning: str, words: str, thresholds: Thresholds) -> Iterator[str]:
    yield f"{name}: {meaning}"
    keys = _NAME.findall(words)
    if any(key.endswith("_percent") for key in keys):
        yield f"Measured as {_COST}."
    for key, _, text in meanings():
        if key in keys:
            yield f"   {key} ({getattr(thresholds, key):g}): {text}"
