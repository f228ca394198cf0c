"""Rates of copies, families over time, the profiler's own work, API calls per step, against separate counts."""

from collections import defaultdict
from contextlib import closing
from pathlib import Path
from statistics import median

import pytest
import sqlalchemy as sa
from support import native, open_job, session_over, shared
from synthetic import ExportWriter
from synthetic.gpu_program import Program
from synthetic.illnesses import one_gpu
from triaging import finding, ids, told, triaged

from nsystui.base.kernel_families import family_of
from nsystui.base.selection import Selection, Window
from nsystui.questions.compare.side import Side
from nsystui.questions.compare.tables import api
from nsystui.questions.host.gaps import gaps_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import OVERHEAD, work_summary
from nsystui.questions.kernels.families import with_union_times
from nsystui.questions.kernels.summary import GroupBy, kernel_summary
from nsystui.questions.memory.host_copies import memory_rates
from nsystui.questions.triage.run import Triage
from nsystui.store import tables

EVERYTHING = Selection()
DDP, FIXED = "ddp-a100-rank0of4", "ddp-a100-nobroadcast-rank0of4"
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"


def test_rates_are_those_of_the_single_copies():
    path = shared(DDP)[0]
    copies = native(path, f'SELECT "end" - start, bytes FROM {_ACTIVITY}MEMCPY WHERE copyKind = 1')
    (found,) = [row for row in memory_rates(session_over(path), EVERYTHING).records() if "Host-to-D" in row["name"]]
    rates = [1e9 * size / time for time, size in copies]
    assert (found["source"], found["target"], found["count"]) == ("Pinned", "Device", len(copies))
    assert found["median"] == pytest.approx(median(rates))
    assert (found["min"], found["max"]) == pytest.approx((min(rates), max(rates)))
    whole = 1e9 * sum(size for _, size in copies) / sum(time for time, _ in copies)
    assert found["rate"] == pytest.approx(whole)
    assert found["of_link"] == pytest.approx(100 * whole / 26e9)  # A100: PCIe 4, about 26 GB/s
    of_gpu = [row["of_link"] for row in memory_rates(session_over(path), EVERYTHING).records() if not row["source"]]
    assert of_gpu == [None]  # a memset uses no link


def _swept(spans: list[tuple[int, int, str]]) -> tuple[dict[str, int], dict[str, int]]:
    """Return by family how long any of its kernels ran, and how long no other family's did."""
    edges = sorted([(start, 1, of) for start, _, of in spans] + [(end, -1, of) for _, end, of in spans])
    running: dict[str, int] = defaultdict(int)
    any_of, alone = defaultdict(int), defaultdict(int)
    last = edges[0][0]
    for moment, change, of in edges:
        now = [family for family, count in running.items() if count]
        for family in now:
            any_of[family] += moment - last
        if len(now) == 1:
            alone[now[0]] += moment - last
        running[of] += change
        last = moment
    return any_of, alone


def test_copies_are_busy_while_any_of_them_runs_within_the_selected_time():
    path = shared(DDP)[0]
    spans = native(path, f'SELECT start, "end" FROM {_ACTIVITY}MEMCPY WHERE copyKind = 1')
    low, high = sorted(start for start, _ in spans)[10] + 1, max(end for _, end in spans) - 1
    session = session_over(path)
    offset = session.reports[0].clock_offset
    clipped = [(max(start, low), min(end, high), "") for start, end in spans if start < high and end > low]
    expected = 100 * _swept(clipped)[0][""] / (high - low)
    window = EVERYTHING.with_window(Window(low + offset, high + offset))
    (found,) = [row["busy"] for row in memory_rates(session, window).records() if "Host-to-D" in str(row["name"])]
    assert found == pytest.approx(expected) and 0 < expected < 100


