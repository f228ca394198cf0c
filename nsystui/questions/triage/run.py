"""All rules over a job: the findings, worst first, and what was not checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nsystui.base.answer import END, FILES_ONLY, START, Column, Row, TableAnswer, Unit
from nsystui.base.kernel_families import OTHER
from nsystui.base.resources import give_back
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import EMPTY, Intervals
from nsystui.questions.blocking.gain import RECOVERABLE, SPEEDUP, STANDING, Gain, Standing
from nsystui.questions.blocking.parts import LONG, PARTS
from nsystui.questions.host.time_budget import (
    UNEXPLAINED,
    Budget,
    IdleCauses,
    SummedCause,
    caused_budgets,
    device_budgets,
    idle_words,
    in_sum,
)
from nsystui.questions.job.job import OpenJob
from nsystui.questions.triage.case import Case
from nsystui.questions.triage.finding import Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import kernel_mix, shares
from nsystui.questions.triage.rule import BY_COMPUTE, BY_CPU, Rule
from nsystui.questions.triage.rules import kind_of, rules
from nsystui.questions.triage.thresholds import Thresholds
from nsystui.store.report import Report

_LITTLE = 5.0
"""Communication that costs less, in %, is told as hidden."""
_ONCE_TOLD = 20.0
"""Start-up and tail are told in the summary from so many percent on."""
_CAUSES = 3
"""Causes of each part of idle time that are told."""
_BUSY = {"compute": "compute", "exposed_nccl": "exposed NCCL", "memory": "memory", "graph": "graphs"}
_BLOCKERS = {
    "starved": "late launches",
    "nccl": "NCCL",
    "communication": "other communication",
    **dict.fromkeys(("to_device", "to_host", "on_device", "other_copies"), "copies"),
    "memsets": "memsets",
    "stalled": "launch latency",
    "unresolved": "unresolved",
    "tail": "tail",
}
"""What blocks compute by part of the budget of an iteration, in words."""
_NO_BLOCKERS = ("compute", "unresolved", "tail")
_LAUNCHES = ("launch-overhead", "launch-bound")
"""The findings, of which a job has one at most, whose cost is short gaps alone."""
_LEAST_TOLD = 1.0
"""A family of kernels is told of from so many percent of kernel time on."""
Result = Finding | NotChecked

_DAMAGED = "damaged"
_HEALTHY = "No issues found."
_HARDLY = 1.0
"""GPUs that are busy for less, in %, are in no healthy job."""
COSTS = "Each cost is time of one GPU, the mean over all. Costs may overlap: do not add them."


@dataclass(frozen=True)
class Triage:
    """The findings of the rules. ``time``: 100 % of a cost, ns; ``gpus``: a cost is their mean.

    ``unsaid``: the rules that could not judge something.
    """

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    time: int
    gpus: int
    unsaid: frozenset[str] = frozenset()
    rule_of: Mapping[str, str] = field(default_factory=dict)
    """The rule that made a finding, by the finding's id."""
    busy: float | None = None
    """The share of their time in which the GPUs worked, %."""
    budget: Budget = field(default_factory=Budget)
    """The time of all GPUs by part, and the causes of the idle parts; empty without GPU work."""
    causes: IdleCauses = field(default_factory=IdleCauses)
    parts: Mapping[str, float] = field(default_factory=dict)
    """The time of an iteration of a GPU by part of `blocking.parts`, the mean over all, ns; empty without any."""
    has_steps: bool = False
    """Whether the iterations are steps, else they are all of the time."""
    mix: tuple[tuple[str, float], ...] = ()
    """The share of each family in the time of all kernels, %, the largest first; empty where graphs hide most."""
    notes: tuple[str, ...] = ()
    """What is to be said of busy and idle time; empty without GPU work."""

    @property
    def summary(self) -> str:
        """What blocks compute, the share of busy time and the largest losses, in sentences."""
        return " ".join([*self._blocking(), self.losses])

    @property
    def losses(self) -> str:
        """The share of busy time and the largest losses, in sentences."""
        if self.busy is None:
            return "No GPU work was recorded."
        worst = [one for one in self.findings if not one.under and one.percent and one.severity is not Severity.INFO]
        losses = [f"{one.gist or kind_of(one.id).gist or one.id} ({one.percent:.1f} %)" for one in worst[:2]]
        losses += self._paid_once()
        hidden = [one.gist for one in self.findings if one.id == "communication" and (one.percent or 0) < _LITTLE]
        whose = "The GPU is" if self.gpus == 1 else "GPUs are"
        busy = f"{self.busy:.0f}" if self.busy >= 0.5 else "<1"
        lost = (
            f"Largest {'loss' if len(losses) == 1 else 'losses'}: {', '.join(losses)}."
            if losses
            else "No loss was found."
        )
        return " ".join([f"{whose} busy {busy} % of the time.", lost, *filter(None, hidden)])

    @property
    def blockers(self) -> dict[str, float]:
        """The share of an iteration of compute and of what blocks it, in words, %, the largest first.

        Empty where nothing is known of most time without compute, or the GPUs hardly work.
        """
        whole = sum(self.parts.values())
        if not whole or self._hardly_works or 2 * self.parts["unresolved"] > whole - self.parts["compute"] > 0:
            return {}
        causes: dict[str, float] = {}
        for part, words in _BLOCKERS.items():
            causes[words] = causes.get(words, 0.0) + 100 * self.parts[part] / whole
        return {"compute": 100 * self.parts["compute"] / whole, **dict(sorted(causes.items(), key=lambda one: -one[1]))}

    def _blocking(self) -> Iterator[str]:
        """What blocks compute most, in a sentence; or that the GPUs compute all the time."""
        shares = self.blockers
        if not shares:
            return
        compute = shares["compute"]
        most = [one for one in shares.items() if one[1] >= _LEAST_TOLD and one[0] not in _NO_BLOCKERS][:2]
        whose = "the GPU computes" if self.gpus == 1 else "GPUs compute"
        told = [f"{cause} ({share:.1f} %)" for cause, share in most]
        blocked = f", blocked most by {' and '.join(told)}" if told else ""
        computed = "<1" if 0 < compute < 0.5 else f"{compute:.0f}"
        when = "In a step" if self.has_steps else "Between first and last operation"
        yield f"{when}, {whose} {computed} % of the time{blocked}."

    def _paid_once(self) -> Iterator[str]:
        """``start-up (98.0 %, mostly cudaMallocHost)``: where it is much of the time, with the largest cause."""
        parts = (("start-up", self.budget.startup, self.causes.startup), ("tail", self.budget.tail, self.causes.tail))
        for name, time, causes in parts:
            if 100 * time >= _ONCE_TOLD * max(self.budget.time, 1):
                largest = max(causes, key=lambda cause: cause.time, default=SummedCause("", 0))
                why = f", mostly {largest.name}" if 2 * largest.time > time else ""
                yield f"{name} ({100 * time / self.budget.time:.1f} %{why})"

    @property
    def headline(self) -> str:
        """The number of findings of each severity, or that the job is healthy; and what was judged."""
        counts = {severity: sum(one.severity is severity for one in self.findings) for severity in Severity}
        words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "remark"}
        parts = [counted(count, words[one]) for one, count in counts.items() if count]
        if self.not_checked:
            parts.append(f"{counted(len(self.not_checked), 'rule')} not checked")
        judged = f"Judged: {format_value(Unit.DURATION, self.time)} on {counted(self.gpus, 'GPU')}."
        parts += self.broken
        whose = "The GPU hardly works." if self.gpus == 1 else "The GPUs hardly work."
        start = [_HEALTHY] if self.is_healthy else [whose] if self._hardly_works else []
        return " ".join([*start, *([f"{', '.join(parts)}."] if parts else []), judged])

    @property
    def unread(self) -> list[str]:
        """The damaged parts of exports and the rules that failed, with the causes."""
        return [f"{one.rule}: {one.why}" for one in self.not_checked if one.failed]

    @property
    def broken(self) -> list[str]:
        """The rules that failed, by name, and whether an export is damaged."""
        names = dict.fromkeys(one.rule for one in self.not_checked if one.failed)
        return ["an export is damaged" if name == _DAMAGED else f"{name} failed" for name in names]

    @property
    def unjudged(self) -> list[str]:
        """The rules that could not judge, those that need the same in a line."""
        rules: dict[str, list[str]] = {}
        for one in self.not_checked:
            rules.setdefault(one.why, []).append(one.rule)
        return [f"{', '.join(names)}: {why}" for why, names in rules.items()]

    @property
    def account(self) -> str:
        """Where all of the GPUs' time went, with the causes of idle time: the parts add up. Empty without GPU work."""
        whole = self.budget.time
        busy = ", ".join(
            f"{_BUSY[part]} {format_value(Unit.PERCENT, 100 * getattr(self.budget, part) / whole)}"
            for part in _BUSY
            if getattr(self.budget, part)
        )
        idle = ", ".join(idle_words(self.budget, self.causes, _CAUSES)) if whole else ""
        return f"Time: {busy}. Idle: {idle}." if whole else ""

    @property
    def kernels(self) -> str:
        """The families of kernels with most time, in a sentence; empty where the names tell nothing of most."""
        told = [f"{family} {share:.0f} %" for family, share in self.mix if share >= _LEAST_TOLD]
        return f"Kernel time: {', '.join(told)}." if told and self.mix[0][0] != OTHER else ""

    @property
    def is_healthy(self) -> bool:
        """Whether no rule found anything worse than a remark, and the GPUs work."""
        return not self._hardly_works and not any(one.severity is not Severity.INFO for one in self.findings)

    @property
    def _hardly_works(self) -> bool:
        return self.busy is not None and self.busy < _HARDLY

    def first(self, count: int | None) -> Triage:
        """The same with the ``count`` worst findings only (``None``: all)."""
        return self if count is None else replace(self, findings=self.findings[:count])


