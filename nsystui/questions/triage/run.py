"""Triage of a job by all rules: the findings, worst first, and rules that could not judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nsystui.base.answer import END, FILES_ONLY, START, Column, Row, TableAnswer, Unit
from nsystui.base.kernel_families import OTHER
from nsystui.base.resources import give_back
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted, few_numbers, ranks_named
from nsystui.base.types import grouped
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import EMPTY, Intervals
from nsystui.questions.blocking.budget import RECOVERABLE, SPEEDUP, STANDING, Gain, Standing
from nsystui.questions.blocking.dependencies import unresolved_waits
from nsystui.questions.blocking.parts import LONG, PARTS, bounds
from nsystui.questions.capture.launch_account import lost_work
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
from nsystui.questions.triage.case import Case, Place, kernel_mix, once, shares
from nsystui.questions.triage.finding import Finding, NotChecked, Severity
from nsystui.questions.triage.rule import BY_COMMUNICATION, BY_COMPUTE, BY_COPIES, BY_CPU, IDLE, WORK, Rule
from nsystui.questions.triage.rules import kind_of, rules
from nsystui.questions.triage.rules.capture import PARTIAL
from nsystui.questions.triage.thresholds import Thresholds

_LITTLE = 5.0
"""Communication below this cost, in %, counts as hidden."""
_MIN_ONCE = 20.0
"""The minimum share of start-up, tail or graphs in the summary, %."""
_GRAPHS = "CUDA graphs, which were not traced inside"
_CAUSES = 3
"""The number of named causes of each part of idle time."""
_BUSY = {"compute": "compute", "exposed_nccl": "exposed NCCL", "memory": "memory", "graph": "graphs"}
_BLOCKERS = {
    "late launches": ("starved",),
    "NCCL": ("nccl",),
    "other communication": ("communication",),
    "copies": ("to_device", "to_host", "on_device", "other_copies"),
    "memsets": ("memsets",),
    "unified memory": ("migrations",),
    "host functions": ("host_functions",),
    "stalls": ("stalled",),
    "gaps in CUDA graphs": ("in_graph",),
    "unresolved": ("unresolved",),
    "tail": ("tail",),
}
"""Words for the blockers of compute, and their parts of an iteration's budget."""
_NO_BLOCKERS = ("compute", "gaps in CUDA graphs", "unresolved", "tail")
_LAUNCHES = ("launch-overhead", "launch-bound")
"""Findings whose cost is time in short gaps; a job has at most one of them."""
_MIN_SHARE = 1.0
"""The minimum share of a named kernel family or blocker, %."""
_Result = Finding | NotChecked

_DAMAGED, _LEFT_OUT = "damaged", "left-out"
_MIN_BUSY = 1.0
"""The minimum busy time of a healthy job's GPUs, %."""
COSTS = "Each cost is time of one GPU, the mean over all. Costs may overlap: do not add them."


