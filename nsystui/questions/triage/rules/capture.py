"""Problems of the capture: lost events, missing data, API errors, the profiler's own work."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import COUNT, DEVICE, NAME, RANK, Column, TableAnswer, Unit
from nsystui.base.selection import Task, Window
from nsystui.base.text import counted, few
from nsystui.exports import canonical
from nsystui.exports.metadata import pid_of
from nsystui.questions.algebra.intervals import EMPTY, merge
from nsystui.questions.capture.launch_account import LaunchAccount, account_table, losses
from nsystui.questions.gpu.graph_gaps import HOST_NODE, TRACED, causes_in_graphs
from nsystui.questions.kernels.activities import overhead_conditions
from nsystui.questions.queries.conditions import duration, job_start, where
from nsystui.questions.queries.data_notes import UNKNOWN_BY_CLOCK, clock_note, conditional_notes
from nsystui.questions.queries.pauses import SURE_LOSS, hole_note
from nsystui.questions.queries.recording import lost_work_advice, sizes_advice
from nsystui.questions.queries.reports import diagnostics_table, lost_events
from nsystui.questions.queries.tasks import launches_without_work, process_names, rank_of, world_size
from nsystui.questions.queries.time_window import shares_clock
from nsystui.questions.triage.case import Case, rank_words, time_words
from nsystui.questions.triage.finding import DIAGNOSTICS, Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.rule import IDLE, WORK, FindingKind, rule
from nsystui.store import tables

PARTIAL = ("incomplete-capture", "clock-offset")
_DOOR = Door(DIAGNOSTICS)
_CAPTURE = (
    "lost-events", "capture-errors", "different-runs", "no-gpu-work", "short-window", "no-nvtx", "no-message-sizes",
    "ranks-missing",
)  # fmt: skip


@rule(10, WORK | {"diagnostics", "nvtx_ranges", "nccl_calls"}, *map(FindingKind, _CAPTURE))
def capture(case: Case) -> Sequence[Finding | NotChecked]:
    """Find problems of the capture, which explain more bad numbers than anything else."""
    judges = (_moved, _runs, _lost, _empty, _short, _missing)
    results: list[Finding | NotChecked] = [finding for judge in judges for finding in judge(case)]
    nsys_reports = [report for report in case.reports if not report.metadata.made_of]
    if nsys_reports and not any(report.count(tables.diagnostics) for report in nsys_reports):
        why = "needs the messages of nsys on its own capture, which nsys 2024.4 and later write"
        results.append(NotChecked("lost-events", why))
    return results


@rule(5, frozenset({"kernels", "api_calls", "syncs"}), *map(FindingKind, PARTIAL))
def launch_account(case: Case) -> Sequence[Finding | NotChecked]:
    """Find launches and kernels that the capture lacks, and GPU clocks that differ from the CPU's."""
    ranks, untimed = {item.task: item.rank for item in case.job.ranks}, case.untimed
    partial = {task: of for task, of in case.accounts.items() if of.lost_kernels + of.lost_work + of.lost_launches}
    shifted = {task: account for task, account in case.accounts.items() if account.clock_error}
    findings = []
    if partial or untimed:
        without = sum(account.lost_launches for account in partial.values())
        kernels = sum(account.kernels for account in partial.values())
        missing = losses(partial.values())
        missing += [f"{counted(without, 'kernel', 'have', kernels)} no launch"] if without else []
        for table in dict.fromkeys(table for _, table in untimed):
            pairs = (pair for (_, other), pair in untimed.items() if other == table)
            left_out, rows = map(sum, zip(*pairs, strict=True))
            noun = f"row of {table.short}" if rows == 1 else table.short
            missing.append(f"{left_out:,} of {rows:,} {noun} {'has' if left_out == 1 else 'have'} no possible time")
        is_lower = untimed or case.lacking_work
        bounds = "Busy times, counts and sums are lower bounds." if is_lower else "Idle time may have other causes."
        numbers = tuple(sorted(ranks[task] for task in case.lacking_work | partial.keys()))
        advice = Advice(
            "Read nsys's messages, and record a shorter part again, flushed more often (--cuda-flush-interval).",
            "No number here contains what is missing.",
        )
        is_much = untimed or any(account.lacks_much for account in partial.values())
        severity = Severity.ERROR if is_much else Severity.WARNING
        is_unsure = all(item.lost_kernels + item.lost_work <= item.unsure for item in partial.values())
        verb = "may be" if is_unsure and not untimed and not without else "is"
        text = f"The capture of {rank_words(numbers, case.ranks)} {verb} incomplete: {' and '.join(missing)}. {bounds}"
        evidence, gist = account_table(case.job, partial), f"an incomplete capture ({', '.join(missing)})"
        findings.append(Finding(PARTIAL[0], severity, text, advice, _DOOR, evidence=evidence, ranks=numbers, gist=gist))
    return [*findings, *_clocks_apart(case, shifted, ranks)]


