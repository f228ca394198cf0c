"""The kernel summary and related tables, against a plain recomputation."""

import random
import statistics
from contextlib import closing
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
import synthetic
from support import edit, native, records, session_over
from synthetic import ExportWriter

from nsystui.base.kernel_families import COPY, NCCL, OTHER, family_of, precision_of
from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import MEMORY, MPI, memory_sizes, work_instances, work_summary
from nsystui.questions.kernels.summary import GroupBy, Names, durations, group_by_of, kernel_instances, kernel_summary
from nsystui.questions.queries.tasks import ranked_tasks
from nsystui.questions.steps.kernels_in_steps import kernels_in_steps
from nsystui.store import tables
from nsystui.store.session import Session

EVERYTHING = Selection()


@pytest.fixture(scope="module")
def chance(tmp_path_factory):
    """Two reports of random kernels: many names, streams and shapes, some without a call or a correlation id."""
    place = tmp_path_factory.mktemp("chance")
    dice = random.Random(7)
    names = [f"void kernel_{number}<(int){number}>(float *)" for number in range(12)] + ["ncclDevKernel_X(int)"]
    for number in range(2):
        with ExportWriter(place / f"rank{number}.sqlite") as export:
            export.gpu(0)
            process = export.process(5_000 + number)
            main = export.thread(process, process.pid, "main")
            for correlation in range(400):
                start = dice.randrange(1_000, 1_000_000)
                export.kernel(
                    process, dice.choice([0, 1]), dice.choice([7, 13, 20]), start,
                    start + dice.choice([0, 1, 10, dice.randrange(100_000)]), name=dice.choice(names),
                    mangled=dice.choice([None, "_Z6kernel"]),
                    grid=(dice.choice([1, 1024, 123_456]), 1, dice.choice([1, 2])),
                    block=(dice.choice([32, 128]), 1, 1),
                    correlation_id=None if dice.random() < 0.05 else correlation,
                )  # fmt: skip
                if dice.random() < 0.9:
                    call = start - dice.randrange(-500, 5_000)
                    export.api(main, call, call + 100, "cudaLaunchKernel_v7000", correlation)
    with closing(session_over(*sorted(place.iterdir()))) as session:
        yield session


def frame_of(session: Session) -> pd.DataFrame:
    """Return every kernel with its duration, stream and shape, from the store."""
    frame = session.frame(sa.select(tables.kernels))
    frame["duration"] = frame["end"] - frame["start"]
    for what in ("grid", "block"):
        sizes = zip(*(frame[f"{what}_{axis}"] for axis in "xyz"), strict=True)
        frame[what] = [f"{x:4d} {y:4d} {z:4d}" for x, y, z in sizes]
    return frame


STATISTICS = ("share", "total", "count", "avg", "median", "min", "max", "stddev")


def expected_summary(frame: pd.DataFrame, keys: list[str]) -> dict[tuple[Any, ...], dict[str, float]]:
    """Return the statistics of nsys by their definitions (docs/numbers.md#statistics), group by group."""
    whole, found = float(frame["duration"].sum()), {}
    for key, group in frame.groupby(keys, dropna=False):
        values = group["duration"].astype("int64").tolist()
        total, count = sum(values), len(values)
        first = [100 * total / whole, total, count, total / count, statistics.median(values), min(values), max(values)]
        deviation = statistics.stdev(values) if count > 1 else 0.0
        found[key] = dict(zip(STATISTICS, [*first, deviation], strict=True))
    return found


def assert_summary(answer: Any, frame: pd.DataFrame, columns: dict[str, str]) -> None:
    """Check that ``answer`` has the groups of ``frame``; ``columns`` maps columns of the answer to the frame's."""
    expected = expected_summary(frame, list(columns.values()))
    found = {tuple(record[name] for name in columns): record for record in records(answer)}
    assert found.keys() == expected.keys()
    for key, wanted in expected.items():
        assert {name: found[key][name] for name in STATISTICS} == pytest.approx(wanted), key
    totals = [record["total"] for record in records(answer)]
    assert totals == sorted(totals, reverse=True)


