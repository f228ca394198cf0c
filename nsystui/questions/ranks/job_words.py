"""The facts of a job in a few words, as the overview and reports show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsystui.base.answer import Unit
from nsystui.base.text import counted
from nsystui.base.units import format_value

if TYPE_CHECKING:
    from nsystui.questions.ranks.overview import JobFacts


def job_words(facts: JobFacts) -> list[str]:
    """Return ``64 ranks``, ``8 hosts``, ``64× H100 80GB HBM3``, ``nsys 2026.2.1``, ``recorded 41.3 s``."""
    words = [counted(facts.ranks, "rank")]
    if facts.captures:
        words.append(counted(facts.captures, "capture"))
    if facts.reports != facts.ranks:
        words.append(counted(facts.reports, "file"))
    if facts.hosts:
        words.append(facts.hosts[0] if len(facts.hosts) == 1 else counted(len(facts.hosts), "host"))
    if facts.gpus:
        models = [model.removeprefix("NVIDIA ") for model in facts.gpu_models]
        gpu_words = f"{counted(facts.gpus, 'GPU')} ({', '.join(models)})" if models else counted(facts.gpus, "GPU")
        words.append(f"{facts.gpus}× {models[0]}" if len(models) == 1 else gpu_words)
    if facts.nsys_versions:
        words.append("nsys " + ", ".join(".".join(version.split(".")[:3]) for version in facts.nsys_versions))
    words += facts.made_of
    if facts.duration is not None:
        words.append(f"recorded {format_value(Unit.DURATION, facts.duration)}")
    return words


def machine_words(facts: JobFacts) -> list[str]:
    """Return the versions, and how reliable ranks and clocks are."""
    words = [] if facts.clocks_aligned else ["clocks not aligned"]
    if facts.driver_versions:
        words.append(f"driver {', '.join(facts.driver_versions)}")
    if facts.cuda_versions:
        words.append(f"CUDA {', '.join(facts.cuda_versions)}")
    if facts.rank_source:
        words.append(f"ranks by {facts.rank_source}")
    if facts.reports > 1 and facts.clocks_aligned:
        words.append("clocks aligned")
        if facts.start_spread is not None:
            words.append(f"starts {format_value(Unit.DURATION, facts.start_spread)} apart")
    return words
