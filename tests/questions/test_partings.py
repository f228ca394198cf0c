"""Ranks that run other collectives are matched as far as they agree, and their differences are named."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from campaign import first
from support import open_job
from synthetic.ddp_job import ddp_job
from triaging import finding, ids, triaged

from nsystui.cli import main
from nsystui.questions.collectives.alignment import ClockMode
from nsystui.questions.ranks.partings import differences


def words_and_groups(paths: Sequence[Path]) -> tuple[list[str], list[tuple[int, int]]]:
    with closing(open_job(*paths)) as job:
        job.align(ClockMode.COLLECTIVES)
        groups = [(len(group.members), len(group)) for group in job.collectives().groups]
        return [words for _, _, words in differences(job)], groups


def at(*places: tuple[int, int, int]) -> Any:
    return lambda rank, step, number: (rank, step, number) in places


@pytest.mark.parametrize(
    ("ranks", "skips", "words", "groups"),
    first(1, [
        (3, at((0, 4, 1), (1, 4, 1)), ["Rank 2 runs 1 AllReduce more in step 4 (compared with ranks 0, 1)"], [(3, 39)]),
        (4, at((1, 10, 1), (2, 3, 0)), ["Rank 2 runs 1 AllReduce less in step 3 (compared with ranks 0, 1, 3)",
         "Rank 1 runs 1 AllReduce less in step 10 (compared with ranks 0, 2, 3)"], [(4, 38), (3, 1), (3, 1)]),
        (4, at((1, 10, 1)), ["Rank 1 runs 1 AllReduce less in step 10 (compared with ranks 0, 2, 3)"],
         [(4, 39), (3, 1)]),
        (2, at((1, 10, 0)), ["Rank 1 runs 1 AllReduce less in step 10 (compared with rank 0)"], [(2, 39)]),
        (3, at((2, 19, 1)), ["Rank 2 runs 1 AllReduce less in step 19 (compared with ranks 0, 1)"], [(3, 39), (2, 1)]),
        (3, at((2, 3, 1), (2, 9, 0)), ["Rank 2 runs 2 AllReduce less in 2 steps (3, 9) (compared with ranks 0, 1)"],
         [(3, 38), (2, 2)]),
    ]),
)  # fmt: skip
def test_a_rank_that_skips_collectives_is_named_with_the_steps_and_matched_elsewhere(
    tmp_path: Path, ranks: int, skips: Any, words: list[str], groups: list[tuple[int, int]]
) -> None:
    assert words_and_groups(ddp_job(tmp_path, ranks, skips=skips)) == (words, groups)


@pytest.mark.campaign
def test_late_ranks_hide_no_skipped_collective(tmp_path: Path) -> None:
    paths = ddp_job(tmp_path, skips=at((3, 10, 1)), computes=lambda rank, step: 4_000_000 if rank == 1 else 0)
    assert words_and_groups(paths)[0] == ["Rank 3 runs 1 AllReduce less in step 10 (compared with ranks 0, 1, 2)"]


@pytest.mark.campaign
@pytest.mark.parametrize("how", first(1, [
    {"captured": lambda rank: range(5 if rank == 2 else 0, 20)},
    {"captured": lambda rank: range(14 if rank == 2 else 20)},
    {"captured": lambda rank: range(1) if rank == 2 else range(20)},
    {"loses": at((2, 7, 1))},
    {"skips": at((2, 0, 0))},
]))  # fmt: skip
def test_a_collective_that_may_not_have_been_recorded_is_no_difference(tmp_path: Path, how: Any) -> None:
    paths = ddp_job(tmp_path, **how)
    assert words_and_groups(paths)[0] == []
    assert "different-collectives" not in ids(triaged(*paths))


def test_triage_and_notes_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = ddp_job(tmp_path, skips=at((1, 10, 1)))
    named = finding(triaged(*paths), "different-collectives")
    assert named.sentence == "Rank 1 runs 1 AllReduce less in step 10 (compared with ranks 0, 2, 3)."
    assert named.ranks == (1,)
    for command, *table in (("ranks", "--collectives"), ("ranks", "--kinds"), ("nccl",)):
        main([command, *map(str, paths), *table])
        assert "Rank 1 runs 1 AllReduce less in step 10" in capsys.readouterr().err
