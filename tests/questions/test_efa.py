"""The counters of AWS's EFA plugin on the network's map: generic events, identified only by names and data."""

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import campaign
import pytest
import sqlalchemy as sa
from support import edit
from synthetic import EFA_TYPE, ExportWriter, efa_export

from nsystui.base.selection import Selection, Window
from nsystui.questions.answers.answering import ask, draw_map
from nsystui.questions.counters.efa import UNDOCUMENTED
from nsystui.questions.job.job import OpenJob
from nsystui.questions.recipes import recipe_named
from nsystui.questions.recipes.recipe import RecipeOptions
from nsystui.store import tables
from nsystui.store.session import Session

SCHEMAS = ("3.7.2", "3.25.0")
MAP = recipe_named("network_traffic_map")
SECOND = 10**9
RATE = "rdma_read_bytes per second"
Values = Mapping[str, int | float | str]


@pytest.fixture
def job(opened: Callable[..., Session], tmp_path: Path) -> Callable[..., OpenJob]:
    def make(schema: str, events: Sequence[Values], **more: Any) -> OpenJob:
        place = Path(tempfile.mkdtemp(dir=tmp_path))
        return OpenJob(opened(efa_export(place / "rank0.sqlite", schema, events, **more)))

    return make


def drawn(job: OpenJob) -> Any:
    return draw_map(MAP, job, Selection().with_window(Window(0, 4 * SECOND)), RecipeOptions(bins=4))


def series(job: OpenJob) -> dict[str, list[float | None]]:
    """Return the bins of each figure of the only line."""
    shown = drawn(job)
    assert len(shown.lines) == 1
    values = [[None if value != value else value for value in row] for row in shown.lines[0].values.tolist()]
    return dict(zip([figure.title for figure in shown.figures], values, strict=True))


def events_of(**fields: Sequence[int | float | str]) -> list[Values]:
    return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]


@pytest.mark.parametrize("schema", campaign.first(1, SCHEMAS))
class TestBothForms:
    def test_what_never_falls_is_a_total_and_anything_else_an_amount(self, job, schema):
        fields = {"rx_bytes": [100, 150, 150, 450, 450], "tx_bytes": [9, 7, 8, 5, 6], "pkts": [1, 2, 3, 4, 5]}
        found = job(schema, events_of(**fields))
        assert series(found) == {"rx_bytes (rise per s)": [50, 0, 300, 0], "tx_bytes": [7, 8, 5, 6]}
        notes = drawn(found).notes
        assert UNDOCUMENTED in notes
        assert any("running totals" in note and note.endswith(": rx_bytes") for note in notes)
        assert any("as recorded" in note and note.endswith(": tx_bytes") for note in notes)

    def test_one_step_is_no_total_and_a_rate_by_its_name_is_shown_as_it_is_however_it_rises(self, job, schema):
        found = job(schema, events_of(rx_bytes=[0, 0, 8, 8, 8], **{RATE: [1, 2, 3, 4, 5]}))
        assert series(found) == {RATE: [2, 3, 4, 5], "rx_bytes": [0, 8, 8, 8]}

    @pytest.mark.campaign
    def test_the_fields_that_nvidias_recipe_knows_or_the_name_of_the_type_tell_the_plugin(self, job, schema):
        name = "rdma_write_recv_bytes per second"
        found = job(schema, [{name: 4}, {name: 2}], source="NIC sampler", kind="nic")
        assert series(found) == {name: [2, None, None, None]}
        assert drawn(found).lines[0].label == "NIC sampler nic 3"
        found = job(schema, events_of(rx_bytes=[3, 2]), source="plugin", kind="AwsEfa")
        assert [line.label for line in drawn(found).lines] == ["plugin AwsEfa 3"]

    def test_without_an_efa_source_there_is_nothing_and_no_note(self, job, schema):
        found = job(schema, events_of(rx_bytes=[3, 2]), source="default", kind="interface")
        assert not found.session.count(tables.efa_samples)
        assert not found.session.reports[0].has(tables.efa_samples)
        assert not drawn(found).lines
        assert UNDOCUMENTED not in drawn(found).notes
        assert "efa_metrics" in " ".join(drawn(found).notes)  # what to record

    def test_names_that_say_no_bytes_are_only_named(self, job, schema):
        found = job(schema, events_of(tx_pkts=[1, 2, 3], rx_drops=[0, 0, 0]))
        assert not len(ask(MAP, found, Selection()))
        said = "no field of the EFA samples has bytes in its name; the fields are rx_drops, tx_pkts"
        assert drawn(found).notes == (UNDOCUMENTED, said)

    def test_beside_adapters_that_nsys_samples_itself(self, opened, tmp_path, schema):
        path = efa_export(tmp_path / "both.sqlite", schema, events_of(rx_bytes=[3, 2]))
        other = tmp_path / "rank1.sqlite"
        with ExportWriter(other, schema) as writer:
            writer.nic(0, "mlx5_0", [("IB: Bytes sent", "bytes/ms")])
            writer.nic_metric(0, 0, SECOND, (5,))
        shown = drawn(OpenJob(opened(path, other)))
        assert [figure.title for figure in shown.figures][-1] == "rx_bytes"
        assert [line.label for line in shown.lines] == ["mlx5_0", "efa_metrics rdmap0s6 3"]
        assert shown.lines[0].values[1, 0] == 5_000 and shown.lines[1].values[3, 0] == 2

    def test_the_table_has_a_column_for_each_counter_and_its_unit_once_in_its_name_in_files(self, job, schema):
        answer = ask(MAP, job(schema, events_of(**{"RX bytes": [3, 2], "rx_bytes": [4, 1]})), Selection())
        assert [column.header for column in answer.columns][-2:] == ["RX bytes", "rx_bytes"]
        assert len({column.key for column in answer.columns}) == len(answer.columns)
        last = ask(MAP, job(schema, events_of(rx_bytes=[3, 5, 9])), Selection()).columns[-1]
        assert last.header == "rx_bytes (rise per s)"
        assert re.fullmatch("efa_[0-9]+_rx_bytes_per_s", last.file_key)


