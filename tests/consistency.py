"""Asks the questions of exports and prints where two answers contradict each other.

Run it with ``python -m tests.consistency FILE…``. It finds three kinds of contradiction: two answers differ on a
figure, shares do not add up to their whole, or one sentence denies another. It ends with 1 if it finds any.
"""

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from nsystui.cli import main
from nsystui.questions.triage.rules.capture import PARTIAL

Rows = list[dict[str, Any]]
SHARED = re.compile("process(es)? share")
BUDGET = (
    *("compute", "exposed_nccl", "memory", "graph"),
    *("startup", "long_gaps", "short_gaps", "in_graphs", "tail", "unrecorded"),
)
WHOLES = {
    "kernels": "share_percent", "api": "share_percent", "memory": "share_percent", "osrt": "share_percent",
    "gaps": "percent", "nvtx --summary": "share_percent",
}  # fmt: skip
"""Questions whose rows are parts of one whole, and the column of their shares."""


class Answers:
    """Answers of the command line about some files, asked once each."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files
        self._told: dict[str, tuple[str, str]] = {}

    def text(self, command: str) -> tuple[str, str]:
        """Return the output of a command, and its notes."""
        if command not in self._told:
            out, notes = io.StringIO(), io.StringIO()
            name, *flags = command.split()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(notes), contextlib.suppress(SystemExit):
                main([name, *self.files, *flags])
            if notes.getvalue().startswith("usage:"):
                raise ValueError(notes.getvalue())
            self._told[command] = out.getvalue(), notes.getvalue()
        return self._told[command]

    def rows(self, command: str) -> Rows:
        """Return the rows of an answer in JSON, of the first table if there are several; none without an answer."""
        text, _ = self.text(f"{command} --format json")
        rows: Rows = json.loads(text) if text.strip() else []
        return rows[0]["rows"] if rows and "table" in rows[0] else rows


def is_near(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance


def contradictions(files: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each contradiction in the answers about some files."""
    ask = Answers(files)
    yield from _shares(ask)
    budget, overview = ask.rows("budget"), ask.rows("overview")
    whole = {(row["rank"], row["device"]): sum(row[f"{part}_ns"] or 0 for part in BUDGET) for row in budget}
    for row in budget:
        parts = [row[f"{part}_percent"] for part in BUDGET]
        percent = sum(part or 0 for part in parts)
        if percent > 100.05 or (None not in parts and percent < 99.95):
            yield f"budget of rank {row['rank']}: its parts add up to {percent:.2f} %"
    if len({row["rank"] for row in budget}) == len(budget) == len(overview) and not SHARED.search(
        ask.text("overview")[1]
    ):
        yield from _busy(budget, overview)
    if overview or not ask.rows("kernels"):  # a damaged table refuses some answers
        yield from _counts(ask, overview)
    yield from _idle(ask, budget)
    yield from _steps(ask)
    yield from _findings(ask, budget, sum(whole.values()))


def _shares(ask: Answers) -> Iterator[str]:
    for command, column in WHOLES.items():
        rows = ask.rows(command)
        shares = sum(row[column] or 0 for row in rows)
        if rows and not is_near(shares, 100, 0.051 * len(rows) + 0.01):
            yield f"{command}: {column} adds up to {shares:.1f} %"
    parts = {row["part"]: row["total_ns"] for row in ask.rows("budget --by step")}
    if parts:
        unknown = parts["iteration"] - parts["GPU busy"] - parts.get("GPU idle", 0)
        if unknown < 0 or (unknown and not parts.get("unresolved")):
            yield "budget --by step: GPU busy and GPU idle are not the iteration"
        split = ("iteration", "GPU busy", "GPU idle", "without compute")
        of_nccl = sum(time for part, time in parts.items() if part not in split and ": " not in part)
        if abs(of_nccl - parts["iteration"]) > len(parts):
            yield f"budget --by step: the parts add up to {of_nccl} ns of {parts['iteration']} ns"
    for row in ask.rows("efficiency"):
        if "window_ns" in row:
            kinds = ("compute_only", "nccl_only", "memory_only", "compute_nccl", "compute_memory", "nccl_memory")
            times = [row[f"{kind}_ns"] for kind in (*kinds, "all_three", "graph_only", "idle")]
            if None not in times and sum(times) != row["window_ns"]:
                yield f"efficiency of rank {row['rank']}: the breakdown adds up to {times} of {row['window_ns']} ns"


def _busy(budget: Rows, overview: Rows) -> Iterator[str]:
    by_rank = {row["rank"]: row for row in budget}
    for row in overview:
        of_budget = by_rank[row["rank"]]
        parts = [of_budget[f"{part}_percent"] for part in BUDGET[:4]]
        if None not in parts and not is_near(sum(parts), row["busy_percent"], 0.05):
            yield f"rank {row['rank']} is busy {row['busy_percent']} % in overview, {sum(parts):.2f} % in budget"
        exposed = [of_budget["exposed_nccl_percent"], row["exposed_nccl_percent"]]
        if exposed.count(None) % 2 or (None not in exposed and not is_near(*exposed, 0.05)):
            yield f"rank {row['rank']}: exposed NCCL differs between overview and budget"


