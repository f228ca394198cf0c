"""Nsight Compute (``ncu``) commands that profile the selected kernel launches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import sqlalchemy as sa

from nsystui.base.answer import FILES_ONLY, HOST, RANK, Column, TableAnswer, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.text import safe_text, shell_word
from nsystui.base.types import Condition, Query
from nsystui.exports.metadata import pid_of
from nsystui.questions.capture.recording import LAUNCHERS, launcher_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names, name_of
from nsystui.questions.queries.conditions import of_tasks, where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.trace.slices import with_calls
from nsystui.store import tables


class NameBase(Enum):
    """Forms of kernel names that ncu can match (``--kernel-name-base``)."""

    FUNCTION = "function"
    DEMANGLED = "demangled"
    MANGLED = "mangled"


@dataclass(frozen=True)
class NcuCommand:
    """A command for a kernel of a process.

    ``launches``: launches of this name in the process. ``selected``: how many of them to profile; if all, ``skip`` and
    ``count`` are ``None``. ``total``: time of the selected launches, ns, if known. ``variable``: environment variable
    with the rank. ``collected``: options that select ncu's metrics.
    """

    task: Task
    rank: int | None
    host: str
    pid: int | None
    program: str
    kernel: str
    base: NameBase
    pattern: str
    launches: int
    selected: int
    skip: int | None
    count: int | None
    total: int | None
    is_nccl: bool
    in_graph: bool
    without_call: int
    variable: str = ""
    collected: tuple[str, ...] = ()

    def only(self, launch: int) -> NcuCommand:
        """Return the command for a single launch, numbered from 1."""
        return replace(self, selected=1, skip=launch - 1, count=1, total=None)

    @property
    def words(self) -> list[str]:
        """The command without the program. Report names differ by rank and process."""
        words = [
            "ncu",
            "--target-processes",
            "all",
            *(["-o", f"report.%q{{{self.variable}}}.%i"] if self.variable else []),
            *self.collected,
            "--kernel-name-base",
            self.base.value,
            "-k",
            f"regex:{self.pattern}",
        ]
        if self.count is not None:
            words += ["--launch-skip", str(self.skip), "--launch-count", str(self.count)]
        if self.in_graph:
            words += ["--graph-profiling", "node"]
        return words

    @property
    def command(self) -> str:
        """A printable line for a shell. The user adds the program's arguments: recorded arguments are not shown."""
        return f"{' '.join(map(shell_word, [*self.words, self.program or 'your-application']))} ..."

    @property
    def what(self) -> str:
        """A line that names the process, the kernel and its launches."""
        who = f"rank {self.rank}, " if self.rank is not None else ""
        process = "an unknown process" if self.pid is None else f"pid {self.pid}"
        owner = f"{who}{process}" + (f" on {self.host}" if self.host else "")
        if self.count is None:
            launches = "its only launch" if self.launches == 1 else f"all {self.launches:,} launches"
        elif self.count == 1:
            launches = f"launch {(self.skip or 0) + 1:,} of {self.launches:,}"
        else:
            first = (self.skip or 0) + 1
            launches = f"launches {first:,} to {first + self.count - 1:,} of {self.launches:,}"
            if self.selected < self.count:
                launches += f", {self.selected:,} of which are selected"
        return safe_text(f"{owner}: {self.kernel}, {launches}")

    @property
    def cautions(self) -> tuple[str, ...]:
        """Warnings to read before running the command."""
        cautions = []
        if self.count is not None:
            cautions.append(
                "ncu counts the launches of this name in each process by itself, over all devices and streams, in "
                "the order of their API calls; this order may differ in another run"
            )
        if self.without_call:
            launches = "launch has" if self.without_call == 1 else "launches have"
            cautions.append(
                f"{self.without_call:,} {launches} no API call in the export: ordered by the start on the GPU"
            )
        if self.rank is not None:
            cautions.append(
                "in a job of several ranks, run it instead of that rank's application only, with a script such as "
                "`nsystui record --ranks` prints"
            )
        if self.in_graph:
            cautions.append(
                "this kernel runs in CUDA graphs: ncu profiles their kernels one by one (--graph-profiling node) and "
                "orders parallel branches itself; with --graph-profiling graph a whole graph is one "
                "workload, and no kernel name matches"
            )
        if self.is_nccl:
            cautions.append(
                "an NCCL kernel waits for other ranks: it may hang when ncu replays it alone; see ncu's "
                "--replay-mode app-range"
            )
        return tuple(cautions)


