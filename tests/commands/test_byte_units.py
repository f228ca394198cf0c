"""An amount of bytes is binary and has a binary name, wherever the program words it; `nsystui stats` has nsys's MB.

The tables of every question are looked through in test_every_question.
"""

import re
from pathlib import Path

from synthetic import payload_export

from nsystui.cli import command_parser
from nsystui.commands import commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "nsystui/docs").glob("*.md"))]
# A rate is decimal (GB/s), and the names of GPUs are NVIDIA's.
DECIMAL = re.compile(r"(?<![A-Za-z])[kKMGT]B\b(?!/s)")
OF_NVIDIA = re.compile(r"[0-9]+GB HBM3|MB of these reports|MB of 1,000,000|`MB` are 10⁶|MB has base 1000|\"GB\"|GB\[")
MIB = 1024**2


def decimal_names(text: str) -> list[str]:
    """The lines of ``text`` in which an amount of bytes has a decimal name."""
    return [line for line in text.splitlines() if DECIMAL.search(OF_NVIDIA.sub("", line))]


def in_a_row(text: str) -> str:
    """The words of ``text`` with one blank between them: columns are padded."""
    return " ".join(text.split())


def test_a_comparison_of_memory_has_binary_names_and_the_bytes_of_both_sides(run, demo_job):
    words = ("diff", demo_job[0], "--", demo_job[1], "--tables", "memory")
    done = run(*words)
    assert decimal_names(done.out + done.err) == []
    assert "KiB" in done.out or "MiB" in done.out
    sizes = run("memory", demo_job[0], "--sizes", "--format", "json").json
    bytes_of = {row["name"]: row["total_bytes"] for row in sizes}
    assert {row["name"]: row["size_a_bytes"] for row in run(*words, "--format", "json").json} == bytes_of


def test_so_has_the_log_of_nccl(run, tmp_path):
    call = (
        "n1:1:7 [0] NCCL INFO {op}: opCount 0 sendbuff 0x1 recvbuff 0x2 count {count} datatype 7 op 0 root 0 "
        "comm 0xc1 [nranks=2] stream 0x3\n"
    )
    log = tmp_path / "nccl.log"
    log.write_text(
        call.format(op="AllReduce", count=50_331_648 // 4) + call.format(op="Reduce", count=21_744_461_113_200 // 4)
    )
    done = run("nccl-log", log, "--tables", "all")
    assert done.status == 0
    assert decimal_names(done.out + done.err) == []
    words = in_a_row(done.out)
    assert "total TiB" in words and "19.776" in words and ">16MiB" in words


def test_the_same_bytes_are_the_same_words_and_files_have_the_bytes(run, tmp_path):
    export = payload_export(tmp_path / "payload.sqlite")
    heading, _, first, *_ = map(in_a_row, run("nccl", export, "--calls", "AllReduce").out.splitlines())
    assert "bytes MiB" in heading and " 4 1MiB–16MiB " in first
    (row,) = run("nccl", export, "--calls", "AllReduce", "--format", "csv").table
    assert (row["Message Size (B)"], row["Message Size"]) == (str(4 * MIB), "1MiB–16MiB")


def test_sizes_of_memory_operations_are_bytes_but_in_stats(run, demo_job):
    found = run("memory", demo_job[0], "--sizes", "--format", "csv").table
    of_nsys = run("stats", "-r", "cuda_gpu_mem_size_sum", demo_job[0], "--format", "csv").table
    assert [f"{int(row['Total (B)']) / 1e6:.3f}" for row in found] == [row["Total (MB)"] for row in of_nsys]
    heading, _, first, *_ = map(in_a_row, run("memory", demo_job[0], "--sizes").out.splitlines())
    assert heading.startswith("total MiB ") and first.startswith(f"{int(found[0]['Total (B)']) / MIB:.3f} ")


def test_neither_help_nor_documentation_has_an_amount_with_a_decimal_name(run):
    for command in commands():
        assert decimal_names(command_parser(command).format_help()) == [], command
    for page in PAGES:
        assert decimal_names(page.read_text(encoding="utf-8")) == [], page
    assert decimal_names(run("info", "--diagnostics").out) == []


def test_the_program_has_no_such_name_in_its_texts_but_in_the_columns_of_nsys():
    package = ROOT / "nsystui"
    found = {}
    for path in sorted(package.rglob("*.py")):
        texts = re.findall(
            r'"[^"\n]*"', re.sub(r'""".*?"""|#.*', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        )
        if lines := decimal_names("\n".join(texts)):
            found[path.relative_to(package).as_posix()] = lines
    assert [path for path in found if not path.startswith("questions/stats/")] == []


def test_the_help_of_stats_says_whose_megabytes_its_reports_have():
    assert "MB of these reports are nsys's, of 1,000,000 bytes" in command_parser("stats").format_help()