@dataclass(frozen=True)
class Triage:
    """The rules' findings. ``time``: 100 % of a cost, ns; ``gpus``: the number of GPUs in a cost's mean.

    ``incomplete``: ids of findings whose rules could not judge something.
    """

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    time: int
    gpus: int
    incomplete: frozenset[str] = frozenset()
    busy: float | None = None
    """The busy share of the GPUs' time, %."""
    budget: Budget = field(default_factory=Budget)
    """All GPUs' time by part, and the causes of idle parts; empty without GPU work."""
    causes: IdleCauses = field(default_factory=IdleCauses)
    parts: Mapping[str, float] = field(default_factory=dict)
    """An iteration's mean time by part of `blocking.parts`, ns; empty without iterations."""
    has_steps: bool = False
    """Whether the iterations are steps, else all of the time."""
    possible: Mapping[str, float] = field(default_factory=dict)
    """The mean unresolved time that may belong to each part, ns."""
    mix: tuple[tuple[str, float], ...] = ()
    """Each family's share in kernel time, %, largest first; empty if graphs hide most."""
    notes: tuple[str, ...] = ()
    """Notes on busy and idle time; empty without GPU work."""
    damaged: frozenset[str] = frozenset()
    """The canonical tables that could not be read completely."""

    @property
    def summary(self) -> str:
        """The blockers of compute, the busy share and the largest losses, in sentences."""
        return " ".join([*self._blocking(), self.losses])

    @property
    def losses(self) -> str:
        """The busy share and the largest losses, in sentences."""
        if self.damaged & WORK:
            return f"The use of the GPUs is not judged, which needs {_words(sorted(self.damaged & WORK))}."
        if self.busy is None:
            return "No times of GPU work were recorded." if self._is_partial else "No GPU work was recorded."
        losses, total, parts = list[str](), 0.0, set[str]()
        for percent, words, of_loss in sorted([*self._named(), *self._paid_once()], key=lambda loss: -loss[0]):
            if total + percent <= 100.05:  # larger losses may contain this loss
                losses.append(words if parts.isdisjoint(of_loss) else f"{words[:-1]}, may be the same time)")
                total += percent * parts.isdisjoint(of_loss)
                parts |= {*of_loss}
        hidden = [item.gist for item in self.findings if item.id == "communication" and (item.percent or 0) < _LITTLE]
        whose = ("GPUs are", "The GPU is")[self.gpus == 1]
        outside = f" outside of {_GRAPHS}" * self._is_in_graphs
        is_unknown = any((self.damaged, self._is_partial, self.budget.unknown))
        nothing = f"No loss was found{outside}." * (not is_unknown)
        lost = f"Largest loss{'es' * (len(losses) > 1)}: {', '.join(losses)}." if losses else nothing
        doubts = [finding.id for finding in self.findings if _makes_idle_unknown(finding)]
        is_bound = PARTIAL[0] in doubts or self.budget.unknown.total() > 0
        busy = f"{self.busy:.0f}" if round(self.busy) else f"{self.busy:.1g}" if is_bound else "<1"
        bound = "at least " * is_bound
        return " ".join(filter(None, [f"{whose} busy {bound}{busy} % of the time.", lost, *hidden]))

    def _named(self) -> Iterator[tuple[float, str, tuple[str, ...]]]:
        """Yield share (%), words and `PARTS` of the two largest findings and of larger, unexplained parts of time."""
        top = [item for item in self.findings if not item.under and item.percent and item.severity is not Severity.INFO]
        kinds = [(finding, kind_of(finding.id)) for finding in top]
        shares = [(item.percent or 0.0, item.gist or kind.gist or item.id, kind.parts) for item, kind in kinds]
        largest = sorted(shares, key=lambda share: -share[0])[:2]
        mostly = [cause.name for cause in self.causes.in_graphs if 2 * cause.time > self.budget.in_graphs]
        why = "".join(f", {name}" for name in mostly if name != UNEXPLAINED)
        min_share = max(_MIN_ONCE, max((share for share, *_ in shares), default=0.0) + 1)
        parts = (
            ("exposed NCCL", self.budget.exposed_nccl, BY_COMMUNICATION),
            ("memory operations", self.budget.memory, BY_COPIES),
            ("gaps", self.budget.long_gaps, BY_CPU),
            (f"gaps in CUDA graphs{why}", self.budget.in_graphs, ()),
        )
        for words, time, names in () if self._is_partial else parts:
            share = 100 * time / max(self.budget.time, 1)
            largest += [(share, words, names)] * (share >= min_share)
        yield from ((share, f"{words} ({share:.1f} %)", names) for share, words, names in largest)

    @property
    def blockers(self) -> dict[str, tuple[float, str]]:
        """The largest possible share (%) of compute, then of its blockers, and the range in words.

        Empty if data are damaged or missing, GPUs hardly work, or their clock is wrong.
        """
        total = 0 if self.damaged else sum(self.parts.values())
        if not total or self._hardly_works or self._is_partial:
            return {}
        # All unresolved time may be stalled: no reason to name stalls.
        possible = {**self.possible, "stalled": 0}
        times = {words: bounds(self.parts, possible, parts) for words, parts in _BLOCKERS.items()}
        if any(low < high for low, high in times.values()):
            del times["unresolved"]  # the ranges of the other parts contain it
        times = {"compute": (self.parts["compute"],) * 2, **dict(sorted(times.items(), key=lambda item: -item[1][1]))}
        return {words: (100 * high / total, _range_words(low, high, total)) for words, (low, high) in times.items()}

    def _blocking(self) -> Iterator[str]:
        shares = self.blockers
        if not shares:
            return
        compute, _ = shares["compute"]
        largest = [item for item in shares.items() if item[1][0] >= _MIN_SHARE and item[0] not in _NO_BLOCKERS][:2]
        graphs = bool(self.budget.graph)  # a graph traced as a whole counts as compute
        whose = (
            f"the GPU computes{' or runs graphs' * graphs}"
            if self.gpus == 1
            else f"GPUs compute{' or run graphs' * graphs}"
        )
        causes = [f"{cause} ({share})" for cause, (_, share) in largest]
        blocked = f", blocked most by {' and '.join(causes)}" if causes else ""
        computed = "<1" if 0 < compute < 0.5 else f"{compute:.0f}"
        when = "In a step" if self.has_steps else "Between first and last operation"
        yield f"{when}, {whose} {computed} % of the time{blocked}."

    def _paid_once(self) -> Iterator[tuple[float, str, tuple[str, ...]]]:
        """Yield share (%) and words of a large start-up or tail: ``start-up (98.0 %, mostly cudaMallocHost)``."""
        parts = (("start-up", self.budget.startup, self.causes.startup), ("tail", self.budget.tail, self.causes.tail))
        for name, time, causes in () if self._is_partial else parts:
            if 100 * time >= _MIN_ONCE * max(self.budget.time, 1):
                largest = max(causes, key=lambda cause: cause.time, default=SummedCause("", 0))
                why = f", mostly {largest.name}" if 2 * largest.time > time else ""
                share = 100 * time / self.budget.time
                yield share, f"{name} ({share:.1f} %{why})", ()

    @property
    def headline(self) -> str:
        """The number of findings by severity, or the health; and the judged time."""
        counts = {severity: sum(finding.severity is severity for finding in self.findings) for severity in Severity}
        words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "remark"}
        parts = [counted(count, words[severity]) for severity, count in counts.items() if count]
        if unjudged := len(self.not_checked) - len(self.left_out):
            parts.append(f"{counted(unjudged, 'rule')} not checked")
        judged = f"Judged: {format_value(Unit.DURATION, self.time)} on {counted(self.gpus, 'GPU')}."
        parts += self.broken
        whose = "The GPU hardly works." if self.gpus == 1 else "The GPUs hardly work."
        start = [f"{self.health}."] if self.health else [whose] if self._hardly_works else []
        return " ".join([*start, *([f"{', '.join(parts)}."] if parts else []), judged])

    @property
    def unread(self) -> list[str]:
        """Damaged parts of exports and failed rules, with causes."""
        return [f"{rule.rule}: {rule.why}" for rule in self.not_checked if rule.failed and rule.rule != _LEFT_OUT]

    @property
    def left_out(self) -> list[str]:
        """The exports that could not be opened, with causes, as sentences."""
        return [f"Left out: {rule.why}." for rule in self.not_checked if rule.rule == _LEFT_OUT]

    @property
    def broken(self) -> list[str]:
        """The names of failed rules, and whether an export is damaged."""
        names = dict.fromkeys(rule.rule for rule in self.not_checked if rule.failed)
        damage = f"an export is damaged (not read: {_words(sorted(self.damaged))})"
        words = {_DAMAGED: damage, _LEFT_OUT: f"{counted(len(self.left_out), 'export')} left out"}
        return [words.get(name, f"{name} failed") for name in names]

    @property
    def unjudged(self) -> list[str]:
        """The rules that could not judge, a line for each reason."""
        names_by_reason = grouped((rule.why, rule.rule) for rule in self.not_checked)
        return [f"{', '.join(names)}: {why}" for why, names in names_by_reason.items()]

    @property
    def account(self) -> str:
        """All GPU time by part and cause; empty if an export is damaged or GPU work is missing or on another clock."""
        total = self.budget.time
        if self.damaged or not total or self._is_partial:
            return ""
        times = [(name, self.budget.known(part)) for part, name in _BUSY.items()]
        words = [
            f"{name} {'unknown' if time is None else format_value(Unit.PERCENT, 100 * time / total)}"
            for name, time in times
            if time != 0
        ]
        return f"Time: {', '.join(words)}. Idle: {', '.join(idle_words(self.budget, self.causes, _CAUSES))}."

    @property
    def kernels(self) -> str:
        """The largest kernel families, in a sentence; empty if the largest is unknown."""
        families = [f"{family} {share:.0f} %" for family, share in self.mix if share >= _MIN_SHARE]
        return f"Kernel time: {', '.join(families)}." if families and self.mix[0][0] != OTHER else ""

    @property
    def health(self) -> str:
        """``No issues found``, except large one-time costs and graphs; empty after a warning or failure."""
        is_unknown = self.broken or self._hardly_works or self.budget.unknown
        if is_unknown or any(finding.severity is not Severity.INFO for finding in self.findings):
            return ""
        unjudged = [words.partition(" (")[0] for _, words, _ in self._paid_once()] + [_GRAPHS] * self._is_in_graphs
        return f"No issues found outside of {' and '.join(unjudged)}" if unjudged else "No issues found"

    @property
    def _is_in_graphs(self) -> bool:
        return 100 * self.budget.graph >= _MIN_ONCE * max(self.budget.time, 1)

    @property
    def _hardly_works(self) -> bool:
        is_known = not self.damaged & WORK and not self._is_partial
        return is_known and self.busy is not None and self.busy < _MIN_BUSY

    @property
    def _is_partial(self) -> bool:
        return any(map(_makes_idle_unknown, self.findings))

    def first(self, count: int | None) -> Triage:
        """Return only the ``count`` worst findings (``None``: all)."""
        return self if count is None else replace(self, findings=self.findings[:count])