def _clocks_apart(case: Case, shifted: Mapping[Task, LaunchAccount], ranks: Mapping[Task, int]) -> Iterator[Finding]:
    if not shifted:
        return
    worst, account = max(shifted.items(), key=lambda item: abs(item[1].clock_error))
    error = time_words(abs(account.clock_error))
    order = "start {} before their launch" if account.clock_error < 0 else "end {} after a call that waited for them"
    advice = Advice(
        "Compare times of GPU operations with each other only, and record again with a newer nsys or driver.",
        "nsys converts GPU timestamps to the clock of the CPU, and failed here.",
    )
    where = f"on rank {ranks[worst]}, kernels {order.format(error)}"
    text = f"The clocks of GPU and CPU differ: {where}. {UNKNOWN_BY_CLOCK.capitalize()}."
    evidence, gist = account_table(case.job, shifted), f"clocks of GPU and CPU {error} apart"
    numbers, severity = tuple(sorted(ranks[task] for task in shifted)), Severity.ERROR
    yield Finding(PARTIAL[1], severity, text, advice, _DOOR, evidence=evidence, ranks=numbers, gist=gist)


def _moved(case: Case) -> Iterator[Finding]:
    if note := clock_note(case.reports):
        advice = Advice("Record again with a newer nsys or driver.", "All times here are corrected.")
        yield Finding(PARTIAL[1], Severity.INFO, f"{note}.", advice, _DOOR)


def _lost(case: Case) -> Iterator[Finding]:
    messages_table = diagnostics_table(case.job.session, replace(case.scope, name=None))
    texts = list(zip(messages_table.cells("severity"), messages_table.cells("text"), strict=True))
    lost = lost_events(texts)
    advice = Advice(
        "Record less at once (fewer traces, or a shorter window with -c cudaProfilerApi or --duration).",
        "Other numbers here may be undercounted.",
    )
    working = {task for device in case.devices for task in device.tasks}
    holes = hole_note(case.job.session, [item for item in case.ranks if item.task in working])
    if lost or holes:
        # nsys writes "Not all … events might have been collected" for many complete captures.
        sure = holes or [text for text in messages_table.cells("text") if SURE_LOSS.search(str(text))]
        severity = Severity.ERROR if sure else Severity.INFO
        messages = few([text.removesuffix(".") for text in lost])  # each message of nsys is a sentence
        text = f"Events may be missing, so counts and times may be undercounted: {messages}."
        text = " ".join([*[f"{holes[:1].upper()}{holes[1:]}."] * bool(holes), *[text] * bool(lost)])
        if not sure:
            text = f"Events may be missing, but nsys is not sure: {messages}."
            advice = Advice(
                "Before you trust the numbers, check that the kernels and ranges you expect are there.",
                "Many complete captures have this message.",
            )
        yield Finding("lost-events", severity, text, advice, _DOOR, evidence=messages_table)
    errors = [str(text or "").strip() for severity, text in texts if severity == "Error"]
    if errors and not lost:
        text = f"While recording, nsys reported {counted(len(errors), 'error')}: {errors[0].removesuffix('.')}."
        advice = Advice("Read nsys's messages and record again.", "What nsys could not record is missing here.")
        yield Finding("capture-errors", Severity.WARNING, text, advice, _DOOR, evidence=messages_table)


def _runs(case: Case) -> Iterator[Finding]:
    if shares_clock(case.reports):
        return
    sentence = (
        f"These {counted(len(case.reports), 'report')} are of different runs (or a report does not say when its run "
        "began). The findings are about all reports together."
    )
    advice = Advice("Judge each run alone, or compare two runs with `nsystui diff`.", "Costs are means over all runs.")
    yield Finding("different-runs", Severity.WARNING, sentence, advice, _DOOR)


