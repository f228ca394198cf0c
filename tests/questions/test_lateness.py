"""Verdicts on collectives, and causes of late ranks."""

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from campaign import first
from support import open_job
from synthetic.ddp_job import MS, OfStep, ddp_job
from triaging import finding, ids, told, triaged

from nsystui.base.selection import Selection
from nsystui.questions.collectives.alignment import ClockMode
from nsystui.questions.collectives.waiting import collective_kinds, collective_operations
from nsystui.questions.compare import Side, summary
from nsystui.questions.nccl.summary import nccl_summary
from nsystui.questions.triage.run import triage


def on(rank: int, time: int, steps: range | tuple[int, ...] = range(20)) -> OfStep:
    return lambda of_rank, step: time if of_rank == rank and step in steps else 0


@pytest.mark.campaign
@pytest.mark.parametrize(("how", "verdict"), first(1, [
    ({"computes": on(3, 5 * MS), "transfer": 5_000}, "skew: rank 3"),
    ({"computes": on(1, 30 * MS, (7, 13))}, "skew: rank 1, a few steps"),
    ({"computes": lambda rank, step: 9 * MS if rank == 2 + step % 2 else 0}, "skew: ranks 2, 3"),
    ({"computes": lambda rank, step: 9 * MS * (rank in (1, 3))}, "skew: ranks 1, 3"),
    ({"computes": lambda rank, step: 9 * MS * (rank > 0) + MS * (step % 3 == rank)}, "skew: ranks 1, 2, 3"),
    ({"computes": on(0, 2 * MS)}, "mixed"),
    ({}, "transfer-bound"),
    ({"computes": lambda rank, step: 9 * MS if step % 4 == rank else 0}, "skew: rotating"),
    ({"size": 8}, "unknown"),
]))  # fmt: skip
def test_a_collective_transfers_or_waits_if_all_ranks_are_open(tmp_path: Path, how: Any, verdict: str) -> None:
    job = open_job(*ddp_job(tmp_path, **how))
    job.align(ClockMode.COLLECTIVES)
    everything, collectives = Selection(), job.collectives()
    assert collective_kinds(everything, job.ranks, collectives).cells("verdict") == [verdict]
    assert nccl_summary(job, everything, job.pairing(), what="kernel").cells("verdict") == [verdict]
    single = set(collective_operations(everything, job.ranks, collectives).cells("verdict"))
    assert single <= {"skew", "transfer-bound", "mixed", "unknown"}
    assert single == {"unknown"} or verdict != "unknown"


@pytest.mark.parametrize(("how", "says", "advises"), first(1, [
    ({"loads": on(2, 30 * MS)}, "at 20 of 40 collectives: its data loader takes 30 ms longer a step.", "Load on"),
    ({"loads": on(2, 30 * MS), "loader": "prepare"}, ": its GPU idles 30 ms longer a step.", "on the CPU"),
    ({"loads": on(2, 30 * MS), "loader": "x", "fills": "stall"}, ": its GPU idles 30 ms longer a step.", "by pair"),
    ({"loads": on(2, 30 * MS), "loader": "x", "fills": "copy"}, ": its copies take 30 ms longer", "pinned"),
    ({"loads": on(2, 30 * MS), "loader": "x", "fills": "host"}, ": its host functions take 30 ms", "a thread"),
    ({"computes": on(2, 30 * MS), "kernel": "odd"}, "Only odd takes longer there", "Compare the inputs of odd"),
    ({"computes": on(2, 30 * MS)}, ": its kernels take 30 ms longer a step.", "exclude its node"),
    ({"computes": on(2, 30 * MS), "clock": lambda rank: 1200 if rank == 2 else 1755},
     "The clock of this GPU is 1,200 MHz, of the others 1,755 MHz.", "power cap"),
    ({"computes": on(2, 90 * MS, (7, 13))}, ": its kernels take 90 ms longer in 2 of 20 steps (7, 13).", "Compare"),
    ({"loads": on(2, 90 * MS, (7, 13))}, ": its data loader takes 90 ms longer in 2 of 20 steps (7, 13)", "Load"),
]))  # fmt: skip
def test_a_late_rank_has_one_cause_and_one_finding(tmp_path: Path, how: Any, says: str, advises: str) -> None:
    found = triaged(*ddp_job(tmp_path, **how))
    told(finding(found, "straggler"), "Rank 2 (host) arrives last", says, advises=[advises])
    assert ids(found).isdisjoint({"slow-steps", "imbalance"})
    if how.get("loads", on(0, 0))(2, 0) > 20 * MS:
        assert "input-pipeline" not in ids(found)
        assert all(item.under == "straggler" for item in found.findings if item.id == "idle-gaps")


