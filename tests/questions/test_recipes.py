"""The recipes against sums of SQLite's rows, and against mistakes of NVIDIA's recipes."""

import math
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import campaign
import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from support import native, records, shared
from synthetic import ExportWriter, old_schema_export
from synthetic.writing.writer import BACKTRACE_CALL, DEVICE, PAGEABLE, PINNED

from nsystui.base.answer import Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection
from nsystui.questions.algebra.groups import Groups
from nsystui.questions.counters.network import mean_rate
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import MPI, work_instances
from nsystui.questions.kernels.summary import Names
from nsystui.questions.queries import statistics
from nsystui.questions.queries.question import ask, draw_map
from nsystui.questions.recipes import all_recipes, recipe_named, sums
from nsystui.questions.recipes.kernels import EDGES
from nsystui.questions.recipes.recipe import RecipeOptions
from nsystui.store.session import Session

BY_RANK = [recipe.name for recipe in all_recipes() if "by-rank" in recipe.takes and "mpi" not in recipe.name]
MILLISECOND = 1_000_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
EVERYTHING = Selection()

Row = dict[str, Any]


@pytest.fixture(scope="module")
def job(demo_session) -> OpenJob:
    """Return a job of four ranks on two hosts, which tests must not change."""
    return OpenJob(demo_session)


def table(job: OpenJob, recipe: str, selection: Selection = EVERYTHING, /, **options: Any) -> list[Row]:
    return records(ask(recipe_named(recipe), job, selection, RecipeOptions(**options)))


def notes(job: OpenJob, recipe: str, /, **options: Any) -> str:
    return " ".join(ask(recipe_named(recipe), job, EVERYTHING, RecipeOptions(**options)).notes)


def gaps(job: OpenJob, least: int, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in table(job, "gpu_gaps", gap=least)]


def written(path: Path, fill: Callable[[ExportWriter, Any, Any], None], schema: str = "3.25.0") -> Path:
    """Write an export of a process with one GPU, filled by a test."""
    with ExportWriter(path, schema) as export:
        export.gpu(0)
        process = on_gpu(export, 100)
        fill(export, process, export.thread(process, 100, "python"))
    return path


def on_gpu(export: ExportWriter, pid: int) -> Any:
    process = export.process(pid, "python")
    export.cuda_context(process)
    export.cuda_device(process, 0, 0)
    return process


@pytest.fixture
def job_of(opened, tmp_path) -> Callable[..., OpenJob]:
    return lambda fill: OpenJob(opened(written(tmp_path / "filled.sqlite", fill)))


def type_two(values: Sequence[int], share: float) -> float:
    return float(np.quantile(values, share, method="averaged_inverted_cdf"))


def by_name(paths: Sequence[Path], sql: str) -> dict[str, dict[int, list[int]]]:
    """Return the values of each name by rank, which is the number of the file here."""
    found: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, path in enumerate(paths):
        for name, value in native(path, sql):
            found[name][rank].append(value)
    return found


KERNELS = "SELECT s.value, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName"
SHORT = KERNELS.replace("demangledName", "shortName")
RANGES = "SELECT coalesce(text, s.value), end - start FROM NVTX_EVENTS LEFT JOIN StringIds s ON s.id = textId " + (
    "WHERE eventType IN (59, 60) AND coalesce(text, s.value) GLOB 'nccl[A-Z]*'"
)
SUMS = {
    "cuda_gpu_kern_sum": KERNELS,
    "osrt_sum": "SELECT s.value, end - start FROM OSRT_API JOIN StringIds s ON s.id = nameId WHERE eventClass = 27",
    "nccl_sum": RANGES,
}