def _empty(case: Case) -> Iterator[Finding]:
    """Yield a finding on ranks without GPU work, and on other processes without their launched work."""
    session, selected = case.job.session, case.scope.tasks
    worked = {task for device in case.devices for task in device.tasks} | case.lacking_work
    idle_ranks = {item.task: item.rank for item in case.ranks if item.task not in worked}
    launched = launches_without_work(session, case.reports)
    launched = {task: calls for task, calls in launched.items() if selected is None or task in selected}
    with_work = {task.report for task in worked}
    named = sorted(task for task in launched if task.report in with_work or task not in case.tasks)
    if not idle_ranks and not named and case.ranks:
        return
    unnamed = [rank for task, rank in idle_ranks.items() if task not in named]
    whose = [rank_words(unnamed, case.ranks)] if unnamed else []
    if named:
        names = process_names(session)
        words = few([f"{names.get(task, 'process')} ({pid_of(task.process)})" for task in named])
        whose.append(f"{len(named)} {'process' if len(named) == 1 else 'processes'} with CUDA calls: {words}")
    sentence = f"No GPU work was recorded for {' and '.join(whose) or 'these exports'}."
    advice = Advice(f"To judge the GPUs: {case.record(canonical.KERNELS)}.", "The program may also use no GPU.")
    evidence = None
    if launched:
        evidence = diagnostics_table(session, case.scope)
        totals: Counter[str] = Counter()
        for calls in launched.values():
            totals.update(calls)
        name, largest = max(totals.items(), key=lambda item: (item[1], item[0]))
        calls_made = counted(totals.total(), "CUDA call")
        sentence += f" The CPU made {calls_made} to launch, copy or set memory ({largest:,} {name})."
        lacking = {task.report for task in (*launched, *idle_ranks)}
        how = lost_work_advice(session, [report for report in case.reports if report.index in lacking])
        advice = Advice(f"To judge these processes: {how}.", "The export lacks GPU work.")
    ranks = tuple(sorted(idle_ranks.values()))
    yield Finding("no-gpu-work", Severity.WARNING, sentence, advice, _DOOR, evidence=evidence, ranks=ranks)


def _short(case: Case) -> Iterator[Finding]:
    advice = Advice("Record a longer part of the run.", "What happens once weighs too much in a short capture.")
    steps = [len(times) for times in case.steps.values()]
    if steps and max(steps) < case.thresholds.fewest_steps:
        text = f"The window has only {counted(max(steps), 'step')} of a rank."
        yield Finding("short-window", Severity.INFO, text, advice, Door("steps"))
        return
    if case.lacking_work:
        return
    if case.devices and case.spent.busy / len(case.devices) < case.thresholds.shortest_ms * 1e6:
        busy = time_words(case.spent.busy / len(case.devices))
        text = f"{case.each_gpu} is busy for only {busy} of {time_words(case.time)}. This is too short to judge shares."
        yield Finding("short-window", Severity.INFO, text, advice, Door("gpu"))


def _missing(case: Case) -> Iterator[Finding]:
    session = case.job.session
    if case.devices and not session.count(tables.nvtx_ranges):
        text = "There are no NVTX ranges, so time cannot be split by phase."
        how = case.record(canonical.NVTX_RANGES)
        advice = Advice(f"To see phases: {how}.", "NVTX ranges name phases, layers and NCCL calls.")
        yield Finding("no-nvtx", Severity.INFO, text, advice, Door("nvtx"))
    if session.count(tables.nccl_calls) and not case.has_message_sizes:
        text = "NCCL's message sizes are not in the exports, so bandwidth cannot be computed."
        advice = Advice(
            f"To see bandwidth: {sizes_advice(case.reports, case.job.nccl_log is not None)}.",
            "Since NCCL 2.16.2, NVTX ranges have the message sizes. By default, an export of nsys leaves them out.",
        )
        yield Finding("no-message-sizes", Severity.INFO, text, advice, Door("nccl"))
    size = world_size(session)
    if size and case.scope.tasks is None and size > len(case.ranks):
        text = f"Only {counted(len(case.ranks), 'rank', 'are', size)} open. "
        of_one = "One rank alone does not show which rank arrives late."
        text += of_one if len(case.ranks) == 1 else "Late ranks are known among these ranks only."
        reason = "The slowest rank may be missing here."
        advice = Advice("Open the exports of all ranks, if they were recorded.", reason)
        yield Finding("ranks-missing", Severity.INFO, text, advice, Door("ranks"))


_HARMLESS = (0, 600, 704)
"""Success, "not ready" (a query while work continues), "peer access is already enabled"."""
_NAMES = {
    1: "invalid value", 2: "out of memory", 214: "uncorrectable ECC error", 217: "no peer access between two devices",
    700: "illegal address", 702: "launch timeout", 710: "assert on the device", 714: "hardware stack error",
    715: "illegal instruction", 716: "misaligned address", 717: "invalid address space",
    718: "invalid program counter", 719: "launch failure", 801: "not supported",
}  # fmt: skip
_STICKY = frozenset({214, 700, 702, 710, 714, 715, 716, 717, 718, 719})
"""After these errors a process cannot use its GPU (cudaError_t in driver_types.h; same numbers in CUresult)."""
_OUT_OF_MEMORY, _NO_PEER_ACCESS = 2, 217
_API_ERRORS_COLUMNS = (
    RANK, NAME, Column("code", header="Code", label="code", unit=Unit.NUMBER),
    Column("meaning", header="Meaning", label="meaning"), COUNT,
    Column("first", header="First (ns)", label="first", unit=Unit.TIME),
)  # fmt: skip