class TestSummary:
    @pytest.mark.campaign
    def test_every_number_is_what_nsys_defines(self, chance):
        frame = frame_of(chance)
        frame["mangled_or_full"] = frame.mangled_name.fillna(frame.name)
        for names, column in {Names.FULL: "name", Names.SHORT: "short_name", Names.MANGLED: "mangled_or_full"}.items():
            assert_summary(kernel_summary(chance, EVERYTHING, names), frame, {"name": column})

    @pytest.mark.parametrize("columns", ["rank", "device", "stream", "grid block", "stream rank device"])
    def test_groups_split_the_rows(self, chance, columns):
        ranks, frame = ranked_tasks(chance), frame_of(chance)
        number = {(item.task.report, item.task.process): item.rank for item in ranks}
        frame["rank"] = [number[place] for place in zip(frame.report, frame.process, strict=True)]
        groups = (GroupBy.SHAPE,) if columns == "grid block" else tuple(map(GroupBy, columns.split()))
        answer = kernel_summary(chance, EVERYTHING, Names.SHORT, groups, ranks)
        assert_summary(answer, frame, {**{column: column for column in columns.split()}, "name": "short_name"})

    def test_families_of_steps_are_those_launched_in_them_by_any_thread(self, tmp_path):
        """PyTorch's backward pass is launched by a thread without the step's range."""
        dice, path, expected = random.Random(11), tmp_path / "rank0.sqlite", {}
        names = {"ampere_sgemm_128x64_nn(float *)": "GEMM", "flash_fwd_kernel(float *)": "attention"}
        with ExportWriter(path) as export:
            process = export.process(5_000, "python")
            threads = [export.thread(process, tid, "python") for tid in (5_000, 5_001)]
            for number in range(5):
                export.nvtx_range(threads[0], 10_000 * number, 10_000 * number + 9_000, f"step {number}")
            for correlation in range(300):
                launch, length = dice.randrange(50_000), dice.randrange(1, 500)
                start, name = launch + dice.randrange(20_000), dice.choice([*names])
                export.api(dice.choice(threads), launch, launch + 10, "cudaLaunchKernel_v7000", correlation)
                export.kernel(process, 0, 7, start, start + length, name=name, correlation_id=correlation)
                step = launch // 10_000 if launch % 10_000 < 9_000 else None
                expected.setdefault(step, {}).setdefault(names[name], []).append(length)
        with closing(OpenJob(session_over(path))) as job:
            answer = kernels_in_steps(job, EVERYTHING, job.steps(), group_by=(GroupBy.STEP, GroupBy.FAMILY))
            found = records(answer)
        assert [row["step"] for row in found] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, None, None]
        for row in found:
            own = expected[row["step"]]
            lengths = own[row["family"]]
            assert (row["total"], row["count"], row["median"]) == (sum(lengths), len(lengths), np.median(lengths))
            assert row["share"] == pytest.approx(100 * sum(lengths) / sum(map(sum, own.values())))
        assert any("steps are the NVTX ranges `step *`" in note for note in answer.notes)

    def test_families_are_in_place_of_names(self, chance):
        frame = frame_of(chance)
        own = ((COPY, "kernel_[1-3]<"),)
        frame["family"] = [family_of(name, own) for name in frame.name]
        assert set(frame.family) == {COPY, NCCL, OTHER}
        for groups in ((GroupBy.FAMILY,), (GroupBy.FAMILY, GroupBy.DEVICE)):
            answer = kernel_summary(chance, EVERYTHING, Names.SMART, groups, families=own)
            assert_summary(answer, frame, {group.value: group.value for group in groups})

    def test_the_kernels_of_a_family_or_precision(self, chance):
        frame = frame_of(chance)
        for only in (NCCL, OTHER, "FP32"):
            chosen = frame[[only in (family_of(name), precision_of(name)) for name in frame.name]]
            answer = kernel_summary(chance, EVERYTHING, Names.FULL, only=only)
            assert_summary(answer, chosen, {"name": "name"})
            assert answer.total == frame.name.nunique()
        totals = frame.duration.groupby(frame.name.str.startswith("nccl")).sum()
        answer = kernel_summary(chance, EVERYTHING, Names.SMART, (GroupBy.PRECISION,))
        found = {row["precision"]: row["total"] for row in records(answer)}
        assert found == {"FP32": totals[False], None: totals[True]}, "what tells no precision has a row of its own"
        for row in records(kernel_summary(chance, EVERYTHING, Names.SMART)):
            assert (row["family"], row["precision"]) == (family_of(row["name"]), precision_of(row["name"]))

    @pytest.mark.parametrize("selection", [
        Selection(window=Window(200_000, 300_000)),
        Selection(name=NameFilter("kernel_1")),
        Selection(name=NameFilter("!/kernel_[0-5]/"), devices=frozenset({1})),
        Selection(streams=frozenset({7, 20}), window=Window(0, 500_000)),
    ])  # fmt: skip
    def test_a_selection_narrows_every_number(self, chance, selection):
        frame = frame_of(chance)
        if selection.window:
            low, high = selection.window.start, selection.window.end
            frame = frame[(frame.start < high) & ((frame.start >= low) | (frame.end > low))]
        if selection.devices:
            frame = frame[frame.device.isin(selection.devices)]
        if selection.streams:
            frame = frame[frame.stream.isin(selection.streams)]
        if selection.name:
            frame = frame[[selection.name.matches(name) for name in frame.short_name]]
        answer = kernel_summary(chance, selection, Names.SHORT)
        assert_summary(answer, frame, {"name": "short_name"})
        assert answer.total == frame_of(chance).short_name.nunique()

    def test_a_selection_of_nothing_is_an_empty_table(self, chance):
        answer = kernel_summary(chance, Selection(window=Window(10**12, 10**12)), Names.SHORT)
        assert (len(answer), answer.rows, answer.total, answer.notes) == (0, [], 13, ())

    @pytest.mark.parametrize(("kernels", "rows"), [
        ([("b", 0, 10), ("c", 100, 110), ("a", 200, 210)], [(10, 1, "a"), (10, 1, "b"), (10, 1, "c")]),  # as nsys
        ([("a", 0, 2**53 + 1), ("a", 1, 2**53 + 2)], [(2**54 + 2, 2, "a")]),  # summed exactly
        ([("a", 5, 5)], [(0, 1, "a")]),  # no length: no share
    ])  # fmt: skip
    def test_totals_at_the_edges_of_numbers(self, tmp_path, session, kernels, rows):
        with ExportWriter(tmp_path / "edge.sqlite") as export:
            process = export.process(5_000)
            for number, (name, start, end) in enumerate(kernels):
                export.kernel(process, 0, 7, start, end, name=name, correlation_id=number)
        session.add(tmp_path / "edge.sqlite")
        found = kernel_summary(session, EVERYTHING).rows
        assert [(row[1], row[2], row[-1]) for row in found] == rows
        assert found[0][1] or found == [(0.0, 0, 1, 0.0, 0.0, 0, 0, 0.0, "a")]

    def test_a_process_that_is_no_task_has_no_rank_which_comes_last_either_way(self, chance):
        answer = kernel_summary(chance, EVERYTHING, Names.SHORT, (GroupBy.RANK,), ranked_tasks(chance)[:1])
        for descending in (True, False):
            ranks = [record["rank"] for record in records(answer.sorted_by("rank", descending))]
            assert ranks == [0] * ranks.count(0) + [None] * ranks.count(None) and {*ranks} == {0, None}

    def test_words_for_groups(self):
        assert group_by_of("rank, stream,") == (GroupBy.RANK, GroupBy.STREAM)
        assert group_by_of("rank,rank,device,rank") == (GroupBy.RANK, GroupBy.DEVICE)
        assert group_by_of("") == ()