def triage(
    job: OpenJob, selection: Selection | None = None, thresholds: Thresholds | None = None,
    step_name: str | None = None, names: Collection[str] | None = None,
    advanced: Callable[[int, int, str], object] = lambda done, total, name: None,
) -> Triage:  # fmt: skip
    """Run every rule over the selected part of a job. Raises UsageError if ``step_name`` is not a regular expression.

    A rule is not checked if it fails or needs unknown data. ``advanced`` is called before each rule, and before the
    time budget, with the numbers of finished and of all rules, and the next name; its exceptions end the triage.
    """
    case = Case(job, selection or Selection(), thresholds or Thresholds(), step_name)
    if step_name is not None:
        case.job.steps(step_name)
    findings: list[Finding] = []
    not_checked = list(_unread(case))
    incomplete: set[str] = set()
    selected = [rules()[name] for name in (names if names is not None else rules())]
    for done, rule in enumerate(selected):
        advanced(done, len(selected), rule.name)
        give_back()  # memory of the previous rule
        for result in _checked(rule, case, findings):
            if isinstance(result, Finding):
                findings.append(result)
            else:
                not_checked.append(result)
                incomplete.update(rule.finds)
    advanced(len(selected), len(selected), "time budget")
    return _result(case, findings, not_checked, incomplete)