_ADVICE = (
    (_STICKY, Severity.ERROR, Advice(
        "Run the program under compute-sanitizer.", "After such an error no result of the GPU can be trusted."
    )),
    ({_OUT_OF_MEMORY}, Severity.WARNING, Advice(
        "Use less memory (batch size, fragmentation), or check whether the program frees memory and retries.",
        "An allocator that retries frees its cache first, which synchronises the whole GPU.",
    )),
    ({_NO_PEER_ACCESS}, Severity.WARNING, Advice(
        "See which GPUs have peer access (`nvidia-smi topo -p2p r`), and exchange data between those GPUs.",
        "Without peer access copies between these GPUs go through the host.",
    )),
)  # fmt: skip
_EXPECTED = Advice(
    "Check whether the program expects this error.", "Libraries probe for features with calls that may fail."
)


@rule(20, frozenset({"api_calls"}), FindingKind("api-errors"))
def api_errors(case: Case) -> Sequence[Finding | NotChecked]:
    """Find CUDA API calls that returned an error."""
    table = tables.api_calls
    session = case.job.session
    if not session.count(table):
        return [NotChecked("api-errors", f"needs CUDA API calls: {case.record(canonical.API_CALLS)}")]
    keys = rank_of(table, case.ranks).label("rank"), table.c.name, table.c.return_value
    query = sa.select(*keys, sa.func.count(), sa.func.min(job_start(table))).group_by("rank", *keys[1:])
    query = query.where(*where(table, case.scope), table.c.return_value.not_in(_HARMLESS))
    rows = [(rank, name, code, _NAMES.get(code), *rest) for rank, name, code, *rest in session.rows(query)]
    if not rows:
        return []
    rows.sort(key=lambda row: (row[2] not in _STICKY, row[5], str(row)))
    codes = {code for _, _, code, *_ in rows}
    judged = ((severity, advice) for error_codes, severity, advice in _ADVICE if codes & error_codes)
    severity, advice = next(judged, (Severity.INFO, _EXPECTED))
    _, name, code, meaning, _, first = rows[0]
    count = counted(sum(row[4] for row in rows), "CUDA call")
    sentence = f"{count} returned an error: {name} returned {code}{f' ({meaning})' if meaning else ''}."
    ranks, window = tuple(sorted({row[0] for row in rows if row[0] is not None})), Window(first, first + 1)
    evidence, door = TableAnswer("api-errors", _API_ERRORS_COLUMNS, rows, len(rows)), Door("api")
    return [Finding("api-errors", severity, sentence, advice, door, evidence=evidence, window=window, ranks=ranks)]


_PROFILER_OVERHEAD_COLUMNS = (
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION), COUNT,
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, importance=1), NAME,
)  # fmt: skip


@rule(310, IDLE, FindingKind("profiler-overhead", "the profiler's own work"))
def profiler_overhead(case: Case) -> Sequence[Finding | NotChecked]:
    """Find idle time of GPUs while the profiler works: a run without the profiler does not lose it."""
    table = tables.profiler_overhead
    if not case.job.session.count(table) or not case.devices:
        why = "needs GPU work and the times of the profiler's own work: these exports lack them"
        return [NotChecked("profiler-overhead", why)]
    overheads = [case.overhead.get(device.device.task.task, EMPTY) for device in case.devices]
    idle = [case.idle(device).shared_with(overhead) for device, overhead in zip(case.devices, overheads, strict=True)]
    cost = case.mean(idle)
    if case.percent(cost) < case.thresholds.overhead_percent:
        return []
    total = sa.cast(sa.func.sum(duration(table)), sa.BigInteger).label("total")
    query = (
        sa.select(total, sa.func.count(), sa.func.max(duration(table)), table.c.name)
        .where(*overhead_conditions(case.scope))
        .group_by(table.c.name)
        .order_by(total.desc(), table.c.name)
    )
    rows = case.job.session.rows(query)
    count = sum(row[1] for row in rows)
    sentence = (
        f"{case.each_gpu} idles {time_words(cost)} while the profiler itself works ({counted(count, 'time')}). The "
        f"largest part is {rows[0][3] or '(no name)'}. A run without the profiler does not lose this time."
    )
    advice = Advice(
        "Record less (no backtraces, no sampling, fewer traces), and flush rarely (--cuda-flush-interval).",
        "The program waits while nsys allocates or writes its buffers.",
    )
    measured = (
        "Idle time between the first and the last operation of a GPU while its process has an entry in "
        "PROFILER_OVERHEAD. Mean over the GPUs."
    )
    evidence = _PROFILER_OVERHEAD_COLUMNS, rows
    return [case.finding("profiler-overhead", sentence, advice, _DOOR, cost, measured, evidence)]


