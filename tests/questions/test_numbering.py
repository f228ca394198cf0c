"""Rank numbers as the user gives them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import two_process_export

from nsystui.base.errors import UsageError
from nsystui.questions.job import Job
from nsystui.questions.numbering import numbering


@pytest.mark.parametrize("text", ["", "3", "0,4-7", "oops"])
def test_numbers_alone_choose_ranks_and_name_none(text):
    assert numbering(text) is None


def test_a_pattern_has_the_number_in_a_group():
    given_ = numbering(r"n\d+_r(\d+)")
    assert given_ is not None and given_.numbers(["job_n0_r12", "job_n1_r3"]) == [12, 3]


def test_a_list_names_files_with_or_without_path_and_ending():
    given_ = numbering("a.sqlite=7, results/b=2")
    assert given_ is not None and given_.numbers(["b", "a"]) == [2, 7]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20, unique=True))
def test_every_list_comes_back(ranks):
    names = [f"file{place}" for place in range(len(ranks))]
    given_ = numbering(",".join(f"{name}={rank}" for name, rank in zip(names, ranks, strict=True)))
    assert given_ is not None and given_.numbers(names) == ranks


@pytest.mark.parametrize("text", ["(", "(a)(b)", "a=", "=3", "a=b", "a=1,b"])
def test_what_is_neither_is_told(text):
    with pytest.raises(UsageError, match="--ranks"):
        numbering(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [(r"rank(\d+)", "no number of a rank in the name b"), (r"(\d)", "no number"), ("a=1", "b is not in the list")],
)
def test_a_file_without_number_is_named(text, words):
    given_ = numbering(text)
    assert given_ is not None
    with pytest.raises(UsageError, match=words):
        given_.numbers(["rank1", "b"] if "d" in text else ["a", "b"])


def test_two_files_of_one_rank_are_named():
    given_ = numbering(r"_(\d)")
    assert given_ is not None
    with pytest.raises(UsageError, match="x_1 and y_1 are both rank 1"):
        given_.numbers(["x_1", "y_1"])


def test_it_overrides_what_the_exports_say(demo_job, opened):
    session = opened(*demo_job)
    job = Job(session, numbering=numbering(",".join(f"rank{rank}={10 - rank}" for rank in range(4))))
    assert [(item.rank, item.report_name) for item in job.ranks] == [
        (7, "rank3"),
        (8, "rank2"),
        (9, "rank1"),
        (10, "rank0"),
    ]
    assert {item.source for item in job.ranks} == {"--ranks"}


def test_a_report_of_several_ranks_cannot_be_numbered_by_its_name(tmp_path, opened):
    session = opened(two_process_export(tmp_path / "rank3.sqlite"))
    with pytest.raises(UsageError, match="holds 2 ranks"):
        assert Job(session, numbering=numbering(r"rank(\d+)")).ranks
