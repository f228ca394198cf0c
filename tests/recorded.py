"""Recorded answers: files of commands, each with its output and the rows of its tables.

A file ``answers/SUBJECT.txt`` consists of commands. The lines after a command are its outcome; their first character
is their kind:

- ``$`` a command, without ``nsystui``; its files are `JOBS`, written into the current directory
- ``|`` a line on standard output or in the file that the command writes, ``!`` a line on standard error
- ``?`` the exit status unless it is 0
- ``=`` the keys of a table in JSON, ``~`` its headings on screens of `WIDTHS`
- ``,`` its CSV, of which at most `ROWS` rows are recorded, and ``+`` the number of rows that are left out, with the sum
  of each column of numbers and the count of different values of the others
- ``#`` a comment; ``# campaign`` marks a command that only campaigns ask
"""

import csv
import difflib
import io
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

import synthetic
from synthetic import illnesses, rare_illnesses
from synthetic.demo import ServingJob, TrainingJob
from synthetic.odd_inputs import odd_inputs

from nsystui.base.answer import Answer, TableAnswer, iter_rows
from nsystui.base.version import __version__
from nsystui.cli import main
from nsystui.commands import arguments
from nsystui.output import formats
from nsystui.questions.triage import run
from nsystui.ui.widgets.table_layout import TableLayout

ANSWERS: Final = Path(__file__).parent / "answers"
ROWS: Final = 5
"""Recorded rows of a table."""
WIDTHS: Final = (58, 78, 98, 118, 158, 198)
"""The widths of screens for which the headings of a table are recorded, each unless it equals the previous heading."""
LINES: Final = 12
"""The lines of text that are recorded if the rows of the table are recorded as well."""


def _one(write: Callable[..., Any], **how: Any) -> Callable[[Path], Any]:
    return lambda directory: write(directory / "rank0.sqlite", **how)


JOBS: Final[dict[str, Callable[[Path], Any]]] = {
    "train": TrainingJob(ranks=3, steps=3, layers=1, stall_step=1).write,
    "faster": TrainingJob(ranks=3, steps=3, layers=1, stall_step=1, straggler=None, stall_ms=20).write,
    "server": ServingJob(ranks=2, steps=14, layers=1).write,
    "mpi": lambda directory: [synthetic.simulation_export(directory / f"rank{n}.sqlite", rank=n) for n in range(2)],
    "cpu": _one(synthetic.cpu_only_export), "empty": _one(synthetic.empty_export),
    "graphs": _one(synthetic.whole_graph_export), "nodes": _one(synthetic.node_graph_export),
    "payloads": _one(synthetic.payload_export), "unnamed": _one(synthetic.nccl_without_nvtx_export),
    "open": _one(synthetic.open_ranges_export), "hostile": _one(synthetic.hostile_names_export),
    "processes": _one(synthetic.two_process_export), "old": _one(synthetic.old_schema_export),
    "late": _one(synthetic.delayed_capture_export), "odd": odd_inputs,
    **{
        f"ill-{name.replace('_', '-')}": write if "folder" in write.__annotations__ else _one(write)
        for name, write in (vars(illnesses) | vars(rare_illnesses)).items()
        if getattr(write, "__annotations__", {}).get("return") == "Ill" and not name.startswith("_")
    },
    "ill-memory-failures": _one(illnesses.full_memory, failures=3), **rare_illnesses.VARIANTS,
}  # fmt: skip
"""The jobs of the commands, by the name of their directory."""


def write_jobs(words: list[str], directory: Path) -> None:
    """Write the jobs that a command names into a directory unless they are there."""
    for name in {word.partition("/")[0] for word in words} & JOBS.keys():
        if not (directory / name).exists():
            (directory / name).mkdir()
            JOBS[name](directory / name)


def write_inputs(directory: Path) -> None:
    """Copy the logs and tables that commands read into a directory."""
    for path in ANSWERS.iterdir():
        if path.suffix != ".txt":
            shutil.copy(path, directory)


@dataclass
class Asked:
    """The outcome of a command: exit status, standard output and error, and the answers that it delivered."""

    words: list[str]
    status: int = 0
    out: str = ""
    err: str = ""
    answers: list[Answer] = field(default_factory=list)
    evidence: list[Answer] = field(default_factory=list)
    """The tables of the findings."""
    missorted: list[str] = field(default_factory=list)
    """Columns by which an answer was sorted wrongly."""


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def ask(line: str, look: Callable[[Answer], list[str]] = lambda answer: []) -> Asked:
    """Run a command in this process; ``look`` returns the columns by which an answer is sorted wrongly."""
    asked = Asked(shlex.split(line))
    deliver, triage = arguments.deliver, run.triage
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))

    def noted(request: Any, answer: Answer, *notes: list[str]) -> int:
        # Answers with many rows become invalid when their job is closed.
        kept = TableAnswer(answer.name, answer.columns, list(iter_rows(answer)), answer.total, answer.notes)
        asked.answers.append(kept)
        asked.missorted += look(answer)
        return deliver(request, answer, *notes)

    def noted_findings(*words: Any, **options: Any) -> Any:
        found = triage(*words, **options)
        if len(asked.words) == 2:  # with other options the findings may be recalled, and nothing is computed
            asked.evidence += [one.evidence for one in found.findings if one.evidence is not None]
        return found

    places = (
        (arguments, "deliver", noted), (run, "triage", noted_findings), (sys, "stdout", out), (sys, "stderr", err),
    )  # fmt: skip
    with ExitStack() as patches:
        for place in places:
            patches.enter_context(patched(*place))
        try:
            asked.status = main(list(asked.words))
        except SystemExit as end:
            asked.status = int(end.code or 0)
        asked.out, asked.err = (_text(stream) for stream in (out, err))
        for flag, name in pairwise(asked.words):
            if flag in ("-o", "--paraver") and asked.status == 0 and Path(name).is_file():
                written = Path(name)
                # Tests of traces read the records of a Paraver trace; here only its names and views are recorded.
                texts = [written.with_suffix(".pcf"), *sorted(written.parent.glob(f"{written.stem}.*.cfg"))]
                for path in texts if written.suffix == ".prv" else [written]:
                    asked.out += path.read_text(encoding="utf-8")
    return asked


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8")  # type: ignore[attr-defined]


