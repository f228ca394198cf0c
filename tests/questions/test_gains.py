"""Gains of findings and of parts of a step, and the split of NCCL's blocking time, against separate sums."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic import ExportWriter
from synthetic.gpu_program import NCCL, Program
from triaging import finding, triaged

from nsystui.cli import main
from nsystui.questions.blocking.budget import Gain, Standing

US, MS = 1_000, 1_000_000
STEPS = 12


def test_the_factor_is_said_only_where_it_says_something():
    words = [Gain(won, 1_000_000, Standing.MEASURED).words for won in (2_000, 100_000, 950_000, 1_000_000)]
    assert [", 1.11 times as fast" in text for text in words] == [False, True, False, False]
    assert sum("times as fast" in text for text in words) == 1


def stepping(path: Path, gaps: list[tuple[int, int]], length: int = 20 * MS) -> Path:
    """Write steps of a kernel and a gap: the gap's length, and the time in it at which the next launch returns."""
    with ExportWriter(path) as export:
        program, now, launched = Program(export, 4711), 100 * MS, 90 * MS
        for number, (gap, after) in enumerate(gaps):
            program.step(number, (launched - 2 * US, launched + US))
            program.kernel((launched - US, launched), (now, now + length))
            now, launched = now + length + gap, now + length + after
    return path


