"""The recorded overhead of CUDA: loading, compilation, full command buffers, and the findings on it."""

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from support import open_job
from synthetic import ExportWriter
from synthetic.illnesses import one_gpu
from triaging import finding, ids, told, triaged

from nsystui.base.selection import Selection
from nsystui.questions.host.gaps import gaps_table
from nsystui.questions.triage.run import Triage
from nsystui.store import tables

MS = 1_000_000
JIT, FLUSH, MODULE, FUNCTION, FULL = 2, 3, 6, 7, 8


def launches(path: Path, recorded: int | None = FUNCTION, first: int = 4 * MS, loaded: int = 5) -> Path:
    """Five kernels of 1 ms, launched by turns in 2 µs, except for the first time in ``first``.

    CUDA records ``recorded`` in ``loaded`` of the first launches, from 0.1 ms after their starts to their ends.
    """
    with one_gpu(path) as gpu:
        now = MS
        for number in range(200):
            launch = first if number < 5 else 2_000
            correlation = gpu.call("cudaLaunchKernel_v7000", now, now + launch)
            if recorded is not None and number < loaded:
                gpu.export.cuda_overhead(gpu.main, now + 100_000, now + launch, recorded, correlation)
            now += launch
            name = f"work{number % 5}(float*)"
            gpu.export.kernel(gpu.process, 0, 7, now, now + MS, name=name, correlation_id=correlation)
            now += MS
    return path


def first_use(path: Path) -> Triage:
    return triaged(path, rules=("first_use",))