class TestSums:
    @pytest.mark.parametrize("name", SUMS)
    def test_statistics_are_those_of_all_rows_of_all_ranks(self, job, demo_job, name):
        """NVIDIA's recipes print medians of the ranks' medians, their lowest first quartile and mean deviations."""
        expected, wrong = by_name(demo_job, SUMS[name]), set()
        found = table(job, name)
        assert {row["name"] for row in found} == set(expected)
        for row in found:
            ranks = expected[row["name"]]
            values = [value for own in ranks.values() for value in own]
            assert (row["count"], row["total"], row["median"]) == (len(values), sum(values), median(values))
            assert (row["q1"], row["q3"]) == (type_two(values, 0.25), type_two(values, 0.75))
            deviations = [np.std(own, ddof=1) if len(own) > 1 else 0.0 for own in (values, *ranks.values())]
            assert row["stddev"] == pytest.approx(deviations[0])
            assert (row["min"], row["max"]) == (min(values), max(values))
            assert min(values) in ranks[row["min_rank"]] and max(values) in ranks[row["max_rank"]]
            assert row["share"] == pytest.approx(100 * sum(values) / sum(one["total"] for one in found))
            theirs = {
                "median": median([median(own) for own in ranks.values()]),
                "q1": min(type_two(own, 0.25) for own in ranks.values()),
                "stddev": np.mean(deviations[1:]),
            }
            wrong |= {key for key, value in theirs.items() if row[key] != pytest.approx(value)}
        if name != "osrt_sum":
            assert wrong == {"median", "q1", "stddev"}

    @pytest.mark.campaign
    def test_each_rank_has_the_table_that_it_would_have_alone(self, job):
        last = job.ranks[-1]
        for name in BY_RANK:
            every = table(job, name, by_rank=True)
            assert {row["rank"] for row in every} == {item.rank for item in job.ranks}, name
            if "_pace" in name:
                continue
            alone = table(job, name, EVERYTHING.with_tasks(frozenset({last.task})))
            own = [row for row in every if row["rank"] == last.rank]
            keys = (own[0].keys() & alone[0].keys()) - {"rank"}
            assert [[row[key] for key in keys] for row in own] == [[row[key] for key in keys] for row in alone], name

    def test_calls_that_a_backtrace_wrote_twice_count_once(self, opened, tmp_path):
        path = old_schema_export(tmp_path / "doubles.sqlite")
        doubles = "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE eventClass = "
        assert native(path, doubles + str(BACKTRACE_CALL)) == [(40,)]
        assert sum(row["count"] for row in table(OpenJob(opened(path)), "cuda_api_sum")) == 40

    def test_an_extreme_of_a_process_that_is_no_rank_has_none(self, job_of):
        def fill(export, process, main):
            export.api(main, 0, 10, "cudaLaunchKernel", 1)
            export.kernel(process, 0, 7, 20, 30, name="k", correlation_id=1)
            helper = export.process(200, "helper")
            export.osrt(main, 0, 50, "read")
            export.osrt(export.thread(helper, 200, "helper"), 0, 900, "read")

        (row,) = table(job_of(fill), "osrt_sum")
        assert (row["count"], row["max"], row["max_rank"], row["min_rank"]) == (2, 900, None, 0)

    @pytest.mark.campaign
    def test_mpi_calls_may_be_nvtx_ranges_of_old_exports(self, opened, tmp_path):
        """A note names them; in a report with both forms, ranges are not counted as calls."""

        def old(export, process, thread):
            export.nvtx_domain(thread, 0, 3, "MPI")
            export.nvtx_range(thread, 0, 100, "step 0")
            for start in (10, 50):
                export.nvtx_range(thread, start, start + 20, "MPI_Send", domain_id=3)
            export.nvtx_range(thread, 80, 85, "MPI_Barrier", domain_id=4)  # the row that names 4 is missing
            export.nvtx_range(thread, 90, 95, "MPI_Mine")

        def both(export, process, thread):
            old(export, process, thread)
            export.mpi_p2p(thread, 12, 52, "MPI_Send", peer=1, size=8)

        written(tmp_path / "old.sqlite", old, "3.0.0")
        written(tmp_path / "both.sqlite", both)
        written(tmp_path / "none.sqlite", lambda *_: None)
        alone = OpenJob(opened(tmp_path / "old.sqlite"))
        found = {row["name"]: (row["count"], row["total"]) for row in table(alone, "mpi_sum")}
        assert found == {"MPI_Send": (2, 40), "MPI_Barrier": (1, 5)}
        assert "the MPI calls of old are NVTX ranges" in notes(alone, "mpi_sum")
        job = OpenJob(opened(*(tmp_path / f"{name}.sqlite" for name in ("old", "both", "none"))))
        sends, barrier = table(job, "mpi_sum")
        assert (sends["name"], sends["count"], sends["total"], sends["max"]) == ("MPI_Send", 3, 80, 40)
        assert barrier["name"] == "MPI_Barrier"
        assert [row["rank"] for row in table(job, "mpi_sum", by_rank=True)] == [0, 0, 1]
        assert "no MPI calls in none" in notes(job, "mpi_sum")
        (instance, *_) = records(work_instances(job.session, EVERYTHING, MPI, "MPI_Send", job.ranks))
        assert (instance["start"], instance["duration"], instance["bytes"]) == (10, 20, None)

    @pytest.mark.campaign
    def test_projected_ranges_have_the_quartiles_of_their_trace(self, job):
        spans: dict[tuple[str, str], list[int]] = defaultdict(list)
        ranks: dict[tuple[str, str, int], set[int]] = defaultdict(set)
        for row in table(job, "nvtx_gpu_proj_trace"):
            if row["name"] is not None:
                key = (row["style"], row["name"])
                spans[key].append(row["gpu_duration"])
                ranks[(*key, row["gpu_duration"])].add(row["rank"])
        found = table(job, "nvtx_gpu_proj_sum")
        assert len(found) == len(spans)
        for row in found:
            key = (row["style"], row["name"])
            assert (row["q1"], row["q3"]) == (type_two(spans[key], 0.25), type_two(spans[key], 0.75))
            assert row["max_rank"] == min(ranks[(*key, row["max"])])


