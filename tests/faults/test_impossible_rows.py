"""Rows with impossible times: every command answers as if they were absent, and counts them in one note."""

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import campaign
import program
import pytest
import sqlalchemy as sa
import synthetic
from campaign import first
from support import edit, native
from synthetic import demo, hostile

from nsystui.exports import canonical
from nsystui.store import tables
from nsystui.store.cache import Cache
from nsystui.store.session import Session

# A start, and an end if the table has it, as in a row of the export.
NO_TIME = [("NULL", '"end"')]
ZEROS = [("0", "0")]
NO_END = [('"start"', "NULL")]
LONG_AGO = "-5000000000"
LONG_AFTER = str(100 * 24 * 3600 * 10**9)
NO_TIME_OF_THE_SESSION = [
    *((start, end) for end in ("9223372036854775807", LONG_AFTER) for start in (end, '"start"')),
    *((start, '"end"') for start in ("-9223372036854775808", LONG_AGO, "'soon'", "x'ff'")),
]
BACKWARDS = [('"end" + 7', '"start"'), ('"start"', '"start" - 1')]
MAY_BE_OPEN = re.compile("NVTX_EVENTS|MPI_.*|UCP_.*")
ALL = [getattr(tables, table.name) for table in canonical.TABLES]
# Tables whose rows need no time, or that no question reads.
NEED_NONE = re.compile("DIAGNOSTIC_EVENT|GENERIC_EVENTS|ANALYSIS_DETAILS|.*CUDA_EVENT")


def with_impossible_rows(original: Path, path: Path) -> dict[str, list[int]]:
    """Write a copy of an export with a row of each impossible kind in every table of events.

    Gives for each table how many there are of those without a time, with a time outside the session, and backwards.
    """
    hostile.loosened(original, path)
    added: dict[str, list[int]] = {}
    with closing(sqlite3.connect(path)) as connection:
        for table, columns in hostile.tables(path).items():
            if NEED_NONE.fullmatch(table) or not {"start", "timestamp"} & set(columns):
                continue
            timed = "start" if "start" in columns else "timestamp"
            has_end = "end" in columns
            no_end = NO_END if has_end and not MAY_BE_OPEN.fullmatch(table) else []
            # NVTX may have begun long before the session.
            of_no_session = [one for one in NO_TIME_OF_THE_SESSION if table != "NVTX_EVENTS" or one[0] != LONG_AGO]
            kinds = [NO_TIME + no_end + ZEROS * has_end, of_no_session, BACKWARDS]
            # Only ranges of NVTX: its names may be registered at any time.
            some = "WHERE eventType IN (59, 60)" if table == "NVTX_EVENTS" else ""
            names = ", ".join(f'"{one}"' for one in columns)
            for number, kind in enumerate(kinds):
                for start, end in kind if has_end else [one for one in kind if one[0].find('"') < 0]:
                    values = [start if one == timed else end if one == "end" else f'"{one}"' for one in columns]
                    row = f"SELECT {', '.join(values)} FROM {table} {some} LIMIT 1"
                    done = connection.execute(f"INSERT INTO {table} ({names}) {row}")
                    added.setdefault(table, [0, 0, 0])[number] += done.rowcount
        connection.commit()
    return added


def answers(path: Path, asked: Sequence[tuple[str, ...]]) -> list[program.Ran]:
    ran = [program.run(*words, path) for words in asked]
    assert not program.failures(ran)
    return ran


def notes(ran: program.Ran) -> list[str]:
    return [line for line in ran.err.splitlines() if "left out of" in line]


@dataclass(frozen=True)
class Exports:
    """An export, the same with impossible rows, how many there are of each kind in each table, and what to ask."""

    clean: Path
    damaged: Path
    added: dict[str, list[int]]
    asked: Sequence[tuple[str, ...]]


@pytest.fixture(scope="module", params=campaign.first(1, ["few", "training", "simulation", "unified_memory"]))
def exports(request, tmp_path_factory) -> Exports:
    place = tmp_path_factory.mktemp(request.param)
    asked = program.FEW if request.param == "few" else program.questions()
    if request.param in ("few", "training"):
        (path,) = demo.TrainingJob(ranks=1, steps=2, layers=1).write(place / "made")
    else:
        path = getattr(synthetic, f"{request.param}_export")(place / "made.sqlite")
        # Recipes and other options are tested with the training job.
        asked = [words for words in asked if len(words) == 1 or words[0] == "stats"]
    # Names of one length, because some tables are as wide as the names.
    clean, damaged = (place / name / "rank0.sqlite" for name in ("right", "wrong"))
    clean.parent.mkdir()
    damaged.parent.mkdir()
    hostile.loosened(path, clean)
    return Exports(clean, damaged, with_impossible_rows(path, damaged), asked)