class TestInstances:
    def delays(self, session: Session) -> pd.DataFrame:
        """Return every kernel with its launch delay, joined by a dictionary."""
        calls, frame = session.frame(sa.select(tables.api_calls)), frame_of(session)
        started = {(call.report, call.process, call.correlation_id): call.start for call in calls.itertuples()}
        found = []
        for row in frame.itertuples():
            key = row.report, row.process, row.correlation_id
            found.append(None if pd.isna(key[-1]) or key not in started else max(row.start - started[key], 0))
        frame["delay"] = found
        return frame

    def test_they_are_the_kernels_of_that_name_with_the_delays_of_their_calls(self, chance):
        name = "kernel_3"
        frame = self.delays(chance)
        frame = frame[frame.short_name == name]
        answer = kernel_instances(chance, EVERYTHING, name, Names.SHORT, ranked_tasks(chance))
        found = {(record["report"], record["row"]): record for record in records(answer)}
        assert len(answer) == answer.total == len(found) == len(frame)
        for row in frame.itertuples():
            record = found[row.report, row.row]
            assert (record["duration"], record["rank"]) == (row.duration, row.report)
            assert record["launch_delay"] == (None if pd.isna(row.delay) else row.delay)
            assert record["grid"] == f"{row.grid_x}·{row.grid_y}·{row.grid_z}"
        assert 0 < [one["launch_delay"] for one in found.values()].count(None) < len(frame)

    @pytest.mark.campaign
    def test_two_calls_of_one_correlation_id_do_not_double_a_kernel(self, tmp_path, session):
        path = synthetic.two_process_export(tmp_path / "two.sqlite")
        edit(
            path,
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT start + 1, end - 1, 1, globalTid, correlationId, nameId, "
            "returnValue, callchainId FROM CUPTI_ACTIVITY_KIND_RUNTIME",
        )
        session.add(path)
        name = kernel_summary(session, EVERYTHING, Names.SHORT).rows[0][-1]
        answer = kernel_instances(session, EVERYTHING, name, Names.SHORT)
        assert len(answer.page(0, 1_000)) == len(answer)
        assert {record["launch_delay"] for record in records(answer)} == {20_000}

    @pytest.mark.campaign
    def test_launches_before_the_capture_have_no_delay_and_none_is_below_zero(self, tmp_path, session):
        session.add(synthetic.delayed_capture_export(tmp_path / "late.sqlite"))
        with ExportWriter(tmp_path / "clock.sqlite") as export:  # CUPTI's clocks may have a kernel before its call
            process = export.process(6_000)
            export.api(export.thread(process, 6_000, "main"), 1_000, 1_100, "cudaLaunchKernel_v7000", 1)
            export.kernel(process, 0, 7, 999, 2_000, name="early", correlation_id=1)
        session.add(tmp_path / "clock.sqlite")
        delays = []
        for *_, name in kernel_summary(session, EVERYTHING).rows:
            delays += [record["launch_delay"] for record in records(kernel_instances(session, EVERYTHING, name))]
        assert sorted(delays, key=str) == [0] + [20_000] * 16 + [None] * 4

    def test_a_window_narrows_them_and_the_filter_on_names_does_not(self, chance):
        window = Window(100_000, 400_000)
        narrowed = Selection(window=window, name=NameFilter("something else"))
        answer = kernel_instances(chance, narrowed, "kernel_3", Names.SHORT)
        frame = frame_of(chance)
        frame = frame[frame.short_name == "kernel_3"]
        inside = frame[(frame.start < window.end) & ((frame.start >= window.start) | (frame.end > window.start))]
        assert (len(answer), answer.total) == (len(inside), len(frame))

    def test_durations_are_those_of_the_instances_and_a_name_that_is_not_there_has_none(self, chance):
        found = durations(chance, Selection(devices=frozenset({1})), "kernel_3", Names.SHORT)
        frame = frame_of(chance)
        frame = frame[(frame.short_name == "kernel_3") & (frame.device == 1)]
        assert sorted(np.asarray(found).tolist()) == sorted(frame.duration.tolist())
        for name in ("", "no such kernel", "kernel_3'; --"):
            answer = kernel_instances(chance, EVERYTHING, name, Names.SHORT)
            assert (len(answer), list(answer.page(0, 10))) == (0, []), name
            assert len(durations(chance, EVERYTHING, name)) == 0