def _result(
    case: Case, findings: Sequence[Finding], not_checked: Sequence[NotChecked], incomplete: Collection[str]
) -> Triage:
    has_steps = all(budget.numbers is not None for budget in case.budgets)
    mix = () if case.spent.graph > case.spent.kernels else tuple(shares(kernel_mix(case), lambda work: work.family))
    notes = (*case.job.busy(case.scope).notes, *unresolved_waits(case.job.session, case.tasks)) if case.devices else ()
    return Triage(
        tuple(_ordered(_with_gains(case, findings), case.time)), tuple(not_checked), case.time, len(case.devices),
        frozenset(incomplete), case.percent(case.mean([case.spent.busy])) if case.devices else None,
        *_account(case, findings), _mean(case, "parts"), has_steps, _mean(case, "possible"), mix, notes,
        frozenset(_judged(set[str]().union(*(report.damaged for report in case.reports)))),
    )  # fmt: skip


def _range_words(lower: float, upper: float, total: float) -> str:
    """Return ``36.0 %``, or ``0 to 36.0 %, unresolved``."""
    words, bound = (f"{100 * time / total:.1f}" for time in (lower, upper))
    return f"{bound} %" if words == bound else f"{words if lower else 0} to {bound} %, unresolved"


def _mean(case: Case, name: str) -> Mapping[str, float]:
    """Return the mean of an array of `Iterations` by part, ns: over each GPU's iterations, then over the GPUs."""
    means = [getattr(budget.of, name).mean(axis=0).tolist() for budget in case.budgets]
    return {part: sum(times) / len(means) for part, times in zip(PARTS, zip(*means, strict=True), strict=False)}


