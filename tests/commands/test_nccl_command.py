"""``nccl`` in a script: groups, sizes, single calls, steps."""

from nccl_jobs import Program

# A send and a receive share a kernel.


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
