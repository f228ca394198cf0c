"""Message sizes: bins of calls and bytes; durations, bandwidths and their spread for each size."""

import statistics
from collections.abc import Iterator
from itertools import pairwise

import campaign
import numpy as np
import pytest
from nccl_jobs import Program, values
from support import open_job
from synthetic import PAYLOAD_BYTES, ExportWriter, payload_export

from nsystui.base.answer import TableAnswer, Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Window
from nsystui.base.units import format_value
from nsystui.exports.nccl_log.files import NcclTestsResult, Reported
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.grouping import NcclProperty
from nsystui.questions.nccl.sizes import bandwidth_by_size, durations_and_sizes, durations_of_size, size_histogram
from nsystui.store.session import Session

EVERYTHING = Selection()


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenJob]:
    job = open_job(payload_export(tmp_path_factory.mktemp("payload") / "payload.sqlite"))
    yield job
    job.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Iterator[OpenJob]:
    """Yield the same job without sizes."""
    job = open_job(payload_export(tmp_path_factory.mktemp("plain") / "plain.sqlite", json=False))
    yield job
    job.close()


@pytest.mark.campaign
class TestHistogram:
    def test_calls_and_bytes_of_each_bucket(self, payload):
        sizes = PAYLOAD_BYTES
        assert size_histogram(payload.pairing(), EVERYTHING) == [
            ("<64KiB", 1, sizes["ncclAllGather"]),
            ("64KiB–1MiB", 3, sizes["ncclReduceScatter"] + 2 * sizes["ncclSend"]),
            ("1MiB–16MiB", 2, sizes["ncclAllReduce"] + sizes["ncclBroadcast"]),
            (">16MiB", 1, sizes["ncclReduce"]),
        ]
        early = EVERYTHING.with_window(Window(0, 10_500_000))
        assert [size.calls for size in size_histogram(payload.pairing(), early)] == [0, 0, 1, 0]

    def test_calls_and_bytes_of_each_power_of_two(self, payload, tmp_path):
        """From the smallest to the largest, with the empty buckets between them."""
        sizes = PAYLOAD_BYTES
        expected = {f"{1 << power}KiB": (0, 0) for power in range(5, 10)} | {f"{1 << n}MiB": (0, 0) for n in range(5)}
        expected |= {
            "32KiB": (1, sizes["ncclAllGather"]),
            "64KiB": (1, sizes["ncclReduceScatter"]),
            "512KiB": (2, 2 * sizes["ncclSend"]),
            "1MiB": (1, sizes["ncclBroadcast"]),
            "4MiB": (1, sizes["ncclAllReduce"]),
            "16MiB": (1, sizes["ncclReduce"]),
        }
        told = size_histogram(payload.pairing(), EVERYTHING, NcclProperty.POW2)
        assert told == [(label, *found) for label, found in expected.items()]
        assert sum(one.bytes or 0 for one in told) == sum(sizes.values())
        # Empty messages and single bytes.
        program = Program(tmp_path / "program.sqlite")
        for size in (0, 1, 3, 0):
            program.call("ncclAllReduce", size=size)
        assert size_histogram(program.pairing(), EVERYTHING, NcclProperty.POW2) == [
            ("0B", 2, 0),
            ("1B", 1, 1),
            ("2B", 1, 3),
        ]

    @pytest.mark.parametrize(("by", "bins"), [(NcclProperty.POW2, 0), (NcclProperty.SIZE, 4)])
    def test_unknown_sizes_are_counted_apart(self, plain, by, bins):
        told = size_histogram(plain.pairing(), EVERYTHING, by)
        assert told[-1] == (None, 7, None)
        assert [one.calls for one in told[:-1]] == [0] * bins


DURATIONS = {("AllReduce", 1024): [1_000, 3_000, 5_000, 47_000], ("AllReduce", 4096): [7_000], ("Broadcast", 1024): [9]}


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenJob]:
    """Yield two ranks in a communicator, kernels of ``DURATIONS``, and a kernel of unknown size."""
    program = Program(tmp_path_factory.mktemp("timed") / "timed.sqlite")
    program.call("ncclCommInitRankConfig", ranks=2)
    for (collective, size), durations in DURATIONS.items():
        for duration in durations:
            kernel(program, collective, duration, size=size)
    kernel(program, "AllReduce", 5_000)
    job = program.job()
    yield job
    job.close()


