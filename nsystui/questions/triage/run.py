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
from nsystui.questions.blocking.dependencies import unresolved_waits
from nsystui.questions.blocking.gain import RECOVERABLE, SPEEDUP, STANDING, Gain, Standing
from nsystui.questions.blocking.parts import LONG, PARTS, bounds
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
from nsystui.questions.queries.tasks import GPU_TABLES
from nsystui.questions.triage.case import Case
from nsystui.questions.triage.finding import Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import kernel_mix, shares
from nsystui.questions.triage.rule import BY_COMPUTE, BY_CPU, Rule
from nsystui.questions.triage.rules import kind_of, rules
from nsystui.questions.triage.rules.capture import PARTIAL
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
    "late launches": ("starved",),
    "NCCL": ("nccl",),
    "other communication": ("communication",),
    "copies": ("to_device", "to_host", "on_device", "other_copies"),
    "memsets": ("memsets",),
    "launch latency": ("stalled",),
    "unresolved": ("unresolved",),
    "tail": ("tail",),
}
"""What blocks compute, in words, and the parts of the budget of an iteration that it is."""
_NO_BLOCKERS = ("compute", "unresolved", "tail")
_LAUNCHES = ("launch-overhead", "launch-bound")
"""The findings, of which a job has one at most, whose cost is short gaps alone."""
_LEAST_TOLD = 1.0
"""A family of kernels is told of from so many percent of kernel time on."""
Result = Finding | NotChecked

