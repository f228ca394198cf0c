"""The rules of triage: functions that `rule` decorates in the modules named here."""

import functools
from collections.abc import Mapping

from nsystui.questions.triage.rule import FindingKind, Rule


@functools.cache
def rules() -> Mapping[str, Rule]:
    """Return every rule by name, in judging order."""
    from nsystui.questions.triage.rules import (
        capture,
        communication,
        copies,
        host,
        input_pipeline,
        kernel_choice,
        kernels,
        launches,
        memory,
        once,
        ranks,
        steps,
    )  # fmt: skip

    modules = (
        communication, ranks, host, input_pipeline, launches, once, copies, memory, steps, kernels,
        kernel_choice, capture,
    )  # fmt: skip
    declared = [value for module in modules for value in vars(module).values() if isinstance(value, Rule)]
    return {rule.name: rule for rule in sorted(declared, key=lambda rule: rule.order)}


def kind_of(name: str) -> FindingKind:
    """Return the properties of an id's findings."""
    return _kinds().get(name, FindingKind(name))


@functools.cache
def _kinds() -> Mapping[str, FindingKind]:
    return {name: kind for rule in rules().values() for name, kind in rule.finds.items()}