def triage(
    job: OpenJob,
    selection: Selection | None = None,
    thresholds: Thresholds | None = None,
    step_name: str | None = None,
    names: Collection[str] | None = None,
    advanced: Callable[[int, int, str], object] = lambda done, of, name: None,
) -> Triage:
    """Every rule over the selected part of a job. Raises UsageError where ``step_name`` is no regular expression.

    A rule that fails is reported among those that were not checked, and the others go on. So are rules that need a
    table which is left out because an export is damaged. ``advanced`` is called before each
    rule, and before the time budget, with the number of rules that have judged, that of all, and the name of what
    comes; what it raises ends the triage.
    """
    case = Case(job, selection or Selection(), thresholds or Thresholds(), step_name)
    if step_name is not None:
        case.job.steps(step_name)
    findings: list[Finding] = []
    not_checked: list[NotChecked] = []
    unsaid: set[str] = set()
    rule_of: dict[str, str] = {}
    for report in case.reports:
        not_checked += _damaged(report)
    chosen = [rules()[name] for name in (names if names is not None else rules())]
    for done, one in enumerate(chosen):
        advanced(done, len(chosen), one.name)
        give_back()  # what the rule before held
        for result in _checked(one, case):
            if isinstance(result, Finding):
                findings.append(result)
                rule_of[result.id] = one.name
            else:
                not_checked.append(result)
                unsaid.add(one.name)
    advanced(len(chosen), len(chosen), "time budget")
    return Triage(
        tuple(_ordered(_with_gains(case, findings), case.time)),
        tuple(not_checked),
        case.time,
        len(case.devices),
        frozenset(unsaid),
        rule_of,
        case.percent(case.mean([case.spent.busy])) if case.devices else None,
        *_account(case, findings),
        *_step_budget(case),
        () if case.spent.graph > case.spent.kernels else tuple(shares(kernel_mix(case), lambda one: one.family)),
        job.busy(case.chosen).notes if case.devices else (),
    )


