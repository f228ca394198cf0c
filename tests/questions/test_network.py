"""Traffic of network adapters, and of AWS's EFA plugin: each adapter counts once, rates equal a naive integration."""

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from support import edit, records
from synthetic import EFA_TYPE, ExportWriter, efa_export
from synthetic.demo import CaptureSession as Capture
from synthetic.demo.model import nccl_kernel

from nsystui.base.selection import Selection, Window
from nsystui.questions.algebra.intervals import union
from nsystui.questions.counters.efa import UNDOCUMENTED
from nsystui.questions.counters.network import moved_within, network_by_collective, network_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.question import ask, draw_map
from nsystui.questions.recipes import recipe_named
from nsystui.questions.recipes.recipe import RecipeOptions
from nsystui.store import tables
from nsystui.store.session import Session

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
    return efa_export(path, totals, session=Capture(hostname=host))


def test_a_running_total_of_efa_is_a_rate_once_by_host(opened, tmp_path):
    ranks = (("a", 5, "tx_bytes", "rx_bytes", "rdma_read_bytes"), ("a", 3, "tx_bytes"), ("b", 5, "tx_bytes"))
    paths = [efa_rank(tmp_path / f"{n}.sqlite", host, range(end), *keys) for n, (host, end, *keys) in enumerate(ranks)]
    job = OpenJob(opened(*paths))
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


MAP = recipe_named("network_traffic_map")
SECOND = 10**9
RATE = "rdma_read_bytes per second"
Values = Mapping[str, int | float]


@pytest.fixture
def plugin_job(opened, tmp_path) -> Callable[..., OpenJob]:
    def make(events: Sequence[Values], **more: Any) -> OpenJob:
        place = Path(tempfile.mkdtemp(dir=tmp_path))
        return OpenJob(opened(efa_export(place / "rank0.sqlite", events, **more)))

    return make


def drawn(plugin_job: OpenJob) -> Any:
    return draw_map(MAP, plugin_job, Selection().with_window(Window(0, 4 * SECOND)), RecipeOptions(bins=4))


def series(plugin_job: OpenJob) -> dict[str, list[float | None]]:
    """Return the bins of each figure of the only line."""
    shown = drawn(plugin_job)
    assert len(shown.lines) == 1
    values = [[None if value != value else value for value in row] for row in shown.lines[0].values.tolist()]
    return dict(zip([figure.title for figure in shown.figures], values, strict=True))


def events_of(**fields: Sequence[int | float]) -> list[Values]:
    return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]


