"""Commands that have Nsight Compute (``ncu``) profile the selected kernel launches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import sqlalchemy as sa

from nsystui.base.answer import FILES_ONLY, HOST, RANK, Column, TableAnswer, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.text import safe_text, shell_word
from nsystui.exports.metadata import pid_of
from nsystui.questions.capture.recording import LAUNCHERS, launcher_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names, name_of
from nsystui.questions.queries.conditions import Condition, of_tasks, where
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.trace.slices import with_calls
from nsystui.store import tables


class NameBase(Enum):
    """The form of the name that ncu matches (``--kernel-name-base``)."""

    FUNCTION = "function"
    DEMANGLED = "demangled"
    MANGLED = "mangled"


OF_ONE_RANK = (
    "of a job of several ranks, run it in place of the application of that rank alone: `nsystui ncu --wrapper` prints "
    "the script"
)


@dataclass(frozen=True)
class NcuCommand:
    """One command, for one kernel of one process.

    ``launches``: of this name in the process; ``selected``: how many of them are wanted; ``skip`` and ``count`` are
    missing where all of them are. ``total``: time of the selected launches, ns; missing
    where it was not asked for. ``variable`` holds the rank in the environment of each process, ``collected`` are the
    options that say what ncu collects.
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
        """The command for one launch, by its number from 1."""
        return replace(self, selected=1, skip=launch - 1, count=1, total=None)

    @property
    def words(self) -> list[str]:
        """The command without the program. Each rank writes a report of its own, and none over another."""
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
        """One printable line for a shell; what follows the program's name is the user's: an export's is not shown."""
        return f"{' '.join(map(shell_word, [*self.words, self.program or 'your-application']))} ..."

    @property
    def what(self) -> str:
        """One line: whose kernel, and which of its launches."""
        who = f"rank {self.rank}, " if self.rank is not None else ""
        process = "a process that is not known" if self.pid is None else f"pid {self.pid}"
        where_ = f"{who}{process}" + (f" on {self.host}" if self.host else "")
        if self.count is None:
            which = "its only launch" if self.launches == 1 else f"all {self.launches:,} launches"
        elif self.count == 1:
            which = f"launch {(self.skip or 0) + 1:,} of {self.launches:,}"
        else:
            first = (self.skip or 0) + 1
            which = f"launches {first:,} to {first + self.count - 1:,} of {self.launches:,}"
            if self.selected < self.count:
                which += f", {self.selected:,} of which are selected"
        return safe_text(f"{where_}: {self.kernel}, {which}")

    @property
    def cautions(self) -> tuple[str, ...]:
        """The cautions before it is run."""
        found = []
        if self.count is not None:
            found.append(
                "ncu counts the launches of this name in each process by itself, over all devices and streams, in "
                "the order of their API calls; this order may differ in another run"
            )
        if self.without_call:
            launches = "launch has" if self.without_call == 1 else "launches have"
            found.append(f"{self.without_call:,} {launches} no API call in the export: ordered by the start on the GPU")
        if self.rank is not None:
            found.append(OF_ONE_RANK)
        if self.in_graph:
            found.append(
                "this kernel runs in CUDA graphs: ncu profiles their kernels one by one (--graph-profiling node) and "
                "orders parallel branches itself; with --graph-profiling graph a whole graph is one "
                "workload, and no kernel name matches"
            )
        if self.is_nccl:
            found.append(
                "an NCCL kernel waits for other ranks: it may hang when ncu replays it alone; see ncu's "
                "--replay-mode app-range"
            )
        return tuple(found)


_SPECIAL = re.compile(r"([\\^$.|?*+()\[\]{}])")
_CAST = re.compile(r"\\\(((?:unsigned )?(?:int|short|char|long|long long))\\\)(?=-?\d)")
_BOOL = re.compile(r"\\\(bool\\\)([01])")


