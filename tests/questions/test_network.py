"""Traffic of network adapters: each adapter counts once, and rates during collectives equal a naive integration."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from support import records
from synthetic import ExportWriter, efa_export
from synthetic.demo import CaptureSession as Capture
from synthetic.demo.model import nccl_kernel

from nsystui.base.selection import Selection, Window
from nsystui.questions.algebra.intervals import union
from nsystui.questions.answers.answering import draw_map
from nsystui.questions.counters.network import moved_within, network_by_collective, network_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.recipes import recipe_named
from nsystui.questions.recipes.recipe import RecipeOptions

MS = 1_000_000
SENT = (("IB: Bytes sent", "bytes/ms"), ("IB: Send waits", "ticks/ms"))


def rank(
    path: Path,
    host: str,
    samples: list[tuple[int, int, int, int]],
    collectives: list[tuple[int, int]] = [],  # noqa: B006
    metrics: Any = SENT,
) -> Path:
    """Write a rank: samples of mlx5_0 (start, end, values) and AllReduce kernels; times in 0.1 ms."""
    with ExportWriter(path, session=Capture(hostname=host)) as export:
        export.gpu(0)
        process = export.process(5_000, "app")
        main = export.thread(process, 5_000, "app")
        export.cuda_context(process)
        export.nic(0, "mlx5_0", metrics)
        for start, end, *values in samples:
            export.nic_metric(0, start * MS // 10, end * MS // 10, values)
        for number, (start, end) in enumerate(collectives, 1):
            export.api(main, number, number + 1, "cudaLaunchKernelExC_v11060", number)
            place = (process, 0, 7, start * MS // 10, end * MS // 10)
            export.kernel(*place, name=nccl_kernel("AllReduce").name, correlation_id=number)
        export.nvtx_range(main, 0, 4 * MS, "all")
    return path


@pytest.fixture
def job(opened, tmp_path) -> OpenJob:
    """Return a job: ranks 0 and 1 on one host sampled the same adapter, rank 1 for longer; rank 2 another adapter."""
    return OpenJob(
        opened(
            rank(tmp_path / "rank0.sqlite", "a", [(0, 10, 1_000_000, 5), (10, 20, 9_000_000, 99)], [(5, 15)]),
            rank(tmp_path / "rank1.sqlite", "a", [(10, 20, 2_000_000, 7), (20, 40, 3_000_000, 9)]),
            rank(tmp_path / "rank2.sqlite", "b", [(0, 40, 8_000_000, 20)], [(20, 30)]),
        )
    )


@pytest.mark.campaign
def test_an_adapter_that_two_reports_saw_counts_once_with_its_host(job):
    found = records(network_table(job, Selection(window=Window(0, 4 * MS))))
    assert [(one["host"], one["adapter"], one["link"], one["reports"]) for one in found] == [
        ("a", "mlx5_0", "InfiniBand", 2),
        ("b", "mlx5_0", "InfiniBand", 1),
    ]
    # Rank 1 sampled for longer: of rank 0 counts the bytes before it. 1 MB/ms is 1 GB/s.
    assert found[0]["sent"] == pytest.approx((1 * 1e9 + 1 * 2e9 + 2 * 3e9) / 4)
    assert (found[0]["peak_sent"], found[1]["sent"]) == (3e9, 8e9)
    assert (found[0]["waits"], found[0]["sampled"], found[0]["received"]) == (7.5, 100, None)
    assert found[0]["guid"] == found[1]["guid"] == "0x9c63c003000000"
    # In a window, only its samples count.
    found = records(network_table(job, Selection(window=Window(3 * MS, 5 * MS))))
    assert [(one["sent"], one["sampled"]) for one in found] == [(3e9, 50), (8e9, 50)]


@pytest.mark.campaign
def test_rates_beside_a_collective_are_those_of_the_hosts_that_ran_it(job):
    (found,) = records(network_by_collective(job, Selection()))
    host_a = (0.5 * 1e9 + 0.5 * 2e9) / 1.0  # from 0.5 to 1.5 ms
    assert (found["collective"], found["size"], found["count"], found["hosts"]) == ("AllReduce", None, 2, 2)
    assert found["sent"] == pytest.approx((host_a + 8e9) / 2)
    assert (found["time"], found["waits"], found["received"]) == (2 * MS, 13.0, None)


def test_waits_of_slow_collectives_stand_beside_those_of_all(opened, tmp_path):
    quick = [(place, place + 1) for place in range(0, 18, 2)]
    path = rank(tmp_path / "rank0.sqlite", "a", [(0, 20, 1, 10), (20, 40, 1, 5_000)], [*quick, (25, 35)])
    (found,) = records(network_by_collective(OpenJob(opened(path)), Selection()))
    assert (found["slow_waits"], found["waits"]) == (5_000, pytest.approx((9 * 10 + 10 * 5_000) / 19, abs=0.05))


def test_a_unit_that_is_no_rate_of_bytes_makes_no_number(opened, tmp_path):
    path = rank(tmp_path / "rank0.sqlite", "a", [(0, 10, 7, 1)], metrics=(("Eth: Bytes sent", "furlongs"), SENT[1]))
    answer = network_table(OpenJob(opened(path)), Selection())
    assert all(one["sent"] is None for one in records(answer))
    assert any("furlongs" in note for note in answer.notes)


@pytest.mark.campaign
def test_a_switch_counts_once_and_has_no_host(opened, tmp_path):
    paths = [synthetic.simulation_export(tmp_path / f"rank{number}.sqlite", rank=number) for number in range(2)]
    found = records(network_table(OpenJob(opened(*paths)), Selection()))
    switches = [(one["host"], one["reports"], one["sent"]) for one in found if one["link"] == "InfiniBand switch"]
    assert switches == [("", 2, 2e9)]
    assert len(found) == 2


def efa_rank(path: Path, host: str, seconds: range, *fields: str) -> Path:
    """Write a rank with a sample of an EFA adapter each second: totals that rise by 1, 2, 3 … MB."""
    totals = [dict.fromkeys(fields, 500_000 * second * (second + 1)) for second in seconds]
    return efa_export(path, "3.25.0", totals, session=Capture(hostname=host))


def test_a_running_total_of_efa_is_a_rate_once_by_host(opened, tmp_path):
    job = OpenJob(
        opened(
            efa_rank(tmp_path / "rank0.sqlite", "a", range(5), "tx_bytes", "rx_bytes", "rdma_read_bytes"),
            efa_rank(tmp_path / "rank1.sqlite", "a", range(3), "tx_bytes"),
            efa_rank(tmp_path / "rank2.sqlite", "b", range(5), "tx_bytes"),
        )
    )
    window = Selection(window=Window(0, 4_000 * MS))
    answer = network_table(job, window)
    found = records(answer)
    assert [(one["host"], one["adapter"], one["link"], one["reports"]) for one in found] == [
        ("a", "efa_metrics rdmap0s6 3", "EFA", 2),
        ("b", "efa_metrics rdmap0s6 3", "EFA", 1),
    ]
    # Rises of 1, 2, 3 and 4 MB in a second each.
    assert [(one["sent"], one["peak_sent"], one["sampled"]) for one in found] == [(2.5e6, 4e6, 100)] * 2
    assert [one["received"] for one in found] == [2.5e6, None]
    assert any("not totals of bytes received or sent: rdma_read_bytes" in note for note in answer.notes)
    drawn = draw_map(recipe_named("network_traffic_map"), job, window, RecipeOptions(bins=4))
    assert [line.key[0] for line in drawn.lines] == ["a", "b"]
    sent = next(number for number, figure in enumerate(drawn.figures) if figure.title.startswith("tx_bytes"))
    assert [line.values[sent].tolist() for line in drawn.lines] == [[1e6, 2e6, 3e6, 4e6]] * 2


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=5),
)
def test_a_mean_rate_is_that_of_every_nanosecond(samples, times):
    starts = np.array([start for start, _, _ in samples], np.int64)
    ends = starts + np.array([length for _, length, _ in samples], np.int64)
    values = np.array([value for *_, value in samples], np.float64)
    wanted = union(np.array([start for start, _ in times]), np.array([start + length for start, length in times]))
    moments = [
        moment for moment in range(60) if any(start <= moment < start + length for start, length in times)
        and ((starts <= moment) & (moment < ends)).any()
    ]  # fmt: skip
    moved = sum(values[(starts <= moment) & (moment < ends)].sum() for moment in moments)
    rate, covered = moved_within((starts, ends, values), wanted)
    assert covered == len(moments)
    assert rate == (pytest.approx(moved / len(moments), abs=1e-9) if moments else None)