@pytest.mark.campaign
@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=9), min_size=1, max_size=6))
def test_quartiles_are_those_of_nsys_in_sql_and_in_memory(demo_session, lists):
    pairs = [(group, value) for group, own in enumerate(lists) for value in own]
    columns = (sa.column("g", sa.BigInteger), sa.column("v", sa.BigInteger))
    given = sa.values(*columns, name="given").data(pairs)
    # DuckDB gives small numbers in a statement 32 bits; columns of times have 64.
    values = sa.select(given.c.g, sa.cast(given.c.v, sa.BigInteger).label("v")).subquery()
    query = sa.select(values.c.g, *statistics.quartiles(values.c.v)).group_by(values.c.g).order_by(values.c.g)
    expected = [(type_two(own, 0.25), type_two(own, 0.75)) for own in lists]
    assert [(q1, q3) for _, q1, q3 in demo_session.rows(query)] == expected
    found = Groups.of(*(np.array(column, np.int64) for column in zip(*pairs, strict=True))).measures()
    assert list(zip(found["q1"], found["q3"], strict=True)) == expected


@pytest.mark.parametrize("name", ["cuda_gpu_kern_sum", "cuda_gpu_mem_size_sum", "nvtx_sum"])
@pytest.mark.parametrize("has_distinct_hashes", campaign.first(1, [False, True]))
def test_the_quartiles_of_many_rows_are_those_of_few(job, monkeypatch, name, has_distinct_hashes):
    usual = table(job, name)
    monkeypatch.setattr(sums, "_MANY", 0)
    if not has_distinct_hashes:
        monkeypatch.setattr(sums, "group_number", lambda keys: sa.literal(7, sa.BigInteger))
    assert table(job, name) == usual and all(row["q1"] is not None for row in usual)