_GRAPH_GAPS_COLUMNS = (
    RANK, DEVICE.with_importance(1), Column("gaps", header="Gaps", label="gaps", unit=Unit.COUNT),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
    Column("short", header="In Short Gaps (ns)", label="in short gaps", unit=Unit.DURATION, compared="total"),
    Column("median", header="Med (ns)", label="median", unit=Unit.DURATION, decimals=0),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION),
)  # fmt: skip
_UNTRACED = Advice(
    "Record again with --cuda-graph-trace=graph: each replay is then one operation without gaps, as long as it takes "
    "if its nodes are not traced. Compare its length, or that of a step, with this capture.",
    "To time each node of a graph, the profiler may separate the nodes, by about 2 µs each.",
)
_HOST_NODES = Advice(
    "Take host functions out of the graphs, or make them shorter: let another thread do their work.",
    "A stream runs nothing while its host function runs on the CPU, also inside a graph.",
)
_WAITING_INSIDE = Advice(
    "Look at the operations around the gaps (`nsystui gaps --by pair`), and for host nodes and dependencies between "
    "the branches of the graph. --cuda-graph-trace=graph shows how long replays take untraced.",
    "Inside a graph an operation waits only for the nodes before it, also for nodes that are not on the GPU.",
)


@rule(320, IDLE, FindingKind("graph-gaps", "gaps in CUDA graphs"))
def graph_gaps(case: Case) -> Sequence[Finding | NotChecked]:
    """Find idle time inside replays of CUDA graphs, of which tracing by node may make the short gaps."""
    rows: list[tuple[int, int, int, int, int, float, int]] = []
    ran, hosted = case.host_functions, 0
    for gpu in case.devices:
        gaps = case.in_graphs(gpu, case.window_of(gpu))
        hosted += causes_in_graphs(gaps, merge(*(ran[task] for task in gpu.tasks if task in ran)))[HOST_NODE].length
        lengths = gaps.lengths
        if len(lengths):
            times = int(lengths.sum()), int(lengths[lengths <= TRACED].sum())
            figures = len(lengths), *times, float(np.median(lengths)), int(lengths.max())
            rows.append((gpu.device.task.rank, gpu.device.device, *figures))
    cost, short = (case.mean(row[column] for row in rows) for column in (3, 4))
    if not rows or case.percent(cost) < case.thresholds.overhead_percent:
        return []
    limit, advice, gist = time_words(TRACED), _UNTRACED, ""
    sentence = (
        f"{case.each_gpu} idles {time_words(cost)} inside replayed CUDA graphs, in "
        f"{counted(sum(row[2] for row in rows), 'gap')}. The CPU had launched the graphs before. "
    )
    if 2 * short >= cost:
        sentence += (
            f"Tracing by node may have made {time_words(short)} of this time, the gaps of at most {limit}: then a run "
            "without the profiler does not lose it."
        )
    else:
        sentence += f"{time_words(cost - short)} is in gaps above {limit}, too long for the tracing of nodes."
        advice = _WAITING_INSIDE
        if 2 * (blocked := case.mean([hosted])) >= cost - short:
            sentence += f" {time_words(blocked)} is blocked by host functions of the graphs, on the CPU."
            advice, gist = _HOST_NODES, "gaps in CUDA graphs, blocked by host functions"
    repeated = conditional_notes(case.job.session)
    sentence += "".join(f" But {note}." for note in repeated)
    is_long = not repeated and case.percent(cost - short) >= case.thresholds.gap_percent
    severity = Severity.WARNING if is_long else Severity.INFO
    measured = "Idle time before operations of a graph whose launch had begun on the GPU before. Mean over the GPUs."
    evidence, ranks = (_GRAPH_GAPS_COLUMNS, rows), tuple(sorted({row[0] for row in rows}))
    more, door = {"ranks": ranks, "gist": gist}, Door("gaps")
    return [case.finding("graph-gaps", sentence, advice, door, cost, measured, evidence, severity, **more)]