class TestOtherWork:
    def test_memory_operations_by_time_and_by_bytes(self, demo_session):
        times, sizes = work_summary(demo_session, EVERYTHING, MEMORY), memory_sizes(demo_session, EVERYTHING)
        frame = demo_session.frame(sa.select(tables.memory_ops))
        frame["duration"] = frame["end"] - frame["start"]
        assert_summary(times, frame, {"name": "operation"})
        moved = {record["name"]: record["total"] for record in records(sizes)}
        assert moved == frame.groupby("operation")["bytes"].sum().to_dict()

    def test_calls_that_never_returned_count_but_have_no_time(self, tmp_path, session):
        with ExportWriter(tmp_path / "mpi.sqlite") as export:
            main = export.thread(export.process(5_000), 5_000, "main")
            export.mpi_other(main, 100, None, "MPI_Finalize")
            export.mpi_collective(main, 10, 30, "MPI_Barrier")
            export.mpi_collective(main, 40, None, "MPI_Barrier")
        session.add(tmp_path / "mpi.sqlite")
        found = {record["name"]: record["total"] for record in records(work_summary(session, EVERYTHING, MPI))}
        assert found == {"MPI_Barrier": 20, "MPI_Finalize": None}
        instances = records(work_instances(session, EVERYTHING, MPI, "MPI_Finalize"))
        assert [record["duration"] for record in instances] == [None]