def _step_budget(case: Case) -> tuple[Mapping[str, float], bool]:
    """The parts of an iteration, the mean over those of each GPU and over the GPUs, ns; and whether these are steps."""
    means = [one.of.parts.mean(axis=0).tolist() for one in case.budgets]
    parts = {part: sum(times) / len(means) for part, times in zip(PARTS, zip(*means, strict=True), strict=False)}
    return parts, all(one.numbers is not None for one in case.budgets)


def _with_gains(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with what they could win back: their costs, but no more than what the GPU was blocked by them."""
    costly = [one for one in findings if one.cost and kind_of(one.id).parts and not kind_of(one.id).is_paid_once]
    parts, is_step = _step_budget(case)
    if not parts:
        return list(findings)
    count = sum(len(one.of) for one in case.budgets) / len(case.budgets)
    gains: dict[str, Gain] = {}
    for one in costly:
        own = kind_of(one.id).parts
        share, most = (one.cost or 0) / count, sum(parts[part] for part in own)
        is_measured = most <= share
        if one.times and own == BY_CPU:
            known, unknown = _starved(case, one.times)
            most = min(most, (known + unknown) / count)
            is_measured = unknown == 0 and most <= share + 1
        if not round(min(share, most)):
            continue
        standing = Standing.MEASURED if is_measured else Standing.BOUNDED
        # Two gains may be the same time: by the parts of the budget, and by when they cost time.
        alike = [two for two in costly if two.id != one.id and not {*own}.isdisjoint(kind_of(two.id).parts)]
        others = sorted(two.id for two in alike if one.shared_with(two) != 0)
        whole, standing = round(sum(parts.values())), Standing.INFERRED if own == BY_COMPUTE else standing
        gains[one.id] = Gain(round(min(share, most)), whole, standing, tuple(others), is_step)
    return [replace(one, gain=gains.get(one.id)) for one in findings]


def _starved(case: Case, times: Mapping[tuple[Task, int], Intervals]) -> tuple[float, float]:
    """The launch-starved part of some times, and the time of which that is not kept: means over the GPUs, ns."""
    known = unknown = 0
    for one in (own.of for own in case.budgets):
        own = times.get((one.task, one.device), EMPTY).clip(int(one.starts[0]), int(one.ends[-1]))
        starved = one.when["starved"].covered(own.starts, own.ends)
        spans = own.ends - own.starts
        known += int(starved.sum())
        unknown += int((spans - starved)[spans < LONG].sum())
    return known / len(case.budgets), unknown / len(case.budgets)


def _ordered(findings: Sequence[Finding], time: int) -> list[Finding]:
    """The findings by severity, those paid once last, then by the share of the time that they could win back or cost.

    Each is followed by its symptoms.
    """
    by_id = {one.id: one for one in findings}

    def cause(one: Finding) -> str:
        for name in (one.under, *kind_of(one.id).symptom_of):
            other = by_id.get(name)
            if other is None:
                continue
            shared = one.shared_with(other)
            is_cause = 2 * (other.cost or 0) >= (one.cost or 0) if shared is None else shared >= 0.5
            if name == one.under or is_cause:
                return name
        return ""

    def key(one: Finding) -> tuple[int, bool, float, int, str, str]:
        cost = (one.cost or 0) / max(time, 1)
        return (
            one.severity.place,
            kind_of(one.id).is_paid_once,
            -(cost if one.gain is None else one.gain.recoverable / max(one.gain.iteration, 1)),
            -(one.cost or 0),
            one.id,
            one.sentence,
        )

    placed = sorted((replace(one, under=cause(one)) for one in findings), key=key)
    under: dict[str, list[Finding]] = {}
    for one in placed:
        under.setdefault(one.under, []).append(one)
    found: list[Finding] = []
    pending = list(reversed(under.pop("", [])))
    while pending:
        one = pending.pop()
        found.append(one)
        pending += reversed(under.pop(one.id, []))
    return found


def _account(case: Case, findings: Iterable[Finding]) -> tuple[Budget, IdleCauses]:
    """The budget of all GPUs; the causes are those that can be read: a rule that fails at the same says so."""
    try:
        budgets, causes = caused_budgets(case.job, case.chosen, case.step_name)
    except Exception:  # whatever it is, the findings count without them
        budgets, causes = device_budgets(case.job, case.chosen, case.step_name), IdleCauses()
    whole = in_sum(budgets)
    for one in findings:
        if one.id in _LAUNCHES:
            time = min((one.cost or 0) * len(case.devices), whole.short_gaps)
            why = SummedCause(kind_of(one.id).gist, time), SummedCause(UNEXPLAINED, whole.short_gaps - time)
            causes = replace(causes, short_gaps=why)
    return whole, causes


def _damaged(report: Report) -> Iterator[NotChecked]:
    """The parts of damaged exports that are left out, by cause."""
    for cause in dict.fromkeys(report.damaged.values()):
        tables = [name for name, why in report.damaged.items() if why == cause]
        judged = frozenset().union(*(one.reads for one in rules().values()))
        names = _words([name for name in tables if name in judged] or tables)
        why = f"{report.name} is judged without {names}: {cause}; export it again"
        yield NotChecked(_DAMAGED, why, failed=True)


def _words(names: Iterable[str]) -> str:
    """The contents of canonical tables, in a few words for each."""
    return ", ".join(canonical.BY_NAME[name].short for name in names)


def _checked(one: Rule, case: Case) -> Sequence[Result]:
    damaged = one.reads.intersection(table for report in case.reports for table in report.damaged)
    if damaged:
        return [NotChecked(", ".join(one.finds), f"needs {_words(sorted(damaged))}: the export is damaged there")]
    try:
        return one(case)
    except Exception as error:  # whatever it is, the other rules have something to say
        why = str(error).partition("\n")[0]
        return [NotChecked(", ".join(one.finds), f"the rule failed ({type(error).__name__}: {why})", failed=True)]


NOT_CHECKED = "not checked"
COLUMNS = (
    Column("severity", header="Severity", label="severity"),
    Column("id", header="Id", label="id"),
    Column("cost", header="Cost (ns)", label="cost", unit=Unit.DURATION),
    Column("percent", header="Cost (%)", label="of job", unit=Unit.PERCENT, decimals=1),
    Column("sentence", header="Finding", label="finding"),
    RECOVERABLE,
    Column("iteration", header="Iteration (ns)", label="of", unit=Unit.DURATION, compared="recoverable", importance=4),
    SPEEDUP,
    STANDING,
    Column("includes", header="May Include", label="may include", importance=5),
    Column("suggestion", header="Suggestion", label="suggestion", importance=1),
    Column("reason", header="Reason", label="reason", importance=2),
    Column("measured", header="Measured", label="measured", importance=3),
    Column("ranks", header="Ranks", label="ranks", importance=2),
    Column("symptom_of", header="Symptom of", label="symptom of", importance=2),
    START.with_importance(3),
    END.with_importance(3),
    Column("screen", header="Screen", label="screen", importance=3),
    Column("command", header="Command", label="command", importance=FILES_ONLY),
)


def triage_table(found: Triage) -> TableAnswer:
    """A row for each finding, worst first, then one for each rule that was not checked (its sentence says why)."""
    rows: list[Row] = [row_of(one) for one in found.findings]
    empty = (None,) * (len(COLUMNS) - 5)
    rows += [(NOT_CHECKED, one.rule, None, None, one.why, *empty) for one in found.not_checked]
    return TableAnswer("triage", COLUMNS, rows, len(rows), found.notes)


def row_of(one: Finding) -> Row:
    """A finding as a row of `triage_table`."""
    window, gain = one.window, one.gain
    won: Row = (None,) * 5
    if gain is not None:
        others = " ".join(gain.includes) or None
        won = gain.recoverable, gain.iteration, gain.speedup, gain.standing.value, others
    return (
        one.severity.value,
        one.id,
        one.cost,
        one.percent,
        one.sentence,
        *won,
        one.advice.text,
        one.advice.reason,
        one.measured or None,
        one.rank_numbers or None,
        one.under or None,
        window.start if window else None,
        window.end if window else None,
        one.door.screen,
        one.door.command,
    )