class TestNcclOnTheGpu:
    @pytest.mark.campaign
    def test_grouped_calls_have_the_time_of_their_kernels(self, job, demo_job):
        expected: dict[str, int] = defaultdict(int)
        for name, ranks in by_name(demo_job, SHORT).items():
            if name.startswith("nccl"):
                expected[name.split("_")[1]] += sum(map(sum, ranks.values()))
        found = {row["name"]: row for row in table(job, "nccl_gpu_proj_sum")}
        assert {name: row["total"] for name, row in found.items()} == expected
        # NVIDIA's recipe projects the same calls as a range:
        naive = {row["name"]: row for row in table(job, "nvtx_gpu_proj_sum") if row["name"].startswith("NCCL:")}
        assert "NCCL:ncclGroupEnd" in naive and "NCCL:ncclAllReduce" not in naive
        assert "ncclGroupEnd" not in found and found["AllReduce"]["count"] > 0

    @pytest.mark.campaign
    def test_overlap_is_that_of_sets_of_time(self, job_of):
        """Two NCCL kernels and four other kernels, one of them of another process with the same times."""
        compute, nccl = [(0, 40), (30, 60), (100, 110)], [(20, 50), (45, 70)]

        def fill(export, process, _):
            for number, (start, end) in enumerate(compute):
                export.kernel(process, 0, 7 + number, start, end, name="gemm", correlation_id=number)
            for number, (start, end) in enumerate(nccl, 10):
                export.kernel(process, 0, 20 + number, start, end, name=ALL_REDUCE, correlation_id=number)
            export.kernel(export.process(200, "python"), 0, 7, 0, 200, name="other", correlation_id=1)

        def beside(own: list[tuple[int, int]], others: list[tuple[int, int]]) -> int:
            moments = {moment for start, end in others for moment in range(start, end)}
            return sum(moment in moments for start, end in own for moment in range(start, end))

        found = {row["name"]: row for row in table(job_of(fill), "nccl_gpu_overlap_trace")}
        assert (found["gemm"]["overlap"], found["gemm"]["kind"]) == (beside(compute, nccl), "compute")
        assert found[ALL_REDUCE]["overlap"] == beside(nccl, compute)
        assert found[ALL_REDUCE]["alone"] == found[ALL_REDUCE]["total"] - found[ALL_REDUCE]["overlap"]
        assert found["other"]["overlap"] == 0

    def test_what_nothing_hides_is_what_the_nccl_table_says(self, job):
        alone = [row["alone"] for row in table(job, "nccl_gpu_overlap_trace") if row["kind"] == "communication"]
        assert sum(alone) == job.pairing().kernels["exposed"].sum() > 0


