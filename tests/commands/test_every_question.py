"""Every question: its answer is computed once, and each form in which it can be had holds the same.

The exports answer through the command line, in JSON; the packed job answers the same through the interface for Python.
What the command delivered is then written in every format and order.
"""

import csv
import io
import json
import math
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas
import pytest
from support import fingerprint
from synthetic import cpu_only_export, empty_export, hostile_names_export, two_process_export
from synthetic.demo import PLANTED_SECRET
from test_byte_units import decimal_names

import nsystui
from nsystui.api import frame_of
from nsystui.base.answer import Answer, Column, TableAnswer, Unit, iter_rows
from nsystui.cli import main
from nsystui.commands import arguments
from nsystui.output import formats
from nsystui.questions.queries.question import COMPARISON
from nsystui.questions.queries.registry import questions

OPTIONS = (
    "kernels --by rank", "kernels --by rank,family", "kernels --by shape", "kernels --by rank,stream --names short",
    "kernels --time 100ms:300ms --ranks 0", "memory --sizes", "memory --instances '[CUDA memset]'",
    "nccl --by collective,pow2", "nccl --by collective,bytes", "nccl --by collective,rank", "nccl --sizes",
    "nccl --calls", "nccl --kernels", "ranks --collectives", "ranks --kinds", "steps --every",
    "gpu --over-time --bins 7", "nvtx --summary", "events --kinds nccl", "stats cuda_gpu_kern_sum --base",
)  # fmt: skip
"""Questions with options that change their columns."""
ALL = tuple(f"{one.family} {one.name}".strip() for one in questions() if one.home != COMPARISON)
# tests/parity compares what they print.
OF_NSYS = [words for words in ALL if words.startswith("stats ")]
LESS = {*OF_NSYS[1::2], *OF_NSYS[2::4], *OPTIONS[1::2]}
EVERY = [pytest.param(words, marks=[pytest.mark.campaign] * (words in LESS)) for words in (*ALL, *OPTIONS)]
NO_QUESTIONS = (
    "triage --set traffic_percent=0 --set copy_percent=0 --set small_message_percent=0",
    "triage --baseline {}",
    "info",
    "info --show contents",
    "ncu",
    "diff --against {}",
    "nccl-log --tables all",
)
"""Commands with tables that are no questions; ``{}`` is another export."""
NCCL_LOG = (
    "n1:1:7 [0] NCCL INFO comm 0xc1 rank 0 nranks 2 cudaDev 0 busId b000 commId 0xfe - Init COMPLETE\n"
    "n1:1:7 [0] NCCL INFO AllReduce: opCount 1 sendbuff 0x1 recvbuff 0x2 count 100 datatype 7 op 0 root 0 "
    "comm 0xc1 [nranks=2] stream 0x3\n"
)
NOT_IN_THE_DEMO = {"mpi", "libraries", "mpi_event_sum", "mpi_event_trace", "openacc_sum", "openmp_sum", "mpi_sum"} | {
    "um_cpu_page_faults_sum", "um_sum", "um_total_sum", "mpi_gpu_time_util_map", "ucx_gpu_time_util_map",
}  # fmt: skip
TYPES = {"integer": int, "number": float, "string": str, "null": type(None)}


class Delivered(list[Answer]):
    """Answers, and by which columns they were sorted wrongly."""

    wrong: tuple[str, ...] = ()


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch) -> Delivered:
    """The answers that a command delivers, besides what it prints."""
    found = Delivered()
    deliver = arguments.deliver

    def noted(request: Any, answer: Answer, *notes: list[str]) -> int:
        # A window on many rows is closed with its job.
        found.append(TableAnswer(answer.name, answer.columns, list(iter_rows(answer)), answer.total, answer.notes))
        found.wrong += tuple(column.key for column in answer.columns if not is_sorted_by(answer, column.key))
        return deliver(request, answer, *notes)

    monkeypatch.setattr(arguments, "deliver", noted)
    return found


def is_sorted_by(answer: Answer, key: str) -> bool:
    """Whether sorting keeps the rows, puts them into order, and those without a value last."""
    place = [column.key for column in answer.columns].index(key)
    before = sorted(map(repr, iter_rows(answer)))
    for descending in (True, False):
        after = list(iter_rows(answer.sorted_by(key, descending)))
        found = [row[place] for row in after if not is_missing(row[place])]
        # Texts have an order of their own: ranks are numbers.
        pairs = pairwise(found if not any(isinstance(value, str) for value in found) else ())
        is_ordered = all((a >= b) if descending else (a <= b) for a, b in pairs)
        are_last = all(is_missing(row[place]) for row in after[len(found) :])
        if not (is_ordered and are_last and sorted(map(repr, after)) == before):
            return False
    return True


