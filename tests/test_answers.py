"""Every question and command prints for small jobs the answers recorded in ``tests/answers``.

An answer is computed once. It is compared with the record, written in every format, sorted by every column, compared
with its schema, and recalled.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
import shutil
import sqlite3
from contextlib import closing, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas
import pytest
from campaign import some
from recorded import (
    ANSWERS,
    as_json,
    ask,
    blocks_of,
    commands_of,
    decimal_names,
    difference,
    jobs_kept_open,
    lines_of,
    patched,
    write_inputs,
    write_jobs,
)
from support import fingerprint
from synthetic.demo import PLANTED_SECRET

import nsystui
from nsystui.api import frame_of
from nsystui.base.answer import Answer, Column, Unit, head, iter_rows
from nsystui.cli import main
from nsystui.commands import arguments
from nsystui.output import formats
from nsystui.questions.queries.question import COMPARISON, STEPS, Question, question_named, questions

SUBJECTS = sorted(ANSWERS.glob("*.txt"))
LINES = [line for path in SUBJECTS for line in commands_of(path)]
RARE = ("at-length", "more-illnesses", "rare-illnesses", "variants-of-illnesses")
"""Subjects of which campaigns ask a sample: a command takes 0.6 CPU seconds, and few jobs have its findings."""
IN_CAMPAIGN = "# campaign"
"""Marks a command that reaches no line of the program that others do not reach."""
MANY, FEW = 60, 20
"""The most rows of an answer that are compared in every form, in campaigns and else; longer answers are not sorted."""
ADVICE = """

`python tests/update_answers.py {}` records the answers anew. Do so only if you can say why the new answer is right."""
TYPES = {"integer": int, "number": float, "string": str, "null": type(None)}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Return a directory with the files that the commands read, and the requested jobs."""
    directory = tmp_path_factory.mktemp("answers").resolve()
    write_inputs(directory)
    return directory