class TestRules:
    def test_synchronisations_are_all_there_longest_first(self, job, demo_job):
        sql = (
            "SELECT end - start FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds s ON s.id = nameId "
            "WHERE s.value LIKE 'cudaDeviceSynchronize%' OR s.value LIKE 'cudaStreamSynchronize%'"
        )
        expected = sorted((value for path in demo_job for (value,) in native(path, sql)), reverse=True)
        assert [row["duration"] for row in table(job, "cuda_api_sync")] == expected

    def test_calls_of_another_process_with_the_same_correlation_id_are_none(self, opened, tmp_path):
        """Two processes with the same ids; only one makes bad copies.

        NVIDIA's rules join by correlation id alone, and so also find calls of the other process.
        """

        def fill(export, process, main):
            other = on_gpu(export, 200)
            good = ("cudaMemcpyAsync", "cudaMemcpyAsync", "cudaMemsetAsync")
            bad = ("cudaMemcpy_v3020", "cudaMemcpyAsync_v3020", "cudaMemset_v3020")
            thread = export.thread(other, 200, "python")
            for own, caller, names, kind, begin in (
                (process, main, good, PINNED, 0),
                (other, thread, bad, PAGEABLE, 500),
            ):
                for number, name in enumerate(names, 1):
                    export.api(caller, begin + 10 * number, begin + 10 * number + 5, name, number)
                told = {"size": 100_000, "kind": "HtoD", "source": kind, "destination": DEVICE}
                for number in (1, 2):
                    at = begin + 1000 * number
                    export.memcpy(own, 0, 7, at, at + 100 * number, correlation_id=number, **told)
                export.memset(own, 0, 7, begin + 5000, begin + 5040, size=64, correlation_id=3, memory=PINNED)

        path = written(tmp_path / "copies.sqlite", fill)
        job = OpenJob(opened(path))
        by_pid = {(item.task.process >> 24) & 0xFFFFFF: item.rank for item in job.ranks}
        found = {name: table(job, name) for name in ("cuda_memcpy_sync", "cuda_memcpy_async", "cuda_memset_sync")}
        assert [[row["rank"] for row in own] for own in found.values()] == [[by_pid[200]]] * 3
        naive = native(
            path,
            "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_MEMCPY m JOIN CUPTI_ACTIVITY_KIND_RUNTIME r "
            "ON r.correlationId = m.correlationId JOIN StringIds s ON s.id = r.nameId "
            "WHERE s.value LIKE 'cudaMemcpy%' AND s.value NOT LIKE '%Async%'",
        )
        assert naive == [(2,)]
        (row,) = found["cuda_memcpy_async"]
        told = tuple(row[key] for key in ("duration", "bytes", "source_memory", "name"))
        assert told == (200, 100_000, "Pageable", "cudaMemcpyAsync")

    @pytest.mark.campaign
    def test_gaps_are_those_of_the_union_of_all_work(self, job_of):
        def fill(export, process, _):
            for number, (start, end) in enumerate([(0, 30), (10, 20), (100, 130), (131, 140), (400, 410)]):
                export.kernel(process, 0, 7 + number, start, end, name="k", correlation_id=number)
            export.memset(process, 0, 30, 60, 70, size=8, correlation_id=50)
            export.graph_launch(process, 0, 31, 200, 380, graph_id=1, graph_exec_id=1, correlation_id=51)

        job = job_of(fill)
        assert gaps(job, 15, "start", "duration") == [(140, 60), (30, 30), (70, 30), (380, 20)]
        assert gaps(job, 30, "duration") == [(60,)]
        assert table(job, "gpu_gaps") == []

    def test_a_gap_that_the_profiler_made_is_listed_as_nsys_has_it(self, opened, shared_export):
        job = OpenJob(opened(shared_export("ddp-a100-rank0of4")))
        assert gaps(job, 5 * MILLISECOND, "duration", "start") == [(11_183_795, 1_822_597_346)]

    def test_operations_side_by_side_do_not_make_a_gpu_busier_than_it_is(self, job_of):
        """Two streams, both busy in the first half of each part: their sum would be 100 %."""

        def fill(export, process, _):
            for number, stream in product(range(20), (7, 8)):
                place = (process, 0, stream, 100 * number, 100 * number + (100 if number >= 18 else 50))
                export.kernel(*place, name="k", correlation_id=2 * number + stream)

        job = job_of(fill)
        (row,) = table(job, "gpu_time_util", threshold=60, chunks=20)
        assert (row["start"], row["duration"], row["busy_percent"]) == (0, 1800, 50.0)
        assert table(job, "gpu_time_util", threshold=50, chunks=20) == []


