"""A pairing made of some reports at a time equals the pairing of all at once."""

from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from synthetic.demo import NcclPayloads, TrainingJob

from nsystui.questions.nccl.pairing import NcclPairing, joined
from nsystui.questions.queries import derived


@pytest.fixture(scope="module", params=[*NcclPayloads])
def exports(request, tmp_path_factory) -> list[Path]:
    """Return three reports with payloads of a layout."""
    job = TrainingJob(ranks=3, steps=2, layers=1, payload_layout=request.param, gpu_metrics=False)
    return job.write(tmp_path_factory.mktemp("three"))


def without_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with operations by their first row and categories as texts."""
    first = frame["operation"].map(frame.reset_index().groupby("operation")["index"].min())
    plain = frame.assign(operation=first.where(frame["operation"] >= 0, -1))
    return plain.astype({key: object for key in plain if isinstance(plain[key].dtype, pd.CategoricalDtype)})


@pytest.mark.campaign
def test_reports_one_at_a_time_give_the_same(exports, opened, monkeypatch):
    session = opened(*exports)
    whole = NcclPairing.load(session)
    monkeypatch.setattr(derived, "_MOST_ROWS", 1)
    apart = NcclPairing.load(session)
    assert len(whole.kernels) and len(whole.calls)
    for one, other in ((apart.kernels, whole.kernels), (apart.calls, whole.calls)):
        assert_frame_equal(without_numbers(one), without_numbers(other), check_dtype=False)
    for kernel in range(0, len(whole.kernels), 7):
        assert apart.calls_of(kernel).index.tolist() == whole.calls_of(kernel).index.tolist()


def test_what_one_report_tells_of_a_communicator_holds_for_the_others():
    def part(ranks: int | None) -> tuple[pd.DataFrame, pd.DataFrame]:
        numbers = {"operation": [0], "partner": [0], "ranks": pd.array([ranks], "Int64")}
        frame = pd.DataFrame({**numbers, "communicator": pd.Categorical(["0xa"])})
        return frame, frame.copy()

    kernels, calls = joined([part(None), part(8), part(None)])
    assert kernels["ranks"].tolist() == calls["ranks"].tolist() == [8, 8, 8]
    assert kernels["operation"].tolist() == kernels["partner"].tolist() == [0, 1, 2]