_DAMAGED = "damaged"
_OF_GPU = frozenset(table.name for table in GPU_TABLES)
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
    possible: Mapping[str, float] = field(default_factory=dict)
    """How much of the unresolved time of an iteration may belong to each part, likewise."""
    mix: tuple[tuple[str, float], ...] = ()
    """The share of each family in the time of all kernels, %, the largest first; empty where graphs hide most."""
    notes: tuple[str, ...] = ()
    """What is to be said of busy and idle time; empty without GPU work."""
    damaged: frozenset[str] = frozenset()
    """The canonical tables that could not be read whole: what needs them is not judged."""

    @property
    def summary(self) -> str:
        """What blocks compute, the share of busy time and the largest losses, in sentences."""
        return " ".join([*self._blocking(), self.losses])

    @property
    def losses(self) -> str:
        """The share of busy time and the largest losses, in sentences."""
        if self.damaged & _OF_GPU:
            return f"The use of the GPUs is not judged, which needs {_words(sorted(self.damaged & _OF_GPU))}."
        if self.busy is None:
            return "No GPU work was recorded."
        losses, whole = list[str](), 0.0
        for percent, words in sorted([*self._named(), *self._paid_once()], key=lambda loss: -loss[0]):
            if whole + percent <= 100.05:  # larger losses may contain this one
                losses.append(words)
                whole += percent
        hidden = [one.gist for one in self.findings if one.id == "communication" and (one.percent or 0) < _LITTLE]
        whose = ("GPUs are", "The GPU is")[self.gpus == 1]
        busy = {0: "<1"}.get(round(self.busy), f"{self.busy:.0f}")
        nothing = "No loss was found." * (not self.damaged)
        lost = f"Largest loss{'es' * (len(losses) > 1)}: {', '.join(losses)}." if losses else nothing
        bound = "at least " * any(one.id == PARTIAL[0] and one.severity is Severity.ERROR for one in self.findings)
        return " ".join(filter(None, [f"{whose} busy {bound}{busy} % of the time.", lost, *hidden]))

    def _named(self) -> Iterator[tuple[float, str]]:
        """Yield the two largest findings, %, and larger parts of the time that no finding explains."""
        worst = [one for one in self.findings if not one.under and one.percent and one.severity is not Severity.INFO]
        shares = [(one.percent or 0.0, one.gist or kind_of(one.id).gist or one.id) for one in worst]
        largest = sorted(shares, key=lambda share: -share[0])[:2]
        least = max(_ONCE_TOLD, max(shares, default=(0.0, ""))[0] + 1)
        for words, time in (
            ("exposed NCCL", self.budget.exposed_nccl),
            ("memory operations", self.budget.memory),
            ("gaps", self.budget.long_gaps),
        ):
            share = 100 * time / max(self.budget.time, 1)
            largest += [(share, words)] * (share >= least)
        yield from ((share, f"{words} ({share:.1f} %)") for share, words in largest)

    @property
    def blockers(self) -> dict[str, tuple[float, str]]:
        """The most share, %, of compute and of what blocks it, the largest first, with the range in words.

        Empty if the GPUs hardly work, or if work is missing or clocks differ.
        """
        whole = 0 if self.damaged else sum(self.parts.values())
        if not whole or self._hardly_works or self._is_partial:
            return {}
        # All that is unresolved may be stalled: no reason to name it.
        possible = {**self.possible, "stalled": 0}
        times = {words: bounds(self.parts, possible, parts) for words, parts in _BLOCKERS.items()}
        if self.parts["unresolved"]:
            times["stalls"] = times.pop("launch latency")
        if any(least < most for least, most in times.values()):
            del times["unresolved"]  # the ranges of the other parts contain it
        times = {"compute": (self.parts["compute"],) * 2, **dict(sorted(times.items(), key=lambda one: -one[1][1]))}
        return {words: (100 * most / whole, _range_words(least, most, whole)) for words, (least, most) in times.items()}

    def _blocking(self) -> Iterator[str]:
        """What blocks compute most, in a sentence; or that the GPUs compute all the time."""
        shares = self.blockers
        if not shares:
            return
        compute, _ = shares["compute"]
        most = [one for one in shares.items() if one[1][0] >= _LEAST_TOLD and one[0] not in _NO_BLOCKERS][:2]
        graphs = bool(self.budget.graph)  # a graph that was traced as a whole counts as compute
        whose = (
            f"the GPU computes{' or runs graphs' * graphs}"
            if self.gpus == 1
            else f"GPUs compute{' or run graphs' * graphs}"
        )
        told = [f"{cause} ({share})" for cause, (_, share) in most]
        blocked = f", blocked most by {' and '.join(told)}" if told else ""
        computed = "<1" if 0 < compute < 0.5 else f"{compute:.0f}"
        when = "In a step" if self.has_steps else "Between first and last operation"
        yield f"{when}, {whose} {computed} % of the time{blocked}."

    def _paid_once(self) -> Iterator[tuple[float, str]]:
        """Yield start-up and tail if they are much of the time: %, and ``start-up (98.0 %, mostly cudaMallocHost)``."""
        parts = (("start-up", self.budget.startup, self.causes.startup), ("tail", self.budget.tail, self.causes.tail))
        for name, time, causes in () if self._is_partial else parts:
            if 100 * time >= _ONCE_TOLD * max(self.budget.time, 1):
                largest = max(causes, key=lambda cause: cause.time, default=SummedCause("", 0))
                why = f", mostly {largest.name}" if 2 * largest.time > time else ""
                share = 100 * time / self.budget.time
                yield share, f"{name} ({share:.1f} %{why})"

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
        start = [f"{self.health}."] if self.health else [whose] if self._hardly_works else []
        return " ".join([*start, *([f"{', '.join(parts)}."] if parts else []), judged])

    @property
    def unread(self) -> list[str]:
        """The damaged parts of exports and the rules that failed, with the causes."""
        return [f"{one.rule}: {one.why}" for one in self.not_checked if one.failed]

    @property
    def broken(self) -> list[str]:
        """The rules that failed, by name, and whether an export is damaged."""
        names = dict.fromkeys(one.rule for one in self.not_checked if one.failed)
        damage = f"an export is damaged (not read: {_words(sorted(self.damaged))})"
        return [damage if name == _DAMAGED else f"{name} failed" for name in names]

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
        if self.damaged or not whole or self._is_partial:
            return ""
        busy = ", ".join(
            f"{_BUSY[part]} {format_value(Unit.PERCENT, 100 * getattr(self.budget, part) / whole)}"
            for part in _BUSY
            if getattr(self.budget, part)
        )
        return f"Time: {busy}. Idle: {', '.join(idle_words(self.budget, self.causes, _CAUSES))}."

    @property
    def kernels(self) -> str:
        """The families of kernels with most time, in a sentence; empty where the names tell nothing of most."""
        told = [f"{family} {share:.0f} %" for family, share in self.mix if share >= _LEAST_TOLD]
        return f"Kernel time: {', '.join(told)}." if told and self.mix[0][0] != OTHER else ""

    @property
    def health(self) -> str:
        """``No issues found``, apart from large parts that are paid once; empty if a rule warns or GPUs hardly work."""
        if self.broken or self._hardly_works or any(one.severity is not Severity.INFO for one in self.findings):
            return ""
        once = " and ".join(words.partition(" (")[0] for _, words in self._paid_once())
        return f"No issues found outside of {once}" if once else "No issues found"

    @property
    def _hardly_works(self) -> bool:
        return self.busy is not None and self.busy < _HARDLY and not self.damaged & _OF_GPU

    @property
    def _is_partial(self) -> bool:
        """Whether GPU work is missing or on another clock, so that idle time and its causes are unknown."""
        return any(one.id in PARTIAL and one.severity is Severity.ERROR for one in self.findings)

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
        _mean(case, "parts"),
        all(one.numbers is not None for one in case.budgets),
        _mean(case, "possible"),
        () if case.spent.graph > case.spent.kernels else tuple(shares(kernel_mix(case), lambda one: one.family)),
        (*job.busy(case.chosen).notes, *unresolved_waits(job.session, case.tasks)) if case.devices else (),
        frozenset(_judged(set[str]().union(*(report.damaged for report in case.reports)))),
    )