class TestPaces:
    def test_deltas_are_from_the_end_of_the_one_before_and_the_first_has_none(self, job, demo_job):
        name = max(by_name(demo_job, SHORT).items(), key=lambda item: sum(map(sum, item[1].values())))[0]
        sql = "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds s ON s.id = shortName WHERE value = ? "
        found = table(job, "cuda_gpu_kern_pace", names=Names.SHORT, by_rank=True)
        for rank, path in enumerate(demo_job):
            spans = native(path, sql + "ORDER BY start, end", (name,))
            own = [row for row in found if row["rank"] == rank]
            deltas = [None, *(start - end for (_, end), (start, _) in pairwise(spans))]
            assert [row["delta"] for row in own] == deltas
            assert [row["duration"] for row in own] == [end - start for start, end in spans]
            assert own[-1]["duration_sum"] == sum(end - start for start, end in spans)
            assert own[-1]["delta_sum"] == sum(delta for delta in deltas if delta is not None)
        assert name in notes(job, "cuda_gpu_kern_pace", names=Names.SHORT)

    def test_an_iteration_is_compared_across_ranks(self, job):
        every = table(job, "nvtx_pace", by_rank=True)
        across = table(job, "nvtx_pace")
        assert [row["iteration"] for row in across] == list(range(3))
        for row in across:
            own = [one for one in every if one["iteration"] == row["iteration"]]
            durations = [one["duration"] for one in own]
            assert (row["ranks"], row["max"], row["median"]) == (4, max(durations), median(durations))
            assert row["slowest"] in [one["rank"] for one in own if one["duration"] == row["max"]]
            deltas = [one["delta"] for one in own if one["delta"] is not None]
            assert row["delta_avg"] == (pytest.approx(np.mean(deltas)) if deltas else None)
        assert across[0]["delta_median"] is None

    @pytest.mark.campaign
    def test_a_kernel_is_found_by_any_of_its_names(self, job, demo_job):
        sql = (
            "SELECT f.value, s.value, m.value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds f ON f.id = demangledName "
            "JOIN StringIds s ON s.id = shortName JOIN StringIds m ON m.id = mangledName "
            "WHERE s.value LIKE 'ncclDevKernel_AllReduce%'"
        )
        full, short, mangled = native(demo_job[0], sql)[0]
        assert len({full, short, mangled}) == 3
        for recipe, names in (*product(["cuda_gpu_kern_pace"], Names), ("cuda_gpu_kern_hist", Names.FULL)):
            found = [table(job, recipe, name=one, names=names) for one in (full, short, mangled)]
            assert found[0] and found[0] == found[1] == found[2], (recipe, names)
        said = {names: notes(job, "cuda_gpu_kern_pace", name=short, names=names) for names in (Names.FULL, Names.SHORT)}
        assert f"shows {short} (the short name of 1 kernel)" in said[Names.FULL]
        assert f"shows {short}" in said[Names.SHORT] and "the short name" not in said[Names.SHORT]

    def test_one_rank_without_the_kernel_does_not_hide_those_of_the_others(self, opened, tmp_path):
        def fill(name):
            return lambda export, process, _: export.kernel(process, 0, 7, 0, 10, name=name, correlation_id=1)

        paths = [written(tmp_path / f"rank{number}.sqlite", fill(name)) for number, name in enumerate(("a()", "b()"))]
        found = table(OpenJob(opened(*paths)), "cuda_gpu_kern_hist", name="b()", by_rank=True)
        assert [(row["rank"], row["name"], row["count"]) for row in found] == [(1, "b()", 1)]

    def test_a_text_of_several_domains_needs_its_domain(self, job_of):
        def fill(export, _, thread):
            for number, domain in enumerate(("left", "right"), 1):
                export.nvtx_domain(thread, 0, number, domain)
                export.nvtx_range(thread, 100 * number, 100 * number + 10, "load 1", domain_id=number)
            export.nvtx_range(thread, 500, 550, "alone")

        job = job_of(fill)
        for name in ("load 1", "load *"):
            with pytest.raises(UsageError, match=f"left:{name}, right:{name}".replace("*", "[*]")):
                table(job, "nvtx_pace", name=name)
        assert [row["start"] for row in table(job, "nvtx_pace", name="right:load *")] == [200]


class TestHistogram:
    def test_every_launch_is_in_the_class_of_its_duration(self, job, demo_job):
        found = table(job, "cuda_gpu_kern_hist")
        for name, ranks in by_name(demo_job, KERNELS).items():
            counts, _ = np.histogram([value for own in ranks.values() for value in own], bins=[*EDGES, 10**15])
            own = {row["low"]: row["count"] for row in found if row["name"] == name}
            assert own == {edge: count for edge, count in zip(EDGES, counts.tolist(), strict=True) if count}
        (one,) = {row["name"] for row in table(job, "cuda_gpu_kern_hist", name=found[0]["name"])}
        assert one == found[0]["name"]