def test_families_have_the_time_of_a_sweep_over_all_kernels(demo_session):
    spans = defaultdict(list)
    for (_, place), kernels in _kernels_of(demo_session).items():
        spans[place] += kernels
    any_of, alone = defaultdict(int), defaultdict(int)
    for of_gpu in spans.values():
        for sums, own in zip((any_of, alone), _swept(of_gpu), strict=True):
            for family, time in own.items():
                sums[family] += time
    answer = kernel_summary(demo_session, EVERYTHING, group_by=(GroupBy.FAMILY,))
    found = with_union_times(answer, demo_session, EVERYTHING, ()).records()
    assert {row["family"]: row["union"] for row in found} == any_of
    assert {row["family"]: row["alone"] for row in found if row["alone"]} == alone
    assert any(row["alone"] < row["union"] for row in found)


def _kernels_of(session):
    import sqlalchemy as sa

    from nsystui.store import tables

    columns = tables.kernels.c
    found = defaultdict(list)
    query = sa.select(columns.report, columns.process, columns.device, columns.start, columns.end, columns.name)
    for report, process, device, start, end, name in session.rows(query):
        found[report, (report, process, device)].append((start, end, family_of(name)))
    return found


def test_large_kernels_without_a_family_are_named():
    session = session_over(*shared("mig-slice"))
    answer = kernel_summary(session, EVERYTHING, group_by=(GroupBy.FAMILY,))
    note = with_union_times(answer, session, EVERYTHING, ()).notes[-1]
    assert note.startswith("without a family") and note.endswith(": nussinov_gpu (100.0 %)")


def test_the_work_of_the_profiler_is_told_by_activity():
    path = shared(DDP)[0]
    rows = native(
        path, 'SELECT s.value, sum("end" - start) FROM PROFILER_OVERHEAD JOIN StringIds s ON s.id = nameId GROUP BY 1'
    )
    found = work_summary(session_over(path), EVERYTHING, OVERHEAD).records()
    assert {row["name"]: row["total"] for row in found} == dict(rows)