def numbers(note: str) -> dict[str, str]:
    """``12 GPU kernels (2 without a time, 10 ending before the start)`` by kind."""
    return dict(re.findall(r"[\d,]+ ([A-Za-z ]+) \(([^)]*)\)", note))


@pytest.mark.campaign
def test_every_command_answers_as_if_they_were_not_there_and_says_how_many_it_left_out_and_why(exports):
    """Also a command that finds its answer in the cache, as every second command here.

    `triage` and `diff` judge no idle time of a job that lacks too many of its rows, and `efficiency` has no factors.
    """
    first = answers(exports.damaged, exports.asked)
    others = [
        (got.words, right.out, got.out)
        for right, got in zip(answers(exports.clean, exports.asked), first, strict=True)
        if (got.status, got.out.replace("/wrong/", "/right/")) != (right.status, right.out)
        if not (got.words[0] in ("triage", "diff") and ("at least" in got.out or "not comparable" in got.out))
        if got.words[0] != "efficiency"
    ]
    assert others == []
    said: dict[str, str] = {}
    for ran in [*first, *answers(exports.damaged, exports.asked[::2])]:
        found = notes(ran)
        assert len(found) <= 2 if ran.words[0] == "diff" else len(found) <= 1, ran.words
        for what, why in numbers(" ".join(found)).items():
            assert said.setdefault(what, why) == why, ran.words
    if counts := exports.added.get("CUPTI_ACTIVITY_KIND_KERNEL"):
        reasons = ("without a time", "with a time outside the session", "ending before the start")
        assert said["GPU kernels"] == ", ".join(map("{} {}".format, counts, reasons))


@pytest.mark.campaign
def test_packed_every_command_says_all_of_them(exports, tmp_path):
    """The pack has the note, whatever a command reads; every third command is tested."""
    assert "left out of" in program.run("pack", exports.damaged, "-o", tmp_path / "packed").err
    asked = [words for words in exports.asked[::3] if words[0] != "diff"]
    said = {tuple(notes(ran)) for ran in answers(tmp_path / "packed", asked)}
    assert len(said) == 1
    ((note,),) = said
    whole = sum(sum(counts) for counts in exports.added.values())
    assert sum(int(number.replace(",", "")) for number in re.findall(r"([\d,]+) [A-Za-z ]+ \(", note)) == whole


@pytest.mark.campaign
@pytest.mark.parametrize("cached", [False, True], ids=["memory", "cache"])
def test_no_table_has_one(exports, tmp_path, whole, cached):
    rows = []
    for path in (exports.clean, exports.damaged):
        with closing(Session(cache=Cache(tmp_path / path.parent.name) if cached else None)) as session:
            session.add(path, whole=whole)
            rows.append({table.name: session.count(table) for table in ALL})
            for table in (one for one in ALL if {"start", "end"} <= set(one.c.keys())):
                backwards = sa.select(sa.func.count()).select_from(table).where(table.c.end < table.c.start)
                assert session.scalar(backwards) == 0, table.name
    assert rows[0] == rows[1]


S, MS, US = 10**9, 10**6, 10**3


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    """Write 2 s with 100 kernels, copies, memsets, synchronisations and calls, of 500 µs each."""
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "rank0.sqlite"
    with synthetic.ExportWriter(path) as writer:
        process = writer.process(100)
        main = writer.thread(process, 100, "main")
        for number in range(100):
            start, ids = S + 3 * number * MS, range(4 * number, 4 * number + 4)
            for one, name in zip(ids, ("LaunchKernel", "MemcpyAsync", "MemsetAsync", "StreamSynchronize"), strict=True):
                writer.api(main, start, start + 10 * US, f"cuda{name}_v7000", one)
            writer.kernel(process, 0, 7, start, start + 500 * US, name="work", correlation_id=ids[0])
            writer.memcpy(process, 0, 7, start + MS, start + MS + 500 * US, size=4096, kind="Host-to-Device",
                          correlation_id=ids[1])  # fmt: skip
            writer.memset(process, 0, 7, start + 2 * MS, start + 2 * MS + 500 * US, size=64, correlation_id=ids[2])
            writer.sync(process, 0, 7, start + 2 * MS, start + 2 * MS + 500 * US, correlation_id=ids[3])
    edit(path, f"UPDATE ANALYSIS_DETAILS SET duration = {2 * S}")
    return path


