"""Threads, functions and the call tree, against counts made straight from the rows of an export with SQLite."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import campaign
import pytest
import sqlalchemy as sa
from support import edit, job_of, native, native_count, shared
from synthetic import ExportWriter
from synthetic.writing.host import RUNNING as STATE_RUNNING
from synthetic.writing.host import Frame
from synthetic.writing.target import Thread

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.resources import Limits
from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.host import attribution, causes, gaps, naming, stacks
from nsystui.questions.host.attribution import attribute
from nsystui.questions.host.calltree import call_tree_table, tree_of
from nsystui.questions.host.functions import functions_table
from nsystui.questions.host.gaps import gaps_list, gaps_table, parts_of_row
from nsystui.questions.host.threads import PARTS, thread_over_time, threads_table
from nsystui.questions.host.time_budget import budget_with_causes
from nsystui.questions.job.job import OpenJob
from nsystui.store import tables
from nsystui.store.cache import Cache

MS = 1_000_000
SMALL = ("alcf-allgather-rank0", "gemm-pageable")


def real(*names: str) -> list[Any]:
    """Return names of real exports as parameters, large exports only in campaigns."""
    return [pytest.param(name, marks=() if name in SMALL else pytest.mark.campaign) for name in names]


WITH_SAMPLES = (
    *("dataloader-bound-a100", "ai-training-before", "ddp-a100-rank0of4"),
    *("jacobi-staged-copies", "mpi-cuda-saxpy-schema2.9", "alcf-allgather-rank0"),
)
MAIN, WORK, LEAF = (Frame(name, "/opt/app/main") for name in ("main", "app::work(int)", "app::Grid<float>::leaf()"))
COPY = Frame("memcpy", "/usr/lib/libc.so.6")
DRIVER = [Frame(f"0x7f00{number:08x}", "/usr/lib/libcuda.so.1", is_unresolved=True) for number in range(3)]
KERNEL = Frame("do_syscall_64", "[kernel.kallsyms]", is_kernel=True)


@contextmanager
def training(path: Path, schema: str = "3.13.2", pid: int = 4711, **how: Any) -> Iterator[tuple[Any, Thread, Thread]]:
    """Write an export with a GPU, and a process that has two threads."""
    with ExportWriter(path, schema, **how) as export:
        export.gpu(0)
        process = export.process(pid)
        yield export, export.thread(process, pid, "train"), export.thread(process, pid + 89, "loader")


def launched(export: ExportWriter, thread: Thread, *spans: tuple[float, float, float, float]) -> None:
    """Write kernels of a thread: begin and end of the call, start and end on the GPU, ms."""
    for number, span in enumerate(spans, 1):
        called, returned, start, end = (int(time * MS) for time in span)
        export.api(thread, called, returned, "cudaLaunchKernel_v7000", number)
        export.kernel(thread.process, 0, 7, start, end, name="saxpy()", correlation_id=number)


def written(path: Path, schema: str = "3.13.2") -> Path:
    """Write two threads with 10 + 4 samples of four stacks, scheduling, calls; the GPU is idle from 4 to 9 ms."""
    with training(path, schema) as (export, main_thread, other):
        export.on_cpu(main_thread, 0, 6 * MS, [LEAF, WORK, MAIN], cpu=3)
        export.on_cpu(main_thread, 8 * MS, 10 * MS, [*DRIVER, WORK, WORK, MAIN], cpu=4, state=STATE_RUNNING)
        export.on_cpu(main_thread, 11 * MS, 13 * MS, [KERNEL, COPY, MAIN], cpu=4)
        export.on_cpu(other, 5 * MS, 9 * MS, [COPY, LEAF], cpu=1)
        export.osrt(main_thread, 6 * MS, 7 * MS, "poll", stack=[COPY, MAIN])
        launched(export, main_thread, (1, 2, 2, 4), (9, 9.5, 9, 13))
    return path


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Iterator[OpenJob]:
    with job_of(written(tmp_path_factory.mktemp("host") / "a.sqlite")) as job:
        yield job


@pytest.mark.parametrize("schema", campaign.first(1, ["3.25.0", "2.9.1", "3.7.2", "3.13.2"]))
def test_the_parts_of_a_thread_add_up_to_the_window(tmp_path, schema):
    with job_of(written(tmp_path / "a.sqlite", schema)) as job:
        rows = threads_table(job, Selection(Window(0, 14 * MS))).records()
    assert [row["thread"] for row in rows] == ["train (main)", "loader"]
    assert {sum(row[part] or 0 for part in PARTS) for row in rows} == {row["window"] for row in rows} == {14 * MS}
    tells_states = schema not in ("2.9.1", "3.7.2")
    # The GPU is idle before 2 ms, from 4 to 9 ms, and after 13 ms.
    expected = {
        "cpu": 10, "cuda": 1.5, "os": 1, "running": 8.5, "unknown": 1, "off": 0 if tells_states else 2,
        "runnable": 1 if tells_states else None, "waiting": 1 if tells_states else None,
        "idle_running": 1 + 3, "idle_calls": 1 + 1, "idle_off": 1, "idle": 8,
    }  # fmt: skip
    main_thread, other = rows
    assert {key: main_thread[key] for key in expected} == {key: ms and ms * MS for key, ms in expected.items()}
    assert (main_thread["switches"], main_thread["migrations"]) == (3, 1)
    assert (other["cpu"], other["unknown"], other["idle_running"]) == (4 * MS, 10 * MS, 4 * MS)


def test_the_parts_of_a_thread_over_time_add_up_to_those_of_the_whole(host):
    selection = Selection(Window(0, 14 * MS))
    for row in threads_table(host, selection).records():
        window, parts = thread_over_time(host, selection, Task(row["report"], row["process"]), row["tid"], 7)
        assert window == selection.window and sum(parts.values()) == pytest.approx([1.0] * 7)
        assert {part: shares.sum() * 2 * MS for part, shares in parts.items()} == pytest.approx(
            {part: row[part] or 0 for part in PARTS}
        )


@pytest.mark.campaign
def test_calls_of_a_kind_that_was_not_recorded_take_no_time_of_a_thread_not_zero(tmp_path):
    path = written(tmp_path / "a.sqlite")
    edit(path, "DROP TABLE OSRT_API")
    with job_of(path) as job:
        answer = threads_table(job, Selection(Window(7 * MS, 14 * MS)))
    for row in answer.records():
        assert (row["os"], row["os_percent"], row["mpi"]) == (None, None, None)
        assert row["cuda"] is not None and sum(row[part] or 0 for part in PARTS) == 7 * MS
    assert any("no OS runtime library calls" in note for note in answer.notes)


def test_a_selection_cuts_samples_and_times(host):
    selection = Selection(Window(5 * MS, 7 * MS))
    assert {row["function"]: row["own"] for row in functions_table(host, selection).records()} == {
        "Grid::leaf": 1, "memcpy": 2, "app::work": 0, "main": 0,
    }  # fmt: skip
    (main_thread, other) = threads_table(host, selection).records()
    assert (main_thread["cpu"], main_thread["os"], other["cpu"]) == (1 * MS, 1 * MS, 2 * MS)
    named = functions_table(host, selection.with_name("leaf"), "thread")
    assert [(row["thread"], row["total"]) for row in named.records()] == [("train (main)", 1), ("loader", 2)]


def test_a_call_tree_from_callers_and_from_callees(host):
    down = call_tree_table(host, Selection())
    up = call_tree_table(host, Selection(), bottom_up=True, depth=2)
    part = call_tree_table(host, Selection().with_name("app::work"))
    callers = call_tree_table(host, Selection().with_name("app::work"), bottom_up=True)
    assert [(row["call"], row["total"], row["own"]) for row in down.records()] == [
        ("main", 10, 0), ("  app::work", 8, 0), ("    Grid::leaf", 6, 6), ("    app::work", 2, 0),
        ("      [libcuda.so.1]", 2, 2), ("  memcpy", 2, 0), ("    do_syscall_64", 2, 2),
        ("Grid::leaf", 4, 0), ("  memcpy", 4, 4),
    ]  # fmt: skip
    assert [(row["call"], row["total"]) for row in up.records()] == [
        ("Grid::leaf", 6), ("  app::work", 6), ("memcpy", 4), ("  Grid::leaf", 4),
        ("[libcuda.so.1]", 2), ("  app::work", 2), ("do_syscall_64", 2), ("  memcpy", 2),
    ]  # fmt: skip
    assert part.rows[0][0] == 8 and part.cells("call")[0] == "app::work"
    assert [(row["call"], row["total"]) for row in callers.records()] == [("app::work", 8), ("  main", 8)]


def test_calls_of_the_os_and_of_cuda_know_their_stacks(host):
    found = stacks.stacks_of(host.session, host.session.reports)[0]
    (node,) = found.nodes(stacks.OS_CALL, [chain for (chain,) in host.session.rows(sa.select(tables.os_calls.c.chain))])
    assert [found.tree.functions[number].name for number in found.tree.path(int(node))] == ["main", "memcpy"]


@pytest.mark.parametrize("name", real(*WITH_SAMPLES))
def test_samples_of_real_exports_are_those_that_sqlite_counts(name):
    (path,) = shared(name)
    names = dict(native(path, "SELECT id, value FROM StringIds"))
    ends, anywhere = Counter(), Counter()
    chains = defaultdict(dict)
    for chain, depth, symbol, module in native(path, "SELECT id, stackDepth, symbol, module FROM SAMPLING_CALLCHAINS"):
        text, where = names[symbol], names[module]
        if not text or text.startswith("0x"):
            library = where.rpartition("/")[2]
            text = library if library.startswith("[") else f"[{library}]"
        chains[chain][depth] = (text, where)
    for frames in chains.values():
        ends[frames[0]] += 1
        anywhere.update(set(frames.values()))
    with job_of(path) as job:
        rows = functions_table(job, Selection()).records()
        _, tree = tree_of(job, Selection())
    own, total, times = Counter(), Counter(), Counter()
    for row in rows:
        key = row["full_name"], row["module_path"]
        own[key] += row["own"]
        total[key] += row["total"]
        times[key] += 1
    assert +own == ends
    # A function with and without the mark of the kernel's mode is two functions.
    assert total.keys() == anywhere.keys()
    assert all(total[key] == anywhere[key] for key, count in times.items() if count == 1)
    assert tree.samples == int(tree.self_samples.sum()) == sum(ends.values()) == native_count(path, "COMPOSITE_EVENTS")


@pytest.mark.parametrize("name", real(*WITH_SAMPLES))
def test_time_on_cpu_of_real_exports_is_the_union_of_their_scheduling(name):
    (path,) = shared(name)
    events = native(path, "SELECT globalTid, start, isSchedIn FROM SCHED_EVENTS ORDER BY globalTid, start, rowid")
    expected: Counter[int] = Counter()
    for (thread, start, is_in), (other, end, _) in pairwise(events):
        if thread == other and is_in:
            expected[thread & 0xFFFFFF] += end - start
    last = max(start for _, start, _ in events) + 1
    with job_of(path) as job:
        rows = threads_table(job, Selection(Window(0, last))).records()
    assert {row["tid"]: row["cpu"] for row in rows if row["cpu"]} == +expected
    for row in rows:
        assert sum(row[part] or 0 for part in PARTS) == row["window"] == last


def test_a_damaged_chain_is_a_note_and_never_a_wrong_sum(host, tmp_path):
    before = sum(functions_table(host, Selection()).cells("own"))
    path = written(tmp_path / "a.sqlite")
    edit(
        path,
        "CREATE TABLE loose AS SELECT * FROM SAMPLING_CALLCHAINS WHERE id <> 2 AND (id <> 1 OR stackDepth <> 1) "
        "UNION ALL SELECT * FROM SAMPLING_CALLCHAINS WHERE id = 3",
        "DROP TABLE SAMPLING_CALLCHAINS",
        "ALTER TABLE loose RENAME TO SAMPLING_CALLCHAINS",
    )
    with job_of(path) as job:
        answer = functions_table(job, Selection())
    assert sum(answer.cells("own")) == before
    assert {row["function"]: row["own"] for row in answer.records()}["[no call stack]"] == 1
    assert any(note.startswith("2 call chains are damaged") for note in answer.notes)


@pytest.mark.campaign
def test_a_switch_that_was_lost_makes_no_time_out_of_nothing(tmp_path):
    path = written(tmp_path / "a.sqlite")
    edit(path, "DELETE FROM SCHED_EVENTS WHERE start = 6000000")
    with job_of(path) as job:
        row = threads_table(job, Selection(Window(0, 14 * MS))).records()[0]
    assert row["cpu"] == 12 * MS and sum(row[part] or 0 for part in PARTS) == 14 * MS


def gaps_export(path: Path) -> Path:
    """Write a GPU that is idle from 2 to 20 ms: each cause has a known share of that."""
    with training(path) as (export, main_thread, other):
        rival = export.thread(export.process(5000), 5000, "rival")
        export.on_cpu(main_thread, 0, 8 * MS, [KERNEL, WORK, MAIN], cpu=3)
        export.on_cpu(other, 9 * MS, 11 * MS, [COPY, LEAF], cpu=1)
        export.on_cpu(main_thread, 13 * MS, 15 * MS, [LEAF], cpu=3, state=STATE_RUNNING)
        export.on_cpu(rival, 15 * MS, 16 * MS, [COPY], cpu=3)
        export.on_cpu(main_thread, 17 * MS, 22 * MS, [LEAF], cpu=3)
        export.api(main_thread, 2 * MS, 4 * MS, "cudaMalloc_v3020", 7)
        export.osrt(main_thread, 5 * MS, 6 * MS, "read", stack=[COPY, WORK, MAIN])
        export.osrt(main_thread, 8 * MS, 12 * MS, "pthread_cond_wait")
        launched(export, main_thread, (0, 1, 0, 2), (19, 20, 20, 22))
    return path


GAPS = Selection(Window(0, 22 * MS))


def causes_of(answer: TableAnswer) -> dict[tuple[Any, ...], int]:
    return {(row["cause"], row["what"], row["thread"], row["caller"]): row["time"] for row in answer.records()}


@pytest.mark.campaign
def test_every_moment_of_idle_time_has_the_cause_that_was_injected(tmp_path):
    path = gaps_export(tmp_path / "a.sqlite")
    with job_of(path) as job:
        answer, listed = gaps_table(job, GAPS), gaps_list(job, GAPS)
        without_ranges = gaps_table(job, GAPS, "range")
    assert causes_of(answer) == {
        (causes.ALLOCATING, "cudaMalloc", None, None): 2 * MS, (causes.RUNNING_CODE, "app::work", None, None): 3 * MS,
        (causes.IN_OS, "read", None, "app::work"): 1 * MS, (causes.WAITING, "Grid::leaf", "loader 4800", None): 2 * MS,
        (causes.IN_OS, "pthread_cond_wait", None, None): 2 * MS, (causes.OFF_CPU, None, None, None): 1 * MS,
        (causes.RUNNING_CODE, "Grid::leaf", None, None): 4 * MS,
        (causes.PREEMPTED, "worker process rival 5000", None, None): 1 * MS,
        (causes.PREEMPTED, None, None, None): 1 * MS, (causes.LAUNCHING, "cudaLaunchKernel", None, None): 1 * MS,
    }  # fmt: skip
    assert sum(answer.cells("percent")) == pytest.approx(100)
    (row,) = listed.records()
    assert (row["part"], row["start"], row["duration"], row["cause"]) == ("gap", 2 * MS, 18 * MS, causes.RUNNING_CODE)
    assert [(row["range"], row["time"]) for row in without_ranges.records()] == [(naming.NO_RANGES, 18 * MS)]
    assert any("no NVTX" in note for note in without_ranges.notes)
    # Without scheduling and samples, the remaining time has no record.
    edit(path, *(f"DROP TABLE {name}" for name in ("SCHED_EVENTS", "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS")))
    with job_of(path) as job:
        rest = gaps_table(job, GAPS)
    times = {row["cause"]: row["time"] for row in rest.records()}
    assert times[causes.NOTHING] == (18 - 2 - 1 - 4 - 1) * MS and sum(rest.cells("time")) == 18 * MS
    assert causes.OFF_CPU not in times and causes.RUNNING_CODE not in times


@pytest.mark.campaign
@pytest.mark.parametrize(
    "name",
    campaign.some(4, real(*WITH_SAMPLES, "gemm-pageable", "cuda-graphs", "h100-2rank-moe-before", "jetson-orin")),
)
def test_causes_of_real_exports_add_up_to_all_idle_time(name):
    (path,) = shared(name)
    busy = [
        f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{kind}"
        for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
        if native_count(path, f"CUPTI_ACTIVITY_KIND_{kind}")
    ]
    with job_of(path) as job:
        window = job.extent()
        for chosen in (window, Window((window.start + window.end) // 3, (window.start + window.end) // 2)):
            devices = len(job.busy(Selection()).devices)
            if devices == 1:
                idle, reach = 0, chosen.start
                for start, end in sorted(native(path, " UNION ALL ".join(busy))):
                    idle += max(min(start, chosen.end) - reach, 0)
                    reach = min(max(reach, end), chosen.end)
                idle += chosen.end - reach
            else:
                idle = sum(one.breakdown(chosen).idle for one in job.busy(Selection()).devices)
            for by in ("all", "rank", "role", "range", "length", "pair"):
                answer = gaps_table(job, Selection(chosen), by)
                assert sum(answer.cells("time")) == idle, by
                for row in answer.records():
                    assert row["startup"] + row["gaps"] + row["tail"] == row["time"], by


@pytest.mark.campaign
def test_threads_of_the_ranks_of_a_role_are_one_row(demo_job):
    with job_of(*demo_job) as job:
        whole, roles = (gaps_table(job, Selection(), by) for by in ("all", "role"))
        assert [row[1:] for row in roles.page(0, len(roles))] == whole.page(0, len(whole))
        assert set(roles.cells("role")) == {"python"}


@pytest.mark.campaign
def test_idle_spans_by_length_are_those_between_the_operations_of_all_streams(tmp_path):
    """A gap in a stream does not count while another stream works."""
    dice, expected = random.Random(3), [Counter[int](), Counter[int]()]
    edges = (0, 1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000)
    spans: list[tuple[int, int]] = [(0, 5_000)]
    with training(tmp_path / "lengths.sqlite") as (export, main_thread, _):
        for number in range(400):
            end = max(end for _, end in spans)
            start = end + (int(10 ** dice.uniform(2, 7.3)) if number % 3 else -dice.randrange(2_000))
            spans.append((start, start + dice.randrange(2_000, 9_000)))
            export.api(main_thread, 1_000, 2_000, "cudaLaunchKernel_v7000", number)
            export.kernel(main_thread.process, 0, 7 + number % 2, *spans[-1], name="saxpy()", correlation_id=number)
    reach = 0
    for start, end in sorted(spans[1:]):
        if start > reach and reach:
            bucket = max(edge for edge in edges if 1_000 * edge <= start - reach)
            expected[0][1_000 * bucket] += 1
            expected[1][1_000 * bucket] += start - reach
        reach = max(reach, end)
    window = Window(min(start for start, _ in spans[1:]), reach)
    with job_of(tmp_path / "lengths.sqlite") as job:
        found = list(gaps_table(job, Selection(window), "length").records())
    lengths = [1_000 * edge for edge in edges]
    assert [row["from"] for row in found] == sorted(expected[0])
    assert {row["from"]: (row["spans"], row["time"]) for row in found} == {
        length: (expected[0][length], expected[1][length]) for length in expected[0]
    }
    assert [row["to"] for row in found] == [next((one for one in lengths if one > row["from"]), None) for row in found]


@pytest.mark.campaign
def test_idle_spans_by_pair_are_those_between_two_operations_of_the_gpu(demo_job):
    """Each span is counted from the end of the previous operation to the start of the next."""
    operations = sorted(
        native(
            demo_job[0],
            """SELECT start, end, value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName
            UNION ALL SELECT start, end, '[CUDA memset]' FROM CUPTI_ACTIVITY_KIND_MEMSET
            UNION ALL SELECT start, end, '[CUDA memcpy ' || CASE copyKind WHEN 1 THEN 'Host-to-Device'
                WHEN 2 THEN 'Device-to-Host' ELSE 'Device-to-Device' END || ']' FROM CUPTI_ACTIVITY_KIND_MEMCPY""",
        )
    )
    expected: dict[tuple[str, str], list[int]] = {}
    (_, reach, before), *rest = operations
    for start, end, name in rest:
        if start > reach:
            expected.setdefault((before, name), []).append(start - reach)
        if end > reach:
            reach, before = end, name
    with job_of(demo_job[0]) as job:
        found = list(gaps_table(job, Selection(), "pair").records())
        (steps,) = map(len, job.steps().of_task.values())
        inner = {(row["before"], row["after"]): row for row in found if row["before"] and row["after"]}
        assert {pair: row["time"] for pair, row in inner.items()} == {
            pair: sum(times) for pair, times in expected.items()
        }
        # The steady state begins within an idle time between two copies, which are two spans.
        cut = (copy := "[CUDA memcpy Host-to-Device]", copy)
        assert inner.pop(cut)["spans"] == len(expected.pop(cut)) + 1
        assert {pair: row["spans"] for pair, row in inner.items()} == {
            pair: len(times) for pair, times in expected.items()
        }
        for pair, row in inner.items():
            assert row["mean"] == pytest.approx(mean(expected[pair]))
            assert row["per_step"] == len(expected[pair]) / steps
        assert all(row["startup"] or row["tail"] for row in found if not (row["before"] and row["after"]))
        assert parts_of_row(job, Selection(), found[0]).startswith("causes: ")


def test_idle_time_by_range_is_that_of_the_innermost_one_of_the_launching_thread(tmp_path):
    # ms: ranges of the launching thread, except the last; three of one form are one row
    ranges = [(1, 6, "outer"), (3, 5, "load 7"), (8, 9, "load 8"), (9, 12, "load 9"), (10, 11, "MPI:MPI_Barrier")]
    ranges += [(13, 30, "last")]
    with training(tmp_path / "b.sqlite") as (export, main_thread, other):
        for start, end, name in ranges:
            export.nvtx_range(main_thread, start * MS, end * MS, name)
        export.nvtx_range(other, 0, 40 * MS, "not here")
        launched(export, main_thread, (0, 1, 0, 2), (19, 20, 20, 22))
    expected: Counter[str] = Counter()
    for moment in range(2, 20):
        around = [(end - start, name) for start, end, name in ranges if start <= moment < end and "MPI" not in name]
        expected[re.sub("[0-9]", "*", min(around)[1]) if around else naming.OUTSIDE] += MS
    with job_of(tmp_path / "b.sqlite") as job:
        found = {row["range"]: row for row in gaps_table(job, GAPS, "range").records()}
        assert {name: row["time"] for name, row in found.items()} == expected
        assert (found["last"]["cause"], found["last"]["share"]) == (causes.NOTHING, pytest.approx(100 * 6 / 7))
        assert [row["range"] for row in gaps_table(job, GAPS.with_name("load"), "range").records()] == ["load *"]
        (cause, *_) = (row for row in gaps_table(job, GAPS).records() if row["cause"] == causes.NOTHING)
        assert parts_of_row(job, GAPS, cause).startswith("NVTX ranges: last 35.3 %, load * 35.3 %")
        assert parts_of_row(job, GAPS, found["last"]) == f"causes: {causes.NOTHING} 85.7 %, cudaLaunchKernel 14.3 %"


@pytest.mark.campaign
@pytest.mark.parametrize("order", [1, -1])
def test_of_ranges_that_begin_at_once_the_shortest_is_the_innermost(tmp_path, order):
    with training(tmp_path / "b.sqlite") as (export, main_thread, _):
        for end, name in [(30, "outer"), (12, "inner"), (8, "innermost")][::order]:
            export.nvtx_range(main_thread, 4 * MS, end * MS, name)
        launched(export, main_thread, (0, 1, 0, 2), (19, 20, 20, 22))
    with job_of(tmp_path / "b.sqlite") as job:
        found = {row["range"]: row["time"] for row in gaps_table(job, GAPS, "range").records()}
    assert found == {naming.OUTSIDE: 2 * MS, "innermost": 4 * MS, "inner": 4 * MS, "outer": 8 * MS}


@pytest.mark.campaign
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_waits_has_the_worker_process_that_ran_where_it_is_the_only_rank(tmp_path, ranks):
    with ExportWriter(tmp_path / "a.sqlite", "3.13.2") as export:
        export.gpu(0)
        for number in range(ranks):
            process = export.process(4711 + number)
            main_thread = export.thread(process, 4711 + number, "train")
            export.on_cpu(main_thread, 0, 4 * MS, [LEAF], cpu=1)
            export.osrt(main_thread, 4 * MS, 12 * MS, "poll", stack=[COPY, WORK, MAIN])
            export.osrt(main_thread, 14 * MS, 18 * MS, "pthread_cond_wait")
            export.on_cpu(main_thread, 18 * MS, 20 * MS, [LEAF], cpu=1)
            for start, end in ((0, 4), (18, 20)):
                export.api(main_thread, start * MS, start * MS + 100, "cudaLaunchKernel_v7000", start + 1)
                export.kernel(process, 0, 7, start * MS, end * MS, name="saxpy()", correlation_id=start + 1)
        workers = [export.thread(export.process(pid), pid, "worker") for pid in (5000, 5001)]
        export.on_cpu(workers[0], 6 * MS, 9 * MS, [COPY, WORK], cpu=2)
        export.on_cpu(workers[1], 13 * MS, 17 * MS, [WORK], cpu=2)
        export.on_cpu(export.thread(export.process(6000, "/usr/bin/top"), 6000, "top"), 4 * MS, 18 * MS, [LEAF], cpu=4)
    with job_of(tmp_path / "a.sqlite") as job:
        answer = gaps_table(job, Selection(Window(0, 20 * MS)))
    found = causes_of(answer)
    if ranks == 1:
        assert found == {
            (causes.WAITING, "app::work", "worker process worker 5000", None): 3 * MS,
            (causes.IN_OS, "poll", None, "app::work"): 5 * MS,
            (causes.WAITING, "app::work", "worker process worker 5001", None): 4 * MS,
            (causes.OFF_CPU, None, None, None): 1 * MS,
            (causes.IN_OS, "pthread_cond_wait", None, None): 1 * MS,
        }
    else:
        assert not any(thread for _, _, thread, _ in found)


@pytest.mark.campaign
def test_small_functions_of_a_thread_are_one_cause_and_so_are_the_threads_of_one_name_in_several_ranks(tmp_path):
    for rank in range(2):
        with training(tmp_path / f"{rank}.sqlite", pid=4711 + rank) as (export, main_thread, loader):
            for start in (0, 41):
                export.on_cpu(main_thread, start * MS, (start + 1) * MS, [MAIN], cpu=3)
            for number in range(40):
                frame = Frame("busy" if number < 20 else f"small_{number}", "/opt/app/main")
                export.on_cpu(loader, (1 + number) * MS, (2 + number) * MS, [frame], cpu=1)
            launched(export, main_thread, (0, 1, 0, 1), (41, 42, 41, 42))
    with job_of(tmp_path / "0.sqlite", tmp_path / "1.sqlite") as job:
        window = Selection(Window(0, 42 * MS))
        answers = {by: gaps_table(job, window, by) for by in ("all", "rank")}
        details = [parts_of_row(job, window, row) for answer in answers.values() for row in answer.records()]
        (budget,) = (note for note in budget_with_causes(job, window).notes if note.startswith("long gaps"))
    found = {by: [(row["what"], row["thread"], row["time"]) for row in rows.records()] for by, rows in answers.items()}
    assert found["all"] == [(what, "loader (2 ranks)", 40 * MS) for what in ("busy", causes.MANY)]
    own = [(what, f"loader {4800 + rank}", 20 * MS) for what in ("busy", causes.MANY) for rank in range(2)]
    assert sorted(found["rank"]) == sorted(own)
    assert all(details), "each row has its NVTX ranges"
    assert "busy on loader (2 ranks) 47.6 %, many functions (each below 10 %) on loader (2 ranks) 47.6 %" in budget


WRAPPER = Frame("NSYS_OSRT_fwrite_1", "/opt/nsight-systems/libToolsInjection64.so")
SYNCHRONISES = Frame("cudaStreamSynchronize", "/usr/lib/libcudart.so.12")


@pytest.mark.parametrize(("called", "waits"), campaign.first(1, [([WRAPPER], 0), ([*DRIVER, SYNCHRONISES], 3 * MS)]))
def test_code_outside_of_calls_is_the_programs_not_the_profilers_nor_cudas(tmp_path, called, waits):
    with training(tmp_path / "a.sqlite") as (export, main_thread, _):
        export.on_cpu(main_thread, 0, 10 * MS, [*called, WORK, MAIN], cpu=3)
        if waits:
            export.api(main_thread, 3 * MS, 3 * MS + waits, "cudaStreamSynchronize_v3020", 99)
        launched(export, main_thread, (0, 1, 0, 2), (9, 10, 9, 10))
    with job_of(tmp_path / "a.sqlite") as job:
        found = causes_of(gaps_table(job, Selection(Window(0, 10 * MS))))
    assert found.pop((causes.SYNCHRONISING, "cudaStreamSynchronize", None, None), 0) == waits
    assert found == {(causes.RUNNING_CODE, "app::work", None, None): 7 * MS - waits}


def test_operations_around_a_gap_are_of_any_process_on_the_gpu(tmp_path):
    with ExportWriter(tmp_path / "a.sqlite") as out:
        out.gpu(0)
        for pid, name in enumerate(("left", "right"), 100):
            process = out.process(pid, "python3")
            out.cuda_device(process, 0, 0)
            for number in range(20):
                start = (2 * number + pid - 100) * 10 * MS
                out.kernel(process, 0, 7, start, start + 4 * MS, name=f"{name}()", correlation_id=number + 1)
    with job_of(out.path) as job:
        pairs = {(row["before"], row["after"]) for row in gaps_table(job, Selection(), "pair").records()}
    assert pairs == {("left", "right"), ("right", "left")}


@pytest.mark.campaign
def test_stacks_are_computed_once_for_all_selections_without_a_cache_too(tmp_path, monkeypatch):
    computed = []
    compute = stacks._stacks
    monkeypatch.setattr(stacks, "_stacks", lambda *of: computed.append(1) or compute(*of))
    with job_of(written(tmp_path / "a.sqlite")) as job:
        for window in (Window(0, 6 * MS), Window(0, 12 * MS)):
            assert functions_table(job, Selection(window)).rows
    assert len(computed) == 1


@pytest.mark.campaign
@pytest.mark.parametrize("selection", [Selection(), Selection(Window(3 * MS, 40 * MS))], ids=["all", "window"])
def test_threads_in_slices_of_their_calls_are_those_of_all_at_once(demo_job, selection, monkeypatch):
    def found() -> tuple[Sequence[Row], list[list[float]]]:
        with job_of(*demo_job[:2]) as job:
            job.session.tell = lambda computing: told.append(str(computing))
            table = threads_table(job, selection)
            row = table.records()[0]
            _, shares = thread_over_time(job, selection, Task(row["report"], row["process"]), row["tid"], 7)
            return table.rows, [share.tolist() for share in shares.values()]

    told: list[str] = []
    whole = found()
    assert whole[0] and not told
    monkeypatch.setattr(Limits, "rows_at_once", lambda limits, size: 300)
    rows, shares = found()
    assert told[1].startswith("threads: 300 of ")
    assert rows == whole[0]
    assert shares == [pytest.approx(share) for share in whole[1]]


@pytest.mark.campaign
def test_causes_are_computed_once_and_found_by_every_table(demo_job, tmp_path, monkeypatch):
    def tables(*paths: Path, cache: Cache | None = None) -> list[Sequence[Row]]:
        with job_of(*paths, cache=cache) as job:
            return [gaps_table(job, Selection(), by).rows for by in ("all", "length", "range")]

    of_two, of_one = tables(*demo_job[:2]), tables(demo_job[0])
    asked = Counter[bool]()
    monkeypatch.setattr(gaps, "attribute", lambda job, spans, of: asked.update([of]) or attribute(job, spans, of))
    cache = Cache(tmp_path / "cache")
    for _ in range(2):
        assert tables(*demo_job[:2], cache=cache) == of_two
        assert asked == {False: 1, True: 1}
    for _ in range(2):
        assert tables(demo_job[0], cache=cache) == of_one
        assert asked == {False: 2, True: 2}


@pytest.mark.parametrize("name", real("gemm-pageable", "cuda-graphs", "h100-2rank-moe-before"))
@pytest.mark.parametrize("by", ["all", "rank", "range"])
def test_gaps_in_portions_are_those_of_all_at_once(name, by, monkeypatch):
    (path,) = shared(name)

    def causes_of_longest_first(job: OpenJob) -> list[object]:
        idle = gaps.idle_time(job, Selection()).attribution
        found = attribute(job, sorted(idle.spans, key=lambda span: span.start - span.end), with_calls=by == "rank")
        return [(span, found.of_span(i), found.launchers[found.launcher[i]]) for i, span in enumerate(found.spans)]

    with job_of(path) as job:
        whole, by_length = gaps_table(job, Selection(), by), causes_of_longest_first(job)
    rows = 499 if name.startswith("h100") else 7
    monkeypatch.setattr(Limits, "rows_at_once", lambda limits, size: rows)
    few = 1 if rows == 7 else rows
    monkeypatch.setattr(attribution, "FEW", 0 if by == "all" else few)  # of at most FEW, only calls near them are read
    monkeypatch.setattr(gaps, "attribute_once", attribute)
    told: list[str] = []
    with job_of(path) as job:
        job.session.tell = lambda computing: told.append(str(computing))
        assert gaps_table(job, Selection(), by).rows == whole.rows
        assert causes_of_longest_first(job) == by_length
    assert re.fullmatch(r"causes of idle time: [1-9]\d* of [\d,]+ gaps", told[1]) and told[-1] == "None"