class TestFirstLaunches:
    def test_without_a_record_long_first_launches_are_taken_for_loading(self, tmp_path):
        found = finding(first_use(launches(tmp_path / "a.sqlite", None)), "first-launches")
        told(found, "Loading delays 5 of 5 first launches", advises=("EAGER",), never=("recorded",))
        assert "loading" not in found.evidence.records()[0]

    @pytest.mark.parametrize(
        ("kind", "name"), [(MODULE, "runtime module loading"), (FUNCTION, "lazy function loading")]
    )
    def test_recorded_loading_is_told_with_its_time_and_thread(self, tmp_path, kind, name):
        found = finding(first_use(launches(tmp_path / "a.sqlite", kind, loaded=3)), "first-launches")
        told(found, "5 of 5 first launches take longer than later ones", f"{name} 11.7 ms (python (main) 5000)")
        assert found.cost == 5 * (4 * MS - 2_000)
        assert sorted(row["loading"] for row in found.evidence.records()) == [0, 0, *[3_900_000] * 3]

    def test_loading_of_kernels_that_are_launched_once_counts(self, tmp_path):
        """Each of ten kernels is launched once, in 4 ms, of which CUDA loads for 3 ms."""
        with one_gpu(tmp_path / "a.sqlite") as gpu:
            for number in range(10):
                now = MS + 5 * MS * number
                correlation = gpu.call("cudaLaunchKernel_v7000", now, now + 4 * MS)
                gpu.export.cuda_overhead(gpu.main, now + MS // 2, now + 7 * MS // 2, FUNCTION, correlation)
                name = f"work{number}(float*)"
                gpu.export.kernel(gpu.process, 0, 7, now + 4 * MS, now + 5 * MS, name=name, correlation_id=correlation)
        found = finding(first_use(tmp_path / "a.sqlite"), "first-launches")
        told(found, "lazy function loading 30 ms", never=("take longer",))
        assert found.cost == 30 * MS

    def test_a_record_without_loading_does_not_name_loading_as_the_cause(self, tmp_path):
        found = finding(first_use(launches(tmp_path / "a.sqlite", FULL, loaded=1)), "first-launches")
        told(found, "CUDA recorded no loading of code", never=("EAGER", "Loading delays"))


def test_compilation_that_the_driver_recorded_is_found_without_samples(tmp_path):
    found = finding(triaged(launches(tmp_path / "a.sqlite", JIT), rules=("jit_compilation",)), "jit-compilation")
    told(found, "19.5 ms per GPU (PTX 19.5 ms)", "Seen in 5 driver compilations", advises=("-gencode",))
    [row] = found.evidence.records()
    assert (row["thread"], row["count"]) == ("python (main) 5000", 5)


@pytest.mark.parametrize(
    ("kind", "share", "time", "advises"),
    [
        (FULL, 0.8, "3.588 ms", "launch less work ahead"),
        (FUNCTION, 0.8, "3.588 ms", "EAGER"),
        (FULL, 0.2, "897 µs", "graph"),
    ],
)
def test_late_launches_name_the_overhead_that_made_them_late(tmp_path, kind, share, time, advises):
    """300 kernels of 5 µs, one every 20 µs; CUDA's overhead takes a part of the 15 µs between them."""
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for start in gpu.rounds(300, 20_000, 5_000, early=6_000):
            gpu.export.cuda_overhead(gpu.main, start + 5_000, start + 5_000 + round(15_000 * share), kind)
    found = finding(triaged(tmp_path / "a.sqlite", rules=("launch_overhead",)), "launch-overhead")
    name = {FULL: "command buffer full", FUNCTION: "lazy function loading"}[kind]
    told(found, f"CUDA overhead in this time: {name} {time} (python (main) 5000).", advises=(advises,))


def test_late_launches_without_overhead_say_nothing_of_it(tmp_path):
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        for _ in gpu.rounds(300, 20_000, 5_000, early=6_000):
            pass
    found = finding(triaged(tmp_path / "a.sqlite", rules=("launch_overhead",)), "launch-overhead")
    told(found, never=("overhead in this time",))


def test_the_cause_of_idle_time_is_the_overhead_and_not_the_call_around_it(tmp_path):
    with closing(open_job(launches(tmp_path / "a.sqlite"))) as job:
        rows = gaps_table(job, Selection()).records()
    times = {(row["cause"], row["what"]): row["time"] for row in rows}
    assert times["in CUDA overhead", "Lazy function loading"] == 5 * 3_900_000
    assert times["launching", "cudaLaunchKernel"] < 6 * 100_000 + 200 * 2_000


def test_the_profilers_part_of_the_table_is_the_profilers_overhead(tmp_path, opened):
    with ExportWriter(tmp_path / "a.sqlite") as export:
        main = export.thread(export.process(7), 7, "python")
        export.profiler_overhead(main, 5, 9, "CUPTI Buffer flush")
        for number, kind in enumerate((JIT, FLUSH, MODULE, 4, FUNCTION, 5, FULL, 99)):
            export.cuda_overhead(main, 10 * number, 10 * number + 5, kind, number)
    session = opened(tmp_path / "a.sqlite")
    cuda, profiler = tables.cuda_overhead.c, tables.profiler_overhead.c
    assert session.rows(sa.select(cuda.row, cuda.start, cuda.name, cuda.correlation_id).order_by(cuda.row)) == [
        (2, 0, "Driver JIT compiler", 0), (4, 20, "Runtime module loading", 2), (6, 40, "Lazy function loading", 4),
        (8, 60, "Command buffer full", 6), (9, 70, "99", 7),
    ]  # fmt: skip
    assert session.rows(sa.select(profiler.row, profiler.start, profiler.name).order_by(profiler.row)) == [
        (1, 5, "CUPTI Buffer flush"), (3, 10, "Buffer flush"), (5, 30, "Instrumentation"),
        (7, 50, "Resource creation/destruction"),
    ]  # fmt: skip
    assert (session.count(tables.cuda_overhead), session.count(tables.profiler_overhead)) == (5, 4)


def test_a_healthy_program_with_a_record_of_little_loading_has_no_finding(tmp_path):
    assert not ids(first_use(launches(tmp_path / "a.sqlite", first=10_000, recorded=None)))