def _with_gains(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with their gains: the cost, limited to the time for which it blocked the GPU."""
    costly = [item for item in findings if item.cost and kind_of(item.id).parts and not kind_of(item.id).is_paid_once]
    parts, possible = _mean(case, "parts"), _mean(case, "possible")
    if not parts:
        return list(findings)
    count = sum(len(budget.of) for budget in case.budgets) / len(case.budgets)
    waits = sum((Counter(item.losses) for item in costly if item.id == "straggler"), Counter[Place]())
    losses = {id(item): _losses(case, item, waits) for item in costly}
    waiting = {key: BY_COMMUNICATION * any(lost) for key, lost in losses.items()}
    parts_of = {id(item): tuple(dict.fromkeys(kind_of(item.id).parts + waiting[id(item)])) for item in costly}
    gains: dict[int, Gain] = {}
    for finding in costly:
        names = parts_of[id(finding)]
        share, (lower, upper) = (finding.cost or 0) / count, bounds(parts, possible, names)
        if any(losses[id(finding)]):
            share, lower, upper = _least_loss(case, losses[id(finding)], names)
        is_measured = lower == upper <= share
        if finding.times and names == BY_CPU and lower == upper:
            starved, unknown = _starved(case, finding.times)
            upper = min(upper, (starved + unknown) / count)
            is_measured = unknown == 0 and upper <= share + 1
        if not round(min(share, upper)):
            continue
        standing = Standing.MEASURED if is_measured else Standing.BOUNDED
        # Gains may overlap if findings share parts of the budget and times; unknown times may be shared.
        peers = [item for item in costly if item.id != finding.id and not {*names}.isdisjoint(parts_of[id(item)])]
        others = sorted({other.id for other in peers if finding.shared_with(other) != 0})
        iteration, standing = round(sum(parts.values())), Standing.INFERRED if names == BY_COMPUTE else standing
        is_step = all(budget.numbers is not None for budget in case.budgets)
        gains[id(finding)] = Gain(round(min(share, upper)), iteration, standing, tuple(others), is_step)
    return [replace(finding, gain=gains.get(id(finding))) for finding in findings]


def _losses(case: Case, finding: Finding, waits: Mapping[Place, int]) -> Sequence[Mapping[Place, int]]:
    """Return each GPU's losses by waiting, and by a finding that may delay a late rank, ns."""
    parts = kind_of(finding.id).parts
    local = finding.losses or {key: time.length for key, time in finding.times.items()}
    is_delay = parts == BY_CPU and waits and local
    losses = (waits, local) if is_delay else (finding.losses, {}) if parts == BY_COMMUNICATION else ()
    return [{case.gpu_of.get(key, key): loss for key, loss in part.items()} for part in losses]


def _least_loss(case: Case, losses: Sequence[Mapping[Place, int]], names: Sequence[str]) -> tuple[float, ...]:
    """Return the loss and the bounds of some parts, a mean iteration, of the GPU that gains least."""
    (waits, local), least = losses, []
    since = {gpu.device.key: case.working(gpu).start for gpu in case.devices}
    for gpu in (budget.of for budget in case.budgets):
        key = case.gpu_of.get(key := (gpu.task, gpu.device), key)
        if local or key in waits:
            loss = waits.get(key, 0) / len(gpu) + local.get(key, 0) / max((gpu.starts >= since.get(key, 0)).sum(), 1)
            parts, possible = (dict(zip(PARTS, of.mean(axis=0), strict=True)) for of in (gpu.parts, gpu.possible))
            least.append((loss, *bounds(parts, possible, names)))
    return min(least, key=lambda times: min(times[0], times[2]), default=(0, 0, 0))


def _starved(case: Case, times: Mapping[tuple[Task, int], Intervals]) -> tuple[float, float]:
    """Return the launch-starved part of some times, and the part too short to be known: means over the GPUs, ns."""
    starved_time = unknown_time = 0
    for gpu in (budget.of for budget in case.budgets):
        key = gpu.task, gpu.device
        local = times.get(case.gpu_of.get(key, key), EMPTY).clip(int(gpu.starts[0]), int(gpu.ends[-1]))
        starved = gpu.when["starved"].covered(local.starts, local.ends)
        lengths = local.ends - local.starts
        starved_time += int(starved.sum())
        unknown_time += int((lengths - starved)[lengths < LONG].sum())
    return starved_time / len(case.budgets), unknown_time / len(case.budgets)


def _ordered(findings: Sequence[Finding], time: int) -> list[Finding]:
    """Sort by severity, recurring before one-time costs, then by gain or cost; symptoms follow their cause."""
    by_id = {finding.id: finding for finding in findings}

    def cause(finding: Finding) -> str:
        for name in (finding.under, *kind_of(finding.id).symptom_of):
            other = by_id.get(name)
            if other is None:
                continue
            shared = finding.shared_with(other)
            is_cause = 2 * (other.cost or 0) >= (finding.cost or 0) if shared is None else shared >= 0.5
            if name == finding.under or is_cause:
                return name
        return ""

    def key(finding: Finding) -> tuple[int, bool, float, int, str, str]:
        cost, gain = finding.cost or 0, finding.gain
        weight = cost / max(time, 1) if gain is None else gain.recoverable / max(gain.iteration, 1)
        is_once = kind_of(finding.id).is_paid_once
        return finding.severity.order, is_once, -weight, -cost, finding.id, finding.sentence

    ranked = sorted((replace(finding, under=cause(finding)) for finding in findings), key=key)
    symptoms = grouped((finding.under, finding) for finding in ranked)
    ordered: list[Finding] = []
    pending = list(reversed(symptoms.pop("", [])))
    while pending:
        finding = pending.pop()
        ordered.append(finding)
        pending += reversed(symptoms.pop(finding.id, []))
    return ordered


def _account(case: Case, findings: Iterable[Finding]) -> tuple[Budget, IdleCauses]:
    """Return the budget of all GPUs and its causes, empty if their computation fails, which a rule reports."""
    try:
        budgets, causes = caused_budgets(case.job, case.scope, case.step_name)
    except Exception:  # any failure: the findings count without causes
        budgets, causes = device_budgets(case.job, case.scope, case.step_name), IdleCauses()
    budget = in_sum(budgets)
    for finding in findings:
        if finding.id in _LAUNCHES:
            time = min((finding.cost or 0) * len(case.devices), budget.short_gaps)
            why = SummedCause(kind_of(finding.id).gist, time), SummedCause(UNEXPLAINED, budget.short_gaps - time)
            causes = replace(causes, short_gaps=why)
    return budget, causes


def _unread(case: Case) -> Iterator[NotChecked]:
    yield from (NotChecked(_LEFT_OUT, why, failed=True) for why in case.job.left_out)
    for report in case.reports:
        for cause in dict.fromkeys(report.damaged.values()):
            tables = [name for name, why in report.damaged.items() if why == cause]
            why = f"{report.name} is judged without {_words(_judged(tables))}: {cause}; export it again"
            yield NotChecked(_DAMAGED, why, failed=True)


def _judged(names: Iterable[str]) -> list[str]:
    reads = frozenset().union(*(rule.reads for rule in rules().values()))
    return [name for name in names if name in reads] or list(names)


def _words(names: Iterable[str]) -> str:
    return ", ".join(canonical.BY_NAME[name].short for name in names)


def _makes_idle_unknown(finding: Finding) -> bool:
    return finding.id in PARTIAL and finding.severity is Severity.ERROR


@once
def _lacking(case: Case) -> set[int]:
    """Return the ranks that lack work, or share a GPU with a process that does."""
    lacking = {task for task, _ in lost_work(case.job.session)}
    return {item.rank for item in case.job.ranks if item.task in lacking}


def _unknown(rule: Rule, case: Case, findings: Sequence[Finding]) -> str:
    """Return why a rule cannot judge the recorded work, if it cannot."""
    damaged = rule.reads.intersection(table for report in case.reports for table in report.damaged)
    if damaged:
        return f"needs {_words(sorted(damaged))}: the export is damaged there"
    doubts = [finding for finding in findings if _makes_idle_unknown(finding)]
    doubted = _lacking(case).union(*(finding.ranks for finding in doubts))
    if rule.compares_ranks:
        return f"compares ranks, and work or its true times are unknown on {ranks_named(doubted)}" * bool(doubted)
    needs_idle = rule.reads >= IDLE
    doubts = [doubt for doubt in doubts if needs_idle or (rule.costs_exposed and doubt.id == PARTIAL[0])]
    others = sorted({item.rank for item in case.ranks} - doubted)
    choose = f"; --ranks {few_numbers(others)} judges the others" if others else ""
    names, what = " and ".join(finding.id for finding in doubts), ("exposed", "idle")[needs_idle]
    return f"needs {what} time, which is unknown: {names}{choose}" * bool(doubts)


def _checked(rule: Rule, case: Case, findings: Sequence[Finding]) -> Sequence[_Result]:
    if why := _unknown(rule, case, findings):
        return [NotChecked(", ".join(rule.finds), why)]
    try:
        return rule(case)
    except Exception as error:  # any failure: the other rules still judge
        why = str(error).partition("\n")[0]
        return [NotChecked(", ".join(rule.finds), f"the rule failed ({type(error).__name__}: {why})", failed=True)]


NOT_CHECKED = "not checked"
COLUMNS = (
    Column("severity", header="Severity", label="severity"), Column("id", header="Id", label="id"),
    Column("cost", header="Cost (ns)", label="cost", unit=Unit.DURATION),
    Column("percent", header="Cost (%)", label="of job", unit=Unit.PERCENT, decimals=1),
    Column("sentence", header="Finding", label="finding"), RECOVERABLE,
    Column("iteration", header="Iteration (ns)", label="of", unit=Unit.DURATION, compared="recoverable", importance=4),
    SPEEDUP, STANDING, Column("includes", header="May Include", label="may include", importance=5),
    Column("suggestion", header="Suggestion", label="suggestion", importance=1),
    Column("reason", header="Reason", label="reason", importance=2),
    Column("measured", header="Measured", label="measured", importance=3),
    Column("ranks", header="Ranks", label="ranks", importance=2),
    Column("symptom_of", header="Symptom of", label="symptom of", importance=2), START.with_importance(3),
    END.with_importance(3), Column("screen", header="Screen", label="screen", importance=3),
    Column("command", header="Command", label="command", importance=FILES_ONLY),
)  # fmt: skip


def triage_table(result: Triage) -> TableAnswer:
    """Return a row for each failed rule, each finding, worst first, and each other unchecked rule."""
    empty = (None,) * (len(COLUMNS) - 5)
    unchecked = [(rule.failed, (NOT_CHECKED, rule.rule, None, None, rule.why, *empty)) for rule in result.not_checked]
    rows: list[Row] = [row for failed, row in unchecked if failed]
    rows += [*map(row_of, result.findings), *(row for failed, row in unchecked if not failed)]
    return TableAnswer("triage", COLUMNS, rows, len(rows), result.notes)


def row_of(finding: Finding) -> Row:
    """Return a finding as a row of `triage_table`."""
    window, gain = finding.window, finding.gain
    gain_cells: Row = (None,) * 5
    if gain is not None:
        includes = " ".join(gain.includes) or None
        gain_cells = gain.recoverable, gain.iteration, gain.speedup, gain.standing.value, includes
    return (
        finding.severity.value, finding.id, finding.cost, finding.percent, finding.sentence, *gain_cells,
        finding.advice.text, finding.advice.reason, finding.measured or None, finding.rank_numbers or None,
        finding.under or None, window.start if window else None, window.end if window else None,
        finding.door.screen, finding.door.command,
    )  # fmt: skip
