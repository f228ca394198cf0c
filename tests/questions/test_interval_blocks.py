"""Intervals in blocks say the same as plain ones, however they were put together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsystui.base.selection import Task, Window
from nsystui.questions.algebra import interval_blocks
from nsystui.questions.algebra.interval_blocks import NO_BLOCKS, BlockBuilder, UnionBuilder, blocks_of, slices, without
from nsystui.questions.algebra.intervals import EMPTY, Intervals, covered_per_bin, intersect, merge, subtract, union
from nsystui.questions.gpu.device_time import BusyParts, Device, DeviceIntervals
from nsystui.questions.queries.tasks import RankedTask

# Gaps and lengths on both sides of what 32 bits hold.
STEPS = st.one_of(
    st.integers(1, 20), st.sampled_from([2**16 - 1, 2**16, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**32 + 5])
)
TASK = RankedTask(Task(0, 1), 0, "order", None, "host", 1, "python", "run", (0,), ())
SETS = st.lists(st.tuples(STEPS, STEPS), max_size=30)
RANGES = st.lists(st.tuples(st.integers(-40, 40), st.integers(-40, 40)), max_size=30)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three intervals, so that a few intervals are many blocks."""
    monkeypatch.setattr(interval_blocks, "BLOCK", 3)
    monkeypatch.setattr(interval_blocks, "_PENDING", 7)
    monkeypatch.setattr(interval_blocks, "_SLICE", 2)


def made(steps: list[tuple[int, int]], start: int = -50) -> Intervals:
    """Intervals from (gap, length) pairs."""
    edges = start + np.cumsum(np.array(steps, np.int64).reshape(-1))
    return Intervals(edges[::2].copy(), edges[1::2].copy())


@pytest.mark.usefixtures("small_blocks")
class TestBlocks:
    @pytest.mark.campaign
    @given(SETS)
    def test_they_hold_the_same_intervals(self, steps):
        plain = made(steps)
        packed = blocks_of(plain)
        assert packed.whole() == plain
        assert packed.length == plain.length
        parts = list(packed.parts())
        assert np.concatenate([part.starts for part in parts] or [EMPTY.starts]).tolist() == plain.starts.tolist()
        assert np.concatenate([part.ends for part in parts] or [EMPTY.ends]).tolist() == plain.ends.tolist()
        assert all(part.dtype == np.uint16 for steps in packed.steps for part in steps)

    @pytest.mark.campaign
    @given(SETS, st.lists(STEPS, min_size=2, max_size=2), st.integers(1, 7))
    def test_windows_and_bins_are_those_of_plain_intervals(self, steps, window, bins):
        plain, (lo, hi) = made(steps), sorted(window)
        packed = blocks_of(plain)
        assert packed.clip(lo, hi) == plain.clip(lo, hi)
        assert packed.length_within(lo, hi) == plain.clip(lo, hi).length
        assert np.array_equal(packed.covered_per_bin(lo, hi, bins), covered_per_bin(plain.clip(lo, hi), lo, hi, bins))

    @pytest.mark.campaign
    @given(SETS, SETS)
    def test_what_is_shared_and_what_is_left_are_those_of_plain_intervals(self, steps, others):
        plain, other = made(steps), made(others, -20)
        packed = blocks_of(plain)
        assert packed.shared_with(other) == intersect(plain, other).length
        assert without(packed, other).whole() == subtract(plain, other)

    @pytest.mark.campaign
    @given(SETS, st.integers(-(2**40), 2**40))
    def test_shifting_moves_every_interval(self, steps, offset):
        plain = made(steps)
        assert blocks_of(plain).shifted(offset).whole() == Intervals(plain.starts + offset, plain.ends + offset)

    def test_nothing_is_empty_and_impossible_windows_are_refused(self):
        assert blocks_of(EMPTY).whole() == NO_BLOCKS.whole() == EMPTY
        assert NO_BLOCKS.length_within(0, 10) == NO_BLOCKS.length_within(10, 0) == 0
        assert NO_BLOCKS.covered_per_bin(0, 10, 2).tolist() == [0.0, 0.0]
        with pytest.raises(ValueError, match="ends"):
            NO_BLOCKS.covered_per_bin(10, 0, 2)
        with pytest.raises(ValueError, match="bin"):
            NO_BLOCKS.covered_per_bin(0, 10, 0)