def pattern_of(name: str, base: NameBase) -> str:
    """A regular expression (ECMAScript, as ncu reads it) for exactly this name.

    Demanglers differ in blanks and in the casts of template arguments (``(int)4`` and ``4``): both ways match. Of a
    character that a shell or terminal would trip over, any matches.
    """
    plain = "".join(char if char == shown else "\0" for char, shown in zip(name, safe_text(name), strict=True))
    escaped = _SPECIAL.sub(r"\\\1", plain).replace("\0", ".")
    if base is NameBase.DEMANGLED:
        escaped = _BOOL.sub(lambda found: rf"(\(bool\){found[1]}|{('false', 'true')[int(found[1])]})", escaped)
        escaped = _CAST.sub(lambda found: rf"(\({found[1]}\))?", escaped)
        escaped = escaped.replace(" ", " ?")
    return f"^{escaped}$"


Wanted = Callable[[sa.FromClause], list[Condition]]
"""Conditions that choose launches among the rows of ``kernels``."""

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
    """Every launch of the selection."""
    return []


def one_launch(report: int, row: int) -> Wanted:
    """The launch of one row of ``kernels``."""
    return lambda table: [table.c.report == report, table.c.row == row]


def ncu_commands(
    job: OpenJob, selection: Selection, wanted: Wanted = everything, base: NameBase | None = None
) -> list[NcuCommand]:
    """The commands for the selected launches, one for each kernel of each process, those with most time first.

    ``wanted`` chooses among the selected ones. Without ``base`` a kernel goes by its function's name, where the process
    has one kernel of that name; of a template with several instances by the mangled name, on which all tools agree, or
    else by the demangled one. Launches that the selection leaves out count in ``skip`` all the same, as they do in ncu.
    """
    table = tables.kernels
    if not job.session.count(table):
        return []
    chosen = [*where(table, selection, table.c.name), *wanted(table)]
    alike: list[Condition] = [table.c.short_name.in_(sa.select(table.c.short_name).where(*chosen).distinct())]
    if selection.tasks is not None:
        alike.append(of_tasks(table, selection.tasks))
    rows = _numbered(selection, alike, base)
    columns = rows.c
    kernel = (columns.report, columns.process, columns.short_name, columns.identity)
    query = (
        sa.select(
            *kernel,
            sa.func.any_value(columns.name),
            sa.func.any_value(columns.mangled_name),
            sa.func.min(columns.position),
            sa.func.max(columns.position),
            sa.func.count(),
            sa.func.max(columns.launches),
            sa.func.sum(columns.end - columns.start, type_=sa.BigInteger).label("total"),
            sa.func.max(columns.is_nccl),
            sa.func.count(columns.graph_node_id),
            sa.func.max(columns.without_call),
        )
        .where(*where(rows, selection, columns.name), *wanted(rows))
        .group_by(*kernel)
        .order_by(sa.desc("total"), *kernel)
    )
    templates = _templates(job, alike) if base is None else frozenset()
    ranks = {ranked.task: ranked for ranked in job.ranks}
    launcher = launcher_of_job(job)
    variable = LAUNCHERS[launcher][0] if launcher else ""
    found = []
    for report, process, short, _, name, mangled, first, last, selected, launches, total, *facts in job.session.rows(
        query
    ):
        key = (report, process, short)
        chosen_base = base or (
            NameBase.FUNCTION if key not in templates else (NameBase.MANGLED if mangled else NameBase.DEMANGLED)
        )
        shown = {NameBase.FUNCTION: short, NameBase.MANGLED: mangled or name, NameBase.DEMANGLED: name}[chosen_base]
        is_all = selected == launches
        is_nccl, nodes, bare = facts
        found.append(
            NcuCommand(
                *_who(job, ranks, Task(report, process)),
                short if chosen_base is NameBase.FUNCTION else name,
                chosen_base,
                pattern_of(shown or "", chosen_base),
                launches,
                selected,
                None if is_all else first - 1,
                None if is_all else last - first + 1,
                total,
                bool(is_nccl),
                bool(nodes),
                int(bare or 0),
                variable,
            )
        )
    return found