_SPECIAL = re.compile(r"([\\^$.|?*+()\[\]{}])")
_CAST = re.compile(r"\\\(((?:unsigned )?(?:int|short|char|long|long long))\\\)(?=-?\d)")
_BOOL = re.compile(r"\\\(bool\\\)([01])")


def pattern_of(name: str, base: NameBase) -> str:
    """Return a regular expression (ECMAScript, as in ncu) that matches exactly this name.

    It ignores differences between demanglers: blanks, and casts in template arguments (``(int)4`` and ``4``). For a
    character that is unsafe in a shell or terminal, any character matches.
    """
    plain = "".join(char if char == shown else "\0" for char, shown in zip(name, safe_text(name), strict=True))
    escaped = _SPECIAL.sub(r"\\\1", plain).replace("\0", ".")
    if base is NameBase.DEMANGLED:
        escaped = _BOOL.sub(lambda match: rf"(\(bool\){match[1]}|{('false', 'true')[int(match[1])]})", escaped)
        escaped = _CAST.sub(lambda match: rf"(\({match[1]}\))?", escaped)
        escaped = escaped.replace(" ", " ?")
    return f"^{escaped}$"


Wanted = Callable[[sa.FromClause], list[Condition]]
"""Conditions that select launches from the rows of ``kernels``."""

COLUMNS = (
    RANK,
    Column("pid", header="Pid", label="pid", unit=Unit.NUMBER, importance=4),
    HOST.with_importance(5),
    Column("kernel", header="Kernel", label="kernel", importance=1),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION, importance=2),
    Column("launches", header="Launches", label="launches", unit=Unit.COUNT, importance=3),
    Column("selected", header="Selected", label="selected", unit=Unit.COUNT, importance=3),
    Column("skip", header="Launch Skip", label="skip", unit=Unit.NUMBER, importance=3),
    Column("count", header="Launch Count", label="count", unit=Unit.NUMBER, importance=3),
    Column("command", header="Command", label="command"),
    Column("base", header="Name Base", label="base", importance=FILES_ONLY),
)


def everything(table: sa.FromClause) -> list[Condition]:
    """Return no conditions."""
    return []


def one_launch(report: int, row: int) -> Wanted:
    """Return the condition for the launch in a row of ``kernels``."""
    return lambda table: [table.c.report == report, table.c.row == row]


def ncu_commands(
    job: OpenJob, selection: Selection, wanted: Wanted = everything, base: NameBase | None = None
) -> list[NcuCommand]:
    """Return a command for each kernel of each process with selected launches, most time first.

    ``wanted`` narrows the selection. Without ``base``, kernels are matched by function name. Kernels that share
    it in a process (templates) are matched by mangled name, which is equal in all tools, or by demangled name if the
    mangled name is missing. Launches outside the selection count in ``skip``, as in ncu.
    """
    table = tables.kernels
    if not job.session.count(table):
        return []
    conditions = [*where(table, selection, table.c.name), *wanted(table)]
    related: list[Condition] = [table.c.short_name.in_(sa.select(table.c.short_name).where(*conditions).distinct())]
    if selection.tasks is not None:
        related.append(of_tasks(table, selection.tasks))
    templates = _templates(job, related) if base is None else frozenset()
    variable = _rank_variable(job)
    rows, ranks = _numbered(selection, related, base), {item.task: item for item in job.ranks}
    query = _by_kernel(rows).where(*where(rows, selection, rows.c.name), *wanted(rows))
    commands = []
    for report, process, short, _, name, mangled, first, last, selected, launches, *facts in job.session.rows(query):
        total, is_nccl, nodes, without_call = facts
        chosen_base = base or NameBase.FUNCTION
        if (report, process, short) in templates:
            chosen_base = NameBase.MANGLED if mangled else NameBase.DEMANGLED
        match = {NameBase.FUNCTION: short, NameBase.MANGLED: mangled or name, NameBase.DEMANGLED: name}[chosen_base]
        skip, count = (None, None) if selected == launches else (first - 1, last - first + 1)
        commands.append(
            NcuCommand(
                *_who(job, ranks, Task(report, process)),
                short if chosen_base is NameBase.FUNCTION else name,
                chosen_base,
                pattern_of(match or "", chosen_base),
                launches, selected, skip, count, total, bool(is_nccl), bool(nodes), int(without_call or 0), variable,
            )
        )  # fmt: skip
    return commands