def _counts(ask: Answers, overview: Rows) -> Iterator[str]:
    ranks = ",".join(str(rank) for rank in sorted({row["rank"] for row in overview}))  # not processes without GPU work
    for column, command in (("kernels", "kernels"), ("memory_ops", "memory"), ("api_calls", "api")):
        counted = sum(row["count"] for row in ask.rows(f"{command} --ranks {ranks}")) if ranks else 0
        told = sum(row[column] or 0 for row in overview)
        if counted != told:
            yield f"{command}: {counted} rows are counted, {told} in overview"
    streams = sum(row["count"] for row in ask.rows("streams"))
    told = sum((row["kernels"] or 0) + (row["memory_ops"] or 0) + (row["graphs"] or 0) for row in overview)
    if streams != told:
        yield f"streams: {streams} operations, {told} in overview"


def _idle(ask: Answers, budget: Rows) -> Iterator[str]:
    gaps = ask.rows("gaps")
    same = {"startup": "startup", "long_gaps short_gaps": "gaps", "in_graphs": "in_graphs", "tail": "tail"}
    for part, of_gaps in same.items():
        expected = sum(row[f"{name}_ns"] for row in budget for name in part.split())
        time = sum(row[f"{of_gaps}_ns"] for row in gaps)
        if time != expected:
            yield f"gaps: {time} ns of {of_gaps}, {expected} ns in budget"


def _steps(ask: Answers) -> Iterator[str]:
    every = [row for row in ask.rows("steps") if row["measured"] == "GPU"]
    iteration = next((row for row in ask.rows("budget --by step") if row["part"] == "iteration"), None)
    if every and iteration is not None:
        # Steps are of processes, and iterations are of GPUs.
        if not SHARED.search(ask.text("overview")[1]) and sum(row["count"] for row in every) != iteration["count"]:
            yield f"steps: {sum(row['count'] for row in every)}, iterations in budget --by step: {iteration['count']}"
        if (longest := max(row["max_ns"] for row in every)) != iteration["max_ns"]:
            yield f"the longest step takes {longest} ns in steps, {iteration['max_ns']} ns in budget --by step"


def _findings(ask: Answers, budget: Rows, whole: int) -> Iterator[str]:
    text = " ".join(ask.text("triage")[0].split())
    findings = {row["id"]: row for row in ask.rows("triage")}
    gpus = max(len(budget), 1)
    means = {part: sum(row[f"{part}_ns"] or 0 for row in budget) / gpus for part in BUDGET}
    limits = {
        "idle-gaps": means["long_gaps"], "input-pipeline": means["long_gaps"],
        "launch-overhead": means["short_gaps"] + means["long_gaps"],
        "synchronising-calls": means["short_gaps"] + means["long_gaps"], "low-utilisation": means["short_gaps"],
        "graph-gaps": means["in_graphs"], "start-up": means["startup"], "tail": means["tail"],
        "communication": means["exposed_nccl"], "exposed-communication": means["exposed_nccl"],
        "exposed-memory": means["memory"] + means["exposed_nccl"],
    }  # fmt: skip
    for name, limit in limits.items():
        cost = (findings.get(name) or {}).get("cost_ns")
        if budget and cost is not None and cost > limit + 1:
            yield f"{name} costs {cost} ns of {limit:.0f} ns in the budget"
    for name, row in findings.items():
        if (row["percent"] or 0) > 100.05:
            yield f"{name} costs {row['percent']} % of the job"
        if "blocks no compute" in row["sentence"] and row["recoverable_ns"]:
            yield f"{name} blocks no compute, and {row['recoverable_ns']} ns could be saved"
    losses = re.search(r"Largest loss(?:es)?: (.*?\))\. ", text)
    named = re.findall(r"\(([0-9.]+) %(\)?)", losses[1]) if losses else []
    shares = [float(share) for share, _ in named]
    apart = sum(float(share) for share, is_apart in named if is_apart)  # "may be the same time" follows the others
    if apart > 100.1:
        yield f"the largest losses add up to {apart:.1f} %"
    largest = {part: 100 * time * gpus / whole for part, time in means.items() if whole}
    named = ("startup", "tail", "exposed_nccl", "memory", "long_gaps")
    if (
        not findings.keys() & set(PARTIAL)
        and whole
        and (most := max(largest[part] for part in named)) > 20
        and most > max(shares, default=0) + 1
    ):
        yield f"the headline names losses of {shares} %, and leaves out {most:.1f} %"
    if "No issues found." in text and any(row["severity"] in ("error", "warning") for row in findings.values()):
        yield "no issues are found beside a warning"


if __name__ == "__main__":
    lines = list(contradictions(sys.argv[1:]))
    print("\n".join(lines))
    sys.exit(bool(lines))