class TestEfa:
    def test_what_never_falls_is_a_total_and_anything_else_an_amount(self, plugin_job):
        fields = {"rx_bytes": [100, 150, 150, 450, 450], "tx_bytes": [9, 7, 8, 5, 6], "pkts": [1, 2, 3, 4, 5]}
        found = plugin_job(events_of(**fields))
        assert series(found) == {"rx_bytes (rise per s)": [50, 0, 300, 0], "tx_bytes": [7, 8, 5, 6]}
        notes = drawn(found).notes
        assert UNDOCUMENTED in notes
        assert any("running totals" in note and note.endswith(": rx_bytes") for note in notes)
        assert any("as recorded" in note and note.endswith(": tx_bytes") for note in notes)

    def test_one_step_is_no_total_and_a_rate_by_its_name_is_shown_as_it_is_however_it_rises(self, plugin_job):
        found = plugin_job(events_of(rx_bytes=[0, 0, 8, 8, 8], **{RATE: [1, 2, 3, 4, 5]}))
        assert series(found) == {RATE: [2, 3, 4, 5], "rx_bytes": [0, 8, 8, 8]}

    @pytest.mark.campaign
    def test_the_fields_that_nvidias_recipe_knows_or_the_name_of_the_type_tell_the_plugin(self, plugin_job):
        name = "rdma_write_recv_bytes per second"
        found = plugin_job([{name: 4}, {name: 2}], source="NIC sampler", kind="nic")
        assert series(found) == {name: [2, None, None, None]}
        assert drawn(found).lines[0].label == "NIC sampler nic 3"
        found = plugin_job(events_of(rx_bytes=[3, 2]), source="plugin", kind="AwsEfa")
        assert [line.label for line in drawn(found).lines] == ["plugin AwsEfa 3"]

    def test_without_an_efa_source_there_is_nothing_and_no_note(self, plugin_job):
        found = plugin_job(events_of(rx_bytes=[3, 2]), source="default", kind="interface")
        assert not found.session.count(tables.efa_samples)
        assert not found.session.reports[0].has(tables.efa_samples)
        assert not drawn(found).lines
        assert UNDOCUMENTED not in drawn(found).notes
        assert "efa_metrics" in " ".join(drawn(found).notes)  # what to record

    def test_names_that_say_no_bytes_are_only_named(self, plugin_job):
        found = plugin_job(events_of(tx_pkts=[1, 2, 3], rx_drops=[0, 0, 0]))
        assert not len(ask(MAP, found, Selection()))
        said = "no field of the EFA samples has bytes in its name; the fields are rx_drops, tx_pkts"
        assert drawn(found).notes == (UNDOCUMENTED, said)

    def test_beside_adapters_that_nsys_samples_itself(self, opened, tmp_path):
        path = efa_export(tmp_path / "both.sqlite", events_of(rx_bytes=[3, 2]))
        other = tmp_path / "rank1.sqlite"
        with ExportWriter(other, "3.25.0") as writer:
            writer.nic(0, "mlx5_0", [("IB: Bytes sent", "bytes/ms")])
            writer.nic_metric(0, 0, SECOND, (5,))
        shown = drawn(OpenJob(opened(path, other)))
        assert [figure.title for figure in shown.figures][-1] == "rx_bytes"
        assert [line.label for line in shown.lines] == ["mlx5_0", "efa_metrics rdmap0s6 3"]
        assert shown.lines[0].values[1, 0] == 5_000 and shown.lines[1].values[3, 0] == 2

    def test_the_table_has_a_column_for_each_counter_and_its_unit_once_in_its_name_in_files(self, plugin_job):
        answer = ask(MAP, plugin_job(events_of(**{"RX bytes": [3, 2], "rx_bytes": [4, 1]})), Selection())
        assert [column.header for column in answer.columns][-2:] == ["RX bytes", "rx_bytes"]
        assert len({column.key for column in answer.columns}) == len(answer.columns)
        last = ask(MAP, plugin_job(events_of(rx_bytes=[3, 5, 9])), Selection()).columns[-1]
        assert last.header == "rx_bytes (rise per s)"
        assert re.fullmatch("efa_[0-9]+_rx_bytes_per_s", last.file_key)

    @pytest.mark.campaign
    def test_missing_values_are_no_zeros(self, opened, tmp_path):
        path = efa_export(tmp_path / "m.sqlite", events_of(rx_bytes=[5, 3, 4]))
        edit(path, "UPDATE GENERIC_EVENT_DATA SET uintVal = NULL WHERE uintVal = 3")
        assert series(OpenJob(opened(path))) == {"rx_bytes": [4, 4, None, None]}

    @pytest.mark.campaign
    def test_columns_come_with_the_names(self, plugin_job):
        session = plugin_job(events_of(rx_bytes=[5])).session
        table = tables.efa_samples
        columns = [table.c[name] for name in ("row", "time", "type_id", "source", "type", "event", "field", "value")]
        assert session.rows(sa.select(*columns)) == [(1, 0, EFA_TYPE, "efa_metrics", "rdmap0s6", 1, "rx_bytes", 5.0)]


@pytest.mark.campaign
def test_each_column_read_on_demand_is_that_of_a_whole_pack(opened, tmp_path):
    path = efa_export(tmp_path / "x.sqlite", events_of(rx_bytes=[5, 6, 7], tx_bytes=[1, 0.5, 2]))
    whole, table = opened(path), tables.efa_samples
    for column in table.c:
        with closing(Session()) as single:
            single.add(path, whole=False)
            query = sa.select(column)
            assert sorted(map(str, single.rows(query))) == sorted(map(str, whole.rows(query))), column.name
            assert single.count(table) == whole.count(table) == 6