def _by_kernel(rows: sa.Subquery) -> Query:
    """Select the facts of each kernel of each process from numbered launches, most time first."""
    columns = rows.c
    kernel = (columns.report, columns.process, columns.short_name, columns.identity)
    total = sa.func.sum(columns.end - columns.start, type_=sa.BigInteger).label("total")
    names = sa.func.any_value(columns.name), sa.func.any_value(columns.mangled_name)
    places = sa.func.min(columns.position), sa.func.max(columns.position), sa.func.count()
    facts = sa.func.max(columns.is_nccl), sa.func.count(columns.graph_node_id), sa.func.max(columns.without_call)
    query = sa.select(*kernel, *names, *places, sa.func.max(columns.launches), total, *facts)
    return query.group_by(*kernel).order_by(sa.desc("total"), *kernel)


def _rank_variable(job: OpenJob) -> str:
    """Return the environment variable that held the ranks, if the captured environments show it; else empty."""
    reports = {report.index: report for report in job.session.reports}
    launcher = launcher_of([(ranked.rank, reports[ranked.task.report].metadata.environment) for ranked in job.ranks])
    return LAUNCHERS[launcher][0] if launcher else ""


def of_name(job: OpenJob, selection: Selection, name: str, names: Names) -> list[NcuCommand]:
    """Return the commands for the selected launches called ``name`` in the form ``names``."""
    bases = {Names.SHORT: NameBase.FUNCTION, Names.MANGLED: NameBase.MANGLED}
    return ncu_commands(job, selection, lambda table: [name_of(table, names) == name], bases.get(names))


def _who(job: OpenJob, ranks: dict[Task, RankedTask], task: Task) -> tuple[Task, int | None, str, int | None, str]:
    ranked = ranks.get(task)
    if ranked is not None:
        return task, ranked.rank, ranked.host, ranked.pid, ranked.process_name
    host = next((report.metadata.host for report in job.session.reports if report.index == task.report), "")
    return task, None, host, pid_of(task.process) or None, ""


def _identity(table: sa.Table, base: NameBase | None) -> sa.ColumnElement[str]:
    if base is NameBase.FUNCTION:
        return table.c.short_name
    if base is NameBase.DEMANGLED:
        return table.c.name
    return sa.func.coalesce(table.c.mangled_name, table.c.name)


def _numbered(selection: Selection, conditions: Sequence[Condition], base: NameBase | None) -> sa.Subquery:
    """Number kernels from 1, as ``position``, among the ``launches`` of their ``identity`` in the process."""
    table = tables.kernels
    facts = ("report", "clock_offset", "process", "device", "stream", "start", "end", "row", "correlation_id")
    names = ("name", "short_name", "mangled_name", "is_nccl", "graph_node_id")
    kernels = sa.select(*(table.c[name] for name in (*facts, *names)), _identity(table, base).label("identity"))
    rows = with_calls(kernels.where(*conditions).subquery(), Selection(tasks=selection.tasks)).subquery()
    columns = rows.c
    kernel = (columns.report, columns.process, columns.identity)
    order = (sa.func.coalesce(columns.call_start, columns.start + columns.clock_offset), columns.start, columns.row)
    return sa.select(
        *columns,
        sa.func.row_number().over(partition_by=kernel, order_by=order).label("position"),
        sa.func.count().over(partition_by=kernel).label("launches"),
        sa.func.sum(sa.case((columns.call_start.is_(None), 1), else_=0))
        .over(partition_by=kernel)
        .label("without_call"),
    ).subquery()


def _templates(job: OpenJob, conditions: Sequence[Condition]) -> frozenset[tuple[int, int, str]]:
    table = tables.kernels
    kernel = (table.c.report, table.c.process, table.c.short_name)
    query = sa.select(*kernel).where(*conditions).group_by(*kernel)
    templates = query.having(sa.func.count(sa.distinct(_identity(table, None))) > 1)
    return frozenset((report, process, short) for report, process, short in job.session.rows(templates))


def ncu_table(job: OpenJob, commands: Sequence[NcuCommand]) -> TableAnswer:
    """Tabulate commands, with their cautions as notes."""
    keys = [column.key for column in COLUMNS[:-1]]
    rows = [(*(getattr(command, key) for key in keys), command.base.value) for command in commands]
    return TableAnswer("ncu", COLUMNS, rows, None, (*missing_notes(job.session, tables.kernels), *cautions(commands)))


def cautions(commands: Sequence[NcuCommand]) -> tuple[str, ...]:
    """Return the distinct cautions."""
    return tuple(dict.fromkeys(caution for command in commands for caution in command.cautions))