# A rate is decimal (GB/s), and the names of GPUs are NVIDIA's.
DECIMAL = re.compile(r"(?<![A-Za-z])[kKMGT]B\b(?!/s)")
OF_NVIDIA = re.compile(r"[0-9]+GB HBM3|MB of these reports|MB of 1,000,000|`MB` are 10⁶|MB has base 1000|\"GB\"|GB\[")


def decimal_names(text: str) -> list[str]:
    """Return the lines of ``text`` in which an amount of bytes has a decimal name."""
    return [line for line in text.splitlines() if DECIMAL.search(OF_NVIDIA.sub("", line))]


def commands_of(path: Path) -> list[str]:
    """Return the commands of a file of recorded answers."""
    return [line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("$ ")]


def blocks_of(text: str) -> list[list[str]]:
    """Return the lines of each command of a recorded file, comments before the first in a block of their own."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("$ "):
            blocks.append([])
        blocks[-1].append(line)
    return blocks


def lines_of(line: str, asked: Asked) -> list[str]:
    """Return the lines in which the outcome of a command is recorded."""
    here = os.getcwd()

    def said(text: str) -> list[str]:
        text = text.replace(f"{here}/", "").replace(here, ".").replace(__version__, "VERSION")
        # Rows end in line breaks of their own, which other line ends do not.
        return [re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", "\N{REPLACEMENT CHARACTER}", one).rstrip()
                for one in text.replace("\r\n", "\n").split("\n")][:-1]  # fmt: skip

    out = said(asked.out if asked.out.endswith("\n") or not asked.out else asked.out + "\n")
    if len(asked.answers) == 1 and len(out) > LINES:
        out = [*out[:LINES], f"… {len(out) - LINES} more"]
    lines = [f"$ {line}", *(f"| {one}".rstrip() for one in out), *(f"! {one}" for one in said(asked.err))]
    if asked.status:
        lines.append(f"? {asked.status}")
    for answer in (*asked.answers, *asked.evidence):
        if len(answer.columns):
            lines += _rows_of(answer, said)
    return lines


def _rows_of(answer: Answer, said: Callable[[str], list[str]]) -> list[str]:
    written = io.StringIO(newline="")
    formats.write(answer, "csv", written)
    header, *rows = csv.reader(io.StringIO(written.getvalue(), newline=""))
    lines = [f"= {answer.name} {','.join(column.file_key for column in answer.columns)}"]
    layout, first = TableLayout(answer.columns), list(islice(iter_rows(answer), 50))
    layout.word(first)
    for values in first:
        layout.format(values)
    for width in WIDTHS:
        layout.place(width, None)
        heading = f"~ {''.join(text for text, _ in layout.heading_pieces(width, None))}".rstrip()
        lines += [] if heading == lines[-1] else [heading]
    for row in (header, *rows[:ROWS]):
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow([value.replace("\n", "␊")[:300] for value in row])
        lines += [f", {one}" for one in said(text.getvalue() + "\n")]
    if len(rows) > ROWS:
        lines.append(f"+ {len(rows) - ROWS} rows: {', '.join(map(_sum_of, zip(*rows[ROWS:], strict=True)))}")
    return lines


def _sum_of(values: tuple[str, ...]) -> str:
    try:
        return f"{sum(float(value) for value in values if value):.10g}"
    except ValueError:
        return f"{len(set(values))} different"


def difference(recorded: list[str], found: list[str]) -> str:
    """Return a unified diff of the recorded and the present answer, empty if they are the same."""
    return "\n".join(difflib.unified_diff(recorded, found, "recorded", "now", lineterm="", n=2))


def as_json(answer: Answer) -> Any:
    stream = io.StringIO()
    formats.write(answer, "json", stream)
    return json.loads(stream.getvalue())


@contextmanager
def jobs_kept_open() -> Iterator[None]:
    """Keep each job that a command opens open for later commands, with its computed results."""
    opened: dict[Any, tuple[Any, str]] = {}
    closing = ExitStack()
    open_job = arguments.open_job

    def open_once(request: Any, whole: bool = True, times: bool = False, *more: Any, **words: Any) -> Any:
        key = (arguments.source_of(request), times or bool(request.selecting.time), words.get("partly"))
        if key not in opened:
            said = io.StringIO()
            with patched(sys, "stderr", said):
                job = open_job(request, whole, times, *more, **words)
            closing.callback(job.session.close)
            job.session.close = lambda: None
            opened[key] = job, said.getvalue()
        job, notes = opened[key]
        sys.stderr.write(notes)
        return job

    with closing, patched(arguments, "open_job", open_once):
        yield