@pytest.fixture
def here(place, monkeypatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", f"{place}/.cache")
    shutil.rmtree(place / ".cache/answers", ignore_errors=True)  # another test's answers are computed again
    return place


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    return json.loads(ask("schema").out)


@pytest.mark.parametrize(("path", "in_campaign", "keep"), [
    *(pytest.param(path, False, True, id=path.stem) for path in SUBJECTS),
    *(pytest.param(path, True, True, id=f"{path.stem}, the others", marks=pytest.mark.campaign) for path in SUBJECTS),
    *(
        pytest.param(path, True, False, id=f"{path.stem}, each alone", marks=pytest.mark.campaign)
        for path in some(2, SUBJECTS)
    ),
])  # fmt: skip
def test_answers_are_as_recorded(here, schemas, path, in_campaign, keep):
    """Ask the commands of a subject without a mark, or in campaigns the marked commands."""
    _, *blocks = blocks_of(path.read_text(encoding="utf-8"))
    # Other commands read the file of metrics.
    blocks = [block for block in blocks if (IN_CAMPAIGN in block) == in_campaign or " -o metrics" in block[0]]
    if in_campaign and path.stem in RARE:
        blocks = some(3 * len(blocks), blocks)
    differences, most = [], MANY if in_campaign else FEW
    with jobs_kept_open() if keep else nullcontext():
        for block in blocks:
            line = block[0][2:]
            write_jobs(shlex.split(line), here)
            asked = ask(line, partial(wrongly_sorted, most) if question_of(line) else lambda answer: [])
            recorded = [one for one in block if one and not one.startswith("#")]
            if found := difference(recorded, lines_of(line, asked)):
                differences.append(f"$ {line}\n{found}")
            assert asked.missorted == [], line
            assert decimal_names(asked.out + asked.err) == [] or line.startswith("stats"), line
            assert PLANTED_SECRET not in asked.out + asked.err and "--global-batch" not in asked.out, line
            for answer in (*asked.answers, *asked.evidence):
                check_answer(head(answer, most))
            check_schema(line, asked.answers, schemas)
            check_recalled(line, asked)
    if differences:
        pytest.fail("\n\n".join(differences) + ADVICE.format(path.stem), pytrace=False)


def wrongly_sorted(most: int, answer: Answer) -> list[str]:
    """Return the columns by which sorting loses rows, leaves them unsorted, or puts missing values before others."""
    wrong: list[str] = []
    if len(answer) > most:
        return wrong
    before = sorted(map(repr, iter_rows(answer)))
    for index, column in enumerate(answer.columns):
        for descending in (True, False):
            after = list(iter_rows(answer.sorted_by(column.key, descending)))
            values = [row[index] for row in after if not is_missing(row[index])]
            # Text columns may have another order: ranks sort as numbers.
            pairs = pairwise(values if not any(isinstance(value, str) for value in values) else ())
            is_ordered = all((a >= b) if descending else (a <= b) for a, b in pairs)
            are_last = all(is_missing(row[index]) for row in after[len(values) :])
            if not (is_ordered and are_last and sorted(map(repr, after)) == before):
                wrong.append(column.key)
    return wrong


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def check_answer(answer: Answer) -> None:
    """Check that JSON, CSV, Markdown, text and pandas hold the same rows, binary names of bytes and no secret."""
    rows = as_json(answer)
    keys = [column.file_key for column in answer.columns]
    assert len(rows) == len(answer)
    assert all(list(row) == keys for row in rows)
    written = {form: as_text(answer, form) for form in ("csv", "md", "table")}
    _, *of_csv = csv.reader(io.StringIO(written["csv"], newline=""))
    expected = [list(map(plain, answer.columns, row.values())) for row in rows]
    assert expected == of_csv, "CSV"
    of_markdown = [re.split(r"(?<!\\) \| ", line[2:-2]) for line in written["md"].splitlines()[2:]]
    assert [list(map(formats.markdown_text, row)) for row in expected] == of_markdown, "Markdown"
    assert written["table"].count("\n") == len(rows) + 2, "text"
    for form, text in written.items():
        of_stats = any(column.unit in (Unit.MEGABYTES, Unit.MEGABYTE_RATE) for column in answer.columns)
        assert of_stats or decimal_names(text) == [], f"{form}: an amount of bytes with a decimal name"
        assert PLANTED_SECRET not in text and "--global-batch" not in text, form
        assert form == "csv" or not [char for char in text if ord(char) < 32 and char != "\n"], form
    frame = frame_of(answer)
    assert list(frame.columns) == list(frame.attrs["units"]) == keys
    for column in answer.columns:
        near = 0.51 * 10 ** -(column.decimals or 0)  # JSON has the decimals of a column, a frame has all
        for value, row in zip(frame[column.file_key], rows, strict=True):
            told = row[column.file_key]
            is_same = pandas.isna(value) if told is None else told == value
            assert is_same or abs(told - value) <= near, f"in Python {column.file_key} is {value}, in JSON {told}"


def as_text(answer: Answer, form: str) -> str:
    stream = io.StringIO(newline="")
    assert formats.write(answer, form, stream) == len(answer)
    return stream.getvalue()


def plain(column: Column, value: Any) -> str:
    """Return a value of JSON as CSV has it, with the decimals of its column."""
    if isinstance(value, float) and column.decimals:
        return f"{value:.{column.decimals}f}"
    return "" if value is None else str(value)


def question_of(line: str) -> tuple[Question, list[str]] | None:
    """Return the question that a command asks and the flags of its own options, or None."""
    name, *words = shlex.split(line)
    try:
        if name == "stats" and words[0] == "-r":
            report, *flags = words[1].split(":")
            return question_named(report, "stats"), [flag.partition("=")[0] for flag in flags]
        question = question_named(words[0], "recipe") if name == "recipe" else question_named(name)
    except KeyError:
        return None
    return question, [word[2:] for word in words if word.startswith("--") and word[2:] in question.takes]


def check_schema(line: str, answers: list[Answer], schemas: dict[str, Any]) -> None:
    """Check the keys of the rows and their order, which options may change, and the types of the values."""
    asked = question_of(line)
    if asked is None or asked[0].rows.home == COMPARISON or "--by-rank" in line or "--timeunit" in line:
        return
    question, flags = asked
    items = schemas[f"{question.family} {question.name}".strip()]["items"]
    forms = {one["properties"]["table"]["const"]: one["properties"]["rows"]["items"] for one in items.get("oneOf", ())}
    for answer in answers:
        properties = forms.get(answer.name.rpartition("-")[2], items).get("properties", {})
        keys = [column.file_key for column in answer.columns]
        # Recorded metrics name columns, which no schema can know.
        assert flags or [key for key in keys if key in properties] == list(properties), line
        for row in as_json(head(answer, MANY)):
            for key in properties.keys() & row.keys():
                value, kinds = row[key], properties[key]["type"]
                value = float(value) if isinstance(value, int) and "number" in kinds else value
                assert flags or type(value) in [TYPES[kind] for kind in kinds], f"{line}: {key} is {value!r}"


class Opened(BaseException):
    """Raised when a command opens its files."""


def check_recalled(line: str, asked: Any) -> None:
    """Check that a command that is answered again without opening its files prints the same."""

    def opening(*_: Any, **__: Any) -> None:
        raise Opened

    if len(asked.answers) == 1:
        with patched(arguments, "open_job", opening):
            try:
                again = ask(line)
            except Opened:
                return
        assert (again.status, again.out, again.err) == (asked.status, asked.out, asked.err), line


def test_no_recorded_answer_is_an_error_of_the_program():
    assert [path.name for path in SUBJECTS if re.search("internal error|Traceback", path.read_text("utf-8"))] == []


def test_every_question_is_asked_with_each_of_its_options():
    """Options that define steps have one meaning everywhere: each of their values is tested once."""
    given = {line: question_of(line) for line in LINES}
    missing = []
    for question in questions():
        lines = {line: asked[1] for line, asked in given.items() if asked and asked[0] is question}
        missing += [] if lines else [question.name]
        for option in question.options:
            known = given if option.flag in {step.flag for step in STEPS} else lines
            words = [f"--{option.flag} {one}" for one in option.choices] or [f"--{option.flag}"]
            if question.family == "stats":
                words = [f":{option.flag}"]
            missing += [f"{question.name} {one}" for one in words if not any(one in line for line in known)]
        for view in question.views:
            flags = {name.replace("_", "-") for name in view.values}
            missing += [] if any(flags <= set(own) for own in lines.values()) else [f"{question.name}: {view.name}"]
    assert missing == []


@pytest.mark.campaign
def test_answers_do_not_depend_on_the_order_in_which_rows_were_written(here, monkeypatch):
    # Reports and recipes number the ranges by their rows.
    commands = [one.command({}) for one in questions() if one.rows.home != COMPARISON and not one.family]
    write_jobs(["train"], here)
    for name, order in (("first-to-last", "ASC"), ("last-to-first", "DESC")):
        path = Path(shutil.copytree(here / "train", here / name, dirs_exist_ok=True)) / "rank1.sqlite"
        with closing(sqlite3.connect(path)) as database, database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in tables - {"META_DATA_EXPORT", "META_DATA_CAPTURE"}:
                database.execute(f"CREATE TEMP TABLE rows AS SELECT * FROM {table} ORDER BY rowid {order}")
                database.execute(f"DELETE FROM {table}")
                database.execute(f"INSERT INTO {table} SELECT * FROM rows")
                database.execute("DROP TABLE rows")
    for command in commands:
        answers = []
        for name in ("first-to-last", "last-to-first"):
            monkeypatch.chdir(here / name)
            asked = ask(f"{command} rank1.sqlite")
            answers.append(
                (asked.status, sorted(asked.out.splitlines()), asked.err)
            )  # equal rows keep the file's order
        assert answers[0] == answers[1], command


@pytest.mark.campaign
@pytest.mark.parametrize("job", ["train", "server", "mpi"])
def test_a_packed_job_answers_in_python_as_its_exports_do(here, job):
    write_jobs([job], here)
    assert main(["pack", job, "-o", f"{job}.packed"]) == 0
    with nsystui.open(job) as exports, nsystui.open(f"{job}.packed") as packed:
        for question in questions():
            if question.rows.home != COMPARISON:
                name = f"{question.family} {question.name}".strip()
                expected, frame = exports.ask(name), packed.ask(name)
                assert expected.equals(frame) and expected.dtypes.equals(frame.dtypes), name
                assert expected.attrs["units"] == frame.attrs["units"], name
                for one in (expected, frame):
                    one.attrs["notes"] = [note for note in one.attrs["notes"] if "rank numbers" not in note]
                assert expected.attrs["notes"] == frame.attrs["notes"], name


@pytest.mark.campaign
@pytest.mark.parametrize("words", ["empty", "cpu", "hostile", "processes --time 1055us:1060us"])
def test_without_its_data_a_question_says_why_in_every_form_and_changes_no_file(here, words):
    write_jobs(words.split(), here)
    before = fingerprint(here / words.split()[0])
    for question in questions():
        if question.rows.home == COMPARISON:
            continue
        line = f"{question.command({})} {words} --format json"
        asked = ask(line)
        notes = [one for one in asked.err.splitlines() if "no rows" not in one]
        assert asked.status in (0, 3) and all(one.startswith("nsystui: ") for one in notes), (line, asked.err)
        assert asked.status == 0 or "note: " in asked.err or ": no " in asked.err, (line, asked.err)
        assert words != "empty" or question.family != "stats" or (asked.status, asked.out) == (3, "[]\n"), line
        for answer in asked.answers:
            check_answer(answer)
    assert fingerprint(here / words.split()[0]) == before