@pytest.mark.parametrize(("how", "says", "advises"), [
    ({"ranks": 2, "computes": on(1, 30 * MS)}, "Rank 1 (host) arrives last", ["exclude its node"]),
    ({"computes": on(2, 300 * MS, (0,))}, "its kernels take 300 ms longer in 1 of 20 steps (0).", []),
    ({"computes": lambda rank, step: (5 * rank + 3 * step) % 4 * 500_000 + 60 * MS * (rank == 1 and step % 2)},
     "longer in 10 of 20 steps (1, 3, 5 and", []),
], ids=["one of two ranks", "at the first collective", "in every second step"])  # fmt: skip
def test_a_straggler_is_named_with_its_steps(tmp_path: Path, how: Any, says: str, advises: list[str]) -> None:
    found = triaged(*ddp_job(tmp_path, **how), rules=("stragglers",))
    told(finding(found, "straggler"), says, advises=advises)


@pytest.mark.campaign
def test_a_rank_that_is_last_as_often_for_less_time_is_mentioned(tmp_path: Path) -> None:
    def compute(rank: int, step: int) -> int:
        return 30 * MS * (rank == 2 and step % 2 == 0) + MS * (rank == 1 and step % 2)

    text = finding(triaged(*ddp_job(tmp_path, computes=compute)), "straggler").sentence
    assert "Rank 2 (host) arrives last at 10 of 40 collectives, another rank at 10 for less time" in text


@pytest.mark.parametrize(("late", "how", "says"), first(1, [
    ((2, 3), "loads", "Ranks 2, 3 (host) arrive last at 20 of 40 collectives: their data loaders take 30"),
    ((1, 3), "computes", "Ranks 1, 3 (host) arrive last at 20 of 40 collectives: their kernels take 30"),
]))  # fmt: skip
@pytest.mark.campaign
def test_ranks_that_are_late_together_are_one_finding(tmp_path: Path, late: Any, how: str, says: str) -> None:
    jitter = lambda rank, step: (7 * rank + 3 * step) % 5 * 30_000 + 30 * MS * (rank in late)  # noqa: E731
    found = triaged(*ddp_job(tmp_path, **{how: jitter}))
    told(finding(found, "straggler"), says, "Each other GPU loses 60")
    assert finding(found, "straggler").ranks == late
    assert ids(found).isdisjoint({"imbalance", "input-pipeline"})


def test_ranks_that_are_late_together_may_have_several_causes(tmp_path: Path) -> None:
    found = triaged(*ddp_job(tmp_path, loads=on(1, 30 * MS), computes=on(3, 30 * MS)))
    says = ": rank 1 because its data loader takes 30 ms longer a step, rank 3 because its kernels take 30 ms longer a"
    told(finding(found, "straggler"), "Ranks 1, 3 (host)", says, advises=["all of these causes"], never=["as many"])
    assert ids(found).isdisjoint({"input-pipeline"})


@pytest.mark.parametrize(
    ("extra", "saved"),
    first(1, [((0, 20, 30, 0), 10), ((0, 0, 30, 0), 30), ((0, 0, 30, 30), 30), ((5, 10, 15, 40), 25)]),
)
def test_a_step_gets_shorter_until_the_next_rank_is_the_last(tmp_path: Path, extra: Any, saved: int) -> None:
    """A late rank as fast as the others saves more than the mean GPU waits, and less if another is late."""
    gain = finding(triaged(*ddp_job(tmp_path, computes=lambda rank, step: extra[rank] * MS)), "straggler").gain
    assert gain is not None and gain.recoverable == pytest.approx(saved * MS, rel=0.02)


@pytest.mark.parametrize(("how", "saved"), first(1, [({}, 30.94), ({"computes": on(3, 40 * MS)}, 0.94)]))
def test_what_delays_a_late_rank_could_save_what_the_others_wait(tmp_path: Path, how: Any, saved: float) -> None:
    """All ranks wait 0.9 ms a step for the GIL, one waits 30 ms more, which counts unless another rank is later."""
    gain = finding(triaged(*ddp_job(tmp_path, loads=on(2, 30 * MS), loader="x", fills="gil", **how)), "gil-held").gain
    assert gain is not None and gain.recoverable == pytest.approx(saved * MS, rel=0.01)
    assert gain.includes[-1] == "straggler"


def test_ranks_that_are_late_in_turn_are_findings_of_their_own(tmp_path: Path) -> None:
    found = triaged(*ddp_job(tmp_path, computes=lambda rank, step: 30 * MS * (rank == 2 + step % 2)))
    assert [item.ranks for item in found.findings if item.id == "straggler"] == [(2,), (3,)]
    for gain in (item.gain for item in found.findings if item.gain is not None):
        assert len(gain.includes) == len({*gain.includes})