def launcher_of_job(job: OpenJob) -> str | None:
    """What started the ranks, of `LAUNCHERS`, where the captured environments tell."""
    reports = {report.index: report for report in job.session.reports}
    return launcher_of([(one.rank, reports[one.task.report].metadata.environment) for one in job.ranks])


def of_name(job: OpenJob, selection: Selection, name: str, names: Names) -> list[NcuCommand]:
    """The commands for the selected launches of one name of the kernel table, matched as that table calls them."""
    bases = {Names.SHORT: NameBase.FUNCTION, Names.MANGLED: NameBase.MANGLED}
    return ncu_commands(job, selection, lambda table: [name_of(table, names) == name], bases.get(names))


def _who(job: OpenJob, ranks: dict[Task, RankedTask], task: Task) -> tuple[Task, int | None, str, int | None, str]:
    """Task, rank, host, pid and program of a process."""
    ranked = ranks.get(task)
    if ranked is not None:
        return task, ranked.rank, ranked.host, ranked.pid, ranked.process_name
    host = next((report.metadata.host for report in job.session.reports if report.index == task.report), "")
    pid = pid_of(task.process) or None
    return task, None, host, pid, ""


def _identity(table: sa.Table, base: NameBase | None) -> sa.ColumnElement[str]:
    """The kernel name as ncu sees it."""
    if base is NameBase.FUNCTION:
        return table.c.short_name
    if base is NameBase.DEMANGLED:
        return table.c.name
    return sa.func.coalesce(table.c.mangled_name, table.c.name)


def _numbered(selection: Selection, alike: Sequence[Condition], base: NameBase | None) -> sa.Subquery:
    """Kernels with ``position``, from 1, among the ``launches`` of their ``identity`` in their process."""
    table = tables.kernels
    taken = ("report", "clock_offset", "process", "device", "stream", "start", "end", "row", "correlation_id")
    names = ("name", "short_name", "mangled_name", "is_nccl", "graph_node_id")
    kernels = sa.select(*(table.c[name] for name in (*taken, *names)), _identity(table, base).label("identity"))
    rows = with_calls(kernels.where(*alike).subquery(), Selection(tasks=selection.tasks)).subquery()
    columns = rows.c
    same = (columns.report, columns.process, columns.identity)
    launched = sa.func.coalesce(columns.call_start, columns.start + columns.clock_offset)
    order = (launched, columns.start, columns.row)
    return sa.select(
        *columns,
        sa.func.row_number().over(partition_by=same, order_by=order).label("position"),
        sa.func.count().over(partition_by=same).label("launches"),
        sa.func.sum(sa.case((columns.call_start.is_(None), 1), else_=0)).over(partition_by=same).label("without_call"),
    ).subquery()


def _templates(job: OpenJob, alike: Sequence[Condition]) -> frozenset[tuple[int, int, str]]:
    """The (report, process, function) of which there are several kernels."""
    table = tables.kernels
    kernel = (table.c.report, table.c.process, table.c.short_name)
    query = sa.select(*kernel).where(*alike).group_by(*kernel)
    several = query.having(sa.func.count(sa.distinct(_identity(table, None))) > 1)
    return frozenset((report, process, short) for report, process, short in job.session.rows(several))


def ncu_table(job: OpenJob, commands: Sequence[NcuCommand]) -> TableAnswer:
    """The commands as a table."""
    lacking = missing_note(job.session, tables.kernels)
    rows = [
        (
            *(one.rank, one.pid, one.host, one.kernel, one.total),
            *(one.launches, one.selected, one.skip, one.count, one.command, one.base.value),
        )
        for one in commands
    ]
    notes = [*([lacking] if lacking else []), *cautions(commands)]
    return TableAnswer("ncu", COLUMNS, rows, notes=tuple(notes))


def cautions(commands: Sequence[NcuCommand], is_wrapped: bool = False) -> tuple[str, ...]:
    """The cautions of these commands, each once; a wrapper script has heeded that of the ranks."""
    found = dict.fromkeys(caution for one in commands for caution in one.cautions)
    return tuple(caution for caution in found if not (is_wrapped and caution == OF_ONE_RANK))
