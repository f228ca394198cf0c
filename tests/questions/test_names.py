"""Names of NVTX ranges, folded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsystui.questions.names import fold_suffix


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("aten::copy_, op_id = 998952", "aten::copy_"),
        ("aten::mul, seq = 45328, op_id = 990726", "aten::mul"),
        ("aten::mm, op_id = 3, seq = 4", "aten::mm"),
        ("aten::addmm, sizes = [[64], [32, 128], [128, 64], [], []]", "aten::addmm"),
        ("MmBackward0, seq = 12, sizes = [[2, 3]], input_op_ids = [(1,0)]", "MmBackward0"),
        ("nccl:all_to_all, op_id = 991144", "nccl:all_to_all"),
        ("forward", "forward"),
        ("step 0", "step 0"),
        ("copy, sequence = 3", "copy, sequence = 3"),
        ("size, sizes of things", "size, sizes of things"),
        (", seq = 1", ""),
        ("", ""),
    ],
)
def test_the_part_that_changes_from_call_to_call_goes(name: str, folded: str) -> None:
    assert fold_suffix(name) == folded


@given(st.text(), st.sampled_from([", seq = ", ", op_id = ", ", sizes = "]), st.text())
def test_folding_keeps_a_beginning_and_has_nothing_left_to_fold(name: str, suffix: str, rest: str) -> None:
    folded = fold_suffix(name + suffix + rest)
    assert name.startswith(folded)
    assert fold_suffix(folded) == folded