@pytest.mark.campaign
def test_two_slow_steps_are_the_ranks_own_and_no_reason_to_exclude_its_node(tmp_path: Path) -> None:
    paths = ddp_job(tmp_path, computes=on(2, 90 * MS, (7, 13)))
    told(finding(triaged(*paths), "straggler"), never=["node", "slower"])
    slow = finding(triaged(*paths, settings=["straggler_percent=90"]), "slow-steps")
    assert slow.ranks == (2,)
    told(slow, advises=["Rank 2 arrives last"], never=["all ranks share"])


@pytest.mark.campaign
def test_slow_steps_of_all_ranks_stay_a_finding_beside_a_straggler(tmp_path: Path) -> None:
    everyone = ddp_job(tmp_path, computes=lambda rank, step: 90 * MS if step in (7, 13) else 8 * MS * (rank == 2))
    found = triaged(*everyone)
    assert {"slow-steps", "straggler"} <= ids(found)
    told(finding(found, "slow-steps"), advises=["all ranks share"])


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "is_slow"), first(2, [
    *(("Trainer.evaluate", False), ("autograd::engine::evaluate_function: AddBackward0", True)),
    *(("val_step 3", False), ("next_batch", True)),
]))  # fmt: skip
def test_steps_that_evaluate_are_not_slow(tmp_path: Path, name: str, is_slow: bool) -> None:
    everyone = ddp_job(tmp_path, loads=lambda rank, step: 90 * MS * (step in (7, 13)), loader=name)
    assert ("slow-steps" in ids(triaged(*everyone))) == is_slow


@pytest.mark.campaign
def test_the_usual_wait_for_data_stays_a_finding_beside_a_late_loader(tmp_path: Path) -> None:
    found = triaged(*ddp_job(tmp_path, loads=lambda rank, step: 20 * MS + 20 * MS * (rank == 2)))
    told(finding(found, "straggler"), "its data loader takes 20 ms longer a step")
    usual = finding(triaged(*ddp_job(tmp_path / "alike", loads=lambda rank, step: 20 * MS)), "input-pipeline").cost
    assert finding(found, "input-pipeline").cost == pytest.approx(usual, rel=0.01)


def test_ranks_are_not_compared_with_a_rank_that_lacks_kernels_even_if_it_is_not_selected(tmp_path: Path) -> None:
    loses = lambda rank, step, number: (rank, step, number) == (3, 5, 1)  # noqa: E731
    with closing(open_job(*ddp_job(tmp_path, loads=on(2, 30 * MS), loses=loses))) as job:
        for selection in (Selection(), Selection(tasks=job.tasks_of_ranks(frozenset({1, 2})))):
            unjudged = {rule.rule: rule.why for rule in triage(job, selection).not_checked}
            for name in ("straggler, imbalance", "small-messages"):
                assert unjudged[name] == "compares ranks, and work or its true times are unknown on rank 3"


@pytest.mark.parametrize(("how", "ranks", "says"), first(1, [
    ({"computes": on(2, 30 * MS)}, (1, 2),
     "Rank 2 computes 30 ms longer a step than rank 1; the others wait for it: straggler. A step takes"),
    ({"computes": on(2, 30 * MS)}, (0, 1),
     "Rank 0 and rank 1 differ by less than 1 % of a step in every part; both wait for rank 2. A step takes"),
    ({"loads": on(2, 30 * MS)}, (2, 1),
     "Rank 2 idles 30 ms longer a step than rank 1; the others wait for it: straggler. A step takes"),
    ({"computes": on(2, 30 * MS, (7, 13))}, (1, 2), "Rank 2 computes 3 ms longer a step than rank 1; the oth"),
    ({"computes": lambda rank, step: 9 * MS * (step % 4 == rank)}, (0, 1),
     "Rank 0 and rank 1 differ by less than 1 % of a step in every part. A step takes"),
]))  # fmt: skip
def test_ranks_that_take_the_same_time_are_compared_by_what_differs(
    tmp_path: Path, how: Any, ranks: tuple[int, int], says: str
) -> None:
    job = open_job(*ddp_job(tmp_path, **how))
    a, b = (Side(job, Selection(tasks=job.tasks_of_ranks(frozenset({rank}))), "") for rank in ranks)
    assert summary(a, b).headline.startswith(says)


@pytest.mark.campaign
def test_a_step_is_longer_by_the_same_time_in_triage_and_comparison(demo_job: list[Path]) -> None:
    """The demo's compute overlaps with collectives."""
    job = open_job(*demo_job)
    *others, late = (Side(job, Selection(tasks=job.tasks_of_ranks(frozenset({rank}))), "") for rank in (0, 1, 3, 2))
    sentence = finding(triaged(*demo_job, settings=["straggler_percent=0.1"]), "straggler").sentence
    [longer] = re.findall("its kernels take (.* longer a step).", sentence)
    assert any(f"computes {longer} than rank" in summary(side, late).headline for side in others)