def scene(path: Path) -> Path:
    """Write kernels in [1, 3) and [5, 6) ms, two NCCL kernels of a group in [2, 4), a copy in [7, 8), a graph in
    [8, 9), MPI in [2, 5), UCX in [0, 1), [2.5, 3) and [9, 10), and metrics.
    """

    def fill(export, process, main):
        def at(*times: float) -> list[int]:
            return [round(time * MILLISECOND) for time in times]

        for number, (start, end) in enumerate(((1, 3), (5, 6)), 1):
            export.kernel(process, 0, 7, *at(start, end), name="gemm", correlation_id=number)
        for number in (3, 4):
            export.kernel(process, 0, 10 + number, *at(2, 4), name=ALL_REDUCE, correlation_id=number)
        export.memcpy(process, 0, 7, *at(7, 8), size=10, kind="HtoD", correlation_id=5, source=PINNED)
        export.graph_launch(process, 0, 7, *at(8, 9), graph_id=1, graph_exec_id=1, correlation_id=6)
        export.mpi_other(main, *at(2, 5), "MPI_Barrier")
        export.ucx(main, *at(0, 1), "ucp_init")
        export.ucx_submit(main, *at(2.5, 3), "ucp_tag_send_nbx", size=8)
        export.ucx(main, at(9)[0], None, "ucp_worker_progress")
        export.nvtx_range(main, 0, 10 * MILLISECOND, "all")
        export.nic(0, "mlx5_0", [("IB: Bytes sent", "bytes/ms"), ("IB: Bytes received", "bytes/ms")])
        export.nic_metric(0, *at(0, 2), (100, 7))
        export.nic_metric(0, *at(2, 4), (300, 9))
        export.gpu_metric_names(0, ("SMs Active [Throughput %]", "Tensor Active [Throughput %]"))
        for number in range(10):
            export.gpu_metric(0, number * MILLISECOND, (10 * number, 200 if number == 9 else -5))

    return written(path, fill)


@pytest.fixture(scope="module")
def scene_job(tmp_path_factory):
    session = Session()
    session.add(scene(tmp_path_factory.mktemp("scene") / "scene.sqlite"))
    yield OpenJob(session)
    session.close()