def kernel(program: Program, collective: str, duration: int, **told: int) -> None:
    """Write a call with a kernel of this duration."""
    start, correlation = program.now, next(program.correlation)
    program.call(f"nccl{collective}", **told)
    export: ExportWriter = program.export
    export.api(program.main, start + 1_000, start + 2_000, "cudaLaunchKernelExC_v11060", correlation)
    begin, name = start + 10_000, f"ncclDevKernel_{collective}(int)"
    export.kernel(program.process, 0, 20, begin, begin + duration, name=name, correlation_id=correlation)
    program.now += duration


class TestBySize:
    def by_size(
        self, job: OpenJob, by: NcclProperty = NcclProperty.BYTES, selection: Selection = EVERYTHING
    ) -> TableAnswer:
        return bandwidth_by_size(job.session, selection, job.ranks, job.pairing(), by)

    @pytest.mark.campaign
    def test_spread_of_the_durations_of_each_size(self, timed):
        keys = ("collective", "message_size", "count", "min", "p5", "median", "p95", "max", "cv")
        first = DURATIONS["AllReduce", 1024]
        cv = 100 * statistics.stdev(first) / statistics.mean(first)
        spread = (4, 1_000, pytest.approx(1_300), 4_000, pytest.approx(40_700), 47_000, pytest.approx(cv))
        assert values(self.by_size(timed), *keys) == [
            ("AllReduce", 1024, *spread),
            ("AllReduce", 4096, 1, 7_000, 7_000, 7_000, 7_000, 7_000, 0),
            ("Broadcast", 1024, 1, 9, 9, 9, 9, 9, 0),
        ]

    def test_bandwidth_of_each_size_is_the_median_of_its_kernels(self, timed):
        told = values(self.by_size(timed), "algbw", "busbw", "bytes", "total", "ranks")
        middle = (1024 / 3e-6 + 1024 / 5e-6) / 2
        assert told[0] == (pytest.approx(middle), pytest.approx(middle), 4096, 56_000, 2)
        assert told[2] == (pytest.approx(1024 / 9e-9), pytest.approx(1024 / 9e-9), 1024, 9, 2)

    def test_by_buckets_and_powers_of_two(self, timed):
        buckets = values(self.by_size(timed, NcclProperty.SIZE), "collective", "bucket", "count")
        assert buckets == [("AllReduce", "<64KiB", 5), ("Broadcast", "<64KiB", 1)]
        powers = values(self.by_size(timed, NcclProperty.POW2), "collective", "size_from", "count")
        assert powers == [("AllReduce", 1024, 4), ("AllReduce", 4096, 1), ("Broadcast", 1024, 1)]

    def test_selected_kernels_only_and_without_sizes_a_reason(self, timed, plain):
        answer = self.by_size(timed, selection=EVERYTHING.with_name("broadcast"))
        assert (values(answer, "collective"), answer.total) == ([("Broadcast",)], 3)
        answer = self.by_size(plain)
        assert (len(answer), answer.total) == (0, 0)
        assert answer.notes[0].startswith("no message sizes: ")


def test_sizes_and_durations_for_a_scatter(timed):
    size, duration = durations_and_sizes(timed.pairing(), EVERYTHING, "AllReduce")
    assert size.tolist() == [1024] * 4 + [4096]
    assert duration.tolist() == DURATIONS["AllReduce", 1024] + DURATIONS["AllReduce", 4096]
    assert size.dtype == duration.dtype == np.int64
    late = EVERYTHING.with_window(Window(10**9, 10**10))
    assert [len(part) for part in durations_and_sizes(timed.pairing(), late, "AllReduce")] == [0, 0]


