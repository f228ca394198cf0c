"""Every grouping of the NCCL table adds up to the ungrouped one, and what its rows say is so of all behind them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_program import A, B, Program, job_of
from synthetic import instrumented_nccl_export, training_job

from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection
from nsystui.questions.job import Job
from nsystui.questions.nccl.bandwidth import in_steps
from nsystui.questions.nccl.grouping import COLUMNS, SEVERAL, By, by_of, is_of, powers_of_two
from nsystui.questions.nccl.listing import nccl_listing
from nsystui.questions.nccl.summary import KERNEL, nccl_summary

EVERYTHING = Selection()
SUMMED = ["count", "bytes", "total", "exposed"]
_ONE_SIZE = {By.SIZE, By.POW2, By.BYTES}
GROUPINGS = [chosen for size in (1, 2) for chosen in combinations(By, size) if len(_ONE_SIZE.intersection(chosen)) < 2]
GROUPINGS.append(tuple(by for by in By if by not in (By.SIZE, By.POW2)))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two ranks with payloads, and a process of instrumented calls."""
    directory = tmp_path_factory.mktemp("job")
    ranks = training_job(directory, ranks=2, steps=3, layers=4)
    job = job_of(*ranks, instrumented_nccl_export(directory / "rank2.sqlite"))
    yield job
    job.close()


def summary(job: Job, by: tuple[By, ...], selection: Selection = EVERYTHING) -> pd.DataFrame:
    pairing = in_steps(job.pairing(), job.steps())
    return nccl_summary(job.session, selection, job.ranks, pairing, by).frame()


@pytest.mark.parametrize(
    ("selection", "groupings"),
    [(EVERYTHING, GROUPINGS), (EVERYTHING.with_name("!gather"), GROUPINGS[::5])],
    ids=["all", "filtered"],
)
def test_every_grouping_adds_up_to_the_ungrouped_row(job, selection, groupings):
    whole = summary(job, (), selection).set_index("what")[SUMMED]
    assert whole["count"].to_dict()[KERNEL] > 40
    for by in groupings:
        parts = summary(job, by, selection)
        assert len(parts) > 2 or by in ((By.DATATYPE,), (By.REDUCTION,)), by
        assert not parts.duplicated(["what", *(COLUMNS[one].key for one in by)]).any(), by
        pd.testing.assert_frame_equal(parts.groupby("what")[SUMMED].sum(min_count=1).loc[whole.index], whole)


@pytest.mark.parametrize("by", [(By.COLLECTIVE, By.SIZE), (By.STEP, By.STREAM), (By.COMMUNICATOR, By.RANK, By.POW2)])
def test_every_row_opens_what_is_behind_it(job, by):
    pairing = in_steps(job.pairing(), job.steps())
    answer = nccl_summary(job.session, EVERYTHING, job.ranks, pairing, by)
    places = {column.key: place for place, column in enumerate(answer.columns)}
    for values in answer.rows:
        row = {one: values[places[COLUMNS[one].key]] for one in by}
        listed = nccl_listing(job.session, EVERYTHING, job.ranks, pairing, row, values[0])
        assert len(listed) == values[places["count"]]
        assert listed.frame()["duration"].sum() == values[places["total"]]


def test_a_column_tells_what_all_rows_share(job):
    frame = summary(job, (By.RANK,))
    kernels = frame[frame["what"] == KERNEL].set_index("rank").astype(object)
    kernels = kernels.where(kernels.notna(), None)
    assert kernels.loc[0, ["collective", "communicator", "datatype"]].tolist() == [SEVERAL, SEVERAL, None]
    assert kernels.loc[2, ["collective", "communicator", "datatype", "reduction"]].tolist() == [
        SEVERAL,
        "0xfedcba9876543210",
        "4-byte",
        SEVERAL,  # AllReduce has one, AllGather has none
    ]
    assert kernels["ranks"].tolist() == [2, 2, None]


def test_communicators_streams_and_sizes_of_one_process(tmp_path):
    program = Program(tmp_path / "program.sqlite")
    program.call("ncclCommInitRankConfig", comm=A, ranks=4)
    program.call("ncclCommInitRankConfig", comm=B, ranks=2)
    for comm, stream in ((A, 20), (B, 21)):
        for size in (1000, 1024, 1500):
            program.call("ncclAllReduce", comm=comm, size=size, launches=1, stream=stream, kernel="AllReduce")
    job = program.job()

    def kernels(by: tuple[By, ...], *keys: str) -> set[tuple[object, ...]]:
        frame = nccl_summary(job.session, EVERYTHING, job.ranks, job.pairing(), by).frame()
        return set(frame[frame["what"] == KERNEL][[*keys, "count"]].itertuples(index=False, name=None))

    assert kernels((By.COMMUNICATOR,), "communicator", "ranks") == {("0xa0", 4, 3), ("0xb0", 2, 3)}
    assert kernels((By.STREAM,), "stream", "communicator") == {(20, "0xa0", 3), (21, "0xb0", 3)}
    assert kernels((By.POW2,), "size_from") == {(512, 2), (1024, 4)}
    assert kernels((By.BYTES,), "message_size") == {(1000, 2), (1024, 2), (1500, 2)}
    job.close()


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_powers_of_two_are_exact_at_any_size(sizes):
    column = pd.Series([*sizes, None], dtype="Int64")
    expected = [1 << size.bit_length() - 1 if size else 0 for size in sizes]
    assert powers_of_two(column).tolist() == [*expected, pd.NA]


def test_edges_of_powers_of_two():
    sizes = [1, 2, 2**53 + 1, 2**60 - 1, 2**60, 2**63 - 1]
    assert powers_of_two(pd.Series(sizes, dtype="Int64")).tolist() == [1, 2, 2**53, 2**59, 2**60, 2**62]


def test_words_of_groups():
    assert by_of("rank, collective,rank") == (By.RANK, By.COLLECTIVE)
    assert by_of("") == ()
    with pytest.raises(UsageError, match="'ranks': the groups are collective, size"):
        by_of("ranks")
    with pytest.raises(UsageError, match="take one"):
        by_of("size,bytes")


def test_a_row_of_what_is_missing():
    frame = pd.DataFrame({"rank": pd.array([0, None], "Int64"), "message_size": pd.array([None, 9], "Int64")})
    assert is_of(frame, {By.RANK: None}).tolist() == [False, True]
    assert is_of(frame, {By.SIZE: None, By.RANK: 0}).tolist() == [True, False]
    assert is_of(frame, {}).tolist() == [True, True]
    assert np.array_equal(is_of(frame, {By.BYTES: 9}), [False, True])
