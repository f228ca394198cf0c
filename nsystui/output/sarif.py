"""The findings of a triage as SARIF 2.1.0, which CI systems and code reviews show: a log of one run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nsystui.base.text import safe_text
from nsystui.base.version import __version__
from nsystui.questions.triage.baseline import Against, ChangeKind
from nsystui.questions.triage.finding import Finding, NotChecked, Severity
from nsystui.questions.triage.run import Triage

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
# SARIF knows no finding that is there and cheaper: it is there, and changed.
_STATES = {
    ChangeKind.NEW: "new",
    ChangeKind.WORSE: "updated",
    ChangeKind.BETTER: "updated",
    ChangeKind.SAME: "unchanged",
    ChangeKind.GONE: "absent",
}


def sarif(found: Triage, exports: Iterable[Path]) -> str:
    """The log of a triage of ``exports``: a result for each finding, a notification for each rule not checked."""
    return _log([_result(one) for one in found.findings], found.findings, found.not_checked, exports)


def sarif_against(found: Against, exports: Iterable[Path]) -> str:
    """The log of a triage against a baseline: ``baselineState`` says what is new, changed, unchanged or absent."""
    states = [(change.finding, _STATES.get(change.kind)) for change in found.changes]
    results = [{**_result(one), **({"baselineState": state} if state else {})} for one, state in states]
    return _log(results, [one for one, _ in states], found.found.not_checked, exports)


def _log(
    results: list[dict[str, Any]],
    findings: Iterable[Finding],
    not_checked: Iterable[NotChecked],
    exports: Iterable[Path],
) -> str:
    rules = {one.id: one for one in findings}
    driver = {
        "name": "nsystui",
        "version": __version__,
        "rules": [
            {"id": name, "help": {"text": str(one.advice)}, "properties": _given({"measured": one.measured})}
            for name, one in sorted(rules.items())
        ],
    }
    notifications = [
        {"level": "note", "descriptor": {"id": one.rule}, "message": {"text": f"not checked: {one.why}"}}
        for one in not_checked
    ]
    artifacts = [{"location": {"uri": path.absolute().as_uri()}} for path in exports]
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
        "artifacts": artifacts,
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(one: Finding) -> dict[str, Any]:
    properties = {
        "cost_ns": one.cost,
        "cost_percent": None if one.percent is None else round(one.percent, 2),
        "ranks": list(one.ranks) or None,
        "start_ns": one.window.start if one.window else None,
        "end_ns": one.window.end if one.window else None,
        "symptom_of": one.under or None,
        "command": f"nsystui {one.door.command}",
    }
    identity = "/".join([one.id, *map(str, one.ranks[:1] if len(one.ranks) == 1 else ())])
    return {
        "ruleId": one.id,
        "level": _LEVELS[one.severity],
        "message": {"text": safe_text(one.sentence)},
        "partialFingerprints": {"finding/v1": identity},
        "properties": _given(properties),
    }


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "")}