WORK = ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "RUNTIME")
ASKED = [(*words.split(), "--format", "csv") for words in ("kernels", "memory", "api", "gpu", "ranks", "streams")]


@pytest.mark.parametrize(("times", "why"), [
    pytest.param(("0", "0"), "without a time", id="uncollected"),
    pytest.param(
        (f"{9 * S}", f"{9 * S + MS}"), "with a time outside the session", id="after", marks=pytest.mark.campaign
    ),
    pytest.param(
        (f"{-9 * S}", f"{-9 * S + MS}"), "with a time outside the session", id="before", marks=pytest.mark.campaign
    ),
])  # fmt: skip
def test_work_that_was_not_collected_or_lies_outside_of_the_capture_is_left_out_and_counted(work, times, why):
    right = [program.run(*words, work).out for words in ASKED]
    for kind in WORK:
        table = f"CUPTI_ACTIVITY_KIND_{kind}"
        columns = [name for _, name, *_ in native(work, f"PRAGMA table_info({table})")]
        values = [dict(zip(("start", "end"), times, strict=True)).get(name, f'"{name}"') for name in columns]
        edit(work, f"INSERT INTO {table} SELECT {', '.join(values)} FROM {table} LIMIT 7")
    for _ in range(2):  # from the export, and from the cache
        ran = [program.run(*words, work) for words in ASKED]
        assert [one.out for one in ran] == right
        assert f"7 GPU kernels (7 {why})" in ran[0].err and f"14 memory copies and memsets (14 {why})" in ran[1].err
        assert f"7 CUDA runtime and driver calls (7 {why})" in ran[2].err
        assert {one.err.count("left out of") for one in ran} == {1}
        # Nothing that is exported again has times that were not collected.
        assert all("lower bounds, idle times upper bounds" in one.err and "again" not in one.err for one in ran)


@pytest.mark.parametrize(("command", "table"), [("mpi", "MPI_OTHER_EVENTS"), ("osrt", "OSRT_API")])
def test_events_without_times_are_not_advised_to_be_recorded(tmp_path, command, table):
    with synthetic.ExportWriter(tmp_path / "rank0.sqlite") as writer:
        main = writer.thread(writer.process(100), 100, "main")
        for number in range(1, 11):
            writer.osrt(main, number * MS, number * MS + US, "read")
            writer.mpi_other(main, number * MS, number * MS + US, "MPI_Barrier")
    edit(writer.path, f'UPDATE {table} SET start = 0, "end" = 0')
    ran = program.run(command, writer.path)
    assert "10 without a time" in ran.err and "all 10 recorded rows have impossible times" in ran.err
    assert ran.status == 3 and "nsys profile" not in ran.err and "none of this" not in ran.err


def test_clocks_of_gpus_may_be_off_by_a_second_and_more(work):
    right = program.run("kernels", work, "--format", "csv")
    for shift in (-1100 * MS, 2400 * MS):
        edit(work, *(f'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "{one}" = "{one}" + {shift}' for one in ("start", "end")))
        ran = program.run("kernels", work, "--format", "csv")
        assert (ran.out, ran.err) == (right.out, right.err)


@pytest.mark.parametrize("kind", first(1, ["osrt", "nvtx_range", "mpi_other"]))
def test_a_rank_without_cuda_changes_nothing_for_the_others(work, tmp_path, kind):
    idle = tmp_path / "rank1.sqlite"
    with synthetic.ExportWriter(idle) as writer:
        getattr(writer, kind)(writer.thread(writer.process(101), 101, "main"), 1, 20 * S, "read")
    alone, both = (program.run("gpu", *paths, "--format", "csv").out for paths in ((work,), (work, idle)))
    assert both == alone
    assert "Judged: 299.5 ms on 1 GPU" in " ".join(program.run("triage", work, idle).out.split())
    assert kind != "osrt" or "read" in program.run("osrt", work, idle).out


def test_sentences_agree_with_a_count_of_one(tmp_path):
    path = tmp_path / "one.sqlite"
    with synthetic.ExportWriter(path) as export:
        process = export.process(1, "python")
        export.kernel(process, 0, 7, 0, 0, name="k()", correlation_id=1)
    told = program.run("kernels", path).err + program.run("triage", path, "--wide").out
    for words in (
        "impossible: 1 row of GPU kernels (1 without a time)", "1 recorded row has impossible times",
        "1 of 1 row of GPU kernels has no possible time",
    ):  # fmt: skip
        assert words in " ".join(told.split())