class TestOneForm:
    def test_a_text_tells_the_device_and_large_numbers_may_be_texts(self, job):
        events = [{"device": name, "rx_bytes": value} for name, value in [("a", "5"), ("b", 7), ("a", "3"), ("b", 6)]]
        shown = drawn(job("3.7.2", events))
        assert [line.label for line in shown.lines] == ["efa_metrics rdmap0s6 a", "efa_metrics rdmap0s6 b"]
        assert shown.lines[0].values[0, :2].tolist() == [3, 3]
        assert [figure.title for figure in shown.figures] == ["rx_bytes"]

    def test_numbers_without_bytes_are_no_devices(self, job):
        shown = drawn(job("3.7.2", events_of(pkts=[1, -2, 3.5], rx_bytes=[3, 2, 1])))
        assert [line.label for line in shown.lines] == ["efa_metrics rdmap0s6 3"]

    @pytest.mark.parametrize(
        ("source", "bins"), campaign.first(1, [("CntVct", None), ("SessionNs", [2, None, None, None])])
    )
    def test_raw_times_are_taken_only_where_they_are_those_of_the_session(self, opened, tmp_path, source, bins):
        path = efa_export(tmp_path / "raw.sqlite", "3.7.2", events_of(rx_bytes=[5, 2]))
        replaced = f"replace(data, 'SessionNs', '{source}')"
        edit(path, "UPDATE GENERIC_EVENTS SET timestamp = NULL", f"UPDATE GENERIC_EVENT_SOURCES SET data = {replaced}")
        found = OpenJob(opened(path))
        if bins:
            assert series(found) == {"rx_bytes": bins}
        else:
            assert not drawn(found).lines
            assert "no time in the session" in " ".join(drawn(found).notes)

    def test_nested_fields_and_what_is_no_json(self, job, tmp_path, opened):
        path = efa_export(tmp_path / "n.sqlite", "3.7.2", [{"rx_bytes": 1}, {"rx_bytes": 2}, {"rx_bytes": 1}])
        nested = '{"port": {"rx_bytes": 4}, "ok": true}'
        edit(path, f"UPDATE GENERIC_EVENTS SET data = '{nested}' WHERE timestamp < {2 * SECOND}",
             f"UPDATE GENERIC_EVENTS SET data = '{{bad' WHERE timestamp = {2 * SECOND}")  # fmt: skip
        assert series(OpenJob(opened(path))) == {"port.rx_bytes": [4, None, None, None]}

    def test_values_that_are_there_as_json_too_count_once(self, job):
        found = job("3.25.0", events_of(rx_bytes=[3.5, 2.5]), with_json=True)
        assert series(found) == {"rx_bytes": [2.5, None, None, None]}
        assert found.session.count(tables.efa_samples) == 2

    @pytest.mark.campaign
    def test_missing_values_are_no_zeros(self, opened, tmp_path):
        path = efa_export(tmp_path / "m.sqlite", "3.25.0", events_of(rx_bytes=[5, 3, 4]))
        edit(path, "UPDATE GENERIC_EVENT_DATA SET uintVal = NULL WHERE uintVal = 3")
        assert series(OpenJob(opened(path))) == {"rx_bytes": [4, 4, None, None]}

    @pytest.mark.campaign
    def test_columns_come_with_the_names(self, job):
        session = job("3.25.0", events_of(rx_bytes=[5])).session
        table = tables.efa_samples
        columns = [table.c[name] for name in ("row", "time", "type_id", "source", "type", "event", "field", "value")]
        assert session.rows(sa.select(*columns)) == [(1, 0, EFA_TYPE, "efa_metrics", "rdmap0s6", 1, "rx_bytes", 5.0)]


@pytest.mark.campaign
@pytest.mark.parametrize("schema", SCHEMAS)
def test_each_column_read_on_demand_is_that_of_a_whole_pack(opened, tmp_path, schema):
    path = efa_export(tmp_path / "x.sqlite", schema, events_of(rx_bytes=[5, 6, 7], tx_bytes=[1, 0.5, 2]))
    whole, table = opened(path), tables.efa_samples
    for column in table.c:
        with closing(Session()) as single:
            single.add(path, whole=False)
            query = sa.select(column)
            assert sorted(map(str, single.rows(query))) == sorted(map(str, whole.rows(query))), column.name
            assert single.count(table) == whole.count(table) == (3 if schema == "3.7.2" else 6)
