"""The results of nccl-tests in a log, whole or with NCCL's lines between their parts."""

from io import BytesIO
from pathlib import Path

import pytest

from nsystui.exports.nccl_log.files import NcclTestsResult, Reported
from nsystui.exports.nccl_log.lines import LogReader

LOG = Path(__file__).parents[3] / "shared/data/nccl-logs/nccl-tests-allreduce-2gpu.log"
HEADER = (
    b"#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw\n"
)
INFO = b"n01:64904:64904 [1] NCCL INFO AllReduce: opCount 0 count 2097152 datatype 7 op 0 root 0 comm 0x55 [nranks=2]\n"
SIZE = b"     8388608       2097152     float     sum      -1"
FIRST, SECOND = b"    83.33  100.66  100.66      0", b"    80.98  103.59  103.59    N/A"


def reported(*parts: bytes) -> list[Reported]:
    reader = LogReader()
    list(reader.read(BytesIO(b"".join(parts)).read))
    return reader.reported


@pytest.mark.parametrize("between", [b"", INFO, INFO * 3])
def test_a_result_is_read_whole_or_in_parts(between):
    parts = (HEADER, SIZE, between, FIRST, between, SECOND, b"\n", INFO)
    out, inside = NcclTestsResult(83_330.0, 100.66e9, 100.66e9, 0), NcclTestsResult(80_980.0, 103.59e9, 103.59e9, None)
    ((size, *found),) = reported(*parts)
    assert size == 8388608
    assert [one[:3] for one in found] == [pytest.approx(out[:3]), pytest.approx(inside[:3])]
    assert [one.wrong for one in found] == [0, None]  # N/A: in place was not checked


def test_numbers_before_the_header_or_without_both_times_are_no_result():
    assert reported(SIZE, FIRST, SECOND, b"\n") == []
    assert reported(HEADER, SIZE, FIRST, b"\n", INFO) == []
    assert reported(HEADER, FIRST, SECOND, b"\n") == []


@pytest.mark.skipif(not LOG.exists(), reason="the real log of nccl-tests is not on this machine")
def test_a_real_log_has_a_result_of_each_size():
    with LOG.open("rb") as log:
        reader = LogReader()
        list(reader.read(log.read))
    found = reader.reported
    assert [one.size for one in found] == [1 << power for power in range(23, 34)]
    assert (found[0].size, found[0].out_of_place.time, found[0].in_place.time) == (8388608, 83_330.0, 80_980.0)
    assert (found[-2].out_of_place.time, found[-2].in_place.time) == (20_069_000.0, 20_054_000.0)
    # The log's average of the bus bandwidths, GB/s: for two ranks, size by time.
    rates = [one.size / place.time for one in found for place in (one.out_of_place, one.in_place)]
    assert sum(rates) / len(rates) == pytest.approx(178.078, rel=1e-3)