class TestMaps:
    @pytest.mark.parametrize(("name", "key", "expected"), [
        ("cuda_gpu_time_util_map", "busy_percent", [0, 100, 100, 100, 0, 100, 0, 100, 100, 0]),
        ("cuda_gpu_time_util_map", "busy_percent", [50, 100, 50, 50, 50]),
        ("cuda_gpu_time_util_map", "all_percent", [0, 100, 100, 100, 0, 100, 0, 0, 0, 0]),
        # No kernel of a group of two has the times of the projected range, so NVIDIA's recipe counts them as compute.
        ("nccl_gpu_time_util_map", "nccl_percent", [0, 0, 100, 100, 0, 0, 0, 0, 0, 0]),
        ("nccl_gpu_time_util_map", "compute_percent", [0, 100, 100, 0, 0, 100, 0, 0, 0, 0]),
        ("nccl_gpu_time_util_map", "all_percent", [0, 100, 100, 100, 0, 100, 0, 0, 0, 0]),
        ("mpi_gpu_time_util_map", "mpi_percent", [0, 0, 100, 100, 100, 0, 0, 0, 0, 0]),
        ("mpi_gpu_time_util_map", "overlap_percent", [0, 0, 100, 100, 0, 0, 0, 0, 0, 0]),
        ("ucx_gpu_time_util_map", "ucx_percent", [100, 0, 50, 0, 0, 0, 0, 0, 0, 100]),
        ("ucx_gpu_time_util_map", "overlap_percent", [0, 0, 50, 0, 0, 0, 0, 0, 0, 0]),
        # Means of samples, without glitches.
        ("gpu_metric_util_map", "sm_active", [5, 25, 45, 65, 85]),
        ("gpu_metric_util_map", "tensor_active", [0, 0, 0, 0, 50]),
        ("gpu_metric_util_map", "sm_issue", [None] * 5),
        # NVIDIA's recipe of 2023.4 swaps sent and received.
        ("network_traffic_map", "sent", [1e5, 3e5, None, None, None]),
        ("network_traffic_map", "received", [7e3, 9e3, None, None, None]),
        ("network_traffic_map", "sent", [2e5, None]),
    ])  # fmt: skip
    def test_each_column_of_a_map_is_what_ran_in_its_time(self, scene_job, name, key, expected):
        assert [row[key] for row in table(scene_job, name, bins=len(expected))] == expected

    def test_the_mean_of_a_map_is_that_of_what_was_sampled_however_it_is_cut(self, scene_job):
        """Two samples of equal length, 1e5 and 3e5 bytes/s: a bin weighs by its sampled part."""
        for bins in (1, 3, 4, 5, 7):
            drawn = draw_map(recipe_named("network_traffic_map"), scene_job, EVERYTHING, RecipeOptions(bins=bins))
            assert [drawn.lines[0].mean(number) for number in (0, 1)] == pytest.approx([8e3, 2e5]), bins
            assert [figure.column.unit for figure in drawn.figures] == [Unit.RATE, Unit.RATE, Unit.TICK_RATE]
            assert np.nanmax(drawn.shares(1)) == 1.0, bins


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-20, 60), st.integers(1, 20), st.integers(0, 50)), max_size=8),
    st.integers(-10, 20), st.integers(1, 50), st.integers(1, 7),
)  # fmt: skip
def test_a_mean_rate_is_that_of_its_samples_moment_by_moment(samples, lo, width, bins):
    starts, lengths, values = (np.array([one[place] for one in samples], np.int64) for place in range(3))
    found = mean_rate(starts, starts + lengths, values.astype(float), lo, lo + width * bins, bins)
    for number in range(bins):
        moments = range(lo + number * width, lo + (number + 1) * width)
        rates = [[v for s, n, v in samples if s <= moment < s + n] for moment in moments]
        sampled = [sum(own) for own in rates if own]
        assert found[number] == pytest.approx(sum(sampled) / len(sampled) if sampled else math.nan, nan_ok=True)


@pytest.mark.campaign
def test_ranks_are_those_of_the_job_and_not_the_order_of_names(opened, demo_job, tmp_path):
    """NVIDIA's recipes number the sorted names, so that `a` would be rank 0."""
    for name, rank in (("a", 3), ("b", 0)):
        shutil.copy(demo_job[rank], tmp_path / f"{name}.sqlite")
    found = table(OpenJob(opened(tmp_path / "a.sqlite", tmp_path / "b.sqlite")), "cuda_gpu_kern_sum", by_rank=True)
    for name, rank in (("a", 3), ("b", 0)):
        total = native(tmp_path / f"{name}.sqlite", "SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL")
        assert [(sum(row["total"] for row in found if row["rank"] == rank),)] == total


def test_two_ranks_of_one_report_are_two_ranks(opened):
    (path,) = shared("h100-2rank-moe-before")
    job = OpenJob(opened(path))
    found = table(job, "cuda_gpu_kern_sum", by_rank=True)
    expected = dict(native(path, "SELECT globalPid, sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1"))
    assert {item.rank: expected[item.task.process] for item in job.ranks} == {
        rank: sum(row["total"] for row in found if row["rank"] == rank) for rank in (0, 1)
    }
    lines = draw_map(recipe_named("nccl_gpu_time_util_map"), job, EVERYTHING).lines
    assert [line.key for line in lines] == [(0, 0), (1, 1)] or len(lines) == 2


def test_a_grouped_all_reduce_of_a_real_export_has_its_time(opened):
    """nsys 2023.4 gives ``NCCL:ncclGroupEnd`` 472 instances and 292,789,300 ns, and ``ncclAllReduce`` no row."""
    (path,) = shared("ddp-a100-rank0of4")
    (row,) = table(OpenJob(opened(path)), "nccl_gpu_proj_sum")
    assert (row["name"], row["count"], row["total"]) == ("AllReduce", 472, 292_789_300)