# Theoretical occupancy, worked out by hand


def occupancies(session: Session, name: str) -> set[float | None]:
    return {one["occupancy"] for one in records(kernel_instances(session, EVERYTHING, name, Names.SHORT))}


@pytest.mark.parametrize(("export", "percent"), [
    ("alcf-allgather-rank0", 17 / 64),  # 17 warps a block; 3072 registers a warp: 21, in fours 20, one block
    ("gemm-pinned", 1.0),  # 16 warps a block; 1280 registers a warp: 51, in fours 48 of the 48 that fit
    ("gpu-metrics", 1.0),
    ("mig-slice", 1.0),  # 16 warps a block; 1024 registers a warp: 64 of the 64 that fit, on a slice of a GPU
    pytest.param("jacobi-staged-copies", None, marks=pytest.mark.campaign),  # TARGET_INFO_GPU has no limits
])  # fmt: skip
def test_occupancy_of_a_real_kernel(opened, shared_export, export, percent):
    path = shared_export(export)
    session = opened(path)
    query = "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName ORDER BY registersPerThread"
    ((first,), *_) = native(path, query)
    assert occupancies(session, first) == {None if percent is None else 100 * percent}


def test_occupancy_by_what_is_scarce(opened, tmp_path):
    cases = [
        ((640, 1, 1), 96, 103808, 20 / 64),  # registers: 20 warps, one block
        ((33, 1, 1), 16, 0, 1.0),  # two warps a block, 32 blocks
        ((32, 1, 1), 16, 0, 0.5),  # 32 blocks of one warp
        ((128, 1, 1), 16, 60_000, 3 * 4 / 64),  # 61 056 B with the system's share, in 128s: three of 233 472 B
        ((1024, 1, 1), 255, 0, None),  # 8 warps fit, of 32: it cannot have run
        ((0, 0, 0), 16, 0, None), ((128, 1, 1), 0, 0, None),
    ]  # fmt: skip
    with ExportWriter(tmp_path / "a.sqlite") as export:
        export.gpu(0)
        process = export.process(100)
        export.cuda_device(process, cuda_id=0, gpu_id=0)
        for number, (block, registers, shared, _) in enumerate(cases):
            launch = {"block": block, "registers": registers, "dynamic_smem": shared}
            export.kernel(process, 0, 7, 0, 10, name=f"k{number}", correlation_id=number, **launch)
    session = opened(tmp_path / "a.sqlite")
    for number, (*case, percent) in enumerate(cases):
        assert occupancies(session, f"k{number}") == {None if percent is None else 100 * percent}, case