def _range_words(least: float, most: float, whole: float) -> str:
    """``36.0 %``, or ``0 to 36.0 %, unresolved``."""
    words, bound = (f"{100 * time / whole:.1f}" for time in (least, most))
    return f"{bound} %" if words == bound else f"{words if least else 0} to {bound} %, unresolved"


def _mean(case: Case, name: str) -> Mapping[str, float]:
    """Compute the mean of an array of `Iterations` by part over the iterations of each GPU, and over the GPUs, ns."""
    means = [getattr(one.of, name).mean(axis=0).tolist() for one in case.budgets]
    return {part: sum(times) / len(means) for part, times in zip(PARTS, zip(*means, strict=True), strict=False)}


def _with_gains(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with what they could win back: their costs, but no more than what the GPU was blocked by them."""
    costly = [one for one in findings if one.cost and kind_of(one.id).parts and not kind_of(one.id).is_paid_once]
    parts, possible = _mean(case, "parts"), _mean(case, "possible")
    if not parts:
        return list(findings)
    count = sum(len(one.of) for one in case.budgets) / len(case.budgets)
    gains: dict[str, Gain] = {}
    for one in costly:
        own = kind_of(one.id).parts
        share, (least, most) = (one.cost or 0) / count, bounds(parts, possible, own)
        is_measured = least == most <= share
        if one.times and own == BY_CPU and least == most:
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
        gains[one.id] = Gain(
            round(min(share, most)),
            whole,
            standing,
            tuple(others),
            all(own.numbers is not None for own in case.budgets),
        )
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
        why = f"{report.name} is judged without {_words(_judged(tables))}: {cause}; export it again"
        yield NotChecked(_DAMAGED, why, failed=True)


def _judged(names: Iterable[str]) -> list[str]:
    """Return the canonical tables that rules read, all if they read none of them."""
    reads = frozenset().union(*(one.reads for one in rules().values()))
    return [name for name in names if name in reads] or list(names)


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
    """A row for each finding, worst first, then for each rule that was not checked; what could not be read is first."""
    empty = (None,) * (len(COLUMNS) - 5)
    unjudged = [(one.failed, (NOT_CHECKED, one.rule, None, None, one.why, *empty)) for one in found.not_checked]
    rows: list[Row] = [row for failed, row in unjudged if failed]
    rows += [*map(row_of, found.findings), *(row for failed, row in unjudged if not failed)]
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