@pytest.mark.campaign
def test_calls_are_compared_per_step_of_those_between_the_first_step_and_the_last():
    paths = [shared(name)[0] for name in (DDP, FIXED)]
    with closing(OpenJob(session_over(paths[0]))) as a, closing(OpenJob(session_over(paths[1]))) as b:
        found = {row["name"]: row for row in api(Side(a, EVERYTHING, "A"), Side(b, EVERYTHING, "B")).records()}
    for letter, path in zip("ab", paths, strict=True):
        steps = native(path, "SELECT start, \"end\" FROM NVTX_EVENTS WHERE text LIKE 'step %' ORDER BY start")
        low, high = steps[0][0], steps[-1][1]
        query = f"SELECT s.value, count(*) FROM {_ACTIVITY}RUNTIME JOIN StringIds s ON s.id = nameId "
        counts = dict(native(path, f'{query} WHERE start < {high} AND "end" > {low} GROUP BY 1'))
        name = "cudaMemcpyAsync_v3020"
        own = next(row for key, row in found.items() if key.startswith("cudaMemcpyAsync"))
        assert own[f"count_{letter}"] == pytest.approx(counts[name] / len(steps))


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

    @pytest.mark.campaign
    @pytest.mark.parametrize(
        ("kind", "name"), [(MODULE, "runtime module loading"), (FUNCTION, "lazy function loading")]
    )
    def test_recorded_loading_is_told_with_its_time_and_thread(self, tmp_path, kind, name):
        found = finding(first_use(launches(tmp_path / "a.sqlite", kind, loaded=3)), "first-launches")
        told(found, "5 of 5 first launches take longer than later ones", f"{name} 11.7 ms (python (main) 5000)")
        assert found.cost == 5 * (4 * MS - 2_000)
        assert sorted(row["loading"] for row in found.evidence.records()) == [0, 0, *[3_900_000] * 3]

    def test_loading_of_kernels_that_are_launched_once_counts(self, tmp_path):
        """Each of ten kernels is launched once, in 4 ms, of which CUDA loads for 3.25 ms."""
        with one_gpu(tmp_path / "a.sqlite") as gpu:
            for number in range(10):
                now = MS + 5 * MS * number
                correlation = gpu.call("cudaLaunchKernel_v7000", now, now + 4 * MS)
                gpu.export.cuda_overhead(gpu.main, now, now + MS // 4, MODULE, correlation)
                gpu.export.cuda_overhead(gpu.main, now + MS // 2, now + 7 * MS // 2, FUNCTION, correlation)
                name = f"work{number}(float*)"
                gpu.export.kernel(gpu.process, 0, 7, now + 4 * MS, now + 5 * MS, name=name, correlation_id=correlation)
        found = finding(first_use(tmp_path / "a.sqlite"), "first-launches")
        words = "lazy function loading 30 ms (python (main) 5000), runtime module loading 2.5 ms (python (main) 5000)"
        told(found, words, never=("take longer",))
        assert found.cost == 65 * MS // 2

    def test_a_record_without_loading_does_not_name_loading_as_the_cause(self, tmp_path):
        found = finding(first_use(launches(tmp_path / "a.sqlite", FULL, loaded=1)), "first-launches")
        told(found, "CUDA recorded no loading of code", never=("EAGER", "Loading delays"))

    def test_compilation_and_loading_by_the_less_busy_process_of_a_gpu_are_named(self, tmp_path):
        """A process launches ten kernels in 3 ms each, of which CUDA compiles and loads 1 ms; another is busier."""
        with ExportWriter(tmp_path / "a.sqlite", "3.25.0") as export:
            export.gpu(0)
            busy, slow = Program(export, 4_700), Program(export, 4_800)
            for start in range(MS, 101 * MS, 10 * MS):
                busy.kernel((start, start + 10), (start + 20, start + 6 * MS))
                at = start + 6 * MS
                slow.kernel((at + 10, at + 3 * MS), (at + 3 * MS + 10, start + 10 * MS - 10), name=f"work{start}()")
                export.cuda_overhead(slow.main, at + MS, at + 2 * MS, JIT)
                export.cuda_overhead(slow.main, at + 2 * MS, at + 3 * MS, FUNCTION)
        found = finding(first_use(tmp_path / "a.sqlite"), "first-launches")
        told(found, "lazy function loading 10 ms (python (main) 4800)", advises=("EAGER",), never=("no loading",))


def test_compilation_that_the_driver_recorded_is_found_without_samples(tmp_path):
    found = finding(triaged(launches(tmp_path / "a.sqlite", JIT), rules=("jit_compilation",)), "jit-compilation")
    told(found, "19.5 ms per GPU (PTX 19.5 ms)", "Seen in 5 driver compilations", advises=("-gencode",))
    [row] = found.evidence.records()
    assert (row["thread"], row["count"]) == ("python (main) 5000", 5)


@pytest.mark.campaign
@pytest.mark.parametrize(("kind", "share", "time", "advises"), [
    (FULL, 0.8, "3.588 ms", "launch less work ahead"),
    (FUNCTION, 0.8, "3.588 ms", "EAGER"),
    (FULL, 0.2, "897 µs", "graph"),
])  # fmt: skip
def test_late_launches_name_the_overhead_that_made_them_late(tmp_path, kind, share, time, advises):
    """300 kernels of 5 µs, one every 20 µs; CUDA's overhead takes a part of the 15 µs between them.

    A thread that launches nothing has as much of it.
    """
    with one_gpu(tmp_path / "a.sqlite") as gpu:
        other = gpu.export.thread(gpu.process, 5_001, "other")
        for start in gpu.rounds(300, 20_000, 5_000, early=6_000):
            for thread in (gpu.main, other):
                gpu.export.cuda_overhead(thread, start + 5_000, start + 5_000 + round(15_000 * share), kind)
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