def answer(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the rows of ``budget --by step`` by part, and its notes."""
    assert main(["budget", "--by", "step", "--format", "json", *map(str, words)]) == 0
    written = capsys.readouterr()
    return {row["part"]: row for row in json.loads(written.out)}, written.err


@pytest.mark.campaign
def test_of_idle_gaps_only_moments_before_the_launch_can_be_won_back(tmp_path):
    chosen = random.Random(1)
    gaps = [(5 * MS, chosen.randrange(500 * US, 4 * MS)) for _ in range(STEPS)]
    one = finding(triaged(stepping(tmp_path / "a.sqlite", gaps)), "idle-gaps")
    assert one.cost == 5 * MS * (STEPS - 1) and one.gain is not None
    # Nothing follows the last step.
    assert one.gain.recoverable == round(sum(after for _, after in gaps[:-1]) / STEPS)
    # The first step waits for its kernel for 10 ms and the 2 µs of its range before the launch.
    assert one.gain.iteration == round(((20 * STEPS + 5 * (STEPS - 1) + 10) * MS + 2 * US) / STEPS)
    assert (one.gain.standing, one.gain.includes) == (Standing.MEASURED, ())


@pytest.mark.campaign
def test_idle_gaps_whose_kernels_had_been_launched_can_win_nothing(tmp_path):
    assert finding(triaged(stepping(tmp_path / "a.sqlite", [(5 * MS, -MS)] * STEPS)), "idle-gaps").gain is None


@pytest.mark.campaign
def test_long_gaps_are_measured_among_thousands_of_short_ones(tmp_path):
    """There are more gaps than the program keeps: short steps have more late launches than long steps."""
    gaps = [(900 * US, 890 * US)] * 300 + [(2 * MS, 200 * US)] * 100
    one = finding(triaged(stepping(tmp_path / "a.sqlite", gaps, length=5 * MS)), "idle-gaps")
    assert one.gain is not None and one.gain.standing is Standing.MEASURED
    assert one.gain.recoverable == round(99 * 200 * US / 400)


@pytest.mark.campaign
def test_gaps_that_are_not_kept_bound_the_gain(tmp_path):
    path = stepping(tmp_path / "a.sqlite", [(900 * US, 800 * US)] * 400, length=5 * MS)
    one = finding(triaged(path, settings=["gap_ms=0.5"]), "idle-gaps")
    assert one.gain is not None and one.gain.standing is Standing.BOUNDED
    assert 399 * 800 * US / 400 <= one.gain.recoverable <= 399 * 900 * US / 400


@pytest.mark.campaign
def test_slow_steps_could_be_as_fast_as_the_median(tmp_path):
    with ExportWriter(tmp_path / "a.sqlite") as export:
        program, now = Program(export, 4711), 100 * MS
        for number in range(20):
            length = 60 * MS if number in (7, 15) else 20 * MS
            program.step(number, (now - 2 * US, now))
            program.kernel((now - US, now), (now, now + length))
            now += length
    one = finding(triaged(tmp_path / "a.sqlite"), "slow-steps")
    assert one.gain is not None and one.cost == 2 * 40 * MS
    assert (one.gain.recoverable, one.gain.iteration) == (4 * MS, 24 * MS + 2 * US // 20)
    assert (one.gain.speedup, one.gain.standing) == (pytest.approx(24 / 20), Standing.BOUNDED)
    assert "dominant-kernel" not in one.gain.includes


@pytest.mark.campaign
def test_gains_of_other_times_are_not_included(tmp_path):
    """The gains of long gaps and of slow steps are different times if the gaps lie in other steps."""
    gaps = [(5 * MS, 4 * MS)] * 20
    with ExportWriter(tmp_path / "a.sqlite") as export:
        program, now, launched = Program(export, 4711), 100 * MS, 90 * MS
        for number, (gap, after) in enumerate(gaps):
            is_slow = number in (7, 15)
            program.step(number, (launched - 2 * US, launched + US))
            program.kernel((launched - US, launched), (now, now + (100 if is_slow else 20) * MS))
            now += (100 if is_slow else 20) * MS
            without = is_slow or number + 1 in (7, 15)  # a step begins within the gap before it
            launched, now = (now - 2 * MS, now) if without else (now + after, now + gap)
    found = triaged(tmp_path / "a.sqlite")
    gains = {one.id: one.gain for one in found.findings if one.gain is not None}
    assert {"idle-gaps", "slow-steps"} <= gains.keys()
    assert "slow-steps" not in gains["idle-gaps"].includes and "idle-gaps" not in gains["slow-steps"].includes


@pytest.mark.campaign
def test_each_part_that_blocks_says_what_it_could_win(tmp_path, capsys):
    rows, _ = answer(capsys, stepping(tmp_path / "a.sqlite", [(5 * MS, 4 * MS)] * STEPS))
    whole, starved, stalled = (rows[part] for part in ("iteration", "late launches", "stalled"))
    for row, standing in ((starved, "measured"), (stalled, "inferred")):
        assert row["recoverable_ns"] == round(row["total_ns"] / STEPS) and row["standing"] == standing
        assert row["speedup"] == pytest.approx(whole["total_ns"] / (whole["total_ns"] - row["total_ns"]), abs=1e-4)
    for part in ("iteration", "GPU busy", "GPU idle", "without compute", "compute"):
        assert [rows[part][key] for key in ("recoverable_ns", "speedup", "standing")] == [None] * 3


Spans = list[tuple[int, int]]


SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"


def ranks_with_jitter(directory: Path, extra: Sequence[int] = (0, 0, 0)) -> tuple[list[Path], list[Spans], list[Spans]]:
    """Three ranks that arrive at random at an all-reduce of each step, whose next kernel waits for it.

        Returns for each rank the spans of its all-reduces and the spans without compute; µs. ``extra``: the number of
    broadcasts that follow on each rank.
    """
    chosen, ranks = random.Random(3), 3
    work = [chosen.sample(range(20, 200, 30), ranks) for _ in range(STEPS)]
    transfers = [chosen.randrange(15, 40) for _ in range(STEPS)]
    paths, reduces, idle = [], [[] for _ in range(ranks)], [[] for _ in range(ranks)]
    for rank in range(ranks):
        paths.append(directory / f"rank{rank}.sqlite")
        with ExportWriter(paths[-1]) as export:
            program, begin = Program(export, 100 + rank), 1_000
            for number, (own, transfer) in enumerate(zip(work, transfers, strict=True)):
                at, end, called = begin + own[rank], begin + max(own) + transfer, 20 * number
                program.step(number, (called * US, (called + 19) * US))
                program.kernel(((called + 1) * US, (called + 2) * US), (begin * US, at * US))
                program.kernel(((called + 3) * US, (called + 4) * US), (at * US, end * US), name=NCCL)
                reduces[rank].append((at, end))
                idle[rank].append((at, end))
                for again in range(extra[rank]):
                    span, call = (end * US, (end + 3) * US), ((called + 5 + again) * US, (called + 6 + again) * US)
                    program.kernel(call, span, name=NCCL.replace("AllReduce_Sum_f32", "Broadcast"))
                    idle[rank].append((end, end + 3))
                begin = end + 10
    return paths, reduces, idle


@pytest.mark.campaign
@pytest.mark.parametrize("extra", [(0, 0, 0), (1, 1, 1), (0, 0, 1)], ids=["alike", "broadcasts", "one differs"])
def test_time_blocked_by_nccl_is_split_by_who_came_last(tmp_path, capsys, extra):
    paths, reduces, idle = ranks_with_jitter(tmp_path, extra)
    matched = [rank for rank in range(3) if extra[rank] == extra[0]]
    last = [max(reduces[rank][number][0] for rank in matched) for number in range(STEPS)]
    sums = dict.fromkeys(("transfer", "waiting", "not split"), 0)
    for rank, spans in enumerate(idle):
        for moment in (moment for start, end in spans for moment in range(start, end)):
            number = next((place for place, (low, high) in enumerate(reduces[rank]) if low <= moment < high), None)
            is_known = rank in matched and number is not None
            sums["not split" if not is_known else "transfer" if moment >= last[number or 0] else "waiting"] += 1
    rows, notes = answer(capsys, *paths)
    for name, time in sums.items():
        assert rows.get(f"blocked by NCCL: {name}", {"total_ns": 0})["total_ns"] == time * US, name
    assert rows["blocked by NCCL"]["total_ns"] == sum(sums.values()) * US
    others = STEPS * (sum(extra) + 3 - len(matched))
    assert f" of {STEPS} collectives ({others} kernels belong to no matched collective)" in notes
    late = [sum(last[number] == reduces[rank][number][0] for number in range(STEPS)) for rank in matched]
    assert f"arrived last in {max(late)} of {STEPS} collectives" in notes


@pytest.mark.campaign
def test_with_one_rank_open_nccl_is_not_split(tmp_path, capsys):
    paths, _, idle = ranks_with_jitter(tmp_path)
    rows, notes = answer(capsys, paths[1])
    assert rows["blocked by NCCL"]["total_ns"] == sum(end - start for start, end in idle[1]) * US
    assert not [part for part in rows if ": " in part]
    assert "blocked by NCCL is not split into transfer and waiting: no two open ranks share its collectives" in notes


def test_what_sends_and_receives_blocked_is_told_beside_the_other_collectives(tmp_path, capsys):
    with ExportWriter(tmp_path / "stage.sqlite") as export:
        program, waited = Program(export, 100), []
        for number, name in enumerate((SEND_RECV, NCCL, SEND_RECV)):
            begin, called = 1_000 * number * US, 100 * number * US
            program.step(number, (called, called + 90 * US))
            program.kernel((called + US, called + 2 * US), (begin + 100 * US, begin + 200 * US))
            program.kernel(
                (called + 3 * US, called + 4 * US), (begin + 200 * US, begin + (300 + number) * US), name=name
            )
            program.kernel((called + 5 * US, called + 6 * US), (begin + (300 + number) * US, begin + 500 * US))
            waited.append((name, (100 + number) * US))
    rows, _ = answer(capsys, tmp_path / "stage.sqlite")
    assert rows["blocked by NCCL"]["total_ns"] == sum(time for _, time in waited)
    sent = sum(time for name, time in waited if name == SEND_RECV)
    assert rows["blocked by NCCL: send and receive"]["total_ns"] == sent