class TestDurationsOfOneSize:
    @pytest.fixture(scope="class")
    def job(self, demo_session: Session) -> OpenJob:
        return OpenJob(demo_session)

    def naive(self, job: OpenJob, collective: str, size: int) -> dict[int, list[int]]:
        kernels = job.pairing().kernels
        found: dict[int, list[int]] = {}
        for row in kernels.itertuples():
            if row.collective == collective and row.message_size == size:
                found.setdefault(int(row.rank), []).append(int(row.end - row.start))
        return found

    @pytest.mark.parametrize("is_linear", campaign.first(1, [True, False]))
    def test_every_rank_and_all_have_the_same_spans(self, job, is_linear):
        size = 4 << 20
        answer = durations_of_size(job.session, EVERYTHING, job.ranks, job.pairing(), "AllReduce", size, is_linear)
        expected = self.naive(job, "AllReduce", size)
        values = [one for own in expected.values() for one in own]
        rows = [dict(zip([one.key for one in answer.columns], row, strict=True)) for row in answer.rows]
        edges = [(one["from"], one["to"]) for one in rows if one["rank"] is None]
        assert edges[0][0] <= min(values) and edges[-1][1] >= max(values)
        assert all(after[0] == before[1] for before, after in pairwise(edges))
        widths = [end - start for start, end in edges]
        assert not is_linear or max(widths) == pytest.approx(min(widths))
        for rank, own in ((None, values), *expected.items()):
            mine = [one for one in rows if one["rank"] == rank]
            assert [(one["from"], one["to"]) for one in mine] == edges
            for place, one in enumerate(mine):
                last = place == len(mine) - 1
                inside = [value for value in own if one["from"] <= value and (value < one["to"] or last)]
                assert one["count"] == len(inside)
                assert one["percent"] == pytest.approx(100 * len(inside) / len(own))

    def test_without_a_size_it_is_the_one_that_took_longest(self, job):
        answer = durations_of_size(job.session, EVERYTHING, job.ranks, job.pairing(), "AllReduce", None)
        kernels = job.pairing().kernels
        own = kernels[kernels["collective"] == "AllReduce"]
        longest = max(
            set(own["message_size"]), key=lambda one: (own["end"] - own["start"])[own["message_size"] == one].sum()
        )
        assert any(format_value(Unit.BYTES, int(longest)) in note for note in answer.notes)
        assert sum(row[3] for row in answer.rows if row[0] is None) == (own["message_size"] == longest).sum()

    @pytest.mark.campaign
    def test_where_no_size_is_known_it_is_of_all_kernels(self, tmp_path):
        program = Program(tmp_path / "program.sqlite")
        for duration in (1_000, 3_000):
            kernel(program, "AllReduce", duration)
        job = program.job()
        answer = durations_of_size(job.session, EVERYTHING, job.ranks, job.pairing(), "AllReduce", None)
        job.close()
        assert sum(row[3] for row in answer.rows if row[0] is None) == 2
        assert "AllReduce of unknown message size" in answer.notes[0]

    def test_a_size_that_nothing_has_is_said_with_those_that_there_are(self, job):
        with pytest.raises(UsageError, match=r"no AllReduce kernel of 5 B.*there are .*4 MiB"):
            durations_of_size(job.session, EVERYTHING, job.ranks, job.pairing(), "AllReduce", 5)

    @pytest.mark.campaign
    def test_what_nccl_tests_reported_stands_beside_the_kernels_of_its_size(self, tmp_path):
        program = Program(tmp_path / "program.sqlite")
        for size in (1 << 20, 1 << 20, 2 << 20):
            program.call("ncclAllReduce", size=size, ranks=2, launches=1, kernel="AllReduce")
        job = program.job()
        out, within, longer = (
            NcclTestsResult(5e3, 200e9, 210e9),
            NcclTestsResult(9e3, 110e9, 120e9),
            NcclTestsResult(7e3, 1e9, 1e9),
        )
        reported = [Reported(1 << 20, out, within), Reported(4 << 20, longer, longer)]
        arguments = (job.session, EVERYTHING, job.ranks, job.pairing())
        answer = bandwidth_by_size(*arguments, reported=reported)
        assert values(answer, "reported", "reported_in_place") == [(210e9, 120e9), (None, None)]
        assert "reported" not in {column.key for column in bandwidth_by_size(*arguments).columns}
        answer = durations_of_size(*arguments, "AllReduce", 1 << 20, reported=reported)
        marks = [(row[1] <= 5_000 < row[2], row[-1]) for row in answer.rows if row[0] is None]
        assert (True, "out of place") in marks and all(mark is None for inside, mark in marks if not inside)
        assert "nccl-tests reported 5 µs out of place, 9 µs in place" in answer.notes
        other = durations_of_size(*arguments, "AllReduce", 2 << 20, reported=reported)
        assert "nccl-tests reported nothing of this size" in other.notes
        job.close()