@pytest.fixture(scope="module")
def packed_jobs(demo_job: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, nsystui.Job]]:
    """One rank of the demo job, and two, packed and open in Python."""
    directory = tmp_path_factory.mktemp("packed") / "job"
    assert main(["pack", *map(str, demo_job[:2]), "-o", str(directory)]) == 0
    with nsystui.open(directory / "reports/rank=0") as one, nsystui.open(directory) as two:
        yield {1: one, 2: two}


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        printed = io.StringIO()
        patch.setattr("sys.stdout", printed)
        assert main(["schema"]) == 0
    return json.loads(printed.getvalue())


def command_line(words: str, *files: Path) -> list[str]:
    """The words of a question with files; reports and recipes have their names before them."""
    family, *rest = shlex.split(words)
    if family == "stats":
        return ["stats", "-r", ":".join(rest).replace(":--", ":"), *map(str, files)]
    return [family, *rest[: family == "recipe"], *map(str, files), *rest[family == "recipe" :]]


@pytest.mark.parametrize("words", EVERY)
def test_an_answer_is_the_same_in_every_form(run, demo_job, delivered, packed_jobs, schemas, words):
    ranks = 1 if words.startswith("stats") else 2  # several reports of nsys stay each on its own clock
    done = run(*command_line(words, *demo_job[:ranks]), "--format", "json")
    name = words.partition(" --")[0]
    assert done.status == (3 if name.rpartition(" ")[2] in NOT_IN_THE_DEMO else 0), done.err
    if not delivered:  # a report of nsys that has no rows
        assert done.json == []
        return
    assert delivered.wrong == (), "sorted wrongly"
    schema = schemas[name] if name == words or "--time" in words else run("schema", *shlex.split(words)).json
    check_forms(delivered, done, schema)
    blocks = done.json if name != "efficiency" else done.json[0]["rows"]
    check_python(delivered[0], blocks, packed_jobs[ranks], name, words)


@pytest.mark.campaign
@pytest.mark.parametrize("words", NO_QUESTIONS)
def test_so_is_that_of_a_command_that_is_no_question(run, demo_job, delivered, schemas, tmp_path, words):
    log = tmp_path / "nccl.log"
    log.write_text(NCCL_LOG)
    asked_of = log if words.startswith("nccl-log") else demo_job[0]
    done = run(*command_line(words.format(demo_job[1]), asked_of), "--format", "json")
    assert done.status == 0, done.err
    asked = re.sub(" ({}|--(set|against|tables) .*)", "", words)
    check_forms(delivered, done, schemas[asked] if asked in schemas else run("schema", *asked.split()).json)


COMMANDS = ("triage", *(one for one in ALL if " " not in one))
FAMILIES = tuple(one for one in ALL if " " in one)
NOWHERE = ("--time", "1055us:1060us")


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("write", "flags", "questions"),
    [
        pytest.param(empty_export, (), ("info", *COMMANDS, *FAMILIES), id="no event"),
        pytest.param(cpu_only_export, (), ("info", *COMMANDS), id="CPU only", marks=pytest.mark.campaign),
        pytest.param(hostile_names_export, (), ("info", *COMMANDS), id="hostile names", marks=pytest.mark.campaign),
        pytest.param(two_process_export, NOWHERE, COMMANDS, id="no event in the window"),
        pytest.param(cpu_only_export, (), FAMILIES, id="families, CPU only", marks=pytest.mark.campaign),
        pytest.param(hostile_names_export, (), FAMILIES, id="families, hostile names", marks=pytest.mark.campaign),
        pytest.param(two_process_export, NOWHERE, FAMILIES, id="families, no event", marks=pytest.mark.campaign),
    ],
)
def test_without_data_an_answer_says_why_and_changes_no_file(run, delivered, tmp_path, write, flags, questions):
    export = write(tmp_path / "a.sqlite")
    before = fingerprint(tmp_path)
    for words in questions:
        delivered.clear()
        done = run(*command_line(words, export), *flags, "--format", "json")
        said = [line for line in done.err.splitlines() if "no rows" not in line]
        assert done.status in (0, 3), (words, done.err)
        assert (done.status == 3) <= ("note: " in done.err or ": no " in done.err), (words, done.err)
        assert "Traceback" not in done.err and all(line.startswith("nsystui: ") for line in said), (words, done.err)
        rows = [block["rows"] for block in done.json] if words == "efficiency" else [done.json]
        assert [len(answer) for answer in delivered] in (list(map(len, rows)), []), words
        if words.startswith("stats") and write is empty_export:
            assert (done.status, done.json) == (3, []), words
            assert done.err.startswith(f"nsystui: {words[6:]}: no ") and done.err.count("\n") == 1, words
        for answer in delivered:
            assert len(list(csv.reader(io.StringIO(as_text(answer, "csv"), newline="")))) == 1 + len(answer), words
            for form in ("md", "table"):
                found = as_text(answer, form)
                assert found.count("\n") == 2 + len(answer), (words, form)
                assert not [char for char in found if ord(char) < 32 and char != "\n"], (words, form)
    assert fingerprint(tmp_path) == before


