"""The words of the tables that need saying: one definition each, in the help of the screens and in the glossary."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """A heading or label, its definition, and the places (of `keys.PLACES`) that use it."""

    name: str
    definition: str
    places: tuple[str, ...]


_UTILISATION = ("overview", "gpu", "ranks", "rank map", "timeline")
_RANKS = ("ranks", "finding")

WORDS: tuple[Word, ...] = (
    Word(
        "%",
        "of the selected time, else of the time from the job's first event to its last, the same for every rank; "
        "Efficiency: as far as every selected report recorded it",
        ("overview", "gpu", "efficiency", "ranks", "diff"),
    ),
    Word("busy", "union of kernels, memory operations and whole CUDA graphs", _UTILISATION),
    Word("compute", "union of the kernels without NCCL's", (*_UTILISATION, "diff")),
    Word("NCCL", "union of the NCCL kernels", _UTILISATION),
    Word(
        "exposed",
        "NCCL that no compute hides: of a GPU a union, of a collective the sum over its kernels",
        ("overview", "nccl", "gpu", "ranks", "rank map", "diff"),
    ),
    Word("memory", "union of copies and memsets", _UTILISATION),
    Word("idle", "the rest: nothing ran, or nothing was recorded", ("overview", "gpu", "ranks")),
    Word("kernels", "how many were launched, NCCL's among them", ("overview", "ranks")),
    Word("all kernels", "union of compute and NCCL", ("recipe map",)),
    Word("in use %", "busy, of the time from a GPU's first operation to its last", ("recipe",)),
    Word(
        "C, N, M, G only",
        "compute, NCCL, memory operations or whole CUDA graphs with none of the others beside it",
        ("efficiency",),
    ),
    Word("C+N, C+M, N+M", "compute, NCCL and memory operations two side by side", ("efficiency",)),
    Word("time %", "share of the time of all kernels, of all memory operations or of all calls", ("kernels", "nccl")),
    Word(
        "self",
        "time in which no range nested in it runs (DurNonChild); only push/pop ranges have one: start/end ranges may "
        "overlap anything, and stand beside the tree",
        ("nvtx",),
    ),
    Word("GPU total", "from first to last GPU operation launched in a range, summed over the ranges", ("nvtx",)),
    Word("late", "how often a rank was the last at a collective", _RANKS),
    Word("late by", "how long after the first it then came (median)", ("ranks",)),
    Word("wait caused", "what a typical other rank waited for it then, in sum, hidden by compute or not", _RANKS),
    Word("waited", "what a rank waited at collectives for the last, in sum", ("ranks",)),
    Word("waiting", "by kind of collective: the mean of that over the ranks; waiting of all: their sum", ("ranks",)),
    Word(
        "exposed wait",
        "the part of waiting for a late rank that no compute hides, the mean over the other GPUs: what it costs them",
        ("finding",),
    ),
    Word("step", "from the first GPU operation of a step to the first one of the next", ("ranks", "diff")),
)


def word_lines(place: str, width: int = 72) -> Iterator[str]:
    """The words of a place with their definitions, wrapped to ``width`` cells."""
    for word in WORDS:
        if place in word.places:
            yield from textwrap.wrap(f"{word.name}: {word.definition}", width, subsequent_indent="  ")


def markdown_table(titles: dict[str, str]) -> str:
    """The table of ``docs/glossary.md``. ``titles``: what each place is called."""
    rows = [f"| {word.name} | {word.definition} | {_where(word.places, titles)} |" for word in WORDS]
    return "\n".join(["| word | definition | where |", "|---|---|---|", *rows])


def _where(places: Sequence[str], titles: dict[str, str]) -> str:
    return "; ".join(titles[place] for place in places)
