"""Families and precisions of kernels by their names: names of real programs, each with its family."""

import re
from pathlib import Path

import pytest
from support import native, native_count, real_exports

from nsystui.base.kernel_families import COMMUNICATION, FAMILIES, OTHER, family_of, is_communication, precision_of

KNOWN = (Path(__file__).parent / "kernel_families.txt").read_text().splitlines()
"""Lines of full name, family and precision: ``-`` if the name shows none, nothing if it is not tested."""


@pytest.mark.parametrize("line", KNOWN, ids=lambda line: line[:40])
def test_a_name_has_its_family_and_precision(line):
    name, family, precision = line.rsplit("|", 2)
    assert family_of(name) == family
    assert family in FAMILIES
    assert is_communication(name) == (family == COMMUNICATION)
    if precision:
        assert (precision_of(name) or "-") == precision


def test_a_users_rules_come_first():
    own = (("attention", "my_kern"), ("other", "gemm"))
    assert family_of("my_kernel_gemm(int *)", own) == "attention"
    assert family_of("volta_sgemm_128x64_nt", own) == "other"
    assert family_of("volta_sgemm_128x64_nt") == "GEMM"
    assert is_communication("halo_exchange", (("communication", "halo"),))
    assert not is_communication("multimem_all_reduce", (("attention", "multimem"),))


def test_a_name_of_any_length_has_a_family():
    assert family_of("elementwise_kernel" * 6_000) == "elementwise"
    assert precision_of("(" * 100_000) is None


def test_hardly_any_kernel_time_of_programs_with_a_framework_is_of_no_family():
    """Frameworks: PyTorch, cuDNN, NCCL."""
    query = """SELECT value, time FROM StringIds JOIN (SELECT demangledName, sum("end" - start) AS time
        FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1) ON id = demangledName"""
    shares = {}
    for path in real_exports(of_every_kind=True):
        rows = native(path, query) if native_count(path, "CUPTI_ACTIVITY_KIND_KERNEL") else []
        if any(re.search("at::native|cudnn|nccl", name) for name, _ in rows):
            unknown = sum(time for name, time in rows if family_of(name) == OTHER)
            shares[path.stem] = unknown / sum(time for _, time in rows)
    if not shares:
        pytest.skip("the real exports are not on this machine")
    assert len(shares) >= 7
    assert {name: share for name, share in shares.items() if share > 0.03} == {}
