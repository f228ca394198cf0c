"""``nccl`` as a script meets it: groups, sizes, single calls, steps."""

from pathlib import Path

import pytest
from nccl_program import Program
from synthetic import payload_export

# A send and a receive share a kernel.


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return payload_export(tmp_path_factory.mktemp("payload") / "payload.sqlite")


class TestGroups:
    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("--by", "ranks"), "the groups are collective, size, pow2"),
            (("--by", "size,pow2"), "use only one"),
            (("--bucket", "1MiB-16MiB"), "--bucket chooses single rows"),
            (("--calls", "--bucket", "1MiB"), "the buckets are <64KiB, 64KiB-1MiB"),
            (("--by", "step", "--step-range", "("), "'re:('"),
        ],
    )
    def test_what_cannot_be_asked(self, refused, payload, words, told):
        assert told in refused("nccl", payload, *words)


class TestSingleRows:
    @pytest.mark.parametrize("option", ["--calls", "--kernels", "--sizes"])
    def test_a_file_is_no_collective(self, refused, payload, option):
        assert "write the files first" in refused("nccl", option, payload)


def test_logs_tell_sizes_that_the_export_does_not(run, tmp_path):
    program = Program(tmp_path / "rank0.sqlite")
    for _ in range(2):
        program.call("ncclAllReduce", launches=1, kernel="AllReduce")
    program.export.close()
    line = "node001:5000:5000 [0] NCCL INFO AllReduce: opCount {} sendbuff 0x7 recvbuff 0x9 count {} datatype 7 op 0 "
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    for number, log in enumerate(logs):
        text = line.format(number, 100 * (number + 1)) + "root 0 comm 0x55b6 [nranks=4] stream 0x55\n"
        log.write_text(text, encoding="utf-8")
    told = run("nccl", program.export.path, "--by", "collective,bytes", "--format", "csv", "--nccl-log", *logs)
    assert [(row["What"], row["Message Size (B)"], row["Datatype"]) for row in told.table] == [
        ("kernel", "400", "fp32"), ("kernel", "800", "fp32"), ("call", "400", "fp32"), ("call", "800", "fp32"),
    ]  # fmt: skip
    assert "message sizes from the debug log, by the order of the calls: 2" in told.err


def test_a_log_that_is_not_there_is_named(refused, payload, tmp_path):
    assert "no.log" in refused("nccl", payload, "--nccl-log", tmp_path / "no.log")