class TestBuilding:
    @pytest.mark.campaign
    @given(SETS, st.lists(st.integers(0, 30), max_size=4))
    def test_parts_that_were_cut_anywhere_become_one_again(self, steps, cuts):
        plain = made(steps)
        if not len(plain):
            return
        inside = [int(plain.starts[cut % len(plain)]) + 1 for cut in cuts]
        edges = sorted({int(plain.starts[0]), *inside, int(plain.ends[-1])})
        builder = BlockBuilder()
        for lo, hi in pairwise(edges):
            builder.append(plain.clip(lo, hi))
        assert builder.blocks().whole() == plain

    @pytest.mark.campaign
    @given(st.lists(RANGES, max_size=5))
    def test_a_union_of_batches_is_the_union_of_all(self, batches):
        builder = UnionBuilder()
        for batch in batches:
            starts, ends = np.array(batch, np.int64).reshape(-1, 2).T
            builder.add(starts, ends)
        everything = [pair for batch in batches for pair in batch]
        expected = union([start for start, _ in everything], [end for _, end in everything]) if everything else EMPTY
        assert builder.blocks().whole() == expected

    @pytest.mark.campaign
    @given(st.lists(SETS, min_size=1, max_size=3))
    def test_slices_hold_everything_once(self, sets):
        plain = [made(steps) for steps in sets]
        builders = [BlockBuilder() for _ in plain]
        for parts in slices([blocks_of(one) for one in plain]):
            for builder, part in zip(builders, parts, strict=True):
                builder.append(part)
        assert [builder.blocks().whole() for builder in builders] == plain

    @given(SETS, st.lists(STEPS, min_size=2, max_size=2))
    def test_slices_of_a_window_hold_what_lies_in_it(self, steps, window):
        plain, (lo, hi) = made(steps), sorted(window)
        builder = BlockBuilder()
        for (part,) in slices([blocks_of(plain)], (lo, hi)):
            builder.append(part)
        assert builder.blocks().whole() == plain.clip(lo, hi)


@pytest.mark.usefixtures("small_blocks")
class TestDeviceGaps:
    @pytest.mark.campaign
    @given(SETS, SETS, st.lists(STEPS, min_size=2, max_size=2))
    def test_gaps_lie_between_the_first_and_the_last_work(self, kernels, copies, window):
        parts = BusyParts.of(blocks_of(made(kernels)), NO_BLOCKS, blocks_of(made(copies, -20)), NO_BLOCKS)
        lo, hi = sorted(window)
        device = DeviceIntervals(Device(TASK, 0, None, None), Window(lo, hi), parts)
        active = merge(made(kernels), made(copies, -20)).clip(lo, hi)
        span = device.worked(Window(lo, hi))
        if not len(active):
            assert span is None
            assert not len(device.gaps(Window(lo, hi)))
            return
        assert span == Window(int(active.starts[0]), int(active.ends[-1]))
        assert device.gaps(Window(lo, hi)).whole() == active.gaps(span.start, span.end)


@given(
    st.lists(st.sampled_from([0, 1, 0xFFFF, 0x10000, 0x12345678, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF), min_size=2)
)
def test_steps_of_up_to_32_bits_are_kept(steps):
    found = interval_blocks.EdgeSteps.of(np.array([0, *steps[1:]], np.int64)).edges(7)
    assert found.tolist() == np.cumsum([7, *steps[1:]]).tolist()


def test_large_sets_look_at_few_blocks(monkeypatch):
    monkeypatch.undo()
    starts = np.arange(0, 10**7, 10)
    packed = blocks_of(Intervals(starts, starts + 4))
    looked_at, blocks = [], interval_blocks.IntervalBlocks
    edges_of = blocks._edges_of
    monkeypatch.setattr(blocks, "_edges_of", lambda self, block: looked_at.append(block) or edges_of(self, block))
    assert packed.covered_per_bin(0, 10**7, 10).tolist() == [400_000.0] * 10
    assert len(looked_at) <= 11
    assert sum(part.nbytes for steps in packed.steps for part in steps) == 4 * len(starts)
