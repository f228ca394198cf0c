"""Families and precisions of kernels by their names: names of real programs, each with what it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import native, real_exports

from nsystui.base.kernel_families import FAMILIES, OTHER, family_of, precision_of

KNOWN = (Path(__file__).parent / "kernel_families.txt").read_text().splitlines()
"""A line each: full name, family, precision; ``-`` where no precision may be told, nothing where none is claimed."""


@pytest.mark.parametrize("line", KNOWN, ids=lambda line: line[:40])
def test_a_name_has_its_family_and_precision(line):
    name, family, precision = line.rsplit("|", 2)
    assert family_of(name) == family
    assert family in FAMILIES
    if precision:
        assert (precision_of(name) or "-") == precision


def test_a_users_rules_come_first():
    own = (("attention", "my_kern"), ("other", "gemm"))
    assert family_of("my_kernel_gemm(int *)", own) == "attention"
    assert family_of("volta_sgemm_128x64_nt", own) == "other"
    assert family_of("volta_sgemm_128x64_nt") == "GEMM"


def test_a_name_of_any_length_has_a_family():
    assert family_of("elementwise_kernel" * 6_000) == "elementwise"
    assert precision_of("(" * 100_000) is None


_NO_LEARNING = re.compile("jacobi|no-kernel")


@pytest.mark.parametrize("path", [path for path in real_exports() if not _NO_LEARNING.search(path.name)], ids=str)
def test_hardly_any_kernel_time_of_real_programs_is_of_no_family(path):
    query = """SELECT value, sum("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL
        JOIN StringIds ON id = demangledName GROUP BY 1"""
    rows = native(path, query)
    unknown = sum(time for name, time in rows if family_of(name) == OTHER)
    assert unknown < 0.03 * sum(time for _, time in rows)
