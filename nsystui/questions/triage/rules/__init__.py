"""The rules of triage, by subject: a function of a module named here with `rule` above it is a rule."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module

from nsystui.questions.triage.rule import FindingKind, Rule

_SUBJECTS = (
    *("communication", "ranks", "host", "input_pipeline", "launches", "once"),
    *("copies", "memory", "steps", "phases", "kernels", "kernel_choice", "capture"),
)


@functools.cache
def rules() -> Mapping[str, Rule]:
    """Return every rule by its name, in the order in which they judge."""
    modules = [import_module(f"{__name__}.{subject}") for subject in _SUBJECTS]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Rule)]
    return {one.name: one for one in sorted(found, key=lambda one: one.order)}


def kind_of(name: str) -> FindingKind:
    """Return what is known of the findings of an id."""
    return _kinds().get(name, FindingKind())


@functools.cache
def _kinds() -> Mapping[str, FindingKind]:
    return {name: kind for one in rules().values() for name, kind in one.finds.items()}