def check_forms(answers: Delivered, done: Any, schema: dict[str, Any]) -> None:
    """What was printed as JSON is as the schema says it, and what was delivered is the same in every other format."""
    several = schema["items"].get("oneOf")
    blocks = [block["rows"] for block in done.json] if several else [done.json]
    assert decimal_names(done.err) == [] and PLANTED_SECRET not in done.out + done.err
    forms = {one["properties"]["table"]["const"]: one["properties"]["rows"]["items"] for one in several or ()}
    for answer, rows in zip(answers, blocks, strict=True):
        check_answer(answer, rows)
        check_schema(rows, forms[answer.name.rpartition("-")[2]] if several else schema["items"])


def check_answer(answer: Answer, rows: list[dict[str, Any]]) -> None:
    """JSON, CSV, Markdown and text hold the same rows, in any order; bytes have binary names, and no secret is told."""
    keys = [column.file_key for column in answer.columns]
    assert len(rows) == len(answer)
    assert all(list(row) == keys for row in rows)
    written = {form: as_text(answer, form) for form in ("csv", "md", "table")}
    _, *of_csv = csv.reader(io.StringIO(written["csv"]))
    expected = [list(map(plain, answer.columns, row.values())) for row in rows]
    assert expected == of_csv, "CSV"
    of_markdown = [re.split(r"(?<!\\) \| ", line[2:-2]) for line in written["md"].splitlines()[2:]]
    assert [list(map(formats.markdown_text, row)) for row in expected] == of_markdown, "Markdown"
    assert len(written["table"].splitlines()) == len(rows) + 2, "text"
    for form, text in written.items():
        of_stats = any(column.unit in (Unit.MEGABYTES, Unit.MEGABYTE_RATE) for column in answer.columns)
        assert of_stats or decimal_names(text) == [], f"{form}: an amount of bytes with a decimal name"
        assert PLANTED_SECRET not in text and "--global-batch" not in text, form


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def as_text(answer: Answer, form: str) -> str:
    stream = io.StringIO(newline="")
    assert formats.write(answer, form, stream) == len(answer)
    return stream.getvalue()


def plain(column: Column, value: Any) -> str:
    """A value of JSON as CSV has it, with the decimals of its column."""
    if isinstance(value, float) and column.decimals:
        return f"{value:.{column.decimals}f}"
    return "" if value is None else str(value)


def check_schema(rows: list[dict[str, Any]], form: dict[str, Any]) -> None:
    """Every row has the keys of the form, in their order, with values of their types; exports name metrics."""
    properties = form["properties"]
    for row in rows:
        assert form["required"] == list(properties) == [key for key in row if key in properties]
        for key in properties:
            value, kinds = row[key], properties[key]["type"]
            value = float(value) if isinstance(value, int) and "number" in kinds else value
            assert type(value) in [TYPES[kind] for kind in kinds], f"schema: {key} is {value!r}"


def check_python(answer: Answer, rows: list[dict[str, Any]], job: nsystui.Job, name: str, words: str) -> None:
    """The packed job answers in Python as the exports do on the command line."""
    options: dict[str, Any] = {}
    for word in shlex.split(words.partition(name)[2]):
        if word.startswith("--"):
            last = word[2:].replace("-", "_")
            options[last] = True
        else:
            options[last] = word
    frame, expected = job.ask(name, **options), frame_of(answer)
    assert expected.equals(frame), f"packed and in Python:\n{expected}\n{frame}"
    assert expected.dtypes.equals(frame.dtypes) and expected.attrs["units"] == frame.attrs["units"]
    without = [note for note in expected.attrs["notes"] if "rank numbers" not in note]
    assert without == [note for note in frame.attrs["notes"] if "rank numbers" not in note], "notes of a packed job"
    assert len(frame) == len(rows) and (not rows or list(frame.columns) == list(rows[0]))
    for column in answer.columns:
        near = 0.51 * 10 ** -(column.decimals or 0)  # JSON has the decimals of a column, a frame has all
        for value, row in zip(frame[column.file_key], rows, strict=True):
            told = row[column.file_key]
            is_same = pandas.isna(value) if told is None else told == value
            assert is_same or abs(told - value) <= near, f"in Python {column.file_key} is {value}, in JSON {told}"
